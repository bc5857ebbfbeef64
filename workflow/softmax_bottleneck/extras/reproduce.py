"""The commands that run a study to its report, on this machine (`reproduce`) or on a SLURM cluster (`slurm`).

Both commands run Snakemake as a child process. Both can be repeated after a kill, Ctrl-C, a full disk, a time limit or
a failed step: the results of finished steps stay. Both take the project's lock and name the step that failed.
`reproduce` shows the progress and an interim report, which is rewritten as runs finish. At the end it prints the result
table, the path of the report and, if runs are missing, the reason.
"""

import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from softmax_bottleneck.extras.doctor import doctor
from softmax_bottleneck.jobs import devices, forkserver, interrupt, locks, workflow
from softmax_bottleneck.records import collect, records, verify
from softmax_bottleneck.store import artefacts, errors, paths, progress
from softmax_bottleneck.study import Run, Study, plan

SETTLE_S = 60.0  # for steps that outlive Snakemake, to save and stop
LOOK_EVERY_S = 0.05
TAIL = 12  # lines of the log to show if Snakemake itself fails
TRIES = 5  # calls of Snakemake on a cluster
PAUSE_S = 60.0  # before the second call; the pause doubles before each further call
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
TERMINAL_S, LINES_S = 1.0, 30.0  # between updates of the progress line on a terminal, and between lines elsewhere
CLEAR = "\r\x1b[K"
PAGE = "report/index.html"
FIRST_S, RELOAD_S = 45.0, 30  # before the first interim report, and before the browser reloads it
FORWARD = """<!doctype html><meta charset="utf-8"><title>Finished</title>
<meta http-equiv="refresh" content="0; url=../../report/index.html">
"""
REST = 30  # the pause after an interim report, as a multiple of the time that it took
_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # only on Linux
# If this process is killed, so are Snakemake and the forkserver; the steps notice it, save and stop.
_die_with_parent = None if _prctl is None else partial(_prctl, DEATH_SIGNAL, signal.SIGKILL)


class UnfinishedError(errors.IncompleteError):
    """The error for a study that did not finish.

    `code` is the exit code of the cause, such as 74 for a full disk. If several steps failed, it is that of the step
    that comes first in the order `workflow.FIRST`: errors that the user must correct come before those that a retry
    may solve.
    """

    def __init__(self, message: str, code: int = errors.IncompleteError.exit_code) -> None:
        super().__init__(f"{message} (exit code {code}{'' if code in (1, 2, 3) else ': the same command resumes'})")
        self.exit_code = code


# --- the interim report ---------------------------------------------------------------------------------------------
def interim_folder(study: Study) -> Path:
    """Return the folder of an unfinished study's records and interim report; no step of the workflow reads it."""
    return study.store.study_folder(study.name) / "partial"


def write_interim_report(study: Study, reload_s: int | None = None) -> Path:
    """Write records and report of the results so far to results/<study>/partial; return the path of the report.

    If `reload_s` is given, the report says that the study is running, and the browser reloads it every `reload_s`
    seconds. None means that the study is not running.

    Raises:
        DataError: a result is damaged.
        OSError: the disk failed.
    """
    from softmax_bottleneck.report import render, report  # takes two seconds to import, also for a study that begins

    folder = interim_folder(study)
    collect.collect_to(study, folder)
    render.render(study, folder)
    return report.report(folder, reload_s)


