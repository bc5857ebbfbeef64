"""Numbers that claims are judged by, each with a 95 % interval.

Perplexities, ranks, times and counts are compared by logarithms: a difference of log perplexities is one in nats, and
0.005 of it is 0.5 % of any perplexity. Intervals are closed forms, so that 1,000 resamples cost no more than an array.

Suffixes as in `view`; S sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from softmax_bottleneck.measuring.statistics import pearson_r
from softmax_bottleneck.records.metrics import PRESS_RANK, TEST_PPL, find
from softmax_bottleneck.report.claims.view import LAW, Float64, Sample, View
from softmax_bottleneck.report.numbers import MIN_POINTS as MIN_POINTS

ALPHA = 0.05  # of every interval, two-sided, as the published tests
POWER = 0.8  # with which the seeds that are needed would decide
MIN_RUNS = 3  # on each side of a comparison
ALIKE = 0.05  # parameters, relative: within it two models are of one size
MOST_NEEDED = 1000  # seeds; more are not counted

SCALES: dict[str, Callable[[float], float]] = {
    "%": lambda x: 100 * math.expm1(x) if x < 700 else math.inf,  # of a difference of logarithms
    "×": lambda x: math.exp(x) if x < 700 else math.inf,
    "share": lambda x: 100 * x,
}
SUFFIXES = {"%": "\u00a0%", "×": "\u00a0times", "share": "\u00a0%"}


# --- intervals ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Interval:
    """Value and interval of each resample.

    Attributes:
        n: units on each side.
        spread: standard deviation of the value of a single unit (of one of each side), of the runs as they are.
        least: units it takes; with fewer the interval is infinite.
    """

    value_B: Float64
    low_B: Float64
    high_B: Float64
    n: tuple[int, ...]
    spread: float
    least: int

    def needed(self, distance: float) -> int:
        """Return the units per side with which, at POWER, the interval would end within a distance of its value."""
        if min(self.n) > 1 and math.isfinite(self.value_B[0]):
            for k in range(self.least, MOST_NEEDED):
                df = len(self.n) * (k - 1)
                if special.stdtrit(df, [1 - ALPHA / 2, POWER]).sum() * self.spread <= distance * math.sqrt(k):
                    return max(k, min(self.n) + 1)
            return MOST_NEEDED
        return self.least


def _around(value_B: Float64, half_B: Float64, n: Sequence[int], spread: float, least: int) -> Interval:
    half_B = np.where(min(n) < least, np.inf, half_B)
    return Interval(value_B, value_B - half_B, value_B + half_B, tuple(n), spread, least)


def student(sides: Sequence[Float64], tail: float) -> Interval:
    """Mean of the first side [B, N, 1], less that of the second if there is one: Student's interval, or Welch's."""
    n = [side.shape[1] for side in sides]
    ddof = int(min(n) > 1)
    error_SB = np.stack([side[:, :, 0].var(1, ddof=ddof) / side.shape[1] for side in sides])
    mean_SB = np.stack([side[:, :, 0].mean(1) for side in sides])
    total_B = error_SB.sum(0)
    freedom_B = total_B**2 / np.maximum((error_SB**2 / np.maximum(np.array(n)[:, None] - 1, 1)).sum(0), 1e-300)
    half_B = special.stdtrit(np.maximum(freedom_B, 1.0), 1 - tail) * np.sqrt(total_B)
    spread = math.sqrt(sum(error * count for error, count in zip(error_SB[:, 0], n, strict=True)))
    return _around(mean_SB[0] - mean_SB[1:].sum(0), half_B, n, spread, MIN_RUNS)


def fisher(points: Sequence[Float64], tail: float, ranked: bool = False) -> Interval:
    """Pearson's r of points [B, N, 2] with Fisher's interval; of too few points no number at all."""
    x_BN, y_BN = points[0][:, :, 0], points[0][:, :, 1]
    n = x_BN.shape[1]
    r_B = np.clip(pearson_r(_ranks(x_BN), _ranks(y_BN)) if ranked else pearson_r(x_BN, y_BN), -0.999999, 0.999999)
    wider_B = 1 + r_B**2 / 2 if ranked else 1.0  # Bonett and Wright 2000
    half_B = special.ndtri(1 - tail) * np.sqrt(wider_B / max(n - 3, 1))
    fisher = _around(np.arctanh(r_B), half_B, [n], 1.0, MIN_POINTS)
    low_B, high_B = (np.tanh(end) if n >= MIN_POINTS else end for end in (fisher.low_B, fisher.high_B))
    shown_B = r_B if n >= MIN_POINTS else np.full_like(r_B, math.nan)
    return Interval(shown_B, low_B, high_B, (n,), float(1 - r_B[0] ** 2), MIN_POINTS)


def spearman(points: Sequence[Float64], tail: float) -> Interval:
    """Spearman's rho of points [B, N, 2], ties averaged, with the interval of Bonett and Wright."""
    return fisher(points, tail, ranked=True)


