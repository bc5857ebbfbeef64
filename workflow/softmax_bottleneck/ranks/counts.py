"""Ranks counted from singular values: the Press rank and effective ranks.

The Press rank counts the singular values above a tolerance for rounding errors. An effective rank is the number of the
largest singular values whose squares add up to nearly the sum of all squares. Neither leaves out singular values below
the noise floor, which are only rounding errors of the method that computed them (see `Spectrum`). Instead,
`RankReport.note` warns if the tolerance of the Press rank is less than ten times the noise floor.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from softmax_bottleneck.ranks.spectrum import FLOAT32_EPS, Float64, Spectrum
from softmax_bottleneck.store.errors import DataError, UserError

EFFECTIVE_EPSILONS = (1e-3, 1e-4, 1e-5)  # Parthiban et al. 2021, Table 6
SENSITIVITY = 0.01  # ranks are also counted at tolerances that are 1 % larger and 1 % smaller
CLEAR_MARGIN = 10.0  # a Gram matrix's noise shifts a singular value of ten noise floors by 0.5 %, half of SENSITIVITY


@dataclass(frozen=True)
class PressRank:
    """The Press rank of an m x n matrix: the number of singular values above 0.5 sqrt(m+n+1) sigma_max eps.

    The formula for this tolerance is from Press et al., Numerical Recipes, 2.6; eps is a machine epsilon.

    Attributes:
        rank: the number of singular values above the tolerance.
        low: the number of singular values above a tolerance that is 1 % larger, so at most `rank`.
        high: the number of singular values above a tolerance that is 1 % smaller, so at least `rank`.
        tolerance: the tolerance, in the units of the singular values.
        sigma_max: the largest singular value.
    """

    rank: int
    low: int
    high: int
    tolerance: float
    sigma_max: float

    @property
    def tolerance_sensitive(self) -> bool:
        """True if a tolerance 1 % larger or smaller would give another rank."""
        return self.low != self.high


def press_rank(sigma: ArrayLike, m: int, n: int, eps: float = FLOAT32_EPS) -> PressRank:
    """Return the Press rank of an m x n matrix from its singular values.

    Args:
        sigma: singular values in any order; those that are zero may be left out.
        m: number of rows.
        n: number of columns.
        eps: machine epsilon in the tolerance. The default is float32's, because the published counts use it even for
            matrices in float64.

    Raises:
        DataError: a value is negative, nan or infinite.
    """
    values = sound(sigma)
    sigma_max = float(values.max())
    tolerance = 0.5 * math.sqrt(m + n + 1) * sigma_max * eps
    rank, low, high = (int((values > tolerance * (1 + by)).sum()) for by in (0.0, SENSITIVITY, -SENSITIVITY))
    return PressRank(rank, low, high, tolerance, sigma_max)


def effective_rank(sigma: ArrayLike, epsilon: float) -> int:
    """Return the smallest k with sum_{i<=k} sigma_i^2 >= (1 - epsilon) sum_i sigma_i^2 (Parthiban 2021, Table 6).

    In the formula, sigma_1 is the largest singular value. The argument `sigma` may have any order, and zeros may be
    left out. A zero matrix has effective rank 0.

    Raises:
        DataError: a value is negative, nan or infinite.
        UserError: epsilon is not between 0 and 1.
    """
    if not 0 < epsilon < 1:
        raise UserError(f"epsilon of the effective rank is {epsilon}: expected a number between 0 and 1")
    squares = np.sort(sound(sigma)) ** 2
    left_out = np.cumsum(squares)
    return len(squares) - int((left_out <= epsilon * left_out[-1]).sum())


def spectral_cliff(spectrum: Spectrum) -> tuple[int, float]:
    """Return (k, ratio): the k with the largest ratio sigma_k / sigma_(k+1), and this ratio.

    The result is (1, 1.0) if there is only one singular value. Singular values are numbered from 1, in descending
    order. For centred log-probabilities of a softmax layer, k is usually the layer's width. So that noise causes no
    large ratio, small values are first raised to a limit: the noise floor, or float32's epsilon times the largest
    singular value if that is larger.
    """
    sigma = sound(spectrum.with_zeros())
    levels = np.maximum(sigma, max(spectrum.noise_floor, FLOAT32_EPS * sigma[0], np.finfo(float).tiny))
    falls = levels[:-1] / levels[1:]
    return (int(falls.argmax()) + 1, float(falls.max())) if len(falls) else (1, 1.0)


def sound(sigma: ArrayLike) -> Float64:
    """Check singular values, and return them as a float64 array.

    Raises:
        DataError: a value is negative, nan or infinite, or the array is empty or not one-dimensional.
    """
    values = np.asarray(sigma, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise DataError(f"singular values have shape {values.shape}, expected one row of at least one")
    if not np.isfinite(values).all() or (values < 0).any():
        worst = values[~(np.isfinite(values) & (values >= 0))][0]
        raise DataError(f"{worst} is no singular value: the spectrum is damaged, compute it again")
    return values


@dataclass(frozen=True)
class RankReport:
    """The ranks of one m x n matrix, with the method by which its singular values were computed.

    Attributes:
        press: the Press rank, with its tolerance.
        effective: {epsilon: effective rank at this epsilon}.
        m, n: numbers of rows and columns.
        n_zero: number of singular values that must be exactly zero because the factors bound the rank; else 0.
        method: how the singular values were computed: by an SVD (`svd`), from a Gram matrix (`gram-of-columns`) or from
            the factors of a log-linear head (`factors`); `Spectrum` lists all names.
        dtype: number type of the matrix. The method `factors` never builds it and gives that of the context vectors.
        noise_floor: limit below which singular values are only rounding errors.
        eps: machine epsilon in the tolerance of the Press rank.
        note: a warning about the Press rank, or "".
    """

    press: PressRank
    effective: Mapping[float, int]
    m: int
    n: int
    n_zero: int
    method: str
    dtype: str
    eps: float
    noise_floor: float
    note: str

    @property
    def floor_clear(self) -> bool:
        """True if the tolerance of the Press rank is at least ten times the noise floor, so that noise hardly matters.

        Noise then shifts singular values near the tolerance by at most 0.5 %, even if a Gram matrix was used.
        """
        return self.press.tolerance >= CLEAR_MARGIN * self.noise_floor

    def metrics(self) -> dict[str, int]:
        """Return the ranks as {metric: rank}.

        The metrics are rank_press, rank_press_low, rank_press_high, and one for every epsilon, such as rank_eff_1e-3.
        """
        press = self.press
        ranks = {"rank_press": press.rank, "rank_press_low": press.low, "rank_press_high": press.high}
        return ranks | {f"rank_eff_{_plain(epsilon)}": rank for epsilon, rank in self.effective.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the report as a flat dict for JSON.

        The keys are those of the method `metrics`; tolerance_sensitive, tolerance and sigma_max from the class
        `PressRank`; and m, n, n_zero, method, dtype, eps, noise_floor, floor_clear and note from this class.
        """
        return {
            **self.metrics(),
            "tolerance_sensitive": self.press.tolerance_sensitive,
            "tolerance": self.press.tolerance,
            "sigma_max": self.press.sigma_max,
            **{key: getattr(self, key) for key in ("m", "n", "n_zero", "method", "dtype", "eps", "noise_floor")},
            "floor_clear": self.floor_clear,
            "note": self.note,
        }


