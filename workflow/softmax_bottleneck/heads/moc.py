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

from softmax_bottleneck.heads.declaration import Declaration, MixtureOptions
from softmax_bottleneck.heads.mixture import MixtureHead
from softmax_bottleneck.heads.row_nll import RowNLL, row_nll

HEAD = Declaration(
    name="moc", label="MoC", family="mixture", options=MixtureOptions, colour="#56b4e9", is_log_linear=True
)


class MoC(MixtureHead):
    """The mixture-of-contexts head; the module's docstring has its equation."""

    declaration = HEAD

    def _losses(self, h: Tensor, target_N: Tensor, generator: torch.Generator | None) -> RowNLL:
        mixed_NE, weight_VE, bias_V = self._mixed(h, generator), self.decoder.weight, self.decoder.bias
        return row_nll(mixed_NE, weight_VE, bias_V, target_N, self.pointwise, precision=self.precision)

    def _log_probs(self, h: Tensor, generator: torch.Generator | None) -> Tensor:
        scores_NV: Tensor = self.pointwise(self.decoder(self._mixed(h, generator)))
        return scores_NV.log_softmax(1)

    @property
    def is_log_linear(self) -> bool:
        """True if the pointwise function g is the identity; then log_probs(h) = contexts(h) W^T + b - logZ."""
        return self.pointwise.is_identity

    def contexts(self, h: Tensor) -> Tensor:
        """Return the mixed context vectors sum_k prior_k latent_k, [N, E], for ``h`` [N, D] or [T, B, D].

        Raises:
            UserError: g is not the identity, so that the head is not log-linear.
        """
        return self._mixed(h, None) if self.is_log_linear else super().contexts(h)

    def _mixed(self, h: Tensor, generator: torch.Generator | None) -> Tensor:
        prior_N1K = self.log_prior(h).exp().unsqueeze(1)
        return torch.bmm(prior_N1K, self.latents(h, generator)).squeeze(1)
