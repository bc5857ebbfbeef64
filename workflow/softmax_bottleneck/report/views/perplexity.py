"""Tables of perplexity (models by metrics, tests of every pair of models, synthetic languages), and an overview figure.

The first kind of table corresponds to the main table of every paper, the second to Table 3 of Kanai et al. 2018. The
third kind compares models with the known true distribution of a synthetic language. The figure at the top of every
report comes from no paper.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.ticker import EngFormatter, NullFormatter

from softmax_bottleneck.records import metrics, records
from softmax_bottleneck.records.metrics import ENTROPY_PPL, LAW_TEST_PPL, PRESS_RANK, RANK_TRUTH, TEST_PPL
from softmax_bottleneck.report import numbers, plots
from softmax_bottleneck.report.cells import Cell, MeasuredCell, Row, Section, mean_of
from softmax_bottleneck.report.source import Source, exact_value
from softmax_bottleneck.statistics.samples import Summary, student_t, welch_t
from softmax_bottleneck.study import ROOT, Experiment, Study, load_experiment, schema

RANK, SIZE = "rank_eff_1e-3", "parameters"
COLUMNS = ["dataset", "model", "seeds", SIZE, TEST_PPL, RANK]
REFERENCE = "softmax"
FAR = 0.5  # a bound farther below the best model than this share of the models' range is shown only as text
SHADES = "flare"  # from light to dark: readable with every colour-vision deficiency and in grey
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
        metric, is_gain, other = column.metric.partition(metrics.GAIN)
        is_reduction, blank = metric.endswith(metrics.REDUCTION), source.blank(dataset, row, column)
        if not column.measured:
            return blank
        if not (is_gain or is_reduction or metric in TESTS):
            return source.cell(dataset, row, column)
        models = (row, other if is_gain else baseline)
        if models[0] == models[1]:
            return replace(blank, note="reference", runs="")
        if metric in TESTS:
            by_seed = [source.values(dataset, model, TEST_PPL, blank.stage) for model in models]
            tested = [[ppl for seed, ppl in values.items() if seed not in seeds_not_tested] for values in by_seed]
            result = TESTS[metric](*tested)
            if result.p is None:
                return replace(blank, reason=result.reason)
            return replace(blank, measured=MeasuredCell(result.p), note=numbers.counts([*map(len, tested)]))
        plain, stage = metric.removesuffix(metrics.REDUCTION), column.stage
        samples = {model: source.values(dataset, model, plain, stage) for model in models}
        gaps = tuple(gap for model, own in samples.items() for gap in source.gaps(dataset, model, own, stage))
        own, reference = (mean_of(values.values()) for values in samples.values())
        if own is None or reference is None:
            return replace(blank, gaps=gaps)
        gain = (reference.mean - own.mean) * (100 / reference.mean if is_reduction else 1)
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
        first, second = (Summary.of(values.values()) for values in samples.values())
        result = student_t(first, second)
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
        if source.dataset(dataset).kind != "language":
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


# --- the overview ----------------------------------------------------------------------------------------------------
def overview_experiment(study: Study) -> Experiment:
    """Return the `Experiment` of the overview figure, which every report has without declaring it.

    It has all corpora of the study and all models that belong to no hyperparameter search.
    """
    in_grids = {model for search in study.searches.values() for model in search.members}
    models = dict.fromkeys(run.model for run in study.needed if run.model not in in_grids)
    datasets = dict.fromkeys(run.dataset for run in study.needed)
    return replace(load_experiment("overview", ROOT / "config"), models=tuple(models), datasets=tuple(datasets))


def overview_figure(source: Source) -> plots.Drawing:
    """Draw mean test perplexities: a panel per corpus with results, and a dot per model.

    The model with the lowest perplexity is on top. The shade of a dot is the effective rank with epsilon = 0.001.
    """
    data = _points(source)
    if data.empty:
        return plots.only_text(plots.NOTHING, data)
    frames = [(corpus, own.sort_values(TEST_PPL)) for (corpus,), own in records.groups(data, "dataset")]
    amount = EngFormatter(places=1)
    most = max(len(own) for _, own in frames)
    canvas, axes = plots.in_pairs(len(frames), 6.3, 0.24 * most + 0.9, min(2, len(frames)))
    low, high = (1.0, 2.0) if data[RANK].isna().all() else map(float, data[RANK].agg(["min", "max"]))
    shades = ScalarMappable(LogNorm(low, max(high, 1.01 * low)), SHADES)
    for panel, (dataset, own) in zip(axes, frames, strict=True):
        models = (plots.short_name(source.study, model) for model in own["model"])
        names = [f"{model}, {amount(size)}" for model, size in zip(models, own[SIZE], strict=True)]
        colours = [plots.LIGHT.paper if np.isnan(rank) else shades.to_rgba(rank) for rank in own[RANK]]
        look: dict[str, Any] = {"c": colours, "s": 48, "edgecolors": plots.LIGHT.ink, "linewidths": 0.6, "zorder": 3}
        panel.scatter(own[TEST_PPL], range(len(own)), **look)
        panel.set_yticks(range(len(own)), names)
        panel.set(title=plots.corpus_title(source, dataset), xlabel="test perplexity", ylim=(len(own) - 0.4, -0.6))
        _bound(source, panel, dataset, own[TEST_PPL])
    bar = canvas.colorbar(shades, ax=canvas.axes, label="effective rank (ε = 0.001)", aspect=30, pad=0.02)
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
    bar.set_ticks([low, high], labels=[f"{low:.0f}", f"{high:.0f}"])
    left_out = len(set(source.models) - set(data["model"]))
    others = f" {left_out} more not drawn: another schedule, or no results." if left_out else ""
    return plots.Drawing(canvas, data, f"Runs: {int(data['seeds'].sum())}, models: {len(data)}.{others}")


def _points(source: Source) -> pd.DataFrame:
    """Return a frame with a row per corpus and model with results.

    The columns are `dataset`, `model`, `seeds` (the number of runs), and the means over these runs of `parameters`,
    `test_ppl` and `rank_eff_1e-3`, the effective rank (nan if not measured). A model is left out if its number of
    epochs differs from that of the softmax on the same corpus. Runs that are hardly better than a unigram model
    (`Records.unlearned`) are left out as well.
    """
    rows = []
    for dataset in source.datasets:
        epochs = {model: {run.schedule.epochs for run in source.runs(dataset, model)} for model in source.models}
        for model in source.models:
            numbers = (source.values(dataset, model, name, learned=True) for name in (SIZE, TEST_PPL, RANK))
            size, ppl, rank = (list(values.values()) for values in numbers)
            if ppl and size and epochs[model] == epochs.get(REFERENCE, epochs[model]):
                means = (float(np.mean(values)) if values else np.nan for values in (size, ppl, rank))
                rows.append((dataset, model, len(ppl), *means))
    return pd.DataFrame(rows, columns=COLUMNS)


def _bound(source: Source, axes: Axes, dataset: str, ppl: pd.Series) -> None:
    """Draw the bound as a dashed vertical line: the perplexity of the true distribution. Do nothing if it is unknown.

    The bound is measured on the test text. If there is no such measurement, the bound is exp(entropy), the expected
    perplexity. `ppl` has the perplexities of the models in the panel `axes`. If all of them are far above the bound (by
    more than FAR times the range of `ppl`), text at the panel's edge replaces the line.
    """
    expected, exact = (exact_value(source.records, dataset, metric) for metric in (ENTROPY_PPL, LAW_TEST_PPL))
    bound = expected if exact is None else exact
    if bound is None:
        return
    text = f"true distribution{', as expected' if exact is None else ' on this text'}: {bound:.2f}"
    if ppl.min() - bound > FAR * max(ppl.max() - ppl.min(), 0.01 * ppl.min()):
        axes.text(0.99, 0.98, f"← {text}", transform=axes.transAxes, ha="right", va="top", fontsize=8.5)
    else:
        axes.axvline(bound, color=plots.LIGHT.ink, linewidth=1, linestyle=plots.DASHED)
        axes.text(bound, 0.01, f" {text}", transform=axes.get_xaxis_transform(), va="bottom", fontsize=8.5)
