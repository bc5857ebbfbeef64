"""Studies, runs, experiments and datasets as frozen values, and messages that name the key.

A study file is checked against `workflow/schemas` before anything runs. Torch is not imported here: heads state their
options as literals in their own files, which are read without running them.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import itertools
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
VARIANT_KEYS = {"like", "grid", "seeds"}  # of a model that is a variant of others, not one of the study's own
MAX_ALIASES = 100  # a study never needs more; a bomb of nested aliases does
MAX_MEMBERS = 100_000  # combinations of one grid
NAMES_LISTED = 30
LONGEST_NAME = 80  # of a model; it is a folder


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
    if near:
        return f"; did you mean {near[0]!r}?"
    more = f" and {len(choices) - NAMES_LISTED} more" if len(choices) > NAMES_LISTED else ""
    return f"; allowed are {', '.join(choices[:NAMES_LISTED])}{more}"


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

    `data_identity` is the hash that decides what the corpus is; it is part of the run_id. `twin` is the model of the
    study under whose name a run with the same run_id is trained; empty for the run that is trained itself.
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
    twin: str = ""

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
        """`<dataset>/<model>/<seed>-<run_id>`, of the twin where there is one."""
        return f"{self.dataset}/{self.twin or self.model}/{self.seed}-{self.run_id}"

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

    @property
    def corpus(self) -> str:
        """The published corpus it is or stands for; empty when it is a text of its own."""
        return str(self.published_as or self.stands_for or "")

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

    `measured: false` makes a column of published numbers only (a quotation of other papers); `datasets` limits it to
    some corpora.
    """

    metric: str
    label: str
    digits: int = 2
    published: Mapping[str, str] = field(default_factory=dict)
    measured: bool = True
    datasets: Sequence[str] = ()


@dataclass(frozen=True)
class Experiment:
    """A named table or figure: the runs it needs and how records become cells.

    Attributes:
        models: labels of the rows; in a study, with grids expanded.
        entries: in a study, the names before that: models and grids, also grids of which no member is trained.
        seeds: `all`, `author` (the authors' own, or the first) or `random` (all but the authors' own).
        published_rows: label -> the published rows it stands for: {"model": its name there, column: pattern}.
        needs: why this study cannot make it, or a part of it, in words; empty when it can.
    """

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
    published_rows: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    needs: str = ""
    entries: tuple[str, ...] = ()

    @property
    def is_void(self) -> bool:
        """Whether this study can show nothing of it."""
        return bool(self.needs) and not (self.datasets and self.entries)

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


# --- models ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Search:
    """A grid: the values of each setting, how many combinations they have, and the members that are trained."""

    axes: Mapping[str, tuple[Any, ...]]  # `head.c` -> values
    size: int
    members: tuple[str, ...]


@dataclass(frozen=True)
class _Model:
    """A model of a study, or one member of a grid.

    `kin` are the names whose settings layers apply: its own, its entry's, and those of all models it is like.
    """

    name: str
    entry: Mapping[str, Any]
    label: str
    kin: frozenset[str]


def _models(values: Mapping[str, Any], where: str) -> dict[str, list[_Model]]:
    """The members of every entry under `models`; an entry without a grid has one, itself."""
    families: dict[str, list[_Model]] = {}
    names = {(dataset, name) for dataset in values["datasets"] for name in values["models"]}
    for name, entry in values["models"].items():
        label = f"{where}: models.{name}"
        kin = frozenset(_kin(name, values["models"], label))
        shown = _label(entry, label)
        if "grid" not in entry:
            families[name] = [_Model(name, entry, shown, kin)]
            continue
        _check_grid(entry["grid"], label)
        families[name] = [_member(name, entry, point, kin, shown) for point in _points(name, entry, label)]
        for dataset, member in itertools.product(entry.get("datasets", values["datasets"]), families[name]):
            if (dataset, member.name) in names:
                raise UserError(f"{label}.grid: its member {member.name!r} has the name of another model")
            names.add((dataset, member.name))
    return families


