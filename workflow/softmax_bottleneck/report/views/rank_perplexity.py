"""Rank against perplexity: over runs, over the grid of GSS, and along settings of a head; with their correlation.

Parthiban et al. 2021, Table 2 drawn, Figures 2, 5 and 6.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from softmax_bottleneck.measuring import statistics
from softmax_bottleneck.measuring.statistics import Correlation
from softmax_bottleneck.records.metrics import PEARSON, PRESS_RANK, TEST_PPL, find
from softmax_bottleneck.records.records import groups
from softmax_bottleneck.report import numbers, plots
from softmax_bottleneck.report.cells import Cell, Gap, GapCode, MeasuredCell, Section
from softmax_bottleneck.report.plots import DASHES, LIGHT, Drawing, Style
from softmax_bottleneck.report.registry import MetricName, by_corpus, view
from softmax_bottleneck.report.source import Source
from softmax_bottleneck.study import schema

MEASURED, PUBLISHED, PRINTED = "measured", "published", "printed"  # origins
Windows = Mapping[str, tuple[schema.Number, schema.Number]]  # of perplexities that the paper singles out, by corpus
STAR = {"marker": "*", "markersize": 12, "mfc": "none", "mec": "auto", "mew": 1.4}  # no model's marker


# --- points and correlations ----------------------------------------------------------------------------------------
def _points(
    source: Source, dataset: str, model: str, metrics: Sequence[str], *, learned: bool = False
) -> Iterator[tuple[object, ...]]:
    """Yield (origin, seed, *values) of every run that has all metrics, then of the published row."""
    by_metric = [source.values(dataset, model, metric, learned=learned) for metric in metrics]
    for seed in source.planned(dataset, model):
        if all(seed in values for values in by_metric):
            yield MEASURED, seed, *(values[seed] for values in by_metric)
    if published := source.published_numbers(dataset, model, *metrics):
        yield PUBLISHED, None, *published


def _frame(rows: Sequence[Sequence[object]], keys: Sequence[str], figures: Sequence[str]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=[*keys, *figures])
    return frame.astype({"seed": "Int64", **dict.fromkeys(figures, "float64")})


KEYS = ("dataset", "model", "origin", "seed")
PAIR = (TEST_PPL, PRESS_RANK)


def pairs(source: Source) -> pd.DataFrame:
    """Return test perplexity and Press rank of every run better than a unigram model, and of every published pair."""
    rows = [
        (dataset, model, *point)
        for dataset in source.corpora
        for model in source.rows
        for point in _points(source, dataset, model, PAIR, learned=True)
    ]
    return _frame(rows, KEYS, PAIR)


def grid(source: Source, dataset: str) -> pd.DataFrame:
    """Return runs of the grid over c and k of GSS, then the published dots, whose settings are unknown (Figure 2)."""
    rows: list[tuple[object, ...]] = []
    for model in source.models:
        for run in source.runs(dataset, model)[:1]:
            c_k = [float(run.head.options[name]) for name in ("c", "k")]
            points = _points(source, dataset, model, PAIR, learned=True)
            rows += [(dataset, model, origin, seed, *c_k, *values) for origin, seed, *values in points]
    dots = source.published[source.published["dataset"] == source.corpus(dataset)]
    for _, pair in dots[dots["condition"].str.startswith("point=")].groupby("condition", sort=False):
        values = dict(zip(pair["metric"], pair["value"].astype(float), strict=True))
        rows.append((dataset, "gss", PUBLISHED, None, None, None, values[TEST_PPL], values[PRESS_RANK]))
    return _frame(rows, KEYS, ("c", "k", *PAIR))


def correlate(points: pd.DataFrame) -> Correlation:
    """Return Pearson's r of test perplexity and rank with a bootstrap interval; below zero: higher rank is better.

    None for fewer than MIN_POINTS, with the reason.
    """
    result = statistics.pearson(points[TEST_PPL], points[PRESS_RANK], np.random.default_rng(0))
    runs = f"{len(points)} run{'s' * (len(points) != 1)}"
    few = f"no correlation from {runs}, at least {numbers.MIN_POINTS} are needed"
    return result if len(points) >= numbers.MIN_POINTS else replace(result, r=None, low=None, high=None, reason=few)


def correlation_text(points: pd.DataFrame) -> str:
    """Return `r = −0.48 (95 % interval −0.62 to −0.31, n = 70)`, or why there is no correlation."""
    result = correlate(points)
    if result.r is None:
        return result.reason
    interval = numbers.interval(result.low, result.high)
    within = f"95 % interval {interval}, " if interval else ""
    return f"r = {numbers.signed(result.r)} ({within}n = {result.n})"


def correlations_by_kind(source: Source, dataset: str, points: pd.DataFrame) -> str:
    """Return `correlation_text` of runs with the same network and schedule: `awd-lstm, ET-ASGD, 8 epochs: r = ...`."""
    kinds = {
        (run.model, run.seed): f"{run.body.kind}, {run.schedule.optimizer.upper()}, {run.schedule.epochs} epochs"
        for run in source.runs_on(dataset)
    }
    named = points.assign(kind=[kinds[key] for key in zip(points["model"], points["seed"], strict=True)])
    return "; ".join(f"{kind}: {correlation_text(own)}" for (kind,), own in groups(named, "kind")) or "no runs"


@view("table", "correlation", row="Runs", origin="this study")
@by_corpus
def correlation(source: Source, dataset: str, *, windows: Windows) -> Section:
    """Return r over the whole grid and over the paper's window of perplexities: measured, published dots, printed."""
    corpus, points = source.corpus(dataset), grid(source, dataset)
    ours, theirs = (points[points["origin"] == origin] for origin in (MEASURED, PUBLISHED))
    text = source.published[(source.published["metric"] == PEARSON) & (source.published["dataset"] == corpus)]
    printed = dict(zip(("all", "window"), text["value"], strict=True))
    planned = sum(len(source.planned(dataset, model)) for model in source.models)
    missing = [Gap(GapCode.GRID_RUNS, (planned - len(ours), planned))] if len(ours) < planned else []
    missing += [Gap(GapCode.UNLEARNED, (source.unlearned_note,))] if source.unlearned_note else []
    low, high = windows[corpus]
    rows = {"all": "The whole grid", "window": f"Test perplexity {low} to {high}"}
    shown = {("all", MEASURED): ours, ("all", PUBLISHED): theirs}
    shown["window", PUBLISHED] = theirs[theirs[TEST_PPL].between(low, high)]
    if source.is_published(dataset):
        shown["window", MEASURED] = ours[ours[TEST_PPL].between(low, high)]
    else:  # the window means nothing on another corpus
        rows = {"all": rows["all"], "better half": "The better half of this grid", "window": rows["window"]}
        shown["better half", MEASURED] = ours[ours[TEST_PPL] <= ours[TEST_PPL].median()]

    def cell(row: str, origin: str) -> Cell:
        if origin == PRINTED and row in printed:
            return Cell(label=printed[row])
        if (row, origin) not in shown:
            return Cell(wanted=False)
        result, gaps = correlate(shown[row, origin]), tuple(missing) if (row, origin) == ("all", MEASURED) else ()
        if result.r is None:
            return Cell(metric=PEARSON, gaps=(Gap(GapCode.NOT_COMPUTABLE, (result.reason,)), *gaps))
        note = ", ".join(filter(None, [numbers.interval(result.low, result.high), numbers.counts([result.n])]))
        return Cell(measured=MeasuredCell(result.r), metric=PEARSON, note=note, gaps=gaps)

    columns = ("r over this study's runs", "r over the published dots", "printed (magnitude)")
    return source.section(dataset, rows, dict(zip((MEASURED, PUBLISHED, PRINTED), columns, strict=True)), cell)


