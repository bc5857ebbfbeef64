"""The declarations of the heads (name, label, options), parsed from their source files without importing torch.

A file of this folder that declares NAME, LABEL and OPTIONS is a head.
"""

from __future__ import annotations

import ast
import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from softmax_bottleneck.store.errors import UserError

_TYPES: dict[str, tuple[type, ...]] = {
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "string": (str,),
    "object": (dict,),
}
_LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("at least", lambda value, limit: value >= limit),
    "maximum": ("at most", lambda value, limit: value <= limit),
    "exclusiveMinimum": ("more than", lambda value, limit: value > limit),
    "exclusiveMaximum": ("less than", lambda value, limit: value < limit),
    "enum": ("one of", lambda value, allowed: value in allowed),
}


@dataclass(frozen=True)
class Declaration:
    """The declaration of a head in its file.

    Attributes:
        name: the head's name in configurations.
        label: the head's name in tables.
        options: {name of an option: its JSON schema}, such as {"components": {"type": "integer", "default": 15}}.
        path: the file that defines the head.
    """

    name: str
    label: str
    options: Mapping[str, Mapping[str, Any]]
    path: Path


@cache
def declarations() -> Mapping[str, Declaration]:
    """Return {name: declaration} of all heads, in alphabetical order."""
    found = [_declaration(path) for path in Path(__file__).parent.glob("*.py")]
    return {head.name: head for head in sorted((h for h in found if h is not None), key=lambda head: head.name)}


def names() -> tuple[str, ...]:
    """Return the names of all heads, sorted."""
    return tuple(declarations())


def module_path(name: str) -> Path:
    """Return the path of the file that defines a head.

    Raises:
        UserError: no head has this name.
    """
    return declaration(name).path


def declaration(name: str) -> Declaration:
    """Return the declaration of one head.

    Raises:
        UserError: no head has this name.
    """
    try:
        return declarations()[name]
    except KeyError:
        raise UserError(f'unknown head "{name}"{_did_you_mean(name, names())}; heads: {", ".join(names())}') from None


def options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a head: the given values, and the defaults of the options that are not given.

    Raises:
        UserError: the head or an option is unknown, or a value does not fit the option's schema.
    """
    schemas = declaration(name).options
    for key, value in given.items():
        if key not in schemas:
            allowed = ", ".join(schemas) or "none"
            raise UserError(f'head "{name}" has no option "{key}"{_did_you_mean(key, schemas)}; its options: {allowed}')
        _check(name, key, value, schemas[key])
    return {key: given.get(key, schema["default"]) for key, schema in schemas.items()}


def _declaration(path: Path) -> Declaration | None:
    literals: dict[str, Any] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name) and target.id in {"NAME", "LABEL", "OPTIONS"}:
                literals[target.id] = ast.literal_eval(node.value)
    if "NAME" not in literals:
        return None
    return Declaration(literals["NAME"], literals["LABEL"], literals["OPTIONS"], path)


def _check(name: str, key: str, value: Any, schema: Mapping[str, Any]) -> None:
    kind = schema["type"]
    right_type = isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
    if not right_type or (isinstance(value, float) and not math.isfinite(value)):
        raise UserError(f'head "{name}": option "{key}" must be a {kind}, got {value!r}')
    for keyword, (words, holds) in _LIMITS.items():
        if keyword in schema and not holds(value, schema[keyword]):
            raise UserError(f'head "{name}": option "{key}" must be {words} {schema[keyword]}, got {value!r}')


def _did_you_mean(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f' (did you mean "{close[0]}"?)' if close else ""
