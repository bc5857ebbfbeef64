"""Leases: who owns a folder, judged by processes, batch jobs and signs of life."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.jobs import locks, processes, workflow
from softmax_bottleneck.store.errors import BusyError
from tiny_runs import of_parent, write_lease

BEFORE_THE_RESTART = {"pid_namespace_id": "boot before", "pid": os.getpid(), "started": 1}  # numbers mean nothing now


@pytest.mark.fault("A14")
@pytest.mark.parametrize("facts", [
    {"age_s": 1e6, **of_parent()},  # a living process of this machine: its lease never ages
    {"host": "elsewhere", "pid_namespace_id": "another", "pid": 1, "started": 1},
    {"age_s": 60.0, **BEFORE_THE_RESTART},
])  # fmt: skip
def test_a_lease_of_a_living_or_recent_owner_is_respected(tmp_path, facts):
    write_lease(tmp_path, **facts)
    with pytest.raises(BusyError, match=f"on {facts.get('host', 'here')}, seen"):
        locks.Lease(tmp_path).__enter__()


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.mark.fault("A14")
@pytest.mark.parametrize("facts", [
    {"pid": "dead"},
    {"pid": os.getpid(), "started": 1},  # the number was given to another process
    {"host": "elsewhere", "pid_namespace_id": "another", "pid": 1, "started": 1, "age_s": 1000.0},
    {"pid": None, "age_s": 1000.0},  # half written by a machine that is gone
    {"age_s": locks.STALE_AFTER_S + 1, **BEFORE_THE_RESTART},
])  # fmt: skip
def test_stale_lease_is_taken_over(tmp_path, caplog, facts):
    write_lease(tmp_path, **facts | ({"pid": dead_pid(), "started": 0} if facts["pid"] == "dead" else {}))
    with locks.Lease(tmp_path) as owner:
        owner.check()
    assert "taken over" in caplog.text
    assert not (tmp_path / "lease.json").exists()


def test_a_lease_whose_owner_ends_meanwhile_is_free(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda path: True)  # it was there a moment ago
    with locks.Lease(tmp_path) as owner:
        owner.check()


def with_squeue(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A batch system that answers as the script does."""
    path = folder / "bin" / "squeue"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.fault("A14", "F3")
@pytest.mark.parametrize(("script", "taken_over"), [
    ("echo RUNNING", False), ("echo COMPLETING", False), ("echo FAILED", True),
    ("echo PENDING", True),  # queued again: its processes are gone
    ("exit 0", True),  # the queue no longer knows it
    ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", True),
    ("echo 'connection refused' >&2; exit 1", False),  # nobody can tell: the last sign of life decides
])  # fmt: skip
def test_a_lease_from_another_machine_lives_as_long_as_its_batch_job(tmp_path, monkeypatch, script, taken_over):
    with_squeue(tmp_path, monkeypatch, script)
    write_lease(tmp_path, host="node7", pid_namespace_id="another", pid=1, started=1, job="4711")
    if taken_over:
        with locks.Lease(tmp_path) as owner:
            owner.check()
    else:
        with pytest.raises(BusyError, match=r"on node7 \(SLURM job 4711\)"):
            locks.Lease(tmp_path).__enter__()


@pytest.mark.fault("A14", "F2")
def test_a_job_that_was_queued_again_takes_its_own_lease_over(tmp_path, monkeypatch):
    with_squeue(tmp_path, monkeypatch, "echo RUNNING")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    write_lease(tmp_path, host="node7", pid_namespace_id="another", pid=1, started=1, job="4711")
    with locks.Lease(tmp_path):
        assert json.loads((tmp_path / "lease.json").read_text(encoding="utf-8"))["job"] == "4711"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A living process that is not this one."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_the_workflow_is_a_process_of_this_machine_and_may_have_ended(monkeypatch, sleeper):
    started, here = processes.Process.of(sleeper.pid).started, processes.pid_namespace_id()
    for value, expected, lives in (
        (f"{sleeper.pid} {started} {here}", processes.Process(sleeper.pid, started), True),
        (f"{sleeper.pid} {started + 1} {here}", processes.Process(sleeper.pid, started + 1), False),  # the id is reused
        (f"{sleeper.pid} {started} another {here}", None, None),
        (f"{sleeper.pid} {started}", None, None),
        (f"12 x {here}", None, None),
        ("", None, None),
    ):
        monkeypatch.setenv(workflow.PROCESS_VARIABLE, value)
        assert workflow.workflow_process() == expected and (expected is None or expected.lives == lives)
    workflow.export_workflow()
    assert workflow.workflow_process() == processes.Process.of(os.getpid())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, setting the clock may move the start of a process")
def test_the_start_of_a_process_ignores_the_clock(sleeper) -> None:
    since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)  # which nobody can set
    assert processes.Process.of(sleeper.pid).started / 100 == pytest.approx(since_boot_s, abs=5)


def test_a_program_may_print_any_bytes() -> None:
    answer = processes.answer_of("printf", r"\377 7")
    assert answer and answer.stdout.endswith(" 7")


def test_a_report_by_hand_is_refused_beside_a_workflow_and_a_step_of_it_is_not(begun, monkeypatch):
    command = ["collect", "--study", str(begun.file)]
    monkeypatch.setattr(locks, "_held", [])
    locks.acquire_lock()
    assert main(command) == BusyError.exit_code == 75
    monkeypatch.setenv(workflow.PROCESS_VARIABLE, "1 2 elsewhere")
    assert main(command) == 0
    monkeypatch.delenv(workflow.PROCESS_VARIABLE)
    locks._held.pop().close()
    assert [main(command), main(command)] == [0, 0] and not locks._held
