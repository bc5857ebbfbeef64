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

Newton's method (Mangasarian 2002, "A Finite Newton Method for Classification") settles almost all words before that.
Let the rows of A give the leads of word i over all other words at z = (h, t), and t itself. By Gordan's theorem, either
A z > 0 for some z, or c A = 0 for some weights c >= 0 that are not all zero. With a ridge that becomes smaller, the
minimum of

    |max(0, 1 - A z)|^2 + ridge |z|^2

approaches such a z, or c = max(0, 1 - A z) approaches such weights. Either one bounds the optimum of the program over
all words: m is at least the smallest lead at z / max |z|, and at most the sum of |c A| over the sum of the words' c.

Suffixes: V words, D width of a word vector, R words handled at once, S rivals.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.ranks.spectra import BLOCK_BYTES
from softmax_bottleneck.ranks.spectrum import Float64, Floats, refuse_non_finite

Words = NDArray[np.intp]
RIVALS = 64  # maximum number of rivals added to a linear program at once, or as many as it has variables, if more
SMALLEST_LEAD = 1e-7  # a smaller optimum m counts as zero: the solver's tolerance, for word vectors of length <= 1
RIDGE = 1e-8  # this share of the total variance is added to the covariance in every direction before it is inverted
STRIDE, NARROW = 8, 128  # narrow directions use every eighth dimension, if word vectors have at least 128
FLOAT32_RANGE = 1e12  # the largest weight must be below, and above its reciprocal, for directions to be tested
NEWTON_STEPS = 400  # at most; then linear programs are solved
NEWTON_ROWS = 4096  # rows of A at once, at most, and four more per dimension: those with the smallest leads
FIRST_RIDGE, LEAST_RIDGE = 1e-4, 1e-10  # of Newton's method; 1e-10 keeps its equations regular
SMALLER_RIDGE = 0.01  # factor of the ridge whenever the words with a lead below one stay the same
TINY = float(np.finfo(np.float64).tiny)
ROWS, TILE = 256, 4096  # words whose narrow directions are tested at once, against as many other words at a time


@dataclass(frozen=True)
class WordsThatWin:
    """The counts of argmax-reachable words, and the ids of the unargmaxable words.

    Attributes:
        by_direction: number of words shown to be argmax-reachable by dot products with a candidate direction.
        by_program: number of words shown to be argmax-reachable by a linear program.
        never: ids of the unargmaxable words. Two words with equal vectors and biases can only tie, so both are listed.
        unsettled: number of undecided words: time ran out, the solver failed, or the lead in the solver's solution is
            too small to be confirmed in float64.
        needed_s: estimated further seconds for the words that were not tested in time; 0 if there are none, or if no
            block of words was tested in time. If directions were not all tested, programs are not included.
        wall_s: wall time in seconds.
    """

    by_direction: int
    by_program: int
    never: tuple[int, ...]
    unsettled: int
    needed_s: float
    wall_s: float


