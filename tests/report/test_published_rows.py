"""Every published number of a table stands in every study that shows the table, with what is missing beside it."""

import csv
import io
from collections import Counter

import fake_results as fake
import pandas as pd
import pytest
from softmax_bottleneck import study as config
from softmax_bottleneck.records import collection, records
from softmax_bottleneck.report import cells, source, views
from softmax_bottleneck.study import load_dataset, load_experiment

FILES = sorted((config.ROOT / "config" / "experiments").glob("*.yaml"))
DECLARED = [load_experiment(file.stem, config.ROOT / "config") for file in FILES]
QUOTING = {e.id: e for e in DECLARED if (e.kind, e.quotes) == ("table", True) and e.id != "published-size"}  # evidence
DRAWN = {e.id: e for e in DECLARED if e.kind == "figure" and e.quotes}
# Rows of published files that are no cell of the table: facts about it, printed elsewhere, or of another table.
NOT_CELLS = "text|caption|Table 2$|footnote|not printed"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, cells.Table | views.Figure]:
    """All of them in a study of two models on one language."""
    folder = tmp_path_factory.mktemp("small")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        text = (
            fake.STUDY[: fake.STUDY.index("  - when: {model: [moc")]
            + "models:\n  softmax: {head: softmax}\n  gss: {head: gss}\n"
        )
        study = fake.load(folder, text + "experiments:\n" + "".join(f"  {name}:\n" for name in (*QUOTING, *DRAWN)))
        found = collection.collect(study)
        return {e.id: views.build(study, e, found) for e in study.experiments}


def shown(table: cells.Table) -> list[cells.Cell]:
    return [cell for section in table.sections for row in section.rows for cell in row.cells if cell.published]


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
    for cell in shown(small[name]):
        assert not cell.wanted or cell.gap or cell.measured or cell.label or cell.note == "reference", name
    experiment = QUOTING[name]
    if experiment.view == "summary":
        keys = {row.key for section in small[name].sections for row in section.rows}
        assert keys >= set(experiment.published_rows or experiment.models)


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


def test_the_words_that_yang_printed_stand_beside_ours(small) -> None:
    """60 rows of five words: MoS** and MoC** for six contexts."""
    rows = records.read_csv(source.PUBLISHED / "parthiban2021_sm_table2_top5.csv")
    table = small["parthiban2021-sm-table2"]
    quoted = [i for i, column in enumerate(table.sections[0].columns) if "Yang" in column]
    texts = [row.cells[i].published.value for row in table.sections[0].rows for i in quoted if row.cells[i].published]
    assert sum(len(text.splitlines()) for text in texts) == 60 == rows["model"].str.endswith("yang2018").sum()
    assert len(table.sections[0].rows) == 18


def test_places_of_another_text_have_no_published_hits_and_hide_no_published_place(place) -> None:
    """A language draws contexts of its own, of the same group and numbers as the paper's."""
    study = fake.load(place, fake.showing("parthiban2021-figure3:", "parthiban2021-sm-table2:"))
    for run in study.needed:
        fake.write_run(run)
        fake.write_topk(run)
    drawn, table = study.experiments[0], study.experiments[1]
    found = collection.collect(study)
    rows = list(csv.DictReader(io.StringIO(views.build(study, drawn, found).csv)))
    own = [row for row in rows if row["target"].startswith("w") and row["target"][1:].isdigit()]
    assert {row["measured"] for row in own} >= {"1"} and {row["published"] for row in own} == {""}
    assert sum(row["published"] != "" for row in rows) == 8 * 18 + 2 * 6
    (part,) = views.build(study, table, found).sections
    assert len(part.rows) == 18 + 18 and part.title == "The known-truth language; in the paper: Penn Treebank"
    assert sum(bool(row.cells[0].label) for row in part.rows) == 18
