"""The findings at the top of the report: each follows from named contrasts, and is overturned by its criterion."""

import itertools
import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from softmax_bottleneck.report import archive, contrasts, dot_plot, findings, samples, scatter, summary
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.report.head_table import head_table
from softmax_bottleneck.statistics.intervals import Interval
from softmax_bottleneck.study import study_file as schema
from trained_examples import Trained, near, study

MIXTURE = {"components": 5, "dropout_latent": 0}
PLAN, SEEDS = "rank-or-mixture", "pointwise-seeds"  # studies whose named contrasts report/findings.yaml lists


def mixtures(
    softmax: float, moc: float, mos: float, dataset: str = "ptb", name: str = PLAN, **more: Any
) -> FinishedStudy:
    return study(
        name, "ptb", softmax=Trained(ppl=near(softmax)),
        moc=Trained(head="moc", options=MIXTURE, ppl=near(moc), **more),
        mos=Trained(head="mos", options=MIXTURE, ppl=near(mos), metrics={"rank_press": 3400.0}),
    )  # fmt: skip


def found(*studies: FinishedStudy) -> dict[str, findings.Finding]:
    evidence = findings.Evidence.from_studies(studies)
    every = {name: find(evidence) for name, find in findings.FINDINGS.items()}
    return {name: finding for name, finding in every.items() if finding}


@pytest.mark.parametrize(("moc", "mos", "states"), [
    (47, 45, ["holds", "holds"]), (50, 47, ["open", "holds"]), (53, 45, ["fails", "holds"]),
    (47, 49, ["holds", "fails"]),
])  # fmt: skip
def test_mixing_helps_without_rank_if_moc_is_lower_and_with_rank_if_mos_is_lower_still(moc, mos, states) -> None:
    own = found(mixtures(50, moc, mos))
    assert [own[name].state for name in ("mixing-contexts", "mixing-probabilities")] == states
    assert all(finding.is_named for finding in own.values())
    if states[1] == "holds":
        assert float(own["mixing-probabilities"].facts["gain"]) == pytest.approx(100 * (1 - mos / moc), abs=0.05)
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
    own = found(mixtures(50, 47, 45), small)
    assert own["mixing-probabilities"].facts["corpora"] == "Ptb"
    gains = sorted(100 * (1 - ratio) for ratio in (45 / 47, 65 / 66))
    assert own["mixing-probabilities"].facts["gain"] == " to ".join(f"{gain:.1f}" for gain in gains)
    again = replace(small, settings={("wt2-small", model): replace(run, dataset="wt2-small")
                                     for (_, model), run in small.settings.items()})  # fmt: skip
    frames = {name: getattr(small.records, name).assign(dataset="wt2-small") for name in ("rows", "states")}
    other = replace(again, records=replace(small.records, **frames))
    other = replace(other, corpora={"wt2-small": "Wt2"})
    assert found(mixtures(50, 47, 45), other)["mixing-contexts"].facts["corpora"] == "Ptb and Wt2"


def test_a_corpus_without_a_gain_stands_in_the_answer_and_in_the_finding() -> None:
    small = study("rank-or-mixture-small", "wt2-small", softmax=Trained(ppl=near(70)),
                  moc=Trained(head="moc", options=MIXTURE, ppl=near(66)),
                  mos=Trained(head="mos", options=MIXTURE, ppl=near(62)))  # fmt: skip
    even = study(SEEDS, "ptb-small", softmax=Trained(ppl=near(50)), ss=Trained(head="sigsoftmax", ppl=near(50)))
    shown = summary.answer([mixtures(50, 47, 47), small, even])
    (probabilities,) = (one for one in shown["findings"] if one["id"] == "mixing-probabilities")
    for text in (shown["answer"], probabilities["short"], probabilities["sentence"]):
        assert re.search(r"\(not significant: .*0\.0\s%.* on Ptb\)", text), text
    assert shown["answer"].count("not significant") == 1


