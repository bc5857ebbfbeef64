"""The common part of the mixture heads (mos, moc, doc): K latent context vectors per token, and their weights.

    latent_k = dropout(tanh(U_k h + a_k)),   prior = softmax(q(M h))     (Yang 2018; Kanai 2018, section 2.3)

The function q is the identity or, with the option ``prior: sigsoftmax``, the pointwise function of SigSoftmax.

Shapes: N = T x B tokens (T time steps of B sequences), D context width, K components, E embedding width.
"""

from typing import Any

import torch
from torch import Tensor, nn

from softmax_bottleneck import heads
from softmax_bottleneck.heads.base import Head


class MixtureHead(Head):
    """The base class of the mixture heads; one decoder turns all latent vectors into logits.

    A subclass has the options of ``MixtureOptions``. With ``locked_dropout``, all time steps of a sequence share the
    dropout mask; for ``h`` [N, D], all N tokens do.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        options = self.options
        self.components = options.components
        self.dropout_latent = options.dropout_latent
        self.locked_dropout = options.locked_dropout
        self._make_layers()
        self.reset_decoder()
        self.pointwise = heads.build_pointwise(options.pointwise, options.pointwise_options)
        self.prior_pointwise = heads.build_pointwise(options.prior, {})

    def _make_layers(self) -> None:
        """Create the layers that sample initial weights before the decoder does."""
        self.prior = nn.Linear(self.context_size, self.components, bias=False)
        self.latent = nn.Linear(self.context_size, self.components * self.embedding_size)

    def latents(self, h: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the latent context vectors [N, K, E] of ``h`` [N, D] or [T, B, D], with dropout in train mode.

        ``generator`` draws the dropout mask; None stands for torch's default generator.
        """
        latent = torch.tanh(self._preactivations(h))
        if self.training and self.dropout_latent > 0.0:
            latent = latent * self._mask(latent, generator)
        return latent.reshape(-1, self.components, self.embedding_size)

    def _preactivations(self, h: Tensor) -> Tensor:
        """Return U_k h + a_k of all components, [N, K E] or [T, B, K E]."""
        return self.latent(h)  # type: ignore[no-any-return]

    def log_prior(self, h: Tensor) -> Tensor:
        """Return the logarithms [N, K] of the mixture weights of each token, for ``h`` [N, D] or [T, B, D]."""
        return self.prior_pointwise(self.prior(self._rows(h))).log_softmax(1)

    def _mask(self, latent: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return a dropout mask for ``latent`` [T, B, K E] or [N, K E]: 1 / (1 - p) for kept numbers, else 0.

        p is the dropout probability. With ``locked_dropout``, the mask is shared along the first axis: its shape is
        then [1, B, K E] or [1, K E].
        """
        keep = 1.0 - self.dropout_latent
        shape = (1, *latent.shape[1:]) if self.locked_dropout else latent.shape
        return torch.empty(shape, dtype=latent.dtype, device=latent.device).bernoulli_(keep, generator=generator) / keep
