"""Tables and figures of fits to known distributions: output heads with one free vector per context.

They correspond to Figures 2, 3 and 5 to 8 of Ganea et al. 2019, or show results of the study `known-truth`.

A data frame of fits has one line per fit and these columns:

    model, seed, d  name of the model, seed, and planned width of the context and word vectors
    equal           "" or a head's name: the model has the largest `width` with no more parameters than this head
    alpha, M        only of Dirichlet distributions: concentration and number of words
    r, V, rank      only of synthetic languages: rank of the logits, number of words, rank r + 2 of log-probabilities
    <metric>        a column per metric of the records, and for synthetic languages `gap_closed`

`gap_closed` is 1 - KL(fit) / KL(softmax), where both fits have the same distribution, width and seed.
"""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from softmax_bottleneck.records.metrics import GAP_CLOSED, KL, KL_UNIFORM, PRESS_RANK, RANK_TRUTH, find
from softmax_bottleneck.report import numbers, plots
from softmax_bottleneck.report.cells import Cell, Section, mean_of, section
from softmax_bottleneck.report.claims.known_distributions import BASELINE, split
from softmax_bottleneck.report.source import MetricName, Source
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import schema

DISTRIBUTIONS = {"alpha": "α =", "M": "M =", "r": "Rank of the true logits, r ="}
AXES = {
    "d": "width of the model d",
    "r": "rank of the true logits r",
    "rank": "rank of the true distribution",
    "alpha": "concentration α",
}
# Kind of a plan -> settings by which views group or select its fits.
SETTINGS = {"dirichlet": {"d", "alpha", "M"}, "language": {"d", "r", "rank"}, "natural": {"truth"}}
ENTROPY = "entropy_nats"
TRUE_RANKS = {PRESS_RANK: RANK_TRUTH}  # metric of a fit -> metric of the true distribution, if their names differ
WIDEST_TITLE = 28  # letters of a line above a heat map
LEAST_SHARE = -1.0  # smallest gap closed that a panel shows; there the KL is twice that of the softmax


# --- frames ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Frames:
    """The fits of one plan, an entry under `fits` of a study.

    Attributes:
        fits: a frame with one line per fit (see the module's docstring); empty before anything is fitted.
        truths: a frame with one line per true distribution. Its columns are the settings and seed of the distribution,
            and the exact values of metrics such as `entropy_nats`.
        names: {name of a model: its label}, in the order of the plan.
    """

    fits: pd.DataFrame
    truths: pd.DataFrame
    names: dict[str, str]

    @classmethod
    def of(cls, source: Source, plan: str, *settings: str) -> "Frames":
        """Return the fits and true distributions of the plan `plan`, from the records of the study in `source`.

        Raises:
            UserError: the view cannot group the plan's fits by one of `settings`, such as `alpha` (see SETTINGS).
        """
        for unit in source.study.fits.get(plan, ())[:1]:
            if unknown := set(settings) - (known := SETTINGS[unit.kind]):
                problem = f"{plan!r} is of kind {unit.kind} and cannot be shown by {min(unknown)}"
                expected = f"Expected a plan with this setting, or a view by {' or '.join(sorted(known))}"
                raise UserError(f"options: fits: {problem}. {expected}. Fix: name another plan, setting or view")
        rows = source.records.synthetic
        both = split(rows[rows["table"] == plan])
        # Log-probabilities have rank r + 2: logits of rank r, a bias and the log normaliser.
        fits, truths = (frame.assign(rank=frame["r"] + 2) if "r" in frame else frame for frame in both)
        if "r" in fits:  # with the fraction of the softmax's KL gap that each fit closes
            keys, softmax = ["r", "d", "seed"], fits[fits["model"] == BASELINE]
            baseline = fits[keys].merge(softmax[[*keys, KL]], on=keys, how="left")[KL].to_numpy(dtype=float)
            fits = fits.assign(**{GAP_CLOSED: 1.0 - fits[KL] / baseline})
        return cls(fits, truths, dict(source.study.fit_labels.get(plan, {})))

    def having(self, metrics: Sequence[str]) -> pd.DataFrame:
        """Return the fits if all `metrics` are measured, otherwise a frame without lines."""
        return self.fits if set(metrics) <= set(self.fits) else self.fits.iloc[:0]


