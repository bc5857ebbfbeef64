"""Several runs in one job: a small model leaves most of a GPU idle, and every job waits in the queue.

A process of its own trains each run, exactly as it would alone: the same step, its own folder, lease and done.json.
They share the job's GPU, are distributed over its GPUs, or each has its own CPU threads. Finished runs stay finished if
another run fails or the job ends; the next attempt trains the rest.
"""

import subprocess
from collections.abc import Sequence
from types import FrameType

from softmax_bottleneck.jobs import devices
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
    """Run `command --run <path>` for all paths at once, on the study's `device`, and wait for them.

    A signal to this process is passed on, so that each of them saves its state and stops.

    Raises:
        UserError: one of them needs a correction by the user; it has printed its message.
        StoppedError: one of them stopped early, and another attempt resumes it.
    """
    children: list[subprocess.Popen[bytes]] = []
    received: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for child in children:
            child.send_signal(number)

    export_workflow()  # if this process is killed, the children notice it, save and stop
    environments, leases = devices.shared_by(len(paths), device, say)
    with signals_to(pass_on):
        for path, environment in zip(paths, environments, strict=True):
            if received:  # the next attempt trains it
                break
            # In its own session, a child gets a Ctrl-C once, from here, and not a second time from the terminal.
            call = [*command, "--run", path]
            children.append(subprocess.Popen(call, env=environment, pass_fds=leases, start_new_session=True))
        codes = {path: child.wait() for path, child in zip(paths, children, strict=False)}
    codes |= dict.fromkeys(paths[len(children) :], BusyError.exit_code)
    failed = {path: code if code > 0 else 128 - code for path, code in codes.items() if code}
    if failed:
        which = ", ".join(f"{path} (exit {code})" for path, code in failed.items())
        message = f"{len(failed)} of {len(paths)} seeds did not end: {which}; run the same step again to resume them"
        code = min(failed.values(), key=lambda code: code in TRY_AGAIN)  # errors that need a correction come first
        raise UserError(message) if code == UserError.exit_code else StoppedError(message, code)


def record_job(study: Study, job: str, runs: Sequence[Run]) -> None:
    """Write that all runs of a job are finished (DataError: a done.json is missing or damaged)."""
    files = {run.path: artefacts.checked(study.store.run_folder(run.path) / "done.json") for run in runs}
    hashes = {path: artefacts.sha256_file(file) for path, file in files.items()}
    artefacts.write_json(study.store.job_file(job), {"done": hashes})
