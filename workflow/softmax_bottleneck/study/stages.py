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
from softmax_bottleneck.study.runs import Head, Run, Schedule, digest

# The longest chunk of finetuning is bptt plus this in the AWD-LSTM's code; that of mixtures keeps what training has.
LENGTH_DELTA = 10
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
    def of(cls, head: Head, schedule: Schedule, finetune: Mapping[str, Any], dynamic: Mapping[str, Any]) -> Stages:
        """From the head and schedule of training, what is changed for finetuning, and settings of dynamic evaluation.

        Finetuning averages from the first update and is as training in all else, unless the study says otherwise.
        """
        delta = schedule.max_length_delta if head.is_mixture else LENGTH_DELTA
        usual = {"optimizer": "asgd", "max_length_delta": delta}
        return cls(dataclasses.replace(schedule, **{**usual, **finetune}), Dynamic(**dynamic))

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
