"""Mixtape: P(v) = softmax_v(sum_k pi_kv (w_v . tanh(H_k h)) + b_v)  (Yang et al. 2019, "Mixtape: Breaking the Softmax
Bottleneck Efficiently", section 3).

Each word v mixes its K logits with weights pi_kv of its own (logit space vector gating). One softmax therefore
suffices, and the rank is not bounded by the width. K - 1 sigmoid gates form a binary tree with K leaves. The weight of
a leaf is the product of the gates g, or of 1 - g, on the path from the root. For K = 4 the weights are g_1v g_2v,
g_1v (1 - g_2v), (1 - g_1v) g_3v and (1 - g_1v)(1 - g_3v). Gate i of word v is

    g_iv = sigmoid(a_v . tanh(U_i h) + u_i . h + c_iv)

The parameters w_v, b_v, H_k, a_v, U_i, u_i and c_iv are trained.
Gate sharing: with the option ``own_gates`` = m > 0, all words after the first m of the vocabulary share one vector a
and one bias c per gate.
Numerical stability: the weights are in [0, 1] and sum to one, so that a mixed logit lies between the K logits;
log_softmax subtracts the largest logit.

Shapes: N = T x B tokens, n of them in a chunk, D context width, E embedding width, K components, G gate width,
R different vectors a_v, V vocabulary.
"""

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from softmax_bottleneck.heads.base import DECODER_RANGE
from softmax_bottleneck.heads.chunked import ChunkedHead
from softmax_bottleneck.heads.declaration import Declaration
from softmax_bottleneck.store import schema


@schema.section
class Options:
    """The options of the head.

    Attributes:
        components: number of logits per word that are mixed, K.
        gate_size: width G of the words' gate vectors a_v.
        own_gates: number of words, the first of the vocabulary, that have a gate vector and bias of their own; 0: all.
    """

    components: Literal[2, 4, 8, 16] = 4
    gate_size: schema.Width = 100
    own_gates: Annotated[schema.Integer, Field(ge=0, le=10_000_000)] = 0


HEAD = Declaration(name="mixtape", label="Mixtape", family="mixture", options=Options)


class Mixtape(ChunkedHead):
    """The Mixtape head; the module's docstring has its equation."""

    declaration = HEAD

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        components, gate_size = self.options.components, self.options.gate_size
        own_gates = self.options.own_gates or self.vocabulary_size
        self.components, self.gates = components, components - 1
        self.rows_per_token = 4 * components  # logits, gates and what autograd stores for them
        self.latent = nn.Linear(self.context_size, components * self.embedding_size, bias=False)
        self.gate_latent = nn.Linear(self.context_size, self.gates * gate_size, bias=False)
        self.gate_offset = nn.Linear(self.context_size, self.gates, bias=False)
        row_V = torch.arange(self.vocabulary_size).clamp(max=own_gates)
        self.gate_row_V: Tensor
        self.register_buffer("gate_row_V", row_V, persistent=False)
        rows = min(own_gates, self.vocabulary_size - 1) + 1
        self.gate_vector = nn.Parameter(torch.empty(rows, gate_size).uniform_(-DECODER_RANGE, DECODER_RANGE))
        self.gate_bias = nn.Parameter(torch.zeros(rows, self.gates))
        self.reset_decoder()

    def of_tokens(self, h_ND: Tensor) -> tuple[Tensor, ...]:
        """Return the tuple (tanh(H_k h) [N, K, E], tanh(U_i h) [N, K-1, G], u_i . h [N, K-1]).

        The first tensor has the latent vectors; the other two are the inputs of the gates.
        """
        latent_NKE = torch.tanh(self.latent(h_ND)).unflatten(1, (self.components, -1))
        gate_latent_NKG = torch.tanh(self.gate_latent(h_ND)).unflatten(1, (self.gates, -1))
        return latent_NKE, gate_latent_NKG, self.gate_offset(h_ND)

    def chunk_log_probs(self, *of_tokens: Tensor) -> Tensor:
        """Return ln P(.|context), [n, V] nats, of the n tokens of a chunk.

        The three arguments are tanh(H_k h) [n, K, E], tanh(U_i h) [n, K-1, G] and u_i . h [n, K-1] of these tokens,
        which the method ``of_tokens`` computes. The method goes through the tree from the leaves to the root. At each
        level, neighbouring logits of a word form pairs, and each pair is mixed into one logit by its own gate.
        """
        latent_nKE, gate_latent_nKG, offset_nK = of_tokens
        logits_nV = [functional.linear(latent_nE, self.decoder.weight) for latent_nE in latent_nKE.unbind(1)]
        while len(logits_nV) > 1:
            first = len(logits_nV) // 2 - 1  # index of this level's first gate: levels above have 1 + 2 + 4 + ... gates
            logits_nV = [
                torch.lerp(right_nV, left_nV, self._gate(gate_latent_nKG, offset_nK, first + pair))
                for pair, (left_nV, right_nV) in enumerate(zip(logits_nV[::2], logits_nV[1::2], strict=True))
            ]
        return (logits_nV[0] + self.decoder.bias).log_softmax(1)

    def _gate(self, gate_latent_nKG: Tensor, offset_nK: Tensor, i: int) -> Tensor:
        gate_nR = functional.linear(gate_latent_nKG[:, i], self.gate_vector, self.gate_bias[:, i])
        return torch.sigmoid(gate_nR + offset_nK[:, i : i + 1])[:, self.gate_row_V]
