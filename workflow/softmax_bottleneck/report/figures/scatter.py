"""Figures of rank against perplexity: over runs, over the grid of GSS, and along sweeps.

Parthiban et al. 2021, Table 2 drawn, Figures 2, 5 and 6.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from softmax_bottleneck.records.metrics import PRESS_RANK, TEST_PPL, find
from softmax_bottleneck.report.figures import plots
from softmax_bottleneck.report.figures.plots import DASHES, LIGHT, Drawing, Style
from softmax_bottleneck.report.options import NoOptions, Sweeps, Windows
from softmax_bottleneck.report.pairs import MEASURED, PUBLISHED, correlation_words, grid, pairs
from softmax_bottleneck.report.registry import figure
from softmax_bottleneck.report.source import Source

CROSS = {"marker": "x", "markersize": 8, "mec": "auto", "mew": 2, "alpha": 0.75}


def _scatter(axes: Axes, points: pd.DataFrame, looks: dict[str, Style], title: str) -> None:
    """A dot per run and a cross per published pair, or words where there are none."""
    if points.empty:
        plots.empty(axes, f"{title}: nothing to show")
        return
    for origin, more in ((MEASURED, {}), (PUBLISHED, CROSS)):
        own = points[points["origin"] == origin]
        plots.dots(axes, own, TEST_PPL, PRESS_RANK, looks, **more)
    axes.set(title=title, xlabel="test perplexity", ylabel="Press rank")
    axes.margins(0.12)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(plots.integer))


def _drawing(source: Source, canvas: Any, data: pd.DataFrame, correlations: list[str]) -> Drawing:
    count = plots.count_note(source, data[data["origin"] == MEASURED])
    note = f"Pearson's r of perplexity and rank. {'; '.join(correlations)}. {count} {source.unlearned_note}".rstrip()
    return Drawing(canvas, data, f"Scatter plots of Press rank against test perplexity. {note}", note)


# --- over runs ------------------------------------------------------------------------------------------------------
@figure("rank-perplexity")
def rank_perplexity(source: Source, options: NoOptions) -> Drawing:
    """Press rank against test perplexity, a dot per run, a cross per published mean.

    Published crosses share the axes only where the setting is the same; else they have a panel of their own.
    """
    models, notes = list(source.models), []
    shared, looks = all(source.same(dataset, *models) for dataset in source.datasets), plots.styles(models)

    def draw(row: NDArray[Any], dataset: str, points: pd.DataFrame) -> None:
        name, measured = plots.corpus_title(source, dataset), points[points["origin"] == MEASURED]
        _scatter(row[0], points if shared else measured, looks, name if shared else f"{name}: measured")
        if not shared:
            _scatter(row[1], points[points["origin"] == PUBLISHED], looks, "paper, full size")
        notes.append(f"{name}: {correlation_words(measured)}")

    frame = partial(pairs, source, models=models)
    canvas, data = plots.by_corpus(source, (1 if shared else 2, 4.7, 3.7), frame, draw)
    plots.legend(canvas, plots.names_in(source, data), looks, lines=False)
    return _drawing(source, canvas, data, notes)


# --- the grid (Figure 2) --------------------------------------------------------------------------------------------
@figure("grid-scatter")
def grid_scatter(source: Source, options: Windows) -> Drawing:
    """Press rank against test perplexity over the grid of c and k, and the published dots with the paper's window."""
    notes = []

    def draw(row: NDArray[Any], dataset: str, points: pd.DataFrame) -> None:
        name, same = plots.corpus_title(source, dataset), source.is_published(dataset)
        ours, theirs = (points[points["origin"] == origin] for origin in (MEASURED, PUBLISHED))
        _grid_panel(row[0], ours, f"{name}: measured")
        _grid_panel(row[1], theirs, "published dots" if same else "published dots, full size")
        row[1].axvspan(*options.windows.get(source.corpus(dataset), (math.nan, math.nan)), color=LIGHT.grid, zorder=0)
        notes.append(f"{name}: {correlation_words(ours)}; published dots: {correlation_words(theirs)}")

    canvas, data = plots.by_corpus(source, (2, 4.7, 3.8), partial(grid, source), draw)
    return _drawing(source, canvas, data, notes)


