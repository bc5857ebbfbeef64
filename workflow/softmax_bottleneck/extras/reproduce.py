"""The commands that run a study to its report, on this machine (`reproduce`) or on a SLURM cluster (`slurm`).

Both commands run Snakemake as a child process. Both can be repeated after a kill, Ctrl-C, a full disk, a time limit or
a failed step: the results of finished steps stay. Both take the project's lock and name the step that failed.
`reproduce` shows the progress and an interim report, which is rewritten as runs finish. At the end it prints the result
table, the path of the report and, if runs are missing, the reason.
"""

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from softmax_bottleneck.extras.display import Display
from softmax_bottleneck.extras.doctor import doctor
from softmax_bottleneck.extras.interim import FIRST_S, PAGE, InterimReport, write_interim_report
from softmax_bottleneck.jobs import devices, forkserver, interrupt, locks, workflow
from softmax_bottleneck.records import records, verify
from softmax_bottleneck.store import errors, paths, progress
from softmax_bottleneck.study import Study

SETTLE_S = 60.0  # for steps that outlive Snakemake, to save and stop
LOOK_EVERY_S = 0.05
TAIL = 12  # lines of the log to show if Snakemake itself fails
TRIES = 5  # calls of Snakemake on a cluster
PAUSE_S = 60.0  # before the second call; the pause doubles before each further call
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
INCOMPLETE = errors.IncompleteError.exit_code
FINAL_CODES = (1, 2, INCOMPLETE)  # of a failed step whose repetition does not help: bugs, user errors, missing results
USAGE = errors.UserError.exit_code  # in place of Snakemake's, often 1, if it cannot plan the study
_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # only on Linux
# If this process is killed, so are Snakemake and the forkserver; the steps notice it, save and stop.
_die_with_parent = None if _prctl is None else partial(_prctl, DEATH_SIGNAL, signal.SIGKILL)


class UnfinishedError(errors.IncompleteError):
    """The error for a study that did not finish.

    `code` is the exit code of the cause, such as 74 for a full disk. If several steps failed, it is that of the step
    that comes first in the order `workflow.FIRST`: errors that the user must correct come before those that a retry
    may solve. `resumes` is True if the same command may get further, as after an outage; the message then says so.
    `log_tail` has the last lines of the log if neither a signal nor a failed step is known.
    """

    def __init__(self, message: str, code: int, *, resumes: bool, log_tail: Sequence[str] = ()) -> None:
        super().__init__(f"{message} (exit code {code}{': the same command resumes' if resumes else ''})")
        self.exit_code, self.resumes, self.log_tail = code, resumes, log_tail


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
    command, log, ends = _prepare(study, options)
    with log.open("wb") as file:
        interim = InterimReport(study, options.set, file)
        say(f"{study.name}: the log of Snakemake and its steps is {log}")
        say(f"interim report (from {FIRST_S / 60:.0f} minutes on): {(interim.folder / PAGE).resolve()}")
        problem = _run(study, command, lock, ends=ends, log=file, interim=interim, say=say)
    _conclude(study.updated(), options, interim=interim, problem=problem, say=say)


def _prepare(study: Study, options: argparse.Namespace) -> tuple[list[str], Path, Path]:
    """Return the command line of Snakemake, the path of its log and that of a new log of the steps; make their folder.

    At most one job per GPU uses a GPU at once.
    """
    log = study.store.root / "logs" / "reproduce" / f"{study.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    gpus = 0 if study.device == "cpu" else len(devices.visible_gpus())
    words = ["--cores", str(options.cores), *(["--resources", f"gpu={gpus}"] if gpus else []), *options.snakemake]
    return snakemake_command("default", study.file, options.set, words), log, workflow.new_log(log.parent, study.name)


def _run(
    study: Study, command: list[str], lock: locks.Lock, *, ends: Path, log: BinaryIO, interim: InterimReport,
    say: progress.Say,
) -> UnfinishedError | None:  # fmt: skip
    """Run Snakemake beside a forkserver, and show the progress; return why it did not finish (None: it did)."""
    variables, descriptors = lock
    threads = max((run.threads for run in study.needed), default=1)
    with (
        forkserver.started(threads, log, _die_with_parent) as server,
        Display(study, ends, interim, say, sys.stderr.isatty()) as display,
    ):
        shared = variables | server, descriptors
        problem, _ = _snakemake(command, shared, ends=ends, log=log, update=display.update, say=display.say)
    for line in problem.log_tail if problem else ():
        say(line)
    return problem


def _conclude(
    study: Study, options: argparse.Namespace, *, interim: InterimReport, problem: UnfinishedError | None,
    say: progress.Say,
) -> None:  # fmt: skip
    """Verify a study for which Snakemake ended without a `problem`; print its result, or raise what is wrong."""
    faults = [] if problem else [fault for fault in verify.verify(study).findings if fault.kind != "diverged"]
    if faults:
        more = f" ({len(faults) - 1} more findings)" if len(faults) > 1 else ""
        fault = f"{faults[0].file}: {faults[0].words}{more}"
        if options.snakemake and all(one.kind == "missing" for one in faults):
            say(f"Snakemake ended where {' '.join(options.snakemake)} ends it: {fault}")
            return
        problem = UnfinishedError(f"{fault}; run `make repair`, then repeat the command", INCOMPLETE, resumes=False)
    _show_result(study, interim, problem, say)
    if problem:
        raise problem


