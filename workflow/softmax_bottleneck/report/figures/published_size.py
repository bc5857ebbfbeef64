"""Spectra and ranks of every run that was made elsewhere and is kept as evidence, whatever study shows them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from softmax_bottleneck.records import metrics
from softmax_bottleneck.records.evidence import Evidence
from softmax_bottleneck.records.metrics import PRESS_RANK, RANK_TOLERANCE, SIGMA_MAX, TEST_PPL, VALID_PPL
from softmax_bottleneck.report.figures import plots
from softmax_bottleneck.report.figures.plots import Drawing
from softmax_bottleneck.report.options import NoOptions
from softmax_bottleneck.report.registry import figure
from softmax_bottleneck.report.source import Source, besides_width

SIGMA = "relative_singular_value"
WIDTH = "embedding_size"
COLUMNS = ["dataset", "model", "seed", "index", SIGMA]
RANK_COLUMNS = ["dataset", "model", "seed", "epoch", PRESS_RANK, VALID_PPL]
WIDTH_COLUMNS = ["dataset", "model", "seed", WIDTH, PRESS_RANK, TEST_PPL]
LOWEST = 1e-9  # of the axis: what lies below is rounding
APART = 0.02  # decades on either axis: points of a curve that are nearer look like one
Draw = Callable[[Any, pd.DataFrame, Mapping[str, plots.Style], str], None]


@figure("published-size-spectra")
def spectra(source: Source, options: NoOptions) -> Drawing:
    """A panel per corpus, body and width: relative singular values on log axes, a curve per model."""

    def draw(panel: Any, own: pd.DataFrame, looks: Mapping[str, plots.Style], dataset: str) -> None:
        plots.curves(panel, _apart(own[own[SIGMA] > LOWEST]), "index", SIGMA, looks)
        plots.log_y(panel)
        panel.set(xlabel="index", ylabel="σ / σ max", xscale="log")  # some end at d + 2, others at the vocabulary
        if tolerances := _tolerances(source, dataset):
            plots.level(panel, max(tolerances), "Press tolerance", end="left")

    def falls(own: pd.DataFrame) -> str:
        return f"falls below a thousandth of the largest at index {own['index'][own[SIGMA] > 1e-3].max()}"

    drawing = _by_network(source, _relative, draw, "Falling curves of relative singular values", falls)
    return replace(drawing, data=_apart(drawing.data))


@figure("published-size-ranks")
def ranks_along_training(source: Source, options: NoOptions) -> Drawing:
    """A panel per corpus, body and width: Press rank by epoch on a log axis, a line per model."""

    def draw(panel: Any, own: pd.DataFrame, looks: Mapping[str, plots.Style], dataset: str) -> None:
        plots.curves(panel, own, "epoch", PRESS_RANK, looks)
        panel.set(xlabel="epoch", ylabel="Press rank", yscale="log")
        panel.yaxis.set_major_formatter(FuncFormatter(plots.integer))

    def ends(own: pd.DataFrame) -> str:
        return f"goes from {own[PRESS_RANK].iloc[0]:.0f} to {own[PRESS_RANK].iloc[-1]:.0f}"

    return _by_network(source, _along_training, draw, "Lines of Press rank by epoch", ends)


@figure("published-size-widths")
def ranks_by_width(source: Source, options: NoOptions) -> Drawing:
    """A row per corpus: Press rank and test perplexity by width d, a line per model trained at several."""
    data = _by_width(source)
    if data.empty:
        return plots.words_alone("No kept model has been trained at several widths yet.", data)
    drawn, looks, widths = _in_families(source, data), _looks(source, data), np.unique(data[WIDTH])

    def panel(axes: Any, dataset: str, metric: str) -> None:
        for mark in (plots.curves, plots.dots):
            mark(axes, drawn[drawn["dataset"] == dataset], WIDTH, metric, looks)
        axes.set(
            title=source.dataset(dataset).title, xlabel="width d", ylabel=metrics.find(metric).label, xticks=widths
        )
        if metric == PRESS_RANK:
            axes.plot(widths, widths + 2, color=plots.LIGHT.ink, linewidth=1, linestyle=plots.DASHED)
            below = {"xytext": (0, -7), "textcoords": "offset points", "ha": "right", "va": "top"}
            axes.annotate("d + 2", (widths[-1], widths[-1] + 2), **below)
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(FuncFormatter(plots.integer))
            axes.minorticks_off()

    def grows(own: pd.DataFrame) -> str:
        lines = zip(own[WIDTH], own[PRESS_RANK], own[TEST_PPL], strict=True)
        return ", ".join(f"rank {rank:.0f} and perplexity {ppl:.1f} at d = {width}" for width, rank, ppl in lines)

    canvas = plots.crossed(list(dict.fromkeys(data["dataset"])), WIDTH_COLUMNS[4:], 4.6, 3.6, panel)
    return _finished(source, canvas, data, looks, _said(source, drawn, "Lines by width", grows))


def _by_network(
    source: Source,
    frame: Callable[[Iterable[Evidence]], pd.DataFrame],
    draw: Draw,
    what: str,
    say: Callable[[pd.DataFrame], str],
) -> Drawing:
    """A panel per corpus, body and width, all of one height; what every curve does, for those who do not see it."""
    data = frame(source.records.evidence)
    if data.empty:
        return plots.words_alone(plots.NOTHING, data)
    looks, networks = _looks(source, data), _networks(source, data)
    columns = min(2, len(networks))
    canvas, axes = plots.panels(math.ceil(len(networks) / columns), columns, 9.2 / columns, 6.0 - 1.25 * columns)
    for panel, ((dataset, body, width), found) in zip(axes.flat, networks.items(), strict=False):
        draw(panel, _in_families(source, frame(found)), looks, dataset)
        panel.set(title=f"{source.dataset(dataset).title}: {body}, d = {width}")
        panel.xaxis.set_major_formatter(FuncFormatter(plots.integer))
        panel.minorticks_off()
    drawn, spare = np.split(axes.flat, [len(networks)])
    low, high = zip(*(panel.get_ylim() for panel in drawn), strict=True)
    for panel in drawn:
        panel.set_ylim(min(low), max(high))
    for panel in spare:
        panel.set_axis_off()
    return _finished(source, canvas, data, looks, _said(source, data, what, say))


def _finished(source: Source, canvas: Any, data: pd.DataFrame, looks: Mapping[str, plots.Style], said: str) -> Drawing:
    """With its legend and the number of its runs."""
    plots.legend(canvas, {model: source.kept_labels[model] for model in looks}, looks)
    count = data[["dataset", "model", "seed"]].drop_duplicates().shape[0]
    return Drawing(canvas, data, said, f"{count} run{'s' * (count > 1)}.")


def _said(source: Source, data: pd.DataFrame, what: str, say: Callable[[pd.DataFrame], str]) -> str:
    """What a figure shows, and of every model on every corpus some words."""
    runs = [
        f"{source.kept_labels[str(model)]} on {dataset} {say(own)}"
        for (dataset, model), own in data.groupby(["dataset", "model"], sort=False)
    ]
    return f"{what}: {', '.join(runs)}."


def _looks(source: Source, data: pd.DataFrame) -> dict[str, plots.Style]:
    """The families in a figure and how each is drawn, the same in all figures of what is kept; known names first."""
    families = source.kept_families
    known, shown = plots.styles(list(dict.fromkeys(families.values()))), set(data["model"].map(families))
    ordered = [*(model for model in plots.PALETTE if model in known), *known]
    return {family: known[family] for family in ordered if family in shown}


def _in_families(source: Source, data: pd.DataFrame) -> pd.DataFrame:
    """With the model that names the family in place of each."""
    return data.assign(model=data["model"].map(source.kept_families))


def _networks(source: Source, data: pd.DataFrame) -> dict[tuple[str, str, int], list[Evidence]]:
    """(corpus, kind of body, width d) -> its runs of those in a figure, the narrow ones first."""
    networks: dict[tuple[str, str, int], list[Evidence]] = {}
    shown = set(zip(data["dataset"], data["model"], strict=True))
    for one in source.records.evidence:
        if (one.run.dataset, one.run.model) in shown:
            key = (one.run.dataset, one.run.body.kind, one.run.body.embedding_size)
            networks.setdefault(key, []).append(one)
    return dict(sorted(networks.items()))


def _tolerances(source: Source, dataset: str) -> list[float]:
    """Of the runs on a corpus, what share of the largest singular value the Press rank leaves out."""
    known = [one.values for one in source.records.evidence if one.run.dataset == dataset]
    keys = (RANK_TOLERANCE, ""), (SIGMA_MAX, "")
    return [values[keys[0]] / values[keys[1]] for values in known if values.keys() >= {*keys}]


def _relative(found: Iterable[Evidence]) -> pd.DataFrame:
    """A line per kept singular value of every run."""
    rows = [
        (one.run.dataset, one.run.model, one.run.seed, index, sigma / one.spectrum[0][1])
        for one in found
        for index, sigma in one.spectrum
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _apart(data: pd.DataFrame) -> pd.DataFrame:
    """Of every run's singular values those that log axes show apart from the last one, and those that end a plateau."""
    runs = data.groupby(COLUMNS[:3], sort=False)
    return pd.concat([data[:0], *(run[_is_apart(run[COLUMNS[3:]].to_numpy())] for _, run in runs)])


