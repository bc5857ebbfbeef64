"""Interpolated Kneser-Ney n-gram models (Ney, Essen and Kneser 1994; Chen and Goodman 1999), over all words.

For a history h of n - 1 words and its suffix h' without the first word:

    P_n(w|h) = max(c(h w) - D_n, 0) / c(h) + D_n t(h) / c(h) P_(n-1)(w|h'),      P_0 = 1 / V

At the highest order, c counts n-grams of the text. At lower orders, c(g) is the number of distinct words that precede
the n-gram g. The denominator c(h) is the sum of c(h w) over w, and t(h) the number of words w with c(h w) > 0. The
discount is D_n = n1 / (n1 + 2 n2), where n1 and n2 are the numbers of n-grams with c = 1 and c = 2. If h never
precedes a word, P_n(w|h) = P_(n-1)(w|h'). The text is one stream; lines are not padded.

Shapes: T tokens of a text, G distinct n-grams, N contexts, L words of a history, V words.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.integer]
Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Order:
    """The n-grams of one length n, sorted by `key_G`, so that those with the same history are neighbours.

    Attributes:
        key_G: (number of the first n - 1 words among the (n-1)-grams) V + last word.
        count_G: c of every n-gram, see the module's docstring.
        discount: D_n.
    """

    key_G: NDArray[np.int64]
    count_G: NDArray[np.int64]
    discount: float


def estimate(ids_T: Ids, words: int, order: int) -> list[Order]:
    """Count the n-grams of a text for n = 1, ..., `order`; `words` is V, the number of words of the dictionary."""
    tables: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    prefix_T = np.zeros(len(ids_T) + 1, np.int64)  # number of the (n-1)-gram that begins at each position
    for n in range(1, order + 1):
        key_T = prefix_T[: len(ids_T) - n + 1] * words + ids_T[n - 1 :]
        key_G, first_G, number_T, count_G = np.unique(key_T, return_index=True, return_inverse=True, return_counts=True)
        if n > 1:  # the last n - 1 words of an n-gram begin one position later
            tables[-1] = (tables[-1][0], np.bincount(prefix_T[first_G + 1], minlength=len(tables[-1][0])))
        tables.append((key_G, count_G))
        prefix_T = number_T
    return [Order(key_G, count_G, _discount(count_G)) for key_G, count_G in tables]


def _discount(count_G: NDArray[np.int64]) -> float:
    """Return n1 / (n1 + 2 n2), or 0.5 if no n-gram has the count 1."""
    once, twice = int((count_G == 1).sum()), int((count_G == 2).sum())
    return once / (once + 2 * twice) if once else 0.5


def log_probs(orders: list[Order], history_NL: Ids, words: int) -> Array:
    """Return ln P(w|h) for every history and word, [N, V]; `history_NL` has at least `len(orders)` - 1 words each."""
    p_NV = np.full((len(history_NL), words), 1 / words)
    for n, table in enumerate(orders, start=1):
        for p_V, history_L in zip(p_NV, history_NL, strict=True):
            number = _number(orders, history_L[len(history_L) - n + 1 :], words)
            if number is None:
                continue
            part = slice(*np.searchsorted(table.key_G, [number * words, (number + 1) * words]))
            follower_F, count_F = table.key_G[part] - number * words, table.count_G[part]
            if not count_F.sum():
                continue
            discounted_F = np.maximum(count_F - table.discount, 0)
            p_V *= 1 - discounted_F.sum() / count_F.sum()
            p_V[follower_F] += discounted_F / count_F.sum()
    return np.log(p_NV)


def _number(orders: list[Order], history: Ids, words: int) -> int | None:
    """Return the number of a history among the n-grams of its length; None if the text does not contain it."""
    number = 0
    for table, word in zip(orders, history.tolist(), strict=False):
        key = number * words + word
        number = int(np.searchsorted(table.key_G, key))
        if number == len(table.key_G) or table.key_G[number] != key:
            return None
    return number
