"""Matrices of log-probabilities ln P [m, n] in files; each kind knows its memory and the way to its singular values.

* A softmax layer: from the factors; the matrix never exists.
* A layer with any other head without weights of its own (gss, sigsoftmax, relu, sigmoid): the matrix is made block by
  block, by rows or by columns, whichever gives the smaller Gram matrix.
* Log-probabilities themselves: read by rows, and held in memory where there are fewer rows than columns.

Where only some columns are wanted, log-probabilities are normalised over all words nevertheless.

Suffixes: N or m rows (contexts), V or n columns (words), D width of a hidden state, R x C a block.
"""

from __future__ import annotations

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck import heads
from softmax_bottleneck.own_model import shards
from softmax_bottleneck.own_model.question import Question, parse_head
from softmax_bottleneck.own_model.shards import Floats, Shard
from softmax_bottleneck.ranks import RankReport, Spectrum, rank_report, spectra, spectral_cliff
from softmax_bottleneck.ranks.spectra import Progress
from softmax_bottleneck.ranks.spectrum import Float64
from softmax_bottleneck.store import progress
from softmax_bottleneck.store.errors import DataError, UserError
from softmax_bottleneck.store.progress import Say

Indices = NDArray[np.intp]
Pointwise = Callable[[Floats], Floats]

BLOCK_BYTES = 32 << 20
BASE_BYTES = 400 << 20  # Python with its libraries, and blocks on their way
TRIANGLES = 8  # of a factor and its next rows, copied by LAPACK; then the core and its singular values
TORCH_BYTES = 300 << 20  # with its own work arrays
SLOPE_STEP = 1e-5  # of a difference quotient of a head's function, whose error is some 1e-10
CHECK_SIDE = 1024  # of the block that is written out to check the bound
LONG_SIDE = 1024  # of a Gram matrix whose eigenvalues take a while
# How far from one a row's probabilities may add up (as a logarithm): rounding of each storage type, at -20 nats.
SUM_TOLERANCE = {"float64": 1e-3, "float32": 1e-3, "float16": 0.05, "bfloat16": 0.3}


@dataclass(frozen=True)
class Bound:
    """Rank at most D + 2, as of every softmax head (Yang et al. 2018), tried where the computation does not assume it.

    Attributes:
        limit: D + 2.
        where: what was tried.
        rank: Press rank of that, or None where it was not to be checked.
        unchecked: why not.
        cliff: after how many singular values those without the means of rows and columns fall farthest, and by what
            factor: a softmax layer's width D.
    """

    limit: int
    where: str
    rank: int | None = None
    cliff: tuple[int, float] | None = None
    unchecked: str = "too few contexts or words to exceed it"

    @property
    def holds(self) -> bool | None:
        """None where it was not checked."""
        return None if self.rank is None else self.rank <= self.limit


class LogProbs(ABC):
    """A matrix ln P [m, n] in files that were found and whose shapes fit; nothing large is read yet.

    Attributes:
        files: all files that are read.
        dtype: of the numbers in memory; holds all files exactly.
        m, n: size of the matrix.
        width: D, or None where nobody said it.
        head: name and options of what made it.
        highest_rank: what size, or theory, allows.
        cuts_rows: whether fewer rows, rather than columns, are what saves memory.
        note: what a reader must know of such files, or nothing.
        title, sides: what it is called, and what its rows and columns are.
    """

    head: tuple[str, Mapping[str, Any]]
    note = ""
    title, sides = "matrix of log-probabilities", ("contexts", "words")

    def __init__(self, files: list[Shard], m: int, n: int, width: int | None) -> None:
        self.files, self.m, self.n, self.width = files, m, n, width
        self.dtype = shards.dtype_of(files)
        self.highest_rank, self.cuts_rows = min(m, n), m < n
        # Arrays whose columns are consecutive are read whole, beside what becomes of them.
        self.base_bytes = BASE_BYTES + max((2 * shard.size_bytes for shard in files if shard.column_major), default=0)

    @abstractmethod
    def bytes_needed(self, rows: int, columns: int) -> int:
        """Peak memory of the singular values of a part of this size."""

    @abstractmethod
    def spectrum(self, rows: Indices | None, columns: Indices | None, say: Say) -> Spectrum:
        """Singular values of a part; None for all rows or columns."""

    @abstractmethod
    def bound(self, ranks: RankReport) -> Bound | None:
        """Whether the softmax bound holds, where that can be asked; `ranks` are those of what was analysed."""


