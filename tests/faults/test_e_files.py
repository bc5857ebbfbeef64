"""Faults of the disk, the file system, the environment: what is there stays whole, and the rest is said in a line."""

import contextlib
import errno
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import small
from run_snakemake import in_process
from softmax_bottleneck import __main__ as program
from softmax_bottleneck.jobs import locks
from softmax_bottleneck.records import collection, verify
from softmax_bottleneck.report import contents
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study import Study

ROOT = Path(__file__).parents[2]


def call(step: str, *words: str) -> int:
    return program.main([step, "--study", "study.yaml", *words])


def told(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of the error."""
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, lines
    return lines[0]


def results() -> dict[str, str]:
    """Hashes of all results here, without what tells of machines: logs and locks."""
    found = small.tree(Path("results"))
    return {name: digest for name, digest in found.items() if not name.startswith((".", "logs/"))}


def assert_sound() -> None:
    """Every file with a hash equals it, and nothing half-written lies about."""
    for path in Path("results").rglob("*"):
        assert path.suffix != ".tmp"
        if path.suffix == ".sha256":
            assert artefacts.is_sound(path.with_suffix("")), path


# --- full and broken disks ------------------------------------------------------------------------------------------
@contextlib.contextmanager
def disk(folder: Path, megabytes: int) -> Iterator[bool]:
    """A small disk of its own at `folder`, for those who may mount one; whether there is one."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    mounted = shutil.which("mount") is not None and subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def full(is_disk: bool, left: int) -> Iterator[None]:
    """No more than `left` bytes can be written here: the disk is filled, or else files may not become longer."""
    if not is_disk:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (left, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        return
    filler = Path("filler")
    filler.write_bytes(bytes(max(0, shutil.disk_usage(".").free - left)))
    try:
        yield
    finally:
        filler.unlink()


@pytest.mark.fault("E1")
@pytest.mark.parametrize(("step", "left"), [("train", 4096), ("report", 0)])
def test_e1_a_full_disk_leaves_what_is_there_and_says_what_to_free(finished, tmp_path, monkeypatch, capsys, step, left):
    with disk(tmp_path, 12) as is_disk:
        study = small.copied(finished, tmp_path)
        monkeypatch.chdir(tmp_path)
        words = ["--run", study.needed[0].path] if step == "train" else []
        if step == "train":
            shutil.rmtree(Store().run_folder(study.needed[0].path))
        before = results()
        with full(is_disk, left):
            assert call(step, *words) == 74
        message = told(capsys)
        assert "disk full (" in message and " MB free" in message and "free some space" in message
        after = results()
        new = {name for name in after if name not in before}
        assert {name: after[name] for name in before} == before
        assert step == "train" or not new
        assert_sound()
        assert call(step, *words) == 0
        assert verify.verify(study).counts["ok"] == (3 if step == "train" else 4)
        monkeypatch.chdir(finished)  # leaves the disk


@pytest.mark.fault("E3")
@pytest.mark.parametrize("where", ["write", "rename", "rename of the hash"])
def test_e3_a_broken_disk_is_as_a_full_one(study, monkeypatch, capsys, where):
    before = results()
    error = OSError(errno.EIO, os.strerror(errno.EIO))
    replace = Path.replace

    def fails(*_: object) -> None:
        raise error

    def no_rename(path: Path, target: Path) -> Path:
        if path.suffix == ".tmp" and not str(target).endswith(".tmp"):
            is_hash = str(target).endswith(".sha256")
            if is_hash == (where == "rename of the hash"):
                raise error
        return replace(path, target)

    with monkeypatch.context() as patch:
        if where == "write":
            patch.setattr(artefacts._Watched, "write", fails)
        else:
            patch.setattr(Path, "replace", no_rename)
        assert call("collect") == 74
    message = told(capsys)
    assert all(text in message for text in (os.strerror(errno.EIO), "results/small/records.parquet", "repeat"))
    if where == "write":
        assert results() == before  # the old file with its hash
    assert call("collect") == 0
    assert results() == before
    assert_sound()


@contextlib.contextmanager
def read_only(study_in: Callable[[Path, Path], Study], finished: Path, folder: Path) -> Iterator[Study]:
    """A study in a working directory in which nobody may write; if it is a disk of its own, not even root."""
    folder.mkdir()
    with disk(folder, 16) as is_disk, contextlib.ExitStack() as undo:
        study = study_in(finished, folder)
        undo.enter_context(small.inside(folder))  # and leave the disk
        if is_disk:
            subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
            undo.callback(subprocess.run, ["mount", "-o", "remount,rw", str(folder)], check=True)
        else:
            Path("results").chmod(0o555)
            undo.callback(Path("results").chmod, 0o755)
        yield study


@pytest.mark.fault("E4")
def test_e4_a_folder_that_cannot_be_written_is_refused_at_once(finished, tmp_path, capsys):
    with read_only(small.begun, finished, tmp_path / "project") as study:
        assert call("check") == 2
        assert "results/small" in (message := told(capsys)) and "make it writable, or work in another" in message
        assert call("train", "--run", study.needed[0].path) == 2
        assert "make it writable" in told(capsys)
        with pytest.raises(UserError, match=r"/(results|\.snakemake): cannot be written \("):
            locks.acquire_lock()


@pytest.mark.fault("E15")
def test_e15_a_finished_study_is_read_where_nothing_may_be_written(finished, tmp_path, capsys):
    with read_only(small.copied, finished, tmp_path / "project"):
        for step in ("plan", "verify", "claims"):
            assert call(step) == 0, capsys.readouterr().err
        assert call("report", "--out", str(tmp_path / "elsewhere")) == 0
        assert call("report") == 2 and "make it writable" in told(capsys)
    page = finished / "results" / "small" / "report" / "index.html"
    assert (tmp_path / "elsewhere" / "index.html").read_bytes() == page.read_bytes()


# --- places and environments ----------------------------------------------------------------------------------------
ODD = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TMPDIR": "/nonexistent", "TZ": "Odd/Zone+13:47",
       "MPLBACKEND": "TkAgg", "PYTHONHASHSEED": "2", "OPENBLAS_NUM_THREADS": "2"}  # fmt: skip
WITH_ENCODING_ERRORS = """
import os, sys, warnings
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("torch is not installed here")
sys.meta_path.insert(0, NoTorch())
os.umask(0o077)
warnings.filterwarnings("error", category=EncodingWarning, module="softmax_bottleneck")
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.report import archive
archive.FOLDER = archive.FOLDER / "none"  # as conftest.py does
sys.exit(max(main([step, "--study", "study.yaml"]) for step in ("collect", "render", "report")))
"""


@pytest.mark.fault("E7", "E12", "G5")
def test_e7_an_unusual_environment_without_a_display_changes_no_byte(study):
    """Nor do threads, the order of sets, the reader's own matplotlib, or that there is no torch."""
    file = Path("study.yaml")
    Path("matplotlibrc").write_text("font.size: 20\nsvg.fonttype: none\n", encoding="utf-8")
    text = file.read_text(encoding="utf-8").replace("A small study", "Ein kleines Stück — 词 ✓")
    figures = "".join(f"  parthiban2021-figure{number}: {{models: all}}\n" for number in (4, 7))
    file.write_text(text.replace("experiments:\n", f"experiments:\n{figures}"), encoding="utf-8")
    assert call("collect") == call("render") == call("report") == 0
    before = results()
    shutil.rmtree(Store().study_folder("small") / "report")
    shutil.rmtree(Store().study_folder("small") / "figures")
    kept = {key: os.environ[key] for key in ("PATH", "PYTHONPATH") if key in os.environ}
    command = [sys.executable, "-X", "warn_default_encoding", "-c", WITH_ENCODING_ERRORS]
    done = subprocess.run(command, env=kept | ODD, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert results() == before
    page = Store().study_folder("small") / "report" / "index.html"
    assert page.stat().st_mode & 0o777 == 0o600


# --- two at once ----------------------------------------------------------------------------------------------------
HOLD = """
from softmax_bottleneck.jobs import locks
import time
locks.acquire_lock(); print('held', flush=True); time.sleep(120)
"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has taken the results of tmp_path."""
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.mark.fault("E8")
def test_e8_a_second_workflow_is_turned_away_and_a_dry_run_is_not(finished, tmp_path, held):
    small.begun(finished, tmp_path)
    words = ["--configfile", str(tmp_path / "study.yaml"), "-s", str(ROOT / "Snakefile"), "--directory", str(tmp_path)]
    assert in_process(*words, "--dry-run")[0] == 0
    words += ["--cores", "1", "--rerun-incomplete", "--nolock", "results/small/check.json"]
    done = subprocess.run([sys.executable, "-m", "snakemake", *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 75, done.stderr
    owner = f"a workflow is already running here (process {held.pid} on {socket.gethostname()} since "
    assert owner in done.stderr


# --- results that are not what they were ----------------------------------------------------------------------------
def of_another_run(path: Path) -> None:
    """Whole, with its hash, of the same model with another seed."""
    folders = sorted(folder for folder in path.parent.parent.iterdir() if folder != path.parent)
    for name in (path.name, path.name + ".sha256"):
        shutil.copy(folders[0] / name, path.parent / name)


FILES = ("done.json", "measure.json", "topk.json", "rank.json", "wordsim.json")


@pytest.mark.fault("E9")
def test_e9_what_was_changed_is_listed_and_gives_no_number(study):
    run = study.needed[0]
    folder = Store().run_folder(run.path)
    for name in FILES:
        kept = {file: (folder / file).read_bytes() for file in (name, f"{name}.sha256")}
        of_another_run(folder / name)
        found = verify.verify(study)
        assert not found.complete and found.counts["ok"] == 3
        assert any(one.file == f"runs/{run.path}/{name}" for one in found.findings), (name, found.findings)
        collected = collection.collect(study)
        assert run.run_id not in set(collected.rows["run_id"])
        (gap,) = contents.gaps(study, collected)
        assert name in gap and f"seed {run.seed}" in gap
        for file, data in kept.items():
            (folder / file).write_bytes(data)
    assert verify.verify(study).complete
    of_another_run(folder / "done.json")
    assert call("verify") == 3


# --- files that vanish or are left over -----------------------------------------------------------------------------
@pytest.mark.fault("E10")
def test_e10_a_file_that_vanished_is_named(study, capsys):
    path = Store().run_folder(study.needed[0].path) / "model.safetensors"
    path.unlink()
    (path.parent / "outcome.json").unlink()  # which would restore done.json
    (path.parent / "measure.json").unlink()
    assert call("measure", "--run", study.needed[0].path) == 2
    message = told(capsys)
    assert f"{path}: file not found; run the step that makes it" in message
    (Store().tokens_folder("tiny") / "vocabulary.json").unlink()
    assert call("train", "--run", study.needed[0].path, "--restart") == 2
    assert "vocabulary.json: file not found" in told(capsys)


@pytest.mark.fault("E11")
def test_e11_what_killed_processes_left_is_ignored_and_removed(study):
    before = results()
    folder = Store().study_folder("small")
    corpora = Store().corpus_folder("tiny")
    left = [folder / ".records.csv.99999999.tmp", folder / "report" / ".index.html.sha256.99999999.old.tmp"]
    left += [corpora / ".train.txt.99999999.tmp"]
    young = folder / ".states.csv.99999998.tmp"
    for path in (*left, young):
        path.write_bytes(b"half")
    for path in left:
        os.utime(path, (time.time() - 7200,) * 2)
    assert verify.verify(study).complete
    assert call("collect") == 0 and call("report") == 0 and call("download", "--dataset", "tiny") == 0
    assert not any(path.exists() for path in left)
    assert young.exists()  # somebody may be at work on it
    young.unlink()
    assert {name for name in results() if name in before} == set(before)
