"""The tokens of any probabilities at the top of a softmax, compared with linear programs over all words at once."""

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.spatial import ConvexHull
from scipy.stats import binom
from softmax_bottleneck.ranks import top_tokens
from softmax_bottleneck.ranks.top_tokens import TopTokens


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


@pytest.mark.parametrize(("words", "width", "has_bias"), [(12, 2, False), (12, 2, True), (16, 3, False), (16, 3, True)])
def test_every_draw_has_the_m_of_programs_over_all_words(words: int, width: int, has_bias: bool) -> None:
    rng = np.random.default_rng(width)
    weight, bias = rng.normal(size=(words, width)), has_bias * rng.normal(size=words)
    largest = []
    for draw in range(40):
        sample = np.random.default_rng([0, draw])
        tokens = sample.choice(words, width + 1, replace=False)
        log_p = np.log(np.sort(sample.exponential(size=width + 1))[::-1])
        possible = [brute_force(weight, bias, tokens[:m], log_p[:m]) for m in range(1, width + 2)]
        assert possible == sorted(possible, reverse=True)  # the first m + 1 tokens imply the first m
        largest.append(sum(possible))
    found = top_tokens(weight, bias, draws=40)
    assert found is not None
    assert found.largest == tuple(sorted(largest)) and len(set(largest)) > 2


def test_in_a_plane_two_neighbours_on_the_hull_can_have_any_probabilities() -> None:
    """Find m of at least 1 on a circle, where every word is a corner, and rarely the bound 3 = D + 1."""
    angle = np.linspace(0, 2 * np.pi, 9)[:-1]
    weight = np.column_stack([np.cos(angle), np.sin(angle)])
    assert len(ConvexHull(weight).vertices) == 8
    found = top_tokens(weight, draws=30)
    assert found is not None
    assert min(found.largest) >= 1 and found.most == 3


def test_as_many_dimensions_as_words_allow_all() -> None:
    found = top_tokens(np.random.default_rng(0).normal(size=(6, 9)), draws=5)
    assert found is not None
    assert found.largest == (5,) * 5 and (found.m, found.median) == (5, 5)


def test_two_equal_words_never_lead_together() -> None:
    weight = np.eye(3)[[0, 0, 1, 2]]
    found = top_tokens(weight, draws=60)
    assert found is not None
    first = [np.random.default_rng([0, draw]).choice(4, 3, replace=False)[0] for draw in range(60)]
    assert found.largest.count(0) == sum(token < 2 for token in first)  # its copy ties with it


def test_the_interval_holds_with_the_probability_of_order_statistics() -> None:
    """Enclose the 5 % quantile of 80 uniform numbers by the 1st and 9th with 95 % or more (binomial distribution)."""
    found = TopTokens(tuple(range(101, 181)), 200, 0.0)
    low, high = found.interval
    place = [value - 100 for value in (low, high)]  # from 1
    inside = binom.cdf(place[1] - 1, 80, 0.05) - binom.cdf(place[0] - 1, 80, 0.05)
    assert inside >= 0.95 and place[0] >= 1 and found.m == 105 and found.median == 141
    assert TopTokens((3, 4, 5), 9, 0.0).interval[0] == 0  # three draws bound nothing from below


def test_no_time_no_result() -> None:
    assert top_tokens(np.eye(3), seconds=-1.0) is None
