"""Known next-word distributions of many contexts, to which output heads are fitted.

There are two kinds. In Ganea et al. 2019, section 5.1, the distribution of every context is sampled from a symmetric
Dirichlet distribution, eq. 15:

    P*(.|c) ~ Dir(alpha, ..., alpha) over M words,   c = 1..N, all contexts equally likely.

In a synthetic language (corpora/language.py), the distributions are those of all contexts that can occur, weighted by
the stationary probabilities of the contexts. The matrix of their log-probabilities has an exactly known rank.

Shapes: N contexts, M words, R rows (contexts) of a block.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from softmax_bottleneck.corpora.language import make_language
from softmax_bottleneck.ranks import Spectrum, gram_singular_values
from softmax_bottleneck.store.seeds import derive
from softmax_bottleneck.study.languages import LanguageSettings

Floats = NDArray[np.float32]
Array = NDArray[np.float64]

BLOCK = 1000  # contexts sampled from one random stream, so that a larger N extends a smaller one


@dataclass(frozen=True, eq=False)
class KnownDistributions:
    """The true next-word distributions P* of N contexts, and the probabilities of these contexts.

    Attributes:
        p_NM: P*; every row sums to one.
        weight_N: probability of every context; all sum to one.
        facts: further metrics of the distributions, such as the exact rank of log P* for a synthetic language.
    """

    p_NM: Floats
    weight_N: Array
    facts: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def joint_NM(self) -> Array:
        """The joint probability of (context, word)."""
        joint_NM: Array = self.weight_N[:, None] * self.p_NM
        return joint_NM

    @cached_property
    def entropy_N(self) -> Array:
        """The entropy of every distribution in nats; a word of probability zero adds nothing."""
        return np.concatenate([-special.xlogy(part := block.astype(np.float64), part).sum(1) for block in self.blocks])

    @property
    def blocks(self) -> list[Floats]:
        """The rows of P* in blocks, so that a sum in float64 converts one block at a time."""
        return [self.p_NM[start : start + BLOCK] for start in range(0, len(self.p_NM), BLOCK)]

    @property
    def entropy_nats(self) -> float:
        """The mean entropy over contexts: the lowest cross-entropy of any model."""
        return float(self.weight_N @ self.entropy_N)

    @cached_property
    def no_context_nats(self) -> float:
        """The mean KL(P*||Q), in nats, of the best model Q that does not see the context.

        The best Q is the weighted mean of P* over contexts. No model can improve on Q by more than this KL.
        """
        mean_M = np.zeros(self.p_NM.shape[1])
        for start, block in zip(range(0, len(self.p_NM), BLOCK), self.blocks, strict=True):
            mean_M += self.weight_N[start : start + BLOCK] @ block.astype(np.float64)
        return float(-special.xlogy(mean_M, mean_M).sum()) - self.entropy_nats


def make_distributions(kind: str, law: Mapping[str, Any], seed: int) -> KnownDistributions:
    """Return the distributions of kind `dirichlet` or `language` with the parameters `law`."""
    if kind == "dirichlet":
        return dirichlet(law["alpha"], law["words"], law["contexts"], seed)
    return language(LanguageSettings.from_mapping({**law, "seed": seed}))


def dirichlet(alpha: float, words: int, contexts: int, seed: int) -> KnownDistributions:
    """Sample N distributions from the symmetric Dirichlet distribution over M words (Ganea et al. 2019, eq. 15).

    N is `contexts` and M is `words`.
    """
    p_NM = np.empty((contexts, words), np.float32)
    for start in range(0, contexts, BLOCK):
        rng = np.random.default_rng(derive(seed, "dirichlet", repr(float(alpha)), words, start))
        p_NM[start : start + BLOCK] = rng.dirichlet(np.full(words, alpha), min(BLOCK, contexts - start))
    return KnownDistributions(
        p_NM, np.full(contexts, 1.0 / contexts), {"kl_uniform_nats": dirichlet_divergence(alpha, words)}
    )


def dirichlet_divergence(alpha: float, words: int) -> float:
    """Return the expected KL(P*||uniform) of a sample P*, in nats: ln M - (psi(M alpha + 1) - psi(alpha + 1)).

    The bracket is the expected entropy of a symmetric Dirichlet over M = `words` words. With many contexts, no model
    without context does better than the uniform distribution.
    """
    return math.log(words) - float(special.digamma(words * alpha + 1) - special.digamma(alpha + 1))


def language(settings: LanguageSettings) -> KnownDistributions:
    """Return the true distribution of every reachable context of a synthetic language, with stationary weights."""
    truth = make_language(settings)
    reachable_N = truth.reachable_C
    log_p_NM = truth.log_p_CV[reachable_N]
    weight_N = truth.weight_C[reachable_N]
    facts = {"rank_truth": float(truth.rank), "entropy_ppl": math.exp(truth.entropy_nats)}
    return KnownDistributions(np.exp(log_p_NM).astype(np.float32), weight_N / weight_N.sum(), facts)


def fresh_sample(known: KnownDistributions, size: int, seed: int, update: int) -> Floats:
    """Return relative counts [N, M] of an independent sample of (context, word) pairs, a new sample for every update.

    The number of words is Poisson with mean `size`, which makes the counts of all pairs independent. The sample depends
    on (seed, update) only, so that resumed fits and fits of other heads see the same samples.
    """
    rng = np.random.default_rng(derive(seed, "fresh sample", update))
    counts_NM: Floats = rng.poisson(known.joint_NM * size).astype(np.float32)
    counts_NM /= size
    return counts_NM


def spectrum_of(known: KnownDistributions) -> Spectrum:
    """Return the singular values of the matrix of log P*; all probabilities must be positive."""
    return gram_singular_values([np.log(block.astype(np.float64)) for block in known.blocks], known.p_NM.shape[1])


def squared_error_bound(sigma: Array, rank: int) -> float:
    """Return the least squared Frobenius distance of log P* from a matrix of the given rank.

    The distance is the sum of sigma_i^2 over i > rank, where `sigma` holds the singular values of log P* in descending
    order (theorem of Eckart, Young and Mirsky). The log-probabilities of a softmax of width D have rank at most D + 1,
    or D + 2 with a bias. For a softmax, the bound is theorem 1 of Ganea et al. 2019, which prints a square root around
    the sum but not on the distance.
    """
    return float((np.asarray(sigma)[rank:] ** 2).sum())
