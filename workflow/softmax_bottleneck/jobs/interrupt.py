"""Signals and time limits that stop a process; the process then saves its state and exits.

The exit codes are:

* 130: SIGINT was received.
* 143: SIGTERM was received.
* 75 ("try again"): SIGUSR1, which batch systems send ahead of a time limit, was received; or the process's own time
  limit is reached; or the workflow that started the process has ended (`stopped_with_workflow`). If the process went
  on without its workflow, the next call of the workflow would start a second process for the same run.

A batch system kills a job at the job's time limit. A process that stops a little earlier loses no work, and the next
attempt resumes. The limit is measured on a monotonic clock, so that setting the system time does not move it.
"""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from softmax_bottleneck.jobs import processes, workflow
from softmax_bottleneck.store import errors, progress
from softmax_bottleneck.store.schema import seconds

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 75}
LOOK_EVERY_S = 1.0  # between checks of the workflow
SETTLE_S = 10.0  # for the work to save its state, before it is told again
MARGIN_S = 180.0  # default: for the step in progress, a validation and a save ...
MARGIN_SHARE = 0.25  # ... but at most this share of the time left, so that short jobs make progress


class StoppedError(errors.BusyError):
    """The error that ends a process which was told to stop and has saved its state.

    `exit_code` is 130, 143 or 75, as the module's docstring lists. If a process trains several runs in child processes
    (`train_together`), `exit_code` is that of one child. If this child failed, it can be any other code.
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
        why: the reason for the limit, such as `max_wall 4h`; printed when work starts.
    """

    seconds: float | None = None
    why: str = "no limit"

    @property
    def lock_timeout_s(self) -> float:
        """The longest time, in seconds, to wait while another process owns the same run.

        The time is 0 outside a batch job. A batch job waits until its time limit, or forever (infinity) without a
        limit, because a failed job would use up one of Snakemake's retries. The other process may be left over from an
        earlier call of the workflow, or may be on a node that has failed.
        """
        if not processes.batch_job():
            return 0.0
        return math.inf if self.seconds is None else self.seconds


def time_limit(max_wall: str | None = None, margin: str | None = None) -> TimeLimit:
    """Return the shorter of two limits: the process's own limit, and the time left to its batch job minus a margin.

    Without either, `seconds` of the returned limit is None. Durations are written as `90s`, `30m`, `4h` or `1.5d`.

    Args:
        max_wall: the process's own limit, from now on (None: no limit of its own).
        margin: how long before the end of its batch job the process must stop. None means three minutes, or a quarter
            of the time left to the job if a quarter is shorter.

    Raises:
        ValueError: `max_wall` or `margin` is not a duration.
    """
    limits = [TimeLimit(seconds(max_wall), f"max_wall {max_wall}")] if max_wall else []
    left_s = processes.seconds_left()
    if left_s is not None:
        margin_s = seconds(margin) if margin else min(MARGIN_S, MARGIN_SHARE * left_s)
        why = f"SLURM job {processes.batch_job()['job']} ends in {progress.duration(left_s)}"
        limits.append(TimeLimit(max(0.0, left_s - margin_s), why))
    return min(limits, key=lambda limit: limit.seconds or 0.0, default=TimeLimit())


# --- signals --------------------------------------------------------------------------------------------------------
class Stop:
    """The conditions under which a process must stop: a signal or a time limit.

    Args:
        limit_s: seconds from the construction of this object to the time limit; None for no limit.
    """

    def __init__(self, limit_s: float | None = None) -> None:
        self.deadline = None if limit_s is None else time.monotonic() + limit_s
        self.signal: signal.Signals | None = None

    def receive(self, number: int, frame: object = None) -> None:
        """Record a received signal, which the method `reason` then returns; a second SIGINT ends the process at once.

        This method serves as the handler of SIGINT (Ctrl-C), SIGTERM and SIGUSR1: `number` is the number of the signal,
        and `frame` is not used. A process that ends at a second SIGINT loses its work since the last save.
        """
        if number == signal.SIGINT and self.signal == signal.SIGINT:
            os._exit(EXIT_CODES[signal.SIGINT])
        self.signal = signal.Signals(number)

    def reason(self) -> tuple[str, int] | None:
        """Return (reason, exit code) if the process must stop now, such as ("SIGTERM received", 143), else None."""
        if self.signal is not None:
            return f"{self.signal.name} received", EXIT_CODES[self.signal]
        if self.deadline is not None and time.monotonic() >= self.deadline:
            return "time limit reached", workflow.TRY_AGAIN
        return None


@contextmanager
def signals_to(receive: Callable[[int, object], object]) -> Iterator[None]:
    """Make `receive` the handler of SIGINT, SIGTERM and SIGUSR1 inside the context, and restore the old handlers after.

    Python calls `receive(signal number, stack frame)`. In a thread other than the main thread the context does nothing,
    because Python allows signal handlers in the main thread only.
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


@contextmanager
def stopped_with_workflow(report: progress.Say) -> Iterator[None]:
    """Stop this process inside the context once the workflow process that started it has ended.

    A thread looks every LOOK_EVERY_S seconds, also while the process still imports its packages. If SIGUSR1 has a
    handler (`signals_to`), the thread sends this signal, and the work saves its state. Otherwise there is no state to
    save, and the process exits at once with 75; files under their final names are complete at any moment. A process
    that was started by hand is not watched. `report` prints a line.
    """
    parent, done = workflow.workflow_process(), threading.Event()

    def watch(parent: processes.Process) -> None:
        while parent.lives:
            if done.wait(LOOK_EVERY_S):
                return
        report("the workflow that started this step has ended: the step saves its state and stops")
        while callable(signal.getsignal(signal.SIGUSR1)):
            os.kill(os.getpid(), signal.SIGUSR1)
            if done.wait(SETTLE_S):
                return
        os._exit(workflow.TRY_AGAIN)

    if parent is not None:
        threading.Thread(target=watch, args=(parent,), daemon=True).start()
    try:
        yield
    finally:
        done.set()
