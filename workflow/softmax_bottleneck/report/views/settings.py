"""Settings, and searches over them (Parthiban et al. 2021, SM Tables 6 to 9)."""

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from softmax_bottleneck.report.cells import Cell, MeasuredCell, PublishedCell, Section
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
    published_names = {line.setting: line.published for line in settings}

    def cell(setting: str, model: str) -> Cell:
        published = _published_setting(source, dataset, model, published_names[setting])
        runs = source.runs(dataset, model)
        if not runs:
            return Cell(published=published, gaps=source.gaps(dataset, model, ()))
        value = _value_of(source, runs[0], setting)
        if value is None:
            return Cell(published=published, label="none")
        exponent = Decimal(f"{value:.12g}").normalize().as_tuple().exponent
        same, digits = source.same(dataset, model), max(0, -int(exponent))
        return Cell(MeasuredCell(value), published, digits, same=same, runs=f"{dataset}/{model}")

    models = (*source.experiment.entries, *source.experiment.absent)
    columns = {model: label(source.study, model) for model in models}
    return source.section(dataset, {line.setting: line.label for line in settings}, columns, cell)


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
    columns = source.experiment.columns
    for dataset in source.corpora:
        yield _declared(source, settings, dataset)
    for dataset in source.datasets:
        for entry in source.experiment.entries:
            rows = {model: label(source.study, model) for model in source.study.searches[entry].members}

            def cell(model: str, number: int, dataset: str = dataset) -> Cell:
                return source.cell(dataset, model, columns[number])

            section = source.section(dataset, rows, source.column_labels(columns), cell)
            yield from [replace(section, title=f"{section.title}: runs of {entry}")] * bool(rows)


def _declared(source: Source, settings: tuple[Setting, ...], dataset: str) -> Section:
    """Return the values of every setting that the searches combine, and how many combinations there are."""
    published_names = {line.setting: line.published for line in settings}

    def cell(row: str, entry: str) -> Cell:
        declared = source.study.searches.get(entry, Search({}, 0, ()))
        gaps = () if declared.size else source.gaps(dataset, entry, ())
        if row in counts:
            count = declared.size if row == "size" else len(declared.members)
            return Cell(gaps=gaps) if gaps else Cell(MeasuredCell(count), digits=0)
        values = ", ".join(f"{value:g}" for value in declared.axes.get(row, ()))
        printed = source.published[source.published["metric"] == published_names[row]]["value"]
        published = None if printed.empty else PublishedCell(printed.iloc[0].replace("|", ", "))
        return Cell(label="" if gaps else values or "fixed", published=published, gaps=gaps)

    counts = {"size": "Combinations", "planned": "of them planned in this study"}
    columns = {entry: entry.rpartition("-")[0] for entry in (*source.experiment.entries, *source.experiment.absent)}
    return source.section(dataset, {line.setting: line.label for line in settings} | counts, columns, cell)
