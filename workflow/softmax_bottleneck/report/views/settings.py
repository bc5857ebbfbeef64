"""Tables of hyperparameters and of hyperparameter searches (Parthiban et al. 2021, SM Tables 6 to 9)."""

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from softmax_bottleneck.report.cells import Cell, MeasuredCell, PublishedCell, Section
from softmax_bottleneck.report.source import Source, label
from softmax_bottleneck.study import Run, Search, schema


@schema.section
class Setting:
    """A row of a table of settings: the key in a study file, the name in report/published, and the label."""

    setting: str
    published: str
    label: str


def settings_table(source: Source, dataset: str, *, settings: tuple[Setting, ...]) -> Section:
    """Return a section with a row per setting and a column per model: the study's values and the published values."""
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
    """Return the value of a setting of a run; None if the run's head has no such option, or the seed is not published.

    `setting` is `seed` (the published single run's) or a key like `body.dropout_input`.
    """
    if setting == "seed":
        return source.study.author_seeds.get((run.dataset, run.model))
    group, _, key = setting.partition(".")
    value = run.head.options.get(key) if group == "head" else getattr(getattr(run, group), key)
    return None if value is None else float(value)


def _published_setting(source: Source, dataset: str, model: str, name: str) -> PublishedCell | None:
    """Return the first published value of a setting that applies to the model and the corpus; None if there is none.

    A published value may apply to all models (model `all`) or to both corpora (such as `ptb+wt2`).
    """
    corpus = source.corpus(dataset)
    named = source.experiment.published_rows.get(model, {}).get("model", model)
    rows = source.published[source.published["metric"] == name]
    fits = rows["dataset"].str.split("+").map(lambda names: corpus in names) & rows["model"].isin([named, "all"])
    return PublishedCell(rows[fits]["value"].iloc[0]) if fits.any() else None


def search_table(source: Source, *, settings: tuple[Setting, ...]) -> Iterator[Section]:
    """Yield the sections of a table on hyperparameter searches (grids of settings).

    First, one section per corpus has a row per setting in `settings`, with the values that each search tries and the
    published values. Then, one section per corpus and search has a row per trained model of that search.
    """
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
    """Return a section with a column per hyperparameter search and a row per setting, with the values tried.

    Two more rows count all combinations of these values, and the combinations that the study plans to train.
    """
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