def _kin(name: str, models: Mapping[str, Any], where: str) -> list[str]:
    """A model and those it is like, nearest first (UserError for an unknown one or a circle)."""
    chain = [name]
    while "like" in models[chain[-1]]:
        other = models[chain[-1]]["like"]
        if other not in models:
            raise UserError(f"{where}.like: unknown {other!r}{did_you_mean(other, list(models))}")
        if other in chain:
            raise UserError(f"{where}.like: goes round in a circle ({' -> '.join([*chain, other])})")
        chain.append(other)
    return chain


def _check_grid(grid: Mapping[str, list[Any]], where: str) -> None:
    """Values of body and schedule against the schema, one at a time; options of a head are checked when it is made."""
    definitions = schema("study")["$defs"]
    for key, axis in grid.items():
        part, _, option = key.partition(".")
        for value in axis if part != "head" else ():
            rules = {"$defs": definitions, "$ref": f"#/$defs/{part}"}
            validate({option: value}, rules, f"{where}.grid")


def _points(name: str, entry: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Combinations of a grid: all, or `max_runs` chosen by a hash, so that a larger budget adds to a smaller."""
    keys, axes = list(entry["grid"]), list(entry["grid"].values())
    size, budget = math.prod(map(len, axes)), entry.get("max_runs")
    if size > MAX_MEMBERS:
        raise UserError(f"{where}.grid: {size} combinations are too many (at most {MAX_MEMBERS}); shorten its lists")
    if budget == 0:
        return []
    points = [dict(zip(keys, point, strict=True)) for point in itertools.product(*axes)]
    if budget is None or budget >= size:
        return points
    order = sorted(range(size), key=lambda index: hashlib.sha256(f"{name} {index}".encode()).digest())
    return [points[index] for index in sorted(order[:budget])]


def _member(name: str, entry: Mapping[str, Any], point: Mapping[str, Any], kin: frozenset[str], label: str) -> _Model:
    """One combination: its values replace those of the entry, its name tells them, or is a hash where that is long."""
    own = {**entry, "head": _head_entry(entry), "body": {**entry.get("body", {})}}
    own["schedule"] = {**entry.get("schedule", {})}
    words = []
    member = entry.get("stem", name)
    for key, value in point.items():
        part, _, option = key.partition(".")
        own[part] = {**own[part], option: value}
        text = f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value).lower()
        # `mos-nt-components` with head.components needs no second `components`
        member += text if member.endswith(f"-{option}") else f"-{option}{text}"
        words.append(f"{option.replace('_', ' ')} {text}".replace("-", "\N{MINUS SIGN}"))
    if len(member) > LONGEST_NAME:
        member = f"{entry.get('stem', name)}-{_digest(point)[:8]}"
    return _Model(member, own, f"{label}: {', '.join(words)}", kin | {member})


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
    searches: Mapping[str, Search] = field(default_factory=dict)  # grid entries by name
    author_seeds: Mapping[tuple[str, str], int] = field(default_factory=dict)  # (dataset, model) -> published seed

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
        return _digest([self.name, self.title, self.description, dict(self.labels), experiments, runs])[:12]

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

    def run(self, path: str) -> Run:
        """The run with this path (UserError when the configuration or the code has changed since)."""
        for run in self.runs:
            if run.path == path:
                return run
        raise UserError(f"{self.file}: no run {path!r}; the configuration or the code has changed: see `plan`")


def _study_values(file: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A study's keys, on top of those of the study it extends.

    Its settings come after those, its models change single keys of theirs (null takes a model away), all else replaces.
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
    return base | values | {"settings": layers, "models": _merged_models(base, values, file)}


def _merged_models(base: Mapping[str, Any], values: Mapping[str, Any], file: Path) -> dict[str, Any]:
    merged = dict(base.get("models") or {})
    for name, entry in (values.get("models") or {}).items():
        if entry is None and name not in merged:
            raise UserError(f"{file}: models.{name}: there is none to take away{did_you_mean(name, list(merged))}")
        merged[name] = None if entry is None else {**(merged.get(name) or {}), **entry}
    return {name: entry for name, entry in merged.items() if entry is not None}


def load_study(file: Path, overrides: Mapping[str, Any] | None = None) -> Study:
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
    families = _models(values, where)
    own = [name for name, entry in values["models"].items() if not VARIANT_KEYS & entry.keys()]
    _refuse_unknown_names(values, families, where)
    planned = [
        run
        for dataset in datasets.values()
        for name, members in families.items()
        if dataset.name in values["models"][name].get("datasets", datasets)
        for model in members
        for run in _runs(values, dataset, model, where)
    ]
    runs = _with_twins(run for run, _ in planned)
    chosen = values["experiments"].items()
    return Study(
        name=values["study"],
        title=values["title"],
        description=values.get("description", ""),
        file=file,
        mirror=Path(values["mirror"]) if values.get("mirror") else None,
        datasets=datasets,
        labels={model.name: model.label for members in families.values() for model in members},
        experiments=tuple(
            _experiment(name, given or {}, datasets, families, own, near, where) for name, given in chosen
        ),
        runs=runs,
        searches={
            name: _search(entry["grid"], families[name]) for name, entry in values["models"].items() if "grid" in entry
        },
        author_seeds={(run.dataset, run.model): seed for run, seed in planned if seed is not None},
    )


def _search(grid: Mapping[str, list[Any]], members: list[_Model]) -> Search:
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


def _refuse_unknown_names(values: Mapping[str, Any], families: Mapping[str, list[_Model]], where: str) -> None:
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


def _head_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": entry["head"]} if isinstance(entry["head"], str) else dict(entry["head"])


def _label(entry: Mapping[str, Any], where: str) -> str:
    try:
        return str(entry.get("label") or heads.declaration(_head_entry(entry)["name"]).label)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _runs(values: Mapping[str, Any], dataset: Dataset, model: _Model, where: str) -> list[tuple[Run, int | None]]:
    """The runs of one model on one dataset with the settings layers applied, each with the authors' seed."""
    entry = model.entry
    merged: dict[str, Any] = {"body": {}, "head": {}, "schedule": {}, "author_seed": None}
    for layer in values["settings"]:
        if _applies(layer.get("when", {}), dataset.name, model.kin):
            _merge(merged, layer)
    _merge(merged, {key: entry[key] for key in ("body", "schedule") if key in entry})
    head_entry = _head_entry(entry)
    label = f"{where}: models.{model.name}"
    head = _head(head_entry.pop("name"), merged["head"] | head_entry, label)
    defs = schema("study")["$defs"]
    body = with_defaults(merged["body"], defs["body"]["properties"], f"{label}: body")
    body["context_size"] = body["context_size"] or body["embedding_size"]
    schedule = with_defaults(merged["schedule"], defs["schedule"]["properties"], f"{label}: schedule")
    execution = {key: values[key] for key in ("threads", "device", "deterministic") if key in values}
    author = merged["author_seed"]
    asked = entry.get("seeds", "all")
    given = asked if isinstance(asked, list) else (author, *values["seeds"])
    seeds = list(dict.fromkeys(seed for seed in given if seed is not None))
    chosen = seeds[:1] if asked == "author" else seeds
    plan = (dataset.name, model.name, head, Body(**body), Schedule(**schedule))
    return [(Run(*plan, seed, dataset.identity, **execution), author) for seed in chosen]


def _applies(when: Mapping[str, Any], dataset: str, models: frozenset[str]) -> bool:
    return dataset in _as_list(when.get("dataset", dataset)) and (
        "model" not in when or not models.isdisjoint(_as_list(when["model"]))
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


def _experiment(
    name: str,
    given: Mapping[str, Any],
    datasets: Mapping[str, Dataset],
    families: Mapping[str, list[_Model]],
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


def _family(name: str, families: Mapping[str, list[_Model]]) -> list[str] | None:
    """Labels behind a name: a grid's members, or the model itself; None for an unknown name."""
    if name in families:
        return [model.name for model in families[name]]
    return [name] if any(model.name == name for members in families.values() for model in members) else None


def _expanded(names: list[str], families: Mapping[str, list[_Model]], where: str) -> tuple[str, ...]:
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


STUDY_VARIABLE, SET_VARIABLE = "SOFTMAX_BOTTLENECK_STUDY", "SOFTMAX_BOTTLENECK_SET"


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
