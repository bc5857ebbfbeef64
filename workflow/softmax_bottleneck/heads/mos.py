"""Mixture of softmaxes: P = sum_k prior_k softmax(g(W latent_k + b)) + floor  (Yang 2018; Kanai 2018, eq. 4).

W and b are the decoder, and ``heads/mixture.py`` defines latent_k and prior_k. g is the pointwise function of the head
that the option ``pointwise`` names, such as softmax (g is the identity; the default). With sigsoftmax for ``pointwise``
and ``prior``, this head is MoSS (Kanai 2018, eq. 19). With lms-plif for ``pointwise``, it is MoS-PLIF (Ganea 2019). The
floor is the option ``probability_floor``, a number added to every probability: 0 by default (Parthiban 2021), or 1e-8
(Yang 2018).
Numerical stability: the K terms are added in log space (logaddexp), so that nothing underflows.
Shapes: N = T x B tokens, D context width, K components, E embedding width, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from softmax_bottleneck.heads.mixture import MixtureHead
from softmax_bottleneck.heads.row_nll import RowNLL, mixture_nll

NAME = "mos"
LABEL = "MoS"
OPTIONS = {
    "components": {
        "type": "integer",
        "default": 15,
        "minimum": 1,
        "maximum": 4096,
        "description": "Softmaxes mixed, K.",
    },
    "dropout_latent": {
        "type": "number",
        "default": 0.29,
        "minimum": 0,
        "exclusiveMaximum": 1,
        "description": "Dropout of the latent context vectors (old name: dropoutl).",
    },
    "locked_dropout": {
        "type": "boolean",
        "default": True,
        "description": "Draw the latent dropout once per sequence, not at every time step.",
    },
    "prior": {
        "type": "string",
        "default": "softmax",
        "enum": ["softmax", "sigsoftmax"],
        "description": "How the mixture weights are normalised.",
    },
    "pointwise": {
        "type": "string",
        "default": "softmax",
        "description": "Name of the head whose pointwise function each component applies to its logits.",
    },
    "pointwise_options": {"type": "object", "default": {}, "description": "Options of that head."},
    "probability_floor": {
        "type": "number",
        "default": 0.0,
        "minimum": 0,
        "description": "Added to every probability inside the logarithm (Yang: 1e-8; 0 = none). It changes the rank.",
    },
}


class MixtureOfSoftmaxes(MixtureHead):
    """The mixture-of-softmaxes head; the module's docstring has its equation."""

    def __init__(self, *, probability_floor: float, **options: Any) -> None:
        super().__init__(**options)
        self.probability_floor = probability_floor
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
