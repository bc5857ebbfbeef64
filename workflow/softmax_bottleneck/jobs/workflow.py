"""What the processes of one workflow share: the lock of its results folder, its own process, and the log of its steps.

Snakemake's own lock stays behind when Snakemake is killed, until somebody removes it; the profiles disable it. The lock
of this module covers the results folder and admits one workflow at a time. The kernel releases it when its process
ends, and no option of Snakemake removes it. `reproduce` passes the lock on to its Snakemake, so that it is held until
both have ended. Some file systems have no such lock, and a workflow that uses this one as a module does not take it;
there, the lease of every run still keeps two processes apart.

The log of the steps is for the command that started the workflow, because Snakemake reports neither progress nor
reasons. Every step appends one line when it begins and one line when it ends. A step that has no second line is
running, or was killed.
"""

import errno
import fcntl
import json
import os
import platform
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from softmax_bottleneck.jobs.processes import Process
from softmax_bottleneck.store import artefacts, errors, paths

LOCK_FILE = ".workflow.lock"
LOCK_VARIABLE = "SOFTMAX_BOTTLENECK_LOCK"  # the lock file whose lock the parent process holds and passes on
PROCESS_VARIABLE = "SOFTMAX_BOTTLENECK_WORKFLOW"  # the workflow's process, set for those that it starts
LOG_VARIABLE = "SOFTMAX_BOTTLENECK_OUTCOMES"  # the log of the steps; unset: no log
TRY_AGAIN = errors.BusyError.exit_code
# Most important first: errors that need a correction, faults of the program, the disk, then what a retry may solve.
FIRST = (2, 1, 74, 10, TRY_AGAIN, 3)
KILLED = "was killed (the system does this if memory runs out)"
_held: list[IO[str]] = []  # open until the process ends


# --- the lock and the process ---------------------------------------------------------------------------------------
def acquire_lock() -> dict[str, str]:
    """Lock the results folder until this process ends; return the environment that lets a child process share the lock.

    The child must also inherit the file descriptors that `lock_descriptors` returns.

    Raises:
        BusyError: another process holds the lock.
        UserError: the folder cannot be written, or the lock file is a symbolic link.
    """
    path = paths.Store().root.resolve() / LOCK_FILE
    environment = {LOCK_VARIABLE: str(path)}
    if os.environ.get(LOCK_VARIABLE) == str(path):
        return environment
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The file is truncated: never through a link.
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        problem = f"cannot be written ({error.strerror}); make it writable, or work in another folder (--directory)"
        if error.errno == errno.ELOOP:
            raise errors.UserError(f"{path}: is a link; remove it") from None
        raise errors.UserError(f"{path.parent}: {problem}") from None
    file = os.fdopen(descriptor, "a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            file.seek(0)
            owner = file.read().strip() or "it has just been started"
            message = f"a workflow is already running here ({owner}); wait for it, or stop it and try again"
            raise errors.BusyError(f"{path.parent}: {message}") from None
    _held.append(file)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
    file.flush()
    return environment


def lock_descriptors() -> list[int]:
    """Return the file descriptors of the lock, for `pass_fds` of a child process."""
    return [file.fileno() for file in _held]


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


# --- the log of the steps -------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Attempt:
    """The last attempt at a step of the workflow for one subject, with times in seconds since 1970.

    `what` names the subject: a run, a dataset or the fits of a seed. `words` is the error message of the attempt.
    """

    step: str
    what: str
    pid: int
    began: float
    ended: float | None = None
    code: int | None = None
    words: str = KILLED

    @property
    def works(self) -> bool:
        """True while the process of the step is running."""
        return self.ended is None and psutil.pid_exists(self.pid)

    @property
    def failure(self) -> tuple[int, str]:
        """The exit code and the message; a killed step, or one with an unknown exit code, gets 75 ("try again")."""
        code = self.code if self.code in FIRST else TRY_AGAIN
        return code, f"{self.step} {self.what}".strip() + f": {self.words}"


def note(step: str, what: str, code: int | None = None, words: str = "") -> None:
    """Log that a step has begun or, if `code` is given, that the step has ended with this exit code and error message.

    Disk errors are ignored.
    """
    path = os.environ.get(LOG_VARIABLE)
    if path:
        line = {"step": step, "what": what, "pid": os.getpid(), "at": time.time()}
        line |= {} if code is None else {"code": code, "words": words}
        with suppress(OSError):
            artefacts.append_line(Path(path), json.dumps(line))


def attempts(path: Path) -> list[Attempt]:
    """Return the last attempt at every step of the log file `path`; incomplete lines are skipped."""
    found: dict[tuple[str, str], Attempt] = {}
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.splitlines():
        with suppress(ValueError, KeyError, TypeError):
            facts = json.loads(line)
            key, pid, at = (facts["step"], facts["what"]), facts["pid"], facts["at"]
            began = found[key].began if "code" in facts and key in found else at
            end = (at, facts["code"], facts["words"]) if "code" in facts else ()
            found[key] = Attempt(*key, pid, began, *end)
    return list(found.values())


def failures(path: Path) -> list[tuple[int, str]]:
    """Return the exit code and message of every step whose last attempt failed, the most important failure first."""
    found = [attempt.failure for attempt in attempts(path) if attempt.code != 0]
    return sorted(found, key=lambda failure: FIRST.index(failure[0]))
