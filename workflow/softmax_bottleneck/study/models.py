"""A study's models: entries, those they are like, and the members of grids."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from softmax_bottleneck.heads import registry as heads
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study.runs import digest
from softmax_bottleneck.study.schemas import did_you_mean, schema, validate

MAX_MEMBERS = 100_000  # combinations of one grid
LONGEST_NAME = 80  # of a model; it is a folder


@dataclass(frozen=True)
class Search:
    """A grid: the values of each setting, how many combinations they have, and the members that are trained."""

    axes: Mapping[str, tuple[Any, ...]]  # `head.c` -> values
    size: int
    members: tuple[str, ...]


@dataclass(frozen=True)
class Model:
    """A model of a study, or one member of a grid.

    `kin` are the names whose settings layers apply: its own, its entry's, and those of all models it is like.
    """

    name: str
    entry: Mapping[str, Any]
    label: str
    kin: frozenset[str]


def models_of(values: Mapping[str, Any], where: str) -> dict[str, list[Model]]:
    """The members of every entry under `models`; an entry without a grid has one, itself."""
    families: dict[str, list[Model]] = {}
    names = {(dataset, name) for dataset in values["datasets"] for name in values["models"]}
    for name, entry in values["models"].items():
        label = f"{where}: models.{name}"
        kin = frozenset(_kin(name, values["models"], label))
        shown = _label(entry, label)
        if "grid" not in entry:
            families[name] = [Model(name, entry, shown, kin)]
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


def _member(name: str, entry: Mapping[str, Any], point: Mapping[str, Any], kin: frozenset[str], label: str) -> Model:
    """One combination: its values replace those of the entry, its name tells them, or is a hash where that is long."""
    own = {**entry, "head": head_entry(entry), "body": {**entry.get("body", {})}}
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
        member = f"{entry.get('stem', name)}-{digest(point)[:8]}"
    return Model(member, own, f"{label}: {', '.join(words)}", kin | {member})


def head_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A model's head as name and options, however its entry writes it."""
    return {"name": entry["head"]} if isinstance(entry["head"], str) else dict(entry["head"])


def _label(entry: Mapping[str, Any], where: str) -> str:
    try:
        return str(entry.get("label") or heads.declaration(head_entry(entry)["name"]).label)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
