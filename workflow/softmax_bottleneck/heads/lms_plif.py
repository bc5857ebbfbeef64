"""LMS-PLIF: a piecewise linear, increasing g with K pieces (cells) of width delta on [-T, T]  (Ganea 2019, section 4).

    g(l) = (l - l_i) s_i + delta sum_{j<i} s_j,   s = softplus(v),   l_i = -T + i delta,   i = cell of l

v are the raw slopes, s the slopes, and l_i the left end of cell i. A logit below -T belongs to the first cell, and one
above T to the last cell. g has no constant term, because softmax ignores it. In cell i the derivative g' is s_i.

The loss gradient of slope i is dL/ds_i = delta (q1_i + sum_{j>i} q0_j). Here q0_i is the sum of dL/dg over the logits l
in cell i. Over the same logits, q1_i is the sum of dL/dg times the position (l - l_i) / delta in the cell.

Numerical stability: g is linear in each cell, hence finite; the running sum of slopes is float64. By default a cell is
4e-4 wide, and neighbouring cells have unrelated slopes. A rounding error can therefore move a logit into another cell
and so change g'.

Shapes: K cells, X any number of logits, R rows, V vocabulary, B blocks of S cells.
"""

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from softmax_bottleneck.heads.base import PointwiseHead
from softmax_bottleneck.heads.declaration import Declaration, NotNegative, Positive
from softmax_bottleneck.heads.pointwise import Pointwise, RowFunction, Sweep, any_order
from softmax_bottleneck.heads.scratch import scratch
from softmax_bottleneck.store import schema


@schema.section
class Options:
    """The options of the head.

    Attributes:
        knots: pieces of the function, K (Ganea 2019, Table 1: 1e5; 1e6 within MoS).
        bound: the pieces lie on [-bound, bound] (Parthiban 2021, supplement 2.2: T = 20).
        w_variance: standard deviation, despite its published name, of the slopes' initial raw values.
        frozen: true to keep the slopes as drawn; they are then not counted as parameters.
        learning_rate: learning rate of the slopes (Parthiban 2021, supplement 2.2: 0.02).
    """

    knots: Annotated[schema.Integer, Field(ge=1, le=10_000_000)] = 100_000
    bound: Positive = 20.0
    w_variance: NotNegative = 1.0
    frozen: schema.Flag = False
    learning_rate: Positive = 0.02


HEAD = Declaration(name="lms-plif", label="LMS-PLIF", family="learned pointwise", options=Options, colour="#009a70")
RAW_OF_SLOPE_ONE = math.log(math.e - 1.0)
SUM_BLOCK = 512
FIXED_POINT_BITS = 36  # of the largest summand of a histogram; 2^27 such summands, more than a chunk has, fit an int64


class PiecewiseLinear(Pointwise):
    """The pointwise function g of LMS-PLIF (equation in the module's docstring).

    Args:
        knots: number K of cells, each with its own slope.
        bound: T; the cells divide [-T, T] into equal parts.
        w_variance: standard deviation of the initial raw slopes v (the paper's name says variance). Their mean is
            ln(e - 1), for which the slope softplus(v) is 1.
        frozen: True to keep the initial slopes; False to train them.
        learning_rate: learning rate of the raw slopes.
    """

    arrays = 5

    def __init__(self, knots: int, bound: float, w_variance: float, frozen: bool, learning_rate: float) -> None:
        super().__init__()
        self.knots = knots
        self.bound = bound
        self.width = 2.0 * bound / knots
        self.frozen = frozen
        self.learning_rate = learning_rate
        raw_K = torch.randn(knots) * w_variance + RAW_OF_SLOPE_ONE
        self.raw_slope: Tensor
        if frozen:
            self.register_buffer("raw_slope", raw_K)
        else:
            self.raw_slope = nn.Parameter(raw_K)

    def table(self) -> Tensor:
        """Return [K, 2]: for each cell i the slope s_i, and the value g(l_i) = delta sum_{j<i} s_j at its left end."""
        slope_K = functional.softplus(self.raw_slope.double())
        return torch.stack((slope_K, self.width * (running_sum(slope_K) - slope_K)), 1).to(self.raw_slope.dtype)

    def forward(self, logits: Tensor) -> Tensor:
        """Return g of each logit (equation in the module's docstring)."""
        position = (logits + self.bound) / self.width
        cell = position.detach().nan_to_num(0.0).clamp(0, self.knots - 1).to(torch.int64)
        slope, value = self.table()[cell].unbind(-1)
        return value + self.width * slope * (position - cell)

    def sweep(self, *, with_gradients: bool) -> Sweep:
        """Return a new object for one pass of the fused loss over all chunks of logits.

        The object computes the derivative of g by a formula, without autograd. ``with_gradients`` is True if the pass
        computes gradients besides the losses.
        """
        return _Sweep(self, with_gradients=with_gradients)

    def row_function(self) -> RowFunction:
        """Return the description of g that the GPU kernels of ``triton_rows.py`` read.

        Its ``constants`` are (T / delta, 1 / delta, delta), and its ``table_K2`` is the tensor that ``table`` returns.
        Its ``from_histograms`` is the method ``slope_gradients``, or None if the slopes are frozen.
        """
        constants = (self.bound / self.width, 1.0 / self.width, self.width)
        return RowFunction("plif", constants, self.table(), None if self.frozen else self.slope_gradients)

    def slope_gradients(self, q_2K: Tensor) -> tuple[Tensor, ...]:
        """Return a tuple with one tensor, the loss gradient [K] with respect to the raw slopes v.

        The rows of ``q_2K`` (float64) are q0 and q1 of the module's docstring, with one number per cell.
        """
        q0_K, q1_K = q_2K
        grad_slope_K = self.width * (q1_K + q0_K.sum() - running_sum(q0_K))
        raw_K = self.raw_slope.detach()
        return ((grad_slope_K * torch.sigmoid(raw_K.double())).to(raw_K.dtype),)


