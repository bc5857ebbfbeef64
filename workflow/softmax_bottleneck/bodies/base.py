"""What every body is: word vectors, and hidden states from tokens.

Shapes: T time steps, B sequences side by side, D width of the hidden states the head sees.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

State = tuple[tuple[Tensor, Tensor], ...]  # what is carried from chunk to chunk; for an LSTM (h_1BH, c_1BH) per layer


class BodyOutput(NamedTuple):
    """What a body returns: of its last layer the output before and after dropout, and the state to carry on."""

    raw_TBD: Tensor
    dropped_TBD: Tensor
    state: State


def keep_mask(shape: tuple[int, ...], dropout: float, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """A dropout mask: 1 / (1 - dropout) with probability 1 - dropout, else 0; device and dtype of `like`."""
    kept = 1.0 - dropout
    uniform = torch.empty(shape, device=like.device, dtype=like.dtype).uniform_(generator=generator)
    return uniform.lt_(kept).div_(kept)  # four times as fast as bernoulli_ on the CPU


class Body(nn.Module):
    """Base of the bodies; `embedding` holds the word vectors, which the head's decoder may share."""

    embedding: nn.Embedding
    carries_state = True
    """Whether a chunk sees what was read before it; where not, the length of chunks is part of the result."""

    def initial_state(self, batch_size: int) -> State:
        """The state before the first token of `batch_size` sequences."""
        raise NotImplementedError

    def forward(self, tokens_TB: Tensor, state: State, *, generator: torch.Generator | None = None) -> BodyOutput:
        """Read a chunk of tokens from the given state; what is random comes from `generator`, in train mode only."""
        raise NotImplementedError
