"""Tables and figures of ranks and singular values: trained models, untrained layers, and a random matrix of rank 10.

They correspond to Figures 2 and 5 to 7, SM Figures 2 to 5 and SM Tables 14 to 16 of Parthiban et al. 2021, and to
results of Merity 2017 and Godey et al. 2024 and 2026. A value has one of three origins: `measured` in this study;
`published`, as a number in the paper's table or a dot in its figure; or `printed`, a correlation that the paper states.

GSS is the head of Parthiban et al. 2021 with a pointwise function of the logit. Its options are c and k: for logits
far below c the slope of the function is k, and far above c it is 1. The paper trains GSS on a grid of values of c and k
(Figure 2).
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from pydantic import Field

from softmax_bottleneck.ranks.robustness import PAPER_SIZE
from softmax_bottleneck.records import metrics, records
from softmax_bottleneck.records.metrics import PEARSON, PRESS_RANK, RANK, RANK_TOLERANCE, SIGMA_MAX, TEST_PPL, VALID_PPL
from softmax_bottleneck.report import numbers, plots
from softmax_bottleneck.report.cells import Cell, MeasuredCell, PublishedCell, Section, mean_of, section
from softmax_bottleneck.report.claims.known_distributions import SWEEP, softmaxes_needed, sweep
from softmax_bottleneck.report.claims.verdict import TEXTS
from softmax_bottleneck.report.source import MetricName, Source, label
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
    for model in source.models:
        for run in source.runs(dataset, model)[:1]:
            if not {"c", "k"} <= run.head.options.keys():
                problem = f"the head {run.head.name} of {model!r} has no options c and k"
                raise UserError(f"models: {problem}. Name a grid over c and k of the head gss")
            setting = {name: float(run.head.options[name]) for name in ("c", "k")}
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
        chosen, gaps = points[points["origin"] == origin], list[str]()
        if row == "window":
            chosen = chosen[chosen[TEST_PPL].between(low, high)]
            if origin == MEASURED and not source.is_published(dataset):
                return Cell(wanted=False)  # perplexities of another corpus
        elif origin == MEASURED:
            planned = sum(len(source.planned(dataset, model)) for model in source.models)
            gaps = [f"{planned - len(chosen)} of {planned} runs of the grid not in it"] if len(chosen) < planned else []
            gaps += filter(None, [source.unlearned_note])
        if len(chosen) < MIN_POINTS:
            runs = f"{len(chosen)} run{'' if len(chosen) == 1 else 's'}"
            few = f"no correlation from {runs}, at least {MIN_POINTS} are needed"
            return Cell(metric=PEARSON, reason=few, gaps=tuple(gaps))
        result = pearson(chosen[TEST_PPL], chosen[PRESS_RANK], np.random.default_rng(0))
        if result.r is None:
            return Cell(metric=PEARSON, reason=result.reason, gaps=tuple(gaps))
        note = ", ".join(filter(None, [numbers.interval(result.low, result.high), numbers.counts([result.n])]))
        return Cell(measured=MeasuredCell(result.r), metric=PEARSON, note=note, gaps=tuple(gaps))

    rows = {"all": "The whole grid"} | ({"window": f"Test perplexity {low} to {high}"} if corpus in windows else {})
    columns = ("r over this study's runs", "r over the published dots", "printed (magnitude)")
    return source.section(dataset, rows, dict(zip((MEASURED, PUBLISHED, PRINTED), columns, strict=True)), cell)


# --- scatter plots --------------------------------------------------------------------------------------------------
def grid_scatter_figure(source: Source, *, windows: Windows) -> plots.Drawing:
    """Draw Press rank against test perplexity for the grid of c and k of GSS, measured and published.

    Each corpus has a panel of measured and a panel of published points. `windows` gives, for each published corpus, the
    range (low, high) of test perplexities that the paper singles out. The published panel shades this range. A sentence
    replaces fewer than FEW_DOTS measured points.
    """
    data = pd.concat([grid(source, dataset) for dataset in source.corpora], ignore_index=True)
    has_published = PUBLISHED in set(data["origin"])

    def draw(row: NDArray[Any], dataset: str, points: pd.DataFrame) -> None:
        ours, theirs = (points[points["origin"] == origin] for origin in (MEASURED, PUBLISHED))
        title = plots.corpus_title(source, dataset)
        if 0 < len(ours) < FEW_DOTS:
            plots.empty(row[0], f"{title}: {_in_a_sentence(ours)}")
        else:
            _grid_panel(row[0], ours, f"{title}: measured")
        if has_published:
            _grid_panel(row[1], theirs, plots.paper_title(source, dataset, source.same(dataset, *source.models)))
            window = windows.get(source.corpus(dataset), (math.nan, math.nan))
            row[1].axvspan(*window, color=plots.LIGHT.grid, zorder=0)

    note = f"{plots.count_note(source, data[data['origin'] == MEASURED])} {source.unlearned_note}".rstrip()
    return plots.by_corpus(source, data, (1 + has_published, 4.7, 3.8), draw, note)


def _in_a_sentence(points: pd.DataFrame) -> str:
    ends = [points[metric].agg(["min", "max"]) for metric in PAIR]
    ppl, rank = (numbers.span(list(pair), digits) for pair, digits in zip(ends, (2, 0), strict=True))
    return f"{len(points)} runs have test perplexities of {ppl} and Press ranks of {rank}."


def _grid_panel(axes: Axes, points: pd.DataFrame, title: str) -> None:
    """Draw a dot per row of `points` and, for MIN_POINTS or more dots, their least-squares line.

    As in the paper, perplexity falls to the right.
    `points` has the columns of the frame that the function `grid` returns. Dots are coloured by k, or grey if k is
    missing in all rows (published dots). If `points` is empty, the panel has a text instead.
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
# Of the metrics in a panel.
LOOKS: list[dict[str, Any]] = [{"color": plots.PALETTE[m], "marker": mark} for m, mark in (("mos", "o"), ("gss", "s"))]


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

    Args:
        source: the experiment with its records.
        sweeps: {option of the head, such as `components`: label of the x axis}.
        panels: for each panel of a row, the names of its metrics, at most two.
        beside: metrics that are written to the figure's CSV but not drawn.
    """
    wanted = list(dict.fromkeys([*(metric for panel in panels for metric in panel), *beside]))
    rows: list[dict[str, object]] = []
    for dataset, setting in itertools.product(source.corpora, sweeps):
        searches = [search for search in source.study.searches.values() if f"head.{setting}" in search.axes]
        members = {model for search in searches for model in search.members}
        values = {run.model: run.head.options[setting] for run in reversed(source.study.runs) if run.model in members}
        for model in source.experiment.absent:  # published models whose names end in the option and its value
            if named := re.fullmatch(rf".*{setting}([0-9.]+)", model):
                values.setdefault(model, named[1])
        for value, model in sorted((float(values[model]), model) for model in source.rows if model in values):
            common = {"setting": setting, "value": value}
            rows += [point | common for point in _points(source, dataset, model, wanted)]
    data = _frame(rows, ("dataset", "setting", "value", "model", "origin", "seed"), wanted)
    if data.empty:
        return plots.only_text("No run of these sweeps is in this study.", data)

    rows_of_panels = []
    for (dataset, setting), points in records.groups(data, "dataset", "setting"):
        is_ours, same = points["origin"] == MEASURED, source.same(dataset, *(set(points["model"]) & set(source.models)))
        ours, theirs = plots.corpus_title(source, dataset), plots.paper_title(source, dataset, False)
        if same or is_ours.all() or not is_ours.any():
            rows_of_panels.append((setting, points, ours if is_ours.any() else theirs))
        else:
            rows_of_panels += [(setting, points[is_ours], f"{ours}: measured"), (setting, points[~is_ours], theirs)]
    canvas = plots.crossed(rows_of_panels, panels, 4.7, 3.0, partial(_sweep_panel, sweeps))
    note = "Dashed: published; where the setting is not the same, in a panel of its own."
    return plots.Drawing(canvas, data, f"{note} {plots.count_note(source, data[data['origin'] == MEASURED])}")


def _sweep_panel(
    sweeps: Mapping[str, str], axes: Axes, row: tuple[str, pd.DataFrame, str], names: Sequence[str]
) -> None:
    """Draw, for each metric, a line through the means over seeds, a dot per run, and published values as crosses.

    Args:
        sweeps: {option of the head: label of the x axis}.
        axes: the panel.
        row: the option of the head, the points, and the panel's title. The points have the columns `value` (x axis),
            `origin` (MEASURED or PUBLISHED) and the metrics `names`.
        names: the metrics of the panel, at most two.
    """
    setting, points, title = row
    axes.set(title=title, xlabel=sweeps[setting], ylabel=" and ".join(metrics.find(name).words for name in names))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=setting == "components"))
    ours, theirs = (points[points["origin"] == origin] for origin in (MEASURED, PUBLISHED))
    for metric, look in zip(names, LOOKS, strict=False):
        mean = ours.groupby("value")[metric].mean()
        axes.plot(mean.index, mean, color=look["color"])
        axes.plot(ours["value"], ours[metric], linestyle="", markersize=6, mec=plots.LIGHT.paper, **look)
        colour = plots.LIGHT.muted if len(names) == 1 else look["color"]
        axes.plot(theirs["value"], theirs[metric], "x", linestyle=plots.DASHES[1], linewidth=1.2, color=colour)
    if len(names) > 1:
        handles = [Line2D([], [], **look) for look in LOOKS[: len(names)]]
        axes.legend(handles, [metrics.find(metric).words for metric in names], fontsize=9)
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
    data, looks = _singular_values(source, panels), plots.styles(list(source.models), source.study)
    names = {model: plots.short_name(source.study, model) for model in source.models}
    stage = records.FINETUNED if "finetune" in source.experiment.stages else ""

    def draw(row: NDArray[Any], dataset: str, values: pd.DataFrame) -> None:
        title, longest = plots.corpus_title(source, dataset), int(values["index"].max())
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

    count = len(panels)
    return plots.by_corpus(source, data, (count, 5.2 if count > 1 else 7.0, 3.5), draw)


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
    frames = [pd.DataFrame(columns=["dataset", "model", "seed", "index", *scales])]
    for dataset in source.corpora:
        for trained in source.runs(dataset):
            run = source.study.last_stage(trained, source.experiment.stages)
            thinned = source.records.spectra.get(run.path) if run.run_id in measured else None
            if thinned is not None and len(thinned[1]) and thinned[1][0] > 0:
                values = {"dataset": dataset, "model": run.model, "seed": run.seed}
                values |= {"index": thinned[0].astype(np.int64), SIGMA: thinned[1] / thinned[1][0], RAW: thinned[1]}
                frames.append(pd.DataFrame(values)[list(frames[0])])
    return pd.concat(frames[1:] or frames, ignore_index=True)


# --- along training -------------------------------------------------------------------------------------------------
def rank_training_figure(source: Source, *, snapshots: schema.Flag = False) -> plots.Drawing:
    """Draw the Press rank against the epoch and against validation perplexity, for runs with ranks of several epochs.

    The option `snapshots` is read by the step `train` and not used here. If true, that step keeps the weights of some
    epochs, so that their ranks can be measured.
    """
    columns, looks = ("epoch", PRESS_RANK, "rank_eff_1e-3", VALID_PPL), plots.styles(list(source.models), source.study)
    names = {model: plots.short_name(source.study, model) for model in source.models}
    rows = [
        (dataset, model, run.seed, *map(line.get, columns))
        for dataset in source.corpora
        for model in source.models
        for run in source.runs(dataset, model)
        for line in source.records.detail(run.path, "epoch_ranks") or ()
    ]
    data = _frame(rows, ("dataset", "model", "seed"), columns)

    def draw(row: NDArray[Any], dataset: str, points: pd.DataFrame) -> None:
        for panel, x, text in zip(row, ("epoch", VALID_PPL), ("epoch", "validation perplexity"), strict=True):
            ends = plots.curves(panel, points, x, PRESS_RANK, looks, dots=x == VALID_PPL)
            panel.set(xlabel=text, ylabel="Press rank")
            if x == "epoch":
                plots.label_lines(panel, ends, names, looks)
            panel.yaxis.set_major_formatter(plots.integer)
        row[0].set_title(plots.corpus_title(source, dataset))
        row[0].xaxis.set_major_locator(MaxNLocator(integer=True))
        row[1].set_title("against validation perplexity")
        row[1].invert_xaxis()

    return plots.by_corpus(source, data, (2, 5.2, 3.4), draw)


# --- untrained layers (Merity 2017) ---------------------------------------------------------------------------------
# The matrices of the rank demonstration; the first is the published one.
MATRICES = {
    RANK: "Logarithms of probabilities, Press's tolerance",
    "rank_p": "Probabilities themselves, Press's tolerance",
    "rank_numpy": "Logarithms of probabilities, numpy's default tolerance",
}


def rank_demo_table(source: Source, *, synthetic: Literal["rank-demo"]) -> Iterator[Section]:
    """Yield one section per kind of rank, with ranks of untrained heads, averaged over random samples.

    A kind of rank has a matrix (probabilities or their logarithms) and a tolerance; MATRICES lists the kinds. There is
    a row per model and reading, and a column per number of mixture components. A reading fixes options that the
    published description leaves open, such as the activation. Only the first kind has published ranks. A kind without
    ranks has no section. This function ignores `synthetic`, which tells the step `synthetic` what to compute.
    """
    measured = source.records.synthetic
    every, published = (
        table.assign(components=table["condition"].str.extract(r"(?:^|;)K=(\d+)")[0].fillna("1").astype(int))
        for table in (measured[~measured["condition"].str.match(SWEEP)], source.published)
    )
    plain = {option for condition in published["condition"] for option in condition.split(";")}
    options_of = [[option for option in text.split(";") if option not in plain] for text in every["condition"]]
    every["reading"] = [", ".join(option for option in chosen if not option.startswith("K=")) for chosen in options_of]

    def cell(metric: str, rows: Mapping[str, tuple[str, str]], row: str, components: int) -> Cell:
        model, reading = rows[row]
        chosen = every[(every["metric"] == metric) & (every["model"] == model)]
        chosen = chosen[(chosen["reading"] == reading) & (chosen["components"] == components)]
        of_k, same = {"condition": rf"(?:^|;)K={components}(?:;|$)"}, metric == RANK
        quoted = source.find_published("synthetic", model, RANK, of_k) if same else None
        gaps = ("not drawn yet",) if chosen.empty else ()
        return Cell(mean_of(chosen["value"]), quoted, metric=metric, planned=len(chosen), same=same, gaps=gaps)

    for metric, title in MATRICES.items():
        drawn, printed = every[every["metric"] == metric], published if metric == RANK else published.iloc[:0]
        models = list(dict.fromkeys([*printed["model"], *drawn["model"]]))
        keys = {(model, "") for model in printed["model"]} | set(zip(drawn["model"], drawn["reading"], strict=True))
        rows = {f"{m} {r}".strip(): (m, r) for m, r in sorted(keys, key=lambda key: (key[1], models.index(key[0])))}
        names = {row: label(source.study, m) + (f" ({_in_words(r)})" if r else "") for row, (m, r) in rows.items()}
        columns = {k: f"K = {k}" for k in sorted({*printed["components"], *drawn["components"]})}
        if rows:
            yield section("synthetic", title, names, columns, partial(cell, metric, rows))


def _in_words(reading: str) -> str:
    """Return the options of a reading as text, such as `no tanh` for `tanh=False`."""
    return reading.replace("tanh=False", "no tanh").replace("input_scale=", "inputs times ")


def rank_sweep_table(source: Source, *, synthetic: Literal["rank-sweep"]) -> Iterator[Section]:
    """Yield one section with the rank of untrained mixtures by width H, vocabulary V and number of softmaxes K.

    There is a row per (H, V), by ascending V / H, and a column per K. The last column has the smallest K whose rank is
    nearly full, by the threshold of the claim. `synthetic` only tells the step `synthetic` what to compute.
    """
    ranks, share = sweep(source.records.synthetic), TEXTS["merity-softmaxes-needed"]["thresholds"]["share"]
    rank_of = ranks.set_index(["H", "V", "K"])["rank"].to_dict()
    needed, most = softmaxes_needed(ranks, share), ranks["K"].max()
    sizes = {f"H={h};V={v}": (h, v) for h, v in sorted(needed, key=lambda size: (size[1] / size[0], size))}

    def cell(row: str, components: int) -> Cell:
        if components:
            return Cell(MeasuredCell(rank_of[(*sizes[row], components)]), metric=RANK)
        least = needed[sizes[row]]
        return Cell(label=f"more than {most}") if least is None else Cell(MeasuredCell(least), digits=0)

    rows = {row: f"H = {h}, V = {v}, V / H = {v / h:.3g}" for row, (h, v) in sizes.items()}
    columns = {k: f"K = {k}" for k in sorted(set(ranks["K"]))} | {0: f"K for {share:.0%} of V"}
    if rows:
        yield section("synthetic", "Press rank of ln P", rows, columns, cell)


# --- a matrix of rank 10 (Parthiban et al. 2021, SM Tables 14 to 16) ------------------------------------------------
STEPS = {r"c=(1e-\d+)": "c = {}", r"iteration=(\d+)": "round {}"}  # pattern of a condition -> row of the table
ROBUSTNESS = (
    *(PRESS_RANK, metrics.RANK_PREDICTED, metrics.RANK_PREDICTED_PAPER, metrics.RECONSTRUCTION_ERROR),
    *("rank_eff_1e-3", "rank_eff_1e-4", "rank_eff_1e-5"),
)


def robustness_table(
    source: Source,
    *,
    synthetic: Literal["rebuild", "noise", "noise-effective"],
    size: Annotated[schema.Integer, Field(ge=20, le=20_000)] = 1000,
) -> Iterator[Section]:
    """Yield one section with measured and published ranks of a matrix of rank 10, rebuilt from its SVD or with noise.

    The matrix is the log-probability matrix of a run, of which only the ten largest singular values are kept. A row of
    the table is a round of decomposing and rebuilding the matrix, which adds rounding errors, or a level of noise. This
    function ignores `synthetic` and `size`, which tell the step `synthetic` what to compute.

    Args:
        source: the experiment with its records.
        synthetic: `rebuild` for rounds of rebuilding; `noise` for Press ranks under noise; `noise-effective` for
            effective ranks under noise.
        size: number n of test contexts, i.e. of rows of the log-probability matrix. Noise is added to all entries of
            an n x n matrix, whose diagonal has the ten singular values and then zeros.
    """
    names = (source.experiment.artefact, "SM 5.1 text")
    drawn, printed = (frame[frame["table"].isin(names)] for frame in (source.records.synthetic, source.published))
    measured, published = _by_step(drawn), _by_step(printed)
    steps = {step: step for step, _ in [*published, *measured]}
    present = {metric for _, metric in [*published, *measured]}
    columns = {metric: metrics.find(metric).label for metric in ROBUSTNESS if metric in present}
    match = re.search(r"size=(\d+);of=([^;/]+)/([^;]+)", "".join(drawn["condition"].iloc[:1]))
    contexts, dataset, model = match.groups() if match else ("0", "", "")
    same_matrix = int(contexts) == PAPER_SIZE and source.same(dataset, model)
    gaps = (source.gaps(dataset, model, ()) for dataset in source.datasets for model in source.models)
    undrawn = next(filter(None, gaps), (source.experiment.needs or "not drawn yet",))
    missing = undrawn if drawn.empty else ("not drawn at this level",)

    def cell(step: str, metric: str) -> Cell:
        """Return the cell of a metric in the row `step`, such as `round 3` of rebuilding or the noise `c = 1e-20`.

        The metric RANK_PREDICTED_PAPER is the Press rank predicted for a matrix of the paper's size. The cell compares
        this prediction with the published Press rank, even if this study's own matrix is smaller.
        """
        predicts_paper = metric == metrics.RANK_PREDICTED_PAPER
        text, value = published.get((step, PRESS_RANK if predicts_paper else metric)), measured.get((step, metric))
        if value is None and text is None and len(drawn):
            return Cell(metric=metric, wanted=False)
        quoted = PublishedCell(text) if text else None
        blank = Cell(published=quoted, metric=metric, same=predicts_paper or same_matrix)
        if value is None:
            return replace(blank, gaps=missing)
        if metric == metrics.RECONSTRUCTION_ERROR:
            return replace(blank, label=numbers.true_minus(f"{float(value):.2e}"))
        return replace(blank, measured=MeasuredCell(float(value)))

    note = ""
    if dataset:
        where = f"{label(source.study, model)} on {source.study.dataset(dataset).title}"
        note = f"The matrix is that of {where}: its first {int(contexts):,} test contexts."
    yield section("synthetic", "Ten singular values of a trained model", steps, columns, cell, note)


def _by_step(frame: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Return {(row of the table, metric): value as text} for a frame with the columns condition, metric and value.

    If several lines of `frame` have the same row and metric, the first one counts. The condition decides the name of
    the row in the table that `robustness_table` returns:

    * `c=1e-20` becomes the row `c = 1e-20`: noise of level c was added to all entries of the diagonal matrix.
    * `iteration=3` becomes the row `round 3`: the whole matrix was decomposed by SVD and rebuilt three times.
    * `iteration=3` with `as printed` becomes the row `round 3, diagonal as printed`: only the diagonal matrix of
      singular values was decomposed and rebuilt, as in the paper's Algorithm 1.
    * Any other condition becomes the row `all singular values`: the matrix before truncation.
    """
    values: dict[tuple[str, str], str] = {}
    for condition, metric, value in zip(frame["condition"], frame["metric"], frame["value"], strict=True):
        steps = [row.format(match[1]) for pattern, row in STEPS.items() if (match := re.search(pattern, condition))]
        step = next(iter(steps), "all singular values")
        variant = ", diagonal as printed" if "as printed" in condition else ""
        values.setdefault((step + variant, metric), str(value))
    return values