class _Sweep(Sweep):
    """A pass of the fused loss over all chunks of logits, which takes the derivative of g from the table of slopes.

    If the slopes are trained, the pass also accumulates q0 and q1 (module's docstring), from which the gradients of the
    slopes follow. For each cell, one complex number stores the slope (real part) and the value of g at the left end
    (imaginary part), so that one look-up reads both.
    """

    def __init__(self, plif: PiecewiseLinear, *, with_gradients: bool) -> None:
        self._plif = plif
        self._table_K = torch.view_as_complex(plif.table())
        self.has_parameters = not plif.frozen
        self._q_2K = self._table_K.real.new_zeros(2, plif.knots) if with_gradients and self.has_parameters else None

    def scores_(self, logits_RV: Tensor) -> Tensor:
        plif = self._plif
        scores_RV = scratch("scores", logits_RV.shape, logits_RV)
        pair_X = scratch("pair", (logits_RV.numel(),), self._table_K)
        origin = torch.full((), plif.bound / plif.width, dtype=logits_RV.dtype, device=logits_RV.device)
        position_RV = torch.add(origin, logits_RV, alpha=1.0 / plif.width, out=logits_RV)
        # After the clamp, floor equals trunc and is eight times as fast on a CPU. On a GPU a NaN index would end the
        # process, so NaN becomes cell 0. The offset and the loss stay NaN, which marks the run as diverged.
        cell_RV = torch.clamp(position_RV, 0, plif.knots - 1, out=scores_RV).floor_().nan_to_num_(0.0)
        self._cell_X = scratch("cell", pair_X.shape, pair_X, torch.int32).copy_(cell_RV.view(-1))
        self._offset_RV = position_RV.sub_(cell_RV)
        pair_RV = torch.index_select(self._table_K, 0, self._cell_X, out=pair_X).view(logits_RV.shape)
        self._slope_RV = pair_RV.real
        return torch.addcmul(pair_RV.imag, self._slope_RV, self._offset_RV, value=plif.width, out=scores_RV)

    def grad_logits_(self, grad_scores_RV: Tensor) -> Tensor:
        if self._q_2K is not None:
            add_to_histogram_(self._q_2K[0], self._cell_X, grad_scores_RV.view(-1))
            add_to_histogram_(self._q_2K[1], self._cell_X, self._offset_RV.mul_(grad_scores_RV).view(-1))
        return grad_scores_RV.mul_(self._slope_RV)

    def parameter_grads(self) -> tuple[Tensor, ...]:
        return () if self._q_2K is None else self._plif.slope_gradients(self._q_2K.double())


def running_sum(x_K: Tensor) -> Tensor:
    """Return the cumulative sum [K] of ``x_K``, with the same bits in every call, unlike torch's cumsum on a GPU."""
    return x_K.cumsum(0) if x_K.device.type == "cpu" else blocked_running_sum(x_K)


def blocked_running_sum(x_K: Tensor) -> Tensor:
    """Return the cumulative sum [K] of ``x_K``, computed in blocks of `SUM_BLOCK` numbers.

    A product with a triangular matrix of ones gives the cumulative sums within each block. The total of all earlier
    blocks, which a recursive call computes, is then added to each block.
    """
    padding = -len(x_K) % SUM_BLOCK
    x_BS = functional.pad(x_K, (0, padding)).view(-1, SUM_BLOCK)
    sums_BS = x_BS @ x_K.new_ones(SUM_BLOCK, SUM_BLOCK).triu_()
    if len(sums_BS) > 1:
        sums_BS[1:] += blocked_running_sum(sums_BS[:-1, -1])[:, None]
    return sums_BS.view(-1)[: len(x_K)]


def add_to_histogram_(total_K: Tensor, cell_X: Tensor, value_X: Tensor) -> None:
    """Add ``value_X[x]`` to ``total_K[cell_X[x]]`` for every x, in place; every call gives the same bits.

    On a CPU the values are added in their order. On a GPU they are first rounded to integers, whose sum does not depend
    on the order (``fixed_point_histogram``).
    """
    if value_X.device.type == "cpu":
        total_K.index_add_(0, cell_X, value_X)
    else:
        total_K += fixed_point_histogram(cell_X, value_X, len(total_K)).to(total_K.dtype)


def fixed_point_histogram(cell_X: Tensor, value_X: Tensor, num_cells: int) -> Tensor:
    """Return the sum of the values in each cell, float64 [num_cells]; ``value_X[x]`` belongs to cell ``cell_X[x]``.

    The values are scaled and rounded to integers. Sums of integers are exact, so that the order of summation has no
    influence. The result is the sums scaled back.
    """
    scale = 2.0**FIXED_POINT_BITS / value_X.abs().amax().double().clamp_min(1e-300)
    sum_K = torch.zeros(num_cells, dtype=torch.int64, device=value_X.device)
    with any_order(sum_K):
        sum_K.index_add_(0, cell_X, (value_X * scale).round_().to(torch.int64))
    return sum_K.double() / scale


class LMSPLIF(PointwiseHead):
    """The head of this pointwise function."""

    declaration, function = HEAD, PiecewiseLinear
