"""Settings, and searches over them (Parthiban et al. 2021, SM Tables 6 to 9)."""

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from softmax_bottleneck.report.cells import Cell, MeasuredCell, PublishedCell, Section, mean_of
from softmax_bottleneck.report.source import Source, label
from softmax_bottleneck.study import Run, Search, schema


@schema.section
class Setting:
    """A line of a table of settings: its key in a study file, its name in report/published, its label."""

    setting: str
    published: str
    label: str


def settings_table(source: Source, dataset: str, *, settings: tuple[Setting, ...]) -> Section:
    """Return settings by models: those of the study's runs beside the published values."""
    lines = {line.setting: line for line in settings}

    def cell(setting: str, model: str) -> Cell:
        published = _published_setting(source, dataset, model, lines[setting].published)
        runs = source.runs(dataset, model)
        if not runs:
            return Cell(published=published, gaps=source.gaps(dataset, model, ()))
        value = _value_of(source, runs[0], setting)
        if value is None:
            return Cell(published=published, label="none")
        exponent = Decimal(f"{value:.12g}").normalize().as_tuple().exponent
        same, digits = source.same(dataset, model), max(0, -int(exponent))
        return Cell(MeasuredCell(value), published, digits, same=same, runs=f"{dataset}/{model}")

    rows = {key: line.label for key, line in lines.items()}
    models = (*source.experiment.entries, *source.experiment.absent)
    return source.section(dataset, rows, {model: label(source.study, model) for model in models}, cell)


def _value_of(source: Source, run: Run, setting: str) -> float | None:
    """Return a run's number by its key in a study file, `body.dropout_input`; None if its head has no such option."""
    if setting == "seed":
        return source.study.author_seeds.get((run.dataset, run.model))
    group, _, key = setting.partition(".")
    value = run.head.options.get(key) if group == "head" else getattr(getattr(run, group), key)
    return None if value is None else float(value)


def _published_setting(source: Source, dataset: str, model: str, name: str) -> PublishedCell | None:
    """Return the value of the table's row, else of the text that speaks of all models or both corpora."""
    corpus = source.corpus(dataset)
    named = source.experiment.published_rows.get(model, {}).get("model", model)
    rows = source.published[source.published["metric"] == name]
    fits = rows["dataset"].str.split("+").map(lambda names: corpus in names) & rows["model"].isin([named, "all"])
    return PublishedCell(rows[fits]["value"].iloc[0]) if fits.any() else None


def search_table(source: Source, *, settings: tuple[Setting, ...]) -> Iterator[Section]:
    """Yield the values that a search combines, declared and published, then a row per combination that is trained."""
    for dataset in source.corpora:
        yield _declared(source, settings, dataset)
    for dataset in source.datasets:
        for entry in source.experiment.entries:
            if source.study.searches[entry].members:
                yield _trained(source, dataset, entry)


def _declared(source: Source, settings: tuple[Setting, ...], dataset: str) -> Section:
    lines = {line.setting: line for line in settings}

    def cell(row: str, entry: str) -> Cell:
        declared = source.study.searches.get(entry, Search({}, 0, ()))
        gaps = () if declared.size else source.gaps(dataset, entry, ())
        if row in sizes:
            size = declared.size if row == "size" else len(declared.members)
            return Cell(gaps=gaps) if gaps else Cell(MeasuredCell(size), digits=0)
        values = ", ".join(f"{value:g}" for value in declared.axes.get(row, ()))
        printed = source.published[source.published["metric"] == lines[row].published]["value"]
        published = None if printed.empty else PublishedCell(printed.iloc[0].replace("|", ", "))
        return Cell(label="" if gaps else values or "fixed", published=published, gaps=gaps)

    sizes = {"size": "Combinations", "planned": "of them planned in this study"}
    columns = {entry: entry.rpartition("-")[0] for entry in (*source.experiment.entries, *source.experiment.absent)}
    return source.section(dataset, {key: line.label for key, line in lines.items()} | sizes, columns, cell)


def _trained(source: Source, dataset: str, entry: str) -> Section:
    columns, members = source.experiment.columns, source.study.searches[entry].members
    scores = {model: mean_of(source.values(dataset, model, columns[0].metric).values()) for model in members}
    known = {model: score.mean for model, score in scores.items() if score}
    best = min(known, key=known.__getitem__, default=None)
    rows = {model: f"{label(source.study, model)}{' (best)' if model == best else ''}" for model in members}

    def cell(model: str, number: int) -> Cell:
        return source.cell(dataset, model, columns[number])

    section = source.section(dataset, rows, source.column_labels(columns), cell)
    return replace(section, title=f"{section.title}: runs of {entry}")
