"""Studies, runs, experiments and datasets as frozen values, and messages that name the key.

A study file is checked against `workflow/schemas` before anything runs. Torch is not imported here: heads state their
options as literals in their own files, which are read without running them.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from softmax_bottleneck import heads
from softmax_bottleneck.artefacts import ROOT, sha256_file
from softmax_bottleneck.errors import UserError
from softmax_bottleneck.fingerprint import PACKAGE, fingerprint

MAX_FILE_BYTES = 1 << 20
MAX_ALIASES = 100  # a study never needs more; a bomb of nested aliases does


# --- YAML -----------------------------------------------------------------------------------------------------------
class _StrictLoader(yaml.SafeLoader):
    """Safe YAML without duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.MarkedYAMLError(
                    problem=f"key {key!r} is not text; quote it", problem_mark=key_node.start_mark
                )
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key!r} is given twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def load_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping, strictly: no duplicate keys, no text over 1 MiB, no alias bombs.

    Raises:
        UserError: with file and line.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give the path of a YAML file") from None
    if len(data) > MAX_FILE_BYTES:
        raise UserError(f"{path}: {len(data)} bytes is too long for a configuration (at most {MAX_FILE_BYTES})")
    try:
        text = data.decode("utf-8")
        aliases = sum(isinstance(token, yaml.AliasToken) for token in yaml.scan(text))
        if aliases > MAX_ALIASES:
            raise UserError(f"{path}: {aliases} YAML aliases (at most {MAX_ALIASES}); write the values out")
        value = _StrictLoader(text).get_single_data()
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}{_yaml_place(error)}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected `key: value` lines at the top level, found {type(value).__name__}")
    return value


