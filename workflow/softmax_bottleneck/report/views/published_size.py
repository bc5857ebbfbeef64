"""Table and figures of archived runs with models of the published size: metrics, spectra and ranks.

They are the same in every study.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from softmax_bottleneck.records.metrics import PRESS_RANK, RANK_TOLERANCE, SIGMA_MAX, VALID_PPL
from softmax_bottleneck.report import plots
from softmax_bottleneck.report.archive import ArchivedRun, archived_runs
from softmax_bottleneck.report.cells import Cell, MeasuredCell, Section
from softmax_bottleneck.report.plots import Drawing, Style
from softmax_bottleneck.report.source import Source, label, same_setting
from softmax_bottleneck.study import canonical_json

SIGMA = "relative_singular_value"
KEYS = ["dataset", "model", "seed"]
LOWEST = 1e-9  # of the axis: what lies below is rounding


# --- models and their families --------------------------------------------------------------------------------------
def families() -> dict[str, str]:
    """Return {archived model: name of the model's family}.

    A family consists of the models that differ only in their width d, and is named after its shortest model name.
    """
    first: dict[str, str] = {}
    models = {}
    for run in sorted((archived.run for archived in archived_runs()), key=lambda run: len(run.model)):
        body = run.settings["body"]  # a context vector may depend on d
        others = body | {"embedding_size": 1, "context_size": body["context_size"] / body["embedding_size"]}
        models[run.model] = first.setdefault(canonical_json(run.settings | {"body": others}), run.model)
    return models


def archived_labels(source: Source) -> dict[str, str]:
    """Return {archived model: label}; the label ends with the body in brackets, unless the body is the papers' LSTM."""
    labels = {}
    for archived in archived_runs():
        name, body = archived.label or label(source.study, archived.run.model), archived.run.body.kind
        labels[archived.run.model] = name if body == "awd-lstm" else f"{name} ({body})"
    return labels


# --- the table ------------------------------------------------------------------------------------------------------
def published_size_table(source: Source) -> list[Section]:
    """Return a section per corpus with a row per archived run (the smallest model first) and a column per metric."""
    labels, family, columns = archived_labels(source), families(), source.experiment.columns

    def size(archived: ArchivedRun) -> float:
        return archived.values.get("parameters", 0.0)

    runs = {archived.name: archived for archived in sorted(archived_runs(), key=size)}

    def cell(name: str, number: int) -> Cell:
        archived, column = runs[name], columns[number]
        value, run = archived.values.get(column.metric), archived.run
        return replace(
            source.blank(run.dataset, run.model, column),
            measured=None if value is None else MeasuredCell(value),
            same=source.is_published(run.dataset) and same_setting(run),
            gaps=() if value is not None else ("not measured",),
            runs="",
        )

    sections = []
    for dataset in dict.fromkeys(archived.run.dataset for archived in archived_runs()):
        own = [archived for archived in runs.values() if archived.run.dataset == dataset]
        # A width has a column of its own.
        rows = {a.name: f"{labels[family[a.run.model]]}, seed {a.run.seed}, {a.hardware}" for a in own}
        sections.append(source.section(dataset, rows, source.column_labels(columns), cell))
    return sections


# --- figures --------------------------------------------------------------------------------------------------------
def _figure(
    source: Source,
    columns: Sequence[str],
    lines: Callable[[ArchivedRun], Iterable[Sequence[object]]],
    draw: Callable[[Axes, pd.DataFrame, Mapping[str, Style]], None],
) -> Drawing:
    """Draw a panel per corpus, kind of body and width d, all with the same y range.

    `lines` returns the values of `columns` for the points of an archived run; `draw` fills a panel.
    """
    family, labels = families(), archived_labels(source)
    rows = [
        (run.dataset, run.model, run.seed, family[run.model], run.body.kind, run.body.embedding_size, *line)
        for archived, run in ((archived, archived.run) for archived in archived_runs())
        for line in lines(archived)
    ]
    data = pd.DataFrame(rows, columns=[*KEYS, "family", "body", "width", *columns]).astype({columns[-1]: float})
    if data.empty:
        return plots.only_text(plots.NOTHING, data)
    looks, networks = (
        plots.styles(list(dict.fromkeys(family.values()))),
        list(data.groupby(["dataset", "body", "width"])),
    )
    canvas, axes = plots.panels(-(-len(networks) // 2), 2, 4.6, 3.5)
    drawn, spare = np.split(axes.flat, [len(networks)])
    for panel, ((dataset, body, width), own) in zip(drawn, networks, strict=True):
        draw(panel, own.assign(model=own["family"]), looks)
        panel.set(title=f"{source.dataset(str(dataset)).title}: {body}, d = {width}")
        panel.xaxis.set_major_formatter(plots.integer)
        panel.minorticks_off()
    low, high = zip(*(panel.get_ylim() for panel in drawn), strict=True)
    for panel in drawn:
        panel.set_ylim(min(low), max(high))
    for panel in spare:
        panel.set_axis_off()
    shown = set(data["family"])
    plots.legend(canvas, {model: labels[model] for model in looks if model in shown}, looks)
    return Drawing(canvas, data[[*KEYS, *columns]], f"{len(data[KEYS].drop_duplicates())} runs.")


def published_size_spectra_figure(source: Source) -> Drawing:
    """Draw singular values over the largest, on log axes: a panel per corpus, body and width, a curve per model."""

    def lines(archived: ArchivedRun) -> Iterable[Sequence[object]]:
        tolerance, largest = (archived.values.get(name, math.nan) for name in (RANK_TOLERANCE, SIGMA_MAX))
        return ((index, sigma / archived.spectrum[0][1], tolerance / largest) for index, sigma in archived.spectrum)

    def draw(panel: Axes, own: pd.DataFrame, looks: Mapping[str, Style]) -> None:
        plots.curves(panel, own[own[SIGMA] > LOWEST], "index", SIGMA, looks)
        plots.log_y(panel)
        panel.set(xlabel="index", ylabel="σ / σ max", xscale="log")  # some end at d + 2, others at the vocabulary
        if own["tolerance"].notna().any():
            plots.level(panel, own["tolerance"].max(), "Press tolerance", end="left")

    return _figure(source, ("index", SIGMA, "tolerance"), lines, draw)


def published_size_ranks_figure(source: Source) -> Drawing:
    """Draw the Press rank over epochs, on a log axis: a panel per corpus, body and width, a curve per model."""
    columns = ("epoch", PRESS_RANK, VALID_PPL)

    def draw(panel: Axes, own: pd.DataFrame, looks: Mapping[str, Style]) -> None:
        plots.curves(panel, own, "epoch", PRESS_RANK, looks)
        panel.set(xlabel="epoch", ylabel="Press rank", yscale="log")
        panel.yaxis.set_major_formatter(plots.integer)

    return _figure(
        source, columns, lambda run: [[epoch.get(key) for key in columns] for epoch in run.epoch_ranks], draw
    )
