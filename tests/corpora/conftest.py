"""The project with one corpus, in a working directory of its own."""

from pathlib import Path

import pytest
from corpus_project import Project
from softmax_bottleneck.store import artefacts


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr(artefacts.os, "fsync", lambda descriptor: None)
    return Project(tmp_path / "project")
