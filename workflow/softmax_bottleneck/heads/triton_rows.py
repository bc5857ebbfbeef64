"""Two GPU kernels for the rows of logits of the fused loss; they replace a `Sweep`'s element-wise operations.

A row holds the logits l_v of all words v, to which the pointwise function g is applied. `_losses` reads a row once and
computes the loss and log Z = log sum_v exp(g(l_v)) = m + log S, where m is the largest score. `_gradients` reads the
row again and overwrites it with w (exp(g(l_v) - m - log S) - [v = y]) g'(l_v), where w is the row's weight and y the
target word. Each program instance of a kernel handles one row, so that the sums over a row always have the same order
and the same result.

If g is a trained piecewise linear function, the gradients of its parameters follow from two histograms. These hold two
sums over the logits in each cell, an interval on which g is linear (see `RowFunction.from_histograms`). All program
instances add to the same histograms, in any order. The order does not matter, because the summands are integers.

The optional package triton is required; it comes with torch's GPU builds. If TRITON_INTERPRET=1 is set when this module
is loaded, the kernels run on a CPU, slowly (`make triton-test`).

Numerical stability: the largest score is subtracted before anything is added; ln(1 + exp(-|x|)) replaces
ln(1 + exp(x)). With the target's
probability p, p - 1 is computed as expm1(-loss), which is accurate even if p is near one.

Shapes: R rows, V words, K cells of a piecewise linear function.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from softmax_bottleneck.heads.pointwise import RowFunction, Sweep

LONGEST_BLOCK = 4096  # words that a program instance processes at once
HISTOGRAM_BITS = 36  # bits of the largest summand; 2^27 such summands, more than a chunk has, fit an int64
FLOOR = tl.constexpr(1e-8)  # as heads/relu.py


class RowSweep(Sweep):
    """A pass of the fused loss by GPU kernels in float32; `function` describes the pointwise function to them."""

    row_multiple = 8

    def __init__(self, function: RowFunction, *, with_gradients: bool) -> None:
        self._function = function
        self._counts = with_gradients and function.from_histograms is not None
        table_K2 = function.table_K2 if self._counts else None
        self._sums_2K = None if table_K2 is None else torch.zeros_like(table_K2.t(), dtype=torch.float64)

    def nll_(self, logits_RV: Tensor, target_R1: Tensor) -> Tensor:
        """Return -log softmax(g(logits))[target] of every row, [R, 1] nats.

        The logits are not copied, and must stay unchanged until ``grad_`` has used them.
        """
        self._logits_RV, self._target_R1 = logits_RV, target_R1.contiguous()
        self._log_z_2R, self._nll_R1 = logits_RV.new_empty(2, len(logits_RV)), logits_RV.new_empty(len(logits_RV), 1)
        self._reach_R1 = torch.empty_like(self._nll_R1)
        self._launch(_losses, self._nll_R1, self._reach_R1)
        return self._nll_R1

    def grad_(self, weight_R1: Tensor | None) -> tuple[Tensor, None]:
        """Return (gradients [R, V], None): the loss gradients with respect to the logits of the last call of ``nll_``.

        The gradients overwrite these logits. ``weight_R1`` holds the weight of each row's loss (None: all ones). The
        second item is None because the gradients already contain the weights (see `Sweep.grad_`).
        """
        weight_R1 = torch.ones_like(self._nll_R1) if weight_R1 is None else weight_R1.contiguous()
        row_inputs = torch.expm1(-self._nll_R1), weight_R1
        if self._counts:
            self._add_to_histograms(*row_inputs)
        else:
            self._launch(_gradients, *row_inputs, weight_R1, weight_R1)  # the last two are not read
        return self._logits_RV, None

    def _add_to_histograms(self, at_target_R1: Tensor, weight_R1: Tensor) -> None:
        """Overwrite the chunk's logits with the loss gradients, and add the chunk's part to the histograms [2, K].

        `RowFunction.from_histograms` describes the histograms, which are sums over all chunks. The kernel sums
        integers: it multiplies each summand by a scale and rounds the product. The scale is chosen so that no product
        exceeds 2^HISTOGRAM_BITS; the sums over a chunk then fit an int64. ``at_target_R1`` is p - 1, where p is the
        probability of the row's target word. ``weight_R1`` holds the row weights.
        """
        largest = weight_R1.abs().amax().clamp_min(1e-30)
        scale_2 = 2.0**HISTOGRAM_BITS / torch.stack((largest, largest * self._reach_R1.amax().clamp_min(1.0)))
        counts_2K = torch.zeros(self._table_K2.t().shape, dtype=torch.int64, device=weight_R1.device)
        self._launch(_gradients, at_target_R1, weight_R1, scale_2, counts_2K)
        if self._sums_2K is not None:
            self._sums_2K += counts_2K.double() / scale_2.double().unsqueeze(1)

    def parameter_grads(self) -> tuple[Tensor, ...]:
        """Return the gradients of g's parameters, summed over all chunks; empty if g has no trained parameters."""
        if self._function.from_histograms is None or self._sums_2K is None:
            return ()
        return self._function.from_histograms(self._sums_2K)

    @property
    def _table_K2(self) -> Tensor:
        table_K2 = self._function.table_K2
        return self._logits_RV.new_zeros(1, 2) if table_K2 is None else table_K2

    def _launch(self, kernel: Any, *tensors: Tensor) -> None:
        table_K2, (num_rows, num_words) = self._table_K2, self._logits_RV.shape
        constants = (*self._function.constants, 0.0, 0.0, 0.0)[:3]
        kernel[(num_rows,)](self._logits_RV, self._target_R1, self._log_z_2R, *tensors, num_words,
                            self._logits_RV.stride(0), table_K2, len(table_K2), *constants, KIND=self._function.kind,
                            COUNTS=self._counts, BLOCK=min(LONGEST_BLOCK, triton.next_power_of_2(num_words)),
                            num_warps=8)  # fmt: skip


