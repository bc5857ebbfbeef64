"""A study's models: entries, those whose settings they inherit, and the members of grids."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field

from softmax_bottleneck.heads.registry import declaration
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import kinds
from softmax_bottleneck.study.runs import BodyPart, SchedulePart, digest
from softmax_bottleneck.study.validation import did_you_mean, read

MAX_MEMBERS = 100_000  # combinations of one grid
LONGEST_NAME = 80  # of a model; it is a folder
LONGEST_TEXT = 200  # of an option; messages quote it


def _named(head: kinds.Options) -> kinds.Options:
    if not isinstance(head.get("name"), str):
        raise ValueError("a head has a `name`, and options beside it")
    for key, value in head.items():
        if len(str(value)) > LONGEST_TEXT:
            raise ValueError(f"{key}: {value!r:.60} is not allowed (must be no longer than {LONGEST_TEXT} characters)")
    return head


def _scalar(value: object) -> object:
    if not isinstance(value, bool | int | float | str):
        raise ValueError(f"{value!r:.60} is not allowed (must be a number, a text, true or false)")
    return value


HeadEntry = Annotated[
    kinds.Options,
    BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value),
    AfterValidator(_named),
]
Axis = Annotated[kinds.Some[Annotated[Any, AfterValidator(_scalar)]], Field(max_length=1000)]
Grid = Annotated[
    dict[Annotated[str, Field(pattern="^(head|body|schedule)[.][a-z_]+$")], Axis], Field(min_length=1, max_length=8)
]


@kinds.declared
class ModelEntry:
    """What is trained, as a study's YAML says it.

    Attributes:
        head: a name (a file in workflow/softmax_bottleneck/heads), or `{name: ..., option: ...}`.
        label: its name in tables and figures; the head's own when absent.
        like: a model whose settings layers apply to it too, with those of the model that one is like, and so on; and
            the values that entry has of its own, those of a head where the head is the same.
        datasets: the corpora it is trained on; all of the study's when absent.
        seeds: `all`, also when absent; `author`, only the authors' own (the first where there is none); or a list.
        grid: a model for every combination of values: `{head.c: [-1.5, 0], head.k: [2, 3]}`.
        stem: how the names of a grid's members begin, when not with the entry's; grids on different corpora may share
            it.
        max_runs: budget of a grid: so many of its combinations; 0 declares a search and trains nothing.
        body: its own values, after all layers.
        schedule: its own values, after all layers.
    """

    head: HeadEntry
    label: kinds.Label | None = None
    like: kinds.Name | None = None
    datasets: kinds.Some[kinds.Name] | None = None
    seeds: kinds.WordOrSome[Literal["all", "author"], kinds.Seed] | None = None
    grid: Grid | None = None
    stem: kinds.Name | None = None
    max_runs: Annotated[kinds.Integer, Field(ge=0, le=MAX_MEMBERS)] | None = None
    body: BodyPart = kinds.EMPTY
    schedule: SchedulePart = kinds.EMPTY

    @property
    def is_variant(self) -> bool:
        """Whether it is a variant of other models rather than one of the study's own."""
        return not (self.like is None and self.grid is None and self.seeds is None)


@dataclasses.dataclass(frozen=True)
class Search:
    """A grid: the values of each setting, how many combinations they have, and the members that are trained."""

    axes: Mapping[str, tuple[Any, ...]]  # `head.c` -> values
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
    """The members of every entry under `models`; an entry without a grid has one, itself.

    Raises:
        UserError: naming the entry and the key.
    """
    families: dict[str, list[Model]] = {}
    taken = set(itertools.product(datasets, entries))
    for name, entry in entries.items():
        place = f"{where}: models.{name}"
        ancestors = _ancestors(name, entries, place)
        entry, inherits_from = _with_inherited([entries[other] for other in ancestors]), frozenset(ancestors)
        label = entry.label or _label_of_head(entry, place)
        if entry.grid is None:
            if entry.max_runs is not None:
                raise UserError(f"{place}.max_runs: it has no grid to choose from")
            families[name] = [Model(name, entry, label, inherits_from)]
            continue
        points = _points(name, entry.grid, entry.max_runs, place)
        families[name] = [_member(Model(name, entry, label, inherits_from), point, place) for point in points]
        for key in itertools.product(entry.datasets or datasets, (member.name for member in families[name])):
            if key in taken:
                raise UserError(f"{place}.grid: its member {key[1]!r} has the name of another model")
            taken.add(key)
    return families


def search_of(grid: Grid, members: list[Model]) -> Search:
    """A grid with the members of it that are trained."""
    return Search(grid, math.prod(map(len, grid.values())), tuple(member.name for member in members))


def _ancestors(name: str, entries: Mapping[str, ModelEntry], where: str) -> list[str]:
    """A model and all that it is like, from the nearest on (UserError for an unknown one or a circle)."""
    chain = [name]
    while (other := entries[chain[-1]].like) is not None:
        if other not in entries:
            raise UserError(f"{where}.like: unknown {other!r}{did_you_mean(other, entries)}")
        if other in chain:
            raise UserError(f"{where}.like: goes round in a circle ({' -> '.join([*chain, other])})")
        chain.append(other)
    return chain


def _with_inherited(chain: Sequence[ModelEntry]) -> ModelEntry:
    """The first entry, with the values of those it is like below its own: options of a head only for the same head."""
    own = chain[0]
    parts: dict[str, dict[str, Any]] = {"head": {}, "body": {}, "schedule": {}}
    for entry in reversed(chain):
        parts["head"] |= entry.head if entry.head["name"] == own.head["name"] else {}
        parts["body"] |= entry.body
        parts["schedule"] |= entry.schedule
    return dataclasses.replace(own, **cast(Any, parts))


def _points(name: str, grid: Grid, budget: int | None, where: str) -> list[dict[str, Any]]:
    """Combinations of a grid: all, or `budget` chosen by a hash, so that a larger budget adds to a smaller.

    kinds.Options of a head are checked when it is made, all other values here.
    """
    for key, axis in grid.items():
        part, _, option = key.partition(".")
        for value in axis if part != "head" else ():
            read(BodyPart if part == "body" else SchedulePart, {option: value}, f"{where}.grid")
    size = math.prod(map(len, grid.values()))
    if size > MAX_MEMBERS:
        raise UserError(f"{where}.grid: {size} combinations are too many (at most {MAX_MEMBERS}); shorten its lists")
    if budget == 0:
        return []
    points = [dict(zip(grid, point, strict=True)) for point in itertools.product(*grid.values())]
    if budget is None or budget >= size:
        return points
    order = sorted(range(size), key=lambda index: hashlib.sha256(f"{name} {index}".encode()).digest())
    return [points[index] for index in sorted(order[:budget])]


def _member(family: Model, point: Mapping[str, Any], where: str) -> Model:
    """One combination: its values replace those of the entry; its name says them, or is a hash where that is long."""
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
    if not re.fullmatch(kinds.NAME, name):
        raise UserError(f"{where}.grid: its member {name!r} would be a folder; write values of letters, digits, . _ -")
    own = dataclasses.replace(entry, **cast(Any, parts))
    return Model(name, own, f"{family.label}: {', '.join(words)}", family.inherits_from | {name})


def _label_of_head(entry: ModelEntry, where: str) -> str:
    try:
        return declaration(entry.head["name"]).label
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
