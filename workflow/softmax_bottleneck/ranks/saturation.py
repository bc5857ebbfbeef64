"""Measures of saturation: the extent to which an output layer uses its width.

The measures come from Godey, Villemonte de la Clergerie and Sagot 2024, "Why do small language models underperform?
Studying language model saturation via the softmax bottleneck". `sigma` is the list of all singular values of a matrix.

Suffixes: N vectors, D width.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from softmax_bottleneck.ranks.counts import sound
from softmax_bottleneck.ranks.gram import BLOCK
from softmax_bottleneck.ranks.spectrum import Floats, refuse_empty, refuse_non_finite
from softmax_bottleneck.store.errors import DataError


def singular_value_entropy(sigma: ArrayLike) -> float:
    """Return the entropy -sum(p ln p), in nats, where p is the singular values divided by their sum.

    The entropy lies between 0, for rank 1, and ln(n), if all n singular values are equal. A singular value of zero
    adds nothing to the entropy. The paper reports ln(n) minus the entropy instead (`singular_value_divergence`).

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
    """Return KL(p || uniform), in nats, where p is the singular values divided by their sum.

    The divergence is 0 if all n singular values are equal, and ln(n) at rank 1. The paper reports that the divergence
    jumps when a model saturates.

    Raises:
        DataError: a value is negative, nan or infinite, or all are zero.
    """
    return math.log(len(sound(sigma))) - singular_value_entropy(sigma)


def anisotropy(vectors_ND: Floats) -> float:
    """Return the mean cosine over all pairs of two of the N vectors (Ethayarajh 2019, section 3).

    The mean is about 0 for isotropic vectors and 1 if all vectors have the same direction. With s as the sum of the
    vectors scaled to unit length, the mean is (|s|^2 - N) / (N (N - 1)), which needs one pass over the vectors.

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
