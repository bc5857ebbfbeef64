"""Tables: measured records joined with published numbers, cell by cell.

A table is an experiment's YAML and a view, the function that lays cells out. A difference is computed only where a
run's settings are those of config/paper.yaml for the same corpus and model; elsewhere the published number stands
beside the measured one, muted. A cell with missing seeds says how many there are and what became of the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import pandas as pd

from softmax_bottleneck.measuring import wordsim as similarity
from softmax_bottleneck.records import evidence
from softmax_bottleneck.records.evidence import Evidence
from softmax_bottleneck.records.records import Records, groups
from softmax_bottleneck.report import fit_tables, paper_tables, stage_tables
from softmax_bottleneck.report.cells import (
    COVERAGE,
    GAIN,
    TESTS,
    Cell,
    Measured,
    Part,
    Published,
    Row,
    Source,
    Table,
    benchmarks,
    coverage_cell,
    exact_value,
    label,
    mean_of,
    part_of,
    published_dataset,
    same_setting,
    source_of,
)
from softmax_bottleneck.report.templates import environment
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import Column, Experiment, Study, did_you_mean


def summary(source: Source) -> list[Part]:
    """Models by metrics, one part per corpus."""
    parts = []
    for dataset in source.experiment.datasets:
        columns = [one for one in source.experiment.columns if not one.datasets or dataset in one.datasets]
        rows = [row for model in source.experiment.models for row in _model_rows(source, dataset, model, columns)]
        parts.append(part_of(source, dataset, [column.label for column in columns], rows))
    return parts


def _model_rows(source: Source, dataset: str, model: str, columns: Sequence[Column]) -> Iterator[Row]:
    """The study's own row of a model, then one for every origin of imported runs."""
    name = label(source.study, model)
    yield Row(model, name, tuple(source.cell(dataset, model, column) for column in columns))
    imported: dict[tuple[str, str], list[Evidence]] = {}
    for one in evidence.chosen(source.study, source.experiment, source.records.evidence):
        if (one.run.dataset, one.run.model) == (dataset, model):
            imported.setdefault((one.origin, one.hardware), []).append(one)
    for (origin, hardware), runs in imported.items():
        cells = tuple(_imported_cell(source, dataset, model, column, runs) for column in columns)
        yield Row(f"{model} evidence {runs[0].name}", f"{name}, imported: {origin}, {hardware}", cells)


def _imported_cell(source: Source, dataset: str, model: str, column: Column, runs: Sequence[Evidence]) -> Cell:
    """Mean over imported runs beside the published number; they are not tested against the study's own."""
    if not column.measured or column.stage or column.metric in TESTS or GAIN.match(column.metric):
        return Cell(wanted=False)
    corpus = published_dataset(source.study.datasets[dataset])
    values = [one.values[column.metric, ""] for one in runs if (column.metric, "") in one.values]
    return Cell(
        measured=mean_of(values),
        published=source.find_published(corpus, model, column.metric, dict(column.published)),
        digits=column.digits,
        planned=len(runs),
        same=bool(source.study.datasets[dataset].published_as)
        and all(same_setting(one.run, source.paper) for one in runs),
        gap="" if len(values) == len(runs) else f"{len(runs) - len(values)} imported without this number",
        note=f"seed{'s' if len(runs) > 1 else ''} {', '.join(str(one.run.seed) for one in runs)}",
    )


def truth(source: Source) -> list[Part]:
    """As `summary` for the known-truth languages only, headed by the language's own values."""
    known = [part for part in summary(source) if source.study.datasets[part.dataset].kind == "language"]
    return [Part(p.dataset, p.title, p.columns, (_language_row(source, p.dataset), *p.rows), p.note) for p in known]


# What the language itself scores: metric of a model -> metric that holds the exact value (None: exactly zero).
EXACT: Mapping[str, str | None] = {
    "test_ppl": "entropy_ppl",
    "rank_press": "rank_truth",
    "excess_ppl": None,
    "kl_truth_nats": None,
}


def _language_row(source: Source, dataset: str) -> Row:
    cells = []
    for column in source.experiment.columns:
        metric = EXACT.get(column.metric, "")
        value = 0.0 if metric is None else exact_value(source.records, dataset, metric)
        measured = None if value is None else Measured(value)
        known = measured is not None
        cells.append(Cell(measured=measured, digits=column.digits, note="exact" if known else "", wanted=metric != ""))
    return Row("language", "The language itself", tuple(cells))


