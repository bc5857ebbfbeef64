"""Chosen places, their top words and hit rates, against the published contexts and textbook numbers."""

from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from softmax_bottleneck.corpora import words
from softmax_bottleneck.corpora.corpus import Corpus
from softmax_bottleneck.measuring import predictions
from softmax_bottleneck.statistics.shares import wilson_ends
from softmax_bottleneck.store.errors import DataError
from softmax_bottleneck.store.paths import ROOT

CONTEXTS = ROOT / "report" / "published" / "parthiban2021_sm_table2_contexts.csv"
WORDS = ("<eos>", "<unk>", *(f"w{index}" for index in range(28)))


def make_corpus(test_tokens: int = 500) -> Corpus:
    rng = np.random.default_rng(3)
    return Corpus("nano", WORDS, *(rng.integers(0, 30, test_tokens).astype(np.int32) for _ in range(3)))


@pytest.mark.corpora
def test_published_places_are_in_penn_treebank(mirror: Path):
    """All 18 next words stand where the published contexts end; in the cut with 2,000 words some are `<unk>`."""
    whole = words.read_corpus("ptb", mirror / "ptb")
    places = predictions.published_places(CONTEXTS)
    predictions.check_places(places, whole)
    assert [whole.words[whole.test[place.index]] for place in places] == [place.published_word for place in places]
    small = words.restrict(whole, 2000, 200_000, "ptb-small")
    predictions.check_places(places, small)
    top = predictions.TopWords(np.arange(5), np.zeros(5), 9)
    shown = {place.published_word: predictions.describe(place, top, small) for place in places}
    assert (shown["tons"]["target"], shown["centrust"]["target"]) == ("tons", "<unk>")
    assert "'centrust' is not in this vocabulary" in shown["centrust"]["note"]


def test_another_text_is_rejected():
    tokens = make_corpus()
    tokens.test[100:103] = WORDS.index("w7"), WORDS.index("<unk>"), WORDS.index("w9")
    predictions.check_places(
        [predictions.Place("random", 1, 100, 5, "w7"), predictions.Place("random", 2, 101, 5, "absent")], tokens
    )
    for index, word in ((100, "w8"), (101, "w7"), (102, "absent")):
        with pytest.raises(DataError, match=f"test token {index} is .* but '{word}' was published"):
            predictions.check_places([predictions.Place("random", 1, index, 5, word)], tokens)


def test_description_reads_the_text_by_index():
    tokens = make_corpus()
    top = predictions.TopWords(np.array([4, 2, 3, 5, 6]), np.log([0.4, 0.2, 0.1, 0.05, 0.01]), 6)
    shown = predictions.describe(predictions.Place("random", 3, 77, 4), top, tokens)
    assert shown["text"] == " ".join(WORDS[word] for word in tokens.test[73:77])
    assert shown["target"] == WORDS[tokens.test[77]]
    assert (shown["group"], shown["context"], shown["index"], shown["note"]) == ("random", 3, 77, "")
    assert [one["word"] for one in shown["top"]] == ["w2", "w0", "w1", "w3", "w4"]
    assert [one["log_prob"] for one in shown["top"]] == pytest.approx(np.log([0.4, 0.2, 0.1, 0.05, 0.01]))
    assert (shown["rank"], shown["hit"]) == (6, False)


def test_hit_rates_count_ranks():
    ranks = np.array([1, 1, 2, 5, 6, 10, 11, 400])
    rates = predictions.hit_rates(ranks)
    assert {k: one["rate"] for k, one in rates.items()} == {"1": 2 / 8, "5": 4 / 8, "10": 6 / 8}
    assert all(one["low"] < one["rate"] < one["high"] and one["n"] == 8 for one in rates.values())


@pytest.mark.parametrize(("successes", "n"), [(0, 1), (1, 1), (0, 10), (10, 10), (81, 263), (15_000, 82_429)])
def test_wilson_is_scipys(successes, n):
    expected = scipy.stats.binomtest(successes, n).proportion_ci(0.95, method="wilson")
    assert wilson_ends(successes / n, n) == pytest.approx((expected.low, expected.high), abs=1e-12)
