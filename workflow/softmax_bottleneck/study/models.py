"""The models of a study: their entries in YAML, the settings that an entry inherits, and the models of a grid."""

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from softmax_bottleneck.heads.registry import declaration
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import schema
from softmax_bottleneck.study.runs import BodyPart, SchedulePart, digest

LONGEST_NAME = 80  # of a model; it is a folder


def _check_head(head: schema.Options) -> schema.Options:
    if not isinstance(head.get("name"), str):
        raise ValueError("a head has a `name`, and options beside it")
    return head


HeadEntry = Annotated[
    schema.Options,
    BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value),
    AfterValidator(_check_head),
]
# A word or a list: the message is about whichever was meant.
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
        like: another model from which this model inherits layers of settings and the values of `body` and `schedule`,
            and the head's options if both have the same head. That model may have a `like` of its own.
        datasets: corpora to train on; all corpora of the study when absent.
        seeds: `all` (the default); `author`, only the authors' own seed (the first if there is none); or a list.
        grid: lists of values, such as `{head.c: [-1.5, 0], head.k: [2, 3]}`; each combination is a model.
        stem: prefix of the names of a grid's models (default: the entry's name). Grids on different corpora may have
            the same stem.
        max_runs: number of a grid's combinations to train; 0 declares a search and trains nothing.
        body: settings of the body for this model, applied after all layers of settings.
        schedule: settings of training for this model, applied after all layers of settings.
    """

    head: HeadEntry
    label: schema.Label | None = None
    like: schema.Name | None = None
    datasets: schema.NonEmpty[schema.Name] | None = None
    seeds: Seeds | None = None
    grid: Grid | None = None
    stem: schema.Name | None = None
    max_runs: Annotated[schema.Integer, Field(ge=0)] | None = None
    body: BodyPart = schema.EMPTY
    schedule: SchedulePart = schema.EMPTY

    def __post_init__(self) -> None:
        if self.max_runs is not None and self.grid is None:
            raise ValueError("max_runs: it has no grid to choose from")

    @property
    def is_variant(self) -> bool:
        """True if the entry is a variant of another model, that is, has `like`, `grid` or `seeds`."""
        return not (self.like is None and self.grid is None and self.seeds is None)


@dataclasses.dataclass(frozen=True)
class Search:
    """A hyperparameter search over a grid of settings.

    Attributes:
        axes: setting, such as `head.c` -> values to try.
        size: number of all combinations.
        members: names of the models of the grid that the study trains.
    """

    axes: Mapping[str, tuple[Any, ...]]
    size: int
    members: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Model:
    """A model of a study, which is an entry under `models` or one combination of an entry's grid.

    `inherits_from` are the names whose layers of settings apply to the model: the model's own name, the entry's name,
    and the names of all models that `like` leads to, directly or not.
    """

    name: str
    entry: ModelEntry
    label: str
    inherits_from: frozenset[str]


def models_of(entries: Mapping[str, ModelEntry], datasets: Collection[str], where: str) -> dict[str, list[Model]]:
    """Return {entry under `models`: its models}; an entry without a grid is one model.

    Raises:
        UserError: a head or a model under `like` is unknown, `like` leads back to its start, a value of a grid is not
            allowed, or two models on one dataset have the same name.
    """
    families: dict[str, list[Model]] = {}
    taken = set(itertools.product(datasets, entries))
    for name, declared in entries.items():
        place = f"{where}: models.{name}"
        ancestors = _ancestors(name, entries, place)
        entry = _with_inherited(declared, [entries[other] for other in ancestors])
        try:
            label = entry.label or declaration(entry.head["name"]).label
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
        family = Model(name, entry, label, frozenset(ancestors))
        families[name] = [family] if entry.grid is None else _members(family, entry.grid, place)
        for key in itertools.product(entry.datasets or datasets, (member.name for member in families[name])):
            if entry.grid and key in taken:
                raise UserError(f"{place}.grid: its member {key[1]!r} has the name of another model")
            taken.add(key)
    return families


def _ancestors(name: str, entries: Mapping[str, ModelEntry], where: str) -> list[str]:
    """Return the names of a model and of all models that `like` leads to, the nearest first.

    Raises:
        UserError: a model under `like` is unknown, or `like` leads back to a model of the chain.
    """
    chain = [name]
    while (other := entries[chain[-1]].like) is not None:
        if other not in entries:
            raise UserError(f"{where}.like: unknown {other!r}{schema.did_you_mean(other, entries)}")
        if other in chain:
            raise UserError(f"{where}.like: goes round in a circle ({' -> '.join([*chain, other])})")
        chain.append(other)
    return chain


def _with_inherited(own: ModelEntry, chain: list[ModelEntry]) -> ModelEntry:
    """Return an entry with the values that it does not set itself filled in from the entries of `chain`.

    `chain` starts with the entry itself; nearer entries take precedence. Options of a head are inherited only from
    entries with the same head.
    """
    parts: dict[str, dict[str, Any]] = {"head": {}, "body": {}, "schedule": {}}
    for entry in reversed(chain):
        parts["head"] |= entry.head if entry.head["name"] == own.head["name"] else {}
        parts["body"] |= entry.body
        parts["schedule"] |= entry.schedule
    return dataclasses.replace(own, **cast(Any, parts))


def _members(family: Model, grid: Grid, where: str) -> list[Model]:
    """Return the models of a grid: all combinations, or `max_runs` of them.

    A hash chooses the combinations, and thus a larger `max_runs` only adds combinations.
    """
    points = [dict(zip(grid, point, strict=True)) for point in itertools.product(*grid.values())]
    budget = family.entry.max_runs
    if budget is not None and budget < len(points):
        hashes = [hashlib.sha256(f"{family.name} {index}".encode()).digest() for index in range(len(points))]
        chosen = sorted(range(len(points)), key=hashes.__getitem__)[:budget]
        points = [points[index] for index in sorted(chosen)]
    return [_member(family, point, where) for point in points]


def _member(family: Model, point: Mapping[str, Any], where: str) -> Model:
    """Return the model of one combination of a grid, whose values replace those of the entry.

    The name of the model lists the values, or ends with a hash of them if it would be too long.
    """
    entry = family.entry
    stem = name = entry.stem or family.name
    parts = {"head": dict(entry.head), "body": dict(entry.body), "schedule": dict(entry.schedule)}
    words = []
    for key, value in point.items():
        part, _, option = key.partition(".")
        parts[part][option] = value
        text = f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value).lower()
        # `mos-nt-components` with head.components needs no second `components`
        name += text if name.endswith(f"-{option}") else f"-{option}{text}"
        words.append(f"{option.replace('_', ' ')} {text}".replace("-", "\N{MINUS SIGN}"))
    if len(name) > LONGEST_NAME:
        name = f"{stem}-{digest(point)[:8]}"
    if not re.fullmatch(schema.NAME, name):
        raise UserError(f"{where}.grid: its member {name!r} would be a folder; write values of letters, digits, . _ -")
    own = schema.read(ModelEntry, vars(entry) | parts, f"{where}.grid")
    return Model(name, own, f"{family.label}: {', '.join(words)}", family.inherits_from | {name})
