"""Tables and figures of the ranks and singular values of trained models (`synthetic_ranks` has those of others).

They correspond to Figures 2 and 5 to 7 and SM Figures 2 to 5 of Parthiban et al. 2021, and to results of Godey et al.
2024 and 2026. A value has one of three origins: `measured` in this study; `published`, as a number in the paper's table
or a dot in its figure; or `printed`, a correlation that the paper states.

GSS is the head of Parthiban et al. 2021 with a pointwise function of the logit. Its options are c and k: for logits
far below c the slope of the function is k, and far above c it is 1. The paper trains GSS on a grid of values of c and k
(Figure 2).
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from softmax_bottleneck.records import metrics, records
from softmax_bottleneck.records.metrics import PEARSON, PRESS_RANK, RANK_TOLERANCE, SIGMA_MAX, TEST_PPL, VALID_PPL
from softmax_bottleneck.report import figures, numbers, plots
from softmax_bottleneck.report.cells import Cell, MeasuredCell, Section
from softmax_bottleneck.report.source import MetricName, Source
from softmax_bottleneck.statistics.correlations import pearson
from softmax_bottleneck.statistics.intervals import MIN_POINTS
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import schema

MEASURED, PUBLISHED, PRINTED = "measured", "published", "printed"  # origins
Windows = Mapping[str, tuple[schema.Number, schema.Number]]  # corpus -> range of perplexities in the paper


# --- points and correlations ----------------------------------------------------------------------------------------
PAIR = (TEST_PPL, PRESS_RANK)
FEW_DOTS = 12  # a sentence replaces a figure of fewer


def _points(
    source: Source, dataset: str, model: str, names: Sequence[str], *, learned: bool = False
) -> Iterator[dict[str, object]]:
    """Yield the points of a model: one per run, then one for the published numbers of the model, if there are any.

    A point is a dict with the keys dataset, model, origin (MEASURED or PUBLISHED), seed (only if measured) and the
    metrics `names`. A run or published model that lacks one of these metrics has no point. With `learned`, a run that
    is hardly better than a unigram model (`Records.unlearned`) has no point.
    """
    common: dict[str, object] = {"dataset": dataset, "model": model}
    by_metric = {metric: source.values(dataset, model, metric, learned=learned) for metric in names}
    for seed in source.planned(dataset, model):
        if all(seed in values for values in by_metric.values()):
            values = {metric: values[seed] for metric, values in by_metric.items()}
            yield common | {"origin": MEASURED, "seed": seed} | values
    printed = {metric: source.find_published(source.corpus(dataset), model, metric) for metric in names}
    published = {metric: cell.number for metric, cell in printed.items() if cell}
    if len(published) == len(names) and None not in published.values():
        yield common | {"origin": PUBLISHED} | published


def _frame(rows: Sequence[Any], keys: Sequence[str], values: Sequence[str]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=[*keys, *values])
    return frame.astype({"seed": "Int64", **dict.fromkeys(values, "float64")})


def grid(source: Source, dataset: str) -> pd.DataFrame:
    """Return a frame with a row per run of the grid over c and k of GSS, then a row per dot of the paper's Figure 2.

    The columns are dataset, model, origin (MEASURED or PUBLISHED), seed, c, k, TEST_PPL (test perplexity) and
    PRESS_RANK. The seed, c and k of a dot are missing values, because the paper does not print them. Runs that are
    hardly better than a unigram model (`Records.unlearned`) are left out.

    Raises:
        UserError: a head has no options c and k.
    """
    rows: list[dict[str, object]] = []
    for model, head in {run.model: run.head for run in source.runs(dataset)}.items():
        if not {"c", "k"} <= head.options.keys():
            problem = f"the head {head.name} of {model!r} has no options c and k"
            raise UserError(f"models: {problem}. Name a grid over c and k of the head gss")
        setting = {name: float(head.options[name]) for name in ("c", "k")}
        rows += [point | setting for point in _points(source, dataset, model, PAIR, learned=True)]
    dots = source.published[source.published["dataset"] == source.corpus(dataset)]
    for _, pair in dots[dots["condition"].str.startswith("point=")].groupby("condition", sort=False):
        common: dict[str, object] = {"dataset": dataset, "model": "gss", "origin": PUBLISHED}
        rows.append(common | dict(zip(pair["metric"], pair["value"].astype(float), strict=True)))
    return _frame(rows, ("dataset", "model", "origin", "seed"), ("c", "k", *PAIR))


def correlation_table(source: Source, dataset: str, *, windows: Windows) -> Section:
    """Return a section with Pearson's r of test perplexity and Press rank over the grid of c and k of GSS.

    A negative r means that models with a higher rank are better. The first row is for the whole grid. The second row
    is for the points in the range of `windows`, if the corpus has one. It has no measured r if the dataset is only a
    proxy of the published corpus. The columns are r over this study's runs, r over the published dots (both with a
    bootstrap interval), and r as the paper prints it. If fewer than MIN_POINTS points exist, the cell says so instead
    of showing r.

    Args:
        source: the experiment with its records.
        dataset: the corpus.
        windows: {published corpus: range of test perplexities that the paper singles out}, such as
            `{"ptb": (56.6, 57.6)}`.
    """
    corpus, points = source.corpus(dataset), grid(source, dataset)
    text = source.published[(source.published["metric"] == PEARSON) & (source.published["dataset"] == corpus)]
    printed = dict(zip(("all", "window"), text["value"], strict=False))  # empty for a user's own texts
    low, high = windows.get(corpus, (math.nan, math.nan))

    def cell(row: str, origin: str) -> Cell:
        if origin == PRINTED:
            return Cell(label=printed.get(row, ""), wanted=row in printed)
        chosen, gaps = points[points["origin"] == origin], tuple[str, ...]()
        if row == "window":
            chosen = chosen[chosen[TEST_PPL].between(low, high)]
            if origin == MEASURED and not source.is_published(dataset):
                return Cell(wanted=False)  # perplexities of another corpus
        elif origin == MEASURED:
            planned = len(source.runs(dataset))
            lacking = f"{planned - len(chosen)} of {planned} runs of the grid not in it"
            gaps = tuple(filter(None, [lacking if len(chosen) < planned else "", source.unlearned_note]))
        return _correlation_cell(chosen, gaps)

    rows = {"all": "The whole grid"} | ({"window": f"Test perplexity {low} to {high}"} if corpus in windows else {})
    columns = ("r over this study's runs", "r over the published dots", "printed (magnitude)")
    return source.section(dataset, rows, dict(zip((MEASURED, PUBLISHED, PRINTED), columns, strict=True)), cell)


def _correlation_cell(points: pd.DataFrame, gaps: tuple[str, ...]) -> Cell:
    """Return a cell with Pearson's r of the two metrics of PAIR over `points`, or the reason why there is none."""
    if len(points) < MIN_POINTS:
        runs = f"{len(points)} run{'' if len(points) == 1 else 's'}"
        reason = f"no correlation from {runs}, at least {MIN_POINTS} are needed"
        return Cell(metric=PEARSON, reason=reason, gaps=gaps)
    result = pearson(points[TEST_PPL], points[PRESS_RANK], np.random.default_rng(0))
    if result.r is None:
        return Cell(metric=PEARSON, reason=result.reason, gaps=gaps)
    note = ", ".join(filter(None, [numbers.interval(result.low, result.high), numbers.counts([result.n])]))
    return Cell(measured=MeasuredCell(result.r), metric=PEARSON, note=note, gaps=gaps)


