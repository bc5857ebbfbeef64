"""The options of the command `rank`: the files of a model and its head."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from softmax_bottleneck import heads
from softmax_bottleneck.own_model import arrays
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import read, schema

ARRAYS = ("hidden", "weight", "log_probs")
SOURCES = ("hidden weight", "log_probs", "model text", "weight weights_only")
Files = tuple[schema.Line, ...]


@schema.section
class Request:
    """The options of the command `rank`, which name the model to analyse.

    Attributes:
        hidden: hidden states [contexts, width] that enter the output layer: FILE or FILE::NAME, patterns allowed.
        weight: output matrix [words, width], whole or in shards of words.
        bias: output bias [words].
        head: softmax or another head without weights of its own, with options: `gss:c=-1.5,k=2.5`.
        log_probs: log-probabilities [contexts, words] in shards of contexts, instead of the four options above.
        model: Hugging Face folder or .gguf file, instead of arrays; needs `text`.
        text: UTF-8 file whose tokens are the contexts of `model`.
        targets: .npy file with the index of the word that follows each hidden state, or -1 for none.
        weights_only: True to analyse the output matrix `weight` alone.
        seconds: time limit of the search for unargmaxable words; 0 skips the search.
    """

    hidden: Files = ()
    weight: Files = ()
    bias: str | None = None
    head: str = "softmax"
    log_probs: Files = ()
    model: schema.Line | None = None
    text: schema.Line | None = None
    targets: schema.Line | None = None
    weights_only: schema.Flag = False
    seconds: Annotated[schema.Number, Field(ge=0, le=1e6)] = 60.0

    def files(self) -> list[Path]:
        """Return all files that the request reads, without duplicates."""
        if self.model:
            path = Path(self.model)
            inside = sorted(file for pattern in ("*.json", "*.safetensors") for file in path.glob(pattern))
            return [*(inside or [path]), *([Path(self.text)] if self.text else [])]
        patterns = {key: getattr(self, key) for key in ARRAYS} | {"bias": (self.bias,) if self.bias else ()}
        paths = [array.path for key, names in patterns.items() for array in arrays.find(names, key)]
        return list(dict.fromkeys([*paths, *([Path(self.targets)] if self.targets else [])]))


KEYS = frozenset(field.name for field in fields(Request))


def request(given: Mapping[str, Any], where: str) -> Request:
    """Return the request for a mapping of options, after checking them; `where` names their origin in messages.

    Raises:
        UserError: a key is unknown, a value is not allowed, or the options do not name exactly one kind of input.
    """
    checked = read(Request, given, where)
    keys = (*ARRAYS, "model", "text", "weights_only")
    sources = " ".join(key for key in keys if getattr(checked, key))
    if sources not in SOURCES:
        raise UserError(
            f"{where}: give hidden and weight (with bias and head), or log_probs alone, or model and text, or weight"
            " with weights_only"
        )
    if sources != "hidden weight" and (checked.bias or checked.targets or checked.head != "softmax"):
        raise UserError(f"{where}: bias, head and targets belong to hidden and weight; leave them out with {sources}")
    return checked


def parse_head(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and all options of a head from text such as `gss:c=-1.5,k=2.5`.

    Raises:
        UserError: the text is malformed, or the head or an option is invalid.
    """
    name, _, rest = text.partition(":")
    given: dict[str, Any] = {}
    for pair in filter(None, rest.split(",")):
        key, separator, value = pair.partition("=")
        if not separator:
            raise UserError(f"head {text}: expected NAME:OPTION=VALUE,OPTION=VALUE")
        number = value.strip()
        try:
            given[key.strip()] = int(number) if number.lstrip("-").isdecimal() else float(number)
        except ValueError:
            given[key.strip()] = number
    return name, heads.options(name, given)
