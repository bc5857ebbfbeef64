"""What the YAML of a study may say, and how one study extends another."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import SHARED
from softmax_bottleneck.study import kinds
from softmax_bottleneck.study.experiments import SeedChoice
from softmax_bottleneck.study.fits import FitPlan
from softmax_bottleneck.study.models import ModelEntry
from softmax_bottleneck.study.reading import load_yaml
from softmax_bottleneck.study.runs import BodyPart, SchedulePart
from softmax_bottleneck.study.stages import DynamicPart
from softmax_bottleneck.study.validation import did_you_mean


@kinds.declared
class When:
    """Where a layer of settings applies.

    Attributes:
        dataset: a dataset, or a list; every one when absent.
        model: a model or grid, or a list; every one when absent.
    """

    dataset: kinds.SomeOrOne[kinds.Name] | None = None
    model: kinds.SomeOrOne[kinds.Name] | None = None

    def __post_init__(self) -> None:
        if self.dataset is None and self.model is None:
            raise ValueError("name a dataset or a model, or leave `when` out")

    def holds(self, dataset: str, models: Collection[str]) -> bool:
        """Whether it is true of a dataset and a model, given with all it is like."""
        here = self.dataset is None or dataset in self.dataset
        return here and (self.model is None or any(model in models for model in self.model))


@kinds.declared
class Layer:
    """Settings that come on top of those of the layers before.

    Attributes:
        when: the datasets and models it applies to; everywhere when absent.
        body: the network below the head.
        head: options of the head (see the head's own file); a layer for several heads may name what only some have.
        schedule: how it is trained.
        finetune: what of the schedule is another when a trained run is finetuned, for experiments with that stage.
        dynamic: dynamic evaluation, for experiments with that stage.
        author_seed: the seed of the published single run, trained before the study's seeds.
    """

    when: When | None = None
    body: BodyPart = kinds.EMPTY
    head: kinds.Options = kinds.EMPTY
    schedule: SchedulePart = kinds.EMPTY
    finetune: SchedulePart = kinds.EMPTY
    dynamic: DynamicPart = kinds.EMPTY
    author_seed: kinds.Seed | None = None


@kinds.declared
class Limits:
    """What there is where runs are made; a study that needs more is refused before its first job.

    Attributes:
        memory_gb: memory where runs are trained and measured; this machine's when absent.
        disk_gb: disk for all that is not done yet; what is free here when absent.
    """

    memory_gb: Annotated[kinds.Number, Field(gt=0, le=10**6)] | None = None
    disk_gb: Annotated[kinds.Number, Field(gt=0, le=10**9)] | None = None


@kinds.declared
class Shown:
    """How a study shows an experiment, where not as its file says.

    Attributes:
        models: a list, or `all` of this study but its variants (those with `like`, `grid` or `seeds`).
        datasets: corpora to show.
        seeds: `all`, `author`, or `random`: all but the authors' own.
        needs: why this study cannot make it; shown in its place, and nothing is trained for it.
        options: options of the experiment itself (see its file).
    """

    models: kinds.WordOrSome[Literal["all"], kinds.Name] | None = None
    datasets: kinds.Some[kinds.Name] | None = None
    seeds: SeedChoice | None = None
    needs: kinds.Line | None = None
    options: kinds.Options = kinds.EMPTY


@kinds.declared
class StudyFile:
    """A study's YAML, with all that it extends.

    Attributes:
        study: short name; results go to results/<study>/.
        title: one line for the report's head.
        description: what it is for, in a few sentences; printed in the report.
        datasets: corpora to train on; each is a file datasets/<name>.yaml beside the study or in config/.
        seeds: one training run per model, dataset and seed.
        mirror: folder with copies of the corpora, tried before any download; also `make reproduce MIRROR=folder`.
        device: `auto` (a GPU when there is one), `cpu`, or `cuda` (an error where there is none).
        threads: CPU threads of one training job; results are the same bits for the same number.
        limits: what there is where runs are made; a study that needs more is refused before its first job.
        replicas_per_job: seeds of one model that one training job trains at a time; they share its GPU (or have
            `threads` cores each), and each gives the same bits as alone.
        mixed_jobs: runs of different models may share a job of several, as to fill a node's GPUs.
        max_wall: longest time a training job goes on (`4h`, `90m`); then it saves, stops with exit code 75, and the
            next attempt goes on. A SLURM job's own time limit counts besides.
        time_margin: how long before the end of its SLURM job a training job stops itself; 3m when absent, or a quarter
            of what is left when that is less.
        deterministic: the same bits on the same machine, or a refusal; false allows faster GPU kernels.
        graphs: on a GPU, updates are recorded once for each length of a chunk and replayed (CUDA graphs), which gives
            the same bits; false makes every call.
        settings: layers of settings, applied in order.
        fits: output heads on free context vectors, fitted to laws that are known.
        models: what is trained: labels, as in the published tables where there is one, and their heads.
        experiments: tables and figures to make; each is a file experiments/<id>.yaml beside the study or in config/.
    """

    study: kinds.Name
    title: kinds.Line
    description: str = ""
    datasets: kinds.Some[kinds.Name]
    seeds: kinds.Some[kinds.Seed]
    mirror: str | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Annotated[kinds.Integer, Field(ge=1, le=256)] = 1
    limits: Limits = Limits()
    replicas_per_job: Annotated[kinds.Integer, Field(ge=1, le=10)] = 1
    mixed_jobs: kinds.Flag = False
    max_wall: kinds.Duration | None = None
    time_margin: kinds.Duration | None = None
    deterministic: kinds.Flag = True
    graphs: kinds.Flag = True
    settings: Annotated[tuple[Layer, ...], Field(min_length=1)]
    fits: Mapping[kinds.Name, FitPlan] = kinds.EMPTY
    models: Annotated[Mapping[kinds.Name, ModelEntry], Field(min_length=1)]
    experiments: Annotated[Mapping[kinds.Name, Shown | None], Field(min_length=1)]

    def __post_init__(self) -> None:
        if self.study.lower() in SHARED:
            raise ValueError(f"study: {self.study!r} is the name of a folder of results/; choose another")
        if self.max_wall and self.time_margin and kinds.seconds(self.time_margin) >= kinds.seconds(self.max_wall):
            raise ValueError(f"time_margin: {self.time_margin} leaves nothing of max_wall, {self.max_wall}")


def read_values(file: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A study's keys, on top of those of the study it extends.

    Its settings come after those, its models and fits change single keys of theirs (null takes one away), all else
    replaces.

    Raises:
        UserError: no such file, or studies that extend each other.
    """
    values = load_yaml(file)
    if "extends" not in values:
        return values
    name = values.pop("extends")
    if not isinstance(name, str) or not name.isprintable() or not name:
        raise UserError(f"{file}: extends: {name!r:.60} is not the path of a study file")
    base_file = file.parent / name
    if base_file.resolve() in (*above, file.resolve()):
        raise UserError(f"{file}: extends: {name} extends this file in turn")
    base = read_values(base_file, (*above, file.resolve()))
    merged = base | values
    if isinstance(base.get("settings"), list) and isinstance(values.get("settings"), list):
        merged["settings"] = base["settings"] + values["settings"]
    for key in ("models", "fits"):
        if isinstance(base.get(key), dict) and isinstance(values.get(key), dict):
            merged[key] = _merged(base[key], values[key], f"{file}: {key}")
    return merged


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The entries under `models` or `fits`: single keys of an entry replace those of the base, null takes it away."""
    merged = dict(base)
    for name, entry in changes.items():
        if entry is None and name not in merged:
            raise UserError(f"{where}.{name}: there is none to take away{did_you_mean(name, merged)}")
        both = isinstance(entry, dict) and isinstance(merged.get(name), dict)
        merged[name] = {**merged[name], **entry} if both else entry
    return {name: entry for name, entry in merged.items() if entry is not None}