# --- scatter plots --------------------------------------------------------------------------------------------------
def grid_scatter_figure(source: Source, *, windows: Windows) -> plots.Drawing:
    """Draw Press rank against test perplexity for the grid of c and k of GSS, measured and published.

    Each corpus has a panel of measured and a panel of published points. `windows` gives, for each published corpus, the
    range (low, high) of test perplexities that the paper singles out. The published panel shades this range. A sentence
    replaces fewer than FEW_DOTS measured points.
    """
    data = pd.concat([grid(source, dataset) for dataset in source.corpora], ignore_index=True)
    has_published = PUBLISHED in set(data["origin"])

    def draw(row: plots.AxesArray, dataset: str, points: pd.DataFrame) -> None:
        ours, theirs = (points[points["origin"] == origin] for origin in (MEASURED, PUBLISHED))
        title = figures.corpus_title(source, dataset)
        if 0 < len(ours) < FEW_DOTS:
            plots.empty(row[0], f"{title}: {_in_a_sentence(ours)}")
        else:
            _grid_panel(row[0], ours, f"{title}: measured")
        if has_published:
            _grid_panel(row[1], theirs, figures.paper_title(source, dataset, source.same(dataset, *source.models)))
            window = windows.get(source.corpus(dataset), (math.nan, math.nan))
            row[1].axvspan(*window, color=plots.LIGHT.grid, zorder=0)

    note = f"{figures.count_note(source, data[data['origin'] == MEASURED])} {source.unlearned_note}".rstrip()
    return figures.by_corpus(source, data, (1 + has_published, 4.7, 3.8), draw, note)


