"""The identity of the workflow's process, which its steps watch, and the log of steps, which `reproduce` reads.

Snakemake reports neither progress nor reasons. Therefore every step appends one line to the log when it begins and one
line when it ends. A step that has no second line is running, or was killed.
"""

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from softmax_bottleneck.jobs.processes import Process
from softmax_bottleneck.store import artefacts, errors

PROCESS_VARIABLE = "SOFTMAX_BOTTLENECK_WORKFLOW"  # the workflow's process, set for those that it starts
LOG_VARIABLE = "SOFTMAX_BOTTLENECK_OUTCOMES"  # the log of the steps; unset: no log
TRY_AGAIN = errors.BusyError.exit_code
# Most important first: errors that need a correction, faults of the program, the disk, then what a retry may solve.
FIRST = (2, 1, 74, 10, TRY_AGAIN, 3)
KILLED = "was killed (the system does this if memory runs out)"


def export_workflow() -> None:
    """Set the environment variable that tells child processes which workflow process started them."""
    process = Process.of(os.getpid())
    os.environ[PROCESS_VARIABLE] = f"{process.pid} {process.started}"


def workflow_process() -> Process | None:
    """Return the workflow process that started this process; None if there is none on this machine."""
    numbers = os.environ.get(PROCESS_VARIABLE, "").split()
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        return None
    process = Process(int(numbers[0]), int(numbers[1]))
    return process if process.lives else None  # else it belongs to another machine or container


@dataclass(frozen=True)
class Attempt:
    """An attempt at a step of the workflow for one subject.

    `what` names the subject: a run, a dataset or the fits of a seed. Until the attempt ends, the exit code is None;
    then `words` is the error message.
    """

    step: str
    what: str
    pid: int
    code: int | None = None
    words: str = KILLED

    @property
    def works(self) -> bool:
        """True while the process of the step is running."""
        return self.code is None and psutil.pid_exists(self.pid)

    @property
    def failure(self) -> tuple[int, str]:
        """The exit code and the message; a killed step, or one with an unknown exit code, gets 75 ("try again")."""
        code = self.code if self.code in FIRST else TRY_AGAIN
        return code, f"{self.step} {self.what}".strip() + f": {self.words}"


def note(step: str, what: str, code: int | None = None, words: str = KILLED) -> None:
    """Log that a step has begun or, if `code` is given, that the step has ended with this exit code and error message.

    Disk errors are ignored.
    """
    path = os.environ.get(LOG_VARIABLE)
    if path:
        with suppress(OSError):
            artefacts.append_line(Path(path), json.dumps(vars(Attempt(step, what, os.getpid(), code, words))))


def attempts(path: Path) -> list[Attempt]:
    """Return the last attempt at every step of the log file `path`; incomplete lines are skipped."""
    found: dict[tuple[str, str], Attempt] = {}
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.splitlines():
        with suppress(ValueError, TypeError):
            attempt = Attempt(**json.loads(line))
            found[attempt.step, attempt.what] = attempt
    return list(found.values())


def failures(path: Path) -> list[tuple[int, str]]:
    """Return the exit code and message of every step whose last attempt failed, the most important failure first."""
    found = [attempt.failure for attempt in attempts(path) if attempt.code != 0]
    return sorted(found, key=lambda failure: FIRST.index(failure[0]))
