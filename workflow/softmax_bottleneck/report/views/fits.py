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

import itertools
import textwrap
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from softmax_bottleneck.records.metrics import GAP_CLOSED, KL, KL_UNIFORM, PRESS_RANK, RANK_TRUTH, find
from softmax_bottleneck.report import figures, numbers, plots
from softmax_bottleneck.report.cells import Cell, Section, mean_of, section
from softmax_bottleneck.report.claims.known_distributions import BASELINE, share_closed, split
from softmax_bottleneck.report.source import MetricName, Source
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import Study, schema

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
        _refuse_unknown(source.study, plan, settings)
        rows = source.records.synthetic
        fits, truths = split(rows[rows["table"] == plan])
        if "r" in fits:
            fits = fits.assign(rank=fits["r"] + 2, **{GAP_CLOSED: _gap_closed(fits)})
            truths = truths.assign(rank=truths["r"] + 2)  # logits of rank r, a bias and the log normaliser
        return cls(fits, truths, dict(source.study.fit_labels.get(plan, {})))

    def having(self, metrics: Sequence[str]) -> pd.DataFrame:
        """Return the fits if all `metrics` are measured, otherwise a frame without lines."""
        return self.fits if set(metrics) <= set(self.fits) else self.fits.iloc[:0]


def _refuse_unknown(study: Study, plan: str, settings: Sequence[str]) -> None:
    """Raise UserError if the fits of a plan are of a kind without one of the settings."""
    for unit in study.fits.get(plan, ())[:1]:
        if unknown := set(settings) - (known := SETTINGS[unit.kind]):
            problem = f"{plan!r} is of kind {unit.kind} and cannot be shown by {min(unknown)}"
            expected = f"Expected a plan with this setting, or a view by {' or '.join(sorted(known))}"
            raise UserError(f"options: fits: {problem}. {expected}. Fix: name another plan, setting or view")


def _refuse_means(study: Study, plan: str, named: Set[str]) -> None:
    """Raise UserError if curves against the settings `named` would be means over further settings of a plan."""
    fits = planned_fits(study, plan)
    if further := [key for key in (*DISTRIBUTIONS, "d") if key not in named and len(levels(fits, key)) > 1]:
        problem = f"{plan!r} has several values of {further[0]}, which no axis, panel or row shows"
        raise UserError(f"options: {problem}. Expected x, panels and rows that name every setting. Fix: name it, too")


def _gap_closed(fits: pd.DataFrame) -> pd.Series:
    """Return `gap_closed` of each fit to a synthetic language; nan without a softmax of the same r, d and seed."""
    keys = ["r", "d", "seed"]
    softmax = fits[fits["model"] == BASELINE].set_index(keys)[KL]
    return share_closed(fits[KL], fits[keys].join(softmax, on=keys)[KL])


def levels(frame: pd.DataFrame, column: str) -> list[float]:
    """Return the distinct values of a column in ascending order, or an empty list if there is no such column."""
    return sorted(set(frame[column])) if column in frame else []


def planned_fits(study: Study, plan: str) -> pd.DataFrame:
    """Return a frame with one line per fit of a plan, done or not: its model and seed, and its settings by name."""
    lines = []
    for unit in study.fits.get(plan, ()):
        for fit in unit.fits:
            parts = (part.partition("=") for part in f"{unit.condition};{fit.condition}".split(";"))
            settings = {key: float(value) for key, _, value in parts if key in (*DISTRIBUTIONS, "d")}
            lines.append({"model": fit.model, "seed": unit.seed, **settings})
    return pd.DataFrame(lines)


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
    keys, every = [key for key in DISTRIBUTIONS if key in frames.fits], planned_fits(source.study, fits)
    for truth, of_truth in frames.fits.groupby(keys, sort=True) if metric in frames.fits else ():
        plan = every[(every[keys] == list(truth)).all(axis=1)]

        def cell(model: str, width: float, of_truth: pd.DataFrame = of_truth, plan: pd.DataFrame = plan) -> Cell:
            done, wanted = (part[(part["model"] == model) & (part["d"] == width)] for part in (of_truth, plan))
            if wanted.empty:
                return Cell(wanted=False)
            return Cell(measured=mean_of(done[metric].dropna()), metric=metric, planned=wanted["seed"].nunique())

        title = ", ".join(f"{DISTRIBUTIONS[key]} {value:g}" for key, value in zip(keys, truth, strict=True))
        yield section("synthetic", title, frames.names, widths, cell)


# --- figures --------------------------------------------------------------------------------------------------------
def _drawing(
    source: Source, frames: Frames, canvas: Canvas, *, fits: pd.DataFrame, columns: Sequence[str], note: str = ""
) -> plots.Drawing:
    """Add a legend to a canvas and return the drawing; its note ends with the numbers of fits and seeds.

    Args:
        source: the experiment with its records.
        frames: the fits of the plan, for the labels of models.
        canvas: the figure, which is complete except for the legend.
        fits: the fits that are drawn; the figure's CSV lists them.
        columns: metrics of the CSV, besides the columns that identify a fit.
        note: beginning of the note.
    """
    names = {model: name for model, name in frames.names.items() if model in set(fits["model"])}
    plots.legend(canvas, names, figures.styles(names, source.study))
    keys = [column for column in ("alpha", "M", "r", "d") if column in fits]
    data = fits[[*keys, "model", "equal", "seed", *columns]].sort_values([*keys, "model", "seed"])
    seeds = fits["seed"].nunique()
    count = f"Fits in this figure: {len(fits)}, of {seeds} seed{'s' if seeds > 1 else ''}."
    return plots.Drawing(canvas, data, f"{note} {count}".strip())