def _ranks(x_BN: Float64) -> Float64:
    """Ranks up to a constant, ties averaged."""
    return np.asarray(np.sign(x_BN[:, :, None] - x_BN[:, None]).sum(2))


def wilson(sides: Sequence[Float64], tail: float) -> Interval:
    """Share of ones among units [B, N, 1] with Wilson's interval."""
    share_B, n = sides[0][:, :, 0].mean(1), sides[0].shape[1]
    z = float(special.ndtri(1 - tail))
    centre_B = (share_B + z * z / (2 * n)) / (1 + z * z / n)
    half_B = z * np.sqrt(share_B * (1 - share_B) / n + (z / (2 * n)) ** 2) / (1 + z * z / n)
    spread = math.sqrt(max(share_B[0] * (1 - share_B[0]), 0.05))
    return replace(_around(centre_B, half_B, [n], spread, MIN_POINTS), value_B=share_B)


def least(sides: Sequence[Float64], tail: float) -> Interval:
    """Smallest of units [B, N, 1]: for what must hold in every one of them, and needs no interval."""
    value_B = sides[0][:, :, 0].min(1)
    return Interval(value_B, value_B, value_B, (sides[0].shape[1],), 0.0, 1)


# --- quantities -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Quantity:
    """A number of some models, with its interval.

    Attributes:
        what: its name; printed only.
        unit: a key of SCALES, or another unit in which it is printed as it is.
        samples: of the models in a view; a side without units is missing.
        estimate: interval of (resampled samples, tail probability).
        metrics: that it reads, the first in every run.
        stage: at which.
        units: what more of are needed when it is undecided.
        sides: the models it compares, by pattern.
        models: a template for the names of the models, such as `{0} against {1}`.
    """

    what: str
    unit: str
    samples: Callable[..., list[Sample]]
    estimate: Callable[[Sequence[Float64], float], Interval]
    metrics: tuple[str, ...] = ()
    stage: str = ""
    units: str = "seeds"
    sides: Callable[..., list[list[str]]] = lambda view, *patterns: [view.matching(pattern) for pattern in patterns]
    models: str = ""

    def shown(self, value: float) -> float:
        """Return a value in its unit."""
        return SCALES[self.unit](value) if self.unit in SCALES else float(value)


def column(values: Iterable[float]) -> Float64:
    """Return numbers as the only column of a sample."""
    return np.array([[value] for value in values], dtype=np.float64).reshape(-1, 1)


def against(metric: str, unit: str = "%", stage: str = "", log: bool = True, words: str = "") -> Quantity:
    """A metric of the first model against that of the second, over seeds: relative, or (not `log`) their difference.

    `words` name the metric where its own do not.
    """

    def samples(view: View, *models: str) -> list[Sample]:
        sides = [(model, column(view.runs(model, metric, stage).values())) for model in models]
        return [Sample(model, np.log(values_N1) if log else values_N1) for model, values_N1 in sides]

    what = words or find(metric).words
    return Quantity(what, unit, samples, student, (metric,), stage, models="{0} against {1}")


