"""Functions that identify processes and SLURM jobs, and find out if they still run.

Process ids are reused, so a process is identified by its id and its start time. Every machine and container counts its
own ids, so the boot id and the process namespace tell where an id is valid.
"""

import os
import platform
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

JOB_VARIABLE = "SLURM_JOB_ID"
TIMEOUT_S = 20.0  # for the programs of SLURM and of the GPU
# States of jobs that may have processes. A job that waits to run again, or is being configured, has none yet.
LIVING_STATES = frozenset(["RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT"])


@dataclass(frozen=True)
class Process:
    """A process, identified by its id and its start.

    Attributes:
        pid: process id.
        started: time of the start in hundredths of a second, on Linux since boot, elsewhere since 1970; 0 if the
            process has ended.
    """

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "Process":
        """Return the process with the id `pid`; `started` is 0 if no process has this id, or if it is a zombie.

        Linux counts the start from boot. A start counted from 1970 may change when the clock is set: the process would
        then seem to have ended, and its lease would be taken as free.
        """
        try:
            if platform.system() == "Linux":  # psutil adds the time of boot, which changes with the clock
                # proc_pid_stat(5): field 2 is the name in parentheses, field 3 the state, field 22 the start.
                from_3 = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
                return cls(pid, 0 if from_3[0] == b"Z" else int(from_3[22 - 3]))
            process = psutil.Process(pid)
            ended = process.status() == psutil.STATUS_ZOMBIE
            return cls(pid, 0 if ended else round(100 * process.create_time()))
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            return cls(pid, 0)

    @property
    def lives(self) -> bool:
        """True while this process runs; False for a zombie, and if another process has reused the id."""
        return bool(self.started) and self == Process.of(self.pid)


def pid_namespace_id() -> str:
    """Return a text that identifies where process ids are valid: this container, on this machine, since its last boot.

    The text consists of the boot id and the process namespace. If /proc does not have both, it is the host's name.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return platform.node()


def answer_of(*command: str) -> subprocess.CompletedProcess[str] | None:
    """Run a program, and return its exit code and its output as text (`returncode`, `stdout`, `stderr`).

    `command` is the program and its arguments, such as "squeue", "--noheader". None is returned if the program cannot
    be started or has not ended within TIMEOUT_S seconds.
    """
    try:
        return subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace",
                              timeout=TIMEOUT_S, check=False)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None


# --- SLURM ----------------------------------------------------------------------------------------------------------
def batch_job() -> dict[str, str]:
    """Return {"job": number of this process's SLURM job}, or an empty dict outside a job."""
    job = os.environ.get(JOB_VARIABLE, "")
    return {"job": job} if job else {}


def job_lives(job: str) -> bool | None:
    """Return True if the SLURM job with the number `job` can have processes, for example if it runs or is suspended.

    Return False if the job waits in the queue, has ended, or is unknown to SLURM. Return None if squeue is missing,
    fails or does not answer in time.
    """
    answer = answer_of("squeue", "--noheader", "--format=%T", f"--jobs={job}")
    if answer is None or answer.returncode:
        return False if answer and "invalid job id" in answer.stderr.lower() else None
    return any(state in LIVING_STATES for state in answer.stdout.split())


def seconds_left() -> float | None:
    """Return the seconds until SLURM ends this process's job.

    The result is None outside a job, for a job without a time limit, and if SLURM does not answer. The end is taken
    from the environment variable SLURM_JOB_END_TIME. This variable is missing in older versions of SLURM, and
    Snakemake's plugin clears it. Without the variable, squeue is asked for the remaining time. squeue answers in the
    form `[days-][[hours:]minutes:]seconds`, or with a word such as UNLIMITED.
    """
    job, end = os.environ.get(JOB_VARIABLE), os.environ.get("SLURM_JOB_END_TIME", "")
    if not job:
        return None
    if end.isdecimal():
        return max(0.0, float(end) - time.time())
    answer = answer_of("squeue", "--noheader", "--format=%L", f"--jobs={job}")
    left = re.fullmatch(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)", answer.stdout.strip() if answer else "")
    if not left:
        return None
    days, hours, minutes, seconds = (int(number or 0) for number in left.groups())
    return 86400.0 * days + 3600.0 * hours + 60.0 * minutes + seconds
