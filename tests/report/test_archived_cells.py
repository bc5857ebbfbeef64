"""Empty published cells take the value of the best archived study."""

import csv
import gzip
import io
import json
import statistics as plain
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import fake_results as fake
import pandas as pd
import pytest
from softmax_bottleneck import study as config
from softmax_bottleneck.records import collection, records
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report import archive, archived_cells, cells, views

ARCHIVED = {"demo": ("softmax", "ss"), "ptb-cpu": ("softmax", "ss", "mos")}  # models of each that have run
LOAD_ALL = archive.load_all
pytestmark = pytest.mark.usefixtures("shipped")
Made = tuple[config.Study, Records, dict[str, config.Study]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """A study of the softmax alone, and two archived studies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("archived"))
        finished, studies = [], {}
        for name, models in ARCHIVED.items():
            study = studies[name] = config.load_study(config.ROOT / "config" / f"{name}.yaml")
            for run in study.needed:
                if run.model in models:
                    fake.write_run(run)
            found = collection.collect(study)
            states = found.states[found.states["state"] == "ok"]
            kept = records.Records(found.rows, states)
            finished.append(archive.FinishedStudy(name, name, study.title, f"{name} machine", {}, [], kept))
        patch.setattr(archive, "load_all", lambda: finished)
        patch.setattr(archived_cells, "best_cells", cache(archived_cells.best_cells.__wrapped__))
        shown = "  parthiban2021-table2:\n  parthiban2021-sm-table6:\n"
        text = (
            fake.STUDY[: fake.STUDY.index("  - when")] + "models:\n  softmax: {head: softmax}\nexperiments:\n" + shown
        )
        own = fake.load(Path(), text)
        fake.write_all(own)
        yield own, collection.collect(own), studies


def table(made: Made, name: str) -> tuple[cells.Table, cells.Table]:
    """The table of the study before and after it is filled."""
    study, found, _ = made
    before = views.build(study, fake.experiment(study, name), found)
    return before, archived_cells.fill(before, study)


def test_a_row_that_the_study_lacks_has_the_mean_of_the_archived_study_with_most_runs(made: Made) -> None:
    _, after = table(made, "parthiban2021-table2")
    corpora = {"demo": "truth-demo", "ptb-cpu": "ptb-small"}  # both stand for Penn Treebank
    values = {name: fake.ppls_of(study, "ss", corpora[name]) for name, study in made[2].items()}
    name, best = max(values.items(), key=lambda item: len(item[1]))
    places = {(row, column): cell for dataset, row, column, cell in after.every_cell if dataset == "truth-demo"}
    cell = places["ss", "Test perplexity"]
    assert cell.measured is None and cell.archived is not None and cell.archived.measured is not None
    assert cell.archived.measured.mean == pytest.approx(plain.fmean(best)) and cell.archived.measured.n == len(best)
    assert (cell.archived.study, cell.archived.hardware) == (name, f"{name} machine")
    assert places["mos", "Test perplexity"].archived.study == "ptb-cpu"  # the only one that has it
    assert places["gss", "Test perplexity"].archived is None  # nobody has it
    assert all(cell.archived is None for (row, _), cell in places.items() if row == "softmax" and cell.measured)
    line = next(line for line in csv.DictReader(io.StringIO(after.csv))
        if (line["dataset"], line["row"], line["column"]) == ("truth-demo", "ss", "Test perplexity"))  # fmt: skip
    assert line["measured"] == "" and float(line["archived"]) == cell.archived.measured.mean
    assert (line["archived_n"], line["archived_study"]) == (str(len(best)), name)


def test_a_study_is_not_filled_from_its_own_archives(made: Made) -> None:
    found = archived_cells.best_cells("parthiban2021-table2", "demo")
    assert found and {cell.study for cell in found.values()} == {"ptb-cpu"}


def test_cells_measured_here_in_an_archive_and_nowhere_are_counted(made: Made) -> None:
    before, after = table(made, "parthiban2021-table2")
    have, archived, never = after.published_cells
    assert before.published_cells == (have, 0, archived + never) and min(have, archived, never) > 0


def test_settings_of_a_model_that_no_archive_has_trained_are_not_filled(made: Made) -> None:
    _, after = table(made, "parthiban2021-sm-table6")
    filled = {column for _, _, column, cell in after.every_cell if cell.archived}
    assert "GSS" not in filled


@pytest.mark.parametrize("name", ["paper", "demo"])
def test_no_two_published_cells_of_a_table_share_a_key(name: str) -> None:
    study = config.load_study(config.ROOT / "config" / f"{name}.yaml")
    empty = Records(*(pd.DataFrame(columns=list(names)) for names in (records.COLUMNS, records.STATE_COLUMNS)))
    tables = [experiment for experiment in study.experiments if experiment.kind == "table"]
    assert len(tables) > 30
    for experiment in tables:
        columns = [(one.label or one.metric, one.metric, one.stage) for one in experiment.columns]
        assert len(set(columns)) == len(columns), experiment.id
        table = views.build(study, experiment, empty)
        keys = Counter(archived_cells.key_of(*where, cell) for *where, cell in table.every_cell if cell.is_compared)
        assert all(count == 1 for count in keys.values()), (experiment.id, keys.most_common(1))


@pytest.fixture(scope="module")
def archived(shipped) -> dict:
    """The newest archive of ptb-cpu as plain JSON."""
    file = next(archive.FOLDER.glob("ptb-cpu-amd-epyc.json.gz"))
    return json.loads(gzip.decompress(file.read_bytes()))


def mean(content: dict, model: str, metric: str) -> float:
    rows = content["rows"]
    names = ("dataset", "model", "metric", "condition", "value")
    lines = zip(*(rows[name] for name in names), strict=True)
    return plain.fmean(line[-1] for line in lines if line[:-1] == ("wt2-small", model, metric, ""))


def test_counts_of_words_come_from_the_whole_corpus_and_those_of_a_cut_one_are_marked(shipped, monkeypatch) -> None:
    """SM Table 13 is arithmetic on a corpus: every archived count of all Penn Treebank is the published one."""
    monkeypatch.setattr(archive, "load_all", LOAD_ALL)
    found = shipped("parthiban2021-sm-table13", "demo")
    unknown = {key[:2]: cell for key, cell in found.items() if key[3] == "n_pairs_not_in_vocab"}
    ptb, wt2 = (
        [cell for (corpus, _), cell in unknown.items() if corpus == name and cell.published] for name in ("ptb", "wt2")
    )
    assert len(ptb) == len(wt2) == 13
    assert all(cell.measured.mean == float(cell.published.value) and not cell.note for cell in ptb)
    assert all("2,000" in cell.note for cell in wt2)


def test_a_column_is_filled_from_its_own_metric_whatever_its_heading(shipped, archived: dict, monkeypatch) -> None:
    """Table 3 has two columns "after training", and Table 1 of Benka et al. two columns "Reduction (%)"."""

    def filled(experiment: str, row: str, metric: str) -> float:
        found = shipped(experiment, "demo").items()
        (cell,) = [one for key, one in found if key[:2] == ("wt2", row) and key[3] == metric]
        return cell.measured.mean

    monkeypatch.setattr(archive, "load_all", LOAD_ALL)
    for metric in ("slope_mean", "slope_std"):
        assert filled("parthiban2021-table3", "lms-plif", metric) == mean(archived, "lms-plif", metric)
    assert filled("parthiban2021-table3", "lms-plif", "slope_std") == pytest.approx(0.624, abs=5e-4)
    for metric, printed in (("valid_ppl", -1.35), ("test_ppl", -1.92)):
        mos, softmax = (mean(archived, model, metric) for model in ("transformer-mos", "transformer"))
        found = filled("benka2021-table1", "transformer-mos", f"{metric}_reduction_pct")
        assert found == pytest.approx(100 * (1 - mos / softmax)) and found == pytest.approx(printed, abs=5e-3)
