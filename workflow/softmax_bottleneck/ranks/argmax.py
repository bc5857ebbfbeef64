"""Unargmaxable words: words that are never the most probable word, whatever the context vector.

The method is that of Grivas, Bogoychev and Lopez 2022, "Low-Rank Softmax Can Have Unargmaxable Classes in Theory but
Rarely in Practice". Word i is argmax-reachable if some context vector h has w_i . h + b_i > w_j . h + b_j for all other
words j; w are the word vectors, i.e. the rows of the output layer's weights, and b its biases. Two candidate directions
for h settle most words with dot products alone: the difference of w_i from the mean word vector, and this difference
multiplied by the inverse covariance of the word vectors (whitened). If w_i has the largest dot product with a
direction, word i wins for every h that is long enough in this direction, whatever the biases.

For each remaining word i, a linear program in h, t and m is solved against a few other words j, the rivals:

    maximise m,   (w_i - w_j) . h + (b_i - b_j) t >= m for all rivals j,   -1 <= h <= 1,   0 <= t <= 1

m is the smallest lead of word i over a rival. In the program, h has bounds, which context vectors do not have. The
factor t of the biases compensates for the bounds: if t > 0, h / t is a context vector with the lead m / t. If t = 0 and
m > 0, every positive multiple of h that is long enough makes word i beat the rivals. The optimum m is zero if no
context vector makes word i beat the rivals. Words that score higher than i at the solution are added to the rivals, and
the program is solved again, until word i beats all words or m is zero. An increasing function of the logits, such as a
cap, changes no result.

Suffixes: V words, D width of a word vector, R words handled at once, S rivals.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.ranks.spectra import BLOCK_BYTES
from softmax_bottleneck.ranks.spectrum import Float64, Floats, refuse_non_finite

Words = NDArray[np.intp]
RIVALS = 64  # maximum number of rivals added to a linear program at once
SMALLEST_LEAD = 1e-7  # a smaller optimum m counts as zero: the solver's tolerance, for word vectors of length <= 1
RIDGE = 1e-8  # this share of the total variance is added to the covariance in every direction before it is inverted


@dataclass(frozen=True)
class WordsThatWin:
    """The counts of argmax-reachable words, and the ids of the unargmaxable words.

    Attributes:
        by_direction: number of words shown to be argmax-reachable by dot products with a candidate direction.
        by_program: number of words shown to be argmax-reachable by a linear program.
        never: ids of the unargmaxable words. Two words with equal vectors and biases can only tie, so both are listed.
        unsettled: number of undecided words: time ran out, the solver failed, or the lead in the solver's solution is
            too small to be confirmed in float64.
        wall_s: wall time in seconds.
    """

    by_direction: int
    by_program: int
    never: tuple[int, ...]
    unsettled: int
    wall_s: float


def words_that_win(weight_VD: Floats, bias_V: Floats | None = None, *, seconds: float = 60.0) -> WordsThatWin:
    """Count the argmax-reachable words of an output layer, and list the unargmaxable ones.

    Words that are not decided after `seconds` are counted as unsettled. The time limit is checked between blocks of
    words, and also limits the solver. Memory besides the weights: some arrays of 16 MiB, and 24 D^2 bytes. Computation:
    2 V^2 D flops for each of the two candidate directions, then one or more linear programs per remaining word.

    Args:
        weight_VD: weights of the output layer.
        bias_V: biases of the output layer; None for a layer without biases.
        seconds: time limit.

    Raises:
        DataError: a weight is nan or infinite.
    """
    refuse_non_finite(weight_VD, "the weights")
    started = time.monotonic()
    deadline = started + seconds
    bias_V = np.zeros(len(weight_VD), weight_VD.dtype) if bias_V is None else bias_V
    open_words = np.arange(len(weight_VD))
    for metric in (_plain, _whitening):
        if (metric_DD := metric(weight_VD, deadline)) is not None:
            open_words = _not_ahead(weight_VD, metric_DD.astype(weight_VD.dtype), open_words, deadline)
    can, never, layer = 0, [], _Layer(weight_VD, bias_V)
    for word in open_words:
        if time.monotonic() > deadline:
            break
        wins = layer.can_win(int(word), deadline)
        can += wins is True
        never += [int(word)] if wins is False else []
    unsettled = len(open_words) - can - len(never)
    return WordsThatWin(
        len(weight_VD) - len(open_words), can, tuple(never), unsettled, round(time.monotonic() - started, 3)
    )


def _plain(weight_VD: Floats, deadline: float) -> Float64:
    """Return the identity matrix [D, D], with which `_not_ahead` tests the candidate direction w_i - mean.

    `deadline` is unused; it is an argument because `words_that_win` calls this function like `_whitening`.
    """
    return np.eye(weight_VD.shape[1])


def _whitening(weight_VD: Floats, deadline: float) -> Float64 | None:
    """Return the regularised inverse covariance [D, D] of the word vectors, up to a factor that changes no direction.

    The result is None if the deadline, a time of `time.monotonic`, passes first.
    """
    mean_D = weight_VD.mean(0, dtype=np.float64)
    covariance_DD = np.zeros((len(mean_D), len(mean_D)))
    step = max(1, BLOCK_BYTES // mean_D.nbytes)
    for start in range(0, len(weight_VD), step):
        if time.monotonic() > deadline:
            return None
        centred_RD = weight_VD[start : start + step] - mean_D
        covariance_DD += centred_RD.T @ centred_RD
    variance = max(float(covariance_DD.trace()), np.finfo(float).tiny)
    return np.asarray(np.linalg.inv(covariance_DD / variance + RIDGE * np.eye(len(mean_D))))


def _not_ahead(weight_VD: Floats, metric_DD: Floats, words: Words, deadline: float) -> Words:
    """Return those of `words` (ids) that their candidate directions do not prove to be argmax-reachable.

    The direction of word i is (w_i - mean) M, where M is `metric_DD`. Word i is argmax-reachable if its vector has the
    largest dot product with this direction, by more than the rounding error. Words not tested before the deadline, a
    time of `time.monotonic`, are returned, too.
    """
    mean_D, longest = weight_VD.mean(0), np.sqrt(np.einsum("vd,vd->v", weight_VD, weight_VD).max())
    rounding = weight_VD.shape[1] * np.finfo(weight_VD.dtype).eps * longest
    step = max(1, BLOCK_BYTES // weight_VD[:, 0].nbytes)
    left = []
    for start in range(0, len(words), step):
        some = words[start : start + step]
        if time.monotonic() > deadline:
            left.append(words[start:])
            break
        direction_RD = (weight_VD[some] - mean_D) @ metric_DD
        score_RV, own = direction_RD @ weight_VD.T, (np.arange(len(some)), some)
        own_R, score_RV[own] = score_RV[own], -np.inf
        sure = own_R - score_RV.max(1, initial=-np.inf) > 2 * rounding * np.linalg.norm(direction_RD, axis=1)
        left.append(some[~sure])
    return np.concatenate(left) if left else words


class _Layer:
    """An output layer, and the search for context vectors that make one of its words the most probable one.

    Attributes:
        weight_VD, bias_V: weights and biases.
        scale: factor that gives the longest word vector length one; the linear programs use scaled weights and biases.
        mean_D: mean word vector.
    """

    def __init__(self, weight_VD: Floats, bias_V: Floats) -> None:
        self.weight_VD, self.bias_V = weight_VD, bias_V.astype(np.float64)
        self.scale = 1.0 / max(float(np.sqrt(np.einsum("vd,vd->v", weight_VD, weight_VD).max())), 1e-300)
        self.mean_D = weight_VD.mean(0)

    def can_win(self, word: int, deadline: float) -> bool | None:
        """Return True if some context vector makes this word the most probable one, and False if none does.

        The result is None ("undecided") if the deadline passes, the solver fails, or the lead at the solution is not
        confirmed by scores in float64. The deadline is a time of `time.monotonic`.
        """
        rivals = self._ahead_of(word, self.weight_VD[word] - self.mean_D, 0.0, least=-np.inf)
        while (left_s := deadline - time.monotonic()) > 0:
            found = self._best(word, rivals, left_s)
            if found is None:
                return None
            h_D, t, lead = found
            if lead <= SMALLEST_LEAD:
                return False
            new = np.setdiff1d(self._ahead_of(word, h_D.astype(self.weight_VD.dtype), t, least=0.0), rivals)
            if not len(new):
                return True if self._leads(word, h_D, t) else None
            rivals = np.concatenate([rivals, new])
        return None

    def _best(self, word: int, rivals: Words, seconds: float) -> tuple[Float64, float, float] | None:
        """Solve the linear program of `word` against `rivals` (ids of words); see the module's docstring.

        Returns:
            (h, t, m): the vector h [D], the factor t of the biases and the smallest lead m at the optimum, for word
            vectors and biases multiplied by `scale`. None if the solver fails or needs more than `seconds`.
        """
        from scipy.optimize import linprog  # imported here, because it takes 0.25 s and no step of a run needs it

        ahead_SD = self.weight_VD[rivals].astype(np.float64) - self.weight_VD[word]
        columns = [ahead_SD * self.scale, (self.bias_V[rivals] - self.bias_V[word]) * self.scale, np.ones(len(rivals))]
        width = ahead_SD.shape[1]
        solved = linprog(
            np.append(np.zeros(width + 1), -1.0),
            A_ub=np.column_stack(columns),
            b_ub=np.zeros(len(rivals)),
            bounds=[(-1.0, 1.0)] * width + [(0.0, 1.0), (0.0, None)],
            method="highs",
            options={"time_limit": seconds},
        )
        if solved.x is None or solved.status:
            return None
        return solved.x[:width], float(solved.x[width]), float(solved.x[-1])

    def _ahead_of(self, word: int, h_D: Floats, t: float, least: float) -> Words:
        """Return the ids of the words whose score w . h + b t is at least `least` above the score of `word`.

        If `least` is -inf, all other words qualify. If more than RIVALS words qualify, only the RIVALS words with the
        highest scores are returned. `word` itself is never returned.
        """
        lead_V = self.weight_VD @ h_D + t * self.bias_V
        lead_V -= lead_V[word]
        lead_V[word] = -np.inf
        best = np.argpartition(-lead_V, min(RIVALS, len(lead_V) - 1))[:RIVALS]
        chosen: Words = best[(lead_V[best] >= least) & (best != word)]
        return chosen

    def _leads(self, word: int, h_D: Float64, t: float) -> bool:
        """Return True if the word's score w . h + b t, computed in float64, is higher than that of every other word."""
        own = float(self.weight_VD[word].astype(np.float64) @ h_D + t * self.bias_V[word])
        step = max(1, BLOCK_BYTES // (8 * len(h_D)))
        for start in range(0, len(self.bias_V), step):
            rows = slice(start, start + step)
            score_R = self.weight_VD[rows].astype(np.float64) @ h_D + t * self.bias_V[rows]
            if start <= word < start + step:
                score_R[word - start] = -np.inf
            if not own > score_R.max():
                return False
        return True
