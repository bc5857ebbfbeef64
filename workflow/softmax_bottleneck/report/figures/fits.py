"""Figures of heads on free context vectors, fitted to known laws, and of language models beside them.

Ganea et al. 2019, Figures 2, 3 and 6 to 8, and the known-truth study.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from softmax_bottleneck.records.metrics import GAP_CLOSED, KL, KL_TRUTH, KL_UNIFORM, PRESS_RANK, RANK_TRUTH, find
from softmax_bottleneck.records.records import groups
from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.figures import plots
from softmax_bottleneck.report.figures.plots import DASHES, LIGHT, SPARE, Drawing, Style
from softmax_bottleneck.report.fits import BASELINE, Frames, correlations, is_bottlenecked, levels
from softmax_bottleneck.report.options import FitCurves, FitMaps, FitMetrics, Fits
from softmax_bottleneck.report.registry import figure
from softmax_bottleneck.report.source import Source

AXES = {
    "d": "width of the model d",
    "r": "columns of the law r",
    "rank": "rank of the law",
    "alpha": "concentration α",
}
ENTROPY = "entropy_nats"
LAW_RANKS = {PRESS_RANK: RANK_TRUTH}  # measured rank -> what it is of the law; others have the same name
NOT_YET = "Nothing to show: nothing is fitted yet."
LEAST_SHARE = -1.0  # gap closed that a panel shows: as much again as the softmax loses


def of_fits(make: Callable[[Frames, Any], Drawing | None]) -> Callable[[Source, Any], Drawing]:
    """A figure of fits: a function of their frames and the options; words where there is nothing to draw."""

    @wraps(make)
    def drawn(source: Source, options: Fits) -> Drawing:
        frames = Frames.of(source.study, source.records, options.fits)
        wanted = options.metrics if isinstance(options, FitMetrics) else ()
        drawing = make(frames, options) if len(frames.fits) and set(wanted) <= set(frames.fits) else None
        return drawing or plots.words_alone(NOT_YET, pd.DataFrame(columns=["model", "seed"]))

    return drawn


def _drawing(
    frames: Frames, canvas: Canvas, fits: pd.DataFrame, columns: Sequence[str], start: str, note: str = ""
) -> Drawing:
    """With the legend, the data drawn, the range of every metric by model, and how many fits they are of."""
    names = {model: name for model, name in frames.names.items() if model in set(fits["model"])}
    plots.legend(canvas, names, _looks(fits, list(names)))
    words = []
    for model, name in names.items():
        own = fits[fits["model"] == model][list(columns)]
        words.append(
            f"{name}: {', '.join(f'{find(c).label} {own[c].min():.3g} to {own[c].max():.3g}' for c in columns)}"
        )
    keys = [column for column in ("alpha", "M", "r", "d") if column in fits]
    data = fits[[*keys, "model", "equal", "seed", *columns]].sort_values([*keys, "model", "seed"])
    seeds = fits["seed"].nunique()
    count = f"{len(fits)} fits of {seeds} seed{'s' if seeds > 1 else ''} are in this figure."
    return Drawing(canvas, data, f"{start} {'; '.join(words)}.", f"{note} {count}".strip())


def _looks(fits: pd.DataFrame, models: Sequence[str]) -> dict[str, Style]:
    """Styles of models, dashed where widths are cut to equal parameters."""
    cut = set(fits[fits["equal"] != ""]["model"])
    return {m: replace(style, dash=DASHES[1] if m in cut else "-") for m, style in plots.styles(models).items()}


def _curves(axes: Axes, fits: pd.DataFrame, models: Sequence[str], x: str, metric: str) -> None:
    """Means over seeds as lines, seeds as dots."""
    plots.curves(axes, fits, x, metric, _looks(fits, models), dots=True)
    _log_x(axes, fits, x)
    axes.set(ylabel=find(metric).label)


def _log_x(axes: Axes, frame: pd.DataFrame, x: str) -> None:
    """A log axis with the values that there are as ticks."""
    values = levels(frame, x)
    axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()
    axes.set_xlabel(AXES[x])


def _log_y(axes: Axes, values: pd.Series[float]) -> None:
    """A log axis where values spread over more than a factor of twenty."""
    positive = values[values > 0]
    if len(positive) and positive.max() > 20 * positive.min():
        plots.log_y(axes)
        axes.set_ylim(bottom=max(float(positive.min()) / 1.5, float(positive.max()) * 1e-5))


# --- maps over M and D (Figures 2, 3 and 6 to 8) --------------------------------------------------------------------
@figure("fit-maps")
@of_fits
def maps(frames: Frames, options: FitMaps) -> Drawing | None:
    """Heat maps over M and D, a row per concentration and metric, and below them curves over D, a panel per M."""
    named = frames.fits["alpha"].isin(options.alphas or levels(frames.fits, "alpha"))
    fits = frames.fits[~named if options.others else named]
    if fits.empty:
        return None
    rows = [(alpha, metric) for alpha in levels(fits, "alpha") for metric in options.metrics]
    sizes, models = levels(fits, "M"), frames.models
    canvas, axes = plots.panels(2 * len(rows), max(len(models), len(sizes)), 3.1, 2.5)
    for squares, lines, (alpha, metric) in zip(axes[::2], axes[1::2], rows, strict=True):
        own = fits[fits["alpha"] == alpha]
        _heat_row(frames, squares, own, metric)
        for panel, size in zip(lines, sizes, strict=False):
            _curves(panel, own[own["M"] == size], models, "d", metric)
            law = frames.laws[(frames.laws["alpha"] == alpha) & (frames.laws["M"] == size)]
            if metric == KL and len(law):
                plots.level(panel, float(law[KL_UNIFORM].mean()), "no context")
            panel.set(title=f"α = {alpha:g}, M = {size:g}", ylim=(0, None))
        for panel in (*squares[len(models) :], *lines[len(sizes) :]):
            panel.set_axis_off()
    return _drawing(frames, canvas, fits, options.metrics, "Heat maps and curves over words and widths.")


def _heat_row(frames: Frames, row: NDArray[Any], fits: pd.DataFrame, metric: str) -> None:
    """One heat map per model; all of a row share their colours."""
    top = float(fits.groupby(["model", "M", "d"])[metric].mean().max())
    for panel, model in zip(row, frames.models, strict=False):
        table = fits[fits["model"] == model].pivot_table(index="M", columns="d", values=metric, aggfunc="mean")
        table = table.sort_index(ascending=False)
        ticks = {"xticklabels": [f"{d:g}" for d in table], "yticklabels": [f"{m:g}" for m in table.index]}
        plots.heat_map(panel, table, ".2f", vmax=top, linewidths=1, **ticks)
        panel.set(title=f"{frames.names[model]}: {find(metric).label}", xlabel="width D", ylabel="words M")


@figure("law-uniformity")
@of_fits
def uniformity(frames: Frames, options: Fits) -> Drawing | None:
    """Distance of Dirichlet laws from the uniform distribution along their concentration, drawn and expected."""
    if not {"alpha", KL_UNIFORM, ENTROPY} <= set(frames.laws):
        return None
    data = frames.laws[["M", "alpha", "seed", KL_UNIFORM, ENTROPY]].sort_values(["M", "alpha", "seed"])
    data = data.assign(drawn=np.log(data["M"]) - data[ENTROPY])  # KL(P || 1/M) = ln M - H(P)
    canvas, ((axes,),) = plots.panels(1, 1, 6.0, 3.6)
    for (size, own), colour in zip(data.groupby("M"), SPARE, strict=False):
        axes.plot(own["alpha"], own["drawn"], "o", color=colour, markersize=4, label=f"M = {size:g}")
        axes.plot(own["alpha"], own[KL_UNIFORM], color=colour, linestyle=DASHES[1], linewidth=1.2)
    _log_x(axes, data, "alpha")
    axes.set(ylabel=find(KL_UNIFORM).label, ylim=(0, None))
    axes.legend()
    words = "; ".join(f"M = {r.M:g}, α = {r.alpha:g}: {r.drawn:.2f}" for r in data.itertuples())
    return Drawing(canvas, data, f"Falling lines of the distance from the uniform distribution. {words}.")


# --- curves ---------------------------------------------------------------------------------------------------------
@figure("fit-curves")
@of_fits
def curves_of_fits(frames: Frames, options: FitCurves) -> Drawing | None:
    """A row of panels per metric (and per value of `rows`), along `x`, a panel per value of `panels`."""
    fits = frames.fits
    if GAP_CLOSED in options.metrics:
        fits = fits[is_bottlenecked(fits) & (fits["model"] != BASELINE)]
        if fits.empty:
            return None
    models = [model for model in frames.models if model in set(fits["model"])]

    def draw(panel: Axes, row: tuple[str, float], value: float) -> None:
        metric, level = row
        own = fits[(fits[options.panels] == value) & (fits[options.rows] == level if options.rows else True)]
        _curves(panel, own, models, options.x, metric)
        title = f"{options.panels} = {value:g}"
        panel.set_title(f"{title}, {options.rows} = {level:g}" if options.rows else title)
        _references(panel, frames.laws, own, options, metric, value)

    rows = [(metric, level) for metric in options.metrics for level in levels(fits, options.rows) or [0.0]]
    canvas = plots.crossed(rows, levels(fits, options.panels), 3.1, 2.8, draw)
    columns = [*options.metrics, *(("width", "parameters") if GAP_CLOSED in options.metrics else ())]
    notes = [REFERENCES.get(options.x, "")]
    if GAP_CLOSED in options.metrics:
        lost = set(fits[fits[GAP_CLOSED] < LEAST_SHARE]["model"])
        off_scale = ", ".join(frames.names[model] for model in models if model in lost)
        notes += [f"Below −100 %, off the scale: fits of {off_scale}."] * bool(lost)
    return _drawing(frames, canvas, fits, columns, "Curves of fits to known laws.", " ".join(filter(None, notes)))


def share_limits(shares: pd.Series[float]) -> tuple[float, float]:
    """Ends of an axis that shows zero and what is above LEAST_SHARE, however far others fall below."""
    low, high = min(0.0, max(LEAST_SHARE, float(shares.min()))), max(0.0, float(shares.max()))
    margin = 0.05 * (high - low) or 0.05
    return low - margin, high + margin


REFERENCES = {"d": "Dotted: d = r.", "r": "Dotted: d = r.", "rank": "Dashed: the law itself."}


def _references(
    axes: Axes, laws: pd.DataFrame, own: pd.DataFrame, options: FitCurves, metric: str, value: float
) -> None:
    """What the curves are to be compared with, and the scale on which that shows."""
    if metric == GAP_CLOSED:
        plots.level(axes, 0.0, "Softmax")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: numbers.percent(share)))
        axes.set_ylim(share_limits(own[metric]))
    elif options.x == "rank":
        exact = laws.groupby("rank")[LAW_RANKS.get(metric, metric)].mean()
        axes.plot(exact.index, exact, color=LIGHT.ink, linewidth=1.2, linestyle=plots.DASHED)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(FuncFormatter(plots.integer))
    else:
        _log_y(axes, own[metric])
    if {options.x, options.panels} == {"d", "r"} and own[options.x].min() <= value <= own[options.x].max():
        axes.axvline(value, color=LIGHT.muted, linewidth=1, linestyle=DASHES[2])


@figure("fit-scatter")
@of_fits
def scatter(frames: Frames, options: FitMetrics) -> Drawing:
    """KL(P*||Q) against measured ranks, a dot per fit; dots of one head share their colour, a panel per width."""
    fits = frames.fits

    def draw(panel: Axes, metric: str, width: float) -> None:
        own = fits[fits["d"] == width]
        plots.dots(panel, own, metric, KL, plots.styles(frames.models), markersize=4.5, alpha=0.8)
        found = correlations(own, ["r", "seed"], metric)
        mean = f", r = {numbers.signed(float(np.mean(found)))}" if found else ""
        panel.set(title=f"d = {width:g}{mean}", xlabel=find(metric).label, ylabel=find(KL).label)
        _log_y(panel, own[KL])

    canvas = plots.crossed(options.metrics, levels(fits, "d"), 3.0, 2.9, draw)
    note = "In the titles: Pearson’s r over heads within one law, mean over laws."
    return _drawing(frames, canvas, fits, [*options.metrics, KL], "Scatter plots of distance against rank.", note)


# --- the same for models that read a text ---------------------------------------------------------------------------
TEXT_METRICS = (RANK_TRUTH, KL_TRUTH, PRESS_RANK)


@figure("truth-of-texts")
def of_texts(source: Source, options: Fits) -> Drawing:
    """KL(P*||Q) of language models against the rank of the law their text is from, a panel per width; a line per head.

    Dashed: free context vectors of the same head and width, where the study has them.
    """
    columns = ["dataset", "model", "head", "seed", "d", *TEXT_METRICS]
    data = pd.DataFrame([row for d in source.datasets for row in _text_rows(source, d)], columns=columns)
    if data.empty:
        return plots.words_alone(NOT_YET, data)
    free = Frames.of(source.study, source.records, options.fits).fits
    looks = {head: replace(style, dash="-") for head, style in plots.styles(list(dict.fromkeys(data["head"]))).items()}

    def draw(panel: Axes, _: object, width: float) -> None:
        own = data[data["d"] == width].assign(model=data["head"])
        plots.curves(panel, own, RANK_TRUTH, KL_TRUTH, looks, dots=True)
        if len(free):
            fitted = free[(free["d"] == width) & (free["equal"] == "")]
            fitted = fitted.assign(model=fitted["head"], rank=fitted["r"] + 2)
            dashed = {head: replace(style, dash=DASHES[1]) for head, style in looks.items()}
            plots.curves(panel, fitted, "rank", KL, dashed)
        ranks = levels(data, RANK_TRUTH)
        panel.set_xscale("log", base=2)
        panel.set_xticks(ranks, [f"{rank:g}" for rank in ranks])
        panel.minorticks_off()
        panel.set(title=f"d = {width:g}", xlabel="rank of the law", ylabel=find(KL_TRUTH).label, ylim=(0, None))

    canvas = plots.crossed([None], levels(data, "d"), 4.2, 3.4, draw)
    plots.legend(canvas, {head: head for head in looks}, looks)
    words = [f"{head} at d = {d} {own[KL_TRUTH].mean():.3f}" for (head, d), own in groups(data, "head", "d")]
    note = f"Dashed: free context vectors. {plots.count_note(source, data)}"
    return Drawing(canvas, data, f"Mean distance of language models to the law: {'; '.join(words)}.", note)


def _text_rows(source: Source, dataset: str) -> Iterator[tuple[object, ...]]:
    for model in source.models:
        values = [source.values(dataset, model, metric) for metric in TEXT_METRICS]
        for run in source.runs(dataset, model):
            if all(run.seed in by_seed for by_seed in values):
                figures = (by_seed[run.seed] for by_seed in values)
                yield (dataset, model, run.head.name, run.seed, run.body.embedding_size, *figures)
