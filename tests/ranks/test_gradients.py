"""Shares of the gradient that pass, against projections written out and differences of losses."""

import numpy as np
import pytest
from softmax_bottleneck.ranks import gradient_share


def loss_gradients(hidden: np.ndarray, weight: np.ndarray, target: np.ndarray) -> np.ndarray:
    """p - e_y, literally."""
    p = np.exp(hidden @ weight.T)
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(target)), target] -= 1.0
    return p


@pytest.mark.parametrize(("words", "width", "rank"), [(50, 7, 7), (50, 7, 4), (9, 12, 9)])
def test_shares_are_those_of_the_projection(words: int, width: int, rank: int) -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(words, rank)) @ rng.normal(size=(rank, width))
    hidden, target = rng.normal(size=(30, width)), rng.integers(0, words, 30)
    gradient = loss_gradients(hidden, weight, target)
    projection = weight @ np.linalg.pinv(weight)
    norms, passed = np.linalg.norm(gradient, axis=1), np.linalg.norm(gradient @ projection, axis=1)
    found = gradient_share(np.array_split(gradient, 4), weight)
    assert found.contexts == 30
    assert found.norm_mean == pytest.approx(np.mean(passed / norms), rel=1e-9)
    assert found.energy_mean == pytest.approx(np.mean((passed / norms) ** 2), rel=1e-9)
    assert found.energy_pooled == pytest.approx((passed**2).sum() / (norms**2).sum(), rel=1e-9)
    assert found.norm_pooled == pytest.approx(
        np.linalg.norm(gradient @ projection) / np.linalg.norm(gradient), rel=1e-9
    )
