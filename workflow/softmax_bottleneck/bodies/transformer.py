"""A causal Transformer encoder (Benka 2021; layers of Vaswani et al. 2017, section 3.1).

    x = dropout(sqrt(D) e + p),   then per layer   x <- norm(x + dropout(attention(x))),  x <- norm(x + dropout(ff(x)))

with word vectors e, sinusoids p, and ff(x) = W2 dropout(relu(W1 x + b1)) + b2. Normalisation follows each addition, as
in PyTorch's `TransformerEncoderLayer`, which the published code uses. No state is carried from chunk to chunk.

Numerical stability: the softmax of attention subtracts the largest score. This score is finite, because every position
attends at least to itself.

Shapes: T time steps, B sequences, D width, V words, H attention heads, E = D / H, F hidden units of ff.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from softmax_bottleneck.bodies.base import Body, BodyOutput, State, keep_mask
from softmax_bottleneck.store.errors import UserError

EMBEDDING_RANGE = 0.1  # U(-0.1, 0.1)
WAVELENGTHS = 10_000.0  # longest over shortest wavelength of the positional encoding
POSITIONS = 256  # computed at the start; more for longer chunks


def sinusoids(length: int, width: int) -> Tensor:
    """Return the positional encoding [length, width] of Vaswani et al. 2017, section 3.5.

    Row t is position t. Column 2i has sin(t / 10000^(2i/width)), and column 2i + 1 has the cosine of the same angle.
    """
    time_T1 = torch.arange(length, dtype=torch.float64)[:, None]
    rate_I = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(WAVELENGTHS) / width))
    angle_TI = time_T1 * rate_I
    return torch.stack((angle_TI.sin(), angle_TI.cos()), 2).flatten(1)[:, :width].float()


def dropped(x: Tensor, dropout: float, generator: torch.Generator | None) -> Tensor:
    """Return x with dropout applied independently to every element.

    `dropout` is the probability that an element is set to zero. `generator` provides the random numbers; if it is None,
    torch's default generator does.
    """
    return x * keep_mask(tuple(x.shape), dropout, x, generator) if dropout else x


class Transformer(Body):
    """Word vectors with positional encoding, then encoder layers with causal self-attention.

    Args:
        vocabulary_size: number of words.
        embedding_size: width D of all layers (published: 200).
        hidden_size: hidden units of each feed-forward network (published: 200).
        context_size: must equal embedding_size.
        layers: number of encoder layers (published: 4).
        attention_heads: number of heads per layer; must divide embedding_size (published code: 4).
        dropout_input: dropout of word vectors with positional encoding (published: 0.2).
        dropout_hidden: dropout inside the layers and of attention weights (published code: PyTorch's default, 0.1).
        dropout_output: dropout of the input of the head (published: none).

    Raises:
        UserError: context_size differs from embedding_size, or attention_heads does not divide embedding_size.
    """

    carries_state = False

    def __init__(
        self,
        *,
        vocabulary_size: int,
        embedding_size: int,
        hidden_size: int,
        context_size: int,
        layers: int,
        attention_heads: int,
        dropout_input: float = 0.0,
        dropout_hidden: float = 0.0,
        dropout_output: float = 0.0,
    ) -> None:
        super().__init__()
        if context_size != embedding_size:
            raise UserError(f"body: a transformer has one width: context_size {context_size} must equal "
                            f"embedding_size {embedding_size}")  # fmt: skip
        if not attention_heads or embedding_size % attention_heads:
            raise UserError(f"body: attention_heads: {attention_heads} does not divide embedding_size {embedding_size}")
        self.embedding, self.below_size = nn.Embedding(vocabulary_size, embedding_size), embedding_size
        self.layers = nn.ModuleList(
            _Layer(embedding_size, hidden_size, attention_heads, dropout_hidden) for _ in range(layers)
        )
        nn.init.uniform_(self.embedding.weight, -EMBEDDING_RANGE, EMBEDDING_RANGE)
        self.positions_TD: Tensor
        self.register_buffer("positions_TD", sinusoids(POSITIONS, embedding_size), persistent=False)
        self.scale = math.sqrt(embedding_size)
        self.dropout_input, self.dropout_output = dropout_input, dropout_output

    def initial_state(self, batch_size: int) -> State:
        """Return an empty tuple, because a Transformer carries no state between chunks."""
        return ()

    def forward(self, tokens_TB: Tensor, state: State, *, generator: torch.Generator | None = None) -> BodyOutput:
        """Return the outputs of the last layer for a chunk of tokens (see `BodyOutput`), with an empty state.

        `state` is ignored, so earlier chunks have no influence. In train mode, `generator` draws the dropout masks.
        """
        length = len(tokens_TB)
        if length > len(self.positions_TD):
            self.positions_TD = sinusoids(2 * length, self.embedding.embedding_dim).to(self.positions_TD)
        x_TBD = functional.embedding(tokens_TB, self.embedding.weight) * self.scale
        x_TBD = x_TBD + self.positions_TD[:length, None]
        if self.training:
            x_TBD = dropped(x_TBD, self.dropout_input, generator)
        later_TT = torch.ones(length, length, dtype=torch.bool, device=x_TBD.device).triu_(1)
        for layer in self.layers:
            below_TBD, x_TBD = x_TBD, layer(x_TBD, later_TT, generator)
        dropped_TBD = dropped(x_TBD, self.dropout_output, generator) if self.training else x_TBD
        return BodyOutput(x_TBD, dropped_TBD, (), below_TBD, head_input_TBD=dropped_TBD)


class _Layer(nn.Module):
    """A Transformer encoder layer with causal self-attention and normalisation after each addition."""

    def __init__(self, width: int, hidden_size: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.mixed = nn.Linear(width, width)
        self.widened = nn.Linear(width, hidden_size)
        self.narrowed = nn.Linear(hidden_size, width)
        self.attention_norm, self.feedforward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        nn.init.xavier_uniform_(self.queries_keys_values.weight)  # as PyTorch's attention
        nn.init.zeros_(self.queries_keys_values.bias)
        nn.init.zeros_(self.mixed.bias)

    def forward(self, x_TBD: Tensor, later_TT: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return norm(y + ff(y)) with y = norm(x + attention(x)); train mode applies dropout.

        `later_TT[t, s]` is True if position s is later than t, so that position t must not attend to it.
        """
        dropout = self.dropout if self.training else 0.0
        attended_TBD = self._attend(x_TBD, later_TT, dropout, generator)
        x_TBD = self.attention_norm(x_TBD + dropped(attended_TBD, dropout, generator))
        wide_TBF = dropped(self.widened(x_TBD).relu(), dropout, generator)
        narrowed_TBD = self.narrowed(wide_TBF)
        return self.feedforward_norm(x_TBD + dropped(narrowed_TBD, dropout, generator))

    def _attend(self, x_TBD: Tensor, later_TT: Tensor, dropout: float, generator: torch.Generator | None) -> Tensor:
        """Return the causal multi-head attention of `x_TBD` to itself, [T, B, D].

        Each head computes softmax(Q K^T / sqrt(E)) V (Vaswani et al. 2017, eq. 1), and a linear layer mixes the heads.
        `later_TT[t, s]` is True if position s is later than t, which gives s the weight zero. `dropout` is the
        probability that an output of the softmax is set to zero. `generator` provides the random numbers of dropout.
        """
        length, batch, width = x_TBD.shape
        split_TB3HE = self.queries_keys_values(x_TBD).view(length, batch, 3, self.heads, width // self.heads)
        query_BHTE, key_BHTE, value_BHTE = split_TB3HE.permute(2, 1, 3, 0, 4)
        score_BHTT = (query_BHTE / math.sqrt(width // self.heads)) @ key_BHTE.transpose(2, 3)
        weight_BHTT = score_BHTT.masked_fill(later_TT, -math.inf).softmax(3)
        seen_BHTE = dropped(weight_BHTT, dropout, generator) @ value_BHTE
        return self.mixed(seen_BHTE.permute(2, 0, 1, 3).reshape(length, batch, width))


BODY = Transformer
