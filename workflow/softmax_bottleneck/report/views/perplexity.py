"""Tables of models by metrics: the main tables of every source, the known truth, and every pair of models tested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from softmax_bottleneck.measuring import statistics
from softmax_bottleneck.records import evidence, metrics
from softmax_bottleneck.records.evidence import Evidence
from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.cells import Cell, Gap, GapCode, Measured, Part, Row, mean_of
from softmax_bottleneck.report.options import Compared, Pairwise
from softmax_bottleneck.report.registry import by_corpus, view
from softmax_bottleneck.report.source import Source, exact_value, same_setting
from softmax_bottleneck.study import Column

SIGNIFICANCE = 0.05  # Kanai et al. 2018
TESTS = {metrics.P_VALUE: statistics.student_t, metrics.P_VALUE_WELCH: statistics.welch_t}
OF_TEXT = (
    metrics.TEST_PPL,
    metrics.PRESS_RANK,
    *(f"{metrics.EFFECTIVE_RANK}{share}" for share in ("1e-3", "1e-4", "1e-5")),
)
# What a language itself scores: row -> name, and metric of a model -> metric of the exact value (None: exactly zero).
EXACT: Mapping[str, tuple[str, Mapping[str, str | None]]] = {
    "language": (
        "The law, as expected in these contexts",
        {
            metrics.TEST_PPL: metrics.ENTROPY_PPL,
            metrics.PRESS_RANK: metrics.RANK_TRUTH,
            metrics.EXCESS_PPL: None,
            metrics.KL_TRUTH: None,
        },
    ),
    "language-text": ("The law, on this very text", {metric: f"law_{metric}" for metric in OF_TEXT}),
}


# --- models by metrics ----------------------------------------------------------------------------------------------
@view("summary")
@by_corpus
def summary(source: Source, options: Compared, dataset: str) -> Part:
    """Models by metrics; below a model what was imported of it, a row per origin."""
    columns = [one for one in source.experiment.columns if not one.datasets or dataset in one.datasets]
    rows, imported = {}, {}
    for model, name in source.rows.items():
        rows[model] = name
        for (origin, hardware), runs in _imported(source, dataset, model).items():
            key = f"{model} evidence {runs[0].name}"
            rows[key], imported[key] = f"{name}, imported: {origin}, {hardware}", (model, runs)

    def cell(row: str, number: int) -> Cell:
        if row in imported:
            return _imported_cell(source, dataset, *imported[row], columns[number])
        return _cell(source, options, dataset, row, columns[number])

    return source.part(dataset, rows, source.heads(columns), cell)


def _cell(source: Source, options: Compared, dataset: str, model: str, column: Column) -> Cell:
    """A mean over runs, a test against the baseline, or how much smaller a mean is than that of another model."""
    if not column.measured:
        return source.blank(dataset, model, column)
    gained, is_gain, of_model = column.metric.partition(metrics.GAIN)
    if column.metric in TESTS:
        return _test_cell(source, options, dataset, model, column)
    if is_gain or column.metric.endswith(metrics.REDUCTION):
        metric, other = (
            (gained, of_model) if is_gain else (column.metric.removesuffix(metrics.REDUCTION), options.baseline)
        )
        return _gain_cell(
            source, source.blank(dataset, model, column), dataset, (model, other), metric, percent=not is_gain
        )
    return source.cell(dataset, model, column)


def _test_cell(source: Source, options: Compared, dataset: str, model: str, column: Column) -> Cell:
    """Two-sided unpaired test against the baseline (Parthiban et al. 2021, SM Table 1)."""
    blank = source.blank(dataset, model, column)
    if model == options.baseline:
        return replace(blank, note="reference", runs="")
    by_seed = [source.values(dataset, name, options.tested, column.stage) for name in (model, options.baseline)]
    samples = [[v for seed, v in values.items() if seed not in options.seeds_not_tested] for values in by_seed]
    result = TESTS[column.metric](*samples)
    if result.p is None:
        return replace(blank, gaps=(Gap(GapCode.NOT_COMPUTABLE, (result.reason,)),))
    return replace(blank, measured=Measured(result.p), note=_counts(samples))


def _counts(samples: Sequence[Sequence[float]]) -> str:
    return numbers.counts([len(sample) for sample in samples])


def _gain_cell(
    source: Source, blank: Cell, dataset: str, models: tuple[str, str], metric: str, *, percent: bool
) -> Cell:
    """How much smaller the mean of the first model is than the second's, or by how many percent of that."""
    if models[0] == models[1]:
        return replace(blank, note="reference", runs="")
    samples = [source.values(dataset, model, metric) for model in models]
    both = zip(models, samples, strict=True)
    gaps = tuple(gap for model, values in both for gap in source.gaps(dataset, model, values))
    own, other = (mean_of(values.values()) for values in samples)
    if own is None or other is None:
        return replace(blank, gaps=gaps)
    gain = (other.mean - own.mean) * (100 / other.mean if percent else 1)
    return replace(blank, measured=Measured(gain), note=_counts([list(values) for values in samples]), gaps=gaps)


