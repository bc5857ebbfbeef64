"""Heads whose log-probabilities are not a function of single rows of logits: computed in chunks, twice.

As with `row_nll` for the other heads, [N, V] and [N, K, V] never exist as a whole: backward recomputes each chunk
(checkpointing, Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"). That makes these heads slower, and
they have no choice of backends.

Shapes: N = T x B tokens, n of them in a chunk, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from softmax_bottleneck.heads.base import Head
from softmax_bottleneck.heads.matmul import FP32, TF32, refuse_without_hardware
from softmax_bottleneck.heads.row_nll import RowNLL, chunk_tokens
from softmax_bottleneck.heads.softmax import Identity
from softmax_bottleneck.store.errors import UserError


class ChunkedHead(Head):
    """Base class of these heads. A subclass defines its inputs per token and the log-probabilities of a chunk."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.pointwise = Identity()

    def of_tokens(self, h_ND: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors, each [N, ...], that the log-probabilities of the tokens depend on."""
        raise NotImplementedError

    def chunk_log_probs(self, *of_tokens: Tensor) -> Tensor:
        """Return ln P(.|context), [n, V] nats, from some rows of the tensors of ``of_tokens``."""
        raise NotImplementedError

    def losses(self, h: Tensor, target: Tensor, *, generator: torch.Generator | None) -> RowNLL:
        """Return the losses as ``Head.losses`` does."""
        target_N1 = target.reshape(-1, 1)
        rows = chunk_tokens(len(target_N1), self.rows_per_token, self.decoder.weight, self.pointwise)
        chunks = zip(*(part.split(rows) for part in (target_N1, *self.of_tokens(self._rows(h)))), strict=True)
        nll_N = torch.cat(
            [checkpoint(self._nll, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks]
        )
        return RowNLL(nll_N, nll_N.sum())

    def log_probs(self, h: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return log-probabilities as ``Head.log_probs`` does."""
        return self.chunk_log_probs(*self.of_tokens(self._rows(h)))

    def select_matmul_backends(self, num_tokens: int, precision: str = FP32) -> None:
        """Check the precision; there are no backends (UserError: a precision that only the fused loss supports)."""
        if precision not in (FP32, TF32):
            raise UserError(f"{type(self).__name__} has no products in {precision}: set schedule.precision to fp32")
        refuse_without_hardware(precision, self.decoder.weight.device)

    def _nll(self, target_n1: Tensor, *of_tokens: Tensor) -> Tensor:
        return -self.chunk_log_probs(*of_tokens).gather(1, target_n1).squeeze(1)

    def _rows(self, h: Tensor) -> Tensor:
        return h.reshape(-1, self.context_size)
