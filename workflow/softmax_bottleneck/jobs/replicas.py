"""Several runs in one job: a small model leaves most of a GPU idle, and every job waits in the queue.

Each is trained by a process of its own, exactly as it would be alone: the same step, its own folder, lease and
done.json. They share the job's GPU, go round its GPUs, or each has its own CPU threads. What is finished stays finished
when another run fails or the job ends; the next attempt trains what is left.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from types import FrameType

from softmax_bottleneck.jobs import cards
from softmax_bottleneck.jobs.interrupt import EXIT_CODES, StoppedError, signals_to
from softmax_bottleneck.jobs.processes import export_workflow
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import BusyError, UserError
from softmax_bottleneck.store.progress import Say
from softmax_bottleneck.study import Run, Study

TRY_AGAIN = {*EXIT_CODES.values(), BusyError.exit_code}


def train_together(
    command: Sequence[str], paths: Sequence[str], device: str = "cpu", say: Say = lambda line: None
) -> None:
    """Run `command --run <path>` for every path at the same time, on the study's `device`, and wait for all.

    A signal that reaches this process is passed on, so that each of them saves its state and stops.

    Raises:
        UserError: one of them met something to mend; it has said what.
        StoppedError: one of them stopped early, and another attempt will go on.
    """
    children: list[subprocess.Popen[bytes]] = []
    received: list[tuple[int, int]] = []  # signals, and how many children there were to pass each on to

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append((number, len(children)))
        for child in children:
            child.send_signal(number)

    export_workflow()  # should this process be killed, they notice it, save and stop
    environments, leases = cards.shared_by(len(paths), device, say)
    with signals_to(pass_on):
        for index, path in enumerate(paths):
            # In a session of its own, a Ctrl-C reaches it once, from here, and not a second time from the terminal.
            call, environment = [*command, "--run", path], environments[index]
            children.append(subprocess.Popen(call, env=environment, pass_fds=leases, start_new_session=True))
            for number, reached in received:  # before this one was there
                if reached <= index:
                    children[index].send_signal(number)
        codes = {path: child.wait() for path, child in zip(paths, children, strict=True)}
    failed = {path: code if code > 0 else 128 - code for path, code in codes.items() if code}
    if failed:
        which = ", ".join(f"{path} (exit {code})" for path, code in failed.items())
        message = (
            f"{len(failed)} of {len(paths)} seeds did not end: {which}; run the same step again to go on with these"
        )
        code = min(failed.values(), key=lambda code: code in TRY_AGAIN)  # what a person has to mend counts more
        raise UserError(message) if code == UserError.exit_code else StoppedError(message, code)


def record_job(study: Study, job: str, runs: Sequence[Run]) -> None:
    """Write down that the runs of a job are through; their done.json must be there and sound (DataError)."""
    files = {run.path: artefacts.checked(study.store.run_folder(run.path) / "done.json") for run in runs}
    hashes = {path: artefacts.sha256_file(file) for path, file in files.items()}
    artefacts.write_json(study.store.job_file(job), {"done": hashes})
