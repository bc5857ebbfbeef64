"""Faults of the analysis and the report: no gap is silent, no word is a number, no text is markup."""

import csv
import dataclasses
import io
import os
import shutil
import statistics as plain
from pathlib import Path
from typing import Any

import fake_results as fake
import pandas as pd
import pytest
import small
from hypothesis import given, settings
from hypothesis import strategies as st
from page_reader import Page
from softmax_bottleneck import __main__ as program
from softmax_bottleneck.records import collection, records, verify
from softmax_bottleneck.report import cells, contents, source, views
from softmax_bottleneck.report.page import table_page
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study import Run, Study

FEW = """
  known-truth: {models: all}
  parthiban2021-table1: {models: all}
  parthiban2021-table2: {models: all}
"""


def few(seeds: str, more: str = "") -> str:
    """A study of two models and few tables, whose page is made in no time."""
    text = fake.STUDY.replace("seeds: [1, 2, 3]", f"seeds: {seeds}")
    text = text[: text.index("  - when:")] + "models:\n  softmax: {head: softmax}\n  gss: {head: gss}\n"
    return f"{text}experiments:{more}{FEW}"


BENCHMARKS = "\n  parthiban2021-sm-table3: {models: all}"


def missing(run: Run) -> tuple[str, str]:
    shutil.rmtree(Store().run_folder(run.path))
    return "missing", "not trained yet"


def diverged(run: Run) -> tuple[str, str]:
    fake.write_done(run, "diverged", "nan in epoch 3")
    return "diverged", "nan in epoch 3"


def failed(run: Run) -> tuple[str, str]:
    fake.write_done(run, "failed", "out of memory")
    return "failed", "out of memory"


def damaged(run: Run) -> tuple[str, str]:
    path = Store().run_folder(run.path) / "measure.json"
    path.write_bytes(path.read_bytes().replace(b"test_ppl", b"test_pql", 1))
    return "unsound", "measure.json is damaged"


def unmeasured(run: Run) -> tuple[str, str]:
    (Store().run_folder(run.path) / "measure.json").unlink()
    return "missing", "trained; measure not done yet"


LOSSES = {1: missing, 2: diverged, 3: failed, 4: damaged, 5: unmeasured}
SUBSETS = [{1, 2, 3, 4, 5}, {1, 2, 3}, {4, 5}, {3}, set()]


@pytest.mark.fault("G1", "G2")
def test_g1_subsets_of_five_seeds_are_told_everywhere(place):
    """In the state of the run, the cell, its CSV, the list of gaps, the claims, the exit code."""
    study = fake.load(place, few("[1, 2, 3, 4, 5]"))
    runs = {run.seed: run for run in study.needed if run.model == "gss"}
    for run in study.needed:
        fake.write_run(run)
    lost: dict[int, tuple[str, str]] = {}
    for kept in SUBSETS:
        for seed in lost:
            fake.write_run(runs[seed])
        lost = {seed: LOSSES[seed](runs[seed]) for seed in runs if seed not in kept}
        found = collection.collect(study)
        values = [fake.perplexities(runs[seed])["test_ppl"] for seed in sorted(kept)]
        _assert_cell(study, found, kept, lost, values)
        gaps = contents.gaps(study, found)
        assert len(gaps) == len(lost)
        for seed, (state, reason) in lost.items():
            assert [gap for gap in gaps if f"1 of 5 {state}, seed {seed} ({reason}" in gap], (seed, gaps)
        counts = found.counts()
        assert counts["ok"] == 5 + len(kept) and counts["planned"] == 10
        checked = verify.verify(study)
        assert checked.complete == (not lost) and checked.counts == counts


def _assert_cell(
    study: Study, found: records.Records, kept: set[int], lost: dict[int, Any], values: list[float]
) -> None:
    experiment = fake.experiment(study, "parthiban2021-table2")
    table = views.build(study, experiment, found)
    part = next(part for part in table.sections if part.dataset == "truth-demo")
    row = next(row for row in part.rows if row.key == "gss")
    cell = row.cells[part.columns.index("Test perplexity")]
    assert cell.count == ("5" if len(kept) == 5 else f"{len(kept)} of 5")
    for seed, (state, _) in lost.items():
        assert any(state in part and (str(seed) in part or len(lost) == 5) for part in cell.gap.split("; ")), cell.gap
    assert bool(cell.gap) == bool(lost)
    assert (cell.measured is None) == (not kept)
    if kept:
        assert cell.measured.mean == pytest.approx(plain.fmean(values))
        assert cell.measured.sd == (None if len(kept) == 1 else pytest.approx(plain.stdev(values)))
    page = Page(table_page(table)).words
    assert "nan" not in page.lower()
    lines = csv.DictReader(io.StringIO(table.csv))
    line = next(line for line in lines if (line["row"], line["column"]) == ("gss", "Test perplexity"))
    assert (line["n"], line["gap"]) == (str(len(kept)), cell.gap)