class InterimReport:
    """The interim report of a running study, written by a child process of the lowest priority.

    An error in that process does not affect the study; the messages of the process are in the log.

    Args:
        study: the running study.
        overrides: `KEY=VALUE` texts that replace keys of the study's file.
        log: file to which the process writes its messages.
    """

    def __init__(self, study: Study, overrides: Sequence[str], log: BinaryIO) -> None:
        self.folder, self.log = interim_folder(study), log
        self.call = ["nice", "-n", "19", sys.executable, "-m", "softmax_bottleneck", "partial"]
        self.call += ["--study", str(study.file), "--reload", str(RELOAD_S)]
        self.call += ["--set", *overrides] if overrides else []
        self.child: subprocess.Popen[bytes] | None = None
        self.started, self.due = 0.0, time.monotonic() + FIRST_S
        self.runs_shown = 0

    def update(self, runs_done: int) -> None:
        """Start writing a new report if a run has finished since the last report was started and a pause is over.

        `runs_done` is the number of finished runs. The first report may start FIRST_S seconds after the construction of
        this object. After a report that took t seconds, the next one may start REST * t seconds later.
        """
        now = time.monotonic()
        if self.child is not None and self.child.poll() is not None:
            self.child, self.due = None, now + REST * (now - self.started)
        if self.child is None and runs_done > self.runs_shown and now >= self.due:
            self.runs_shown, self.started = runs_done, now
            self.child = subprocess.Popen(self.call, stdout=self.log, stderr=self.log, start_new_session=True)

    def stop(self) -> None:
        """Stop the process that is writing a report, if any, and remove the folder of the incomplete report."""
        if self.child is not None and self.child.poll() is None:
            self.child.kill()
            self.child.wait()
            shutil.rmtree(self.folder, ignore_errors=True)

    def replace_by_final(self) -> None:
        """Remove the interim report of a finished study and leave a page that forwards to the final report.

        The forwarding page is for a browser in which the interim report is open. It is written only if this object has
        started an interim report. Otherwise, no folder results/<study>/partial remains.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.runs_shown:
            artefacts.write_text(self.folder / PAGE, FORWARD)


# --- progress -------------------------------------------------------------------------------------------------------
class Display(AbstractContextManager["Display"]):
    """The progress line and the interim report of a running study, active inside a `with` block.

    Args:
        study: the running study.
        ends: log to which every step adds a line when it begins and when it ends.
        report: the interim report to keep up to date.
        say: prints one line.
        on_terminal: True to rewrite one line on a terminal, False to print a line every LINES_S seconds.
    """

    def __init__(self, study: Study, ends: Path, report: InterimReport, say: progress.Say, on_terminal: bool) -> None:
        self.study, self.ends, self.report, self._say, self.on_terminal = study, ends, report, say, on_terminal
        self.runs = {run.path: run for run in study.needed}
        self.hours: dict[str, float] = {}
        self.began: tuple[float, float] | None = None  # time and hours of training left when training was first seen
        self.updated = self.printed = time.monotonic()
        self.reported = set[workflow.Attempt]()

    def __exit__(self, *_: object) -> None:
        self.report.stop()
        if self.on_terminal:
            print(CLEAR, end="", file=sys.stderr, flush=True)

    def say(self, message: str) -> None:
        """Print a line that the progress line does not overwrite."""
        if self.on_terminal:
            print(CLEAR, end="", file=sys.stderr)
        self._say(message)

    def update(self) -> None:
        """Update the progress line, print new failures of steps, and start an interim report if one is due.

        Calls within TERMINAL_S seconds of the last update do nothing.
        """
        now = time.monotonic()
        if now - self.updated < TERMINAL_S:
            return
        self.updated = now
        steps = workflow.attempts(self.ends)
        for attempt in steps:  # a killed step has no exit code; `reproduce` reports it at the end
            if attempt.code and attempt not in self.reported:
                self.say(attempt.failure[1])
                self.reported.add(attempt)
        if any(choice.exists() for choice in self.study.unchosen):  # the next round of a search, or its confirmation
            self.study = self.study.updated()
            self.runs = {run.path: run for run in self.study.needed}
        done = sum(plan.is_complete(self.study, run) for run in self.runs.values())
        self.report.update(done)
        if self.on_terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"{CLEAR}{self.line(done, steps, now)[:width]}", end="", file=sys.stderr, flush=True)
        elif now - self.printed >= LINES_S:
            self.printed = now
            self._say(self.line(done, steps, now))

    def line(self, done: int, attempts: Sequence[workflow.Attempt], now: float) -> str:
        """Return the progress line, such as `6 of 40 runs; train mos/1 epoch 5 of 8; about 12:05 of training left`.

        Args:
            done: number of runs that are trained and measured.
            attempts: the steps in the log; the line shows only those that are running.
            now: the present time of the monotonic clock, in seconds.
        """
        at_work = []
        for step, path in ((attempt.step, attempt.what) for attempt in attempts if attempt.works):
            parts = path.split("/")
            name = f"{parts[1]}/{parts[2].partition('-')[0]}" if len(parts) > 2 else path  # model and seed of a run
            if step == "train" and path in self.runs:
                epochs = self.runs[path].schedule.epochs
                name += f" epoch {min(self._epochs_done(self.runs[path]) + 1, epochs)} of {epochs}"
            at_work.append(f"{step} {name}".strip())
        planned = len(self.runs) + len(self.study.awaited)
        seconds = self.seconds_left(now)
        left = "" if seconds is None else f"about {progress.duration(seconds)} of training left"
        return "; ".join(filter(None, [f"{done} of {planned} runs", ", ".join(at_work), left]))

    def seconds_left(self, now: float) -> float | None:
        """Estimate the seconds until all runs are trained, from the progress since the first call of this method.

        Runs are weighted by the hours that the command `check` has predicted (check.json); only the ratios of these
        hours matter. The result is None if there is no check.json or no progress yet, or if no training is left. `now`
        is the present time of the monotonic clock, in seconds.
        """
        path = self.study.store.study_folder(self.study.name) / "check.json"
        if not self.hours and artefacts.is_sound(path):  # read once; `check` writes the file after the study has begun
            self.hours = {run: costs["cpu_h"] for run, costs in artefacts.read_json(path)["runs"].items()}
        if not self.hours:
            return None
        share = {path: self._epochs_done(run) / run.schedule.epochs for path, run in self.runs.items()}
        known = self.hours | self._hours_of_tuned()
        left_h = sum(known.get(path, 0.0) * max(0.0, 1 - share[path]) for path in self.runs)
        left_h += sum(known.get(run.path, 0.0) for run in self.study.awaited)
        self.began = self.began or (now, left_h)
        done_h = self.began[1] - left_h
        return (now - self.began[0]) * left_h / done_h if done_h > 0 and left_h > 0 else None

    def _hours_of_tuned(self) -> dict[str, float]:
        """Return the hours of the runs of tuned models: those of the model's first trial, which `check` has seen."""
        hours: dict[str, float] = {}
        for one in self.study.shown_tuned:
            confirmed = [run for run in self.runs.values() if (run.dataset, run.model) == one.key]
            first = self.hours.get(one.runs[0].path, 0.0)
            hours |= {run.path: first for run in (*one.runs, *one.expected, *confirmed)}
        return hours

    def _epochs_done(self, run: Run) -> int:
        folder = self.study.store.run_folder(run.path)
        if (folder / "done.json").exists():  # training may have ended before its last planned epoch
            return run.schedule.epochs
        log = folder / "epochs.jsonl"
        return log.read_bytes().count(b"\n") if log.exists() else 0


