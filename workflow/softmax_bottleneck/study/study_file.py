"""The YAML of a study and of its experiments: their keys, and how one study extends another."""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import SHARED
from softmax_bottleneck.study import schema
from softmax_bottleneck.study.fits import FitPlan
from softmax_bottleneck.study.models import ModelEntry
from softmax_bottleneck.study.runs import BodyPart, DynamicPart, SchedulePart

SeedChoice = Literal["all", "author", "random"]
CsvName = Annotated[str, Field(pattern=r"^[a-z0-9_]+\.csv$")]


# --- experiments ---
@pydantic.dataclasses.dataclass(frozen=True, config=schema.STRICT)
class Column:
    """A metric of a table.

    Attributes:
        metric: its name in the records and in report/published.
        label: column head, with its unit (default: as in the catalogue of metrics).
        digits: decimals printed (default: as in the catalogue).
        published: filters on the published rows: column -> regular expression.
        datasets: corpora that it is shown for; all when empty.
        stage: stage of the number (`finetuned`, `dynamic`); training when empty.
        published_as: name of the metric in report/published, if different.
        measured: false for a column of published numbers only.
    """

    metric: str
    label: str = ""
    digits: Annotated[schema.Integer, Field(ge=0, le=8)] | None = None
    published: Mapping[str, str] = schema.EMPTY
    measured: schema.Flag = True
    datasets: tuple[str, ...] = ()
    stage: Literal["", "finetuned", "dynamic"] = ""
    published_as: str = ""


@schema.section
class Experiment:
    """A table or figure. `load_study` fills in the last three attributes and replaces those that the study overrides.

    Attributes:
        id: equal to the file's name.
        source: the work it comes from, which is its chapter in the report.
        artefact: its name in the source: Table 2, Figure 7.
        title: one line above the table or figure.
        caption: what is shown and how it is computed; `{schedule.epochs}` is that of the runs shown, `{corpora}` what
            they are trained on.
        kind: table or figure.
        view: name of the view that makes cells or a plot from records.
        published: files of report/published that are joined to it.
        models: rows of the published table in its order, with grids expanded; empty if no training runs are needed.
        datasets: corpora of the published table; a study without them shows its own.
        seeds: `all`, `author` (the authors' own, or the first) or `random` (all but the authors' own).
        stages: what follows the training of its runs: finetuning, then dynamic evaluation.
        published_rows: label -> the published rows it stands for, where its name there is another: `model`, its name in
            report/published; other columns: regular expressions.
        needs: why it, or a part of it, cannot be made; empty if it can.
        columns: metrics shown, in order.
        options: what the view needs beyond this.
        entries: the models and grids before grids are expanded, also grids of which no member is trained.
        absent: rows of the published table for which the study has no model.
        absent_datasets: corpora of the published table that the study lacks, without a proxy.
    """

    id: schema.Name
    source: Literal[
        "parthiban2021",
        "kanai2018",
        "ganea2019",
        "merity2017",
        "benka2021",
        "known-truth",
        "gradient",
        "published-size",
        "plif-rank",
    ]
    artefact: str
    kind: Literal["table", "figure"]
    title: str
    caption: str = ""
    view: str
    published: tuple[CsvName, ...] = ()
    models: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    seeds: SeedChoice = "all"
    stages: schema.Unique[Literal["finetune", "dynamic"]] = ()
    published_rows: Mapping[str, Annotated[Mapping[str, str], Field(min_length=1)]] = schema.EMPTY
    needs: str = ""
    columns: tuple[Column, ...] = ()
    options: schema.Options = schema.EMPTY
    entries: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    absent_datasets: tuple[str, ...] = ()

    @property
    def is_void(self) -> bool:
        """True if this study can show no part of the experiment."""
        return bool(self.needs) and not (self.datasets and self.entries)

    @property
    def quotes(self) -> bool:
        """True if the experiment shows published numbers or words."""
        return bool(self.published) or "words" in self.options

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Endings of the files that it is rendered to: the table or figure, and its data."""
        return ("html", "csv") if self.kind == "table" else ("svg", "csv")

    @property
    def is_synthetic(self) -> bool:
        """True if its numbers come from the `synthetic` step and not from training runs."""
        return "synthetic" in self.options or bool(self.fits)

    @property
    def fits(self) -> str:
        """The entry of a study's `fits` that it shows; empty for most."""
        return str(self.options.get("fits", ""))


def load_experiment(name: str, near: Path) -> Experiment:
    """Return an experiment by id (UserError for an unknown id, bad key or value)."""
    path = schema.find_config("experiments", name, near)
    experiment = schema.read(Experiment, schema.load_yaml(path), str(path))
    if experiment.id != path.stem:
        raise UserError(f"{path}: id: {experiment.id!r} must equal the file's name {path.stem!r}")
    return experiment


# --- studies ---
@schema.section
class When:
    """The condition of a layer of settings.

    Attributes:
        dataset: a dataset or a list of them; all when absent.
        model: a model or grid, or a list of them; all when absent.
    """

    dataset: schema.OneOrMore[schema.Name] | None = None
    model: schema.OneOrMore[schema.Name] | None = None

    def holds(self, dataset: str, models: Collection[str]) -> bool:
        """Return True if it is met by a dataset and a model, given with all names that it inherits from."""
        is_here = self.dataset is None or dataset in self.dataset
        return is_here and (self.model is None or any(model in models for model in self.model))


