"""The two ways to the singular values of small matrices."""

import pytest
from softmax_bottleneck.ranks import spectra


@pytest.fixture(params=["svd", "gram"])
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small matrices are decomposed directly, or forced through a Gram matrix."""
    if request.param == "gram":
        monkeypatch.setattr(spectra, "DIRECT_ENTRIES", 0)
