"""After any interruption the same command resumes the study and gives the bits of an undisturbed one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import small
from run_hash import result_hash
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.extras import interim, reproduce
from softmax_bottleneck.jobs import locks, workflow
from softmax_bottleneck.records import collection
from softmax_bottleneck.store.errors import BusyError, UserError
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study import Study

ROOT = Path(__file__).parents[2]
TIMES = ("wall_s", "ms_per_batch", "sec_per_epoch", "train_minutes")
STEP = [sys.executable, "-m", "softmax_bottleneck"]


def one_run() -> dict[str, Any]:
    """The small study with one run, which takes some seconds."""
    study = small.values(seeds=[1], models={"softmax": {"head": "softmax"}}, experiments={"known-truth": {}})
    study["settings"][0]["schedule"]["epochs"] = 60
    return study


@pytest.fixture(scope="module")
def undisturbed(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Hashes of the study's run, its ranks and its records, made by the steps alone."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with small.inside(folder):
        study = small.begun(finished, folder, one_run())
        for step in small.STEPS:
            step(study, study.needed[0].path, small.quiet)
        collection.collect_to(study, study.store.study_folder(study.name))
        return outcome(folder, study)


def outcome(folder: Path, study: Study) -> dict[str, str]:
    """Return what must not depend on interruptions; records of times are left out."""
    run = folder / Store().run_folder(study.needed[0].path)
    ranks = json.loads((run / "rank.json").read_text(encoding="utf-8"))["metrics"]
    lines = (folder / "results" / "small" / "records.csv").read_text(encoding="utf-8").splitlines()
    records = [line for line in lines if not any(f",{metric}," in line for metric in TIMES)]
    return {"run": result_hash(run), "ranks": json.dumps(ranks), "records": "\n".join(records)}


@pytest.fixture
def project(finished: Path, place: Path) -> Study:
    """The study in the working directory, its corpus ready."""
    return small.checked(finished, place, one_run())


class Call:
    """One call of the command, with further options."""

    def __init__(self, study: Study, *options: str) -> None:
        self.folder = Store().run_folder(study.needed[0].path)
        words = [*STEP, "reproduce", "--study", str(study.file), "--cores", "1", *options]
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
        )  # fmt: skip

    def trainer(self) -> int:
        """Return the number of the training process, once some of its work is saved."""
        saved = {path.name: path.stat().st_mtime_ns for path in self.folder.glob("resume-?.pt")}
        until(lambda: (self.folder / "lease.json").exists(), self.process)
        until(lambda: newer(self.folder, saved), self.process)
        return int(json.loads((self.folder / "lease.json").read_text(encoding="utf-8"))["pid"])

    def snakemake(self) -> int:
        """Return the number of Snakemake's process and of its group."""
        children = psutil.Process(self.process.pid).children()
        return next(child.pid for child in children if "snakemake" in child.cmdline())

    def ends(self) -> tuple[int, str, str]:
        """Return the exit code, what was printed, and the last line of the errors."""
        out, err = self.process.communicate(timeout=300)
        print(err)
        return self.process.returncode, out, err.splitlines()[-1] if err else ""


def newer(folder: Path, than: dict[str, int]) -> bool:
    return any(path.stat().st_mtime_ns != than.get(path.name) for path in folder.glob("resume-?.pt"))


def ended(pid: int) -> bool:
    """Return True if a process ends within 20 seconds; a fork of the server is no descendant of Snakemake."""
    with suppress(psutil.NoSuchProcess):
        return not psutil.wait_procs([psutil.Process(pid)], timeout=20)[1]
    return True


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline, "ended, or waited too long"
        time.sleep(0.005)


# --- faults that end a call early ----------------------------------------------------------------------
def trainer_killed(study: Study) -> None:
    call = Call(study)
    os.kill(call.trainer(), signal.SIGKILL)
    code, _, last = call.ends()
    assert code == 75
    assert f"train {study.needed[0].path}: was killed" in last


