"""Figures of rank against perplexity: over runs, over the grid of GSS, and along sweeps.

Parthiban et al. 2021, Table 2 drawn, Figures 2, 5 and 6.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from softmax_bottleneck.records.metrics import PRESS_RANK, TEST_PPL, find
from softmax_bottleneck.report.figures import plots
from softmax_bottleneck.report.figures.plots import DASHES, LIGHT, Drawing, Style
from softmax_bottleneck.report.options import NoOptions, Sweeps, Windows
from softmax_bottleneck.report.pairs import MEASURED, PUBLISHED, correlation_words, correlations_by_kind, grid, pairs
from softmax_bottleneck.report.registry import figure
from softmax_bottleneck.report.source import Source

STAR = {"marker": "*", "markersize": 12, "mfc": "none", "mec": "auto", "mew": 1.4}  # no model's marker


def _scatter(axes: Axes, points: pd.DataFrame, looks: dict[str, Style], title: str) -> None:
    """A dot per run and a hollow star per published pair, or words where there are none."""
    if points.empty:
        plots.empty(axes, f"{title}: nothing to show")
        return
    for origin, more in ((MEASURED, {}), (PUBLISHED, STAR)):
        own = points[points["origin"] == origin]
        plots.dots(axes, own, TEST_PPL, PRESS_RANK, looks, **more)
    axes.set(title=title, xlabel="test perplexity", ylabel="Press rank")
    axes.margins(0.12)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(plots.integer))


def _drawing(source: Source, canvas: Any, data: pd.DataFrame, correlations: list[str]) -> Drawing:
    count = plots.count_note(source, data[data["origin"] == MEASURED])
    note = f"Pearson's r of perplexity and rank. {'; '.join(correlations)}. {count} {source.unlearned_note}".rstrip()
    return Drawing(canvas, data, f"Scatter plots of Press rank against test perplexity. {note}", note)


# --- over runs ------------------------------------------------------------------------------------------------------
@figure("rank-perplexity")
def rank_perplexity(source: Source, options: NoOptions) -> Drawing:
    """Press rank against test perplexity, a dot per run, a hollow star per published mean.

    Published stars share the axes only where the setting is the same; else they have a panel of their own.
    """
    models, notes = list(source.rows), []
    frames = {dataset: pairs(source, dataset, models) for dataset in source.corpora}
    apart = not all(source.same(dataset, *source.models) for dataset in source.datasets) and _has_published(frames)
    looks = plots.styles(models)

    def draw(row: NDArray[Any], dataset: str, points: pd.DataFrame) -> None:
        name, measured = plots.corpus_title(source, dataset), points[points["origin"] == MEASURED]
        _scatter(row[0], measured if apart else points, looks, f"{name}: measured" if apart else name)
        if apart:
            _scatter(row[1], points[points["origin"] == PUBLISHED], looks, plots.paper_title(source, dataset, False))
        notes.append(f"{name}: {correlations_by_kind(source, dataset, measured)}")

    canvas, data = plots.by_corpus(source, (1 + apart, 4.7, 3.7), frames.__getitem__, draw)
    plots.legend(canvas, plots.names_in(source, data), looks, lines=False)
    return _drawing(source, canvas, data, notes)


def _has_published(frames: dict[str, pd.DataFrame]) -> bool:
    return any((frame["origin"] == PUBLISHED).any() for frame in frames.values())


# --- the grid (Figure 2) --------------------------------------------------------------------------------------------
@figure("grid-scatter")
def grid_scatter(source: Source, options: Windows) -> Drawing:
    """Press rank against test perplexity over the grid of c and k, and the published dots with the paper's window."""
    notes = []
    frames = {dataset: grid(source, dataset) for dataset in source.corpora}
    beside = _has_published(frames)

    def draw(row: NDArray[Any], dataset: str, points: pd.DataFrame) -> None:
        name, same = plots.corpus_title(source, dataset), source.is_published(dataset)
        ours, theirs = (points[points["origin"] == origin] for origin in (MEASURED, PUBLISHED))
        _grid_panel(row[0], ours, f"{name}: measured")
        notes.append(f"{name}: {correlation_words(ours)}")
        if not beside:
            return
        _grid_panel(row[1], theirs, plots.paper_title(source, dataset, same))
        row[1].axvspan(*options.windows.get(source.corpus(dataset), (math.nan, math.nan)), color=LIGHT.grid, zorder=0)
        notes.append(f"{source.published_title(dataset)}, published dots: {correlation_words(theirs)}")

    canvas, data = plots.by_corpus(source, (1 + beside, 4.7, 3.8), frames.__getitem__, draw)
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
KEYS = ["dataset", "setting", "value", "model", "origin", "seed"]
LOOKS: tuple[dict[str, Any], ...] = (
    {"color": plots.PALETTE["mos"], "marker": "o"},
    {"color": plots.PALETTE["gss"], "marker": "s"},
)  # of a panel
APART = 0.12  # of the axis at least lies between two numbers above it
SweepRow = tuple[tuple[str, str], pd.DataFrame, str]  # (corpus, setting), points, title


