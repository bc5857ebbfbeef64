"""Preserved gradient: the share of the loss gradient that an output matrix passes to the body (Godey and Artzi 2026).

The loss of a context has a gradient g [V] with respect to the logits W h + b. The body (the network below the output
layer) receives only W^T g, which depends on the part of g in the D-dimensional column space of W. With P the projection
onto that space, P g is preserved and the rest of g is lost. Definitions of the preserved share differ, and this module
computes four:

    norm_mean      mean over contexts of |P g| / |g|
    energy_mean    mean over contexts of |P g|^2 / |g|^2
    energy_pooled  sum of |P g|^2 over sum of |g|^2: badly predicted contexts weigh more
    norm_pooled    square root of energy_pooled: a ratio of Frobenius norms over all gradients

The *suppressed* share is one minus the preserved share. The energy definitions give larger suppressed shares than the
norm definitions.

Suffixes: N contexts, R contexts of a block, V words, D width.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from softmax_bottleneck.ranks.spectra import triangle
from softmax_bottleneck.ranks.spectrum import Floats, refuse_non_finite
from softmax_bottleneck.store.errors import DataError

SMALLEST_SINGULAR = 1e-12  # singular values of W below this share of the largest one count as zero


@dataclass(frozen=True)
class GradientShare:
    """The preserved share of the gradient, by the four definitions in the module's docstring.

    Attributes:
        contexts: number of contexts whose gradient is not zero; the shares use only these contexts.
        norm_mean, energy_mean, norm_pooled, energy_pooled: the shares, from 0 to 1.
    """

    contexts: int
    norm_mean: float
    energy_mean: float
    norm_pooled: float
    energy_pooled: float


def gradient_share(gradients: Iterable[Floats], weight_VD: Floats) -> GradientShare:
    """Return the shares of the loss gradient that the output matrix preserves.

    Memory besides the weights: one block of gradients. Computation: 2 N V D flops and a QR decomposition of W.

    Args:
        gradients: gradients of the loss with respect to the logits, one row per context, in blocks [R, V] of any R.
        weight_VD: output matrix W.

    Raises:
        DataError: a number is nan or infinite, or every gradient is zero.
    """
    refuse_non_finite(weight_VD, "the weights")
    upper = triangle(lambda rows: weight_VD[rows].astype(np.float64), *weight_VD.shape)
    _, sigma, basis = np.linalg.svd(upper, full_matrices=False)
    kept = sigma > SMALLEST_SINGULAR * sigma[0]
    to_basis_DK = basis[kept].T / sigma[kept]  # W times this has orthonormal columns
    whole, passed = [], []
    for block_RV in gradients:
        refuse_non_finite(block_RV, "the gradients")
        whole.append(np.square(block_RV, dtype=np.float64).sum(1))
        passed.append(np.square((block_RV @ weight_VD).astype(np.float64) @ to_basis_DK).sum(1))
    whole_N, passed_N = np.concatenate([np.zeros(0), *whole]), np.concatenate([np.zeros(0), *passed])
    passed_N, whole_N = passed_N[whole_N > 0], whole_N[whole_N > 0]
    if not len(whole_N):
        raise DataError("no context has a gradient other than zero: there is nothing to pass")
    share_N, pooled = np.minimum(passed_N / whole_N, 1.0), min(float(passed_N.sum() / whole_N.sum()), 1.0)
    means = float(np.sqrt(share_N).mean()), float(share_N.mean())
    return GradientShare(len(whole_N), *means, math.sqrt(pooled), pooled)
