"""ReLU output function for the logits l: P = f(l) / sum f(l) with f(l) = max(l, 0) + 1e-8  (Kanai 2018, section 3.2).

The code computes g = ln f. Without the constant 1e-8, a word with a negative logit would have probability 0, and a row
of negative logits would give 0/0. The published constant is unknown; 1e-8 is our choice. The slope of g is steep: it
reaches 1e8 for logits just above zero.
"""

from torch import Tensor

from softmax_bottleneck.heads.base import PointwiseHead
from softmax_bottleneck.heads.declaration import Declaration
from softmax_bottleneck.heads.pointwise import Pointwise, RowFunction

HEAD = Declaration(name="relu", label="ReLU", family="pointwise")
FLOOR = 1e-8


class LogRelu(Pointwise):
    """The pointwise function g(l) = ln(max(l, 0) + 1e-8)."""

    def forward(self, logits: Tensor) -> Tensor:
        """Return ln(max(l, 0) + 1e-8) of each logit l."""
        return logits.relu().add(FLOOR).log()

    def row_function(self) -> RowFunction:
        """Return the description of g for the GPU kernels of ``triton_rows.py``: its name there, "relu"."""
        return RowFunction("relu")


class ReLU(PointwiseHead):
    """The head of this pointwise function."""

    declaration, function = HEAD, LogRelu
