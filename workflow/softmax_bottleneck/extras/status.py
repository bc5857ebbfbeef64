"""The progress line of a running study, and its interim report, which is rewritten as runs end."""

import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from softmax_bottleneck.jobs import outcomes
from softmax_bottleneck.jobs.outcomes import Attempt
from softmax_bottleneck.records import collect
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.progress import Say, duration
from softmax_bottleneck.study import Study
from softmax_bottleneck.study.costs import fit_hours

Step = tuple[str, str]  # its name, and the path of its run or unit of fits
SHOWN = 4  # steps at work that a line names
TERMINAL_S, LINES_S = 1.0, 30.0  # between updates of the line on a terminal, and between lines elsewhere
CLEAR = "\r\x1b[K"
PAGE = "report/index.html"
FIRST_S, RELOAD_S = 45.0, 30  # before the first interim report, and before the browser reloads it
REST = 10  # the pause after an interim report, as a multiple of the time that it took
FORWARD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url=../../report/index.html">
<title>Finished</title>
<p><a href="../../report/index.html">The study is finished: its report</a></p>
</html>
"""


# --- the interim report ---------------------------------------------------------------------------------------------
def interim_folder(study: Study) -> Path:
    """Return the folder of an unfinished study's records and report, which no step reads."""
    return study.store.study_folder(study.name) / "partial"


def write_interim_report(study: Study, reload_s: int | None = None) -> Path:
    """Write records and report of the results so far; return the report's path.

    With `reload_s` the report says that the study is running, and the browser reloads it after so many seconds.

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
    """The interim report of a running study, written by a process of the lowest priority.

    A report that cannot be written does not disturb the study; its messages are in the log.
    """

    def __init__(self, study: Study, overrides: Sequence[str], log: IO[bytes]) -> None:
        self.study, self.log = study, log
        self.call = ["nice", "-n", "19", sys.executable, "-m", "softmax_bottleneck", "partial"]
        self.call += ["--study", str(study.file), "--reload", str(RELOAD_S)]
        self.call += ["--set", *overrides] if overrides else []
        self.child: subprocess.Popen[bytes] | None = None
        self.started, self.due = 0.0, time.monotonic() + FIRST_S
        self.runs_shown, self.is_there = 0, False

    def look(self, runs_done: int, say: Say) -> None:
        """Start a new report if one is due and runs have ended; report the first one that is written."""
        now = time.monotonic()
        if self.child is not None and self.child.poll() is not None:
            if self.child.returncode == 0 and not self.is_there:
                self.is_there = True
                say(f"interim report, updated as runs end: {(interim_folder(self.study) / PAGE).resolve()}")
            self.child, self.due = None, now + REST * (now - self.started)
        if self.child is None and runs_done > self.runs_shown and now >= self.due:
            self.runs_shown, self.started = runs_done, now
            self.child = subprocess.Popen(self.call, stdout=self.log, stderr=self.log, start_new_session=True)

    def stop(self) -> None:
        """Stop a report that is being written and remove what it has written."""
        if self.child is not None and self.child.poll() is None:
            self.child.kill()
            self.child.wait()
            shutil.rmtree(interim_folder(self.study), ignore_errors=True)

    def replace_by_final(self) -> None:
        """Remove the interim report of a finished study; a browser that shows it is forwarded to the report."""
        shutil.rmtree(interim_folder(self.study), ignore_errors=True)
        if self.is_there:
            artefacts.write_text(interim_folder(self.study) / PAGE, FORWARD)


# --- progress -------------------------------------------------------------------------------------------------------
def planned_steps(study: Study) -> dict[Step, Path]:
    """Return every step of the study's runs and fits, with the file that its end leaves."""
    folder, trained = study.store.run_folder, {run.path: "train" for run in study.needed}
    measured = trained | {run.path: "finetune" for run in study.finetuned}
    steps = {(step, path): folder(path) / "done.json" for path, step in measured.items()}
    steps |= {("measure", path): folder(path) / "measured.json" for path in measured}
    steps |= {("dynamic", one.path): folder(one.path) / "dynamic.json" for one in study.evaluations}
    return steps | {("fit", unit.path): study.store.fits_folder(unit.path) / "done.json" for unit in study.units}


def expected_hours(study: Study, steps: Sequence[Step]) -> dict[Step, float]:
    """Return the CPU hours of every step, of which only ratios count; nothing before `check` has estimated them.

    A measurement takes about a tenth of its run. Stages after training count like the mean run.
    """
    path = study.store.study_folder(study.name) / "check.json"
    if not artefacts.is_sound(path):
        return {}
    hours = {run: costs["cpu_h"] for run, costs in artefacts.read_json(path)["runs"].items()}
    mean_h = sum(hours.values()) / max(len(hours), 1)
    hours |= {unit.path: fit_hours(unit, "cpu") for unit in study.units}
    return {(step, what): hours.get(what, mean_h) * (0.1 if step == "measure" else 1.0) for step, what in steps}


