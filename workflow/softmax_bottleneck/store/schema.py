"""Reading of configuration files: YAML, the types of values, and one-line messages for values that are not allowed.

Each section of a configuration file is a frozen pydantic dataclass, which gives the schema, types, defaults and
documentation at once. An integer is never read from 10.0, nor a number from text. Unknown keys, NaN and repeated
items of `Unique` lists are rejected.
"""

import dataclasses
import difflib
import os
import re
import reprlib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, dataclass_transform, get_type_hints

import pydantic
import yaml
from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import core_schema
from typing_extensions import TypedDict

from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import ROOT

STRICT = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False, defer_build=True)
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$"  # a folder's name on every system and in every shell
NAMED = 20  # keys or words in a message
UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
EMPTY: Any = Field(default_factory=dict)
READ_AS_TEXT = {"float_type": "0.001 or 1.0e-3, without quotes", "int_type": "10, not 010, 1:30 or '10'"}
MERGE = "tag:yaml.org,2002:merge"
AMBIGUOUS = re.compile(r"^[-+]?(0[0-9_]+|[0-9_]+(:[0-9_.]+)+)$")

Item = TypeVar("Item")
Value = TypeVar("Value")


# --- sections -------------------------------------------------------------------------------------------------------
@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
def section(kind: type[Value]) -> type[Value]:
    """Turn a class into a frozen, keyword-only pydantic dataclass and return it; used as a decorator.

    The dataclass rejects unknown keys and wrong values, both in a YAML file (see `read`) and in a constructor call.
    """
    made: Any = kind
    made.check_keys = pydantic.model_validator(mode="before")(cast(Any, classmethod(_check_keys)))
    made = pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=STRICT)(kind)
    return cast(type[Value], made)


@dataclasses.dataclass(frozen=True)
class PartOf:
    """A pydantic annotation for a dict that sets some of the fields of a section.

    Example: `Annotated[dict[str, Any], PartOf(Schedule)]` accepts `{"epochs": 3}`, as in a layer of settings.

    Attributes:
        kind: the section, a class made by `section`. The dict's keys are names of its fields, and each value must have
            the type of the field.
        nullable: names of fields for which the dict may also have the value None.
    """

    kind: type[Any]
    nullable: tuple[str, ...] = ()

    def __get_pydantic_core_schema__(self, source: object, handler: pydantic.GetCoreSchemaHandler) -> Any:
        """Return the pydantic schema of the dict; pydantic calls this method."""
        types = get_type_hints(self.kind, include_extras=True)
        types |= {name: types[name] | None for name in self.nullable}
        part: Any = TypedDict("PartOf", types, total=False)  # type: ignore[misc]  # made at run time
        schema = handler.generate_schema(pydantic.with_config(STRICT)(part))
        return core_schema.no_info_before_validator_function(lambda values: _check_keys(self.kind, values), schema)


def _check_keys(kind: type[Any], values: object) -> object:
    known = [field.name for field in dataclasses.fields(kind)]
    for key in values if isinstance(values, dict) else ():
        if key not in known:
            raise ValueError(f"unknown key {key!r:.60}{did_you_mean(str(key), known)}")
    return values


