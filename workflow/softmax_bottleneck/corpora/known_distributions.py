"""Distributions that output heads are fitted to: next words of many contexts, each with its own, known exactly.

Two sources. Ganea et al. 2019, section 5.1: every context's distribution is a draw from a symmetric Dirichlet, eq. 15,

    P*(.|c) ~ Dir(alpha, ..., alpha) over M words,   c = 1..N, all contexts equally likely.

And the known-truth language: the law of every reachable context, each as likely as in the long run, whose matrix of
log-probabilities has an exactly known rank.

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

BLOCK = 1000  # contexts drawn from one stream, so that a larger N adds to a smaller one


@dataclass(frozen=True, eq=False)
class KnownDistributions:
    """The distributions, how likely their contexts are, and what is known of them.

    Attributes:
        p_NM: P*, rows sum to one.
        weight_N: probability of every context, of sum one.
        facts: metrics of the distributions themselves.
    """

    p_NM: Floats
    weight_N: Array
    facts: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def joint_NM(self) -> Array:
        """Probability of (context, word)."""
        joint_NM: Array = self.weight_N[:, None] * self.p_NM
        return joint_NM

    @cached_property
    def entropy_N(self) -> Array:
        """Entropy of every law in nats; a word of probability zero adds nothing."""
        return np.concatenate([-special.xlogy(part := block.astype(np.float64), part).sum(1) for block in self.blocks])

    @property
    def blocks(self) -> list[Floats]:
        """The rows of P* in blocks, for sums in float64 that need no second matrix."""
        return [self.p_NM[start : start + BLOCK] for start in range(0, len(self.p_NM), BLOCK)]

    @property
    def entropy_nats(self) -> float:
        """Mean entropy: the least cross-entropy that any model can have."""
        return float(self.weight_N @ self.entropy_N)

    @cached_property
    def no_context_nats(self) -> float:
        """KL(P*||Q) of the best model that sees no context, Q the mean of them all: what there is to be learned."""
        mean_M = np.zeros(self.p_NM.shape[1])
        for start, block in zip(range(0, len(self.p_NM), BLOCK), self.blocks, strict=True):
            mean_M += self.weight_N[start : start + BLOCK] @ block.astype(np.float64)
        return float(-special.xlogy(mean_M, mean_M).sum()) - self.entropy_nats


def make_distributions(kind: str, law: Mapping[str, Any], seed: int) -> KnownDistributions:
    """The distributions of a unit of fits: of kind `dirichlet` or `language`, with the values that describe them."""
    if kind == "dirichlet":
        return dirichlet(law["alpha"], law["words"], law["contexts"], seed)
    return language(LanguageSettings.from_mapping({**law, "seed": seed}))


def dirichlet(alpha: float, words: int, contexts: int, seed: int) -> KnownDistributions:
    """N draws from the symmetric Dirichlet over M words (Ganea et al. 2019, eq. 15)."""
    p_NM = np.empty((contexts, words), np.float32)
    for start in range(0, contexts, BLOCK):
        rng = np.random.default_rng(derive(seed, "dirichlet", repr(float(alpha)), words, start))
        p_NM[start : start + BLOCK] = rng.dirichlet(np.full(words, alpha), min(BLOCK, contexts - start))
    return KnownDistributions(
        p_NM, np.full(contexts, 1.0 / contexts), {"kl_uniform_nats": dirichlet_divergence(alpha, words)}
    )


def dirichlet_divergence(alpha: float, words: int) -> float:
    """Expected KL(P*||uniform) in nats of a draw: ln M - (psi(M alpha + 1) - psi(alpha + 1)).

    The bracket is the expected entropy of a symmetric Dirichlet. With many contexts no model without context does
    better than the uniform one.
    """
    return math.log(words) - float(special.digamma(words * alpha + 1) - special.digamma(alpha + 1))


def language(settings: LanguageSettings) -> KnownDistributions:
    """The law of every reachable context of a known-truth language, weighted as in the long run."""
    truth = make_language(settings)
    reachable_N = truth.reachable_C
    log_p_NM = truth.log_p_CV[reachable_N]
    weight_N = truth.weight_C[reachable_N]
    facts = {"rank_truth": float(truth.rank), "entropy_ppl": math.exp(truth.entropy_nats)}
    return KnownDistributions(np.exp(log_p_NM).astype(np.float32), weight_N / weight_N.sum(), facts)


def fresh_sample(known: KnownDistributions, size: int, seed: int, update: int) -> Floats:
    """Relative counts [N, M] of an independent sample of (context, word) pairs: a new one every update.

    The number of words is Poisson around `size`, which makes the counts of all pairs independent. A function of (seed,
    update) alone, so that fits that stop and go on, and fits of other heads, see the same texts.
    """
    rng = np.random.default_rng(derive(seed, "fresh sample", update))
    counts_NM: Floats = rng.poisson(known.joint_NM * size).astype(np.float32)
    counts_NM /= size
    return counts_NM


def spectrum_of(known: KnownDistributions) -> Spectrum:
    """Singular values of the matrix of log P*, every word of which must be possible in every context."""
    return gram_singular_values([np.log(block.astype(np.float64)) for block in known.blocks], known.p_NM.shape[1])


def squared_error_bound(sigma: Array, rank: int) -> float:
    """Least squared Frobenius distance of log P* to any matrix of the given rank: the sum of sigma_i^2 over i > rank.

    Sigma are the singular values of log P* in descending order (Eckart, Young and Mirsky). The log-probabilities of a
    softmax of width D have rank D + 1 at most, D + 2 with a bias; for them it is theorem 1 of Ganea et al. 2019, which
    prints a square root around the sum but not on the distance.
    """
    return float((np.asarray(sigma)[rank:] ** 2).sum())
