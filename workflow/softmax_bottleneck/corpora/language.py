"""A synthetic language with a known next-word distribution: a control that real text cannot provide.

A context is the pair (topic, previous word). Some words are *markers*: each sets the topic, which lasts until the next
marker. The history therefore determines the topic, but the last word alone seldom does. In context c the next word is v
with

    log P*(v|c) = U_c . B_v + zipf_v - log Z_c,        U [C, r], B [V, r]

The matrix of log P* over all contexts is [U | 1 | -log Z] [B | zipf | 1]^T and has rank r + 2 by construction. Yang et
al. 2018 argue that this rank is high for natural language. The language provides the entropy rate (no model can have a
lower perplexity than the exponential of this rate), the exact rank, KL(P*||Q) of any model Q in any context, and word
similarities.

Each of the r columns of U and B belongs to one of three blocks:
    topic      a topic favours the words of its theme, more after some words than after others;
    grammar    words belong to classes, and the class of the previous word favours some classes;
    affinity   every word has a point in a low-dimensional space, and so has every context. The closer the two points,
               the likelier the word: its logit grows with a Gaussian kernel of their distance. The columns are random
               Fourier features (Rahimi and Recht 2007), whose scalar product approximates this kernel.
Small independent noise on the columns makes them linearly independent, so that the rank is exactly r + 2.

Shapes: C contexts (topic-major: context = topic * V + previous word), V words, R = r columns, T topics, N positions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.corpora.corpus import EOS, SPLITS
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError, UserError
from softmax_bottleneck.study.languages import LanguageSettings

TRUTH_FILE = "truth.npz"
SIMILARITY_FILE = "word-similarity.txt"

ZIPF_OFFSET = 2.7  # Mandelbrot's constant for English word frequencies
TOPIC_SPREAD = 0.25  # relative standard deviation of a topic's effect between previous words
NOISE = 0.1  # standard deviation of the noise on the columns
TOPIC_SHIFT = 0.5  # standard deviation of a topic's shift of the points of its contexts
THEMED_SHARE = 0.6  # share of words that belong to a topic's theme
FIRST_MARKER_RANK = 5  # frequency rank of the first marker words
MARKER_BAND = 12  # markers are chosen from this many frequency ranks per topic
CONSONANTS, VOWELS = "bdfghklmnprstvz", "aeiou"

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def generator(seed: int, purpose: str) -> np.random.Generator:
    """Return a random generator for one purpose; its stream depends only on the seed and the name of the purpose."""
    digest = hashlib.sha256(f"{seed}:{purpose}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "big"))


# --- the distribution -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Language:
    """The true distribution of a synthetic language, and the numbers that follow from it.

    Attributes:
        words: the words. Word 0 is `<eos>`, and the others are in descending order of `zipf_V`.
        topics: number of topics T.
        sets_topic_V: topic that a word sets, or -1 for a word that is not a marker.
        contexts_CR: factor U of the logits (see the module's formula).
        columns_VR: factor B of the logits.
        zipf_V: part of every word's logit that is the same in all contexts.
    """

    words: tuple[str, ...]
    topics: int
    sets_topic_V: Ints
    contexts_CR: Floats
    columns_VR: Floats
    zipf_V: Floats

    @cached_property
    def log_p_CV(self) -> Floats:
        """The exact log P*(next word | context) in nats, for all T*V contexts, including those that cannot occur."""
        logits_CV = self.contexts_CR @ self.columns_VR.T + self.zipf_V
        top_C1 = logits_CV.max(axis=1, keepdims=True)
        logits_CV -= top_C1 + np.log(np.exp(logits_CV - top_C1).sum(axis=1, keepdims=True))
        return logits_CV

    @cached_property
    def reachable_C(self) -> NDArray[np.bool_]:
        """A mask of the contexts that can occur: after a marker, the topic is always the one that the marker sets."""
        topic_T1 = np.arange(self.topics)[:, None]
        reachable_TV: NDArray[np.bool_] = (self.sets_topic_V < 0) | (self.sets_topic_V == topic_T1)
        return reachable_TV.ravel()

    @cached_property
    def singular_values(self) -> Floats:
        """The r + 2 nonzero singular values of log P* over the reachable contexts, in descending order.

        They are the singular values of the small matrix L M^T. Here L and M are the triangular factors of the QR
        decompositions of [U | 1 | -log Z] and [B | zipf | 1].
        """
        left_CR, right_VR = self._factors()
        core: Floats = np.linalg.qr(left_CR)[1] @ np.linalg.qr(right_VR)[1].T
        return np.linalg.svd(core, compute_uv=False).astype(np.float64)

    def _factors(self) -> tuple[Floats, Floats]:
        contexts_CR = self.contexts_CR[self.reachable_C]
        logits_C = contexts_CR @ self.columns_VR[0] + self.zipf_V[0]
        minus_log_z_C = self.log_p_CV[self.reachable_C, 0] - logits_C
        left_CR = np.column_stack([contexts_CR, np.ones(len(contexts_CR)), minus_log_z_C])
        return left_CR, np.column_stack([self.columns_VR, self.zipf_V, np.ones(len(self.words))])

    @cached_property
    def rank(self) -> int:
        """The rank of log P* over the reachable contexts, which is r + 2 by construction.

        As in `numpy.linalg.matrix_rank`, the rank is the number of singular values above the rounding error of float64.
        """
        values = self.singular_values
        floor = values[0] * max(int(self.reachable_C.sum()), len(self.words)) * np.finfo(np.float64).eps
        return int((values > floor).sum())

    # --- long-run averages
    @cached_property
    def weight_C(self) -> Floats:
        """The stationary probability of every context, computed by power iteration up to rounding error.

        Raises:
            UserError: the iteration does not converge, because topics hardly ever change.
        """
        shape = (self.topics, len(self.words))
        p_TVV = np.exp(self.log_p_CV).reshape(*shape, -1)
        weight_TV = np.full(shape, 1.0 / (shape[0] * shape[1]))
        for _ in range(100_000):
            following_TV = self._next_contexts(np.matmul(weight_TV[:, None, :], p_TVV)[:, 0])
            change = np.abs(following_TV - weight_TV).sum()
            weight_TV = following_TV / following_TV.sum()
            if change < 1e-14:
                return np.ravel(weight_TV)
        raise UserError("language: the topics hardly ever change; raise markers_per_topic or lower topic_strength")

    def _next_contexts(self, joint_TV: Floats) -> Floats:
        """Return the probability [T, V] of every context (topic, previous word) after one more word.

        `joint_TV[t, v]` is the probability that the topic was t and that the new word is v. A marker changes the
        topic: its probabilities under all topics are summed and move to the topic that it sets. Other words keep it.
        """
        markers = np.flatnonzero(self.sets_topic_V >= 0)
        after_TV = joint_TV.copy()
        after_TV[:, markers] = 0.0
        after_TV[self.sets_topic_V[markers], markers] = joint_TV[:, markers].sum(axis=0)
        return after_TV

    @cached_property
    def entropy_nats(self) -> float:
        """The exact entropy rate in nats per word: the log of the lowest possible long-run perplexity."""
        return float(self.weight_C @ self.context_entropy_nats(np.arange(len(self.weight_C))))

    @cached_property
    def unigram_V(self) -> Floats:
        """The long-run relative frequency of every word; all sum to one."""
        return self.weight_C @ np.exp(self.log_p_CV)

    # --- single contexts
    def context_entropy_nats(self, states_N: NDArray[np.integer[Any]]) -> Floats:
        """Return the entropy of the next word in each of N contexts, in nats; `states_N` has the contexts' indices.

        The mean over the contexts of a text is the lowest expected loss that any model can have on this text.
        """
        log_p_NV = self.log_p_CV[states_N]
        return -(np.exp(log_p_NV) * log_p_NV).sum(axis=1)

    def kl_nats(
        self,
        log_q_NV: NDArray[np.floating[Any]],
        states_N: NDArray[np.integer[Any]],
        words: tuple[str, ...] | None = None,
    ) -> Floats:
        """Return KL(P*(.|context) || Q(.|context)) in nats for each of N contexts.

        The divergence is infinite where Q gives a word the probability 0.

        Args:
            log_q_NV: log-probabilities of a model Q; their exponentials must sum to one in every row.
            states_N: index of each context, topic * V + previous word; `sample` returns these for a text.
            words: words of the columns of log_q_NV (a corpus's dictionary); by default the language's own order.

        Raises:
            DataError: `words` are not the words of the language.
        """
        log_p_NV = self.log_p_CV[states_N]
        if words is not None:
            log_p_NV = log_p_NV[:, self.order(words)]
        return (np.exp(log_p_NV) * (log_p_NV - log_q_NV)).sum(axis=1)

    def order(self, words: tuple[str, ...]) -> Ints:
        """Return the index in `self.words` of each of `words`, which must be the same words in any order.

        Raises:
            DataError: `words` are not the words of the language.
        """
        if sorted(words) != sorted(self.words):
            odd = sorted(set(words) ^ set(self.words))
            raise DataError(f"truth: the dictionary is not the law's: {len(odd)} words differ, the first is {odd[:1]}")
        index = {word: place for place, word in enumerate(self.words)}
        return np.array([index[word] for word in words])

    def sample(self, n_tokens: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Sample a text of at least `n_tokens` tokens that starts in the context (topic 0, `<eos>`).

        The text ends with the first `<eos>` at or after token `n_tokens`. The decision to stop depends only on tokens
        sampled before, so it does not bias their distribution.

        Returns:
            The word indices, and for each word the index of the context in which it was sampled.
        """
        size = len(self.words)
        ladder_CV = np.cumsum(np.exp(self.log_p_CV), axis=1)
        sets_topic = self.sets_topic_V.tolist()
        ids: list[int] = []
        states: list[int] = []
        state = word = 0
        while len(ids) < n_tokens or word != 0:
            states.append(state)
            word = min(int(ladder_CV[state].searchsorted(rng.random(), side="right")), size - 1)
            ids.append(word)
            topic = sets_topic[word] if sets_topic[word] >= 0 else state // size
            state = topic * size + word
        return np.array(ids), np.array(states)

    # --- word similarity
    @cached_property
    def similarity_VV(self) -> Floats:
        """The similarity [V, V] of each pair of words as next words: high if the same contexts favour both.

        The score of a word v in a context c is log P*(v|c) minus the mean of log P*(.|c) over words, which removes
        log Z. The similarity of two words is the Pearson correlation of their scores over contexts. Contexts and words
        are weighted by their frequency.
        """
        score_CV = self.log_p_CV - (self.log_p_CV @ self.unigram_V)[:, None]
        score_CV -= self.weight_C @ score_CV
        covariance_VV = score_CV.T @ (score_CV * self.weight_C[:, None])
        deviation_V = np.sqrt(np.diag(covariance_VV))
        return covariance_VV / np.outer(deviation_V, deviation_V)

    def word_similarity(self, n_pairs: int = 300, strata: int = 30, seed: int = 0) -> list[tuple[str, str, float]]:
        """Return about `n_pairs` triples (word, other word, similarity), as published similarity benchmarks have them.

        Two words are similar if the same contexts favour both as next words (see `similarity_VV`). The range of all
        similarities is divided into `strata` intervals of equal length. From each interval, n_pairs / strata pairs are
        sampled, rounded up, so that similar and dissimilar pairs both occur. An interval with fewer pairs contributes
        all of them. No pair contains `<eos>`. The same language and arguments always give the same pairs.
        """
        first, second = np.triu_indices(len(self.words), k=1)
        first, second = first[first > 0], second[first > 0]
        score = self.similarity_VV[first, second]
        edges = np.linspace(score.min(), score.max(), strata + 1)[1:-1]
        stratum = np.digitize(score, edges)
        rng = generator(seed, "word pairs")
        chosen = [
            rng.permutation(np.flatnonzero(stratum == number))[: -(-n_pairs // strata)] for number in range(strata)
        ]
        pairs = np.concatenate(chosen)
        return [(self.words[first[i]], self.words[second[i]], round(float(score[i]), 4)) for i in pairs]


# --- making a language ----------------------------------------------------------------------------------------------
def make_language(settings: LanguageSettings) -> Language:
    """Return the language with these settings; every call returns bitwise equal arrays."""
    size, topics = settings.vocabulary_size, settings.topics
    sets_topic_V = _markers(settings)
    blocks = (_topic_block(settings, sets_topic_V), _grammar_block(settings), _affinity_block(settings))
    contexts_TVR = np.concatenate([np.broadcast_to(left, (topics, size, left.shape[2])) for left, _ in blocks], axis=2)
    return Language(
        words=_names(settings),
        topics=topics,
        sets_topic_V=sets_topic_V,
        contexts_CR=contexts_TVR.reshape(topics * size, -1),
        columns_VR=np.concatenate([right for _, right in blocks], axis=1),
        zipf_V=-settings.zipf_exponent * np.log(np.arange(size) + ZIPF_OFFSET),
    )


def _names(settings: LanguageSettings) -> tuple[str, ...]:
    """Return `<eos>`, followed by pronounceable random words, the shortest first, because frequent words are short."""
    rng = generator(settings.seed, "names")
    syllables = [consonant + vowel for consonant in CONSONANTS for vowel in VOWELS]
    names, length = [EOS], 1
    while len(names) < settings.vocabulary_size:
        codes = rng.permutation(len(syllables) ** length)[: settings.vocabulary_size - len(names)]
        digits = np.stack(np.unravel_index(codes, (len(syllables),) * length), axis=1)
        names += ["".join(syllables[digit] for digit in row) for row in digits]
        length += 1
    return tuple(names)


def _markers(settings: LanguageSettings) -> Ints:
    """Return the topic [V] that each word sets, or -1 for words that are no markers.

    Markers are sampled from fairly frequent words; `<eos>` is never a marker.
    """
    rng = generator(settings.seed, "markers")
    count = settings.topics * settings.markers_per_topic
    last = min(max(FIRST_MARKER_RANK + MARKER_BAND * settings.topics, 1 + count), settings.vocabulary_size)
    first = min(FIRST_MARKER_RANK, last - count)
    sets_topic_V = np.full(settings.vocabulary_size, -1)
    chosen = first + rng.permutation(last - first)[:count]
    sets_topic_V[chosen] = np.arange(count) % settings.topics
    return sets_topic_V


def _topic_block(settings: LanguageSettings, sets_topic_V: Ints) -> tuple[Floats, Floats]:
    """Return the columns of U and B that belong to the block `topic`, as arrays [T, V, T] and [V, T].

    The axes of U's part are topic, previous word and column; those of B's part are word and column. Every topic has one
    column and a theme: a set of words that are likelier while the topic lasts. The theme includes the topic's markers,
    which `sets_topic_V` gives.
    """
    rng = generator(settings.seed, "topics")
    size, topics = settings.vocabulary_size, settings.topics
    theme_V = np.where(rng.random(size) < THEMED_SHARE, rng.integers(0, topics, size), -1)
    theme_V = np.where(sets_topic_V >= 0, sets_topic_V, theme_V)
    theme_V[0] = -1
    columns_VR = (theme_V[:, None] == np.arange(topics)) + NOISE * rng.standard_normal((size, topics))
    passing_on_1VR = 1.0 + TOPIC_SPREAD * rng.standard_normal((1, size, topics))
    return settings.topic_strength * np.eye(topics)[:, None, :] * passing_on_1VR, columns_VR


def _grammar_block(settings: LanguageSettings) -> tuple[Floats, Floats]:
    """Return the columns of U and B that belong to the block `grammar`, as arrays [1, V, K] and [V, K].

    The axes of U's part are topic (of length 1, because the topic has no effect), previous word and column; those of
    B's part are word and column. Words belong to K classes, one of them for `<eos>` alone, and every class has one
    column. The class of the previous word makes the words of some classes likelier.
    """
    rng = generator(settings.seed, "grammar")
    size, classes = settings.vocabulary_size, settings.classes
    class_V = rng.integers(1, classes, size)
    class_V[0] = 0
    columns_VR = (class_V[:, None] == np.arange(classes)) + NOISE * rng.standard_normal((size, classes))
    follows_KR = rng.standard_normal((classes, classes))
    contexts_VR = follows_KR[class_V] + NOISE * rng.standard_normal((size, classes))
    return settings.class_strength * contexts_VR[None], columns_VR


def _affinity_block(settings: LanguageSettings) -> tuple[Floats, Floats]:
    """Return the columns of U and B that belong to the block `affinity`, as arrays [T, V, F] and [V, F].

    The axes of U's part are topic, previous word and column; those of B's part are word and column. A word is likelier,
    the smaller the distance between its point and the point of the context. The F columns are random Fourier features,
    cosines of random frequency, which approximate a Gaussian kernel of this distance. The setting `affinity_bandwidth`
    is the standard deviation of these frequencies, so that the kernel has the width 1 / affinity_bandwidth.
    """
    rng = generator(settings.seed, "affinity")
    size, topics, dimensions = settings.vocabulary_size, settings.topics, settings.affinity_dimensions
    width = settings.rank - topics - settings.classes
    frequency = settings.affinity_bandwidth * rng.standard_normal((dimensions, width))
    phase = rng.uniform(0.0, 2.0 * np.pi, width)
    stands_VD = rng.standard_normal((size, dimensions))
    points_TVD = rng.standard_normal((size, dimensions)) + TOPIC_SHIFT * rng.standard_normal((topics, 1, dimensions))
    columns_VR = np.sqrt(2.0) * np.cos(stands_VD @ frequency + phase) + NOISE * rng.standard_normal((size, width))
    contexts_TVR = np.sqrt(2.0) * np.cos(points_TVD @ frequency + phase) + NOISE * rng.standard_normal(
        (topics, size, width)
    )
    return settings.affinity_strength / np.sqrt(width) * contexts_TVR, columns_VR


# --- files ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Truth:
    """A language, the contexts of the text sampled from it, and the language's entropies.

    All attributes are stored in truth.npz. The entropies are stored because computing them takes seconds.

    Attributes:
        language: the language.
        states: one array per split, such as `states["test"]`. Entry i is the index of the context in which token i of
            the split was sampled. A model predicts all tokens but token 0, so their contexts are `states["test"][1:]`.
        entropy_nats: entropy rate of the language, in nats per word.
        entropy_C: entropy of the next word in each context, in nats.
    """

    language: Language
    states: Mapping[str, Ints]
    entropy_nats: float
    entropy_C: Floats

    @classmethod
    def of(cls, language: Language, states: Mapping[str, Ints]) -> Truth:
        """Return a Truth with the entropies of `language`; `states` are the contexts of its text by split."""
        contexts = np.arange(len(language.contexts_CR))
        return cls(language, states, language.entropy_nats, language.context_entropy_nats(contexts))


def write_language(settings: LanguageSettings, folder: Path) -> None:
    """Sample the splits of a language; write {train,valid,test}.txt, truth.npz and word-similarity.txt to a folder.

    truth.npz holds the language, the context of every token and the entropies (`Truth`). Each line of
    word-similarity.txt has two words and their similarity, for about 300 pairs.

    Raises:
        UserError: train is so short that some words of the language do not occur in it, or topics hardly ever change.
    """
    language = make_language(settings)
    states = {}
    for split in SPLITS:
        ids, states[split] = language.sample(getattr(settings, f"{split}_tokens"), generator(settings.seed, split))
        if split == "train" and (missing := len(language.words) - len(np.unique(ids))):
            raise UserError(
                f"language: train_tokens: {settings.train_tokens} draws miss {missing} words; ask for more tokens"
            )
        text = "".join("\n" if i == 0 else f"{language.words[i]} " for i in ids.tolist())
        artefacts.write_text(folder / f"{split}.txt", text.replace(" \n", "\n"))
    rows = [f"{one}\t{other}\t{score}\n" for one, other, score in language.word_similarity()]
    artefacts.write_text(folder / SIMILARITY_FILE, "".join(rows))
    _write_truth(folder / TRUTH_FILE, Truth.of(language, states))


def _write_truth(path: Path, truth: Truth) -> None:
    language = truth.language
    artefacts.write_npz(
        path,
        words=np.array(language.words),
        sets_topic=language.sets_topic_V,
        contexts=language.contexts_CR,
        columns=language.columns_VR,
        zipf=language.zipf_V,
        entropy_nats=np.array(truth.entropy_nats),
        entropy=truth.entropy_C,
        **{f"states_{split}": states.astype(np.int32) for split, states in truth.states.items()},
    )


def load_truth(folder: Path) -> Truth:
    """Load the true distribution of a synthetic corpus from truth.npz in the corpus's folder.

    Raises:
        DataError: the file is missing or damaged.
    """
    data = artefacts.read_npz(folder / TRUTH_FILE)
    words = tuple(data["words"].tolist())
    language = Language(
        words=words,
        topics=len(data["contexts"]) // len(words),
        sets_topic_V=data["sets_topic"],
        contexts_CR=data["contexts"],
        columns_VR=data["columns"],
        zipf_V=data["zipf"],
    )
    states = {split: data[f"states_{split}"] for split in SPLITS}
    return Truth(language, states, float(data["entropy_nats"]), data["entropy"])