def _log_axis(axes: Axes, frame: pd.DataFrame, x: str) -> None:
    """Make the x axis logarithmic, with a tick at each value of column `x`, which AXES names."""
    plots.log_x(axes, levels(frame, x))
    axes.set_xlabel(AXES[x])


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
    sizes, models = levels(shown, "M"), [model for model in frames.names if model in set(frames.fits["model"])]
    looks = figures.styles(models, source.study)
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
            plots.curves(panel, of_size, x="d", y=metric, looks=looks, dots=True)
            _log_axis(panel, of_size, "d")
            truth = frames.truths[(frames.truths["alpha"] == alpha) & (frames.truths["M"] == size)]
            if metric == KL and len(truth):
                plots.level(panel, float(truth[KL_UNIFORM].mean()), "uniform distribution")
            panel.set(title=f"α = {alpha:g}, M = {size:g}", ylabel=label, ylim=(0, None))
    return _drawing(source, frames, canvas, fits=shown, columns=metrics)


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
    for (size, of_size), colour in zip(data.groupby("M"), itertools.cycle(plots.SPARE), strict=False):
        axes.plot(of_size["alpha"], of_size["drawn"], "o", color=colour, markersize=4, label=f"M = {size:g}")
        axes.plot(of_size["alpha"], of_size[KL_UNIFORM], color=colour, linestyle=plots.DASHES[1], linewidth=1.2)
    _log_axis(axes, data, "alpha")
    axes.set(ylabel=find(KL_UNIFORM).label, ylim=(0, None))
    axes.legend()
    return plots.Drawing(canvas, data)


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

    Raises:
        UserError: a curve would be a mean over further settings of the fits, not only over seeds.

    Args:
        source: the experiment with its records.
        fits: name of the plan, an entry under `fits` of the study.
        metrics: metrics to draw, in one row of panels each.
        x: column on the x axis.
        panels: column whose values have a panel each, side by side.
        rows: `d` to give each metric a row of panels for each width; empty for one row per metric.
    """
    frames = Frames.of(source, fits, x, panels)
    _refuse_means(source.study, fits, {x, panels, rows, *(["r"] if x == "rank" else [])})
    shown, with_gap = frames.having(metrics), GAP_CLOSED in metrics
    if with_gap and len(shown):  # where r > d, a softmax cannot represent the distribution
        shown = shown[(shown["r"] > shown["d"]) & (shown["model"] != BASELINE)]
    if shown.empty:
        return plots.only_text(plots.NOTHING, shown[["model", "seed"]])
    looks = figures.styles(frames.names, source.study)
    notes: dict[str, None] = {}  # in the order of drawing

    def draw(panel: Axes, row: tuple[str, float], value: float) -> None:
        metric, level = row
        in_panel = shown[(shown[panels] == value) & (shown[rows] == level if rows else True)]
        plots.curves(panel, in_panel, x=x, y=metric, looks=looks, dots=True)
        _log_axis(panel, in_panel, x)
        second = f", {rows} = {level:g}" if rows else ""
        panel.set(ylabel=find(metric).label, title=f"{panels} = {value:g}{second}")
        of_truth = TRUE_RANKS.get(metric, metric)
        is_known = x == "rank" and of_truth in frames.truths
        _scale(panel, in_panel[metric], metric, is_rank=is_known)
        if is_known:
            exact = frames.truths.groupby("rank")[of_truth].mean()
            panel.plot(exact.index, exact, color=plots.LIGHT.ink, linewidth=1.2, linestyle=plots.DASHED)
            notes["Dashed, without dots: the true distribution itself."] = None
        if {x, panels} == {"d", "r"} and in_panel[x].min() <= value <= in_panel[x].max():
            panel.axvline(value, color=plots.LIGHT.muted, linewidth=1, linestyle=plots.DASHES[2])
            notes["Vertical: d = r."] = None
        if metric == GAP_CLOSED and (in_panel[metric] < LEAST_SHARE).any():
            notes["Shares below −100 % are off the scale."] = None

    lines = [(metric, level) for metric in metrics for level in levels(shown, rows) or [0.0]]
    canvas = plots.crossed(lines, levels(shown, panels), width=3.1, height=2.8, draw=draw)
    columns = [*metrics, *(("width", "parameters") if with_gap else ())]
    return _drawing(source, frames, canvas, fits=shown, columns=columns, note=" ".join(notes))


def _scale(axes: Axes, values: pd.Series, metric: str, *, is_rank: bool) -> None:
    """Choose the y axis of a panel by the values of a metric.

    Gaps closed are percentages, beside the softmax at 0 %, and start at LEAST_SHARE or above. Ranks (`is_rank`) have a
    logarithmic axis of base 2, and so have other metrics, of base 10, whose positive values span more than a factor 20.
    """
    positive = values[values > 0]
    if metric == GAP_CLOSED:
        plots.level(axes, 0.0, "Softmax")
        axes.yaxis.set_major_formatter(lambda share, _: numbers.percent(share))
        bottom, top = max(axes.get_ylim()[0], LEAST_SHARE), max(0.0, float(values.max()))
        axes.set_ylim(bottom, top + 0.05 * (top - bottom))
    elif is_rank:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(plots.integer)
    elif len(positive) and positive.max() > 20 * positive.min():
        plots.log_y(axes)
        axes.set_ylim(bottom=max(float(positive.min()) / 1.5, float(positive.max()) * 1e-5))
