"""The keys of the YAML files of studies and experiments, the models of a grid, and studies that extend others."""

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

import pydantic
from pydantic import Discriminator, Field, Tag

from softmax_bottleneck.heads.registry import declaration
from softmax_bottleneck.store import schema
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import ROOT, SHARED
from softmax_bottleneck.study import runs
from softmax_bottleneck.study.fits import FitPlan

SeedChoice = Literal["all", "author", "random"]
LONGEST_NAME = 80  # characters of a model's name, a folder name
SOURCES = tuple(schema.load_yaml(ROOT / "report" / "chapters.yaml"))  # of tables and figures: the report's chapters
CsvName = Annotated[str, Field(pattern=r"^[a-z0-9_]+\.csv$")]


# --- experiments ---
@pydantic.dataclasses.dataclass(frozen=True, config=schema.STRICT)
class Column:
    """A column of a table, which shows one metric.

    Attributes:
        metric: name of the metric in the records, and in report/published unless `published_as` is given.
        label: heading of the column, with the unit (default: as in the catalogue `records.metrics`).
        digits: number of decimals printed (default: as in the catalogue).
        published: filters that select the published numbers for this column: {column of the CSV files in
            report/published: regular expression}. Example: `{table: "^Table 2$"}`.
        datasets: corpora for which the table has this column; empty means all.
        stage: stage whose result is shown: `finetuned`, `dynamic` (dynamic evaluation), or empty (trained run).
        published_as: name of the metric in report/published; empty if `metric` is also the name there. A dataset's
            `published_as` names a corpus there, a head's a model.
        measured: true to show measured and published numbers; false to show only published numbers.
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
    """A table or figure of the report, as its YAML file declares it.

    Attributes:
        id: name of the experiment, equal to the file's name.
        source: the paper or study that the table or figure comes from: a chapter of report/chapters.yaml.
        artefact: name of the table or figure in the source, such as Table 2 or Figure 7.
        title: one line above the table or figure.
        caption: text on the content and its computation. In this text, `{schedule.epochs}` stands for the number of
            epochs of the runs shown (likewise for other settings), and `{corpora}` for the titles of their corpora.
        kind: table or figure.
        view: name of the function in report/views that makes the table or figure from records.
        published: files of report/published with the numbers to compare with.
        models: models in the table or figure, in the order of the published table and with grids expanded; empty if no
            training runs are needed.
        datasets: corpora of the published table. If a study lacks one of them, its datasets whose YAML names the corpus
            under `stands_for` (its proxies) replace the corpus.
        seeds: seeds of the training runs: `all`, `author` (only the first seed of each model: the authors' own, if they
            published one), or `random` (all but the authors' own).
        stages: what follows the training of the experiment's runs: `finetune`, `dynamic` (dynamic evaluation), or both
            in this order.
        published_rows: {model: where its published numbers are}, for models with another name in report/published.
            Example: `{mos-nt-components10: {model: mos-nt, condition: "^K=10;"}}`. Here `mos-nt` is the name in
            report/published. Every other key is a column of the CSV files; its cells must match the regular expression.
        columns: columns of the table, one metric each, in order.
        options: keyword arguments of the view.
    """

    id: schema.Name
    source: Literal[SOURCES]  # type: ignore[valid-type]  # the names are in one place
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
    columns: tuple[Column, ...] = ()
    options: schema.Options = schema.EMPTY

    @property
    def quotes(self) -> bool:
        """True if the experiment shows published numbers or published examples of predicted next words."""
        return bool(self.published) or "words" in self.options

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffixes of the files that `render` writes: ("html", "csv") for a table, ("svg", "csv") for a figure."""
        return ("html", "csv") if self.kind == "table" else ("svg", "csv")

    @property
    def is_synthetic(self) -> bool:
        """True if the experiment's numbers come from the step `synthetic` and not from training runs.

        This step gathers the results of fits, and computes ranks of untrained layers and of matrices with noise.
        """
        return "synthetic" in self.options or bool(self.fits)

    @property
    def fits(self) -> str:
        """The name under `fits` of the study's YAML whose results the experiment shows; empty if it shows no fits."""
        return str(self.options.get("fits", ""))


@schema.section
class PlannedExperiment(Experiment):
    """An experiment in a study, with the changes that the study's file makes to it.

    `models` and `datasets` are restricted to those of the study. `load_study` sets the further attributes.

    Attributes:
        needs: reason why the experiment, or a part of it, cannot be made; empty if the whole can be made.
        entries: names under `models` of the study's YAML that belong to the experiment. A grid is one name here, even
            if none of its models is trained; `models` has every trained model of the grid.
        absent: models of the published table that the experiment does not show in this study.
        absent_datasets: corpora of the published table that the experiment does not show in this study, not even by a
            proxy.
    """

    needs: str = ""
    entries: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    absent_datasets: tuple[str, ...] = ()

    @classmethod
    def of(cls, experiment: Experiment, **changes: Any) -> Self:
        """Return an experiment with other values of some attributes."""
        return cls(**vars(experiment) | changes)

    @property
    def is_void(self) -> bool:
        """True if no part of the experiment can be measured, because the study has no model or no corpus for it.

        The attribute `needs` has the reason. Published numbers or examples, if there are any (`quotes`), are still
        shown.
        """
        return bool(self.needs) and not (self.datasets and self.entries)


@cache
def load_experiment(name: str, near: Path) -> Experiment:
    """Return the experiment with the id `name`, as its YAML file declares it.

    The file is `near`/experiments/<name>.yaml or else config/experiments/<name>.yaml; `near` is the study's folder.

    Raises:
        UserError: neither file exists, the file has another id, or a key or value is not allowed.
    """
    path = schema.find_config("experiments", name, near)
    experiment = schema.read(Experiment, schema.load_yaml(path), str(path))
    if experiment.id != path.stem:
        raise UserError(f"{path}: id: {experiment.id!r} must equal the file's name {path.stem!r}")
    return experiment


# --- models ---
# A word or a list. The tags limit an error message to the form that the user has chosen.
Seeds = Annotated[
    Annotated[Literal["all", "author"], Tag("~word")] | Annotated[schema.NonEmpty[schema.Seed], Tag("~list")],
    Discriminator(lambda value: "~list" if isinstance(value, list | tuple) else "~word"),
]
Axis = Annotated[tuple[Any, ...], Field(min_length=1)]
Grid = Annotated[dict[Annotated[str, Field(pattern="^(head|body|schedule)[.][a-z_]+$")], Axis], Field(min_length=1)]


@schema.section
class ModelEntry:
    """A model as a study's YAML declares it.

    Attributes:
        head: a name (a file in workflow/softmax_bottleneck/heads), or `{name: ..., option: ...}`.
        label: name of the model in tables and figures (default: the head's own).
        like: name of another entry, from which this model inherits `body` and `schedule`. Layers of settings whose
            `when` names the other entry also apply to this model. If both have the same head, the head's options are
            inherited too. The other entry can have a `like` of its own.
        datasets: corpora to train on; all corpora of the study when absent.
        seeds: `all` (the authors' own seed, if they published one, then the study's seeds), `author` (only the first of
            these), or a list of seeds to train instead. Without this key, the same seeds are trained as with `all`.
            But the words `all` and `author` also make the entry a variant, as the keys `like` and `grid` do:
            experiments with `models: all` leave it out (see `is_variant`).
        grid: lists of values, such as `{head.c: [-1.5, 0], head.k: [2, 3]}`; each combination is a model.
        stem: prefix of the names of a grid's models, such as `gss` in `gss-c0-k2` (default: the entry's name). Grids on
            different corpora may have the same stem.
        max_runs: number of a grid's combinations to train, chosen at random but always the same (default: all). With 0
            the study only declares the search and trains no combination.
        body: settings of the body for this model, applied after all layers of settings.
        schedule: settings of training for this model, applied after all layers of settings.
    """

    head: runs.HeadEntry
    label: schema.Label | None = None
    like: schema.Name | None = None
    datasets: schema.NonEmpty[schema.Name] | None = None
    seeds: Seeds | None = None
    grid: Grid | None = None
    stem: schema.Name | None = None
    max_runs: Annotated[schema.Integer, Field(ge=0)] | None = None
    body: runs.BodyPart = schema.EMPTY
    schedule: runs.SchedulePart = schema.EMPTY

    def __post_init__(self) -> None:
        if self.max_runs is not None and self.grid is None:
            raise ValueError("max_runs: needs `grid`, from which it chooses runs. Add `grid` or remove max_runs")

    @property
    def is_variant(self) -> bool:
        """True if the entry is left out of experiments with `models: all`.

        An entry is a variant if it has `like` or `grid`, or if `seeds` is the word `all` or `author`. A list of seeds
        does not make the entry a variant.
        """
        return self.like is not None or self.grid is not None or isinstance(self.seeds, str)


@dataclasses.dataclass(frozen=True)
class Search:
    """A hyperparameter search over a grid of settings.

    Attributes:
        axes: {setting: values to try}, such as {"head.c": (-1.5, 0)}.
        size: number of all combinations.
        members: names of the combinations that the study trains as models.
    """

    axes: Mapping[str, tuple[Any, ...]]
    size: int
    members: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Model:
    """A model of a study: an entry under `models`, or one combination of an entry's grid.

    Attributes:
        name: name of the model.
        entry: the entry, with inherited settings and the values of this combination filled in.
        label: label in tables and figures.
        inherits_from: the model's name, the name of its entry, and the names of all entries from which this entry
            inherits by the key `like`, directly or not. A layer of settings applies to the model if its `when` names
            one of them, or no model.
    """

    name: str
    entry: ModelEntry
    label: str
    inherits_from: frozenset[str]


def models_of(entries: Mapping[str, ModelEntry], datasets: Collection[str], where: str) -> dict[str, list[Model]]:
    """Return {name of an entry: the models of the entry}; an entry without a grid is one model.

    Args:
        entries: the entries under `models` of a study.
        datasets: all datasets of the study, on which the models of an entry without the key `datasets` are trained.
        where: the study's file, for error messages.

    Raises:
        UserError: a head is unknown, the key `like` names an unknown entry, entries inherit from each other in a
            cycle, a value of a grid is not allowed, or two models on one dataset have the same name.
    """
    families: dict[str, list[Model]] = {}
    taken = set(itertools.product(datasets, entries))
    for name, declared in entries.items():
        place = f"{where}: models.{name}"
        ancestors = [name]  # and the names along its chain of `like`: [a, b, c] if a has `like: b` and b has `like: c`
        while (other := entries[ancestors[-1]].like) is not None:
            if other not in entries:
                raise UserError(f"{place}.like: unknown {other!r}{schema.did_you_mean(other, entries)}")
            if other in ancestors:
                raise UserError(f"{place}.like: goes round in a circle ({' -> '.join([*ancestors, other])})")
            ancestors.append(other)
        # Nearer entries take precedence. Options of a head are inherited only from entries with the same head.
        parts: dict[str, dict[str, Any]] = {"head": {}, "body": {}, "schedule": {}}
        for ancestor in reversed(ancestors):
            inherited = entries[ancestor]
            parts["head"] |= inherited.head if inherited.head["name"] == declared.head["name"] else {}
            parts["body"] |= inherited.body
            parts["schedule"] |= inherited.schedule
        entry = dataclasses.replace(declared, **cast(Any, parts))
        try:
            label = entry.label or declaration(entry.head["name"]).label
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
        family = Model(name, entry, label, frozenset(ancestors))
        families[name] = [family] if entry.grid is None else _members(family, entry.grid, place)
        for key in itertools.product(entry.datasets or datasets, (member.name for member in families[name])):
            if entry.grid and key in taken:
                raise UserError(f"{place}.grid: two models are named {key[1]!r}; rename one or set another `stem`")
            taken.add(key)
    return families


def _members(family: Model, grid: Grid, where: str) -> list[Model]:
    """Return the models of a grid: all combinations of its values, or `max_runs` of them.

    A hash ranks the combinations, and the first `max_runs` are chosen. A larger `max_runs` therefore only adds models.

    Args:
        family: the model made from the entry before any value of the grid is filled in. Its `entry` has `max_runs`.
        grid: {setting: list of its values}, such as `{"head.c": [0, 1], "head.k": [2]}`.
        where: the entry's place in the YAML, for messages.
    """
    entry = family.entry
    points = [dict(zip(grid, point, strict=True)) for point in itertools.product(*grid.values())]
    budget = entry.max_runs
    if budget is not None and budget < len(points):
        hashes = [hashlib.sha256(f"{family.name} {index}".encode()).digest() for index in range(len(points))]
        chosen = sorted(range(len(points)), key=hashes.__getitem__)[:budget]
        points = [points[index] for index in sorted(chosen)]
    return [member(family, point, where) for point in points]


def member(family: Model, point: Mapping[str, Any], where: str) -> Model:
    """Return the model at a point of a grid, such as `gss-c0-k2` for the point {"head.c": 0, "head.k": 2} of `gss`.

    The name lists the values. If it would be too long, a hash replaces them. `family` and `where` are those of
    `_members`.
    """
    stem = name = family.entry.stem or family.name
    words = []
    for key, value in point.items():
        option = key.partition(".")[2]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        text = f"{value:g}" if is_number else str(value).lower()
        # `mos-nt-components` with head.components needs no second `components`
        name += text if name.endswith(f"-{option}") else f"-{option}{text}"
        words.append(f"{option.replace('_', ' ')} {text}".replace("-", "\N{MINUS SIGN}"))
    if len(name) > LONGEST_NAME:
        name = f"{stem}-{runs.digest(point)[:8]}"
    if not re.fullmatch(schema.NAME, name):
        advice = "use values of letters, digits and the characters . _ -"
        raise UserError(f"{where}.grid: the model name {name!r}, made from values, cannot name a folder; {advice}")
    label, names = f"{family.label}: {', '.join(words)}", family.inherits_from | {name}
    return dataclasses.replace(at_point(family, point, f"{where}.grid"), name=name, label=label, inherits_from=names)


def at_point(model: Model, point: Mapping[str, Any], where: str) -> Model:
    """Return the model with the values of a point, {setting: value}; `where` is the grid's place in the YAML."""
    parts = {part: dict(getattr(model.entry, part)) for part in ("head", "body", "schedule")}
    for key, value in point.items():
        part, _, option = key.partition(".")
        parts[part][option] = value
    return dataclasses.replace(model, entry=schema.read(ModelEntry, vars(model.entry) | parts, where))


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


@schema.section
class Layer:
    """A layer of settings, which overrides single values of earlier layers.

    Attributes:
        when: datasets and models to which the layer applies; all when absent.
        body: settings of the network below the head.
        head: options of the head (see the head's own file).
        schedule: settings of training.
        finetune: changes of the schedule for finetuning, used if an experiment has the stage `finetune`.
        dynamic: settings of dynamic evaluation, used if an experiment has the stage `dynamic`.
        author_seed: the seed that the authors published for their single run. The models are trained with this seed
            first, and then with the study's `seeds`.
    """

    when: When = When()
    body: runs.BodyPart = schema.EMPTY
    head: schema.Options = schema.EMPTY
    schedule: runs.SchedulePart = schema.EMPTY
    finetune: runs.SchedulePart = schema.EMPTY
    dynamic: runs.DynamicPart = schema.EMPTY
    author_seed: schema.Seed | None = None


@schema.section
class ExperimentChanges:
    """The changes that a study makes to an experiment. A key that is absent changes nothing.

    Attributes:
        models: names of the models and grids to show, or the word `all` for every entry under `models` of this study
            that is not a variant (see `ModelEntry.is_variant`).
        datasets: corpora to show.
        seeds: seeds to show: `all`, `author` or `random` (see `Experiment`).
        needs: reason why this study cannot make the experiment. The report shows the reason, and nothing is trained for
            the experiment.
        options: keyword arguments of the view. They are added to the experiment's own and replace those of the same
            name.
    """

    models: schema.OneOrMore[schema.Name] | None = None
    datasets: schema.NonEmpty[schema.Name] | None = None
    seeds: SeedChoice | None = None
    needs: schema.Line | None = None
    options: schema.Options = schema.EMPTY


@schema.section
class Tuning:
    """A search for the settings of every model, on every corpus, before the study's seeds are trained.

    The search trains every model at every point of `grid`, and around the best point until its neighbours are known.
    Then the study's `seeds` are trained at the best point only. Entries of `models` with a `grid` are not tuned.

    Attributes:
        grid: lists of values, such as `{schedule.learning_rate: [7, 10, 14, 20]}`; every combination is tried.
        by: the measure that the best point minimises: `valid_ppl`, the validation perplexity of the stored weights; or
            `steps`, on repeated tokens the number of updates until they are learned, times 1 + the share of validation
            tokens that are not predicted. The search does not read the test text.
        seeds: seeds of the search; none of them may be a seed of the comparison. The best point has the smallest mean
            validation loss over these seeds.
        widen: number of new values that may extend a list at either end while the best value lies there.
    """

    grid: Grid
    by: Literal["valid_ppl", "steps"] = "valid_ppl"
    seeds: schema.NonEmpty[schema.Seed]
    widen: Annotated[schema.Integer, Field(ge=0, le=20)] = 4


@schema.section
class Contrast:
    """A comparison of two models, named before the first run.

    Attributes:
        model, against: names of the two models; the change of test perplexity is that of `model` relative to `against`.
        label: what the comparison shows, such as `mixing probabilities`.
        same_size: false if the two models differ in size on purpose, as in a comparison at equal time.
    """

    model: schema.Name
    against: schema.Name
    label: schema.Line
    same_size: schema.Flag = True


@schema.section
class Contrasts:
    """The comparisons that a study is made for: one family, whose p-values are corrected together on each corpus.

    Attributes:
        family: the comparisons.
        margin: the relative change of test perplexity below which two models count as equal.
        correction: correction of the p-values: `holm` (Holm 1979).
    """

    family: Annotated[tuple[Contrast, ...], Field(min_length=1)]
    margin: Annotated[schema.Number, Field(gt=0, lt=1)]
    correction: Literal["holm"] = "holm"


@schema.section
class StudyFile:
    """The YAML of a study, merged with the studies that it extends.

    Attributes:
        study: short name; results go to results/<study>/.
        title: heading of the report.
        description: purpose of the study in a few sentences, printed in the report.
        datasets: corpora to train on; each is a file datasets/<name>.yaml beside the study or in config/.
        seeds: seeds of training; every model is trained once per dataset and seed.
        mirror: folder with copies of the corpora, searched before any download (see also `make reproduce MIRROR=...`).
        device: `auto` (a GPU if there is one), `cpu`, or `cuda` (an error without one).
        threads: CPU threads of one training job; the same number gives the same bits.
        replicas_per_job: number of seeds of a model that one job trains at the same time. On a GPU, the seeds share the
            job's GPU; on a CPU, each seed has `threads` cores. The bits are the same as for separate jobs.
        max_wall: time limit (`4h`, `90m`) of a job that trains, finetunes, fits or evaluates dynamically. At the limit
            the job saves its state and stops with exit code 75; the next attempt resumes it. A SLURM job's own time
            limit applies as well.
        time_margin: how long before the end of a SLURM job these jobs save their state and stop (default: 3m, or a
            quarter of the remaining time if that is less).
        deterministic: true makes training give the same bits on the same machine, or fail; false allows faster GPU
            kernels.
        graphs: true to use CUDA graphs on a GPU: an update is captured once for each chunk length, and then replayed.
            Results have the same bits with and without graphs.
        settings: layers of settings, applied in order.
        tuning: a search for the settings of every model before the seeds are trained; none when absent.
        contrasts: the comparisons of models that are named beforehand.
        fits: output heads on free context vectors, fitted to known distributions.
        heads: files of heads from outside this package; a path is relative to the study's file (CONTRIBUTING.md).
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
    tuning: Tuning | None = None
    contrasts: Contrasts | None = None
    fits: Mapping[schema.Name, FitPlan] = schema.EMPTY
    heads: schema.Unique[str] = ()
    models: Annotated[Mapping[schema.Name, ModelEntry], Field(min_length=1)]
    experiments: Annotated[Mapping[schema.Name, ExperimentChanges | None], Field(min_length=1)]

    def __post_init__(self) -> None:
        if self.study.lower() in SHARED:
            raise ValueError(f"study: {self.study!r} is the name of a folder of results/; choose another")
        if self.max_wall and self.time_margin and schema.seconds(self.time_margin) >= schema.seconds(self.max_wall):
            raise ValueError(f"time_margin: {self.time_margin} leaves nothing of max_wall, {self.max_wall}")


REQUIRED = {f.name for f in dataclasses.fields(StudyFile) if f.default is f.default_factory is dataclasses.MISSING}


def read_values(file: Path, chain: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return {key: value} of a study's file, merged with its base: the study file that it names under `extends`.

    A file without `extends` has no base, and its own keys are returned. Otherwise:

    - `settings` are the layers of the base, followed by those of the file; likewise `heads`, as absolute paths.
    - An entry under `models` or `fits` is merged key by key with the entry of the same name in the base; the file's
      values win. The value null removes the entry.
    - For every other key, the file's value replaces that of the base.

    Args:
        file: the study's YAML.
        chain: files that extend `file`, directly or not (default: none); used to detect cycles.

    Raises:
        UserError: a file does not exist or is not a mapping, `extends` is not a path, studies extend each other in a
            cycle, or null removes an entry that the base lacks.
    """
    values = schema.load_yaml(file)
    heads = values.get("heads")
    if isinstance(heads, list) and all(isinstance(name, str) for name in heads):
        values["heads"] = [str((file.parent / name).resolve()) for name in heads]
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
    for key in ("settings", "heads"):
        if isinstance(base.get(key), list) and isinstance(values.get(key), list):
            merged[key] = base[key] + values[key]
    for key in ("models", "fits"):
        if isinstance(base.get(key), dict) and isinstance(values.get(key), dict):
            entries = dict(base[key])
            for name, entry in values[key].items():
                if entry is None and name not in entries:
                    hint = schema.did_you_mean(name, entries)
                    raise UserError(f"{file}: {key}.{name}: null removes an entry, but the base has no {name!r}{hint}")
                both = isinstance(entry, dict) and isinstance(entries.get(name), dict)
                entries[name] = {**entries[name], **entry} if both else entry
            merged[key] = {name: entry for name, entry in entries.items() if entry is not None}
    return merged
