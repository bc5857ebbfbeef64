"""Strict YAML, JSON schemas, and messages that name the key."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.fingerprint import PACKAGE

MAX_FILE_BYTES = 1 << 20
MAX_ALIASES = 100  # a study never needs more; a bomb of nested aliases does
NAMES_LISTED = 30


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
    if error.validator in ("required", "dependentRequired"):
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
    known = words.get(str(error.validator))
    return known.format(shown) if known else error.message


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
