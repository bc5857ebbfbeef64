"""Known next-word distributions of many contexts, to which output heads are fitted.

There are three kinds. In Ganea et al. 2019, section 5.1, the distribution of every context is sampled from a symmetric
Dirichlet distribution, eq. 15:

    P*(.|c) ~ Dir(alpha, ..., alpha) over M words,   c = 1..N, all contexts equally likely.

In a synthetic language (corpora/language.py), the distributions are those of all contexts that can occur, weighted by
the stationary probabilities of the contexts. The matrix of their log-probabilities has an exactly known rank.
Natural distributions, of a language model on a text, are read from a file that the step `truth` writes.

Shapes: N contexts, R contexts of a block, M words.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from softmax_bottleneck.corpora.language import make_language
from softmax_bottleneck.ranks import Spectrum, gram_singular_values
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError, UserError
from softmax_bottleneck.store.seeds import derive
from softmax_bottleneck.study import truths
from softmax_bottleneck.study.languages import LanguageSettings

Floats = NDArray[np.float32]
Array = NDArray[np.float64]

BLOCK = 1000  # contexts per random stream, so that a larger N keeps the contexts of a smaller N and adds others


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
    def entropy_N(self) -> Array:
        """The entropy of every distribution in nats; a word of probability zero adds nothing."""
        return np.concatenate([special.entr(p_RM).sum(1) for _, p_RM in self.blocks])

    @property
    def blocks(self) -> Iterator[tuple[Array, Array]]:
        """The weights and rows of P* of at most BLOCK contexts at a time, in float64.

        So no code needs a float64 copy of all of P*.
        """
        for start in range(0, len(self.p_NM), BLOCK):
            part = slice(start, start + BLOCK)
            yield self.weight_N[part], self.p_NM[part].astype(np.float64)

    @property
    def entropy_nats(self) -> float:
        """The mean entropy of P* over contexts, weighted by their probabilities; no model has a lower cross-entropy."""
        return float(self.weight_N @ self.entropy_N)

    @cached_property
    def no_context_nats(self) -> float:
        """The lowest mean KL(P*||Q), in nats, of a model Q that predicts the same distribution in every context.

        The best such Q is the mean of P*, weighted by the probabilities of the contexts. A model that predicts P*
        exactly has KL zero. So the result is the most that a model can gain by reading the context.
        """
        mean_M = sum(weight_R @ p_RM for weight_R, p_RM in self.blocks)
        return float(special.entr(mean_M).sum()) - self.entropy_nats


def natural(folder: Path) -> KnownDistributions:
    """Return natural distributions from a folder of the step `truth`; the contexts have equal weights.

    Raises:
        DataError: a file is missing or damaged, or truth.npz is not the one that truth.json was written with.
    """
    written = artefacts.read_json(folder / truths.FILE)
    p_NM = artefacts.read_npz(folder / truths.ARRAYS)["p_NM"]
    if artefacts.stored_hash(folder / truths.ARRAYS) != written["provenance"]["parents"][truths.ARRAYS]:
        raise DataError(f"{folder / truths.ARRAYS}: not of the same computation as {truths.FILE}. Delete both")
    return KnownDistributions(p_NM, np.full(len(p_NM), 1.0 / len(p_NM)), written["facts"])


def make_distributions(kind: str, law: Mapping[str, Any], seed: int) -> KnownDistributions:
    """Return known distributions: samples from a Dirichlet distribution, or those of a synthetic language.

    Args:
        kind: "dirichlet" or "language".
        law: parameters by name. For "dirichlet": `alpha` (the concentration), `words` and `contexts` (their numbers).
            For "language": the language's settings, such as `rank`, i.e. the fields of `LanguageSettings` but `seed`.
        seed: seed of the distributions.

    Raises:
        UserError: the kind is unknown.
    """
    if kind == "dirichlet":
        return dirichlet(law["alpha"], law["words"], law["contexts"], seed)
    if kind == "language":
        return language(LanguageSettings.from_mapping({**law, "seed": seed}))
    raise UserError(f"kind: {kind!r} is unknown. Expected 'dirichlet' or 'language'")


def dirichlet(alpha: float, words: int, contexts: int, seed: int) -> KnownDistributions:
    """Sample N = `contexts` distributions over M = `words` words (Ganea et al. 2019, eq. 15).

    Each distribution is a sample from the symmetric Dirichlet distribution with concentration `alpha`. The only entry
    of the result's `facts` is `kl_uniform_nats`, the expected KL(P*||uniform) of such a sample P*, in nats.
    """
    p_NM = np.empty((contexts, words), np.float32)
    for start in range(0, contexts, BLOCK):
        rng = np.random.default_rng(derive(seed, "dirichlet", repr(float(alpha)), words, start))
        p_NM[start : start + BLOCK] = rng.dirichlet(np.full(words, alpha), min(BLOCK, contexts - start))
    facts = {"kl_uniform_nats": dirichlet_divergence(alpha, words)}
    return KnownDistributions(p_NM, np.full(contexts, 1.0 / contexts), facts)


def dirichlet_divergence(alpha: float, words: int) -> float:
    """Return the expected KL(P*||uniform) in nats of a sample P* from the symmetric Dirichlet distribution.

    The value is ln M - H with M = `words`, where H = psi(M alpha + 1) - psi(alpha + 1) is the expected entropy of P*
    and psi the digamma function. As the number of contexts grows, the best model that ignores the context approaches
    the uniform distribution. So the value is the limit of `KnownDistributions.no_context_nats`.
    """
    return math.log(words) - float(special.digamma(words * alpha + 1) - special.digamma(alpha + 1))


def language(settings: LanguageSettings) -> KnownDistributions:
    """Return the true distributions of a synthetic language in all contexts that can occur.

    The weights are the stationary probabilities of the contexts. The only entry of the result's `facts` is
    `rank_truth`, the exact rank of log P*.
    """
    truth = make_language(settings)
    reachable_N = truth.reachable_C
    log_p_NM = truth.log_p_CV[reachable_N]
    weight_N = truth.weight_C[reachable_N]
    p_NM = np.exp(log_p_NM).astype(np.float32)
    return KnownDistributions(p_NM, weight_N / weight_N.sum(), {"rank_truth": float(truth.rank)})


def fresh_sample(known: KnownDistributions, size: int, seed: int, update: int) -> Floats:
    """Return the relative frequencies [N, M] of (context, word) pairs in a new sample of about `size` pairs.

    The count of each pair is an independent Poisson number with mean `size` times the probability of the pair. Counts
    are divided by `size`. For the same distributions and size, the sample depends only on `seed` and on `update`, the
    number of the training update. Resumed fits and fits of other heads therefore see the same samples.
    """
    rng = np.random.default_rng(derive(seed, "fresh sample", update))
    counts = [rng.poisson(weight_R[:, None] * p_RM * size).astype(np.float32) for weight_R, p_RM in known.blocks]
    counts_NM: Floats = np.concatenate(counts)
    counts_NM /= size
    return counts_NM


def spectrum_of(known: KnownDistributions) -> Spectrum:
    """Return the singular values of the matrix of log P* [N, M]; all probabilities must be positive."""
    return gram_singular_values((np.log(p_RM) for _, p_RM in known.blocks), known.p_NM.shape[1])


def squared_error_bound(sigma: Array, rank: int) -> float:
    """Return the least squared Frobenius distance of log P* from any matrix of at most the given rank.

    This is the sum of sigma_i^2 over i > `rank` (theorem of Eckart, Young and Mirsky). By theorem 1 of Ganea et al.
    2019, no softmax Q whose log Q has at most this rank comes closer to log P*. The paper prints a square root of the
    sum there, which is left out here because the distance is squared.

    Args:
        sigma: singular values of log P* in descending order.
        rank: largest rank allowed. To bound a softmax of width D, pass the highest rank of its log-probabilities: D + 1
            without a bias, D + 2 with a bias.
    """
    return float((np.asarray(sigma)[rank:] ** 2).sum())
