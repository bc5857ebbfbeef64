"""Fits to known distributions: heads on free context vectors, and language models beside them.

Ganea et al. 2019, Figures 2, 3 and 5 to 8, and the known-truth study.
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

from softmax_bottleneck.records import metrics
from softmax_bottleneck.records.metrics import GAP_CLOSED, KL, KL_TRUTH, KL_UNIFORM, PRESS_RANK, RANK_TRUTH, find
from softmax_bottleneck.records.records import groups
from softmax_bottleneck.report import claims, numbers, plots
from softmax_bottleneck.report.cells import Cell, Gap, GapCode, MeasuredCell, Section, mean_of, section
from softmax_bottleneck.report.fits import BASELINE, Frames, correlations, levels
from softmax_bottleneck.report.options import FitCurves, FitLoss, FitMaps, FitMetrics, Fits
from softmax_bottleneck.report.plots import DASHES, LIGHT, SPARE, Drawing, Style
from softmax_bottleneck.report.registry import view
from softmax_bottleneck.report.source import Source

RANKS = (PRESS_RANK, "rank_eff_1e-3", "rank_eff_1e-4")
LAW_NAMES = {"alpha": "α =", "M": "M =", "r": "Columns of the law, r ="}
AXES = {
    "d": "width of the model d",
    "r": "columns of the law r",
    "rank": "rank of the law",
    "alpha": "concentration α",
}
ENTROPY = "entropy_nats"
LAW_RANKS = {PRESS_RANK: RANK_TRUTH}  # measured rank -> that of the distribution; others have the same name
NOT_YET = "Nothing to show: nothing is fitted yet."
LEAST_SHARE = -1.0  # gap closed that a panel shows: as much again as the softmax loses


# --- tables ---------------------------------------------------------------------------------------------------------
@view("table", "fit-loss")
def loss(source: Source, options: FitLoss) -> Iterator[Section]:
    """Yield KL(P*||Q) of every model by width, a section per distribution."""
    frames = Frames.of(source.study, source.records, options.fits)
    widths = {width: f"d = {width:g}" for width in levels(frames.fits, "d")}
    keys = [key for key in LAW_NAMES if key in frames.fits]
    for law, own in frames.fits.groupby(keys, sort=True) if len(frames.fits) else ():

        def cell(model: str, width: float, own: pd.DataFrame = own) -> Cell:
            values = own[(own["model"] == model) & (own["d"] == width)][options.metric].dropna()
            return Cell(measured=mean_of(values), metric=options.metric, planned=own["seed"].nunique())

        title = ", ".join(f"{LAW_NAMES[key]} {value:g}" for key, value in zip(keys, law, strict=True))
        yield section("synthetic", title, frames.names, widths, cell)


@view("table", "fit-correlations", row="Fits")
def fit_correlations(source: Source, options: Fits) -> Iterator[Section]:
    """Yield Pearson's r of a rank and KL(P*||Q), mean and range over distributions: within a head, and over heads."""
    frames = Frames.of(source.study, source.records, options.fits)
    fits = frames.fits
    if fits.empty:
        return
    chosen = {model: (f"{name}, over widths", fits[fits["model"] == model]) for model, name in frames.names.items()}
    chosen |= {f"d{d:g}": (f"All heads at d = {d:g}", fits[fits["d"] == d]) for d in levels(fits, "d")}
    chosen["all"] = ("All heads and widths", fits)

    def cell(row: str, rank: str) -> Cell:
        by_law = correlations(chosen[row][1], ["r", "seed"], rank)
        mean = mean_of(by_law)
        if mean is None:
            return Cell(metric=metrics.PEARSON, gaps=(Gap(GapCode.TOO_FEW_FITS, (numbers.MIN_POINTS,)),))
        spread = numbers.interval(min(by_law), max(by_law))
        return Cell(MeasuredCell(mean.mean, None, mean.n), metric=metrics.PEARSON, note=spread)

    rows = {key: name for key, (name, _) in chosen.items()}
    yield section("synthetic", "Within one law", rows, {rank: find(rank).label for rank in RANKS}, cell)


@view("table", "fit-conclusions", row="Statement")
def conclusions(source: Source, options: Fits) -> Iterator[Section]:
    """Yield every claim that has limits, with its verdict: those about gradients, or those about the loss of fits."""
    gradients = source.experiment.source == "gradient"
    chosen = [claim for claim in claims.CLAIMS if claim.limits and (claim.source == "gradient") == gradients]
    chosen.sort(key=lambda claim: claim.source != "known-truth")
    rows, texts = {}, {}
    for entry in claims.ledger(source.records, chosen, source.study):
        claim = entry.claim
        shown = "; ".join(number.text for number in entry.numbers) or str(entry.reason or "")
        rows[claim.id] = claim.statement
        texts[claim.id] = (entry.verdict, shown, claim.rule.text, claim.limits)
    columns = dict(enumerate(("Verdict", "Numbers", "Rule", "What it does not say")))
    yield section("synthetic", "What the fits show", rows, columns, lambda row, n: Cell(label=texts[row][n]))