# --- scatter plots --------------------------------------------------------------------------------------------------
def _scatter(axes: Axes, points: pd.DataFrame, looks: dict[str, Style], title: str) -> None:
    """Draw a dot per run and a hollow star per published pair, or a text where there are none."""
    if points.empty:
        plots.empty(axes, f"{title}: nothing to show")
        return
    for origin, more in ((MEASURED, {}), (PUBLISHED, STAR)):
        plots.dots(axes, points[points["origin"] == origin], TEST_PPL, PRESS_RANK, looks, **more)
    axes.set(title=title, xlabel="test perplexity", ylabel="Press rank")
    axes.margins(0.12)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.yaxis.set_major_formatter(plots.integer)


def _drawing(source: Source, canvas: Any, data: pd.DataFrame, correlations: list[str]) -> Drawing:
    count = plots.count_note(source, data[data["origin"] == MEASURED])
    note = f"Pearson's r of perplexity and rank. {'; '.join(correlations)}. {count} {source.unlearned_note}".rstrip()
    return Drawing(canvas, data, f"Scatter plots of Press rank against test perplexity. {note}", note)


@view("figure", "rank-perplexity")
def rank_perplexity(source: Source) -> Drawing:
    """Draw Press rank against test perplexity, a dot per run, a hollow star per published mean.

    Published stars share the axes only where the setting is the same; else they have a panel of their own.
    """
    data, looks, correlations = pairs(source), plots.styles(list(source.rows)), list[str]()
    apart = not all(source.same(dataset, *source.models) for dataset in source.datasets)
    apart = bool(apart and (data["origin"] == PUBLISHED).any())

    def draw(row: NDArray[Any], dataset: str, points: pd.DataFrame) -> None:
        name, measured = plots.corpus_title(source, dataset), points[points["origin"] == MEASURED]
        _scatter(row[0], measured if apart else points, looks, f"{name}: measured" if apart else name)
        if apart:
            _scatter(row[1], points[points["origin"] == PUBLISHED], looks, plots.paper_title(source, dataset, False))
        correlations.append(f"{name}: {correlations_by_kind(source, dataset, measured)}")

    canvas = plots.by_corpus(source, data, (1 + apart, 4.7, 3.7), draw)
    plots.legend(canvas, plots.names_in(source, data), looks, lines=False)
    return _drawing(source, canvas, data, correlations)


