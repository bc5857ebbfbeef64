"""The findings at the top of the report: each follows from named contrasts, and is overturned by its criterion."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from softmax_bottleneck.report import archive, contrasts, dot_plot, findings
from softmax_bottleneck.report.archive import FinishedStudy
from trained_examples import Trained, near, study

MIXTURE = {"components": 5, "dropout_latent": 0}
PLAN, SEEDS = "rank-or-mixture", "pointwise-seeds"  # studies whose named contrasts report/findings.yaml lists


def mixtures(
    softmax: float, moc: float, mos: float, dataset: str = "ptb", name: str = PLAN, **more: Any
) -> FinishedStudy:
    return study(
        name,
        "ptb",
        softmax=Trained(ppl=near(softmax)),
        moc=Trained(head="moc", options=MIXTURE, ppl=near(moc), **more),
        mos=Trained(head="mos", options=MIXTURE, ppl=near(mos), metrics={"rank_press": 3400.0}),
    )


def found(*studies: FinishedStudy) -> dict[str, findings.Finding]:
    evidence = findings.Evidence.of(studies)
    every = {name: find(evidence) for name, find in findings.FINDINGS.items()}
    return {name: finding for name, finding in every.items() if finding}


@pytest.mark.parametrize(
    ("moc", "mos", "holds"),
    [(47, 45, [True, True]), (50, 47, [False, True]), (53, 45, [False, True]), (47, 49, [True, False])],
)
def test_mixing_helps_without_rank_if_moc_is_lower_and_with_rank_if_mos_is_lower_still(moc, mos, holds) -> None:
    own = found(mixtures(50, moc, mos))
    assert [own[name].holds for name in ("mixing-contexts", "mixing-probabilities")] == holds
    assert all(finding.is_named for finding in own.values())
    change = own["mixing-contexts"].facts["change"]
    assert float(change) == pytest.approx(abs(100 * (moc / 50 - 1)), abs=0.05)
    p = stats.ttest_ind(np.log(near(moc)), np.log(near(50)), equal_var=False).pvalue
    other = stats.ttest_ind(np.log(near(moc)), np.log(near(mos)), equal_var=False).pvalue
    corrected = 2 * p if p < other else max(p, 2 * other)
    printed = re.search(r"p = (\S+) after", own["mixing-contexts"].number)[1].replace("\u2212", "-")
    assert float(printed) == pytest.approx(min(1, corrected), rel=0.06)


def test_corpora_are_counted_and_a_cut_is_its_corpus() -> None:
    small = study(
        "rank-or-mixture-small", "ptb-small",
        softmax=Trained(ppl=near(70)),
        moc=Trained(head="moc", options=MIXTURE, ppl=near(66)),
        mos=Trained(head="mos", options=MIXTURE, ppl=near(65)),
    )  # fmt: skip
    facts = found(mixtures(50, 47, 45), small)["mixing-contexts"].facts
    assert (facts["lower"], facts["compared"]) == (1, 1)
    again = replace(small, settings={("wt2-small", model): replace(run, dataset="wt2-small")
                                     for (_, model), run in small.settings.items()})  # fmt: skip
    frames = {name: getattr(small.records, name).assign(dataset="wt2-small") for name in ("rows", "states")}
    other = replace(again, records=replace(small.records, **frames))
    facts = found(mixtures(50, 47, 45), other)["mixing-contexts"].facts
    assert (facts["lower"], facts["compared"]) == (2, 2)


def test_a_larger_moc_is_no_finding() -> None:
    assert not found(mixtures(50, 45, 44, metrics={"parameters": 1.05e6}))["mixing-contexts"].holds


def test_shares_of_the_gain_are_shown_whether_significant_or_not() -> None:
    details = found(mixtures(50, 49.9, 45))["mixing-contexts"].details
    (share,) = [text for text in details if "gain of MoS" in text]
    logs = [np.log(near(level)).mean() for level in (50, 49.9, 45)]
    printed = re.search(r"MoC has (\d+)\s%", share)[1]
    assert int(printed) == round(100 * (logs[0] - logs[1]) / (logs[0] - logs[2]))


@pytest.mark.parametrize(("ss", "state"), [(50.0, "holds"), (49.8, "holds"), (46.0, "fails"), (52.0, "holds")])
def test_a_named_pointwise_head_with_a_gain_overturns_that_none_is_shown(ss: float, state: str) -> None:
    metrics = {"rank_press": 1000.0}
    own = study(
        SEEDS, "ptb-small", softmax=Trained(ppl=near(50)), ss=Trained(head="sigsoftmax", ppl=near(ss), metrics=metrics)
    )
    finding = found(own)["rank-without-mixing"]
    assert finding.state == state and finding.facts["lower"] == finding.facts["shared"] == int(state == "fails")
    searched = study("rates", "ptb-small", softmax_r10=Trained(ppl=near(46.0), rate=10))
    finding = found(own, searched)["rank-without-mixing"]  # no rate of 10 was tried for the head
    assert finding.state == "open"
    assert (finding.facts["lower"], finding.facts["shared"]) == (0, int(state == "fails"))


def test_contrasts_that_no_study_named_make_no_finding() -> None:
    own = found(mixtures(50, 47, 45, name="another"))
    assert not any(finding.is_named for finding in own.values()) and "mixing-contexts" not in own


def test_a_wider_softmax_in_the_time_of_mos_is_an_estimate() -> None:
    wide = study("wide", "ptb", softmax_100=Trained(ppl=[44.0], width=100, metrics={"sec_per_epoch": 20.0}))
    slow = study("slow", "ptb", mos=Trained(head="mos", options=MIXTURE, ppl=near(45), metrics={"sec_per_epoch": 30.0}),
                 softmax=Trained(ppl=near(50)))  # fmt: skip
    finding = found(wide, slow)["equal-time"]
    assert finding.holds and not finding.is_named and finding.facts["n"] == 1
    assert float(finding.facts["change"]) == pytest.approx(100 * (1 - 44 / 45), abs=0.05)
    assert "equal-time" not in found(slow)


@pytest.mark.parametrize(("low", "high", "holds"), [(-0.13, -0.08, True), (-0.3, -0.1, False), (None, None, False)])
def test_ranks_hardly_predict_the_kl_if_the_interval_is_within_what_the_paper_calls_weak(low, high, holds) -> None:
    number = {"what": "r", "text": "", "value": -0.1, "low": low, "high": high}
    closed = [{"what": "fraction of the KL gap closed, ss", "text": "x", "value": -8.6, "low": -10.0, "high": -7.0}]
    claims = [{"id": "truth-rank-does-not-tell", "verdict": "reproduced", "numbers": [number]},
              {"id": "truth-closes-gap", "verdict": "reproduced", "numbers": closed}]  # fmt: skip
    own = study("truth", softmax=Trained(ppl=near(50)))
    fits = [(r, d) for r in (8, 16) for d in (4, 8, 16)]
    lines = [{"table": "truth", "condition": f"r={r};V=9;d={d};head=ss", "metric": "kl_nats", "model": "ss", "seed": 1,
              "value": 0.1, "run_id": "", "dataset": "synthetic"} for r, d in fits]  # fmt: skip
    rows = own.records.rows.iloc[:0]
    records = replace(own.records, rows=findings_rows(rows, lines))
    finding = found(replace(own, claims=claims, records=records))["known-distributions"]
    assert finding.holds == holds and not finding.is_named and "3 of 6 fits" in finding.number
    assert [(row.label, row.value) for row in finding.figure.rows] == [("SigSoftmax", -8.6)]


def findings_rows(rows: Any, lines: list[dict[str, Any]]) -> Any:
    return pd.concat([rows, pd.DataFrame(lines)], ignore_index=True)


def test_what_has_no_evidence_is_left_out_and_the_question_stays_open() -> None:
    shown = findings.answer([study(mos=Trained(head="mos", ppl=near(50)))])
    assert shown["answer"] == findings.TEXTS["open"] and shown["findings"] == []


def test_the_answer_follows_from_the_archives() -> None:
    shown = findings.answer(archive.load_all())
    assert shown["answer"] == findings.TEXTS["answer"]
    sentences = [finding["sentence"] for finding in shown["findings"]]
    assert all(len(sentence.split()) <= 22 for sentence in sentences)  # a number and its % are two words here
    assert [finding["is_named"] for finding in shown["findings"]] == [True, True, True, False, False]


def test_what_findings_name_exists() -> None:
    studies = archive.load_all()
    known = {entry["id"] for one in studies for entry in one.claims}
    assert all(set(texts["claims"]) <= known for texts in findings.TEXTS["findings"].values())
    assert findings.TEXTS["findings"].keys() == findings.FINDINGS.keys()
    settings = {one.study: one.settings for one in studies}
    for name, datasets in findings.TEXTS["named"].items():
        for dataset, pairs in datasets.items():
            assert {(dataset, model) for models in pairs.values() for model in models} <= settings[name].keys()
    count = sum(len(pairs) for datasets in findings.TEXTS["named"].values() for pairs in datasets.values())
    lists = (findings.TEXTS["named"], findings.TEXTS["left_out"])
    assert len(contrasts.named(contrasts.samples(studies), studies, *lists)) == count


def test_a_figure_keeps_the_order_of_its_numbers() -> None:
    rows = [dot_plot.Row("a", -3.0, -4.0, -2.0), dot_plot.Row("b", 1.0, 1.0, 1.0)]
    svg = ElementTree.fromstring(dot_plot.DotPlot(rows, "axis").svg())
    name = "{http://www.w3.org/2000/svg}"
    first, second = (float(dot.get("cx")) for dot in svg.iter(f"{name}circle"))
    bars = [(float(line.get("x1")), float(line.get("x2"))) for line in svg.iter(f"{name}line")]
    marks = next(path.get("d") for path in svg.iter(f"{name}path") if path.get("class") == "zero")
    zero = float(re.match(r"M([0-9.]+) ", marks)[1])
    assert marks.count("M") == len(rows)
    assert bars[0][0] < first < bars[0][1] < zero < second == bars[1][0] == bars[1][1] <= dot_plot.PAGE
    assert first - bars[0][0] == pytest.approx(bars[0][1] - first, abs=0.2)