def _grid_panel(axes: Axes, points: pd.DataFrame, title: str) -> None:
    """Dots with their least-squares line, as the paper draws it; coloured by k where it is known."""
    slopes = sorted(set(points["k"].dropna()))
    colours = dict(zip(slopes, sns.color_palette("flare", len(slopes)).as_hex(), strict=True)) or {"": LIGHT.muted}
    looks = {f"k = {k:g}" if k else "": Style(colour, "o", "-") for k, colour in colours.items()}
    named = points.assign(model=[f"k = {k:g}" if k == k else "" for k in points["k"]], origin=MEASURED)
    _scatter(axes, named, looks, title)
    if slopes:
        axes.legend([*looks], fontsize=8, handletextpad=0.1, labelspacing=0.2)
    if len(points) > 2:
        slope, offset = np.polyfit(points[TEST_PPL], points[PRESS_RANK], 1)
        ends = np.array([points[TEST_PPL].min(), points[TEST_PPL].max()])
        axes.plot(ends, slope * ends + offset, color=LIGHT.ink, linewidth=1, linestyle=DASHES[1])


# --- sweeps (Figures 5 and 6) ---------------------------------------------------------------------------------------
SWEEP_COLUMNS = ["dataset", "setting", "value", "model", "origin", "seed", TEST_PPL, PRESS_RANK]


@figure("sweep")
def sweep(source: Source, options: Sweeps) -> Drawing:
    """Test perplexity and Press rank against a setting of the head, measured and published."""
    keys = [(dataset, setting) for dataset in source.datasets for setting in options.sweeps]
    frames = {key: frame for key in keys if len(frame := _sweep_points(source, *key))}
    if not frames:
        return plots.words_alone("No run of these sweeps is in this study.", pd.DataFrame(columns=SWEEP_COLUMNS))

    def draw(panel: Axes, key: tuple[str, str], metric: str) -> None:
        dataset, setting = key
        same = source.same(dataset, *set(frames[key]["model"]))
        _sweep_panel(panel, frames[key], metric, own_axis=not same)
        title = plots.corpus_title(source, dataset)
        panel.set(title=title, xlabel=options.sweeps[setting], ylabel=find(metric).label.lower())
        panel.xaxis.set_major_locator(MaxNLocator(6, integer=setting == "components"))

    canvas = plots.crossed(list(frames), (TEST_PPL, PRESS_RANK), 4.7, 3.0, draw)
    data = pd.concat(frames.values(), ignore_index=True)
    ours = data[data["origin"] == MEASURED]
    words = [
        f"{r.setting} {r.value:g}: perplexity {r.test_ppl:.2f}, rank {r.rank_press:.0f}" for r in ours.itertuples()
    ]
    note = "Dashed: published; where the setting is not the same, on an axis of its own at the right."
    alt = f"Lines of perplexity and rank against a setting. {'; '.join(words)}."
    return Drawing(canvas, data, alt, f"{note} {plots.count_note(source, ours)}")


def _sweep_points(source: Source, dataset: str, setting: str) -> pd.DataFrame:
    """Runs of the grids over a setting of the head, and the published pairs that stand beside them."""
    searches = [search for search in source.study.searches.values() if f"head.{setting}" in search.axes]
    models = [model for model in source.models if any(model in search.members for search in searches)]
    points = pairs(source, dataset, models, (setting,), only_learned=False)
    points = points.rename(columns={setting: "value"}).assign(setting=setting)
    return points[SWEEP_COLUMNS].sort_values("value", kind="stable")


def _sweep_panel(axes: Axes, points: pd.DataFrame, metric: str, *, own_axis: bool) -> None:
    ours, theirs = (points[points["origin"] == origin] for origin in (MEASURED, PUBLISHED))
    axes.plot(ours["value"], ours[metric], "o-", color=plots.PALETTE["mos"], markersize=6, mec=LIGHT.paper)
    used: list[Any] = [axes]
    if len(theirs):
        other: Any = axes.twinx() if own_axis else axes
        other.plot(theirs["value"], theirs[metric], "x", linestyle=DASHES[1], color=LIGHT.muted, linewidth=1.2)
        if own_axis:
            other.grid(visible=False)
            other.set_ylabel("paper, full size", color=LIGHT.muted)
            used.append(other)
    for one in used if metric == PRESS_RANK else ():
        one.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        one.yaxis.set_major_formatter(FuncFormatter(plots.integer))
