"""Pearson's and Spearman's correlations with bootstrap intervals, and wins between models.

If a correlation cannot be computed, its numbers are None and its attribute `reason` says why. A nan or infinite number
raises NotFiniteError.

Suffixes: B resamples, N pairs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from softmax_bottleneck.statistics.samples import NotFiniteError

Float64 = NDArray[np.float64]

RESAMPLES = 2000  # default number of bootstrap resamples
LEVEL = 0.95  # confidence level of all intervals
BATCH_NUMBERS = 1 << 20  # largest number of resampled values in memory at once (8 MiB)


@dataclass(frozen=True)
class Correlation:
    """A correlation coefficient over n pairs, with a bootstrap interval.

    Attributes:
        n: number of pairs.
        r: the coefficient; None if there are fewer than three pairs, or if all values of one variable are equal.
        low, high: bounds of the bootstrap percentile interval over resampled pairs. Both are None if r is None, if
            n_resamples is 0, or if n_undefined is at least half of n_resamples.
        level: confidence level of the interval.
        n_resamples: number of resamples; 0 if r is None.
        n_undefined: number of resamples in which all values of one variable were equal. They have no coefficient and
            are not used for the interval.
        reason: why there is no coefficient; empty if there is one.
    """

    n: int
    r: float | None = None
    low: float | None = None
    high: float | None = None
    level: float = LEVEL
    n_resamples: int = 0
    n_undefined: int = 0
    reason: str = ""


def pearson(x: ArrayLike, y: ArrayLike, rng: np.random.Generator, n_resamples: int = RESAMPLES) -> Correlation:
    """Return Pearson's r of two vectors x and y with a bootstrap interval (Parthiban et al. 2021, Figure 2).

    `rng` draws the resamples; `n_resamples` = 0 leaves out the interval.

    Raises:
        NotFiniteError: a number is nan or infinite, or x and y are not vectors of equal length.
    """
    return _correlation(pearson_r, x, y, rng, n_resamples)


def spearman(x: ArrayLike, y: ArrayLike, rng: np.random.Generator, n_resamples: int = RESAMPLES) -> Correlation:
    """Return Spearman's rho of two vectors x and y (Pearson's r of the ranks, ties averaged) with a bootstrap interval.

    `rng` draws the resamples; `n_resamples` = 0 leaves out the interval.

    Raises:
        NotFiniteError: a number is nan or infinite, or x and y are not vectors of equal length.
    """
    return _correlation(_spearman, x, y, rng, n_resamples)


def _correlation(
    coefficient: Callable[..., Float64], x: ArrayLike, y: ArrayLike, rng: np.random.Generator, n_resamples: int
) -> Correlation:
    """Return the correlation of two vectors x and y, measured by `coefficient`, with a bootstrap interval.

    `coefficient` maps x and y of shape [N] to a number, and of shape [B, N] (B resamples) to B numbers; a number is nan
    if all x or all y are equal. `rng` draws the `n_resamples` resamples.

    Raises:
        NotFiniteError: a number is nan or infinite, or x and y are not vectors of equal length.
    """
    x_N, y_N = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if x_N.ndim != 1 or x_N.shape != y_N.shape:
        raise NotFiniteError(f"a correlation needs two rows of equal length, got shapes {x_N.shape} and {y_N.shape}")
    if not (np.isfinite(x_N).all() and np.isfinite(y_N).all()):
        raise NotFiniteError(f"a number among {len(x_N)} pairs is nan or infinite: a correlation needs finite ones")
    reason = ""
    if len(x_N) < 3:
        reason = f"not computable: {len(x_N)} pairs, at least 3 are needed"
    elif np.ptp(x_N) == 0 or np.ptp(y_N) == 0:
        reason = "not computable: all values of one side are equal"
    if reason:
        return Correlation(len(x_N), reason=reason)
    batch = max(1, BATCH_NUMBERS // len(x_N))
    batches = [min(batch, n_resamples - start) for start in range(0, n_resamples, batch)]
    indices = (rng.integers(0, len(x_N), (size, len(x_N))) for size in batches)
    resampled_B = np.concatenate([np.empty(0), *(coefficient(x_N[index_BN], y_N[index_BN]) for index_BN in indices)])
    undefined = int(np.isnan(resampled_B).sum())
    low = high = None
    if undefined < n_resamples / 2:
        low, high = map(float, np.nanquantile(resampled_B, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    r = float(coefficient(x_N, y_N))
    return Correlation(len(x_N), r, low, high, n_resamples=n_resamples, n_undefined=undefined)


def pearson_r(x_BN: Float64, y_BN: Float64, axis: int = -1) -> Float64:
    """Return Pearson's r [B] of the B samples with N pairs each; `axis` is the axis of the pairs.

    The coefficient is nan for a sample in which all x or all y are equal.
    """
    constant_B1 = (np.ptp(x_BN, axis, keepdims=True) == 0) | (np.ptp(y_BN, axis, keepdims=True) == 0)
    dx_BN, dy_BN = x_BN - x_BN.mean(axis, keepdims=True), y_BN - y_BN.mean(axis, keepdims=True)
    # Scaled before squaring, so that neither tiny nor huge numbers leave the range of float64.
    dx_BN /= np.where(constant_B1, 1.0, np.abs(dx_BN).max(axis, keepdims=True))
    dy_BN /= np.where(constant_B1, 1.0, np.abs(dy_BN).max(axis, keepdims=True))
    norm_B = np.sqrt((dx_BN**2).sum(axis) * (dy_BN**2).sum(axis))
    constant_B = constant_B1.squeeze(axis)
    r_B = (dx_BN * dy_BN).sum(axis) / np.where(constant_B, 1.0, norm_B)
    return np.where(constant_B, np.nan, np.clip(r_B, -1.0, 1.0))


def _spearman(x_BN: Float64, y_BN: Float64) -> Float64:
    return pearson_r(ranks(x_BN), ranks(y_BN))


def ranks(x_BN: Float64) -> Float64:
    """Return the ranks [B, N] of the numbers along the last axis; the smallest has rank 1, ties are averaged.

    The result equals that of `scipy.stats.rankdata`, but importing scipy.stats takes half a second.
    """
    order_BN = np.argsort(x_BN, axis=-1)
    sorted_BN = np.take_along_axis(x_BN, order_BN, -1)
    differs_BN = sorted_BN[..., 1:] != sorted_BN[..., :-1]
    edge_B1 = np.ones((*x_BN.shape[:-1], 1), dtype=bool)
    place_N = np.arange(1.0, x_BN.shape[-1] + 1)
    first_BN = np.maximum.accumulate(np.where(np.concatenate([edge_B1, differs_BN], -1), place_N, 0), axis=-1)
    ends_BN = np.where(np.concatenate([differs_BN, edge_B1], -1), place_N, np.inf)
    last_BN = np.minimum.accumulate(ends_BN[..., ::-1], axis=-1)[..., ::-1]
    rank_BN = np.empty(x_BN.shape)
    np.put_along_axis(rank_BN, order_BN, (first_BN + last_BN) / 2, -1)
    return rank_BN


# --- comparing models -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Wins:
    """A comparison of two models by Spearman's rho on word-similarity benchmarks.

    Attributes:
        wins: number of benchmarks on which the first model has the larger rho.
        compared: number of benchmarks on which both models have a rho.
    """

    wins: int
    compared: int


def win_matrix(rhos: Mapping[str, Mapping[str, float | None]]) -> dict[str, dict[str, Wins]]:
    """Return the wins of every model (outer key) over every other (inner key), as in Parthiban et al. 2021, Figure 4.

    `rhos` maps model -> benchmark -> Spearman's rho, or None if there is no rho. A tie is a win for neither model. A
    benchmark on which either model has no rho is not compared.
    """
    wins: dict[str, dict[str, Wins]] = {}
    for model, own in rhos.items():
        wins[model] = {}
        for other, theirs in rhos.items():
            pairs = [(rho, theirs.get(name)) for name, rho in own.items()]
            both = [(left, right) for left, right in pairs if left is not None and right is not None]
            if other != model:
                wins[model][other] = Wins(sum(left > right for left, right in both), len(both))
    return wins
