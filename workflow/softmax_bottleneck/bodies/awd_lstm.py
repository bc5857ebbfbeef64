"""The AWD-LSTM (Merity, Keskar and Socher 2018, "Regularizing and Optimizing LSTM Language Models", sections 2 to 4).

The variant with a narrower last layer is by Yang et al. 2018.

Shapes: T time steps, B parallel sequences, D width of a layer's input or output, V words, H units of a layer, G = 4 H.
"""

from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from softmax_bottleneck.bodies.base import Body, BodyOutput, State, keep_mask

EMBEDDING_RANGE = 0.1  # U(-0.1, 0.1)
# The number of units is padded to a multiple of this: cuDNN's tensor-core kernels need rows of a multiple of 16 bytes.
ALIGNED_UNITS = {"cpu": 1, "cuda": 8}
LSTM_WEIGHTS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")  # in the order of the kernel's arguments


def locked_dropout(x_TBD: Tensor, dropout: float, generator: torch.Generator | None) -> Tensor:
    """Return x with dropout: one mask per sequence and feature, shared over time (Merity et al. 2018, section 4.2).

    `generator` gives the random numbers of the mask. Kept values are divided by 1 - `dropout`.
    """
    if dropout == 0.0:
        return x_TBD
    return x_TBD * keep_mask((1, *x_TBD.shape[1:]), dropout, x_TBD, generator)


