"""Pointwise functions g that a head applies to its logits, s = g(l), before the softmax.

A new one needs only ``forward``; the fused loss (``row_nll.py``) then differentiates it chunk by chunk with autograd.
A ``Sweep`` of its own, with the derivative written out, makes it faster; so does, on a GPU, a ``RowFunction``.

Shapes: R = rows of a chunk, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn


class Pointwise(nn.Module):
    """A function of one logit, the same for every word and context; the identity unless overridden."""

    is_identity = False
    learning_rate: float | None = None
    """Learning rate of the function's own parameters; None = the one of the network."""
    arrays = 5
    """Chunk-sized arrays alive at once in a sweep; the chunk is made shorter accordingly."""

    def forward(self, logits: Tensor) -> Tensor:
        """Scores g(logits), of the same shape, in a form that stays finite for all finite logits."""
        raise NotImplementedError

    def sweep(self, *, with_gradients: bool) -> Sweep:
        """A fresh pass of the fused loss over this function."""
        return AutogradSweep(self, with_gradients=with_gradients)

    def row_function(self) -> RowFunction | None:
        """This function for the row kernels of a GPU; None = they do not know it."""
        return None


@dataclass(frozen=True)
class RowFunction:
    """What the row kernels (``triton_rows.py``) must know of a function: its name there, numbers, a table of cells.

    ``from_histograms`` makes the parameters' gradients of sums over cells [2, K]: of dL/dg, of dL/dg times the place.
    """

    kind: str
    constants: tuple[float, ...] = ()
    table_K2: Tensor | None = None
    from_histograms: Callable[[Tensor], tuple[Tensor, ...]] | None = None


def trainable(pointwise: Pointwise) -> tuple[nn.Parameter, ...]:
    """The parameters of g that are trained."""
    return tuple(parameter for parameter in pointwise.parameters() if parameter.requires_grad)


class Sweep:
    """One pass of log-softmax over g over all chunks: made at its start, asked for g's own gradients at its end.

    A subclass writes down g and its derivative; as it stands, it is the identity's.
    """

    row_multiple = 1
    """Numbers of which a row of logits in memory is a whole multiple."""
    has_parameters = False
    """True when ``grad_logits_`` must be given gradients that already carry the weights of their rows."""

    def scores_(self, logits_RV: Tensor) -> Tensor:
        """g(logits), which the caller overwrites; may overwrite its argument, and keeps what ``grad_logits_`` needs."""
        return logits_RV

    def grad_logits_(self, grad_scores_RV: Tensor) -> Tensor:
        """Chain rule through the chunk last scored; may overwrite its argument."""
        return grad_scores_RV

    def parameter_grads(self) -> tuple[Tensor, ...]:
        """Gradients of ``trainable(pointwise)``, summed over all chunks, in that order."""
        return ()

    def nll_(self, logits_RV: Tensor, target_R1: Tensor) -> Tensor:
        """-log softmax(g(logits))[target] of every row, [R, 1] nats; overwrites the logits."""
        scores_RV = self.scores_(logits_RV)
        largest_R1, score_R1 = scores_RV.amax(1, keepdim=True), scores_RV.gather(1, target_R1)
        self._probability_RV = torch.softmax(scores_RV, 1, out=scores_RV)
        # The most probable word has probability >= 1/V, so its log is safe: logZ without another pass of exponentials.
        log_z_R1 = largest_R1.sub_(self._probability_RV.amax(1, keepdim=True).log_())
        self._target_R1, self._nll_R1 = target_R1, log_z_R1.sub_(score_R1)
        return self._nll_R1

    def grad_(self, weight_R1: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Gradients [R, V] of the chunk's losses by its logits, and which of the rows' weights they do not carry."""
        # p - 1 at the target, from the loss itself so that it does not cancel where p is near one.
        with any_order(self._nll_R1):  # each row has one target
            grad_RV = self._probability_RV.scatter_(1, self._target_R1, torch.expm1(-self._nll_R1))
        if self.has_parameters and weight_R1 is not None:
            grad_RV, weight_R1 = grad_RV.mul_(weight_R1), None
        return self.grad_logits_(grad_RV), weight_R1


class AutogradSweep(Sweep):
    """The sweep of any Pointwise: autograd on one chunk at a time."""

    def __init__(self, pointwise: Pointwise, *, with_gradients: bool) -> None:
        self._pointwise = pointwise
        self._with_gradients = with_gradients
        self._parameters = trainable(pointwise)
        self._grads = tuple(torch.zeros_like(p) for p in self._parameters) if with_gradients else ()
        self.has_parameters = bool(self._parameters)

    def scores_(self, logits_RV: Tensor) -> Tensor:
        """As ``Sweep.scores_``; the graph of this chunk is kept until ``grad_logits_``."""
        with torch.set_grad_enabled(self._with_gradients):
            self._logits_RV = logits_RV.detach().requires_grad_(self._with_gradients)
            self._scores_RV: Tensor = self._pointwise(self._logits_RV)
        return self._scores_RV.detach().clone()

    def grad_logits_(self, grad_scores_RV: Tensor) -> Tensor:
        """As ``Sweep.grad_logits_``; frees the graph of the chunk."""
        inputs = (self._logits_RV, *self._parameters)
        grad_logits_RV, *grads = torch.autograd.grad(self._scores_RV, inputs, grad_scores_RV)
        del self._scores_RV, self._logits_RV
        for total, grad in zip(self._grads, grads, strict=True):
            total += grad
        return grad_logits_RV

    def parameter_grads(self) -> tuple[Tensor, ...]:
        """As ``Sweep.parameter_grads``."""
        return self._grads


def any_order(like: Tensor) -> AbstractContextManager[None]:
    """For what gives the same bits in every order (sums of integers, places written once), on the device of a tensor.

    Where determinism is asked for, torch would sort such work on a GPU first, which takes longer than the work.
    """
    return nullcontext() if like.device.type == "cpu" else _undetermined()


@contextmanager
def _undetermined() -> Iterator[None]:
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("default")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
