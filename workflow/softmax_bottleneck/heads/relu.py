"""ReLU output function: P = g(l) / sum g(l), g(l) = max(l, 0) + 1e-8  (Kanai 2018, section 3.2).

Stability: without the small constant a word with a negative logit has probability 0, and a row of them 0/0; the
constant is our reading, the published one being unknown. The slope of ln g still reaches 1e8 just above zero.
"""

from __future__ import annotations

from torch import Tensor

from softmax_bottleneck.heads.pointwise import Pointwise, RowFunction

NAME = "relu"
LABEL = "ReLU"
OPTIONS: dict[str, object] = {}
FLOOR = 1e-8


class LogRelu(Pointwise):
    """ln(max(l, 0) + 1e-8)."""

    def forward(self, logits: Tensor) -> Tensor:
        """As ``Pointwise.forward``."""
        return logits.relu().add(FLOOR).log()

    def row_function(self) -> RowFunction:
        """As ``Pointwise.row_function``."""
        return RowFunction("relu")
