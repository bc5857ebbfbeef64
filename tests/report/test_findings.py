"""The sentences at the top of a report follow from the records."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import fake_results as fake
import pandas as pd
import pytest
from scipy import stats
from softmax_bottleneck.records import collect
from softmax_bottleneck.report.claims import sentences
from softmax_bottleneck.study import Study


def test_there_are_no_findings_before_a_run_has_finished() -> None:
    nothing = SimpleNamespace(rows=pd.DataFrame({"run_id": [""]}))
    assert sentences.in_short(SimpleNamespace(datasets={}), nothing) == ""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.chdir(tmp_path)
    study = fake.load(tmp_path)
    fake.write_all(study)
    return study


def test_the_best_model_is_compared_with_the_true_distribution(study: Study) -> None:
    for run in study.needed:
        fake.write_measure(run, law_test_ppl=28.5)
    text = sentences.Corpus(study, collect.collect(study), "truth-demo").truth_sentence()
    expected, scored, above = map(float, re.findall(r"\d+\.\d+|\d+(?=\u00a0%| %)", text)[:3])
    best = min(fake.perplexities(run)["test_ppl"] for run in study.needed)
    assert (expected, scored) == (29.0, 28.5) and abs(best / scored - 1 - above / 100) < 0.01


def test_the_p_value_of_the_best_model_is_corrected_for_the_choice(study: Study) -> None:
    text = sentences.Corpus(study, collect.collect(study), "truth-demo").best_sentence()
    match = re.search(r"p = (\S+), .* 5 models, n = 3 each", text)
    mos, softmax = (
        [fake.perplexities(run)["test_ppl"] for run in study.needed if run.model == model]
        for model in ("mos", "softmax")
    )
    assert float(match[1].replace("−", "-")) == pytest.approx(5 * stats.ttest_ind(mos, softmax).pvalue, rel=0.1)


def test_single_runs_are_not_the_best_and_a_larger_winner_is_marked(study: Study) -> None:
    """MoS has the lowest mean; with a single run it is no longer the best."""
    records = collect.collect(study)
    rows = records.rows.copy()
    rows.loc[(rows["metric"] == "parameters") & (rows["model"] == "mos"), "value"] *= 2
    sizes = rows[rows["metric"] == "parameters"].groupby("model")["value"].first()
    corpus = sentences.Corpus(study, replace(records, rows=rows), "truth-demo")
    assert corpus.best == "mos" and f"{sizes['mos'] / sizes['softmax']:.2g} times" in corpus.best_sentence()
    fewer = replace(records, rows=rows[(rows["model"] != "mos") | (rows["seed"] < 2)])
    assert sentences.Corpus(study, fewer, "truth-demo").best == "moc"


def test_a_run_counts_once_under_the_label_it_is_trained_under(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    again = "  mos: {head: mos}\n  mos-again: {head: mos, like: mos, seeds: [1]}\n"
    text = fake.STUDY.replace("  mos: {head: mos}\n", again)
    study = fake.load(tmp_path, text.replace("known-truth: {models: all}", "known-truth: {models: [mos, mos-again]}"))
    fake.write_all(study)
    records = collect.collect(study)
    assert len(records.values("truth-demo", "mos-again", "test_ppl")) == 1
    means = sentences.means(study, records, "truth-demo")
    assert "mos-again" not in means and means["mos"].n == 3
