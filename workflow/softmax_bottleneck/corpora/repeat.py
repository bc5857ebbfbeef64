"""Texts whose sequences repeat one token (SpamLang: Godey and Artzi 2026), with equal coverage of every token.

Every token but the held-out ones occurs in the same number of sequences of train. The sequences come in rounds, each of
which has every token once, in a random order. A model that fails on such a text has therefore met every token equally
often, whatever the size of the vocabulary.
"""

import numpy as np

from softmax_bottleneck.corpora.corpus import Corpus
from softmax_bottleneck.study.languages import RepeatSettings

LEARNED = 0.99  # accuracy on valid at which training ends


def repeated(settings: RepeatSettings, name: str) -> Corpus:
    """Return the corpus with these settings, whose words are `t0`, `t1`, and so on; equal settings, equal corpus."""
    rng = np.random.default_rng(settings.seed)
    held_out, trained = np.split(rng.permutation(settings.vocabulary_size), [settings.held_out])
    rounds = np.concatenate([rng.permutation(trained) for _ in range(settings.repetitions)])
    splits = {"train": rounds, "valid": rng.permutation(trained)[: settings.held_out], "test": held_out}
    words = tuple(f"t{number}" for number in range(settings.vocabulary_size))
    texts = {split: ids.repeat(settings.sequence_length).astype(np.int32) for split, ids in splits.items()}
    return Corpus(name, words, **texts)