def test_the_change_against_the_tanh_layer_follows_the_finding_of_moc() -> None:
    def shown(layer: Sequence[float]) -> str:
        models = {"moc_r10": Trained(head="moc", options=MIXTURE, ppl=near(47)),
                  "moc_k1_r10": Trained(head="moc", options=MIXTURE | {"components": 1}, ppl=layer)}  # fmt: skip
        studies = [mixtures(50, 47, 45), study("rank-or-mixture-rate-10", "ptb", **models)]
        return next(one for one in summary.answer(studies)["findings"] if one["id"] == "mixing-contexts")["caveat"]

    assert re.fullmatch(r"Against a softmax above a tanh layer: \u22126\.0 % over these corpora\.", shown(near(50)))
    assert re.search(r"layer: 0\.0 % over these corpora \(not significant: .* on Ptb\)\.", shown(near(47)))
    assert re.search(
        r"layer: \u22126\.0 % over these corpora \(not significant: \u22126\.0\s% on Ptb\)\.", shown([50.0])
    )  # no test


def test_a_larger_moc_is_no_finding() -> None:
    assert "mixing-contexts" not in found(mixtures(50, 45, 44, metrics={"parameters": 1.05e6}))


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
    assert finding.facts["uncorrected"] == int(state == "fails")
    assert finding.facts["losing"] == " and lose in 1" * (ss == 52)
    assert finding.facts["overall"] == finding.facts["lower"]  # it is the only head
    assert finding.state == state and finding.facts["lower"] == finding.facts["shared"] == int(state == "fails")
    searched = study("rates", "ptb-small", softmax_r10=Trained(ppl=near(46.0), rate=10))
    finding = found(own, searched)["rank-without-mixing"]  # no rate of 10 was tried for the head
    assert finding.state == "open"
    assert not finding.facts["losing"]  # at the softmax's better rate the head may lose by its rate alone
    assert (finding.facts["lower"], finding.facts["shared"]) == (0, int(state == "fails"))


def test_heads_without_a_shared_rate_have_no_line_at_shared_rates() -> None:
    def details(rate: float) -> list[str]:
        models = {"softmax": Trained(ppl=near(50)), "ss": Trained(head="sigsoftmax", ppl=near(46), rate=rate)}
        return [
            text
            for text in found(study(SEEDS, "ptb-small", **models))["rank-without-mixing"].details
            if "shared" in text
        ]

    assert len(details(20)) == 1 and not details(10)


def test_contrasts_that_no_study_named_make_no_finding() -> None:
    own = found(mixtures(50, 47, 45, name="another"))
    assert not any(finding.is_named for finding in own.values()) and "mixing-contexts" not in own


@pytest.mark.parametrize(
    ("levels", "state", "by"),
    [
        ([45.0, 45.0], "holds", "11.1"),
        ([45.0, 50.0], "holds", "11.1"),
        ([55.0, 50.0], "fails", "9.1"),
        ([45.0, 55.0], "mixed", "9.1 to 11.1"),
        ([50.0, 50.0], "equal", ""),
        ([50.0, 49.3], "holds", "1.4"),
    ],
)
def test_a_named_contrast_at_the_same_time_compares_mos_with_a_wider_softmax(levels, state, by) -> None:
    even = [50.0, 50.01, 49.99]
    pair = schema.Contrast(model="mos", against="wide", label="the same time", same_size=False)
    both = [
        study(dataset, dataset, mos=Trained(head="mos", options=MIXTURE, ppl=even),
              wide=Trained(ppl=[ppl * level / 50 for ppl in even], width=64, metrics={"parameters": 3e6}))
        for dataset, level in zip(("ptb", "wt2-small"), levels, strict=True)
    ]  # fmt: skip
    one, other = (replace(own, contrasts=schema.Contrasts(family=(pair,), margin=0.01)) for own in both)
    frames = {name: pd.concat([getattr(own.records, name) for own in both]) for name in ("rows", "states")}
    joined = replace(one, records=replace(one.records, **frames), settings=one.settings | other.settings,
                     corpora={"ptb": "Ptb", "wt2-small": "Wt2"})  # fmt: skip
    every = found(joined)
    finding = every["same-time"]
    assert (finding.state, finding.is_named, finding.facts["size"]) == (state, True, "3.0")
    assert finding.facts["by"].startswith(by)
    others = [name for name, level in zip(("Ptb", "Wt2"), levels, strict=True) if level == 50 and state != "equal"]
    assert re.findall(r"; equal within 1 %: .* on (\w+)$", finding.facts["others"]) == others
    assert summary.verdict(every)[1].endswith(findings.TEXTS["answer"]["time"][state].format(**finding.facts))
    assert "equal time" not in summary.not_shown(findings.Evidence.from_studies([joined]))


