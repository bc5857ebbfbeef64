"""How far a study is, in one line: runs done of those planned, what is at work, and about how long it will take."""

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

Step = tuple[str, str]  # its name, and what it works on
SHOWN = 4  # steps at work that a line names
TERMINAL_S, LINES_S = 1.0, 30.0  # between lines on a terminal, where each replaces the one before, and elsewhere
CLEAR = "\r\x1b[K"


def planned_steps(study: Study) -> dict[Step, Path]:
    """Every step of the runs and fits of a study, and the file that says that it is done."""
    folder, trained = study.store.run_folder, {run.path: "train" for run in study.needed}
    measured = trained | {run.path: "finetune" for run in study.finetuned}
    steps = {(step, path): folder(path) / "done.json" for path, step in measured.items()}
    steps |= {("measure", path): folder(path) / "measured.json" for path in measured}
    steps |= {("dynamic", one.path): folder(one.path) / "dynamic.json" for one in study.evaluations}
    return steps | {("fit", unit.path): study.store.fits_folder(unit.path) / "done.json" for unit in study.units}


def runs_done(study: Study, left: Sequence[Step]) -> int:
    """Number of trained runs of which no step is left."""
    return len({run.path for run in study.needed} - {path for _, path in left})


def line(study: Study, left: Sequence[Step], tried: Sequence[Attempt], now: float) -> str:
    """`6 of 40 runs; train mos/1 epoch 5 of 8, measure gss/2; about 12:05 left`.

    Args:
        study: what is planned.
        left: its steps that are not done yet.
        tried: the steps of this call.
        now: seconds since 1970.
    """
    at_work = [attempt for attempt in tried if attempt.works]
    words = [f"{one.step} {_name(one.what)}{_epoch(study, one)}".strip() for one in at_work[:SHOWN]]
    words[SHOWN - 1 :] = [f"{len(at_work) - SHOWN + 1} more"] if len(at_work) > SHOWN else words[SHOWN - 1 :]
    seconds = seconds_left(left, tried, _trainings(study), now)
    parts = [f"{runs_done(study, left)} of {len(study.needed)} runs", ", ".join(words)]
    return "; ".join(filter(None, [*parts, f"about {duration(seconds)} left" if seconds is not None else ""]))


def _name(what: str) -> str:
    """`mos/1` of the path of a run: its model and seed, without what only tells runs of one name apart."""
    parts = what.split("/")
    return f"{parts[1]}/{parts[2].partition('-')[0]}" if len(parts) > 2 else what


def _epoch(study: Study, attempt: Attempt) -> str:
    """How far a run in training is, by its epoch log."""
    run = next((run for run in study.needed if run.path == attempt.what), None)
    if attempt.step != "train" or run is None:
        return ""
    return f" epoch {min(len(_epochs_s(study, run.path)) + 1, run.schedule.epochs)} of {run.schedule.epochs}"


def _epochs_s(study: Study, path: str) -> list[float]:
    """Seconds of every epoch that a run has logged, in this call or before; lines cut short or damaged are none."""
    log, found = study.store.run_folder(path) / "epochs.jsonl", []
    for line in log.read_bytes().splitlines() if log.exists() else []:
        with suppress(ValueError, KeyError, TypeError):  # what is damaged is for `verify` to tell
            found.append(float(json.loads(line)["wall_s"]))
    return found


def _trainings(study: Study) -> dict[str, Training]:
    """Of every run that `check` has priced."""
    path = study.store.study_folder(study.name) / "check.json"
    costs = artefacts.read_json(path)["runs"] if artefacts.is_sound(path) else {}
    priced = [(run, costs[run.path]["cpu_h"]) for run in study.needed if run.path in costs]
    return {run.path: Training(hours, run.schedule.epochs, _epochs_s(study, run.path)) for run, hours in priced}


@dataclass(frozen=True)
class Training:
    """What `check` expects a training to take, of which only proportions count, and its epochs logged."""

    hours: float
    epochs: int
    epochs_s: Sequence[float]

    @property
    def share(self) -> float:
        """Of its epochs that are done."""
        return min(1.0, len(self.epochs_s) / self.epochs)


def seconds_left(
    left: Sequence[Step], tried: Sequence[Attempt], trainings: Mapping[str, Training], now: float
) -> float | None:
    """How long the steps that are left will take; None before anything that they could be judged by.

    Training takes, for what `check` expected of it, what all epochs logged so far took, those of runs at work and of
    earlier calls too. Any other step takes as long as those of its name did, or as steps usually do. What is left goes
    on side by side as the steps of this call did.
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
    """Shows the line while a study runs, and lets its page follow; after the `with` block neither goes on."""

    def __init__(self, study: Study, ends: Path, page: LivePage, say: Say, on_terminal: bool) -> None:
        self.study, self.ends, self.page, self._say, self.on_terminal = study, ends, page, say, on_terminal
        self.steps = planned_steps(study)
        self.looked = self.printed = time.monotonic()
        self.failed, self.told = set[Attempt](), set[Attempt]()

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        self.page.stop()
        if self.on_terminal:
            print(CLEAR, end="", file=sys.stderr, flush=True)

    def say(self, words: str) -> None:
        """A line that stays."""
        if self.on_terminal:
            print(CLEAR, end="", file=sys.stderr)
        self._say(words)

    def _tell_failures(self, failed: set[Attempt]) -> None:
        """Say once how a step ended; only when seen twice: between a step's last line and its end a look may fall."""
        for one in sorted(failed & self.failed, key=lambda one: one.began):
            if one not in self.told:
                self.say(one.failure[1])
        self.told |= failed & self.failed
        self.failed = failed

    def look(self) -> None:
        """To be called often: does something once a second."""
        now = time.monotonic()
        if now - self.looked < TERMINAL_S:
            return
        self.looked = now
        left = [step for step, file in self.steps.items() if not file.exists()]
        tried = outcomes.attempts(self.ends)
        self._tell_failures({one for one in tried if one.code or (one.ended is None and not one.works)})
        self.page.look(runs_done(self.study, left), self.say)
        if self.on_terminal:
            words = line(self.study, left, tried, time.time())
            width = shutil.get_terminal_size().columns - 1
            print(f"{CLEAR}{words[:width]}", end="", file=sys.stderr, flush=True)
        elif now - self.printed >= LINES_S:
            self.printed = now
            self._say(line(self.study, left, tried, time.time()))
