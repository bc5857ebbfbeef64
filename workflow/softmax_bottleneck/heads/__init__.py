"""The output heads, found by listing this folder: a file that declares NAME, LABEL and OPTIONS is a head.

Names and options are read from the source, so that configuration and reports need no torch; ``build`` imports it.

For other people's models each head is also a class under its label, made when first asked for, whose options have their
defaults: ``from softmax_bottleneck.heads import GSS``, then ``GSS(vocabulary_size=10_000, context_size=64,
embedding_size=64, c=-1.5, k=2.5)`` (docs/heads.md).
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softmax_bottleneck.store.errors import UserError

if TYPE_CHECKING:
    from softmax_bottleneck.heads.base import Head
    from softmax_bottleneck.heads.pointwise import Pointwise

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
    """What a head file says of itself: its name in configurations, its label in tables, its options (JSON schemas)."""

    name: str
    label: str
    options: Mapping[str, Mapping[str, Any]]
    path: Path


@cache
def declarations() -> Mapping[str, Declaration]:
    """All heads by name, in alphabetical order of their names."""
    found = [_declaration(path) for path in Path(__file__).parent.glob("*.py")]
    return {head.name: head for head in sorted((h for h in found if h is not None), key=lambda head: head.name)}


def names() -> tuple[str, ...]:
    """Names of all heads, sorted."""
    return tuple(declarations())


def module_path(name: str) -> Path:
    """The file that defines a head. Raises UserError for an unknown name."""
    return declaration(name).path


def declaration(name: str) -> Declaration:
    """The declaration of one head. Raises UserError for an unknown name."""
    try:
        return declarations()[name]
    except KeyError:
        raise UserError(f'unknown head "{name}"{_did_you_mean(name, names())}; heads: {", ".join(names())}') from None


def options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a head: those given, checked against its schema, and the defaults of the rest."""
    schemas = declaration(name).options
    for key, value in given.items():
        if key not in schemas:
            allowed = ", ".join(schemas) or "none"
            raise UserError(f'head "{name}" has no option "{key}"{_did_you_mean(key, schemas)}; its options: {allowed}')
        _check(name, key, value, schemas[key])
    return {key: given.get(key, schema["default"]) for key, schema in schemas.items()}


def build(name: str, *, vocabulary_size: int, context_size: int, embedding_size: int, **given: Any) -> Head:
    """The head of that name. Raises UserError for an unknown name or option and for values not allowed."""
    from softmax_bottleneck.heads.base import PointwiseHead

    sizes = {"vocabulary_size": vocabulary_size, "context_size": context_size, "embedding_size": embedding_size}
    kind, checked = _class(name), options(name, given)
    if _is_pointwise(kind):
        return PointwiseHead(lambda: kind(**checked), **sizes)
    head: Head = kind(**sizes, **checked)
    return head


def __getattr__(attribute: str) -> Any:
    """The class of a head by its label without punctuation: Softmax, GSS, SigSoftmax, LMSPLIF, MoS, MoC..."""
    labelled = {_attribute(head): head.name for head in declarations().values()}
    if attribute not in labelled:
        known = ", ".join(labelled)
        raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}; the heads' classes: {known}")
    globals()[attribute] = kind = _library_class(attribute, labelled[attribute])
    return kind


def __dir__() -> list[str]:
    return sorted({*globals(), *map(_attribute, declarations().values())})


def _attribute(head: Declaration) -> str:
    return "".join(character for character in head.label if character.isalnum())


def _library_class(attribute: str, name: str) -> type[Head]:
    """A subclass of the head's own class whose constructor takes its options as keywords and checks them."""
    from softmax_bottleneck.heads.base import PointwiseHead

    kind = _class(name)
    base = PointwiseHead if _is_pointwise(kind) else kind

    def __init__(self: Any, *, vocabulary_size: int, context_size: int, embedding_size: int, **given: Any) -> None:  # noqa: N807
        sizes: dict[str, Any] = {"vocabulary_size": vocabulary_size, "context_size": context_size}
        sizes["embedding_size"] = embedding_size
        checked = options(name, given)
        if base is PointwiseHead:
            base.__init__(self, lambda: kind(**checked), **sizes)
        else:
            base.__init__(self, **sizes, **checked)

    plain = inspect.signature(__init__)
    named = [
        inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=schema["default"])
        for key, schema in declaration(name).options.items()
    ]
    shown = plain.replace(parameters=[*list(plain.parameters.values())[:-1], *named])
    __init__.__signature__ = shown  # type: ignore[attr-defined]  # what help() and editors show
    __init__.__qualname__ = f"{attribute}.__init__"
    about = sys.modules[kind.__module__].__doc__
    return type(attribute, (base,), {"__init__": __init__, "__module__": __name__, "__doc__": about})


def build_pointwise(name: str, given: Mapping[str, Any]) -> Pointwise:
    """The pointwise function of the head of that name. Raises UserError where that head is more than one."""
    kind, checked = _class(name), options(name, given)
    if not _is_pointwise(kind):
        usable = ", ".join(other for other in names() if _is_pointwise(_class(other)))
        raise UserError(f'head "{name}" is not a pointwise function of the logits; those are: {usable}')
    pointwise: Pointwise = kind(**checked)
    return pointwise


def _class(name: str) -> Any:
    """The one public Head or Pointwise class that the head's own file defines."""
    from softmax_bottleneck.heads.base import Head
    from softmax_bottleneck.heads.pointwise import Pointwise

    module = importlib.import_module(f"{__name__}.{module_path(name).stem}")
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    (kind,) = (value for value in own if issubclass(value, (Head, Pointwise)))
    return kind


def _is_pointwise(kind: type) -> bool:
    from softmax_bottleneck.heads.pointwise import Pointwise

    return issubclass(kind, Pointwise)


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