def _is_apart(spectrum_K2: NDArray[np.float64]) -> list[bool]:
    log_K2 = np.log10(np.maximum(spectrum_K2, LOWEST))
    falls_K = np.append(-np.diff(log_K2[:, 1]), math.inf)
    (index, sigma), apart_K = (-math.inf, math.inf), []
    for point, fall in zip(log_K2, falls_K, strict=True):
        apart_K.append(max(point[0] - index, sigma - point[1], fall) > APART)
        index, sigma = point if apart_K[-1] else (index, sigma)
    return apart_K


def _along_training(found: Iterable[Evidence]) -> pd.DataFrame:
    """A line per epoch whose ranks were measured."""
    rows = [
        (one.run.dataset, one.run.model, one.run.seed, *(epoch.get(key) for key in RANK_COLUMNS[3:]))
        for one in found
        for epoch in one.epoch_ranks
    ]
    return pd.DataFrame(rows, columns=RANK_COLUMNS).astype({PRESS_RANK: float, VALID_PPL: float})


def _by_width(source: Source) -> pd.DataFrame:
    """A line per run of the families that were trained at several widths, the narrow ones first."""
    rows = [
        (
            one.run.dataset,
            one.run.model,
            one.run.seed,
            one.run.body.embedding_size,
            *(one.values.get((metric, "")) for metric in WIDTH_COLUMNS[4:]),
        )
        for one in source.records.evidence
    ]
    data = pd.DataFrame(rows, columns=WIDTH_COLUMNS).astype({PRESS_RANK: float, TEST_PPL: float})
    alike = [besides_width(one.run) for one in source.records.evidence]
    widths = data.groupby(["dataset", np.array(alike, dtype=object)])[WIDTH].transform("nunique")
    return data[widths > 1].sort_values(WIDTH, kind="stable", ignore_index=True)