def _in_a_sentence(points: pd.DataFrame) -> str:
    ppl, rank = (numbers.span(list(points[metric]), digits) for metric, digits in zip(PAIR, (2, 0), strict=True))
    return f"{len(points)} runs have test perplexities of {ppl} and Press ranks of {rank}."


def _grid_panel(axes: Axes, points: pd.DataFrame, title: str) -> None:
    """Draw a dot per row of `points` and, for MIN_POINTS or more dots, their least-squares line.

    As in the paper, perplexity falls to the right. `points` has the columns of the frame that the function `grid`
    returns. Dots are coloured by k, or grey if k is missing in all rows (published dots). If `points` is empty, the
    panel has a text instead.
    """
    if points.empty:
        plots.empty(axes, f"{title}: nothing to show")
        return
    slopes = sorted(set(points["k"].dropna()))
    shades = sns.color_palette("flare", len(slopes)).as_hex() if slopes else [plots.LIGHT.muted]
    for k, colour in zip(slopes or [""], shades, strict=True):
        of_slope = points[points["k"] == k] if slopes else points
        look = plots.Style(colour, "o", "-").dot | {"mec": plots.LIGHT.paper, "mew": 0.7}
        axes.plot(of_slope[TEST_PPL], of_slope[PRESS_RANK], label=f"k = {k:g}" if slopes else "", **look)
    axes.set(title=title, xlabel="test perplexity", ylabel="Press rank")
    axes.margins(0.12)
    axes.invert_xaxis()
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.yaxis.set_major_formatter(plots.integer)
    if slopes:
        axes.legend(fontsize=9, handletextpad=0.1, labelspacing=0.2)
    if len(points) >= MIN_POINTS:
        slope, offset = np.polyfit(points[TEST_PPL], points[PRESS_RANK], 1)
        ends = np.array([points[TEST_PPL].min(), points[TEST_PPL].max()])
        axes.plot(ends, slope * ends + offset, color=plots.LIGHT.ink, linewidth=1, linestyle=plots.DASHES[1])


# --- settings of a head (Figures 5 and 6) ---------------------------------------------------------------------------
def sweep_figure(
    source: Source,
    *,
    sweeps: Mapping[str, str],
    panels: schema.NonEmpty[tuple[MetricName, ...]] = ((TEST_PPL,), (PRESS_RANK,)),
    beside: tuple[MetricName, ...] = (),
) -> plots.Drawing:
    """Draw measured and published metrics against options of the head, such as the number of components.

    For each corpus and option, a row of panels shows the models of the study's searches over this option. It also shows
    published models that the study does not train and whose names end in the option and its value, such as
    `mos-nt-components15` for `components`. If the study's models have other settings than the published ones, the
    published numbers have a row of their own. A run or published model is drawn only if it has all metrics of `panels`
    and `beside`.

    Raises:
        UserError: several models of the study have the same value, so that a line would not be a mean over seeds alone.

    Args:
        source: the experiment with its records.
        sweeps: {option of the head, such as `components`: label of the x axis}.
        panels: for each panel of a row, the names of its metrics.
        beside: metrics that are written to the figure's CSV but not drawn.
    """
    wanted = list(dict.fromkeys([*itertools.chain(*panels), *beside]))
    rows = [
        point | {"setting": setting, "value": value}
        for dataset, setting in itertools.product(source.corpora, sweeps)
        for value, model in _swept(source, dataset, setting)
        for point in _points(source, dataset, model, wanted)
    ]
    data = _frame(rows, ("dataset", "setting", "value", "model", "origin", "seed"), wanted)
    if data.empty:
        return plots.only_text("No run of these sweeps is in this study.", data)

    rows_of_panels = []
    for (dataset, setting), points in records.groups(data, "dataset", "setting"):
        is_ours, same = points["origin"] == MEASURED, source.same(dataset, *(set(points["model"]) & set(source.models)))
        ours, theirs = figures.corpus_title(source, dataset), figures.paper_title(source, dataset, False)
        if same or is_ours.all() or not is_ours.any():
            rows_of_panels.append((setting, points, ours if is_ours.any() else theirs))
        else:
            rows_of_panels += [(setting, points[is_ours], f"{ours}: measured"), (setting, points[~is_ours], theirs)]
    canvas = plots.crossed(rows_of_panels, panels, 4.7, 3.0, partial(_sweep_panel, sweeps))
    measured = data[data["origin"] == MEASURED]
    note = "Crosses: published. " if len(measured) < len(data) else ""
    return plots.Drawing(canvas, data, note + figures.count_note(source, measured))


