"""Response of the Press rank and the effective rank to rounding and noise (Parthiban et al. 2021, SM section 5).

Both computations start from a run's log-probability matrix over the first n test contexts, truncated to rank ten.

* Rebuilding (SM Table 14): decompose the matrix by SVD and multiply the factors again, ten times.
* Noise (SM Tables 15 and 16): add independent N(0, c/n^2) numbers to all entries of the n x n diagonal matrix of
  singular values, for several c.

The paper's Algorithm 1 rebuilds only S, the diagonal matrix of singular values. The error of S does not grow after
the first round, but the error in the paper's table grows in every round, like the error of the whole matrix U S V^T.
Therefore both matrices are rebuilt and reported here.

The function `predicted_rank` predicts the Press rank under noise by the quarter-circle law. The published ranks agree
with this prediction to within 3 if three conditions hold, none of which the paper states: the matrix is scaled so that
its largest singular value is 1, c/n^2 is a variance, and the tolerance of the Press rank is computed with float64's
epsilon.

Suffixes: N contexts, V words, K = 10 singular values kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import svds

from softmax_bottleneck.ranks.counts import effective_rank, press_rank
from softmax_bottleneck.ranks.spectra import gram_singular_values
from softmax_bottleneck.store.seeds import derive

Say = Callable[[str], None]
Row = dict[str, str | int | float]

PAPER_SIZE = 10_000  # number of contexts in the paper
TRUE_RANK = 10  # rank of the truncated matrix
ROUNDS = 10
EPSILON = float(np.finfo(np.float64).eps)
EFFECTIVE = ("1e-3", "1e-4", "1e-5")  # epsilons of effective ranks; NOISE and NOISE_EFFECTIVE are values of c
NOISE = tuple(f"1e-{n}" for n in (2, 4, 8, 16, 20, 21, 22, 23, 24, 25, 26, 28, 32))
NOISE_EFFECTIVE = tuple(f"1e-{n}" for n in range(20, 26))


@dataclass(frozen=True)
class Truncated:
    """The ten largest singular values of a matrix of log-probabilities, with their singular vectors.

    Attributes:
        left_NK, sigma_K, right_KV: factors of the truncated decomposition, in descending order of singular values.
        press_rank: Press rank of the matrix before truncation, with float32's epsilon.
        of: the run's dataset and model, as `dataset/model`. The `condition` of every result row contains this text.
    """

    left_NK: NDArray[np.floating[Any]]
    sigma_K: NDArray[np.floating[Any]]
    right_KV: NDArray[np.floating[Any]]
    press_rank: int
    of: str

    @classmethod
    def of_matrix(cls, log_p_NV: NDArray[np.float32], of: str) -> Truncated:
        """Return the rank-ten truncation of `log_p_NV`, which must have more than ten rows and columns.

        `of` is the run's dataset and model, as `dataset/model`. The method is Lanczos iteration from a fixed start
        vector, so that the result is reproducible.
        """
        matrix_NV = np.asarray(log_p_NV, dtype=np.float64)
        start = np.ones(min(matrix_NV.shape))
        left_NK, sigma_K, right_KV = svds(matrix_NV, k=TRUE_RANK, v0=start)
        contexts, words = log_p_NV.shape
        rank = press_rank(gram_singular_values([log_p_NV], words).sigma, contexts, words).rank
        return cls(left_NK[:, ::-1], sigma_K[::-1], right_KV[::-1], rank, of)


def predicted_rank(c: float, size: int) -> int:
    """Return the Press rank that the quarter-circle law predicts under noise of variance c/n^2, with n = `size`.

    The matrix without noise has n rows and n columns, and its largest singular value is 1. The singular values of the
    noise, divided by sqrt(c/n), have the density sqrt(4 - x^2)/pi on [0, 2]. The prediction is n times the share of
    this distribution above the Press tolerance with float64's epsilon. It is at least ten, because the ten original
    singular values lie above the tolerance.
    """
    tolerance = 0.5 * math.sqrt(2 * size + 1) * EPSILON
    x = min(2.0, tolerance / math.sqrt(c / size))
    below = (x / 2 * math.sqrt(4 - x * x) + 2 * math.asin(x / 2)) / math.pi
    return max(TRUE_RANK, round(size * (1 - below)))


def _row(table: str, condition: str, metric: str, value: float) -> Row:
    """Return a row of results as a dict, with seed 0 and the paper's model: MoS trained with NT-ASGD (`mos-nt`)."""
    return {"table": table, "model": "mos-nt", "condition": condition, "metric": metric, "value": value, "seed": 0}


