"""Mixture of softmaxes: P = sum_k prior_k softmax(g(W latent_k + b)) + floor  (Yang 2018; Kanai 2018, eq. 4).

W and b are the decoder, and ``heads/mixture.py`` defines latent_k and prior_k. g is the pointwise function of the head
that the option ``pointwise`` names, such as softmax (g is the identity; the default). With sigsoftmax for ``pointwise``
and ``prior``, this head is MoSS (Kanai 2018, eq. 19). With lms-plif for ``pointwise``, it is MoS-PLIF (Ganea 2019). The
floor is the option ``probability_floor``, a number added to every probability: 0 by default (Parthiban 2021), or 1e-8
(Yang 2018).
Numerical stability: the K terms are added in log space (logaddexp), so that nothing underflows.
Shapes: N = T x B tokens, D context width, K components, E embedding width, V vocabulary.
"""

import math
from typing import Any

import torch
from torch import Tensor

from softmax_bottleneck.heads.declaration import Declaration, MixtureOptions, NotNegative
from softmax_bottleneck.heads.mixture import MixtureHead
from softmax_bottleneck.heads.row_nll import RowNLL, mixture_nll
from softmax_bottleneck.store import schema


@schema.section
class Options(MixtureOptions):
    """The options of the head: those of all mixtures, and a number added to every probability inside the logarithm.

    The added number is 1e-8 in Yang's code; it changes the rank.
    """

    probability_floor: NotNegative = 0.0


HEAD = Declaration(name="mos", label="MoS", family="mixture", options=Options, colour="#1f6fc9")


class MoS(MixtureHead):
    """The mixture-of-softmaxes head; the module's docstring has its equation."""

    declaration = HEAD

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.probability_floor = self.options.probability_floor
        self.rows_per_token = self.components

    def _losses(self, h: Tensor, target_N: Tensor, generator: torch.Generator | None) -> RowNLL:
        return mixture_nll(
            self.latents(h, generator),
            self.log_prior(h),
            self.decoder.weight,
            self.decoder.bias,
            target_N,
            self.pointwise,
            probability_floor=self.probability_floor,
            precision=self.precision,
        )

    def _log_probs(self, h: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return ln P(.|context), [N, V] nats.

        If ``probability_floor`` is positive, the probabilities of a token sum to more than one. Components are added
        one at a time, so that no array is larger than [N, V].
        """
        latent_NKE, log_prior_NK = self.latents(h, generator), self.log_prior(h)
        log_p_NV = self._component(latent_NKE, log_prior_NK, 0)
        for k in range(1, self.components):
            log_p_NV = torch.logaddexp(log_p_NV, self._component(latent_NKE, log_prior_NK, k))
        if self.probability_floor > 0.0:
            log_p_NV = torch.logaddexp(log_p_NV, torch.full_like(log_p_NV[:1, :1], math.log(self.probability_floor)))
        return log_p_NV

    def _component(self, latent_NKE: Tensor, log_prior_NK: Tensor, k: int) -> Tensor:
        scores_NV: Tensor = self.pointwise(self.decoder(latent_NKE[:, k]))
        return scores_NV.log_softmax(1) + log_prior_NK[:, k : k + 1]