def _swept(source: Source, dataset: str, setting: str) -> list[tuple[float, str]]:
    """Return (value of an option of the head, model) of the models to draw on a corpus, by ascending value.

    The value of a trained model is that of its first run.
    """
    searches = [search for search in source.study.searches.values() if f"head.{setting}" in search.axes]
    members = {model for search in searches for model in search.members}
    values = {run.model: run.head.options[setting] for run in reversed(source.study.runs) if run.model in members}
    for model in source.experiment.absent:  # published models whose names end in the option and its value
        if named := re.fullmatch(rf".*{setting}([0-9.]+)", model):
            values.setdefault(model, named[1])
    swept = sorted((float(values[model]), model) for model in source.rows if model in values)
    trained = [value for value, model in swept if source.planned(dataset, model)]
    if len(set(trained)) < len(trained):
        problem = f"several models have the same {setting} on {dataset}, but a line shows means over seeds"
        raise UserError(f"models: {problem}. Expected one model per value. Fix: name one search over {setting} alone")
    return swept


def _sweep_panel(
    sweeps: Mapping[str, str], axes: Axes, row: tuple[str, pd.DataFrame, str], names: Sequence[str]
) -> None:
    """Draw, for each metric, a line through the means over seeds, a dot per run, and published values as crosses.

    Args:
        sweeps: {option of the head: label of the x axis}.
        axes: the panel.
        row: the option of the head, the points, and the panel's title. The points have the columns `value` (x axis),
            `origin` (MEASURED or PUBLISHED) and the metrics `names`.
        names: the metrics of the panel, each in a spare colour.
    """
    setting, points, title = row
    axes.set(title=title, xlabel=sweeps[setting], ylabel=" and ".join(metrics.find(name).words for name in names))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=setting == "components"))
    ours, theirs = (points[points["origin"] == origin] for origin in (MEASURED, PUBLISHED))
    for metric, colour, marker in zip(names, itertools.cycle(plots.SPARE), itertools.cycle("osD^"), strict=False):
        mean = ours.groupby("value")[metric].mean()
        axes.plot(mean.index, mean, color=colour)
        dot = plots.Style(colour, marker, "").dot | {"mec": plots.LIGHT.paper, "label": metrics.find(metric).words}
        axes.plot(ours["value"], ours[metric], **dot)
        cross = plots.LIGHT.muted if len(names) == 1 else colour
        axes.plot(theirs["value"], theirs[metric], "x", linestyle=plots.DASHES[1], linewidth=1.2, color=cross)
    if len(names) > 1:
        axes.legend(fontsize=9)
    if PRESS_RANK in names:
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_formatter(plots.integer)


# --- singular values ------------------------------------------------------------------------------------------------
SIGMA, RAW = "relative_singular_value", "singular_value"


def spectrum_figure(
    source: Source,
    *,
    panels: tuple[Literal["first", "all", "raw"], ...] = ("first", "all"),
    first: schema.Positive = 500,
    top: schema.Number = 0.2,
) -> plots.Drawing:
    """Draw the singular values of every model, with a row of panels per corpus.

    Args:
        panels: the panels of a row, from left to right. `first` has the leading singular values divided by the largest,
            on a linear axis. `all` has all values divided by the largest, on a log axis. `raw` has all values as they
            are, on a log axis.
        first: number of leading singular values in a `first` panel.
        top: upper end of the y axis of a `first` panel.
    """
    data, looks = _singular_values(source, panels), figures.styles(source.models, source.study)
    names = {model: figures.short_name(source.study, model) for model in source.models}
    stage = records.FINETUNED if "finetune" in source.experiment.stages else ""

    def draw(row: plots.AxesArray, dataset: str, values: pd.DataFrame) -> None:
        title, longest = figures.corpus_title(source, dataset), int(values["index"].max())
        for panel, side in zip(row, panels, strict=True):
            if side == "first":
                shown = min(first, longest)
                plots.curves(panel, values[values["index"] <= shown], "index", SIGMA, looks)
                panel.set(title=title, xlabel=f"index (first {shown})", ylabel="σ / σ max")
                panel.set(xlim=(0, shown), ylim=(0, top))
                continue
            y, text = (RAW, "σ, not divided by the largest") if side == "raw" else (SIGMA, "σ / σ max")
            ends = plots.curves(panel, values[values[y] > 0], "index", y, looks)
            panel.set(title=f"{title}, log axis", xlabel="index (all)", xlim=(0, longest), ylabel=text)
            plots.log_y(panel)
            tolerance = _press_tolerance(source, dataset, stage, relative=side == "all")
            if side == "all":  # far below the tolerance there is only rounding
                panel.set_ylim((tolerance or 1e-5) / 300, 1.5)
            panel.xaxis.set_major_formatter(plots.integer)
            panel.xaxis.set_major_locator(MaxNLocator(5))
            if tolerance is not None:
                plots.level(panel, tolerance, "Press tolerance", end="left")
            plots.label_lines(panel, ends, names, looks)

    return figures.by_corpus(source, data, (len(panels), 5.2 if len(panels) > 1 else 7.0, 3.5), draw)


