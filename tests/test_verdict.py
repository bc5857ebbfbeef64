"""The sentences at the top of a report follow from the ledger and the records."""

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
from softmax_bottleneck.report import claims
from softmax_bottleneck.report.claims import rules, sentences
from softmax_bottleneck.report.claims.data import SYNTHETIC
from softmax_bottleneck.study import Study

FOUND = SimpleNamespace(rows=pd.DataFrame({"run_id": ["a"]}), unlearned={}, values=lambda *_: {})
STUDY = SimpleNamespace(
    is_of_own_texts=False,
    datasets={"a": SimpleNamespace(title="Corpus A"), "b": SimpleNamespace(title="Corpus B")},
    labels={},
    needed=(),
    runs=(),
)


def entry(number: int, dataset: str, verdict: str) -> claims.Entry:
    return claims.Entry(claims.CLAIMS[number], dataset, verdict)


def statement(number: int) -> str:
    return claims.CLAIMS[number].statement.rstrip(".")


def test_conclusions_of_one_corpus_are_counted_and_quoted() -> None:
    verdicts = (rules.REPRODUCED, rules.NOT_REPRODUCED, rules.UNDECIDED, rules.CONFOUNDED)
    entries = [entry(number, "a", verdict) for number, verdict in enumerate(verdicts)]
    first, second = sentences.in_short(STUDY, FOUND, [*entries, entry(4, SYNTHETIC, rules.CANNOT)])
    assert re.findall(r"\d+", first) == ["5", "4", "1", *["1"] * 5] and "Corpus A" in first
    good, bad = second.split("Not reproduced")
    assert statement(0) in good and statement(1) in bad and "Corpus A" not in second


def test_several_corpora_are_named_behind_each_conclusion() -> None:
    reproduced = [entry(0, "a", rules.REPRODUCED), entry(1, "a", rules.REPRODUCED), entry(1, "b", rules.REPRODUCED)]
    first, second = sentences.in_short(STUDY, FOUND, [*reproduced, entry(0, "b", rules.NOT_REPRODUCED)])
    assert re.findall(r"\d+", first) == ["4", "2", "3", "1"]
    assert f"“{statement(0)}” (Corpus A); “{statement(1)}” (Corpus A and Corpus B)" in second
    assert f"“{statement(0)}” (Corpus B)" in second


def test_more_conclusions_than_a_sentence_quotes_are_counted() -> None:
    entries = [entry(number, "a", rules.REPRODUCED) for number in range(sentences.QUOTED + 3)]
    assert " 3 more" in sentences.in_short(STUDY, FOUND, entries)[1]


def test_there_are_no_findings_before_a_run_has_finished() -> None:
    nothing = SimpleNamespace(rows=pd.DataFrame({"run_id": [""]}))
    assert sentences.in_short(STUDY, nothing, [entry(0, "a", rules.UNDECIDED)]) == []


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.chdir(tmp_path)
    study = fake.load(tmp_path)
    fake.write_all(study)
    return study


def test_the_best_model_is_compared_with_what_the_true_distribution_scores(study: Study) -> None:
    for run in study.needed:
        fake.write_measure(run, law_test_ppl=28.5)
    ((_, texts),) = sentences.of_corpora(study, collect.collect(study))
    expected, scored, above = map(float, re.findall(r"\d+\.\d+|\d+(?=\u00a0%| %)", texts[2])[:3])
    best = min(fake.perplexities(run)["test_ppl"] for run in study.needed)
    assert (expected, scored) == (29.0, 28.5) and abs(best / scored - 1 - above / 100) < 0.01


def test_the_p_value_of_the_best_model_is_corrected_for_the_choice(study: Study) -> None:
    ((_, texts),) = sentences.of_corpora(study, collect.collect(study))
    found = re.search(r"p = (\S+), .* 5 models, n = 3 each", texts[0])
    mos, softmax = (
        [fake.perplexities(run)["test_ppl"] for run in study.needed if run.model == model]
        for model in ("mos", "softmax")
    )
    assert float(found[1].replace("−", "-")) == pytest.approx(5 * stats.ttest_ind(mos, softmax).pvalue, rel=0.1)


def test_single_runs_are_not_the_best_and_a_larger_winner_is_marked(study: Study) -> None:
    """MoS has the lowest mean; with a single run it is no longer the best."""
    found = collect.collect(study)
    rows = found.rows.copy()
    rows.loc[(rows["metric"] == "parameters") & (rows["model"] == "mos"), "value"] *= 2
    sizes = rows[rows["metric"] == "parameters"].groupby("model")["value"].first()
    larger = f"{sizes['mos'] / sizes['softmax']:.2g} times the parameters of Softmax"
    corpus = sentences.Corpus(study, replace(found, rows=rows), "truth-demo")
    assert corpus.best == "mos" and larger in corpus.best_sentence() and larger in corpus.sentences()[0]
    fewer = replace(found, rows=rows[(rows["model"] != "mos") | (rows["seed"] < 2)])
    assert sentences.Corpus(study, fewer, "truth-demo").best == "moc"


def test_a_run_counts_once_under_the_label_it_is_trained_under(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    again = "  mos: {head: mos}\n  mos-again: {head: mos, like: mos, seeds: [1]}\n"
    text = fake.STUDY.replace("  mos: {head: mos}\n", again)
    study = fake.load(tmp_path, text.replace("known-truth: {models: all}", "known-truth: {models: [mos, mos-again]}"))
    fake.write_all(study)
    found = collect.collect(study)
    assert len(found.values("truth-demo", "mos-again", "test_ppl")) == 1
    means = sentences.means(study, found, "truth-demo")
    assert "mos-again" not in means and means["mos"].n == 3
