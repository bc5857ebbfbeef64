"""A study: its file, what it extends, and the runs and experiments that follow."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from softmax_bottleneck.heads import registry as heads
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import ROOT, SHARED, Store
from softmax_bottleneck.study.datasets import Dataset, load_dataset
from softmax_bottleneck.study.experiments import Experiment, load_experiment
from softmax_bottleneck.study.fits import Unit, fit_labels, units_of
from softmax_bottleneck.study.models import Model, Search, head_entry, models_of
from softmax_bottleneck.study.runs import Body, Head, Run, Schedule, canonical_json, digest
from softmax_bottleneck.study.schemas import did_you_mean, load_yaml, schema, validate, with_defaults
from softmax_bottleneck.study.stages import Evaluation, Stages

VARIANT_KEYS = {"like", "grid", "seeds"}  # of a model that is a variant of others, not one of the study's own
PARTS = ("body", "head", "schedule", "finetune", "dynamic")  # of a settings layer
STUDY_VARIABLE, SET_VARIABLE = "SOFTMAX_BOTTLENECK_STUDY", "SOFTMAX_BOTTLENECK_SET"


@dataclass(frozen=True)
class Study:
    """A configuration file: which experiments, which models on which datasets, at which scale."""

    name: str
    title: str
    description: str
    file: Path
    store: Store
    mirror: Path | None
    datasets: Mapping[str, Dataset]
    labels: Mapping[str, str]  # model -> name in tables
    experiments: tuple[Experiment, ...]
    runs: tuple[Run, ...]
    searches: Mapping[str, Search] = field(default_factory=dict)  # grid entries by name
    author_seeds: Mapping[tuple[str, str], int] = field(default_factory=dict)  # (dataset, model) -> published seed
    limits: Mapping[str, float] = field(default_factory=dict)  # memory_gb, disk_gb
    stages: Mapping[tuple[str, str], Stages] = field(default_factory=dict)  # (dataset, model) -> what follows training
    replicas_per_job: int = 1
    max_wall: str | None = None
    time_margin: str | None = None

    fits: Mapping[str, tuple[Unit, ...]] = field(default_factory=dict)  # entry of `fits` -> its units
    fit_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # entry -> model -> name in figures

    def runs_of(self, experiment: Experiment) -> tuple[Run, ...]:
        """The training runs an experiment needs, one per label, corpus and seed."""
        models, datasets = set(experiment.models), set(experiment.datasets)
        shown = [run for run in self.runs if run.model in models and run.dataset in datasets]
        if experiment.seeds == "author":
            first: dict[tuple[str, str], Run] = {}
            for run in shown:
                first.setdefault((run.dataset, run.model), run)  # the authors' seed is planned first
            return tuple(first.values())
        if experiment.seeds == "random":
            return tuple(run for run in shown if self.author_seeds.get((run.dataset, run.model)) != run.seed)
        return tuple(shown)

    @cached_property
    def digest(self) -> str:
        """Hash of everything the study says: a changed word makes its tables and report again."""
        experiments = [dataclasses.asdict(experiment) for experiment in self.experiments]
        runs = [f"{run.model} {run.path}" for run in self.shown]
        runs += [run.path for run in self.finetuned] + [one.path for one in self.evaluations]
        labels = {**self.labels, **{name: dict(models) for name, models in self.fit_labels.items()}}
        fits = [unit.path for unit in self.units]
        return digest([self.name, self.title, self.description, labels, experiments, runs, fits])[:12]

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Every unit of fits that some experiment shows, once."""
        named = dict.fromkeys(e.fits for e in self.experiments if e.fits in self.fits and not e.is_void)
        return tuple(unit for name in named for unit in self.fits[name])

    def unit(self, path: str) -> Unit:
        """The unit of fits with this path (UserError when the configuration or the code has changed since)."""
        for unit in self.units:
            if unit.path == path:
                return unit
        raise UserError(f"{self.file}: no fits {path!r}; the configuration or the code has changed: see `plan`")

    @cached_property
    def shown(self) -> tuple[Run, ...]:
        """Every run some experiment shows, under each label it has there."""
        keys = {(r.dataset, r.model, r.seed) for experiment in self.experiments for r in self.runs_of(experiment)}
        return tuple(run for run in self.runs if (run.dataset, run.model, run.seed) in keys)

    @cached_property
    def needed(self) -> tuple[Run, ...]:
        """Every run to be trained for some experiment, once."""
        paths = {run.path for run in self.shown}
        return tuple(run for run in self.runs if not run.twin and run.path in paths)

    def last_stage(self, run: Run, stages: Iterable[str]) -> Run:
        """The run whose weights are those of a trained one after its finetuning, if that is among the stages."""
        return self.stages[run.dataset, run.model].finetuned(run) if "finetune" in stages else run

    @cached_property
    def shown_finetuned(self) -> tuple[Run, ...]:
        """What the runs are after finetuning that some experiment shows so, under each label they have there."""
        experiments = [one for one in self.experiments if "finetune" in one.stages]
        shown = [self.last_stage(run, one.stages) for one in experiments for run in self.runs_of(one)]
        return tuple({(run.model, run.path): run for run in shown}.values())

    @cached_property
    def shown_evaluations(self) -> tuple[Evaluation, ...]:
        """Every dynamic evaluation that some experiment shows, under each label that its run has there."""
        experiments = [one for one in self.experiments if "dynamic" in one.stages]
        shown = [(self.last_stage(run, one.stages)) for one in experiments for run in self.runs_of(one)]
        found = [Evaluation(run, self.stages[run.dataset, run.model].dynamic) for run in shown]
        return tuple({(one.run.model, one.path): one for one in found}.values())

    @cached_property
    def finetuned(self) -> tuple[Run, ...]:
        """Every run to be finetuned, once: what it is afterwards."""
        return tuple({run.path: run for run in reversed(self.shown_finetuned)}.values())[::-1]

    @cached_property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """Every dynamic evaluation to be made, once."""
        return tuple({one.path: one for one in reversed(self.shown_evaluations)}.values())[::-1]

    def run(self, path: str) -> Run:
        """The run with this path (UserError when the configuration or the code has changed since)."""
        return _found(path, (*self.runs, *self.finetuned), self.file)

    def dynamic_evaluation(self, path: str) -> Evaluation:
        """The dynamic evaluation with this path (UserError as for a run)."""
        return _found(path, self.evaluations, self.file)


