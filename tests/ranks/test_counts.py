"""Ranks counted from singular values: published tolerances, a crowd around the tolerance, and exact arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from known_matrices import crowded_matrix, in_chunks, rng, with_spectrum
from softmax_bottleneck.ranks import effective_rank, gram_singular_values, inertia_count, press_rank, rank_report
from softmax_bottleneck.ranks.spectrum import FLOAT32_EPS, FLOAT64_EPS
from softmax_bottleneck.store.errors import DataError, UserError


def test_the_published_tolerances() -> None:
    """Relative to the largest singular value, for the published matrices of Penn Treebank and WikiText-2."""
    assert press_rank([1.0], 82_429, 10_000).tolerance == pytest.approx(1.812e-5, rel=3e-4)
    assert press_rank([1.0], 33_320, 33_278).tolerance == pytest.approx(1.538e-5, rel=3e-4)


@pytest.mark.fault("D6")
def test_a_crowd_around_the_tolerance_is_counted_as_by_svd_and_not_by_a_float32_gram_matrix() -> None:
    matrix = crowded_matrix()
    m, n = matrix.shape
    reference = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    tolerance = 0.5 * math.sqrt(m + n + 1) * reference[0] * FLOAT32_EPS
    assert (np.abs(reference / tolerance - 1) < 0.1).sum() >= 190
    found = rank_report(gram_singular_values(in_chunks(matrix), n))
    truth = int((reference > tolerance).sum())
    assert (found.method, found.press.rank) == ("gram-of-columns", truth)
    assert found.press.low == (reference > 1.01 * tolerance).sum()
    assert found.press.high == (reference > 0.99 * tolerance).sum()
    assert found.press.tolerance_sensitive and "tolerance-sensitive" in found.note and found.floor_clear
    gram = matrix.astype(np.float64).T @ matrix.astype(np.float64)
    assert inertia_count(gram, press_rank(reference, m, n).tolerance ** 2) == truth
    published_way = np.linalg.svd(matrix, compute_uv=False)  # float32 in, computed in float64, float32 out
    assert truth == (published_way > 0.5 * np.sqrt(m + n + 1) * published_way.max() * FLOAT32_EPS).sum()
    gram_32 = scipy.linalg.eigvalsh((matrix.T @ matrix).astype(np.float64))
    assert abs(press_rank(np.sqrt(np.maximum(gram_32, 0)), m, n).rank - truth) > 50


@pytest.mark.fault("D6")
@pytest.mark.parametrize(("m", "n"), [(1025, 1025), (30_000, 35)])
def test_matrices_at_the_limit_of_the_svd_are_clear_of_the_floor_but_for_a_tiny_tolerance(m, n) -> None:
    found = gram_singular_values(in_chunks(rng().normal(size=(m, n)) - 9, 1000), n)
    assert found.method.startswith("gram") and rank_report(found).floor_clear and rank_report(found).note == ""
    tiny = rank_report(found, eps=FLOAT64_EPS)
    assert not tiny.floor_clear and "noise floor" in tiny.note and "SVD" in tiny.note


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    m=st.integers(1, 30), n=st.integers(1, 30), rank=st.integers(0, 30), noise=st.floats(0, 0.5),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_rank_of_known_rank_plus_noise_below_the_tolerance(m, n, rank, noise, seed) -> None:
    rank = min(rank, m, n)
    sigma = np.geomspace(1.0, 1e-3, rank) if rank else np.zeros(1)
    tolerance = 0.5 * math.sqrt(m + n + 1) * FLOAT32_EPS * sigma[0]
    disturbance = rng(seed).normal(size=(m, n))
    matrix = with_spectrum(sigma, m, n, seed) + disturbance * (noise * tolerance / np.linalg.norm(disturbance, 2))
    assert rank_report(gram_singular_values([matrix], n)).press.rank == rank


def test_press_counts_strictly_above_and_its_neighbours() -> None:
    tolerance = press_rank([1.0], 60, 40).tolerance
    at = press_rank([1.0, 1.5 * tolerance, 1.005 * tolerance, tolerance, 0.995 * tolerance, 0.5 * tolerance], 60, 40)
    assert (at.rank, at.low, at.high, at.tolerance_sensitive) == (3, 2, 5, True)
    assert not press_rank([1.0, 1.5 * tolerance, 0.5 * tolerance], 60, 40).tolerance_sensitive
    for sigma, message in (([], "expected one row"), ([1.0, -1.0], "no singular value")):
        with pytest.raises(DataError, match=message):
            press_rank(sigma, 3, 3)


def test_a_matrix_of_zeros_has_rank_0_by_every_rule(route) -> None:
    report = rank_report(gram_singular_values([np.zeros((9, 4), np.float32)], 4))
    assert set(report.metrics().values()) == {0} and report.note == ""


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=40), st.sampled_from([1e-3, 1e-4, 1e-5, 0.25]))
def test_effective_rank_is_the_definition_in_exact_arithmetic(sigma, epsilon) -> None:
    squares = [Fraction(value) ** 2 for value in sorted(sigma, reverse=True)]
    wanted = (1 - Fraction(epsilon)) * sum(squares)
    assert effective_rank(sigma, epsilon) == next(k for k in range(len(squares) + 1) if sum(squares[:k]) >= wanted)


def test_effective_rank_does_not_lose_a_long_tail() -> None:
    """A million small squares are 1 % of the sum and would vanish if added to the largest one by one in float32."""
    sigma = np.concatenate([[1.0], np.full(1_000_000, 1e-4)])
    assert effective_rank(sigma, 0.0198) == 1
    assert effective_rank(sigma, 1e-3) == pytest.approx(1 + 1_000_000 * (1 - 1e-3 * 1.01 / 0.01), abs=2)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, -1.0, math.nan])
def test_a_senseless_epsilon_is_rejected(epsilon) -> None:
    with pytest.raises(UserError, match="between 0 and 1"):
        effective_rank([1.0], epsilon)