# --- the commands ---------------------------------------------------------------------------------------------------
def reproduce(study: Study, options: argparse.Namespace, say: progress.Say) -> None:
    """Run a study to its end, or resume it; print the result table and the path of the report.

    If the study does not finish, print those of an interim report instead, if one can be made. If options of Snakemake
    end it early, such as `--until check`, print only what is missing.

    Args:
        study: the study.
        options: the parsed command line. The attributes read are `cores`, the number of CPU cores; `set`, the
            `KEY=VALUE` texts that replace keys of the study's file; and `snakemake`, further options of Snakemake.
        say: prints one line.

    Raises:
        BusyError: another workflow runs in this project; nothing was written.
        UserError: the results folder is not writable.
        UnfinishedError: the study did not finish, or a result is damaged; the exit code is that of the cause.
    """
    lock = locks.acquire_lock()
    log = study.store.root / "logs" / "reproduce" / f"{study.name}.log"
    ends = workflow.new_log(log.parent, study.name)
    log.parent.mkdir(parents=True, exist_ok=True)
    gpus = 0 if study.device == "cpu" else len(devices.visible_gpus())  # at most so many jobs use a GPU at once
    words = ["--cores", str(options.cores), *(["--resources", f"gpu={gpus}"] if gpus else []), *options.snakemake]
    command = snakemake_command("default", study.file, options.set, words)
    with log.open("wb") as file:
        interim = InterimReport(study, options.set, file)
        say(f"{study.name}: the log of Snakemake and its steps is {log}")
        say(f"interim report (written when the first run has finished): {(interim.folder / PAGE).resolve()}")
        threads = max((run.threads for run in study.needed), default=1)
        with (
            forkserver.started(threads, file, _die_with_parent) as server,
            Display(study, ends, interim, say, sys.stderr.isatty()) as display,
        ):
            lock = lock[0] | server, lock[1]
            problem, _ = _snakemake(command, lock, ends, file, display.update, display.say)
    study = study.updated()
    wrong = [] if problem else [finding for finding in verify.verify(study).findings if finding.kind != "diverged"]
    if wrong:  # a planned run is missing or a file behind the report is damaged, though Snakemake finished
        found = f"{wrong[0].file}: {wrong[0].words}{f' ({len(wrong) - 1} more findings)' if len(wrong) > 1 else ''}"
        if options.snakemake and all(finding.kind == "missing" for finding in wrong):
            return say(f"Snakemake ended where {' '.join(options.snakemake)} ends it: {found}")
        problem = UnfinishedError(f"{found}; run `make repair`, then repeat the command")
    folder = study.store.study_folder(study.name)
    if not problem:
        interim.replace_by_final()
    elif (folder / "check.json").exists():
        try:
            folder = write_interim_report(study).parents[1]
        except (errors.DataError, OSError) as error:
            say(f"no interim report: {error}")
    if not problem or folder == interim.folder:
        from softmax_bottleneck.report import render  # takes two seconds to import, which a starting study need not

        print(render.result_table(study, records.load(folder)), end="\n\n")
        print(f"{'Interim report' if problem else 'Report'}: {(folder / PAGE).resolve()}", flush=True)
    if problem:
        raise problem


