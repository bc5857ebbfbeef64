"""Direct output connection (DOC): a mixture of softmaxes that read several layers of the body.

Takase, Suzuki and Nagata 2018, "Direct Output Connection for a High-Rank Language Model", section 4:

    P = sum_k prior_k softmax(W latent_k + b),   latent_k = dropout(tanh(U_k h_k + a_k)),   prior = softmax(M h_last)

where W holds the word vectors, and b, U_k, a_k and M are trained, too. The first components (15 in the published
models) read h_k = h_last, the hidden state of the last layer. The others (5) read the hidden state of the layer below.
The input h of the head is the concatenation of both states, the lower layer's first. The paper's penalty on unequal
mixture weights prior_k (0.001 times their squared coefficient of variation) is left out.
Numerical stability: as in ``heads/mos.py``.

Shapes: N = T x B tokens, T time steps, B sequences, D width of h, K components, E width of the word vectors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from softmax_bottleneck.heads import softmax
from softmax_bottleneck.heads.mos import MixtureOfSoftmaxes

NAME = "doc"
LABEL = "DOC"
OPTIONS = {
    "components": {
        "type": "integer",
        "default": 15,
        "minimum": 1,
        "maximum": 4096,
        "description": "Softmaxes of the last layer.",
    },
    "lower_components": {
        "type": "integer",
        "default": 5,
        "minimum": 1,
        "maximum": 4096,
        "description": "Softmaxes of the layer below it.",
    },
    "lower_size": {
        "type": "integer",
        "default": 0,
        "minimum": 0,
        "maximum": 65536,
        "description": "Width of the layer below (the body's hidden_size); 0: there is none, all read the last.",
    },
    "dropout_latent": {
        "type": "number",
        "default": 0.6,
        "minimum": 0,
        "exclusiveMaximum": 1,
        "description": "Dropout of the latent context vectors.",
    },
}


class DirectOutputConnection(MixtureOfSoftmaxes):
    """The direct-output-connection head; the module's docstring has its equation.

    Args:
        context_size: width of the head's input h, ``lower_size`` included.
        components: number of softmaxes that read the last layer. K is this number plus ``lower_components``.
        lower_components: number of softmaxes that read the layer below.
        lower_size: width of the layer below. If it is 0, all K softmaxes read the last layer.
        options: ``vocabulary_size``, ``embedding_size`` (E) and ``dropout_latent`` (dropout probability of latent_k)
            are required. The other keyword arguments of ``MixtureOfSoftmaxes`` are optional. By default, prior and
            components use softmaxes, all time steps of a sequence share the dropout mask, and no floor is added to
            the probabilities.
    """

    def __init__(
        self, *, context_size: int, components: int, lower_components: int, lower_size: int, **options: Any
    ) -> None:
        kinds = {"prior": softmax.NAME, "pointwise": softmax.NAME, "pointwise_options": {}}
        mixture = {"locked_dropout": True, "probability_floor": 0.0, **kinds, **options}
        super().__init__(context_size=context_size - lower_size, components=components, **mixture)
        self.context_size, self.lower_size = context_size, lower_size
        self.components = self.rows_per_token = components + lower_components
        upper_size, lower_outputs = context_size - lower_size, lower_components * self.embedding_size
        self.prior = nn.Linear(upper_size, self.components, bias=False)
        self.lower_latent = nn.Linear(lower_size or upper_size, lower_outputs)

    def latents(self, h: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the latent context vectors [N, K, E] of ``h`` [N, D] or [T, B, D], with dropout in train mode.

        Components that read the last layer come first along K, but the lower layer's state comes first in ``h``.
        ``generator`` gives the random numbers of the dropout.
        """
        lower, upper = (h[..., : self.lower_size], h[..., self.lower_size :]) if self.lower_size else (h, h)
        latent = torch.tanh(torch.cat([self.latent(upper), self.lower_latent(lower)], -1))
        if self.training and self.dropout_latent > 0.0:
            latent = latent * self._mask(latent, generator)
        return latent.reshape(-1, self.components, self.embedding_size)

    def log_prior(self, h: Tensor) -> Tensor:
        """Return the logarithms [N, K] of the mixture weights, which depend on the last layer's state in ``h`` only."""
        upper_ND = h.reshape(-1, self.context_size)[:, self.lower_size :]
        return self.prior(upper_ND).log_softmax(1)  # type: ignore[no-any-return]