class AWDLSTM(Body):
    """An embedding, then single-layer LSTMs with locked dropout between them and DropConnect on recurrent weights.

    Random numbers are used in train mode only. They come from the generator given to `forward`.

    Args:
        vocabulary_size: number of words.
        embedding_size: width of the word vectors.
        hidden_size: number of units of every layer but the last.
        context_size: number of units of the last layer, whose output the head reads.
        layers: number of LSTM layers.
        dropout_input: dropout probability of the word vectors.
        dropout_hidden: dropout probability between the layers.
        dropout_output: dropout probability of the last layer's output.
        dropout_embedding: probability of dropping a word of the vocabulary wherever it occurs in a chunk.
        dropout_weight: DropConnect probability of the recurrent weights.
        embedding_noise: standard deviation of normal noise added to the word vectors (Parthiban et al. 2021, Table 5).
        published_padding: True to give the dictionary's last word no gradient as an input word, as `padding_idx=-1`
            does in the published code. If the head shares the word vectors, this word still gets a gradient from it.

    Attributes:
        slices: into how many pieces the time steps of a training chunk are cut, so that on a GPU a layer works on one
            piece while the layer above works on the piece before (see `_run_layers`).
    """

    def __init__(
        self,
        *,
        vocabulary_size: int,
        embedding_size: int,
        hidden_size: int,
        context_size: int,
        layers: int,
        dropout_input: float = 0.0,
        dropout_hidden: float = 0.0,
        dropout_output: float = 0.0,
        dropout_embedding: float = 0.0,
        dropout_weight: float = 0.0,
        embedding_noise: float = 0.0,
        published_padding: bool = False,
    ) -> None:
        super().__init__()
        widths = [embedding_size, *[hidden_size] * (layers - 1), context_size]
        self.embedding = nn.Embedding(vocabulary_size, embedding_size)
        self.layers = nn.ModuleList(nn.LSTM(widths[i], widths[i + 1]) for i in range(layers))
        self.widths, self.below_size = widths[1:], widths[-2]
        nn.init.uniform_(self.embedding.weight, -EMBEDDING_RANGE, EMBEDDING_RANGE)
        self.dropout_input = dropout_input
        self.layer_dropouts = [dropout_hidden] * (layers - 1) + [dropout_output]
        self.dropout_embedding = dropout_embedding
        self.dropout_weight = dropout_weight
        self.embedding_noise = embedding_noise
        self.padding_index = -1 if published_padding else None
        self.slices = 1

    def initial_state(self, batch_size: int) -> State:
        """Return zeros: one pair (hidden state, cell state) per layer, each [1, B, H] with B = `batch_size`."""
        shapes = [(1, batch_size, width) for width in self.widths]
        like = self.embedding.weight
        return tuple((like.new_zeros(shape), like.new_zeros(shape)) for shape in shapes)

    def forward(self, tokens_TB: Tensor, state: State, *, generator: torch.Generator | None = None) -> BodyOutput:
        """Return the output for a chunk of tokens that starts from the given state.

        The result holds the last layer's output before and after dropout, and the state at the end of the chunk (see
        `BodyOutput`). This state is not detached from the graph; the training loop detaches it between chunks. In train
        mode `generator` gives the random numbers of all dropouts and of the embedding noise.
        """
        x_TBD = self._embed(tokens_TB, generator)
        weights, masks = [], []
        for layer, dropout, width in zip(self.layers, self.layer_dropouts, self.widths, strict=True):
            weights.append(self._weights(layer, generator))
            is_dropped = self.training and dropout > 0.0
            masks.append(keep_mask((1, x_TBD.shape[1], width), dropout, x_TBD, generator) if is_dropped else None)
        return _run_layers(x_TBD, state, weights, masks, self.slices if torch.is_grad_enabled() else 1)

    def _embed(self, tokens_TB: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the word vectors [T, B, D] of the tokens.

        In train mode, random numbers from `generator` change the vectors in three steps. Whole words of the vocabulary
        are dropped (Gal and Ghahramani 2016), then noise is added, and finally locked dropout is applied.
        """
        table_VD = self.embedding.weight
        x_TBD = functional.embedding(tokens_TB, table_VD, padding_idx=self.padding_index)
        if not self.training:
            return x_TBD
        if self.dropout_embedding:  # masking the looked-up vectors equals masking rows of a copy of the table
            mask_V = keep_mask((table_VD.shape[0],), self.dropout_embedding, table_VD, generator)
            x_TBD = x_TBD * mask_V[tokens_TB].unsqueeze(-1)
        if self.embedding_noise:
            noise_TBD = torch.empty_like(x_TBD).normal_(generator=generator)
            x_TBD = torch.add(x_TBD, noise_TBD, alpha=self.embedding_noise)
        return locked_dropout(x_TBD, self.dropout_input, generator)

    def _weights(self, layer: nn.Module, generator: torch.Generator | None) -> list[Tensor]:
        """Return a layer's weights in the order of LSTM_WEIGHTS; in train mode, DropConnect masks the recurrent ones.

        `generator` gives the random numbers of the mask. The masked weight is the trained parameter times the mask, so
        that autograd passes the gradient on to the parameter.
        """
        weights: list[Tensor] = [layer.get_parameter(name) for name in LSTM_WEIGHTS]
        if self.training and self.dropout_weight:
            raw_GH = weights[1]
            weights[1] = raw_GH * keep_mask(tuple(raw_GH.shape), self.dropout_weight, raw_GH, generator)
        return weights


def _run_layers(
    x_TBD: Tensor, state: State, weights: list[list[Tensor]], masks: list[Tensor | None], slices: int
) -> BodyOutput:
    """Run the layers on a chunk of time steps, cut into pieces: layer l on one while layer l + 1 is on the one before.

    On a GPU every layer has a stream of its own, and waits for nothing but the layer below on the same piece. So the
    longest chain of dependent time steps has T (1 + (L - 1) / `slices`) instead of L T of them, for L layers. The
    backward pass runs on the same streams. On a CPU the pieces follow one another.

    Args:
        x_TBD: the word vectors.
        state: the pair (hidden state, cell state) of every layer before the chunk.
        weights: the weights of every layer (see `_run_layer`).
        masks: the dropout mask [1, B, D] of every layer's output, or None.
        slices: number of pieces. Above 1 it needs a graph for the backward pass: this keeps the tensors that one stream
            writes and another reads from being overwritten.
    """
    hidden, pieces = list(state), []
    main, *streams = _streams(x_TBD.device, len(weights), slices)
    for x_SBD in x_TBD.chunk(slices):
        raw_SBD, stream_below = x_SBD, main
        for layer, stream in enumerate(streams):
            if stream is not None:
                stream.wait_stream(stream_below)
            with torch.cuda.stream(stream) if stream is not None else nullcontext():
                below_SBD = x_SBD
                raw_SBD, h_1BH, c_1BH = _run_layer(x_SBD, hidden[layer], weights[layer])
                hidden[layer] = (h_1BH, c_1BH)
                x_SBD = raw_SBD if (mask := masks[layer]) is None else raw_SBD * mask
            stream_below = stream
        pieces.append((raw_SBD, x_SBD, below_SBD))
    for stream in streams:
        if stream is not None:
            main.wait_stream(stream)
    raw_TBD, x_TBD, below_TBD = pieces[0] if len(pieces) == 1 else map(torch.cat, zip(*pieces, strict=True))
    return BodyOutput(raw_TBD, x_TBD, tuple(hidden), below_TBD, head_input_TBD=x_TBD)


@cache
def _side_streams(device: torch.device, count: int) -> list[Any]:
    return [torch.cuda.Stream(device) for _ in range(count)]


def _streams(device: torch.device, count: int, slices: int) -> list[Any]:
    """Return the current stream of a GPU and `count` more; None for each if one piece or a CPU needs no streams."""
    if slices == 1 or device.type != "cuda":
        return [None] * (count + 1)
    return [torch.cuda.current_stream(device), *_side_streams(device, count)]


def _run_layer(x_TBD: Tensor, hidden: tuple[Tensor, Tensor], weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output [T, B, H], last hidden state [1, B, H] and last cell state [1, B, H] of one LSTM layer.

    `hidden` is the pair (hidden state, cell state) before the chunk, each [1, B, H]. `weights` are four tensors in the
    order of LSTM_WEIGHTS: input weight [G, D], recurrent weight [G, H], input bias [G] and recurrent bias [G]. The
    function calls the kernel of `nn.LSTM` (oneDNN or cuDNN). On one CPU thread at T=35, B=20 and 64 to 128 units,
    oneDNN is 2.2 to 8 times as fast as PyTorch's code without oneDNN.
    """
    units = weights[1].shape[1]
    if extra := -units % ALIGNED_UNITS.get(x_TBD.device.type, ALIGNED_UNITS["cuda"]):
        hidden, weights = _with_more_units(hidden, weights, extra)
    # cuDNN stores what the backward pass needs only in train mode; at dropout 0 the flag has no other effect.
    needs_backward = torch.is_grad_enabled()
    y_TBD, h_1BH, c_1BH = torch._VF.lstm(x_TBD, hidden, weights, True, 1, 0.0, needs_backward, False, False)
    return (y_TBD[..., :units], h_1BH[..., :units], c_1BH[..., :units]) if extra else (y_TBD, h_1BH, c_1BH)


def _with_more_units(
    hidden: tuple[Tensor, Tensor], weights: list[Tensor], extra: int
) -> tuple[tuple[Tensor, Tensor], list[Tensor]]:
    """Return the pair (hidden state, cell state) and the weights of an LSTM layer with `extra` units added.

    The GPU kernel needs a number of units that is a multiple of ALIGNED_UNITS. The states and weights of an added unit
    are zero. So its gates are 1/2 and its candidate cell state is 0, and its state and output stay exactly zero.
    """
    h_1BH, c_1BH = (functional.pad(state, (0, extra)) for state in hidden)
    per_gate = [weight.unflatten(0, (4, -1)) for weight in weights]
    input_4HD, recurrent_4HH, *biases_4H = per_gate
    padded = [functional.pad(input_4HD, (0, 0, 0, extra)), functional.pad(recurrent_4HH, (0, extra, 0, extra))]
    padded += [functional.pad(bias_4H, (0, extra)) for bias_4H in biases_4H]
    return (h_1BH, c_1BH), [weight.flatten(0, 1) for weight in padded]


BODY = AWDLSTM
