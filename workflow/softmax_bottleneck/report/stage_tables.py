"""Tables of what follows training: every pair of models tested against each other (Kanai 2018, section 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from softmax_bottleneck.measuring import statistics
from softmax_bottleneck.report.cells import Cell, Measured, Part, Row, Source, label, part_of

SIGNIFICANCE = 0.05  # published


def pairwise(source: Source) -> list[Part]:
    """Row against column: p of an unpaired two-sided test of test perplexity, and which of the two is lower.

    Options: `tested`, the metric; `stage`, the stage it is of; `welch`, without the assumption of equal variances.
    """
    models = source.experiment.models
    heads = [f"against {label(source.study, model)}" for model in models]
    parts = []
    for dataset in source.experiment.datasets:
        rows = [
            Row(a, label(source.study, a), tuple(_pair_cell(source, dataset, a, b) for b in models)) for a in models
        ]
        parts.append(part_of(source, dataset, heads, rows))
    return parts


def _pair_cell(source: Source, dataset: str, a: str, b: str) -> Cell:
    if a == b:
        return Cell(wanted=False)
    options = source.experiment.options
    metric, stage = str(options.get("tested", "test_ppl")), str(options.get("stage", ""))
    samples = [source.values(dataset, model, metric, stage) for model in (a, b)]
    test = statistics.welch_t if options.get("welch") else statistics.student_t
    result = test(*(list(values.values()) for values in samples))
    gaps = [source.gap(dataset, model, values, stage) for model, values in zip((a, b), samples, strict=True)]
    if result.p is None:
        return Cell(is_p=True, gap="; ".join(dict.fromkeys([one for one in gaps if one] or [result.reason])))
    means = [sum(values.values()) / len(values) for values in samples]
    verdict = f"{'lower' if means[0] < means[1] else 'higher'}" if result.p < SIGNIFICANCE else "no difference at 5 %"
    counts = f"n {len(samples[0])} and {len(samples[1])}"
    return Cell(measured=Measured(result.p), is_p=True, note=f"{verdict}, {counts}", runs=f"{dataset}/{a}")


VIEWS: Mapping[str, Callable[[Source], list[Part]]] = {"pairwise": pairwise}