Placed = TypeVar("Placed", Run, Evaluation)


def _found(path: str, known: Iterable[Placed], file: Path) -> Placed:
    for one in known:
        if one.path == path:
            return one
    raise UserError(f"{file}: no run {path!r}; the configuration or the code has changed: see `plan`")


def _study_values(file: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A study's keys, on top of those of the study it extends.

    Its settings come after those, its models and fits change single keys of theirs (null takes one away), all else
    replaces.
    """
    values = load_yaml(file)
    if "extends" not in values:
        return values
    name = values.pop("extends")
    if not isinstance(name, str) or not name:
        raise UserError(f"{file}: extends: {name!r} is not the path of a study file")
    base_file = file.parent / name
    if base_file.resolve() in (*above, file.resolve()):
        raise UserError(f"{file}: extends: {name} extends this file in turn")
    base = _study_values(base_file, (*above, file.resolve()))
    layers = [layer for study in (base, values) for layer in study.get("settings") or []]
    parts = {key: _merged(key, base, values, file) for key in ("models", "fits")}
    return base | values | {"settings": layers} | parts


def _merged(key: str, base: Mapping[str, Any], values: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The entries under `models` or `fits`: single keys of an entry replace those of the base, null takes it away."""
    merged = dict(base.get(key) or {})
    for name, entry in (values.get(key) or {}).items():
        if entry is None and name not in merged:
            raise UserError(f"{file}: {key}.{name}: there is none to take away{did_you_mean(name, list(merged))}")
        merged[name] = None if entry is None else {**(merged.get(name) or {}), **entry}
    return {name: entry for name, entry in merged.items() if entry is not None}


def load_study(file: Path, overrides: Mapping[str, Any] | None = None, store: Store | None = None) -> Study:
    """A study from its file; `overrides` are top-level keys given on the command line (mirror, device, threads).

    Overrides that are a whole study, as another workflow may pass them, stand alone: then `file` only says where they
    are from, and beside it lie datasets and experiments of their own.

    Raises:
        UserError: naming file, key, value and what is allowed.
    """
    given = dict(overrides or {})
    values = given if given.keys() >= set(schema("study")["required"]) else _study_values(file) | given
    where = str(file)
    validate(values, schema("study"), where)
    near = file.resolve().parent
    datasets = {name: load_dataset(name, near) for name in values["datasets"]}
    for name, dataset in datasets.items():
        if dataset.kind == "benchmarks":
            raise UserError(f"{where}: datasets: {name!r} holds benchmarks, not text to train on")
    families = models_of(values, where)
    _refuse_shared_places(values, families, where)
    fits = units_of(values, where)
    own = [name for name, entry in values["models"].items() if not VARIANT_KEYS & entry.keys()]
    _refuse_unknown_names(values, families, where)
    planned = [
        one
        for dataset in datasets.values()
        for name, members in families.items()
        if dataset.name in values["models"][name].get("datasets", datasets)
        for model in members
        for one in _runs(values, dataset, model, where)
    ]
    chosen = values["experiments"].items()
    return Study(
        name=values["study"],
        title=values["title"],
        description=values.get("description", ""),
        file=file,
        store=store or Store(),
        mirror=Path(values["mirror"]) if values.get("mirror") else None,
        limits=values.get("limits", {}),
        datasets=datasets,
        labels={model.name: model.label for members in families.values() for model in members},
        experiments=tuple(
            _with_fits(_experiment(name, given or {}, datasets, families, own, near, where), fits)
            for name, given in chosen
        ),
        runs=_with_twins(one.run for one in planned),
        searches={
            name: _search(entry["grid"], families[name]) for name, entry in values["models"].items() if "grid" in entry
        },
        author_seeds={one.key: one.author_seed for one in planned if one.author_seed is not None},
        fits=fits,
        fit_labels=fit_labels(values.get("fits", {})),
        stages={one.key: one.stages for one in planned},
        replicas_per_job=values.get("replicas_per_job", 1),
        max_wall=values.get("max_wall"),
        time_margin=values.get("time_margin"),
    )


class _Planned(NamedTuple):
    """A run, the authors' seed of its model, and what may follow its training."""

    run: Run
    author_seed: int | None
    stages: Stages

    @property
    def key(self) -> tuple[str, str]:
        return self.run.dataset, self.run.model


def _search(grid: Mapping[str, list[Any]], members: list[Model]) -> Search:
    axes = {key: tuple(axis) for key, axis in grid.items()}
    return Search(axes, math.prod(map(len, axes.values())), tuple(member.name for member in members))


def _with_twins(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Runs with the same run_id under another label are trained once, under the first."""
    first: dict[tuple[str, str], str] = {}
    found = []
    for run in runs:
        model = first.setdefault((run.dataset, run.run_id), run.model)
        found.append(run if model == run.model else dataclasses.replace(run, twin=model))
    return tuple(found)


def _refuse_shared_places(values: Mapping[str, Any], families: Mapping[str, list[Model]], where: str) -> None:
    """No two things may write to one folder, also where names do not differ by capitals alone."""
    if values["study"].lower() in SHARED:
        raise UserError(f"{where}: study: {values['study']!r} is the name of a folder of results/; choose another")
    for kind, names in (
        ("datasets", values["datasets"]),
        ("models", [model.name for members in families.values() for model in members]),
        ("experiments", values["experiments"]),
    ):
        first: dict[str, str] = {}
        for name in names:
            other = first.setdefault(name.lower(), name)
            if other != name:
                raise UserError(f"{where}: {kind}: {other!r} and {name!r} would share a folder; choose another name")


def _refuse_unknown_names(values: Mapping[str, Any], families: Mapping[str, list[Model]], where: str) -> None:
    members = [model.name for members in families.values() for model in members]
    known = {"dataset": values["datasets"], "model": list(dict.fromkeys([*families, *members]))}
    for index, layer in enumerate(values["settings"]):
        for kind, allowed in known.items():
            for name in _as_list(layer.get("when", {}).get(kind, [])):
                _refuse_unknown(name, allowed, f"{where}: settings.{index}.when.{kind}")
    for model, entry in values["models"].items():
        for name in entry.get("datasets", ()):
            _refuse_unknown(name, known["dataset"], f"{where}: models.{model}.datasets")
        if "max_runs" in entry and "grid" not in entry:
            raise UserError(f"{where}: models.{model}.max_runs: it has no grid to choose from")


def _refuse_unknown(name: str, allowed: list[str], where: str) -> None:
    if name not in allowed:
        raise UserError(f"{where}: unknown {name!r}{did_you_mean(name, allowed)}")


def _as_list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _runs(values: Mapping[str, Any], dataset: Dataset, model: Model, where: str) -> list[_Planned]:
    """The runs of one model on one dataset with the settings layers applied."""
    entry = model.entry
    merged: dict[str, Any] = {part: {} for part in PARTS} | {"author_seed": None}
    for layer in values["settings"]:
        if _applies(layer.get("when", {}), dataset.name, model.kin):
            _merge(merged, layer)
    _merge(merged, {key: entry[key] for key in ("body", "schedule") if key in entry})
    options = head_entry(entry)
    label = f"{where}: models.{model.name}"
    head = _head(options.pop("name"), merged["head"] | options, label)
    defs = schema("study")["$defs"]
    body = with_defaults(merged["body"], defs["body"]["properties"], f"{label}: body")
    body["context_size"] = body["context_size"] or body["embedding_size"]
    schedule = with_defaults(merged["schedule"], defs["schedule"]["properties"], f"{label}: schedule")
    dynamic = with_defaults(merged["dynamic"], defs["dynamic"]["properties"], f"{label}: dynamic")
    stages = Stages.of(schedule, merged["finetune"], dynamic)
    execution = {key: values[key] for key in ("threads", "device", "deterministic") if key in values}
    author = merged["author_seed"]
    asked = entry.get("seeds", "all")
    given = asked if isinstance(asked, list) else (author, *values["seeds"])
    seeds = list(dict.fromkeys(seed for seed in given if seed is not None))
    chosen = seeds[:1] if asked == "author" else seeds
    plan = (dataset.name, model.name, head, Body(**body), Schedule(**schedule))
    return [_Planned(Run(*plan, seed, dataset.identity, **execution), author, stages) for seed in chosen]


def _applies(when: Mapping[str, Any], dataset: str, models: frozenset[str]) -> bool:
    return dataset in _as_list(when.get("dataset", dataset)) and (
        "model" not in when or not models.isdisjoint(_as_list(when["model"]))
    )


def _merge(merged: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for part in PARTS:
        merged[part] = merged[part] | layer.get(part, {})
    merged["author_seed"] = layer.get("author_seed", merged["author_seed"])


def _head(name: str, options: Mapping[str, Any], where: str) -> Head:
    try:
        complete = heads.options(name, options)
        if "pointwise" in complete:
            heads.options(complete["pointwise"], complete.get("pointwise_options", {}))
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return Head(name, complete)


def _experiment(
    name: str,
    given: Mapping[str, Any],
    datasets: Mapping[str, Dataset],
    families: Mapping[str, list[Model]],
    own: list[str],
    near: Path,
    where: str,
) -> Experiment:
    """An experiment as this study shows it: its own models and datasets unless the study says otherwise.

    `own` are the study's models that are no variants of others: what `models: all` stands for.
    """
    experiment = load_experiment(name, near)
    label = f"{where}: experiments.{name}"
    options = {**experiment.options, **given.get("options", {})}
    experiment = dataclasses.replace(experiment, options=options, seeds=given.get("seeds", experiment.seeds))
    if "needs" in given:
        return dataclasses.replace(experiment, models=(), datasets=(), needs=given["needs"])
    asked = given.get("models", [entry for entry in experiment.models if _family(entry, families) is not None])
    entries = own if asked == "all" else asked
    models = _expanded(entries, families, f"{label}.models")
    chosen, needs = _corpora(experiment, datasets, near) if "datasets" not in given else (given["datasets"], "")
    for item in chosen:
        if item not in datasets:
            hint = did_you_mean(item, list(datasets))
            raise UserError(f"{label}.datasets: {item!r} is not in this study{hint}")
    if experiment.models and not entries and chosen:
        needs = f"This study has none of its models ({', '.join(experiment.models)})."
    return dataclasses.replace(experiment, models=models, entries=tuple(entries), datasets=tuple(chosen), needs=needs)


def _with_fits(experiment: Experiment, fits: Mapping[str, tuple[Unit, ...]]) -> Experiment:
    """The experiment, saying what it needs where it shows fits that this study does not have."""
    if not experiment.fits or experiment.fits in fits or experiment.needs:
        return experiment
    return dataclasses.replace(experiment, needs=f"This study has no `{experiment.fits}` under `fits`.")


def _family(name: str, families: Mapping[str, list[Model]]) -> list[str] | None:
    """Labels behind a name: a grid's members, or the model itself; None for an unknown name."""
    if name in families:
        return [model.name for model in families[name]]
    return [name] if any(model.name == name for members in families.values() for model in members) else None


def _expanded(names: list[str], families: Mapping[str, list[Model]], where: str) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for name in names:
        labels = _family(name, families)
        if labels is None:
            raise UserError(f"{where}: {name!r} is not in this study{did_you_mean(name, list(families))}")
        found |= dict.fromkeys(labels)
    return tuple(found)


def _corpora(experiment: Experiment, datasets: Mapping[str, Dataset], near: Path) -> tuple[list[str], str]:
    """The study's corpora that an experiment shows: its own, else what stands for them, else a text of one's own."""
    found: dict[str, None] = {}
    absent = []
    own = [name for name, dataset in datasets.items() if not dataset.corpus]
    for name in experiment.datasets:
        wanted = load_dataset(name, near)
        like = [other for other, dataset in datasets.items() if wanted.corpus and dataset.corpus == wanted.corpus]
        found |= dict.fromkeys([name] if name in datasets else like)
        absent += [] if name in datasets or like or own else [wanted.title]
    if not experiment.datasets:
        return list(datasets), ""
    needs = f"Not in this study: {' and '.join(absent)}, or a corpus that stands for it." if absent else ""
    return list(found) or own, needs


def export(file: Path, overrides: Mapping[str, Any], package_folder: Path) -> None:
    """Set the environment by which steps, started anywhere, use this interpreter's packages and load this study."""
    os.environ[STUDY_VARIABLE] = file.resolve().as_posix()
    os.environ[SET_VARIABLE] = canonical_json(dict(overrides))
    for variable, folder in (("PYTHONPATH", package_folder), ("PATH", Path(sys.executable).parent)):
        os.environ[variable] = os.pathsep.join([str(folder), *filter(None, [os.environ.get(variable)])])


def study_from_environment() -> tuple[Path, dict[str, Any]]:
    """The study file and overrides that the workflow set, else the demonstration's."""
    file = os.environ.get(STUDY_VARIABLE) or ROOT / "config" / "demo.yaml"
    return Path(file), json.loads(os.environ.get(SET_VARIABLE, "{}"))