def log_probs_of(asked: Question) -> LogProbs:
    """Find the files of a question and check their shapes.

    Raises:
        UserError, DataError: as `shards.find`; a head that cannot be computed; shapes that do not fit, both named.
    """
    if asked.log_probs:
        return StoredLogProbs(shards.find(asked.log_probs, "log_probs"), asked.width)
    hidden, weight = shards.find(asked.hidden, "hidden"), shards.find(asked.weight, "weight")
    if asked.weights_only:
        return OutputMatrix(weight, None)
    bias = shards.find([asked.bias], "bias") if asked.bias else []
    return Layer(hidden, weight, bias, *parse_head(asked.head))


# --- hidden states and an output layer ------------------------------------------------------------------------------
class Layer(LogProbs):
    """log_softmax(g(H W^T + b)) of hidden states H [m, D], weight W [n, D] and bias b [n], or none; g of the head."""

    width: int

    def __init__(
        self, hidden: list[Shard], weight: list[Shard], bias: list[Shard], head: str, options: Mapping[str, Any]
    ) -> None:
        m, n = (sum(shard.rows for shard in part) for part in (hidden, weight))
        super().__init__([*hidden, *weight, *bias], m, n, hidden[0].columns)
        self.head = head, options
        self._hidden, self._weight, self._bias = hidden, weight, bias
        self._require_fitting_shapes()
        self.pointwise = None if head == "softmax" else pointwise_of(head, options)
        if self.pointwise is None:
            self.highest_rank, self.cuts_rows = min(m, n, self.width + 2), True

    def _require_fitting_shapes(self) -> None:
        hidden, weight = self._hidden[0], self._weight[0]
        if weight.columns != self.width:
            hint = ": is it transposed?" if weight.shape[0] == self.width else ""
            raise DataError(
                f"hidden states of {hidden.label} have shape {hidden.shape} and the weight {weight.label}"
                f" {weight.shape}: expected weight [words, {self.width}]{hint}"
            )
        for bias in self._bias:
            if math.prod(bias.shape) != self.n:
                raise DataError(f"bias {bias.label} has shape {bias.shape} beside {self.n} words: expected ({self.n},)")

    def bytes_needed(self, rows: int, columns: int) -> int:
        """Of H and W, and what comes of them: triangles of the factors, or blocks and a Gram matrix."""
        entries = (rows + self.n) * self.width
        if self.pointwise is None:
            work = 8 * TRIANGLES * (self.width + 2) ** 2
        else:
            work = TORCH_BYTES + self.dtype.itemsize * columns * self.width + gram_bytes(rows, columns, self.dtype)
        return self.base_bytes + self.dtype.itemsize * entries + work

    @property
    def array_bytes(self) -> int:
        """Of H and W in memory."""
        return self.base_bytes + self.dtype.itemsize * (self.m + self.n) * self.width

    def spectrum(self, rows: Indices | None, columns: Indices | None, say: Say) -> Spectrum:
        """By QR of the factors for a softmax, else by a Gram matrix."""
        hidden_ND, weight_VD, bias_V = self.arrays(rows)
        if self.pointwise is not None:
            meter = Meter(say, "log Z of rows", len(hidden_ND))
            matrix = LayerMatrix(hidden_ND, weight_VD, bias_V, self.pointwise, columns, meter)
            return gram_spectrum(matrix.blocks, matrix.shape, say)
        log_z_N = spectra.log_normalisers(hidden_ND, weight_VD, bias_V)
        if columns is not None:
            weight_VD, bias_V = weight_VD[columns], bias_V[columns]
        return spectra.factored_singular_values(hidden_ND, weight_VD, bias_V, log_z_N)

    def bound(self, ranks: RankReport) -> Bound | None:
        """Of a softmax, on evenly spaced rows and words that are written out, because the factors assume it."""
        if self.pointwise is not None:
            return None
        rows, words = min(self.m, CHECK_SIDE), min(self.n, CHECK_SIDE)
        bound = Bound(self.width + 2, f"{rows} x {words} log-probabilities written out, by SVD")
        if bound.limit >= min(rows, words):
            return bound
        some_rows, some_words = (
            np.linspace(0, size - 1, min(size, CHECK_SIDE)).astype(np.intp) for size in (self.m, self.n)
        )
        matrix = LayerMatrix(*self.arrays(some_rows), None, some_words)
        found, centred = (spectra.singular_values(matrix.block(), centring) for centring in ("none", "both"))
        return replace(bound, rank=rank_report(found).press.rank, cliff=spectral_cliff(centred))

    def arrays(self, rows: Indices | None) -> tuple[Floats, Floats, Floats]:
        """Hidden states [N, D] of some rows or all, weight [V, D], bias [V]."""
        bias_V = shards.load(self._bias).ravel() if self._bias else np.zeros(self.n)
        hidden_ND, weight_VD = shards.load(self._hidden, rows), shards.load(self._weight)
        return (
            hidden_ND.astype(self.dtype, copy=False),
            weight_VD.astype(self.dtype, copy=False),
            bias_V.astype(self.dtype),
        )


