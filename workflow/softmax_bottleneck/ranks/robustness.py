"""How the Press rank and the effective rank answer to rounding and to noise (Parthiban et al. 2021, SM section 5).

Two experiments on a square matrix of rank 10. Rebuilding: take it apart and put it together ten times (SM Table 14).
Noise: add independent N(0, c/n^2) numbers to all elements of the diagonal matrix of singular values (SM Tables 15, 16).

The published ranks follow from the quarter-circle law when the largest singular value is 1, c/n^2 is a variance and
the tolerance is that of float64, which the paper does not say: `predicted_rank` gives them to within 3.

Suffixes: N rows and columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.ranks.counts import effective_rank, press_rank
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.seeds import derive

Array = NDArray[np.float64]
Say = Callable[[str], None]
Row = dict[str, str | int | float]

PAPER_SIZE = 10_000
TRUE_RANK = 10
ROUNDS = 10
EPSILON = float(np.finfo(np.float64).eps)
EFFECTIVE = ("1e-3", "1e-4", "1e-5")
NOISE = (
    "1e-2",
    "1e-4",
    "1e-8",
    "1e-16",
    "1e-20",
    "1e-21",
    "1e-22",
    "1e-23",
    "1e-24",
    "1e-25",
    "1e-26",
    "1e-28",
    "1e-32",
)
NOISE_EFFECTIVE = ("1e-20", "1e-21", "1e-22", "1e-23", "1e-24", "1e-25")
SMALLEST_SIZE, LARGEST_SIZE = 20, 20_000
# Squares of the ten singular values. They are not published; these have the published effective ranks, 7, 10 and 10.
SQUARES = (1.0, 0.02, 0.01, 0.005, 0.003, 0.0015, 0.0006, 0.0002, 0.00018, 0.00015)


def spectrum_of(size: int) -> Array:
    """The singular values [N] of the matrix, descending from 1; all after the tenth are 0."""
    sigma_N = np.zeros(size)
    sigma_N[:TRUE_RANK] = np.sqrt(SQUARES)
    return sigma_N


def predicted_rank(c: float, size: int) -> int:
    """Press rank that the quarter-circle law predicts under noise of variance c/n^2 (size n, largest value 1).

    The singular values of the noise, divided by sqrt(c/n), have density sqrt(4 - x^2)/pi on [0, 2]; those above the
    tolerance count, and the ten true ones are always above it.
    """
    tolerance = 0.5 * math.sqrt(2 * size + 1) * EPSILON
    x = min(2.0, tolerance / math.sqrt(c / size))
    below = (x / 2 * math.sqrt(4 - x * x) + 2 * math.asin(x / 2)) / math.pi
    return max(TRUE_RANK, round(size * (1 - below)))


def rows(options: Mapping[str, Any], say: Say) -> Iterator[Row]:
    """Tidy rows of one experiment: options `synthetic` (rebuild, noise, noise-effective) and `size`.

    Raises:
        UserError: the size is not allowed.
    """
    size = options.get("size", 1000)
    if not isinstance(size, int) or not SMALLEST_SIZE <= size <= LARGEST_SIZE:
        raise UserError(f"robustness: size is {size!r}, expected a whole number from {SMALLEST_SIZE} to {LARGEST_SIZE}")
    yield from EXPERIMENTS[options["synthetic"]](size, say)


def _row(table: str, condition: str, metric: str, value: float) -> Row:
    return {"table": table, "model": "mos-nt", "condition": condition, "metric": metric, "value": value, "seed": 0}


# --- rebuilding -----------------------------------------------------------------------------------------------------
def _rebuild(size: int, say: Say) -> Iterator[Row]:
    rng = np.random.default_rng(derive(0, "robustness", "rebuild"))
    frames = [np.linalg.qr(rng.standard_normal((size, TRUE_RANK)))[0] for _ in range(2)]
    first_NN = (frames[0] * spectrum_of(size)[:TRUE_RANK]) @ frames[1].T
    matrix_NN = first_NN
    for number in range(1, ROUNDS + 1):
        left_NN, sigma_N, right_NN = np.linalg.svd(matrix_NN)
        rank = press_rank(sigma_N, size, size, EPSILON).rank
        matrix_NN = (left_NN * sigma_N) @ right_NN
        error = float(np.sum((matrix_NN - first_NN) ** 2) / np.sum(first_NN**2))
        where = ("SM Table 14", f"iteration={number};size={size}")
        yield _row(*where, "rank_press", rank)
        yield _row(*where, "reconstruction_error", error)
        say(f"rebuilding {size} x {size}: round {number} of {ROUNDS}, rank {rank}")


# --- noise ----------------------------------------------------------------------------------------------------------
def _noise(size: int, say: Say) -> Iterator[Row]:
    yield from _noisy("SM Table 15", NOISE, size, say, effective=False)


def _noise_effective(size: int, say: Say) -> Iterator[Row]:
    yield from _noisy("SM Table 16", NOISE_EFFECTIVE, size, say, effective=True)


def _noisy(table: str, levels: tuple[str, ...], size: int, say: Say, *, effective: bool) -> Iterator[Row]:
    rng = np.random.default_rng(derive(0, "robustness", "noise"))
    noise_NN = rng.standard_normal((size, size))
    for c in levels:
        matrix_NN = np.diag(spectrum_of(size)) + noise_NN * (math.sqrt(float(c)) / size)
        sigma_N = np.linalg.svd(matrix_NN, compute_uv=False)
        rank = press_rank(sigma_N, size, size, EPSILON).rank
        where = (table, f"c={c};size={size}")
        yield _row(*where, "rank_press", rank)
        yield _row(*where, "rank_predicted", predicted_rank(float(c), size))
        yield _row(*where, "rank_predicted_paper", predicted_rank(float(c), PAPER_SIZE))
        for epsilon in EFFECTIVE if effective else ():
            yield _row(*where, f"rank_eff_{epsilon}", effective_rank(sigma_N, float(epsilon)))
        say(f"noise on {size} x {size}: c = {c}, rank {rank}")


EXPERIMENTS: Mapping[str, Callable[[int, Say], Iterator[Row]]] = {
    "rebuild": _rebuild,
    "noise": _noise,
    "noise-effective": _noise_effective,
}
