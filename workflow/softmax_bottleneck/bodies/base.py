"""The base class of bodies, the networks that turn tokens into hidden states for the output head.

Shapes: T time steps, B parallel sequences, D width of the hidden states that the head reads.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

State = tuple[tuple[Tensor, Tensor], ...]  # carried from chunk to chunk; for an LSTM (h_1BH, c_1BH) per layer


class BodyOutput(NamedTuple):
    """The output of a body for one chunk of tokens.

    Attributes:
        raw_TBD: the last layer's output before dropout.
        dropped_TBD: the last layer's output after dropout.
        state: the state with which the next chunk starts.
        below_TBD: the input of the last layer. Its width may differ from D.
        head_input_TBD: what the head reads: `dropped_TBD`, or below + dropped for a head with `lower_size`. A body
            gives `dropped_TBD`; the language model knows the head.
    """

    raw_TBD: Tensor
    dropped_TBD: Tensor
    state: State
    below_TBD: Tensor
    head_input_TBD: Tensor


def keep_mask(shape: tuple[int, ...], dropout: float, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return a random dropout mask: each entry is 1 / (1 - dropout) with probability 1 - dropout, else 0.

    Each entry uses 16 random bits, so that the probability is rounded to a multiple of 2^-16. On a CPU this is more
    than twice as fast as PyTorch's `uniform_` and nine times as fast as its `bernoulli_`.

    The mask has the device and dtype of `like`. If `generator` is None, torch's default generator is used.
    """
    kept, count = 1.0 - dropout, math.prod(shape)
    numbers = torch.empty(-(-count // 4), dtype=torch.int64, device=like.device)
    draws = numbers.random_(-(2**63), None, generator=generator).view(torch.int16)[:count].view(shape)
    last = max(1, round(kept * 2**16)) - 1 - 2**15  # the smallest number is -2^15
    return torch.le(draws, last, out=torch.empty(shape, device=like.device, dtype=like.dtype)).div_(kept)


class Body(nn.Module):
    """The base class of bodies; a subclass defines `embedding`, `below_size`, `initial_state` and `forward`.

    `embedding.weight` holds the word vectors, one row per word. The head's output matrix, `decoder.weight`, may be the
    same parameter.
    """

    embedding: nn.Embedding
    below_size: int  # width of the last layer's input
    # True if a chunk continues the text before it. Without a state, losses depend on the length of the chunks.
    carries_state = True

    def initial_state(self, batch_size: int) -> State:
        """Return the state before the first token of `batch_size` sequences, or () for a body without state.

        For an LSTM: a pair (hidden state, cell state) per layer, each [1, B, units] with B = `batch_size`.
        """
        raise NotImplementedError

    def forward(self, tokens_TB: Tensor, state: State, *, generator: torch.Generator | None = None) -> BodyOutput:
        """Return the output for a chunk of tokens that starts from the given state.

        In train mode `generator` provides the random numbers of dropout; None means torch's default generator.
        """
        raise NotImplementedError
