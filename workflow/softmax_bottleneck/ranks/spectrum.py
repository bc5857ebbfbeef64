"""The singular values of a matrix as a class, and checks that a matrix is finite and not empty.

Suffixes: m rows, n columns. Singular values are float64, in descending order.
"""

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
    """The singular values of an m x n matrix.

    Attributes:
        sigma: computed singular values, float64, descending; min(m, n) - n_zero of them.
        n_zero: number of further singular values that are exactly zero by construction (for a product of factors).
        m: number of rows.
        n: number of columns.
        method: method of computation, in float64: svd, svd-gesvd, gram-of-columns, gram-of-rows or factors. On a GPU,
            the name of the device follows in brackets.
        dtype: number type of the matrix. The method `factors` never builds the matrix and gives the number type of the
            context vectors.
        noise_floor: singular values below this are only rounding errors of the method.
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
        """Return {attribute: array} with all attributes, for an .npz file."""
        return {name: np.asarray(value) for name, value in vars(self).items()}


def on_host(values: Floats | Any) -> Floats:
    """Return an array as it is, and a tensor of any device as an array in main memory."""
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()


def refuse_non_finite(values: Floats | Any, what: str, first_row: int = 0) -> None:
    """Raise DataError if a vector or matrix has a nan or an infinity.

    Args:
        values: the vector or matrix; a tensor is checked on its device.
        what: its name in the message, e.g. "the weights".
        first_row: number of the first row of `values` in the whole matrix, if `values` is a chunk of it.
    """
    if not isinstance(values, np.ndarray) and bool(values.isfinite().all()):
        return
    values = on_host(values)
    finite = np.isfinite(values)
    if finite.all():
        return
    indices = np.argwhere(~finite)
    first = indices[0]
    column = f", column {first[1]}" if values.ndim == 2 else ""
    raise DataError(
        f"row {first_row + first[0]}{column} of {what} is {values[tuple(first)]} (one of {len(indices)} such"
        " numbers there): a spectrum needs finite ones; does the head compute log-probabilities in a stable form?"
    )


def refuse_empty(m: int, n: int) -> None:
    """Raise DataError if an m x n matrix has no rows or no columns."""
    if not (m and n):
        raise DataError(f"a matrix of {m} x {n} numbers has no rank: expected at least one row and one column")
