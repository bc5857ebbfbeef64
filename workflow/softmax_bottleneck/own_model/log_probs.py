"""Matrices of log-probabilities ln P [m, n] from files: estimates of their memory, and their singular values.

There are four kinds of input:

* Hidden states and a softmax layer: the singular values follow from the factors H and W; ln P is never built.
* Hidden states and a layer whose head has no weights of its own (such as gss, softcap or sigmoid): ln P is computed
  block by block, by rows or by columns, whichever gives the smaller Gram matrix.
* Log-probabilities: ln P is read shard by shard. If it has fewer rows than columns, it is held in memory as a whole.
* An output matrix W without hidden states: W takes the place of ln P, and is read in the same way. For its measures it
  is held in memory as a whole.

Suffixes: N or m rows (contexts), V or n columns (words), D width of a hidden state, R x C part of a matrix.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck import heads
from softmax_bottleneck.own_model import inputs
from softmax_bottleneck.own_model.inputs import Floats, Shard
from softmax_bottleneck.ranks import Spectrum, rank_report, spectra, spectral_cliff
from softmax_bottleneck.ranks.spectrum import Float64
from softmax_bottleneck.store.errors import DataError, UserError
from softmax_bottleneck.store.progress import Say

Indices = NDArray[np.intp]
Pointwise = Callable[[Floats], Floats]

BLOCK_BYTES = 32 << 20
BASE_BYTES = 400 << 20  # Python with its libraries, and blocks being computed
TRIANGLES = 8  # arrays of (D + 2)^2 float64 numbers that QR and SVD of the factors hold at once, with LAPACK's copies
TORCH_BYTES = 300 << 20  # torch and its work arrays
SLOPE_STEP = 1e-5  # half the step of the difference quotients of a head's function, whose error is about 1e-10
CHECK_SIDE = 1024  # rows, and columns, that are computed to check the rank bound
SUM_TOLERANCE = 1e-3  # largest |ln s| that is accepted for the sum s of a row's probabilities
BASES = (math.e, 2.0, 10.0)  # of the logarithms in files
CHECK_ROWS, LEAST_DISTINCT, ROUNDED = 32, 16, 0.4  # of `_look_rounded`


@dataclass(frozen=True)
class Bound:
    """The result of checking the bound rank <= D + 2 of a softmax head of width D (Yang et al. 2018).

    The check uses a submatrix of the log-probabilities: a selection of rows and columns.

    Attributes:
        limit: the bound, D + 2.
        where: text for messages, with the submatrix's size and the method that computed its rank.
        rank: Press rank of the submatrix, which counts singular values above a tolerance (`ranks.press_rank`).
        holds: True if `rank` does not exceed `limit`.
        cliff: (k, ratio): the position k of the largest ratio sigma_k / sigma_(k+1), and this ratio. Here, sigma are
            the singular values of the submatrix centred by rows and columns (`ranks.spectral_cliff`). The centring
            removes log Z and the bias, which leaves rank D at most, so k is usually D.
    """

    limit: int
    where: str
    rank: int
    holds: bool
    cliff: tuple[int, float]


# --- hidden states and an output layer ------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class LoadedLayer:
    """Hidden states and an output layer in memory; the methods compute parts of ln P = g(H W^T + b) - log Z.

    Z is the normaliser of each row. Results have the floating-point type of H, unless a method says otherwise. All
    methods but `slopes` raise DataError if a score g(logit) is not finite.

    Attributes:
        hidden_ND: hidden states H.
        weight_VD: output matrix W.
        bias_V: output bias b; zeros if the layer has none.
        pointwise: the function g of the head; None for a softmax, whose g is the identity.
    """

    hidden_ND: Floats
    weight_VD: Floats
    bias_V: Floats
    pointwise: Pointwise | None

    @np.errstate(over="ignore", invalid="ignore")
    def _scores(self, rows: slice, words: slice | Indices) -> Floats:
        logits_RC = self.hidden_ND[rows] @ self.weight_VD[words].T
        logits_RC += self.bias_V[words]
        scores_RC = logits_RC if self.pointwise is None else self.pointwise(logits_RC)
        if not np.isfinite(scores_RC).all():
            row = (rows.start or 0) + np.argwhere(~np.isfinite(scores_RC))[0][0]
            problem = f"row {row} gives logits that overflow {self.hidden_ND.dtype}"
            fix = "are hidden states and weight of one model? If so, export both in float64"
            raise DataError(f"hidden: {problem}: {fix}")
        return scores_RC

    @cached_property
    def log_z_N(self) -> Float64:
        """The logarithm [N], in float64, of each context's normaliser Z, which is a sum over all words."""
        parts = []
        for rows in slices(len(self.hidden_ND), len(self.bias_V)):
            scores_RV = self._scores(rows, slice(None))
            largest_R = scores_RV.max(1).astype(np.float64)
            np.exp(np.subtract(scores_RV, largest_R[:, None], out=scores_RV, casting="same_kind"), out=scores_RV)
            parts.append(largest_R + np.log(scores_RV.sum(1, dtype=np.float64)))
        return np.concatenate(parts)

    def block(self, rows: slice = slice(None), words: slice | Indices = slice(None)) -> Floats:
        """Return ln P [R, C] for a selection of rows and words."""
        scores_RC = self._scores(rows, words)
        return np.subtract(scores_RC, self.log_z_N[rows, None], out=scores_RC, casting="same_kind")

    def slopes(self, rows: slice) -> Floats:
        """Return the derivative g' at the logits H W^T + b of the contexts `rows`, [R, n].

        The derivative is a central difference quotient in float64, rounded to the type of H. The method must not be
        called for a softmax, whose `pointwise` is None.
        """
        assert self.pointwise is not None
        logits_RC = (self.hidden_ND[rows] @ self.weight_VD.T + self.bias_V).astype(np.float64)
        rise_RC = self.pointwise(logits_RC + SLOPE_STEP) - self.pointwise(logits_RC - SLOPE_STEP)
        return (rise_RC / (2 * SLOPE_STEP)).astype(self.hidden_ND.dtype)

    def blocks(self, transposed: bool) -> Iterator[Floats]:
        """Yield ln P as successive blocks of rows [R, n] or, if `transposed`, of columns, each transposed to [C, m]."""
        m, n = len(self.hidden_ND), len(self.bias_V)
        if transposed:
            return (self.block(words=words).T for words in slices(n, m))
        return (self.block(rows) for rows in slices(m, n))


