"""Gram matrices in float64 and their eigenvalues, on the CPU or (with checks of the eigenvalues) on a torch device.

One check uses the Press tolerance, i.e. the limit above which the Press rank counts a singular value
(`counts.press_rank`).

Suffixes: m rows and n columns of the matrix M, whose Gram matrix M^T M is n x n.
"""

import ctypes
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.linalg import cython_lapack
from scipy.linalg.blas import dsyrk
from scipy.linalg.lapack import dsytrf, dsytrf_lwork

from softmax_bottleneck.ranks.spectrum import FLOAT32_EPS, FLOAT64_EPS, Float64, Floats, Spectrum
from softmax_bottleneck.store.errors import UserError

Solver = Callable[[Float64], Float64]  # a function like `lapack_eigenvalues`; it may overwrite its argument

# Maximum number of entries of a block on a CPU. OpenBLAS's threaded dsyrk overruns its work buffer at 20,000 columns x
# 256 rows with two threads; 17,000 x 256 works.
SYRK_ENTRIES = 1 << 21
BLOCK = 256  # maximum number of rows added at once; as fast as thousands, and shorter sums have smaller errors
ON_CPU = "eigenvalues by the CPU"  # in the method of a spectrum whose device failed a check
DEVICE_BLOCK, DEVICE_BLOCK_ENTRIES = 4096, 1 << 27  # the same limits on a GPU, in rows and entries (1 GiB)
SUMS_AGREE = 1e-10  # largest relative difference of sums in the checks of eigenvalues; rounding stays far below it