# --- figures --------------------------------------------------------------------------------------------------------
def of_fits(make: Callable[[Frames, Any], Drawing | None]) -> Callable[[Source, Any], Drawing]:
    """Make a figure of a function of fits and options; a text where there is nothing to draw."""

    @wraps(make)
    def drawn(source: Source, options: Fits) -> Drawing:
        frames = Frames.of(source.study, source.records, options.fits)
        wanted = options.metrics if isinstance(options, FitMetrics) else ()
        drawing = make(frames, options) if len(frames.fits) and set(wanted) <= set(frames.fits) else None
        return drawing or plots.only_text(NOT_YET, pd.DataFrame(columns=["model", "seed"]))

    return drawn


def _drawing(
    frames: Frames, canvas: Canvas, fits: pd.DataFrame, columns: Sequence[str], start: str, note: str = ""
) -> Drawing:
    """Return a drawing with its legend, data, the range of every metric by model, and the number of fits."""
    names = {model: name for model, name in frames.names.items() if model in set(fits["model"])}
    plots.legend(canvas, names, _looks(fits, list(names)))
    texts = []
    for model, name in names.items():
        own = fits[fits["model"] == model]
        ranges = (f"{find(c).label} {own[c].min():.3g} to {own[c].max():.3g}" for c in columns)
        texts.append(f"{name}: {', '.join(ranges)}")
    keys = [column for column in ("alpha", "M", "r", "d") if column in fits]
    data = fits[[*keys, "model", "equal", "seed", *columns]].sort_values([*keys, "model", "seed"])
    seeds = fits["seed"].nunique()
    count = f"{len(fits)} fits of {seeds} seed{'s' if seeds > 1 else ''} are in this figure."
    return Drawing(canvas, data, f"{start} {'; '.join(texts)}.", f"{note} {count}".strip())


def _looks(fits: pd.DataFrame, models: Sequence[str]) -> dict[str, Style]:
    """Return styles of models, dashed where widths are cut to equal parameters."""
    cut = set(fits[fits["equal"] != ""]["model"])
    return {m: replace(style, dash=DASHES[1] if m in cut else "-") for m, style in plots.styles(models).items()}


def _log_axis(axes: Axes, frame: pd.DataFrame, x: str, base: int = 10) -> None:
    """Make the x axis logarithmic, with the values that there are as ticks."""
    values = levels(frame, x)
    axes.set_xscale("log", base=base)
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()
    axes.set_xlabel(AXES.get(x, AXES["rank"]))


def _log_y(axes: Axes, values: pd.Series[float]) -> None:
    """Make the y axis logarithmic where values spread over more than a factor of twenty."""
    positive = values[values > 0]
    if len(positive) and positive.max() > 20 * positive.min():
        plots.log_y(axes)
        axes.set_ylim(bottom=max(float(positive.min()) / 1.5, float(positive.max()) * 1e-5))


@view("figure", "fit-maps")
@of_fits
def maps(frames: Frames, options: FitMaps) -> Drawing | None:
    """Draw heat maps over M and D, a row per concentration and metric, and below them curves over D, a panel per M."""
    named = frames.fits["alpha"].isin(options.alphas or levels(frames.fits, "alpha"))
    fits = frames.fits[~named if options.others else named]
    if fits.empty:
        return None
    rows = [(alpha, metric) for alpha in levels(fits, "alpha") for metric in options.metrics]
    sizes, models = levels(fits, "M"), frames.models
    canvas, axes = plots.panels(2 * len(rows), max(len(models), len(sizes)), 3.1, 2.5)
    for squares, lines, (alpha, metric) in zip(axes[::2], axes[1::2], rows, strict=True):
        own, label = fits[fits["alpha"] == alpha], find(metric).label
        top = float(own.groupby(["model", "M", "d"])[metric].mean().max())  # all of a row share their colours
        for panel, model in zip(squares, models, strict=False):
            table = own[own["model"] == model].pivot_table(index="M", columns="d", values=metric, aggfunc="mean")
            table = table.sort_index(ascending=False)
            ticks = {"xticklabels": [f"{d:g}" for d in table], "yticklabels": [f"{m:g}" for m in table.index]}
            plots.heat_map(panel, table, ".2f", vmax=top, linewidths=1, **ticks)
            panel.set(title=f"{frames.names[model]}: {label}", xlabel="width D", ylabel="words M")
        for panel, size in zip(lines, sizes, strict=False):
            shown = own[own["M"] == size]
            plots.curves(panel, shown, "d", metric, _looks(shown, models), dots=True)
            _log_axis(panel, shown, "d")
            law = frames.laws[(frames.laws["alpha"] == alpha) & (frames.laws["M"] == size)]
            if metric == KL and len(law):
                plots.level(panel, float(law[KL_UNIFORM].mean()), "no context")
            panel.set(title=f"α = {alpha:g}, M = {size:g}", ylabel=label, ylim=(0, None))
        for panel in (*squares[len(models) :], *lines[len(sizes) :]):
            panel.set_axis_off()
    return _drawing(frames, canvas, fits, options.metrics, "Heat maps and curves over words and widths.")