@view("figure", "grid-scatter")
def grid_scatter(source: Source, *, windows: Windows) -> Drawing:
    """Draw Press rank against test perplexity over the grid of c and k, and the published dots with the window."""
    data = pd.concat([grid(source, dataset) for dataset in source.corpora], ignore_index=True)
    has_published, correlations = bool((data["origin"] == PUBLISHED).any()), list[str]()

    def draw(row: NDArray[Any], dataset: str, points: pd.DataFrame) -> None:
        name, same = plots.corpus_title(source, dataset), source.is_published(dataset)
        ours, theirs = (points[points["origin"] == origin] for origin in (MEASURED, PUBLISHED))
        _grid_panel(row[0], ours, f"{name}: measured")
        correlations.append(f"{name}: {correlation_text(ours)}")
        if has_published:
            _grid_panel(row[1], theirs, plots.paper_title(source, dataset, same))
            window = windows.get(source.corpus(dataset), (math.nan, math.nan))
            row[1].axvspan(*window, color=LIGHT.grid, zorder=0)
            correlations.append(f"{source.published_title(dataset)}, published dots: {correlation_text(theirs)}")

    canvas = plots.by_corpus(source, data, (1 + has_published, 4.7, 3.8), draw)
    return _drawing(source, canvas, data, correlations)


def _grid_panel(axes: Axes, points: pd.DataFrame, title: str) -> None:
    """Draw dots with their least-squares line, as in the paper; coloured by k where it is known."""
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


# --- settings of a head (Figures 5 and 6) ---------------------------------------------------------------------------
SWEEP_KEYS = ("dataset", "setting", "value", "model", "origin", "seed")
LOOKS: tuple[dict[str, Any], ...] = (
    {"color": plots.PALETTE["mos"], "marker": "o"},
    {"color": plots.PALETTE["gss"], "marker": "s"},
)  # of the metrics in a panel
APART = 0.12  # of the axis at least lies between two numbers above it


