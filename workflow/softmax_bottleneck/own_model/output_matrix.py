"""The output matrix of a saved model, found by its name: no text, no transformers.

Tied models save it once, under the name of the embedding.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from softmax_bottleneck.corpora.archives import damage_refused
from softmax_bottleneck.own_model import shards
from softmax_bottleneck.own_model.huggingface import PADDING, require_loadable
from softmax_bottleneck.own_model.question import Question
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError

OUTPUTS = ("lm_head.weight", "embed_out.weight", "output.weight")
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight", "token_embd.weight",
              "embeddings.weight", "embedding.weight")  # fmt: skip


def with_output_matrix(asked: Question, folder: Path) -> tuple[Question, list[str], list[str]]:
    """The same question about one file: the output matrix of the model, without rows of no token.

    With it notes, and the tokens in the order of their numbers, where the model has a tokenizer.json.

    Raises:
        UserError, DataError: no such model, a damaged one, or no tensor, or several, with a name that is known.
    """
    assert asked.model is not None
    path = Path(asked.model)
    facts = require_loadable(path, with_text=False)
    if path.suffix == ".gguf":
        from softmax_bottleneck.own_model import gguf

        tensors = gguf.tensors(path)
        weight = folder / "weight.npy"
        artefacts.write_npy(weight, tensors[_output_name(tensors, path)]())
        return replace(asked, model=None, weight=(str(weight),)), [], []
    where = {name: file for file in sorted(path.glob("*.safetensors")) for name in shards.names(file)}
    name = _output_name(where, path, tied=facts.get("tie_word_embeddings") is not False)
    found = shards.find([f"{where[name]}::{name}"], "weight")
    tokens = _tokens(path, found[0].rows)
    padding = found[0].rows - len(tokens)
    if not tokens or not padding:
        return replace(asked, model=None, weight=(found[0].label,)), [], tokens
    artefacts.write_npy(folder / "weight.npy", shards.load(found, np.arange(len(tokens))))
    return replace(asked, model=None, weight=(str(folder / "weight.npy"),)), [PADDING.format(padding)], tokens


def _tokens(path: Path, most: int) -> list[str]:
    """Tokens of a folder's tokenizer by their numbers, so many at most; none where it has no tokenizer.json."""
    file = path / "tokenizer.json"
    if not file.is_file():
        return []
    with damage_refused(f"{file}: not sound", "save the model again"):
        facts = json.loads(file.read_text(encoding="utf-8"))
        vocabulary = facts["model"]["vocab"]  # a mapping to numbers, or (Unigram) a list of tokens with scores
        pairs = vocabulary.items() if isinstance(vocabulary, dict) else ((t[0], i) for i, t in enumerate(vocabulary))
        known = {number: str(token) for token, number in pairs}
        known |= {token["id"]: token["content"] for token in facts.get("added_tokens", [])}
        return [known.get(number, "") for number in range(min(1 + max(known), most))]


def _output_name(names: Iterable[str], path: Path, tied: bool = True) -> str:
    """The name of the output matrix among those of all tensors: where it is tied, maybe that of the embeddings."""
    for known in (OUTPUTS, EMBEDDINGS) if tied else (OUTPUTS,):
        found = [name for name in names if name in known or name.endswith(tuple(f".{ending}" for ending in known))]
        if len(found) == 1:
            return found[0]
        if found:
            raise UserError(f"{path}: the output matrix may be any of {', '.join(found)}; give one as --weight")
    raise UserError(f"{path}: no tensor has a name like {', '.join(OUTPUTS)}; give the output matrix as --weight")
