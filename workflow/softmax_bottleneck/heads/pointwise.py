"""Pointwise functions g that a head applies to its logits before the softmax: the scores are g(logits).

A new function is a subclass of ``Pointwise`` with the method ``forward``. The fused loss (``row_nll.py``) then
differentiates g with autograd, one chunk of logits at a time. Two optional methods make the loss faster:

* ``sweep`` may return a ``Sweep`` with an explicit derivative of g, instead of autograd.
* ``row_function`` may return a ``RowFunction``, which describes g to the GPU kernels of ``triton_rows.py``.

Suffixes: R rows of a chunk, V vocabulary, K cells of a piecewise linear function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn


class Pointwise(nn.Module):
    """The base class of functions g from a logit to a score; g is the same for all words and contexts."""

    is_identity = False
    learning_rate: float | None = None  # of the function's own parameters; None: that of the network
    arrays = 5  # chunk-sized arrays that a sweep needs at once; more arrays make the chunks shorter

    def forward(self, logits: Tensor) -> Tensor:
        """Return the scores g(logits), of the same shape; every finite logit must give a finite score."""
        raise NotImplementedError

    def sweep(self, *, with_gradients: bool) -> Sweep:
        """Return a new ``Sweep``, which computes g in one pass of the fused loss over all chunks of logits.

        This base method returns an ``AutogradSweep``, which differentiates any g by autograd. ``with_gradients`` is
        True if the pass computes gradients besides the losses.
        """
        return AutogradSweep(self, with_gradients=with_gradients)

    def row_function(self) -> RowFunction | None:
        """Return the description of g for the GPU kernels of ``triton_rows.py``, or None if they do not support g."""
        return None


@dataclass(frozen=True)
class RowFunction:
    """The description of a pointwise function g for the GPU kernels of ``triton_rows.py``.

    Attributes:
        kind: the name of g in the kernels: identity, gss, sigmoid, relu or plif (piecewise linear).
        constants: numbers that g uses: the head's options (c, k) for gss; (T / width, 1 / width, width) for plif with
            cells of this width on [-T, T]; none for the other kinds.
        table_K2: for plif, one row per cell: the slope in the cell, and the value of g at the cell's left end. None for
            all other kinds.
        from_histograms: function that returns the gradients of g's trained parameters, in the order of g's
            ``parameters()``; None if g has none. Its argument [2, K] has two sums over the logits of each cell: row 0
            sums dL/dg, and row 1 sums t dL/dg. Here t is the position of a logit in its cell: 0 at the left end, 1 at
            the right.
    """

    kind: str
    constants: tuple[float, ...] = ()
    table_K2: Tensor | None = None
    from_histograms: Callable[[Tensor], tuple[Tensor, ...]] | None = None


def trainable(pointwise: Pointwise) -> tuple[nn.Parameter, ...]:
    """Return the parameters of a pointwise function that have ``requires_grad``."""
    return tuple(parameter for parameter in pointwise.parameters() if parameter.requires_grad)


class Sweep:
    """One pass of the loss -log softmax(g(logits)) over all chunks of logits.

    The caller calls ``nll_`` with each chunk and, if gradients are needed, ``grad_`` right after it. After the last
    chunk, ``parameter_grads`` returns the gradients of g's parameters. In this base class g is the identity. For
    another g, a subclass overrides two methods that ``nll_`` and ``grad_`` call: ``scores_`` computes g, and
    ``grad_logits_`` multiplies the gradients of the scores by the derivative of g. A method whose name ends in _ may
    overwrite its arguments.
    """

    # The length of a row of logits in memory, with padding, is a multiple of this.
    row_multiple = 1
    has_parameters = False  # True if ``grad_logits_`` needs gradients that include the weights of their rows

    def scores_(self, logits_RV: Tensor) -> Tensor:
        """Return g(logits), and keep on the object what ``grad_logits_`` needs; the caller may overwrite the result.

        A subclass may leave out an additive constant of g, which the softmax ignores.
        """
        return logits_RV

    def grad_logits_(self, grad_scores_RV: Tensor) -> Tensor:
        """Return the loss gradient [R, V] with respect to the logits of the last chunk given to ``scores_``.

        ``grad_scores_RV`` is the loss gradient with respect to the scores of this chunk. If g has parameters, their
        gradients are added to the sums that ``parameter_grads`` returns.
        """
        return grad_scores_RV

    def parameter_grads(self) -> tuple[Tensor, ...]:
        """Return the gradients of g's trained parameters, summed over all chunks, in the order of g's ``parameters()``.

        In this base class g has no parameters, and the tuple is empty.
        """
        return ()

    def nll_(self, logits_RV: Tensor, target_R1: Tensor) -> Tensor:
        """Return -log softmax(g(logits))[target] of every row, [R, 1] nats; the logits are overwritten."""
        scores_RV = self.scores_(logits_RV)
        # The difference of two scores is exact where log Z, of the scores' size, would be rounded.
        below_R1 = scores_RV.amax(1, keepdim=True).sub_(scores_RV.gather(1, target_R1))
        self._probability_RV = torch.softmax(scores_RV, 1, out=scores_RV)
        # The most probable word has probability >= 1/V, so its log is safe: log(sum exp) without another exp pass.
        self._target_R1, self._nll_R1 = target_R1, below_R1.sub_(self._probability_RV.amax(1, keepdim=True).log_())
        return self._nll_R1

    def grad_(self, weight_R1: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the loss gradients with respect to the logits of the last chunk, perhaps without the row weights.

        The caller can apply the weights at less cost, to arrays [R, D] with the narrower latent width D.

        Args:
            weight_R1: the weight of each row's loss in the total loss; None if all weights are one.

        Returns:
            A pair (gradients [R, V], weights). If the weights are None, the gradients are complete. Otherwise the
            weights are ``weight_R1``, and the caller must multiply the rows of the gradients by them.
        """
        # p - 1 at the target is computed from the loss, so that it does not cancel if p is near one.
        with any_order(self._nll_R1):  # distinct indices: each row has one target
            grad_RV = self._probability_RV.scatter_(1, self._target_R1, torch.expm1(-self._nll_R1))
        if self.has_parameters and weight_R1 is not None:
            grad_RV, weight_R1 = grad_RV.mul_(weight_R1), None
        return self.grad_logits_(grad_RV), weight_R1


