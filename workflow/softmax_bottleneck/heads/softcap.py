"""Capped logits: g(l) = c tanh(l / c)  (Gemma Team 2024, "Gemma 2", section 2).

g is monotonic and bounded by c. For logits far below the cap it is nearly the identity, so the head is
nearly a softmax.
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
    """The function g of the soft cap (see the module's docstring)."""

    def __init__(self, c: float) -> None:
        super().__init__()
        self.c = c

    def forward(self, logits: Tensor) -> Tensor:
        """Return g(logits)."""
        return self.c * torch.tanh(logits / self.c)
