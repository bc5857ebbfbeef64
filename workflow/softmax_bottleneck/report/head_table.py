"""The table "Which head should I use?": every head against the softmax, with its costs and what its contrasts say."""

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from softmax_bottleneck.heads.registry import declaration
from softmax_bottleneck.records.metrics import EFFECTIVE_RANK, PRESS_RANK
from softmax_bottleneck.report import contrasts, findings, numbers
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.report.contrasts import Contrast
from softmax_bottleneck.report.samples import Model, Sample, settings_of
from softmax_bottleneck.statistics import intervals
from softmax_bottleneck.store.paths import ROOT

RANKS = {"press": PRESS_RANK, "effective": f"{EFFECTIVE_RANK}1e-3"}
# (significantly lower somewhere, significantly higher somewhere) -> advice
KINDS = {(True, True): "mixed", (True, False): "better", (False, True): "worse", (False, False): "open"}
BENCHMARKS = ROOT / "benchmarks" / "results" / "cpu.json"


def head_table(studies: Sequence[FinishedStudy]) -> dict[str, Any] | None:
    """Return the table of heads against the softmax, or None if no setting has a softmax and another head.

    The table has a row per head of report/findings.yaml or from outside the package. It has a column per setting,
    natural text and LSTMs first. All its contrasts are exploratory; `contrasts.over_all_heads` corrects them.

    Returns:
        A dict with the keys `columns` (the labels of the settings), `rows`, `measured_in` (the label of the setting in
        which sizes and ranks are measured: the first of those with most heads), `tests` (the size of the family) and
        `fair` (the number of these that can speak, see the function `advice`). A row has these keys:

        * `label`, `family`: the label of the head and its family (`heads/declaration.py`).
        * `cells`: for each column None, or a dict (see `_cell`); the softmax has `value` (perplexity), `n`, `sign`.
        * `costs`: texts for the setting `measured_in`: `size` relative to the softmax, ranks `press` and `effective`;
          and `time`, the range of time ratios over the head's contrasts in the family. Empty without runs in
          `measured_in`.
        * `at_time`: changes against wider softmaxes as slow as the head, as text; a dash if none was timed.
        * `memory`: the head's peak memory relative to the softmax, from the function `memory`, as text.
        * `advice`, `lower`, `higher`, `gain`, `basis`, `borderline`: see the function `advice`.
    """
    evidence = findings.Evidence.from_studies(studies)
    samples, same_time, heads = evidence.samples, evidence.labelled(findings.SAME_TIME), findings.heads()
    by_head = {label: evidence.against(label) for label in heads}
    every = list(itertools.chain.from_iterable(by_head.values()))
    counts = Counter(contrast.setting for contrast in every)
    settings = [setting for setting in settings_of(samples) if setting in counts]
    if not settings:
        return None
    adjusted = contrasts.over_all_heads(every)
    among_fair = contrasts.adjusted([contrast for contrast in adjusted if contrast.is_fair])
    most = max(settings, key=counts.__getitem__)
    softmax = {contrast.setting: contrast.baseline for contrast in every}
    rows = [_softmax_row([softmax[setting] for setting in settings], softmax[most])]
    for label, of_head in by_head.items():
        name, by_setting = heads[label]["name"], {contrast.setting: contrast for contrast in of_head}
        counted = [contrast for contrast in of_head if contrast in adjusted]
        costs = {}
        if at_most := by_setting.get(most):
            time = contrasts.time_range(counted)
            costs = {"size": numbers.number(at_most.size), "time": time, **_ranks(at_most.model)}
        if of_head:
            rows.append({
                "label": label,
                "family": declaration(name).family,
                "cells": [_cell(by_setting[setting]) if setting in by_setting else None for setting in settings],
                "costs": costs,
                "at_time": _at_equal_time(samples, of_head, [one for one in same_time if one.model.model.head == name]),
                "memory": numbers.number(memory().get(name), 1),
                **advice(counted, adjusted, among_fair),
            })  # fmt: skip
    table = {"columns": [setting.label for setting in settings], "rows": rows, "measured_in": most.label}
    return table | {"tests": len(adjusted), "fair": len(among_fair)}


def _softmax_row(samples: Sequence[Sample], measured: Sample) -> dict[str, Any]:
    """Return the row of the softmax: its perplexities in all settings, and its ranks in one of them, `measured`."""
    perplexities = [
        {"value": numbers.number(sample.ppl), "n": numbers.counts([len(sample.log_ppl)]), "sign": 0}
        for sample in samples
    ]
    row = {"label": "Softmax", "family": "baseline", "advice": "baseline", "memory": "1.0", "at_time": "the baseline"}
    return row | {"cells": perplexities, "costs": {"size": "1.00", "time": "1.0"} | _ranks(measured)}


