"""Perplexity: models by metrics, every pair of models tested, learning curves, and synthetic languages.

Main tables of every source; Kanai et al. 2018, Table 3; what a synthetic language with a known distribution scores.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from softmax_bottleneck.measuring import statistics
from softmax_bottleneck.records import metrics
from softmax_bottleneck.records.metrics import ENTROPY_PPL, LAW_TEST_PPL, PRESS_RANK, RANK_TRUTH, TEST_PPL, VALID_PPL
from softmax_bottleneck.report import numbers, plots
from softmax_bottleneck.report.cells import Cell, Gap, GapCode, MeasuredCell, Row, Section, mean_of
from softmax_bottleneck.report.plots import LIGHT, Drawing
from softmax_bottleneck.report.source import MetricName, Source, exact_value
from softmax_bottleneck.study import Column as ColumnSpec
from softmax_bottleneck.study import schema

SIGNIFICANCE = 0.05  # Kanai et al. 2018
TESTS = {metrics.P_VALUE: statistics.student_t, metrics.P_VALUE_WELCH: statistics.welch_t}


# --- models by metrics ----------------------------------------------------------------------------------------------
def summary_table(
    source: Source,
    dataset: str,
    *,
    baseline: str = "softmax",
    tested: MetricName = TEST_PPL,
    seeds_not_tested: tuple[schema.Integer, ...] = (),
) -> Section:
    """Return models by metrics.

    p-values compare means of `tested` with the baseline's; `seeds_not_tested` enter means and no test.
    """
    columns = [column for column in source.experiment.columns if not column.datasets or dataset in column.datasets]

    def cell(row: str, number: int) -> Cell:
        column = columns[number]
        metric, is_gain, other = column.metric.partition(metrics.GAIN)
        if not column.measured:
            return source.blank(dataset, row, column)
        if metric in TESTS:
            return _test_cell(source, column, dataset, (row, baseline), tested, seeds_not_tested)
        if is_gain:
            return _gain_cell(source, column, dataset, (row, other), metric)
        if metric.endswith(metrics.REDUCTION):
            metric = metric.removesuffix(metrics.REDUCTION)
            return _gain_cell(source, column, dataset, (row, baseline), metric, percent=True)
        return source.cell(dataset, row, column)

    return source.section(dataset, source.rows, source.column_labels(columns), cell)


def _test_cell(
    source: Source, column: ColumnSpec, dataset: str, models: tuple[str, str], tested: str, without: Sequence[int]
) -> Cell:
    """Return a two-sided unpaired test of two models (Parthiban et al. 2021, SM Table 1)."""
    blank = source.blank(dataset, models[0], column)
    if models[0] == models[1]:
        return replace(blank, note="reference", runs="")
    by_seed = [source.values(dataset, model, tested, column.stage) for model in models]
    samples = [[value for seed, value in values.items() if seed not in without] for values in by_seed]
    result = TESTS[column.metric](*samples)
    if result.p is None:
        return replace(blank, gaps=(Gap(GapCode.NOT_COMPUTABLE, (result.reason,)),))
    return replace(blank, measured=MeasuredCell(result.p), note=numbers.counts([len(sample) for sample in samples]))


def _gain_cell(
    source: Source, column: ColumnSpec, dataset: str, models: tuple[str, str], metric: str, *, percent: bool = False
) -> Cell:
    """Return how much smaller the mean of the first model is than the second's, or by how many percent of that."""
    blank = source.blank(dataset, models[0], column)
    if models[0] == models[1]:
        return replace(blank, note="reference", runs="")
    samples = [source.values(dataset, model, metric) for model in models]
    both = zip(models, samples, strict=True)
    gaps = tuple(gap for model, values in both for gap in source.gaps(dataset, model, values))
    own, other = (mean_of(values.values()) for values in samples)
    if own is None or other is None:
        return replace(blank, gaps=gaps)
    gain = (other.mean - own.mean) * (100 / other.mean if percent else 1)
    counts = numbers.counts([len(values) for values in samples])
    return replace(blank, measured=MeasuredCell(gain), note=counts, gaps=gaps)


