"""Multi-facet softmax: P = sum_k prior_k softmax_k, where the first softmax uses J partitions of the vocabulary.

Chang and McCallum 2022, "Softmax Bottleneck Makes Language Models Unable to Represent Multi-mode Word Distributions",
section 3:

    softmax_1(v) = exp(w_v . f_(v mod J) + b_v) / sum over words
    softmax_k(v) = exp(w_v . f_(J+k-2) + b_v) / sum over words,   k = 2 ... K
    f_i = U_i h + a_i,   i = 0 ... J+K-2,     prior = softmax(M h + m)

The facets f_i are linear functions of the context h. In the first softmax, word v belongs to partition v mod J, and
each partition has its own facet, so that one softmax can have several modes. The paper's third part, facets of several
layers and earlier positions, is omitted, because a head sees one hidden state.
Numerical stability: the K terms are added in log space (logsumexp).

Shapes: N tokens, n tokens of a chunk, D context width, E embedding width, V vocabulary, K softmaxes, J partitions,
F = J + K - 1 facets.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from softmax_bottleneck.heads.chunked import ChunkedHead
from softmax_bottleneck.heads.declaration import Components, Declaration
from softmax_bottleneck.store import schema


@schema.section
class Options:
    """The options of the head.

    Attributes:
        components: number of softmaxes mixed, K.
        partitions: partitions of the words in the first softmax, J.
    """

    components: Components = 3
    partitions: Components = 4


HEAD = Declaration(name="multi-facet", label="MFS", family="mixture", options=Options)


class MFS(ChunkedHead):
    """The multi-facet softmax head; the module's docstring has its equation."""

    declaration = HEAD

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        components, partitions = self.options.components, self.options.partitions
        self.partitions, self.facets = partitions, partitions + components - 1
        self.rows_per_token = 3 * components
        self.prior = nn.Linear(self.context_size, components)
        self.latent = nn.Linear(self.context_size, self.facets * self.embedding_size)
        self.partition_V: Tensor
        self.register_buffer("partition_V", torch.arange(self.vocabulary_size) % partitions, persistent=False)
        self.reset_decoder()

    def of_tokens(self, h_ND: Tensor) -> tuple[Tensor, ...]:
        """Return (log mixture weights [N, K], facets [N, F, E]) for the hidden states ``h_ND`` of N tokens.

        The first J facets belong to the J partitions of the first softmax. The other K - 1 facets belong to the
        softmaxes 2 to K.
        """
        log_prior_NK = self.prior(h_ND).log_softmax(1)
        return log_prior_NK, self.latent(h_ND).view(len(h_ND), self.facets, self.embedding_size)

    def chunk_log_probs(self, *of_tokens: Tensor) -> Tensor:
        """Return ln P(.|context) of the n tokens of a chunk, [n, V] in nats.

        The two arguments are the log mixture weights [n, K] and the facets [n, F, E] of these tokens, as the method
        ``of_tokens`` returns them.
        """
        log_prior_nK, facet_nFE = of_tokens
        logits_nV = [self._partitioned(facet_nFE), *map(self.decoder, facet_nFE[:, self.partitions :].unbind(1))]
        terms = zip(logits_nV, log_prior_nK.split(1, 1), strict=True)
        return torch.stack([logits.log_softmax(1) + log_prior_n1 for logits, log_prior_n1 in terms]).logsumexp(0)

    def _partitioned(self, facet_nFE: Tensor) -> Tensor:
        """Return the logits [n, V] of the first softmax, which uses the first J facets, one per partition."""
        order_V = self.partition_V.argsort(stable=True)
        sizes = [len(range(j, self.vocabulary_size, self.partitions)) for j in range(self.partitions)]
        weights, biases = self.decoder.weight[order_V].split(sizes), self.decoder.bias[order_V].split(sizes)
        facets = facet_nFE[:, : self.partitions].unbind(1)
        return torch.cat(list(map(functional.linear, facets, weights, biases)), 1)[:, order_V.argsort()]
