"""Figures of single runs: singular values, learning curves, ranks along training, and what a known language scores.

Parthiban et al. 2021, Figure 7 and SM Figures 2 to 5; the others are beyond the paper.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from softmax_bottleneck.records.metrics import (
    ENTROPY_PPL,
    LAW_TEST_PPL,
    PRESS_RANK,
    RANK_TOLERANCE,
    RANK_TRUTH,
    SIGMA_MAX,
    TEST_PPL,
    TRAIN_PPL,
    VALID_PPL,
    find,
)
from softmax_bottleneck.records.records import FINETUNED
from softmax_bottleneck.report.figures import plots
from softmax_bottleneck.report.figures.plots import LIGHT, Drawing
from softmax_bottleneck.report.options import NoOptions, Snapshots, Spectrum
from softmax_bottleneck.report.registry import figure
from softmax_bottleneck.report.source import Source, exact_value


def _drawing(source: Source, drawn: tuple[Any, pd.DataFrame], alt: str) -> Drawing:
    """With the legend, and a note on the runs that are drawn."""
    canvas, data = drawn
    plots.legend(canvas, plots.names_in(source, data), plots.styles(list(source.models)))
    return Drawing(canvas, data, alt, plots.count_note(source, data))


# --- singular values ------------------------------------------------------------------------------------------------
SIGMA, RAW = "relative_singular_value", "singular_value"


@figure("spectrum")
def spectrum(source: Source, options: Spectrum) -> Drawing:
    """Singular values, relative to the largest or raw: the first ones on a linear axis, or all on a log axis."""

    def draw(row: NDArray[Any], dataset: str, data: pd.DataFrame) -> None:
        looks, longest = plots.styles(list(source.models)), int(data["index"].max())
        for panel, side in zip(row, options.panels, strict=True):
            title = plots.corpus_title(source, dataset)
            if side == "first":
                shown = min(options.first, longest)
                plots.curves(panel, data[data["index"] <= shown], "index", SIGMA, looks)
                panel.set(title=title, xlabel=f"index (first {shown})", ylabel="σ / σ max")
                panel.set(xlim=(0, shown), ylim=(0, options.top))
            else:
                y, words = (RAW, "σ, not divided by the largest") if side == "raw" else (SIGMA, "σ / σ max")
                plots.curves(panel, data[data[y] > 0], "index", y, looks)
                panel.set(title=f"{title}, log axis", xlabel="index (all)", xlim=(0, longest), ylabel=words)
                _log_panel(panel, _tolerance(source, dataset, relative=side == "all"), cut=side == "all")

    size = (len(options.panels), 4.7 if len(options.panels) > 1 else 7.0, 3.5)
    drawn = plots.by_corpus(source, size, partial(_singular_values, source, options), draw)
    start = "Falling curves of singular values; drawn per model:"
    alt = plots.by_model(source, start, drawn[1], lambda own: f"{own['index'].max()} of them")
    return _drawing(source, drawn, alt)


def _singular_values(source: Source, options: Spectrum, dataset: str) -> pd.DataFrame:
    """A line per drawn singular value of the runs whose numbers are in the records, in the scale of the panels."""
    known = set(source.records.rows["run_id"])
    columns = list(dict.fromkeys(RAW if side == "raw" else SIGMA for side in options.panels))
    frames = [pd.DataFrame(columns=["dataset", "model", "seed", "index", *columns])]
    for trained in plots.planned_runs(source, dataset):
        run = source.study.last_stage(trained, source.experiment.stages)
        found = source.records.spectrum(run.path) if run.run_id in known else None
        if found is not None and len(found[1]) and found[1][0] > 0:
            values = {"dataset": dataset, "model": run.model, "seed": run.seed, "index": found[0]}
            values |= {SIGMA: found[1] / found[1][0], RAW: found[1]}
            frames.append(pd.DataFrame(values)[list(frames[0])])
    return pd.concat(frames[1:] or frames, ignore_index=True)


def _tolerance(source: Source, dataset: str, *, relative: bool) -> float:
    """Median over runs of the Press tolerance, or of its share of the largest singular value; nan where not known."""
    found, stage = [], FINETUNED if "finetune" in source.experiment.stages else ""
    for model in source.models:
        tolerance, largest = (source.values(dataset, model, metric, stage) for metric in (RANK_TOLERANCE, SIGMA_MAX))
        found += [tolerance[seed] / (largest[seed] if relative else 1) for seed in tolerance if seed in largest]
    return float(np.median(found)) if found else math.nan


def _log_panel(axes: Axes, tolerance: float, *, cut: bool) -> None:
    """A log axis with the tolerance; `cut`: not far below it, where there is rounding alone."""
    plots.log_y(axes)
    if cut:
        axes.set_ylim((1e-5 if math.isnan(tolerance) else tolerance) / 300, 1.5)
    axes.xaxis.set_major_formatter(FuncFormatter(plots.integer))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    if not math.isnan(tolerance):
        plots.level(axes, tolerance, "Press tolerance", end="left")


# --- learning curves ------------------------------------------------------------------------------------------------
EPOCHS = 150  # of a learning curve; longer ones are drawn with every second, third... epoch
CURVE_DOTS = 1500  # of all learning curves of a corpus; with hundreds of runs each is drawn with fewer
EPOCH_COLUMNS = ["dataset", "model", "seed", "epoch", "phase", TRAIN_PPL, VALID_PPL]


@figure("learning-curves")
def learning_curves(source: Source, options: NoOptions) -> Drawing:
    """Validation perplexity by epoch, from the epoch logs of all runs, finished or not."""
    drawn = plots.by_corpus(source, (1, 8.6, 3.9), partial(_epochs, source), partial(_draw_epochs, source))
    start = "Falling curves of validation perplexity; mean of the runs' best:"
    alt = plots.by_model(source, start, drawn[1], lambda own: f"{own.groupby('seed')[VALID_PPL].min().mean():.1f}")
    return _drawing(source, drawn, alt)


def _epochs(source: Source, dataset: str) -> pd.DataFrame:
    rows = [
        (dataset, run.model, run.seed, *(line.get(key) for key in EPOCH_COLUMNS[3:]))
        for run in plots.planned_runs(source, dataset)
        for line in source.records.curve(run.path)
    ]
    frame = pd.DataFrame(rows, columns=EPOCH_COLUMNS).astype({TRAIN_PPL: float, VALID_PPL: float})
    kept: pd.DataFrame = frame[np.isfinite(frame[VALID_PPL]) & _kept_epochs(frame)]
    return kept


def _kept_epochs(frame: pd.DataFrame) -> pd.Series[bool]:
    """Epochs of long curves that are drawn: every k-th, the last ones of every run, and those around its switch."""
    step = max(1, math.ceil(frame["epoch"].max() / EPOCHS), math.ceil(len(frame) / CURVE_DOTS)) if len(frame) else 1
    runs = frame.groupby(["model", "seed"])
    switched = (frame["phase"] != runs["phase"].shift()) | (frame["phase"] != runs["phase"].shift(-1))
    return (frame["epoch"] % step == 0) | switched


def _draw_epochs(source: Source, row: NDArray[Any], dataset: str, data: pd.DataFrame) -> None:
    (axes,), looks = row, plots.styles(list(source.models))
    plots.curves(axes, data, "epoch", VALID_PPL, looks)
    following = data.groupby(["model", "seed"])["phase"].shift(-1)
    switches = data[(data["phase"] == "sgd") & (following == "asgd")]
    plots.dots(axes, switches, "epoch", VALID_PPL, looks, marker="o", markersize=5)
    best = float(data[VALID_PPL].min())
    axes.set_ylim(best * 0.97, min(float(data[VALID_PPL].quantile(0.97)) * 1.1, best * 2.5))  # not the first fall
    axes.set_xlim(left=float(data["epoch"].min()))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(title=plots.corpus_title(source, dataset), xlabel="epoch", ylabel="validation perplexity")


# --- rank during training -------------------------------------------------------------------------------------------
RANK_COLUMNS = ["dataset", "model", "seed", "epoch", PRESS_RANK, "rank_eff_1e-3", VALID_PPL]


@figure("rank-training")
def rank_training(source: Source, options: Snapshots) -> Drawing:
    """Press rank by epoch, and against validation perplexity, from every run that kept its epochs."""
    ranks = partial(_along_training, source, RANK_COLUMNS)
    drawn = plots.by_corpus(source, (2, 4.7, 3.4), ranks, partial(_draw_ranks, source))

    def ends(own: pd.DataFrame) -> str:
        return f"from {own[PRESS_RANK].iloc[0]:.0f} to {own[PRESS_RANK].iloc[-1]:.0f}"

    return _drawing(source, drawn, plots.by_model(source, "Lines of Press rank by epoch:", drawn[1], ends))


def _along_training(source: Source, columns: list[str], dataset: str) -> pd.DataFrame:
    rows = [
        (dataset, model, run.seed, *(row.get(key) for key in columns[3:]))
        for model in source.models
        for run in source.runs(dataset, model)
        for row in source.records.epoch_ranks(run.path)
    ]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[3:], float) | {"seed": "Int64"})


def _draw_ranks(source: Source, row: NDArray[Any], dataset: str, data: pd.DataFrame) -> None:
    for panel, x, words in zip(row, ("epoch", VALID_PPL), ("epoch", "validation perplexity"), strict=True):
        plots.curves(panel, data, x, PRESS_RANK, plots.styles(list(source.models)), dots=x == VALID_PPL)
        panel.set(xlabel=words, ylabel="Press rank")
        panel.yaxis.set_major_formatter(FuncFormatter(plots.integer))
    row[0].set_title(plots.corpus_title(source, dataset))
    row[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    row[1].set_title("against validation perplexity")
    row[1].invert_xaxis()


SATURATION = ("rank_centred", "weight_entropy", "hidden_anisotropy", "gradient_passed")


@figure("saturation-training")
def saturation_training(source: Source, options: Snapshots) -> Drawing:
    """What else is measured of an output layer by epoch, from every run that kept its epochs."""
    numbers = partial(_along_training, source, ["dataset", "model", "seed", "epoch", *SATURATION])
    drawn = plots.by_corpus(source, (len(SATURATION), 3.0, 2.9), numbers, partial(_draw_saturation, source))
    start = "Lines by epoch; anisotropy of hidden states:"
    ends = drawn[1].dropna(subset="hidden_anisotropy")
    return _drawing(source, drawn, plots.by_model(source, start, ends, _ends_of_anisotropy))


def _ends_of_anisotropy(own: pd.DataFrame) -> str:
    return f"from {own['hidden_anisotropy'].iloc[0]:.2f} to {own['hidden_anisotropy'].iloc[-1]:.2f}"


def _draw_saturation(source: Source, row: NDArray[Any], dataset: str, data: pd.DataFrame) -> None:
    for panel, metric in zip(row, SATURATION, strict=True):
        plots.curves(panel, data.dropna(subset=metric), "epoch", metric, plots.styles(list(source.models)))
        panel.set(xlabel="epoch", ylabel=find(metric).label)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    row[0].set_title(plots.corpus_title(source, dataset))


# --- known-truth languages ------------------------------------------------------------------------------------------
# Metric of a model -> those of the law, and what they are called.
BOUNDS = {
    TEST_PPL: {ENTROPY_PPL: "law, expected", LAW_TEST_PPL: "law, on this text"},
    PRESS_RANK: {RANK_TRUTH: "rank of the law"},
}
TRUTH_COLUMNS = ["dataset", "model", "metric", "seed", "value", "exact", "exact_on_text"]


@figure("truth")
def truth(source: Source, options: NoOptions) -> Drawing:
    """Test perplexity beside the entropy bound, Press rank beside the true rank, on the known-truth languages."""
    languages = tuple(dataset for dataset in source.datasets if source.is_language(dataset))
    if not languages:
        return plots.words_alone("This study has no known-truth language.", pd.DataFrame(columns=TRUTH_COLUMNS))
    source = dataclasses.replace(source, experiment=dataclasses.replace(source.experiment, datasets=languages))
    size = (2, 4.7, 0.42 * len(source.models) + 1.5)
    canvas, data = plots.by_corpus(source, size, partial(_truth_values, source), partial(_draw_truth, source))
    exact = "; ".join(
        f"{find(str(metric)).label} of the language {value:.4g}"
        for metric, value in data.groupby("metric")["exact"].first().items()
    )
    ppl = data[data["metric"] == TEST_PPL]
    alt = plots.by_model(
        source, f"Dots by model. {exact}. Test perplexity:", ppl, lambda own: f"{own['value'].mean():.4g}"
    )
    return Drawing(canvas, data, alt, plots.count_note(source, data))


def _truth_values(source: Source, dataset: str) -> pd.DataFrame:
    rows = [
        (dataset, model, metric, seed, value, *(exact_value(source.records, dataset, name) for name in exact), None)[:7]
        for metric, exact in BOUNDS.items()
        for model in source.models
        for seed, value in source.values(dataset, model, metric).items()
    ]
    return pd.DataFrame(rows, columns=TRUTH_COLUMNS).astype({"exact": float, "exact_on_text": float})


def _draw_truth(source: Source, row: NDArray[Any], dataset: str, data: pd.DataFrame) -> None:
    for panel, (metric, exact) in zip(row, BOUNDS.items(), strict=True):
        _strip(source, panel, data[data["metric"] == metric])
        _mark(source, panel, dataset, exact)
        panel.set(xlabel=find(metric).label)
    row[0].set_title(plots.corpus_title(source, dataset))
    row[1].set_title("rank of log P")
    row[1].tick_params(labelleft=False)


def _strip(source: Source, axes: Axes, data: pd.DataFrame) -> None:
    """One line per model: a dot per run and a bar at their mean."""
    names = [plots.short_name(source.study, model) for model in source.models]
    for height, (model, style) in enumerate(plots.styles(list(source.models)).items()):
        values = data[data["model"] == model]["value"]
        axes.plot(values, [height] * len(values), alpha=0.8, **style.dot)
        if len(values):
            axes.plot([values.mean()] * 2, [height - 0.32, height + 0.32], color=style.colour, linewidth=2.4)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", labelsize=10, labelcolor=LIGHT.ink, length=0)
    axes.set_ylim(len(names) - 0.4, -0.95)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.08)
    axes.xaxis.set_major_locator(MaxNLocator(5))


def _mark(source: Source, axes: Axes, dataset: str, exact: Mapping[str, str]) -> None:
    """Dashed lines at values of the law, each with words in a line of its own."""
    for line, (metric, words) in enumerate(exact.items()):
        value = exact_value(source.records, dataset, metric)
        if value is not None:
            axes.axvline(value, color=LIGHT.ink, linestyle=plots.DASHED, linewidth=1.2)
            side = "left" if value < sum(axes.get_xlim()) / 2 else "right"
            axes.text(value, -0.9 + 0.35 * line, f" {words} {value:.4g} ", ha=side, va="top", fontsize=8.5)
