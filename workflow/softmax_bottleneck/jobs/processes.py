"""Which process is which: whether a named one still lives, and whether its number means anything here.

A process number alone says little: numbers are given again, other machines and containers have their own. The start
time tells two processes of one number apart; the kernel and the table of processes say where a number counts.
"""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

WORKFLOW_VARIABLE = "SOFTMAX_BOTTLENECK_WORKFLOW"  # set by the workflow: its process, for those it starts
SQUEUE_TIMEOUT_S = 20.0
# States of SLURM jobs whose processes may be there. A job that waits to run again, or is configured, has none yet.
LIVING_JOB_STATES = frozenset(["RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT"])


@dataclass(frozen=True)
class Process:
    """A process of this machine: its number, and when it started in clock ticks since boot (0: unknown)."""

    pid: int
    started: int

    @property
    def lives(self) -> bool:
        """Whether this very process runs (a zombie does not)."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return self.started == started(self.pid)


def started(pid: int) -> int:
    """Start time of a process in clock ticks since boot; 0 where there is no /proc, and of one that has ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return 0 if words[0] == "Z" else int(words[19])
    except (OSError, IndexError, ValueError):
        return 0


def myself() -> Process:
    """This process."""
    return Process(os.getpid(), started(os.getpid()))


def realm() -> str:
    """Where process numbers of here count: one boot of one machine, and one container on it; else the host's name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return platform.node()


def export_workflow() -> None:
    """Tell the processes started from here which workflow they belong to."""
    process = myself()
    os.environ[WORKFLOW_VARIABLE] = f"{process.pid} {process.started}"


def workflow() -> Process | None:
    """The workflow this process was started by, where it can be seen from here."""
    words = os.environ.get(WORKFLOW_VARIABLE, "").split()
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        return None
    found = Process(int(words[0]), int(words[1]))
    return found if found.lives else None  # else of another machine or container: nothing can be said about it


def batch_job() -> dict[str, str]:
    """Number of the SLURM job this process belongs to, and how often it was started again; empty outside."""
    job = os.environ.get("SLURM_JOB_ID", "")
    return {"job": job, "restart": os.environ.get("SLURM_RESTART_COUNT") or _restarts(job)} if job else {}


@cache
def _restarts(job: str) -> str:
    """How often SLURM started a job again, asked of it: Snakemake's plugin clears the variable that says so."""
    done = _squeue("--Format=RestartCnt", job)
    return (done.stdout.strip() if done and not done.returncode else "") or "0"


def batch_job_lives(job: str) -> bool | None:
    """Whether a SLURM job may still have processes; None when the batch system cannot be asked."""
    done = _squeue("--format=%T", job)
    if done is None or done.returncode:
        return False if done and "invalid job id" in done.stderr.lower() else None
    return any(state in LIVING_JOB_STATES for state in done.stdout.split())


def _squeue(layout: str, job: str) -> subprocess.CompletedProcess[str] | None:
    """What squeue says of a job; None where it is missing or does not answer."""
    command = ["squeue", "--noheader", layout, f"--jobs={job}"]
    try:
        return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=SQUEUE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
