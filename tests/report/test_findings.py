"""The findings at the top of the report: each follows from the records, and is overturned by its criterion."""

import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import Any

import claim_examples as examples
import numpy as np
import pytest
from scipy import stats
from softmax_bottleneck.report import archive, findings
from softmax_bottleneck.report.archive import FinishedStudy


def study(facts: dict[str, float] | None = None, claims: Any = (), **metrics: dict[str, float]) -> FinishedStudy:
    """Return a study whose models have these numbers, close to each other over three seeds."""
    metrics = {"test_ppl": dict.fromkeys(metrics.get("rank_press", {}), 50.0)} | metrics
    rows = [
        (model, metric, "", [x, 1.002 * x, 0.998 * x]) for metric, own in metrics.items() for model, x in own.items()
    ]
    return FinishedStudy("one", "one", "one", "CPU", {}, list(claims), examples.records_of(rows, **facts or {}))


def test_the_rank_bound_is_overturned_by_one_run() -> None:
    levels = {"softmax": 201.5, "moc": 90.0, "moc-k1": 150.0, "ss": 900.0}  # d = 200
    found = findings.rank_bound([study(rank_press=levels)])
    assert found.holds and found.number.startswith("0 of 9 runs")
    assert [row.is_second for row in found.figure.rows] == [False, False, True]
    assert findings.rank_bound([study(rank_press=dict.fromkeys(levels, 202 / 1.002))]).holds  # 202 is d + 2
    found = findings.rank_bound([study(rank_press=levels | {"moc": 201.9})])  # and 2 thousandths more
    assert not found.holds and found.facts == {"exceeding": 1, "runs": 9}


def test_a_run_of_two_studies_counts_once_and_on_two_machines_twice() -> None:
    one = study(rank_press={"softmax": 201.5})
    again = replace(one, hardware="CPU and GPU")  # of a study that also ran on another machine
    other = replace(one, records=replace(one.records, states=one.records.states.assign(hardware="GPU")))
    assert findings.rank_bound([one, again]).facts["runs"] == 3
    assert findings.rank_bound([one, again, other]).facts["runs"] == 6


@pytest.mark.parametrize(("ppl", "mos", "holds"), [(51, 50, True), (49, 50, False), (49, 45, True), (48, 44, False)])
def test_a_fixed_head_overturns_that_rank_gains_little_by_a_quarter_of_mos(ppl: float, mos: float, holds: bool) -> None:
    one = study(test_ppl={"softmax": 50.0, "ss": ppl}, rank_press={"softmax": 202, "ss": 2020})
    two = replace(study(test_ppl={"softmax": 50.0, "mos": mos}), name="two", study="two")
    found = findings.rank_is_not_the_lever([one, two])
    assert set(found.studies) == ({"one"} if mos == 50 else {"one", "two"})
    most = "\u2014" if mos == 50 else f"{100 * math.log(50 / ppl) / math.log(50 / mos):.0f}"
    assert found.holds == holds and [found.facts[key] for key in ("lowest", "highest", "most")] == ["10", "10", most]
    ends = stats.ttest_ind(*np.log(np.outer([ppl, 50], [1, 1.002, 0.998])), equal_var=False).confidence_interval()
    assert [found.figure.rows[0].low, found.figure.rows[0].high] == pytest.approx(list(100 * np.expm1(ends)))
    assert float(found.facts["reach"].replace("\u2212", "-")) == pytest.approx(100 * math.expm1(ends.low), abs=0.05)


@pytest.mark.parametrize(("low", "holds"), [(1.0, True), (6.0, False)])
def test_closing_the_kl_gap_overturns_it_too(low: float, holds: bool) -> None:
    claims = [
        {"id": "truth-closes-gap", "numbers": [{"what": "fraction of the KL gap closed, ss", "text": "", "low": low}]}
    ]
    one = study({}, claims, test_ppl={"softmax": 50.0, "ss": 50.0}, rank_press={"softmax": 202, "ss": 2020})
    assert findings.rank_is_not_the_lever([one]).holds == holds


