"""The table "Which head should I use?": perplexity, size, ranks and time of every head relative to the softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from softmax_bottleneck.records.metrics import EFFECTIVE_RANK, PRESS_RANK, TEST_PPL
from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.report.cells import mean_of
from softmax_bottleneck.report.claims.data import CorpusData
from softmax_bottleneck.report.claims.rules import SAME_SIZE, Number, against, better, interval_rule

SOFTMAX = "softmax"
# The models of a head; the first that a corpus has is taken: that of the softmax's size, if there is one.
HEADS = (("ss",), ("gss",), ("lms-plif",), ("lms-plif-frozen",), ("moc-equal", "moc"), ("mos-equal", "mos"))
RANKS = (PRESS_RANK, f"{EFFECTIVE_RANK}1e-3")
TIME = interval_rule(against("sec_per_epoch", "×"), (0, 0), (0, 0))  # only its number is used


def table(studies: Sequence[FinishedStudy], label: Callable[[str], str]) -> dict[str, Any] | None:
    """Return the table, with a column per study and corpus that has a softmax and another head; None without any.

    Sizes, ranks and times are those of the first column: they depend on the width of the network and on the machine.
    """
    columns = [(study, CorpusData(study.records, dataset)) for study in studies for dataset in study.datasets]
    columns = [(study, data) for study, data in columns if any(_model(data, models) for models in HEADS)]
    if not columns:
        return None
    reference = columns[0][1]
    rows: list[dict[str, Any]] = []
    for models in HEADS:
        cells = [_change(data, model) if (model := _model(data, models)) else None for _, data in columns]
        signs = [cell["sign"] for cell in cells if cell and cell["sign"]]
        facts = {"label": label(models[-1]), "cells": cells, "lower": signs.count(-1), "higher": signs.count(1)}
        rows.append(facts | {"reference": _sizes(reference, _model(reference, models))})
    baseline = [numbers.spread(*_mean(data)) for _, data in columns]
    return {
        "columns": [
            {"study": study.study, "hardware": study.hardware, "corpus": study.corpora.get(data.dataset, data.dataset),
             "softmax": text, "n": len(data.values(SOFTMAX, TEST_PPL))}
            for (study, data), text in zip(columns, baseline, strict=True)
        ],
        "softmax": {"label": label(SOFTMAX), "reference": _sizes(reference, SOFTMAX)},
        "rows": [row for row in rows if any(row["cells"])],
    }  # fmt: skip


def _model(data: CorpusData, models: Sequence[str]) -> str:
    """Return the first of a head's models that has a test perplexity, if the softmax has one."""
    known = [model for model in models if data.values(model, TEST_PPL) and data.values(SOFTMAX, TEST_PPL)]
    return next(iter(known), "")


def _mean(data: CorpusData) -> tuple[float | None, float | None]:
    mean = mean_of(data.values(SOFTMAX, TEST_PPL).values())
    return (mean.mean, mean.sd) if mean else (None, None)


def _change(data: CorpusData, model: str) -> dict[str, Any]:
    """Return the change in test perplexity, and its sign if the interval excludes zero."""
    number = better().judge(data, model, SOFTMAX).numbers[0]
    size = data.mean(model, "parameters") / data.mean(SOFTMAX, "parameters")
    unlearned = sum(key[:2] == (data.dataset, model) for key in data.records.unlearned)
    known = number.low is not None and number.high is not None
    return {
        "change": numbers.number(number.value, 1, signed=True),
        "interval": numbers.interval(number.low, number.high, 1),
        "n": numbers.counts(number.n),
        "sign": 0 if not known else -1 if (number.high or 0) < 0 else 1 if (number.low or 0) > 0 else 0,
        "size": numbers.number(size, 2) if abs(size - 1) > SAME_SIZE else "",
        "unlearned": unlearned,
    }


def _sizes(data: CorpusData, model: str) -> dict[str, str]:
    """Return parameters and time per epoch relative to the softmax, and ranks."""
    if not model:
        return {}
    times: Sequence[Number] = TIME.judge(data, model, SOFTMAX).numbers
    size = data.mean(model, "parameters") / data.mean(SOFTMAX, "parameters")
    ranks = [numbers.number(data.mean(model, metric), 0) for metric in RANKS]
    time = numbers.number(times[0].value if times else None, 2)
    return {"size": numbers.number(size, 2), "press": ranks[0], "effective": ranks[1], "time": time}