@pytest.mark.fault("G1")
def test_g1_the_page_begins_with_its_gaps_and_verify_exits_3(place, capsys):
    study = fake.load(place, few("[1, 2, 3, 4, 5]"))
    for run in study.needed:
        fake.write_run(run)
    for seed, lose in LOSSES.items():
        lose(next(run for run in study.needed if run.model == "gss" and run.seed == seed))
    words = Page(fake.page(study)).words
    assert "GSS on The known-truth language: 1 of 5 diverged, seed 2 (nan in epoch 3)" in words
    assert words.index("Gaps") < words.index("seed 2 (nan in epoch 3)") < words.index("How to read the tables")
    assert program.main(["verify", "--study", "study.yaml"]) == 3
    assert program.main(["report", "--study", "study.yaml"]) == 0
    assert "error: fake: results are incomplete or damaged" in capsys.readouterr().err


@pytest.mark.fault("G5")
def test_g5_the_order_in_which_files_are_found_changes_no_byte(study, monkeypatch):
    def made() -> tuple[bytes, ...]:
        assert (
            program.main(["collect", "--study", "study.yaml"]) == program.main(["report", "--study", "study.yaml"]) == 0
        )
        folder = Store().study_folder("small")
        names = ("records.parquet", "records.csv", "states.csv", "report/index.html")
        return tuple((folder / name).read_bytes() for name in names)

    before = made()
    glob, rglob, iterdir, scandir = Path.glob, Path.rglob, Path.iterdir, os.listdir
    monkeypatch.setattr(Path, "glob", lambda *a, **k: iter(list(glob(*a, **k))[::-1]))
    monkeypatch.setattr(Path, "rglob", lambda *a, **k: iter(list(rglob(*a, **k))[::-1]))
    monkeypatch.setattr(Path, "iterdir", lambda *a: iter(list(iterdir(*a))[::-1]))
    monkeypatch.setattr(os, "listdir", lambda *a: scandir(*a)[::-1])
    assert made() == before


HAZARDS = [
    *("null", "nan", "NaN", "NA", "N/A", "None", "none", "true", "False", "inf", "-inf", "1e5", "", '"', "'", "a,b"),
    *("=1+1", "+cmd", "-cmd|'/C calc'!A0", "@SUM(A1)", "\tx", "$x$", "\\frac{1}{2}", "_", "%", "&", "#", "\u2028"),
]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(HAZARDS)


@pytest.mark.fault("G8", "G11")
@settings(max_examples=40, derandomize=True, deadline=None)
@given(words=st.lists(TEXT.filter(lambda text: "\r" not in text), min_size=1, max_size=5))
def test_g8_texts_come_through_csv_as_texts(tmp_path_factory, words):
    path = tmp_path_factory.getbasetemp() / "words.csv"
    path.write_text(records.to_csv(pd.DataFrame({"word": words, "value": [1.5] * len(words)})), encoding="utf-8")
    assert records.read_csv(path)["word"].tolist() == words


PAYLOADS = [
    "<script>alert(1)</script>", "</script></style></title><script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>' onload='x", "javascript:alert(1)",
    "{{7*7}}{% raw %}{# x #}${7*7}",
    "<!-- --> <![CDATA[ ]]> &lt;b&gt; &#60;",
    "\u202eevil\u2066 z\u0301\u0302\u0303\u0304 \u2028\u2029 \ufeff",
]  # fmt: skip


def poisoned(study: Study, text: str) -> Study:
    """The study with a text in every field that people write."""
    experiments = tuple(dataclasses.replace(one, title=text, caption=text, artefact=f"{text}{number}")
        for number, one in enumerate(study.experiments))  # fmt: skip
    datasets = {
        name: dataclasses.replace(one, title=text, source=text, licence=text) for name, one in study.datasets.items()
    }
    labels = {model: f"{text}{number}" for number, model in enumerate(study.labels)}
    return dataclasses.replace(
        study, title=text, description=text, labels=labels, experiments=experiments, datasets=datasets
    )


