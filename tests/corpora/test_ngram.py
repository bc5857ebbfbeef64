"""Kneser-Ney n-gram models: a computation by hand, and a naive one that follows the formula word by word."""

import math
from collections import Counter

import numpy as np
import pytest
from softmax_bottleneck.corpora import ngram


def test_a_bigram_model_equals_a_computation_by_hand():
    # The text a b a c a b (0 1 0 2 0 1) has the bigrams ab 2, ba 1, ac 1, ca 1, and n1 / (n1 + 2 n2) = 3 / 5.
    # Distinct words before: a 2 (b, c), b 1 (a), c 1 (a); there D = 2 / (2 + 2) = 1 / 2.
    low = [(2 - 0.5) / 4, 0.5 / 4, 0.5 / 4]
    low = [p + 0.5 * 3 / 4 / 3 for p in low]
    after_a = [0.6 * 2 / 3 * low[0], (2 - 0.6) / 3 + 0.6 * 2 / 3 * low[1], (1 - 0.6) / 3 + 0.6 * 2 / 3 * low[2]]
    after_b = [(1 - 0.6) + 0.6 * low[0], 0.6 * low[1], 0.6 * low[2]]
    orders = ngram.estimate(np.array([0, 1, 0, 2, 0, 1]), 3, 2)
    found = np.exp(ngram.log_probs(orders, np.array([[0], [1]]), 3))
    assert np.allclose(found, [after_a, after_b], rtol=1e-12) and np.allclose(found.sum(1), 1)


def naive(text: list[int], words: int, order: int, history: list[int], word: int) -> float:
    """P(word|history) by the recursion, with dictionaries of tuples."""

    def counts(n: int) -> Counter[tuple[int, ...]]:
        grams = [tuple(text[i : i + n]) for i in range(len(text) - n + 1)]
        if n == order:
            return Counter(grams)
        longer = {tuple(text[i : i + n + 1]) for i in range(len(text) - n)}
        return Counter(gram[1:] for gram in longer)

    def probability(n: int) -> float:
        if n == 0:
            return 1 / words
        table, before = counts(n), tuple(history[len(history) - n + 1 :])
        once, twice = (sum(count == k for count in table.values()) for k in (1, 2))
        discount = once / (once + 2 * twice) if once else 0.5
        followers = {gram: count for gram, count in table.items() if gram[:-1] == before and count}
        total = sum(followers.values())
        if not total:
            return probability(n - 1)
        own = max(followers.get((*before, word), 0) - discount, 0) / total
        return own + discount * len(followers) / total * probability(n - 1)

    return probability(order)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_every_probability_equals_the_recursion(order):
    rng = np.random.default_rng(order)
    text, words = rng.choice(5, 60, p=[0.4, 0.3, 0.15, 0.1, 0.05]), 7  # two words never occur
    histories = rng.integers(0, words, (12, max(order - 1, 1)), dtype=np.int32)
    found = np.exp(ngram.log_probs(ngram.estimate(text, words, order), histories, words))
    for row, history in zip(found, histories.tolist(), strict=True):
        expected = [naive(text.tolist(), words, order, history, word) for word in range(words)]
        assert np.allclose(row, expected, rtol=1e-10) and math.isclose(row.sum(), 1)


def test_numbers_of_a_large_vocabulary_do_not_overflow():
    text, words = np.array([99_998, 99_999, 99_998, 99_999, 5], np.int32), 100_000  # keys up to 1e10
    found = ngram.log_probs(ngram.estimate(text, words, 3), text[None, 1:3], words)
    assert found.shape == (1, words) and np.exp(found).sum() == pytest.approx(1)