def _imported(source: Source, dataset: str, model: str) -> dict[tuple[str, str], list[Evidence]]:
    """Runs measured elsewhere, by origin and hardware."""
    found: dict[tuple[str, str], list[Evidence]] = {}
    for one in evidence.chosen(source.study, source.experiment, source.records.evidence):
        if (one.run.dataset, one.run.model) == (dataset, model):
            found.setdefault((one.origin, one.hardware), []).append(one)
    return found


def _imported_cell(source: Source, dataset: str, model: str, runs: Sequence[Evidence], column: Column) -> Cell:
    """Mean over imported runs beside the published number; they are not tested against the study's own."""
    if not column.measured or column.stage or column.metric in TESTS or metrics.GAIN in column.metric:
        return Cell(wanted=False)
    values = [one.values[column.metric, ""] for one in runs if (column.metric, "") in one.values]
    without = len(runs) - len(values)
    return replace(
        source.blank(dataset, model, column),
        measured=mean_of(values),
        planned=len(runs),
        same=source.is_published(dataset) and all(same_setting(one.run, source.paper) for one in runs),
        gaps=(Gap(GapCode.IMPORTED_WITHOUT, (without,)),) if without else (),
        note=numbers.seeds([one.run.seed for one in runs]),
        runs="",
    )


# --- the known truth ------------------------------------------------------------------------------------------------
@view("truth")
def truth(source: Source, options: Compared) -> Iterator[Part]:
    """As `summary` for the known-truth languages only, headed by the language's own values."""
    columns = source.experiment.columns
    for part in summary(source, options):
        if source.is_language(part.dataset):
            rows = [
                Row(key, name, tuple(_exact_cell(source, part.dataset, column, exact) for column in columns))
                for key, (name, exact) in EXACT.items()
            ]
            yield replace(part, rows=(*rows, *part.rows))


def _exact_cell(source: Source, dataset: str, column: Column, of_law: Mapping[str, str | None]) -> Cell:
    exact = of_law.get(column.metric, "")
    value = 0.0 if exact is None else exact_value(source.records, dataset, exact)
    return Cell(
        measured=None if value is None else Measured(value),
        digits=column.digits,
        metric=exact or column.metric,
        note="" if value is None else "exact",
        wanted=exact != "",
    )


# --- every pair of models -------------------------------------------------------------------------------------------
@view("pairwise", origin="this study")
@by_corpus
def pairwise(source: Source, options: Pairwise, dataset: str) -> Part:
    """Row against column: p of an unpaired two-sided test, and which of the two is lower (Kanai et al. 2018)."""
    columns = {model: f"against {name}" for model, name in source.models.items()}
    return source.part(dataset, source.models, columns, lambda a, b: _pair_cell(source, options, dataset, (a, b)))


def _pair_cell(source: Source, options: Pairwise, dataset: str, pair: tuple[str, str]) -> Cell:
    if pair[0] == pair[1]:
        return Cell(wanted=False)
    metric = metrics.P_VALUE_WELCH if options.welch else metrics.P_VALUE
    samples = [source.values(dataset, model, options.tested, options.stage) for model in pair]
    result = TESTS[metric](*(values.values() for values in samples))
    if result.p is None:
        both = zip(pair, samples, strict=True)
        gaps = tuple(gap for model, values in both for gap in source.gaps(dataset, model, values, options.stage))
        return Cell(metric=metric, gaps=gaps or (Gap(GapCode.NOT_COMPUTABLE, (result.reason,)),))
    means = [sum(values.values()) / len(values) for values in samples]
    lower = "lower" if means[0] < means[1] else "higher"
    verdict = lower if result.p < SIGNIFICANCE else "no difference at 5 %"
    note = f"{verdict}, {_counts([list(values) for values in samples])}"
    return Cell(measured=Measured(result.p), metric=metric, note=note, runs=f"{dataset}/{pair[0]}")
