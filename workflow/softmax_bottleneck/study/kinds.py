"""Types of what configuration says, for the frozen dataclasses that declare its keys, ranges and defaults once.

An integer is never read from 10.0, nor a number from text; an unknown key, a NaN, and an item that a list has twice are
refused.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar, cast, dataclass_transform, get_type_hints

import pydantic
from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag
from typing_extensions import TypedDict

from softmax_bottleneck.store.errors import UserError

STRICT = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False, defer_build=True)
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$"  # of a folder, on every system and in every shell
UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
EMPTY: Any = Field(default_factory=dict)

Item = TypeVar("Item")
Kind = TypeVar("Kind")


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
def declared(kind: type[Kind]) -> type[Kind]:
    """Make of a class a frozen dataclass with keywords whose values are checked, given by YAML or by code."""
    made: Any = pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=STRICT)(kind)
    return cast(type[Kind], made)


def _unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) < len(values):
        raise ValueError(f"{list(values)!r:.60} is not allowed (every item only once)")
    return values


def _either(value: object) -> str:
    return "~list" if isinstance(value, list | tuple) else "~word"


Integer = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Name = Annotated[str, Field(pattern=NAME)]
Line = Annotated[str, Field(min_length=1)]
Label = Annotated[str, Field(min_length=1, max_length=40)]
Seed = Annotated[Integer, Field(ge=0, le=2**63 - 1)]
Positive = Annotated[Integer, Field(ge=1)]
Width = Annotated[Integer, Field(ge=1, le=65_536)]
Count = Annotated[Integer, Field(ge=1, le=100_000)]
Probability = Annotated[Number, Field(ge=0, lt=1)]
Options = dict[str, Any]
Several = Annotated[tuple[Item, ...], AfterValidator(_unique), Field(json_schema_extra={"uniqueItems": True})]
Some = Annotated[Several[Item], Field(min_length=1)]
SomeOrOne = Annotated[Some[Item], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
# A word or a list: messages are about the one that was meant.
Word = TypeVar("Word")
WordOrSome = Annotated[Annotated[Word, Tag("~word")] | Annotated[Some[Item], Tag("~list")], Discriminator(_either)]


class PartOf:
    """Annotates a mapping of some of the keys that a dataclass declares, each as it is there or as given here."""

    def __init__(self, kind: type, **changed: Any) -> None:
        keys: Any = get_type_hints(kind, include_extras=True) | changed
        part: Any = TypedDict(f"PartOf{kind.__name__}", keys, total=False)  # type: ignore[misc]  # made at run time
        self._keys = pydantic.with_config(STRICT)(part)

    def __get_pydantic_core_schema__(self, source: object, handler: pydantic.GetCoreSchemaHandler) -> Any:
        """What pydantic asks of an annotation."""
        return handler.generate_schema(self._keys)


def seconds(text: str) -> float:
    """`90s`, `30m`, `4h`, `1.5d` in seconds.

    Raises:
        UserError: it is something else, or no time at all.
    """
    parts = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])", text)
    if not parts:
        raise UserError(f"{text!r:.60} is no length of time; write 90s, 30m, 4h or 1.5d")
    if not float(parts[1]):
        raise UserError(f"{text!r:.60} is no time at all; leave it out where there is no limit")
    return float(parts[1]) * UNIT_S[parts[2]]


def _duration(text: str) -> str:
    try:
        seconds(text)
    except UserError as error:
        raise ValueError(str(error)) from None
    return text


Duration = Annotated[str, AfterValidator(_duration)]