@triton.jit
def _apply(logit, table, num_cells, a, b, c, KIND: tl.constexpr):
    """Return the score g(l), the slope g'(l), the cell of l and the position in that cell, for a block of logits l.

    The position is 0 at the left end and 1 at the right end of the cell. A logit left of all cells is assigned to the
    first cell and has a position below 0; a logit right of all cells is assigned to the last cell and has a position
    above 1. Cell and position are 0 unless KIND is "plif" (g is piecewise linear).

    KIND names g: identity, gss, sigmoid, relu or plif. `table` [num_cells, 2] has one row per cell: the slope, and the
    value of g at the left end. `a`, `b` and `c` are the constants of g; those that g does not use are 0. For gss, `a`
    is the head's option c, and `b` its option k. For plif, `c` is the width of a cell, and l lies in cell number
    l * b + a, rounded down.
    """
    cell = tl.zeros_like(logit).to(tl.int32)
    place = tl.zeros_like(logit)
    score = logit
    slope = place + 1.0
    if KIND == "gss":  # a = c, b = k
        below = a - logit
        score = logit - (b - 1.0) * (tl.maximum(below, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(below))))
        slope = 1.0 + (b - 1.0) / (1.0 + tl.exp(-below))
    if KIND == "sigmoid":
        score = tl.minimum(logit, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(logit)))
        slope = 1.0 / (1.0 + tl.exp(logit))
    if KIND == "relu":
        above = tl.maximum(logit, 0.0) + FLOOR
        score = tl.log(above)
        slope = tl.where(logit > 0.0, 1.0 / above, 0.0)
    if KIND == "plif":  # a = T / width, b = 1 / width, c = width
        position = logit * b + a
        cell = tl.minimum(tl.maximum(position, 0.0), num_cells - 1.0).to(tl.int32)
        place = position - cell.to(tl.float32)
        slope = tl.load(table + 2 * cell)
        score = tl.load(table + 2 * cell + 1) + c * slope * place
    return score, slope, cell, place


