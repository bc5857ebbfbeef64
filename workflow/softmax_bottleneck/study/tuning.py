"""The search for the settings of each model: which values are tried, which are chosen, and what is trained with them.

A study with the key `tuning` has two phases for every corpus and model: the search trains a run per point of a grid,
and the confirmation trains the model's seeds at the chosen point. The step `choose` (`steps.choose`) ends every
round of a search. It writes a file that names either the chosen point or further points to try, which make the next
round. The plan of a study therefore follows from its YAML and these files alone.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from softmax_bottleneck.statistics.bracketing import is_interior
from softmax_bottleneck.study.runs import Run
from softmax_bottleneck.study.study_file import Tuning

Point = Mapping[str, Any]  # {setting: value}, such as {"schedule.learning_rate": 20}


@dataclass(frozen=True)
class Trial:
    """A point of a search, and its runs: one per search seed."""

    point: Point
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Round:
    """A round of a search: all trials so far of one model on one corpus, among which `choose` chooses."""

    dataset: str
    model: str
    trials: tuple[Trial, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs of all trials."""
        return tuple(run for trial in self.trials for run in trial.runs)

    @cached_property
    def path(self) -> str:
        """The path of the choice below results/<study>/choices: `<dataset>/<model>-<hash of the runs' paths>`.

        Run paths contain hashes of settings and code, so a file of other settings or of older code is never read.
        """
        paths = " ".join(run.path for run in self.runs)
        return f"{self.dataset}/{self.model}-{hashlib.sha256(paths.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class TunedModel:
    """A model whose settings a search chooses, on one corpus.

    Attributes:
        rounds: the rounds that are planned so far. Every round but the last has ended with further points to try.
        choice: the content of the file that ended the last round; None while that round is unfinished.
        expected: the runs of the confirmation at the first point of the grid. They show what the confirmation costs
            before its settings are known, and are never trained.
    """

    rounds: tuple[Round, ...]
    choice: Mapping[str, Any] | None
    expected: tuple[Run, ...]

    @property
    def key(self) -> tuple[str, str]:
        """The names of the corpus and the model."""
        return self.rounds[0].dataset, self.rounds[0].model

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs of the search."""
        return self.rounds[-1].runs


# --- choosing -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Decision:
    """The end of a round.

    Attributes:
        best: index of the best point.
        interior: True if no neighbour of the best point is left to try, and smaller and larger values of every numeric
            axis were tried with its other settings.
        following: the points to try in the next round; empty if the best point is chosen.
    """

    best: int
    interior: bool
    following: tuple[Point, ...]


def decide(tuning: Tuning, points: Sequence[Point], losses: Sequence[float]) -> Decision:
    """Return the best of the points tried so far, and its neighbours that have not been tried.

    The neighbours are the next smaller and larger values of one setting. At the end of a grid, a new value extends it
    by the grid's last step, as a ratio if the values are positive, rounded to two digits. An axis with one value, or
    with values that are not numbers, has no neighbours.

    Args:
        tuning: the grid, and the largest number of new values at each end (`widen`).
        points: the points tried.
        losses: their losses, infinite if a run diverged; at least one is finite.
    """
    best = min(range(len(points)), key=losses.__getitem__)
    interior, following = True, list[Point]()
    for axis, values in tuning.grid.items():
        if len(values) < 2 or not all(type(value) in (int, float) for value in values):
            continue
        ladder = sorted({point[axis] for point in points})
        place = ladder.index(points[best][axis])
        neighbours = ladder[max(place - 1, 0) : place] + ladder[place + 1 : place + 2]
        if place == 0 and sum(value < min(values) for value in ladder) < tuning.widen:
            neighbours += _beyond(ladder[1], ladder[0])
        if place == len(ladder) - 1 and sum(value > max(values) for value in ladder) < tuning.widen:
            neighbours += _beyond(ladder[-2], ladder[-1])
        tried = [point[axis] for point in points if {**point, axis: None} == {**points[best], axis: None}]
        interior = interior and is_interior(points[best][axis], tried)
        around = [{**points[best], axis: value} for value in neighbours]
        following += [point for point in around if point not in points]
    return Decision(best, interior and not following, tuple(following))


def _beyond(inner: float, end: float) -> list[float]:
    """Return [the value one step beyond `end`], where `inner` is the value before it; [] if there is none.

    Whole numbers are followed by whole numbers. Values that are not negative are followed by one that is not either.
    """
    value = end * end / inner if min(inner, end) > 0 else 2 * end - inner
    rounded = float(f"{value:.2g}")
    if (rounded - end) * (end - inner) > 0:
        value = rounded
    if isinstance(inner, int) and isinstance(end, int):
        value = math.floor(value) if end < inner else math.ceil(value)
    return [] if value < 0 <= min(inner, end) or (isinstance(end, int) and value == 0) else [value]
