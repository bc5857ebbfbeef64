"""What the rules of the claims see: the runs of one corpus, and numbers of them with resamples of their seeds.

Where a corpus was sampled from a known law, the law itself stands among the models under the name LAW: what `measure`
found of it (`law_test_ppl`, `law_rank_press`, ...) is what a run would have.

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
        """(model, stage) -> states of its planned runs; the stage of training is empty."""
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for frame in (self.records.states.assign(stage=""), self.records.stages):
            for row in frame[frame["dataset"] == self.dataset].to_dict("records"):
                found.setdefault((str(row["model"]), str(row["stage"])), []).append({str(k): v for k, v in row.items()})
        return found

    @cached_property
    def law(self) -> Mapping[str, float]:
        """Numbers of the law the corpus was sampled from, by metric; empty where it is not known."""
        rows = self.records.rows
        own = rows[(rows["dataset"] == self.dataset) & rows["metric"].str.startswith(f"{LAW}_")]
        return {name.removeprefix(f"{LAW}_"): value for name, value in zip(own["metric"], own["value"], strict=True)}

    def matching(self, patterns: str, stage: str = "") -> list[str]:
        """Planned models that fit one of the shell patterns, which `|` separates, in alphabetical order."""
        if patterns == LAW:
            return [LAW] * bool(self.law)
        models = sorted({model for model, planned_stage in self.planned if planned_stage == stage})
        return [model for model in models if any(fnmatchcase(model, pattern) for pattern in patterns.split("|"))]

    def with_runs(self, patterns: str, *metrics: str, stage: str = "") -> list[str]:
        """`matching` models with a run that has every metric."""
        return [m for m in self.matching(patterns) if all(self.runs(m, metric, stage) for metric in metrics)]

    def learned(self, patterns: str) -> list[str]:
        """`matching` without models of which a run learned no more than frequencies: no points of a trend."""
        poor = {model for dataset, model, _ in self.records.unlearned if dataset == self.dataset}
        return [model for model in self.matching(patterns) if model not in poor and model != LAW]

    def runs(self, model: str, metric: str, stage: str = "") -> dict[int, float]:
        """Values by seed of the runs that finished and are sound; of the law, which has no seeds, one value thrice.

        Of STOPPED_TOO those of validation perplexity, with diverged runs where they were stopped.
        """
        if model == LAW:
            return dict.fromkeys((1, 2, 3), self.law[metric]) if metric in self.law else {}
        if metric == STOPPED_TOO:
            return self.records.values(self.dataset, model, VALID_PPL, stage) | self.records.stopped(
                self.dataset, model
            )
        return self.records.values(self.dataset, model, metric, stage)

    def mean(self, model: str, metric: str, stage: str = "") -> float:
        """Mean over runs; nan without any."""
        values = list(self.runs(model, metric, stage).values())
        return math.fsum(values) / len(values) if values else math.nan

    def label(self, model: str) -> str:
        """A model's name as tables print it; of a pattern, the pattern."""
        states = self.planned.get((model, ""), [])
        return str(states[0]["label"]) if states else "the law" if model == LAW else model

    def averaged_epochs(self, model: str) -> list[float]:
        """Of every run, the number of epochs over which its tested weights are averaged."""
        best, switch = (self.runs(model, metric) for metric in ("best_epoch", "switch_epoch"))
        return [max(0.0, epoch - switch[seed]) if seed in switch else 0.0 for seed, epoch in best.items()]

    def late_falls(self, model: str) -> list[float]:
        """Relative fall of validation perplexity over the last eighth of the epochs, of every run with an epoch log."""
        logs = [self.records.curve(str(row.get("path", ""))) for row in self.planned.get((model, ""), [])]
        curves = [[epoch["valid_ppl"] for epoch in log] for log in logs if len(log) > 1]
        return [1 - ppls[-1] / ppls[-1 - math.ceil(len(ppls) / 8)] for ppls in curves]

    def planned_epochs(self, models: Iterable[str]) -> set[float]:
        """Epochs that the runs of some models are planned for."""
        found = {float(row["planned_epochs"]) for model in models for row in self.planned[model, ""]}
        return {epochs for epochs in found if not math.isnan(epochs)}


def varied(study: Study, dataset: str, models: Iterable[str]) -> set[str]:
    """Settings of body and schedule in which the runs of some models on a corpus differ."""
    chosen = [run for run in study.runs if run.dataset == dataset and run.model in set(models)]
    settings = [asdict(run.body) | asdict(run.schedule) for run in chosen]
    return {key for one in settings for key in one if one[key] != settings[0][key]}


@lru_cache(maxsize=8)
def fits_of(view: View, key: str) -> pd.DataFrame:
    """One line per fit to laws whose condition has a key (`r` or `alpha`): model, seed, conditions, metrics.

    They are those of the first such entry under the study's `fits`: two may fit one head to one law differently.
    """
    rows = view.records.synthetic
    rows = rows[rows["condition"].str.contains(rf"(?:^|;){key}=")]
    if view.study is not None:
        first = next((name for name in view.study.fits if name in set(rows["table"])), "")
        rows = rows[rows["table"] == first]
    return wide(rows)


@dataclass(frozen=True)
class Sample:
    """Units that stand for many like them: their numbers [N, K], and the name of what they are drawn from."""

    name: str
    values_NK: Float64

    @property
    def resampled_BNK(self) -> Float64:
        """The units as they are, then RESAMPLES draws of as many with replacement."""
        return self.values_NK[_picks(self.name, len(self.values_NK))]


@lru_cache(maxsize=4096)
def _picks(name: str, n: int) -> NDArray[np.intp]:
    """Which units each resample takes; the same for all numbers of one name, so that runs keep theirs together."""
    rng = np.random.default_rng(derive(0, "resamples", name))
    return np.concatenate([np.arange(n)[None], rng.integers(max(n, 1), size=(RESAMPLES, n))])