def _at_equal_time(samples: Mapping[Model, Sample], of_head: Sequence[Contrast], named: Sequence[Contrast]) -> str:
    """Return a head's changes against wider softmaxes: `named` ones, and the best that takes no more time.

    Only LSTMs on natural text count.
    """
    on_text = [contrast for contrast in of_head if contrast.setting.is_lstm and not contrast.setting.is_synthetic]
    equal = [contrast for contrast in on_text if contrast.is_equal_size]
    best = [rival for contrast in equal if (rival := contrasts.at_equal_time(samples, contrast))]
    rivals = {(rival.model.model, rival.baseline.model): rival for rival in (*named, *best)}.values()
    texts = (
        f"{r.short_text} on {r.setting.labels[1]} against {r.baseline.model.setting.width} ({_times(r)}n = {min(r.n)})"
        for r in rivals
    )
    return "; ".join(texts) or numbers.DASH


def _times(contrast: Contrast) -> str:
    time = contrasts.time_range([contrast])
    return "" if time == numbers.DASH else f"{time} × the time; "


def _ranks(sample: Sample) -> dict[str, str]:
    return {name: numbers.number(sample.mean(metric), 0) for name, metric in RANKS.items()}


def _cell(contrast: Contrast) -> dict[str, Any]:
    """Return a contrast of a head with the softmax as texts, with its `sign` and its number of `diverged` runs.

    The texts are `value` (the change in percent), `n`, `interval` (may be empty), the ratios `size` and `time`, and the
    learning rates (`rates`).
    """
    return {
        "value": contrast.change_text,
        "n": numbers.counts(contrast.n),
        "interval": numbers.interval(*contrast.ends, 1) if contrast.ends else "",
        "size": numbers.number(contrast.size),
        "time": contrast.time,
        "rates": contrast.rates,
        "sign": contrast.sign,
        "diverged": contrast.n_diverged,
    }


def advice(
    counted: Sequence[Contrast], adjusted: Mapping[Contrast, float], among_fair: Mapping[Contrast, float]
) -> dict[str, Any]:
    """Return what the exploratory contrasts of a head say of it.

    A contrast can speak for or against a head only if it is fair: both sides have the same number of parameters (within
    EQUAL_SIZE), and the same learning rates were tried for both.

    Args:
        counted: the head's contrasts in the family.
        adjusted, among_fair: p-values after Holm's correction over the whole family, and over its fair contrasts.

    Returns:
        A dict with these keys:

        * `advice`: `better`, `worse` or `mixed` if the perplexity is significantly lower, higher, or lower on some
          corpora and higher on others; `open` if no change is significant; `untested` if no contrast can speak.
        * `lower`, `higher`: the corpora with a significantly lower or higher perplexity, as text.
        * `gain`: the changes that can speak, lowest to highest, as text.
        * `basis`: how many of these changes are significant, the number of seeds, and how many contrasts have both
          learning rates inside their grids, as text.
        * `borderline`: the changes that are significant in the family of fair contrasts only, with both p-values.
    """
    fair = [contrast for contrast in counted if contrast.is_fair]
    sure = [contrast for contrast in fair if adjusted[contrast] < intervals.ALPHA]
    lower, higher = ([contrast for contrast in sure if sign * contrast.change > 0] for sign in (-1, 1))
    unsure = [contrast for contrast in fair if among_fair[contrast] < intervals.ALPHA <= adjusted[contrast]]
    return {
        "advice": KINDS[bool(lower), bool(higher)] if fair else "untested",
        "lower": " and ".join(contrasts.corpora(lower)),
        "higher": " and ".join(contrasts.corpora(higher)),
        "gain": numbers.span([contrast.change for contrast in fair], signed=True),
        "basis": f"{len(sure)} of {len(fair)} significant, {contrasts.basis(fair)}" if fair else "",
        "borderline": "; ".join(
            f"{contrast.change_text} on {contrast.setting.labels[0]} "
            f"(p = {numbers.p_value(adjusted[contrast])} over {len(adjusted)}, "
            f"{numbers.p_value(among_fair[contrast])} over {len(among_fair)})"
            for contrast in unsure
        ),
    }


@cache
def memory() -> dict[str, float]:
    """Return the peak memory for the loss and gradients of each benchmarked head, relative to the softmax.

    The benchmark measures the memory at the published size of Penn Treebank. Without a benchmark file, return {}.
    """
    rows = json.loads(BENCHMARKS.read_text(encoding="utf-8"))["heads"] if BENCHMARKS.is_file() else []
    peaks = {row["head"]: row["peak_mib"] for row in rows if (row["corpus"], row["variant"]) == ("ptb", "ours")}
    return {head: peak / peaks["softmax"] for head, peak in peaks.items()}
