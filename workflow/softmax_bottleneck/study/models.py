"""The models of a study: entries, the entries whose settings they inherit, and the members of grids."""

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
        label: its name in tables and figures (default: the head's own).
        like: a model whose settings layers and own values also apply to this one (and its head options, if the head is
            the same); this can be repeated.
        datasets: the corpora to train on; all of the study's when absent.
        seeds: `all`, also when absent; `author`, only the authors' own (the first if there is none); or a list.
        grid: a model for every combination of values: `{head.c: [-1.5, 0], head.k: [2, 3]}`.
        stem: prefix of the names of a grid's members (default: the entry's name); grids on different corpora may share
            it.
        max_runs: number of a grid's combinations to train; 0 declares a search and trains nothing.
        body: values for this model, applied after all layers.
        schedule: values for this model, applied after all layers.
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
        """True for a variant of another model (`like`, `grid` or `seeds`)."""
        return not (self.like is None and self.grid is None and self.seeds is None)


@dataclasses.dataclass(frozen=True)
class Search:
    """A grid: the values of each setting (`head.c` -> values), the number of combinations, and the trained members."""

    axes: Mapping[str, tuple[Any, ...]]
    size: int
    members: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Model:
    """A model of a study, or one member of a grid.

    `inherits_from` are the names whose settings layers apply: its own, its entry's, and those of all models it is like.
    """

    name: str
    entry: ModelEntry
    label: str
    inherits_from: frozenset[str]


def models_of(entries: Mapping[str, ModelEntry], datasets: Collection[str], where: str) -> dict[str, list[Model]]:
    """Return the members of every entry under `models`; an entry without a grid has one member, itself.

    Raises:
        UserError: naming the entry and the key.
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
    """Return a model and all that it is like, the nearest first (UserError for an unknown one or a circle)."""
    chain = [name]
    while (other := entries[chain[-1]].like) is not None:
        if other not in entries:
            raise UserError(f"{where}.like: unknown {other!r}{schema.did_you_mean(other, entries)}")
        if other in chain:
            raise UserError(f"{where}.like: goes round in a circle ({' -> '.join([*chain, other])})")
        chain.append(other)
    return chain


def _with_inherited(own: ModelEntry, chain: list[ModelEntry]) -> ModelEntry:
    """Return an entry with the values of those it is like below its own: options of a head only for the same head."""
    parts: dict[str, dict[str, Any]] = {"head": {}, "body": {}, "schedule": {}}
    for entry in reversed(chain):
        parts["head"] |= entry.head if entry.head["name"] == own.head["name"] else {}
        parts["body"] |= entry.body
        parts["schedule"] |= entry.schedule
    return dataclasses.replace(own, **cast(Any, parts))


def _members(family: Model, grid: Grid, where: str) -> list[Model]:
    """Return all combinations of a grid, or `max_runs` chosen by a hash, so that a larger budget adds to a smaller."""
    points = [dict(zip(grid, point, strict=True)) for point in itertools.product(*grid.values())]
    budget = family.entry.max_runs
    if budget is not None and budget < len(points):
        hashes = [hashlib.sha256(f"{family.name} {index}".encode()).digest() for index in range(len(points))]
        chosen = sorted(range(len(points)), key=hashes.__getitem__)[:budget]
        points = [points[index] for index in sorted(chosen)]
    return [_member(family, point, where) for point in points]


def _member(family: Model, point: Mapping[str, Any], where: str) -> Model:
    """Return one combination: its values replace those of the entry, and its name lists them (or is a hash if long)."""
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
