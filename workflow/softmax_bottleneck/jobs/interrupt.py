"""Signals and time limits that stop a process; the process then saves its state and exits.

The exit code is 130 for SIGINT, 143 for SIGTERM and 75 ("try again") in three cases: SIGUSR1, which batch systems send
ahead of a time limit; the process's own time limit; and the end of the workflow that started the process, because the
next call of the workflow would start a second process for the same run.

A batch system kills a job at its time limit. A job that stops itself earlier loses no work, and the next attempt
resumes the work. A process computes once, at its start, how many seconds are left. Setting the clock later therefore
does not move the limit.
"""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from softmax_bottleneck.jobs import processes
from softmax_bottleneck.store import errors, progress
from softmax_bottleneck.study.schema import seconds

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 75}
TRY_AGAIN = errors.BusyError.exit_code
LOOK_EVERY_S = 1.0  # for the workflow
MAX_WALL_VARIABLE = "SOFTMAX_BOTTLENECK_MAX_WALL"
MARGIN_S = 180.0  # default: for the step in progress, a validation and a save ...
MARGIN_SHARE = 0.25  # ... but at most this share of the time left, so that short jobs make progress


class StoppedError(errors.BusyError):
    """The error that ends a process which was told to stop and has saved its state.

    `exit_code` is 130, 143 or 75 and tells the cause (see the module's docstring). A process that trains several runs
    in child processes (`train_together`) passes on the exit code of one of the children instead.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


# --- time limits ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TimeLimit:
    """A limit to the time that a process may run.

    Attributes:
        seconds: the time left when the limit was computed (None: no limit).
        why: the reason for the limit, printed when work starts.
        in_batch_job: True if the process belongs to a batch job.
    """

    seconds: float | None = None
    why: str = "no limit"
    in_batch_job: bool = False

    @property
    def lock_timeout_s(self) -> float:
        """The longest time, in seconds, to wait while another process owns the same run.

        A process outside a batch job does not wait (0). A batch job waits until its time limit, or forever (infinity)
        if it has none; failing at once would only use up Snakemake's retries. The owner may be a job that an earlier
        call of the workflow left behind, or a process on a node that has failed.
        """
        if not self.in_batch_job:
            return 0.0
        return math.inf if self.seconds is None else self.seconds


def time_limit(
    max_wall: str | None = None, margin: str | None = None, environment: Mapping[str, str] = os.environ
) -> TimeLimit:
    """Return the shorter of two limits: the process's own limit, and the time left to its batch job.

    If neither exists, `seconds` of the returned limit is None. Durations are written as `90s`, `30m`, `4h` or `1.5d`.

    Args:
        max_wall: duration of the process's own limit, from now (None: the value of SOFTMAX_BOTTLENECK_MAX_WALL in
            `environment` or, without this variable, no limit).
        margin: duration by which the process stops before the end of its batch job (None: three minutes, or a quarter
            of the time left if that is shorter).
        environment: environment variables (default: those of this process).

    Raises:
        UserError: `max_wall`, `margin` or the variable is not a duration.
    """
    own, job = max_wall or environment.get(MAX_WALL_VARIABLE), environment.get(processes.JOB_VARIABLE)
    limits = [TimeLimit(seconds(own), f"max_wall {own}", bool(job))] if own else []
    left_s = processes.seconds_left(environment)
    if left_s is not None:
        margin_s = seconds(margin) if margin else min(MARGIN_S, MARGIN_SHARE * left_s)
        why = f"SLURM job {job} ends in {progress.duration(left_s)}"
        limits.append(TimeLimit(max(0.0, left_s - margin_s), why, bool(job)))
    return min(limits, key=lambda limit: limit.seconds or 0.0, default=TimeLimit(in_batch_job=bool(job)))


# --- signals --------------------------------------------------------------------------------------------------------
class Stop:
    """The conditions under which a process must stop: a signal, a time limit, or the end of its workflow.

    `limit_s` is in seconds and counts from construction, on a monotonic clock (None: no limit). `workflow` is the
    workflow process that started this process (None: started by hand).
    """

    def __init__(self, limit_s: float | None = None, workflow: processes.Process | None = None) -> None:
        self.looked = time.monotonic()
        self.deadline = None if limit_s is None else self.looked + limit_s
        self.signal: signal.Signals | None = None
        self.workflow = workflow

    def receive(self, number: int, frame: object = None) -> None:
        """Record a received signal, so that `reason` reports it; the handler of SIGINT, SIGTERM and SIGUSR1.

        A second SIGINT (Ctrl-C) ends the process at once without saving; the work since the last save is then lost.
        """
        if number == signal.SIGINT and self.signal == signal.SIGINT:
            os._exit(EXIT_CODES[signal.SIGINT])
        self.signal = signal.Signals(number)

    def reason(self) -> tuple[str, int] | None:
        """Return (reason, exit code) if the process must stop now, such as ("SIGTERM received", 143), else None."""
        if self.signal is not None:
            return f"{self.signal.name} received", EXIT_CODES[self.signal]
        now = time.monotonic()
        if self.deadline is not None and now >= self.deadline:
            return "time limit reached", TRY_AGAIN
        if self.workflow is not None and now - self.looked >= LOOK_EVERY_S:
            self.looked = now
            if not self.workflow.lives:
                return "the workflow that started it is gone", TRY_AGAIN
        return None


@contextmanager
def signals_to(receive: Callable[[int, object], object]) -> Iterator[None]:
    """Make `receive` the handler of SIGINT, SIGTERM and SIGUSR1 inside the context; on leaving, restore the old ones.

    Outside the main thread the context does nothing, because Python allows signal handlers only in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, receive) for number in EXIT_CODES}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
