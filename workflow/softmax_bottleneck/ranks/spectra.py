"""Singular values and ranks of log-probability matrices, from a stream of rows or from factors.

The rank of ln P(word | context) over test contexts is what the field compares heads by (Yang et al. 2018; Kanai et
al. 2018, Table 3; Parthiban et al. 2021, Table 6). The published way is a full SVD of a matrix of 3 to 33 GB. Two
exact ways are here:

* `gram_singular_values`: rows are streamed into the float64 Gram matrix G = M^T M, whose eigenvalues are the squares
  of the singular values. The matrix itself is never held.
* `factored_singular_values`: for heads that are linear in the end, ln P = [H | 1 | -logZ] [W | b | 1]^T, so that thin
  QRs of both factors and the SVD of a core of D + 2 columns give the whole spectrum.

How far down a Gram matrix can see. The computed G is off by some E with |E| = e, so its eigenvalues are off by at
most e (Weyl) and singular values below sqrt(e), the *noise floor*, are noise. Rows are float32 and exact in float64,
so e comes only from summation and from the eigenvalue solver: some hundred float64 epsilons of sigma_max^2. The
published tolerance squared is tol^2 = (m+n+1)/4 eps32^2 sigma_max^2 = 16 (m+n+1) eps64 sigma_max^2: for a test set
thousands of times e, and the counts are those of an SVD. A Gram matrix in float32 has its floor above the tolerance,
and a tolerance with float64's epsilon lies below every Gram's floor. Matrices so small that the margin is thin take
the SVD itself, and every `RankReport` says whether its tolerance was clear of the floor.

Suffixes: m or N rows (contexts), n or V columns (words), D context width. Singular values are float64, in descending
order.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray
from scipy.linalg.blas import dsyrk
from scipy.linalg.lapack import dsytrf, dsytrf_lwork

from softmax_bottleneck.store.errors import DataError, UserError

Floats = NDArray[np.floating[Any]]
Float64 = NDArray[np.float64]
Progress = Callable[[int], None]
Solver = Callable[[Float64], Float64]  # as lapack_eigenvalues, which need not destroy the matrix

FLOAT32_EPS = float(np.finfo(np.float32).eps)
FLOAT64_EPS = float(np.finfo(np.float64).eps)
EFFECTIVE_EPSILONS = (1e-3, 1e-4, 1e-5)  # Parthiban et al. 2021, Table 6
SENSITIVITY = 0.01  # ranks are also counted at the tolerance x (1 +- this)
CLEAR_MARGIN = 10.0  # a tolerance this many noise floors high moves by < 0.5 % through the noise, half of SENSITIVITY
DIRECT_ENTRIES = 1 << 20  # up to this many entries the SVD itself takes less than a second
# OpenBLAS's threaded dsyrk overruns its work buffer at 20,000 columns x 256 rows (two threads; 17,000 x 256 is well).
SYRK_ENTRIES = 1 << 21
BLOCK = 256  # rows added to a Gram matrix at once: as fast as thousands, and the error of a sum grows with its length


# --- spectra --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Spectrum:
    """Singular values of an m x n matrix.

    Attributes:
        sigma: computed singular values, float64, descending; min(m, n) - n_zero of them.
        n_zero: further singular values that are exactly zero by construction (the factored way).
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
        """All min(m, n) singular values, the exact zeros included."""
        return np.concatenate([self.sigma, np.zeros(self.n_zero)])

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Everything as named arrays without objects, for an .npz; `from_arrays` reads it back."""
        return {name: np.asarray(getattr(self, name)) for name in self.__dataclass_fields__}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Spectrum:
        """The spectrum that `to_arrays` wrote."""
        plain = {name: arrays[name].item() for name in cls.__dataclass_fields__ if name != "sigma"}
        return cls(sigma=arrays["sigma"], **plain)


def gram_singular_values(
    chunks: Iterable[Floats], n_columns: int, *, solver: Solver | None = None, progress: Progress | None = None
) -> Spectrum:
    """Singular values of the matrix whose rows arrive in chunks [any, n_columns], float32 or float64.

    Memory: 8 n^2 bytes for the Gram matrix, overwritten by the eigenvalue solver, beside one chunk; in the beginning
    up to 2 n^2 bytes of rows more, because a matrix with few rows (m <= n/2) has the smaller m x m Gram matrix of its
    rows, and one with few entries is taken apart by an SVD. Time: m n^2 flops, then 4/3 n^3.

    Args:
        chunks: consecutive rows; a buffer may be filled anew for each chunk.
        n_columns: width of every chunk.
        solver: finds the eigenvalues of a Gram matrix.
        progress: called with the number of rows read so far, once per chunk.

    Raises:
        DataError: a number is nan or infinite (the row is named: LAPACK would answer nan, which counts as rank 0), a
            chunk has another width or type than the first, or there are no rows.
        UserError: the Gram matrix does not fit into memory; the message says how much it needs.
    """
    return nested_singular_values(chunks, n_columns, None, solver=solver, progress=progress)[1]


def nested_singular_values(
    chunks: Iterable[Floats],
    n_columns: int,
    first_rows: int | None,
    *,
    solver: Solver | None = None,
    progress: Progress | None = None,
) -> tuple[Spectrum | None, Spectrum]:
    """Singular values of the first rows of a matrix, and of all of it, in one pass over its rows.

    The first is None where `first_rows` is, and where there are no more rows than that. Arguments, memory (also for
    two spectra) and errors as `gram_singular_values`; time: another 4/3 n^3 flops.
    """
    stream = _Rows(_cut_after(chunks, first_rows), n_columns, progress)
    rows = iter(stream)
    held = _hold(rows, n_columns)
    _refuse_empty(stream.count, n_columns)
    first = None
    if first_rows is not None and first_rows <= stream.count:
        first = _spectrum_of_held(np.concatenate(held)[:first_rows], stream.dtype, solver)
    if not _is_tall(stream.count, n_columns):
        whole = _spectrum_of_held(np.concatenate(held), stream.dtype, solver)
    else:
        gram, count = _Gram(n_columns, solver), 0
        for chunk in chain(_drain(held), rows):
            gram.add(chunk)
            count += len(chunk)
            if count == first_rows and first is None:
                first = gram.spectrum_so_far(count, n_columns, stream.dtype)
        whole = gram.spectrum(count, n_columns, "gram-of-columns", stream.dtype)
    return (first if first and first.m < whole.m else None), whole


def _cut_after(chunks: Iterable[Floats], first_rows: int | None) -> Iterator[Floats]:
    """The same rows, with a chunk ending after the first so many."""
    count = 0
    for chunk in chunks:
        inside = 0 if first_rows is None else first_rows - count
        count += len(chunk)
        if 0 < inside < len(chunk):
            yield chunk[:inside]
            yield chunk[inside:]
        else:
            yield chunk


def _is_tall(n_rows: int, n_columns: int) -> bool:
    """Whether the Gram matrix of the columns is the way: not for few rows, nor for few entries."""
    return n_rows > n_columns // 2 and n_rows * n_columns > DIRECT_ENTRIES


def _hold(rows: Iterator[Floats], n_columns: int) -> deque[Floats]:
    """Copies (the caller may reuse its buffer) of all chunks, or of so many that the matrix is tall."""
    held: deque[Floats] = deque()
    count = 0
    for chunk in rows:
        held.append(chunk.copy())
        count += len(chunk)
        if _is_tall(count, n_columns):
            break
    return held


class _Rows:
    """Chunks on their way, each checked; knows how many rows have passed and their type."""

    def __init__(self, chunks: Iterable[Floats], n_columns: int, progress: Progress | None) -> None:
        self._chunks = chunks
        self._n_columns = n_columns
        self._progress = progress
        self.count = 0
        self.dtype = ""

    def __iter__(self) -> Iterator[Floats]:
        for chunk in self._chunks:
            self._check_form(chunk)
            _refuse_non_finite(chunk, "the matrix", first_row=self.count)
            self.count += len(chunk)
            yield chunk
            if self._progress is not None:
                self._progress(self.count)

    def _check_form(self, chunk: Floats) -> None:
        if chunk.ndim != 2 or chunk.shape[1] != self._n_columns:
            raise DataError(f"a chunk of rows has shape {chunk.shape}, expected (any, {self._n_columns})")
        self.dtype = self.dtype or chunk.dtype.name
        if chunk.dtype.name != self.dtype or self.dtype not in ("float32", "float64"):
            raise DataError(
                f"a chunk of rows is {chunk.dtype.name}, expected float32 or float64 and the same throughout"
                f" (before it: {self.dtype})"
            )


def _refuse_non_finite(values: Floats, what: str, first_row: int = 0) -> None:
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


def _refuse_empty(m: int, n: int) -> None:
    if not (m and n):
        raise DataError(f"a matrix of {m} x {n} numbers has no rank: expected at least one row and one column")


def _drain(held: deque[Floats]) -> Iterator[Floats]:
    while held:
        yield held.popleft()  # so that each chunk's memory is free as soon as it is used


def _spectrum_of_held(matrix_mn: Floats, dtype: str, solver: Solver | None) -> Spectrum:
    """Of a matrix held in memory: small, or with fewer rows than columns."""
    m, n = matrix_mn.shape
    if matrix_mn.size <= DIRECT_ENTRIES:
        return dense_singular_values(matrix_mn)
    gram = _Gram(m, solver)
    for start in range(0, n, BLOCK):
        gram.add(matrix_mn[:, start : start + BLOCK].T)
    return gram.spectrum(m, n, "gram-of-rows", dtype)


class _Gram:
    """The lower triangle of a sum of row^T row in float64, and the number of roundings each entry has seen.

    Rows wait for a block to be full, so that the sum does not depend on the chunks they come in.
    """

    def __init__(self, n: int, solver: Solver | None = None) -> None:
        try:
            self.matrix = np.zeros((n, n), order="F")
        except MemoryError:
            raise UserError(
                f"the spectrum of a matrix with {n} columns needs a Gram matrix of {8 * n * n / 2**30:.1f} GiB,"
                " which this machine cannot give: use one with more memory or a smaller vocabulary"
            ) from None
        self.depth = BLOCK
        self._solver = solver or lapack_eigenvalues
        self._block = np.empty((max(1, min(BLOCK, SYRK_ENTRIES // n)), n))
        self._filled = 0

    def add(self, chunk: Floats) -> None:
        """Add the products of these rows."""
        start = 0
        while start < len(chunk):
            part = chunk[start : start + len(self._block) - self._filled]
            self._block[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            start += len(part)
            if self._filled == len(self._block):
                self._add_block()

    def _add_block(self) -> None:
        # A C-ordered [rows, n] block is a Fortran-ordered [n, rows] one: no copy, and the sum stays in place.
        rows = self._block[: self._filled]
        self.matrix = dsyrk(1.0, rows.T, beta=1.0, c=self.matrix, lower=1, overwrite_c=1)
        self.depth += 1
        self._filled = 0

    def spectrum(self, m: int, n: int, method: str, dtype: str) -> Spectrum:
        """Singular values of the m x n matrix whose Gram matrix this is; destroys the lower triangle.

        The floor: a sum of products rounded `depth` times is off by depth eps/2 of the sum of magnitudes (so E is at
        most that times the trace, rigorously); LAPACK's eigenvalues by p(n) eps sigma_max^2, p growing slowly (sqrt(n)
        is some ten times what is seen). An eigenvalue below zero shows an error at least that large.
        """
        if self._filled:
            self._add_block()
        trace = float(np.trace(self.matrix))
        eigenvalues = self._solver(self.matrix)
        largest = max(float(eigenvalues[-1]), 0.0)
        error = FLOAT64_EPS * (self.depth / 2 * trace + math.sqrt(len(self.matrix)) * largest)
        error = max(error, -float(eigenvalues[0]))
        sigma = np.sqrt(np.maximum(eigenvalues[::-1][: min(m, n)], 0.0))
        return Spectrum(sigma, 0, m, n, method, dtype, noise_floor=math.sqrt(error))

    def spectrum_so_far(self, m: int, n: int, dtype: str) -> Spectrum:
        """As `spectrum` for columns, but the sum goes on: it waits in the upper triangle, which LAPACK leaves alone."""
        if self._filled:
            self._add_block()
        diagonal = self.matrix.diagonal().copy()
        _mirror(self.matrix, source=self.matrix.T)
        found = self.spectrum(m, n, "gram-of-columns", dtype)
        _mirror(self.matrix.T, source=self.matrix)
        np.einsum("ii->i", self.matrix)[:] = diagonal
        return found


def lapack_eigenvalues(matrix: Float64) -> Float64:
    """Eigenvalues, ascending, of the symmetric matrix whose lower triangle this is (Fortran order); destroys it."""
    return np.asarray(scipy.linalg.eigvalsh(matrix, lower=True, overwrite_a=True, check_finite=False, driver="evd"))


def _mirror(matrix: Float64, source: Float64) -> None:
    """Set what lies above the diagonal to the same entries of `source`, the transpose; a band at a time."""
    for start in range(0, len(matrix), BLOCK):
        stop = min(start + BLOCK, len(matrix))
        matrix[start:stop, stop:] = source[start:stop, stop:]
        above = np.triu_indices(stop - start, k=1)
        matrix[start:stop, start:stop][above] = source[start:stop, start:stop][above]


def dense_singular_values(matrix_mn: Floats) -> Spectrum:
    """Singular values of a matrix in memory by LAPACK's float64 SVD: for small ones, and for tiny tolerances.

    Memory: 16 m n bytes. Divide and conquer (gesdd) first; where that does not converge, QR iteration (gesvd), and the
    method says so. DataError on nan or an infinity.
    """
    m, n = matrix_mn.shape
    _refuse_empty(m, n)
    _refuse_non_finite(matrix_mn, "the matrix")
    values = matrix_mn.astype(np.float64)
    method = "svd"
    try:
        sigma = scipy.linalg.svd(values, compute_uv=False, check_finite=False)
    except np.linalg.LinAlgError:
        sigma = scipy.linalg.svd(values, compute_uv=False, check_finite=False, lapack_driver="gesvd")
        method = "svd-gesvd"
    floor = FLOAT64_EPS * max(m, n) * float(sigma[0])
    return Spectrum(sigma, 0, m, n, method, matrix_mn.dtype.name, noise_floor=floor)


def factored_singular_values(contexts_ND: Floats, weight_VD: Floats, bias_V: Floats, log_z_N: Floats) -> Spectrum:
    """Singular values of ln P = H W^T + b - log Z, exactly, from its factors [H | 1 | -log Z] and [W | b | 1].

    At most D + 2 are not zero (Yang et al. 2018, section 2: the softmax bottleneck; one more for the bias, one for
    log Z): the rest of the min(N, V) is exactly zero and only counted. QR of each factor, then the SVD of R_left
    R_right^T. Memory: 8 (N + V)(D + 2) bytes; the N x V matrix never exists.

    Args:
        contexts_ND: context vectors that meet the word matrix (after mixing, for MoC).
        weight_VD: word matrix.
        bias_V: its bias.
        log_z_N: log of the sum over words of exp(H W^T + b), as `log_normalisers` gives it.

    Raises:
        DataError: shapes do not fit, or a number is nan or infinite (the row is named).
    """
    n_contexts, width = contexts_ND.shape
    n_words = len(weight_VD)
    _require_shapes(contexts_ND, weight_VD, bias_V, log_z_N)
    # The same matrix with word vectors centred, h.w + b - logZ = h.(w - w0) + (b - b0) - (logZ - h.w0 - b0): what all
    # words share would otherwise stand in two factors and cancel only in the product.
    mean_D, mean_bias = weight_VD.mean(0, dtype=np.float64), bias_V.mean(dtype=np.float64)
    left = np.empty((n_contexts, width + 2), order="F")
    left[:, :width], left[:, width] = contexts_ND, 1.0
    left[:, width + 1] = left[:, :width] @ mean_D + mean_bias - log_z_N
    right = np.empty((n_words, width + 2), order="F")
    right[:, :width], right[:, width], right[:, width + 1] = weight_VD - mean_D, bias_V - mean_bias, 1.0
    r_left, r_right = _triangle(left), _triangle(right)
    sigma = scipy.linalg.svd(r_left @ r_right.T, compute_uv=False, check_finite=False)
    floor = FLOAT64_EPS * (width + 2) * float(np.linalg.norm(r_left) * np.linalg.norm(r_right))
    if sigma[0] <= floor:  # nothing but rounding errors: the zero matrix, as of a vocabulary of one word
        sigma = np.zeros_like(sigma)
    n_zero = min(n_contexts, n_words) - len(sigma)
    return Spectrum(sigma, n_zero, n_contexts, n_words, "factors", contexts_ND.dtype.name, noise_floor=floor)


def _require_shapes(contexts_ND: Floats, weight_VD: Floats, bias_V: Floats, log_z_N: Floats) -> None:
    wanted = {"contexts": contexts_ND, "weight": weight_VD, "bias": bias_V, "log Z": log_z_N}
    n_contexts, width = contexts_ND.shape
    shapes = {"contexts": (n_contexts, width), "weight": (len(weight_VD), width), "log Z": (n_contexts,)}
    shapes["bias"] = (len(weight_VD),)
    for name, array in wanted.items():
        if array.shape != shapes[name]:
            raise DataError(f"{name} has shape {array.shape}, expected {shapes[name]} beside the other factors")
        _refuse_non_finite(array, name)
    _refuse_empty(n_contexts, len(weight_VD))


def _triangle(factor: Float64) -> Float64:
    """R of a thin QR; the factor is overwritten."""
    _, triangle = scipy.linalg.qr(factor, mode="raw", overwrite_a=True, check_finite=False)
    return np.asarray(triangle)


def log_normalisers(contexts_ND: Floats, weight_VD: Floats, bias_V: Floats, *, block_bytes: int = 16 << 20) -> Float64:
    """log Z_n = log sum_v exp(h_n . w_v + b_v) in float64 [N], by blocks of logits that a cache holds."""
    weight, bias = weight_VD.astype(np.float64), bias_V.astype(np.float64)
    rows = max(1, block_bytes // (8 * len(weight)))
    log_z_N = np.empty(len(contexts_ND))
    for start in range(0, len(contexts_ND), rows):
        logits = contexts_ND[start : start + rows].astype(np.float64) @ weight.T + bias
        largest = logits.max(1, keepdims=True)
        np.exp(np.subtract(logits, largest, out=logits), out=logits)
        log_z_N[start : start + rows] = largest[:, 0] + np.log(logits.sum(1))
    return log_z_N


def inertia_count(symmetric_nn: Float64, threshold: float) -> int:
    """Number of eigenvalues above a threshold, without computing any (lower triangle is read).

    Sylvester's law of inertia: A - threshold I = L D L^T has as many positive eigenvalues as D, whose blocks are 1 x
    1 or 2 x 2. With a Gram matrix and tol^2 this is the Press rank by another road: n^3/3 flops against 4/3 n^3.
    Memory: one copy of the matrix.
    """
    shifted = np.array(symmetric_nn, dtype=np.float64, order="F")
    np.einsum("ii->i", shifted)[:] -= threshold
    work, _ = dsytrf_lwork(len(shifted), lower=1)
    factors, pivots, info = dsytrf(shifted, lower=1, lwork=int(work), overwrite_a=1)
    if info < 0:
        raise ValueError(f"LAPACK dsytrf: argument {-info} is not valid")
    # Bunch-Kaufman marks both rows of a 2 x 2 block by a negative pivot; its determinant is negative: one eigenvalue
    # each side.
    single = pivots > 0
    return int((factors.diagonal()[single] > 0).sum()) + int((~single).sum()) // 2


# --- ranks ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PressRank:
    """Number of singular values above tol = 0.5 sqrt(m+n+1) sigma_max eps (Press et al., Numerical Recipes, 2.6).

    `low` and `high` are the counts at the tolerance x 1.01 and x 0.99.
    """

    rank: int
    low: int
    high: int
    tolerance: float
    sigma_max: float

    @property
    def tolerance_sensitive(self) -> bool:
        """Whether a tolerance 1 % larger or smaller would give another rank."""
        return self.low != self.high


def press_rank(sigma: ArrayLike, m: int, n: int, eps: float = FLOAT32_EPS) -> PressRank:
    """Press rank of an m x n matrix from its singular values; zeros may be left out.

    The published counts use the epsilon of float32 whatever the numbers were computed in; with that of float64
    every count changes.
    DataError when one is negative, nan or infinite.
    """
    values = _sound(sigma)
    sigma_max = float(values.max())
    tolerance = 0.5 * math.sqrt(m + n + 1) * sigma_max * eps
    rank, low, high = (int((values > tolerance * (1 + by)).sum()) for by in (0.0, SENSITIVITY, -SENSITIVITY))
    return PressRank(rank, low, high, tolerance, sigma_max)


def effective_rank(sigma: ArrayLike, epsilon: float) -> int:
    """Smallest k with sum_{i<=k} sigma_i^2 >= (1 - epsilon) sum_i sigma_i^2 (Parthiban et al. 2021, Table 6).

    Counted as what may be left out, from the smallest up, so that no small square drowns in a large sum. A zero
    matrix has effective rank 0.
    """
    if not 0 < epsilon < 1:
        raise UserError(f"epsilon of the effective rank is {epsilon}: expected a number between 0 and 1")
    squares = np.sort(_sound(sigma)) ** 2
    left_out = np.cumsum(squares)
    return len(squares) - int((left_out <= epsilon * left_out[-1]).sum())


def _sound(sigma: ArrayLike) -> Float64:
    values = np.asarray(sigma, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise DataError(f"singular values have shape {values.shape}, expected one row of at least one")
    if not np.isfinite(values).all() or (values < 0).any():
        worst = values[~(np.isfinite(values) & (values >= 0))][0]
        raise DataError(f"{worst} is no singular value: the spectrum is damaged, compute it again")
    return values


@dataclass(frozen=True)
class RankReport:
    """The ranks of one matrix and everything they depend on.

    Attributes:
        press: Press rank, its neighbours and its tolerance.
        effective: epsilon -> epsilon-effective rank.
        n_zero: singular values that are exactly zero.
        eps: machine epsilon in the tolerance.
        noise_floor: singular values below this are rounding errors of the method.
        note: what a reader must know about the count, or nothing.
        m, n, method, dtype: see `Spectrum`.
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
        """Whether the tolerance is so far above the noise floor that noise shifts it by less than half of 1 %."""
        return self.press.tolerance >= CLEAR_MARGIN * self.noise_floor

    def metrics(self) -> dict[str, int]:
        """The ranks under the names of the published tables: rank_press, its neighbours, rank_eff_1e-3 and so on."""
        press = self.press
        ranks = {"rank_press": press.rank, "rank_press_low": press.low, "rank_press_high": press.high}
        return ranks | {f"rank_eff_{_plain(epsilon)}": rank for epsilon, rank in self.effective.items()}

    def to_json(self) -> dict[str, Any]:
        """A flat JSON object of everything."""
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
    """Press rank and epsilon-effective ranks of a spectrum. A zero matrix has rank 0 by every rule."""
    press = press_rank(spectrum.sigma, spectrum.m, spectrum.n, eps)
    return RankReport(
        press=press,
        effective={epsilon: effective_rank(spectrum.sigma, epsilon) for epsilon in epsilons},
        **{key: getattr(spectrum, key) for key in ("m", "n", "n_zero", "method", "dtype", "noise_floor")},
        eps=eps,
        note=_note(press, spectrum),
    )


def _note(press: PressRank, spectrum: Spectrum) -> str:
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
    """0.001 as 1e-3, as the tables write it."""
    mantissa, exponent = f"{epsilon:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"
