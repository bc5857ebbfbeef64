"""Low-rank softmax: P = softmax(W A B h + b) with inner width r  (Godey, Villemonte de la Clergerie and Sagot 2024,
"Why do small language models underperform?", section 6, where W A is one matrix).

The head isolates the softmax bottleneck: r bounds the rank of the log-probabilities by r + 2, while the widths of the
body and of the (tied) word vectors W do not change. Numerical stability: as in softmax.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from softmax_bottleneck.heads.base import Head
from softmax_bottleneck.heads.row_nll import RowNLL, row_nll
from softmax_bottleneck.heads.softmax import Identity

NAME = "low-rank"
LABEL = "Low-Rank"
OPTIONS = {
    "rank": {"type": "integer", "default": 16, "minimum": 1, "maximum": 65536, "description": "Inner width, r."},
}


class LowRank(Head):
    """The low-rank softmax head softmax(W A B h + b); ``rank`` is the inner width r.

    A and B have the default initial values of torch's linear layers.
    """

    def __init__(self, *, rank: int, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.narrow = nn.Linear(self.context_size, rank, bias=False)
        self.widen = nn.Linear(rank, self.embedding_size, bias=False)
        self.reset_decoder()
        self.pointwise = Identity()

    def losses(self, h: Tensor, target: Tensor, *, generator: torch.Generator | None) -> RowNLL:
        """Return the loss of each token and the sum of all losses, in nats; ``generator`` is unused (no dropout)."""
        h_NE, weight_VE, bias_V = self.contexts(h), self.decoder.weight, self.decoder.bias
        return row_nll(h_NE, weight_VE, bias_V, target.reshape(-1), self.pointwise, backends=self.matmul_backends)

    def log_probs(self, h: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return ln P(.|context), [N, V] nats; ``generator`` is unused."""
        logits_NV: Tensor = self.decoder(self.contexts(h))
        return logits_NV.log_softmax(1)

    @property
    def is_log_linear(self) -> bool:
        """True, because log_probs(h) = contexts(h) W^T + b - logZ, where contexts(h) is A B h."""
        return True

    def contexts(self, h: Tensor) -> Tensor:
        """Return the vectors A B h, [N, E], that are multiplied by the word matrix W."""
        h_NE: Tensor = self.widen(self.narrow(h.reshape(-1, self.context_size)))
        return h_NE
