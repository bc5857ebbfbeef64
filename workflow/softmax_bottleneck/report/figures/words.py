"""Figures of words: benchmarks of word similarity won, and hits of the true next word.

Parthiban et al. 2021, Figures 3 and 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import NDArray

from softmax_bottleneck.records.metrics import SPEARMAN, TOP5_HIT
from softmax_bottleneck.records.records import groups
from softmax_bottleneck.report.cells import Part
from softmax_bottleneck.report.figures import plots
from softmax_bottleneck.report.figures.plots import LIGHT, Drawing
from softmax_bottleneck.report.options import NoOptions
from softmax_bottleneck.report.registry import figure
from softmax_bottleneck.report.source import Source
from softmax_bottleneck.report.views.words import GROUPS, places, predictions_of, published_places
from softmax_bottleneck.report.views.words import wins as win_parts

SIDES = ("measured", "published")
SQUARE = 0.42  # inches of a square of a heat map


# --- win matrices (Figure 4) ----------------------------------------------------------------------------------------
@figure("wins")
def wins(source: Source, options: NoOptions) -> Drawing:
    """Heat maps of benchmarks won, measured and published side by side."""
    parts = {part.dataset: part for part in win_parts(source, options)}
    frames = {
        dataset: pd.DataFrame(_won(part), columns=["dataset", "model", "over", *SIDES])
        for dataset, part in parts.items()
    }
    sides = SIDES if any(frame["published"].notna().any() for frame in frames.values()) else SIDES[:1]
    bare = all(frame[list(SIDES)].isna().all(axis=None) for frame in frames.values())
    side = SQUARE * len(source.rows)

    def draw(row: NDArray[Any], dataset: str, data: pd.DataFrame) -> None:
        same = all(line.same for line in parts[dataset].rows)
        titles = (f"{plots.corpus_title(source, dataset)}: measured", plots.paper_title(source, dataset, same))
        for panel, origin, title in zip(row, sides, titles, strict=False):
            _win_panel(source, panel, data, origin, title)

    size = (len(sides), max(3.4, side + 1.5), 0.5 if bare else side + 1.1)
    canvas, data = plots.by_corpus(source, size, frames.__getitem__, draw)
    rated = set(source.records.rows.loc[source.records.rows["metric"] == SPEARMAN, "run_id"])
    used = {run.run_id for dataset in parts for run in plots.planned_runs(source, dataset)} & rated
    start, measured = "Heat maps of benchmarks won; wins over all others:", data.dropna(subset="measured")
    alt = plots.by_model(source, start, measured, lambda own: f"{own['measured'].sum():.0f}")
    return Drawing(canvas, data, alt, plots.count_note(source, len(used)))


def _won(part: Part) -> Iterator[tuple[object, ...]]:
    """A line per ordered pair of models."""
    for row in part.rows:
        for other, cell in zip(part.rows, row.cells, strict=True):
            if other.key != row.key:
                published = cell.published.number if cell.published else None
                measured = cell.measured.mean if cell.measured else math.nan
                yield part.dataset, row.key, other.key, measured, math.nan if published is None else published


def _win_panel(source: Source, axes: Axes, data: pd.DataFrame, origin: str, title: str) -> None:
    if data[origin].isna().all():
        plots.empty(axes, f"{title}: nothing to show")
        return
    models = list(source.rows)
    names = [plots.short_name(source.study, model) for model in models]
    table = data.pivot(index="model", columns="over", values=origin).reindex(index=models, columns=models)
    plots.heat_map(axes, table, ".0f", square=True, linewidths=1.5, xticklabels=names, yticklabels=names)
    axes.set(title=title, xlabel="over", ylabel="")
    axes.set_xticks(axes.get_xticks(), names, rotation=40, ha="right", rotation_mode="anchor")


# --- hits (Figure 3) ------------------------------------------------------------------------------------------------
@figure("hits")
def hits(source: Source, options: NoOptions) -> Drawing:
    """Models by contexts: is the true next word among the first five? Measured, then published on the same contexts."""
    columns = ["dataset", "model", "group", "context", "target", *SIDES]
    data = pd.DataFrame([row for d in source.corpora for row in _hits(source, d)], columns=columns)
    sides = SIDES if data["published"].notna().any() else SIDES[:1]

    def draw(panel: Axes, row: tuple[str, str], _: object) -> None:
        dataset, side = row
        names = {"measured": plots.corpus_title(source, dataset), "published": source.published_title(dataset)}
        _hit_panel(source, panel, data[data["dataset"] == dataset], side, f"{names[side]}: {side}")

    height = 0.3 * len(source.rows) + 1.6 if len(data) else 0.6
    canvas = plots.crossed([(d, side) for d in source.corpora for side in sides], [None], 9.2, height, draw)
    measured = data.dropna(subset="measured")
    start = "Squares, filled where the true word is among the first five:"
    alt = plots.by_model(source, start, measured, lambda own: f"{own['measured'].sum():.0f} of {len(own)}")
    return Drawing(canvas, data, alt, plots.count_note(source, len(measured[["dataset", "model"]].drop_duplicates())))


def _hits(source: Source, dataset: str) -> Iterator[tuple[object, ...]]:
    predicted, printed = predictions_of(source, dataset), published_places(source, dataset)
    for place in places(source, dataset, predicted):
        where = {"condition": f"^group={place.group};context={place.number}$"}
        for model in source.rows:
            own, corpus = predicted.get(model, {}).get(place), source.corpus(dataset)
            published = source.find_published(corpus, model, TOP5_HIT, where) if place in printed else None
            hit = None if own is None or own.hit is None else float(own.hit)
            yield dataset, model, *place, hit, published.number if published else None


def _hit_panel(source: Source, axes: Axes, data: pd.DataFrame, side: str, title: str) -> None:
    data = data[data.groupby(["group", "context", "target"])[side].transform("count") > 0]
    shown = set(data.dropna(subset=side)["model"])
    if not shown:
        plots.empty(axes, f"{title}: nothing to show")
        return
    spots = data[["group", "context", "target"]].drop_duplicates()
    looks, names = plots.styles(list(source.rows)), list[str]()
    for height, model in enumerate(model for model in source.rows if model in shown):
        hit = data[data["model"] == model][side].to_numpy(dtype=float)
        for value, fill in ((1, "full"), (0, "none")):
            spot = np.flatnonzero(hit == value)
            look = looks[model].dot | {"marker": "s", "markersize": 11, "fillstyle": fill, "mew": 0.8}
            axes.plot(spot, [height] * len(spot), **look)
        axes.text(len(hit) - 0.2, height, f"{np.nansum(hit):.0f} of {np.isfinite(hit).sum()}", va="center", fontsize=9)
        names.append(plots.short_name(source.study, model))
    for edge in np.flatnonzero(spots["group"].to_numpy()[1:] != spots["group"].to_numpy()[:-1]):
        axes.axvline(edge + 0.5, color=LIGHT.muted, linewidth=1)
    counts = ", ".join(f"{GROUPS.get(group, group)}: {len(own)}" for (group,), own in groups(spots, "group"))
    axes.set_yticks(range(len(names)), names)
    axes.set_xticks(range(len(spots)), list(spots["target"]), rotation=50, ha="right")
    axes.set(xlim=(-0.7, len(spots) + 0.9), ylim=(len(names) - 0.4, -0.6), title=f"{title} ({counts})")
    axes.tick_params(length=0, labelcolor=LIGHT.ink)
    axes.grid(visible=False)
