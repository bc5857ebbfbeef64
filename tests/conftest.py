"""Shared fixtures: one thread per process (results are compared to the bit), and the mirror of real corpora."""

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy: idle threads that spin slow a busy machine tenfold
# Triton reads this when it is first imported, and torch imports it: setting it in a test module is too late.
os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
from softmax_bottleneck.jobs.workflow import PROCESS_VARIABLE
from softmax_bottleneck.report import archive, archived_cells
from softmax_bottleneck.report.cells import Cell
from softmax_bottleneck.study import Study

try:
    import torch

    torch.set_num_threads(1)
except ImportError:  # the report half is tested without torch
    pass

ROOT = Path(__file__).parents[1]
# Steps that tests start as processes of their own, in any folder, find the package.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "workflow"), os.environ.get("PYTHONPATH")]))
os.fsync = lambda descriptor: None  # nothing of a test has to survive a power cut
# Hundreds of processes would each compile the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Steps that run inside a test would keep a GPU's lease until the tests end, and those in other processes wait for it.
os.environ["SOFTMAX_BOTTLENECK_GPU_IS_GIVEN"] = "1"
SHIPPED, archive.FOLDER = archive.FOLDER, Path("no-archives")  # to read them takes longer than to draw a small page
SHIPPED_CELLS = cache(archived_cells.best_cells.__wrapped__)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def shipped() -> Iterator[Callable[[str, str], dict[archived_cells.Key, Cell]]]:
    """Load the archived studies of report/evidence/; results computed from them are cached for other modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive, "FOLDER", SHIPPED)
        patch.setattr(archived_cells, "best_cells", SHIPPED_CELLS)
        yield SHIPPED_CELLS


@pytest.fixture(scope="session")
def mirror() -> Path:
    """The mirror folder with the real corpora; without one the test is skipped."""
    named = os.environ.get("SOFTMAX_BOTTLENECK_MIRROR")
    if not named or not (Path(named) / "ptb" / "train.txt").exists():
        pytest.skip("needs the real corpora: set SOFTMAX_BOTTLENECK_MIRROR to a mirror folder")
    return Path(named)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier2", action="store_true", help="also what takes long or needs an environment of its own")
    about = "only tests of this fault (docs/faults.md)"
    parser.addoption("--fault", action="append", default=[], metavar="ID", help=about)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tier 2, and all tests of other faults than those that are named."""
    wanted, tier2 = set(config.getoption("--fault")), config.getoption("--tier2")
    kept = [item for item in items if (tier2 or not item.get_closest_marker("tier2")) and _concerns(item, wanted)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def _concerns(item: pytest.Item, wanted: set[str]) -> bool:
    ids = {one for mark in item.iter_markers("fault") for one in mark.args}
    return not wanted or bool(ids & wanted)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the small study with everything done; not to be changed."""
    import small
    from filelock import FileLock

    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "finished"
    with FileLock(folder.with_suffix(".lock")):
        if not folder.with_suffix(".done").exists():
            folder.mkdir(exist_ok=True)
            with small.inside(folder):
                small.finish(small.tokenised(folder))
            folder.with_suffix(".done").touch()
    return folder


@pytest.fixture(scope="session")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the small study with its corpus ready and nothing trained; not to be changed."""
    import small

    folder = tmp_path_factory.mktemp("ready")
    with small.inside(folder):
        small.tokenised(folder)
    return folder


@pytest.fixture
def study(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """A copy of the finished study in the working directory."""
    import small

    monkeypatch.chdir(tmp_path)
    return small.copied(finished, tmp_path)


@pytest.fixture
def begun(ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """The small study in the working directory with its corpus ready and nothing trained."""
    import small

    monkeypatch.chdir(tmp_path)
    return small.begun(ready, tmp_path)


@pytest.fixture(autouse=True)
def _no_workflow_above() -> None:
    """Let no test inherit the mark of a workflow that a step of an earlier test set in this process."""
    os.environ.pop(PROCESS_VARIABLE, None)