class AutogradSweep(Sweep):
    """A pass of the loss that works for any ``Pointwise`` g: autograd differentiates g on one chunk at a time."""

    def __init__(self, pointwise: Pointwise, *, with_gradients: bool) -> None:
        self._pointwise = pointwise
        self._with_gradients = with_gradients
        self._parameters = trainable(pointwise)
        self._grads = tuple(torch.zeros_like(p) for p in self._parameters) if with_gradients else ()
        self.has_parameters = bool(self._parameters)

    def scores_(self, logits_RV: Tensor) -> Tensor:
        """Return g(logits), and keep the chunk's autograd graph for the backward pass in ``grad_logits_``."""
        with torch.set_grad_enabled(self._with_gradients):
            self._logits_RV = logits_RV.detach().requires_grad_(self._with_gradients)
            self._scores_RV: Tensor = self._pointwise(self._logits_RV)
        return self._scores_RV.detach().clone()

    def grad_logits_(self, grad_scores_RV: Tensor) -> Tensor:
        """Return the loss gradient [R, V] with respect to the logits of the last chunk given to ``scores_``.

        Add the gradients of g's parameters to their sums, and free the chunk's autograd graph.
        """
        inputs = (self._logits_RV, *self._parameters)
        grad_logits_RV, *grads = torch.autograd.grad(self._scores_RV, inputs, grad_scores_RV)
        del self._scores_RV, self._logits_RV
        for total, grad in zip(self._grads, grads, strict=True):
            total += grad
        return grad_logits_RV

    def parameter_grads(self) -> tuple[Tensor, ...]:
        """Return the gradients of g's trained parameters, summed over all chunks, in the order of ``parameters()``."""
        return self._grads


def any_order(like: Tensor) -> AbstractContextManager[None]:
    """Return a context manager that switches torch's deterministic mode off on a GPU and does nothing on a CPU.

    Use it only for operations whose result is the same in any order: sums of integers, and writes to distinct
    indices. The deterministic mode would sort the indices first, which takes longer than these operations. ``like`` is
    a tensor on the device of the operations.
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
