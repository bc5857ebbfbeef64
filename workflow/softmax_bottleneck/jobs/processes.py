"""Which process is which: whether a named one still lives, and whether its number means anything here.

A process number alone says little: numbers are given again, other machines and containers have their own. The start
time tells two processes of one number apart; the boot and the namespace of processes say where a number counts.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import psutil

WORKFLOW_VARIABLE = "SOFTMAX_BOTTLENECK_WORKFLOW"  # set by the workflow: its process, for those it starts


@dataclass(frozen=True)
class Process:
    """A process of this machine: its number, and when it started in hundredths of a second since boot (0: it ended)."""

    pid: int
    started: int

    @property
    def lives(self) -> bool:
        """Whether this very process runs (a zombie does not)."""
        return bool(self.started) and self.started == started(self.pid)


def started(pid: int) -> int:
    """When a process started, in hundredths of a second since boot; 0 when it has ended.

    Since boot, because psutil's time since 1970 moves with the clock, and a clock that is set must end no lease.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return 0
        return round(100 * (process.create_time() - psutil.boot_time()))
    except psutil.NoSuchProcess:
        return 0


def myself() -> Process:
    """This process."""
    return Process(os.getpid(), started(os.getpid()))


def pid_namespace_id() -> str:
    """Where process numbers of here count: one boot of one machine, and one container on it; else the host's name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return platform.node()


def export_workflow() -> None:
    """Let the processes started from here know which workflow they belong to."""
    process = myself()
    os.environ[WORKFLOW_VARIABLE] = f"{process.pid} {process.started}"


def workflow() -> Process | None:
    """The workflow this process was started by, where it can be seen from here."""
    words = os.environ.get(WORKFLOW_VARIABLE, "").split()
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        return None
    process = Process(int(words[0]), int(words[1]))
    return process if process.lives else None  # else of another machine or container: nothing can be said about it
