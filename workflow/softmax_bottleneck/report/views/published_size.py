"""Archived runs of the published size, whatever study shows them: their numbers, spectra, and ranks."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from softmax_bottleneck.records import metrics
from softmax_bottleneck.records.metrics import PRESS_RANK, RANK_TOLERANCE, SIGMA_MAX, TEST_PPL, VALID_PPL
from softmax_bottleneck.report import plots
from softmax_bottleneck.report.archive import ArchivedRun, archived_runs
from softmax_bottleneck.report.cells import Cell, Gap, GapCode, MeasuredCell, Section
from softmax_bottleneck.report.plots import Drawing, Style
from softmax_bottleneck.report.registry import view
from softmax_bottleneck.report.source import Source, label, same_setting
from softmax_bottleneck.study import Run, canonical_json

SIGMA = "relative_singular_value"
WIDTH = "embedding_size"
KEYS = ["dataset", "model", "seed"]
LOWEST = 1e-9  # of the axis: what lies below is rounding
APART = 0.02  # decades on either axis: points of a curve that are nearer look like one


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
@view("table", "published-size", row="Run")
def published_size(source: Source) -> list[Section]:
    """Return archived runs by metrics, a section per corpus, the smallest model first."""
    labels, family, columns = archived_labels(source), families(source), source.experiment.columns
    runs = {archived.name: archived for archived in sorted(archived_runs(), key=_parameters)}

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


def _parameters(archived: ArchivedRun) -> float:
    return archived.values.get("parameters", 0.0)


# --- figures --------------------------------------------------------------------------------------------------------
class Archive:
    """The frame of a figure of archived runs with the families in it, and how each is called and drawn.

    A family looks the same in all figures of archived runs; known names come first.
    """

    def __init__(self, source: Source, data: pd.DataFrame) -> None:
        self.source, self.data = source, data
        self.labels, self.families = archived_labels(source), families(source)
        known, shown = plots.styles(list(dict.fromkeys(self.families.values()))), set(data["model"].map(self.families))
        ordered = [*(model for model in plots.PALETTE if model in known), *known]
        self.looks = {family: known[family] for family in ordered if family in shown}

    def in_families(self, data: pd.DataFrame) -> pd.DataFrame:
        """Replace every model by the one that names its family."""
        return data.assign(model=data["model"].map(self.families))

    def drawing(self, canvas: Any, data: pd.DataFrame, what: str, describe: Callable[[pd.DataFrame], str]) -> Drawing:
        """Return the drawing with its legend, a text on every model of some data, and the number of runs."""
        plots.legend(canvas, {model: self.labels[model] for model in self.looks}, self.looks)
        texts = [
            f"{self.labels[str(model)]} on {dataset} {describe(own)}"
            for (dataset, model), own in data.groupby(["dataset", "model"], sort=False)
        ]
        count = len(self.data[KEYS].drop_duplicates())
        return Drawing(canvas, self.data, f"{what}: {', '.join(texts)}.", f"{count} run{'s' * (count > 1)}.")


def _by_network(
    source: Source,
    frame: Callable[[Iterable[ArchivedRun]], pd.DataFrame],
    draw: Callable[[Any, pd.DataFrame, Mapping[str, Style], str], None],
    what: str,
    describe: Callable[[pd.DataFrame], str],
) -> Drawing:
    """Draw a panel per corpus, kind of body and width d, the narrow ones first and all of one height."""
    data = frame(archived_runs())
    if data.empty:
        return plots.only_text(plots.NOTHING, data)
    archive, networks = Archive(source, data), defaultdict[tuple[str, str, int], list[ArchivedRun]](list)
    shown = set(zip(data["dataset"], data["model"], strict=True))
    for archived in archived_runs():
        run = archived.run
        if (run.dataset, run.model) in shown:
            networks[run.dataset, run.body.kind, run.body.embedding_size].append(archived)
    columns = min(2, len(networks))
    canvas, axes = plots.panels(math.ceil(len(networks) / columns), columns, 9.2 / columns, 6.0 - 1.25 * columns)
    for panel, ((dataset, body, width), own) in zip(axes.flat, sorted(networks.items()), strict=False):
        draw(panel, archive.in_families(frame(own)), archive.looks, dataset)
        panel.set(title=f"{source.dataset(dataset).title}: {body}, d = {width}")
        panel.xaxis.set_major_formatter(plots.integer)
        panel.minorticks_off()
    drawn, spare = np.split(axes.flat, [len(networks)])
    low, high = zip(*(panel.get_ylim() for panel in drawn), strict=True)
    for panel in drawn:
        panel.set_ylim(min(low), max(high))
    for panel in spare:
        panel.set_axis_off()
    return archive.drawing(canvas, data, what, describe)


@view("figure", "published-size-spectra")
def spectra(source: Source) -> Drawing:
    """Draw relative singular values on log axes, a panel per corpus, body and width, a curve per model."""

    def draw(panel: Any, own: pd.DataFrame, looks: Mapping[str, Style], dataset: str) -> None:
        plots.curves(panel, _apart(own[own[SIGMA] > LOWEST]), "index", SIGMA, looks)
        plots.log_y(panel)
        panel.set(xlabel="index", ylabel="σ / σ max", xscale="log")  # some end at d + 2, others at the vocabulary
        of_corpus = [archived.values for archived in archived_runs() if archived.run.dataset == dataset]
        tolerance, largest = RANK_TOLERANCE, SIGMA_MAX
        shares = [own[tolerance] / own[largest] for own in of_corpus if tolerance in own and largest in own]
        if shares:
            plots.level(panel, max(shares), "Press tolerance", end="left")

    def falls(own: pd.DataFrame) -> str:
        return f"falls below a thousandth of the largest at index {own['index'][own[SIGMA] > 1e-3].max()}"

    drawing = _by_network(source, _relative, draw, "Falling curves of relative singular values", falls)
    return replace(drawing, data=_apart(drawing.data))


def _relative(archive: Iterable[ArchivedRun]) -> pd.DataFrame:
    """Return a line per archived singular value of every run, relative to the largest."""
    rows = [
        (archived.run.dataset, archived.run.model, archived.run.seed, index, sigma / archived.spectrum[0][1])
        for archived in archive
        for index, sigma in archived.spectrum
    ]
    return pd.DataFrame(rows, columns=[*KEYS, "index", SIGMA])


def _apart(data: pd.DataFrame) -> pd.DataFrame:
    """Return of every run's singular values those that log axes show apart, and those that end a plateau."""
    parts = [data[:0]]
    for _, run in data.groupby(KEYS, sort=False):
        log_K2 = np.log10(np.maximum(run[["index", SIGMA]].to_numpy(), LOWEST))
        falls_K = np.append(-np.diff(log_K2[:, 1]), math.inf)
        (index, sigma), apart_K = (-math.inf, math.inf), list[bool]()
        for point, fall in zip(log_K2, falls_K, strict=True):
            apart_K.append(max(point[0] - index, sigma - point[1], fall) > APART)
            index, sigma = point if apart_K[-1] else (index, sigma)
        parts.append(run[apart_K])
    return pd.concat(parts)