# --- types ----------------------------------------------------------------------------------------------------------
def seconds(text: str) -> float:
    """Return the seconds of a duration such as `90s`, `30m`, `4h` or `1.5d`.

    Raises:
        ValueError: the text is not a duration, or the duration is zero.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    if not match or not float(match[1]):
        raise ValueError(f"{text!r:.60} is not a duration. Expected a time above zero: 90s, 30m, 4h or 1.5d")
    return float(match[1]) * UNIT_S[match[2]]


def _check_duration(text: str) -> str:
    seconds(text)
    return text


def _check_unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) < len(values):
        raise ValueError(f"{list(values)!r:.60} is not allowed (every item only once)")
    return values


Integer = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Name = Annotated[str, Field(pattern=NAME)]
Line = Annotated[str, Field(min_length=1)]
Label = Annotated[str, Field(min_length=1, max_length=40)]
Duration = Annotated[str, AfterValidator(_check_duration)]
Seed = Annotated[Integer, Field(ge=0, le=2**63 - 1)]
Positive = Annotated[Integer, Field(ge=1)]
Width = Annotated[Integer, Field(ge=1, le=65_536)]
Count = Annotated[Integer, Field(ge=1, le=100_000)]
Probability = Annotated[Number, Field(ge=0, lt=1)]
Options = dict[str, Any]
Unique = Annotated[tuple[Item, ...], AfterValidator(_check_unique)]
NonEmpty = Annotated[Unique[Item], Field(min_length=1)]
OneOrMore = Annotated[NonEmpty[Item], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]


# --- messages -------------------------------------------------------------------------------------------------------
_short = reprlib.Repr()  # a value may be a list of millions
_short.maxstring = _short.maxother = _short.maxlong = 60
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def read(kind: type[Value] | Callable[..., Value], value: object, where: str) -> Value:
    """Return a value from YAML, validated and converted to a type.

    Args:
        kind: the type, such as a section.
        value: the value from YAML.
        where: location of the value, such as `config/demo.yaml`, for error messages.

    Raises:
        UserError: a value is not allowed, a key is unknown, or keys are missing. The message names the first wrong
            value, or else all missing keys.
    """
    try:
        return cast(Value, _adapter(kind).validate_python(value))
    except ValidationError as error:
        raise UserError(message(error, where)) from None


def message(error: ValidationError, where: str) -> str:
    """Return the first wrong value of a validation error, or else all missing keys, as one line."""
    details = error.errors(include_url=False)
    places = [".".join(str(part) for part in detail["loc"] if str(part)[:1] not in "~[") for detail in details]
    wrong = [index for index, detail in enumerate(details) if detail["type"] != "missing"]
    if not wrong:
        return f"{where}: {few(places)} {'is' if len(places) == 1 else 'are'} not set"
    detail, place = details[wrong[0]], places[wrong[0]]
    where = f"{where}: {place}" if place else where
    if detail["type"] == "value_error":
        return f"{where}: {detail['ctx']['error']}"
    reason = detail["msg"].replace("valid tuple", "list").partition(" or an instance of")[0]
    expected = reason[0].lower() + reason[1:]
    if detail["type"] in READ_AS_TEXT and isinstance(detail["input"], str):
        expected += f"; it is read as text: write {READ_AS_TEXT[detail['type']]}"
    return f"{where}: {_short.repr(detail['input']):.60} is not allowed ({expected})"


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """Return a hint to append to an error message about an unknown word.

    The hint is `; did you mean 'mos'?` if an allowed word is similar to `word`, else `; allowed are mos, softmax`. Of
    many words, only the first NAMED are listed.
    """
    choices = sorted(allowed)
    near = difflib.get_close_matches(word, choices, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; allowed are {few(choices)}"


def few(names: Sequence[str], most: int = NAMED) -> str:
    """Return names as text; if they are more than `most`, as in `mos, softmax and 3 more`."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


# --- files ----------------------------------------------------------------------------------------------------------
class _Loader(yaml.CSafeLoader):
    """A safe YAML loader that rejects repeated keys and keys that are not text, such as `on` (read as true)."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of a YAML node.

        Raises:
            ConstructorError: a key is repeated or is not text.
        """
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == MERGE:
                problem = "merge keys (<<) are not supported; repeat the keys, or use `like` or `extends`"
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key_node.start_mark)
            key = self.construct_object(key_node)
            if not isinstance(key, str) or key in seen:
                problem = "is given twice" if isinstance(key, str) else "is not text; quote it"
                raise yaml.constructor.ConstructorError(
                    problem=f"key {key!r:.60} {problem}", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


# Dates stay text.
_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: loader.construct_scalar(cast(Any, node)))
# So do 010 and 1:30, which YAML 1.1 reads as 8 and 90; where a number is expected, the schema rejects them.
_Loader.yaml_implicit_resolvers = {
    first: [("tag:yaml.org,2002:str", AMBIGUOUS), *others]
    for first, others in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def parse_yaml(text: str, where: str) -> Any:
    """Return the value of a YAML text; `where` names the text's origin in error messages.

    Raises:
        UserError: the text is not valid YAML. The message names the line if it is known.
    """
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a character or number that YAML does not allow
        mark = getattr(error, "problem_mark", None)
        line, problem = f":{mark.line + 1}" if mark else "", getattr(error, "problem", None) or str(error)
        raise UserError(f"{where}{line}: {' '.join(problem.split())}") from None


def load_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds.

    Raises:
        UserError: the file does not exist, is not UTF-8, is not valid YAML, or does not hold a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        hint = did_you_mean(path.name, [other.name for other in path.parent.glob("*.yaml")])
        raise UserError(f"{path}: no such file{hint}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8 text ({error.reason}). Save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}). Expected a YAML file") from None
    value = parse_yaml(text, str(path))
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected `key: value` lines at the top level, got {value!r:.60}")
    return value


def find_config(kind: str, name: str, near: Path) -> Path:
    """Return the path of `<kind>/<name>.yaml`, such as `datasets/ptb.yaml`.

    Folders are searched in this order: `<near>/<kind>`; `near` itself, if its name is `<kind>`, such as `datasets`;
    and `config/<kind>` of the workflow.

    Raises:
        UserError: no such file exists.
    """
    folders = [folder for folder in (near / kind, near, ROOT / "config" / kind) if folder.name == kind]
    for path in (folder / f"{name}.yaml" for folder in folders):
        if path.stem == name and os.path.lexists(path):  # a name with a slash is no name, and a long one no error
            return path
    hint = did_you_mean(name, [path.stem for folder in folders for path in folder.glob("*.yaml")])
    raise UserError(f"{near}: {kind}: no {name!r:.90} ({kind}/{name:.90}.yaml){hint}")
