"""The tokens of any probabilities at the top of a softmax, compared with linear programs over all words at once."""

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.spatial import ConvexHull
from scipy.stats import binom
from softmax_bottleneck.ranks import top_tokens
from softmax_bottleneck.ranks.argmax import Layer
from softmax_bottleneck.ranks.top_tokens import TopTokens, _is_realisable


def brute_force(weight: np.ndarray, bias: np.ndarray, tokens: np.ndarray, log_p: np.ndarray) -> bool:
    """Return True if one program over h finds a lead of the least probable token, with all ratios as equations."""
    last, others = tokens[-1], np.setdiff1d(np.arange(len(weight)), tokens)
    equal = weight[tokens[:-1]] - weight[last]
    ratio = log_p[:-1] - log_p[-1] - (bias[tokens[:-1]] - bias[last])
    found = linprog(
        np.append(np.zeros(weight.shape[1]), -1.0),
        A_ub=np.column_stack([weight[others] - weight[last], np.ones(len(others))]),
        b_ub=bias[last] - bias[others],
        A_eq=np.column_stack([equal, np.zeros(len(equal))]) if len(equal) else None,
        b_eq=ratio if len(equal) else None,
        bounds=[(None, None)] * weight.shape[1] + [(None, 1.0)],
    )
    return found.status == 0 and found.x[-1] > 1e-7


def layer_of(kind: str, words: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(width)
    weight, bias = rng.normal(size=(words, width)), (kind == "bias") * rng.normal(size=words)
    if kind == "equal rows":
        weight[1::3] = weight[::3][: len(weight[1::3])]
    if kind == "low rank":
        weight[:, -1] = weight[:, 0] - 2 * weight[:, 1 % (width - 1)]
    return weight, bias


@pytest.mark.parametrize(("words", "width"), [(12, 2), (16, 3), (30, 8), (6, 9), (9, 8)])
@pytest.mark.parametrize("kind", ["plain", "bias", "equal rows", "low rank"])
def test_every_draw_has_the_m_of_programs_over_all_words(kind: str, words: int, width: int, lp_calls: list) -> None:
    """Every m from 1 to D + 1 or V: the first m + 1 tokens imply the first m, and no program is left to the solver."""
    weight, bias = layer_of(kind, words, width)
    most, largest, layer = min(words, width + 1), [], Layer(weight, bias)
    for draw in range(8):
        sample = np.random.default_rng([0, draw])
        tokens = sample.choice(words, min(words - 1, width + 1), replace=False)
        log_p = np.log(np.sort(sample.exponential(size=width + 1))[::-1][:most])
        tokens = np.append(tokens, np.setdiff1d(np.arange(words), tokens))[:most]
        possible = [brute_force(weight, bias, tokens[:m], log_p[:m]) for m in range(1, most + 1)]
        assert possible == sorted(possible, reverse=True)
        assert possible == [_is_realisable(layer, tokens[:m], log_p[:m], math.inf) for m in range(1, most + 1)]
        largest.append(min(sum(possible), words - 1))
    found = top_tokens(weight, bias, draws=8)
    assert found is not None and found.bounds == tuple((m, m) for m in largest) and not lp_calls


@pytest.fixture
def lp_calls(monkeypatch: pytest.MonkeyPatch) -> list:
    calls: list = []
    monkeypatch.setattr("scipy.optimize.linprog", lambda *args, **options: calls.append(1) or linprog(*args, **options))
    return calls


def test_in_a_plane_two_neighbours_on_the_hull_can_have_any_probabilities() -> None:
    """Find m of at least 1 on a circle, where every word is a corner, and rarely the bound 3 = D + 1."""
    angle = np.linspace(0, 2 * np.pi, 9)[:-1]
    weight = np.column_stack([np.cos(angle), np.sin(angle)])
    assert len(ConvexHull(weight).vertices) == 8
    found = top_tokens(weight, draws=30)
    assert found is not None and min(found.bounds) >= (1, 1) and found.most == 3


def test_as_many_dimensions_as_words_allow_all() -> None:
    found = top_tokens(np.random.default_rng(0).normal(size=(6, 9)), draws=5)
    assert found is not None and found.bounds == ((5, 5),) * 5 and found.m == found.median == (5, 5)


def test_words_apart_by_rounding_error_are_undecided() -> None:
    """With D > V every draw is realisable up to V - 1, but the vector for two nearly equal rows is beyond float64."""
    rng = np.random.default_rng(1)
    weight = rng.normal(size=(30, 64))
    weight[1] = weight[0] + 1e-8 * rng.normal(size=64)
    found = top_tokens(weight, draws=20)
    assert found and found.undecided > 0 and found.m[1] < found.median[1] == 29


def test_two_equal_words_never_lead_together() -> None:
    weight = np.eye(3)[[0, 0, 1, 2]]
    found = top_tokens(weight, draws=60)
    assert found is not None
    first = [np.random.default_rng([0, draw]).choice(4, 3, replace=False)[0] for draw in range(60)]
    assert [m == 0 for m, _ in found.bounds] == [token < 2 for token in first]  # its copy ties with it


def test_the_interval_holds_with_the_probability_of_order_statistics() -> None:
    """Enclose the 5 % quantile of 80 uniform numbers by the 1st and 9th with 95 % or more (binomial distribution)."""
    found = TopTokens(tuple((m, m) for m in range(101, 181)), 200, 0.0)
    low, high = found.interval
    place = [value - 100 for value in (low, high)]  # from 1
    inside = binom.cdf(place[1] - 1, 80, 0.05) - binom.cdf(place[0] - 1, 80, 0.05)
    assert inside >= 0.95 and place[0] >= 1 and found.m == (105, 105) and found.median == (141, 141)
    assert TopTokens(((3, 3), (4, 4), (5, 5)), 9, 0.0).interval == (0, 4)  # three draws bound nothing from below


def test_bounds_hold_whatever_undecided_draws_are() -> None:
    decided = [(m, m) for m in range(101, 178)]
    found = TopTokens((*decided, *[(90, 190)] * 3), 200, 0.0)
    cases = [
        TopTokens((*decided, *((m, m) for m in values)), 200, 0.0)
        for values in itertools.combinations_with_replacement((90, 103, 130, 150, 190), 3)
    ]
    assert found.undecided == 3 and not any(case.undecided for case in cases)
    assert found.m == (min(case.m[0] for case in cases), max(case.m[1] for case in cases)) == (102, 105)
    assert found.median == (min(case.median[0] for case in cases), max(case.median[1] for case in cases))
    assert found.interval == (min(case.interval[0] for case in cases), max(case.interval[1] for case in cases))


def test_no_draw_depends_on_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search draws that are not monotone, whose m depends on the first m tried, beside others of a larger m."""

    def realisable(layer: Layer, tokens: np.ndarray, *rest: object) -> bool | None:
        if tokens[0] % 3 == 0:
            return True if len(tokens) < 6 else None
        return len(tokens) <= 3 or (len(tokens) <= 9 and (tokens[0] % 3 == 1 or len(tokens) >= 7))

    monkeypatch.setitem(top_tokens.__globals__, "_is_realisable", realisable)
    found = top_tokens(np.zeros((1000, 16)), draws=30)
    assert found is not None
    first = [np.random.default_rng([0, draw]).choice(1000, 17, replace=False)[0] for draw in range(30)]
    assert found.bounds == tuple({0: (5, 17), 1: (9, 9), 2: (3, 3)}[token % 3] for token in first)


def test_no_time_no_result() -> None:
    assert top_tokens(np.eye(3), seconds=-1.0) is None
