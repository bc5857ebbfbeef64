"""A study: the runs, fits and experiments that follow from its file."""

import dataclasses
import itertools
import json
import math
import os
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from softmax_bottleneck.heads import registry
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import ROOT, Store
from softmax_bottleneck.store.schema import did_you_mean, parse_yaml, read, section
from softmax_bottleneck.study import study_file
from softmax_bottleneck.study.datasets import Dataset, load_dataset
from softmax_bottleneck.study.fits import FitPlan, Unit, units_of
from softmax_bottleneck.study.runs import Body, Evaluation, Head, Run, Schedule, Stages, canonical_json, digest
from softmax_bottleneck.study.study_file import Experiment, PlannedExperiment, StudyFile, Tuning
from softmax_bottleneck.study.truths import Truth, truth_of
from softmax_bottleneck.study.tuning import Point, Round, Trial, TunedModel

PARTS = ("body", "head", "schedule", "finetune", "dynamic")  # of a layer of settings
UNCHANGED = ("title", "description", "replicas_per_job", "device", "max_wall", "time_margin", "tuning", "contrasts")
STUDY_VARIABLE, SET_VARIABLE = "SOFTMAX_BOTTLENECK_STUDY", "SOFTMAX_BOTTLENECK_SET"
Placed = TypeVar("Placed", Run, Evaluation, Unit, Round, Truth)