def levels(frame: pd.DataFrame, column: str) -> list[float]:
    """Return the distinct values of a column in ascending order, or an empty list if there is no such column."""
    return sorted(set(frame[column])) if column in frame else []


# --- tables ---------------------------------------------------------------------------------------------------------
def fit_loss_table(source: Source, *, fits: str, metric: MetricName = KL) -> Iterator[Section]:
    """Yield a section per setting of the true distribution P*, with a row per model and a column per width.

    A setting is a concentration with a number of words M, or a rank r. A cell shows the mean over seeds.

    Args:
        source: the experiment with its records.
        fits: name of the plan, an entry under `fits` of the study.
        metric: metric of the cells, by default KL(P*||Q) in nats, where Q is the fitted distribution.
    """
    frames = Frames.of(source, fits, "d")
    widths = {width: f"d = {width:g}" for width in levels(frames.fits, "d")}
    keys = [key for key in DISTRIBUTIONS if key in frames.fits]
    for truth, of_truth in frames.fits.groupby(keys, sort=True) if metric in frames.fits else ():

        def cell(model: str, width: float, of_truth: pd.DataFrame = of_truth) -> Cell:
            values = of_truth[(of_truth["model"] == model) & (of_truth["d"] == width)][metric].dropna()
            return Cell(measured=mean_of(values), metric=metric, planned=of_truth["seed"].nunique())

        title = ", ".join(f"{DISTRIBUTIONS[key]} {value:g}" for key, value in zip(keys, truth, strict=True))
        yield section("synthetic", title, frames.names, widths, cell)


# --- figures --------------------------------------------------------------------------------------------------------
def _drawing(
    frames: Frames, canvas: Canvas, fits: pd.DataFrame, columns: Sequence[str], note: str = ""
) -> plots.Drawing:
    """Add a legend to a canvas and return the drawing; its note ends with the numbers of fits and seeds.

    Args:
        frames: the fits of the plan, for the labels of models.
        canvas: the figure, which is complete except for the legend.
        fits: the fits that are drawn; the figure's CSV lists them.
        columns: metrics of the CSV, besides the columns that identify a fit.
        note: beginning of the note.
    """
    names = {model: name for model, name in frames.names.items() if model in set(fits["model"])}
    plots.legend(canvas, names, _looks(fits, list(names)))
    keys = [column for column in ("alpha", "M", "r", "d") if column in fits]
    data = fits[[*keys, "model", "equal", "seed", *columns]].sort_values([*keys, "model", "seed"])
    seeds = fits["seed"].nunique()
    count = f"{len(fits)} fits of {seeds} seed{'s' if seeds > 1 else ''} are in this figure."
    return plots.Drawing(canvas, data, f"{note} {count}".strip())


def _looks(fits: pd.DataFrame, models: Sequence[str]) -> dict[str, plots.Style]:
    """Return the style of each model, dashed if another head's number of parameters sets its width."""
    cut = set(fits[fits["equal"] != ""]["model"])
    return {m: replace(style, dash=plots.DASHES[1] if m in cut else "-") for m, style in plots.styles(models).items()}


def _log_axis(axes: Axes, frame: pd.DataFrame, x: str) -> None:
    """Make the x axis logarithmic, with a tick at each value of column `x`."""
    plots.log_x(axes, levels(frame, x))
    axes.set_xlabel(AXES.get(x, AXES["rank"]))


