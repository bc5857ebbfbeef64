"""Linear monotonic softmax: g(l) = sum_i v_i sigmoid(u_i l + b_i) + b,  u_i, v_i >= 0  (Ganea 2019, eq. 14).

The sum has K sigmoids. u_i and v_i are the softplus of free parameters. The paper does not state their initial values.
Here the initial g is a smooth staircase that approximates the identity, plus a constant, on [-bound, bound]: the
sigmoids' centres have equal distances d, v_i = d and u_i = 2 / d. The slope of this g differs from 1 by at most 0.2 %,
except near the ends of the interval.
Numerical stability: g is bounded, hence finite for every finite logit.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from softmax_bottleneck.heads.base import PointwiseHead
from softmax_bottleneck.heads.declaration import Declaration, Positive
from softmax_bottleneck.heads.pointwise import Pointwise
from softmax_bottleneck.store import schema


@schema.section
class Options:
    """The options of the head.

    Attributes:
        units: number of sigmoids summed, K.
        bound: the function starts as the identity (but for an offset) on [-bound, bound].
    """

    units: schema.Positive = 16
    bound: Positive = 10.0


HEAD = Declaration(name="lms", label="LMS", family="learned pointwise", options=Options)


class MonotonicNetwork(Pointwise):
    """The pointwise function g of LMS (equation in the module's docstring), with 3 K + 1 trained parameters.

    Args:
        units: number K of sigmoids.
        bound: end of the interval [-bound, bound] on which the initial g approximates the identity plus a constant.
    """

    def __init__(self, units: int, bound: float) -> None:
        super().__init__()
        distance_K = torch.full((units,), 2.0 * bound / units)
        centre_K = (torch.arange(units) + 0.5) * distance_K - bound
        self.raw_u = nn.Parameter((2.0 / distance_K).expm1().log())
        self.raw_v = nn.Parameter(distance_K.expm1().log())
        self.inner_bias = nn.Parameter(-2.0 / distance_K * centre_K)
        self.outer_bias = nn.Parameter(torch.zeros(()))
        self.arrays = 7 + units  # autograd keeps every sigmoid of a chunk

    def forward(self, logits: Tensor) -> Tensor:
        """Return g of each logit (equation in the module's docstring)."""
        u_K, v_K = functional.softplus(self.raw_u), functional.softplus(self.raw_v)
        total = self.outer_bias.expand_as(logits)
        for u, v, bias in zip(u_K, v_K, self.inner_bias, strict=True):
            total = total + v * torch.sigmoid(u * logits + bias)
        return total


class LMS(PointwiseHead):
    """The head of this pointwise function."""

    declaration, function = HEAD, MonotonicNetwork
