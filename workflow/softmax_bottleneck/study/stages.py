"""What may follow training, as frozen values: finetuning, and dynamic evaluation of a trained or finetuned run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from softmax_bottleneck.store.fingerprint import step_code
from softmax_bottleneck.study.runs import Run, Schedule, digest

STAGES = ("finetune", "dynamic")
# What finetuning is in both published code bases; all else is as in training unless the study says otherwise.
FINETUNE = {"optimizer": "asgd", "max_length_delta": 10}


@dataclass(frozen=True)
class Dynamic:
    """How the weights follow a text while it is scored; keys: workflow/schemas/study.schema.yaml."""

    segment: int
    statistics_batch_size: int
    scaling: str
    learning_rates: tuple[float, ...]
    decays: tuple[float, ...]
    epsilon: float
    tune_tokens: int | None


@dataclass(frozen=True)
class Stages:
    """Settings of what follows the training of a model on a corpus."""

    finetune: Schedule
    dynamic: Dynamic

    @classmethod
    def of(cls, schedule: Mapping[str, Any], finetune: Mapping[str, Any], dynamic: Mapping[str, Any]) -> Stages:
        """From the schedule of training, what of it is changed for finetuning, and complete dynamic settings."""
        lists = {key: tuple(dynamic[key]) for key in ("learning_rates", "decays")}
        return cls(Schedule(**{**schedule, **FINETUNE, **finetune}), Dynamic(**{**dynamic, **lists}))

    def finetuned(self, run: Run) -> Run:
        """The run that goes on where `run` ended."""
        return dataclasses.replace(run, schedule=self.finetune, start=run.path)


@dataclass(frozen=True)
class Evaluation:
    """Dynamic evaluation of a run that is trained or finetuned."""

    run: Run
    settings: Dynamic

    @cached_property
    def code(self) -> str:
        """Fingerprint of the modules that compute it."""
        return step_code("dynamic", self.run.body.module, *self.run.head.modules)

    @cached_property
    def path(self) -> str:
        """`<path of the run>/dynamic-<id>`; the id says what the result depends on."""
        facts = {"run": self.run.run_id, "settings": dataclasses.asdict(self.settings), "code": self.code}
        return f"{self.run.path}/dynamic-{digest(facts)[:12]}"
