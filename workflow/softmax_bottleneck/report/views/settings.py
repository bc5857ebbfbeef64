"""Tables of settings and of searches over them (Parthiban et al. 2021, SM Tables 6 to 9)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from softmax_bottleneck.report.cells import Cell, Measured, Part, Published, mean_of
from softmax_bottleneck.report.options import Setting, Settings
from softmax_bottleneck.report.registry import by_corpus, view
from softmax_bottleneck.report.source import Source
from softmax_bottleneck.study import Run, Search


@view("settings", row="Setting", origin="this study")
@by_corpus
def settings(source: Source, options: Settings, dataset: str) -> Part:
    """Settings by models: what the plan trains with, beside the published values."""
    lines = {line.setting: line for line in options.settings}
    rows = {key: line.label for key, line in lines.items()}
    columns = {model: source.label(model) for model in (*source.experiment.entries, *source.experiment.absent)}
    return source.part(dataset, rows, columns, lambda row, model: _setting_cell(source, dataset, model, lines[row]))


def _setting_cell(source: Source, dataset: str, model: str, line: Setting) -> Cell:
    published = _published_setting(source, dataset, model, line.published)
    runs = source.runs(dataset, model)
    if not runs:
        return Cell(published=published, gaps=source.gaps(dataset, model, ()))
    value = _value_of(source, runs[0], line.setting)
    if value is None:
        return Cell(published=published, words="none")
    exponent = Decimal(f"{value:.12g}").normalize().as_tuple().exponent
    same, digits = source.same(dataset, model), max(0, -int(exponent))
    return Cell(Measured(value), published, digits, same=same, runs=f"{dataset}/{model}")


def _value_of(source: Source, run: Run, setting: str) -> float | None:
    """A number of a run by its key in a study file, `body.dropout_input`; None where the head has no such option."""
    if setting == "seed":
        return source.study.author_seeds.get((run.dataset, run.model))
    group, _, key = setting.partition(".")
    value = run.head.options.get(key) if group == "head" else getattr(getattr(run, group), key)
    return None if value is None else float(value)


def _published_setting(source: Source, dataset: str, model: str, name: str) -> Published | None:
    """The value of the table's row, else of the text that speaks of all models or both corpora."""
    corpus = source.corpus(dataset)
    named = source.experiment.published_rows.get(model, {}).get("model", model)
    rows = source.published[source.published["metric"] == name]
    fits = rows["dataset"].str.split("+").map(lambda names: corpus in names) & rows["model"].isin([named, "all"])
    return Published(rows[fits]["value"].iloc[0]) if fits.any() else None


@view("search", row="Setting or run", origin="this study")
def search(source: Source, options: Settings) -> Iterator[Part]:
    """The values a search combines, declared and published, then a row per combination that is trained."""
    entries = [*source.experiment.entries, *source.experiment.absent]
    for dataset in (*source.datasets, *source.experiment.absent_datasets):
        yield _declared(source, options, dataset, entries)
    for dataset in source.datasets:
        for entry in source.experiment.entries:
            if source.study.searches[entry].members:
                yield _trained(source, dataset, entry)


SIZES = {"size": "Combinations", "planned": "of them planned in this study"}


def _declared(source: Source, options: Settings, dataset: str, entries: list[str]) -> Part:
    lines = {line.setting: line for line in options.settings}

    def cell(row: str, entry: str) -> Cell:
        declared = source.study.searches.get(entry, Search({}, 0, ()))
        gaps = () if declared.size else source.gaps(dataset, entry, ())
        if row in SIZES:
            return (
                Cell(gaps=gaps)
                if gaps
                else Cell(Measured(declared.size if row == "size" else len(declared.members)), digits=0)
            )
        values = ", ".join(f"{value:g}" for value in declared.axes.get(row, ()))
        printed = source.published[source.published["metric"] == lines[row].published]["value"]
        published = None if printed.empty else Published(printed.iloc[0].replace("|", ", "))
        return Cell(words="" if gaps else values or "fixed", published=published, gaps=gaps)

    rows = {key: line.label for key, line in lines.items()} | SIZES
    return source.part(dataset, rows, {entry: entry.rpartition("-")[0] for entry in entries}, cell)


def _trained(source: Source, dataset: str, entry: str) -> Part:
    columns, members = source.experiment.columns, source.study.searches[entry].members
    scores = {model: mean_of(source.values(dataset, model, columns[0].metric).values()) for model in members}
    known = {model: score.mean for model, score in scores.items() if score}
    best = min(known, key=lambda model: known[model], default=None)
    rows = {model: f"{source.label(model)}{' (best)' if model == best else ''}" for model in members}
    part = source.part(
        dataset, rows, source.heads(columns), lambda model, number: source.cell(dataset, model, columns[number])
    )
    return replace(part, title=f"{part.title}: runs of {entry}")
