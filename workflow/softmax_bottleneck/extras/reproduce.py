"""The commands that run a study to its report, on this machine (`reproduce`) or on a SLURM cluster (`slurm`).

Both commands run Snakemake as a child process. Both can be repeated after a kill, Ctrl-C, a full disk, a time limit or
a failed step: the results of finished steps stay. `reproduce` takes the project's lock and shows the progress. At the
end it prints the result table, the path of the report and, if runs are missing, the reason.
"""

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from softmax_bottleneck.extras import status
from softmax_bottleneck.extras.doctor import doctor
from softmax_bottleneck.jobs import devices, workflow
from softmax_bottleneck.jobs.interrupt import EXIT_CODES, signals_to
from softmax_bottleneck.records import records
from softmax_bottleneck.records.verify import verify
from softmax_bottleneck.store import paths
from softmax_bottleneck.store.errors import BusyError, DataError, IncompleteError
from softmax_bottleneck.store.progress import Say
from softmax_bottleneck.study import Study

SETTLE_S = 60.0  # for steps that outlive Snakemake, to save and stop
LOOK_EVERY_S = 0.05
TAIL = 12  # lines of the log to show if Snakemake itself fails
TRIES = 5  # calls of Snakemake on a cluster
PAUSE_S = 60.0  # before the second of them; it doubles with each further one
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # only on Linux


class UnfinishedError(IncompleteError):
    """The error for a study that did not finish; its exit code is that of the most important cause."""

    def __init__(self, message: str, code: int = IncompleteError.exit_code) -> None:
        super().__init__(f"{message} (exit code {code}{'' if code in (1, 2, 3) else ': the same command resumes'})")
        self.exit_code = code


