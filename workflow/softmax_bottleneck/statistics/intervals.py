"""Estimates with confidence intervals: of means, differences, correlations and shares.

A unit is one data point of a statistic, such as a seed. A side is a sample of units; a comparison has two sides.

Suffix of array names: N units.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import special

from softmax_bottleneck.statistics.correlations import pearson_r, ranks
from softmax_bottleneck.statistics.samples import satterthwaite, welch_t
from softmax_bottleneck.statistics.shares import wilson_ends

Float64 = NDArray[np.float64]

ALPHA = 0.05  # two-sided error probability of every interval, as in the published tests
POWER = 0.8  # the probability of a decision with the number of units that `Interval.needed` returns
MIN_RUNS = 3  # on each side of a comparison; with fewer the interval is infinite
MIN_POINTS = 8  # with fewer points there is no correlation, and a share has no interval
MOST_NEEDED = 1000  # what `Interval.needed` returns if no smaller number of units is enough
INF = math.inf


@dataclass(frozen=True)
class Interval:
    """A value and its confidence interval.

    Attributes:
        value: the estimate.
        low, high: the ends of the interval.
        n: the number of units of each side: (3,) for one side, (3, 4) for a comparison of two.
        spread: the standard error that the value would have with one unit per side. With k units per side, the standard
            error is spread / sqrt(k).
        min_units: the smallest number of units per side with which the ends of the interval are finite.
    """

    value: float
    low: float
    high: float
    n: tuple[int, ...]
    spread: float
    min_units: int

    def needed(self, distance: float) -> int:
        """Return how many units, such as seeds, each side needs for the interval to exclude a bound of a rule.

        With this number, the interval excludes the bound with probability POWER. If no number below MOST_NEEDED is
        enough, the result is MOST_NEEDED; otherwise it is at least one more than the smaller side has now. If a side
        has only one unit, or if the value is not finite, nothing can be predicted, and the result is `min_units`.

        Args:
            distance: the distance between the true value and the bound, in the unit of `value`.
        """
        if min(self.n) <= 1 or not math.isfinite(self.value):
            return self.min_units
        for k in range(self.min_units, MOST_NEEDED):
            df = len(self.n) * (k - 1)
            if special.stdtrit(df, [1 - ALPHA / 2, POWER]).sum() * self.spread <= distance * math.sqrt(k):
                return max(k, min(self.n) + 1)
        return MOST_NEEDED


def student(sides: Sequence[Float64], tail: float) -> Interval:
    """Return the mean of one side [N, 1] with Student's interval, or the difference of two sides' means with Welch's.

    The difference is the first mean minus the second. `tail` is the probability outside each end of the interval. The
    interval is infinite if a side has fewer than MIN_RUNS units, and the value alone if no side has any variance.
    """
    n = tuple(map(len, sides))
    if not min(n):
        return Interval(math.nan, -INF, INF, n, math.nan, MIN_RUNS)
    errors = np.array([side[:, 0].var(ddof=int(min(n) > 1)) for side in sides]) / n
    mean, *others = (float(side[:, 0].mean()) for side in sides)
    value, half = mean - sum(others), INF
    if min(n) >= MIN_RUNS:
        half = float(special.stdtrit(satterthwaite(errors, n), 1 - tail)) * math.sqrt(errors.sum())
    return Interval(value, value - half, value + half, n, math.sqrt((errors * n).sum()), MIN_RUNS)


def welch_p(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the p-value of `samples.welch_t`, or nan without one or if a side has fewer than MIN_RUNS units."""
    p = welch_t(first, second).p if min(len(first), len(second)) >= MIN_RUNS else None
    return math.nan if p is None else p


def fisher(points: Sequence[Float64], tail: float, ranked: bool = False) -> Interval:
    """Return Pearson's correlation of points with Fisher's interval.

    For fewer than MIN_POINTS points, the value is nan and the interval is infinite. If all values of one coordinate are
    equal, they are nan.

    Args:
        points: a sequence whose only element is the array of points [N, 2].
        tail: the probability outside each end of the interval.
        ranked: if true, return Spearman's rho instead (ties averaged), with the interval of Bonett and Wright 2000.
    """
    xy_2N, n = points[0].T, len(points[0])
    if n < MIN_POINTS:
        return Interval(math.nan, -INF, INF, (n,), math.nan, MIN_POINTS)
    if ranked:
        xy_2N = np.where(np.isnan(xy_2N), np.nan, ranks(xy_2N))
    r = float(np.clip(pearson_r(*xy_2N), -0.999999, 0.999999))
    wider = 1 + r**2 / 2 if ranked else 1.0  # Bonett and Wright 2000
    half = special.ndtri(1 - tail) * math.sqrt(wider / (n - 3))
    low, high = (float(np.tanh(np.arctanh(r) + sign * half)) for sign in (-1, 1))
    return Interval(r, low, high, (n,), (1 - r**2) * math.sqrt(wider), MIN_POINTS)


spearman = partial(fisher, ranked=True)


def wilson(sides: Sequence[Float64], tail: float) -> Interval:
    """Return the share of ones among the units of one side [N, 1], which are 0 or 1, with Wilson's interval.

    `tail` is the probability outside each end of the interval, which is infinite for fewer than MIN_POINTS units.
    """
    share, n = float(sides[0].mean()), len(sides[0])
    low, high = wilson_ends(share, n, tail) if n >= MIN_POINTS else (-INF, INF)
    spread = math.sqrt(max(share * (1 - share), 0.05))
    return Interval(share, low, high, (n,), spread, MIN_POINTS)


def smallest(sides: Sequence[Float64], tail: float) -> Interval:
    """Return the minimum over the units of one side [N, 1], as the value and as both ends of the interval.

    This is the estimate for a claim that must hold in every unit and therefore needs no statistics. `tail` is not used.
    """
    value = float(sides[0].min())
    return Interval(value, value, value, (len(sides[0]),), 0.0, 1)