# --- every pair of models -------------------------------------------------------------------------------------------
def pairwise_table(
    source: Source,
    dataset: str,
    *,
    tested: MetricName = TEST_PPL,
    stage: Literal["", "finetuned", "dynamic"] = "",
    welch: schema.Flag = False,
) -> Section:
    """Return p of an unpaired two-sided test of row against column, and which is lower (Kanai et al. 2018)."""
    metric = metrics.P_VALUE_WELCH if welch else metrics.P_VALUE

    def cell(row: str, column: str) -> Cell:
        if row == column:
            return Cell(wanted=False)
        samples = {model: source.values(dataset, model, tested, stage) for model in (row, column)}
        result = TESTS[metric](*(values.values() for values in samples.values()))
        if result.p is None:
            have = samples.items()
            gaps = tuple(gap for model, own in have for gap in source.gaps(dataset, model, own, stage))
            return Cell(metric=metric, gaps=gaps or (Gap(GapCode.NOT_COMPUTABLE, (result.reason,)),))
        means = [sum(values.values()) / len(values) for values in samples.values()]
        lower = "lower" if means[0] < means[1] else "higher"
        verdict = lower if result.p < SIGNIFICANCE else "no difference at 5 %"
        note = f"{verdict}, {numbers.counts([len(values) for values in samples.values()])}"
        return Cell(measured=MeasuredCell(result.p), metric=metric, note=note, runs=f"{dataset}/{row}")

    columns = {model: f"against {name}" for model, name in source.models.items()}
    return source.section(dataset, source.models, columns, cell)


# --- synthetic languages with a known distribution ------------------------------------------------------------------
OF_TEXT = (TEST_PPL, PRESS_RANK, *(f"{metrics.EFFECTIVE_RANK}{share}" for share in ("1e-3", "1e-4", "1e-5")))
# Scores of a language itself: row -> name, and metric of a model -> metric of the exact value (None: exactly zero).
EXACT: dict[str, tuple[str, dict[str, str | None]]] = {
    "language": (
        "The true distribution, as expected in these contexts",
        {TEST_PPL: ENTROPY_PPL, PRESS_RANK: RANK_TRUTH, metrics.EXCESS_PPL: None, metrics.KL_TRUTH: None},
    ),
    "language-text": ("The true distribution, on this very text", {metric: f"law_{metric}" for metric in OF_TEXT}),
}
# Metric of a model -> those of the language, and what they are called in a figure.
BOUNDS = {
    TEST_PPL: {ENTROPY_PPL: "law, expected", LAW_TEST_PPL: "law, on this text"},
    PRESS_RANK: {RANK_TRUTH: "rank of the true distribution"},
}
TRUTH_COLUMNS = ["dataset", "model", "metric", "seed", "value", "exact", "exact_on_text"]


def truth_table(source: Source) -> Iterator[Section]:
    """Return `summary_table` for the synthetic languages only, headed by the language's own values."""

    def exact_cell(dataset: str, column: ColumnSpec, exact: str | None) -> Cell:
        value = 0.0 if exact is None else exact_value(source.records, dataset, exact)
        measured, note = (None, "") if value is None else (MeasuredCell(value), "exact")
        metric = exact or column.metric
        return Cell(measured=measured, digits=column.digits, metric=metric, note=note, wanted=exact != "")

    for dataset in source.corpora:
        if source.dataset(dataset).kind == "language":
            section, rows = summary_table(source, dataset), list[Row]()
            for key, (name, exact) in EXACT.items():
                columns = source.experiment.columns
                cells = (exact_cell(dataset, column, exact.get(column.metric, "")) for column in columns)
                rows.append(Row(key, name, tuple(cells)))
            yield replace(section, rows=(*rows, *section.rows))


