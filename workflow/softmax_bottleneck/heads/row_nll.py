"""The fused loss of most heads: losses and gradients, computed without storing the [N, V] or [N, K, V] logits.

A row r is a token's context or, in a mixture, one of the K components of a token. Each row has a latent vector, which
is row r of the matrix E, a target word y_r and a loss c_r. With the decoder W, b and the pointwise function g,

    l = E W^T + b,   s = g(l),   c_r = logZ_r - s_{r,y_r},   logZ_r = log sum_v exp(s_rv).

With the total loss L and the row weights w_r = dL/dc_r, the gradients are

    G_rv = dL/dl_rv = w_r (exp(s_rv - logZ_r) - [v = y_r]) g'(l_rv),   dE = G W,   dW = G^T E,   db = sum_r G_r.

In a mixture with the weights pi_nk, the loss of token n is -log p_n = -log(sum_k exp(log pi_nk - c_nk) + floor). If L
is the sum of these losses, the weight of row (n, k) is its posterior responsibility exp(log pi_nk - c_nk - log p_n).
All K rows of a token are in one chunk, so that a token's responsibilities are known before its gradients are computed.

A sweep is one pass over all chunks of tokens; a chunk holds the logits of all V words. If gradients are needed, the
sweep of the forward pass also computes the gradients of the sum of the token losses, so that losses and gradients take
only three matrix products: l, dE and dW. If the upstream gradient is the same number for every token, as under a sum or
a mean, the backward pass multiplies these gradients by that number. Otherwise a second sweep weights each token's loss
by its upstream gradient.

Shapes: N tokens, K components, R = rows of a chunk (its tokens x K), D latent width, V vocabulary.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from softmax_bottleneck.heads import matmul
from softmax_bottleneck.heads.matmul import FP32, Factor, factor
from softmax_bottleneck.heads.pointwise import Pointwise, Sweep, trainable
from softmax_bottleneck.heads.scratch import scratch

# Bytes of all chunk-sized arrays together. Small chunks slow the matrix products down, and large ones do not fit the
# cache. For a single array above 32 MiB, malloc requests new pages from the system in every product.
CHUNK_BYTES = {"cpu": 63 * 2**20, "cuda": 256 * 2**20}
# Without gradients, a CPU takes chunks that its cache holds, of at least so many rows: 1.3 to 1.8 times as fast for 500
# words. Gradients need every array again, and each chunk reads and writes all of dW.
CACHED_BYTES, CACHED_ROWS = 4 * 2**20, 512
KERNEL_DEVICES = {"cuda"}  # devices on which Triton kernels do the element-wise passes (``triton_rows.py``)


class RowNLL(NamedTuple):
    """The losses ``nll_N`` of the tokens, [N] nats, and their sum ``total``.

    A training step should use ``total``, because its gradient never needs a second pass over the logits.
    """

    nll_N: Tensor
    total: Tensor


def row_nll(
    h_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, target_N: Tensor, pointwise: Pointwise, *, precision: str = FP32
) -> RowNLL:
    """Return -log softmax(g(h W^T + b))[target] of every row of h, [N] nats, and the sum of these losses.

    The result can be differentiated once, with respect to h, W, b and the parameters of g.

    Args:
        h_ND: hidden states h.
        weight_VD, bias_V: matrix W and bias b of the decoder.
        target_N: index of the target word of each row.
        pointwise: function g, applied to each logit.
        precision: precision of the matrix products (``matmul.py``).
    """
    return _apply(_Problem(h_ND.unsqueeze(1), weight_VD, bias_V, None, target_N, pointwise, 0.0, precision))


def mixture_nll(
    latent_NKD: Tensor,
    log_prior_NK: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor,
    target_N: Tensor,
    pointwise: Pointwise,
    *,
    probability_floor: float = 0.0,
    precision: str = FP32,
) -> RowNLL:
    """Return -log(sum_k prior_k softmax(g(latent_k W^T + b))[target] + floor) of every token, [N] nats, and the sum.

    The result can be differentiated once, with respect to the latent vectors, log priors, W, b and the parameters of g.

    Args:
        latent_NKD: latent vector of each component.
        log_prior_NK: logarithm of the mixture weight of each component.
        weight_VD, bias_V, target_N, pointwise, precision: as in ``row_nll``.
        probability_floor: number added to the probability of the target word.
    """
    problem = _Problem(latent_NKD, weight_VD, bias_V, log_prior_NK, target_N, pointwise, probability_floor, precision)
    return _apply(problem)


@dataclass(frozen=True)
class _Problem:
    """The inputs of the fused loss; ``mixture_nll`` explains each of them.

    For a head without a mixture, K is 1 and ``log_prior_NK``, the log mixture weights, is None.
    """

    latent_NKD: Tensor
    weight_VD: Tensor
    bias_V: Tensor
    log_prior_NK: Tensor | None
    target_N: Tensor
    pointwise: Pointwise
    probability_floor: float
    precision: str

    def tensors(self) -> tuple[Tensor | None, ...]:
        """Return the latent vectors, log priors (or None), b, W and the trainable parameters of g."""
        return (self.latent_NKD, self.log_prior_NK, self.bias_V, self.weight_VD, *trainable(self.pointwise))

    def sweep(self, *, with_gradients: bool) -> Sweep:
        """Return a new ``Sweep`` object, which turns the logits of one chunk after another into losses.

        With ``with_gradients`` the object also computes gradients. It is a ``RowSweep`` (GPU kernels) if triton, the
        device, the dtype and the pointwise function allow it. Otherwise it is the result of ``pointwise.sweep``, which
        uses torch's own operations.
        """
        fits = self.weight_VD.device.type in KERNEL_DEVICES and self.weight_VD.dtype == torch.float32
        kernels = _row_kernels() if fits else None
        function = self.pointwise.row_function() if kernels is not None else None
        if kernels is None or function is None:
            return self.pointwise.sweep(with_gradients=with_gradients)
        return kernels.RowSweep(function, with_gradients=with_gradients)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context manager that switches torch's autocast off for a device, where it is on."""
    on = torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()