class Layer:
    """The matrix ln P = log_softmax(g(H W^T + b)) of hidden states and an output layer that are stored in files.

    The constructor takes the shards of the hidden states H [m, D], of the weights W [n, D] and of the bias b [n] (an
    empty list for none), and the name and options of the head. It raises a DataError if shapes do not fit together, and
    a UserError for a head with weights of its own.

    Attributes:
        m: number of contexts.
        n: number of words.
        width: width D.
        head: (name, options) of the head, such as ("gss", {"c": -1.5, "k": 2.5}).
        pointwise: the function g; None for a softmax, whose g is the identity.
        title: name of the matrix in messages.
        sides: names of the rows and of the columns in messages.
        notes: remarks on the numbers: none.
    """

    title, sides = "matrix of log-probabilities", ("contexts", "words")
    notes: Sequence[str] = ()

    def __init__(
        self, hidden: list[Shard], weight: list[Shard], bias: list[Shard], head: str, options: Mapping[str, Any]
    ) -> None:
        self.m, self.n = (sum(shard.rows for shard in part) for part in (hidden, weight))
        self.width, self.head = hidden[0].columns, (head, options)
        self._hidden, self._weight, self._bias = hidden, weight, bias
        if weight[0].columns != self.width:
            hint = ": is it transposed?" if weight[0].shape[0] == self.width else ""
            shapes = (
                f"{hidden[0].label} have shape {hidden[0].shape} and the weight {weight[0].label} {weight[0].shape}"
            )
            raise DataError(f"hidden states of {shapes}. Expected weight [words, {self.width}]{hint}")
        if bias and math.prod(bias[0].shape) != self.n:
            problem = f"has shape {bias[0].shape} beside {self.n} words"
            raise DataError(f"bias {bias[0].label} {problem}. Expected ({self.n},)")
        self.pointwise = None if head == "softmax" else _pointwise(head, options)

    def bytes_needed(self) -> int:
        """Return the estimated peak memory in bytes: H, W, work arrays and, except for a softmax, a Gram matrix."""
        files = [*self._hidden, *self._weight, *self._bias]
        itemsize, largest = inputs.dtype_of(files).itemsize, max(shard.rows * shard.columns for shard in files)
        if self.pointwise is None:
            work = 8 * TRIANGLES * (self.width + 2) ** 2
        else:  # the Gram matrix is float64, and as many numbers of ln P are held before it is formed
            work = TORCH_BYTES + itemsize * self.n * self.width + (8 + itemsize) * min(self.m, self.n) ** 2
        return BASE_BYTES + itemsize * (largest + (self.m + self.n) * self.width) + work

    @cached_property
    def loaded(self) -> LoadedLayer:
        """The hidden states, weights and biases in memory, in one number type that holds each of them exactly."""
        dtype = inputs.dtype_of([*self._hidden, *self._weight, *self._bias])
        bias_V = inputs.load(self._bias).ravel() if self._bias else np.zeros(self.n)
        factors = (inputs.load(self._hidden), inputs.load(self._weight), bias_V)
        hidden_ND, weight_VD, bias_V = (array.astype(dtype, copy=False) for array in factors)
        return LoadedLayer(hidden_ND, weight_VD, bias_V, self.pointwise)

    def spectrum(self, say: Say) -> Spectrum:
        """Return the singular values of ln P: for a softmax by QR of H and W, else from a Gram matrix.

        `say` prints one line of progress.
        """
        layer = self.loaded
        factors = (layer.hidden_ND, layer.weight_VD, layer.bias_V)
        if self.pointwise is None:
            return spectra.factored_singular_values(*factors, spectra.log_normalisers(*factors))
        say(f"log Z of {self.m} rows")
        return _gram_spectrum(layer.blocks, (self.m, self.n), say)

    def bound(self) -> Bound | None:
        """Check the bound rank <= D + 2 of a softmax layer on a submatrix of ln P, and return the result.

        The submatrix has evenly spaced rows and columns, at most 1024 each, and its rank is found by a full SVD. The
        method of `spectrum` would check nothing: it works on the factors, so that its rank never exceeds D + 2.

        Returns:
            The result of the check, or None if there is nothing to check: the head is not a softmax, or a side of the
            submatrix is at most D + 2.
        """
        rows, words = (np.unique(np.linspace(0, size - 1, CHECK_SIDE).astype(np.intp)) for size in (self.m, self.n))
        limit = self.width + 2
        if self.pointwise is not None or limit >= min(len(rows), len(words)):
            return None
        layer = replace(self.loaded, hidden_ND=self.loaded.hidden_ND[rows])
        block = layer.block(words=words)
        whole, centred = (spectra.singular_values(block, centring) for centring in ("none", "both"))
        rank, where = rank_report(whole).press.rank, f"a {len(rows)} x {len(words)} submatrix (by SVD)"
        return Bound(limit, where, rank, rank <= limit, spectral_cliff(centred))