def of_units(
    collect: Callable[..., Iterable[float | tuple[float, ...]]],
    estimate: Callable[[Sequence[Float64], float], Interval],
    what: str,
    unit: str = "",
    metrics: tuple[str, ...] = (),
    units: str = "seeds",
    names: str = "",
) -> Quantity:
    """A number over units (runs, models, heads, ...), each a number or a few that `collect` gives of the models."""

    def samples(view: View, *models: str) -> list[Sample]:
        found = list(collect(view, *models))
        values_NK = np.array(found, dtype=np.float64).reshape(len(found), -1 if found else 1)
        return [Sample("|".join(models), values_NK)]

    return Quantity(what, unit, samples, estimate, metrics, units=units, models=names)


def within_run(first: str, second: str, what: str, unit: str = "%") -> Quantity:
    """Return the quantity that divides one metric of a run by another of the same run."""

    def collect(view: View, model: str) -> Iterator[float]:
        return map(math.log, ratios(view, model, first, second).values())

    return of_units(collect, student, what, unit, (first, second), names="{0}")


def ratios(view: View, model: str, first: str, second: str) -> dict[int, float]:
    """Return one metric over another by seed."""
    below = view.runs(model, second)
    return {seed: value / below[seed] for seed, value in view.runs(model, first).items() if seed in below}


def along(metric: str, below: str = "", within: tuple[float, float] = (0, math.inf)) -> Quantity:
    """How a metric of runs (over another, if `below` is given) goes with the setting that ends their models' names.

    By Spearman's rho over runs; settings outside `within` are left out.
    """

    def settings(view: View, pattern: str) -> dict[str, float]:
        found = {}
        for model in view.learned(pattern):
            with suppress(ValueError):  # a variant of a member, not a member
                found[model] = float(model.removeprefix(pattern.rstrip("*")))
        return {model: setting for model, setting in found.items() if within[0] <= setting <= within[1]}

    def collect(view: View, pattern: str) -> Iterator[tuple[float, float]]:
        for model, setting in settings(view, pattern).items():
            values = ratios(view, model, metric, below) if below else view.runs(model, metric)
            yield from ((setting, value) for value in values.values())

    what = find(metric).words + (f" over {find(below).words}" if below else "")
    metrics = (metric, below) if below else (metric,)
    what = f"Spearman’s ρ of {what} and the setting"
    found = of_units(collect, spearman, what, "", metrics, "runs", "{0}")
    return replace(found, sides=lambda view, pattern: [list(settings(view, pattern))])


def correlation(what: str, window: float = math.inf) -> Quantity:
    """Pearson's r of test perplexity and Press rank over models, one point each.

    Points are models of one kind, size within ALIKE and schedule as the first of them, and the law, if it is asked for;
    within a `window` of nats around the median perplexity.
    """

    def points(view: View, *patterns: str) -> list[str]:
        models = [m for m in view.learned("|".join(patterns)) if view.runs(m, PRESS_RANK) and view.runs(m, TEST_PPL)]
        first = [model for model in models if model == patterns[0]] or models[:1]
        own = [m for m in models if view.planned_epochs([m]) == view.planned_epochs(first)]
        own = [m for m in own if abs(view.mean(m, "parameters") / view.mean(first[0], "parameters") - 1) <= ALIKE]
        own += view.matching(LAW) * (LAW in patterns)
        log_ppl = [math.log(view.mean(model, TEST_PPL)) for model in own]
        return [model for model, x in zip(own, log_ppl, strict=True) if abs(x - np.median(log_ppl)) <= window]

    def collect(view: View, *patterns: str) -> Iterator[tuple[float, float]]:
        for model in points(view, *patterns):
            yield view.mean(model, TEST_PPL), view.mean(model, PRESS_RANK)

    found = of_units(collect, fisher, what, metrics=(TEST_PPL, PRESS_RANK), units="models")
    return replace(found, sides=lambda view, *patterns: [points(view, *patterns)])
