"""Low-rank softmax: P = softmax(W A B h + b), where the matrix B maps the hidden state to a narrow width r.

Source: Godey, Villemonte de la Clergerie and Sagot 2024, "Why do small language models underperform?", section 6. The
paper has one matrix in the place of W A.

The head isolates the effect of the softmax bottleneck. The rank of the log-probabilities is at most r + 2, whatever the
widths of the body and of the word vectors W are. The product W A B h has rank r at most; the bias b and the
normalisation of each token add 1 each. The decoder W may be tied to the input embedding.

Suffixes: N tokens, D hidden width, E word-vector width, V vocabulary. Shapes: B [r, D], A [E, r], W [V, E].
"""

from typing import Any

import torch
from torch import Tensor, nn

from softmax_bottleneck.heads.base import SingleSoftmaxHead
from softmax_bottleneck.heads.declaration import Declaration
from softmax_bottleneck.heads.softmax import Identity
from softmax_bottleneck.store import schema


@schema.section
class Options:
    """The option of the head: the inner width r."""

    rank: schema.Width = 16


HEAD = Declaration(name="low-rank", label="Low-Rank", family="other", options=Options, is_log_linear=True)


class LowRank(SingleSoftmaxHead):
    """The low-rank softmax head softmax(W A B h + b), in which ``rank`` is the inner width r.

    A and B start with the default initial values of ``nn.Linear``.
    """

    declaration = HEAD

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        rank = self.options.rank
        self.narrow = nn.Linear(self.context_size, rank, bias=False)
        self.widen = nn.Linear(rank, self.embedding_size, bias=False)
        self.reset_decoder()
        self.pointwise = Identity()

    def _contexts(self, h: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the vectors A B h, [N, E]; nothing is random."""
        return self.widen(self.narrow(self._rows(h)))
