"""Identity of processes: whether a given process still runs, and whether its number means anything here.

Numbers are reused, and other machines and containers have their own. The start time distinguishes two processes with
one number. Boot and process namespace say where a number is valid.
"""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import psutil

WORKFLOW_VARIABLE = "SOFTMAX_BOTTLENECK_WORKFLOW"  # the workflow's process, set for those that it starts


@dataclass(frozen=True)
class Process:
    """A process of this machine: its number, and its start in hundredths of a second since boot (0: it has ended)."""

    pid: int
    started: int

    @property
    def lives(self) -> bool:
        """True while this process runs; a zombie does not, nor does another process with its number."""
        return bool(self.started) and self.started == started(self.pid)


def started(pid: int) -> int:
    """Return when a process started, in hundredths of a second since boot; 0 if it has ended.

    psutil's time since 1970 moves with the clock, and setting the clock must end no lease: hence since boot.
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
    """Return where process numbers are valid: a boot and a container of one machine, else the host's name."""
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
    """Return the workflow that started this process; None if it cannot be seen from here."""
    numbers = os.environ.get(WORKFLOW_VARIABLE, "").split()
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        return None
    process = Process(int(numbers[0]), int(numbers[1]))
    return process if process.lives else None  # else it belongs to another machine or container