def _show_result(study: Study, interim: InterimReport, problem: UnfinishedError | None, say: progress.Say) -> None:
    """Print the result table and the path of the report; after a `problem`, those of an interim report."""
    folder = study.store.study_folder(study.name)
    if not problem:
        interim.replace_by_final()
    elif (folder / "check.json").exists():
        try:
            folder = write_interim_report(study).parents[1]
        except (errors.ExpectedError, OSError) as error:
            say(f"no interim report: {error}")
    if not problem or folder == interim.folder:
        from softmax_bottleneck.report import contents  # takes two seconds to import, which a starting study need not

        print(contents.result_table(study, records.load(folder)), end="\n\n")
        print(f"{'Interim report' if problem else 'Report'}: {(folder / PAGE).resolve()}", flush=True)


def slurm(study: Study, options: argparse.Namespace, say: progress.Say) -> None:
    """Check the machine with the command `doctor`, then call Snakemake up to TRIES times until the study is finished.

    A failed call is repeated after a pause, which doubles every time, because the retries of Snakemake itself are not
    enough. All of them fail within seconds while SLURM does not answer, and a killed Snakemake retries nothing. A call
    is not repeated if a step failed with an error that another attempt would repeat, if Snakemake cannot even plan the
    study with these options, or if a signal to this process has stopped it: after SIGINT, Snakemake has cancelled its
    jobs; after SIGTERM, it has submitted nothing more and waited for them.

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
    doctor(study, options)
    command = snakemake_command("slurm", study.file, options.set, options.snakemake)
    for attempt in range(1, TRIES + 1):
        ends = workflow.new_log(study.store.root / "logs" / "slurm", study.name)
        problem, stopped = _snakemake(command, lock, ends=ends, log=None, update=lambda: None, say=say)
        again = problem and problem.resumes and problem.exit_code in (workflow.TRY_AGAIN, INCOMPLETE)
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
    call: list[str], lock: locks.Lock, *, ends: Path, log: BinaryIO | None, update: Callable[[], None],
    say: progress.Say,
) -> tuple[UnfinishedError | None, bool]:  # fmt: skip
    """Run Snakemake in its own process group; return (why it did not finish, True if a signal stopped it).

    See `_problem` for the error.

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
    is_saved, code = _settled(child.pid, say), child.returncode
    if code > 0 and not (received or workflow.attempts(ends) or _can_plan(call)):
        code = USAGE
    return _problem(code, received, ends, Path(log.name) if log else None, is_saved=is_saved), bool(received)


def _settled(group: int, say: progress.Say) -> bool:
    """Send SIGTERM to the steps of a group that outlive Snakemake; return False if some still run after SETTLE_S."""
    if not _to_group(group, signal.SIGTERM):
        return True
    say("waiting for steps of this workflow to save and stop")
    deadline = time.monotonic() + SETTLE_S
    while _to_group(group, 0):
        if time.monotonic() > deadline:
            say(f"steps still run after {SETTLE_S:.0f} s, until they have saved; `kill -KILL -- -{group}` ends them")
            return False
        time.sleep(LOOK_EVERY_S)
    return True


def _can_plan(call: Sequence[str]) -> bool:
    """Return True if a dry run succeeds: then no option or target is at fault for the end of this call of Snakemake."""
    return not subprocess.run([*call, "--dry-run"], capture_output=True, check=False).returncode


def _to_group(group: int, number: int) -> bool:
    """Send signal `number` (0: no signal) to a process group; return True if the group still has a process."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # the latter on macOS if all have ended
        return False
    return True


# --- the end --------------------------------------------------------------------------------------------------------
def _problem(
    code: int, stopped_by: Sequence[signal.Signals], ends: Path, log: Path | None, *, is_saved: bool = True
) -> UnfinishedError | None:
    """Return an error that tells why Snakemake did not finish.

    The result is None if it ended with exit code 0 and this process received no signal. The error names this signal or
    else the first failed step in the order of `workflow.failures`. If a signal killed Snakemake itself, it is named
    instead, unless a step failed with an error other than "try again". If neither a signal nor a failed step is known,
    the error has the last TAIL lines of `log`: options are wrong (USAGE), or there is an outage.

    Args:
        code: exit code of Snakemake; negative if a signal killed it; USAGE if it could not plan the study.
        stopped_by: signals that this process received.
        ends: file with a line for each beginning and end of a step.
        log: file with all that Snakemake and its steps printed (None: they printed to the output of this process).
        is_saved: False if steps still run, so that nobody knows whether they have saved their state.
    """
    if stopped_by:
        state = "the state is saved" if is_saved else "some steps have not saved their state yet"
        message = f"stopped by {stopped_by[0].name}; {state}"
        return UnfinishedError(message, interrupt.EXIT_CODES[stopped_by[0]], resumes=True)
    if code == 0:
        return None
    failed = workflow.failures(ends)
    if code < 0 and (not failed or failed[0][0] == workflow.TRY_AGAIN):
        killed = f"Snakemake was killed by {signal.Signals(-code).name}"
        return UnfinishedError(killed, workflow.TRY_AGAIN, resumes=True)
    if failed:
        first, message = failed[0]
        more = f"; {len(failed) - 1} more steps failed, see {log or 'above'}" if len(failed) > 1 else ""
        return UnfinishedError(message + more, first, resumes=first not in FINAL_CODES)
    tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:] if log else ()
    if code == USAGE:
        words = "Snakemake cannot plan the study, see the lines above; correct the options after --"
        return UnfinishedError(words, USAGE, resumes=False, log_tail=tail)
    words = f"Snakemake ended with exit code {code}; see the lines above"
    return UnfinishedError(words, INCOMPLETE, resumes=True, log_tail=tail)