@dataclass(frozen=True)
class Study:
    """A study with all runs, fits, later stages (finetuning, dynamic evaluation) and experiments that its file implies.

    An experiment is a table or figure of the study's report. A model that no experiment includes is planned but neither
    trained nor measured.

    Attributes:
        file: the study's YAML.
        store: the folders of results and data.
        head_files: the files of heads that the study lists.
        mirror: folder with copies of the corpora (None: files are downloaded).
        labels: model -> label in tables and figures.
        experiments: the study's experiments, restricted to models and datasets of this study.
        runs: one training run per model, dataset and seed, also of models that no experiment includes. If the runs of
            two models are equal, the run of the later model is a duplicate (`Run.duplicate_of`).
        searches: name of a grid under `models` -> the search over this grid.
        author_seeds: (dataset, model) -> seed that a paper's authors state for their own run (`Layer.author_seed`).
        stages: (dataset, model) -> settings of finetuning and dynamic evaluation.
        replicas_per_job: largest number of runs that one training job trains at the same time.
        device: device of the computations: `auto`, `cpu` or `cuda` (see `StudyFile`).
        max_wall: time limit of a job, such as `4h`, or None.
        time_margin: how long before the end of its SLURM job a step stops (None: the default, see `StudyFile`).
        fits: name under `fits` -> its units; a unit is the job that does all fits to the distributions of one setting
            and one seed.
        fit_labels: name under `fits` -> {model: label in figures}.
        absent_truths: {`<fits>.truths.<name>`: path of the saved model that this source needs and that is missing}.
        tuning: the search for the settings of every model; None if the study has none.
        tuned: the models whose settings a search chooses, one entry per corpus. As long as a choice is not made, `runs`
            has no runs of the model.
        contrasts: the comparisons of models that the study names beforehand; None if it names none.
        overrides: values of top-level keys that replace those of the file.
    """

    name: str
    title: str
    description: str
    file: Path
    store: Store
    mirror: Path | None
    datasets: Mapping[str, Dataset]
    labels: Mapping[str, str]
    experiments: tuple[PlannedExperiment, ...]
    runs: tuple[Run, ...]
    searches: Mapping[str, study_file.Search] = field(default_factory=dict)
    author_seeds: Mapping[tuple[str, str], int] = field(default_factory=dict)
    stages: Mapping[tuple[str, str], Stages] = field(default_factory=dict)
    replicas_per_job: int = 1
    device: str = "auto"
    max_wall: str | None = None
    time_margin: str | None = None
    fits: Mapping[str, tuple[Unit, ...]] = field(default_factory=dict)
    fit_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    absent_truths: Mapping[str, str] = field(default_factory=dict)
    tuning: Tuning | None = None
    tuned: tuple[TunedModel, ...] = ()
    contrasts: study_file.Contrasts | None = None
    head_files: tuple[Path, ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_of_own_texts(self) -> bool:
        """True if all datasets are a user's own texts: no published corpora, no proxies, no synthetic languages."""
        return bool(self.datasets) and not any(one.corpus or one.language for one in self.datasets.values())

    @cached_property
    def digest(self) -> str:
        """The first 12 hex digits of a hash of everything that determines the report, except the results.

        The hash covers the experiments, their runs, later stages and fits. It also covers the datasets, the
        declarations of the heads, and the study's name, title, description and labels. A new digest makes the workflow
        recompute tables and report.
        """
        shown = [[dataclasses.asdict(e), [[run.model, run.path] for run in self.runs_of(e)]] for e in self.experiments]
        made = [part.path for parts in (self.finetuned, self.evaluations, self.units, self.searched) for part in parts]
        datasets = {name: dataclasses.asdict(dataset) | {"folder": None} for name, dataset in self.datasets.items()}
        words = [self.name, self.title, self.description, self.labels, self.fit_labels]
        named = [dataclasses.asdict(part) for part in (self.tuning, self.contrasts) if part]
        fitted = [head for unit in self.units for fit in unit.fits for head in (fit.head, fit.equal_to) if head]
        heads = [*(run.head for run in (*self.runs, *self.searched)), *fitted]
        names = sorted({name for head in heads for name in head.names})
        named += [vars(registry.declaration(name)) | {"options": ""} for name in names]
        return digest([*words, shown, made, datasets, *named])[:12]

    def updated(self, with_choices: bool = True) -> "Study":
        """Return the study as its file declares it, and if `with_choices` the choices that searches made by now.

        Without choices, it is the study as planned before any search has ended: the same whatever the searches choose.
        """
        return load_study(self.file, self.overrides, self.store, with_choices) if self.tuned else self

    def dataset(self, name: str) -> Dataset:
        """Return a dataset of the study, or any other one (datasets/<name>.yaml near the study's file or in config).

        Raises:
            UserError: no such file exists, or it is not valid.
        """
        return self.datasets.get(name) or load_dataset(name, self.file.resolve().parent)

    # --- what experiments include
    def runs_of(self, experiment: PlannedExperiment) -> tuple[Run, ...]:
        """Return the training runs that an experiment needs: one per model, corpus and seed.

        `Experiment.seeds` says which seeds are taken. Duplicates (`Run.duplicate_of`) are included.
        """
        models, datasets = set(experiment.models), set(experiment.datasets)
        shown = [run for run in self.runs if run.model in models and run.dataset in datasets]
        if experiment.seeds == "author":
            by_model = itertools.groupby(shown, key=lambda run: (run.dataset, run.model))
            return tuple(next(runs) for _, runs in by_model)  # the authors' seed is planned first
        if experiment.seeds == "random":
            return tuple(run for run in shown if self.author_seeds.get((run.dataset, run.model)) != run.seed)
        return tuple(shown)

    def read_by_synthetic(self, experiment: PlannedExperiment) -> tuple[Run, ...]:
        """Return the runs that the step `synthetic` reads for an experiment: all for `top-m`, else the first."""
        return self.runs_of(experiment)[: None if experiment.options["synthetic"] == "top-m" else 1]

    @cached_property
    def shown(self) -> tuple[Run, ...]:
        """The training runs that at least one experiment of the study includes.

        A run that several models share is listed once per model.
        """
        keys = {(r.dataset, r.model, r.seed) for experiment in self.experiments for r in self.runs_of(experiment)}
        return tuple(run for run in self.runs if (run.dataset, run.model, run.seed) in keys)

    def last_stage(self, run: Run, stages: Collection[str]) -> Run:
        """Return the finetuned run that starts from the trained `run` if "finetune" is in `stages`, else `run` itself.

        `stages` is the value of `Experiment.stages`: "finetune", "dynamic", both, or none.
        """
        if "finetune" not in stages:
            return run
        return dataclasses.replace(run, schedule=self.stages[run.dataset, run.model].finetune, start=run.path)

    @cached_property
    def shown_finetuned(self) -> tuple[Run, ...]:
        """The finetuned runs that at least one experiment of the study includes.

        A run that several models share is listed once per model.
        """
        finetuning = [e for e in self.experiments if "finetune" in e.stages]
        shown = [self.last_stage(run, e.stages) for e in finetuning for run in self.runs_of(e)]
        return tuple({(run.model, run.path): run for run in shown}.values())

    @cached_property
    def shown_evaluations(self) -> tuple[Evaluation, ...]:
        """The dynamic evaluations that at least one experiment of the study includes.

        If several models share the evaluated run, the evaluation is listed once per model.
        """
        evaluating = [e for e in self.experiments if "dynamic" in e.stages]
        runs = [self.last_stage(run, e.stages) for e in evaluating for run in self.runs_of(e)]
        shown = [Evaluation(run, self.stages[run.dataset, run.model].dynamic) for run in runs]
        return tuple({(evaluation.run.model, evaluation.path): evaluation for evaluation in shown}.values())

    # --- what to compute, without repetitions
    @cached_property
    def needed(self) -> tuple[Run, ...]:
        """The runs to train: those of searches, then those that an experiment includes or fits need, each once.

        A run that several models share is listed once, under the model that comes first in the study's YAML.
        """
        paths = {run.path for run in self.shown} | {truth.run for truth in self.truths}
        return (*self.searched, *(run for run in self.runs if not run.duplicate_of and run.path in paths))

    @cached_property
    def shown_tuned(self) -> tuple[TunedModel, ...]:
        """The tuned models that at least one experiment includes, one per corpus."""
        keys = {key for e in self.experiments for key in itertools.product(e.datasets, e.models)}
        return tuple(one for one in self.tuned if one.key in keys)

    @cached_property
    def searched(self) -> tuple[Run, ...]:
        """The runs of all searches. They are trained but not measured, and belong to no experiment."""
        return tuple(run for one in self.shown_tuned for run in one.runs)

    @cached_property
    def awaited(self) -> tuple[Run, ...]:
        """The runs of the confirmation whose settings are not chosen yet (see `TunedModel.expected`)."""
        return tuple(run for one in self.shown_tuned if not one.choice for run in one.expected)

    @property
    def unchosen(self) -> list[Path]:
        """The files of the choices that are not made yet, one per unfinished search."""
        return [self.choice_file(one.rounds[-1].path) for one in self.shown_tuned if not one.choice]

    @property
    def rounds(self) -> Mapping[str, Round]:
        """{path: round} of every round of a search that is planned so far."""
        return {one.path: one for tuned in self.shown_tuned for one in tuned.rounds}

    def choice_file(self, path: str) -> Path:
        """Return the file of the choice that ends a round of a search; `path` is `Round.path`."""
        return self.store.study_folder(self.name) / "choices" / f"{path}.json"

    @cached_property
    def finetuned(self) -> tuple[Run, ...]:
        """The finetuned runs to compute: those that at least one experiment includes.

        A run that several models share is listed once.
        """
        return _first_by_path(self.shown_finetuned)

    @cached_property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """The dynamic evaluations to compute: those that at least one experiment includes.

        An evaluation that several models share is listed once.
        """
        return _first_by_path(self.shown_evaluations)

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """The units to compute; a unit is the job that does all fits to the distributions of one setting and one seed.

        An entry under `fits` of the study's YAML is computed if an experiment shows its results (`Experiment.fits`).
        """
        named = dict.fromkeys(e.fits for e in self.experiments if e.fits in self.fits and not e.is_void)
        return tuple(unit for name in named for unit in self.fits[name])

    @property
    def truths(self) -> tuple[Truth, ...]:
        """The natural distributions to compute, each once."""
        return _first_by_path(tuple(unit.truth for unit in self.units if unit.truth))

    def truth(self, path: str) -> Truth:
        """Return the natural distributions whose folder below results/fits/truths is `path`: `<name>/<seed>-<id>`.

        Raises:
            UserError: no planned distributions have this path.
        """
        return self._at(path, self.truths, "truth")

    def run(self, path: str) -> Run:
        """Return the trained or finetuned run whose folder below results/runs is `path`.

        The path of a trained run is `<dataset>/<model>/<seed>-<run_id>`. The path of a finetuned run is
        `<path of the trained run>/finetune-<run_id>`.

        Raises:
            UserError: no planned run has this path, for example because the configuration or the code has changed.
        """
        return self._at(path, (*self.runs, *self.searched, *self.finetuned), "run")

    def dynamic_evaluation(self, path: str) -> Evaluation:
        """Return the dynamic evaluation with this path, which is `<path of the run>/dynamic-<12 hex digits>`.

        Raises:
            UserError: no planned evaluation has this path.
        """
        return self._at(path, self.evaluations, "run")

    def unit(self, path: str) -> Unit:
        """Return the unit of fits whose folder below results/fits is `path`: `<plan>/<name>/<seed>-<unit_id>`.

        `<plan>` is the name of an entry under `fits`. `<name>` names the setting of the distributions that the unit
        fits, such as `rank32` (`Unit.name`).

        Raises:
            UserError: no planned unit has this path.
        """
        return self._at(path, self.units, "fits")

    def round(self, path: str) -> Round:
        """Return the round of a search with this path, which is `<dataset>/<model>-<12 hex digits>`.

        Raises:
            UserError: no planned round has this path.
        """
        return self._at(path, self.rounds.values(), "round")

    def _at(self, path: str, planned: Iterable[Placed], what: str) -> Placed:
        for part in planned:
            if part.path == path:
                return part
        reason = "perhaps the configuration or the code has changed"
        raise UserError(f"{self.file}: no {what} {path!r}; {reason}. `plan --json` lists the valid paths")


def _first_by_path(parts: tuple[Placed, ...]) -> tuple[Placed, ...]:
    return tuple({part.path: part for part in reversed(parts)}.values())[::-1]


# --- from its file --------------------------------------------------------------------------------------------------
def load_study(
    file: Path, overrides: Mapping[str, Any] | None = None, store: Store | None = None, with_choices: bool = True
) -> Study:
    """Return the study that a file declares.

    Args:
        file: the study's YAML. Its folder is searched for datasets and experiments.
        overrides: values of top-level keys, such as `{"device": "cpu"}`, which replace those of the file. If
            `overrides` has every required key of a study (`study_file.REQUIRED`), it is the whole study, and the file
            is not read.
        store: the folders of results and data (default: those in the folder `results`).
        with_choices: False to plan every search as if it had not ended.

    Raises:
        UserError: the file cannot be read, a key is unknown or missing, a value is not allowed, or one model is
            evaluated dynamically on one corpus both with and without finetuning.
    """
    given = dict(overrides or {})
    declared, store = _read_declaration(file, given), store or Store()
    head_files = tuple((file.parent / path).resolve() for path in declared.heads)
    for path in head_files:
        registry.add(path)
    plan = _Planner(declared, file, store.study_folder(declared.study) / "choices" if with_choices else None)
    planned: dict[tuple[str, str], PlannedModel] = {}
    tuned: list[TunedModel] = []
    for dataset, (name, models) in itertools.product(plan.datasets.values(), plan.families.items()):
        entry = declared.models[name]
        for model in models if dataset.name in (entry.datasets or plan.datasets) else ():
            planned[dataset.name, model.name] = plan.model(dataset, model)
            if declared.tuning and not entry.grid:
                search, planned[dataset.name, model.name] = plan.search(declared.tuning, dataset, model)
                tuned.append(search)
    searches = {name: (entry.grid, list(plan.members[name])) for name, entry in declared.models.items() if entry.grid}
    for search in tuned:
        grid = declared.tuning.grid if declared.tuning else {}
        searches.setdefault(search.key[1], (grid, []))[1].extend(run.model for run in search.runs)
    study = Study(
        name=declared.study,
        file=file,
        store=store,
        mirror=Path(declared.mirror).expanduser() if declared.mirror else None,
        datasets=plan.datasets,
        labels=plan.labels,
        experiments=tuple(itertools.starmap(plan.experiment, declared.experiments.items())),
        runs=_with_duplicates(run for model in planned.values() for run in model.runs),
        searches={
            name: study_file.Search(grid, math.prod(map(len, grid.values())), tuple(dict.fromkeys(trials)))
            for name, (grid, trials) in searches.items()
        },
        author_seeds={key: model.author_seed for key, model in planned.items() if model.author_seed is not None},
        stages={key: model.stages for key, model in planned.items()},
        fits={name: plan.units(name, fits, planned) for name, fits in declared.fits.items()},
        fit_labels={name: fits.labels for name, fits in declared.fits.items()},
        absent_truths=_absent_truths(declared),
        tuned=tuple(tuned),
        head_files=head_files,
        overrides=given,
        **{key: getattr(declared, key) for key in UNCHANGED},
    )
    _check_evaluations(study)
    return study


def _absent_truths(declared: StudyFile) -> dict[str, str]:
    """Return {place of a source of natural distributions in the study's file: its saved model, which is missing}."""
    return {
        f"{name}.truths.{truth}": str(source.model)
        for name, fits in declared.fits.items()
        for truth, source in fits.truths.items()
        if not source.is_available
    }


def _read_declaration(file: Path, given: dict[str, Any]) -> StudyFile:
    """Return the declarations of a study's file with the overrides `given`; an error names the place of the value."""
    is_complete = given.keys() >= study_file.REQUIRED
    try:
        return read(StudyFile, given if is_complete else study_file.read_values(file) | given, str(file))
    except UserError as error:
        place = str(error).removeprefix(f"{file}: ")
        if is_complete or not any(place.startswith((f"{key}:", f"{key}.", f"unknown key {key!r}")) for key in given):
            raise
        raise UserError(f"--set or --config: {place}") from None


def _check_evaluations(study: Study) -> None:
    """Raise UserError if one model is evaluated dynamically on one corpus both with and without finetuning.

    In the records, the numbers of one of the two would replace those of the other.
    """
    first: dict[tuple[str, str], PlannedExperiment] = {}
    for experiment in study.experiments:
        for run in study.runs_of(experiment) if "dynamic" in experiment.stages else ():
            other = first.setdefault((run.dataset, run.model), experiment)
            if ("finetune" in experiment.stages) != ("finetune" in other.stages):
                problem = f"{run.model!r} on {run.dataset} is evaluated dynamically here and by experiments.{other.id}"
                copy = f"{{head: {run.head.name}, like: {run.model}}}"
                advice = f"For one of the two, add a copy `{copy}` under `models`"
                where = f"{study.file}: experiments.{experiment.id}"
                raise UserError(f"{where}: {problem}, but finetuned by only one of them. {advice}")


def _check_names(declared: StudyFile, models: Collection[str], where: str) -> None:
    """Raise UserError if a model entry or a layer of settings names an unknown dataset or model."""
    for name, entry in declared.models.items():
        _check_known(entry.datasets, declared.datasets, f"{where}: models.{name}.datasets")
    for index, layer in enumerate(declared.settings):
        _check_known(layer.when.dataset, declared.datasets, f"{where}: settings.{index}.when.dataset")
        _check_known(layer.when.model, models, f"{where}: settings.{index}.when.model")
    for index, contrast in enumerate(declared.contrasts.family if declared.contrasts else ()):
        _check_known((contrast.model, contrast.against), models, f"{where}: contrasts.family.{index}")


def _check_known(names: Iterable[str] | None, known: Collection[str], place: str) -> None:
    for name in names or ():
        if name not in known:
            raise UserError(f"{place}: {name!r} is not in this study{did_you_mean(name, known)}")


@dataclass(frozen=True, kw_only=True)
class PlannedModel:
    """The plan of a model on a corpus.

    Attributes:
        runs: its training runs, one per seed.
        author_seed: the seed of the authors' published run, or None.
        stages: the settings of finetuning and dynamic evaluation, which may follow.
    """

    runs: list[Run]
    author_seed: int | None
    stages: Stages


@section
class _Settings:
    """The settings of a run's body and of its training (`schedule`), with all layers of settings applied."""

    body: Body
    schedule: Schedule


def _with_duplicates(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Return the runs; if an earlier model has an equal run, set the run's `duplicate_of` to the name of that model.

    Two runs are equal if they have the same corpus and the same run_id. Equal runs are trained once, under the name of
    the earlier model.
    """
    first: dict[tuple[str, str], str] = {}
    all_runs = []
    for run in runs:
        model = first.setdefault((run.dataset, run.run_id), run.model)
        all_runs.append(run if model == run.model else dataclasses.replace(run, duplicate_of=model))
    return tuple(all_runs)


class _Planner:
    """The rules by which the runs, searches, fits and experiments of a study follow from its file.

    Args:
        declared: the study's YAML.
        file: the YAML file. Its folder is searched first for datasets and experiments.
        choices: folder of the choices made by now, which say what follows the first round of a search; None to
            ignore them.

    Attributes:
        datasets: the study's datasets by name.
        families: {name of an entry under `models`: its models}.
        members: {name: the names of the models that it stands for}. A model stands for itself, such as
            `{"mos": ["mos"]}`. A grid stands for all its models.
        labels: {model: label in tables and figures}. The method `search` adds the points of searches.

    Raises:
        UserError: a dataset is unknown or holds benchmarks, or a model or a layer of settings is not valid.
    """

    def __init__(self, declared: StudyFile, file: Path, choices: Path | None) -> None:
        self.declared, self.where, self.near, self.choices = declared, str(file), file.resolve().parent, choices
        self.datasets = {name: load_dataset(name, self.near) for name in declared.datasets}
        for name, dataset in self.datasets.items():
            if dataset.kind == "benchmarks":
                raise UserError(f"{self.where}: datasets: {name!r} holds benchmarks, not text to train on")
        self.families = study_file.models_of(declared.models, declared.datasets, self.where)
        models = [model for family in self.families.values() for model in family]
        self.members = {model.name: [model.name] for model in models}
        self.members |= {entry: [model.name for model in family] for entry, family in self.families.items()}
        self.labels = {model.name: model.label for model in models}
        self.execution = {key: getattr(declared, key) for key in ("threads", "device", "deterministic")}
        _check_names(declared, self.members, self.where)

    def model(self, dataset: Dataset, model: study_file.Model) -> PlannedModel:
        """Return the plan of a model on a dataset.

        Layers of settings are applied in order; the model's own `body` and `schedule` come last.
        """
        entry, merged, author = model.entry, {part: dict[str, Any]() for part in PARTS}, None
        for layer in (*self.declared.settings, study_file.Layer(body=entry.body, schedule=entry.schedule)):
            when = layer.when
            is_here = when.dataset is None or dataset.name in when.dataset
            if is_here and (when.model is None or model.inherits_from.intersection(when.model)):
                for part in PARTS:
                    merged[part] |= getattr(layer, part)
                author = author if layer.author_seed is None else layer.author_seed
        where, body = f"{self.where}: models.{model.name}", merged["body"]
        if body.get("context_size") is None:
            body["context_size"] = body.get("embedding_size", 1)  # an absent embedding_size is an error below
        settings = read(_Settings, {"body": body, "schedule": merged["schedule"]}, where)
        head = Head.of(merged["head"] | entry.head, where)
        choice = entry.seeds or "all"
        given = (author, *self.declared.seeds) if isinstance(choice, str) else choice
        seeds = list(dict.fromkeys(seed for seed in given if seed is not None))
        first = Run(dataset.name, model.name, head, settings.body, settings.schedule, seeds[0], dataset.identity,
                    graphs=self.declared.graphs, **self.execution)  # fmt: skip
        runs = [dataclasses.replace(first, seed=seed) for seed in (seeds[:1] if choice == "author" else seeds)]
        stages = Stages.of(head, settings.schedule, merged["finetune"], merged["dynamic"])
        if problem := stages.dynamic.unsuitable_rates:
            raise UserError(f"{where}: {problem}")
        return PlannedModel(runs=runs, author_seed=author, stages=stages)

    def units(self, name: str, fits: FitPlan, planned: Mapping[tuple[str, str], PlannedModel]) -> tuple[Unit, ...]:
        """Return the units of a plan of fits; `planned` maps (dataset, model) to the model's runs.

        Sources of natural distributions that need a missing model are left out.

        Raises:
            UserError: a head, an option, a dataset or a model is unknown, or a value is not allowed.
        """
        place = f"{self.where}: fits.{name}"
        first = {model: made.runs[0] for (_, model), made in reversed(tuple(planned.items())) if made.runs}
        truths = [
            truth_of(truth, source, self.datasets, first, f"{place}.truths.{truth}")
            for truth, source in fits.truths.items()
            if source.is_available
        ]
        return units_of(name, fits, self.execution, place, truths)

    def search(self, tuning: Tuning, dataset: Dataset, model: study_file.Model) -> tuple[TunedModel, PlannedModel]:
        """Return the search for the settings of a model on a corpus, and what follows it (see `model`).

        No run follows before the search has ended with a choice.

        Raises:
            UserError: a value of the grid is not allowed, or a seed of the search is one of the model's own.
        """
        place = f"{self.where}: models.{model.name}: tuning"

        def trial(point: Point) -> Trial:
            member = study_file.member(model, point, place)
            self.labels[member.name] = member.label
            searching = dataclasses.replace(member, entry=dataclasses.replace(member.entry, seeds=tuning.seeds))
            runs = tuple(self.model(dataset, searching).runs)
            return Trial({setting: runs[0].value(setting) for setting in point}, runs)

        points = [dict(zip(tuning.grid, values, strict=True)) for values in itertools.product(*tuning.grid.values())]
        expected = self.model(dataset, study_file.at_point(model, points[0], place)).runs
        if tuning.by == "steps" and not dataset.repeat:
            problem = f"'steps' needs a dataset of kind repeat, got {dataset.name} of kind {dataset.kind}"
            raise UserError(f"{self.where}: tuning.by: {problem}. Fix: valid_ppl")
        if shared := sorted({run.seed for run in expected}.intersection(tuning.seeds)):
            problem = f"seed {shared[0]} also trains {model.name!r} for the comparison"
            raise UserError(f"{self.where}: tuning.seeds: {problem}")
        trials, rounds, choice = list(map(trial, points)), list[Round](), None
        while not rounds or (choice and choice["following"]):
            rounds.append(Round(dataset.name, model.name, tuple(trials)))
            file = self.choices and self.choices / f"{rounds[-1].path}.json"
            choice = artefacts.read_json(file) if file and artefacts.is_sound(file) else None
            trials += map(trial, choice["following"] if choice else ())
        point = choice["chosen"] if choice else {}
        following = self.model(dataset, study_file.at_point(model, point, self.where))
        following = following if choice else dataclasses.replace(following, runs=[])
        return TunedModel(tuple(rounds), choice, tuple(expected)), following

    def experiment(self, name: str, changes: study_file.ExperimentChanges | None) -> PlannedExperiment:
        """Return an experiment restricted to the models and datasets of this study.

        If the study cannot make the whole experiment, the attribute `needs` of the result says why.

        Args:
            name: id of the experiment.
            changes: entry of the experiment in the study's file, or None. Without `models`, the models of the
                experiment that the study has are taken. Without `datasets`, the study's datasets that match the
                experiment's corpora are taken (rules in `_corpora`).

        Raises:
            UserError: the experiment is unknown, or `changes` names a model or dataset that the study lacks.
        """
        original, place = study_file.load_experiment(name, self.near), f"{self.where}: experiments.{name}"
        changes = changes or study_file.ExperimentChanges()
        if changes.models == ("all",):
            entries = [name for name, entry in self.declared.models.items() if not entry.is_variant]
        else:
            entries = list(changes.models or (name for name in original.models if name in self.members))
        datasets, needs = (list(changes.datasets), "") if changes.datasets else self._corpora(original)
        _check_known(entries, self.members, f"{place}.models")
        _check_known(datasets, self.datasets, f"{place}.datasets")
        options = {**original.options, **changes.options}
        fits = self.declared.fits.get(str(options.get("fits")))
        lacks_fits = "fits" in options and (fits is None or (original.source == "gradient" and not fits.gradient))
        if changes.needs:
            entries, datasets, needs = [], [], changes.needs
        elif original.models and not entries and datasets:
            needs = f"This study has none of its models ({', '.join(original.models)})."
        elif lacks_fits and not needs:
            needs = f"This study has no `{options['fits']}` under `fits`" + (" with `gradient: true`." if fits else ".")
        experiment = PlannedExperiment.of(
            original,
            options=options,
            seeds=changes.seeds or original.seeds,
            models=tuple(dict.fromkeys(model for entry in entries for model in self.members[entry])),
            datasets=tuple(datasets),
            entries=tuple(entries),
            needs=needs,
        )
        return self._with_absent(experiment, original)

    def _with_absent(self, shown: PlannedExperiment, original: Experiment) -> PlannedExperiment:
        """Return the experiment `shown` with its attributes `absent` and `absent_datasets` filled in.

        These attributes list the models and corpora of the published table that `shown` lacks. An experiment without
        published material is returned unchanged. If all corpora of the study are a user's own texts, no published
        number is comparable. Then only the attribute `published` is changed: it becomes empty.

        Args:
            shown: the experiment with the models and datasets of this study.
            original: the experiment as its file declares it.
        """
        if not shown.quotes:
            return shown
        if not any(dataset.corpus or dataset.language for dataset in self.datasets.values()):
            return dataclasses.replace(shown, published=())  # no published number is comparable with a user's own texts
        rows = original.published_rows or original.models  # a grid's members have published rows of their own
        absent = [name for name in rows if name not in (*shown.models, *shown.entries)]
        proxies = {self.datasets[name].corpus for name in shown.datasets}
        corpora = {name: load_dataset(name, self.near).corpus for name in original.datasets}
        far = [name for name, corpus in corpora.items() if name not in shown.datasets and corpus not in proxies]
        return dataclasses.replace(shown, absent=tuple(absent), absent_datasets=tuple(far))

    def _corpora(self, experiment: Experiment) -> tuple[list[str], str]:
        """Return (names, sentence): the study's datasets for an experiment, and a sentence on missing corpora.

        A dataset is called unpublished here if its attribute `corpus` is empty: it is neither a published corpus nor a
        proxy for one. This includes synthetic languages without `stands_for`. The names are those of the first choice
        that applies:

        1. If the experiment names no corpora: all datasets of the study.
        2. For each corpus that the experiment names: the study's dataset of the same name or, without one, the study's
           proxies for this corpus.
        3. If there is no dataset for any of these corpora: the study's unpublished datasets.

        The sentence lists the corpora for which the study has neither the corpus itself nor a proxy. It is empty if
        there are none, or if the study has an unpublished dataset.
        """
        if not experiment.datasets:
            return list(self.datasets), ""
        own = [name for name, dataset in self.datasets.items() if not dataset.corpus]
        shown: dict[str, None] = {}
        absent = []
        for name in experiment.datasets:
            wanted = load_dataset(name, self.near)
            same = [other for other, d in self.datasets.items() if wanted.corpus and d.corpus == wanted.corpus]
            shown |= dict.fromkeys([name] if name in self.datasets else same)
            absent += [] if name in self.datasets or same or own else [wanted.title]
        needs = f"This study lacks {' and '.join(absent)}, and has no proxy corpus instead." if absent else ""
        return list(shown) or own, needs


def typed(value: Any) -> Any:
    """Return a value of Snakemake's option `--config` with numbers as numbers, also inside lists and mappings.

    Snakemake leaves every value inside a list or mapping as text: `--config 'seeds=[1,2]'` gives `["1", "2"]`.
    """
    if isinstance(value, dict):
        return {key: typed(child) for key, child in value.items()}
    if isinstance(value, list):
        return [typed(child) for child in value]
    try:
        scalar = parse_yaml(value, "--config") if isinstance(value, str) else value
    except UserError:  # text that is no YAML
        return value
    return value if isinstance(scalar, dict | list) else scalar


# --- child processes -------------------------------------------------------------------------------------------------
def export(file: Path, overrides: Mapping[str, Any], package_folder: Path) -> None:
    """Set environment variables so that child processes load the same study with the same package and Python.

    A child process gets `file` and `overrides` back from `study_from_environment`. The folder of the running Python is
    put first in PATH. CUBLAS_WORKSPACE_CONFIG is set if it is unset, for determinism.

    Args:
        file: the study's YAML.
        overrides: top-level keys that replace those of the file.
        package_folder: folder that contains the package `softmax_bottleneck`, put first in PYTHONPATH.
    """
    os.environ[STUDY_VARIABLE] = file.resolve().as_posix()
    os.environ[SET_VARIABLE] = canonical_json(dict(overrides))
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for determinism; read when cuBLAS starts
    for variable, folder in (("PYTHONPATH", package_folder), ("PATH", Path(sys.executable).parent)):
        os.environ[variable] = os.pathsep.join([str(folder), *filter(None, [os.environ.get(variable)])])


def study_from_environment() -> tuple[Path, dict[str, Any]]:
    """Return (file, overrides): the study's YAML, and {top-level key: value} that replaces the values of the YAML.

    Both are read from the environment variables that `export` sets (STUDY_VARIABLE and SET_VARIABLE). If these
    variables are not set, the file is config/demo.yaml, and there are no overrides.
    """
    file = os.environ.get(STUDY_VARIABLE) or ROOT / "config" / "demo.yaml"
    return Path(file), json.loads(os.environ.get(SET_VARIABLE, "{}"))