@pytest.mark.parametrize(
    ("levels", "facts", "expected"),
    [
        ({"softmax": 50.0, "mos": 45.0}, {}, (1, 0, 1)),
        ({"softmax": 50.0, "mos": 55.0}, {}, (0, 1, 1)),
        ({"softmax": 50.0, "mos": 55.0, "mos-equal": 45.0}, {"mos parameters": 1.3e6}, (1, 0, 1)),
        ({"softmax": 50.0, "mos": 50.0}, {}, (0, 0, 1)),
    ],
)
def test_mixtures_are_compared_at_equal_size(levels: dict[str, float], facts: Any, expected: tuple[int, ...]) -> None:
    found = findings.mixtures_are([study(facts, test_ppl=levels)])
    assert tuple(found.facts[key] for key in ("lower", "higher", "compared")) == expected
    assert found.holds == (expected[0] > 0 and not expected[1])
    assert findings.mixtures_are([study({"mos parameters": 1.3e6}, test_ppl={"softmax": 50.0, "mos": 45.0})]) is None


def test_natural_text_counts_alone_and_the_narrowest_interval_is_quoted() -> None:
    ranks = {"softmax": 202.0, "ss": 2020.0}
    natural = study(test_ppl={"softmax": 50.0, "mos": 45.0, "moc": 47.0, "ss": 49.9}, rank_press=ranks)
    known = {"softmax": 50.0, "mos": 55.0, "moc": 51.0, "ss": 40.0}  # the opposite, on a synthetic language
    made_up = study(test_ppl=known, rank_press=ranks, law_test_ppl={"softmax": 9.0})
    made_up = replace(made_up, name="two", study="two", corpora={"made-up": "Language"})
    noisy = [(model, "test_ppl", "", [x - 2, x, x + 2]) for model, x in (("softmax", 50.0), ("mos", 46.0))]
    wide = replace(natural, name="three", study="three", records=examples.records_of(noisy))
    for find in (findings.rank_is_not_the_lever, findings.mixtures_are, findings.rank_or_mixture):
        assert find([made_up, wide, natural]).facts == find([natural]).facts and find([made_up, wide, natural]).holds
        assert not find([made_up]).holds
    assert findings.mixtures_are([made_up, wide, natural]).number.endswith("study one)")


def test_the_share_of_moc_is_that_at_its_best_rate_among_runs_that_learned() -> None:
    levels = {"softmax-r5": 76.0, "moc-r5": 73.0, "mos-r5": 72.0, "softmax-r10": 70.0, "moc-r10": 67.0, "mos-r10": 66.0}
    failing = study(test_ppl={"softmax": 70.0, "moc": 66.5, "mos": 65.0}, unigram_ppl={"moc": 60.0})
    found = findings.rank_or_mixture([study(test_ppl=levels), replace(failing, study="two")])
    assert found.holds and len(found.figure.rows) == 2
    shares = [math.log(70 / 67) / math.log(70 / 66), math.log(70 / 67) / math.log(70 / 65)]  # MoS has 65 elsewhere
    limits = {"lowest": f"{100 * shares[1]:.0f}", "highest": f"{100 * shares[0]:.0f}"}
    assert found.facts == limits | {"decided": 1, "compared": 1}
    even = replace(study(test_ppl={"softmax": 70.0, "moc": 70.0, "mos": 65.0}), study="3", corpora={"made-up": "Even"})
    three = [study(test_ppl=levels), replace(failing, study="two"), even]
    assert findings.rank_or_mixture(three).facts == limits | {"decided": 1, "compared": 2}
    again = findings.rank_or_mixture([study(test_ppl=levels), failing])  # of two machines the first
    assert again.facts["lowest"] == f"{100 * shares[0]:.0f}"
    assert not findings.rank_or_mixture([study(test_ppl=levels | {"moc-r5": 77.0, "moc-r10": 71.0})]).holds
    wide = study({"softmax parameters": 2e6}, test_ppl={"softmax": 40.0}, embedding_size={"softmax": 400.0})
    other = replace(study(test_ppl=levels, embedding_size={"softmax-r5": 200.0}), study="two")
    apart = findings.rank_or_mixture([wide, other])  # a softmax of another size changes no share
    assert apart.facts == findings.rank_or_mixture([study(test_ppl=levels)]).facts
    assert [row.label for row in apart.figure.rows] == ["MoC, Made-up, d = 200", "MoS, Made-up, d = 200"]
    little = study(test_ppl={"softmax": 70.0, "moc": 69.0, "mos": 66.0})  # a quarter of MoS's gain, on one of two
    little = replace(little, study="3", corpora=even.corpora)
    assert not findings.rank_or_mixture([study(test_ppl=levels), little]).holds


