"""The findings at the top of a report: how much has finished, and the table "Which head should I use?"."""

from collections.abc import Sequence
from typing import Any

from softmax_bottleneck.records.metrics import (
    EFFECTIVE_RANK,
    PRESS_RANK,
    TEST_PPL,
)
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.report.cells import mean_of
from softmax_bottleneck.report.claims.data import CorpusData
from softmax_bottleneck.report.claims.rules import SAME_SIZE, against, better, interval_rule
from softmax_bottleneck.report.numbers import spread
from softmax_bottleneck.report.source import label
from softmax_bottleneck.study import Study

SOFTMAX = "softmax"
# The models of a head; the first that a corpus has is taken: that of the softmax's size, if there is one.
HEADS = (("ss",), ("gss",), ("lms-plif",), ("lms-plif-frozen",), ("moc-equal", "moc"), ("mos-equal", "mos"))
RANKS = {"press": PRESS_RANK, "effective": f"{EFFECTIVE_RANK}1e-3"}
TIME = interval_rule(against("sec_per_epoch", "×"), (0, 0), (0, 0))  # only its number is used


def summary(records: Records) -> str:
    """Return how much of the study has finished, in one sentence."""
    states = records.counts()
    if not states["planned"]:
        return "This study plans no training run."
    if (records.rows["run_id"] == "").all():
        return f"No run has finished yet; {states['planned']} are planned. The published numbers below stand alone."
    return f"{states['ok']} of {states['planned']} planned training runs finished and were measured."


# --- which head should I use? ---------------------------------------------------------------------------------------
def head_table(studies: Sequence[FinishedStudy], study: Study) -> dict[str, Any] | None:
    """Return the heads of studies relative to the softmax; None without any. `study` names the heads.

    It has a column of perplexities per study and corpus with a softmax and another head. Sizes, ranks and times depend
    on the width of the network and on the machine: they are those of the first column.
    """
    views = [(one, CorpusData(one.records, dataset)) for one in studies for dataset in one.datasets]
    columns = [(one, data) for one, data in views if any(_model(data, models) for models in HEADS)]
    if not columns:
        return None
    first = columns[0][1]
    rows = []
    for models in ((SOFTMAX,), *HEADS):
        cells = [_against_softmax(data, _model(data, models)) for _, data in columns]
        signs = [cell["sign"] for cell in cells if cell]
        facts = {"label": label(study, models[-1]), "cells": cells, "first": _sizes(first, _model(first, models))}
        counts = {"lower": signs.count(-1), "higher": signs.count(1), "compared": len(signs)}
        rows += [{**facts, **counts}] * bool(signs)
    heads = [
        {"study": one.study, "hardware": one.hardware, "corpus": one.corpora.get(data.dataset, data.dataset)}
        for one, data in columns
    ]
    return {"columns": heads, "rows": rows}


def _model(data: CorpusData, models: Sequence[str]) -> str:
    """Return the first of a head's models that has a test perplexity, if the softmax has one."""
    known = [model for model in models if data.values(model, TEST_PPL) and data.values(SOFTMAX, TEST_PPL)]
    return next(iter(known), "")


def _against_softmax(data: CorpusData, model: str) -> dict[str, Any]:
    """Return the change in test perplexity, with its sign if the interval excludes zero; of the softmax its mean."""
    if not model:
        return {}
    if model == SOFTMAX and (mean := mean_of(data.values(model, TEST_PPL).values())):
        return {"value": spread(mean.mean, mean.sd), "n": numbers.counts([mean.n]), "sign": 0}
    number = better().judge(data, model, SOFTMAX).numbers[0]
    size = data.mean(model, "parameters") / data.mean(SOFTMAX, "parameters")
    low, high = (0.0 if end is None else end for end in (number.low, number.high))
    return {
        "value": f"{numbers.signed(number.value, 1)}\u00a0%",
        "interval": numbers.interval(number.low, number.high, 1),
        "n": numbers.counts(number.n),
        "sign": -1 if high < 0 else int(low > 0),
        "size": numbers.number(size, 2) if abs(size - 1) > SAME_SIZE else "",
        "unlearned": sum(key[:2] == (data.dataset, model) for key in data.records.unlearned),
    }


def _sizes(data: CorpusData, model: str) -> dict[str, str]:
    """Return parameters and time per epoch relative to the softmax, and ranks."""
    if not model:
        return {}
    size = data.mean(model, "parameters") / data.mean(SOFTMAX, "parameters")
    time = next((number.value for number in TIME.judge(data, model, SOFTMAX).numbers), None)
    ranks = {name: numbers.number(data.mean(model, metric), 0) for name, metric in RANKS.items()}
    return ranks | {"size": numbers.number(size, 2), "time": numbers.number(time, 2)}
