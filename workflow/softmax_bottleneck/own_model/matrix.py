"""Matrices of log-probabilities that are made or read block by block, by rows or by columns.

Suffixes: N or m rows (contexts), V or n columns (words), D width of a hidden state, R x C a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.own_model import shards
from softmax_bottleneck.own_model.shards import Floats, Shard
from softmax_bottleneck.ranks.spectra import Float64, Progress
from softmax_bottleneck.store.errors import DataError

Indices = NDArray[np.intp]
Pointwise = Callable[[Floats], Floats]

BLOCK_BYTES = 32 << 20
# How far from one a row's probabilities may add up (as a logarithm): rounding of each storage type, at -20 nats.
SUM_TOLERANCE = {"float64": 1e-3, "float32": 1e-3, "float16": 0.05, "bfloat16": 0.3}


class Matrix(Protocol):
    """A matrix of log-probabilities, or a part of one, that can be streamed by rows or by columns."""

    shape: tuple[int, int]

    def by_rows(self) -> Iterator[Floats]:
        """Blocks [any, n] of rows in order."""
        ...

    def by_columns(self) -> Iterator[Floats]:
        """Blocks [any, m] of columns, transposed, in order."""
        ...


class LayerMatrix:
    """ln P = g(H W^T + b) - log Z in the type of H, made when asked for; log Z is over all words, in float64."""

    def __init__(
        self,
        hidden_ND: Floats,
        layer: Layer,
        pointwise: Pointwise | None,
        columns: Indices | None,
        tell: Progress,
    ) -> None:
        self._hidden_ND = hidden_ND
        self._pointwise = pointwise
        self._log_z_N = self._normalisers(layer, tell)
        self._layer = layer if columns is None else Layer(layer.weight_VD[columns], layer.bias_V[columns])
        self.shape = (len(hidden_ND), len(self._layer.bias_V))

    def _scores(self, rows: slice, layer: Layer, words: slice) -> Floats:
        logits_RC = self._hidden_ND[rows] @ layer.weight_VD[words].T
        logits_RC += layer.bias_V[words]
        return logits_RC if self._pointwise is None else self._pointwise(logits_RC)

    def _normalisers(self, layer: Layer, tell: Progress) -> Float64:
        parts = []
        for rows in _slices(len(self._hidden_ND), len(layer.bias_V)):
            scores_RV = self._scores(rows, layer, slice(None))
            largest_R = scores_RV.max(1).astype(np.float64)
            np.exp(np.subtract(scores_RV, largest_R[:, None], out=scores_RV, casting="same_kind"), out=scores_RV)
            parts.append(largest_R + np.log(scores_RV.sum(1, dtype=np.float64)))
            tell(rows.stop)
        return np.concatenate(parts)

    def block(self, rows: slice, words: slice) -> Floats:
        """ln P of some rows and words."""
        scores_RC = self._scores(rows, self._layer, words)
        return np.subtract(scores_RC, self._log_z_N[rows, None], out=scores_RC, casting="same_kind")

    def by_rows(self) -> Iterator[Floats]:
        """As `Matrix.by_rows`."""
        return (self.block(rows, slice(None)) for rows in _slices(*self.shape))

    def by_columns(self) -> Iterator[Floats]:
        """As `Matrix.by_columns`."""
        return (self.block(slice(None), words).T for words in _slices(*self.shape[::-1]))


class StoredMatrix:
    """Log-probabilities in files; rows that are no log-probabilities are refused."""

    def __init__(self, stored: Sequence[Shard], rows: Indices | None, columns: Indices | None) -> None:
        self._stored = stored
        self._rows = rows
        self._columns = columns
        full = (sum(shard.rows for shard in stored), stored[0].columns)
        self.shape = (full[0] if rows is None else len(rows), full[1] if columns is None else len(columns))

    def by_rows(self) -> Iterator[Floats]:
        """As `Matrix.by_rows`."""
        limit = max(SUM_TOLERANCE[shard.dtype] for shard in self._stored)
        first = 0
        for block in shards.blocks(self._stored, self._rows):
            self._refuse_other_numbers(block, first, limit)
            first += len(block)
            yield block if self._columns is None else block[:, self._columns]

    def by_columns(self) -> Iterator[Floats]:
        """As `Matrix.by_columns`; holds the whole part in memory."""
        held_mn = np.empty(self.shape, shards.dtype_of(self._stored))
        first = 0
        for block in self.by_rows():
            held_mn[first : first + len(block)] = block
            first += len(block)
        return (held_mn[:, words].T for words in _slices(*self.shape[::-1]))

    def _refuse_other_numbers(self, block_RV: Floats, first: int, limit: float) -> None:
        with np.errstate(over="ignore"):  # logits may be anything
            log_sum_R = np.log(np.exp(block_RV.astype(np.float64)).sum(1))
        worst = int(np.abs(log_sum_R).argmax())
        if not abs(log_sum_R[worst]) <= limit:
            row = first + worst if self._rows is None else self._rows[first + worst]
            raise DataError(
                f"log_probs: row {row} of {self._stored[0].label} and what follows: its probabilities add up to"
                f" {math.exp(min(log_sum_R[worst], 700)):.3g}, expected 1; are these logits? export log_softmax of them"
            )


@dataclass(frozen=True)
class Layer:
    """An output matrix [V, D] and its bias [V]."""

    weight_VD: Floats
    bias_V: Floats


def _slices(length: int, width: int) -> Iterator[slice]:
    """Consecutive ranges of at most BLOCK_BYTES of float64."""
    step = max(1, BLOCK_BYTES // (8 * width))
    return (slice(start, min(start + step, length)) for start in range(0, length, step))
