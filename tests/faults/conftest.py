"""A finished small study, made once per process."""

from __future__ import annotations

from pathlib import Path

import pytest
import small
from softmax_bottleneck.study import Study


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the small study with everything done; not to be changed."""
    folder = tmp_path_factory.mktemp("small")
    with small.inside(folder):
        small.finish(small.tokenised(folder))
    return folder


@pytest.fixture
def study(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """A copy of the finished study in the working directory."""
    monkeypatch.chdir(tmp_path)
    return small.copied(finished, tmp_path)


@pytest.fixture
def begun(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """The small study in the working directory with its corpus ready and nothing trained."""
    monkeypatch.chdir(tmp_path)
    return small.begun(finished, tmp_path)
