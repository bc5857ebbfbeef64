"""The figure at the top of the report: test perplexity against parameters, with the best possible one and ranks.

It belongs to no paper and to every study: `render` draws it from the records of all main models, those that are no
member of a grid and have the reference's schedule.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator, NullFormatter
from numpy.typing import NDArray

from softmax_bottleneck.records.metrics import ENTROPY_PPL, LAW_TEST_PPL, TEST_PPL
from softmax_bottleneck.records.records import groups
from softmax_bottleneck.report import plots
from softmax_bottleneck.report.plots import LIGHT, Drawing
from softmax_bottleneck.report.registry import view
from softmax_bottleneck.report.source import Source, exact_value
from softmax_bottleneck.study import Experiment, Study

RANK, SIZE = "rank_eff_1e-3", "parameters"
COLUMNS = ["dataset", "model", "seeds", SIZE, TEST_PPL, RANK]
REFERENCE = "softmax"
EQUAL = "-equal"  # ends the name of a model that has as many parameters as the reference
MIXTURES = ("moc", "mos", "moss")  # have more parameters than the reference, unless a study gives them its size
SAME_SIZE = 0.05  # sizes within this share of each other are equal
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
    """Return the overview as a figure of a study."""
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


@view("figure", "overview")
def overview(source: Source) -> Drawing:
    """Draw a panel per corpus with results: sizes to the right, perplexity upwards, the best possible one dashed."""
    data = _points(source)
    if data.empty:
        return plots.only_text(plots.NOTHING, data)
    frames = {dataset: frame for (dataset,), frame in groups(data, "dataset")}
    columns = min(ACROSS, len(frames))
    rows = -(-len(frames) // columns)
    canvas = Canvas(figsize=(WIDTH * columns, HEIGHT * rows), layout="constrained")
    boxes = canvas.subfigures(rows, columns, squeeze=False).ravel()
    ranks = data[RANK].dropna()
    low, high = (math.floor(ranks.min()), math.ceil(ranks.max())) if len(ranks) else (1, 2)
    tints = ScalarMappable(LogNorm(max(low, 1), max(high, low + 1, 2)), sns.color_palette(TINTS, as_cmap=True))
    for box, (dataset, frame) in zip(boxes, frames.items(), strict=False):
        _panel(source, box, dataset, frame, tints)

    def describe(own: pd.DataFrame) -> str:
        point = own.iloc[0]
        rank = "" if np.isnan(point[RANK]) else f", effective rank {point[RANK]:.0f}"
        return f"{point[TEST_PPL]:.2f} with {point[SIZE]:,.0f} parameters{rank}"

    texts = [plots.by_model(source, "Dots of test perplexity against parameters:", data, describe)]
    for dataset in frames:
        name, bound = _bound(source, dataset)
        texts += [] if bound is None else [f"{plots.corpus_title(source, dataset)}, {name}: {bound:.2f}."]
    return Drawing(canvas, data, " ".join(texts), _note(source, data))


def _points(source: Source) -> pd.DataFrame:
    """Return a line per model trained for as long as the reference: means of its size, perplexity and rank."""
    rows = []
    for dataset in source.datasets:
        epochs = {model: {run.schedule.epochs for run in source.runs(dataset, model)} for model in source.models}
        for model in source.models:
            numbers = (source.values(dataset, model, name, learned=True) for name in (SIZE, TEST_PPL, RANK))
            size, ppl, rank = (list(values.values()) for values in numbers)
            if ppl and size and epochs[model] == epochs.get(REFERENCE, epochs[model]):
                means = (float(np.mean(values)) if values else np.nan for values in (size, ppl, rank))
                rows.append((dataset, model, len(ppl), *means))
    return pd.DataFrame(rows, columns=COLUMNS)


def _panel(source: Source, box: Any, dataset: str, data: pd.DataFrame, tints: ScalarMappable) -> None:
    """Draw the points of a corpus; a bound far below them has a narrow axis of its own, so that it squeezes nothing."""
    name, bound = _bound(source, dataset)
    low, high = data[TEST_PPL].min(), data[TEST_PPL].max()
    is_far = bound is not None and low - bound > FAR * max(high - low, 0.01 * low)
    upper, *lower = box.subplots(1 + is_far, 1, squeeze=False, height_ratios=[7, 1][: 1 + is_far], sharex=True)[:, 0]
    for axes in (upper, *lower):
        axes.set_axisbelow(True)
    for model in _partners(data):
        ends = data.set_index("model").loc[[REFERENCE, model]]
        upper.plot(ends[SIZE], ends[TEST_PPL], color=LIGHT.ink, linewidth=1.6, zorder=1)
    behind = data.sort_values(RANK, ascending=False, na_position="first")  # the largest dots lie below the others
    scale: Any = tints.norm
    for point in behind.to_dict("records"):
        look: dict[str, Any] = {"color": LIGHT.paper, "markersize": 6.0}  # hollow where no rank was measured
        if not np.isnan(point[RANK]):
            look = {"color": tints.to_rgba(point[RANK]), "markersize": 6 + 7 * float(scale(point[RANK]))}
        upper.plot(point[SIZE], point[TEST_PPL], "o", mec=LIGHT.ink, mew=0.6, **look)
    upper.set(title=plots.corpus_title(source, dataset), ylabel="test perplexity")
    upper.margins(x=0.12, y=0.1)
    _labels(source, upper, data)
    (lower or [upper])[-1].set_xlabel("parameters")
    upper.xaxis.set_major_locator(MaxNLocator(5))
    upper.xaxis.set_major_formatter(amount)
    if bound is not None:
        _draw_bound(upper, lower, f"{name}: {bound:.2f}", bound)
    bar = box.colorbar(tints, ax=[upper, *lower], label="effective rank (ε = 0.001)", aspect=30, pad=0.02)
    bar.ax.yaxis.set_major_formatter(plots.integer)
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
    bar.set_ticks(sorted({round(scale.vmin), round((scale.vmin * scale.vmax) ** 0.5), round(scale.vmax)}))


def _partners(data: pd.DataFrame) -> list[str]:
    """Return the mixtures of the reference's size, on one corpus."""
    sizes = dict(zip(data["model"], data[SIZE], strict=True))
    mixtures = [model for model in sizes if model.endswith(EQUAL) or model in MIXTURES]
    return [m for m in mixtures if abs(sizes[m] / sizes.get(REFERENCE, np.nan) - 1) <= SAME_SIZE]


