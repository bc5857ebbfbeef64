"""The sentences at the top of a report follow from the records."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import claim_examples as examples
import fake_results as fake
import numpy as np
import pytest
from scipy import stats
from softmax_bottleneck.records import collect
from softmax_bottleneck.report import findings
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.study import Study


def test_there_are_no_findings_before_a_run_has_finished() -> None:
    study = SimpleNamespace(datasets=["a"], runs=(), labels={"mos": "MoS"})
    assert findings.in_short(study, SimpleNamespace(unlearned={}, values=lambda *_: {})) == ""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.chdir(tmp_path)
    study = fake.load(tmp_path)
    fake.write_all(study)
    return study


def scores(study: Study, records) -> dict:
    return findings.means(study, records, "truth-demo")


def test_the_best_model_is_compared_with_the_true_distribution(study: Study) -> None:
    for run in study.needed:
        fake.write_measure(run, law_test_ppl=28.5)
    records = collect.collect(study)
    text = findings.truth_sentence(study, records, "truth-demo", scores(study, records))
    expected, scored, above = map(float, re.findall(r"\d+\.\d+|\d+(?=\u00a0%| %)", text)[:3])
    best = min(fake.perplexities(run)["test_ppl"] for run in study.needed)
    assert (expected, scored) == (29.0, 28.5) and abs(best / scored - 1 - above / 100) < 0.01


def test_the_interval_of_the_best_model_is_corrected_for_the_choice(study: Study) -> None:
    """Five models have as many runs as the best: 99 % instead of 95 %."""
    records = collect.collect(study)
    text = findings.best_sentence(study, records, "truth-demo", scores(study, records))
    logs = [
        [math.log(fake.perplexities(run)["test_ppl"]) for run in study.needed if run.model == model]
        for model in ("mos", "softmax")
    ]
    expected = stats.ttest_ind(*logs, equal_var=False).confidence_interval(0.99)
    shown = re.search(r"interval (\S+) to (\S+?)\)", text).groups()
    assert [float(end.replace("−", "-")) for end in shown] == pytest.approx(
        [100 * math.expm1(end) for end in expected], abs=0.05
    )


def test_single_runs_are_not_the_best_and_a_larger_winner_is_marked(study: Study) -> None:
    """MoS has the lowest mean; with a single run it is no longer the best."""
    records = collect.collect(study)
    rows = records.rows.copy()
    rows.loc[(rows["metric"] == "parameters") & (rows["model"] == "mos"), "value"] *= 2
    sizes = rows[rows["metric"] == "parameters"].groupby("model")["value"].first()
    larger = replace(records, rows=rows)
    assert findings.best_model(scores(study, larger)) == "mos"
    text = findings.best_sentence(study, larger, "truth-demo", scores(study, larger))
    assert f"{sizes['mos'] / sizes['softmax']:.2g} times" in text
    fewer = replace(records, rows=rows[(rows["model"] != "mos") | (rows["seed"] < 2)])
    assert findings.best_model(scores(study, fewer)) == "moc"


def test_a_run_counts_once_under_the_label_it_is_trained_under(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    again = "  mos: {head: mos}\n  mos-again: {head: mos, like: mos, seeds: [1]}\n"
    text = fake.STUDY.replace("  mos: {head: mos}\n", again)
    study = fake.load(tmp_path, text.replace("known-truth: {models: all}", "known-truth: {models: [mos, mos-again]}"))
    fake.write_all(study)
    records = collect.collect(study)
    assert len(records.values("truth-demo", "mos-again", "test_ppl")) == 1
    means = findings.means(study, records, "truth-demo")
    assert "mos-again" not in means and means["mos"].n == 3


# --- which head should I use? ---------------------------------------------------------------------------------------
def finished(name: str, *rows: examples.Row) -> FinishedStudy:
    return FinishedStudy(name, name, name.title(), "CPU", {}, [], examples.records_of(rows))


def test_heads_are_compared_with_the_softmax_at_its_size_where_there_is_such_a_model(study: Study) -> None:
    levels = {"softmax": 50.0, "gss": 50.1, "mos": 40.0, "mos-equal": 45.0, "moc": 60.0}
    rows = [(model, "test_ppl", "", [x, 1.01 * x, 0.99 * x]) for model, x in levels.items()]
    rows += [(model, "parameters", "", [1.2e6 if model == "moc" else 1e6] * 3) for model in levels]
    rows += [(model, "unigram_ppl", "", [60.0] * 3) for model in levels]
    single = [(model, "test_ppl", "", [x]) for model, x in {"softmax": 80.0, "gss": 40.0}.items()]
    alone = finished("none", ("mos", "test_ppl", "", [50.0] * 3))
    table = findings.head_table([finished("own", *rows), finished("one", *single), alone], study)
    assert [column["study"] for column in table["columns"]] == ["own", "one"]
    cells = {row["label"]: row["cells"] for row in table["rows"]}
    assert list(cells) == ["Softmax", "GSS", "MoC", "MoS"]
    assert cells["MoS"][0]["value"] == "−10.0\u00a0%" and cells["MoS"][0]["sign"] == -1 and not cells["MoS"][1]
    assert cells["MoC"][0]["sign"] == 1 and cells["MoC"][0]["size"] == "1.20" and cells["MoC"][0]["unlearned"] == 3
    assert cells["GSS"][0]["sign"] == 0 and cells["GSS"][1]["value"] == "−50.0\u00a0%"
    assert not cells["GSS"][1]["interval"] and cells["Softmax"][1]["value"] == "80.00"
    logs = np.log([[45, 45.45, 44.55], [50, 50.5, 49.5]])
    low, high = stats.ttest_ind(*logs, equal_var=False).confidence_interval()
    assert cells["MoS"][0]["interval"] == f"−{-100 * np.expm1(low):.1f} to −{-100 * np.expm1(high):.1f}"
    assert findings.head_table([alone], study) is None
