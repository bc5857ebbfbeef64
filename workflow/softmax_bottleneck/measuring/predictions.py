"""The most probable next words at selected positions of the test text, and how often the true word is among them.

Parthiban et al. 2021 (Figure 3, SM Table 2) compare heads by the top five words after 18 contexts: six from Yang et al.
2018, six of their own choice, and six random ones. Eighteen positions are only an illustration, so this module also
computes hit rates over the whole test text. Positions are stored as token indices, and the words are read from the
corpus, because the text may not be redistributed.

Suffixes: T predicted tokens in order.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.corpora.corpus import EOS, UNK, Corpus
from softmax_bottleneck.statistics.shares import wilson_ends
from softmax_bottleneck.store.errors import DataError

SHOWN_WORDS = 5
HIT_RANKS = (1, SHOWN_WORDS, 10)
SAMPLE_SIZE = 18
SAMPLE_SEED = 0
SAMPLE_QUOTE = 40  # number of context words shown; the published contexts have 25 to 75


@dataclass(frozen=True)
class Place:
    """A position of the test text whose most probable words are shown.

    Attributes:
        group: origin of the position: `yang2018_cherry_picked` (by Yang et al.), `authors_cherry_picked` (by Parthiban
            et al.) or `random`.
        number: number of the position within its group, from 1.
        index: index of the word in the test text, from 0; the context is all text before this word.
        quoted: number of context words that are shown.
        published_word: the published next word; empty if none was published.
    """

    group: str
    number: int
    index: int
    quoted: int
    published_word: str = ""


def published_places(path: Path) -> tuple[Place, ...]:
    """Return the published positions that the CSV file `path` lists, in the order of the file.

    The file must have the columns of report/published/parthiban2021_sm_table2_contexts.csv.
    """
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(
            Place(
                group=row["group"],
                number=int(row["context"]),
                index=int(row["test_target_index_0based"]),
                quoted=int(row["n_contexts_tokens_quoted"]),
                published_word=row["true_next_token"],
            )
            for row in csv.DictReader(file)
        )


def sampled_places(corpus: Corpus) -> tuple[Place, ...]:
    """Return 18 random positions of the corpus's test text, in the order of the text; every call returns the same.

    The function is for a corpus for which no paper gives positions. Positions of `<eos>` and `<unk>` are excluded. A
    short text gives fewer positions.
    """
    uninformative = [index for index, word in enumerate(corpus.words) if word in (EOS, UNK)]
    index_T = np.arange(1, len(corpus.test))
    # A position has SAMPLE_QUOTE words before it, unless the text is too short for that.
    known_T = index_T[~np.isin(corpus.test[1:], uninformative) & (index_T >= min(SAMPLE_QUOTE, len(index_T) // 2))]
    rng = np.random.default_rng(SAMPLE_SEED)
    drawn = np.sort(rng.choice(known_T, size=min(SAMPLE_SIZE, len(known_T)), replace=False))
    return tuple(Place("random", number, int(index), SAMPLE_QUOTE) for number, index in enumerate(drawn, start=1))


def check_places(places: Sequence[Place], corpus: Corpus) -> None:
    """Check that the test text of `corpus` has each place's published word at the place's index.

    If the vocabulary lacks the published word, `<unk>` is expected instead. A place without a published word only has
    to lie inside the text.

    Raises:
        DataError: the test text has another word at an index, or is too short.
    """
    for place in places:
        if not 0 < place.index < len(corpus.test):
            raise DataError(
                f"{corpus.name}: the test text has {len(corpus.test)} tokens, a published context ends before token"
                f" {place.index}; leave `contexts` out of this dataset's YAML, its text is another one"
            )
        found = corpus.words[corpus.test[place.index]]
        expected = place.published_word if place.published_word in corpus.words else UNK
        if place.published_word and found != expected:
            raise DataError(
                f"{corpus.name}: test token {place.index} is {found!r}, but {place.published_word!r} was published;"
                " leave `contexts` out of this dataset's YAML, its text is another one"
            )


@dataclass(frozen=True)
class TopWords:
    """The SHOWN_WORDS most probable words at one position, and the rank of the true word.

    Attributes:
        ids: token ids, in descending order of probability.
        log_p: their log-probabilities in nats.
        true_rank: rank of the true word among all words, from 1.
    """

    ids: NDArray[np.int64]
    log_p: NDArray[np.float64]
    true_rank: int


def describe(place: Place, top: TopWords, corpus: Corpus) -> dict[str, Any]:
    """Return what topk.json stores about one position.

    Returns:
        A dict with these keys:

        * group: how the position was chosen (see `Place`).
        * context: number of the position within its group, from 1.
        * index: index of the true word in the test text, from 0.
        * text: the last `place.quoted` words before the position, in one string.
        * target: the true word, as in the test text, where it may be `<unk>`.
        * published_target: the published word; None if none was published.
        * note: a sentence for the reader if the vocabulary lacks the published word; empty otherwise.
        * top: the most probable words, a list of {"word": text, "log_prob": nats}.
        * rank: rank of the true word, from 1.
        * hit: True if the true word is among `top`.
    """
    target = corpus.words[corpus.test[place.index]]
    cut = bool(place.published_word) and target != place.published_word
    before = corpus.test[max(0, place.index - place.quoted) : place.index]
    pairs = zip(top.ids.tolist(), top.log_p.tolist(), strict=True)
    return {
        "group": place.group,
        "context": place.number,
        "index": place.index,
        "text": " ".join(corpus.words[word] for word in before),
        "target": target,
        "published_target": place.published_word or None,
        "note": f"{place.published_word!r} is not in this vocabulary: the word to predict is {UNK}" if cut else "",
        "top": [{"word": corpus.words[word], "log_prob": log_p} for word, log_p in pairs],
        "rank": top.true_rank,
        "hit": top.true_rank <= SHOWN_WORDS,
    }


def hit_rates(true_rank_T: NDArray[np.integer[Any]]) -> dict[str, dict[str, float | int]]:
    """Return the share of contexts whose true word is among the k most probable words, with a 95 % Wilson interval.

    `true_rank_T` holds the rank of the true word in each context, from 1, among all words by probability. The result is
    {k: {"rate": share, "low": lower end, "high": upper end of the interval, "n": number of contexts}}, with the keys k
    "1", "5" and "10". The interval treats contexts as independent. It is too narrow, because neighbouring contexts are
    dependent.
    """
    rates: dict[str, dict[str, float | int]] = {}
    for k in HIT_RANKS:
        hits = int((true_rank_T <= k).sum())
        low, high = wilson_ends(hits / len(true_rank_T), len(true_rank_T))
        rates[str(k)] = {"rate": hits / len(true_rank_T), "low": low, "high": high, "n": len(true_rank_T)}
    return rates
