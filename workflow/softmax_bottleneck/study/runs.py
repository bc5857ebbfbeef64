"""A training run as a frozen value: head, body, schedule, seed; its run_id says what it depends on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from softmax_bottleneck.heads import registry as heads
from softmax_bottleneck.store.fingerprint import STEPS, step_code


@dataclass(frozen=True)
class Head:
    """An output head and its options (every option present, defaults filled in)."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules below the package that compute this head; a mixture also needs those of its parts."""
        names = {self.name, *(str(self.options[part]) for part in ("pointwise", "prior") if part in self.options)}
        return tuple(sorted(f"heads.{heads.module_path(name).stem}" for name in names))


@dataclass(frozen=True)
class Body:
    """The network below the head and how it meets it. Sizes in units, dropouts as probabilities."""

    kind: str
    embedding_size: int
    hidden_size: int
    context_size: int
    layers: int
    dropout_input: float
    dropout_hidden: float
    dropout_output: float
    dropout_embedding: float
    dropout_weight: float
    embedding_noise: float
    attention_heads: int = 0
    tied: bool = True
    initialisation: str = "own"

    @property
    def module(self) -> str:
        """The module below the package that computes this body."""
        return f"bodies.{self.kind.replace('-', '_')}"


@dataclass(frozen=True)
class Schedule:
    """How a model is trained; the keys are documented in workflow/schemas/study.schema.yaml."""

    optimizer: str
    learning_rate: float
    batch_size: int
    bptt: int
    variable_length: bool
    max_length_delta: int
    clip: float
    weight_decay: float
    activation_penalty: float
    temporal_penalty: float
    epochs: int
    switch_after_epoch: int
    nonmonotone_window: int
    eval_batch_size: int
    test_batch_size: int = 1
    plateau_factor: float = 1.75
    tested_weights: str = "best"
    loss_divisor: str = "length"
    pieces: int = 1
    precision: str = "float32"


@dataclass(frozen=True)
class Run:
    """One training run: dataset x body x head x schedule x seed.

    `data_identity` is the hash that decides what the corpus is; it is part of the run_id. `twin` is the model of the
    study under whose name a run with the same run_id is trained; empty for the run that is trained itself. `start` is
    the path of the run that a finetuned one goes on from; empty for a run that begins with weights drawn by its seed.
    """

    dataset: str
    model: str
    head: Head
    body: Body
    schedule: Schedule
    seed: int
    data_identity: str
    threads: int = 1
    device: str = "auto"
    deterministic: bool = True
    twin: str = ""
    start: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """What affects the result, apart from the seed and the code."""
        keys = ("head", "body", "schedule", "data_identity")
        begun = {"start": self.start} if self.start else {}
        return {key: dataclasses.asdict(self)[key] for key in keys} | begun

    @cached_property
    def code(self) -> str:
        """Fingerprint of the modules that make its tokens and compute this run."""
        return step_code(
            "finetune" if self.start else "train", *STEPS["tokenise"], self.body.module, *self.head.modules
        )

    @cached_property
    def run_id(self) -> str:
        """12 hex digits of the sha256 of settings, seed and code."""
        facts = {**self.settings, "seed": self.seed, "code": self.code}
        return hashlib.sha256(canonical_json(facts).encode()).hexdigest()[:12]

    @property
    def path(self) -> str:
        """`<dataset>/<model>/<seed>-<run_id>`, of the twin where there is one; finetuned: `<start>/finetune-<id>`."""
        if self.start:
            return f"{self.start}/finetune-{self.run_id}"
        return f"{self.dataset}/{self.twin or self.model}/{self.seed}-{self.run_id}"

    def to_json(self) -> dict[str, Any]:
        """As stored in run.json."""
        return dataclasses.asdict(self) | {"run_id": self.run_id, "code": self.code}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Run:
        """The run stored in a run.json; its run_id stays in the file's path, whatever the code is now."""
        plain = {key: value[key] for key in (f.name for f in dataclasses.fields(cls)) if key in value}
        parts = {
            "head": Head(**plain["head"]),
            "body": Body(**plain["body"]),
            "schedule": Schedule(**plain["schedule"]),
        }
        return cls(**plain | parts)


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no spaces; 1 and 1.0 are the same number."""
    return json.dumps(_plain_numbers(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain_numbers(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain_numbers(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_numbers(child) for child in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def digest(value: object) -> str:
    """64 hex digits of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
