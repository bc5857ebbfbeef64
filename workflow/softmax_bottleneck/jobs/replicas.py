"""Several runs in one batch job, because a small model leaves most of a GPU idle and every job waits in the queue.

Each run is trained in a process of its own, exactly as it would be alone: the same step, with its own folder, lease and
done.json. The processes share the job's GPU, are distributed over its GPUs, or have their own CPU threads. Finished
runs stay finished if another run fails or the job ends; the next attempt trains the rest.
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
    """Run `command --run <path>` for all paths in parallel on a device, and wait for the end of these processes.

    A signal to this process is passed on to the child processes, so that each of them saves its state and stops.

    Raises:
        UserError: a child process failed with an error that the user must correct, and has printed the message.
        StoppedError: a child process stopped early; another attempt resumes it.
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
    """Write the file that marks all runs of a job as finished (DataError: a done.json is missing or damaged)."""
    files = {run.path: artefacts.checked(study.store.run_folder(run.path) / "done.json") for run in runs}
    hashes = {path: artefacts.sha256_file(file) for path, file in files.items()}
    artefacts.write_json(study.store.job_file(job), {"done": hashes})