def wordsim(source: Source) -> list[Part]:
    """Benchmarks by models (Spearman's rho), with the pairs each benchmark keeps in the vocabulary."""
    models = source.experiment.models
    digits = source.experiment.columns[0].digits if source.experiment.columns else 4
    rho = Column("spearman", "Spearman", digits)
    heads = [label(source.study, model) for model in models] + ["pairs", "not in vocabulary"]
    parts = []
    for dataset in source.experiment.datasets:
        rows = [
            Row(
                condition,
                condition.removeprefix("benchmark="),
                tuple(source.cell(dataset, model, rho, condition) for model in models)
                + tuple(coverage_cell(source, dataset, metric, condition) for metric in COVERAGE),
            )
            for condition in benchmarks(source, dataset)
        ]
        parts.append(part_of(source, dataset, heads, rows))
    return parts


def wins(source: Source) -> list[Part]:
    """On how many benchmarks the row's model has the larger rho than the column's (mean rho over the runs of each)."""
    models = source.experiment.models
    parts = []
    for dataset in source.experiment.datasets:
        counts = win_counts(source, dataset)
        rows = [
            Row(a, label(source.study, a), tuple(_win_cell(source, dataset, a, b, counts) for b in models))
            for a in models
        ]
        parts.append(part_of(source, dataset, [f"over {label(source.study, b)}" for b in models], rows))
    return parts


def win_counts(source: Source, dataset: str) -> Mapping[str, Mapping[str, similarity.Wins]]:
    """Benchmarks won by the first model over the second, by their mean rho over runs."""
    conditions = source.records.conditions("spearman", dataset)
    means = {
        model: {c: mean_of(source.values(dataset, model, "spearman", c).values()) for c in conditions}
        for model in source.experiment.models
    }
    rhos = {model: {c: one.mean if one else None for c, one in found.items()} for model, found in means.items()}
    return similarity.win_matrix(rhos)


def _win_cell(
    source: Source, dataset: str, a: str, b: str, counts: Mapping[str, Mapping[str, similarity.Wins]]
) -> Cell:
    if a == b:
        return Cell(wanted=False)
    other = rf"wins over {re.escape(b)}(?:;|$)"
    corpus = published_dataset(source.study.datasets[dataset])
    is_language = source.study.datasets[dataset].kind == "language"
    published = None if is_language else source.find_published(corpus, a, "wordsim_wins", {"condition": other})
    found = counts[a][b]
    return Cell(
        measured=Measured(float(found.wins)) if found.compared else None,
        published=published,
        digits=0,
        same=source.same(dataset, a) and source.same(dataset, b),
        runs=f"{dataset}/{a}",
        note=f"of {found.compared}" if found.compared else "",
        gap=_win_gap(source, dataset, (a, b)) or ("" if found.compared else "no benchmark in common"),
    )


def _win_gap(source: Source, dataset: str, models: Sequence[str]) -> str:
    """Which runs of either model have no word similarities: `GSS: seed 1 missing`."""
    conditions = source.records.conditions("spearman", dataset)
    words = []
    for model in models:
        have = {seed for condition in conditions for seed in source.values(dataset, model, "spearman", condition)}
        if gap := source.gap(dataset, model, have):
            words.append(f"{label(source.study, model)}: {gap}")
    return "; ".join(words)


# The matrices of the rank demonstration that are taken apart; the first is the published one (Merity 2017).
DEMO_MATRICES = {
    "rank": "Logarithms of probabilities, Press's tolerance",
    "rank_p": "Probabilities themselves, Press's tolerance",
    "rank_numpy": "Logarithms of probabilities, numpy's default tolerance",
}


def rank_demo(source: Source) -> list[Part]:
    """Rank of untrained layers by number of components, mean over draws: matrices, readings, and the closest reading.

    A row per model and reading of the text; published numbers stand beside the first matrix alone (Merity 2017).
    """
    drawn = source.records.synthetic
    plain = {word for condition in source.published["condition"] for word in condition.split(";")}
    drawn = drawn.assign(reading=[_reading(text, plain) for text in drawn["condition"]])
    parts = [_demo_part(source, drawn[drawn["metric"] == metric], metric) for metric in DEMO_MATRICES]
    return [part for part in [*parts, _closest_reading(source, drawn[drawn["metric"] == "rank"])] if part.rows]


def _demo_part(source: Source, drawn: pd.DataFrame, metric: str) -> Part:
    published = source.published if metric == "rank" else source.published.iloc[:0]
    models = list(dict.fromkeys([*published["model"], *drawn["model"]]))
    keys = {(model, "") for model in published["model"]} | set(zip(drawn["model"], drawn["reading"], strict=True))
    components = sorted({_components(text) for text in [*published["condition"], *drawn["condition"]]})
    rows = []
    for model, reading in sorted(keys, key=lambda key: (key[1], models.index(key[0]))):
        own = drawn[(drawn["model"] == model) & (drawn["reading"] == reading)]
        name = f"{label(source.study, model)} ({reading})" if reading else label(source.study, model)
        cells = tuple(_demo_cell(source, own, model, k, metric) for k in components)
        rows.append(Row(f"{model} {reading}".strip(), name, cells))
    return Part("synthetic", DEMO_MATRICES[metric], tuple(f"K = {k}" for k in components), tuple(rows))


