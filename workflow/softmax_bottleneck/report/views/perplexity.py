"""Tables of perplexity: models by metrics, tests of every pair of models, synthetic languages; and training curves.

The first kind of table corresponds to the main table of every paper, the second to Table 3 of Kanai et al. 2018. The
third kind compares models with the known true distribution of a synthetic language.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import pandas as pd
from matplotlib.ticker import MaxNLocator

from softmax_bottleneck.records import metrics
from softmax_bottleneck.records.metrics import ENTROPY_PPL, PRESS_RANK, RANK_TRUTH, TEST_PPL, VALID_PPL
from softmax_bottleneck.report import figures, numbers, plots
from softmax_bottleneck.report.cells import Cell, MeasuredCell, Row, Section, mean_of
from softmax_bottleneck.report.source import Source, exact_value
from softmax_bottleneck.statistics.samples import student_t, welch_t
from softmax_bottleneck.study import schema

HIGHEST = 1.8  # times the lowest perplexity: the end of the axis of training curves
SIGNIFICANCE = 0.05  # Kanai et al. 2018
TESTS = {metrics.P_VALUE: student_t, metrics.P_VALUE_WELCH: welch_t}


# --- models by metrics ----------------------------------------------------------------------------------------------
def summary_table(
    source: Source, dataset: str, *, baseline: str = "softmax", seeds_not_tested: tuple[schema.Integer, ...] = ()
) -> Section:
    """Return a section with a row per model and a column per metric that the experiment shows for this corpus.

    Three kinds of metric compare two models. A p-value is that of a two-sided unpaired t-test (Student's or Welch's)
    between the test perplexities of the model and the baseline. A gain, `<metric>_gain_vs_<other>`, says how much
    smaller the model's mean is than the other's. A reduction, `<metric>_reduction_pct`, is the gain over the baseline
    in percent. All three compare the numbers of the column's stage.

    Args:
        source: the experiment with its records.
        dataset: the corpus.
        baseline: model with which p-values and reductions compare.
        seeds_not_tested: seeds that count in the means but not in the tests, as in Parthiban et al. 2021, SM Table 1.
    """
    columns = [column for column in source.experiment.columns if not column.datasets or dataset in column.datasets]

    def cell(row: str, number: int) -> Cell:
        column = columns[number]
        compared, blank = metrics.comparison(column.metric), source.blank(dataset, row, column)
        if not column.measured:
            return blank
        if not (compared or column.metric in TESTS):
            return source.cell(dataset, row, column)
        models = (row, (compared and compared.other) or baseline)
        if models[0] == models[1]:
            return replace(blank, note="reference", runs="")
        blank = replace(blank, same=source.same(dataset, *models))
        if compared is None:
            by_seed = [source.values(dataset, model, TEST_PPL, blank.stage) for model in models]
            tested = [[ppl for seed, ppl in values.items() if seed not in seeds_not_tested] for values in by_seed]
            result = TESTS[column.metric](*tested)
            if result.p is None:
                return replace(blank, reason=result.reason)
            return replace(blank, measured=MeasuredCell(result.p), note=numbers.counts([*map(len, tested)]))
        stage = column.stage
        samples = {model: source.values(dataset, model, compared.metric, stage) for model in models}
        gaps = tuple(gap for model, values in samples.items() for gap in source.gaps(dataset, model, values, stage))
        mean, reference = (mean_of(values.values()) for values in samples.values())
        if mean is None or reference is None:
            return replace(blank, gaps=gaps)
        gain = (reference.mean - mean.mean) * (1 if compared.other else 100 / reference.mean)
        counts = numbers.counts([*map(len, samples.values())])
        return replace(blank, measured=MeasuredCell(gain), note=counts, gaps=gaps)

    return source.section(dataset, source.rows, source.column_labels(columns), cell)


# --- every pair of models -------------------------------------------------------------------------------------------
def pairwise_table(source: Source, dataset: str, *, stage: Literal["", "finetuned", "dynamic"] = "") -> Section:
    """Return a section with the p-value of Student's two-sided unpaired t-test for each pair of models.

    The tests compare test perplexities. The note below a p-value starts with `lower` or `higher` if the mean of the
    row's model is significantly lower or higher than that of the column's model, else with `no difference at 5 %`.
    `stage` is the stage of the perplexities: after training (empty), finetuning or dynamic evaluation.
    """

    def cell(row: str, column: str) -> Cell:
        if row == column:
            return Cell(wanted=False)
        samples = {model: source.values(dataset, model, TEST_PPL, stage) for model in (row, column)}
        result = student_t(*(values.values() for values in samples.values()))
        if result.p is None or result.t is None:
            gaps = tuple(gap for model, values in samples.items() for gap in source.gaps(dataset, model, values, stage))
            return Cell(metric=metrics.P_VALUE, gaps=gaps, reason="" if gaps else result.reason)
        lower = "lower" if result.t < 0 else "higher"
        verdict = lower if result.p < SIGNIFICANCE else "no difference at 5 %"
        note = f"{verdict}, {numbers.counts([*map(len, samples.values())])}"
        return Cell(measured=MeasuredCell(result.p), metric=metrics.P_VALUE, note=note, runs=f"{dataset}/{row}")

    columns = {model: f"against {name}" for model, name in source.models.items()}
    return source.section(dataset, source.models, columns, cell)


# --- synthetic languages with a known distribution ------------------------------------------------------------------
OF_TEXT = (TEST_PPL, PRESS_RANK, *(f"{metrics.EFFECTIVE_RANK}{share}" for share in ("1e-3", "1e-4", "1e-5")))
# Rows of the true distribution: key -> label, and metric of a model -> metric with the exact value (None: it is zero).
EXACT: dict[str, tuple[str, dict[str, str | None]]] = {
    "language": (
        "The true distribution, as expected in these contexts",
        {TEST_PPL: ENTROPY_PPL, PRESS_RANK: RANK_TRUTH, metrics.EXCESS_PPL: None, metrics.KL_TRUTH: None},
    ),
    "language-text": ("The true distribution, on this very text", {metric: f"law_{metric}" for metric in OF_TEXT}),
}


def truth_table(source: Source) -> Iterator[Section]:
    """Yield the section of `summary_table` for each synthetic language, with two rows of the true distribution on top.

    The first row has values computed from the true distribution alone: its perplexity is exp(mean entropy of the next
    word in the contexts of the test text). The second row scores the true distribution on the words of the test text,
    as if it were a model.
    """
    for dataset in source.corpora:
        if source.study.dataset(dataset).kind != "language":
            continue
        section, rows = summary_table(source, dataset), list[Row]()
        for key, (name, exact_metrics) in EXACT.items():
            cells = []
            for column in source.experiment.columns:
                exact = exact_metrics.get(column.metric, "")
                value = 0.0 if exact is None else exact_value(source.records, dataset, exact)
                measured, note = (None, "") if value is None else (MeasuredCell(value), "exact")
                metric = exact or column.metric
                cells.append(Cell(measured, digits=column.digits, metric=metric, note=note, wanted=exact != ""))
            rows.append(Row(key, name, tuple(cells)))
        yield replace(section, rows=(*rows, *section.rows))


# --- training curves -------------------------------------------------------------------------------------------------
def training_figure(source: Source) -> plots.Drawing:
    """Draw the validation perplexity after every epoch, with a line per model and a panel per corpus."""
    rows = [
        (dataset, run.model, run.seed, line["epoch"], line[VALID_PPL])
        for dataset in source.corpora
        for run in source.runs(dataset)
        for line in source.records.curve(run.path)
    ]
    data = pd.DataFrame(rows, columns=["dataset", "model", "seed", "epoch", VALID_PPL])
    looks = figures.styles(source.models, source.study)

    def draw(row: plots.AxesArray, dataset: str, epochs: pd.DataFrame) -> None:
        (panel,), lowest = row, epochs[VALID_PPL].min()
        ends = plots.curves(panel, epochs, "epoch", VALID_PPL, looks)
        panel.set(title=figures.corpus_title(source, dataset), xlabel="epoch", ylabel="validation perplexity")
        panel.set(ylim=(0.97 * lowest, HIGHEST * lowest))
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        plots.label_lines(panel, ends, {model: figures.short_name(source.study, model) for model in ends}, looks)

    return figures.by_corpus(source, data, (1, 8.0, 3.8), draw)
