"""The number of tokens that can have given probabilities at the top of a softmax layer (Basri and Jacobs 2026).

The bottleneck does not allow every distribution over V words, but it may allow any distribution over the most probable
ones. A draw is a set of m tokens with probabilities. It is realisable if some context vector h gives

    (w_s - w_r) . h + b_s - b_r = ln(p_s / p_r)   for all tokens s of the set      w_j . h + b_j < w_r . h + b_r   else,

where r is the least probable token of the set: the ratios are exact, and all other tokens are less probable. The m - 1
equations leave the vectors h = start + axes y, and r must be the most probable token but for the set (`argmax.Layer`).
If some direction raises the whole set above all other tokens, then the other tokens' total can be made as small as one
likes: the probabilities themselves are then as close to exact as one likes.

The tokens of a draw are in random order, and its sets are the first m. They get the m largest of D + 1 probabilities
that are uniform on the simplex. This law depends on D: the median of p_1 / p_2 is 1.29 for D = 16 and 1.19 for D = 64.
The vector for m + 1 tokens also serves for m, so that each draw has a largest m, which bisection finds. A set of m
tokens has m - 1 equations in D unknowns, and therefore m <= D + 1, except for layers in special position.

Suffixes: V words, D width of a word vector, M tokens of a draw, E = D - m + 1.
"""

import math
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import special

from softmax_bottleneck.ranks.argmax import Layer, Words, in_time
from softmax_bottleneck.ranks.spectrum import Float64, Floats, refuse_non_finite

DRAWS = 80  # order statistics of 72 or more bound the 5 % quantile on both sides
SHARE = 0.95  # of draws that must be realisable
LEVEL = 0.95  # of the interval
RANDOM_DIRECTIONS = "-random-directions"  # after the name of a model: `random_directions` in place of its weights
SMALLEST_SINGULAR = 1e-10  # times the largest: equations with a smaller singular value depend on each other


@dataclass(frozen=True)
class TopTokens:
    """The largest numbers m of tokens whose probabilities can be realised at the top of an output layer.

    A draw is undecided if time ran out, the solver failed, or a lead is too small to be confirmed. So `m` and `median`
    are pairs: the m if undecided draws fail, and the m if they succeed, wherever they are undecided. The pairs are
    equal if all draws are decided.

    Attributes:
        bounds: the smallest and the largest m that each draw can have, equal for a decided draw.
        most: the largest m that was tried, min(V - 1, D + 1).
        wall_s: wall time in seconds.
    """

    bounds: tuple[tuple[int, int], ...]
    most: int
    wall_s: float

    @property
    def undecided(self) -> int:
        """The number of undecided draws."""
        return sum(low < high for low, high in self.bounds)

    @property
    def median(self) -> tuple[int, int]:
        """The largest m for which half of the draws or more are realisable."""
        return self._largest(0.5)

    @property
    def m(self) -> tuple[int, int]:
        """The largest m for which a SHARE of the draws or more is realisable."""
        return self._largest(SHARE)

    @property
    def interval(self) -> tuple[int, int]:
        """The 95 % interval of m from order statistics of independent draws; 0 or `most` where draws are too few.

        Its low end holds even if all undecided draws fail, and its high end even if they succeed.
        """
        count = len(self.bounds)
        below = special.bdtr(np.arange(count + 1), count, 1 - SHARE)  # P(at most so many draws are below the quantile)
        low, high = np.searchsorted(below, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        lows, highs = map(sorted, zip(*self.bounds, strict=True))
        return (0, *lows)[low], (*highs, self.most)[high]

    def _largest(self, share: float) -> tuple[int, int]:
        lows, highs = map(sorted, zip(*self.bounds, strict=True))
        place = math.floor(len(self.bounds) * (1 - share))
        return lows[place], highs[place]

    def to_json(self) -> dict[str, Any]:
        """Return m, its interval, the median, the number of undecided draws, and the attributes."""
        return {name: getattr(self, name) for name in ("m", "interval", "median", "undecided")} | asdict(self)


def random_directions(weight_VD: Floats, seed: int) -> Float64:
    """Return rows of independent, uniform directions, each as long as the row of `weight_VD` in its place."""
    normal_VD = np.random.default_rng(seed).standard_normal(weight_VD.shape)
    lengths_V1, normal_V1 = (np.linalg.norm(rows, axis=1, keepdims=True) for rows in (weight_VD, normal_VD))
    return np.asarray(normal_VD * lengths_V1 / normal_V1)


def top_tokens(
    weight_VD: Floats, bias_V: Floats | None = None, *, draws: int = DRAWS, seed: int = 0, seconds: float = math.inf
) -> TopTokens | None:
    """Return the largest m of each draw of tokens and probabilities (module docstring).

    All CPU cores are used. Results depend only on the layer, `draws` and `seed`, unless `seconds` run out. Then draws
    that were not begun are left out, and those that were not finished are undecided, because leaving them out would
    prefer quick draws. The result is None if no draw was begun.

    Raises:
        DataError: a weight or bias is nan or infinite.
    """
    refuse_non_finite(weight_VD, "the weights")
    if bias_V is not None:
        refuse_non_finite(bias_V, "the biases")
    started = time.monotonic()
    words, width = weight_VD.shape
    layer = Layer(weight_VD, np.zeros(words) if bias_V is None else bias_V)
    most = min(words - 1, width + 1)
    likely = round(width / (2 * math.log(max(words / width, math.e))))  # for random W (Donoho and Tanner 2009)

    def bounds(draw: int) -> tuple[int, int]:
        rng = np.random.default_rng([seed, draw])
        token_M = rng.choice(words, most, replace=False)
        log_p_M = np.log(np.sort(rng.exponential(size=width + 1))[::-1][:most])
        low, high, m, step = 0, most + 1, min(max(1, likely), most), 1
        while high - low > 1:
            possible = _is_realisable(layer, token_M[:m], log_p_M[:m], started + seconds)
            if possible is None:
                break
            low, high = (m, high) if possible else (low, m)
            middle = (low + high) // 2
            m, step = min(low + step, middle) if possible else max(high - step, middle), 2 * step
        return low, high - 1

    found = [ends for _, ends in in_time(bounds, range(draws), started + seconds)[0] if ends]
    return TopTokens(tuple(found), most, round(time.monotonic() - started, 3)) if found else None


def _is_realisable(layer: Layer, token_M: Words, log_p_M: Float64, deadline: float) -> bool | None:
    """Return True if the tokens, by descending probability, can have the ratios of p at the top; None if undecided."""
    *others, last = token_M
    apart_MD = layer.weight_VD[others].astype(np.float64) - layer.weight_VD[last]
    ratio_M = log_p_M[:-1] - log_p_M[-1] - (layer.bias_V[others] - layer.bias_V[last])
    left_MM, value_M, axes_DD = np.linalg.svd(apart_MD)
    rank = int((value_M > SMALLEST_SINGULAR * value_M.max(initial=0.0)).sum())
    start_D = axes_DD[:rank].T @ (left_MM[:, :rank].T @ ratio_M / value_M[:rank])
    if not np.allclose(apart_MD @ start_D, ratio_M, rtol=1e-9, atol=1e-9):
        return None if rank == len(others) else False  # independent equations have a solution, which rounding hides
    return layer.restricted(start_D, axes_DD[rank:].T, np.asarray(others, np.intp)).can_win(int(last), deadline)
