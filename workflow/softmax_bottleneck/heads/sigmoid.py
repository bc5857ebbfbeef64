"""Sigmoid output function: P = sigmoid(l) / sum sigmoid(l)  (Kanai 2018, section 3.2).

Numerical stability: ln sigmoid(l) = -softplus(-l) is finite where the literal sigmoid underflows to 0.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from softmax_bottleneck.heads.pointwise import Pointwise, RowFunction

NAME = "sigmoid"
LABEL = "Sigmoid"
OPTIONS: dict[str, object] = {}


class LogSigmoid(Pointwise):
    """The function ln sigmoid(l)."""

    def forward(self, logits: Tensor) -> Tensor:
        """Return g(logits)."""
        return functional.logsigmoid(logits)

    def row_function(self) -> RowFunction:
        """Return the row function as ``Pointwise.row_function`` does."""
        return RowFunction("sigmoid")