def test_a_corpus_without_its_comparison_at_equal_time_is_named() -> None:
    gain = schema.Contrast(model="mos", against="softmax", label="gain", same_size=True)
    time = replace(gain, against="wide", label="the same time", same_size=False)
    models = {"mos": Trained(head="mos", options=MIXTURE, ppl=near(48)), "softmax": Trained(ppl=near(50))}
    wide = Trained(ppl=near(46), width=64, metrics={"parameters": 3e6})
    parts = [study("timed", "ptb", wide=wide, **models), study("plan", "wt2-small", **models)]
    declared = schema.Contrasts(family=(gain, time), margin=0.01)
    parts = [replace(one, contrasts=declared, corpora={one.datasets[0]: one.study.title()}) for one in parts]
    assert "or at equal time on Plan, d = 32." in summary.not_shown(findings.Evidence.from_studies(parts))
    untimed = summary.not_shown(findings.Evidence.from_studies(parts[1:]))
    assert "or at equal time." in untimed and "0 of 1 named" in untimed


def test_mos_of_other_widths_that_is_not_above_the_wider_softmax_is_the_caveat_of_the_finding() -> None:
    pair = schema.Contrast(model="mos", against="wide", label="the same time", same_size=False)
    shapes = {
        "mos": Trained(head="mos", options=MIXTURE, ppl=near(50)),
        "mos_equal": Trained(head="mos", options=MIXTURE, ppl=near(45), inner=96, metrics={"parameters": 1.5e6}),
        "mos_above": Trained(head="mos", options=MIXTURE, ppl=near(60), inner=97),
        "mos_slow": Trained(head="mos", options=MIXTURE, ppl=near(40), inner=98, metrics={"sec_per_epoch": 11.0}),
        "mos_more": Trained(head="mos", options=MIXTURE | {"components": 9}, ppl=near(40), inner=96),
    }
    own = study("plan", "ptb", wide=Trained(ppl=near(45), width=64), **shapes)
    finding = found(replace(own, contrasts=schema.Contrasts(family=(pair,), margin=0.01)))["same-time"]
    assert finding.state == "holds" and len(finding.details) == 2
    ratios = {row.label.removesuffix(" × size").rpartition(", ")[2] for row in finding.figure.rows}
    assert ratios == {"1.00", "1.50"}
    assert (finding.facts["unclear"], float(finding.facts["larger"]), finding.facts["there"]) == (1, 1.5, "")


def test_a_wider_softmax_in_the_time_of_mos_stands_in_the_table_of_heads() -> None:
    wide = study("wide", "ptb", softmax_100=Trained(ppl=near(44), width=100, metrics={"sec_per_epoch": 20.0}))
    slow = study("slow", "ptb", mos=Trained(head="mos", options=MIXTURE, ppl=near(45), metrics={"sec_per_epoch": 30.0}),
                 softmax=Trained(ppl=near(50)))  # fmt: skip
    narrow = study("narrow", "ptb", softmax_20=Trained(ppl=near(40), width=20, metrics={"sec_per_epoch": 20.0}))
    for studies, texts in (((wide, slow), 1), ((slow, narrow), 0)):  # a narrower softmax is not what the time buys
        row = next(row for row in head_table(studies)["rows"] if row["label"] == "MoS")
        assert row["at_time"].count("n = 3") == texts and (row["at_time"] == "—") == (not texts)
    pair = schema.Contrast(model="mos", against="wide", label="the same time", same_size=False)
    both = study("plan", "ptb", mos=Trained(head="mos", options=MIXTURE, ppl=near(45)),
                 wide=Trained(ppl=near(44), width=100))  # fmt: skip
    both = replace(both, contrasts=schema.Contrasts(family=(pair,), margin=0.01))
    row = next(row for row in head_table([both, slow])["rows"] if row["label"] == "MoS")
    assert row["at_time"].count("n = ") == 1  # the named one is the best that at_equal_time finds