def reproduce(study: Study, options: argparse.Namespace, say: Say) -> None:
    """Run a study as far as possible; print its results and the path of its report.

    Raises:
        BusyError: another workflow runs in this project; nothing was written.
        UserError: the results folder is not writable.
        UnfinishedError: runs are missing; the exit code is that of the cause.
    """
    lock = workflow.acquire_lock()
    log = study.store.root / "logs" / "reproduce" / f"{study.name}.log"
    ends = log.with_suffix(".jsonl")
    ends.unlink(missing_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | lock | {workflow.LOG_VARIABLE: str(ends.resolve())}
    gpus = 0 if study.device == "cpu" else len(devices.visible_gpus())  # as many jobs use a GPU at a time
    words = ["--cores", str(options.cores), *(["--resources", f"gpu={gpus}"] if gpus else []), *options.snakemake]
    command = snakemake_command("default", study.file, options.set, words)
    with log.open("wb") as file:
        interim = status.InterimReport(study, options.set, file)
        say(f"{study.name}: the log of Snakemake and its steps is {log}")
        with status.Display(study, ends, interim, say, sys.stderr.isatty()) as display:
            code, stopped_by = _snakemake(command, environment, file, display)
    problem = _problem(code, stopped_by, ends, log, say) or _missing(study)
    folder: Path | None = study.store.study_folder(study.name)
    if problem:
        folder = _interim(study, say)
    else:
        interim.replace_by_final()
    if folder:
        from softmax_bottleneck.report import render  # takes two seconds to import, which a starting study need not

        print(render.result_table(study, records.load(folder)), end="\n\n")
        print(f"{'Interim report' if problem else 'Report'}: {(folder / status.PAGE).resolve()}", flush=True)
    if problem:
        raise problem


def slurm(study: Study, options: argparse.Namespace, say: Say) -> None:
    """Check the machine with `doctor`, then call Snakemake up to TRIES times until the study is finished.

    Snakemake itself retries failed jobs. These retries are used up in seconds if SLURM does not answer, and are lost if
    Snakemake is killed; therefore the call of Snakemake is repeated after a pause. It is not repeated if another
    workflow runs in this project. A lease (a lock file per run) prevents two jobs from working on one run.

    Raises:
        UserError: `doctor` found something that must be fixed first; nothing was submitted.
        IncompleteError: the last call of Snakemake failed.
    """
    doctor(study, options, say)
    command = snakemake_command("slurm", study.file, options.set, options.snakemake)
    for attempt in range(1, TRIES + 1):
        code = subprocess.run(command, check=False).returncode
        if code in (0, BusyError.exit_code) or attempt == TRIES:
            break
        pause_s = PAUSE_S * 2 ** (attempt - 1)
        say(f"Snakemake ended with exit code {code}; try {attempt + 1} of {TRIES} in {pause_s:.0f} s")
        time.sleep(pause_s)
    if code:
        raise IncompleteError(f"Snakemake ended with exit code {code}; see its log above; repeat the command")


# --- Snakemake ------------------------------------------------------------------------------------------------------
def snakemake_command(profile: str, study: Path, overrides: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the command that runs Snakemake on a study with a profile, overridden keys and further options."""
    call = [sys.executable, "-m", "snakemake", "--snakefile", str(paths.ROOT / "Snakefile")]
    call += ["--workflow-profile", str(paths.ROOT / "workflow" / "profiles" / profile), "--configfile", str(study)]
    return [*call, *(["--config", *overrides] if overrides else []), *options]


def _snakemake(
    command: Sequence[str], environment: dict[str, str], log: IO[bytes], display: status.Display
) -> tuple[int, list[signal.Signals]]:
    """Run Snakemake in its own process group; return its exit code and the signals that this process received."""
    received: list[signal.Signals] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(signal.Signals(number))
        _to_group(child.pid, signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    def die_with_parent() -> None:  # if this process is killed, so is Snakemake; its steps notice it, save and stop
        if _prctl is not None:
            _prctl(DEATH_SIGNAL, signal.SIGKILL)

    # In its own session, Ctrl-C reaches it once, from here, and not from the terminal as well.
    child = subprocess.Popen(command, env=environment, pass_fds=workflow.lock_descriptors(), stdout=log, stderr=log,
                             start_new_session=True, preexec_fn=die_with_parent)  # fmt: skip
    with signals_to(pass_on):
        while child.poll() is None:
            display.update()
            time.sleep(LOOK_EVERY_S)
    if _to_group(child.pid, signal.SIGTERM):
        display.say("waiting for steps of this workflow to save and stop")
        deadline = time.monotonic() + SETTLE_S
        while _to_group(child.pid, 0) and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)
    return child.returncode, received


def _to_group(group: int, number: int) -> bool:
    """Send a signal to a process group; return True if the group still has a process."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # the latter on macOS if all have ended
        return False
    return True


# --- the end --------------------------------------------------------------------------------------------------------
def _problem(
    code: int, stopped_by: Sequence[signal.Signals], ends: Path, log: Path, say: Say
) -> UnfinishedError | None:
    """Return an error for the most important reason why Snakemake did not finish; None if it did."""
    if stopped_by:
        return UnfinishedError(f"stopped by {stopped_by[0].name}; the state is saved", EXIT_CODES[stopped_by[0]])
    if code == 0:
        return None
    failed = workflow.failures(ends)
    if code < 0 and (not failed or failed[0][0] == workflow.TRY_AGAIN):
        return UnfinishedError(f"Snakemake was killed by {signal.Signals(-code).name}", workflow.TRY_AGAIN)
    if failed:
        first, message = failed[0]
        more = f"; {len(failed) - 1} more steps failed, see {log}" if len(failed) > 1 else ""
        return UnfinishedError(message + more, first)
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]:
        say(line)
    return UnfinishedError(f"Snakemake ended with exit code {code}; see the lines above")


def _missing(study: Study) -> UnfinishedError | None:
    """Return an error if a planned run is missing or a file behind the report is damaged, though Snakemake finished."""
    wrong = [finding for finding in verify(study).findings if finding.kind != "diverged"]
    if not wrong:
        return None
    more = f" ({len(wrong) - 1} more findings)" if len(wrong) > 1 else ""
    return UnfinishedError(f"{wrong[0].file}: {wrong[0].words}{more}; run `make repair`, then repeat the command")


def _interim(study: Study, say: Say) -> Path | None:
    """Write the interim report and return its folder; None if there are no results to show or writing failed."""
    if not (study.store.study_folder(study.name) / "check.json").exists():
        return None
    try:
        return status.write_interim_report(study).parents[1]
    except (DataError, OSError) as error:
        say(f"no interim report: {error}")
        return None
