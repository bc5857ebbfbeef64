"""Pointwise functions g that a head applies to its logits, s = g(l), before the softmax.

A new one needs only ``forward``; the fused loss (``row_nll.py``) then differentiates it chunk by chunk with autograd.
A ``Sweep`` of its own, with the derivative written out, makes it faster.

Shapes: R = rows of a chunk, V = vocabulary.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn


class Sweep(Protocol):
    """One pass over all chunks: made at its start, asked for the parameters' gradients at its end."""

    has_parameters: bool
    """True when ``grad_logits_`` must be given gradients that already carry the weights of their rows."""

    def scores_(self, logits_RV: Tensor) -> Tensor:
        """g(logits), which the caller overwrites; may overwrite its argument, and keeps what ``grad_logits_`` needs."""
        ...

    def grad_logits_(self, grad_scores_RV: Tensor) -> Tensor:
        """Chain rule through the chunk last scored; may overwrite its argument."""
        ...

    def parameter_grads(self) -> tuple[Tensor, ...]:
        """Gradients of ``trainable(pointwise)``, summed over all chunks, in that order."""
        ...


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


def trainable(pointwise: Pointwise) -> tuple[nn.Parameter, ...]:
    """The parameters of g that are trained."""
    return tuple(parameter for parameter in pointwise.parameters() if parameter.requires_grad)


class AutogradSweep:
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


class ParameterFreeSweep:
    """Base of the sweeps of functions without parameters; as it stands, the identity's."""

    has_parameters = False

    def scores_(self, logits_RV: Tensor) -> Tensor:
        """As ``Sweep.scores_``."""
        return logits_RV

    def grad_logits_(self, grad_scores_RV: Tensor) -> Tensor:
        """As ``Sweep.grad_logits_``."""
        return grad_scores_RV

    def parameter_grads(self) -> tuple[Tensor, ...]:
        """No parameters, no gradients."""
        return ()