@schema.section
class Layer:
    """Settings that override single values of the layers before.

    Attributes:
        when: the datasets and models it applies to; all when absent.
        body: the network below the head.
        head: options of the head (see the head's own file).
        schedule: how the model is trained.
        finetune: changes of the schedule when a trained run is finetuned, for experiments with that stage.
        dynamic: dynamic evaluation, for experiments with that stage.
        author_seed: the seed of the published single run, trained before the study's seeds.
    """

    when: When = When()
    body: BodyPart = schema.EMPTY
    head: schema.Options = schema.EMPTY
    schedule: SchedulePart = schema.EMPTY
    finetune: SchedulePart = schema.EMPTY
    dynamic: DynamicPart = schema.EMPTY
    author_seed: schema.Seed | None = None


@schema.section
class ExperimentChanges:
    """The changes that a study makes to an experiment.

    Attributes:
        models: a list, or `all` of this study except variants (those with `like`, `grid` or `seeds`).
        datasets: corpora to show.
        seeds: `all`, `author`, or `random`: all except the authors' own.
        needs: why this study cannot make it; the report shows the reason, and nothing is trained for it.
        options: options of the experiment itself (see its file).
    """

    models: schema.OneOrMore[schema.Name] | None = None
    datasets: schema.NonEmpty[schema.Name] | None = None
    seeds: SeedChoice | None = None
    needs: schema.Line | None = None
    options: schema.Options = schema.EMPTY


@schema.section
class StudyFile:
    """A study's YAML, with all that it extends.

    Attributes:
        study: short name; results go to results/<study>/.
        title: heading of the report.
        description: what it is for, in a few sentences; printed in the report.
        datasets: corpora to train on; each is a file datasets/<name>.yaml beside the study or in config/.
        seeds: one training run per model, dataset and seed.
        mirror: folder with copies of the corpora, used before any download; also `make reproduce MIRROR=folder`.
        device: `auto` (a GPU if there is one), `cpu`, or `cuda` (an error without one).
        threads: CPU threads of one training job; the same number gives the same bits.
        replicas_per_job: number of seeds of a model that one job trains at the same time. They share its GPU, or have
            `threads` cores each. The bits are the same as for separate jobs.
        max_wall: time limit of a training job (`4h`, `90m`). It then saves and stops with exit code 75, and the next
            attempt resumes it. A SLURM job's own time limit applies as well.
        time_margin: time before the end of its SLURM job at which a training job stops itself (default: 3m, or a
            quarter of the remaining time if that is less).
        deterministic: the same bits on the same machine, or an error; false allows faster GPU kernels.
        graphs: on a GPU, each update is captured once per chunk length and replayed (CUDA graphs) with the same bits;
            false disables graph capture.
        settings: layers of settings, applied in order.
        fits: output heads on free context vectors, fitted to known distributions.
        models: models to train: labels, as in the published tables where there is one, and their heads.
        experiments: tables and figures to make; each is a file experiments/<id>.yaml beside the study or in config/.
    """

    study: schema.Name
    title: schema.Line
    description: str = ""
    datasets: schema.NonEmpty[schema.Name]
    seeds: schema.NonEmpty[schema.Seed]
    mirror: str | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Annotated[schema.Integer, Field(ge=1, le=256)] = 1
    replicas_per_job: Annotated[schema.Integer, Field(ge=1, le=10)] = 1
    max_wall: schema.Duration | None = None
    time_margin: schema.Duration | None = None
    deterministic: schema.Flag = True
    graphs: schema.Flag = True
    settings: Annotated[tuple[Layer, ...], Field(min_length=1)]
    fits: Mapping[schema.Name, FitPlan] = schema.EMPTY
    models: Annotated[Mapping[schema.Name, ModelEntry], Field(min_length=1)]
    experiments: Annotated[Mapping[schema.Name, ExperimentChanges | None], Field(min_length=1)]

    def __post_init__(self) -> None:
        if self.study.lower() in SHARED:
            raise ValueError(f"study: {self.study!r} is the name of a folder of results/; choose another")
        if self.max_wall and self.time_margin and schema.seconds(self.time_margin) >= schema.seconds(self.max_wall):
            raise ValueError(f"time_margin: {self.time_margin} leaves nothing of max_wall, {self.max_wall}")


REQUIRED = {f.name for f in dataclasses.fields(StudyFile) if f.default is f.default_factory is dataclasses.MISSING}


def read_values(file: Path, chain: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return a study's keys on top of those of the study it extends; `chain` has the files that extend this one.

    `settings` are appended, `models` and `fits` are merged by key (null removes an entry), and other keys replace.

    Raises:
        UserError: no such file, or studies that extend each other.
    """
    values = schema.load_yaml(file)
    if "extends" not in values:
        return values
    name = values.pop("extends")
    if not isinstance(name, str):
        raise UserError(f"{file}: extends: {name!r:.60} is not the path of a study file")
    base_file = file.parent / name
    if base_file.resolve() in (*chain, file.resolve()):
        raise UserError(f"{file}: extends: {name} extends this file in turn")
    base = read_values(base_file, (*chain, file.resolve()))
    merged = base | values
    if isinstance(base.get("settings"), list) and isinstance(values.get("settings"), list):
        merged["settings"] = base["settings"] + values["settings"]
    for key in ("models", "fits"):
        if isinstance(base.get(key), dict) and isinstance(values.get(key), dict):
            merged[key] = _merged(base[key], values[key], f"{file}: {key}")
    return merged


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the entries under `models` or `fits`: single keys of an entry replace the base's, null removes it."""
    merged = dict(base)
    for name, entry in changes.items():
        if entry is None and name not in merged:
            raise UserError(f"{where}.{name}: there is none to take away{schema.did_you_mean(name, merged)}")
        both = isinstance(entry, dict) and isinstance(merged.get(name), dict)
        merged[name] = {**merged[name], **entry} if both else entry
    return {name: entry for name, entry in merged.items() if entry is not None}
