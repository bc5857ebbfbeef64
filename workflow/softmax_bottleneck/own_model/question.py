"""What `rank` is asked: the files of a model, its head, and how much memory may be used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from softmax_bottleneck import heads
from softmax_bottleneck import study as config
from softmax_bottleneck.own_model import shards
from softmax_bottleneck.store.errors import UserError

FILES = ("hidden", "weight", "log_probs")
UNITS = {"K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True)
class Question:
    """What is to be analysed: the keys of workflow/schemas/own-model.schema.yaml."""

    title: str
    hidden: tuple[str, ...]
    weight: tuple[str, ...]
    bias: str | None
    head: str
    log_probs: tuple[str, ...]
    width: int | None
    max_memory: str | None
    repeats: int
    seed: int

    def files(self) -> list[Path]:
        """All files that are read, each once."""
        named = {key: getattr(self, key) for key in FILES} | {"bias": (self.bias,) if self.bias else ()}
        found = [shard.path for what, patterns in named.items() for shard in shards.find(patterns, what)]
        return list(dict.fromkeys(found))


KEYS = frozenset(field.name for field in fields(Question))


def question(given: Mapping[str, Any], where: str) -> Question:
    """The question asked by a mapping; `where` (a file, the command line) stands in messages.

    Raises:
        UserError: an unknown key, a value that is not allowed, or neither a layer nor log-probabilities.
    """
    rules = config.schema("own-model")
    config.validate(given, rules, where)
    values: dict[str, Any] = {key: rule.get("default", []) for key, rule in rules["properties"].items()} | dict(given)
    values |= {key: tuple(values[key]) for key in FILES}
    asked = Question(**values)
    if bool(asked.log_probs) == bool(asked.hidden) or bool(asked.hidden) != bool(asked.weight):
        raise UserError(f"{where}: give hidden and weight (with bias and head), or log_probs alone")
    if asked.log_probs and (asked.bias or asked.head != "softmax"):
        raise UserError(f"{where}: bias and head belong to hidden and weight; log_probs are what a head gave")
    if any("\ud800" <= character <= "\udfff" for character in asked.title):
        raise UserError(f"{where}: title: {asked.title!r} is not UTF-8 text; write it in UTF-8")
    return asked


def read_question(path: Path) -> Question:
    """The question of a YAML file; the files it names are relative to it."""
    given = config.load_yaml(path)
    config.validate(given, config.schema("own-model"), str(path))
    near = {key: [str(path.parent / name) for name in given.get(key, [])] for key in FILES}
    bias = {"bias": str(path.parent / given["bias"])} if given.get("bias") else {}
    return question(given | near | bias, str(path))


def parse_head(text: str) -> tuple[str, dict[str, Any]]:
    """`gss:c=-1.5,k=2.5` as the head's name and all its options, checked (UserError)."""
    name, _, rest = text.partition(":")
    given = {}
    for pair in filter(None, rest.split(",")):
        key, separator, value = pair.partition("=")
        if not separator:
            raise UserError(f"head {text}: expected NAME:OPTION=VALUE,OPTION=VALUE")
        given[key.strip()] = _plain_value(value.strip())
    return name, heads.options(name, given)


def _plain_value(text: str) -> bool | int | float | str:
    """A number, true or false where the text is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text, text)


def parse_bytes(text: str) -> int:
    """`4GB` (10^9) or `4GiB` (2^30) as bytes (UserError for anything else)."""
    size = re.fullmatch(r"([0-9]{1,9}(?:[.][0-9]{1,9})?) ?([KMGT])(i?)B", text)
    if not size:
        raise UserError(f"max_memory: {text!r} is no size: expected one like 4GB, 1.5 GiB or 512MB")
    number, unit, binary = size.groups()
    return int(float(number) * (1024 if binary else 1000) ** UNITS[unit])
