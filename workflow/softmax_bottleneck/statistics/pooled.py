"""The rules by which archived runs become one estimate: seeds, tuned settings, shares of a gain, families of contrasts.

Values are logarithms of perplexities, so that differences are in nats. Nothing here depends on a test perplexity that
is compared: a tuned setting is chosen by its validation loss.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean  # of the standard library

import numpy as np
from scipy import special

from softmax_bottleneck.statistics.bracketing import is_interior
from softmax_bottleneck.statistics.intervals import ALPHA, INF, MIN_RUNS, Interval
from softmax_bottleneck.statistics.samples import satterthwaite


def per_seed(runs: Iterable[tuple[int, str, float]]) -> dict[int, float]:
    """Return {seed: value} from runs (seed, machine, value), so that a seed of two machines counts once.

    The value of a seed is the mean over its machines of the mean over its runs there.
    """
    by_seed: dict[int, dict[str, list[float]]] = {}
    for seed, machine, value in runs:
        by_seed.setdefault(seed, {}).setdefault(machine, []).append(value)
    return {seed: fmean(fmean(own) for own in found.values()) for seed, found in sorted(by_seed.items())}


@dataclass(frozen=True)
class Choice:
    """The value of a setting with the lowest validation loss.

    Attributes:
        value: the chosen value.
        tried: all values tried, in ascending order.
        seeds: the seeds by which it was chosen; empty if only one value was tried.
    """

    value: float
    tried: tuple[float, ...]
    seeds: frozenset[int]

    @property
    def is_interior(self) -> bool:
        """True if smaller and larger values were tried."""
        return is_interior(self.value, self.tried)

    def compared(self, seeds: Iterable[int]) -> list[int]:
        """Return the seeds to compare: those that chose nothing if they are at least MIN_RUNS, or else all."""
        every = sorted(seeds)
        others = [seed for seed in every if seed not in self.seeds]
        return others if len(others) >= MIN_RUNS else every


def choose(losses: Mapping[float, Mapping[int, float]]) -> Choice:
    """Return the best value of a setting from {value: {seed: validation loss}}; a diverged run has the loss inf.

    Means are over the seeds that all values share, or over each value's own seeds if they share none.
    """
    shared = frozenset.intersection(*(frozenset(own) for own in losses.values()))
    means = {value: fmean(own[seed] for seed in shared or own) for value, own in losses.items()}
    tried = tuple(sorted(losses))
    used = shared or frozenset(seed for own in losses.values() for seed in own)
    return Choice(min(tried, key=lambda value: means[value]), tried, used if len(tried) > 1 else frozenset())


def confirmed(value: float, losses: Mapping[float, Mapping[int, float]]) -> float:
    """Return the value with the best validation losses on seeds that did not choose `value`, {value: {seed: loss}}.

    Another value, of which no run diverged, replaces `value` if its mean is lower on the seeds that both have, at least
    MIN_RUNS. If a run of `value` diverged there (loss inf), the lowest mean of all others decides.
    """
    changes = {}
    for other, own in losses.items():
        shared = own.keys() & losses[value].keys()
        if len(shared) >= MIN_RUNS and all(map(math.isfinite, own.values())):
            change = fmean(own[seed] - losses[value][seed] for seed in shared)
            changes[other] = change, fmean(own[seed] for seed in shared)
    changes[value] = 0.0, -INF
    return min(changes, key=lambda other: changes[other])


def share_of_gain(base: Sequence[float], part: Sequence[float], whole: Sequence[float]) -> Interval:
    """Return (mean base - mean part) / (mean base - mean whole) with Fieller's 95 % interval, of independent samples.

    The df are Satterthwaite's at the estimate. The interval is infinite if a sample has fewer than MIN_RUNS units, or
    if the denominator does not differ significantly from 0 (Fieller, J. R. Stat. Soc. B 16, 1954).
    """
    samples = [np.asarray(sample, dtype=np.float64) for sample in (base, part, whole)]
    n = tuple(map(len, samples))
    means = [float(sample.mean()) for sample in samples]
    top, bottom = means[0] - means[1], means[0] - means[2]
    share = top / bottom if bottom else math.nan
    if min(n) < MIN_RUNS or not math.isfinite(share):
        return Interval(share, -INF, INF, n, math.nan, MIN_RUNS)
    errors = np.array([sample.var(ddof=1) / len(sample) for sample in samples])
    terms = errors * np.array([1 - share, 1.0, share]) ** 2  # of top - share * bottom, whose mean is 0
    t2 = special.stdtrit(satterthwaite(terms, n), 1 - ALPHA / 2) ** 2
    a = bottom**2 - t2 * (errors[0] + errors[2])  # a x^2 - 2 b x + c <= 0 for every share x inside the interval
    b = top * bottom - t2 * errors[0]
    c = top**2 - t2 * (errors[0] + errors[1])
    root = math.sqrt(max(b * b - a * c, 0.0))  # if a > 0, only rounding makes it negative
    low, high = ((b - root) / a, (b + root) / a) if a > 0 else (-INF, INF)
    return Interval(share, low, high, n, math.nan, MIN_RUNS)


def holm(p_values: Sequence[float], tests: int = 0) -> list[float]:
    """Return Holm's adjusted p-values of one family (Scand. J. Stat. 6, 1979); nan stays nan and counts as no test.

    A family of more `tests` than p-values is corrected as if each of the others had p = 1.
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if not math.isnan(p))
    adjusted, largest = [math.nan] * len(p_values), 0.0
    for rank, (p, index) in enumerate(known):
        largest = max(largest, min(1.0, p * (max(tests, len(known)) - rank)))
        adjusted[index] = largest
    return adjusted
