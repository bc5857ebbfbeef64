"""SigSoftmax: P = exp(l) sigmoid(l) / sum exp(l) sigmoid(l), g(l) = 2 l - ln(1 + exp(l))  (Kanai 2018, eq. 11, 12).

Numerical stability: a softplus replaces the literal product, which overflows (nan) in float32 from l = 89.
"""

from __future__ import annotations

from softmax_bottleneck.heads.gss import GeneralisedSigSoftmax

NAME = "sigsoftmax"
LABEL = "SigSoftmax"
OPTIONS: dict[str, object] = {}


class SigSoftmax(GeneralisedSigSoftmax):
    """The pointwise function g of SigSoftmax: that of the generalised SigSoftmax (``gss.py``) with c = 0 and k = 2."""

    def __init__(self) -> None:
        super().__init__(c=0.0, k=2.0)
