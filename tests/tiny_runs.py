"""Runs that train in milliseconds, and the three kinds of resumable work at that size."""

import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fit_plans import DIRICHLET, units
from run_hash import result_hash
from softmax_bottleneck import heads
from softmax_bottleneck import study as config
from softmax_bottleneck.corpora.corpus import Corpus
from softmax_bottleneck.jobs import processes, resumable
from softmax_bottleneck.jobs.resumable import Options
from softmax_bottleneck.steps import dynamic
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.training import dynamic_evaluation, fitting, free_contexts, loop, model, trainer

VOCABULARY = 30
BODY = {
    "kind": "awd-lstm", "embedding_size": 6, "hidden_size": 8, "context_size": 6, "layers": 2, "dropout_input": 0.2,
    "dropout_hidden": 0.1, "dropout_output": 0.3, "dropout_embedding": 0.1, "dropout_weight": 0.4,
    "embedding_noise": 0.0,
}  # fmt: skip
NO_DROPOUT = {key: 0.0 for key in BODY if key.startswith("dropout")}
TRANSFORMER_SIZES = {"embedding_size": 12, "hidden_size": 20, "context_size": 12, "layers": 3, "attention_heads": 4}
PLATEAU = {"optimizer": "plateau-sgd", "plateau_factor": 1.75, "tested_weights": "last", "loss_divisor": "targets"}
SCHEDULE = {
    "optimizer": "et-asgd", "learning_rate": 5.0, "batch_size": 4, "bptt": 12, "variable_length": True,
    "max_length_delta": 10, "clip": 0.25, "weight_decay": 1e-4, "activation_penalty": 2.0, "temporal_penalty": 1.0,
    "epochs": 3, "switch_after_epoch": 1, "nonmonotone_window": 2, "eval_batch_size": 3,
}  # fmt: skip
VARYING = {"timing", "wall_s", "provenance"}


def make_run(head: str = "softmax", seed: int = 1, options: dict[str, Any] | None = None, **changes: Any) -> config.Run:
    """Return a run; `changes` are keys of its body or schedule."""
    keys = {field.name: part for part in (config.Body, config.Schedule) for field in dataclasses.fields(part)}
    body = config.Body(**BODY | {key: value for key, value in changes.items() if keys[key] is config.Body})
    schedule = config.Schedule(**SCHEDULE | {k: value for k, value in changes.items() if keys[k] is config.Schedule})
    complete = config.Head(head, heads.options(head, options or {}))
    return changed(config.Run("nano", head, complete, body, schedule, seed, "identity", device="cpu"))


def changed(run: config.Run, **values: Any) -> config.Run:
    """Return the run with other values; its code hash is pinned, so that edits while the tests run do not matter."""
    other = dataclasses.replace(run, **values)
    other.__dict__["code"] = "0" * 12
    return other


def transformer_run(head: str = "softmax", options: dict[str, Any] | None = None, **schedule: Any) -> config.Run:
    """Return a small Transformer trained as Benka's; `schedule` holds the changes."""
    run = make_run(head, options=options, epochs=6, activation_penalty=0.0, temporal_penalty=0.0, variable_length=False)
    zero = dict.fromkeys(("dropout_embedding", "dropout_weight", "embedding_noise"), 0.0)
    own = TRANSFORMER_SIZES | zero | {"kind": "transformer", "layers": 2, "dropout_input": 0.2, "dropout_hidden": 0.1}
    values = {"dropout_output": 0.0, "tied": False, "initialisation": "xavier"}
    return changed(run, body=dataclasses.replace(run.body, **own | values),
        schedule=dataclasses.replace(run.schedule, **{"learning_rate": 3.0} | PLATEAU | schedule))  # fmt: skip


def make_corpus(train_tokens: int = 300, other_tokens: int = 90, vocabulary_size: int = VOCABULARY) -> Corpus:
    rng = np.random.default_rng(0)
    splits = [rng.integers(0, vocabulary_size, n).astype(np.int32) for n in (train_tokens, other_tokens, other_tokens)]
    return Corpus("nano", tuple(f"w{i}" for i in range(vocabulary_size)), *splits)


CORPUS = make_corpus()
TEXT = make_corpus(train_tokens=300, other_tokens=21)


def results(done: dict[str, Any]) -> dict[str, Any]:
    """Return a record without what varies from call to call."""
    return {key: value for key, value in done.items() if key not in VARYING}


class Kill(BaseException):
    """The end of a process: nothing in the package may catch it."""


