"""What `rank` is asked: the files of a model, its head, and how much memory may be used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from softmax_bottleneck import heads
from softmax_bottleneck.own_model import shards
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import load_yaml, read, schema

FILES = ("hidden", "weight", "log_probs")
WAYS = [["hidden", "weight"], ["log_probs"], ["model", "text"], ["weight", "weights_only"], ["model", "weights_only"]]
UNITS = {"K": 1, "M": 2, "G": 3, "T": 4}
Files = tuple[schema.Line, ...]


@schema.section
class Question:
    """What is to be analysed: the options of `rank`, and the keys of a YAML that asks it.

    Attributes:
        title: name of the model in the report.
        hidden: hidden states [contexts, width] that enter the output layer: FILE or FILE::NAME, patterns allowed.
        weight: output matrix [words, width], whole or in shards of words.
        bias: output bias [words].
        head: softmax or another head without weights of its own, with options: `gss:c=-1.5,k=2.5`.
        log_probs: instead of the four above: log-probabilities [contexts, words] in shards of contexts.
        model: instead: a Hugging Face folder or a .gguf file, with `text` or `weights_only`.
        text: file in UTF-8 whose tokens are the contexts of `model`.
        targets: .npy with the number of the word that follows each hidden state, -1 for none; of `model` it is known.
        weights_only: the output matrix itself (of `model` or `weight`), without any text.
        multi_mode: also put prompts with two right words to `model`; see `own_model.multi_mode`.
        width: of the model that made log_probs, for the check of at most width + 2.
        max_memory: `4GB`; beyond it parts are analysed.
        seconds: at most, for words that can never be the most probable one; 0: they are not looked for.
        repeats: samples drawn, for the spread of an estimate.
        seed: of the samples.
    """

    title: Annotated[str, Field(min_length=1, max_length=200)] = "Own model"
    hidden: Files = ()
    weight: Files = ()
    bias: str | None = None
    head: str = "softmax"
    log_probs: Files = ()
    model: schema.Line | None = None
    text: schema.Line | None = None
    targets: schema.Line | None = None
    weights_only: schema.Flag = False
    multi_mode: schema.Flag = False
    width: Annotated[schema.Integer, Field(ge=1)] | None = None
    max_memory: str | None = None
    seconds: Annotated[schema.Number, Field(ge=0, le=1e6)] = 60.0
    repeats: Annotated[schema.Integer, Field(ge=2, le=100)] = 3
    seed: schema.Seed = 1

    def files(self) -> list[Path]:
        """All files that are read, each once."""
        if self.model:
            path = Path(self.model)
            inside = sorted(file for pattern in ("*.json", "*.safetensors") for file in path.glob(pattern))
            return [*(inside or [path]), *([Path(self.text)] if self.text else [])]
        named = {key: getattr(self, key) for key in FILES} | {"bias": (self.bias,) if self.bias else ()}
        found = [shard.path for what, patterns in named.items() for shard in shards.find(patterns, what)]
        return list(dict.fromkeys([*found, *([Path(self.targets)] if self.targets else [])]))


KEYS = frozenset(field.name for field in fields(Question))


def question(given: Mapping[str, Any], where: str) -> Question:
    """The question asked by a mapping; `where` (a file, the command line) stands in messages.

    Raises:
        UserError: an unknown key, a value that is not allowed, or neither a layer nor log-probabilities.
    """
    named = {"title": Path(str(given["model"])).resolve().stem} if given.get("model") else {}
    asked = read(Question, {**named, **given}, where)
    parts = [key for key in (*FILES, "model", "text", "weights_only") if getattr(asked, key)]
    if parts not in WAYS:
        raise UserError(
            f"{where}: give hidden and weight (with bias and head), or log_probs alone, or model and text; with"
            " weights_only model or weight alone"
        )
    if parts != ["hidden", "weight"] and (asked.bias or asked.targets or asked.head != "softmax"):
        raise UserError(f"{where}: bias, head and targets belong to hidden and weight; {parts[0]} says all of it")
    if asked.multi_mode and parts != ["model", "text"]:
        raise UserError(f"{where}: multi_mode puts prompts to a model: give model and text with it")
    return asked


def read_question(path: Path) -> Question:
    """The question of a YAML file; the files it names are relative to it."""
    asked = question(load_yaml(path), str(path))
    near: dict[str, Any] = {key: tuple(str(path.parent / name) for name in getattr(asked, key)) for key in FILES}
    near |= {
        key: str(path.parent / name) for key in ("bias", "model", "text", "targets") if (name := getattr(asked, key))
    }
    return replace(asked, **near)


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