def words_that_win(weight_VD: Floats, bias_V: Floats | None = None, *, seconds: float = 60.0) -> WordsThatWin:
    """Count the argmax-reachable words of an output layer, and list the unargmaxable ones.

    Words that are not decided after `seconds` are counted as unsettled. The time limit is checked between blocks of
    words, and also limits the solver. All CPU cores are used. Memory besides the weights: 16 V D / STRIDE bytes, 24 D^2
    bytes, some arrays of 16 MiB per core, and a copy in float32 of weights in float64. Computation: V^2 D / STRIDE
    flops for the first candidate direction, less for two more, 2 V D flops per word left for each of the last two, then
    one or more linear programs per remaining word.

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
    open_words, needed_s = np.arange(len(weight_VD)), 0.0
    for direction in _directions(weight_VD, deadline) if seconds else ():
        test, blocks = direction(open_words)
        left, more_s = in_time(test, blocks, deadline)
        open_words = np.sort(np.hstack([open_words[:0], *(block if some is None else some for block, some in left)]))
        needed_s = needed_s or more_s
    layer = Layer(weight_VD, bias_V)
    found, more_s = in_time(lambda word: layer.can_win(int(word), deadline), open_words, deadline)
    can, never = sum(wins is True for _, wins in found), tuple(int(word) for word, wins in found if wins is False)
    return WordsThatWin(
        by_direction=len(weight_VD) - len(open_words),
        by_program=can,
        never=never,
        unsettled=len(open_words) - can - len(never),
        needed_s=round(needed_s or more_s, 1),
        wall_s=round(time.monotonic() - started, 3),
    )


def in_time(
    test: Callable[[Any], Any], blocks: Sequence[Any] | Words, deadline: float
) -> tuple[list[tuple[Any, Any]], float]:
    """Call `test` on blocks, on all CPU cores, until the deadline, a time of `time.monotonic`.

    Returns:
        A pair (block, result) per block, in order, where the result of a block that was not tested in time is None; and
        the estimated seconds that further blocks need: 0 if all were tested or none was.
    """
    tested, started = list[float](), time.monotonic()

    def tested_in_time(block: Any) -> Any:
        if time.monotonic() > deadline:
            return None
        result = test(block)
        tested.append(time.monotonic())
        return result

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = list(pool.map(tested_in_time, blocks))
    more = len(blocks) - len(tested)
    needed_s = more * (max(tested) - started) / len(tested) if tested else 0.0
    return list(zip(blocks, results, strict=True)), needed_s


# --- candidate directions -------------------------------------------------------------------------------------------
Direction = Callable[[Words], tuple[Callable[[Words], Words], list[Words]]]  # words -> (test, blocks of words)


def _directions(weight_VD: Floats, deadline: float) -> Iterator[Direction]:
    """Yield the tests by a candidate direction: each returns the words of a block that the direction does not settle.

    The first directions of word i are narrow: w_i - mean, as it is and whitened, projected on every STRIDE-th
    eigenvector of the covariance of word vectors, and whitened on twice as many, which tells the words of a cluster
    apart. The last two are not projected. Any direction can only prove that a word is reachable, so the covariance need
    not be exact: it stops growing at the deadline.
    """
    mean_D, width = weight_VD.mean(0, dtype=np.float64), weight_VD.shape[1]
    if not 1 / FLOAT32_RANGE < np.abs(weight_VD).max() < FLOAT32_RANGE:
        return  # products in float32 could be rounded to zero or infinity
    covariance_DD = np.zeros((width, width))
    for rows in _slices(len(weight_VD), 8 * width):
        if time.monotonic() < deadline:
            centred_RD = (weight_VD[rows] - mean_D).astype(np.float32)
            covariance_DD += centred_RD.T @ centred_RD
    variance_D, axes_DD = np.linalg.eigh(covariance_DD / max(float(covariance_DD.trace()), TINY))
    whitened_DD = axes_DD / np.sqrt(np.maximum(variance_D, 0.0) + RIDGE)
    if width >= NARROW:
        for basis_DD, stride in ((axes_DD, STRIDE), (whitened_DD, STRIDE), (whitened_DD, STRIDE // 2)):
            yield partial(_projected, weight_VD, mean_D, basis_DD[:, ::-stride])
    single_VD = weight_VD.astype(np.float32, copy=False)
    for metric_DD in (np.eye(width), whitened_DD @ whitened_DD.T):
        yield partial(_whole, weight_VD, single_VD, mean_D, metric_DD)


def _slices(length: int, row_bytes: int) -> Iterator[slice]:
    """Yield slices that cover `length` rows in blocks of about BLOCK_BYTES."""
    step = max(1, BLOCK_BYTES // row_bytes)
    yield from (slice(start, start + step) for start in range(0, length, step))


def _projected(
    weight_VD: Floats, mean_D: Float64, basis_DE: Float64, words: Words
) -> tuple[Callable[[Words], Words], list[Words]]:
    """Test the direction p_i = (w_i - mean) B in the space that the columns of B, which is `basis_DE`, span.

    Word i is argmax-reachable if p_i . p_i > p_j . p_i for all other words j, by more than the rounding error. Only
    words with |p_j| >= |p_i| can break this, so that the words are sorted by |p_j|, and shorter ones are left out.
    """
    point_VE, farthest = np.empty((len(weight_VD), basis_DE.shape[1]), np.float32), 0.0
    for rows in _slices(len(weight_VD), 8 * len(mean_D)):
        centred_RD = weight_VD[rows] - mean_D
        farthest = max(farthest, float(np.linalg.norm(centred_RD, axis=1).max()))
        point_VE[rows] = centred_RD @ basis_DE
    length_V = np.linalg.norm(point_VE.astype(np.float64), axis=1)
    order = np.argsort(-length_V)
    longest = max(float(length_V.max()), TINY)  # scaled to one, so that no product becomes too small
    place_V, point_VE, length_V = np.argsort(order), point_VE[order] / np.float32(longest), length_V[order] / longest
    # the error of a product with p_i over |p_i|: of points in float64 and in float32, and of the sum in float32
    error = 2 * len(mean_D) * np.finfo(np.float64).eps * farthest * float(np.linalg.norm(basis_DE)) / longest
    error += (basis_DE.shape[1] + 6) * float(np.finfo(np.float32).eps)

    def test(words_R: Words) -> Words:
        place_R = place_V[words_R]
        length_R, best_R = length_V[place_R], np.full(len(place_R), -np.inf)
        longer = int(np.searchsorted(-length_V, error - length_R[-1], side="right"))
        for start in range(0, longer, TILE):
            score_RS = point_VE[place_R] @ point_VE[start : min(start + TILE, longer)].T
            inside = np.flatnonzero((place_R >= start) & (place_R < start + score_RS.shape[1]))
            score_RS[inside, place_R[inside] - start] = -np.inf
            best_R = np.maximum(best_R, score_RS.max(1))
        return words_R[~(length_R**2 - best_R > error * length_R)]

    return test, _blocks(order[np.sort(place_V[words])], ROWS)


def _blocks(words: Words, size: int) -> list[Words]:
    return [words[start : start + size] for start in range(0, len(words), size)]


def _whole(
    weight_VD: Floats, single_VD: NDArray[np.float32], mean_D: Float64, metric_DD: Float64, words: Words
) -> tuple[Callable[[Words], Words], list[Words]]:
    """Test the direction (w_i - mean) M, where M is `metric_DD`.

    Word i is argmax-reachable if its vector has the largest dot product with this direction, by more than the rounding
    error. Products are in float32, with the rounded weights `single_VD`; where these do not decide, float64 does.
    """
    longest = float(np.sqrt(np.einsum("vd,vd->v", single_VD, single_VD).max()))
    rounding = {dtype: 2 * (len(mean_D) + 4) * float(np.finfo(dtype).eps) * longest for dtype in ("f4", "f8")}

    def test(words_R: Words) -> Words:
        direction_RD = (weight_VD[words_R] - mean_D) @ metric_DD
        direction_RD /= np.maximum(np.linalg.norm(direction_RD, axis=1, keepdims=True), TINY)
        direction_RD = direction_RD.astype(np.float32)
        score_RV, own = direction_RD @ single_VD.T, (np.arange(len(words_R)), words_R)
        own_R, score_RV[own] = score_RV[own], -np.inf
        length_R = np.linalg.norm(direction_RD.astype(np.float64), axis=1)
        lead_R, error_R = own_R - score_RV.max(1, initial=-np.inf), rounding["f4"] * length_R
        sure_R = lead_R > error_R
        for row in np.flatnonzero(~sure_R & (lead_R > -error_R)):
            rivals = np.flatnonzero(score_RV[row] >= own_R[row] - error_R[row])
            ahead_SD = weight_VD[words_R[row]].astype(np.float64) - weight_VD[rivals]
            sure_R[row] = (ahead_SD @ direction_RD[row].astype(np.float64) > rounding["f8"] * length_R[row]).all()
        return words_R[~sure_R]

    return test, _blocks(words, max(1, BLOCK_BYTES // (4 * len(weight_VD))))


class Layer:
    """An output layer, and the search for context vectors that make one of its words the most probable one.

    The search may be restricted to context vectors h = start + axes y (E numbers y), and some words may be left out.

    Attributes:
        weight_VD, bias_V: weights and biases.
        scale: factor that gives the longest word vector length one; the linear programs use scaled weights and biases.
        mean_D: mean word vector.
        start_D, axes_DE: the allowed context vectors; by default all.
        apart: ids of the words that are left out.
    """

    def __init__(self, weight_VD: Floats, bias_V: Floats) -> None:
        self.weight_VD, self.bias_V = weight_VD, bias_V.astype(np.float64)
        self.scale = 1.0 / max(float(np.sqrt(np.einsum("vd,vd->v", weight_VD, weight_VD).max())), 1e-300)
        self.mean_D = weight_VD.mean(0)
        self.start_D, self.axes_DE = np.zeros(weight_VD.shape[1]), np.eye(weight_VD.shape[1])
        self.apart: Words = np.zeros(0, np.intp)

    def restricted(self, start_D: Float64, axes_DE: Float64, apart: Words) -> Layer:
        """Return the same layer with a restricted search; `axes_DE` has orthonormal columns."""
        layer = copy(self)
        layer.start_D, layer.axes_DE, layer.apart = start_D, axes_DE, apart
        return layer

    def can_win(self, word: int, deadline: float) -> bool | None:
        """Return True if some context vector makes this word the most probable one, and False if none does.

        The result is None ("undecided") if the deadline passes, the solver fails, or the lead at the solution is not
        confirmed by scores in float64. The deadline is a time of `time.monotonic`.
        """
        z_E = np.append(self.axes_DE.T @ (self.weight_VD[word] - self.mean_D) * self.scale, 0.0)
        wins = self._newton(word, z_E)
        if wins is not None:
            return wins
        rivals = self._ahead_of(word, z_E, least=-np.inf)
        while (left_s := deadline - time.monotonic()) > 0:
            found = self._best(word, rivals, left_s)
            if found is None:
                return None
            z_E, lead = found
            if lead <= SMALLEST_LEAD:
                return False
            new = np.setdiff1d(self._ahead_of(word, z_E, least=0.0), rivals)
            if not len(new):
                return True if self._beats_all(word, z_E) else None
            rivals = np.concatenate([rivals, new])
        return None

    def _newton(self, word: int, z_E: Float64) -> bool | None:
        """Settle `can_win` by Newton's method from z on, as the module's docstring explains; None if it does not."""
        ridge, active, lead_V = FIRST_RIDGE, self.apart[:0], self._leads(word, z_E)
        for _ in range(NEWTON_STEPS):
            short, before = np.flatnonzero(lead_V < 1.0), active
            active = np.sort(short[np.argsort(lead_V[short])[: NEWTON_ROWS + 4 * len(z_E)]])
            ridge = max(ridge * (SMALLER_RIDGE if np.array_equal(active, before) else 1.0), LEAST_RIDGE)
            row_SE = self._rows(word, active)
            next_E = np.linalg.solve(row_SE.T @ row_SE + ridge * np.eye(len(z_E)), row_SE.sum(0))
            next_V = self._leads(word, next_E)
            next_V[active] = row_SE @ next_E  # in float64, also for weights in float32
            if next_V.min() > SMALLEST_LEAD * np.abs(next_E).max() and self._beats_all(word, next_E):
                return True
            c_S = np.maximum(1.0 - next_V[active], 0.0)
            if np.abs(c_S @ row_SE).sum() < SMALLEST_LEAD * c_S[active < len(self.bias_V)].sum():
                return False
            steps = 2.0 ** -np.arange(10)  # the whole step is the best but near the end
            points = ((z_E + step * (next_E - z_E), lead_V + step * (next_V - lead_V)) for step in steps)
            z_E, lead_V = min(points, key=partial(_shortfall, ridge))
        return None

    def _rows(self, word: int, rivals: Words) -> Float64:
        """Return the rows of A, scaled, for some words; V stands for the last row, that of t."""
        words = rivals[rivals < len(self.bias_V)]
        ahead_SD = self.weight_VD[word].astype(np.float64) - self.weight_VD[words]
        fixed_S = ahead_SD @ self.start_D + self.bias_V[word] - self.bias_V[words]
        row_SE = self.scale * np.column_stack([ahead_SD @ self.axes_DE, fixed_S])
        return row_SE if len(words) == len(rivals) else np.vstack([row_SE, np.eye(row_SE.shape[1])[-1:]])

    def _best(self, word: int, rivals: Words, seconds: float) -> tuple[Float64, float] | None:
        """Solve the linear program of `word` against `rivals` (ids of words); see the module's docstring.

        Returns:
            (z, m): the vector y and the factor t, as z [E + 1], and the smallest lead m at the optimum, for word
            vectors and biases multiplied by `scale`. None if the solver fails or needs more than `seconds`.
        """
        from scipy.optimize import linprog  # imported here, because it takes 0.25 s and no step of a run needs it

        width = self.axes_DE.shape[1]
        solved = linprog(
            np.append(np.zeros(width + 1), -1.0),
            A_ub=np.column_stack([-self._rows(word, rivals), np.ones(len(rivals))]),
            b_ub=np.zeros(len(rivals)),
            bounds=[(-1.0, 1.0)] * width + [(0.0, 1.0), (0.0, None)],
            method="highs",
            options={"time_limit": seconds},
        )
        if solved.x is None or solved.status:
            return None
        return solved.x[:-1], float(solved.x[-1])

    def _ahead_of(self, word: int, z_E: Float64, least: float) -> Words:
        """Return the ids of the words whose score is at least `least` above the score of `word` at z.

        If `least` is -inf, all other words qualify. If more than RIVALS words qualify, or than E if that is more,
        only those with the highest scores are returned. `word` itself is never returned.
        """
        most, lead_V = max(RIVALS, self.axes_DE.shape[1]), self._leads(word, z_E)[:-1]
        best = np.argpartition(lead_V, min(most, len(lead_V) - 1))[:most]
        return best[(lead_V[best] <= -least) & ~np.isin(best, [word, *self.apart])]

    def _beats_all(self, word: int, z_E: Float64) -> bool:
        """Return True if the word's score, computed in float64, is higher than that of every other word."""
        return bool(self._leads(word, z_E, np.float64)[:-1].min() > 0)

    def _leads(self, word: int, z_E: Float64, dtype: type[np.floating[Any]] | None = None) -> Float64:
        """Return A z, scaled, with 2 for `word` itself and for the words that are left out.

        Products are of type `dtype`, by default the type of the weights.
        """
        h_D = (self.axes_DE @ z_E[:-1] + z_E[-1] * self.start_D).astype(dtype or self.weight_VD.dtype)
        blocks = (self.weight_VD[rows].astype(h_D.dtype, copy=False) for rows in _slices(len(self.bias_V), h_D.nbytes))
        score_V = np.concatenate([block_RD @ h_D for block_RD in blocks]) + z_E[-1] * self.bias_V
        lead_V = np.append((score_V[word] - score_V) * self.scale, z_E[-1])
        lead_V[word] = lead_V[self.apart] = 2.0
        return lead_V


def _shortfall(ridge: float, point: tuple[Float64, Float64]) -> float:
    """Return |max(0, 1 - A z)|^2 + ridge |z|^2 at the point (z, A z)."""
    z_E, lead_V = point
    return float(np.square(np.maximum(1.0 - lead_V, 0.0)).sum() + ridge * z_E @ z_E)
