"""ReLU output function: P = g(l) / sum g(l), g(l) = max(l, 0) + 1e-8  (Kanai 2018, section 3.2).

Numerical stability: without the small constant a word with a negative logit has probability 0, and a row of them 0/0.
The published constant is unknown; this one is our choice. The slope of ln g still reaches 1e8 just above zero.
"""

from __future__ import annotations

from torch import Tensor

from softmax_bottleneck.heads.pointwise import Pointwise, RowFunction

NAME = "relu"
LABEL = "ReLU"
OPTIONS: dict[str, object] = {}
FLOOR = 1e-8


class LogRelu(Pointwise):
    """The function ln(max(l, 0) + 1e-8)."""

    def forward(self, logits: Tensor) -> Tensor:
        """Return g(logits)."""
        return logits.relu().add(FLOOR).log()

    def row_function(self) -> RowFunction:
        """Return the row function as ``Pointwise.row_function`` does."""
        return RowFunction("relu")