def _labels(source: Source, axes: Axes, data: pd.DataFrame) -> None:
    """Write names beside the points; where several have about one size, in a column without overlaps, with leaders.

    Of several columns the first has its names on the left: its lines to other points leave on the right.
    """
    low, high = axes.get_ylim()
    left, right = axes.get_xlim()
    step, span = LINE * (high - low), right - left
    ordered = data.sort_values(SIZE)
    columns = (ordered[SIZE].diff() > NEAR * span).cumsum()
    has_left = columns.max() > 0
    for number, own in ordered.groupby(columns, sort=False):
        own = own.sort_values(TEST_PPL)
        to_left = has_left and number == 0
        x = own[SIZE].min() - GAP * span if to_left else own[SIZE].max() + GAP * span
        heights = _spread(own[TEST_PPL].to_numpy(), step, low, high)
        for point, y in zip(own.to_dict("records"), heights, strict=True):
            name = plots.short_name(source.study, point["model"])
            axes.plot([point[SIZE], x], [point[TEST_PPL], y], color=LIGHT.muted, linewidth=0.5, zorder=0.5)
            axes.text(x, y, f" {name} ", va="center", ha="right" if to_left else "left", fontsize=8.5)
    axes.set(ylim=(low, high), xlim=(left - FOR_NAMES * span * has_left, right + FOR_NAMES * span))


def _spread(heights_N: NDArray[np.float64], step: float, low: float, high: float) -> list[float]:
    """Return rising heights at least a step apart, near those given, and within an axis as long as they fit."""
    spread = heights_N.copy()
    for index in range(1, len(spread)):
        spread[index] = max(spread[index], spread[index - 1] + step)
    spread -= (spread - heights_N).mean()
    spread -= max(0.0, spread[-1] - (high - step / 2))
    return list(spread + max(0.0, low + step / 2 - spread[0]))


def _bound(source: Source, dataset: str) -> tuple[str, float | None]:
    """Return the score of the true distribution on the text, or, where that is unknown, its expectation."""
    exact = exact_value(source.records, dataset, LAW_TEST_PPL)
    if exact is not None:
        return "true distribution on this text", exact
    return "true distribution, as expected", exact_value(source.records, dataset, ENTROPY_PPL)


def _draw_bound(upper: Axes, lower: Sequence[Axes], text: str, bound: float) -> None:
    """Draw a dashed line at the best possible perplexity, on a cut axis of its own where there is a lower one."""
    axes = lower[0] if lower else upper
    axes.axhline(bound, color=LIGHT.ink, linewidth=1.4, linestyle=plots.DASHED)
    axes.text(0.995, bound, text, transform=axes.get_yaxis_transform(), ha="right", va="bottom", fontsize=8.5)
    if lower:
        axes.set(ylim=(bound - 1, bound + 1.6), yticks=[round(bound)])
        axes.grid(visible=False)
        upper.spines.bottom.set_visible(False)
        upper.tick_params(axis="x", length=0, labelbottom=False)
        cut: dict[str, Any] = {"marker": [(-1, -0.6), (1, 0.6)], "markersize": 8, "clip_on": False}
        for edge, y in ((upper, 0), (axes, 1)):
            edge.plot([0], [y], transform=edge.transAxes, color=LIGHT.muted, mec=LIGHT.muted, **cut)


def amount(value: float, _position: object = None) -> str:
    """Return a tick of an axis of parameters: 120 k, 24 M."""
    return f"{value / 1e6:.3g} M" if value >= 1e6 else f"{value / 1e3:.3g} k"


def _note(source: Source, data: pd.DataFrame) -> str:
    """Return what marks in names mean, and how many runs and models are drawn."""
    drawn = data["model"].map(source.models)
    notes = [note for mark, note in MARKS.items() if drawn.str.contains(mark, regex=False).any()]
    if any(_partners(own) for _, own in data.groupby("dataset")):
        notes.insert(0, "Mixtures of Softmax’s size are joined to it.")
    left_out = len(set(source.models) - set(data["model"]))
    others = f" {left_out} more not drawn: another schedule, or no results." if left_out else ""
    return " ".join([*notes, f"Runs: {int(data['seeds'].sum())}, models: {len(data)}.{others}"])
