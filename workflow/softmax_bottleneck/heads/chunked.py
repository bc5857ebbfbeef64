"""The base class of heads that cannot use the fused loss `row_nll`, such as Mixtape.

The fused loss needs rows of logits that each come from one vector of the token. In these heads, several vectors
contribute to one row. Their loss is computed in chunks of tokens, so that arrays [N, V] and [N, K, V] never exist as a
whole. The backward pass recomputes each chunk (checkpointing, Chen et al. 2016, "Training Deep Nets with Sublinear
Memory Cost"), which makes these heads slower. Their products are torch's own.

Shapes: N = T x B tokens, n tokens of a chunk, D width of the hidden states, K components, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from softmax_bottleneck.heads.base import Head
from softmax_bottleneck.heads.matmul import FP32, TF32, check_precision
from softmax_bottleneck.heads.row_nll import RowNLL, chunk_tokens
from softmax_bottleneck.heads.softmax import Identity
from softmax_bottleneck.store.errors import UserError


class ChunkedHead(Head):
    """The base class of heads whose loss is computed in checkpointed chunks of tokens.

    A subclass defines two methods. ``of_tokens`` computes, for all tokens at once, the tensors without a dimension of
    size V. ``chunk_log_probs`` computes log-probabilities from these tensors, chunk by chunk.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.pointwise = Identity()

    def of_tokens(self, h_ND: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors from which ``chunk_log_probs`` computes log-probabilities; every subclass overrides this.

        ``h_ND`` are the hidden states. The first dimension of each returned tensor has length N. For example,
        the head ``MFS`` returns two tensors: the log mixture weights [N, K], and the vectors that the decoder
        turns into logits, several per token.
        """
        raise NotImplementedError

    def chunk_log_probs(self, *of_tokens: Tensor) -> Tensor:
        """Return ln P(.|context), [n, V] nats, of the n tokens of a chunk; subclasses define the method.

        The arguments are the tensors that the method ``of_tokens`` returned for all tokens, in the same order. Each
        tensor is cut to the n rows of the chunk.
        """
        raise NotImplementedError

    def set_precision(self, precision: str) -> None:
        """Check that the head supports ``precision``, which is that of the whole step.

        Raises:
            UserError: the precision is neither fp32 nor tf32, or the device does not support tf32.
        """
        if precision not in (FP32, TF32):
            raise UserError(f"{type(self).__name__} has no products in {precision}: set schedule.precision to fp32")
        check_precision(precision, self.decoder.weight.device)

    def _losses(self, h: Tensor, target_N: Tensor, generator: torch.Generator | None) -> RowNLL:
        target_N1 = target_N.unsqueeze(1)
        rows = chunk_tokens(len(target_N1), self.rows_per_token, self.decoder.weight, self.pointwise)
        chunks = zip(*(part.split(rows) for part in (target_N1, *self.of_tokens(self._rows(h)))), strict=True)
        nll_N = torch.cat(
            [checkpoint(self._nll, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks]
        )
        return RowNLL(nll_N, nll_N.sum())

    def _log_probs(self, h: Tensor, generator: torch.Generator | None) -> Tensor:
        return self.chunk_log_probs(*self.of_tokens(self._rows(h)))

    def _nll(self, target_n1: Tensor, *of_tokens: Tensor) -> Tensor:
        return -self.chunk_log_probs(*of_tokens).gather(1, target_n1).squeeze(1)
