"""Archived runs of the published size, whatever study shows them: their numbers, spectra, and ranks."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from softmax_bottleneck.records.metrics import PRESS_RANK, RANK_TOLERANCE, SIGMA_MAX, VALID_PPL
from softmax_bottleneck.report import plots
from softmax_bottleneck.report.archive import ArchivedRun, archived_runs
from softmax_bottleneck.report.cells import Cell, Gap, GapCode, MeasuredCell, Section
from softmax_bottleneck.report.plots import Drawing, Style
from softmax_bottleneck.report.source import Source, label, same_setting
from softmax_bottleneck.study import Run, canonical_json

SIGMA = "relative_singular_value"
WIDTH = "embedding_size"
KEYS = ["dataset", "model", "seed"]
LOWEST = 1e-9  # of the axis: what lies below is rounding


# --- models and their families --------------------------------------------------------------------------------------
def besides_width(run: Run) -> str:
    """Return a run's settings as text without the width d of its word vectors, on which a context's may depend."""
    body = run.settings["body"]
    relative = {"embedding_size": 1, "context_size": body["context_size"] / body["embedding_size"]}
    return canonical_json(run.settings | {"body": body | relative})


def archived_labels(source: Source) -> dict[str, str]:
    """Return the names of archived models; of several with one name all but the shortest key add it."""
    labels = {}
    for archived in archived_runs():
        labels[archived.run.model] = archived.label or label(source.study, archived.run.model)
    first = {name: model for model, name in sorted(labels.items(), key=lambda item: -len(item[0]))}
    return {model: name if first[name] == model else f"{name} ({model})" for model, name in labels.items()}


def families(source: Source) -> dict[str, str]:
    """Return archived model -> of those identical except for their width the one with the shortest name."""
    runs = sorted((archived.run for archived in archived_runs()), key=lambda run: len(run.model))
    first: dict[str, str] = {}
    return {run.model: first.setdefault(besides_width(run), run.model) for run in runs}


# --- the table ------------------------------------------------------------------------------------------------------
def published_size_table(source: Source) -> list[Section]:
    """Return archived runs by metrics, a section per corpus, the smallest model first."""
    labels, family, columns = archived_labels(source), families(source), source.experiment.columns

    def size(archived: ArchivedRun) -> float:
        return archived.values.get("parameters", 0.0)

    runs = {archived.name: archived for archived in sorted(archived_runs(), key=size)}

    def cell(name: str, number: int) -> Cell:
        archived, column = runs[name], columns[number]
        value, run = archived.values.get(column.metric), archived.run
        return replace(
            source.blank(run.dataset, run.model, column),
            measured=None if value is None else MeasuredCell(value),
            same=source.is_published(run.dataset) and same_setting(run, source.paper),
            gaps=() if value is not None else (Gap(GapCode.NOT_MEASURED),),
            runs="",
        )

    sections = []
    for dataset in dict.fromkeys(archived.run.dataset for archived in archived_runs()):
        own = [archived for archived in runs.values() if archived.run.dataset == dataset]
        differ = ["hardware"] * (len({archived.hardware for archived in own}) > 1)
        rows = {}
        for archived in own:  # a width has a column of its own
            name, seed = labels[family[archived.run.model]], f"seed {archived.run.seed}"
            rows[archived.name] = ", ".join([name, seed, *(getattr(archived, key) for key in differ)])
        sections.append(source.section(dataset, rows, source.column_labels(columns), cell))
    return sections


# --- figures --------------------------------------------------------------------------------------------------------
def _frame(
    source: Source, columns: Sequence[str], lines: Callable[[ArchivedRun], Iterable[Sequence[object]]]
) -> pd.DataFrame:
    """Return the lines of every archived run, with the name of its family, its kind of body and its width."""
    family = families(source)
    rows = [
        (run.dataset, run.model, run.seed, family[run.model], run.body.kind, run.body.embedding_size, *line)
        for archived, run in ((archived, archived.run) for archived in archived_runs())
        for line in lines(archived)
    ]
    return pd.DataFrame(rows, columns=[*KEYS, "family", "body", WIDTH, *columns])


def _looks(source: Source, data: pd.DataFrame) -> dict[str, Style]:
    """Return the style of every family in some data, the same in all figures; known names come first."""
    known = plots.styles(list(dict.fromkeys(families(source).values())))
    shown, ordered = set(data["family"]), [*(model for model in plots.PALETTE if model in known), *known]
    return {family: known[family] for family in ordered if family in shown}


def _drawing(source: Source, canvas: Canvas, data: pd.DataFrame, columns: Sequence[str]) -> Drawing:
    """Return the drawing with its legend, the drawn columns, and the number of runs."""
    labels, looks = archived_labels(source), _looks(source, data)
    plots.legend(canvas, {family: labels[family] for family in looks}, looks)
    count = len(data[KEYS].drop_duplicates())
    return Drawing(canvas, data[[*KEYS, *columns]], f"{count} run{'s' * (count > 1)}.")


def _by_network(
    source: Source, data: pd.DataFrame, draw: Callable[[Axes, pd.DataFrame, Mapping[str, Style]], None]
) -> Canvas:
    """Draw a panel per corpus, kind of body and width d, the narrow ones first and all of one height."""
    looks, networks = _looks(source, data), list(data.groupby(["dataset", "body", WIDTH]))
    columns = min(2, len(networks))
    canvas, axes = plots.panels(math.ceil(len(networks) / columns), columns, 9.2 / columns, 6.0 - 1.25 * columns)
    for panel, ((dataset, body, width), own) in zip(axes.flat, networks, strict=False):
        draw(panel, own.assign(model=own["family"]), looks)
        panel.set(title=f"{source.dataset(str(dataset)).title}: {body}, d = {width}")
        panel.xaxis.set_major_formatter(plots.integer)
        panel.minorticks_off()
    drawn, spare = np.split(axes.flat, [len(networks)])
    low, high = zip(*(panel.get_ylim() for panel in drawn), strict=True)
    for panel in drawn:
        panel.set_ylim(min(low), max(high))
    for panel in spare:
        panel.set_axis_off()
    return canvas


def published_size_spectra_figure(source: Source) -> Drawing:
    """Draw relative singular values on log axes, a panel per corpus, body and width, a curve per model."""
    columns = ["index", SIGMA, "tolerance"]

    def lines(archived: ArchivedRun) -> Iterable[Sequence[object]]:
        tolerance, largest = (archived.values.get(name, math.nan) for name in (RANK_TOLERANCE, SIGMA_MAX))
        return ((index, sigma / archived.spectrum[0][1], tolerance / largest) for index, sigma in archived.spectrum)

    def draw(panel: Axes, own: pd.DataFrame, looks: Mapping[str, Style]) -> None:
        plots.curves(panel, own[own[SIGMA] > LOWEST], "index", SIGMA, looks)
        plots.log_y(panel)
        panel.set(xlabel="index", ylabel="σ / σ max", xscale="log")  # some end at d + 2, others at the vocabulary
        if own["tolerance"].notna().any():
            plots.level(panel, own["tolerance"].max(), "Press tolerance", end="left")

    data = _frame(source, columns, lines)
    if data.empty:
        return plots.only_text(plots.NOTHING, data)
    return _drawing(source, _by_network(source, data, draw), data, columns[:2])


def published_size_ranks_figure(source: Source) -> Drawing:
    """Draw Press rank by epoch on a log axis, a panel per corpus, body and width, a line per model."""
    columns = ("epoch", PRESS_RANK, VALID_PPL)

    def draw(panel: Axes, own: pd.DataFrame, looks: Mapping[str, Style]) -> None:
        plots.curves(panel, own, "epoch", PRESS_RANK, looks)
        panel.set(xlabel="epoch", ylabel="Press rank", yscale="log")
        panel.yaxis.set_major_formatter(plots.integer)

    data = _frame(source, columns, lambda run: [[epoch.get(key) for key in columns] for epoch in run.epoch_ranks])
    if data.empty:
        return plots.only_text(plots.NOTHING, data)
    data = data.astype({PRESS_RANK: float, VALID_PPL: float})
    return _drawing(source, _by_network(source, data, draw), data, columns)
