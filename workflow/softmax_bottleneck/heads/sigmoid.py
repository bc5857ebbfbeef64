"""Sigmoid output function: P = sigmoid(l) / sum sigmoid(l) for logits l  (Kanai 2018, section 3.2).

Numerical stability: ln sigmoid(l) = -softplus(-l) is finite where the literal sigmoid underflows to 0.
"""

from torch import Tensor
from torch.nn import functional

from softmax_bottleneck.heads.base import PointwiseHead
from softmax_bottleneck.heads.declaration import Declaration
from softmax_bottleneck.heads.pointwise import Pointwise, RowFunction

HEAD = Declaration(name="sigmoid", label="Sigmoid", family="pointwise")


class LogSigmoid(Pointwise):
    """The pointwise function g(l) = ln sigmoid(l)."""

    def forward(self, logits: Tensor) -> Tensor:
        """Return ln sigmoid of each logit."""
        return functional.logsigmoid(logits)

    def row_function(self) -> RowFunction:
        """Return the description of g for the GPU kernels of ``triton_rows.py``: its name there, "sigmoid"."""
        return RowFunction("sigmoid")


class Sigmoid(PointwiseHead):
    """The head of this pointwise function."""

    declaration, function = HEAD, LogSigmoid
