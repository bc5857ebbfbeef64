"""Capped logits: g(l) = c tanh(l / c) of a logit l, with the cap c  (Gemma Team 2024, "Gemma 2", section 2).

g is increasing, and its absolute value is less than c. Where |l| is far below c, g is nearly the identity, and the head
is nearly a softmax.
"""

from __future__ import annotations

import torch
from torch import Tensor

from softmax_bottleneck.heads.pointwise import Pointwise

NAME = "softcap"
LABEL = "Soft cap"
OPTIONS = {
    "c": {"type": "number", "default": 30.0, "exclusiveMinimum": 0, "description": "The cap (Gemma 2: 30)."},
}


class SoftCap(Pointwise):
    """The pointwise function g(l) = c tanh(l / c) of capped logits; the argument c > 0 is the cap."""

    def __init__(self, c: float) -> None:
        super().__init__()
        self.c = c

    def forward(self, logits: Tensor) -> Tensor:
        """Return c tanh(l / c) of each logit l."""
        return self.c * torch.tanh(logits / self.c)
