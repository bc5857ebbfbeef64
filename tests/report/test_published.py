"""The committed consistency checks of the published numbers equal their recomputation."""

import sys

import pytest
from scipy import stats
from softmax_bottleneck.records import records
from softmax_bottleneck.store.paths import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import published_numbers

CHECKS = published_numbers.judge_published()


def checks(what: str = "", where: str = "") -> list[published_numbers.Check]:
    return [check for check in CHECKS if what in check.what and where in check.where]


def test_the_committed_checks_are_those_that_follow_from_the_published_numbers() -> None:
    assert published_numbers.FILE.read_text(encoding="utf-8") == published_numbers.csv_text()
    rows = records.read_csv(published_numbers.FILE)
    assert (len(rows), (rows["follows"] == "yes").sum()) == (129, 109)


def test_every_contradiction_has_an_explanation() -> None:
    contradictions = [check for check in CHECKS if not check.follows]
    assert len(contradictions) == 20 and all(check.note for check in contradictions)


def test_published_p_values_follow_and_are_students() -> None:
    found = [check for check in checks("p of ") if "fair" not in check.what]
    assert len(found) == 10 and all(check.follows and check.printed == check.recomputed for check in found)
    p = stats.ttest_ind_from_stats(54.88, 0.26, 10, 57.08, 0.10, 10).pvalue
    assert float(checks("p of mos, PTB")[0].printed) == pytest.approx(p, rel=0.003)


def test_parameter_counts_are_the_published_ones_cut_off() -> None:
    counted = [check for check in checks("parameters of") if "Ganea" not in check.where]
    assert len(counted) == 46 and all(check.follows for check in counted)


def test_rounding_decides_what_follows() -> None:
    def difference(a: float, b: float) -> float:
        return a - b

    printed = published_numbers.Printed("57.10"), published_numbers.Printed("56.67")
    assert published_numbers.reach(difference, *printed) == pytest.approx((0.42, 0.44))
    assert published_numbers.Printed("2.02e-15").unit == pytest.approx(1e-17)
    assert published_numbers.Printed("402").ends == (401.5, 402.5)
