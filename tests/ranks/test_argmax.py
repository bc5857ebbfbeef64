"""Unargmaxable words, compared with convex hulls and with one linear program over all words at once."""

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.spatial import ConvexHull
from softmax_bottleneck.ranks import argmax, words_that_win
from softmax_bottleneck.store.errors import DataError


def brute_force(weight: np.ndarray, bias: np.ndarray) -> set[int]:
    """Return the words i for which no h and t > 0 give (w_i - w_j) h + t (b_i - b_j) >= 1 for all j at once."""
    never = set()
    for i in range(len(weight)):
        others = np.arange(len(weight)) != i
        ahead = np.column_stack([weight[others] - weight[i], bias[others] - bias[i]])
        # homogeneous in (h, t): t >= 0 scales the bias away
        bounds = [(None, None)] * weight.shape[1] + [(0, None)]
        found = linprog(np.zeros(ahead.shape[1]), A_ub=ahead, b_ub=-np.ones(len(ahead)), bounds=bounds)
        if found.status == 2:
            never.add(i)
    return never


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [2, 3])
def test_without_a_bias_only_the_corners_of_the_hull_can_win(width: int, dtype: type) -> None:
    weight = np.random.default_rng(width).normal(size=(60, width)).astype(dtype)
    found = words_that_win(weight)
    assert set(found.never) == set(range(60)) - set(ConvexHull(weight).vertices)
    assert found.unsettled == 0 and found.by_direction + found.by_program + len(found.never) == 60


@pytest.mark.parametrize("seed", range(3))
def test_with_a_bias_it_is_what_one_program_over_all_words_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight, bias = rng.normal(size=(40, 3)), rng.normal(size=40)
    found = words_that_win(weight, bias)
    assert set(found.never) == brute_force(weight, bias) != brute_force(weight, 0 * bias)
    assert found.unsettled == 0


@pytest.mark.parametrize("newton_steps", [argmax.NEWTON_STEPS, 0])
def test_programs_alone_find_the_same(newton_steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rivals join by threes, so that programs grow, and no word is settled by a direction; also without Newton."""
    monkeypatch.setattr(argmax, "_directions", lambda weight, deadline: ())
    monkeypatch.setattr(argmax, "NEWTON_STEPS", newton_steps)
    monkeypatch.setattr(argmax, "RIVALS", 3)
    weight = np.random.default_rng(7).normal(size=(50, 3))
    found = words_that_win(weight)
    assert set(found.never) == set(range(50)) - set(ConvexHull(weight).vertices)
    assert found.by_direction == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_narrow_directions_agree_with_one_program_over_all_words(monkeypatch: pytest.MonkeyPatch, dtype: type) -> None:
    """Clusters of words, some inside the hull of others: with and without narrow directions, and by brute force."""
    rng = np.random.default_rng(5)
    weight = rng.normal(size=(6, 8))[rng.integers(0, 6, 90)] + 0.2 * rng.normal(size=(90, 8))
    weight[:20] = 0.9 * weight[20:80].reshape(20, 3, 8).mean(1) + 0.1 * weight[20:].mean(0)  # never
    weight = weight.astype(dtype)
    wide = words_that_win(weight)
    monkeypatch.setattr(argmax, "NARROW", 8)
    monkeypatch.setattr(argmax, "STRIDE", 2)
    monkeypatch.setattr(argmax, "TILE", 16)
    monkeypatch.setattr(argmax, "ROWS", 7)
    narrow = words_that_win(weight)
    assert narrow.never == wide.never == tuple(sorted(brute_force(weight.astype(float), np.zeros(90))))
    assert narrow.unsettled == 0 and set(narrow.never) >= set(range(20))


@pytest.mark.parametrize("scale", [1e-40, 1e-11, 1e11, 1e40])
def test_no_scale_of_the_weights_changes_a_result(monkeypatch: pytest.MonkeyPatch, scale: float) -> None:
    """Products of such weights are beyond float32's range, so that rounding must not settle a word."""
    monkeypatch.setattr(argmax, "NARROW", 3)
    monkeypatch.setattr(argmax, "STRIDE", 2)
    weight = np.random.default_rng(4).normal(size=(60, 3))
    found = words_that_win(scale * weight)
    assert set(found.never) == set(range(60)) - set(ConvexHull(weight).vertices) and found.unsettled == 0


def test_float64_decides_where_float32_cannot() -> None:
    """Word 0 leads word 1 by 1e-9 of its length: too little for float32, enough for float64."""
    weight = np.random.default_rng(2).normal(size=(50, 30))
    weight[1] = weight[0] * (1 - 1e-9)
    assert len(words_that_win(weight, seconds=60).never) == 1
    for direction in argmax._directions(weight, np.inf):
        test, blocks = direction(np.arange(50))
        left = np.concatenate([test(block) for block in blocks])
        assert set(left) == {1}


def test_the_time_still_needed_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimate 1.5 times the time of four blocks for the six of ten blocks that are left."""
    clock = iter(np.arange(0.0, 100.0, 0.25))
    monkeypatch.setattr(argmax.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(argmax.os, "sched_getaffinity", lambda process: {0})
    results, needed_s = argmax.in_time(lambda block: block, range(10), deadline=2.0)
    assert [result for _, result in results] == [0, 1, 2, 3, *[None] * 6]
    assert needed_s == pytest.approx(6 * 2.0 / 4, rel=0.1)


def test_in_many_dimensions_all_win_but_a_mean_of_others() -> None:
    weight = np.random.default_rng(1).normal(size=(300, 40)).astype(np.float32)
    weight[17] = weight[20:60].mean(0)
    weight[5] = weight[6]  # neither is ahead of the other
    found = words_that_win(weight)
    assert found.never == (5, 6, 17)
    assert found.by_direction > 250


def test_time_that_is_up_leaves_words_unsettled() -> None:
    found = words_that_win(np.random.default_rng(0).normal(size=(50, 2)), seconds=0.0)
    assert (found.by_direction, found.by_program, found.never, found.unsettled) == (0, 0, (), 50)


@pytest.mark.parametrize(("words", "width"), [(1, 1), (1, 4), (2, 1), (2, 4)])
def test_the_smallest_layers(words: int, width: int) -> None:
    assert words_that_win(np.eye(max(words, width))[:words, :width]).never == ()


def test_nan_is_rejected() -> None:
    with pytest.raises(DataError, match="row 1, column 0 of the weights is nan"):
        words_that_win(np.array([[1.0], [np.nan]]))
