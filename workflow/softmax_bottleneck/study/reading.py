"""YAML as configuration may be written: strict, of bounded size, depth and repetition, read by the C parser."""

from __future__ import annotations

import copy
import difflib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import yaml

from softmax_bottleneck.store.errors import UserError

MAX_FILE_BYTES = 1 << 20
MAX_ALIASES = 100
MAX_VALUES = 100_000  # with every alias written out; the largest study of this repository has 3,000
MAX_DEPTH = 32
LONGEST_NUMBER = 40  # characters
LARGEST_INTEGER = 10**30
TAG_PREFIX = "tag:yaml.org,2002:"
# What no file, path or page can hold: control characters but tab and line ends, halves of UTF-16 pairs.
UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def load_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds.

    Raises:
        UserError: with file and line, for what is no file, no UTF-8, no YAML, too long, or not `parse_yaml`'s.
    """
    if not path.is_file():  # a pipe would never end
        near = difflib.get_close_matches(path.name, [other.name for other in path.parent.glob("*.yaml")], n=1)
        hint = f"did you mean {path.with_name(near[0])}?" if near else "give the path of a YAML file"
        raise UserError(f"{path}: cannot be read (no such file); {hint}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give the path of a YAML file") from None
    if len(data) > MAX_FILE_BYTES:
        raise UserError(f"{path}: {len(data)} bytes is too long for a configuration (at most {MAX_FILE_BYTES})")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line, byte = data.count(b"\n", 0, error.start) + 1, data[error.start]
        raise UserError(f"{path}:{line}: byte 0x{byte:02x} is not UTF-8; save the file as UTF-8") from None
    value = parse_yaml(text, str(path))
    if not isinstance(value, dict):
        found = "nothing" if value is None else type(value).__name__
        raise UserError(f"{path}: expected `key: value` lines at the top level, found {found}")
    return value


def parse_yaml(text: str, where: str) -> Any:
    """The value that a YAML text says; `where` it is from stands in messages.

    A key is text and stands once in its mapping. Dates stay text. An alias gives a value of its own.

    Raises:
        UserError: with the line, where there is one.
    """
    try:
        value = _Document(text).value()
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{where}{line}: {error.problem or error.context}") from None
    except yaml.YAMLError as error:  # a character that is none in YAML
        raise UserError(f"{where}: {' '.join(str(error).split())}") from None
    refuse_unfit(value, where)
    return value


class _Document:
    """The one document of a text, read event by event: the nodes of the C parser overflow its stack when nested deeply.

    Events are typed as Any: which attributes one has depends on its kind, and the stubs know them of none.
    """

    def __init__(self, text: str) -> None:
        self._loader: Any = yaml.CSafeLoader(text)
        self._anchors: dict[str, tuple[Any, int]] = {}  # what stands behind an anchor, and how many values that is
        self._values = self._aliases = 0

    def value(self) -> Any:
        """Its value; None of an empty text."""
        self._loader.get_event()  # the stream begins
        if isinstance(self._loader.get_event(), yaml.StreamEndEvent):
            return None
        value = self._value(self._loader.get_event(), 0)
        self._loader.get_event()  # the document ends
        if not isinstance(after := self._loader.get_event(), yaml.StreamEndEvent):
            _refuse(after, "a second document; a file holds one")
        if self._aliases > MAX_ALIASES:
            _refuse(after, f"{self._aliases} YAML aliases (at most {MAX_ALIASES}); write the values out")
        return value

    def _value(self, event: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            _refuse(event, f"nested deeper than {MAX_DEPTH} levels")
        before = self._values
        self._count(event, 1)
        if isinstance(event, yaml.AliasEvent):
            return self._copy(event)
        if isinstance(event, yaml.MappingStartEvent):
            value: Any = self._mapping(event, depth)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._sequence(event, depth)
        else:
            value = self._scalar(event)
        if event.anchor:
            self._anchors[event.anchor] = value, self._values - before
        return value

    def _count(self, event: Any, more: int) -> None:
        self._values += more
        if self._values > MAX_VALUES:
            _refuse(event, f"more than {MAX_VALUES} values, aliases written out; write fewer")

    def _copy(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            _refuse(event, f"the alias *{event.anchor:.60} stands for nothing that is complete above it")
        value, size = self._anchors[event.anchor]
        self._aliases += 1
        self._count(event, size)
        return copy.deepcopy(value)

    def _sequence(self, event: Any, depth: int) -> list[Any]:
        _refuse_tag(event, "seq")
        values = []
        while not isinstance(child := self._loader.get_event(), yaml.SequenceEndEvent):
            values.append(self._value(child, depth + 1))
        return values

    def _mapping(self, event: Any, depth: int) -> dict[str, Any]:
        _refuse_tag(event, "map")
        values: dict[str, Any] = {}
        while not isinstance(child := self._loader.get_event(), yaml.MappingEndEvent):
            key = self._value(child, depth + 1)
            if not isinstance(key, str):
                _refuse(child, f"key {key!r:.60} is not text; quote it")
            if key in values:
                _refuse(child, f"key {key!r:.60} is given twice")
            values[key] = self._value(self._loader.get_event(), depth + 1)
        return values

    def _scalar(self, event: Any) -> Any:
        implied = event.tag in (None, "!")
        tag = self._loader.resolve(yaml.ScalarNode, event.value, event.implicit) if implied else event.tag
        kind = tag.removeprefix(TAG_PREFIX)
        if kind in {"str", "timestamp"}:
            return event.value
        if kind not in {"int", "float", "bool", "null"}:
            _refuse(event, f"the tag {tag!r:.60} is not allowed; leave it out")
        if len(event.value) > LONGEST_NUMBER:
            _refuse(event, f"a number of {len(event.value)} characters; quote it if it is text")
        try:
            return self._loader.construct_object(yaml.ScalarNode(tag, event.value))
        except (ValueError, KeyError, IndexError):  # an explicit tag before something else
            _refuse(event, f"{event.value!r} is no {kind}")


def _refuse_tag(event: Any, kind: str) -> None:
    if event.tag not in (None, "!", f"{TAG_PREFIX}{kind}"):
        _refuse(event, f"the tag {event.tag!r:.60} is not allowed; leave it out")


def _refuse(event: Any, words: str) -> NoReturn:
    raise yaml.MarkedYAMLError(problem=words, problem_mark=event.start_mark)


def refuse_unfit(value: object, where: str, depth: int = 0) -> None:
    """UserError for what YAML can say and no study may: endless numbers, control characters, nests without end."""
    if depth > MAX_DEPTH:
        raise UserError(f"{where}: nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{where}: {value} is not a finite number")
    if isinstance(value, int) and abs(value) >= LARGEST_INTEGER:
        raise UserError(f"{where}: an integer of more than {len(str(LARGEST_INTEGER)) - 1} digits")
    if isinstance(value, str) and UNFIT.search(value):
        raise UserError(f"{where}: {value!r:.60} holds a character that is no text")
    children = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        refuse_unfit(key, where)
        refuse_unfit(child, f"{where}: {key}" if isinstance(key, str) else where, depth + 1)