@triton.jit
def _losses(logits, target, log_z, nll, reach, num_words, stride, table, num_cells, a, b, c,
            KIND: tl.constexpr, COUNTS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Write the two terms of log Z of one row of logits into `log_z` [2, R], and the loss into `nll`.

    If histograms are needed (COUNTS), also write the row's `reach`: the largest distance of a logit from the left end
    of its cell, in cell widths. It can exceed 1, because a logit left or right of all cells is assigned to the first or
    last cell. `_add_to_histograms` uses `reach` to bound the summands of the histograms and so to choose their scale.

    `target` has the target word of each row, and `stride` is the distance of two rows in memory. Each row has
    `num_words` logits, read in blocks of BLOCK words. `table`, `num_cells`, `a`, `b`, `c` and KIND describe g (see
    `_apply`).
    """
    row = tl.program_id(0).to(tl.int64)
    largest = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    farthest = tl.full((), 0.0, tl.float32)
    for start in range(0, num_words, BLOCK):
        word = start + tl.arange(0, BLOCK)
        inside = word < num_words
        logit = tl.load(logits + row * stride + word, mask=inside, other=0.0)
        score, _, _, place = _apply(logit, table, num_cells, a, b, c, KIND)
        score = tl.where(inside, score, float("-inf"))
        larger = tl.maximum(largest, tl.max(score, 0))
        total = total * tl.exp(largest - larger) + tl.sum(tl.exp(score - larger), 0)
        largest = larger
        if COUNTS:
            farthest = tl.maximum(farthest, tl.max(tl.where(inside, tl.abs(place), 0.0), 0))
    true = tl.load(logits + row * stride + tl.load(target + row) + tl.arange(0, 1))
    score, _, _, _ = _apply(true, table, num_cells, a, b, c, KIND)
    tl.store(log_z + row, largest)
    tl.store(log_z + tl.num_programs(0) + row, tl.log(total))
    tl.store(nll + row, largest - tl.sum(score, 0) + tl.log(total))
    tl.store(reach + row, farthest)


@triton.jit
def _gradients(logits, target, log_z, at_target, weight, scale, counts, num_words, stride, table, num_cells, a, b, c,
               KIND: tl.constexpr, COUNTS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Overwrite one row of logits with the gradient of its loss, times the row's `weight`.

    If histograms are needed (COUNTS), also add the row's part to the histograms `counts` [2, K]. For each cell,
    `counts[0]` sums dL/dg over the logits in the cell, and `counts[1]` sums dL/dg times the position in the cell.
    Summands of `counts[i]` are multiplied by `scale[i]` and then rounded to integers.

    `log_z` is the result of `_losses`. `at_target` is p - 1 of each row, where p is the probability of the target word.
    The other arguments are those of `_losses`.
    """
    row = tl.program_id(0).to(tl.int64)
    largest, log_sum = tl.load(log_z + row), tl.load(log_z + tl.num_programs(0) + row)
    true, true_gradient, row_weight = tl.load(target + row), tl.load(at_target + row), tl.load(weight + row)
    for start in range(0, num_words, BLOCK):
        word = start + tl.arange(0, BLOCK)
        inside = word < num_words
        logit = tl.load(logits + row * stride + word, mask=inside, other=0.0)
        score, slope, cell, place = _apply(logit, table, num_cells, a, b, c, KIND)
        gradient = row_weight * tl.where(word == true, true_gradient, tl.exp(score - largest - log_sum))
        tl.store(logits + row * stride + word, gradient * slope, mask=inside)
        if COUNTS:
            fixed = gradient * tl.load(scale)
            tl.atomic_add(counts + cell, _rounded(fixed), mask=inside)
            fixed = gradient * place * tl.load(scale + 1)
            tl.atomic_add(counts + num_cells + cell, _rounded(fixed), mask=inside)


@triton.jit
def _rounded(x):
    return tl.floor(x + 0.5).to(tl.int64)
