"""Test perplexity and Press rank of runs, with the published pairs beside them, and their correlation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from softmax_bottleneck.measuring import statistics
from softmax_bottleneck.measuring.statistics import Correlation
from softmax_bottleneck.records.metrics import PRESS_RANK, TEST_PPL
from softmax_bottleneck.records.records import groups
from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.source import Source
from softmax_bottleneck.study import Run

MEASURED, PUBLISHED = "measured", "published"  # origins


def pairs(
    source: Source, dataset: str, models: Sequence[str], settings: Sequence[str] = (), *, only_learned: bool = True
) -> pd.DataFrame:
    """A line per run with both numbers, then one per published pair, model by model.

    Columns: dataset, model, origin, seed, the settings of the head that are asked for, and the two metrics.
    `only_learned` leaves out runs that learned no more than how frequent words are.
    """
    values = source.learned if only_learned else source.values
    rows: list[tuple[object, ...]] = []
    for model in models:
        runs = source.runs(dataset, model)
        ppl, rank = (values(dataset, model, metric) for metric in (TEST_PPL, PRESS_RANK))
        for run in runs:
            if run.seed in ppl and run.seed in rank:
                rows.append(
                    (dataset, model, MEASURED, run.seed, *_options(run, settings), ppl[run.seed], rank[run.seed])
                )
        published = source.published_pair(dataset, model, TEST_PPL, PRESS_RANK)
        if published and (runs or not settings):
            rows.append((dataset, model, PUBLISHED, None, *_options(next(iter(runs), None), settings), *published))
    return _typed(rows, settings)


def _options(run: Run | None, settings: Sequence[str]) -> Iterator[float]:
    return (float(run.head.options[name]) for name in settings if run)


def _typed(rows: Sequence[Sequence[object]], settings: Sequence[str]) -> pd.DataFrame:
    figures = (*settings, TEST_PPL, PRESS_RANK)
    frame = pd.DataFrame(rows, columns=["dataset", "model", "origin", "seed", *figures])
    return frame.astype({"seed": "Int64", **dict.fromkeys(figures, "float64")})


def grid(source: Source, dataset: str) -> pd.DataFrame:
    """Runs of the grid over c and k of GSS, then the published dots, whose settings are not given (Figure 2)."""
    dots = source.published[source.published["dataset"] == source.corpus(dataset)]
    dots = dots[dots["condition"].str.startswith("point=")]
    rows = []
    for _, pair in dots.groupby("condition", sort=False):
        values = dict(zip(pair["metric"], pair["value"].astype(float), strict=True))
        rows.append((dataset, "gss", PUBLISHED, None, None, None, values[TEST_PPL], values[PRESS_RANK]))
    measured = pairs(source, dataset, list(source.models), ("c", "k"))
    return pd.concat([measured, _typed(rows, ("c", "k"))], ignore_index=True)


def correlate(points: pd.DataFrame) -> Correlation:
    """Pearson's r of test perplexity and rank with a bootstrap interval; below zero: higher rank, lower perplexity.

    None of fewer than MIN_POINTS, with the reason.
    """
    found = statistics.pearson(points[TEST_PPL], points[PRESS_RANK], np.random.default_rng(0))
    runs = f"{len(points)} run{'s' * (len(points) != 1)}"
    few = f"no correlation from {runs}, at least {numbers.MIN_POINTS} are needed"
    return found if len(points) >= numbers.MIN_POINTS else replace(found, r=None, low=None, high=None, reason=few)


def kind_of(run: Run) -> str:
    """What runs must share for their ranks and perplexities to be correlated: `awd-lstm, ET-ASGD, 8 epochs`."""
    return f"{run.body.kind}, {run.schedule.optimizer.upper()}, {run.schedule.epochs} epochs"


def correlations_by_kind(source: Source, dataset: str, points: pd.DataFrame) -> str:
    """`correlation_words` of the measured runs of each kind."""
    kinds = {(run.model, run.seed): kind_of(run) for model in source.models for run in source.runs(dataset, model)}
    named = points.assign(kind=[kinds[key] for key in zip(points["model"], points["seed"], strict=True)])
    return "; ".join(f"{kind}: {correlation_words(own)}" for (kind,), own in groups(named, "kind")) or "no runs"


def correlation_words(points: pd.DataFrame) -> str:
    """`r = −0.48 (95 % interval −0.62 to −0.31, n = 70)`, or why there is none."""
    found = correlate(points)
    if found.r is None:
        return found.reason
    interval = numbers.interval(found.low, found.high)
    within = f"95 % interval {interval}, " if interval else ""
    return f"r = {numbers.signed(found.r)} ({within}n = {found.n})"
