"""The figure at the top of the page: test perplexity against parameters, with the law's bound and effective ranks.

It belongs to no paper and to every study: `render` draws it from the records of all main models, those that are no
member of a grid and have the reference's schedule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from softmax_bottleneck.records.metrics import ENTROPY_PPL, LAW_TEST_PPL, TEST_PPL
from softmax_bottleneck.records.records import groups
from softmax_bottleneck.report.figures import plots
from softmax_bottleneck.report.figures.plots import LIGHT, Drawing
from softmax_bottleneck.report.options import NoOptions
from softmax_bottleneck.report.registry import figure
from softmax_bottleneck.report.source import Source, exact_value
from softmax_bottleneck.study import Experiment, Study

RANK, SIZE = "rank_eff_1e-3", "parameters"
COLUMNS = ["dataset", "model", "seeds", SIZE, TEST_PPL, RANK]
EQUAL = "-equal"  # ends the name of a model that has as many parameters as the reference
ALIKE = 0.05  # sizes within this share of each other are equal
REFERENCE = "softmax"
MIXTURES = ("moc", "mos", "moss")  # have more parameters than the reference, unless a study makes them alike
MARKS = {  # in the names of models
    "(NT": "NT: averaging begins when validation stops improving, not after a fixed epoch.",
    "(fair": "Fair: the paper’s comparison of Softmax and MoS of about equal size, each regularised for itself.",
}
ACROSS, WIDTH, HEIGHT = 2, 6.3, 4.3  # panels side by side; inches
FAR = 0.5  # of the points' range: from there on the bound has an axis of its own below
NEAR = 0.1  # of the range of sizes: points that share a column of labels
GAP, FOR_NAMES = 0.035, 0.3  # of that range: from a point to its name, and for the names themselves
LINE = 0.062  # of an axis' height: between two labels
TINTS = "flare"  # light to dark, so that it survives every colour-vision deficiency and grey


def experiment(study: Study) -> Experiment:
    """The overview as a figure of a study."""
    in_grids = {model for search in study.searches.values() for model in search.members}
    models = dict.fromkeys(run.model for run in study.needed if run.model not in in_grids)
    return Experiment(
        id="overview",
        source="known-truth",
        artefact="Overview",
        kind="figure",
        title="Perplexity against size",
        caption=(
            "Each dot is a model, the mean of its runs; lower is better. Darker and larger: higher effective rank "
            "(ε = 0.001)."
        ),
        view="overview",
        models=tuple(models),
        datasets=tuple(dict.fromkeys(run.dataset for run in study.needed)),
    )


@figure("overview")
def overview(source: Source, options: NoOptions) -> Drawing:
    """A panel per corpus with results; sizes to the right, perplexity upwards, the law's own as a dashed line."""
    frames = {dataset: frame for dataset in source.datasets if len(frame := points(source, dataset))}
    if not frames:
        return plots.words_alone(plots.NOTHING, pd.DataFrame(columns=COLUMNS))
    data = pd.concat(frames.values(), ignore_index=True)
    columns = min(ACROSS, len(frames))
    rows = -(-len(frames) // columns)
    canvas = Canvas(figsize=(WIDTH * columns, HEIGHT * rows), layout="constrained")
    boxes = canvas.subfigures(rows, columns, squeeze=False).ravel()
    tints = _tints(data)
    for box, (dataset, frame) in zip(boxes, frames.items(), strict=False):
        _panel(source, box, dataset, frame, tints)
    alt = plots.by_model(source, "Dots of test perplexity against parameters:", data, _words)
    bounds = [_bound_words(source, dataset) for dataset in frames]
    return Drawing(canvas, data, " ".join(filter(None, [alt, *bounds])), _note(source, data))


def points(source: Source, dataset: str) -> pd.DataFrame:
    """A line per model trained for as long as the reference: means of its size, perplexity and effective rank."""
    rows = []
    epochs = {model: {run.schedule.epochs for run in source.runs(dataset, model)} for model in source.models}
    for model in source.models:
        ppl, size, rank = (source.learned(dataset, model, name) for name in (TEST_PPL, SIZE, RANK))
        if ppl and size and epochs[model] == epochs.get(REFERENCE, epochs[model]):
            means = (float(np.mean([*values.values()])) if values else np.nan for values in (size, ppl, rank))
            rows.append((dataset, model, len(ppl), *means))
    return pd.DataFrame(rows, columns=COLUMNS)


def _tints(data: pd.DataFrame) -> ScalarMappable:
    """Colours of effective ranks, on a log scale over those of all corpora."""
    ranks = data[RANK].dropna()
    low, high = (math.floor(ranks.min()), math.ceil(ranks.max())) if len(ranks) else (1, 2)
    return ScalarMappable(LogNorm(max(low, 1), max(high, low + 1, 2)), sns.color_palette(TINTS, as_cmap=True))


def _panel(source: Source, box: Any, dataset: str, data: pd.DataFrame, tints: ScalarMappable) -> None:
    """The points of a corpus; a bound far below them has a narrow axis of its own, so that it squeezes nothing."""
    name, bound = _bound(source, dataset)
    low, high = data[TEST_PPL].min(), data[TEST_PPL].max()
    is_far = bound is not None and low - bound > FAR * max(high - low, 0.01 * low)
    upper, *lower = box.subplots(1 + is_far, 1, squeeze=False, height_ratios=[7, 1][: 1 + is_far], sharex=True)[:, 0]
    for axes in (upper, *lower):
        axes.set_axisbelow(True)
    _pairs(upper, data)
    behind = data.sort_values(RANK, ascending=False, na_position="first")  # the largest dots lie below the others
    for look, own in zip(_looks(behind, tints), behind.to_dict("records"), strict=True):
        upper.plot(own[SIZE], own[TEST_PPL], "o", mec=LIGHT.ink, mew=0.6, **look)
    upper.set(title=plots.corpus_title(source, dataset), ylabel="test perplexity")
    upper.margins(x=0.12, y=0.1)
    _labels(source, upper, data)
    (lower or [upper])[-1].set_xlabel("parameters")
    upper.xaxis.set_major_locator(MaxNLocator(5))
    upper.xaxis.set_major_formatter(FuncFormatter(amount))
    if bound is not None:
        _draw_bound(upper, lower, name, bound)
    _colour_bar(box, [upper, *lower], tints)


def _colour_bar(box: Any, axes: list[Axes], tints: Any) -> None:
    low, high = tints.norm.vmin, tints.norm.vmax
    bar = box.colorbar(tints, ax=axes, label="effective rank (ε = 0.001)", aspect=30, pad=0.02)
    bar.ax.yaxis.set_major_formatter(FuncFormatter(plots.integer))
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
    bar.set_ticks(sorted({round(low), round((low * high) ** 0.5), round(high)}))


def _looks(data: pd.DataFrame, tints: Any) -> list[Mapping[str, Any]]:
    """Colour and size of every point, by its effective rank; hollow where none was measured."""
    return [
        {"color": LIGHT.paper, "markersize": 6.0}
        if np.isnan(rank)
        else {"color": tints.to_rgba(rank), "markersize": 6 + 7 * float(tints.norm(rank))}
        for rank in data[RANK]
    ]


def _pairs(axes: Axes, data: pd.DataFrame) -> None:
    """A line from the reference to every model that was given its size."""
    for model in _partners(data):
        ends = data.set_index("model").loc[[REFERENCE, model]]
        axes.plot(ends[SIZE], ends[TEST_PPL], color=LIGHT.ink, linewidth=1.6, zorder=1)


def _partners(data: pd.DataFrame) -> list[str]:
    """Mixtures of the reference's size, on one corpus."""
    sizes = dict(zip(data["model"], data[SIZE], strict=True))
    mixtures = [model for model in sizes if model.endswith(EQUAL) or model in MIXTURES]
    return [m for m in mixtures if abs(sizes[m] / sizes.get(REFERENCE, np.nan) - 1) <= ALIKE]


def _labels(source: Source, axes: Axes, data: pd.DataFrame) -> None:
    """Names beside the points; where several have about one size, in a column without overlaps, with thin leaders.

    Of several columns the first has its names on the left: its lines to other points leave on the right.
    """
    low, high = axes.get_ylim()
    left, right = axes.get_xlim()
    step, span = LINE * (high - low), right - left
    ordered = data.sort_values(SIZE)
    column = (ordered[SIZE].diff() > NEAR * span).cumsum()
    is_left = column.eq(0) & (column.max() > 0)
    for _, own in groups(ordered.assign(column=column.astype(str), is_left=is_left), "column"):
        own = own.sort_values(TEST_PPL)
        heights = _spread(own[TEST_PPL].to_numpy(), step, low, high)
        to_left = bool(own["is_left"].iloc[0])
        x = own[SIZE].min() - GAP * span if to_left else own[SIZE].max() + GAP * span
        for point, y in zip(own.to_dict("records"), heights, strict=True):
            name = plots.short_name(source.study, point["model"])
            axes.plot([point[SIZE], x], [point[TEST_PPL], y], color=LIGHT.muted, linewidth=0.5, zorder=0.5)
            axes.text(x, y, f" {name} ", va="center", ha="right" if to_left else "left", fontsize=8.5)
    axes.set(ylim=(low, high), xlim=(left - FOR_NAMES * span * is_left.any(), right + FOR_NAMES * span))


def _spread(heights_N: NDArray[np.float64], step: float, low: float, high: float) -> list[float]:
    """Rising heights at least a step apart, near those given, and within an axis as long as they fit."""
    found = heights_N.copy()
    for index in range(1, len(found)):
        found[index] = max(found[index], found[index - 1] + step)
    found -= (found - heights_N).mean()
    found -= max(0.0, found[-1] - (high - step / 2))
    return list(found + max(0.0, low + step / 2 - found[0]))


def _bound(source: Source, dataset: str) -> tuple[str, float | None]:
    """What the law itself scores on the text, or, where that is not known, what it is expected to score."""
    exact = exact_value(source.records, dataset, LAW_TEST_PPL)
    if exact is not None:
        return "the law on this text", exact
    return "the law, as expected", exact_value(source.records, dataset, ENTROPY_PPL)


def _draw_bound(upper: Axes, lower: list[Axes], name: str, bound: float) -> None:
    axes = lower[0] if lower else upper
    axes.axhline(bound, color=LIGHT.ink, linewidth=1.4, linestyle=plots.DASHED)
    axes.text(0.995, bound, f"{name}: {bound:.2f}", transform=axes.get_yaxis_transform(), ha="right",
              va="bottom", fontsize=8.5)  # fmt: skip
    if lower:
        axes.set(ylim=(bound - 1, bound + 1.6), yticks=[round(bound)])
        axes.grid(visible=False)
        upper.spines.bottom.set_visible(False)
        upper.tick_params(axis="x", length=0, labelbottom=False)
        cut: dict[str, Any] = {
            "marker": [(-1, -0.6), (1, 0.6)],
            "markersize": 8,
            "color": LIGHT.muted,
            "mec": LIGHT.muted,
        }
        for one, y in ((upper, 0), (axes, 1)):
            one.plot([0], [y], transform=one.transAxes, clip_on=False, **cut)


def amount(value: float, _position: object = None) -> str:
    """A tick of an axis of parameters: 120 k, 24 M."""
    return f"{value / 1e6:.3g} M" if value >= 1e6 else f"{value / 1e3:.3g} k"


# --- in words -------------------------------------------------------------------------------------------------------
def _words(own: pd.DataFrame) -> str:
    point = own.iloc[0]
    rank = "" if np.isnan(point[RANK]) else f", effective rank {point[RANK]:.0f}"
    return f"{point[TEST_PPL]:.2f} with {point[SIZE]:,.0f} parameters{rank}"


def _bound_words(source: Source, dataset: str) -> str:
    name, bound = _bound(source, dataset)
    return "" if bound is None else f"{plots.corpus_title(source, dataset)}, {name}: {bound:.2f}."


def _note(source: Source, data: pd.DataFrame) -> str:
    drawn = data["model"].map(source.models)
    words = [said for mark, said in MARKS.items() if drawn.str.contains(mark, regex=False).any()]
    if any(_partners(own) for _, own in data.groupby("dataset")):
        words.insert(0, "Mixtures of Softmax’s size are joined to it.")
    left_out = [model for model in source.models if model not in set(data["model"])]
    runs = f"Runs: {int(data['seeds'].sum())}, models: {len(data)}."
    others = f" {len(left_out)} more not drawn: another schedule, or no results." if left_out else ""
    return " ".join([*words, f"{runs}{others}"])