@pytest.mark.parametrize(
    ("slopes", "outlier", "state"),
    [
        ((0, 0, 0), 0, "holds"),
        ((0, 0, 0), 3, "depends"),
        ((-1, 0, 1), 0, "open"),
        ((-1, -1, -1), 0, "fails"),
        ((1, 1, 1), 0, "fails"),
    ],
)
def test_the_correlation_of_rank_and_kl_is_shown_with_and_without_single_heads(slopes, outlier, state) -> None:
    noise = np.random.default_rng(0)
    heads = ["ss", "gss", "mos", "moc", "lms", "sigmoid", "softmax", "relu", "low-rank"]
    fits = [(seed, r, d, n, head) for seed, slope in enumerate(slopes) for r in (8, 16) for d in (4, 8, 16)
            for n, head in enumerate(heads)]  # fmt: skip
    rows, logs = [], []
    for seed, r, d, n, head in fits:
        rank = (-1) ** n + 0.02 * noise.normal() + (outlier if head == "relu" else 0)
        kl = slopes[seed] * rank + 0.1 * ((-1) ** (n // 2)) + 0.02 * noise.normal() + (outlier if head == "relu" else 0)
        logs += [(seed, r, d, head, rank, kl)] if r > d else []
        rows += [
            {"table": "truth", "condition": f"r={r};V=9;d={d};head={head}", "metric": metric, "model": head,
             "seed": seed, "value": float(np.exp(value)), "run_id": "", "dataset": "synthetic"}
            for metric, value in (("rank_press", rank), ("kl_nats", kl))
        ]  # fmt: skip
    keys = ("what", "text", "value", "low", "high")
    closed = [dict(zip(keys, (f"fraction of the KL gap closed, {name}", *numbers), strict=True))
              for name, *numbers in (("ss", "x", -8.6, -10.0, -7.0), ("mos", "—", None, None, None))]  # fmt: skip
    ids = (findings.RANK_AND_KL, findings.GAPS)
    claims = [{"id": name, "verdict": "reproduced", "numbers": closed} for name in ids]
    own = study("truth", softmax=Trained(ppl=near(50)))
    noise_levels = [rows[0] | {"condition": f"c={n}"} for n in range(2 * len(rows))]  # no fits, but records
    frames = {"most": pd.DataFrame(rows), "few": pd.DataFrame(rows[: len(rows) // 3] + noise_levels)}
    most, few = (replace(own, name=name, claims=claims, records=replace(own.records, rows=frame))
                 for name, frame in frames.items())  # fmt: skip
    finding = found(few, most)["known-distributions"]
    assert finding.studies == ["most", "few"]
    assert finding.state == state and not finding.is_named
    short = findings.TEXTS["findings"]["known-distributions"]["short"][state]
    assert ("one or two" in short) == (state == "depends") and len(short.split()) <= 20
    assert (finding.facts["fits"], finding.facts["heads"]) == (str(3 * 3 * len(heads)), len(heads))
    assert [(row.label, row.value) for row in finding.figure.rows] == [("SigSoftmax", -8.6)]
    table = pd.DataFrame(logs, columns=["seed", "r", "d", "head", "x", "y"])
    for dropped, place in (((), 0), (("relu",), 1), (("low-rank",), 2), (("relu", "low-rank"), 3)):
        kept = table[~table["head"].isin(dropped)]
        centred = kept[["x", "y"]] - kept.groupby(["seed", "r", "d"])[["x", "y"]].transform("mean")
        values = [np.corrcoef(part["x"], part["y"])[0, 1] for _, part in centred.groupby(kept["seed"])]
        printed = re.findall(r"([+\u2212]?\d\.\d\d) \(", finding.number)[place]
        assert float(printed.replace("\u2212", "-")) == pytest.approx(np.mean(values), abs=0.0051)


@pytest.mark.parametrize(
    ("ends", "state"),
    [
        ([(-0.47, 0.1), (0.2, 0.47)], "holds"),  # also if the weak ones differ
        ([(0.48, 0.7), (0.5, 0.9)], "fails"),
        ([(-0.9, -0.5), (-0.8, -0.48)], "fails"),
        ([(0.5, 0.7), (-0.7, -0.5)], "depends"),  # strong, but of two signs
        ([(0.5, 0.7), (0.4, 0.49)], "depends"),
        ([(0.5, 0.7), (0.4, 0.6)], "open"),
        ([(-0.2, 0.1), (-0.5, 0.2)], "open"),
        ([(-np.inf, np.inf), (0.5, 0.7)], "open"),
    ],
)
def test_correlations_depend_on_heads_only_if_intervals_exclude_each_other(ends, state) -> None:
    assert findings.WEAK == 0.48
    assert findings.relation(Interval((low + high) / 2, low, high, (3,), 0.0, 3) for low, high in ends) == state


def test_rates_that_were_added_after_the_first_runs_are_said_of_the_findings_on_them() -> None:
    plan = replace(mixtures(50, 47, 45), name=f"{PLAN}-cpu")
    pair = schema.Contrast(model="ss", against="softmax", label="gain", same_size=True)
    words = study("words", "ptb", softmax=Trained(ppl=near(50), width=64),
                  ss=Trained(head="sigsoftmax", ppl=near(49), width=64))  # fmt: skip
    words = replace(words, contrasts=schema.Contrasts(family=(pair,), margin=0.01))
    assert PLAN in findings.TEXTS["rates added"]
    kinds = {finding["id"]: finding["kind"] for finding in summary.answer([plan, words])["findings"]}
    added = dict.fromkeys(("mixing-contexts", "mixing-probabilities"), "learning rates exploratory")
    assert kinds == added | {"rank-without-mixing": ""}


def test_the_margin_of_the_same_time_is_that_of_the_studies_that_named_it() -> None:
    def declared(
        name: str, dataset: str, against: str, margin: float, ppl: Sequence[float] = near(50)
    ) -> FinishedStudy:
        pair = schema.Contrast(model="mos", against=against, label="the same time", same_size=against != "wide")
        mos, softmax = Trained(head="mos", options=MIXTURE, ppl=ppl), Trained(ppl=near(50))
        own = study(name, dataset, mos=mos, softmax=softmax, wide=replace(softmax, width=64))
        return replace(own, contrasts=schema.Contrasts(family=(pair,), margin=margin))

    plan, other = declared("plan", "ptb", "wide", 0.05), declared("other", "wt2-small", "softmax", 0.001)
    finding = found(other, plan)["same-time"]
    assert (finding.state, finding.facts["margin"]) == ("equal", "5 %")
    finding = found(plan, declared("second", "wt2-small", "wide", 0.02))["same-time"]
    assert (finding.state, finding.facts["margin"]) == ("equal", "2 %")  # the smallest
    diverged = declared("second", "wt2-small", "wide", 0.02, [50, 50.2, math.inf])
    finding = found(plan, diverged)["same-time"]
    assert finding.state == "open" and "1 diverged" in finding.details[0]
    finding = found(plan, declared("second", "wt2-small", "wide", 0.02, [math.inf] * 3))["same-time"]
    assert finding.state == "open" and "3 diverged" in finding.details[0] and len(finding.figure.rows) == 1


def test_what_has_no_evidence_is_left_out_and_the_question_stays_open() -> None:
    shown = summary.answer([study(mos=Trained(head="mos", ppl=near(50)))])
    assert shown["answer"] == findings.TEXTS["answer"]["none"] and shown["findings"] == []


@pytest.mark.parametrize(
    ("states", "lead"),
    [
        (("holds", "holds", "open"), 0),
        (("holds", "holds", "holds"), 1),
        (("holds", "holds", "fails"), 2),
        (("holds", "open", "open"), "against"),
        (("open", "open", "holds"), "against"),
        (("fails", "holds", "open"), "for"),
        (("open", "open", "fails"), "for"),
        (("holds", "fails", "fails"), "either"),
        (("open", "fails", "fails"), "either"),
        (("open", "open", "open"), "either"),
    ],
)
def test_the_answer_follows_from_the_state_of_every_finding(states, lead, shipped) -> None:
    (language,) = (one for one in archive.load_all() if one.study == "gss-settings")
    every = found(mixtures(50, 47, 45), study(SEEDS, "ptb-small", softmax=Trained(ppl=near(50)),
                  ss=Trained(head="sigsoftmax", ppl=near(50))), language)  # fmt: skip
    changed = {
        name: replace(finding, state=state) for (name, finding), state in zip(every.items(), states, strict=True)
    }
    texts = findings.TEXTS["answer"]
    entry = texts["mixed"][lead] if isinstance(lead, int) else texts[lead]
    expected = {"text": entry} if lead == "either" else entry
    more = expected.get("more", "").format(**every["rank-without-mixing"].facts)
    facts = {name: finding.facts for name, finding in every.items()}
    assert summary.verdict(changed) == (expected["text"].format(**facts), more)
    for name, finding in changed.items():  # every state of a finding has its own short sentence
        short = findings.TEXTS["findings"][name]["short"][finding.state].format(**finding.facts)
        assert len(short.split()) <= 20


def test_a_gain_on_a_designed_language_leaves_the_finding_on_pointwise_heads_open(shipped) -> None:
    own = study(SEEDS, "ptb-small", softmax=Trained(ppl=near(50)), ss=Trained(head="sigsoftmax", ppl=near(50)))
    assert found(own)["rank-without-mixing"].state == "holds"
    (language,) = (one for one in archive.load_all() if one.study == "gss-settings")
    finding = found(own, language)["rank-without-mixing"]
    assert finding.state == "open" and finding.facts["language"] and finding.facts["compared"] == 1


def test_the_answer_follows_from_the_archives(shipped) -> None:
    shown = summary.answer(archive.load_all())
    mixed, time = (findings.TEXTS["answer"][key] for key in ("mixed", "time"))
    gaining = "−1.3\N{NO-BREAK SPACE}% on small WikiText-2"
    counted = {"lower": 1, "judged": 3, "overall": 0, "losing": "", "heads": "SigSoftmax"}  # GSS lost with fewer rates
    first = mixed[2]["more"].format(gaining=gaining, **counted)
    where = "Penn Treebank and small WikiText-2"
    lead = mixed[2]["text"].replace("{mixing-contexts[width]}", "64")
    assert shown["answer"] == re.sub(r"\{.*?\}", "", lead)
    assert shown["more"] == f"{first} {time['holds'].format(where=where, others='', device='a CPU', size='3.9 to 4.4')}"
    assert all(len(one["short"].split()) <= 20 for one in shown["findings"])
    studies = archive.load_all()
    runs = set()
    for one in studies:
        measured = set(one.records.rows.query("metric == 'test_ppl' and condition == ''")["run_id"])
        for row in one.records.states.to_dict("records"):
            if (
                not one.study.startswith("repeat")
                and row["run_id"] in measured
                and (run := one.settings.get((row["dataset"], row["model"])))
            ):
                facts = repr((run.dataset, run.head, run.body, run.schedule, run.threads))
                facts = re.sub(r"\b(\d+)\.0\b", r"\1", facts)  # 0 and 0.0 are one setting
                facts = facts.replace("{'learned_shift': False}", "{}")  # older archives lack it
                runs.add((facts, row["seed"], row["hardware"]))
    assert shown["counts"] == {"archives": len(archive.files()), "studies": len({one.study for one in studies}),
        "runs": len(runs)}  # fmt: skip
    assert [one["kind"] for one in shown["findings"]] == 4 * ["learning rates exploratory"] + 2 * ["exploratory"]


def test_what_findings_name_exists(shipped) -> None:
    studies = archive.load_all()
    known = {entry["id"] for one in studies for entry in one.claims}
    assert all(set(texts["claims"]) <= known for texts in findings.TEXTS["findings"].values())
    assert findings.TEXTS["findings"].keys() == findings.FINDINGS.keys()
    settings: dict[str, dict[tuple[str, str], Any]] = {}
    for one in studies:
        settings.setdefault(one.study, {}).update(one.settings)
    for name, datasets in findings.TEXTS["named"].items():
        for dataset, pairs in datasets.items():
            assert {(dataset, model) for models in pairs.values() for model in models} <= settings[name].keys()
    count = sum(len(pairs) for datasets in findings.TEXTS["named"].values() for pairs in datasets.values())
    declared = {
        (one.study, dataset, contrast.model, contrast.against)
        for one in studies if one.contrasts
        for dataset, contrast in itertools.product(one.datasets, one.contrasts.family)
        if {(dataset, contrast.model), (dataset, contrast.against)} <= settings[one.study].keys()
    }  # fmt: skip
    count += len(declared)
    lists = (findings.TEXTS[key] for key in ("named", "left_out", "notes"))
    assert len(contrasts.named_contrasts(samples.pool_runs(studies), studies, *lists)) == count
    assert all(name in {one[0] for one in declared} or noted.keys() <= findings.TEXTS["named"][name].keys()
               for name, noted in findings.TEXTS["notes"].items())  # fmt: skip


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


def test_figures_of_one_quantity_share_an_axis() -> None:
    wide = [dot_plot.Row("a", -3.0, -4.0, -2.0), dot_plot.Row("b", 30.0, 1.0, 40.0)]
    svgs = [ElementTree.fromstring(dot_plot.DotPlot(wide[:n], "axis", wide).svg()) for n in (1, 2)]
    first = [next(dot.get("cx") for dot in svg.iter("{http://www.w3.org/2000/svg}circle")) for svg in svgs]
    assert first[0] == first[1]


def test_the_picture_has_a_dot_per_head_in_the_setting_with_the_most_heads() -> None:
    metrics = {"rank_press": 700.0}
    few = study("few", "ptb", softmax=Trained(ppl=near(50)), ss=Trained(head="sigsoftmax", ppl=near(51)))
    larger = {"parameters": 1.02e6, **metrics}
    most = study("most", "ptb-small", softmax=Trained(ppl=near(60)),
                 ss=Trained(head="sigsoftmax", ppl=near(57), metrics=metrics),
                 mos=Trained(head="mos", options=MIXTURE, ppl=near(54), metrics=larger),
                 gss=Trained(head="gss", options={"c": -1.5, "k": 2.5}, ppl=[66.0]))  # fmt: skip
    drawn = summary.picture(samples.pool_runs([few, most]))
    (panel,) = drawn.panels
    dots = {dot.label: dot for dot in panel.dots}
    assert list(dots) == ["Softmax", "SigSoftmax", "GSS", "MoS"] and panel.title == "Ptb-Small"
    ends = stats.ttest_ind(np.log(near(57)), np.log(near(60)), equal_var=False).confidence_interval()
    ss = dots["SigSoftmax"]
    assert (ss.rank, ss.change) == (pytest.approx(700), pytest.approx(-5))
    assert (ss.low, ss.high) == pytest.approx([100 * np.expm1(end) for end in ends])
    assert dots["GSS"].low == dots["GSS"].high == pytest.approx(100 * (66 / np.exp(np.log(near(60)).mean()) - 1))
    assert [dot.is_fair for dot in panel.dots] == [True, True, True, False]  # MoS is 2 % larger
    assert drawn.csv.count("\n") == 5 and "700" in drawn.csv


def test_the_picture_is_to_scale_and_its_labels_cover_nothing() -> None:
    facts = [("Softmax", 10, 0, 0, 0), ("a head", 100, -5, -6, -4), ("another", 101, -5.1, -6, -4),
        ("MoS", 1e3, 5, 5, 5)]  # fmt: skip
    dots = [scatter.Dot(*one, is_fair=True) for one in facts]
    svg = ElementTree.fromstring(scatter.Scatter([scatter.Panel("A corpus", "n = 3", dots)]).svg())
    name = "{http://www.w3.org/2000/svg}"
    centres = [(float(dot.get("cx")), float(dot.get("cy"))) for dot in svg.iter(f"{name}circle")]
    (x0, y0), (x1, y1), _, (x3, y3) = centres
    assert x1 - x0 == pytest.approx(x3 - x1, abs=0.2) and y1 - y0 == pytest.approx(y0 - y3, abs=0.2) and y1 > y0
    labels = [text for text in svg.iter(f"{name}text") if text.get("class") == "label"]
    boxes = []
    for text in labels:
        width = scatter.LETTER * len(text.text)
        left = float(text.get("x")) - (width if text.get("text-anchor") == "end" else 0)
        top = float(text.get("y")) - scatter.LINE + 3
        boxes.append((left, top, left + width, top + scatter.LINE))
    (zero,) = (line for line in svg.iter(f"{name}path") if line.get("class") == "zero")
    assert f" {y0:g}H" in zero.get("d") and not any(top < y0 < bottom for _, top, _, bottom in boxes)
    for n, (left, top, right, bottom) in enumerate(boxes):
        assert not any(left < x < right and top < y < bottom for x, y in centres)
        assert not any(left < box[2] and box[0] < right and top < box[3] and box[1] < bottom for box in boxes[:n])