def interrupted(study: Study) -> None:
    call = Call(study)
    call.trainer()
    call.process.send_signal(signal.SIGINT)
    code, _, last = call.ends()
    assert code == 130 and "stopped by SIGINT" in last
    assert not (call.folder / "lease.json").exists()  # the trainer has saved and is gone


def budget_used_up(study: Study) -> None:
    code, out, last = Call(study, "--set", "max_wall=0.2s").ends()
    assert code == 75 and "time limit reached; saved at" in last
    assert "Interim report: " in out and "0/1" in out
    page = Store().study_folder("small") / "partial" / "report" / "index.html"
    assert str(page.resolve()) in out and page.stat().st_size


def step_failed(study: Study) -> None:
    """A file is missing, and then put back by a person."""
    file = Store().tokens_folder("tiny") / "vocabulary.json"
    file.rename(file.with_suffix(".aside"))
    code, _, last = Call(study).ends()
    file.with_suffix(".aside").rename(file)
    assert code == 2 and f"{file}: file not found" in last and last.endswith("(exit code 2)")


def snakemake_killed(study: Study) -> None:
    call = Call(study)
    trainer = call.trainer()
    os.kill(call.snakemake(), signal.SIGKILL)
    code, _, last = call.ends()
    assert code == 75 and "Snakemake was killed by SIGKILL" in last and ended(trainer)
    assert not (call.folder / "lease.json").exists()


def everything_killed(study: Study) -> None:
    """As when the machine goes down."""
    call = Call(study)
    trainer, group = call.trainer(), call.snakemake()
    call.process.kill()
    os.killpg(group, signal.SIGKILL)
    assert call.ends()[0] == -signal.SIGKILL and ended(trainer)


def killed_as_a_step_starts(study: Study) -> None:
    """Only the command and Snakemake are killed; the step ends by itself, and logs nothing where a new call looks."""
    call = Call(study)
    folder = Store().root / "logs" / "reproduce"
    until(lambda: any('"train"' in path.read_text(encoding="utf-8") for path in folder.glob("*.jsonl")), call.process)
    snakemake = psutil.Process(call.snakemake())
    steps = [*snakemake.children(recursive=True), *psutil.Process(call.process.pid).children(recursive=True)]
    call.process.kill()
    snakemake.kill()
    assert call.ends()[0] == -signal.SIGKILL
    assert steps and not psutil.wait_procs(steps, timeout=20)[1]
    assert not (call.folder / "done.json").exists()


def a_second_call(study: Study) -> None:
    """The second call of the command exits without writing a byte; the first one is then interrupted."""
    call = Call(study)
    os.kill(trainer := call.trainer(), signal.SIGSTOP)
    until(lambda: psutil.Process(trainer).status() == psutil.STATUS_STOPPED, call.process)
    before = small.tree(Path())
    second = Call(study)
    code, out, last = second.ends()
    assert code == 75 and out == "" and f"already running here (process {call.process.pid} " in last
    assert small.tree(Path()) == before
    os.kill(trainer, signal.SIGCONT)
    call.process.send_signal(signal.SIGINT)
    assert call.ends()[0] == 130


IN_A_ROW = (everything_killed, a_second_call)
ONE_BY_ONE = (trainer_killed, interrupted, budget_used_up, step_failed, snakemake_killed, killed_as_a_step_starts)


def resumes(study: Study, undisturbed: dict[str, str]) -> None:
    code, out, _ = Call(study).ends()
    assert code == 0 and "1/1" in out and "Report: " in out
    assert outcome(Path(), study) == undisturbed
    page = interim.interim_folder(study) / interim.PAGE
    if page.exists():  # on a slow machine, which began an interim report
        assert page.read_text(encoding="utf-8") == interim.FORWARD
    assert not (interim.interim_folder(study) / "records.parquet").exists()