IDENTIFIERS = {"status", "run_id", "model_sha256", "dataset", "model", "code", "data_identity", "name", "kind", "group",
               "phase"}  # fmt: skip


def poison(value: Any, text: str, key: str = "") -> Any:
    """The same JSON with a text behind every string that is no identifier."""
    if isinstance(value, dict):
        return {name: poison(child, text, name) for name, child in value.items() if name != "run"} | (
            {"run": value["run"]} if "run" in value else {}
        )
    if isinstance(value, list):
        return [poison(child, text, key) for child in value]
    return value + text if isinstance(value, str) and key not in IDENTIFIERS else value


def with_text(place: Path, text: str) -> Page:
    """The page of a study in which every string field of every file says `text`."""
    study = fake.load(place, few("[1, 2]", BENCHMARKS))
    for run in study.needed:
        fake.write_run(run)
        fake.write_wordsim(run, {f"B{text}": (10, 5), f"C{text}": (9, 4)})
        for path in sorted(Store().run_folder(run.path).glob("*.json")):
            artefacts.write_json(path, poison(artefacts.read_json(path), text))
    fake.write_done(study.needed[-1], "diverged", text)
    artefacts.write_json(Store().tokens_folder("truth-demo") / "corpus.json", {
        "tokens": {"train": 1, "valid": 1, "test": 1}, "vocabulary_size": 3, "token_sha256": "0" * 64, "doubts": [text]
    })  # fmt: skip
    fake.write_synthetic(study)
    evil = poisoned(study, text)
    return Page(fake.page(evil))


@pytest.fixture(scope="module")
def harmless(tmp_path_factory: pytest.TempPathFactory) -> Page:
    folder = tmp_path_factory.mktemp("harmless")
    with small.inside(folder):
        return with_text(folder, "harmless")


@pytest.mark.fault("G10")
def test_g10_no_text_becomes_markup_anywhere(place, harmless):
    text = " ".join(PAYLOADS)
    page = with_text(place, text)
    assert page.tags == harmless.tags
    assert page.text.count("alert(1)") >= harmless.text.count("harmless") * 0.9 > 20
    links = [attrs[key] for _, attrs in page.elements for key in ("href", "src") if key in attrs]
    assert all(link.startswith(("#", "data:")) for link in links)


@pytest.mark.fault("G13")
def test_g13_a_page_without_results_says_so_and_exits_3(place, capsys):
    study = fake.load(place, few("[1, 2]"))
    assert program.main(["collect", "--study", "study.yaml"]) == program.main(["render", "--study", "study.yaml"]) == 0
    assert program.main(["report", "--study", "study.yaml"]) == 3
    assert "none of the 4 planned runs has results" in capsys.readouterr().err
    page = Store().study_folder(study.name) / "report" / "index.html"
    assert artefacts.is_sound(page)
    assert "0 of 4 planned training runs finished" in Page(page.read_text(encoding="utf-8")).words
    fake.write_done(study.needed[0], "diverged", "nan in epoch 1")
    assert program.main(["collect", "--study", "study.yaml"]) == program.main(["render", "--study", "study.yaml"]) == 0
    assert program.main(["report", "--study", "study.yaml"]) == 0  # a diverged run is a result


@pytest.mark.fault("G14")
def test_g14_what_was_not_published_is_said_and_never_zero(place, monkeypatch):
    study = fake.load(place, fake.paper_text("[1001]", ("table2",)))
    experiment = fake.experiment(study, "parthiban2021-table2")
    whole = source.read_published(experiment.published)
    gone = whole[~((whole["model"] == "gss") & (whole["metric"] == "test_ppl"))]
    monkeypatch.setattr(source, "read_published", lambda names: gone)
    table = views.build(study, experiment, collection.collect(study))
    found = [
        cell for part in table.sections for row in part.rows if row.key == "gss"
        for column, cell in zip(part.columns, row.cells, strict=True) if column == "Test perplexity"
    ]  # fmt: skip
    assert found and all(cell.published is None and cell.difference is None for cell in found)
    assert sum(attrs.get("title") == "not published" for attrs in Page(table_page(table)).all("span")) >= len(found)
    lines = csv.DictReader(io.StringIO(table.csv))
    lines = [line for line in lines if (line["row"], line["column"]) == ("gss", "Test perplexity")]
    assert [(line["published"], line["difference"]) for line in lines] == [("", "")] * len(found)
    assert cells.PublishedCell("N/A").number is None and cells.PublishedCell("").number is None
