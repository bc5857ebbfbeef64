"""The progress line of a running study: runs done, steps at work, and an estimate of the time left."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from softmax_bottleneck.extras.partial import LivePage
from softmax_bottleneck.jobs import outcomes
from softmax_bottleneck.jobs.outcomes import Attempt
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.progress import Say, duration
from softmax_bottleneck.study import Study

Step = tuple[str, str]  # its name, and the path of its run or unit of fits
SHOWN = 4  # steps at work that a line names
TERMINAL_S, LINES_S = 1.0, 30.0  # between updates of the line on a terminal, and between lines elsewhere
CLEAR = "\r\x1b[K"


@dataclass(frozen=True)
class Training:
    """A training run: the hours that `check` estimates (only ratios count), its epochs, and those logged so far."""

    hours: float
    epochs: int
    epochs_s: Sequence[float]

    @property
    def share(self) -> float:
        """The fraction of its epochs that are done."""
        return min(1.0, len(self.epochs_s) / self.epochs)


def planned_steps(study: Study) -> dict[Step, Path]:
    """Return every step of the study's runs and fits, with the file that its end leaves."""
    folder, trained = study.store.run_folder, {run.path: "train" for run in study.needed}
    measured = trained | {run.path: "finetune" for run in study.finetuned}
    steps = {(step, path): folder(path) / "done.json" for path, step in measured.items()}
    steps |= {("measure", path): folder(path) / "measured.json" for path in measured}
    steps |= {("dynamic", one.path): folder(one.path) / "dynamic.json" for one in study.evaluations}
    return steps | {("fit", unit.path): study.store.fits_folder(unit.path) / "done.json" for unit in study.units}


def runs_done(study: Study, left: Sequence[Step]) -> int:
    """Return the number of trained runs without a step left."""
    return len({run.path for run in study.needed} - {path for _, path in left})


def line(study: Study, left: Sequence[Step], tried: Sequence[Attempt], now: float) -> str:
    """Return `6 of 40 runs; train mos/1 epoch 5 of 8, measure gss/2; about 12:05 left`.

    Args:
        study: the study.
        left: its steps that are not done yet.
        tried: the steps of this call.
        now: seconds since 1970.
    """
    trainings = _trainings(study)
    at_work = [_label(attempt, trainings.get(attempt.what)) for attempt in tried if attempt.works]
    if len(at_work) > SHOWN:
        at_work[SHOWN - 1 :] = [f"{len(at_work) - SHOWN + 1} more"]
    seconds = seconds_left(left, tried, {path: one for path, one in trainings.items() if one.hours}, now)
    parts = [f"{runs_done(study, left)} of {len(study.needed)} runs", ", ".join(at_work)]
    return "; ".join(filter(None, [*parts, f"about {duration(seconds)} left" if seconds is not None else ""]))


def _label(attempt: Attempt, training: Training | None) -> str:
    """Return `train mos/1 epoch 5 of 8`: a step with the model and seed of its run."""
    parts = attempt.what.split("/")
    name = f"{parts[1]}/{parts[2].partition('-')[0]}" if len(parts) > 2 else attempt.what
    epoch = ""
    if attempt.step == "train" and training is not None:
        epoch = f" epoch {min(len(training.epochs_s) + 1, training.epochs)} of {training.epochs}"
    return f"{attempt.step} {name}{epoch}".strip()


def _trainings(study: Study) -> dict[str, Training]:
    """Return every training run by its path, with hours of 0 if `check` has not estimated it yet."""
    path = study.store.study_folder(study.name) / "check.json"
    costs = artefacts.read_json(path)["runs"] if artefacts.is_sound(path) else {}
    trainings = {}
    for run in study.needed:
        log, epochs_s = study.store.run_folder(run.path) / "epochs.jsonl", list[float]()
        for row in log.read_bytes().splitlines() if log.exists() else []:
            with suppress(ValueError, KeyError, TypeError):  # a cut or damaged line is left to `verify`
                epochs_s.append(float(json.loads(row)["wall_s"]))
        hours = costs[run.path]["cpu_h"] if run.path in costs else 0.0
        trainings[run.path] = Training(hours, run.schedule.epochs, epochs_s)
    return trainings


def seconds_left(
    left: Sequence[Step], tried: Sequence[Attempt], trainings: Mapping[str, Training], now: float
) -> float | None:
    """Estimate how long the remaining steps take; None before anything has ended.

    Training is scaled by the ratio of logged epoch times to the hours that `check` estimated, over all runs. Another
    step takes the mean of the ended steps of its name, or of all. The steps that are left run as parallel as those of
    this call did.
    """
    ended_s: dict[str, list[float]] = defaultdict(list)
    for one in tried:
        if one.code == 0:
            ended_s[one.step].append(one.lasted_s(now))
    expected_h = sum(one.hours * one.share for one in trainings.values())
    if not expected_h and not set(ended_s) & {step for step, _ in left}:
        return None
    pace = sum(sum(one.epochs_s) for one in trainings.values()) / expected_h if expected_h else 0.0
    means_s = {step: fmean(lasted) for step, lasted in ended_s.items()}
    usual_s = fmean(means_s.values()) if means_s else 0.0
    at_work_s = {(one.step, one.what): one.lasted_s(now) for one in tried if one.works}
    left_s = 0.0
    for step, what in left:
        if step == "train" and pace and what in trainings:
            left_s += trainings[what].hours * (1 - trainings[what].share) * pace
        else:
            left_s += max(0.0, means_s.get(step, usual_s) - at_work_s.get((step, what), 0.0))
    worked_s = sum(map(sum, ended_s.values())) + sum(at_work_s.values())
    return left_s / worked_s * (now - min(one.began for one in tried)) if worked_s else None


class Display:
    """The progress line and the interim report of a running study, until the end of the `with` block."""

    def __init__(self, study: Study, ends: Path, page: LivePage, say: Say, on_terminal: bool) -> None:
        self.study, self.ends, self.page, self._say, self.on_terminal = study, ends, page, say, on_terminal
        self.steps = planned_steps(study)
        self.looked = self.printed = time.monotonic()
        self.failed, self.reported = set[Attempt](), set[Attempt]()

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        self.page.stop()
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
        tried = outcomes.attempts(self.ends)
        failed = {one for one in tried if one.code or (one.ended is None and not one.works)}
        # A step counts as failed if seen twice: a look may fall between its last line and its end.
        for one in sorted(failed & self.failed - self.reported, key=lambda one: one.began):
            self.say(one.failure[1])
        self.reported |= failed & self.failed
        self.failed = failed
        self.page.look(runs_done(self.study, left), self.say)
        if self.on_terminal:
            width = shutil.get_terminal_size().columns - 1
            text = line(self.study, left, tried, time.time())[:width]
            print(f"{CLEAR}{text}", end="", file=sys.stderr, flush=True)
        elif now - self.printed >= LINES_S:
            self.printed = now
            self._say(line(self.study, left, tried, time.time()))