def _closest_reading(source: Source, drawn: pd.DataFrame) -> Part:
    """MoS of every reading less the published rank, at each K above one, and the mean of the absolute differences."""
    gaps: dict[str, dict[int, float]] = {}
    for (reading, condition), own in groups(drawn[drawn["model"] == "mos"], "reading", "condition"):
        published = _published_demo(source, "mos", k := _components(condition))
        if published is not None and published.number is not None and k > 1:
            gaps.setdefault(reading, {})[k] = float(own["value"].mean()) - published.number
    means = {reading: sum(map(abs, found.values())) / len(found) for reading, found in gaps.items()}
    components = sorted({k for found in gaps.values() for k in found})
    rows = []
    for reading in sorted(means, key=lambda one: means[one]):
        cells = [Cell(measured=Measured(gaps[reading][k]), digits=0) for k in components]
        name = f"MoS ({reading or 'tanh, standard normal contexts'})"
        rows.append(Row(reading or "default", name, (Cell(measured=Measured(means[reading]), digits=1), *cells)))
    heads = ("Mean distance", *(f"K = {k}" for k in components))
    return Part("synthetic", "Measured less published rank, the closest reading first", heads, tuple(rows))


def _components(condition: str) -> int:
    found = re.search(r"(?:^|;)K=(\d+)", condition)
    return int(found[1]) if found else 1


def _reading(condition: str, plain: set[str]) -> str:
    """The words of a condition that no published condition has: how the text was read."""
    return ", ".join(word for word in condition.split(";") if word not in plain and not word.startswith("K="))


def _published_demo(source: Source, model: str, components: int) -> Published | None:
    return source.find_published("synthetic", model, "rank", {"condition": rf"(?:^|;)K={components}(?:;|$)"})


def _demo_cell(source: Source, drawn: pd.DataFrame, model: str, components: int, metric: str) -> Cell:
    values = [v for v, text in zip(drawn["value"], drawn["condition"], strict=True) if _components(text) == components]
    published = _published_demo(source, model, components) if metric == "rank" else None
    return Cell(measured=mean_of(values), published=published, digits=0, planned=len(values), same=metric == "rank")


VIEWS: Mapping[str, Callable[[Source], list[Part]]] = {
    "summary": summary,
    "wordsim": wordsim,
    "wins": wins,
    "rank-demo": rank_demo,
    "truth": truth,
}

ORIGINS = {"settings": "this study", "search": "this study"}

# What the rows of a view are; models where nothing is said.
HEADS = {
    "wordsim": "Benchmark",
    "coverage": "Benchmark",
    "settings": "Setting",
    "search": "Setting or run",
    "top5": "Context",
    "correlation": "Runs",
    "robustness": "Matrix",
    "fit-correlations": "Fits",
    "fit-conclusions": "Statement",
}


def build(study: Study, experiment: Experiment, found: Records) -> Table:
    """The table of an experiment (UserError for a view there is not)."""
    known = views()
    if experiment.view not in known:
        hint = did_you_mean(experiment.view, list(known))
        raise UserError(f"experiment {experiment.id}: view: unknown {experiment.view!r}{hint}")
    parts = [] if experiment.is_void else known[experiment.view](source_of(study, experiment, found))
    texts = (experiment.id, experiment.source, experiment.artefact, experiment.title, experiment.caption)
    head, origin = HEADS.get(experiment.view, "Model"), ORIGINS.get(experiment.view, "measured")
    return Table(*texts, head, tuple(parts), experiment.needs, origin)


def views() -> Mapping[str, Callable[[Source], list[Part]]]:
    """All views of tables by name."""
    return {**VIEWS, **paper_tables.VIEWS, **fit_tables.VIEWS, **stage_tables.VIEWS}


def experiment_of(study: Study, name: str, kind: str) -> Experiment:
    """The study's table or figure with this id (UserError listing the ids there are)."""
    known = {experiment.id: experiment for experiment in study.experiments if experiment.kind == kind}
    if name not in known:
        raise UserError(f"{study.file}: no {kind} {name!r} in this study{did_you_mean(name, list(known))}")
    return known[name]


def table_page(table: Table, heads: Mapping[str, str] | None = None) -> str:
    """The table alone as a small HTML page; with `heads` (model -> head) its counts lead to the report's runs."""
    return environment().get_template("table-page.html.j2").render(table=table, heads=heads)