def pointwise_of(name: str, options: Mapping[str, Any]) -> Pointwise:
    """g of a head as a function of float arrays.

    Raises:
        UserError: the head has weights of its own (a mixture, a learned function), which hidden states and an output
            matrix do not hold; or torch is not installed.
    """
    try:
        import torch
    except ImportError:
        raise UserError(
            f"head {name}: needs torch, which is not installed; only softmax and log_probs do without"
        ) from None
    try:
        module = heads.build_pointwise(name, options)
    except UserError:
        module = None
    if module is None or module.state_dict():
        raise UserError(
            f"head {name}: has weights of its own; write its log-probabilities (head.log_probs) in shards and give"
            " those as log_probs"
        )

    @torch.inference_mode()
    def pointwise(logits_RC: Floats) -> Floats:
        scores_RC: Floats = module(torch.from_numpy(logits_RC)).numpy()
        return scores_RC

    return pointwise


class LayerMatrix:
    """ln P = g(H W^T + b) - log Z in the type of H, made when asked for; log Z is over all words, in float64.

    DataError where a logit overflows.
    """

    def __init__(
        self,
        hidden_ND: Floats,
        weight_VD: Floats,
        bias_V: Floats,
        pointwise: Pointwise | None,
        columns: Indices | None = None,
        meter: Progress = lambda count: None,
    ) -> None:
        self._hidden_ND, self._weight_VD, self._bias_V, self._pointwise = hidden_ND, weight_VD, bias_V, pointwise
        self._log_z_N = self._normalisers(meter)
        if columns is not None:
            self._weight_VD, self._bias_V = weight_VD[columns], bias_V[columns]
        self.shape = (len(hidden_ND), len(self._bias_V))

    @np.errstate(over="ignore", invalid="ignore")
    def _scores(self, rows: slice, words: slice) -> Floats:
        logits_RC = self._hidden_ND[rows] @ self._weight_VD[words].T
        logits_RC += self._bias_V[words]
        scores_RC = logits_RC if self._pointwise is None else self._pointwise(logits_RC)
        if not np.isfinite(scores_RC).all():
            row = (rows.start or 0) + np.argwhere(~np.isfinite(scores_RC))[0][0]
            raise DataError(
                f"hidden: row {row} gives logits that overflow {self._hidden_ND.dtype}: are hidden states and weight of"
                " one model? if so, export both in float64"
            )
        return scores_RC

    def _normalisers(self, meter: Progress) -> Float64:
        parts = []
        for rows in slices(len(self._hidden_ND), len(self._bias_V)):
            scores_RV = self._scores(rows, slice(None))
            largest_R = scores_RV.max(1).astype(np.float64)
            np.exp(np.subtract(scores_RV, largest_R[:, None], out=scores_RV, casting="same_kind"), out=scores_RV)
            parts.append(largest_R + np.log(scores_RV.sum(1, dtype=np.float64)))
            meter(rows.stop)
        return np.concatenate(parts)

    def block(self, rows: slice = slice(None), words: slice = slice(None)) -> Floats:
        """ln P [R, C] of some rows and words."""
        scores_RC = self._scores(rows, words)
        return np.subtract(scores_RC, self._log_z_N[rows, None], out=scores_RC, casting="same_kind")

    def slopes(self, rows: slice) -> Floats:
        """g'(H W^T + b) [R, n] of some rows, of a layer with a function g; differences of float64."""
        assert self._pointwise is not None
        logits_RC = (self._hidden_ND[rows] @ self._weight_VD.T + self._bias_V).astype(np.float64)
        slope_RC = (self._pointwise(logits_RC + SLOPE_STEP) - self._pointwise(logits_RC - SLOPE_STEP)) / (
            2 * SLOPE_STEP
        )
        return slope_RC.astype(self._hidden_ND.dtype)

    def row_slices(self) -> Iterator[slice]:
        """Rows in blocks that are not too large."""
        return slices(*self.shape)

    def blocks(self, turned: bool) -> Iterator[Floats]:
        """Blocks [any, n] of rows in order; turned: blocks [any, m] of columns."""
        if turned:
            return (self.block(words=words).T for words in slices(*self.shape[::-1]))
        return (self.block(rows=rows) for rows in self.row_slices())


