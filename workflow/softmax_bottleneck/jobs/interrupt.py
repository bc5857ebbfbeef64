"""When work has to stop: signals and time limits. The work then saves its state and leaves.

Exit codes: 130 for SIGINT, 143 for SIGTERM, 75 ("try again") for SIGUSR1, which batch systems send ahead of a time
limit, for the work's own time limit, and when the workflow that started it has ended, because its next call would start
a second process on the same work.

A batch system kills a job at its time limit. A job that stops itself before that loses nothing, and the next attempt
resumes. Moments of the wall clock are converted into time left once, at the start, so that setting the clock moves no
deadline.
"""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from softmax_bottleneck.jobs import slurm
from softmax_bottleneck.jobs.processes import Process
from softmax_bottleneck.store.errors import BusyError
from softmax_bottleneck.store.progress import duration
from softmax_bottleneck.study.schema import seconds

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 75}
TRY_AGAIN = BusyError.exit_code
LOOK_EVERY_S = 1.0  # for the workflow
MAX_WALL_VARIABLE = "SOFTMAX_BOTTLENECK_MAX_WALL"
MARGIN_S = 180.0  # default: for the step in progress, a validation and a save ...
MARGIN_SHARE = 0.25  # ... but at most this share of the time left, so that short jobs make progress


class StoppedError(BusyError):
    """The work was told to stop, has saved its state and can be resumed; the exit code says by whom."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


# --- time limits ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TimeLimit:
    """The seconds a process may work (None: no limit), the reason in words, and whether it is in a batch job."""

    seconds: float | None = None
    why: str = "no limit"
    in_batch_job: bool = False

    @property
    def lock_timeout_s(self) -> float:
        """Seconds to wait for another process on the same work: a batch job's whole time, else none.

        The other process may be a job left behind by an earlier call of the workflow, or one on a node that is gone.
        Failing at once would only use up the attempts.
        """
        if not self.in_batch_job:
            return 0.0
        return math.inf if self.seconds is None else self.seconds

    def __str__(self) -> str:
        """The log's line: `stops itself in 3:57:00 at the latest (...)`."""
        return f"stops itself in {duration(max(0.0, self.seconds or 0.0))} at the latest ({self.why})"


def time_limit(
    max_wall: str | None = None, margin: str | None = None, environment: Mapping[str, str] = os.environ
) -> TimeLimit:
    """Return the shorter of the work's own limit and the time that its batch job has left.

    Args:
        max_wall: own limit from now on, as `90m` (None: the variable `SOFTMAX_BOTTLENECK_MAX_WALL`, else no limit).
        margin: how long before the end of the batch job to stop (None: three minutes, or a quarter of what is left).
        environment: environment variables.

    Raises:
        UserError: a value is not a length of time.
    """
    own, job = max_wall or environment.get(MAX_WALL_VARIABLE), environment.get(slurm.JOB_VARIABLE)
    limits = [TimeLimit(seconds(own), f"max_wall {own}", bool(job))] if own else []
    left_s = slurm.seconds_left(environment)
    if left_s is not None:
        margin_s = seconds(margin) if margin else min(MARGIN_S, MARGIN_SHARE * left_s)
        why = f"SLURM job {job} ends in {duration(left_s)}"
        limits.append(TimeLimit(max(0.0, left_s - margin_s), why, bool(job)))
    return min(limits, key=lambda limit: limit.seconds or 0.0, default=TimeLimit(in_batch_job=bool(job)))


# --- signals --------------------------------------------------------------------------------------------------------
class Stop:
    """The reason to stop, if there is one. `limit_s` counts from construction, on a monotonic clock.

    `workflow` is the process that started this one and would start it again; None for work started by hand.
    """

    def __init__(self, limit_s: float | None = None, workflow: Process | None = None) -> None:
        self.looked = time.monotonic()
        self.deadline = None if limit_s is None else self.looked + limit_s
        self.signal: signal.Signals | None = None
        self.workflow = workflow

    def receive(self, number: int, frame: FrameType | None = None) -> None:
        """Note a signal (a signal handler). A second Ctrl-C exits at once; the last saved state stays valid."""
        if number == signal.SIGINT and self.signal == signal.SIGINT:
            os._exit(EXIT_CODES[signal.SIGINT])
        self.signal = signal.Signals(number)

    def reason(self) -> tuple[str, int] | None:
        """Return (reason, exit code) if the work must stop now, else None."""
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
def signals_to(receive: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Call `receive` for SIGINT, SIGTERM and SIGUSR1 inside the context (in the main thread only: Python's rule)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, receive) for number in EXIT_CODES}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