def rank_report(
    spectrum: Spectrum, *, epsilons: Sequence[float] = EFFECTIVE_EPSILONS, eps: float = FLOAT32_EPS
) -> RankReport:
    """Return the Press rank and the effective ranks of a spectrum; a zero matrix has rank 0 by each definition.

    Args:
        spectrum: the singular values.
        epsilons: an effective rank is computed for each of these numbers between 0 and 1.
        eps: machine epsilon in the tolerance of the Press rank, 0.5 sqrt(m + n + 1) sigma_max eps.
    """
    press = press_rank(spectrum.sigma, spectrum.m, spectrum.n, eps)
    return RankReport(
        press=press,
        effective={epsilon: effective_rank(spectrum.sigma, epsilon) for epsilon in epsilons},
        **{key: getattr(spectrum, key) for key in ("m", "n", "n_zero", "method", "dtype", "noise_floor")},
        eps=eps,
        note=_note(press, spectrum),
    )


def _note(press: PressRank, spectrum: Spectrum) -> str:
    """Return the warnings about a Press rank, joined by "; ", or "" if there are none.

    One warns of a rank that is sensitive to its tolerance, the other of a tolerance below ten times the noise floor.
    """
    notes = []
    if press.tolerance_sensitive:
        notes.append(f"tolerance-sensitive: {press.low} to {press.high} within 1 % of the tolerance")
    if press.tolerance < CLEAR_MARGIN * spectrum.noise_floor:
        notes.append(
            f"the tolerance {press.tolerance:.2g} is not clear of the noise floor {spectrum.noise_floor:.2g} of"
            f" {spectrum.method}: take the SVD of the matrix itself"
        )
    return "; ".join(notes)


def _plain(epsilon: float) -> str:
    """Format a number such as 0.001 as `1e-3`, the notation of the published tables."""
    mantissa, exponent = f"{epsilon:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"
