"""The spectrum of a matrix, and the checks of its input.

Suffixes: m rows, n columns. Singular values are float64, in descending order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.store.errors import DataError

Floats = NDArray[np.floating[Any]]
Float64 = NDArray[np.float64]

FLOAT32_EPS = float(np.finfo(np.float32).eps)
FLOAT64_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Singular values of an m x n matrix.

    Attributes:
        sigma: computed singular values, float64, descending; min(m, n) - n_zero of them.
        n_zero: further singular values that are exactly zero by construction (from factors).
        m: rows.
        n: columns.
        method: how they were computed: svd, gram-of-columns, gram-of-rows or factors, all in float64.
        dtype: number type of the matrix (or of the hidden states).
        noise_floor: singular values below this are rounding errors of the method.
    """

    sigma: Float64
    n_zero: int
    m: int
    n: int
    method: str
    dtype: str
    noise_floor: float

    @property
    def sigma_max(self) -> float:
        """The largest singular value."""
        return float(self.sigma[0])

    def with_zeros(self) -> Float64:
        """Return all min(m, n) singular values, including the exact zeros."""
        return np.concatenate([self.sigma, np.zeros(self.n_zero)])

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return all attributes as named arrays without objects, for an .npz; `from_arrays` reads them back."""
        return {name: np.asarray(getattr(self, name)) for name in self.__dataclass_fields__}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Spectrum:
        """Return the spectrum that `to_arrays` wrote."""
        plain = {name: arrays[name].item() for name in cls.__dataclass_fields__ if name != "sigma"}
        return cls(sigma=arrays["sigma"], **plain)


def refuse_non_finite(values: Floats, what: str, first_row: int = 0) -> None:
    """Raise DataError naming the first row of a vector or matrix that holds nan or an infinity."""
    sound = np.isfinite(values)
    if sound.all():
        return
    places = np.argwhere(~sound)
    column = f", column {places[0][1]}" if values.ndim == 2 else ""
    raise DataError(
        f"row {first_row + places[0][0]}{column} of {what} is {values[tuple(places[0])]} (one of {len(places)} such"
        " numbers there): a spectrum needs finite ones; does the head compute log-probabilities in a stable form?"
    )


def refuse_empty(m: int, n: int) -> None:
    """Raise DataError for a matrix without rows or columns."""
    if not (m and n):
        raise DataError(f"a matrix of {m} x {n} numbers has no rank: expected at least one row and one column")