# --- matrices as they are -------------------------------------------------------------------------------------------
class StoredLogProbs(LogProbs):
    """Log-probabilities themselves, whatever head they are of; rows that are none are refused."""

    head = ("log_probs", {})

    def __init__(self, files: list[Shard], width: int | None) -> None:
        super().__init__(files, sum(shard.rows for shard in files), files[0].columns, width)
        self._sum_tolerance = max(SUM_TOLERANCE[shard.dtype] for shard in files)
        halves = sorted({shard.dtype for shard in files} & {"float16", "bfloat16"})
        if halves and self.head[0] == "log_probs":
            self.note = (
                f"the log-probabilities were stored as {' and '.join(halves)}: their rounding lies far above the"
                " tolerance and is counted as rank; export float32, or hidden states and weights (in any precision)"
            )

    def bytes_needed(self, rows: int, columns: int) -> int:
        """Of the Gram matrix, and of the part itself where it is turned."""
        held = self.dtype.itemsize * rows * columns if rows < columns else 0
        return self.base_bytes + held + gram_bytes(rows, columns, self.dtype)

    def spectrum(self, rows: Indices | None, columns: Indices | None, say: Say) -> Spectrum:
        """By the smaller Gram matrix."""
        shape = (self.m if rows is None else len(rows), self.n if columns is None else len(columns))

        def blocks(turned: bool) -> Iterator[Floats]:
            if not turned:
                return self._rows(rows, columns)
            part_mn, first = np.empty(shape, self.dtype), 0
            for block in self._rows(rows, columns):
                part_mn[first : first + len(block)] = block
                first += len(block)
            return (part_mn[:, words].T for words in slices(*shape[::-1]))

        return gram_spectrum(blocks, shape, say)

    def bound(self, ranks: RankReport) -> Bound | None:
        """On everything that was read, if the width is known."""
        if self.width is None:
            return None
        bound = Bound(self.width + 2, f"the {ranks.m} x {ranks.n} log-probabilities read")
        if self.note:
            return replace(bound, unchecked="numbers are too coarsely rounded")
        return bound if bound.limit >= min(ranks.m, ranks.n) else replace(bound, rank=ranks.press.rank)

    def _rows(self, rows: Indices | None, columns: Indices | None) -> Iterator[Floats]:
        first = 0
        for block_RV in shards.blocks(self.files, rows):
            self._refuse_other_numbers(block_RV, range(first, first + len(block_RV)) if rows is None else rows[first:])
            first += len(block_RV)
            yield block_RV if columns is None else block_RV[:, columns]

    def _refuse_other_numbers(self, block_RV: Floats, rows: Sequence[int] | Indices) -> None:
        with np.errstate(over="ignore", divide="ignore"):  # logits may be anything
            log_sum_R = np.log(np.exp(block_RV.astype(np.float64)).sum(1))
        worst = int(np.abs(log_sum_R).argmax())
        if abs(log_sum_R[worst]) > self._sum_tolerance:
            raise DataError(
                f"log_probs: row {rows[worst]} of {self.files[0].label} and what follows: its probabilities add up to"
                f" {math.exp(min(log_sum_R[worst], 700)):.3g}, expected 1; are these logits? export log_softmax of them"
            )


