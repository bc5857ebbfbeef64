"""The law that a text was sampled from, where it is known: the distance of a model to it.

Suffixes: T positions, N contexts, V words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.corpora.corpus import Corpus
from softmax_bottleneck.corpora.language import TRUTH_FILE, Language, load_truth
from softmax_bottleneck.study import Study


@dataclass(frozen=True)
class TextLaw:
    """The law a test text was sampled from, and its state before every predicted word."""

    language: Language
    states_T: NDArray[np.integer[Any]]
    words: tuple[str, ...]

    def kl_nats(self, log_q_NV: NDArray[np.float32], start: int) -> NDArray[np.float64]:
        """KL(P* || Q) in nats of the contexts from `start` on."""
        return self.language.kl_nats(log_q_NV, self.states_T[start : start + len(log_q_NV)], self.words)

    def metrics(self, kl_T: NDArray[np.float64]) -> dict[str, float]:
        """Mean distance to the law, the best perplexity there can be, the true rank."""
        kl = float(kl_T.mean())
        bound = float(np.exp(self.language.context_entropy_nats(self.states_T).mean()))
        return {
            "kl_truth_nats": kl,
            "excess_ppl": float(np.exp(np.log(bound) + kl)) - bound,
            "entropy_ppl": bound,
            "entropy_rate_ppl": float(np.exp(self.language.entropy_nats)),
            "rank_truth": float(self.language.rank),
        }


def law_of(study: Study, dataset: str, tokens: Corpus) -> TextLaw | None:
    """The law of a corpus that was sampled from one; None for any other text."""
    folder = study.store.corpus_folder(dataset)
    if not (folder / TRUTH_FILE).exists():
        return None
    truth = load_truth(folder)
    return TextLaw(truth.language, truth.states["test"][1:], tokens.words)
