"""Being asked to stop: signals and time limits set a flag, the work saves its state and leaves.

Exit codes: 130 for SIGINT, 143 for SIGTERM, 75 ("try again") for SIGUSR1, which batch systems send ahead of a time
limit, for the work's own time limit, and when the workflow that started it is gone: its next call would start a second
process on the same work.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from softmax_bottleneck.jobs.processes import Process
from softmax_bottleneck.store.errors import BusyError

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 75}
TRY_AGAIN = 75
LOOK_EVERY_S = 1.0  # for the workflow


class StoppedError(BusyError):
    """The work was asked to stop, saved its state and can be resumed; the exit code says who asked."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Stop:
    """Whether to stop, and why. `limit_s` counts from construction, by a clock that never jumps.

    `workflow` is the process that started this one and would start it again; None for work started by hand.
    """

    def __init__(self, limit_s: float | None = None, workflow: Process | None = None) -> None:
        self.looked = time.monotonic()
        self.deadline = None if limit_s is None else self.looked + limit_s
        self.signal: signal.Signals | None = None
        self.workflow = workflow

    def receive(self, number: int, frame: FrameType | None = None) -> None:
        """Signal handler: note the signal; a second Ctrl-C leaves at once, the last saved state stays valid."""
        if number == signal.SIGINT and self.signal == signal.SIGINT:
            os._exit(EXIT_CODES[signal.SIGINT])
        self.signal = signal.Signals(number)

    def reason(self) -> tuple[str, int] | None:
        """(why, exit code) when it is time to stop."""
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
    """Call `receive` for signals to stop while inside; not outside the main thread, where Python forbids it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, receive) for number in EXIT_CODES}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
