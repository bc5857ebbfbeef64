"""A study from one command, to be given again after anything: a kill, Ctrl-C, a full disk, a time limit, a failed step.

It takes the project's lock, runs Snakemake as a child, shows how far it is, and tells how it ended: the result table,
the page, and, when runs are missing, why.
"""

from __future__ import annotations

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
SETTLE_S = 60.0  # for steps that outlive Snakemake to save and stop
LOOK_EVERY_S = 0.05
TAIL = 12  # lines of the log that a failure of Snakemake itself shows
# A terminal that is closed stops like SIGTERM; what each is passed on as.
STOPPING = {signal.SIGINT: signal.SIGINT, signal.SIGTERM: signal.SIGTERM, signal.SIGHUP: signal.SIGTERM}
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux alone


class UnfinishedError(IncompleteError):
    """The study did not end; the exit code tells what a person needs to know first."""

    def __init__(self, message: str, exit_code: int = IncompleteError.exit_code) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Call:
    """How a study is run.

    Attributes:
        overrides: `key=value` instead of the file's keys.
        cores: how much works at the same time.
        words: further options of Snakemake.
        verbose: what Snakemake and the steps print goes to the terminal and not into a file.
    """

    overrides: Sequence[str]
    cores: int
    words: Sequence[str]
    verbose: bool = False


