"""Made-up finished studies of trained heads, with the settings from which contrasts are made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from softmax_bottleneck.heads import registry
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.study import Body, Head, Run, Schedule

BODY = {"hidden_size": 128, "layers": 2, **dict.fromkeys(
    ("dropout_input", "dropout_hidden", "dropout_output", "dropout_embedding", "dropout_weight"), 0.0)}  # fmt: skip
SCHEDULE = {"optimizer": "et-asgd", "batch_size": 20, "bptt": 35, "clip": 0.25, "weight_decay": 0.0,
            "activation_penalty": 0.0, "temporal_penalty": 0.0}  # fmt: skip
SPREAD = (1.0, 1.004, 0.996)  # of three seeds


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A model with the test perplexities of its runs, which have the seeds 1, 2, ... unless `seeds` says otherwise.

    `valid` defaults to the test perplexities. A test perplexity of inf is that of a diverged run.
    """

    ppl: Sequence[float]
    head: str = "softmax"
    options: Mapping[str, Any] = field(default_factory=dict)
    rate: float = 20.0
    valid: Sequence[float] = ()
    seeds: Sequence[int] = ()
    width: int = 32
    inner: int = 128
    epochs: int = 10
    metrics: Mapping[str, float] = field(default_factory=dict)


def near(level: float) -> list[float]:
    """Return the perplexities of three seeds close to a level."""
    return [level * factor for factor in SPREAD]


def study(
    name: str = "one", dataset: str = "made-up", machine: str = "CPU", is_synthetic: bool = False, **models: Trained
) -> FinishedStudy:
    """Return a finished study with these models; in their names, `_` stands for `-`."""
    rows: list[dict[str, Any]] = []
    states: list[dict[str, Any]] = []
    settings: dict[tuple[str, str], Run] = {}
    for key, model in models.items():
        label = key.replace("_", "-")
        head = Head(model.head, registry.options(model.head, dict(model.options)))
        body = Body(embedding_size=model.width, context_size=model.width,
                    **BODY | {"hidden_size": model.inner})  # fmt: skip
        schedule = Schedule(learning_rate=model.rate, epochs=model.epochs, **SCHEDULE)
        settings[dataset, label] = Run(dataset, label, head, body, schedule, 1, "identity")
        seeds = model.seeds or range(1, len(model.ppl) + 1)
        for seed, ppl, valid in zip(seeds, model.ppl, model.valid or model.ppl, strict=True):
            run_id = f"{name}-{label}-{seed}-{machine}"
            state = "diverged" if ppl == float("inf") else "ok"
            states.append({"dataset": dataset, "model": label, "label": label, "seed": seed, "state": state,
                           "hardware": machine, "run_id": run_id})  # fmt: skip
            values = {"parameters": 1e6, "sec_per_epoch": 10.0, "rank_press": 34.0, **model.metrics}
            values |= {"test_ppl": ppl, "valid_ppl": valid}
            rows += [
                {"dataset": dataset, "model": label, "condition": "", "metric": metric, "value": value, "seed": seed,
                 "run_id": run_id, "table": ""}
                for metric, value in values.items() if state == "ok"
            ]  # fmt: skip
    if is_synthetic:
        rows.append({"dataset": dataset, "model": "", "condition": "", "metric": "law_test_ppl", "value": 9.0,
                     "seed": 1, "run_id": "", "table": ""})  # fmt: skip
    frame = pd.DataFrame(states)
    records = Records(pd.DataFrame(rows), frame, frame.iloc[:0].assign(stage=""))
    return FinishedStudy(name, name, name, machine, {dataset: dataset.title()}, [], records, settings=settings)
