"""Capped logits: g(l) = c tanh(l / c) of a logit l, with the cap c  (Gemma Team 2024, "Gemma 2", section 2).

g is increasing, and its absolute value is less than c. Where |l| is far below c, g is nearly the identity, and the head
is nearly a softmax.
"""

import torch
from torch import Tensor

from softmax_bottleneck.heads.base import PointwiseHead
from softmax_bottleneck.heads.declaration import Declaration, Positive
from softmax_bottleneck.heads.pointwise import Pointwise
from softmax_bottleneck.store import schema


@schema.section
class Options:
    """The option of the head: the cap c (Gemma 2: 30)."""

    c: Positive = 30.0


HEAD = Declaration(name="softcap", label="Soft cap", family="pointwise", options=Options)


class CappedLogits(Pointwise):
    """The pointwise function g(l) = c tanh(l / c) of capped logits; the argument c > 0 is the cap."""

    def __init__(self, c: float) -> None:
        super().__init__()
        self.c = c

    def forward(self, logits: Tensor) -> Tensor:
        """Return c tanh(l / c) of each logit l."""
        return self.c * torch.tanh(logits / self.c)


class Softcap(PointwiseHead):
    """The head of this pointwise function."""

    declaration, function = HEAD, CappedLogits
