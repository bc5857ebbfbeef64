"""The output matrix of a saved model, found by its name: no text, no transformers.

Tied models save it once, under the name of the embedding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from softmax_bottleneck.own_model import shards
from softmax_bottleneck.own_model.huggingface import require_loadable
from softmax_bottleneck.own_model.question import Question
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError

OUTPUTS = ("lm_head.weight", "embed_out.weight", "output.weight")
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight", "token_embd.weight",
              "embeddings.weight", "embedding.weight")  # fmt: skip


def with_output_matrix(asked: Question, folder: Path) -> Question:
    """The same question about one file: the output matrix of the model.

    Raises:
        UserError, DataError: no such model, a damaged one, or no tensor, or several, with a name that is known.
    """
    assert asked.model is not None
    path = Path(asked.model)
    require_loadable(path, with_text=False)
    if path.suffix == ".gguf":
        from softmax_bottleneck.own_model import gguf

        tensors = gguf.tensors(path)
        weight = folder / "weight.npy"
        artefacts.write_npy(weight, tensors[_output_name(tensors, path)]())
        return replace(asked, model=None, weight=(str(weight),))
    where = {name: file for file in sorted(path.glob("*.safetensors")) for name in shards.names(file)}
    name = _output_name(where, path)
    return replace(asked, model=None, weight=(f"{where[name]}::{name}",))


def _output_name(names: Iterable[str], path: Path) -> str:
    """The name of the output matrix among those of all tensors."""
    for known in (OUTPUTS, EMBEDDINGS):
        found = [name for name in names if name in known or name.endswith(tuple(f".{ending}" for ending in known))]
        if len(found) == 1:
            return found[0]
        if found:
            raise UserError(f"{path}: the output matrix may be any of {', '.join(found)}; give one as --weight")
    raise UserError(f"{path}: no tensor has a name like {', '.join(OUTPUTS)}; give the output matrix as --weight")