def _pointwise(name: str, options: Mapping[str, Any]) -> Pointwise:
    """Return the function g of a head, which maps an array of logits to an array of scores of the same shape.

    Raises:
        UserError: the head `name` has weights of its own (a mixture, a learned function), which the input files lack.
    """
    import torch

    try:
        module = heads.build_pointwise(name, options)
    except UserError:
        module = None
    if module is None or module.state_dict():
        fix = "Write its log-probabilities (head.log_probs) in shards and give those as log_probs"
        raise UserError(f"head {name}: has weights of its own. {fix}")

    @torch.inference_mode()
    def pointwise(logits_RC: Floats) -> Floats:
        return module(torch.from_numpy(logits_RC)).numpy()

    return pointwise


# --- matrices as they are -------------------------------------------------------------------------------------------
class OutputMatrix:
    """The output matrix W [words, D] alone, without hidden states; its singular values are those of W, not of ln P.

    Attributes:
        files: the shards of the matrix.
        m: number of rows, here words.
        n: number of columns, here D.
        width: None, because no bound on the rank is checked.
        head: ("output_matrix", {}).
        title: name of the matrix in messages.
        sides: names of the rows and of the columns in messages.
        measured: True if `measures.measure` measures the matrix, as it does except for log-probabilities.
        notes: remarks on the numbers; complete once `spectrum` has read them.
    """

    measured = True
    head: tuple[str, Mapping[str, Any]] = ("output_matrix", {})
    title, sides = "output matrix", ("words", "columns")
    width = None

    def __init__(self, files: list[Shard]) -> None:
        self.files, self.m, self.n = files, sum(shard.rows for shard in files), files[0].columns
        self.notes: list[str] = []

    def bytes_needed(self) -> int:
        """Return the estimated peak memory in bytes: a Gram matrix and the rows that are held in memory.

        Of log-probabilities with at least as many rows as columns, two shards are held at a time. Otherwise one shard
        and all rows are held: fewer rows than columns are read as blocks of columns, and `measures.measure` needs all
        rows of an output matrix. It also needs a byte per number, which tells if the number is finite.
        """
        itemsize, largest = inputs.dtype_of(self.files).itemsize, max(shard.rows for shard in self.files)
        held = self.m if self.measured or self.m < self.n else largest
        work = (8 + itemsize) * min(self.m, self.n) ** 2 + self.measured * self.m * self.n
        return BASE_BYTES + itemsize * (largest + held) * self.n + work

    def spectrum(self, say: Say) -> Spectrum:
        """Return the singular values of the matrix, from its smaller Gram matrix; `say` prints one line of progress."""
        return _gram_spectrum(self.blocks, (self.m, self.n), say)

    def blocks(self, transposed: bool) -> Iterator[Floats]:
        """Yield the rows of each shard [R, n] or, if `transposed`, blocks of columns, each transposed to [C, m].

        Raises:
            DataError: a file is damaged. In the subclass `StoredLogProbs`, whose rows are log-probabilities, also: the
                probabilities of a row do not add up to one.
        """
        if transposed:
            whole_mn = inputs.load(self.files)
            self._prepare(whole_mn, self.files[0])
            yield from (whole_mn[:, words].T for words in slices(self.n, self.m))
            return
        for shard in self.files:
            rows_RV = shard.read()
            self._prepare(rows_RV, shard)
            yield rows_RV.astype(inputs.dtype_of(self.files), copy=False)

    def _prepare(self, rows_RV: Floats, shard: Shard) -> None:
        """Do nothing here; in the subclass `StoredLogProbs`, check rows of `shard` and convert them in place."""


