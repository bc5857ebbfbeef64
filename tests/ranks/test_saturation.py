"""Measures of saturation against loops over their definitions, and their extremes."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from softmax_bottleneck.ranks import anisotropy, singular_value_divergence, singular_value_entropy
from softmax_bottleneck.store.errors import DataError


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=12).filter(any))
def test_entropy_is_the_definition(sigma: list[float]) -> None:
    total = math.fsum(sigma)
    entropy = -math.fsum(value / total * math.log(value / total) for value in sigma if value / total > 0)
    assert singular_value_entropy(sigma) == pytest.approx(entropy, abs=1e-12)
    assert singular_value_divergence(sigma) == pytest.approx(math.log(len(sigma)) - entropy, abs=1e-12)


@pytest.mark.parametrize(("count", "width", "offset"), [(2, 1, 0.0), (7, 3, 0.0), (40, 5, 2.0), (30, 60, -1.0)])
def test_anisotropy_is_the_mean_over_all_pairs(count: int, width: int, offset: float) -> None:
    vectors = np.random.default_rng(1).normal(size=(count, width)) + offset
    cosines = [float(a @ b) / math.sqrt(float(a @ a) * float(b @ b)) for a, b in itertools.permutations(vectors, 2)]
    assert anisotropy(vectors) == pytest.approx(math.fsum(cosines) / len(cosines), abs=1e-12)


def test_extremes() -> None:
    assert singular_value_entropy([3.0, 0.0, 0.0]) == 0.0
    assert singular_value_entropy(np.ones(50)) == pytest.approx(math.log(50))
    assert anisotropy(np.eye(9)) == pytest.approx(0.0, abs=1e-15)
    assert anisotropy(np.arange(1.0, 6.0)[:, None] * np.array([[0.3, -2.0]])) == pytest.approx(1.0)
    assert anisotropy(np.array([[1.0, 0.0], [-2.0, 0.0]])) == pytest.approx(-1.0)


@pytest.mark.parametrize("sigma", [[0.0, 0.0], [], [1.0, float("nan")], [1.0, -1.0]])
def test_a_spectrum_of_zeros_or_bad_numbers_is_rejected(sigma: list[float]) -> None:
    with pytest.raises(DataError):
        singular_value_entropy(sigma)


@pytest.mark.parametrize("vectors", [np.ones((1, 3)), np.zeros((2, 3)), np.eye(2) - [[1, 0]], np.full((2, 2), np.nan)])
def test_vectors_without_an_angle_are_rejected(vectors: np.ndarray) -> None:
    with pytest.raises(DataError):
        anisotropy(vectors)