@figure("sweep")
def sweep(source: Source, options: Sweeps) -> Drawing:
    """Numbers against a setting of the head, measured and published, and the size of the models above."""
    wanted = list(dict.fromkeys([*(metric for panel in options.panels for metric in panel), *options.above]))
    keys = [(dataset, setting) for dataset in source.corpora for setting in options.sweeps]
    frames = {key: frame for key in keys if len(frame := _sweep_points(source, *key, wanted))}
    if not frames:
        empty = pd.DataFrame(columns=[*KEYS, *wanted])
        return plots.words_alone("No run of these sweeps is in this study.", empty)

    def draw(panel: Axes, row: SweepRow, metrics: Sequence[str]) -> None:
        (_, setting), points, title = row
        _sweep_panel(panel, points, metrics)
        names = " and ".join(find(metric).words for metric in metrics)
        panel.set(title=title, xlabel=options.sweeps[setting], ylabel=names)
        panel.xaxis.set_major_locator(MaxNLocator(6, integer=setting == "components"))
        for metric in options.above:
            _above(panel, points, metric)

    rows = [part for key, frame in frames.items() for part in _sweep_rows(source, key, frame)]
    canvas = plots.crossed(rows, options.panels, 4.7, 3.2 if options.above else 3.0, draw)
    data = pd.concat(frames.values(), ignore_index=True)
    ours = data[data["origin"] == MEASURED]
    words = [
        f"{row['setting']} {row['value']:g}: {', '.join(f'{find(m).words} {row[m]:.5g}' for m in wanted)}"
        for row in ours.to_dict("records")
    ]
    note = "Dashed: published; where the setting is not the same, in a panel of its own."
    alt = f"Lines of numbers against a setting. {'; '.join(words)}."
    return Drawing(canvas, data, alt, f"{note} {plots.count_note(source, ours)}")


def _sweep_points(source: Source, dataset: str, setting: str, wanted: Sequence[str]) -> pd.DataFrame:
    """A line per run of the grids over a setting of the head, then per published row, also of runs not in the study."""
    rows: list[tuple[object, ...]] = []
    for model in source.rows:
        value = _setting_of(source, model, setting)
        if value is None:
            continue
        by_metric = [source.values(dataset, model, metric) for metric in wanted]
        where = (dataset, setting, value, model)
        seeds = [seed for seed in source.planned(dataset, model) if all(seed in values for values in by_metric)]
        rows += [(*where, MEASURED, seed, *(values[seed] for values in by_metric)) for seed in seeds]
        if printed := source.published_pair(dataset, model, *wanted):
            rows.append((*where, PUBLISHED, None, *printed))
    frame = pd.DataFrame(rows, columns=[*KEYS, *wanted]).astype({"seed": "Int64"} | dict.fromkeys(wanted, float))
    return frame.sort_values("value", kind="stable")


def _setting_of(source: Source, model: str, setting: str) -> float | None:
    """The value of a grid's member: its runs', or what its name ends with where this study has none."""
    searches = [one for one in source.study.searches.values() if f"head.{setting}" in one.axes]
    is_member = any(model in one.members for one in searches)
    runs = [run for run in source.study.runs if run.model == model] if is_member else []
    named = re.fullmatch(rf".*{setting}([0-9.]+)", model) if model in source.experiment.absent else None
    return float(runs[0].head.options[setting]) if runs else float(named[1]) if named else None


def _sweep_rows(source: Source, key: tuple[str, str], points: pd.DataFrame) -> list[SweepRow]:
    """What is drawn into panels of its own, with its title: numbers of one setting share a panel."""
    is_ours, dataset = points["origin"] == MEASURED, key[0]
    ours, theirs = plots.corpus_title(source, dataset), plots.paper_title(source, dataset, False)
    if is_ours.all() or not is_ours.any() or source.same(dataset, *(set(points["model"]) & set(source.models))):
        return [(key, points, ours if is_ours.any() else theirs)]
    return [(key, points[is_ours], f"{ours}: measured"), (key, points[~is_ours], theirs)]


def _sweep_panel(axes: Axes, points: pd.DataFrame, metrics: Sequence[str]) -> None:
    """A line per metric through the means over seeds, a dot per run; published ones dashed with crosses."""
    ours, theirs = (points[points["origin"] == origin] for origin in (MEASURED, PUBLISHED))
    for metric, look in zip(metrics, LOOKS, strict=False):
        mean = ours.groupby("value")[metric].mean()
        axes.plot(mean.index, mean, color=look["color"])
        axes.plot(ours["value"], ours[metric], linestyle="", markersize=6, mec=LIGHT.paper, **look)
        colour = LIGHT.muted if len(metrics) == 1 else look["color"]
        axes.plot(theirs["value"], theirs[metric], "x", linestyle=DASHES[1], linewidth=1.2, color=colour)
    if len(metrics) > 1:
        handles = [Line2D([], [], **look) for look in LOOKS[: len(metrics)]]
        axes.legend(handles, [find(metric).words for metric in metrics], fontsize=8)
    if PRESS_RANK in metrics:
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(plots.integer))


def _above(axes: Axes, points: pd.DataFrame, metric: str) -> None:
    """On the upper axis, in place of values of the setting that lie apart, another number of the same models."""
    shown = points.drop_duplicates("value").dropna(subset=[metric])
    least = APART * (shown["value"].max() - shown["value"].min())
    ticks: list[int] = []
    for place, value in enumerate(shown["value"]):
        if not ticks or value - shown["value"].iloc[ticks[-1]] >= least:
            ticks.append(place)
    upper = axes.secondary_xaxis("top")
    upper.set_xticks(shown["value"].iloc[ticks], [f"{x:.3g}" for x in shown[metric].iloc[ticks]], fontsize=8)
    upper.set_xlabel(find(metric).words, fontsize=9)