@view("figure", "law-uniformity")
@of_fits
def uniformity(frames: Frames, options: Fits) -> Drawing | None:
    """Draw how far Dirichlet distributions are from the uniform one, by concentration, sampled and expected."""
    if not {"alpha", KL_UNIFORM, ENTROPY} <= set(frames.laws):
        return None
    data = frames.laws[["M", "alpha", "seed", KL_UNIFORM, ENTROPY]].sort_values(["M", "alpha", "seed"])
    data = data.assign(drawn=np.log(data["M"]) - data[ENTROPY])  # KL(P || 1/M) = ln M - H(P)
    canvas, ((axes,),) = plots.panels(1, 1, 6.0, 3.6)
    for (size, own), colour in zip(data.groupby("M"), SPARE, strict=False):
        axes.plot(own["alpha"], own["drawn"], "o", color=colour, markersize=4, label=f"M = {size:g}")
        axes.plot(own["alpha"], own[KL_UNIFORM], color=colour, linestyle=DASHES[1], linewidth=1.2)
    _log_axis(axes, data, "alpha")
    axes.set(ylabel=find(KL_UNIFORM).label, ylim=(0, None))
    axes.legend()
    texts = "; ".join(f"M = {r.M:g}, α = {r.alpha:g}: {r.drawn:.2f}" for r in data.itertuples())
    return Drawing(canvas, data, f"Falling lines of the distance from the uniform distribution. {texts}.")


REFERENCES = {"d": "Dotted: d = r.", "r": "Dotted: d = r.", "rank": "Dashed: the law itself."}


@view("figure", "fit-curves")
@of_fits
def curves_of_fits(frames: Frames, options: FitCurves) -> Drawing | None:
    """Draw a row of panels per metric (and per value of `rows`), along `x`, a panel per value of `panels`."""
    fits, with_gap = frames.fits, GAP_CLOSED in options.metrics
    if with_gap:  # of fits narrower than their distribution's columns, where a softmax fails
        fits = fits[(fits["r"] > fits["d"]) & (fits["model"] != BASELINE)]
        if fits.empty:
            return None
    models = [model for model in frames.models if model in set(fits["model"])]

    def draw(panel: Axes, row: tuple[str, float], value: float) -> None:
        metric, level = row
        own = fits[(fits[options.panels] == value) & (fits[options.rows] == level if options.rows else True)]
        plots.curves(panel, own, options.x, metric, _looks(own, models), dots=True)
        _log_axis(panel, own, options.x)
        panel.set_ylabel(find(metric).label)
        title = f"{options.panels} = {value:g}"
        panel.set_title(f"{title}, {options.rows} = {level:g}" if options.rows else title)
        _references(panel, frames.laws, own, options, metric, value)

    rows = [(metric, level) for metric in options.metrics for level in levels(fits, options.rows) or [0.0]]
    canvas = plots.crossed(rows, levels(fits, options.panels), 3.1, 2.8, draw)
    columns, notes = list(options.metrics), [REFERENCES.get(options.x, "")]
    if with_gap:
        columns += ["width", "parameters"]
        below = set(fits[fits[GAP_CLOSED] < LEAST_SHARE]["model"])
        names = ", ".join(frames.names[model] for model in models if model in below)
        notes += [f"Below −100 %, off the scale: fits of {names}."] * bool(below)
    return _drawing(frames, canvas, fits, columns, "Curves of fits to known laws.", " ".join(filter(None, notes)))


def share_limits(shares: pd.Series[float]) -> tuple[float, float]:
    """Return the ends of an axis that shows zero and what is above LEAST_SHARE, however far others fall below."""
    low, high = min(0.0, max(LEAST_SHARE, float(shares.min()))), max(0.0, float(shares.max()))
    margin = 0.05 * (high - low) or 0.05
    return low - margin, high + margin


