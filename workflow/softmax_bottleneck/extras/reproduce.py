"""Run a study with one command that can be repeated after a kill, Ctrl-C, a full disk, a time limit or a failed step.

It takes the project's lock, runs Snakemake as a child process and shows its progress. In the end it prints the result
table, the path of the report and, if runs are missing, the reason.
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
from softmax_bottleneck.jobs import devices, outcomes, project_lock
from softmax_bottleneck.jobs.interrupt import EXIT_CODES
from softmax_bottleneck.records import records
from softmax_bottleneck.records.verify import verify
from softmax_bottleneck.store import paths
from softmax_bottleneck.store.errors import DataError, IncompleteError
from softmax_bottleneck.store.progress import Say
from softmax_bottleneck.study import Study

SETTLE_S = 60.0  # for steps that outlive Snakemake, to save and stop
LOOK_EVERY_S = 0.05
TAIL = 12  # lines of the log to show if Snakemake itself fails
# Signal -> the signal to pass on: a closed terminal (SIGHUP) stops the study like SIGTERM.
STOPPING = {signal.SIGINT: signal.SIGINT, signal.SIGTERM: signal.SIGTERM, signal.SIGHUP: signal.SIGTERM}
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # only on Linux


class UnfinishedError(IncompleteError):
    """The study did not finish; the exit code is that of the most important cause."""

    def __init__(self, message: str, code: int = IncompleteError.exit_code) -> None:
        super().__init__(f"{message} (exit code {code}{'' if code in (1, 2, 3) else ': the same command resumes'})")
        self.exit_code = code


def reproduce(study: Study, options: argparse.Namespace, say: Say) -> None:
    """Run a study as far as possible; print its results and the path of its report.

    Raises:
        BusyError: another workflow runs in this project; nothing was written.
        UserError: the results folder is not writable.
        UnfinishedError: runs are missing; names the cause, with its exit code.
    """
    lock = project_lock.acquire()
    log = study.store.root / "logs" / "reproduce" / f"{study.name}.log"
    ends = log.with_suffix(".jsonl")
    ends.unlink(missing_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | lock | {outcomes.VARIABLE: str(ends.resolve())}
    words = [*devices.snakemake_options(study.device), "--cores", str(options.cores), *options.snakemake]
    command = snakemake_command("default", study.file, options.set, words)
    with log.open("wb") as file:
        interim = status.InterimReport(study, options.set, file)
        display = status.Display(study, ends, interim, say, sys.stderr.isatty())
        say(f"{study.name}: the log of Snakemake and its steps is {log}")
        code, stopped_by = _snakemake(command, environment, file, display)
    why = _why(code, stopped_by, ends, log, say) or _missing(study)
    folder: Path | None = study.store.study_folder(study.name)
    if why:
        folder = _interim(study, say)
    else:
        interim.replace_by_final()
    if folder:
        from softmax_bottleneck.report import render  # takes two seconds to import, which a starting study need not

        print(render.result_table(study, records.load(folder)), end="\n\n")
        print(f"{'Interim report' if why else 'Report'}: {(folder / status.PAGE).resolve()}", flush=True)
    if why:
        raise why


# --- Snakemake ------------------------------------------------------------------------------------------------------
def snakemake_command(profile: str, study: Path, overrides: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return Snakemake's command line for a study with a profile of the workflow and further options."""
    call = [sys.executable, "-m", "snakemake", "--snakefile", str(paths.ROOT / "Snakefile")]
    call += ["--workflow-profile", str(paths.ROOT / "workflow" / "profiles" / profile), "--configfile", str(study)]
    return [*call, *(["--config", *overrides] if overrides else []), *options]


def _snakemake(
    command: Sequence[str], environment: dict[str, str], log: IO[bytes], display: status.Display
) -> tuple[int, list[signal.Signals]]:
    """Run Snakemake in its own process group; return its exit code and the signals passed on to the group."""
    received: list[signal.Signals] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(STOPPING[signal.Signals(number)])
        _to_group(child.pid, received[-1])

    with display:
        # In its own session, Ctrl-C reaches it once, from here, and not from the terminal as well.
        child = subprocess.Popen(command, env=environment, pass_fds=project_lock.descriptors(), stdout=log, stderr=log,
                                 start_new_session=True, preexec_fn=_die_with_parent)  # fmt: skip
        wanted = [number for number in STOPPING if signal.getsignal(number) != signal.SIG_IGN]  # nohup ignores SIGHUP
        before = {number: signal.signal(number, pass_on) for number in wanted}
        try:
            while child.poll() is None:
                display.look()
                time.sleep(LOOK_EVERY_S)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if _to_group(child.pid, signal.SIGTERM):
        display.say("waiting for steps of this workflow to save and stop")
        deadline = time.monotonic() + SETTLE_S
        while _to_group(child.pid, 0) and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)
    return child.returncode, received


def _die_with_parent() -> None:
    """Kill Snakemake if its parent is killed; the steps notice it, save and stop."""
    if _prctl is not None:
        _prctl(DEATH_SIGNAL, signal.SIGKILL)


def _to_group(group: int, number: int) -> bool:
    """Send a signal to a process group; return True if a process received it."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # the latter on macOS if all have ended
        return False
    return True


# --- the end --------------------------------------------------------------------------------------------------------
def _why(code: int, stopped_by: Sequence[signal.Signals], ends: Path, log: Path, say: Say) -> UnfinishedError | None:
    """Return the most important reason why Snakemake did not finish, or None if it did."""
    if stopped_by:
        return UnfinishedError(f"stopped by {stopped_by[0].name}; the state is saved", EXIT_CODES[stopped_by[0]])
    if code == 0:
        return None
    failed = outcomes.failures(ends)
    if code < 0 and (not failed or failed[0][0] == outcomes.TRY_AGAIN):
        return UnfinishedError(f"Snakemake was killed by {signal.Signals(-code).name}", outcomes.TRY_AGAIN)
    if failed:
        first, message = failed[0]
        more = f"; {len(failed) - 1} more steps failed, see {log}" if len(failed) > 1 else ""
        return UnfinishedError(message + more, first)
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]:
        say(line)
    return UnfinishedError(f"Snakemake ended with exit code {code}; see the lines above")


def _missing(study: Study) -> UnfinishedError | None:
    """Return an error if a planned run is missing or a file behind the report is damaged, though Snakemake finished."""
    found = verify(study)
    missing = sum(found.counts[state] for state in ("failed", "missing", "stale", "unsound"))
    wrong = [finding for finding in found.findings if finding.kind != "diverged"]
    if wrong:
        more = f" ({len(wrong) - 1} more findings)" if len(wrong) > 1 else ""
        problem = f"{wrong[0].file}: {wrong[0].words}{more}; run `make repair`, then repeat the command"
        return UnfinishedError(problem)
    if missing:
        planned = found.counts["planned"]
        return UnfinishedError(f"{missing} of {planned} planned runs are missing or damaged: see `make verify`")
    return None


def _interim(study: Study, say: Say) -> Path | None:
    """Write the interim report; return its folder, or None if there is nothing to show."""
    if not (study.store.study_folder(study.name) / "check.json").exists():
        return None
    try:
        return status.write_interim_report(study).parents[1]
    except (DataError, OSError) as error:
        say(f"no interim report: {error}")
        return None
