"""Every published number of a table stands in every study that shows the table, with what is missing beside it."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter

import fake_results as fake
import pandas as pd
import pytest
from softmax_bottleneck import study as config
from softmax_bottleneck.records import collect, records
from softmax_bottleneck.report import cells, figures, source, views
from softmax_bottleneck.study import load_dataset, load_experiment

FILES = sorted((config.ROOT / "config" / "experiments").glob("*.yaml"))
DECLARED = [load_experiment(file.stem, config.ROOT / "config") for file in FILES]
QUOTING = {e.id: e for e in DECLARED if (e.kind, e.quotes) == ("table", True) and e.id != "published-size"}  # evidence
DRAWN = {e.id: e for e in DECLARED if e.kind == "figure" and e.quotes}
# Rows of published files that are no cell of the table: facts about it, printed elsewhere, or of another table.
NOT_CELLS = "text|caption|Table 2$|footnote|not printed"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, cells.Table | figures.Figure]:
    """All of them in a study of two models on one language."""
    folder = tmp_path_factory.mktemp("small")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        text = (
            fake.STUDY[: fake.STUDY.index("  - when: {model: [moc")]
            + "models:\n  softmax: {head: softmax}\n  gss: {head: gss}\n"
        )
        study = fake.load(folder, text + "experiments:\n" + "".join(f"  {name}:\n" for name in (*QUOTING, *DRAWN)))
        found = collect.collect(study)
        return {e.id: (figures if e.id in DRAWN else views).build(study, e, found) for e in study.experiments}


def shown(table: cells.Table) -> list[cells.Cell]:
    return [cell for part in table.parts for row in part.rows for cell in row.cells if cell.published]


@pytest.mark.parametrize("name", QUOTING)
def test_every_published_number_of_the_tables_own_file_stands_in_it(small, name: str) -> None:
    own = [file for file in QUOTING[name].published if file.removesuffix(".csv").replace("_", "-") == name]
    rows = source.read_published(tuple(own))
    rows = rows[
        ~rows["table"].str.contains(NOT_CELLS) | (rows["table"] == "Table 2") | rows["table"].str.contains("SM Table")
    ]
    printed = set(rows["value"].str.replace("|", ", "))
    there = {cell.published.value for cell in shown(small[name])}
    assert printed - there <= {"N/A"}, name
    assert small[name].parts and small[name].csv


@pytest.mark.parametrize("name", DRAWN)
def test_every_published_number_of_a_figure_is_drawn(small, name: str) -> None:
    """Also of corpora and models that the study has not: every number of its files that is of a kind it draws."""
    rows = source.read_published(DRAWN[name].published)
    corpora = {source.published_dataset(load_dataset(one, config.ROOT / "config")) for one in DRAWN[name].datasets}
    dots = rows["condition"].str.startswith("point=") | (name != "parthiban2021-figure2")  # else lines about them
    data = pd.DataFrame(csv.DictReader(io.StringIO(small[name].csv)))
    theirs = data[data["origin"] == "published"] if "origin" in data else data
    compared = 0
    for metric, own in rows[rows["dataset"].isin(corpora) & dots].groupby("metric"):
        column = {"top5_hit": "published", "wordsim_wins": "published"}.get(metric, metric)
        if column in data:
            printed, drawn = (Counter(float(x) for x in values if x) for values in (own["value"], theirs[column]))
            assert printed <= drawn, metric
            compared += printed.total()
    assert compared > 10
    assert "not in this study; config/" in small[name].note


@pytest.mark.parametrize("name", QUOTING)
def test_what_is_missing_is_said_in_every_cell(small, name: str) -> None:
    for cell in shown(small[name]):
        assert not cell.wanted or cell.gap or cell.measured or cell.words or cell.note == "reference", name


def test_the_words_that_yang_printed_stand_beside_ours(small) -> None:
    """60 rows of five words: MoS** and MoC** for six contexts."""
    rows = records.read_csv(source.PUBLISHED / "parthiban2021_sm_table2_top5.csv")
    table = small["parthiban2021-sm-table2"]
    quoted = [i for i, column in enumerate(table.parts[0].columns) if "Yang" in column]
    texts = [row.cells[i].published.value for row in table.parts[0].rows for i in quoted if row.cells[i].published]
    assert sum(len(text.splitlines()) for text in texts) == 60 == rows["model"].str.endswith("yang2018").sum()
    assert len(table.parts[0].rows) == 18


def test_places_of_another_text_have_no_published_hits_and_hide_no_published_place(tmp_path, monkeypatch) -> None:
    """A language draws contexts of its own, of the same group and numbers as the paper's."""
    monkeypatch.chdir(tmp_path)
    study = fake.load(tmp_path, fake.showing("parthiban2021-figure3:", "parthiban2021-sm-table2:"))
    for run in study.needed:
        fake.write_run(run)
        fake.write_topk(run)
    drawn, table = study.experiments[0], study.experiments[1]
    found = collect.collect(study)
    rows = list(csv.DictReader(io.StringIO(figures.build(study, drawn, found).csv)))
    own = [row for row in rows if row["target"].startswith("w") and row["target"][1:].isdigit()]
    assert {row["measured"] for row in own} >= {"1"} and {row["published"] for row in own} == {""}
    assert sum(row["published"] != "" for row in rows) == 8 * 18 + 2 * 6
    (part,) = views.build(study, table, found).parts
    assert len(part.rows) == 18 + 18 and part.title == "The known-truth language; in the paper: Penn Treebank"
    assert sum(bool(row.cells[0].words) for row in part.rows) == 18


def test_the_study_that_has_it_is_named(small) -> None:
    kanai = small["kanai2018-table1"]
    (relu,) = (row for part in kanai.parts for row in part.rows if row.key == "kanai-relu")
    assert "2.78e5" in {cell.published.value for cell in relu.cells if cell.published}
    assert {cell.gap for cell in relu.cells if cell.published} == {"not in this study; config/ptb-cpu.yaml has it"}
    table = small["parthiban2021-sm-table5"]
    (gap,) = {cell.gap for cell in shown(table)}
    assert re.fullmatch(r"not in this study; config/(ptb-cpu|paper).yaml has it", gap)


def test_csv_holds_every_row(small) -> None:
    for name, experiment in QUOTING.items():
        rows = (experiment.published_rows or experiment.models) if experiment.view == "summary" else ()
        assert all(f",{row}," in small[name].csv for row in rows), name


CONTRADICTIONS = {
    "kanai2018-table1": ("supplement that is not at hand", "10⁻⁸"),
    "kanai2018-table3": ("245,570", "245,568", "82,429"),
    "parthiban2021-sm-table14": ("8,933", "9,979", "does\n  not grow"),
    "parthiban2021-sm-table17": ("9,983", "9,979"),
    "ganea2019-table1": ("after epoch 200", "starts stabilizing", "0.25"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_what_papers_contradict_or_leave_open_is_said_where_it_matters(small, name: str) -> None:
    caption = " ".join(small[name].caption.split())
    assert all(" ".join(words.split()) in caption for words in CONTRADICTIONS[name])
    assert not any("{" in table.caption for table in small.values())