@view("figure", "sweep")
def sweep(
    source: Source,
    *,
    sweeps: Mapping[str, str],
    panels: tuple[tuple[MetricName, ...], ...] = ((TEST_PPL,), (PRESS_RANK,)),
    above: tuple[MetricName, ...] = (),
) -> Drawing:
    """Draw the metrics of every panel against settings of the head, with their labels, measured and published.

    A metric of `above` stands on the upper axis.
    """
    wanted = list(dict.fromkeys([*(metric for panel in panels for metric in panel), *above]))
    rows = [
        (dataset, setting, value, model, *point)
        for dataset in source.corpora
        for setting in sweeps
        for value, model in _sweep_models(source, setting)
        for point in _points(source, dataset, model, wanted)
    ]
    data = _frame(rows, SWEEP_KEYS, wanted)
    if data.empty:
        return plots.only_text("No run of these sweeps is in this study.", data)

    def draw(panel: Axes, row: tuple[str, pd.DataFrame, str], metrics: Sequence[str]) -> None:
        setting, points, title = row
        _sweep_panel(panel, points, metrics)
        names = " and ".join(find(metric).words for metric in metrics)
        panel.set(title=title, xlabel=sweeps[setting], ylabel=names)
        panel.xaxis.set_major_locator(MaxNLocator(6, integer=setting == "components"))
        for metric in above:
            _upper_axis(panel, points, metric)

    rows_of_panels = []
    for (dataset, setting), points in groups(data, "dataset", "setting"):
        is_ours, same = points["origin"] == MEASURED, source.same(dataset, *(set(points["model"]) & set(source.models)))
        ours, theirs = plots.corpus_title(source, dataset), plots.paper_title(source, dataset, False)
        if same or is_ours.all() or not is_ours.any():
            rows_of_panels.append((setting, points, ours if is_ours.any() else theirs))
        else:
            rows_of_panels += [(setting, points[is_ours], f"{ours}: measured"), (setting, points[~is_ours], theirs)]
    canvas = plots.crossed(rows_of_panels, panels, 4.7, 3.2 if above else 3.0, draw)
    measured = data[data["origin"] == MEASURED]
    texts = [
        f"{row['setting']} {row['value']:g}: {', '.join(f'{find(m).words} {row[m]:.5g}' for m in wanted)}"
        for row in measured.to_dict("records")
    ]
    note = "Dashed: published; where the setting is not the same, in a panel of its own."
    alt = f"Lines of numbers against a setting. {'; '.join(texts)}."
    return Drawing(canvas, data, alt, f"{note} {plots.count_note(source, measured)}")


def _sweep_models(source: Source, setting: str) -> list[tuple[float, str]]:
    """Return (value, model) of every member of a grid over a setting, the smallest value first.

    The value is that of the member's runs, or what its name ends with where this study has none.
    """
    searches = [search for search in source.study.searches.values() if f"head.{setting}" in search.axes]
    members = {model for search in searches for model in search.members}
    heads = {run.model: run.head for run in reversed(source.study.runs) if run.model in members}
    members_by_value = []
    for model in source.rows:
        named = re.fullmatch(rf".*{setting}([0-9.]+)", model) if model in source.experiment.absent else None
        if model in heads:
            members_by_value.append((float(heads[model].options[setting]), model))
        elif named:
            members_by_value.append((float(named[1]), model))
    return sorted(members_by_value, key=lambda pair: pair[0])


def _sweep_panel(axes: Axes, points: pd.DataFrame, metrics: Sequence[str]) -> None:
    """Draw a line per metric through the means over seeds, a dot per run; published ones dashed with crosses."""
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
        axes.yaxis.set_major_formatter(plots.integer)


def _upper_axis(axes: Axes, points: pd.DataFrame, metric: str) -> None:
    """Write another number of the same models on the upper axis, at values of the setting that lie apart."""
    shown = points.drop_duplicates("value").dropna(subset=[metric])
    least = APART * (shown["value"].max() - shown["value"].min())
    ticks: list[int] = []
    for place, value in enumerate(shown["value"]):
        if not ticks or value - shown["value"].iloc[ticks[-1]] >= least:
            ticks.append(place)
    upper = axes.secondary_xaxis("top")
    upper.set_xticks(shown["value"].iloc[ticks], [f"{x:.3g}" for x in shown[metric].iloc[ticks]], fontsize=8)
    upper.set_xlabel(find(metric).words, fontsize=9)