class StoredLogProbs(OutputMatrix):
    """A matrix of log-probabilities [contexts, words] in files, of any head; m is contexts, n is words."""

    measured = False
    head = ("log_probs", {})
    title, sides = Layer.title, Layer.sides

    _base: float | None = None  # of the logarithms; None before the first row is read

    def _prepare(self, rows_RV: Floats, shard: Shard) -> None:
        """Check that the probabilities of each row add up to one, and convert logarithms to base 2 or 10 in place.

        The first row of the first shard decides the base of all rows. The error message names `shard`.

        Raises:
            DataError: the probabilities of a row do not add up to one.
        """
        if self._base is None:
            fits = (base for base in BASES if abs(_log_sums(rows_RV[:1], base)[0]) <= SUM_TOLERANCE)
            self._base = next(fits, math.e)
            if self._base != math.e:
                self.notes.append(f"the log-probabilities are to base {self._base:g}; multiplied by ln {self._base:g}")
            if _look_rounded(rows_RV, self._base):
                self.notes.append(
                    "the logits look rounded to half precision (float16 or bfloat16) before log_softmax, and rounding"
                    " counts as rank. Compute them in float32, or give hidden states and weights (in any precision)"
                )
        for rows in slices(len(rows_RV), self.n):
            log_sum_R = _log_sums(rows_RV[rows], self._base)
            worst = int(np.abs(log_sum_R).argmax())
            if abs(log_sum_R[worst]) > SUM_TOLERANCE:
                total = f"{math.exp(min(log_sum_R[worst], 700)):.6g}, expected 1 ± {SUM_TOLERANCE:g}"
                problem = f"row {rows.start + worst}, counted from {shard.label}: its probabilities add up to {total}"
                raise DataError(f"log_probs: {problem}; are these logits? Export log_softmax of them")
        if self._base != math.e:
            rows_RV *= math.log(self._base)


