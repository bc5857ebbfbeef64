"""The published numbers against themselves: the committed checks, and what is known to contradict itself."""

from __future__ import annotations

import math
import statistics as exact
import sys

import pytest
from scipy import stats
from softmax_bottleneck.records import records
from softmax_bottleneck.store import paths

sys.path.insert(0, str(paths.ROOT / "docs"))
import check_published


def sample(mean: float, sd: float, n: int = 10) -> list[float]:
    """n numbers with exactly this mean and sample standard deviation."""
    raw = [math.sin(3.7 * i) for i in range(n)]
    centre, spread = exact.mean(raw), exact.stdev(raw)
    return [mean + sd * (x - centre) / spread for x in raw]


CHECKS = check_published.judge_published()


def checks(what: str = "", where: str = "") -> list[check_published.Check]:
    return [check for check in CHECKS if what in check.what and where in check.where]


def test_the_committed_checks_are_those_that_follow_from_the_published_numbers() -> None:
    assert check_published.FILE.read_text(encoding="utf-8") == check_published.csv_text()
    rows = records.read_csv(check_published.FILE)
    assert (len(rows), (rows["follows"] == "yes").sum()) == (255, 235)


@pytest.mark.parametrize(
    ("what", "where", "printed", "recomputed"),
    [
        ("gain of mos over softmax", "Table 1", "1.28", "1.99"),  # A1
        ("gain reported for lms-plif", "Table 1", "1.11", "1.12"),  # A1
        ("rank of mos,", "Table 1, from", "9979", "9983"),  # A1, A18
        ("train perplexity of mos-nt", "SM Table 12, from SM Table 11", "39.11", "35.92"),  # A2
        ("rank of mos-nt", "SM Table 5, from SM Table 11", "13229", "13215"),  # A2
        ("contexts of the test text, PTB", "text", "82430", "82429"),  # A3
        ("contexts of the test text, WT2", "text", "245370", "245568"),  # A3
        ("top-5 lists in falling order", "SM Table 2", "156", "154"),  # A9
        ("contexts in which models differ", "SM Table 2", "18", "15"),  # A9
        ("GSS models, PTB", "Figure 2", "72", "70"),  # A10
        ("GSS models, WT2", "Figure 2", "36", "35"),  # A10
        ("r of rank and falling perplexity within 56.6", "Figure 2", "0.24", "0.18"),  # A10
        ("r of rank and falling perplexity within 64.0", "Figure 2", "0.21", "-0.21"),  # A10
        ("p of the fair comparison", "Table 5", "0.62", "0.39"),  # A11
        ("parameters of lms-plif, PTB", "Ganea", "24.4 M", "24,321,600"),  # A13
        ("parameters of mos-plif, PTB", "Ganea", "28.6 M", "27,633,600"),  # A13
        ("parameters of lms-plif, WT2", "Ganea", "33.2 M", "33,656,078"),  # A13
        ("reduction of valid perplexity in %, PTB", "Benka", "8.9", "8.2"),  # A14
        ("reduction of test perplexity in %, PTB", "Benka", "6.7", "6.5"),  # A14
        ("reduction of valid perplexity in %, WT2", "Benka", "15.8", "13.7"),  # A14
    ],
)
def test_known_contradictions_are_found(what: str, where: str, printed: str, recomputed: str) -> None:
    (found,) = checks(what, where)
    assert (found.printed, found.recomputed, found.follows) == (printed, recomputed, False)
    assert found.note


def test_nothing_else_contradicts_itself() -> None:
    assert sum(not check.follows for check in CHECKS) == 20


def test_published_p_values_follow_and_are_students() -> None:
    found = [check for check in checks("p of ") if "fair" not in check.what]
    assert len(found) == 10 and all(check.follows and check.printed == check.recomputed for check in found)
    a, b = (sample(mean, sd) for mean, sd in ((54.88, 0.26), (57.08, 0.10)))
    assert float(checks("p of mos, PTB")[0].printed) == pytest.approx(stats.ttest_ind(a, b).pvalue, rel=0.003)


def test_wins_hits_means_and_other_repeated_numbers_follow() -> None:
    groups = {"benchmarks won": 60, "over 11 runs": 20, "hits of": 10, "rank with noise": 19, "effective rank of": 30}
    for what, number in groups.items():
        assert len(checks(what)) == number
        assert all(check.follows for check in checks(what))
    assert {check.printed for check in checks("benchmarks won by moc over mos")} == {"8", "12"}
    assert checks("reduction of test perplexity in %, WT2")[0].follows


def test_parameter_counts_are_the_published_ones_cut_off() -> None:
    # Counted by the authors' code (SPEC 2), not by this repository's models.
    assert check_published.parameters(check_published.PLAIN, 10_000) == 24_221_600
    assert check_published.parameters(check_published.shape_of("wt2", "lms-plif"), 33_278) == 33_656_078
    assert check_published.parameters(check_published.shape_of("ptb", "mos-nt", 1), 10_000) == 19_057_620
    assert check_published.parameters(check_published.shape_of("wt2", "moc", 20), 33_278) == 35_889_278
    assert check_published.parameters(check_published.shape_of("ptb", "softmax-fair"), 10_000) == 17_560_880
    counted = [check for check in checks("parameters of") if "Ganea" not in check.where]
    assert len(counted) == 46 and all(check.follows for check in counted)


def test_rounding_decides_what_follows() -> None:
    def difference(a: float, b: float) -> float:
        return a - b

    printed = check_published.Printed("57.10"), check_published.Printed("56.67")
    assert check_published.reach(difference, *printed) == pytest.approx((0.42, 0.44))
    assert check_published.Printed("2.02e-15").unit == pytest.approx(1e-17)
    assert check_published.Printed("402").ends == (401.5, 402.5)
