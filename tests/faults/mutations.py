"""Every way to get one field of a configuration wrong: misspelt, of another kind, out of range."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Place = tuple[str | int, ...]
TYPES: dict[str, list[Any]] = {
    "number": ["1e-3", "", [1], {"a": 1}, True, math.nan, math.inf, -math.inf],
    "integer": ["3", "1e3", 1.5, [1], {"a": 1}, True, math.nan],
    "string": [5, 1.5, True, ["x"], {"a": "x"}],
    "boolean": ["no", "true", 0, 1, [True], {}],
    "array": ["x", 5, {"a": 1}],
    "object": ["x", 5, [1]],
}
PATTERN_BREAKERS = [
    "",
    "-rf",
    "../x",
    "a b",
    "a;b",
    "$(touch x)",
    "`touch x`",
    "a\nb",
    "a'b",
    'a"b',
    "~x",
    "a*",
    "x" * 99,
]


@dataclass(frozen=True)
class Mutation:
    """One field changed so that the whole must be refused."""

    name: str
    values: dict[str, Any]


def of(values: dict[str, Any], schema: Mapping[str, Any]) -> Iterator[Mutation]:
    """Every single-field mutation of a configuration that its schema forbids."""
    for place, bad in _bad(values, schema, schema, ()):
        yield Mutation(f"{'.'.join(map(str, place))} = {bad!r:.60}", changed(values, place, bad))
    for place, old, new in _misspelt(values, schema, schema, ()):
        yield Mutation(f"{'.'.join(map(str, place))}: {old} -> {new}", renamed(values, place, old, new))
    for key in schema.get("required", ()):
        yield Mutation(f"{key} left out", {name: value for name, value in values.items() if name != key})


def changed(values: dict[str, Any], place: Place, value: Any) -> dict[str, Any]:
    """A copy with another value at one place."""
    whole = copy.deepcopy(values)
    inner: Any = whole
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return whole


def renamed(values: dict[str, Any], place: Place, old: str, new: str) -> dict[str, Any]:
    """A copy in which one key has another name."""
    whole = copy.deepcopy(values)
    inner: Any = whole
    for key in place:
        inner = inner[key]
    inner[new] = inner.pop(old)
    return whole


def _rule(rule: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rule that a reference leads to; of one that also allows null, the other, with both types."""
    while "$ref" in rule:
        rule = root["$defs"][rule["$ref"].rpartition("/")[2]]
    others = [inner for inner in rule.get("anyOf", ()) if inner.get("type") != "null"]
    if len(others) == 1:
        inner = _rule(others[0], root)
        return {**inner, "type": [inner["type"], "null"]} if "type" in inner else inner
    return rule


def _children(value: Any, rule: Mapping[str, Any]) -> Iterator[tuple[str | int, Any, Mapping[str, Any]]]:
    if isinstance(value, dict):
        known, others = rule.get("properties", {}), next(iter(rule.get("patternProperties", {}).values()), None)
        for key, child in value.items():
            found = known.get(key, others)
            if isinstance(found, Mapping):
                yield key, child, found
    elif isinstance(value, list) and value and isinstance(rule.get("items"), Mapping):
        yield 0, value[0], rule["items"]


def _bad(value: Any, rule: Mapping[str, Any], root: Mapping[str, Any], place: Place) -> Iterator[tuple[Place, Any]]:
    rule = _rule(rule, root)
    if place:
        yield from ((place, bad) for bad in _forbidden(value, rule))
    for key, child, inner in _children(value, rule):
        yield from _bad(child, inner, root, (*place, key))


def _forbidden(value: Any, rule: Mapping[str, Any]) -> Iterator[Any]:
    named = rule.get("type")
    kinds = [named] if isinstance(named, str) else list(named or ())
    if kinds and "null" not in kinds:
        yield None
    if len([kind for kind in kinds if kind != "null"]) == 1:
        yield from TYPES[next(kind for kind in kinds if kind != "null")]
    for key, bad in (("minimum", -1), ("maximum", 1)):
        if key in rule:
            yield rule[key] + bad
            yield (rule[key] + 1) * bad * 1000
    for key in ("exclusiveMinimum", "exclusiveMaximum"):
        if key in rule:
            yield rule[key]
    if "enum" in rule:
        yield from ("nonsense", 3, [value], *([] if "null" in kinds else [None]))
    if "pattern" in rule:
        yield from PATTERN_BREAKERS
    if rule.get("minLength"):
        yield ""
    if rule.get("minItems"):
        yield []
    if rule.get("minProperties"):
        yield {}
    if rule.get("uniqueItems") and isinstance(value, list) and value:
        yield [value[0], value[0]]


def _misspelt(
    value: Any, rule: Mapping[str, Any], root: Mapping[str, Any], place: Place
) -> Iterator[tuple[Place, str, str]]:
    rule = _rule(rule, root)
    if isinstance(value, dict) and rule.get("additionalProperties") is False:
        known = rule.get("properties", {})
        for key in value:
            for typo in typos(key):
                if typo not in known:
                    yield place, key, typo
    for key, child, inner in _children(value, rule):
        yield from _misspelt(child, inner, root, (*place, key))


def typos(word: str) -> list[str]:
    """Two letters exchanged, one left out, one doubled, another case."""
    middle = len(word) // 2
    swapped = word[: middle - 1] + word[middle] + word[middle - 1] + word[middle + 1 :]
    found = [swapped, word[:-1], word + word[-1], word.capitalize(), word.replace("_", "-")]
    return [one for one in dict.fromkeys(found) if one != word and one]


HEAD_OPTIONS: dict[str, list[Any]] = {
    "components": [0, -1, 1.5, 10**9, "2", "1e3", math.nan, math.inf, None, True, [2]],
    "dropout_latent": [-0.1, 1.0, 2, "0.1", math.nan, None, True],
}


def of_heads(values: dict[str, Any], model: str) -> Iterator[Mutation]:
    """Bad and misspelt options of a mixture of softmaxes."""
    place = ("models", model, "head")
    for option, bad_values in HEAD_OPTIONS.items():
        for bad in bad_values:
            yield Mutation(f"{model}.{option} = {bad!r}", changed(values, (*place, option), bad))
        for typo in typos(option):
            yield Mutation(f"{model}: {option} -> {typo}", renamed(values, place, option, typo))
    for name in typos("mos"):
        yield Mutation(f"{model}.name = {name}", changed(values, (*place, "name"), name))


def names(values: dict[str, Any]) -> Iterator[Mutation]:
    """Names of things that are not there."""
    yield Mutation("datasets", changed(values, ("datasets",), ["tinyy"]))
    yield Mutation("model of an experiment", changed(values, ("experiments", "known-truth", "models"), ["softmx"]))
    yield Mutation("dataset of an experiment", changed(values, ("experiments", "known-truth", "datasets"), ["tny"]))
    yield Mutation("experiment", renamed(values, ("experiments",), "known-truth", "known-truht"))
    yield Mutation("model of a layer", changed(values, ("settings", 1, "when", "model"), "mosss"))
    yield Mutation("dataset of a layer", changed(values, ("settings", 1, "when", "dataset"), "tinyy"))
    yield Mutation("like", changed(values, ("models", "moss", "like"), "maus"))
    yield Mutation("dataset of a model", changed(values, ("models", "mos", "datasets"), ["ptb"]))
    for key in ("learning_rate", "epochs", "clip", "optimizer", "batch_size", "bptt"):
        place = ("settings", 0, "schedule")
        left = {name: value for name, value in values["settings"][0]["schedule"].items() if name != key}
        yield Mutation(f"{key} left out", changed(values, place, left))