# --- rebuilding -----------------------------------------------------------------------------------------------------
def _rebuild(matrix: Truncated, say: Say) -> Iterator[Row]:
    """Rebuild the matrix ten times, and yield the Press rank and the error of every round as result rows.

    A round decomposes the matrix by SVD and multiplies the factors. The first row is the Press rank before truncation.
    Then come the rows of the whole matrix U S V^T. The last rows are those of the diagonal matrix S, which the paper's
    Algorithm 1 rebuilds; their `condition` contains `as printed`. The error of a rebuilt matrix B is |B - A|^2 / |A|^2
    in Frobenius norms, where A is the matrix before the first round.
    """
    size, table = len(matrix.left_NK), "SM Table 14"
    where = f"size={size};of={matrix.of}"
    yield _row(table, f"first {size} test contexts;{where}", "rank_press", matrix.press_rank)
    whole_NV = (matrix.left_NK * matrix.sigma_K) @ matrix.right_KV
    diagonal_NN = np.zeros((size, size))
    np.fill_diagonal(diagonal_NN, np.append(matrix.sigma_K, np.zeros(size - TRUE_RANK)))
    for words, first in (("", whole_NV), (";as printed", diagonal_NN)):
        (rows, columns), rebuilt = first.shape, first
        for number in range(1, ROUNDS + 1):
            left, sigma, right = np.linalg.svd(rebuilt, full_matrices=False)
            rank = press_rank(sigma, rows, columns, EPSILON).rank
            rebuilt = (left * sigma) @ right
            error = float(np.sum((rebuilt - first) ** 2) / np.sum(first**2))
            yield _row(table, f"iteration={number}{words};{where}", "rank_press", rank)
            yield _row(table, f"iteration={number}{words};{where}", "reconstruction_error", error)
            say(f"rebuilding {rows} x {columns}: round {number} of {ROUNDS}, rank {rank}")


# --- noise ----------------------------------------------------------------------------------------------------------
def _noise(
    matrix: Truncated, say: Say, *, table: str, levels: tuple[str, ...], effective: tuple[str, ...]
) -> Iterator[Row]:
    """Yield result rows with the ranks of the n x n diagonal matrix of singular values under noise, for several c.

    The matrix is scaled so that its largest singular value is 1. One noise matrix is drawn, and multiplied by sqrt(c)/n
    for each c. The metrics are the Press rank (`rank_press`); the Press rank that the quarter-circle law predicts for n
    contexts (`rank_predicted`) and for the paper's 10,000 contexts (`rank_predicted_paper`); and the effective ranks
    (such as `rank_eff_1e-3`).

    Args:
        matrix: the truncated matrix, which has n rows.
        say: prints one line of progress.
        table: the paper's table to which the rows belong.
        levels: the values of c as text, such as "1e-20".
        effective: the epsilons of the effective ranks as text, such as "1e-3".
    """
    rng = np.random.default_rng(derive(0, "robustness", "noise"))
    size = len(matrix.left_NK)
    noise_NN = rng.standard_normal((size, size))
    for c in levels:
        noisy_NN = noise_NN * (math.sqrt(float(c)) / size)
        noisy_NN[np.arange(TRUE_RANK), np.arange(TRUE_RANK)] += matrix.sigma_K / matrix.sigma_K[0]
        sigma_N = np.linalg.svd(noisy_NN, compute_uv=False)
        rank = press_rank(sigma_N, size, size, EPSILON).rank
        where = (table, f"c={c};size={size};of={matrix.of}")
        yield _row(*where, "rank_press", rank)
        yield _row(*where, "rank_predicted", predicted_rank(float(c), size))
        yield _row(*where, "rank_predicted_paper", predicted_rank(float(c), PAPER_SIZE))
        for epsilon in effective:
            yield _row(*where, f"rank_eff_{epsilon}", effective_rank(sigma_N, float(epsilon)))
        say(f"noise on {size} x {size}: c = {c}, rank {rank}")


# The option `synthetic` of an experiment -> a function (matrix, say) that yields a row per number. A row is a dict with
# the keys table, model, condition, metric, value and seed; `say` prints a line of progress.
EXPERIMENTS: Mapping[str, Callable[[Truncated, Say], Iterator[Row]]] = {
    "rebuild": _rebuild,
    "noise": partial(_noise, table="SM Table 15", levels=NOISE, effective=()),
    "noise-effective": partial(_noise, table="SM Table 16", levels=NOISE_EFFECTIVE, effective=EFFECTIVE),
}
