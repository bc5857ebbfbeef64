"""The table "Which head should I use?": the heads of this study and of archived studies relative to the softmax."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from softmax_bottleneck.records.metrics import EFFECTIVE_RANK, PRESS_RANK, TEST_PPL
from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.report.cells import mean_of
from softmax_bottleneck.report.claims.rules import SAME_SIZE, CorpusData, against, better, interval_rule
from softmax_bottleneck.report.numbers import spread
from softmax_bottleneck.report.source import label
from softmax_bottleneck.store.paths import ROOT
from softmax_bottleneck.study import Study

SOFTMAX = "softmax"
# The models of a head; the first that a corpus has is taken: that of the softmax's size, if there is one.
HEADS = (("ss",), ("gss",), ("lms-plif",), ("lms-plif-frozen",), ("moc-equal", "moc"), ("mos-equal", "mos"))
DIGITS = {"size": 2, "time": 2}
BENCHMARKS = ROOT / "benchmarks" / "results" / "cpu.json"
BENCHMARKED = {"ss": "sigsoftmax", "lms-plif-frozen": "lms-plif"}  # names of heads there, where they differ
RANKS = {"press": PRESS_RANK, "effective": f"{EFFECTIVE_RANK}1e-3"}
TIME = interval_rule(against("sec_per_epoch", "×"), (0, 0))  # only its number is used


def head_table(studies: Sequence[FinishedStudy], study: Study) -> dict[str, Any] | None:
    """Return the table of heads relative to the softmax, or None if no study has a softmax and another head.

    The table has a row per head, with labels from `study`, and a column of perplexities per study and corpus that has a
    softmax and another head. A recommendation counts every corpus once. Sizes, ranks and times come from the first
    column, because they depend on the width of the network and on the machine. Memory is the memory of the head alone,
    benchmarked at the published size.
    """
    views = [(one, CorpusData(one.records, dataset)) for one in studies for dataset in one.datasets]
    columns = [(one, data) for one, data in views if any(_model(data, models) for models in HEADS)]
    rows = []
    for models in ((SOFTMAX,), *HEADS) if columns else ():
        cells = [_against_softmax(data, _model(data, models)) for _, data in columns]
        compared = [(data.dataset, cell["sign"]) for (_, data), cell in zip(columns, cells, strict=True) if cell]
        lower, higher = (len({corpus for corpus, own in compared if own == sign}) for sign in (-1, 1))
        counts = {"lower": lower, "higher": higher, "compared": len({corpus for corpus, _ in compared})}
        counts["unlearned"] = sum(cell.get("unlearned", 0) for cell in cells)
        sizes = _sizes(columns[0][1], _model(columns[0][1], models))
        facts = {
            "label": label(study, models[-1]),
            "cells": cells,
            "memory": numbers.number(memory().get(models[-1]), 1),
            "first": {name: numbers.number(value, DIGITS.get(name, 0)) for name, value in sizes.items()},
            "advice": advice(counts, sizes),
        }
        rows += [facts | counts] * bool(compared)
    heads = [
        {"study": one.study, "hardware": one.hardware, "corpus": one.corpora.get(data.dataset, data.dataset)}
        for one, data in columns
    ]
    return {"columns": heads, "rows": rows} if columns else None


def _model(data: CorpusData, models: Sequence[str]) -> str:
    """Return the first of some models with a test perplexity, or "" if no such model or no softmax result exists."""
    return next((model for model in models if all(data.values(own, TEST_PPL) for own in (model, SOFTMAX))), "")


def _against_softmax(data: CorpusData, model: str) -> dict[str, Any]:
    """Return the cell of a model: the change in test perplexity against the softmax; for the softmax the mean itself.

    `sign` is -1 or 1 if the interval of the change lies below or above zero, else 0. The cell is empty without a model.
    """
    if not model:
        return {}
    if model == SOFTMAX and (mean := mean_of(data.values(model, TEST_PPL).values())):
        return {"value": spread(mean.mean, mean.sd), "n": numbers.counts([mean.n]), "sign": 0}
    number = better().judge(data, model, SOFTMAX).numbers[0]
    size = data.mean(model, "parameters") / data.mean(SOFTMAX, "parameters")
    low, high = (0.0 if end is None else end for end in (number.low, number.high))
    return {
        "value": f"{numbers.number(number.value, 1, signed=True)}\u00a0%",
        "interval": numbers.interval(number.low, number.high, 1),
        "n": numbers.counts(number.n),
        "sign": -1 if high < 0 else int(low > 0),
        "size": numbers.number(size, 2) if abs(size - 1) > SAME_SIZE else "",
        "unlearned": sum(key[:2] == (data.dataset, model) for key in data.records.unlearned),
    }


def _sizes(data: CorpusData, model: str) -> dict[str, float | None]:
    """Return a model's parameters and time per epoch relative to the softmax, and its ranks; empty without a model."""
    if not model:
        return {}
    size = data.mean(model, "parameters") / data.mean(SOFTMAX, "parameters")
    times = [(number.value, number.low) for number in TIME.judge(data, model, SOFTMAX).numbers] or [(None, None)]
    facts = {"size": size, "time": times[0][0], "least_time": times[0][1]}
    return {name: data.mean(model, metric) for name, metric in RANKS.items()} | facts


def advice(counts: Mapping[str, int], sizes: Mapping[str, float | None]) -> str:
    """Return the key of the recommendation for a head; the first key applies whose condition is true.

    mixed: the perplexity is significantly lower than the softmax's in some study, and significantly higher in another.
    better: the perplexity is significantly lower in some study.
    fragile: a run failed to learn, which says more about the training than about the head.
    worse: the perplexity is significantly higher in some study.
    unproven: the head has more parameters than the softmax, or a significantly longer time per epoch.
    free: none of the above.
    """
    if counts["lower"] and counts["higher"]:
        return "mixed"
    if counts["lower"]:
        return "better"
    if counts["unlearned"]:
        return "fragile"
    if counts["higher"]:
        return "worse"
    costs_more = (sizes.get("size") or 1) > 1 + SAME_SIZE or (sizes.get("least_time") or 0) > 1
    return "unproven" if costs_more else "free"


@cache
def memory() -> dict[str, float]:
    """Return the peak memory for the loss and gradients of each benchmarked head, relative to the softmax.

    The benchmark measures the memory at the published size of Penn Treebank.
    """
    rows = json.loads(BENCHMARKS.read_text(encoding="utf-8"))["heads"] if BENCHMARKS.is_file() else []
    peaks = {row["head"]: row["peak_mib"] for row in rows if (row["corpus"], row["variant"]) == ("ptb", "ours")}
    peaks |= {model: peaks[head] for model, head in BENCHMARKED.items() if head in peaks}
    return {head: peak / peaks[SOFTMAX] for head, peak in peaks.items()}
