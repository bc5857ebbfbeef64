"""The law that a text was sampled from, where it is known: the distance of a model to it, and what it scores itself.

Suffixes: T positions, N contexts, R columns of the law, V words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.corpora.corpus import Corpus
from softmax_bottleneck.corpora.language import TRUTH_FILE, Truth, load_truth
from softmax_bottleneck.ranks.counts import rank_report
from softmax_bottleneck.ranks.spectra import factored_singular_values
from softmax_bottleneck.study import Study


@dataclass(frozen=True)
class TextLaw:
    """The law a test text was sampled from, its state before every predicted word, and what it scores itself."""

    truth: Truth
    words: tuple[str, ...]
    own: dict[str, float]

    @property
    def states_T(self) -> NDArray[np.integer[Any]]:
        """The context of every predicted word."""
        return self.truth.states["test"][1:]

    def kl_nats(self, log_q_NV: NDArray[np.float32], start: int) -> NDArray[np.float64]:
        """KL(P* || Q) in nats of the contexts from `start` on."""
        return self.truth.language.kl_nats(log_q_NV, self.states_T[start : start + len(log_q_NV)], self.words)

    def metrics(self, kl_T: NDArray[np.float64]) -> dict[str, float]:
        """Mean distance to the law, the best perplexity there can be, the true rank."""
        kl = float(kl_T.mean())
        bound = float(np.exp(self.truth.entropy_C[self.states_T].mean()))
        return {
            "kl_truth_nats": kl,
            "excess_ppl": float(np.exp(np.log(bound) + kl)) - bound,
            "entropy_ppl": bound,
            "entropy_rate_ppl": float(np.exp(self.truth.entropy_nats)),
            "rank_truth": float(self.truth.language.rank),
            **self.own,
        }


def law_of(study: Study, dataset: str, tokens: Corpus) -> TextLaw | None:
    """The law of a corpus that was sampled from one; None for any other text."""
    folder = study.store.corpus_folder(dataset)
    if not (folder / TRUTH_FILE).exists():
        return None
    truth = load_truth(folder)
    return TextLaw(truth, tokens.words, law_metrics(truth, tokens))


def law_metrics(truth: Truth, corpus: Corpus) -> dict[str, float]:
    """The law's perplexities of train and test text, and ranks of its log-probabilities over the test contexts.

    Perplexities have the published divisor, the text's length L; `law_test_ppl` is of this very text, where the
    exponential of the mean entropy is what is expected in its contexts. Ranks follow from the law's exact factors.
    """
    language = truth.language
    order_V = language.order(corpus.words)
    found = {}
    for split in ("train", "test"):
        ids_T, states_T = getattr(corpus, split), truth.states[split]
        log_p_T = language.log_p_CV[states_T[1:], order_V[ids_T[1:]]]
        found[f"law_{split}_ppl"] = math.exp(-math.fsum(log_p_T) / len(ids_T))
    states_N = truth.states["test"][1:]
    contexts_NR = language.contexts_CR[states_N]
    log_z_N = contexts_NR @ language.columns_VR[0] + language.zipf_V[0] - language.log_p_CV[states_N, 0]
    spectrum = factored_singular_values(contexts_NR, language.columns_VR, language.zipf_V, np.asarray(log_z_N))
    return found | {f"law_{name}": float(rank) for name, rank in rank_report(spectrum).metrics().items()}