def fit_maps_figure(
    source: Source,
    *,
    fits: str,
    metrics: schema.NonEmpty[MetricName],
    alphas: tuple[schema.Number, ...] = (),
    others: schema.Flag = False,
) -> plots.Drawing:
    """Draw, for each concentration and metric, a row of heat maps and below it a row of curves.

    There is a heat map for each model: the metric over the number of words M and the width D. There is a panel of
    curves for each M: the metric over D, with one curve per model. Heat maps and lines show means over seeds, dots
    single fits.

    Args:
        source: the experiment with its records.
        fits: name of the plan, an entry under `fits` of the study, with Dirichlet distributions.
        metrics: metrics to draw.
        alphas: concentrations to draw; empty means all.
        others: True to draw all concentrations except `alphas`.
    """
    frames = Frames.of(source, fits, "alpha")
    shown = frames.having(metrics)
    if len(shown):
        named = shown["alpha"].isin(alphas or levels(shown, "alpha"))
        shown = shown[~named if others else named]
    if shown.empty:
        return plots.only_text(plots.NOTHING, shown[["model", "seed"]])
    rows = [(alpha, metric) for alpha in levels(shown, "alpha") for metric in metrics]
    sizes, models = levels(shown, "M"), [m for m in frames.names if m in set(frames.fits["model"])]
    canvas, axes = plots.panels(2 * len(rows), max(len(models), len(sizes)), 3.1, 2.5)
    for squares, lines, (alpha, metric) in zip(axes[::2], axes[1::2], rows, strict=True):
        of_alpha, label = shown[shown["alpha"] == alpha], find(metric).label
        top = float(of_alpha.groupby(["model", "M", "d"])[metric].mean().max())  # maps of a row share a colour scale
        for panel, model in zip(squares, models, strict=False):
            table = of_alpha[of_alpha["model"] == model].pivot_table(index="M", columns="d", values=metric)
            table = table.sort_index(ascending=False)
            ticks = {"xticklabels": [f"{d:g}" for d in table], "yticklabels": [f"{m:g}" for m in table.index]}
            plots.heat_map(panel, table, ".2f", vmax=top, linewidths=1, **ticks)
            title = f"{frames.names[model]}, α = {alpha:g}:\n{textwrap.fill(label, WIDEST_TITLE)}"
            panel.set(title=title, xlabel="width d", ylabel="words M")
        for panel, size in zip(lines, sizes, strict=False):
            of_size = of_alpha[of_alpha["M"] == size]
            plots.curves(panel, of_size, "d", metric, _looks(of_size, models), dots=True)
            _log_axis(panel, of_size, "d")
            truth = frames.truths[(frames.truths["alpha"] == alpha) & (frames.truths["M"] == size)]
            if metric == KL and len(truth):
                plots.level(panel, float(truth[KL_UNIFORM].mean()), "no context")
            panel.set(title=f"α = {alpha:g}, M = {size:g}", ylabel=label, ylim=(0, None))
    return _drawing(frames, canvas, shown, metrics)


def law_uniformity_figure(source: Source, *, fits: str) -> plots.Drawing:
    """Draw KL(P*||uniform) of Dirichlet samples P* against the concentration alpha, with a colour per number of words.

    A dot is the mean over all P* of one seed. A line shows the expectation under the Dirichlet distribution. `fits` is
    the name of the plan, an entry under `fits` of the study.
    """
    frames = Frames.of(source, fits, "alpha")
    if frames.fits.empty or not {KL_UNIFORM, ENTROPY} <= set(frames.truths):
        return plots.only_text(plots.NOTHING, frames.fits.iloc[:0][["model", "seed"]])
    data = frames.truths[["M", "alpha", "seed", KL_UNIFORM, ENTROPY]].sort_values(["M", "alpha", "seed"])
    data = data.assign(drawn=np.log(data["M"]) - data[ENTROPY])  # KL(P || 1/M) = ln M - H(P)
    canvas, ((axes,),) = plots.panels(1, 1, 6.0, 3.6)
    for (size, of_size), colour in zip(data.groupby("M"), plots.SPARE, strict=False):
        axes.plot(of_size["alpha"], of_size["drawn"], "o", color=colour, markersize=4, label=f"M = {size:g}")
        axes.plot(of_size["alpha"], of_size[KL_UNIFORM], color=colour, linestyle=plots.DASHES[1], linewidth=1.2)
    _log_axis(axes, data, "alpha")
    axes.set(ylabel=find(KL_UNIFORM).label, ylim=(0, None))
    axes.legend()
    return plots.Drawing(canvas, data)


REFERENCES = {"d": "Dotted: d = r.", "r": "Dotted: d = r.", "rank": "Dashed: the true distribution itself."}