def _yaml_place(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    line = f":{mark.line + 1}" if mark else ""
    return f"{line}: {getattr(error, 'problem', None) or 'not UTF-8 text'}"


# --- schemas --------------------------------------------------------------------------------------------------------
@cache
def schema(name: str) -> dict[str, Any]:
    """A JSON schema of workflow/schemas by its short name (`study`, `dataset`, `experiment`)."""
    return load_yaml(PACKAGE.parent / "schemas" / f"{name}.schema.yaml")


def validate(value: Mapping[str, Any], rules: Mapping[str, Any], where: str) -> None:
    """Check `value` against a JSON schema.

    Raises:
        UserError: naming the key, the value and what is allowed.
    """
    _refuse_non_finite(value, where)
    validator = jsonschema.Draft202012Validator(rules)
    error = jsonschema.exceptions.best_match(validator.iter_errors(value))
    if error is not None:
        raise UserError(_message(error, where))


def _refuse_non_finite(value: object, where: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{where}: {value} is not a finite number")
    children = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        _refuse_non_finite(child, f"{where}: {key}" if isinstance(key, str) else where)


def _message(error: jsonschema.ValidationError, where: str) -> str:
    place = ".".join(str(part) for part in error.absolute_path)
    key = f"{where}: {place}" if place else where
    rules = error.schema if isinstance(error.schema, Mapping) else {}
    if error.validator == "additionalProperties" and isinstance(error.instance, Mapping):
        allowed = list(rules.get("properties", {}))
        unknown = next(name for name in error.instance if name not in allowed)
        return f"{key}: unknown key {unknown!r}{did_you_mean(unknown, allowed)}"
    if error.validator == "required":
        return f"{key}: {error.message}"
    hint = ""
    if isinstance(error.instance, str) and "number" in str(rules.get("type")):
        hint = "; it is read as text: write 0.001 or 1.0e-3, without quotes"
    return f"{key}: {error.instance!r} is not allowed ({_allowed(error)}){hint}"


def _allowed(error: jsonschema.ValidationError) -> str:
    words = {
        "minimum": "at least {}",
        "maximum": "at most {}",
        "exclusiveMinimum": "more than {}",
        "exclusiveMaximum": "less than {}",
        "type": "must be of type {}",
        "uniqueItems": "every item only once",
        "minItems": "at least {} item",
        "pattern": "must match {}",
        "enum": "one of {}",
    }
    value = error.validator_value
    shown = ", ".join(map(str, value)) if isinstance(value, list) else value
    return words.get(str(error.validator), error.message).format(shown)


def did_you_mean(word: str, allowed: Iterator[str] | list[str]) -> str:
    """`; did you mean 'x'?`, or the list of what is allowed."""
    choices = sorted(allowed)
    near = difflib.get_close_matches(word, choices, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; allowed are {', '.join(choices)}"


def with_defaults(value: Mapping[str, Any], properties: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`value` completed by the schema's defaults; a property with neither is an error naming it."""
    complete = {key: rule["default"] for key, rule in properties.items() if "default" in rule} | dict(value)
    missing = [key for key in properties if key not in complete]
    if missing:
        raise UserError(f"{where}: {missing[0]} is not set; add it under `settings`")
    return complete


# --- runs -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Head:
    """An output head and its options (every option present, defaults filled in)."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules below the package that compute this head; a mixture also needs those of its parts."""
        names = {self.name, *(str(self.options[part]) for part in ("pointwise", "prior") if part in self.options)}
        return tuple(sorted(f"heads.{heads.module_path(name).stem}" for name in names))


@dataclass(frozen=True)
class Body:
    """The network below the head (SPEC: AWD-LSTM). Sizes in units, dropouts as probabilities."""

    kind: str
    embedding_size: int
    hidden_size: int
    context_size: int
    layers: int
    dropout_input: float
    dropout_hidden: float
    dropout_output: float
    dropout_embedding: float
    dropout_weight: float
    embedding_noise: float


@dataclass(frozen=True)
class Schedule:
    """How a model is trained; the keys are documented in workflow/schemas/study.schema.yaml."""

    optimizer: str
    learning_rate: float
    batch_size: int
    bptt: int
    variable_length: bool
    max_length_delta: int
    clip: float
    weight_decay: float
    activation_penalty: float
    temporal_penalty: float
    epochs: int
    switch_after_epoch: int
    nonmonotone_window: int
    eval_batch_size: int


@dataclass(frozen=True)
class Run:
    """One training run: dataset x body x head x schedule x seed.

    `data_identity` is the hash that decides what the corpus is; it is part of the run_id.
    """

    dataset: str
    model: str
    head: Head
    body: Body
    schedule: Schedule
    seed: int
    data_identity: str
    threads: int = 1
    device: str = "auto"
    deterministic: bool = True

    @property
    def settings(self) -> dict[str, Any]:
        """What affects the result, apart from the seed and the code."""
        keys = ("head", "body", "schedule", "data_identity")
        return {key: dataclasses.asdict(self)[key] for key in keys}

    @cached_property
    def code(self) -> str:
        """Fingerprint of the modules that compute this run."""
        return fingerprint("trainer", f"bodies.{self.body.kind.replace('-', '_')}", *self.head.modules)

    @cached_property
    def run_id(self) -> str:
        """12 hex digits of the sha256 of settings, seed and code."""
        facts = {**self.settings, "seed": self.seed, "code": self.code}
        return hashlib.sha256(canonical_json(facts).encode()).hexdigest()[:12]

    @property
    def path(self) -> str:
        """`<dataset>/<model>/<seed>-<run_id>`."""
        return f"{self.dataset}/{self.model}/{self.seed}-{self.run_id}"

    def to_json(self) -> dict[str, Any]:
        """As stored in run.json."""
        return dataclasses.asdict(self) | {"run_id": self.run_id, "code": self.code}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Run:
        """The run stored in a run.json; its run_id stays in the file's path, whatever the code is now."""
        plain = {key: value[key] for key in (f.name for f in dataclasses.fields(cls)) if key in value}
        parts = {
            "head": Head(**plain["head"]),
            "body": Body(**plain["body"]),
            "schedule": Schedule(**plain["schedule"]),
        }
        return cls(**plain | parts)


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no spaces; 1 and 1.0 are the same number."""
    return json.dumps(_plain_numbers(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain_numbers(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain_numbers(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_numbers(child) for child in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


# --- datasets -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Dataset:
    """A corpus, a known-truth language or a set of benchmarks, as its YAML declares it."""

    name: str
    kind: str
    title: str
    folder: Path  # of the YAML, for local files
    values: Mapping[str, Any]

    def __getattr__(self, key: str) -> Any:
        """Declared values by key; absent ones are None (files, expected: empty)."""
        if key.startswith("__") or key == "values":
            raise AttributeError(key)
        return self.values.get(key, {} if key in {"files", "expected"} else None)

    @cached_property
    def identity(self) -> str:
        """Hash of what the corpus is: its token stream where declared, else its files, or the language's settings."""
        if self.kind == "language":
            return _digest({"language": self.values["language"], "code": fingerprint("language")})
        if "token_sha256" in self.expected:
            return str(self.expected["token_sha256"])
        cut = {key: self.values.get(key) for key in ("vocabulary_size", "train_tokens")}
        if self.base:
            return _digest({"base": load_dataset(self.base, self.folder).identity, **cut})
        return _digest({name: self._file_sha256(name) for name in sorted(self.files)})

    def _file_sha256(self, name: str) -> str:
        entry = self.files[name]
        if "sha256" in entry:
            return str(entry["sha256"])
        path = self.folder / entry["path"]
        if not path.is_file():
            raise UserError(f"{self.folder / self.name}.yaml: files.{name}.path: no file at {path}")
        return sha256_file(path)


def _digest(value: object) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def find_config(kind: str, name: str, near: Path) -> Path:
    """`<kind>/<name>.yaml` beside the study, else in the workflow's own config folder.

    Raises:
        UserError: listing the names there are.
    """
    folders = [near / kind, near, ROOT / "config" / kind]
    for folder in folders:
        if folder.name == kind and (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    known = {path.stem for folder in folders if folder.name == kind for path in folder.glob("*.yaml")}
    raise UserError(f"{kind}: no {name!r} ({kind}/{name}.yaml){did_you_mean(name, list(known))}")


@cache
def load_dataset(name: str, near: Path) -> Dataset:
    """A dataset by name.

    Raises:
        UserError: unknown name, bad key or value.
    """
    path = find_config("datasets", name, near)
    values = load_yaml(path)
    validate(values, schema("dataset"), str(path))
    if values["name"] != path.stem:
        raise UserError(f"{path}: name: {values['name']!r} must equal the file's name {path.stem!r}")
    return Dataset(values["name"], values["kind"], values["title"], path.parent, values)


# --- experiments ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Column:
    """A metric of a table: its name in the records, its head, the decimals printed, filters on published rows.

    `measured: false` makes a column of published numbers only (a quotation of other papers).
    """

    metric: str
    label: str
    digits: int = 2
    published: Mapping[str, str] = field(default_factory=dict)
    measured: bool = True


@dataclass(frozen=True)
class Experiment:
    """A named table or figure: the runs it needs and how records become cells."""

    id: str
    source: str
    artefact: str
    kind: str
    title: str
    caption: str
    view: str
    published: tuple[str, ...]
    models: tuple[str, ...]
    datasets: tuple[str, ...]
    seeds: str
    columns: tuple[Column, ...]
    options: Mapping[str, Any]

    @property
    def is_synthetic(self) -> bool:
        """Whether its numbers come from the `synthetic` step and not from training runs."""
        return "synthetic" in self.options


def load_experiment(name: str, near: Path) -> Experiment:
    """An experiment by id (UserError for an unknown id, bad key or value)."""
    path = find_config("experiments", name, near)
    values = load_yaml(path)
    validate(values, schema("experiment"), str(path))
    if values["id"] != path.stem:
        raise UserError(f"{path}: id: {values['id']!r} must equal the file's name {path.stem!r}")
    complete = with_defaults(values, schema("experiment")["properties"], str(path))
    columns = tuple(Column(**column) for column in complete.pop("columns"))
    complete |= {key: tuple(complete[key]) for key in ("published", "models", "datasets")}
    return Experiment(**complete, columns=columns)


# --- studies --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Study:
    """A configuration file: which experiments, which models on which datasets, at which scale."""

    name: str
    title: str
    description: str
    file: Path
    mirror: Path | None
    datasets: Mapping[str, Dataset]
    labels: Mapping[str, str]  # model -> name in tables
    experiments: tuple[Experiment, ...]
    runs: tuple[Run, ...]

    def runs_of(self, experiment: Experiment) -> tuple[Run, ...]:
        """The training runs an experiment needs."""
        shown = [run for run in self.runs if run.model in experiment.models and run.dataset in experiment.datasets]
        if experiment.seeds == "author":
            first = {(run.dataset, run.model): run for run in reversed(shown)}  # the authors' seed is planned first
            return tuple(first[key] for key in sorted(first, key=lambda key: shown.index(first[key])))
        return tuple(shown)

    @cached_property
    def digest(self) -> str:
        """Hash of everything the study says: a changed word makes its tables and report again."""
        experiments = [dataclasses.asdict(experiment) for experiment in self.experiments]
        runs = [run.path for run in self.needed]
        return _digest([self.name, self.title, self.description, dict(self.labels), experiments, runs])[:12]

    @cached_property
    def needed(self) -> tuple[Run, ...]:
        """Every run some experiment needs, once."""
        paths = {run.path for experiment in self.experiments for run in self.runs_of(experiment)}
        return tuple(run for run in self.runs if run.path in paths)

    def run(self, path: str) -> Run:
        """The run with this path (UserError when the configuration or the code has changed since)."""
        for run in self.runs:
            if run.path == path:
                return run
        raise UserError(f"{self.file}: no run {path!r}; the configuration or the code has changed: see `plan`")


def load_study(file: Path, overrides: Mapping[str, Any] | None = None) -> Study:
    """A study from its file; `overrides` are top-level keys given on the command line (mirror, device, threads).

    Raises:
        UserError: naming file, key, value and what is allowed.
    """
    values = load_yaml(file) | dict(overrides or {})
    where = str(file)
    validate(values, schema("study"), where)
    near = file.resolve().parent
    datasets = {name: load_dataset(name, near) for name in values["datasets"]}
    for name, dataset in datasets.items():
        if dataset.kind == "benchmarks":
            raise UserError(f"{where}: datasets: {name!r} holds benchmarks, not text to train on")
    _refuse_unknown_names(values, where)
    pairs = [(dataset, model) for dataset in datasets.values() for model in values["models"]]
    runs = tuple(run for dataset, model in pairs for run in _runs(values, dataset, model, where))
    chosen = values["experiments"].items()
    return Study(
        name=values["study"],
        title=values["title"],
        description=values.get("description", ""),
        file=file,
        mirror=Path(values["mirror"]) if values.get("mirror") else None,
        datasets=datasets,
        labels={model: _label(entry) for model, entry in values["models"].items()},
        experiments=tuple(_experiment(name, given or {}, values, near, where) for name, given in chosen),
        runs=runs,
    )


def _refuse_unknown_names(values: Mapping[str, Any], where: str) -> None:
    known = {"dataset": values["datasets"], "model": list(values["models"])}
    for index, layer in enumerate(values["settings"]):
        for kind, allowed in known.items():
            for name in _as_list(layer.get("when", {}).get(kind, [])):
                if name not in allowed:
                    raise UserError(
                        f"{where}: settings.{index}.when.{kind}: unknown {name!r}{did_you_mean(name, allowed)}"
                    )
    for model, entry in values["models"].items():
        if entry.get("like", model) not in values["models"]:
            raise UserError(f"{where}: models.{model}.like: unknown {entry['like']!r}")


def _as_list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _head_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": entry["head"]} if isinstance(entry["head"], str) else dict(entry["head"])


def _label(entry: Mapping[str, Any]) -> str:
    return str(entry.get("label") or heads.declaration(_head_entry(entry)["name"]).label)


def _runs(values: Mapping[str, Any], dataset: Dataset, model: str, where: str) -> list[Run]:
    """The runs of one model on one dataset, one per seed, with the settings layers applied."""
    entry = values["models"][model]
    merged: dict[str, Any] = {"body": {}, "head": {}, "schedule": {}, "author_seed": None}
    for layer in values["settings"]:
        if _applies(layer.get("when", {}), dataset.name, {model, entry.get("like", model)}):
            _merge(merged, layer)
    _merge(merged, {key: entry[key] for key in ("body", "schedule") if key in entry})
    head_entry = _head_entry(entry)
    label = f"{where}: models.{model}"
    head = _head(head_entry.pop("name"), merged["head"] | head_entry, label)
    defs = schema("study")["$defs"]
    body = with_defaults(merged["body"], defs["body"]["properties"], f"{label}: body")
    body["context_size"] = body["context_size"] or body["embedding_size"]
    schedule = with_defaults(merged["schedule"], defs["schedule"]["properties"], f"{label}: schedule")
    execution = {key: values[key] for key in ("threads", "device", "deterministic") if key in values}
    seeds = dict.fromkeys(seed for seed in (merged["author_seed"], *values["seeds"]) if seed is not None)
    return [
        Run(dataset.name, model, head, Body(**body), Schedule(**schedule), seed, dataset.identity, **execution)
        for seed in seeds
    ]


def _applies(when: Mapping[str, Any], dataset: str, models: set[str]) -> bool:
    return dataset in _as_list(when.get("dataset", dataset)) and (
        "model" not in when or bool(models & set(_as_list(when["model"])))
    )


def _merge(merged: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for part in ("body", "head", "schedule"):
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


def _experiment(name: str, given: Mapping[str, Any], values: Mapping[str, Any], near: Path, where: str) -> Experiment:
    """An experiment as this study shows it: its own models and datasets unless the study says otherwise."""
    experiment = load_experiment(name, near)
    known = [model for model in experiment.models if model in values["models"]]
    models = list(values["models"]) if given.get("models") == "all" else given.get("models", known)
    shared = [dataset for dataset in experiment.datasets if dataset in values["datasets"]]
    datasets = given.get("datasets") or shared or values["datasets"]
    for kind, names, allowed in (("models", models, values["models"]), ("datasets", datasets, values["datasets"])):
        for item in names:
            if item not in allowed:
                hint = did_you_mean(item, list(allowed))
                raise UserError(f"{where}: experiments.{name}.{kind}: {item!r} is not in this study{hint}")
    options = {**experiment.options, **given.get("options", {})}
    return dataclasses.replace(experiment, models=tuple(models), datasets=tuple(datasets), options=options)


STUDY_VARIABLE, SET_VARIABLE = "SOFTMAX_BOTTLENECK_STUDY", "SOFTMAX_BOTTLENECK_SET"


def export(file: Path, overrides: Mapping[str, Any], package_folder: Path) -> None:
    """Set the environment by which steps, started from anywhere, use this interpreter's packages and load this study."""
    os.environ[STUDY_VARIABLE] = file.resolve().as_posix()
    os.environ[SET_VARIABLE] = canonical_json(dict(overrides))
    for variable, folder in (("PYTHONPATH", package_folder), ("PATH", Path(sys.executable).parent)):
        os.environ[variable] = os.pathsep.join([str(folder), *filter(None, [os.environ.get(variable)])])


def study_from_environment() -> tuple[Path, dict[str, Any]]:
    """The study file and overrides that the workflow set, else the demonstration's."""
    file = os.environ.get(STUDY_VARIABLE) or ROOT / "config" / "demo.yaml"
    return Path(file), json.loads(os.environ.get(SET_VARIABLE, "{}"))
