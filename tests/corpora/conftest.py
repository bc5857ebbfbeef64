"""The project with one corpus, in a working directory of its own."""

from pathlib import Path

import pytest
from corpus_project import Project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return Project(tmp_path / "project")
