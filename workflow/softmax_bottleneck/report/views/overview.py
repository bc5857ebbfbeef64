"""The figure at the top of the report: test perplexity against parameters, with the best possible one and ranks.

It belongs to no paper and to every study: `render` draws it from the records of all main models, those that are no
member of a grid and have the reference's schedule.
"""

from __future__ import annotations

import math
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
from softmax_bottleneck.report.source import Source, exact_value
from softmax_bottleneck.study import Experiment, Study

RANK, SIZE = "rank_eff_1e-3", "parameters"
COLUMNS = ["dataset", "model", "seeds", SIZE, TEST_PPL, RANK]
REFERENCE = "softmax"
ACROSS, WIDTH, HEIGHT = 2, 6.3, 4.3  # panels side by side; inches
FAR = 0.5  # of the points' range: a bound further below is written at the foot of the panel
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


def overview_figure(source: Source) -> Drawing:
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
    left_out = len(set(source.models) - set(data["model"]))
    others = f" {left_out} more not drawn: another schedule, or no results." if left_out else ""
    return Drawing(canvas, data, f"Runs: {int(data['seeds'].sum())}, models: {len(data)}.{others}")


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
    """Draw the points of a corpus, their names, the best possible perplexity, and the scale of ranks."""
    axes = box.subplots()
    behind = data.sort_values(RANK, ascending=False, na_position="first")  # the largest dots lie below the others
    scale: Any = tints.norm
    for point in behind.to_dict("records"):
        look: dict[str, Any] = {"color": LIGHT.paper, "markersize": 6.0}  # hollow where no rank was measured
        if not np.isnan(point[RANK]):
            look = {"color": tints.to_rgba(point[RANK]), "markersize": 6 + 7 * float(scale(point[RANK]))}
        axes.plot(point[SIZE], point[TEST_PPL], "o", mec=LIGHT.ink, mew=0.6, **look)
    axes.set(title=plots.corpus_title(source, dataset), xlabel="parameters", ylabel="test perplexity")
    axes.margins(x=0.12, y=0.1)
    _bound(source, axes, dataset, data[TEST_PPL])
    _labels(source, axes, data)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(amount)
    bar = box.colorbar(tints, ax=axes, label="effective rank (ε = 0.001)", aspect=30, pad=0.02)
    bar.ax.yaxis.set_major_formatter(plots.integer)
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
    bar.set_ticks(sorted({round(scale.vmin), round((scale.vmin * scale.vmax) ** 0.5), round(scale.vmax)}))


def _labels(source: Source, axes: Axes, data: pd.DataFrame) -> None:
    """Write names beside the points, in a column for those of about one size, without overlaps and with leaders.

    Of several columns the first has its names on the left: its lines to other points leave on the right. Columns so
    near that their names would meet share their heights.
    """
    low, high = axes.get_ylim()
    left, right = axes.get_xlim()
    step, span = LINE * (high - low), right - left
    data = data.sort_values([SIZE, TEST_PPL], ignore_index=True)
    distance = data[SIZE].diff() / span
    column, meeting = (distance > NEAR).cumsum(), (distance > FOR_NAMES).cumsum()
    is_left = (column == 0) & (column.max() > 0)
    x = data[SIZE].groupby(column).transform("max").where(~is_left, data[SIZE].min()) + GAP * span * (1 - 2 * is_left)
    heights = data[TEST_PPL].copy()
    for _, own in data.sort_values(TEST_PPL).groupby([is_left, meeting]):
        heights[own.index] = _spread(own[TEST_PPL].to_numpy(), step, low, high)
    for point, end, height, to_left in zip(data.to_dict("records"), x, heights, is_left, strict=True):
        name, side = f" {plots.short_name(source.study, point['model'])} ", "right" if to_left else "left"
        axes.plot([point[SIZE], end], [point[TEST_PPL], height], color=LIGHT.muted, linewidth=0.5, zorder=0.5)
        axes.text(end, height, name, va="center", ha=side, fontsize=8.5)
    axes.set(ylim=(low, high), xlim=(left - FOR_NAMES * span * is_left.any(), right + FOR_NAMES * span))


def _spread(heights_N: NDArray[np.float64], step: float, low: float, high: float) -> list[float]:
    """Return rising heights at least a step apart, near those given, and within an axis as long as they fit."""
    spread = heights_N.copy()
    for index in range(1, len(spread)):
        spread[index] = max(spread[index], spread[index - 1] + step)
    spread -= (spread - heights_N).mean()
    spread -= max(0.0, spread[-1] - (high - step / 2))
    return list(spread + max(0.0, low + step / 2 - spread[0]))


def _bound(source: Source, axes: Axes, dataset: str, ppl: pd.Series[float]) -> None:
    """Draw a dashed line at the true distribution's perplexity on the text, or at its expectation, if one is known."""
    expected, exact = (exact_value(source.records, dataset, metric) for metric in (ENTROPY_PPL, LAW_TEST_PPL))
    bound = expected if exact is None else exact
    if bound is None:
        return
    text = f"true distribution{', as expected' if exact is None else ' on this text'}: {bound:.2f}"
    look: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "bottom", "fontsize": 8.5}
    if ppl.min() - bound > FAR * max(ppl.max() - ppl.min(), 0.01 * ppl.min()):
        axes.text(0.995, axes.get_ylim()[0], f"↓ {text}", **look)
    else:
        axes.axhline(bound, color=LIGHT.ink, linewidth=1.4, linestyle=plots.DASHED)
        axes.text(0.995, bound, text, **look)


def amount(value: float, _position: object = None) -> str:
    """Return a tick of an axis of parameters: 120 k, 24 M."""
    return f"{value / 1e6:.3g} M" if value >= 1e6 else f"{value / 1e3:.3g} k"
