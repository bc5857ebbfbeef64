"""The three kinds of resumable work at a size of milliseconds, for tests that hold for all of them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import test_train
from run_hash import result_hash
from softmax_bottleneck import study as config
from softmax_bottleneck.jobs import resumable
from softmax_bottleneck.jobs.resumable import Options
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.study.fits import FitPlan, units_of
from softmax_bottleneck.training import dynamic, dynamic_evaluation, fit, free_contexts, model, train, trainer

VARYING = {"timing", "wall_s", "provenance"}
TEXT = test_train.make_corpus(train_tokens=300, other_tokens=21)


class Kill(BaseException):
    """Stands for a process that is gone: nothing in the package may catch it."""


@dataclass(frozen=True)
class Kind:
    """A kind of work.

    Attributes:
        run: does it to its end in a folder; with `other`, another piece of work of this kind.
        result: name of its record.
        owned: where its lease lies below the folder.
        inner: what a step calls, as an object and an attribute.
        last_files: patterns of what is written at the end, in this order.
        differs: what a foreign state is refused by.
    """

    run: Callable[..., dict[str, Any]]
    result: str
    owned: str
    inner: tuple[Any, str]
    last_files: tuple[str, ...]
    differs: str

    def came_to(self, folder: Path) -> str:
        """What came out, without what varies from call to call."""
        record = artefacts.read_json(folder / self.result)
        kept = {key: value for key, value in record.items() if key not in VARYING}
        return json.dumps(kept, sort_keys=True) + (result_hash(folder) if self.result == "done.json" else "")


def run_training(folder: Path, options: Options = resumable.DEFAULTS, other: bool = False) -> dict[str, Any]:
    return train.train_run(test_train.make_run(seed=2 if other else 1), test_train.CORPUS, folder, options)


def run_dynamic(folder: Path, options: Options = resumable.DEFAULTS, other: bool = False) -> dict[str, Any]:
    settings = config.Dynamic(
        segment=5,
        statistics_batch_size=10,
        scaling="mean",
        learning_rates=(0.002, 0.02),
        decays=(0.01,),
        epsilon=0.5 if other else 1e-3,
        tune_tokens=None,
    )
    evaluation = config.Evaluation(test_train.make_run(), settings)
    weights = model.build(evaluation.run, test_train.VOCABULARY).eval()
    return dynamic.evaluate(evaluation, weights, TEXT, folder, {}, options)


def run_fit(folder: Path, options: Options = resumable.DEFAULTS, other: bool = False) -> dict[str, Any]:
    models = {"softmax": {"head": "softmax"}, "mos": {"head": {"name": "mos", "components": 2}}}
    widths, recipe = [3 if other else 2], {"bias": False, "updates": 14, "learning_rate": 0.1}
    fits = {"kind": "dirichlet", "alphas": [0.5], "words": [8], "contexts": 30, "widths": widths, "models": models}
    (unit,) = units_of("toy", config.read(FitPlan, fits | recipe, "fits.toy"), {"device": "cpu"}, "fits.toy")
    return fit.fit_unit(unit, folder, folder / "laws", options)


KINDS = {
    "training": Kind(
        run_training, "done.json", ".", (trainer.Trainer, "update"), ("model.safetensors", "outcome.json", "done.json"),
        "seed is 1 there and 2 here",
    ),
    "dynamic evaluation": Kind(
        run_dynamic, "dynamic.json", ".", (dynamic_evaluation.Reading, "step"), ("outcome.json", "dynamic.json"),
        r"epsilon is '0\.001' there and '0\.5' here",
    ),
    "fits": Kind(
        run_fit, "done.json", "laws", (free_contexts, "update"),
        ("softmax-*.json", "mos-*.json", "outcome.json", "done.json"), "unit_id is '[0-9a-f]+' there",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Reference:
    """What a piece of work comes to that is left alone, and in how many steps."""

    came_to: str
    steps: int
    record: dict[str, Any]


@cache
def reference(name: str) -> Reference:
    """Of a kind, once per process."""
    kind, steps = KINDS[name], []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        original = resumable.Session.step
        patch.setattr(resumable.Session, "step", lambda self: (steps.append(1), original(self))[1])
        record = kind.run(Path(folder))
        return Reference(kind.came_to(Path(folder)), len(steps), record)


def at_step(patch: pytest.MonkeyPatch, number: int, act: Callable[[], object]) -> None:
    """Do something just before a step, counted over all sessions from 0."""
    original = resumable.Session.step

    def step(self: resumable.Session) -> bool:
        if self.steps == number:
            act()
        return original(self)

    patch.setattr(resumable.Session, "step", step)


def die() -> None:
    raise Kill


def killed(kind: Kind, folder: Path, step: int, save_interval_s: float = 0.0) -> None:
    """Killed before a step; with an interval of 0, every step before it is saved."""
    with pytest.MonkeyPatch.context() as patch:
        at_step(patch, step, die)
        with pytest.raises(Kill):
            kind.run(folder, Options(save_interval_s=save_interval_s))
