"""Measures of saturation: the extent to which an output layer uses its width.

The measures come from Godey, Villemonte de la Clergerie and Sagot 2024, "Why do small language models underperform?
Studying language model saturation via the softmax bottleneck". Suffixes: N vectors, D width.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from softmax_bottleneck.ranks.counts import sound
from softmax_bottleneck.ranks.gram import BLOCK
from softmax_bottleneck.ranks.spectrum import Floats, refuse_empty, refuse_non_finite
from softmax_bottleneck.store.errors import DataError


def singular_value_entropy(sigma: ArrayLike) -> float:
    """Return the entropy, in nats, of the singular values divided by their sum.

    The entropy is 0 at rank 1, and ln(count) if all singular values are equal, where count is their number. Singular
    values of zero belong to the count but add nothing to the entropy. The paper uses ln(count) minus this entropy
    instead, and reports that this divergence jumps when a model saturates (see `singular_value_divergence`).

    Raises:
        DataError: a value is negative, nan or infinite, or all are zero.
    """
    values = sound(sigma)
    total = float(values.sum())
    if not total > 0:
        raise DataError("all singular values are zero: a matrix of zeros has no distribution of them")
    shares = values / total
    shares = shares[shares > 0]  # after the division, which may underflow
    return float(-(shares * np.log(shares)).sum())


def singular_value_divergence(sigma: ArrayLike) -> float:
    """Return the KL divergence, in nats, of the normalised singular values from the uniform distribution.

    The divergence is 0 if all directions are used equally, and ln(count) at rank 1.

    Raises:
        DataError: a value is negative, nan or infinite, or all are zero.
    """
    return math.log(len(sound(sigma))) - singular_value_entropy(sigma)


def anisotropy(vectors_ND: Floats) -> float:
    """Return the mean cosine over all pairs of different vectors (Ethayarajh 2019, section 3).

    The mean is about 0 for isotropic vectors and 1 if all vectors have the same direction. It is computed in one pass
    as (|s|^2 - N) / (N (N - 1)), where s is the sum of the N vectors after scaling each to unit length.

    Raises:
        DataError: there are fewer than two vectors, or a vector is zero or not finite.
    """
    refuse_empty(*vectors_ND.shape)
    refuse_non_finite(vectors_ND, "the vectors")
    count, total_D = len(vectors_ND), np.zeros(vectors_ND.shape[1])
    if count < 2:
        raise DataError("there is one vector: an angle needs two vectors that are not zero")
    for start in range(0, count, BLOCK):
        block = vectors_ND[start : start + BLOCK].astype(np.float64)
        length_R1 = np.linalg.norm(block, axis=1, keepdims=True)
        if not length_R1.all():
            raise DataError(f"vector {start + int(np.argmin(length_R1))} is zero: an angle needs two that are not")
        total_D += (block / length_R1).sum(0)
    return float((total_D @ total_D - count) / (count * (count - 1)))
