"""What may follow training, as frozen values: finetuning, and dynamic evaluation of a trained or finetuned run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from softmax_bottleneck.store.fingerprint import step_code
from softmax_bottleneck.study import kinds
from softmax_bottleneck.study.runs import Run, Schedule, digest

# What finetuning is in both published code bases; all else is as in training unless the study says otherwise.
FINETUNE = {"optimizer": "asgd", "max_length_delta": 10}
Rate = Annotated[kinds.Number, Field(ge=0, le=1000)]


@kinds.declared
class Dynamic:
    """How the weights follow a text while it is scored.

    Attributes:
        segment: tokens between two updates (bptt).
        statistics_batch_size: streams of the training text when gradient statistics are gathered (batch_size).
        scaling: `mean`, root of the mean of squared gradients (Krause's code); or `sum`, root of their sum (Yang's).
        learning_rates: step sizes tried on the validation text, each with every decay (lr).
        decays: rates of the return to the trained weights that are tried (lamb).
        epsilon: added to the gradient statistics that updates are divided by (epsilon).
        tune_tokens: tokens of the validation text on which the settings are tried; all when null.
    """

    segment: kinds.Width = 5
    statistics_batch_size: kinds.Width = 100
    scaling: Literal["mean", "sum"] = "mean"
    learning_rates: Annotated[kinds.Some[Rate], Field(max_length=100)] = (0.00005,)
    decays: Annotated[kinds.Some[Annotated[kinds.Number, Field(ge=0, le=1)]], Field(max_length=100)] = (0.002,)
    epsilon: Annotated[kinds.Number, Field(gt=0, le=1000)] = 0.00002
    tune_tokens: Annotated[kinds.Integer, Field(ge=2, le=2**31 - 1)] | None = None


DynamicPart = Annotated[kinds.Options, kinds.PartOf(Dynamic)]


@dataclass(frozen=True)
class Stages:
    """Settings of what follows the training of a model on a corpus."""

    finetune: Schedule
    dynamic: Dynamic

    @classmethod
    def of(cls, schedule: Schedule, finetune: Mapping[str, Any], dynamic: Mapping[str, Any]) -> Stages:
        """From the schedule of training, what of it is changed for finetuning, and settings of dynamic evaluation."""
        return cls(dataclasses.replace(schedule, **{**FINETUNE, **finetune}), Dynamic(**dynamic))

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
