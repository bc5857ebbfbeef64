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
    """A column of a table, which shows one metric.

    Attributes:
        metric: name of the metric in the records and in report/published.
        label: heading of the column, with the unit (default: as in the catalogue of metrics).
        digits: number of decimals printed (default: as in the catalogue).
        published: filters on the rows of report/published: column -> regular expression.
        datasets: corpora for which the column is shown; empty means all.
        stage: stage after which the metric is measured (`finetuned`, `dynamic`); empty means training.
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
    """A table or figure of the report.

    `load_study` sets the last three attributes and replaces attributes that the study changes.

    Attributes:
        id: name of the experiment, equal to the file's name.
        source: the paper or study that the table or figure comes from; each source is a chapter of the report.
        artefact: name of the table or figure in the source, such as Table 2 or Figure 7.
        title: one line above the table or figure.
        caption: text on the content and its computation. `{schedule.epochs}` is replaced by that setting of the runs
            shown, `{corpora}` by the titles of their corpora.
        kind: table or figure.
        view: name of the function in report/views that makes the table or figure from records.
        published: files of report/published with the numbers to compare with.
        models: models shown, in the order of the published table and with grids expanded; empty if no training runs are
            needed.
        datasets: corpora of the published table; a study without these corpora shows its own.
        seeds: `all`, `author` (the authors' own, or the first) or `random` (all but the authors' own).
        stages: stages after the training of its runs: finetuning, then dynamic evaluation.
        published_rows: model -> filters that find its rows in report/published if the name there is different. The key
            `model` gives that name; other keys are columns with regular expressions.
        needs: reason why the experiment, or a part of it, cannot be made; empty if all of it can.
        columns: metrics shown, in order.
        options: keyword arguments of the view.
        entries: models and grids before grids are expanded, also grids of which no model is trained.
        absent: models of the published table that the study lacks.
        absent_datasets: corpora of the published table that the study lacks and has no proxy for.
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
        """True if this study cannot show any part of the experiment."""
        return bool(self.needs) and not (self.datasets and self.entries)

    @property
    def quotes(self) -> bool:
        """True if the experiment shows published numbers or words."""
        return bool(self.published) or "words" in self.options

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffixes of the files that `render` writes: that of the table or figure, and `csv` for the data."""
        return ("html", "csv") if self.kind == "table" else ("svg", "csv")

    @property
    def is_synthetic(self) -> bool:
        """True if the experiment's numbers come from the step `synthetic` and not from training runs."""
        return "synthetic" in self.options or bool(self.fits)

    @property
    def fits(self) -> str:
        """The entry under a study's `fits` that the experiment shows; empty for most experiments."""
        return str(self.options.get("fits", ""))


def load_experiment(name: str, near: Path) -> Experiment:
    """Return the experiment with this id, read from the folder `near` or from config/.

    Raises:
        UserError: the id is unknown, or a key or value is not allowed.
    """
    path = schema.find_config("experiments", name, near)
    experiment = schema.read(Experiment, schema.load_yaml(path), str(path))
    if experiment.id != path.stem:
        raise UserError(f"{path}: id: {experiment.id!r} must equal the file's name {path.stem!r}")
    return experiment


# --- studies ---
@schema.section
class When:
    """The condition under which a layer of settings applies.

    Attributes:
        dataset: a dataset or a list of datasets; all when absent.
        model: a model or grid, or a list of models and grids; all when absent.
    """

    dataset: schema.OneOrMore[schema.Name] | None = None
    model: schema.OneOrMore[schema.Name] | None = None

    def holds(self, dataset: str, models: Collection[str]) -> bool:
        """Return True if a dataset and a model meet the condition.

        `models` has the model's own name and all names from which the model inherits settings.
        """
        is_here = self.dataset is None or dataset in self.dataset
        return is_here and (self.model is None or any(model in models for model in self.model))


@schema.section
class Layer:
    """A layer of settings, which overrides single values of earlier layers.

    Attributes:
        when: datasets and models to which the layer applies; all when absent.
        body: settings of the network below the head.
        head: options of the head (see the head's own file).
        schedule: settings of training.
        finetune: changes of the training schedule for finetuning, used by experiments with that stage.
        dynamic: settings of dynamic evaluation, used by experiments with that stage.
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
        models: models to show, or `all`: all models of this study except those with `like`, `grid` or `seeds`.
        datasets: corpora to show.
        seeds: `all`, `author` (the authors' own, or the first), or `random` (all except the authors' own).
        needs: reason why this study cannot make the experiment. The report shows the reason, and nothing is trained for
            the experiment.
        options: changes of the experiment's options (see the experiment's file).
    """

    models: schema.OneOrMore[schema.Name] | None = None
    datasets: schema.NonEmpty[schema.Name] | None = None
    seeds: SeedChoice | None = None
    needs: schema.Line | None = None
    options: schema.Options = schema.EMPTY


@schema.section
class StudyFile:
    """The YAML of a study, merged with the studies that it extends.

    Attributes:
        study: short name; results go to results/<study>/.
        title: heading of the report.
        description: purpose of the study in a few sentences, printed in the report.
        datasets: corpora to train on; each is a file datasets/<name>.yaml beside the study or in config/.
        seeds: one training run per model, dataset and seed.
        mirror: folder with copies of the corpora, used before any download; also `make reproduce MIRROR=folder`.
        device: `auto` (a GPU if there is one), `cpu`, or `cuda` (an error without one).
        threads: CPU threads of one training job; the same number gives the same bits.
        replicas_per_job: number of seeds of a model that one job trains at the same time. They share its GPU, or have
            `threads` cores each. The bits are the same as for separate jobs.
        max_wall: time limit of a training job (`4h`, `90m`). At the limit the job saves its state and stops with exit
            code 75; the next attempt resumes the training. A SLURM job's own time limit applies as well.
        time_margin: time before the end of its SLURM job at which a training job stops itself (default: 3m, or a
            quarter of the remaining time if that is less).
        deterministic: true makes training give the same bits on the same machine, or fail; false allows faster GPU
            kernels.
        graphs: true captures the update for each chunk length once on a GPU and replays it (CUDA graphs), with the same
            bits; false disables graph capture.
        settings: layers of settings, applied in order.
        fits: output heads on free context vectors, fitted to known distributions.
        models: models to train, by name; a model of a published table has the name used there.
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
    """Return the keys of a study's file, merged with the keys of the study that it extends.

    `settings` are appended to the extended study's; `models` and `fits` are merged by key (null removes an entry); all
    other keys replace the extended study's. `chain` has the files that extend this one.

    Raises:
        UserError: a file does not exist or is not a mapping, or studies extend each other.
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
    """Return the merged entries under `models` or `fits`.

    The keys of an entry in `changes` replace those of the same entry in `base`; null removes the entry.
    """
    merged = dict(base)
    for name, entry in changes.items():
        if entry is None and name not in merged:
            raise UserError(f"{where}.{name}: there is none to take away{schema.did_you_mean(name, merged)}")
        both = isinstance(entry, dict) and isinstance(merged.get(name), dict)
        merged[name] = {**merged[name], **entry} if both else entry
    return {name: entry for name, entry in merged.items() if entry is not None}
