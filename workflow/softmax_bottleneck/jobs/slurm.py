"""What SLURM says: which of its jobs this process belongs to, how long that may go on, whether another one lives."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping
from functools import cache

JOB_VARIABLE = "SLURM_JOB_ID"
TIMEOUT_S = 20.0  # of a question to SLURM
# States of jobs whose processes may be there. A job that waits to run again, or is configured, has none yet.
LIVING_STATES = frozenset(["RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT"])


def batch_job() -> dict[str, str]:
    """Number of the job this process belongs to, and how often it was started again; empty outside."""
    job = os.environ.get(JOB_VARIABLE, "")
    return {"job": job, "restart": os.environ.get("SLURM_RESTART_COUNT") or _restarts(job)} if job else {}


@cache
def _restarts(job: str) -> str:
    """How often a job was started again, asked of SLURM: Snakemake's plugin clears the variable that says so."""
    answer = _squeue("--Format=RestartCnt", job)
    return (answer.stdout.strip() if answer and not answer.returncode else "") or "0"


def job_lives(job: str) -> bool | None:
    """Whether a job may still have processes; None when SLURM cannot be asked."""
    answer = _squeue("--format=%T", job)
    if answer is None or answer.returncode:
        return False if answer and "invalid job id" in answer.stderr.lower() else None
    return any(state in LIVING_STATES for state in answer.stdout.split())


def seconds_left(environment: Mapping[str, str]) -> float | None:
    """Seconds until SLURM ends this job; None outside of a job, without a time limit, or when nobody knows.

    Newer versions say so in SLURM_JOB_END_TIME; older ones, and Snakemake's plugin, which clears the variable, leave it
    to squeue.
    """
    job, end = environment.get(JOB_VARIABLE), environment.get("SLURM_JOB_END_TIME", "")
    if not job:
        return None
    if end.isdecimal():
        return max(0.0, float(end) - time.time())
    answer = _squeue("--format=%L", job)
    return _seconds(answer.stdout.strip()) if answer else None


def _seconds(text: str) -> float | None:
    """`[days-][[hours:]minutes:]seconds` in seconds; None for UNLIMITED, INVALID and the like."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)", text)
    if not match:
        return None
    days, hours, minutes, seconds = (int(number or 0) for number in match.groups())
    return 86400.0 * days + 3600.0 * hours + 60.0 * minutes + seconds


def _squeue(layout: str, job: str) -> subprocess.CompletedProcess[str] | None:
    """What squeue says of a job; None where it is missing or does not answer."""
    command = ["squeue", "--noheader", layout, f"--jobs={job}"]
    try:
        return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
