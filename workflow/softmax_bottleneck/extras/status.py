"""The progress line of a running study, and its interim report, which is rewritten as runs finish."""

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from softmax_bottleneck.jobs.workflow import Attempt, attempts
from softmax_bottleneck.records import collect
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.progress import Say, duration
from softmax_bottleneck.study import Run, Study

SHOWN = 4  # steps at work that a line names
TERMINAL_S, LINES_S = 1.0, 30.0  # between updates of the line on a terminal, and between lines elsewhere
CLEAR = "\r\x1b[K"
PAGE = "report/index.html"
FIRST_S, RELOAD_S = 45.0, 30  # before the first interim report, and before the browser reloads it
REST = 10  # the pause after an interim report, as a multiple of the time that it took
FORWARD = """<!doctype html><meta charset="utf-8"><title>Finished</title>
<meta http-equiv="refresh" content="0; url=../../report/index.html">
"""


# --- the interim report ---------------------------------------------------------------------------------------------
def interim_folder(study: Study) -> Path:
    """Return the folder of an unfinished study's records and interim report; no step of the workflow reads it."""
    return study.store.study_folder(study.name) / "partial"


def write_interim_report(study: Study, reload_s: int | None = None) -> Path:
    """Write records and report of the results so far; return the path of the report.

    If `reload_s` is given, the report says that the study is running, and the browser reloads it every `reload_s`
    seconds.

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
    """

    def __init__(self, study: Study, overrides: Sequence[str], log: IO[bytes]) -> None:
        self.folder, self.log = interim_folder(study), log
        self.call = ["nice", "-n", "19", sys.executable, "-m", "softmax_bottleneck", "partial"]
        self.call += ["--study", str(study.file), "--reload", str(RELOAD_S)]
        self.call += ["--set", *overrides] if overrides else []
        self.child: subprocess.Popen[bytes] | None = None
        self.started, self.due = 0.0, time.monotonic() + FIRST_S
        self.runs_shown, self.is_there = 0, False

    def update(self, runs_done: int, say: Say) -> None:
        """Start writing a new report if one is due and more runs have finished; announce the first finished report."""
        now = time.monotonic()
        if self.child is not None and self.child.poll() is not None:
            if self.child.returncode == 0 and not self.is_there:
                self.is_there = True
                say(f"interim report, updated as runs end: {(self.folder / PAGE).resolve()}")
            self.child, self.due = None, now + REST * (now - self.started)
        if self.child is None and runs_done > self.runs_shown and now >= self.due:
            self.runs_shown, self.started = runs_done, now
            self.child = subprocess.Popen(self.call, stdout=self.log, stderr=self.log, start_new_session=True)

    def stop(self) -> None:
        """Stop the process that is writing a report, if any, and remove the unfinished report."""
        if self.child is not None and self.child.poll() is None:
            self.child.kill()
            self.child.wait()
            shutil.rmtree(self.folder, ignore_errors=True)

    def replace_by_final(self) -> None:
        """Replace the interim report of a finished study by a page that forwards a browser to the final report."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.is_there:
            artefacts.write_text(self.folder / PAGE, FORWARD)


# --- progress -------------------------------------------------------------------------------------------------------
class Display:
    """The progress line and the interim report of a running study, active inside a `with` block."""

    def __init__(self, study: Study, ends: Path, report: InterimReport, say: Say, on_terminal: bool) -> None:
        self.study, self.ends, self.report, self._say, self.on_terminal = study, ends, report, say, on_terminal
        self.runs = {run.path: run for run in study.needed}
        self.hours: dict[str, float] = {}
        self.began: tuple[float, float] | None = None  # time and hours of training left when training was first seen
        self.updated = self.printed = time.monotonic()
        self.failed, self.reported = set[Attempt](), set[Attempt]()

    def __enter__(self) -> "Display":
        return self

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
        """Update the progress line, report failed steps and start interim reports, at most once a second."""
        now = time.monotonic()
        if now - self.updated < TERMINAL_S:
            return
        self.updated = now
        steps = attempts(self.ends)
        failed = {attempt for attempt in steps if attempt.code or (attempt.ended is None and not attempt.works)}
        # A failure is reported when it is seen twice: the first time may fall between a step's last line and its end.
        for attempt in sorted(failed & self.failed - self.reported, key=lambda attempt: attempt.began):
            self.say(attempt.failure[1])
        self.reported |= failed & self.failed
        self.failed = failed
        done = sum((self.study.store.run_folder(path) / "measured.json").exists() for path in self.runs)
        self.report.update(done, self.say)
        if self.on_terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"{CLEAR}{self.line(done, steps, now)[:width]}", end="", file=sys.stderr, flush=True)
        elif now - self.printed >= LINES_S:
            self.printed = now
            self._say(self.line(done, steps, now))

    def line(self, done: int, attempts: Sequence[Attempt], now: float) -> str:
        """Return the progress line.

        Example: `6 of 40 runs; train mos/1 epoch 5 of 8, measure gss/2; about 12:05 of training left`.
        """
        at_work = [self._label(attempt.step, attempt.what) for attempt in attempts if attempt.works]
        if len(at_work) > SHOWN:
            at_work[SHOWN - 1 :] = [f"{len(at_work) - SHOWN + 1} more"]
        seconds = self.seconds_left(now)
        left = "" if seconds is None else f"about {duration(seconds)} of training left"
        return "; ".join(filter(None, [f"{done} of {len(self.runs)} runs", ", ".join(at_work), left]))

    def seconds_left(self, now: float) -> float | None:
        """Estimate the seconds until all runs are trained, from the progress since the first call of this method.

        Runs are weighted by the hours that `check` estimates; only the ratios of these hours matter. The result is None
        if there is no progress yet.
        """
        path = self.study.store.study_folder(self.study.name) / "check.json"
        if not self.hours and artefacts.is_sound(path):  # read once; `check` writes the file after the study has begun
            self.hours = {run: costs["cpu_h"] for run, costs in artefacts.read_json(path)["runs"].items()}
        if not self.hours:
            return None
        left_h = sum(self.hours.get(run, 0.0) * self._share_left(self.runs[run]) for run in self.runs)
        self.began = self.began or (now, left_h)
        done_h = self.began[1] - left_h
        return (now - self.began[0]) * left_h / done_h if done_h > 0 and left_h > 0 else None

    def _share_left(self, run: Run) -> float:
        if (self.study.store.run_folder(run.path) / "done.json").exists():
            return 0.0
        return max(0.0, 1 - self._epochs_logged(run.path) / run.schedule.epochs)

    def _epochs_logged(self, path: str) -> int:
        log = self.study.store.run_folder(path) / "epochs.jsonl"
        return log.read_bytes().count(b"\n") if log.exists() else 0

    def _label(self, step: str, path: str) -> str:
        """Return a step with the model and seed of its run, and the epoch if it trains: `train mos/1 epoch 5 of 8`."""
        parts = path.split("/")
        name = f"{parts[1]}/{parts[2].partition('-')[0]}" if len(parts) > 2 else path
        if step != "train" or path not in self.runs:
            return f"{step} {name}".strip()
        epochs = self.runs[path].schedule.epochs
        return f"{step} {name} epoch {min(self._epochs_logged(path) + 1, epochs)} of {epochs}"