def reproduce(study: Study, call: Call, say: Say) -> None:
    """Bring a study to its end, as far as it goes; print its results and where the page is.

    Raises:
        BusyError: another workflow is at work in this project; nothing was written.
        UserError: the results folder cannot be written.
        UnfinishedError: runs are missing; says why, with the exit code of the true cause.
    """
    lock = project_lock.acquire()
    log = study.store.root / "logs" / "reproduce" / f"{study.name}.log"
    ends = log.with_suffix(".jsonl")
    ends.unlink(missing_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {project_lock.HANDED_VARIABLE: str(lock), outcomes.VARIABLE: str(ends.resolve())}
    words = [*devices.snakemake_options(study.device), "--cores", str(call.cores), *call.words]
    command = launcher.command(study.file, call.overrides, words, PROFILE)
    with log.open("wb") as file:
        page = partial.LivePage(study, call.overrides, file)
        shown = status.Display(study, ends, page, say, on_terminal=sys.stderr.isatty() and not call.verbose)
        if not call.verbose:
            say(f"{study.name}: what Snakemake and the steps print is in {log}")
        output = None if call.verbose else file
        code, stopped_by = _snakemake(command, environment, [lock], output, shown)
    why = _why(code, stopped_by, ends, log, say) or _missing(study)
    folder = _partial(study, say) if why else study.store.study_folder(study.name)
    if not why:
        partial.remove(study, was_live=page.is_there)
    if folder:
        from softmax_bottleneck.report import render  # two seconds to import: a study begins before them

        print(render.result_table(study, records.load(folder)), end="\n\n")
        print(f"{'Partial page' if why else 'Report'}: {(folder / partial.PAGE).resolve()}", flush=True)
    if why:
        raise why


# --- Snakemake ------------------------------------------------------------------------------------------------------
def _snakemake(
    command: Sequence[str], environment: dict[str, str], held: Sequence[int], output: IO[bytes] | None,
    shown: status.Display,
) -> tuple[int, list[signal.Signals]]:  # fmt: skip
    """Exit code of Snakemake in a process group of its own, and the signals that were passed on to that group."""
    received: list[signal.Signals] = []
    with _on_signal(received.append), shown:
        # In a session of its own a Ctrl-C reaches it once, from here, and not a second time from the terminal.
        child = subprocess.Popen(command, env=environment, pass_fds=held, stdout=output, stderr=output,
                                 start_new_session=True, preexec_fn=_die_with_parent)  # fmt: skip
        passed = 0
        while _running(child):
            for number in received[passed:]:
                _to_group(child.pid, number)
                passed += 1
            shown.look()
    _settle(child.pid, shown.say)
    return child.returncode, received


def _die_with_parent() -> None:
    """A killed parent takes Snakemake along, as a kill of both would; the steps notice it, save and stop."""
    if _prctl is not None:
        _prctl(DEATH_SIGNAL, signal.SIGKILL)


@contextmanager
def _on_signal(receive: Callable[[signal.Signals], object]) -> Iterator[None]:
    """Collect the signals to stop while inside; one that is ignored, as by nohup, stays ignored."""

    def handle(number: int, frame: FrameType | None) -> None:
        receive(STOPPING[signal.Signals(number)])

    wanted = [number for number in STOPPING if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _running(child: subprocess.Popen[bytes]) -> bool:
    """Wait a moment for its end."""
    with suppress(subprocess.TimeoutExpired):
        child.wait(LOOK_EVERY_S)
    return child.returncode is None


def _to_group(group: int, number: int) -> bool:
    """Send a signal to a process group; whether there was anybody to receive it."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # the latter on macOS, where all of them have ended
        return False
    return True


def _settle(group: int, say: Say) -> None:
    """Let steps that outlived Snakemake save and stop: the next call would meet them."""
    if not _to_group(group, signal.SIGTERM):
        return
    say("waiting for steps of this workflow to save and stop")
    deadline = time.monotonic() + SETTLE_S
    while _to_group(group, 0) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)


# --- how it ended ---------------------------------------------------------------------------------------------------
def _why(code: int, stopped_by: Sequence[signal.Signals], ends: Path, log: Path, say: Say) -> UnfinishedError | None:
    """What kept Snakemake from its end, by what a person needs first; None when nothing did."""
    if stopped_by:
        return _unfinished(EXIT_CODES[stopped_by[0]], f"stopped by {stopped_by[0].name}; what was begun is saved")
    if code == 0:
        return None
    failed = outcomes.failures(ends)
    if code < 0 and (not failed or failed[0][0] == outcomes.TRY_AGAIN):
        return _unfinished(outcomes.TRY_AGAIN, f"Snakemake was killed by {signal.Signals(-code).name}")
    if failed:
        first, words = failed[0]
        more = f"; {len(failed) - 1} more steps failed, see {log}" if len(failed) > 1 else ""
        return _unfinished(first, words + more)
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]:
        say(line)
    return _unfinished(IncompleteError.exit_code, f"Snakemake ended with exit code {code}; its words above say why")


def _missing(study: Study) -> UnfinishedError | None:
    """Snakemake was content; whether every planned run is there, and every file that the page rests on is whole."""
    found = verify(study)
    missing = sum(found.counts[state] for state in ("failed", "missing", "stale", "unsound"))
    wrong = [finding for finding in found.findings if finding.kind != "diverged"]
    if wrong:
        words = f"{wrong[0].file}: {wrong[0].words}" + (f" ({len(wrong) - 1} more findings)" if len(wrong) > 1 else "")
        return _unfinished(IncompleteError.exit_code, f"{words}; mend with `make repair`, then call again")
    if missing:
        told = (
            f"{missing} of {found.counts['planned']} planned runs are not there or not sound; `make verify` lists them"
        )
        return _unfinished(IncompleteError.exit_code, told)
    return None


def _unfinished(code: int, words: str) -> UnfinishedError:
    goes_on = "" if code in (1, UserError.exit_code, IncompleteError.exit_code) else ": the same command goes on"
    return UnfinishedError(f"{words} (exit code {code}{goes_on})", code)


def _partial(study: Study, say: Say) -> Path | None:
    """The folder with records and page of what is there; None where there is nothing to show."""
    if not (study.store.study_folder(study.name) / "check.json").exists():
        return None
    try:
        return partial.partial(study).parents[1]
    except (DataError, OSError) as error:
        say(f"no partial page: {error}")
        return None
