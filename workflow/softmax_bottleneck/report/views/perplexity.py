"""Tables of perplexity: models by metrics, tests of every pair of models, and synthetic languages.

They correspond to the main table of every paper and to Table 3 of Kanai et al. 2018. Further tables show the scores of
synthetic languages, whose true distribution is known.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from softmax_bottleneck.measuring import statistics
from softmax_bottleneck.measuring.statistics import Summary
from softmax_bottleneck.records import metrics
from softmax_bottleneck.records.metrics import ENTROPY_PPL, PRESS_RANK, RANK_TRUTH, TEST_PPL
from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.cells import Cell, MeasuredCell, Row, Section, mean_of
from softmax_bottleneck.report.source import Source, exact_value
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
    seeds_not_tested: tuple[schema.Integer, ...] = (),
) -> Section:
    """Return a section with a row per model and a column per metric.

    A p-value compares the test perplexities of a model with those of the baseline. Runs with `seeds_not_tested` count
    in the means but not in the tests.
    """
    columns = [column for column in source.experiment.columns if not column.datasets or dataset in column.datasets]

    def cell(row: str, number: int) -> Cell:
        column = columns[number]
        metric, is_gain, other = column.metric.partition(metrics.GAIN)
        if not column.measured:
            return source.blank(dataset, row, column)
        if metric in TESTS:
            return _test_cell(source, column, dataset, (row, baseline), seeds_not_tested)
        if is_gain:
            return _gain_cell(source, column, dataset, (row, other), metric)
        if metric.endswith(metrics.REDUCTION):
            metric = metric.removesuffix(metrics.REDUCTION)
            return _gain_cell(source, column, dataset, (row, baseline), metric, percent=True)
        return source.cell(dataset, row, column)

    return source.section(dataset, source.rows, source.column_labels(columns), cell)


def _test_cell(
    source: Source, column: ColumnSpec, dataset: str, models: tuple[str, str], without: Sequence[int]
) -> Cell:
    """Return a cell with the p-value of a two-sided unpaired t-test between the test perplexities of two models.

    The column chooses Student's or Welch's test. The seeds in `without` are left out, as in Parthiban et al. 2021, SM
    Table 1.
    """
    blank = source.blank(dataset, models[0], column)
    if models[0] == models[1]:
        return replace(blank, note="reference", runs="")
    by_seed = [source.values(dataset, model, TEST_PPL, column.stage) for model in models]
    samples = [[value for seed, value in values.items() if seed not in without] for values in by_seed]
    result = TESTS[column.metric](*samples)
    if result.p is None:
        return replace(blank, reason=result.reason)
    return replace(blank, measured=MeasuredCell(result.p), note=numbers.counts([len(sample) for sample in samples]))


def _gain_cell(
    source: Source, column: ColumnSpec, dataset: str, models: tuple[str, str], metric: str, *, percent: bool = False
) -> Cell:
    """Return the second model's mean minus the first model's, or that difference in percent of the second's mean."""
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
def pairwise_table(source: Source, dataset: str, *, stage: Literal["", "finetuned", "dynamic"] = "") -> Section:
    """Return p-values of Student's test for each pair of models, with a note on whether the row's perplexity is lower.

    `stage` chooses the test perplexity: after training (empty), finetuning or dynamic evaluation.
    """

    def cell(row: str, column: str) -> Cell:
        if row == column:
            return Cell(wanted=False)
        samples = {model: source.values(dataset, model, TEST_PPL, stage) for model in (row, column)}
        first, second = (Summary.of(values.values()) for values in samples.values())
        result = statistics.student_t(first, second)
        if result.p is None or first.mean is None or second.mean is None:
            gaps = tuple(gap for model, own in samples.items() for gap in source.gaps(dataset, model, own, stage))
            return Cell(metric=metrics.P_VALUE, gaps=gaps, reason="" if gaps else result.reason)
        lower = "lower" if first.mean < second.mean else "higher"
        verdict = lower if result.p < SIGNIFICANCE else "no difference at 5 %"
        note = f"{verdict}, {numbers.counts([first.n, second.n])}"
        return Cell(measured=MeasuredCell(result.p), metric=metrics.P_VALUE, note=note, runs=f"{dataset}/{row}")

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


def truth_table(source: Source) -> Iterator[Section]:
    """Yield `summary_table` of each synthetic language, with rows for the true distribution's own values on top."""

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
