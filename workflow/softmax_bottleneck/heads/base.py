"""The base classes of output heads, which have a decoder matrix, a loss, and log-probabilities.

Shapes: N = T x B tokens (T time steps of B sequences), D width of the hidden states, E embedding width,
K components of a mixture, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from softmax_bottleneck.heads.matmul import FP32, MatmulBackends, select_matmul_backends
from softmax_bottleneck.heads.pointwise import Pointwise, trainable
from softmax_bottleneck.heads.row_nll import RowNLL, chunk_tokens, row_nll
from softmax_bottleneck.store.errors import UserError

DECODER_RANGE = 0.1


class Head(nn.Module):
    """The base class of output heads, which turn hidden states into losses and log-probabilities over V words.

    The constructor's ``vocabulary_size`` is V, ``context_size`` is D, and ``embedding_size`` is E. ``decoder.weight``
    [V, E] can be tied to the word vectors of the body. A subclass defines ``losses`` and ``log_probs``; CONTRIBUTING.md
    says how to add a head.
    """

    pointwise: Pointwise
    rows_per_token = 1
    """Rows of logits that one token needs: the components of a mixture."""
    # The hidden state h of most heads is the output of the body's last layer. For a head with `lower_size` > 0, h is
    # the input of that layer (`lower_size` numbers) followed by the output.
    lower_size = 0
    """Width of what a context begins with before the body's last layer: what that layer read."""

    def __init__(self, *, vocabulary_size: int, context_size: int, embedding_size: int) -> None:
        super().__init__()
        self.vocabulary_size = vocabulary_size
        self.context_size = context_size
        self.embedding_size = embedding_size
        self.decoder = nn.Linear(embedding_size, vocabulary_size)
        self.matmul_backends = MatmulBackends()  # for the fused loss, until `select_matmul_backends` chooses others

    def reset_decoder(self) -> None:
        """Sample the decoder's weight from U(-0.1, 0.1) and set the bias to 0 (Merity 2018).

        A subclass calls this method after creating its own layers, so that random numbers are drawn in a fixed order.
        """
        nn.init.uniform_(self.decoder.weight, -DECODER_RANGE, DECODER_RANGE)
        nn.init.zeros_(self.decoder.bias)

    def select_matmul_backends(self, num_tokens: int, precision: str = FP32) -> None:
        """Measure which library, native torch or oneDNN, is faster in each matrix product of the fused loss.

        The choice is stored in the attribute ``matmul_backends`` of the head. ``num_tokens`` is the number of tokens of
        a batch. ``precision`` is that of the products: fp32, tf32, tf32x3 or bf16 (see ``heads/matmul.py``).

        Raises:
            UserError: the device does not support this precision.
        """
        tokens = chunk_tokens(num_tokens, self.rows_per_token, self.decoder.weight, self.pointwise)
        self.matmul_backends = select_matmul_backends(tokens * self.rows_per_token, self.decoder.weight, precision)

    def losses(self, h: Tensor, target: Tensor, *, generator: torch.Generator | None) -> RowNLL:
        """Return the loss -ln P(target) of each token, [N], and the sum of these losses, both in nats.

        Every head overrides this method.

        Args:
            h: hidden states [N, D] or [T, B, D].
            target: ids of the words to predict, int64 [N] or [T, B].
            generator: random generator of the head's dropout masks in train mode; None for torch's default generator.
        """
        raise NotImplementedError

    def nll(self, h: Tensor, target: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the loss -ln P(target) of each token, [N] nats, differentiable, without storing all logits.

        ``h`` is [N, D] or [T, B, D], ``target`` int64 [N] or [T, B]; ``generator`` draws the head's dropout masks in
        train mode (None: torch's default generator).
        """
        return self.losses(h, target, generator=generator).nll_N

    def mean_nll(self, h: Tensor, target: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the training loss, a scalar: the mean of -ln P(target) over all tokens, in nats.

        ``h`` is [N, D] or [T, B, D], ``target`` int64 [N] or [T, B]; ``generator`` draws the head's dropout masks in
        train mode (None: torch's default generator). The backward pass never makes the CPU wait for a GPU.
        """
        return self.losses(h, target, generator=generator).total / target.numel()

    def log_probs(self, h: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return ln P(.|context), [N, V] nats, for ``h`` [N, D] or [T, B, D], in h's dtype.

        ``generator`` draws the head's dropout masks in train mode (None: torch's default generator). Every head
        overrides this method.
        """
        raise NotImplementedError

    @property
    def is_log_linear(self) -> bool:
        """True if log_probs(h) = contexts(h) W^T + b - logZ.

        W and b are the decoder's weight and bias, and logZ is one number per token. The singular values of the
        log-probabilities can then be computed from these factors, without the [N, V] matrix.
        """
        return False

    def contexts(self, h: Tensor) -> Tensor:
        """Return the context vectors c [N, E], from which the decoder computes the logits c W^T + b.

        ``h`` are the hidden states [N, D] or [T, B, D]; W and b are the weight and bias of the decoder.

        Raises:
            UserError: the head is not log-linear: its log-probabilities are not c W^T + b - logZ.
        """
        raise UserError(f"{type(self).__name__} is not log-linear, it has no context vectors: use log_probs")

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the trainable parameters as optimiser groups [{"params": [...]}, ...].

        A group of parameters that have their own learning rate also has the key "lr".
        """
        groups: list[dict[str, Any]] = []
        for module in self.modules():
            parameters = trainable(module) if isinstance(module, Pointwise) else ()
            if parameters and module.learning_rate is not None:
                groups.append({"params": list(parameters), "lr": module.learning_rate})
        grouped = {id(parameter) for group in groups for parameter in group["params"]}
        rest = [p for p in self.parameters() if p.requires_grad and id(p) not in grouped]
        return [{"params": rest}, *groups]


class PointwiseHead(Head):
    """The head log_softmax(g(W h + b)) of a pointwise function g (Ganea 2019, eq. 12).

    Args:
        pointwise: function without arguments that creates g. The constructor calls this function after it has
            initialised the decoder, so that random numbers are drawn in a fixed order.
        vocabulary_size: V.
        context_size: D, which must equal E.
        embedding_size: E.

    Raises:
        UserError: context_size differs from embedding_size.
    """

    def __init__(
        self, pointwise: Callable[[], Pointwise], *, vocabulary_size: int, context_size: int, embedding_size: int
    ) -> None:
        if context_size != embedding_size:
            raise UserError(
                f"this head reads contexts as wide as the embedding: got context size {context_size}, "
                f"embedding size {embedding_size}; set both to the same number, or use a mixture head"
            )
        super().__init__(vocabulary_size=vocabulary_size, context_size=context_size, embedding_size=embedding_size)
        self.reset_decoder()
        self.pointwise = pointwise()

    def losses(self, h: Tensor, target: Tensor, *, generator: torch.Generator | None) -> RowNLL:
        """Return the loss -ln P(target) of each token, [N], and the sum of these losses, both in nats.

        ``h`` is [N, D] or [T, B, D], ``target`` int64 [N] or [T, B]; ``generator`` is unused (no dropout).
        """
        h_ND, weight_VD, bias_V = self._rows(h), self.decoder.weight, self.decoder.bias
        return row_nll(h_ND, weight_VD, bias_V, target.reshape(-1), self.pointwise, backends=self.matmul_backends)

    def log_probs(self, h: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return ln P(.|context), [N, V] nats, for ``h`` [N, D] or [T, B, D]; ``generator`` is unused (no dropout)."""
        scores_NV: Tensor = self.pointwise(self.decoder(self._rows(h)))
        return scores_NV.log_softmax(1)

    @property
    def is_log_linear(self) -> bool:
        """True if g is the identity, i.e. the softmax head."""
        return self.pointwise.is_identity

    def contexts(self, h: Tensor) -> Tensor:
        """Return ``h`` flattened to one row per token, [N, E], as the head has no layer before the decoder.

        Raises:
            UserError: g is not the identity, so that the head is not log-linear.
        """
        return self._rows(h) if self.is_log_linear else super().contexts(h)

    def _rows(self, h: Tensor) -> Tensor:
        return h.reshape(-1, self.context_size)
