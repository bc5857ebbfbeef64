"""Two links between the workflow and its steps: the id of the workflow process, and a log of the steps.

The workflow process of a step is Snakemake, or a job that trains several runs in child processes. An environment
variable names this process. A step stops when its workflow process has ended (`interrupt.stopped_with_workflow`).

Snakemake reports neither the progress of steps nor why a step failed. Therefore the command `reproduce` names a log
file in a second environment variable, and reads this file. Every step appends one line to it when it begins and one
line when it ends. A step that has no second line is running, or was killed. Every call of `reproduce` has a log of its
own, so that a step of an earlier call writes nothing into it.
"""

import json
import os
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from softmax_bottleneck.jobs.processes import Process, pid_namespace_id
from softmax_bottleneck.store import artefacts, errors

PROCESS_VARIABLE = "SOFTMAX_BOTTLENECK_WORKFLOW"  # the workflow's process, set for those that it starts
LOG_VARIABLE = "SOFTMAX_BOTTLENECK_OUTCOMES"  # the log of the steps; unset: no log
TRY_AGAIN = errors.BusyError.exit_code
# Most important first: user errors, bugs, disk errors, divergence, errors that a retry may solve, incomplete results.
FIRST = (2, 1, 74, 10, TRY_AGAIN, 3)
KILLED = "was killed (the system does this if memory runs out)"


def export_workflow() -> None:
    """Set the environment variable that names this process as the workflow process of child processes started later."""
    process = Process.of(os.getpid())
    os.environ[PROCESS_VARIABLE] = f"{process.pid} {process.started} {pid_namespace_id()}"


def workflow_process() -> Process | None:
    """Return the workflow process that started this process; it may have ended.

    The result is None if this process was started by hand, or if the workflow process runs on another machine or in
    another container, where its id says nothing here.
    """
    pid, started, where = [*os.environ.get(PROCESS_VARIABLE, "").split(" ", 2), "", ""][:3]
    if where != pid_namespace_id() or not (pid.isdecimal() and started.isdecimal()):
        return None
    return Process(int(pid), int(started))


@dataclass(frozen=True)
class Attempt:
    """One attempt at a step of the workflow, as its last line in the log describes it.

    Attributes:
        step: name of the step, such as `train`.
        what: subject of the step: the path of a run, the name of a dataset or the path of a unit of fits; empty for a
            step that concerns the whole study.
        pid: id of the step's process.
        code: exit code; None if the log has no end of the attempt, because it is running or was killed.
        words: error message, empty after success. If `code` is None, the message is the constant KILLED ("was killed
            ..."), because a killed step cannot log its end.
    """

    step: str
    what: str
    pid: int
    code: int | None = None
    words: str = KILLED

    @property
    def works(self) -> bool:
        """True while the step is running: the log has no end of the attempt, and its process exists."""
        return self.code is None and psutil.pid_exists(self.pid)

    @property
    def failure(self) -> tuple[int, str]:
        """The exit code and the message of a failed attempt, such as (2, "train ptb/mos/1-0a1b: ...").

        The exit code is the step's own if it is one of the workflow's codes for errors (1, 2, 3, 10, 74 and 75, the
        constant FIRST). Otherwise, for example if the step was killed and has no code, it is 75 ("try again").
        """
        code = self.code if self.code in FIRST else TRY_AGAIN
        return code, f"{self.step} {self.what}".strip() + f": {self.words}"


def new_log(folder: Path, study: str) -> Path:
    """Return the path of a new log of steps in `folder`, and remove the logs of earlier workflows of this study.

    The name of the log holds a random token. A step that outlives its workflow still appends to the log of that
    workflow, and the next workflow does not take the end of such a step for that of its own.
    """
    for path in folder.glob(f"{study}@*.jsonl"):
        path.unlink(missing_ok=True)
    return folder.resolve() / f"{study}@{uuid.uuid4().hex[:8]}.jsonl"


def note(step: str, what: str, code: int | None = None, words: str = KILLED) -> None:
    """Append a line to the log: a step has begun (without `code`) or has ended (with `code`).

    The environment variable SOFTMAX_BOTTLENECK_OUTCOMES names the log file. If it is not set, nothing is written. Disk
    errors are ignored.

    Args:
        step: name of the step.
        what: path of the run, name of the dataset or path of the unit; empty if the step concerns the whole study.
        code: exit code of the step; None when the step begins.
        words: error message of a step that has ended, empty after success. When a step begins, keep the default: if
            the step never logs its end, `attempts` reports this text, "was killed ...".
    """
    path = os.environ.get(LOG_VARIABLE)
    if path:
        with suppress(OSError):
            artefacts.append_line(Path(path), json.dumps(vars(Attempt(step, what, os.getpid(), code, words))))


def attempts(path: Path) -> list[Attempt]:
    """Return the last attempt for each pair (step, subject) in the log file `path`, ordered by the pairs' first lines.

    Incomplete lines are skipped. The list is empty if the file does not exist.
    """
    latest: dict[tuple[str, str], Attempt] = {}
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.splitlines():
        with suppress(ValueError, TypeError):
            attempt = Attempt(**json.loads(line))
            latest[attempt.step, attempt.what] = attempt
    return list(latest.values())


def failures(path: Path) -> list[tuple[int, str]]:
    """Return (exit code, message) of each failed step in the log file `path`, such as (2, "train ptb/mos/1-0a1b: ...").

    A step has failed for a subject if the last attempt failed. Failures are sorted by exit code in the order of FIRST;
    errors that need a correction come first. A step without a logged end counts as killed. Therefore call this function
    only after all steps have ended.
    """
    failed = [attempt.failure for attempt in attempts(path) if attempt.code != 0]
    return sorted(failed, key=lambda failure: FIRST.index(failure[0]))
