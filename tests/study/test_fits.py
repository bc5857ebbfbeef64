"""Units of fits: their names and identities, and mistakes in their plans."""

import pytest
from fit_plans import DIRICHLET, LANGUAGE, LAW, units
from softmax_bottleneck import study as config
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study.fits import FitPlan


def test_units_are_named_by_what_they_are():
    first, second = units(DIRICHLET), units(DIRICHLET, alphas=[0.5, 1], seeds=[3])
    assert [unit.name for unit in second] == ["alpha0.5-M8", "alpha1-M8"]
    assert len({unit.path for unit in (*first, *second)}) == 3
    more = units(DIRICHLET, widths=[2, 3])[0]
    assert (more.law_id, more.path != first[0].path) == (first[0].law_id, True)
    assert {fit.file_name for fit in first[0].fits} < {fit.file_name for fit in more.fits}
    assert units(DIRICHLET, updates=21)[0].law_id != first[0].law_id
    labels = config.read(FitPlan, LANGUAGE, "fits.toy").labels
    assert labels == {"softmax": "Softmax", "mos": "MoS", "mos-equal": "MoS, equal"}


@pytest.mark.parametrize(("entry", "changes", "words"), [
    (DIRICHLET, {"alphas": []}, "alphas is not set"), (DIRICHLET, {"alphas": [0]}, "alphas"),
    (DIRICHLET, {"widths": [0]}, "widths"), (DIRICHLET, {"contexts": 1}, "contexts"),
    (DIRICHLET, {"colour": 1}, "unknown key 'colour'"), (DIRICHLET, {"models": {"x": {"head": "softmux"}}}, "softmux"),
    (DIRICHLET, {"models": {"x": {"head": {"name": "mos", "components": 0}}}}, "components"),
    (DIRICHLET, {"models": {"x": {"head": "softmax", "equal_to": "y"}}}, "unknown 'y'"),
    (LANGUAGE, {"ranks": []}, "ranks is not set"), (LANGUAGE, {"ranks": [23]}, "rank: 23 is not allowed"),
    (LANGUAGE, {"language": LAW | {"topcs": 2}}, "unknown key 'topcs'"),
])  # fmt: skip
def test_mistakes_are_named(entry, changes, words):
    with pytest.raises(UserError, match=r"fits\.toy") as error:
        units(entry, **changes)
    assert words in str(error.value)
