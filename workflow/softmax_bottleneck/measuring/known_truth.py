"""The known true distribution of a synthetic text: its perplexities and ranks, and a model's distance from it.

In a synthetic language, the true distribution of the next word depends only on the topic and the previous word. The
language therefore has finitely many contexts: C pairs (topic, previous word), with an index from 0 to C - 1. The true
logits are a product [C, R] [R, V] plus a constant per word.

Suffixes: T tokens of a text, or its predicted words (all tokens but the first), N some of the predicted words, C
contexts of the language, R inner dimension of the logits, V words.
"""

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
    """The true next-word distribution P* of a synthetic corpus, in the contexts of its test text.

    Attributes:
        truth: an object with the synthetic language and, for each split, the context of every token.
        words: the vocabulary of the corpus, in the order of token ids.
        own: {metric: number} with the perplexities and ranks of the true distribution itself, such as law_test_ppl and
            law_rank_press (see `law_metrics`).
    """

    truth: Truth
    words: tuple[str, ...]
    own: dict[str, float]

    @property
    def states_T(self) -> NDArray[np.integer[Any]]:
        """The index [T] of the context, from 0 to C - 1, of each word of the test text except the first."""
        return self.truth.states["test"][1:]

    def kl_nats(self, log_q_NV: NDArray[np.float32], start: int) -> NDArray[np.float64]:
        """Return KL(P* || Q) in nats [N], in the contexts of N consecutive predicted words of the test text.

        `log_q_NV` is the model's log Q in these contexts. `start` is the number of predicted words before these N.
        """
        return self.truth.language.kl_nats(log_q_NV, self.states_T[start : start + len(log_q_NV)], self.words)

    def metrics(self, kl_T: NDArray[np.float64]) -> dict[str, float]:
        """Return the metrics of a model's distance from the true distribution, and of the true distribution itself.

        Args:
            kl_T: the model's KL(P* || Q) in the context of each predicted word, in nats.

        Returns:
            The metrics in the attribute `own`, with these further keys:

            * kl_truth_nats: mean of kl_T.
            * entropy_ppl: exponential of the mean entropy of P* in the contexts of the test text. No model has a lower
              expected perplexity there.
            * excess_ppl: entropy_ppl * exp(kl_truth_nats) - entropy_ppl, the perplexity that the model's KL adds.
            * entropy_rate_ppl: exponential of the language's entropy rate, the lowest perplexity on an infinite text.
            * rank_truth: exact rank of log P* over all contexts that can occur in the language. The ranks in `own` are
              over the contexts of the test text.
        """
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
    """Return the true distribution of a study's corpus; None if the corpus is not synthetic.

    `dataset` is the name of the corpus, and `tokens` has its texts and vocabulary.
    """
    folder = study.store.corpus_folder(dataset)
    if not (folder / TRUTH_FILE).exists():
        return None
    truth = load_truth(folder)
    return TextLaw(truth, tokens.words, law_metrics(truth, tokens))


def law_metrics(truth: Truth, corpus: Corpus) -> dict[str, float]:
    """Return the perplexities of the true distribution on train and test, and its ranks in the contexts of test.

    `truth` has the language and the contexts of the texts; `corpus` has the texts. As in published perplexities, the
    sum of losses is divided by the text's length L, although only L - 1 words are predicted.

    Returns:
        A dict with law_train_ppl, law_test_ppl, and the ranks of `RankReport.metrics` with the prefix `law_`:
        law_rank_press, law_rank_press_low, law_rank_press_high, and one for every epsilon, such as law_rank_eff_1e-3.
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
