"""The runs of one corpus as rules read them.

A corpus that is sampled from a known distribution has one more model, TRUTH: this distribution. Its metrics are those
that `measure` writes about it (`law_test_ppl`, `law_rank_press`, ...).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import pandas as pd

from softmax_bottleneck.records.records import Records
from softmax_bottleneck.study import Study

TRUTH = "law"  # the name of the true distribution in records, and the prefix of its metrics
SYNTHETIC = "synthetic"  # the dataset of claims that need no corpus


def matches(name: str, patterns: str) -> bool:
    """Return True if a name matches one of the shell patterns (`|` separates them)."""
    return any(fnmatchcase(name, pattern) for pattern in patterns.split("|"))


@dataclass(frozen=True, eq=False)
class CorpusData:
    """The records of one corpus, or of SYNTHETIC, and their study if it is known."""

    records: Records
    dataset: str
    study: Study | None = None

    @cached_property
    def planned(self) -> Mapping[tuple[str, str], list[dict[Any, Any]]]:
        """The states of planned runs by (model, stage); the stage of training is empty."""
        states: dict[tuple[str, str], list[dict[Any, Any]]] = {}
        every = pd.concat([self.records.states.assign(stage=""), self.records.stages])
        for row in every[every["dataset"] == self.dataset].to_dict("records"):
            states.setdefault((row["model"], row["stage"]), []).append(row)
        return states

    @cached_property
    def truth(self) -> Mapping[str, float]:
        """The metrics of the true distribution; empty if it is not known."""
        rows = self.records.rows
        own = rows[(rows["dataset"] == self.dataset) & rows["metric"].str.startswith(f"{TRUTH}_")]
        return {name.removeprefix(f"{TRUTH}_"): value for name, value in zip(own["metric"], own["value"], strict=True)}

    def matching(self, patterns: str, stage: str = "") -> list[str]:
        """Return the planned models that match one of the shell patterns (`|` separates them), sorted by name."""
        if patterns == TRUTH:
            return [TRUTH] * bool(self.truth)
        models = sorted({model for model, planned_stage in self.planned if planned_stage == stage})
        return [model for model in models if matches(model, patterns)]

    def learned(self, patterns: str) -> list[str]:
        """Return the matching models whose runs are all better than a unigram model, without TRUTH."""
        unlearned = {model for dataset, model, _ in self.records.unlearned if dataset == self.dataset}
        return [model for model in self.matching(patterns) if model not in {TRUTH, *unlearned}]

    def values(self, model: str, metric: str, stage: str = "") -> dict[int, float]:
        """Return the values of finished runs by seed; TRUTH has no seeds and repeats its value three times."""
        if model == TRUTH:
            return dict.fromkeys((1, 2, 3), self.truth[metric]) if metric in self.truth else {}
        return self.records.values(self.dataset, model, metric, stage)

    def mean(self, model: str, metric: str, stage: str = "") -> float:
        """Return the mean over runs, or nan without any."""
        values = list(self.values(model, metric, stage).values())
        return math.fsum(values) / len(values) if values else math.nan

    def label(self, model: str) -> str:
        """Return a model's name in tables; a pattern is returned as it is."""
        states = self.planned.get((model, ""), [])
        return str(states[0]["label"]) if states else "the true distribution" if model == TRUTH else model

    def averaged_epochs(self, model: str) -> list[float]:
        """Return the number of epochs over which the tested weights of each run are averaged."""
        best, switch = (self.values(model, metric) for metric in ("best_epoch", "switch_epoch"))
        return [max(0.0, epoch - switch[seed]) if seed in switch else 0.0 for seed, epoch in best.items()]

    def late_falls(self, model: str) -> list[float]:
        """Return the relative fall of validation perplexity in the last eighth of the epochs of each run with a log."""
        logs = [self.records.curve(str(row.get("path", ""))) for row in self.planned.get((model, ""), [])]
        curves = [[epoch["valid_ppl"] for epoch in log] for log in logs if len(log) > 1]
        return [1 - ppls[-1] / ppls[-1 - math.ceil(len(ppls) / 8)] for ppls in curves]

    def planned_epochs(self, models: Iterable[str]) -> set[float]:
        """Return the distinct numbers of epochs planned for some models."""
        epochs = {float(row["planned_epochs"]) for model in models for row in self.planned[model, ""]}
        return {number for number in epochs if not math.isnan(number)}


def differing_settings(study: Study, dataset: str, models: Iterable[str]) -> set[str]:
    """Return the settings of body and schedule in which the runs of some models on a corpus differ."""
    chosen = [run for run in study.runs if run.dataset == dataset and run.model in set(models)]
    settings = [asdict(run.body) | asdict(run.schedule) for run in chosen]
    return {key for setting in settings for key in setting if setting[key] != settings[0][key]}