@view("figure", "published-size-ranks")
def ranks_along_training(source: Source) -> Drawing:
    """Draw Press rank by epoch on a log axis, a panel per corpus, body and width, a line per model."""
    columns = ("epoch", PRESS_RANK, VALID_PPL)

    def frame(archive: Iterable[ArchivedRun]) -> pd.DataFrame:
        rows = [
            (archived.run.dataset, archived.run.model, archived.run.seed, *(epoch.get(key) for key in columns))
            for archived in archive
            for epoch in archived.epoch_ranks
        ]
        return pd.DataFrame(rows, columns=[*KEYS, *columns]).astype({PRESS_RANK: float, VALID_PPL: float})

    def draw(panel: Any, own: pd.DataFrame, looks: Mapping[str, Style], dataset: str) -> None:
        plots.curves(panel, own, "epoch", PRESS_RANK, looks)
        panel.set(xlabel="epoch", ylabel="Press rank", yscale="log")
        panel.yaxis.set_major_formatter(plots.integer)

    def ends(own: pd.DataFrame) -> str:
        return f"goes from {own[PRESS_RANK].iloc[0]:.0f} to {own[PRESS_RANK].iloc[-1]:.0f}"

    return _by_network(source, frame, draw, "Lines of Press rank by epoch", ends)


@view("figure", "published-size-widths")
def ranks_by_width(source: Source) -> Drawing:
    """Draw Press rank and test perplexity by width d, a row per corpus, a line per family trained at several widths."""
    shown = (PRESS_RANK, TEST_PPL)
    rows, settings = [], []
    for archived in archived_runs():
        run, numbers = archived.run, (archived.values.get(metric) for metric in shown)
        rows.append((run.dataset, run.model, run.seed, run.body.embedding_size, *numbers))
        settings.append(besides_width(run))
    data = pd.DataFrame(rows, columns=[*KEYS, WIDTH, *shown]).astype({PRESS_RANK: float, TEST_PPL: float})
    counts = data.groupby(["dataset", np.array(settings, dtype=object)])[WIDTH].transform("nunique")
    data = data[counts > 1].sort_values(WIDTH, kind="stable", ignore_index=True)
    if data.empty:
        return plots.only_text("No kept model has been trained at several widths yet.", data)
    archive, widths = Archive(source, data), np.unique(data[WIDTH])
    drawn = archive.in_families(data)

    def draw(axes: Any, dataset: str, metric: str) -> None:
        for mark in (plots.curves, plots.dots):
            mark(axes, drawn[drawn["dataset"] == dataset], WIDTH, metric, archive.looks)
        name, title = metrics.find(metric).label, source.dataset(dataset).title
        axes.set(title=title, xlabel="width d", ylabel=name, xticks=widths)
        if metric == PRESS_RANK:
            axes.plot(widths, widths + 2, color=plots.LIGHT.ink, linewidth=1, linestyle=plots.DASHED)
            below = {"xytext": (0, -7), "textcoords": "offset points", "ha": "right", "va": "top"}
            axes.annotate("d + 2", (widths[-1], widths[-1] + 2), **below)
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(plots.integer)
            axes.minorticks_off()

    def grows(own: pd.DataFrame) -> str:
        lines = zip(own[WIDTH], own[PRESS_RANK], own[TEST_PPL], strict=True)
        return ", ".join(f"rank {rank:.0f} and perplexity {ppl:.1f} at d = {width}" for width, rank, ppl in lines)

    canvas = plots.crossed(list(dict.fromkeys(data["dataset"])), shown, 4.6, 3.6, draw)
    return archive.drawing(canvas, drawn, "Lines by width", grows)
