"""An edit re-runs what it concerns: neither less nor more."""

from __future__ import annotations

from pathlib import Path

import pytest
from softmax_bottleneck.store import fingerprint as fp


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of four modules: train -> optim; heads.a; heads.b -> heads.base."""
    folder = tmp_path / "toy"
    (folder / "heads").mkdir(parents=True)
    (folder / "store").mkdir()
    sources = {
        "train.py": '"""Doc."""\nfrom toy import optim\nfrom toy.store.artefacts import save\nx = 1\n',
        "optim.py": "lr = 1\n",
        "store/artefacts.py": "save = 1\n",
        "heads/__init__.py": "",
        "heads/base.py": "y = 1\n",
        "heads/a.py": "z = 1\n",
        "heads/b.py": "import toy.heads.base\n",
    }
    for name, text in sources.items():
        (folder / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(fp, "PACKAGE", folder)
    return folder


def after(package: Path, name: str, text: str, *modules: str) -> tuple[str, str]:
    before = fp.fingerprint(*modules)
    (package / name).write_text(text, encoding="utf-8")
    for cached in (fp._tree, fp._source_hash, fp._imports):
        cached.cache_clear()
    return before, fp.fingerprint(*modules)


@pytest.fixture(autouse=True)
def fresh() -> None:
    for cached in (fp._tree, fp._source_hash, fp._imports):
        cached.cache_clear()


def test_imported_modules_count(package: Path) -> None:
    assert fp.closure(["train"]) == {"train", "optim"}
    assert fp.closure(["heads.b"]) == {"heads.b", "heads.base"}
    old, new = after(package, "optim.py", "lr = 2\n", "train")
    assert old != new


def test_comments_and_docstrings_do_not_count(package: Path) -> None:
    text = '"""Other words."""\n\n# why\nfrom toy import optim\nfrom toy.store.artefacts import save\n\nx = 1\n'
    old, new = after(package, "train.py", text, "train")
    assert old == new


def test_another_head_and_neutral_modules_do_not_count(package: Path) -> None:
    old, new = after(package, "heads/a.py", "z = 2\n", "train", "heads.b")
    assert old == new
    old, new = after(package, "store/artefacts.py", "save = 2\n", "train")
    assert old == new
    old, new = after(package, "heads/base.py", "y = 2\n", "train", "heads.b")
    assert old != new
