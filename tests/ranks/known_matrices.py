"""Matrices whose spectra are known, for the tests of ranks."""

import math
from collections.abc import Iterator
from functools import cache

import numpy as np
from softmax_bottleneck.ranks.spectrum import FLOAT32_EPS


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def with_spectrum(sigma: np.ndarray, m: int, n: int, seed: int = 0) -> np.ndarray:
    """Return an m x n matrix with these singular values (the others are zero)."""
    left, right = (np.linalg.qr(rng(s).normal(size=(rows, len(sigma))))[0] for rows, s in ((m, seed), (n, seed + 1)))
    return (left * sigma) @ right.T


def in_chunks(matrix: np.ndarray, rows: int = 97) -> Iterator[np.ndarray]:
    return (matrix[start : start + rows] for start in range(0, len(matrix), rows))


def log_probabilities(m: int, n: int, d: int) -> tuple[np.ndarray, ...]:
    """Return factors of a softmax layer, log Z, and its log-probabilities by the plain formula, in float64."""
    r = rng()
    h, w, b = r.normal(size=(m, d)), r.normal(size=(n, d)), r.normal(size=n)
    logits = h @ w.T + b
    log_z = np.log(np.exp(logits).sum(1))
    return h, w, b, log_z, logits - log_z[:, None]


@cache
def crowded_matrix() -> np.ndarray:
    """Return 2,000 x 600 float32 numbers with 200 singular values within 10 % of the Press tolerance."""
    tolerance = 0.5 * math.sqrt(2601) * FLOAT32_EPS * 1e4
    crowd = tolerance * np.linspace(0.9, 1.1, 200)
    large, small = np.geomspace(300, 2 * tolerance, 199), tolerance * np.geomspace(0.5, 1e-3, 100)
    sigma = np.sort(np.concatenate([[1e4], large, crowd, small]))[::-1]
    return with_spectrum(sigma, 2000, 600).astype(np.float32)
