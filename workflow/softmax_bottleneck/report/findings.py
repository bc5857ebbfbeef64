"""The findings at the top of a report: the best model in sentences, and the table "Which head should I use?"."""

from collections.abc import Mapping, Sequence
from typing import Any

from softmax_bottleneck.records.metrics import (
    EFFECTIVE_RANK,
    ENTROPY_PPL,
    LAW_TEST_PPL,
    PRESS_RANK,
    RANK_TRUTH,
    TEST_PPL,
)
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.report.cells import MeasuredCell, mean_of
from softmax_bottleneck.report.claims.data import CorpusData
from softmax_bottleneck.report.claims.rules import SAME_SIZE, against, better, interval_rule
from softmax_bottleneck.report.numbers import percent, spread
from softmax_bottleneck.report.source import exact_value, label
from softmax_bottleneck.study import Study

SOFTMAX = "softmax"
# The models of a head; the first that a corpus has is taken: that of the softmax's size, if there is one.
HEADS = (("ss",), ("gss",), ("lms-plif",), ("lms-plif-frozen",), ("moc-equal", "moc"), ("mos-equal", "mos"))
RANKS = {"press": PRESS_RANK, "effective": f"{EFFECTIVE_RANK}1e-3"}
TIME = interval_rule(against("sec_per_epoch", "×"), (0, 0), (0, 0))  # only its number is used


# --- sentences ------------------------------------------------------------------------------------------------------
def in_short(study: Study, records: Records) -> str:
    """Return the best model of each corpus, and how far it is from the true distribution; empty before any run."""
    sentences = []
    for dataset in study.datasets:
        if scores := means(study, records, dataset):
            sentences += [
                best_sentence(study, records, dataset, scores),
                truth_sentence(study, records, dataset, scores),
            ]
    return " ".join(filter(None, sentences))


def summary(records: Records) -> str:
    """Return how much of the study has finished, in one sentence."""
    states = records.counts()
    if not states["planned"]:
        return "This study plans no training run."
    if (records.rows["run_id"] == "").all():
        return f"No run has finished yet; {states['planned']} are planned. The published numbers below stand alone."
    return f"{states['ok']} of {states['planned']} planned training runs finished and were measured."


def means(study: Study, records: Records, dataset: str, metric: str = TEST_PPL) -> dict[str, MeasuredCell]:
    """Return the mean of a metric for every model that has it, in the study's order.

    A run counts once, under the label it is trained under; runs no better than a unigram model do not count.
    """
    runs = {(run.dataset, run.model, run.seed) for run in study.runs if not run.duplicate_of} - records.unlearned.keys()
    rows = {}
    for model in study.labels:
        values = records.values(dataset, model, metric)
        mean = mean_of(value for seed, value in values.items() if (dataset, model, seed) in runs)
        if mean:
            rows[model] = mean
    return rows


def best_model(scores: Mapping[str, MeasuredCell]) -> str:
    """Return the model with the lowest mean among those with the most runs: the lowest of many single runs is luck."""
    n = max(score.n for score in scores.values())
    return min((model for model in scores if scores[model].n == n), key=lambda model: scores[model].mean)


def best_sentence(study: Study, records: Records, dataset: str, scores: Mapping[str, MeasuredCell]) -> str:
    """Return the lowest mean perplexity, and its difference from that of the plain softmax.

    The interval of the difference is corrected (Bonferroni) for the choice among the models with as many runs.
    """

    def named(model: str) -> str:
        return f"{label(study, model)} ({spread(scores[model].mean, scores[model].sd)})"

    best = best_model(scores)
    n = scores[best].n
    place = f"On {study.datasets[dataset].title}, " if len(study.datasets) > 1 else ""
    text = f"{place}{named(best)} has the lowest test perplexity{f' over {n} runs' if n > 1 else ''}"
    heads = {run.model: run.head.name for run in study.needed if run.dataset == dataset}
    softmax = next((model for model, head in heads.items() if head == "softmax"), "")
    if softmax not in scores or softmax == best:
        return f"{text}."
    data = CorpusData(records, dataset)
    others = sum(score.n == n for model, score in scores.items() if model != softmax)
    number = better().judge(data, best, softmax, tests=others).numbers[0]
    ratio = data.mean(best, "parameters") / data.mean(softmax, "parameters")
    larger = f" It has {ratio:.2g} times the parameters." * (ratio > 1 + SAME_SIZE)
    choice = f", corrected for the choice among {others} models" * (others > 1)
    return f"{text}: {number.text}, against {named(softmax)}{choice}.{larger}"


def truth_sentence(study: Study, records: Records, dataset: str, scores: Mapping[str, MeasuredCell]) -> str:
    """Return the perplexity of the true distribution: expected in the text's contexts, and on the text itself."""
    expected, rank, scored = (exact_value(records, dataset, m) for m in (ENTROPY_PPL, RANK_TRUTH, LAW_TEST_PPL))
    if expected is None:
        return ""
    best = best_model(scores)
    above = scores[best].mean / (scored or expected) - 1
    text = f"The true distribution’s expected perplexity in the contexts of this text is {expected:.2f}"
    text += f"; on the text itself it is {scored:.2f}" if scored is not None else ""
    text += f". {label(study, best)} is {percent(abs(above))} {'above' if above >= 0 else 'below'} that."
    ranks = [mean.mean for mean in means(study, records, dataset, PRESS_RANK).values()]
    if rank is None:
        return text
    over = sum(mean > rank for mean in ranks)
    return f"{text} The true log-probabilities have rank {rank:.0f}; {over} of {len(ranks)} models exceed it."


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