@pytest.mark.parametrize(("frozen", "holds"), [(300.0, True), (500.0, False), (200.0, False)])
def test_frozen_slopes_with_another_rank_overturn_that_the_rank_is_not_learned(frozen: float, holds: bool) -> None:
    levels = {"lms-plif": 300.0, "lms-plif-frozen": frozen}
    found = findings.rank_of_plif([study(rank_press=levels)])
    assert found.holds == holds and not (found.is_open and not holds)
    assert findings.rank_of_plif([study({"lms-plif rank_columns": 300.0}, rank_press=levels)]) is None


@pytest.mark.parametrize(("frozen", "state"), [((260, 290, 340), "holds"), ((300, 350, 250), "open"), ((300,), "open")])
def test_the_ranks_of_plif_are_compared_seed_by_seed(frozen: tuple[float, ...], state: str) -> None:
    ranks = {"lms-plif": (250, 300, 350)[: len(frozen)], "lms-plif-frozen": frozen}  # the first pairs differ little
    rows = [(model, metric, "", list(own) if metric == "rank_press" else [50.0] * len(own))
            for model, own in ranks.items() for metric in ("rank_press", "test_ppl")]  # fmt: skip
    found = findings.rank_of_plif([FinishedStudy("one", "one", "one", "CPU", {}, [], examples.records_of(rows))])
    assert ("holds" if found.holds else "open" if found.is_open else "fails") == state
    if len(frozen) > 1:
        naive = stats.ttest_1samp(np.log(np.divide(*[ranks[name] for name in ("lms-plif-frozen", "lms-plif")])), 0)
        row, ends = found.figure.rows[0], naive.confidence_interval()
        assert [row.low, row.high] == pytest.approx([np.exp(ends.low), np.exp(ends.high)])


def test_what_has_no_evidence_is_left_out_and_the_question_stays_open() -> None:
    found = findings.answer([study(test_ppl={"mos": 50.0})])
    assert found["answer"] == findings.TEXTS["open"] and found["findings"] == []
    half = findings.answer([study(test_ppl={"softmax": 50.0, "ss": 51.0}, rank_press={"softmax": 202, "ss": 2020})])
    held = {one["id"] for one in half["findings"]}
    assert half["answer"] == findings.TEXTS["open"] and "rank-is-not-the-lever" in held


def test_claims_of_findings_exist() -> None:
    known = {entry["id"] for one in archive.load_all() for entry in one.claims}
    assert all(set(texts["claims"]) <= known for texts in findings.TEXTS["findings"].values())
    assert findings.TEXTS["findings"].keys() == findings.FINDINGS.keys()


def test_a_figure_keeps_the_order_of_its_numbers() -> None:
    rows = [findings.Row("a", -3.0, -4.0, -2.0), findings.Row("b", 1.0, 1.0, 1.0)]
    svg = ElementTree.fromstring(findings.DotPlot(rows, "axis").svg())
    name = "{http://www.w3.org/2000/svg}"
    first, second = (float(dot.get("cx")) for dot in svg.iter(f"{name}circle"))
    bars = [(float(line.get("x1")), float(line.get("x2"))) for line in svg.iter(f"{name}line")]
    marks = next(path.get("d") for path in svg.iter(f"{name}path") if path.get("class") == "zero")
    zero = float(re.match(r"M([0-9.]+) ", marks)[1])
    assert marks.count("M") == len(rows)
    assert bars[0][0] < first < bars[0][1] < zero < second == bars[1][0] == bars[1][1] <= findings.PAGE
    assert first - bars[0][0] == pytest.approx(bars[0][1] - first, abs=0.2)
