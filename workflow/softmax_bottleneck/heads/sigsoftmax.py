"""SigSoftmax: P = exp(l) sigmoid(l) / sum exp(l) sigmoid(l), for logits l  (Kanai 2018, eq. 11, 12).

This is softmax(g(l)) with the pointwise function g(l) = 2 l - ln(1 + exp(l)). With the option ``learned_shift``,
g(l) = l + ln sigmoid(l + b) has a learned scalar b, with which the head can represent every softmax (section 3.3; the
paper's experiments do without). The code computes g with a softplus, because the product exp(l) sigmoid(l) overflows in
float32 from l = 89.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from softmax_bottleneck.heads.base import PointwiseHead
from softmax_bottleneck.heads.declaration import Declaration
from softmax_bottleneck.heads.gss import GeneralisedSigSoftmax
from softmax_bottleneck.heads.pointwise import AutogradSweep, RowFunction, Sweep
from softmax_bottleneck.store import schema


@schema.section
class Options:
    """The option of the head: true to learn the scalar b of sigmoid(l + b), from 0 on; false for b = 0."""

    learned_shift: schema.Flag = False


HEAD = Declaration(
    name="sigsoftmax", label="SigSoftmax", family="pointwise", options=Options, colour="#e69f00", published_as="ss"
)


class SigSoftmaxFunction(GeneralisedSigSoftmax):
    """The pointwise function g of SigSoftmax: the g of ``gss.py`` with c = -b and k = 2."""

    def __init__(self, learned_shift: bool) -> None:
        super().__init__(c=0.0, k=2.0)
        self.shift = nn.Parameter(torch.zeros(())) if learned_shift else None
        self.arrays = 5 if learned_shift else self.arrays

    def forward(self, logits: Tensor) -> Tensor:
        """Return g of each logit (equations in the module's docstring)."""
        return super().forward(logits) if self.shift is None else logits + functional.logsigmoid(logits + self.shift)

    def sweep(self, *, with_gradients: bool) -> Sweep:
        """Return a new ``Sweep``; with a learned shift it differentiates g by autograd."""
        plain = super().sweep(with_gradients=with_gradients)
        return plain if self.shift is None else AutogradSweep(self, with_gradients=with_gradients)

    def row_function(self) -> RowFunction | None:
        """Return the description of g for the GPU kernels of ``triton_rows.py``; None with a learned shift."""
        return super().row_function() if self.shift is None else None


class SigSoftmax(PointwiseHead):
    """The head of this pointwise function."""

    declaration, function = HEAD, SigSoftmaxFunction
