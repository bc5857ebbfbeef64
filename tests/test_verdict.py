"""The sentences at the top of a report follow from the ledger and the records, also with several corpora."""

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
from softmax_bottleneck.report.claims.view import SYNTHETIC
from softmax_bottleneck.study import Study

FOUND = SimpleNamespace(rows=pd.DataFrame({"run_id": ["a"]}), unlearned={})
STUDY = SimpleNamespace(
    is_of_own_texts=False,
    datasets={"a": SimpleNamespace(title="Corpus A"), "b": SimpleNamespace(title="Corpus B")},
    labels={},
    needed=(),
    runs=(),
)


def entry(number: int, dataset: str, said: str) -> claims.Entry:
    return claims.Entry(claims.CLAIMS[number], dataset, said)


def statement(number: int) -> str:
    return claims.CLAIMS[number].statement.rstrip(".")


def test_one_corpus_counts_and_names_its_conclusions() -> None:
    entries = [
        entry(0, "a", rules.REPRODUCED),
        entry(1, "a", rules.NOT_REPRODUCED),
        entry(2, "a", rules.UNDECIDED),
        entry(3, "a", rules.CONFOUNDED),
        entry(4, SYNTHETIC, rules.CANNOT),
    ]
    first, second = sentences.in_short(STUDY, FOUND, entries)
    assert first == (
        "The papers’ 5 conclusions, 4 on Corpus A and 1 without a corpus, at this study’s scale: "
        "1 reproduced, 1 not reproduced, 1 undecided, 1 confounded, 1 cannot be tested here."
    )
    assert second == f"Reproduced: “{statement(0)}”. Not reproduced: “{statement(1)}”."


def test_several_corpora_are_named_behind_each_conclusion() -> None:
    entries = [
        entry(0, "a", rules.REPRODUCED),
        entry(0, "b", rules.NOT_REPRODUCED),
        entry(1, "a", rules.REPRODUCED),
    ]
    entries.append(entry(1, "b", rules.REPRODUCED))
    first, second = sentences.in_short(STUDY, FOUND, entries)
    assert first == (
        "The 4 verdicts on the papers’ conclusions, on 2 corpora, at this study’s scale: "
        "3 reproduced, 1 not reproduced."
    )
    named = f"Reproduced: “{statement(0)}” (Corpus A); “{statement(1)}” (Corpus A and Corpus B)"
    assert second == f"{named}. Not reproduced: “{statement(0)}” (Corpus B)."


def test_more_conclusions_than_a_sentence_holds_are_counted() -> None:
    entries = [entry(number, "a", rules.REPRODUCED) for number in range(sentences.QUOTED + 3)]
    assert sentences.in_short(STUDY, FOUND, entries)[1].endswith(" and 3 more.")


def test_nothing_is_said_before_a_run_has_finished() -> None:
    nothing = SimpleNamespace(rows=pd.DataFrame({"run_id": [""]}))
    assert sentences.in_short(STUDY, nothing, [entry(0, "a", rules.UNDECIDED)]) == []


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.chdir(tmp_path)
    study = fake.load(tmp_path)
    fake.write_all(study)
    return study


def test_the_laws_expected_perplexity_and_its_own_on_the_text_are_two_numbers(study: Study) -> None:
    found = collect.collect(study)
    ((_, before),) = sentences.of_corpora(study, found)
    assert any("in the contexts of this text is 29.00. MoS, the best model, is 2" in words for words in before)
    for run in study.needed:
        fake.write_measure(run, law_test_ppl=28.5)
    ((_, words),) = sentences.of_corpora(study, collect.collect(study))
    best = min(fake.perplexities(run)["test_ppl"] for run in study.needed)
    (said,) = (sentence for sentence in words if "expected" in sentence)
    assert "text is 29.00; on the text itself it scores 28.50. MoS, the best model, is" in said
    assert abs(best / 28.5 - 1 - int(said.split("model, is ")[1].split()[0]) / 100) < 0.01 and "above that" in said
    assert not any("No model can do better" in sentence for sentence in words)


def test_a_p_value_stands_with_its_counts_and_is_corrected_for_the_choice_of_the_best(study: Study) -> None:
    ((_, words),) = sentences.of_corpora(study, collect.collect(study))
    said = r"MoS has .*; Softmax has .* \(Student’s p = (.+), corrected for the choice among 5 models, n = 3 each\)\."
    (found,) = (match for text in words if (match := re.search(said, text)))
    mos, softmax = (
        [fake.perplexities(run)["test_ppl"] for run in study.needed if run.model == model]
        for model in ("mos", "softmax")
    )
    assert float(found[1].replace("−", "-")) == pytest.approx(5 * stats.ttest_ind(mos, softmax).pvalue, rel=0.1)


def test_single_runs_are_not_the_best_and_a_larger_winner_is_called_larger(study: Study) -> None:
    """MoS has the lowest mean; with one run left it cannot have it any more, in any of the sentences."""
    found = collect.collect(study)
    rows = found.rows.copy()
    rows.loc[(rows["metric"] == "parameters") & (rows["model"] == "mos"), "value"] *= 2
    sizes = rows[rows["metric"] == "parameters"].groupby("model")["value"].first()
    larger = f"with {sizes['mos'] / sizes['softmax']:.2g} times the parameters of Softmax"
    ((_, words),) = sentences.of_corpora(study, replace(found, rows=rows))
    said = [words[0], sentences.in_short(study, replace(found, rows=rows), [])[0]]
    assert all("MoS" in text.split(larger)[0] and larger in text for text in said)
    fewer = replace(found, rows=rows[(rows["model"] != "mos") | (rows["seed"] < 2)])
    ((_, words),) = sentences.of_corpora(study, fewer)
    assert words[0].startswith("Of the models with 3 runs MoC has the lowest test perplexity")
    assert "over 3 runs is that of MoC" in sentences.in_short(study, fewer, [])[0]


@pytest.mark.parametrize(
    ("models", "said"),
    [
        (["softmax"], "The mean Press rank of Softmax is 18;"),
        (["softmax", "moc"], "The mean Press rank of every model is 18;"),
        (["softmax", "ss"], "Mean Press ranks range from 18 (Softmax) to "),
    ],
)
def test_a_range_of_ranks_has_two_ends(study: Study, models: list[str], said: str) -> None:
    found = collect.collect(study)
    ((_, words),) = sentences.of_corpora(study, replace(found, rows=found.rows[found.rows["model"].isin(models)]))
    assert words[1].startswith(said)
    single = found.rows[(found.rows["model"] == "softmax") & (found.rows["seed"] == 1)]
    assert "lowest test perplexity of a single run" in sentences.in_short(study, replace(found, rows=single), [])[0]


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
