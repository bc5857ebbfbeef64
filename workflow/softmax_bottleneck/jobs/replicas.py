"""Several seeds of one model in one job: a small model leaves most of a GPU idle, and every job waits in the queue.

Each seed is trained by a process of its own, exactly as it would be alone: the same step, its own folder, lease and
done.json. They share the job's GPU, or each has its own CPU threads. What is finished stays finished when another seed
fails or the job ends; the next attempt trains what is left.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from softmax_bottleneck.jobs.interrupt import EXIT_CODES, StoppedError
from softmax_bottleneck.jobs.processes import export_workflow
from softmax_bottleneck.store.errors import BusyError, UserError

TRY_AGAIN = {*EXIT_CODES.values(), BusyError.exit_code}


def train_together(command: Sequence[str], paths: Sequence[str]) -> None:
    """Run `command --run <path>` for every path at the same time, and wait for all.

    A signal that reaches this process is passed on, so that each of them saves its state and stops.

    Raises:
        UserError: one of them met something to mend; it has said what.
        StoppedError: one of them stopped early, and another attempt will go on.
    """
    codes = {}
    export_workflow()  # should this process be killed, they notice it, save and stop
    with _signals_passed_on() as children:
        for path in paths:
            # In a session of its own, a Ctrl-C reaches it once, from here, and not a second time from the terminal.
            children.append(subprocess.Popen([*command, "--run", path], start_new_session=True))
        for path, child in zip(paths, children, strict=True):
            code = child.wait()
            codes[path] = code if code >= 0 else 128 - code
    _raise_for({path: code for path, code in codes.items() if code}, len(paths))


def _raise_for(failed: dict[str, int], of: int) -> None:
    """Say which seeds did not end; what has to be mended by a person counts more than what time will mend."""
    if not failed:
        return
    which = ", ".join(f"{path} (exit {code})" for path, code in failed.items())
    told = f"{len(failed)} of {of} seeds did not end: {which}; run the same step again to go on with these"
    codes = sorted(failed.values(), key=lambda code: code in TRY_AGAIN)
    raise UserError(told) if codes[0] == UserError.exit_code else StoppedError(told, codes[0])


@contextmanager
def _signals_passed_on() -> Iterator[list[subprocess.Popen[bytes]]]:
    """A list of processes that, while inside, get every signal to stop that this one gets (also those added later)."""
    received: list[int] = []

    class Children(list[subprocess.Popen[bytes]]):
        def append(self, child: subprocess.Popen[bytes]) -> None:
            super().append(child)
            for number in received:
                child.send_signal(number)

    children = Children()

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for child in children:
            child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in EXIT_CODES}
    try:
        yield children
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