@np.errstate(over="ignore", divide="ignore")  # logits may overflow
def _log_sums(rows_RV: Floats, base: float) -> Float64:
    """Return ln of the sum [R] of base^x over each row."""
    probability_RV = rows_RV.astype(np.float64)
    probability_RV *= math.log(base)
    return np.log(np.exp(probability_RV, out=probability_RV).sum(1))


def _look_rounded(rows_RV: Floats, base: float) -> bool:
    """Return True if log-probabilities look as if the logits, or they themselves, were rounded to half precision.

    Numbers of at least 1/16 in float16, and of at least 1/128 in bfloat16, are multiples of 2^-14. Wound round a circle
    of circumference 2^-14, most numbers of a row then lie at one point, which depends on log Z. Numbers computed in
    float32 lie all around it. The mean of the points on the unit circle has length 1 in the first case, and about
    1 / sqrt(V) in the second. At most CHECK_ROWS rows are read, and equal numbers of a row count once.
    """
    lengths = []
    for row in np.unique(np.linspace(0, len(rows_RV) - 1, CHECK_ROWS).astype(np.intp)):
        distinct = np.unique(rows_RV[row].astype(np.float64)) * math.log(base)
        if len(distinct) >= LEAST_DISTINCT:
            lengths.append(abs(np.exp(2j * np.pi * 2**14 * distinct).mean()))
    return bool(lengths) and float(np.median(lengths)) > ROUNDED


LogProbs = Layer | OutputMatrix


def open_log_probs(request: inputs.Request) -> LogProbs:
    """Return the matrix that the options of the command `rank` describe; the numbers are not read yet.

    The result is a `StoredLogProbs` if `request.log_probs` is given, an `OutputMatrix` if `request.weights_only` is
    true, and otherwise a `Layer` of hidden states and weights. `request.model` is not read: for a model in its own
    format, `saved_model.export_layer` first writes the hidden states and weights to files.

    Raises:
        UserError: a file cannot be found or used (see `inputs.find`), or the head has weights of its own.
        DataError: a file is damaged (see `inputs.find`), shapes do not fit together, or log-probabilities are in half
            precision.
    """
    if request.log_probs:
        files = inputs.find(request.log_probs, "log_probs")
        for shard in files:
            if shard.dtype in ("float16", "bfloat16"):
                problem = f"numbers are {shard.dtype}, whose rounding would be counted as rank"
                fix = "Export float32, or hidden states and weights (in any precision)"
                raise DataError(f"log_probs: {shard.label}: {problem}. {fix}")
        return StoredLogProbs(files)
    weight = inputs.find(request.weight, "weight")
    if request.weights_only:
        return OutputMatrix(weight)
    bias = inputs.find([request.bias], "bias") if request.bias else []
    return Layer(inputs.find(request.hidden, "hidden"), weight, bias, *inputs.parse_head(request.head))


# --- singular values ------------------------------------------------------------------------------------------------
def slices(length: int, width: int) -> Iterator[slice]:
    """Yield consecutive slices that cover `length` rows of `width` float64 numbers, at most BLOCK_BYTES per slice."""
    step = max(1, BLOCK_BYTES // (8 * width))
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def _gram_spectrum(blocks: Callable[[bool], Iterator[Floats]], shape: tuple[int, int], say: Say) -> Spectrum:
    """Return the singular values of a matrix of the given shape from its smaller Gram matrix.

    `blocks(False)` yields blocks of rows, and `blocks(True)` yields transposed blocks of columns. `say` prints one
    line of progress.
    """
    (m, n), transposed = shape, shape[0] < shape[1]
    say(f"Gram matrix of {min(shape)} x {min(shape)}, then its eigenvalues, which may take longer")
    # `gram_singular_values` forms the Gram matrix of columns; if rows are fewer, it gets the transposed matrix.
    spectrum = spectra.gram_singular_values(blocks(transposed), min(shape))
    method = spectrum.method.replace("gram-of-columns", "gram-of-rows") if transposed else spectrum.method
    return replace(spectrum, m=m, n=n, method=method)