class Display:
    """The progress line and the interim report of a running study, until the end of the `with` block."""

    def __init__(self, study: Study, ends: Path, report: InterimReport, say: Say, on_terminal: bool) -> None:
        self.study, self.ends, self.report, self._say, self.on_terminal = study, ends, report, say, on_terminal
        self.steps = planned_steps(study)
        self.epochs = {run.path: run.schedule.epochs for run in study.needed}
        self.hours: Mapping[Step, float] = {}
        self.began: tuple[float, float] | None = None  # time and share of the work done when work was first seen
        self.looked = self.printed = time.monotonic()
        self.failed, self.reported = set[Attempt](), set[Attempt]()

    def __enter__(self) -> "Display":
        return self

    def __exit__(self, *_: object) -> None:
        self.report.stop()
        if self.on_terminal:
            print(CLEAR, end="", file=sys.stderr, flush=True)

    def say(self, message: str) -> None:
        """Print a line that stays."""
        if self.on_terminal:
            print(CLEAR, end="", file=sys.stderr)
        self._say(message)

    def look(self) -> None:
        """Update the line, report failed steps and start interim reports, at most once a second."""
        now = time.monotonic()
        if now - self.looked < TERMINAL_S:
            return
        self.looked = now
        left = [step for step, file in self.steps.items() if not file.exists()]
        attempts = outcomes.attempts(self.ends)
        failed = {one for one in attempts if one.code or (one.ended is None and not one.works)}
        # A step counts as failed if seen twice: a look may fall between its last line and its end.
        for one in sorted(failed & self.failed - self.reported, key=lambda one: one.began):
            self.say(one.failure[1])
        self.reported |= failed & self.failed
        self.failed = failed
        self.report.look(len(self.study.needed) - self._unfinished_runs(left), self.say)
        if self.on_terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"{CLEAR}{self.line(left, attempts, now)[:width]}", end="", file=sys.stderr, flush=True)
        elif now - self.printed >= LINES_S:
            self.printed = now
            self._say(self.line(left, attempts, now))

    def line(self, left: Sequence[Step], attempts: Sequence[Attempt], now: float) -> str:
        """Return `6 of 40 runs; train mos/1 epoch 5 of 8, measure gss/2; about 12:05 left`."""
        at_work = [self._label(one.step, one.what) for one in attempts if one.works]
        if len(at_work) > SHOWN:
            at_work[SHOWN - 1 :] = [f"{len(at_work) - SHOWN + 1} more"]
        runs = len(self.study.needed)
        seconds = self.seconds_left(left, now)
        rest = "" if seconds is None else f"about {duration(seconds)} left"
        return "; ".join(
            filter(None, [f"{runs - self._unfinished_runs(left)} of {runs} runs", ", ".join(at_work), rest])
        )

    def seconds_left(self, left: Sequence[Step], now: float) -> float | None:
        """Estimate the time left from the share of the work done since work was first seen; None before any was."""
        self.hours = self.hours or expected_hours(self.study, list(self.steps))
        left_h = 0.0
        for step, path in left if self.hours else ():
            share = min(1.0, self._epochs_logged(path) / self.epochs[path]) if step == "train" else 0.0
            left_h += self.hours[step, path] * (1 - share)
        self.began = self.began or (now, left_h) if left_h else None
        done_h = self.began[1] - left_h if self.began else 0.0
        return (now - self.began[0]) * left_h / done_h if self.began and done_h > 0 else None

    def _unfinished_runs(self, left: Sequence[Step]) -> int:
        return len({path for _, path in left} & self.epochs.keys())

    def _epochs_logged(self, path: str) -> int:
        log = self.study.store.run_folder(path) / "epochs.jsonl"
        return log.read_bytes().count(b"\n") if log.exists() else 0

    def _label(self, step: str, path: str) -> str:
        """Return `train mos/1 epoch 5 of 8`: a step with the model and seed of its run."""
        parts = path.split("/")
        name = f"{parts[1]}/{parts[2].partition('-')[0]}" if len(parts) > 2 else path
        if step != "train" or path not in self.epochs:
            return f"{step} {name}".strip()
        return f"{step} {name} epoch {min(self._epochs_logged(path) + 1, self.epochs[path])} of {self.epochs[path]}"
