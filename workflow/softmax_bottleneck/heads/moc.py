"""Mixture of contexts: P = softmax(g(W (sum_k prior_k latent_k) + b))  (Yang 2018).

W [V, E] and b [V] are the decoder, and ``heads/mixture.py`` defines prior_k and latent_k. g is the pointwise function
of the head that the option ``pointwise`` names. The head mos has the same trained parameters, but mixes probabilities
after the softmax. This head mixes context vectors before the decoder, so that the logits have low rank if g is the
identity.
Numerical stability: log_softmax replaces the published ln(softmax), which is -inf if a probability underflows.

Shapes: N = T x B tokens (T time steps of B sequences), D context width, E embedding width, V vocabulary.
"""

import torch
from torch import Tensor

from softmax_bottleneck.heads.base import SingleSoftmaxHead
from softmax_bottleneck.heads.declaration import Declaration, MixtureOptions
from softmax_bottleneck.heads.mixture import MixtureHead

HEAD = Declaration(
    name="moc", label="MoC", family="mixture", options=MixtureOptions, colour="#56b4e9", is_log_linear=True
)


class MoC(SingleSoftmaxHead, MixtureHead):
    """The mixture-of-contexts head; the module's docstring has its equation."""

    declaration = HEAD

    def _contexts(self, h: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the mixed context vectors sum_k prior_k latent_k, [N, E]; ``generator`` draws dropout masks."""
        prior_N1K = self.log_prior(h).exp().unsqueeze(1)
        return torch.bmm(prior_N1K, self.latents(h, generator)).squeeze(1)
