"""Generalised SigSoftmax: g(l) = k (l - c) + c - (k - 1) ln(exp(l - c) + 1)  (Parthiban 2021, eq. 3 and 5).

The slope is k far below c and 1 far above c, with a smooth transition. SigSoftmax is the case c = 0, k = 2; Softmax is
the case k = 1.
Numerical stability: the logarithm is a softplus; the literal form overflows in float32 from l - c = 89.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from softmax_bottleneck.heads.pointwise import Pointwise, RowFunction, Sweep
from softmax_bottleneck.heads.scratch import scratch

NAME = "gss"
LABEL = "GSS"
OPTIONS = {
    "c": {"type": "number", "default": -1.5, "description": "Where the slope changes (published: -1.5)."},
    "k": {
        "type": "number",
        "default": 2.5,
        "exclusiveMinimum": 0,
        "description": "Slope far below c (published: 2.5 on Penn Treebank, 3 on WikiText-2).",
    },
}
LINEAR_ABOVE = 40.0
"""Where softplus(x) = x to the last bit of a float64 (torch's own default, 20, is 2e-9 off)."""


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
        x = logits - self.c
        return self.k * x + self.c - (self.k - 1.0) * functional.softplus(x, threshold=LINEAR_ABOVE)

    def sweep(self, *, with_gradients: bool) -> Sweep:
        """Return a new object that computes losses and gradients in one pass of the fused loss (see ``Sweep``).

        The object computes the derivative of g by a formula, without autograd. ``with_gradients`` is False if only the
        losses are needed.
        """
        return _Sweep(self.c, self.k, with_gradients)

    def row_function(self) -> RowFunction:
        """Return the description of g for the GPU kernels of ``triton_rows.py``; its ``constants`` are (c, k)."""
        return RowFunction("gss", (self.c, self.k))


class _Sweep(Sweep):
    """A pass of the fused loss over all chunks of logits l, which computes the derivative g' without autograd.

    The derivative is g' = k - (k - 1) sigmoid(l - c). The code uses the equal form g' = k (1 - kappa sigmoid(l - c))
    with kappa = (k - 1) / k. With this form, two in-place operations multiply the gradients by g', and g' itself is
    never stored.
    """

    def __init__(self, c: float, k: float, with_gradients: bool) -> None:
        self._c, self._k, self._with_gradients = c, k, with_gradients

    def scores_(self, logits_RV: Tensor) -> Tensor:
        x_RV = logits_RV.sub_(self._c) if self._c else logits_RV
        softplus_RV = functional.softplus(x_RV, threshold=LINEAR_ABOVE)
        if self._with_gradients:
            self._sigmoid_RV = torch.sigmoid(x_RV, out=scratch("sigmoid", x_RV.shape, x_RV))
        # k x + (1 - k) softplus(x) in one pass: g without its constant c, which softmax ignores.
        return torch.lerp(softplus_RV, x_RV, self._k, out=x_RV)

    def grad_logits_(self, grad_scores_RV: Tensor) -> Tensor:
        kappa = (self._k - 1.0) / self._k
        return grad_scores_RV.addcmul_(grad_scores_RV, self._sigmoid_RV, value=-kappa).mul_(self._k)
