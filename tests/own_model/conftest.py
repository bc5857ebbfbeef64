"""A small output layer in files."""

from pathlib import Path

import numpy as np
import pytest

N, V, D = 90, 70, 6


@pytest.fixture
def files(place: Path) -> tuple[np.ndarray, ...]:
    """h.npy, w.npy, b.npy of 90 contexts, 70 words and width 6, and targets y.npy, in the working directory."""
    rng = np.random.default_rng(0)
    h_ND, w_VD, b_V = (rng.normal(size=shape).astype(np.float32) for shape in ((N, D), (V, D), (V,)))
    y_N = rng.integers(-1, V, N)
    np.save("h.npy", h_ND), np.save("w.npy", w_VD), np.save("b.npy", b_V), np.save("y.npy", y_N)
    return h_ND, w_VD, b_V, y_N