def _press_tolerance(source: Source, dataset: str, stage: str, *, relative: bool) -> float | None:
    """Return the median Press tolerance of the runs on a corpus, or None if no run has measured ranks.

    If `relative` is true, each tolerance is divided by the largest singular value of its run.
    """
    tolerances = []
    for model in source.models:
        by_seed, largest = (source.values(dataset, model, name, stage) for name in (RANK_TOLERANCE, SIGMA_MAX))
        tolerances += [by_seed[seed] / (largest[seed] if relative else 1) for seed in by_seed if seed in largest]
    return float(np.median(tolerances)) if tolerances else None


def _singular_values(source: Source, panels: tuple[str, ...]) -> pd.DataFrame:
    """Return a frame with a row per recorded singular value of each run.

    The columns are dataset, model, seed, index (from 1), and SIGMA, RAW or both. RAW is the singular value itself; the
    frame has this column if `panels` contains `raw`. SIGMA is the value divided by the run's largest; the frame has
    this column if `panels` contains another name (`first` or `all`). The records hold only a subset of the indices
    (`collect.thinned`). Runs without singular values are left out.
    """
    measured = set(source.records.rows["run_id"])
    scales = dict.fromkeys(RAW if side == "raw" else SIGMA for side in panels)
    columns, frames = ["dataset", "model", "seed", "index", *scales], []
    for dataset in source.corpora:
        for trained in source.runs(dataset):
            run = source.study.last_stage(trained, source.experiment.stages)
            thinned = source.records.spectra.get(run.path) if run.run_id in measured else None
            if thinned is not None and len(thinned[1]) and thinned[1][0] > 0:
                values = {"dataset": dataset, "model": run.model, "seed": run.seed}
                values |= {"index": thinned[0].astype(np.int64), SIGMA: thinned[1] / thinned[1][0], RAW: thinned[1]}
                frames.append(pd.DataFrame(values)[columns])
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)


# --- along training -------------------------------------------------------------------------------------------------
def rank_training_figure(source: Source, *, snapshots: schema.Flag = False) -> plots.Drawing:
    """Draw the Press rank against the epoch and against validation perplexity, for runs with ranks of several epochs.

    The option `snapshots` is read by the step `train` and not used here. If true, that step keeps the weights of some
    epochs, so that their ranks can be measured.
    """
    columns, looks = ("epoch", PRESS_RANK, "rank_eff_1e-3", VALID_PPL), figures.styles(source.models, source.study)
    names = {model: figures.short_name(source.study, model) for model in source.models}
    rows = [
        (dataset, model, run.seed, *map(line.get, columns))
        for dataset in source.corpora
        for model in source.models
        for run in source.runs(dataset, model)
        for line in source.records.detail(run.path, "epoch_ranks") or ()
    ]
    data = _frame(rows, ("dataset", "model", "seed"), columns)

    def draw(row: plots.AxesArray, dataset: str, points: pd.DataFrame) -> None:
        for panel, x, text in zip(row, ("epoch", VALID_PPL), ("epoch", "validation perplexity"), strict=True):
            ends = plots.curves(panel, points, x, PRESS_RANK, looks, dots=x == VALID_PPL)
            panel.set(xlabel=text, ylabel="Press rank")
            if x == "epoch":
                plots.label_lines(panel, ends, names, looks)
            panel.yaxis.set_major_formatter(plots.integer)
        row[0].set_title(figures.corpus_title(source, dataset))
        row[0].xaxis.set_major_locator(MaxNLocator(integer=True))
        row[1].set_title("against validation perplexity")
        row[1].invert_xaxis()

    return figures.by_corpus(source, data, (2, 5.2, 3.4), draw)