class OutputMatrix(StoredLogProbs):
    """The output matrix [words, D] alone, without any context."""

    head = ("output_matrix", {})
    title, sides = "output matrix", ("words", "columns")

    def bound(self, ranks: RankReport) -> None:
        """There is none to ask for."""
        return None

    @property
    def array_bytes(self) -> int:
        """Of the matrix in memory."""
        return self.base_bytes + self.dtype.itemsize * self.m * self.n

    def weights(self) -> Floats:
        """The matrix itself [words, D]."""
        return shards.load(self.files)

    def _refuse_other_numbers(self, block_RV: Floats, rows: Sequence[int] | Indices) -> None:
        """Any numbers are weights."""


# --- singular values ------------------------------------------------------------------------------------------------
def slices(length: int, width: int) -> Iterator[slice]:
    """Consecutive ranges of at most BLOCK_BYTES of float64."""
    step = max(1, BLOCK_BYTES // (8 * width))
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def gram_bytes(rows: int, columns: int, dtype: np.dtype[Any]) -> int:
    """The smaller Gram matrix; rows held until the engine knows which one it needs, and as much lost between them."""
    return (8 + dtype.itemsize) * min(rows, columns) ** 2


def gram_spectrum(blocks: Callable[[bool], Iterator[Floats]], shape: tuple[int, int], say: Say) -> Spectrum:
    """Singular values by the smaller of the two Gram matrices; `blocks` gives those of rows, or (True) of columns."""
    m, n = shape
    turned = m < n
    meter = Meter(say, "Gram matrix, columns" if turned else "Gram matrix, rows", max(shape))

    def announced() -> Iterator[Floats]:
        yield from blocks(turned)
        if min(shape) > LONG_SIDE:
            say(f"eigenvalues of a {min(shape)} x {min(shape)} matrix; this may take longer than the Gram matrix did")

    # The engine makes the Gram matrix of the columns it is given: of the transpose where rows are fewer.
    spectrum = spectra.gram_singular_values(announced(), min(shape), progress=meter)
    method = spectrum.method.replace("gram-of-columns", "gram-of-rows") if turned else spectrum.method
    return replace(spectrum, m=m, n=n, method=method)


class Meter:
    """Progress of one pass: in place on a terminal, else a line now and then through `say`."""

    def __init__(self, say: Say, what: str, total: int) -> None:
        self._say, self._what, self._total = say, what, total
        self._started = self._last = time.monotonic()
        self._watched = sys.stderr.isatty()

    def __call__(self, count: int) -> None:
        """`count` of the total are done."""
        now = time.monotonic()
        left = progress.duration((now - self._started) * (self._total - count) / count)
        text = f"{self._what}: {count} of {self._total} ({100 * count // self._total} %), {left} left"
        if self._watched:
            print(f"\r\x1b[K{text}", end="\n" if count >= self._total else "", file=sys.stderr, flush=True)
        elif now - self._last >= progress.LOG_INTERVAL_S:
            self._last = now
            self._say(text)
