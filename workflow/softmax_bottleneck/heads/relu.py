"""ReLU output function: P = f(l) / sum f(l), f(l) = max(l, 0) + 1e-8, g = ln f  (Kanai 2018, section 3.2).

Numerical stability: without the constant, a word with a negative logit has probability 0, and a row of negative logits
gives 0/0. The published constant is unknown; 1e-8 is our choice. The slope of g still reaches 1e8 just above zero.
"""

from __future__ import annotations

from torch import Tensor

from softmax_bottleneck.heads.pointwise import Pointwise, RowFunction

NAME = "relu"
LABEL = "ReLU"
OPTIONS: dict[str, object] = {}
FLOOR = 1e-8


class LogRelu(Pointwise):
    """The pointwise function g(l) = ln(max(l, 0) + 1e-8)."""

    def forward(self, logits: Tensor) -> Tensor:
        """Return ln(max(l, 0) + 1e-8) of each logit l."""
        return logits.relu().add(FLOOR).log()

    def row_function(self) -> RowFunction:
        """Return the description of g that the GPU kernels of ``triton_rows.py`` use."""
        return RowFunction("relu")