@pytest.mark.pipeline
@pytest.mark.fault("A18", "A19", "A20")
def test_the_same_command_resumes_after_several_faults(project: Study, undisturbed: dict[str, str]) -> None:
    for fault in IN_A_ROW:
        fault(project)
        assert not (Store().study_folder("small") / "records.parquet").exists()
        assert not (Store().study_folder("small") / "report").exists()
    resumes(project, undisturbed)


@pytest.mark.pipeline
@pytest.mark.tier2
@pytest.mark.fault("A18", "A19", "A20", "A22")
@pytest.mark.parametrize("fault", ONE_BY_ONE, ids=lambda fault: fault.__name__)
def test_the_same_command_resumes_after_each_fault(project: Study, undisturbed: dict[str, str], fault: Any) -> None:
    fault(project)
    resumes(project, undisturbed)


# --- the lock --------------------------------------------------------------------------------------------------------
HOLDER = """
import os, subprocess, sys
from softmax_bottleneck.jobs import locks
lock, fds = locks.acquire_lock()
child = "from softmax_bottleneck.jobs import locks; import time; "
child += "locks.acquire_lock(); print('held', flush=True); time.sleep(120)"
print(subprocess.Popen([sys.executable, "-c", child], pass_fds=fds, env=os.environ | lock).pid, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.fault("A20")
def test_the_lock_of_a_killed_process_stays_with_the_child_that_shares_it(place: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        try:
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(BusyError, match="already running here"):
                locks.acquire_lock()
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.fault("A20")
def test_a_folder_of_snakemake_that_cannot_be_written_or_a_link_as_the_lock_is_refused(place) -> None:
    Path(".snakemake").touch()  # nothing can be written there, not even by root
    with pytest.raises(UserError, match=r"/\.snakemake: cannot be written"):
        locks.acquire_lock()
    Path(".snakemake").unlink()
    Path("mine.txt").write_text("mine", encoding="utf-8")
    Path("results").mkdir()
    Path("results/.workflow.lock").symlink_to("../mine.txt")
    with pytest.raises(UserError, match=r"results/\.workflow\.lock: cannot be written"):
        locks.acquire_lock()
    assert Path("mine.txt").read_text(encoding="utf-8") == "mine"


# --- exit codes ------------------------------------------------------------------------------------------------------
def test_a_step_of_an_earlier_call_writes_into_the_log_of_that_call(tmp_path: Path, monkeypatch) -> None:
    first = workflow.new_log(tmp_path, "demo")
    monkeypatch.setenv(workflow.LOG_VARIABLE, str(first))
    workflow.note("train", "mos")
    (tmp_path / "demo-2@0.jsonl").touch()
    second = workflow.new_log(tmp_path, "demo")
    workflow.note("train", "mos", 0, "")  # the orphan ends
    assert workflow.attempts(second) == [] and first.exists() and (tmp_path / "demo-2@0.jsonl").exists()


def test_failures_are_sorted_by_what_a_person_must_do_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "outcomes.jsonl"
    workflow.note("train", "unset", 2, "nothing is written")
    assert not log.exists() and workflow.failures(log) == []
    monkeypatch.setenv(workflow.LOG_VARIABLE, str(log))
    ended = {"three": 3, "again": 75, "signal": 143, "diverged": 10, "disk": 74, "bug": 1, "mend": 2, "well": 0}
    for what, code in ended.items():
        workflow.note("train", what)
        workflow.note("train", what, code, "words")
    workflow.note("train", "killed")
    for code in (2, 0):  # failed, and ended well when it was tried again
        workflow.note("measure", "repeated", code)
    with log.open("a", encoding="utf-8") as file:
        file.write('{"step": "cut')
    found = workflow.failures(log)
    assert [code for code, _ in found] == [2, 1, 74, 10, 75, 75, 75, 3]
    assert found[0] == (2, "train mend: words") and found[6] == (75, f"train killed: {workflow.KILLED}")


@pytest.mark.parametrize(("words", "expected"), [([], 3), (["--", "--until", "check"], 0)])
def test_a_study_may_end_early_only_if_snakemake_was_told_to(begun, monkeypatch, words, expected) -> None:
    monkeypatch.setattr(reproduce, "_snakemake", lambda *_, **__: (None, False))
    assert main(["reproduce", "--study", str(begun.file), *words]) == expected


# --- make ------------------------------------------------------------------------------------------------------------
def make(*words: str) -> subprocess.CompletedProcess[str]:
    outer = ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "CORES")  # of the `make test CORES=4` that runs this test
    env = {name: value for name, value in os.environ.items() if name not in outer}
    call = ["make", "-C", str(ROOT), *words]
    return subprocess.run(call, capture_output=True, text=True, timeout=60, check=False, env=env)


def environment(tmp_path: Path, script: str) -> tuple[str, ...]:
    """Return the arguments of make that use an existing absolute VENV with this Python."""
    folder = tmp_path / "venv" / "bin"
    folder.mkdir(parents=True)
    (folder / "python").write_text(script, encoding="utf-8")
    (folder / "python").chmod(0o755)
    (folder / ".ready").touch()
    return "-o", str(folder / ".ready"), f"VENV={tmp_path}/venv"


@pytest.mark.fault("C11")
def test_make_rejects_an_unknown_study_and_passes_names_with_blanks(tmp_path: Path) -> None:
    done = make("reproduce", "CONFIG=config/dmeo.yaml")
    assert done.returncode == 2 and "CONFIG=config/dmeo.yaml: no such file" in done.stderr
    study = tmp_path / "a study.yaml"
    study.touch()
    prints = environment(tmp_path, '#!/bin/sh\nprintf "[%s]" "$@"\n')
    done = make(*prints, "reproduce", f"CONFIG={study}", f"MIRROR={tmp_path}/a b")
    assert done.returncode == 0, done.stderr
    assert f"[--study][{study}][--cores][2][--set][mirror={tmp_path}/a b]" in done.stdout


@pytest.mark.fault("C10", "C11")
@pytest.mark.parametrize("name", ["a [1] b", "`touch canary`", "$(touch canary)", "$(shell touch canary)", "$$x;&'#"])
def test_make_runs_nothing_in_a_name(tmp_path: Path, name: str) -> None:
    study = tmp_path / f"{name}.yaml"
    study.write_text("study: own\n", encoding="utf-8")
    prints = environment(tmp_path, '#!/bin/sh\nprintf "[%s]" "$@"\n')
    for key in ("CONFIG", "MIRROR", "FROM", "NAME", "CORES"):
        words = {"CONFIG": str(study), key: str(study)}
        done = make(*prints, "reproduce", "new-study", *(f"{key}={value}" for key, value in words.items()))
        assert done.returncode == 0 and f"[{study}]" in done.stdout, done.stderr
    assert make("plan", f"CONFIG={tmp_path}/{name}").returncode == 2  # no such file
    shown = make(*prints, "-n", "report-zip", f"CONFIG={study}")
    assert shown.returncode == 0 and "study: own" not in shown.stdout
    assert not list(tmp_path.rglob("canary")) and not (ROOT / "canary").exists()


@pytest.mark.fault("A18")
def test_a_signal_to_make_stops_the_workflow_and_waits_for_it(tmp_path: Path) -> None:
    """The environment's Python is a script that takes a second to save when it receives SIGTERM."""
    saves = f"""#!{sys.executable}
import pathlib, signal, sys, time
def stop(*_):
    time.sleep(1)
    pathlib.Path("{tmp_path}/saved").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
pathlib.Path("{tmp_path}/begun").touch()
time.sleep(30)
"""
    words = ["make", "-C", str(ROOT), *environment(tmp_path, saves), "reproduce"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        until((tmp_path / "begun").exists, running)
        running.terminate()
        assert "Error 143" in running.communicate(timeout=60)[1]
    assert (tmp_path / "saved").exists()
