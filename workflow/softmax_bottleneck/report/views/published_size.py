"""The table of every run that was made elsewhere and is kept as evidence, whatever study shows it."""

from __future__ import annotations

from dataclasses import replace

from softmax_bottleneck.records.evidence import Evidence
from softmax_bottleneck.report.cells import Cell, Gap, GapCode, Measured, Part
from softmax_bottleneck.report.options import NoOptions
from softmax_bottleneck.report.registry import view
from softmax_bottleneck.report.source import Source, same_setting
from softmax_bottleneck.study import Column


@view("published-size", row="Run")
def published_size(source: Source, options: NoOptions) -> list[Part]:
    """Runs by metrics for every corpus there is evidence on."""
    return [_part(source, dataset) for dataset in dict.fromkeys(one.run.dataset for one in source.records.evidence)]


def _part(source: Source, dataset: str) -> Part:
    """The runs on a corpus, the smallest model first."""
    found = [one for one in source.records.evidence if one.run.dataset == dataset]
    runs = {one.name: one for one in sorted(found, key=lambda one: one.values.get(("parameters", ""), 0.0))}
    differ = [name for name in ("origin", "hardware") if len({getattr(one, name) for one in found}) > 1]
    rows = {
        key: ", ".join([_model(source, one), f"seed {one.run.seed}", *(getattr(one, name) for name in differ)])
        for key, one in runs.items()
    }
    columns = source.experiment.columns
    return source.part(dataset, rows, source.heads(columns), lambda name, n: _cell(source, runs[name], columns[n]))


def _model(source: Source, one: Evidence) -> str:
    """As the figures name it: the width has a column."""
    return source.kept_labels[source.kept_families[one.run.model]]


def _cell(source: Source, one: Evidence, column: Column) -> Cell:
    """A number of the run beside the published one of its model."""
    value = one.values.get((column.metric, ""))
    return replace(
        source.blank(one.run.dataset, one.run.model, column),
        measured=None if value is None else Measured(value),
        same=source.is_published(one.run.dataset) and same_setting(one.run, source.paper),
        gaps=() if value is not None else (Gap(GapCode.NOT_MEASURED),),
        runs="",
    )
