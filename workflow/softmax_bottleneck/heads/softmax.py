"""Softmax: P = softmax(W h + b)  (Kanai 2018, eq. 1).

Numerical stability: torch's log_softmax and softmax subtract the largest logit.
"""

from torch import Tensor

from softmax_bottleneck.heads.base import PointwiseHead
from softmax_bottleneck.heads.declaration import Declaration
from softmax_bottleneck.heads.pointwise import Pointwise, RowFunction, Sweep

HEAD = Declaration(name="softmax", label="Softmax", family="pointwise", colour="#5f656c", is_log_linear=True)


class Identity(Pointwise):
    """The identity g(l) = l, the pointwise function of the softmax head."""

    is_identity = True
    arrays = 2

    def forward(self, logits: Tensor) -> Tensor:
        """Return the logits."""
        return logits

    def sweep(self, *, with_gradients: bool) -> Sweep:
        """Return a new `Sweep` for one pass of the fused loss; `with_gradients` makes no difference here."""
        return Sweep()

    def row_function(self) -> RowFunction:
        """Return the description of g for the GPU kernels of ``triton_rows.py``: its name there, "identity"."""
        return RowFunction("identity")


class Softmax(PointwiseHead):
    """The head of this pointwise function."""

    declaration, function = HEAD, Identity
