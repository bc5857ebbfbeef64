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


def with_output_matrix(asked: Question, folder: Path) -> tuple[Question, list[str]]:
    """The same question about one file: the output matrix of the model, without rows of no token; and notes.

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
        return replace(asked, model=None, weight=(str(weight),)), []
    where = {name: file for file in sorted(path.glob("*.safetensors")) for name in shards.names(file)}
    name = _output_name(where, path, tied=facts.get("tie_word_embeddings") is not False)
    found = shards.find([f"{where[name]}::{name}"], "weight")
    words = _tokens(path) or found[0].rows
    if words >= found[0].rows:
        return replace(asked, model=None, weight=(found[0].label,)), []
    artefacts.write_npy(folder / "weight.npy", shards.load(found, np.arange(words)))
    note = PADDING.format(found[0].rows - words)
    return replace(asked, model=None, weight=(str(folder / "weight.npy"),)), [note]


def _tokens(path: Path) -> int:
    """How many tokens the tokenizer of a folder has; 0 where there is none."""
    file = path / "tokenizer.json"
    if not file.is_file():
        return 0
    with damage_refused(f"{file}: not sound", "save the model again"):
        facts = json.loads(file.read_text(encoding="utf-8"))
        vocabulary = facts["model"]["vocab"]  # a mapping to numbers, or (Unigram) a list
        numbers = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
        return 1 + int(max([*numbers, *(token["id"] for token in facts.get("added_tokens", []))]))


def _output_name(names: Iterable[str], path: Path, tied: bool = True) -> str:
    """The name of the output matrix among those of all tensors: where it is tied, maybe that of the embeddings."""
    for known in (OUTPUTS, EMBEDDINGS) if tied else (OUTPUTS,):
        found = [name for name in names if name in known or name.endswith(tuple(f".{ending}" for ending in known))]
        if len(found) == 1:
            return found[0]
        if found:
            raise UserError(f"{path}: the output matrix may be any of {', '.join(found)}; give one as --weight")
    raise UserError(f"{path}: no tensor has a name like {', '.join(OUTPUTS)}; give the output matrix as --weight")
