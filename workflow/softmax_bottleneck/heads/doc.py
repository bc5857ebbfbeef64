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

from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from softmax_bottleneck.heads.declaration import Components, Declaration
from softmax_bottleneck.heads.mos import MoS
from softmax_bottleneck.store import schema


@schema.section
class Options:
    """The options of the head. Class variables are the mixture options that the paper fixes.

    Attributes:
        components: number of softmaxes that read the last layer. K is this number plus `lower_components`.
        lower_components: number of softmaxes that read the layer below.
        lower_size: width of the layer below (the body's hidden_size); 0: there is none, and all read the last layer.
        dropout_latent: dropout of the latent context vectors.
    """

    components: Components = 15
    lower_components: Components = 5
    lower_size: Annotated[schema.Integer, Field(ge=0, le=65_536)] = 0
    dropout_latent: schema.Probability = 0.6
    locked_dropout: ClassVar = True
    prior: ClassVar = "softmax"
    pointwise: ClassVar = "softmax"
    pointwise_options: ClassVar = dict[str, Any]()
    probability_floor: ClassVar = 0.0


HEAD = Declaration(name="doc", label="DOC", family="mixture", options=Options)


class DOC(MoS):
    """The direct-output-connection head; the module's docstring has its equation.

    The argument ``context_size`` is the width of the head's input h, ``lower_size`` included.
    """

    declaration = HEAD

    def _make_layers(self) -> None:
        self.lower_size, lower_components = self.options.lower_size, self.options.lower_components
        upper_size = self.context_size - self.lower_size
        self.latent = nn.Linear(upper_size, self.components * self.embedding_size)
        self.components += lower_components
        self.prior = nn.Linear(upper_size, self.components, bias=False)
        self.lower_latent = nn.Linear(self.lower_size or upper_size, lower_components * self.embedding_size)

    def _preactivations(self, h: Tensor) -> Tensor:
        """Return U_k h_k + a_k of all components.

        Components that read the last layer come first along K, but the lower layer's state comes first in ``h``.
        """
        lower, upper = (h[..., : self.lower_size], h[..., self.lower_size :]) if self.lower_size else (h, h)
        return torch.cat([self.latent(upper), self.lower_latent(lower)], -1)

    def log_prior(self, h: Tensor) -> Tensor:
        """Return the logarithms [N, K] of the mixture weights, which depend on the last layer's state in ``h`` only."""
        return self.prior(self._rows(h)[:, self.lower_size :]).log_softmax(1)  # type: ignore[no-any-return]
