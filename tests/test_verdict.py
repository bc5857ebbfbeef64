"""The sentences at the top of a report follow from the ledger and the records, also with several corpora."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import fake_results as fake
import pandas as pd
import pytest
from softmax_bottleneck.records import collect
from softmax_bottleneck.report import claims, judging, verdict

FOUND = SimpleNamespace(rows=pd.DataFrame({"run_id": ["a"]}), unlearned={})
STUDY = SimpleNamespace(
    datasets={"a": SimpleNamespace(title="Corpus A"), "b": SimpleNamespace(title="Corpus B")},
    labels={},
    needed=(),
    runs=(),
)


def entry(number: int, dataset: str, said: str) -> claims.Entry:
    return claims.Entry(claims.CLAIMS[number], dataset, judging.Judgement(said, ""))


def statement(number: int) -> str:
    return claims.CLAIMS[number].statement.rstrip(".")


def test_one_corpus_counts_and_names_its_conclusions() -> None:
    entries = [
        entry(0, "a", judging.REPRODUCED),
        entry(1, "a", judging.NOT_REPRODUCED),
        entry(2, "a", judging.NOT_ENOUGH),
    ]
    first, second = verdict.in_short(STUDY, FOUND, entries)
    assert first.startswith("On Corpus A 1 of the paper’s 3 conclusions is reproduced at this study’s scale, 1 is not,")
    assert second == f"Reproduced: “{statement(0)}”. Not reproduced: “{statement(1)}”."


def test_several_corpora_are_named_behind_each_conclusion() -> None:
    entries = [
        entry(0, "a", judging.REPRODUCED),
        entry(0, "b", judging.NOT_REPRODUCED),
        entry(1, "a", judging.REPRODUCED),
    ]
    entries.append(entry(1, "b", judging.REPRODUCED))
    first, second = verdict.in_short(STUDY, FOUND, entries)
    assert first.startswith("Of 4 verdicts on the paper’s conclusions, on 2 corpora, 3 are reproduced")
    named = f"Reproduced: “{statement(0)}” (Corpus A); “{statement(1)}” (Corpus A, Corpus B)"
    assert second == f"{named}. Not reproduced: “{statement(0)}” (Corpus B)."


def test_more_conclusions_than_a_sentence_holds_are_counted() -> None:
    entries = [entry(number, "a", judging.REPRODUCED) for number in range(verdict.NAMED + 3)]
    assert verdict.in_short(STUDY, FOUND, entries)[1].endswith(" and 3 more.")


def test_nothing_is_said_before_a_run_has_finished() -> None:
    nothing = SimpleNamespace(rows=pd.DataFrame({"run_id": [""]}))
    assert verdict.in_short(STUDY, nothing, [entry(0, "a", judging.NOT_ENOUGH)]) == []


@pytest.mark.parametrize(("p", "words"), [(0.2614, "0.26"), (0.05, "0.05"), (1.12e-4, "1.12e−4")])
def test_p_values_in_sentences(p: float, words: str) -> None:
    assert verdict.p_words(p) == words


def test_a_run_counts_once_under_the_label_it_is_trained_under(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    again = "  mos: {head: mos}\n  mos-again: {head: mos, like: mos, seeds: [1]}\n"
    text = fake.STUDY.replace("  mos: {head: mos}\n", again)
    study = fake.load(tmp_path, text.replace("known-truth: {models: all}", "known-truth: {models: [mos, mos-again]}"))
    fake.write_all(study)
    found = collect.collect(study)
    assert len(found.values("truth-demo", "mos-again", "test_ppl")) == 1
    means = verdict.means(study, found, "truth-demo")
    assert "mos-again" not in means and means["mos"].n == 3
