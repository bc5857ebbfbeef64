"""Units of fits: their names and identities, and mistakes in their plans."""

from __future__ import annotations

from typing import Any

import pytest
from softmax_bottleneck import study as config
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import Unit
from softmax_bottleneck.study.fits import FitPlan, units_of

LAW = {"vocabulary_size": 24, "topics": 2, "classes": 3, "markers_per_topic": 2, "affinity_bandwidth": 3.0}
DIRICHLET = {
    "kind": "dirichlet",
    "alphas": [0.5],
    "words": [8],
    "contexts": 30,
    "widths": [2],
    "models": {"softmax": {"head": "softmax"}, "mos": {"head": {"name": "mos", "components": 2}}},
    "bias": False,
    "updates": 20,
    "learning_rate": 0.1,
}
LANGUAGE = {
    "kind": "language",
    "language": LAW,
    "ranks": [6, 14],
    "sample": 5000,
    "widths": [3, 8],
    "models": {
        "softmax": {"head": "softmax"},
        "mos": {"head": {"name": "mos", "components": 2}},
        "mos-equal": {"head": {"name": "mos", "components": 2}, "label": "MoS, equal", "equal_to": "softmax"},
    },
    "seeds": [1, 2],
    "updates": 12,
    "learning_rate": 0.05,
}


def units(entry: dict[str, Any], **changes: Any) -> tuple[Unit, ...]:
    return units_of("toy", config.read(FitPlan, entry | changes, "fits.toy"), {"device": "cpu"}, "fits.toy")


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


@pytest.mark.parametrize(
    ("entry", "changes", "words"),
    [
        (DIRICHLET, {"alphas": []}, "alphas is not set"),
        (DIRICHLET, {"alphas": [0]}, "alphas"),
        (DIRICHLET, {"widths": [0]}, "widths"),
        (DIRICHLET, {"contexts": 1}, "contexts"),
        (DIRICHLET, {"colour": 1}, "unknown key 'colour'"),
        (DIRICHLET, {"models": {"x": {"head": "softmux"}}}, "softmux"),
        (DIRICHLET, {"models": {"x": {"head": {"name": "mos", "components": 0}}}}, "components"),
        (DIRICHLET, {"models": {"x": {"head": "softmax", "equal_to": "y"}}}, "unknown 'y'"),
        (LANGUAGE, {"ranks": []}, "ranks is not set"),
        (LANGUAGE, {"ranks": [23]}, "rank: 23 is not allowed"),
        (LANGUAGE, {"language": LAW | {"topcs": 2}}, "unknown key 'topcs'"),
    ],
)
def test_mistakes_are_named(entry, changes, words):
    with pytest.raises(UserError, match=r"fits\.toy") as error:
        units(entry, **changes)
    assert words in str(error.value)
