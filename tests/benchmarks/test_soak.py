"""`make soak` in small: a few tries of every counter."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import soak


@pytest.mark.parametrize(
    ("counter", "share"), [("kills", 0.005), pytest.param("corruptions", 0.01, marks=pytest.mark.tier2)]
)
def test_every_promise_that_is_counted_holds(counter: str, share: float, tmp_path: Path) -> None:
    (found,) = soak.soak(share, [counter], tmp_path.resolve())
    assert found.failures == [] and found.held == found.tried > 0