@dataclass(frozen=True)
class Kind:
    """A kind of work.

    Attributes:
        run: does it to its end in a folder; with `other`, another piece of work of this kind.
        result: name of its record.
        owned: where its lease lies below the folder.
        inner: what a step calls, as an object and an attribute.
        last_files: patterns of what is written at the end, in this order.
        differs: the message with which a state of other work is rejected.
    """

    run: Callable[..., dict[str, Any]]
    result: str
    owned: str
    inner: tuple[Any, str]
    last_files: tuple[str, ...]
    differs: str

    def came_to(self, folder: Path) -> str:
        """Return the result in a comparable form, without what varies from call to call."""
        record = results(artefacts.read_json(folder / self.result))
        return json.dumps(record, sort_keys=True) + (result_hash(folder) if self.result == "done.json" else "")


def run_training(folder: Path, options: Options = resumable.DEFAULTS, other: bool = False) -> dict[str, Any]:
    return loop.train_run(make_run(seed=2 if other else 1), CORPUS, folder, options)


def run_dynamic(folder: Path, options: Options = resumable.DEFAULTS, other: bool = False) -> dict[str, Any]:
    settings = config.Dynamic(
        segment=5, statistics_batch_size=10, scaling="mean", learning_rates=(0.002, 0.02), decays=(0.01,),
        epsilon=0.5 if other else 1e-3, tune_tokens=None,
    )  # fmt: skip
    evaluation = config.Evaluation(make_run(), settings)
    weights = model.build(evaluation.run, VOCABULARY).eval()
    return dynamic.evaluate(evaluation, weights, TEXT, folder, parents={}, options=options)


def run_fit(folder: Path, options: Options = resumable.DEFAULTS, other: bool = False) -> dict[str, Any]:
    (unit,) = units(DIRICHLET, widths=[3 if other else 2], updates=14)
    return fitting.fit_unit(unit, folder, folder / "laws", options)


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
    """An undisturbed piece of work: its result, its number of steps and its record."""

    came_to: str
    steps: int
    record: dict[str, Any]


@cache
def reference(name: str) -> Reference:
    """Return the reference of a kind, made once per process."""
    kind, steps = KINDS[name], []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        original = resumable.Session.step
        patch.setattr(resumable.Session, "step", lambda self: (steps.append(1), original(self))[1])
        record = kind.run(Path(folder))
        return Reference(kind.came_to(Path(folder)), len(steps), record)


def at_step(patch: pytest.MonkeyPatch, number: int, act: Callable[[], object]) -> None:
    """Act just before a step, counted over all sessions from 0."""
    original = resumable.Session.step

    def step(self: resumable.Session) -> bool:
        if self.steps == number:
            act()
        return original(self)

    patch.setattr(resumable.Session, "step", step)


def die() -> None:
    raise Kill


def dies_writing(patch: pytest.MonkeyPatch, pattern: str) -> None:
    """Die before a file that matches the pattern gets its name."""
    original = artefacts.write_with

    def write_with(path: Path, write: Any) -> str:
        if path.match(pattern):
            raise Kill
        return original(path, write)

    patch.setattr(artefacts, "write_with", write_with)


def killed(kind: Kind, folder: Path, step: int, save_interval_s: float = 0.0) -> None:
    """Kill a piece of work before a step; with an interval of 0, every step before it is saved."""
    with pytest.MonkeyPatch.context() as patch:
        at_step(patch, step, die)
        with pytest.raises(Kill):
            kind.run(folder, Options(save_interval_s=save_interval_s))


def poisoned(patch: pytest.MonkeyPatch, update: int, poison: Callable[[trainer.Trainer], object]) -> None:
    """Call `poison` just before an update of a trainer."""
    original = trainer.Trainer.update

    def step(self: trainer.Trainer) -> None:
        if self.place.updates == update:
            poison(self)
        original(self)

    patch.setattr(trainer.Trainer, "update", step)


def write_lease(folder: Path, age_s: float = 0.0, **facts: Any) -> Path:
    """Write another process's lease, last touched `age_s` seconds ago."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "lease.json"
    place = {"host": "here", "pid_namespace_id": processes.pid_namespace_id()}
    path.write_text(json.dumps({"token": "other", **place, **facts}), encoding="utf-8")
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def of_parent() -> dict[str, int]:
    """Return pid and start of a living process that is not this one."""
    return vars(processes.Process.of(os.getppid()))