def fit_curves_figure(
    source: Source,
    *,
    fits: str,
    metrics: schema.NonEmpty[MetricName],
    x: Literal["d", "r", "rank", "alpha"],
    panels: Literal["d", "r", "M"],
    rows: Literal["", "d"] = "",
) -> plots.Drawing:
    """Draw a grid of panels with curves of metrics, one curve per model.

    `x`, `panels` and `rows` name columns of the data frame of fits (see the module's docstring). If `gap_closed` is
    among the metrics, two kinds of fits are left out. Fits of the softmax close no gap by definition. Fits with r <= d
    have no gap to close, because a softmax of width d represents a distribution with logits of rank r <= d exactly.

    Args:
        source: the experiment with its records.
        fits: name of the plan, an entry under `fits` of the study.
        metrics: metrics to draw, in one row of panels each.
        x: column on the x axis.
        panels: column whose values have a panel each, side by side.
        rows: `d` to give each metric a row of panels for each width; empty for one row per metric.
    """
    frames = Frames.of(source, fits, x, panels)
    shown, with_gap = frames.having(metrics), GAP_CLOSED in metrics
    if with_gap and len(shown):  # where r > d, a softmax cannot represent the distribution
        shown = shown[(shown["r"] > shown["d"]) & (shown["model"] != BASELINE)]
    if shown.empty:
        return plots.only_text(plots.NOTHING, shown[["model", "seed"]])
    models = [model for model in frames.names if model in set(shown["model"])]

    def draw(panel: Axes, row: tuple[str, float], value: float) -> None:
        metric, level = row
        in_panel = shown[(shown[panels] == value) & (shown[rows] == level if rows else True)]
        plots.curves(panel, in_panel, x, metric, _looks(in_panel, models), dots=True)
        _log_axis(panel, in_panel, x)
        second = f", {rows} = {level:g}" if rows else ""
        panel.set(ylabel=find(metric).label, title=f"{panels} = {value:g}{second}")
        _references(panel, frames.truths, in_panel, x, metric)
        if {x, panels} == {"d", "r"} and in_panel[x].min() <= value <= in_panel[x].max():
            panel.axvline(value, color=plots.LIGHT.muted, linewidth=1, linestyle=plots.DASHES[2])

    lines = [(metric, level) for metric in metrics for level in levels(shown, rows) or [0.0]]
    canvas = plots.crossed(lines, levels(shown, panels), 3.1, 2.8, draw)
    columns, notes = list(metrics), [REFERENCES.get(x, "")]
    if with_gap:
        columns += ["width", "parameters"]
        notes += ["Shares below −100 % are off the scale."] if (shown[GAP_CLOSED] < LEAST_SHARE).any() else []
    return _drawing(frames, canvas, shown, columns, " ".join(filter(None, notes)))


def _references(axes: Axes, truths: pd.DataFrame, fits: pd.DataFrame, x: str, metric: str) -> None:
    """Draw the reference values of a metric in a panel, and choose the scale of the y axis.

    The first case that applies counts:

    * `metric` is `gap_closed`: the reference is the softmax, at 0 %. The linear y axis starts at LEAST_SHARE or above.
    * `x` is `rank`, and the metric of the true distribution is known: it is the reference. The y axis is logarithmic.
    * Otherwise there is no reference. The y axis is logarithmic if the positive values span more than a factor of 20.

    Args:
        axes: the panel.
        truths: a frame with one line per true distribution: its settings, seed and exact metrics.
        fits: the fits that this panel shows, one line per fit (see the module's docstring).
        x: column on the x axis.
        metric: metric on the y axis.
    """
    if metric == GAP_CLOSED:
        plots.level(axes, 0.0, "Softmax")
        axes.yaxis.set_major_formatter(lambda share, _: numbers.percent(share))
        axes.set_ylim(bottom=max(axes.get_ylim()[0], LEAST_SHARE))
    elif x == "rank" and (of_truth := TRUE_RANKS.get(metric, metric)) in truths:
        exact = truths.groupby("rank")[of_truth].mean()
        axes.plot(exact.index, exact, color=plots.LIGHT.ink, linewidth=1.2, linestyle=plots.DASHED)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(plots.integer)
    else:
        positive = fits[metric][fits[metric] > 0]
        if len(positive) and positive.max() > 20 * positive.min():
            plots.log_y(axes)
            axes.set_ylim(bottom=max(float(positive.min()) / 1.5, float(positive.max()) * 1e-5))