def truth_figure(source: Source) -> Drawing:
    """Draw test perplexity beside the entropy bound and Press rank beside the true rank: a dot per run, a bar per mean.

    A dashed line stands at each value of the language.
    """
    languages = tuple(dataset for dataset in source.datasets if source.dataset(dataset).kind == "language")
    if not languages:
        return plots.only_text("This study has no known-truth language.", pd.DataFrame(columns=TRUTH_COLUMNS))
    source = Source(source.study, replace(source.experiment, datasets=languages), source.records)
    looks, names = plots.styles(list(source.models)), [plots.short_name(source.study, model) for model in source.models]
    known = [name for bounds in BOUNDS.values() for name in bounds]
    exact = {
        (dataset, name): exact_value(source.records, dataset, name) for dataset in source.corpora for name in known
    }
    rows = [
        (dataset, model, metric, seed, value, *(exact[dataset, name] for name in bounds), None)[: len(TRUTH_COLUMNS)]
        for dataset in source.corpora
        for metric, bounds in BOUNDS.items()
        for model in source.models
        for seed, value in source.values(dataset, model, metric).items()
    ]
    data = pd.DataFrame(rows, columns=TRUTH_COLUMNS).astype({"exact": float, "exact_on_text": float})

    def dots_and_means(axes: Axes, own: pd.DataFrame) -> None:
        for height, (model, style) in enumerate(looks.items()):
            values = own[own["model"] == model]["value"]
            axes.plot(values, [height] * len(values), alpha=0.8, **style.dot)
            if len(values):
                axes.plot([values.mean()] * 2, [height - 0.32, height + 0.32], color=style.colour, linewidth=2.4)
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(axis="y", labelsize=10, labelcolor=LIGHT.ink, length=0)
        axes.set_ylim(len(names) - 0.4, -0.95)
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.08)
        axes.xaxis.set_major_locator(MaxNLocator(5))

    def draw(row: NDArray[Any], dataset: str, own: pd.DataFrame) -> None:
        for panel, (metric, bounds) in zip(row, BOUNDS.items(), strict=True):
            dots_and_means(panel, own[own["metric"] == metric])
            for line, (name, text) in enumerate(bounds.items()):
                if (value := exact[dataset, name]) is not None:
                    panel.axvline(value, color=LIGHT.ink, linestyle=plots.DASHED, linewidth=1.2)
                    side = "left" if value < sum(panel.get_xlim()) / 2 else "right"
                    panel.text(value, -0.9 + 0.35 * line, f" {text} {value:.4g} ", ha=side, va="top", fontsize=8.5)
            panel.set(xlabel=metrics.find(metric).label)
        row[0].set_title(plots.corpus_title(source, dataset))
        row[1].set_title("rank of log P")
        row[1].tick_params(labelleft=False)

    canvas = plots.by_corpus(source, data, (2, 4.7, 0.42 * len(source.models) + 1.5), draw)
    return Drawing(canvas, data, plots.count_note(source, data))


# --- learning curves (Parthiban et al. 2021) ------------------------------------------------------------------------
EPOCHS = 150  # of a learning curve; longer ones are drawn with every second, third... epoch
CURVE_DOTS = 1500  # of all learning curves of a corpus; with hundreds of runs each is drawn with fewer
EPOCH_COLUMNS = ["dataset", "model", "seed", "epoch", "phase", metrics.TRAIN_PPL, VALID_PPL]


def learning_curves_figure(source: Source) -> Drawing:
    """Draw validation perplexity by epoch, from the epoch logs of all runs, finished or not."""
    data = pd.concat([_epochs(source, dataset) for dataset in source.corpora], ignore_index=True)
    looks = plots.styles(list(source.models))

    def draw(row: NDArray[Any], dataset: str, own: pd.DataFrame) -> None:
        (axes,) = row
        plots.curves(axes, own, "epoch", VALID_PPL, looks)
        following = own.groupby(["model", "seed"])["phase"].shift(-1)
        switches = own[(own["phase"] == "sgd") & (following == "asgd")]
        plots.dots(axes, switches, "epoch", VALID_PPL, looks, marker="o", markersize=5)
        best = float(own[VALID_PPL].min())
        axes.set_ylim(best * 0.97, min(float(own[VALID_PPL].quantile(0.97)) * 1.1, best * 2.5))  # not the first fall
        axes.set_xlim(left=float(own["epoch"].min()))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(title=plots.corpus_title(source, dataset), xlabel="epoch", ylabel="validation perplexity")

    return plots.figure_by_corpus(source, data, (1, 8.6, 3.9), draw)


def _epochs(source: Source, dataset: str) -> pd.DataFrame:
    """Return a line per epoch of a corpus; of long curves every k-th, the last of every run, and around its switch."""
    rows = [
        (dataset, run.model, run.seed, *(line.get(key) for key in EPOCH_COLUMNS[3:]))
        for run in source.runs_on(dataset)
        for line in source.records.curve(run.path)
    ]
    frame = pd.DataFrame(rows, columns=EPOCH_COLUMNS).astype({metrics.TRAIN_PPL: float, VALID_PPL: float})
    step = max(1, math.ceil(frame["epoch"].max() / EPOCHS), math.ceil(len(frame) / CURVE_DOTS)) if len(frame) else 1
    phases = frame.groupby(["model", "seed"])["phase"]
    switched = (frame["phase"] != phases.shift()) | (frame["phase"] != phases.shift(-1))
    drawn: pd.DataFrame = frame[np.isfinite(frame[VALID_PPL]) & ((frame["epoch"] % step == 0) | switched)]
    return drawn
