"""Values of declared types from what YAML said, and one-line messages that name the key."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from softmax_bottleneck.store.errors import UserError

NAMES_LISTED = 30
SHOWN = 60  # characters of a value in a message

Value = TypeVar("Value")


def read(kind: type[Value], value: object, where: str) -> Value:
    """What YAML said as the value of a declared type.

    Raises:
        UserError: naming `where`, the key, the value and what is allowed.
    """
    try:
        return cast(Value, _adapter(cast(Any, kind)).validate_python(value))
    except ValidationError as error:
        details = error.errors(include_url=False)
    misspelt = [detail for detail in details if detail["type"] in UNKNOWN_KEY]
    absent = [detail for detail in details if detail["type"] == "missing"]
    if len(absent) > 1 and not misspelt:
        places = [".".join(map(str, _names(detail))) for detail in absent]
        raise UserError(f"{where}: {', '.join(places)} are not set")
    raise UserError(_message(kind, (misspelt or details)[0], where).replace("\n", "\\n"))  # of a key


def _names(detail: Any) -> list[str | int]:
    """The keys that lead to what an error is about."""
    return [part for part in detail["loc"] if not (isinstance(part, str) and part.startswith(("~", "[")))]


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@cache
def json_schema(kind: Any) -> dict[str, Any]:
    """The JSON schema of a declared type."""
    return _adapter(kind).json_schema()


UNKNOWN_KEY = {"extra_forbidden", "unexpected_keyword_argument"}
ALLOWED = {
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "greater_than": "more than {gt}",
    "less_than": "less than {lt}",
    "too_short": "at least {min_length} item",
    "too_long": "at most {max_length} items",
    "string_too_short": "at least {min_length} character",
    "string_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "literal_error": "one of {expected}",
    "int_type": "must be of type integer",
    "float_type": "must be of type number",
    "string_type": "must be of type text",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping, `key: value`",
    "dataclass_type": "must be a mapping, `key: value`",
}


def _message(kind: Any, detail: Any, where: str) -> str:
    names = _names(detail)
    last = names.pop() if detail["type"] in {*UNKNOWN_KEY, "missing"} else None
    place = f"{where}: {'.'.join(map(str, names))}" if names else where
    shown, context = f"{detail['input']!r:.{SHOWN}}", detail.get("ctx", {})
    if detail["type"] in UNKNOWN_KEY:
        return f"{place}: unknown key {last!r:.60}{did_you_mean(str(last), _keys_at(kind, names))}"
    if last is not None:
        return f"{place}: {last} is not set"
    if detail["type"] == "value_error":
        return f"{place}: {context['error']}"
    if detail["type"] == "finite_number":
        return f"{place}: {shown} is not a finite number"
    allowed = ALLOWED.get(detail["type"], detail["msg"]).format(**context)
    if detail["type"] == "literal_error":
        allowed = allowed.replace("'", "").replace(" or ", ", ")
    as_text = detail["type"] == "float_type" and isinstance(detail["input"], str)
    hint = "; it is read as text: write 0.001 or 1.0e-3, without quotes" if as_text else ""
    return f"{place}: {shown} is not allowed ({allowed}){hint}"


def _keys_at(kind: Any, names: Iterable[str | int]) -> list[str]:
    """The keys that a mapping at this place of a declared type may have, read from its JSON schema."""
    root = json_schema(kind)
    rules: list[Mapping[str, Any]] = [root]
    for name in names:
        rules = [inner for rule in rules for inner in _rules_of(rule, name, root)]
    return [key for rule in rules for branch in _branches(rule, root) for key in branch.get("properties", {})]


def _rules_of(rule: Mapping[str, Any], name: str | int, root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for branch in _branches(rule, root):
        others = [
            branch.get("additionalProperties"),
            *branch.get("patternProperties", {}).values(),
            branch.get("items"),
        ]
        named = branch.get("properties", {}).get(name)
        yield from [named] if named else (other for other in others if isinstance(other, Mapping))


def _branches(rule: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if "$ref" in rule:
        rule = root["$defs"][rule["$ref"].rpartition("/")[2]]
    yield rule
    for choice in (*rule.get("anyOf", ()), *rule.get("oneOf", ())):
        yield from _branches(choice, root)


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or the list of what is allowed."""
    choices = sorted(allowed)
    near = difflib.get_close_matches(word, choices, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    more = f" and {len(choices) - NAMES_LISTED} more" if len(choices) > NAMES_LISTED else ""
    return f"; allowed are {', '.join(choices[:NAMES_LISTED])}{more}"