class Gram:
    """A Gram matrix M^T M, summed in float64 from chunks of rows of M.

    Rows are collected into blocks of fixed size before they are added, so that the result does not depend on the size
    of the chunks.

    Args:
        n: number of columns of M.
        solver: function from the Gram matrix, which it may overwrite, to its ascending eigenvalues; it runs on the CPU.
            By default LAPACK's (`lapack_eigenvalues`).

    Attributes:
        matrix: the sum over all full blocks so far; on the CPU only its lower triangle is meaningful.
        depth: upper bound on the number of roundings behind each entry of `matrix`: the number of rows of a block plus
            the number of blocks added so far.

    Raises:
        UserError: the machine lacks the memory for the matrix.
    """

    def __init__(self, n: int, solver: Solver | None = None) -> None:
        try:
            self.matrix = self._zeros(n)
        except MemoryError:
            raise UserError(
                f"the spectrum of a matrix with {n} columns needs a Gram matrix of {8 * n * n / 2**30:.1f} GiB,"
                " which this machine cannot give: use one with more memory or a smaller vocabulary"
            ) from None
        self._solver = solver or lapack_eigenvalues
        self._block = self._empty(self._rows_at_once(n), n, "float64")
        self.depth = max(BLOCK, len(self._block))
        self._filled = 0
        self._method = ""

    def _zeros(self, n: int) -> Any:
        """Return an n x n matrix of zeros in main memory; the subclass `DeviceGram` returns one on its device."""
        return np.zeros((n, n), order="F")

    def _rows_at_once(self, n: int) -> int:
        return max(1, min(BLOCK, SYRK_ENTRIES // n))

    def _empty(self, rows: int, n: int, dtype: str) -> Any:
        """Return a block for rows of type `dtype`: in float64, which dsyrk reads."""
        return np.empty((rows, n))

    def add(self, chunk: Floats) -> None:
        """Add the products row^T row of a chunk of rows [any, n]; the caller may then overwrite the chunk."""
        start = 0
        while start < len(chunk):
            part = chunk[start : start + len(self._block) - self._filled]
            self._block[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            start += len(part)
            if self._filled == len(self._block):
                self._add_block()

    def _add_block(self) -> None:
        """Add the rows collected so far to the matrix, even if they do not fill the block."""
        if self._filled:
            self._add_products(self._block[: self._filled])
            self.depth += 1
            self._filled = 0

    def _add_products(self, rows: Floats) -> None:
        # The transpose of a C-ordered block is in Fortran order, which dsyrk reads without a copy; it sums in place.
        self.matrix = dsyrk(1.0, rows.T, beta=1.0, c=self.matrix, lower=1, overwrite_c=1)

    def spectrum(self, m: int, n: int, method: str, dtype: str) -> Spectrum:
        """Return the singular values of an m x n matrix A from this Gram matrix; the call destroys the Gram matrix.

        A is the matrix M of the class, or its transpose: a wide matrix needs a smaller Gram matrix if its columns are
        added as rows.

        The noise floor is the square root of the larger of two estimates of an eigenvalue's error. One is an estimate
        of rounding errors (`_error`). The other is the magnitude of the most negative eigenvalue, as exact eigenvalues
        are not negative.

        Args:
            m: number of rows of A.
            n: number of columns of A.
            method: "gram-of-columns" if the rows of A were added, which gives A^T A. "gram-of-rows" if the columns of A
                were added as rows, which gives A A^T. The spectrum's attribute `method` starts with this text.
            dtype: number type of A, which becomes the spectrum's attribute `dtype`.
        """
        self._add_block()
        trace = float(self.matrix.trace())
        eigenvalues = self._eigenvalues(m, n, trace)
        error = max(self._error(trace, eigenvalues), -float(eigenvalues[0]))
        sigma = np.sqrt(np.maximum(eigenvalues[::-1][: min(m, n)], 0.0))
        return Spectrum(sigma, 0, m, n, method + self._method, dtype, noise_floor=math.sqrt(error))

    def _error(self, trace: float, eigenvalues: Float64) -> float:
        """Return an estimate of the largest error of an eigenvalue: the error of summation plus that of the solver.

        Summation: every entry of the Gram matrix is rounded `depth` times. The norm of the resulting error matrix is at
        most depth * trace * eps / 2, where eps is the machine epsilon of float64. Solver: LAPACK's eigenvalues have an
        error of p(n) eps sigma_max^2 with a slowly growing function p. This method uses p(n) = sqrt(n), about ten times
        the observed p(n).
        """
        largest = max(float(eigenvalues[-1]), 0.0)
        return FLOAT64_EPS * (self.depth / 2 * trace + math.sqrt(len(eigenvalues)) * largest)

    def _eigenvalues(self, m: int, n: int, trace: float) -> Float64:
        """Return the ascending eigenvalues of the Gram matrix; the call may overwrite `matrix` or set it to None.

        Only the checks of the subclass `DeviceGram` use the shape (m, n) of M and the trace of the Gram matrix.
        """
        return self._solver(self.matrix)

    def spectrum_so_far(self, m: int, n: int, dtype: str) -> Spectrum:
        """Return the spectrum of the m rows added so far, and keep the Gram matrix, so that rows can still be added.

        `n` is the number of columns of M, and `dtype` its number type. The eigenvalue routine overwrites the lower
        triangle and the diagonal. Both are copied before the routine runs, and restored afterwards.
        """
        self._add_block()
        diagonal = self.matrix.diagonal().copy()
        _mirror(self.matrix, source=self.matrix.T)
        spectrum = self.spectrum(m, n, "gram-of-columns", dtype)
        _mirror(self.matrix.T, source=self.matrix)
        np.einsum("ii->i", self.matrix)[:] = diagonal
        return spectrum


class DeviceGram(Gram):
    """A Gram matrix on a torch device, with checked eigenvalues.

    Eigenvalue solvers on GPUs are known to fail or to return wrong values for n above about 23,000. Therefore three
    checks must hold. The eigenvalues sum to the trace. Their squares sum to the squared Frobenius norm. The number of
    eigenvalues above the squared Press tolerance agrees with a count that needs no eigenvalues (`inertia_count`). If a
    check fails, the CPU computes the eigenvalues of the same matrix, and the spectrum's attribute `method` contains
    ON_CPU. Memory on the device: three to four times 8 n^2 bytes.

    Args:
        n: number of columns of M.
        solver: function that computes the eigenvalues on the CPU if a check fails.
        torch: the module torch; it is an argument because the package `ranks` does not import it.
        device: the torch device, as accepted by `torch.device`.
    """

    def __init__(self, n: int, solver: Solver | None = None, *, torch: Any, device: Any) -> None:
        self._torch, self._device = torch, torch.device(device)
        super().__init__(n, solver)

    def _zeros(self, n: int) -> Any:
        return self._torch.zeros(n, n, dtype=self._torch.float64, device=self._device)

    def _rows_at_once(self, n: int) -> int:
        return max(1, min(DEVICE_BLOCK, DEVICE_BLOCK_ENTRIES // n))

    def _empty(self, rows: int, n: int, dtype: str) -> Any:
        """Return a block on the device, of type `dtype`: float32 takes half the memory and is widened exactly."""
        return self._torch.empty(rows, n, dtype=getattr(self._torch, dtype), device=self._device)

    def add(self, chunk: Floats | Any) -> None:
        """Add the products row^T row of a chunk of rows [any, n]; a tensor of the device does not leave it."""
        chunk = self._torch.as_tensor(chunk)
        if not self._filled and self._block.dtype != chunk.dtype:
            self._block = self._empty(len(self._block), len(self.matrix), str(chunk.dtype).removeprefix("torch."))
        super().add(chunk)

    def _add_products(self, rows: Any) -> None:
        rows_RN = rows.double()
        self.matrix.addmm_(rows_RN.T, rows_RN)

    def spectrum_so_far(self, m: int, n: int, dtype: str) -> Spectrum:
        """Return the spectrum of the m rows added so far, and keep the Gram matrix, so that rows can still be added.

        `n` is the number of columns of M, and `dtype` its number type. If the CPU has to compute the eigenvalues, the
        method `spectrum` sets the attribute `matrix` to None. This method then sets it back to the Gram matrix.
        """
        self._add_block()
        kept = self.matrix
        spectrum = self.spectrum(m, n, "gram-of-columns", dtype)
        self.matrix = kept
        return spectrum

    def _eigenvalues(self, m: int, n: int, trace: float) -> Float64:
        try:
            eigenvalues: Float64 = self._torch.linalg.eigvalsh(self.matrix).cpu().numpy()
            trusted = self._trusted(eigenvalues, m, n, trace)
        except RuntimeError:  # the device lacks memory, or the solver did not converge
            trusted = False
        self._method = f" ({self._device.type})" if trusted else f" ({self._device.type}; {ON_CPU})"
        if trusted:
            return eigenvalues
        on_host = self.matrix.cpu().numpy().T  # symmetric, so Fortran order needs no copy
        self.matrix = None  # frees the device's memory while the CPU works, except for `spectrum_so_far`
        return self._solver(on_host)

    def _trusted(self, eigenvalues: Float64, m: int, n: int, trace: float) -> bool:
        """Return True if the eigenvalues pass the three checks of the class, each with a tolerance for rounding.

        `m` and `n` are the shape of M, which determines the Press tolerance. `trace` is that of the Gram matrix.
        """
        squares = float(self._torch.linalg.vector_norm(self.matrix)) ** 2
        sums = ((eigenvalues.sum(), trace), ((eigenvalues**2).sum(), squares))
        if not all(abs(found - exact) <= SUMS_AGREE * abs(exact) for found, exact in sums):
            return False
        threshold = 0.25 * (m + n + 1) * FLOAT32_EPS**2 * float(eigenvalues[-1])  # the Press tolerance, squared
        slack = self._error(trace, eigenvalues)
        fewest, most = ((eigenvalues > threshold + by).sum() for by in (slack, -slack))
        return bool(fewest <= self._inertia_count(threshold) <= most)

    def _inertia_count(self, threshold: float) -> int:
        """Return the number of eigenvalues above a threshold (see `inertia_count`).

        The number is computed on the device, or on the CPU if the device lacks memory or a routine.
        """
        try:
            shifted = self.matrix.clone()
            shifted.diagonal().sub_(threshold)
            factors, pivots, _ = self._torch.linalg.ldl_factor_ex(shifted)
            return _positive(factors.diagonal().cpu().numpy(), pivots.cpu().numpy())
        except RuntimeError:
            return inertia_count(self.matrix.cpu().numpy(), threshold)


def lapack_eigenvalues(matrix: Float64) -> Float64:
    """Return the ascending eigenvalues of a symmetric matrix from its lower triangle; the matrix is overwritten.

    A matrix that is not in Fortran order is first copied, which takes as much memory again. The routine is LAPACK's
    dsyevd_2stage, for which SciPy has no wrapper. It takes three fifths of the time of SciPy's eigvalsh with the driver
    `evd`. If SciPy's LAPACK has no dsyevd_2stage, eigvalsh is used.

    Raises:
        LinAlgError: the routine did not converge.
    """
    routine = _lapack("dsyevd_2stage_")
    if routine is None:
        return np.asarray(scipy.linalg.eigvalsh(matrix, lower=True, overwrite_a=True, check_finite=False, driver="evd"))
    matrix, values_n = np.asfortranarray(matrix), np.empty(len(matrix))

    def call(work: Float64, integers: NDArray[np.intc], *sizes: int) -> None:
        n, most, most_integers = (ctypes.byref(ctypes.c_int(size)) for size in (len(matrix), *sizes))
        arrays = (matrix.ctypes, n, values_n.ctypes, work.ctypes, most, integers.ctypes, most_integers)
        info, letters = ctypes.c_int(), (ctypes.c_size_t(1),) * 2
        routine(b"N", b"L", n, *arrays, ctypes.byref(info), *letters)
        if info.value:
            raise np.linalg.LinAlgError(f"dsyevd_2stage: info {info.value}")

    wanted, wanted_integers = np.empty(1), np.empty(1, np.intc)
    call(wanted, wanted_integers, -1, -1)  # queries the size of the work array
    work, integers = np.empty(int(wanted[0])), np.empty(wanted_integers[0], np.intc)
    call(work, integers, len(work), len(integers))
    return values_n


@contextmanager
def lapack_threads(count: int) -> Iterator[None]:
    """Set the number of threads of SciPy's LAPACK inside the context; has no effect if that LAPACK is not OpenBLAS."""
    ask, give = _lapack("openblas_get_num_threads"), _lapack("openblas_set_num_threads")
    before = ask() if ask and give else 0
    if before:
        give(count)
    try:
        yield
    finally:
        if before:
            give(before)


@cache
def _lapack(name: str) -> Any:
    """Return a ctypes function of the LAPACK that SciPy is linked with, such as `dsyevd_2stage_`; None if missing.

    In SciPy's wheels all names have the prefix `scipy_`, which this function adds.
    """
    library = ctypes.CDLL(cython_lapack.__file__)
    return getattr(library, f"scipy_{name}", None) or getattr(library, name, None)


def inertia_count(symmetric_nn: Float64, threshold: float) -> int:
    """Return the number of eigenvalues of a symmetric matrix A above a threshold, without computing the eigenvalues.

    Only the lower triangle of A is read. A - threshold I is factored as L D L^T, where D has diagonal blocks of size
    1 x 1 or 2 x 2. By Sylvester's law of inertia, D has as many positive eigenvalues as A has eigenvalues above the
    threshold. For a Gram matrix and the squared Press tolerance, this number is the Press rank. The factorisation needs
    n^3/3 flops; computing the eigenvalues would need 4/3 n^3. Memory: one copy of the matrix.
    """
    shifted = np.array(symmetric_nn, dtype=np.float64, order="F")
    np.einsum("ii->i", shifted)[:] -= threshold
    work, _ = dsytrf_lwork(len(shifted), lower=1)
    factors, pivots, info = dsytrf(shifted, lower=1, lwork=int(work), overwrite_a=1)
    if info < 0:
        raise ValueError(f"LAPACK dsytrf: argument {-info} is not valid")
    return _positive(factors.diagonal(), pivots)


def _positive(diagonal_n: Float64, pivots_n: NDArray[np.integer[Any]]) -> int:
    """Return the number of positive eigenvalues of D in a Bunch-Kaufman factorisation L D L^T.

    diagonal_n is the diagonal of D, and pivots_n are LAPACK's pivots. A negative pivot marks both rows of a 2 x 2 block
    of D. The determinant of such a block is negative, so it has one positive and one negative eigenvalue.
    """
    single = pivots_n > 0
    return int((diagonal_n[single] > 0).sum()) + int((~single).sum()) // 2


def _mirror(matrix: Float64, source: Float64) -> None:
    """Copy the lower triangle of a square matrix to its upper triangle, so that the matrix is symmetric.

    `source` must be `matrix.T`, a view of the same numbers: matrix[i, j] is set to source[i, j] for all i < j. The
    numbers are copied in bands of BLOCK rows, which need no copy of the whole matrix.
    """
    for start in range(0, len(matrix), BLOCK):
        stop = min(start + BLOCK, len(matrix))
        matrix[start:stop, stop:] = source[start:stop, stop:]
        above = np.triu_indices(stop - start, k=1)
        matrix[start:stop, start:stop][above] = source[start:stop, start:stop][above]