def slurm(study: Study, options: argparse.Namespace, say: progress.Say) -> None:
    """Check the machine with the command `doctor`, then call Snakemake up to TRIES times until the study is finished.

    A failed call is repeated after a pause, which doubles every time, because the retries of Snakemake itself are not
    enough. All of them fail within seconds while SLURM does not answer, and a killed Snakemake retries nothing. A call
    in which a step failed with an error that another attempt would repeat is not repeated; its message names the step.
    Nor is a call that a signal to this process has stopped: after SIGINT, Snakemake has cancelled its jobs; after
    SIGTERM, it has submitted nothing more and waited for them.

    Args:
        study: the study.
        options: the parsed command line. The attributes read are `set`, the `KEY=VALUE` texts that replace keys of the
            study's file; `snakemake`, further options of Snakemake; and `step`, the name of this command.
        say: prints one line.

    Raises:
        BusyError: another workflow runs in this project; nothing was submitted.
        UserError: `doctor` found a fault of the machine or its setup; nothing was submitted.
        UnfinishedError: the last call of Snakemake failed or was stopped.
    """
    lock = locks.acquire_lock()
    doctor(study, options, say)
    command = snakemake_command("slurm", study.file, options.set, options.snakemake)
    for attempt in range(1, TRIES + 1):
        ends = workflow.new_log(study.store.root / "logs" / "slurm", study.name)
        problem, stopped = _snakemake(command, lock, ends, None, lambda: None, say)
        again = problem and problem.exit_code in (workflow.TRY_AGAIN, UnfinishedError.exit_code)
        if not again or stopped or attempt == TRIES:
            break
        pause_s = PAUSE_S * 2 ** (attempt - 1)
        say(f"{problem}; try {attempt + 1} of {TRIES} in {pause_s:.0f} s")
        time.sleep(pause_s)
    if problem:
        raise problem


