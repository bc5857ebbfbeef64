"""Values of archived studies, which fill the empty cells of a study's tables.

A cell is empty if the paper has a number for it but the study has not measured one. The same table is built from the
records of every archived study. An empty cell gets the archived value for the same published corpus, row and column. A
column is identified by heading, metric and stage, because two columns of a table may have the same heading. If several
archives have a value, the order of preference is: runs with the settings of the paper, then the larger number of runs,
then the larger model.
"""

from dataclasses import replace
from functools import cache

from softmax_bottleneck.records import records
from softmax_bottleneck.report import archive, views
from softmax_bottleneck.report.cells import Cell, Table
from softmax_bottleneck.report.source import PAPER_STUDY, bundled_dataset, published_dataset
from softmax_bottleneck.study import Study, load_experiment, load_study, load_yaml

Key = tuple[str, str, str, str, str]  # published corpus, key of the row, heading of the column, metric, stage
Needed = frozenset[tuple[str, str]]  # published corpus and model (empty: none) of the runs that cells are made of
Rank = tuple[bool, int, float]  # of an archive: has the published setting, number of runs, parameters of the model


def fill(table: Table, study: Study) -> Table:
    """Return a table of a study with an archived value in every cell that has a published but no measured value.

    The module's docstring has the order of preference among archives. A cell without an archived value stays empty.
    """
    empty = [(dataset, cell) for dataset, _, _, cell in table.every_cell if cell.is_empty]
    needed = frozenset((published_corpus(study, dataset), cell.runs.rpartition("/")[2]) for dataset, cell in empty)
    best = best_cells(table.experiment.id, study.name, needed) if needed else {}
    titles = {one.study: one.title for one in archive.load_all()} if best else {}
    sections = []
    for section in table.sections:
        corpus, rows = published_corpus(study, section.dataset), []
        for row in section.rows:
            found = (best.get(key_of(corpus, row.key, *pair)) for pair in zip(section.columns, row.cells, strict=True))
            pairs = zip(row.cells, found, strict=True)
            cells = (replace(cell, archived=value) if cell.is_empty else cell for cell, value in pairs)
            rows.append(replace(row, cells=tuple(cells)))
        used = (cell.archived for row in rows for cell in row.cells if cell.archived)
        origins = dict.fromkeys(f"{titles.get(one.study, one.study)} ({one.hardware})" for one in used)
        note = f"In grey, from archives: {'; '.join(origins)}." if origins else ""
        note = " ".join(filter(None, [section.note, note]))
        sections.append(replace(section, rows=tuple(rows), note=note))
    return replace(table, sections=tuple(sections))


def key_of(corpus: str, row: str, column: str, cell: Cell) -> Key:
    """Return what a cell has in common with the archived cells that may fill it; unique among published cells.

    `corpus` is the published corpus, `row` the key of the row, and `column` the heading of the column.
    """
    return corpus, row, column, cell.metric, cell.stage


def published_corpus(study: Study, dataset: str) -> str:
    """Return the name of the published corpus with which a dataset is compared.

    The dataset's setting `published_as` or `stands_for` names this corpus. A dataset with neither is its own published
    corpus. A dataset that is not in the study is looked up among the bundled datasets.
    """
    found = study.datasets.get(dataset) or bundled_dataset(dataset)
    return published_dataset(found) if found else dataset


@cache
def best_cells(experiment: str, own: str, needed: Needed | None = None) -> dict[Key, Cell]:
    """Return the preferred archived cell for each key (see `key_of`) of an experiment's table.

    Each cell names the study and hardware of its value. Keys without an archived cell are absent. All archives of the
    study named `own`, whose cells are to be filled, are left out, and so are archives without runs that are `needed`
    (None: of any model), because the construction of a table takes time.
    """
    ranked: list[tuple[Rank, Key, Cell]] = []
    for archived in archive.load_all():
        found = archived.records
        if archived.study == own or (needed is not None and not _has_run_of(archived.study, found, needed)):
            continue
        study = study_of(archived.study)
        planned = next((one for one in study.experiments if one.id == experiment), None) if study else None
        if study is None or planned is None:
            continue
        is_of_models = bool(planned.models) and planned.view != "coverage"  # counts of words are of corpora
        if is_of_models and set(found.states["model"]).isdisjoint(planned.models):
            continue  # it has no number for this table, whose construction takes time
        table = views.build(study, planned, found)
        assert isinstance(table, Table)
        pairs = zip(found.states["dataset"], found.states["model"], strict=True)
        trained = {"", *(f"{dataset}/{model}" for dataset, model in pairs)}
        for dataset, row, column, cell in table.every_cell:
            if cell.wanted and (cell.measured or cell.label) and cell.runs in trained:
                size = max(found.values(dataset, row, "parameters").values(), default=0.0)
                rank = (cell.same, cell.measured.n if cell.measured else 0, size)
                value = replace(cell, study=archived.study, hardware=archived.hardware)
                ranked.append((rank, key_of(published_corpus(study, dataset), row, column, cell), value))
    best: dict[Key, Cell] = {}
    for _, key, cell in sorted(ranked, key=lambda entry: entry[0], reverse=True):
        best.setdefault(key, cell)
    return best


def _has_run_of(name: str, found: records.Records, needed: Needed) -> bool:
    """Return True if an archive of the study `name` has a run that is needed, or if a cell needs no run."""
    models = {model for _, model in needed}
    if "" in models:
        return True
    if models.isdisjoint(found.states["model"]) or not (study := study_of(name)):
        return False
    pairs = zip(found.states["dataset"], found.states["model"], strict=True)
    return not needed.isdisjoint((published_corpus(study, dataset), model) for dataset, model in set(pairs))


@cache
def study_of(name: str) -> Study | None:
    """Return the study of config/<name>.yaml, or None if there is no such file.

    The returned study plans every table in config/experiments for which `is_filled` is true, instead of the experiments
    that the file lists. The study's archive can therefore also fill tables that the file does not list.
    """
    file = PAPER_STUDY.with_name(f"{name}.yaml")
    if not file.is_file():
        return None
    own = load_yaml(file).get("experiments") or {}
    tables = {path.stem for path in (PAPER_STUDY.parent / "experiments").glob("*.yaml") if is_filled(path.stem)}
    return load_study(file, {"experiments": dict.fromkeys(sorted(tables)) | {n: own[n] for n in own if n in tables}})


@cache
def is_filled(experiment: str) -> bool:
    """Return True if archived values may fill the experiment: it is a table with published numbers or examples.

    Tables with the view `published-size` (of archived runs) or `search` (of hyperparameter searches) are never filled.
    """
    planned = load_experiment(experiment, PAPER_STUDY.parent)
    return planned.kind == "table" and planned.quotes and planned.view not in ("published-size", "search")
