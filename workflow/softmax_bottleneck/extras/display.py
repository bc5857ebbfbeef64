"""The progress line of a running study, with new failures of steps, and the start of interim reports."""

import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from softmax_bottleneck.extras.interim import InterimReport
from softmax_bottleneck.jobs import workflow
from softmax_bottleneck.store import artefacts, progress
from softmax_bottleneck.study import Run, Study, plan

TERMINAL_S, LINES_S = 1.0, 30.0  # between updates of the progress line on a terminal, and between lines elsewhere
CLEAR = "\r\x1b[K"


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
        self.moved: list[tuple[float, float]] = []  # (time, hours left): first look, last change
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
        if not self.moved or left_h != self.moved[-1][1]:
            self.moved = [*self.moved[:1], (now, left_h)]
        (began, left_at_first), (moved, _) = self.moved[0], self.moved[-1]
        done_h = left_at_first - left_h
        whole = (moved - began) * left_h / done_h if done_h > 0 and left_h > 0 else None
        return whole and max(0.0, whole - (now - moved))  # counts down while an epoch lasts

    def _hours_of_tuned(self) -> dict[str, float]:
        """Return {path: hours} of runs of tuned models: the hours that `check` predicted for a model's first trial."""
        hours: dict[str, float] = {}
        for tuned in self.study.shown_tuned:
            confirmed = [run for run in self.runs.values() if (run.dataset, run.model) == tuned.key]
            first = self.hours.get(tuned.runs[0].path, 0.0)
            hours |= {run.path: first for run in (*tuned.runs, *tuned.expected, *confirmed)}
        return hours

    def _epochs_done(self, run: Run) -> int:
        folder = self.study.store.run_folder(run.path)
        if (folder / "done.json").exists():  # training may have ended before its last planned epoch
            return run.schedule.epochs
        log = folder / "epochs.jsonl"
        return log.read_bytes().count(b"\n") if log.exists() else 0