# --- Snakemake ------------------------------------------------------------------------------------------------------
def snakemake_command(profile: str, study: Path, overrides: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the command that runs Snakemake on a study.

    Args:
        profile: folder in workflow/profiles, `default` or `slurm`.
        study: the study's file.
        overrides: `KEY=VALUE` texts that replace keys of the study's file.
        options: further options of Snakemake.
    """
    call = [sys.executable, "-m", "snakemake", "--snakefile", str(paths.ROOT / "Snakefile")]
    call += ["--workflow-profile", str(paths.ROOT / "workflow" / "profiles" / profile), "--configfile", str(study)]
    return [*call, *(["--config", *overrides] if overrides else []), *options]


def _snakemake(
    call: list[str], lock: locks.Lock, ends: Path, log: BinaryIO | None, update: Callable[[], None], say: progress.Say
) -> tuple[UnfinishedError | None, bool]:
    """Run Snakemake in its own process group; return (why it did not finish, True if a signal stopped it).

    The first is None if Snakemake finished (see `_problem`).

    Signals are passed on to the group; the steps of the workflow then save their state and stop. Steps that still run
    after the end of Snakemake receive SIGTERM, and have SETTLE_S seconds to save their state.

    Args:
        call: command line of Snakemake.
        lock: the lock of the results folder, which Snakemake and its steps share.
        ends: log to which every step adds a line when it begins and when it ends.
        log: file for everything that Snakemake and its steps print (None: the output of this process).
        update: is called repeatedly until Snakemake ends.
        say: prints one line.
    """
    received: list[signal.Signals] = []

    def pass_on(number: int, frame: object) -> None:
        received.append(signal.Signals(number))
        _to_group(child.pid, signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    # Snakemake has its own session, so that Ctrl-C reaches it once, from here, and not also from the terminal.
    variables, descriptors = lock
    environment = os.environ | variables | {workflow.LOG_VARIABLE: str(ends)}
    child = subprocess.Popen(call, env=environment, pass_fds=descriptors, stdout=log, stderr=log,
                             start_new_session=True, preexec_fn=_die_with_parent)  # fmt: skip
    with interrupt.signals_to(pass_on):
        while child.poll() is None:
            update()
            time.sleep(LOOK_EVERY_S)
    if _to_group(child.pid, signal.SIGTERM):
        say("waiting for steps of this workflow to save and stop")
        deadline = time.monotonic() + SETTLE_S
        while _to_group(child.pid, 0) and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)
    return _problem(child.returncode, received, ends, Path(log.name) if log else None, say), bool(received)


def _to_group(group: int, number: int) -> bool:
    """Send signal `number` (0: no signal) to a process group; return True if the group still has a process."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # the latter on macOS if all have ended
        return False
    return True


# --- the end --------------------------------------------------------------------------------------------------------
def _problem(
    code: int, stopped_by: Sequence[signal.Signals], ends: Path, log: Path | None, say: progress.Say
) -> UnfinishedError | None:
    """Return an error that tells why Snakemake did not finish; None if it finished with exit code 0.

    The error names the signal that this process received or else the first failed step in the order of
    `workflow.failures`. If a signal killed Snakemake itself, it is named instead, unless a step failed with an error
    other than "try again". If neither a signal nor a failed step is known, the last TAIL lines of `log` are printed.

    Args:
        code: exit code of Snakemake; negative if a signal killed it.
        stopped_by: signals that this process received.
        ends: file with a line for each beginning and end of a step.
        log: file with all that Snakemake and its steps printed (None: they printed to the output of this process).
        say: prints one line.
    """
    if stopped_by:
        message = f"stopped by {stopped_by[0].name}; the state is saved"
        return UnfinishedError(message, interrupt.EXIT_CODES[stopped_by[0]])
    if code == 0:
        return None
    failed = workflow.failures(ends)
    if code < 0 and (not failed or failed[0][0] == workflow.TRY_AGAIN):
        return UnfinishedError(f"Snakemake was killed by {signal.Signals(-code).name}", workflow.TRY_AGAIN)
    if failed:
        first, message = failed[0]
        more = f"; {len(failed) - 1} more steps failed, see {log or 'above'}" if len(failed) > 1 else ""
        return UnfinishedError(message + more, first)
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:] if log else ():
        say(line)
    return UnfinishedError(f"Snakemake ended with exit code {code}; see the lines above")
