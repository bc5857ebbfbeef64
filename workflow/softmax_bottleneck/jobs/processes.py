"""The identity of processes: whether a given process still runs, and where its process id is valid.

Process ids are reused, and every machine and container counts its own. Therefore the start time distinguishes two
processes with the same id, and the boot id and the process namespace say where an id is valid.
"""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import psutil

WORKFLOW_VARIABLE = "SOFTMAX_BOTTLENECK_WORKFLOW"  # the workflow's process, set for those that it starts


@dataclass(frozen=True)
class Process:
    """A process, identified by its id and its start in hundredths of a second since boot (0: it has ended)."""

    pid: int
    started: int

    @property
    def lives(self) -> bool:
        """True while this process runs; False for a zombie, and if another process has reused the id."""
        return bool(self.started) and self.started == started(self.pid)


def started(pid: int) -> int:
    """Return the start of a process in hundredths of a second since boot; 0 if the process has ended.

    The start is not counted from 1970, as psutil does, because that number changes when the clock is set, and setting
    the clock must not end a lease.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return 0
        return round(100 * (process.create_time() - psutil.boot_time()))
    except psutil.NoSuchProcess:
        return 0


def myself() -> Process:
    """Return this process."""
    return Process(os.getpid(), started(os.getpid()))


def pid_namespace_id() -> str:
    """Return an id of the scope in which process ids are valid: boot id and process namespace, else the host's name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return platform.node()


def export_workflow() -> None:
    """Set the environment variable that tells child processes which workflow process started them."""
    process = myself()
    os.environ[WORKFLOW_VARIABLE] = f"{process.pid} {process.started}"


def workflow() -> Process | None:
    """Return the workflow process that started this process; None if there is none on this machine."""
    numbers = os.environ.get(WORKFLOW_VARIABLE, "").split()
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        return None
    process = Process(int(numbers[0]), int(numbers[1]))
    return process if process.lives else None  # else it belongs to another machine or container
