"""Run a study with one command that can be repeated after a kill, Ctrl-C, a full disk, a time limit or a failed step.

It takes the project's lock, runs Snakemake as a child process and shows its progress. In the end it prints the result
table, the path of the report and, if runs are missing, the reason.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from softmax_bottleneck.extras import partial, status
from softmax_bottleneck.extras import slurm_launcher as launcher
from softmax_bottleneck.jobs import devices, outcomes, project_lock
from softmax_bottleneck.jobs.interrupt import EXIT_CODES
from softmax_bottleneck.records import records
from softmax_bottleneck.records.verify import verify
from softmax_bottleneck.store import paths
from softmax_bottleneck.store.errors import DataError, IncompleteError, UserError
from softmax_bottleneck.store.progress import Say
from softmax_bottleneck.study import Study

PROFILE = paths.ROOT / "workflow" / "profiles" / "default"
SETTLE_S = 60.0  # for steps that outlive Snakemake, to save and stop
LOOK_EVERY_S = 0.05
TAIL = 12  # lines of the log to show if Snakemake itself fails
# Signal -> the signal to pass on: a closed terminal (SIGHUP) stops the study like SIGTERM.
STOPPING = {signal.SIGINT: signal.SIGINT, signal.SIGTERM: signal.SIGTERM, signal.SIGHUP: signal.SIGTERM}
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # only on Linux


class UnfinishedError(IncompleteError):
    """The study did not finish; the exit code is that of the most important cause."""

    def __init__(self, message: str, exit_code: int = IncompleteError.exit_code) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Call:
    """The options of a call.

    Attributes:
        overrides: `key=value` pairs that replace keys of the study.
        cores: number of CPU cores to use.
        words: further options of Snakemake.
        verbose: whether the log goes to the terminal instead of a file.
    """

    overrides: Sequence[str]
    cores: int
    words: Sequence[str]
    verbose: bool = False


def reproduce(study: Study, call: Call, say: Say) -> None:
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
    words = [*devices.snakemake_options(study.device), "--cores", str(call.cores), *call.words]
    command = launcher.command(study.file, call.overrides, words, PROFILE)
    with log.open("wb") as file:
        page = partial.LivePage(study, call.overrides, file)
        shown = status.Display(study, ends, page, say, on_terminal=sys.stderr.isatty() and not call.verbose)
        if not call.verbose:
            say(f"{study.name}: the log of Snakemake and its steps is {log}")
        output = None if call.verbose else file
        code, stopped_by = _snakemake(command, environment, project_lock.descriptors(), output, shown)
    why = _why(code, stopped_by, ends, log, say) or _missing(study)
    folder: Path | None = study.store.study_folder(study.name)
    if why:
        folder = _interim(study, say)
    else:
        partial.remove(study, was_live=page.is_there)
    if folder:
        from softmax_bottleneck.report import render  # takes two seconds to import, which a starting study need not

        print(render.result_table(study, records.load(folder)), end="\n\n")
        print(f"{'Interim report' if why else 'Report'}: {(folder / partial.PAGE).resolve()}", flush=True)
    if why:
        raise why


# --- Snakemake ------------------------------------------------------------------------------------------------------
def _snakemake(
    command: Sequence[str], environment: dict[str, str], held: Sequence[int], output: IO[bytes] | None,
    shown: status.Display,
) -> tuple[int, list[signal.Signals]]:  # fmt: skip
    """Run Snakemake in its own process group; return its exit code and the signals passed on to the group."""
    received: list[signal.Signals] = []
    with _on_signal(received.append), shown:
        # In its own session, Ctrl-C reaches it once, from here, and not from the terminal as well.
        child = subprocess.Popen(command, env=environment, pass_fds=held, stdout=output, stderr=output,
                                 start_new_session=True, preexec_fn=_die_with_parent)  # fmt: skip
        passed = 0
        while child.returncode is None:
            for number in received[passed:]:
                _to_group(child.pid, number)
                passed += 1
            shown.look()
            with suppress(subprocess.TimeoutExpired):
                child.wait(LOOK_EVERY_S)
    _settle(child.pid, shown.say)
    return child.returncode, received


def _die_with_parent() -> None:
    """Kill Snakemake if its parent is killed; the steps notice it, save and stop."""
    if _prctl is not None:
        _prctl(DEATH_SIGNAL, signal.SIGKILL)


@contextmanager
def _on_signal(receive: Callable[[signal.Signals], object]) -> Iterator[None]:
    """Pass stop signals to `receive` inside the block; an ignored signal, as by nohup, stays ignored."""

    def handle(number: int, frame: FrameType | None) -> None:
        receive(STOPPING[signal.Signals(number)])

    wanted = [number for number in STOPPING if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _to_group(group: int, number: int) -> bool:
    """Send a signal to a process group; return True if a process received it."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # the latter on macOS if all have ended
        return False
    return True


def _settle(group: int, say: Say) -> None:
    """Let steps that outlive Snakemake save and stop, so that the next call does not meet them."""
    if not _to_group(group, signal.SIGTERM):
        return
    say("waiting for steps of this workflow to save and stop")
    deadline = time.monotonic() + SETTLE_S
    while _to_group(group, 0) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)


# --- the end --------------------------------------------------------------------------------------------------------
def _why(code: int, stopped_by: Sequence[signal.Signals], ends: Path, log: Path, say: Say) -> UnfinishedError | None:
    """Return the most important reason why Snakemake did not finish, or None if it did."""
    if stopped_by:
        return _unfinished(EXIT_CODES[stopped_by[0]], f"stopped by {stopped_by[0].name}; the state is saved")
    if code == 0:
        return None
    failed = outcomes.failures(ends)
    if code < 0 and (not failed or failed[0][0] == outcomes.TRY_AGAIN):
        return _unfinished(outcomes.TRY_AGAIN, f"Snakemake was killed by {signal.Signals(-code).name}")
    if failed:
        first, message = failed[0]
        more = f"; {len(failed) - 1} more steps failed, see {log}" if len(failed) > 1 else ""
        return _unfinished(first, message + more)
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]:
        say(line)
    return _unfinished(IncompleteError.exit_code, f"Snakemake ended with exit code {code}; see the lines above")


def _missing(study: Study) -> UnfinishedError | None:
    """Return an error if a planned run is missing or a file behind the report is damaged, though Snakemake finished."""
    found = verify(study)
    missing = sum(found.counts[state] for state in ("failed", "missing", "stale", "unsound"))
    wrong = [finding for finding in found.findings if finding.kind != "diverged"]
    if wrong:
        more = f" ({len(wrong) - 1} more findings)" if len(wrong) > 1 else ""
        problem = f"{wrong[0].file}: {wrong[0].words}{more}; run `make repair`, then repeat the command"
    elif missing:
        problem = f"{missing} of {found.counts['planned']} planned runs are missing or damaged: see `make verify`"
    else:
        return None
    return _unfinished(IncompleteError.exit_code, problem)


def _unfinished(code: int, message: str) -> UnfinishedError:
    resumes = "" if code in (1, UserError.exit_code, IncompleteError.exit_code) else ": the same command resumes"
    return UnfinishedError(f"{message} (exit code {code}{resumes})", code)


def _interim(study: Study, say: Say) -> Path | None:
    """Write the interim report; return its folder, or None if there is nothing to show."""
    if not (study.store.study_folder(study.name) / "check.json").exists():
        return None
    try:
        return partial.partial(study).parents[1]
    except (DataError, OSError) as error:
        say(f"no interim report: {error}")
        return None