def _references(
    axes: Axes, laws: pd.DataFrame, own: pd.DataFrame, options: FitCurves, metric: str, value: float
) -> None:
    """Draw the references for the curves, on the scale that shows them."""
    if metric == GAP_CLOSED:
        plots.level(axes, 0.0, "Softmax")
        axes.yaxis.set_major_formatter(lambda share, _: numbers.percent(share))
        axes.set_ylim(share_limits(own[metric]))
    elif options.x == "rank":
        exact = laws.groupby("rank")[LAW_RANKS.get(metric, metric)].mean()
        axes.plot(exact.index, exact, color=LIGHT.ink, linewidth=1.2, linestyle=plots.DASHED)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(plots.integer)
    else:
        _log_y(axes, own[metric])
    if {options.x, options.panels} == {"d", "r"} and own[options.x].min() <= value <= own[options.x].max():
        axes.axvline(value, color=LIGHT.muted, linewidth=1, linestyle=DASHES[2])


@view("figure", "fit-scatter")
@of_fits
def scatter(frames: Frames, options: FitMetrics) -> Drawing:
    """Draw KL(P*||Q) against measured ranks, a dot per fit in its head's colour, a panel per width."""
    fits = frames.fits

    def draw(panel: Axes, metric: str, width: float) -> None:
        own = fits[fits["d"] == width]
        plots.dots(panel, own, metric, KL, plots.styles(frames.models), markersize=4.5, alpha=0.8)
        by_law = correlations(own, ["r", "seed"], metric)
        mean = f", r = {numbers.signed(float(np.mean(by_law)))}" if by_law else ""
        panel.set(title=f"d = {width:g}{mean}", xlabel=find(metric).label, ylabel=find(KL).label)
        _log_y(panel, own[KL])

    canvas = plots.crossed(options.metrics, levels(fits, "d"), 3.0, 2.9, draw)
    note = "In the titles: Pearson’s r over heads within one law, mean over laws."
    return _drawing(frames, canvas, fits, [*options.metrics, KL], "Scatter plots of distance against rank.", note)


# --- the same for models that read a text ---------------------------------------------------------------------------
TEXT_METRICS = (RANK_TRUTH, KL_TRUTH, PRESS_RANK)


@view("figure", "truth-of-texts")
def of_texts(source: Source, options: Fits) -> Drawing:
    """Draw KL(P*||Q) of language models against the rank of their text's distribution, a panel per width.

    Dashed: free context vectors of the same head and width, where the study has them.
    """
    rows = []
    for dataset in source.datasets:
        for model in source.models:
            values = [source.values(dataset, model, metric) for metric in TEXT_METRICS]
            for run in source.runs(dataset, model):
                if all(run.seed in by_seed for by_seed in values):
                    figures = (by_seed[run.seed] for by_seed in values)
                    rows.append((dataset, model, run.head.name, run.seed, run.body.embedding_size, *figures))
    data = pd.DataFrame(rows, columns=["dataset", "model", "head", "seed", "d", *TEXT_METRICS])
    if data.empty:
        return plots.only_text(NOT_YET, data)
    free = Frames.of(source.study, source.records, options.fits).fits
    looks = {head: replace(style, dash="-") for head, style in plots.styles(list(dict.fromkeys(data["head"]))).items()}
    dashed = {head: replace(style, dash=DASHES[1]) for head, style in looks.items()}

    def draw(panel: Axes, _: object, width: float) -> None:
        own = data[data["d"] == width].assign(model=data["head"])
        plots.curves(panel, own, RANK_TRUTH, KL_TRUTH, looks, dots=True)
        if len(free):
            fitted = free[(free["d"] == width) & (free["equal"] == "")]
            plots.curves(panel, fitted.assign(model=fitted["head"]), "rank", KL, dashed)
        _log_axis(panel, data, RANK_TRUTH, base=2)
        panel.set(title=f"d = {width:g}", ylabel=find(KL_TRUTH).label, ylim=(0, None))

    canvas = plots.crossed([None], levels(data, "d"), 4.2, 3.4, draw)
    plots.legend(canvas, {head: head for head in looks}, looks)
    texts = [f"{head} at d = {d} {own[KL_TRUTH].mean():.3f}" for (head, d), own in groups(data, "head", "d")]
    note = f"Dashed: free context vectors. {plots.count_note(source, data)}"
    return Drawing(canvas, data, f"Mean distance of language models to the law: {'; '.join(texts)}.", note)