@cache
def _row_kernels() -> ModuleType | None:
    """Return the module ``triton_rows`` (GPU kernels), or None if the optional package triton is not installed."""
    try:
        from softmax_bottleneck.heads import triton_rows
    except ImportError:
        return None
    return triton_rows


def chunk_tokens(
    num_tokens: int, num_components: int, weight_VD: Tensor, pointwise: Pointwise, *, with_gradients: bool = True
) -> int:
    """Return the number of tokens per chunk (at least 1) when ``num_tokens`` are divided evenly among chunks.

    The number of chunks is the smallest for which the arrays of a chunk together fit in the memory limit of the device:
    CHUNK_BYTES, 63 MiB on a CPU and 256 MiB on a GPU. There are ``pointwise.arrays`` arrays of the size of the chunk's
    logits at once. A token has ``num_components`` rows of logits. ``weight_VD`` gives the device, the dtype and the
    number of words. Without gradients, chunks on a CPU are shorter: CACHED_BYTES, but at least CACHED_ROWS rows.
    """
    device, token_bytes = weight_VD.device.type, num_components * len(weight_VD) * weight_VD.element_size()
    token_bytes *= pointwise.arrays
    most = max(1, CHUNK_BYTES.get(device, CHUNK_BYTES["cuda"]) // token_bytes)
    if device == "cpu" and not with_gradients:
        most = min(most, max(CACHED_BYTES // token_bytes, -(-CACHED_ROWS // num_components)))
    return -(-num_tokens // -(-num_tokens // most)) if num_tokens else 1


@dataclass
class _Gradients:
    """The gradients of the sum of the token losses, or of their weighted sum in a second sweep, filled chunk by chunk.

    They are the gradients with respect to the latent vectors E, the log priors log pi of a mixture, W, b and the
    parameters of g. The weights are the upstream gradients of the token losses.
    """

    latent_NKD: Tensor
    log_prior_NK: Tensor | None
    bias_V: Tensor
    weight_VD: Tensor
    parameters: tuple[Tensor, ...] = ()  # gradients of g's parameters, known after the last chunk

    @classmethod
    def zeros(cls, problem: _Problem) -> _Gradients:
        """Return the gradients before the first chunk: zeros for W and b, to which each chunk adds its part.

        The gradients of the latent vectors and the log priors have one row per token. They are uninitialised, because
        each chunk overwrites the rows of its tokens. The gradients of g's parameters are set after the last chunk.
        """
        prior_NK = problem.log_prior_NK
        return cls(
            torch.empty(problem.latent_NKD.shape, dtype=problem.latent_NKD.dtype, device=problem.latent_NKD.device),
            None if prior_NK is None else torch.empty_like(prior_NK),
            torch.zeros_like(problem.bias_V),
            torch.zeros_like(problem.weight_VD),
        )

    def as_tuple(self) -> tuple[Tensor | None, ...]:
        """Return the gradients of the latent vectors, log priors (or None), b, W and g's parameters, in this order."""
        return (self.latent_NKD, self.log_prior_NK, self.bias_V, self.weight_VD, *self.parameters)

    def scale_(self, factor: Tensor) -> None:
        """Multiply all gradients by a scalar tensor, in place."""
        for grad in self.as_tuple():
            if grad is not None:
                grad.mul_(factor)


def _apply(problem: _Problem) -> RowNLL:
    tensors = problem.tensors()
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors):
        return RowNLL(*_RowNLLFunction.apply(problem, *tensors))  # type: ignore[no-untyped-call]
    with torch.no_grad():
        nll_N, _ = _sweep(problem, None, with_gradients=False)
    return RowNLL(nll_N, nll_N.sum())


class _RowNLLFunction(torch.autograd.Function):
    """The autograd function of the fused loss; the forward pass computes losses and gradients together (``_sweep``).

    Call ``_RowNLLFunction.apply(problem, *problem.tensors())`` with a `_Problem`, which holds all inputs of the loss.
    Its tensors are passed again, because autograd tracks only tensors that are arguments themselves. The result is
    (loss of every token [N], sum of these losses).
    """

    @staticmethod
    def forward(ctx: Any, problem: _Problem, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        nll_N, ctx.unit_gradients = _sweep(problem, None, with_gradients=True)
        ctx.problem = problem
        return nll_N, nll_N.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_nll_N: Tensor | None, grad_total: Tensor | None) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # raises if an input was changed in place since forward
        gradients, ctx.unit_gradients = ctx.unit_gradients, None
        upstream = _uniform(grad_nll_N, grad_total)
        if gradients is not None and upstream is not None:
            gradients.scale_(upstream)
        else:  # different weights, or a second backward (the first one has used up the gradients)
            weight_N = torch.zeros_like(ctx.problem.latent_NKD[:, 0, 0])
            for grad in (grad_nll_N, grad_total):
                weight_N += 0.0 if grad is None else grad
            with without_autocast(weight_N.device):
                _, gradients = _sweep(ctx.problem, weight_N, with_gradients=True)
        assert gradients is not None
        return None, *gradients.as_tuple()


def _uniform(grad_nll_N: Tensor | None, grad_total: Tensor | None) -> Tensor | None:
    """Return the upstream gradient of a token's loss, a scalar, if it is the same for all tokens; else return None.

    ``grad_nll_N`` and ``grad_total`` are the upstream gradients of the two outputs of `RowNLL`, the losses and their
    sum; None if an output is not used. The upstream gradient of the loss of token n is ``grad_nll_N[n] + grad_total``.
    If ``grad_nll_N`` is on a GPU, the CPU waits for the comparison of its numbers.
    """
    if grad_nll_N is None:
        return grad_total
    first = grad_nll_N[:1].sum()  # 0 without any token
    if not torch.equal(grad_nll_N, first.expand_as(grad_nll_N)):
        return None
    return first if grad_total is None else first + grad_total


def _sweep(problem: _Problem, weight_N: Tensor | None, *, with_gradients: bool) -> tuple[Tensor, _Gradients | None]:
    """Return the losses [N] and the gradients of their weighted sum, computed in one pass over the logits.

    ``weight_N`` holds the weights of the losses; None means that all are one. Without ``with_gradients`` the result is
    (losses, None).
    """
    num_tokens, num_components, _ = problem.latent_NKD.shape
    nll_N = problem.latent_NKD.new_empty(num_tokens)
    gradients = _Gradients.zeros(problem) if with_gradients else None
    sweep = problem.sweep(with_gradients=with_gradients)
    precision = problem.precision if with_gradients else FP32
    weight = factor(problem.weight_VD, precision)
    step = chunk_tokens(num_tokens, num_components, problem.weight_VD, problem.pointwise, with_gradients=with_gradients)
    for start in range(0, num_tokens, step):
        tokens = slice(start, min(start + step, num_tokens))
        chunk = _Chunk(problem, precision, weight, sweep, tokens)
        responsibility_R1 = chunk.losses(nll_N[tokens])
        if gradients is not None:
            weight_n = None if weight_N is None else weight_N[tokens]
            chunk.add_gradients(gradients, responsibility_R1, weight_n)
    if gradients is not None:
        gradients.parameters = sweep.parameter_grads()
    return nll_N, gradients


class _Chunk:
    """The rows of logits of one chunk of tokens; call ``losses`` first, then ``add_gradients``."""

    def __init__(self, problem: _Problem, precision: str, weight: Factor, sweep: Sweep, tokens: slice) -> None:
        self._problem, self._precision, self._weight = problem, precision, weight
        self._sweep, self._tokens = sweep, tokens
        latent_nKD = problem.latent_NKD[tokens]
        self._num_components = latent_nKD.shape[1]
        self._latent_RD = latent_nKD.reshape(-1, latent_nKD.shape[2])

    def losses(self, nll_n: Tensor) -> Tensor | None:
        """Write the loss of each token of the chunk into ``nll_n``, and return the responsibilities [R, 1] of its rows.

        The responsibility of a row is the posterior probability of its component of the mixture. For a head without a
        mixture the result is None, because all responsibilities are 1.
        """
        problem, latent_RD = self._problem, self._latent_RD
        num_words, multiple = len(problem.weight_VD), self._sweep.row_multiple
        shape = (len(latent_RD), -(-num_words // multiple) * multiple)
        logits_RV = matmul.scores(
            factor(latent_RD, self._precision),
            self._weight,
            problem.bias_V,
            lambda: scratch("logits", shape, latent_RD)[:, :num_words],
        )
        nll_R1 = self._sweep.nll_(logits_RV, self._per_row(problem.target_N[self._tokens]))
        if problem.log_prior_NK is None:
            nll_n.copy_(nll_R1.squeeze(1))
            return None
        joint_nK = problem.log_prior_NK[self._tokens] - nll_R1.view(-1, self._num_components)
        log_p_n1 = joint_nK.logsumexp(1, keepdim=True)
        if problem.probability_floor > 0.0:
            log_p_n1 = torch.logaddexp(log_p_n1, torch.full_like(log_p_n1, problem.probability_floor).log_())
        torch.neg(log_p_n1.squeeze(1), out=nll_n)
        return joint_nK.sub_(log_p_n1).exp_().view(-1, 1)

    def add_gradients(self, gradients: _Gradients, responsibility_R1: Tensor | None, weight_n: Tensor | None) -> None:
        """Add the chunk's part to the gradients of W and b, and write those of its latent vectors and log priors.

        The `Sweep` object sums the gradients of g's parameters. After the last chunk, the function ``_sweep`` stores
        these sums in ``gradients``.

        Args:
            gradients: the gradients for all chunks; changed in place.
            responsibility_R1: the result of ``losses``, the posterior probability of each row's component; None if all
                are 1.
            weight_n: the upstream gradient of the loss of each token; None if all are one.
        """
        weight_R1 = responsibility_R1
        if weight_n is not None:
            weight_R1 = self._per_row(weight_n)
            weight_R1 = weight_R1 if responsibility_R1 is None else weight_R1 * responsibility_R1
        if gradients.log_prior_NK is not None and weight_R1 is not None:
            torch.neg(weight_R1.view(-1, self._num_components), out=gradients.log_prior_NK[self._tokens])
        grad_RV, weight_R1 = self._sweep.grad_(weight_R1)
        grad = factor(grad_RV, self._precision)
        grad_latent_RD = gradients.latent_NKD[self._tokens].view(self._latent_RD.shape)
        matmul.latents(grad, self._weight, grad_latent_RD)
        latent_RD, ones_R = self._latent_RD, grad_RV.new_ones(len(grad_RV))
        if weight_R1 is not None:  # applied to the narrow factors: cheaper than another pass over [R, V]
            grad_latent_RD.mul_(weight_R1)
            latent_RD, ones_R = latent_RD * weight_R1, weight_R1.squeeze(1)
        matmul.add_weights(gradients.weight_VD, grad, factor(latent_RD, self._precision))
        gradients.bias_V.addmv_(grad_RV.t(), ones_R)

    def _per_row(self, of_token_n: Tensor) -> Tensor:
        return of_token_n.unsqueeze(1).expand(-1, self._num_components).reshape(-1, 1)
