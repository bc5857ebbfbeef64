"""Singular values and ranks of log-probability matrices, from a stream of rows or from factors.

Papers compare heads by the rank of the matrix of ln P(word | context) over test contexts (Yang et al. 2018; Kanai et
al. 2018, Table 3; Parthiban et al. 2021, Table 6). The published method is a full SVD of a matrix of 3 to 33 GB. This
module has two methods that never hold the whole matrix in memory, without approximating it:

* `gram_singular_values` streams rows into the float64 Gram matrix G = M^T M, whose eigenvalues are the squares of the
  singular values of M.
* `factored_singular_values` is for log-linear heads, where ln P = [H | 1 | -log Z] [W | b | 1]^T. H holds the context
  vectors, W the word vectors, b the biases and log Z the log of each context's sum of exponentials. The thin QR
  decompositions of both factors and the SVD of a small matrix with D + 2 rows and columns give all singular values.

Why a float64 Gram matrix is precise enough. The papers count the singular values above the tolerance
tol = 0.5 sqrt(m+n+1) sigma_max eps32, where eps32 and eps64 are the machine epsilons of float32 and float64.

* The eigenvalues are off by at most e, the norm of the rounding error of G and of the eigenvalue solver (Weyl's
  inequality). Singular values below sqrt(e), the *noise floor*, are therefore noise.
* The error e is some hundred times eps64 sigma_max^2, because products of float32 numbers are exact in float64.
* The squared tolerance, tol^2 = 16 (m+n+1) eps64 sigma_max^2, is thousands of times e for a test set (eps32^2 is
  64 eps64). A Gram matrix therefore gives the same ranks as an SVD.
* For small matrices tol is close to the noise floor, so this module computes an SVD of them.
* The noise floor of a float32 Gram matrix lies above tol. A tolerance with eps64 lies below the noise floor of every
  Gram matrix.

`RankReport.floor_clear` states whether tol was well above the noise floor.

Suffixes: m or N rows (contexts), n or V columns (words), D context width, R rows of a block. Singular values are
float64, in descending order.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Literal

import numpy as np
import scipy.linalg

from softmax_bottleneck.ranks.gram import BLOCK, Gram
from softmax_bottleneck.ranks.spectrum import (
    FLOAT64_EPS,
    Float64,
    Floats,
    Spectrum,
    on_host,
    refuse_empty,
    refuse_non_finite,
)
from softmax_bottleneck.store.errors import DataError

Progress = Callable[[int], None]
MakeGram = Callable[[int], Gram]
Centring = Literal["none", "rows", "both"]

BLOCK_BYTES = 16 << 20  # approximate size of a block of rows
DIRECT_ENTRIES = 1 << 20  # matrices with at most this many entries are decomposed by SVD, in less than a second


def singular_values(matrix_mn: Floats, centring: Centring = "none") -> Spectrum:
    """Return the singular values of a matrix in memory, by the methods of `gram_singular_values`.

    Args:
        matrix_mn: the matrix, float32 or float64.
        centring: "none" leaves the matrix as it is. "rows" subtracts from every row its mean, which removes log Z and
            any other constant of a context. "both" then also subtracts from every column its mean, which removes the
            part of the log-probabilities that all contexts share, such as word frequencies.

    Raises:
        DataError: a number is nan or infinite, the matrix is empty, or its type is neither float32 nor float64.
        UserError: the Gram matrix does not fit into memory.
    """
    return centred_singular_values(lambda: [matrix_mn], matrix_mn.shape[1], centring)


def centred_singular_values(
    chunks: Callable[[], Iterable[Floats]],
    n_columns: int,
    centring: Centring,
    *,
    progress: Progress | None = None,
    make_gram: MakeGram = Gram,
) -> Spectrum:
    """Return the singular values of a centred matrix whose rows arrive in chunks.

    Args:
        chunks: function that returns a new iterator over the chunks of rows, each [any, n_columns]. The function is
            called twice for the centring "both", which reads all rows twice, and otherwise once.
        n_columns: width of every chunk.
        centring: "none"; "rows" to subtract from every row its mean; or "both" to then subtract from every column its
            mean, too.
        progress: called once per chunk with the number of rows read so far; with "both", only in the second reading.
        make_gram: function that takes a size and returns a Gram matrix of zeros: a `Gram` (CPU) or `DeviceGram` (GPU).

    Raises:
        DataError: a number is nan or infinite, there are no rows, or a chunk has a wrong shape or number type.
        UserError: the Gram matrix does not fit into memory.
    """
    rows: Iterable[Floats] = chunks()
    if centring != "none":
        mean_n = _mean_row(_centred_rows(rows)) if centring == "both" else 0.0
        rows = (row_centred_Rn - mean_n for row_centred_Rn in _centred_rows(chunks() if centring == "both" else rows))
    return gram_singular_values(rows, n_columns, progress=progress, make_gram=make_gram)


def _centred_rows(chunks: Iterable[Floats]) -> Iterator[Float64]:
    """Yield the chunks in float64, each row minus its mean."""
    for chunk in chunks:
        rows = chunk.astype(np.float64)
        yield rows - rows.mean(1, keepdims=True)


def _mean_row(chunks: Iterable[Float64]) -> Float64:
    """Return the mean of all rows; raise DataError if there are none."""
    parts = [(len(chunk), chunk.sum(0)) for chunk in chunks if len(chunk)]
    refuse_empty(len(parts), 1)
    return np.asarray(sum(total for _, total in parts) / sum(count for count, _ in parts))


def gram_singular_values(
    chunks: Iterable[Floats], n_columns: int, *, progress: Progress | None = None, make_gram: MakeGram = Gram
) -> Spectrum:
    """Return the singular values of a matrix whose rows arrive in chunks [any, n_columns], float32 or float64.

    The method depends on the size m x n of the matrix:

    * an SVD, if the matrix has at most DIRECT_ENTRIES (2^20) entries;
    * otherwise, if m <= n/2, the eigenvalues of the m x m Gram matrix of the rows;
    * otherwise, the eigenvalues of the n x n Gram matrix of the columns.

    The number of rows is unknown at first, so about n/2 rows (2 n^2 bytes in float32) are held in memory until the
    method is chosen. A Gram matrix of the columns needs 8 n^2 bytes, m n^2 flops and, for its eigenvalues, 4/3 n^3.

    Args:
        chunks: consecutive rows; the caller may reuse one buffer for all chunks.
        n_columns: n, the width of every chunk.
        progress: called once per chunk with the number of rows read so far.
        make_gram: function that takes a size and returns a Gram matrix of zeros: a `Gram` (CPU) or `DeviceGram` (GPU).

    Raises:
        DataError: a number is nan or infinite, there are no rows, or a chunk has a wrong shape or number type.
        UserError: the Gram matrix does not fit into memory.
    """
    return nested_singular_values(chunks, n_columns, None, progress=progress, make_gram=make_gram)[1]


def nested_singular_values(
    chunks: Iterable[Floats],
    n_columns: int,
    first_rows: int | None,
    *,
    progress: Progress | None = None,
    make_gram: MakeGram = Gram,
) -> tuple[Spectrum | None, Spectrum]:
    """Return the singular values of the first rows of a matrix and of the whole matrix, in one pass over its rows.

    `gram_singular_values` describes the methods and their memory.

    Args:
        chunks: consecutive rows [any, n_columns], float32 or float64; the caller may reuse one buffer for all chunks.
            Tensors stay on their device if `make_gram` returns a `DeviceGram`.
        n_columns: width of every chunk.
        first_rows: number of rows at the start of the matrix whose singular values are returned separately, or None.
        progress: called once per chunk with the number of rows read so far.
        make_gram: function that takes a size and returns a Gram matrix of zeros: a `Gram` (CPU) or `DeviceGram` (GPU).

    Returns:
        (first, whole): the spectrum of the first `first_rows` rows, and that of all rows. `first` is None if
        `first_rows` is None, or not less than the number of all rows.

    Raises:
        DataError: a number is nan or infinite, there are no rows, or a chunk has a wrong shape or number type.
        UserError: the Gram matrix does not fit into memory.
    """
    stream = _Rows(_cut_after(chunks, first_rows), n_columns, progress)
    rows = iter(stream)
    held = _hold(rows, n_columns)
    refuse_empty(stream.count, n_columns)
    first = None
    if first_rows is not None and first_rows <= stream.count:
        first = _spectrum_of_held(_joined(held)[:first_rows], stream.dtype, make_gram)
    if not _is_tall(stream.count, n_columns):
        whole = _spectrum_of_held(_joined(held), stream.dtype, make_gram)
    else:
        gram, count = make_gram(n_columns), 0
        for chunk in chain(_drain(held), rows):
            gram.add(chunk)
            count += len(chunk)
            if count == first_rows and first is None:
                first = gram.spectrum_so_far(count, n_columns, stream.dtype)
        whole = gram.spectrum(count, n_columns, "gram-of-columns", stream.dtype)
    return (first if first and first.m < whole.m else None), whole


def _cut_after(chunks: Iterable[Floats], first_rows: int | None) -> Iterator[Floats]:
    """Yield all chunks, but split the chunk that has rows on both sides of the end of the first `first_rows` rows.

    If `first_rows` is None, no chunk is split.
    """
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
    """Return True if a matrix has more than n/2 rows for its n columns, and too many entries for an SVD."""
    return n_rows > n_columns // 2 and n_rows * n_columns > DIRECT_ENTRIES


def _hold(rows: Iterator[Floats], n_columns: int) -> deque[Floats]:
    """Return copies of chunks, read from `rows` until the rows read so far form a tall matrix.

    A tall matrix has more than n/2 rows for its n columns, and too many entries for an SVD. The remaining chunks can be
    read from `rows` afterwards. If the matrix never gets tall, copies of all chunks are returned.
    """
    held: deque[Floats] = deque()
    count = 0
    for chunk in rows:
        held.append(chunk.copy() if isinstance(chunk, np.ndarray) else chunk.clone())
        count += len(chunk)
        if _is_tall(count, n_columns):
            break
    return held


class _Rows:
    """An iterable of chunks that checks every chunk, counts the rows and records their number type.

    Attributes:
        count: number of rows read so far.
        dtype: number type of the chunks, "float32" or "float64"; empty before the first chunk.
    """

    def __init__(self, chunks: Iterable[Floats], n_columns: int, progress: Progress | None) -> None:
        self._chunks = chunks
        self._n_columns = n_columns
        self._progress = progress
        self.count = 0
        self.dtype = ""

    def __iter__(self) -> Iterator[Floats]:
        for chunk in self._chunks:
            self._check_form(chunk)
            refuse_non_finite(chunk, "the matrix", first_row=self.count)
            self.count += len(chunk)
            yield chunk
            if self._progress is not None:
                self._progress(self.count)

    def _check_form(self, chunk: Floats) -> None:
        """Raise DataError if a chunk has a wrong shape or type, or another type than the first chunk."""
        if chunk.ndim != 2 or chunk.shape[1] != self._n_columns:
            raise DataError(f"a chunk of rows has shape {chunk.shape}, expected (any, {self._n_columns})")
        dtype = str(chunk.dtype).removeprefix("torch.")
        self.dtype = self.dtype or dtype
        if dtype != self.dtype or self.dtype not in ("float32", "float64"):
            raise DataError(
                f"a chunk of rows is {dtype}, expected float32 or float64 and the same throughout"
                f" (before it: {self.dtype})"
            )


def _joined(held: deque[Floats]) -> Floats:
    """Return the rows of all chunks as one array in main memory."""
    return np.concatenate([on_host(chunk) for chunk in held])


def _drain(held: deque[Floats]) -> Iterator[Floats]:
    """Yield the chunks in order, and remove each from `held`, so that its memory is free once it has been used."""
    while held:
        yield held.popleft()


def _spectrum_of_held(matrix_mn: Floats, dtype: str, make_gram: MakeGram) -> Spectrum:
    """Return the spectrum of a matrix M [m, n]: by SVD if M has at most DIRECT_ENTRIES entries, else from M M^T.

    `dtype` is the number type of M, which becomes the spectrum's attribute `dtype`. `make_gram(m)` returns an m x m
    Gram matrix of zeros.
    """
    m, n = matrix_mn.shape
    if matrix_mn.size <= DIRECT_ENTRIES:
        return dense_singular_values(matrix_mn)
    gram = make_gram(m)
    for start in range(0, n, BLOCK):
        gram.add(matrix_mn[:, start : start + BLOCK].T)
    return gram.spectrum(m, n, "gram-of-rows", dtype)


def dense_singular_values(matrix_mn: Floats) -> Spectrum:
    """Return the singular values of a matrix in memory by LAPACK's float64 SVD.

    This method suits small matrices, and tolerances below the noise floor of a Gram matrix. It needs 16 m n bytes of
    memory. The spectrum's `method` is "svd", or "svd-gesvd" if LAPACK's gesdd does not converge and gesvd is used.

    Raises:
        DataError: a number is nan or infinite, or the matrix is empty.
    """
    m, n = matrix_mn.shape
    refuse_empty(m, n)
    refuse_non_finite(matrix_mn, "the matrix")
    values = matrix_mn.astype(np.float64)
    method = "svd"
    try:
        sigma = scipy.linalg.svd(values, compute_uv=False, check_finite=False)
    except np.linalg.LinAlgError:
        sigma = scipy.linalg.svd(values, compute_uv=False, check_finite=False, lapack_driver="gesvd")
        method = "svd-gesvd"
    floor = FLOAT64_EPS * max(m, n) * float(sigma[0])
    return Spectrum(sigma, 0, m, n, method, matrix_mn.dtype.name, noise_floor=floor)


def factored_singular_values(
    contexts_ND: Floats, weight_VD: Floats, bias_V: Floats, log_z_N: Floats, centring: Centring = "none"
) -> Spectrum:
    """Return the exact singular values of ln P = H W^T + b - log Z from its factors [H | 1 | -log Z] and [W | b | 1].

    The rank is at most D + 2: the D columns of W (the softmax bottleneck, Yang et al. 2018, section 2), the bias and
    log Z. The bound is D + 1 for the centring "rows" and D for "both". All further singular values are exactly zero;
    the spectrum has only their number, as its attribute `n_zero`.

    Method: a QR decomposition of each factor, then the SVD of the small matrix R_left R_right^T of the two factors R.
    The N x V matrix is never built: beside the factors, only some blocks of their rows are in memory.

    Args:
        contexts_ND: context vectors H, which are multiplied by W^T. For MoC, these are the mixed vectors.
        weight_VD: word matrix W.
        bias_V: bias b of the words.
        log_z_N: log of the sum over words of exp(H W^T + b), one number per context. Zeros suffice for the centrings
            "rows" and "both", which remove log Z. `log_normalisers` computes log Z.
        centring: "none"; "rows" to subtract from every row its mean; or "both" to then subtract from every column its
            mean, too.

    Raises:
        DataError: shapes do not fit, or a number is nan or infinite.
    """
    n_contexts, width = contexts_ND.shape
    n_words = len(weight_VD)
    _require_shapes(contexts_ND, weight_VD, bias_V, log_z_N)
    # With the mean word vector w0 and the mean bias b0, h.w + b - logZ = h.(w - w0) + (b - b0) - (logZ - h.w0 - b0).
    # This form is more accurate: a large term that all words share would otherwise be in h.w + b and in logZ, and
    # cancel only in the product. Without the last term, rows are centred.
    mean_D, mean_bias = weight_VD.mean(0, dtype=np.float64), bias_V.mean(dtype=np.float64)
    origin_D = contexts_ND.mean(0, dtype=np.float64) if centring == "both" else 0.0
    columns = {"none": 2, "rows": 1, "both": 0}[centring]

    def left(rows: slice) -> Float64:
        h_RD = contexts_ND[rows].astype(np.float64) - origin_D
        more = [np.ones(len(h_RD)), h_RD @ mean_D + mean_bias - log_z_N[rows]]
        return np.column_stack([h_RD, *more[:columns]])

    def right(rows: slice) -> Float64:
        more = [bias_V[rows] - mean_bias, np.ones(len(bias_V[rows]))]
        return np.column_stack([weight_VD[rows] - mean_D, *more[:columns]])

    r_left, r_right = triangle(left, n_contexts, width + columns), triangle(right, n_words, width + columns)
    sigma = scipy.linalg.svd(r_left @ r_right.T, compute_uv=False, check_finite=False)
    floor = FLOAT64_EPS * (width + 2) * float(np.linalg.norm(r_left) * np.linalg.norm(r_right))
    if sigma[0] <= floor:  # the matrix is zero up to rounding errors, e.g. if the vocabulary has one word
        sigma = np.zeros_like(sigma)
    n_zero = min(n_contexts, n_words) - len(sigma)
    return Spectrum(sigma, n_zero, n_contexts, n_words, "factors", contexts_ND.dtype.name, noise_floor=floor)


def _require_shapes(contexts_ND: Floats, weight_VD: Floats, bias_V: Floats, log_z_N: Floats) -> None:
    """Raise DataError if the shapes of the factors do not fit, a factor is empty, or a number is not finite."""
    wanted = {"contexts": contexts_ND, "weight": weight_VD, "bias": bias_V, "log Z": log_z_N}
    n_contexts, width = contexts_ND.shape
    shapes = {"contexts": (n_contexts, width), "weight": (len(weight_VD), width), "log Z": (n_contexts,)}
    shapes["bias"] = (len(weight_VD),)
    for name, array in wanted.items():
        if array.shape != shapes[name]:
            raise DataError(f"{name} has shape {array.shape}, expected {shapes[name]} beside the other factors")
        refuse_non_finite(array, name)
    refuse_empty(n_contexts, len(weight_VD))


def triangle(rows_of: Callable[[slice], Float64], n_rows: int, n_columns: int) -> Float64:
    """Return the factor R, [min(n_rows, n_columns), n_columns], of the thin QR decomposition of a matrix.

    The matrix is read in blocks of rows: `rows_of(slice)` returns the rows of a slice in float64. After each block, the
    R of all rows so far is computed from a small matrix: the previous R with the block below it (Golub and Van Loan,
    "Matrix Computations", 5.2). The result is as accurate as that of a single decomposition.
    """
    step = max(n_columns, BLOCK_BYTES // (8 * n_columns))
    upper = np.empty((0, n_columns))
    for start in range(0, n_rows, step):
        stacked = np.asfortranarray(np.vstack([upper, rows_of(slice(start, start + step))]))
        upper = scipy.linalg.qr(stacked, mode="r", overwrite_a=True, check_finite=False)[0][:n_columns]
    return upper


def log_normalisers(
    contexts_ND: Floats, weight_VD: Floats, bias_V: Floats, *, block_bytes: int = BLOCK_BYTES
) -> Float64:
    """Return log Z [N], where log Z_n = log sum_v exp(h_n . w_v + b_v) for contexts h_n and words v.

    The vectors h_n are the rows of `contexts_ND`, w_v those of `weight_VD`, and b_v the entries of `bias_V`. The logits
    are computed in blocks of words and contexts of about `block_bytes` bytes.
    """
    words = max(1, min(len(weight_VD), block_bytes // (8 * weight_VD.shape[1])))
    rows = max(1, block_bytes // (8 * words))
    log_z_N = np.full(len(contexts_ND), -np.inf)
    for first in range(0, len(weight_VD), words):
        weight_DC = weight_VD[first : first + words].astype(np.float64).T
        for start in range(0, len(contexts_ND), rows):
            part = slice(start, start + rows)
            logits = contexts_ND[part].astype(np.float64) @ weight_DC + bias_V[first : first + words]
            largest = logits.max(1, keepdims=True)
            np.exp(np.subtract(logits, largest, out=logits), out=logits)
            np.logaddexp(log_z_N[part], largest[:, 0] + np.log(logits.sum(1)), out=log_z_N[part])
    return log_z_N
