"""The runs of one corpus as rules read them, and resamples of their seeds.

If a corpus was sampled from a known distribution, this distribution is one of the models, named LAW. Its metrics are
those that `measure` wrote about it (`law_test_ppl`, `law_rank_press`, ...).

Suffixes: B resamples (the first is the runs as they are), N units (runs, models, heads, benchmarks), K numbers of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from softmax_bottleneck.records.metrics import VALID_PPL
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report.fits import wide
from softmax_bottleneck.store.seeds import derive
from softmax_bottleneck.study import Study

Float64 = NDArray[np.float64]

LAW = "law"
STOPPED_TOO = "valid_ppl_stopped_too"
SYNTHETIC = "synthetic"  # the place of what is judged without a corpus
OWN_SOURCES = ("known-truth", "gradient")  # of conclusions that are no paper's: about fits to known laws
RESAMPLES = 1000


@dataclass(frozen=True, eq=False)
class View:
    """The records of one corpus, or of SYNTHETIC, and the study they are of, where it is known."""

    records: Records
    dataset: str
    study: Study | None = None

    @cached_property
    def planned(self) -> Mapping[tuple[str, str], list[dict[str, Any]]]:
        """The states of planned runs by (model, stage); the stage of training is empty."""
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for frame in (self.records.states.assign(stage=""), self.records.stages):
            for row in frame[frame["dataset"] == self.dataset].to_dict("records"):
                found.setdefault((str(row["model"]), str(row["stage"])), []).append({str(k): v for k, v in row.items()})
        return found

    @cached_property
    def law(self) -> Mapping[str, float]:
        """The metrics of the true distribution; empty if it is not known."""
        rows = self.records.rows
        own = rows[(rows["dataset"] == self.dataset) & rows["metric"].str.startswith(f"{LAW}_")]
        return {name.removeprefix(f"{LAW}_"): value for name, value in zip(own["metric"], own["value"], strict=True)}

    def matching(self, patterns: str, stage: str = "") -> list[str]:
        """Return the planned models that match one of the shell patterns (`|` separates them), sorted by name."""
        if patterns == LAW:
            return [LAW] * bool(self.law)
        models = sorted({model for model, planned_stage in self.planned if planned_stage == stage})
        return [model for model in models if any(fnmatchcase(model, pattern) for pattern in patterns.split("|"))]

    def with_runs(self, patterns: str, *metrics: str, stage: str = "") -> list[str]:
        """Return the matching models with a run that has every metric."""
        return [m for m in self.matching(patterns) if all(self.runs(m, metric, stage) for metric in metrics)]

    def learned(self, patterns: str) -> list[str]:
        """Return the matching models without those of which a run is no better than a unigram model."""
        poor = {model for dataset, model, _ in self.records.unlearned if dataset == self.dataset}
        return [model for model in self.matching(patterns) if model not in poor and model != LAW]

    def runs(self, model: str, metric: str, stage: str = "") -> dict[int, float]:
        """Return the values of finished, sound runs by seed; LAW has no seeds and repeats its value three times.

        STOPPED_TOO is the validation perplexity, with diverged runs at the value where they were stopped.
        """
        if model == LAW:
            return dict.fromkeys((1, 2, 3), self.law[metric]) if metric in self.law else {}
        if metric == STOPPED_TOO:
            return self.records.values(self.dataset, model, VALID_PPL, stage) | self.records.stopped(
                self.dataset, model
            )
        return self.records.values(self.dataset, model, metric, stage)

    def mean(self, model: str, metric: str, stage: str = "") -> float:
        """Return the mean over runs; nan without any."""
        values = list(self.runs(model, metric, stage).values())
        return math.fsum(values) / len(values) if values else math.nan

    def label(self, model: str) -> str:
        """Return a model's name as tables print it; a pattern is returned as it is."""
        states = self.planned.get((model, ""), [])
        return str(states[0]["label"]) if states else "the law" if model == LAW else model

    def averaged_epochs(self, model: str) -> list[float]:
        """Return the number of epochs over which the tested weights of each run are averaged."""
        best, switch = (self.runs(model, metric) for metric in ("best_epoch", "switch_epoch"))
        return [max(0.0, epoch - switch[seed]) if seed in switch else 0.0 for seed, epoch in best.items()]

    def late_falls(self, model: str) -> list[float]:
        """Return the relative fall of validation perplexity in the last eighth of the epochs of each run with a log."""
        logs = [self.records.curve(str(row.get("path", ""))) for row in self.planned.get((model, ""), [])]
        curves = [[epoch["valid_ppl"] for epoch in log] for log in logs if len(log) > 1]
        return [1 - ppls[-1] / ppls[-1 - math.ceil(len(ppls) / 8)] for ppls in curves]

    def planned_epochs(self, models: Iterable[str]) -> set[float]:
        """Return the planned epochs of the runs of some models."""
        found = {float(row["planned_epochs"]) for model in models for row in self.planned[model, ""]}
        return {epochs for epochs in found if not math.isnan(epochs)}


def varied(study: Study, dataset: str, models: Iterable[str]) -> set[str]:
    """Return the settings of body and schedule in which the runs of some models on a corpus differ."""
    chosen = [run for run in study.runs if run.dataset == dataset and run.model in set(models)]
    settings = [asdict(run.body) | asdict(run.schedule) for run in chosen]
    return {key for one in settings for key in one if one[key] != settings[0][key]}


@lru_cache(maxsize=8)
def fits_of(view: View, key: str) -> pd.DataFrame:
    """Return one line per fit whose condition has a key (`r` or `alpha`): model, seed, conditions, metrics.

    Only the first such entry of the study's `fits` counts: two entries may fit one head with different settings.
    """
    rows = view.records.synthetic
    rows = rows[rows["condition"].str.contains(rf"(?:^|;){key}=")]
    if view.study is not None:
        first = next((name for name in view.study.fits if name in set(rows["table"])), "")
        rows = rows[rows["table"] == first]
    return wide(rows)


@dataclass(frozen=True)
class Sample:
    """A sample of units: their numbers [N, K], and a name that selects its resamples."""

    name: str
    values_NK: Float64

    @property
    def resampled_BNK(self) -> Float64:
        """The units as they are, then RESAMPLES bootstrap samples of them."""
        return self.values_NK[_picks(self.name, len(self.values_NK))]


@lru_cache(maxsize=4096)
def _picks(name: str, n: int) -> NDArray[np.intp]:
    """Return the units of each resample; samples of one name share them, so that a run keeps its numbers together."""
    rng = np.random.default_rng(derive(0, "resamples", name))
    return np.concatenate([np.arange(n)[None], rng.integers(max(n, 1), size=(RESAMPLES, n))])
