"""SigSoftmax: P = exp(l) sigmoid(l) / sum exp(l) sigmoid(l), for logits l  (Kanai 2018, eq. 11, 12).

This is softmax(g(l)) with the pointwise function g(l) = 2 l - ln(1 + exp(l)). The code computes g with a softplus,
because the product exp(l) sigmoid(l) overflows in float32 from l = 89.
"""

from __future__ import annotations

from softmax_bottleneck.heads.gss import GeneralisedSigSoftmax

NAME = "sigsoftmax"
LABEL = "SigSoftmax"
OPTIONS: dict[str, object] = {}


class SigSoftmax(GeneralisedSigSoftmax):
    """The pointwise function g of SigSoftmax: the g of ``gss.py`` with c = 0 and k = 2."""

    def __init__(self) -> None:
        super().__init__(c=0.0, k=2.0)
