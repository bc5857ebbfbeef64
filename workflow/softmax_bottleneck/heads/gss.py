"""Generalised SigSoftmax: g(l) = k (l - c) + c - (k - 1) ln(exp(l - c) + 1)  (Parthiban 2021, eq. 3 and 5).

The slope is k far below c and 1 far above c, with a smooth transition. SigSoftmax is the case c = 0, k = 2; Softmax is
the case k = 1.
Numerical stability: the code computes the equal form g(l) = l - (k - 1) softplus(c - l). The literal form overflows in
float32 from l - c = 89, and far above c it subtracts two numbers of the size of k l to find one of the size of l.
"""

import torch
from torch import Tensor
from torch.nn import functional

from softmax_bottleneck.heads.base import PointwiseHead
from softmax_bottleneck.heads.declaration import Declaration, Positive
from softmax_bottleneck.heads.pointwise import Pointwise, RowFunction, Sweep
from softmax_bottleneck.heads.scratch import scratch
from softmax_bottleneck.store import schema


@schema.section
class Options:
    """The options of the head.

    Attributes:
        c: logit at which the slope changes (published: -1.5).
        k: slope far below c (published: 2.5 on Penn Treebank, 3 on WikiText-2).
    """

    c: schema.Number = -1.5
    k: Positive = 2.5


HEAD = Declaration(name="gss", label="GSS", family="pointwise", options=Options, colour="#c84f00")
LINEAR_ABOVE = 40.0  # softplus(x) = x to the last bit of a float64 (torch's default of 20 is 2e-9 off)


class GeneralisedSigSoftmax(Pointwise):
    """The pointwise function g of GSS (equation in the module's docstring), which has no trained parameters.

    Args:
        c: logit around which the slope changes from k to 1.
        k: slope far below c.
    """

    arrays = 3

    def __init__(self, c: float, k: float) -> None:
        super().__init__()
        self.c = c
        self.k = k

    def forward(self, logits: Tensor) -> Tensor:
        """Return g of each logit (equation in the module's docstring)."""
        return logits - (self.k - 1.0) * functional.softplus(self.c - logits, threshold=LINEAR_ABOVE)

    def sweep(self, *, with_gradients: bool) -> Sweep:
        """Return a new object that computes losses and gradients in one pass of the fused loss (see ``Sweep``).

        The object computes the derivative of g by a formula, without autograd. ``with_gradients`` is False if only the
        losses are needed.
        """
        return _Sweep(self.c, self.k, with_gradients)

    def row_function(self) -> RowFunction | None:
        """Return the description of g for the GPU kernels of ``triton_rows.py``; its ``constants`` are (c, k)."""
        return RowFunction("gss", (self.c, self.k))


class _Sweep(Sweep):
    """A pass of the fused loss over all chunks of logits l, which computes the derivative g' without autograd.

    The derivative is g' = 1 + (k - 1) sigmoid(c - l). One in-place operation multiplies the gradients by g', and g'
    itself is never stored.
    """

    def __init__(self, c: float, k: float, with_gradients: bool) -> None:
        self._c, self._k, self._with_gradients = c, k, with_gradients

    def scores_(self, logits_RV: Tensor) -> Tensor:
        c = logits_RV.new_full((), self._c)  # on the device
        below_RV = torch.add(c, logits_RV, alpha=-1.0, out=scratch("below", logits_RV.shape, logits_RV))
        softplus_RV = functional.softplus(below_RV, threshold=LINEAR_ABOVE)
        if self._with_gradients:
            self._sigmoid_RV = below_RV.sigmoid_()
        return logits_RV.sub_(softplus_RV, alpha=self._k - 1.0)

    def grad_logits_(self, grad_scores_RV: Tensor) -> Tensor:
        return grad_scores_RV.addcmul_(grad_scores_RV, self._sigmoid_RV, value=self._k - 1.0)


class GSS(PointwiseHead):
    """The head of this pointwise function."""

    declaration, function = HEAD, GeneralisedSigSoftmax
