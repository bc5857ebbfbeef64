"""Hashes of what a run came to and of what a resume state says, equal where nothing that counts differs."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from softmax_bottleneck.store import artefacts
from torch import Tensor


def result_hash(folder: Path) -> str:
    """Return the hashes of a run's weights and of its epochs without times."""
    model = folder / "model.safetensors"
    digest = hashlib.sha256((artefacts.sha256_file(model) if model.exists() else "None").encode())
    for row in artefacts.read_lines(folder / "epochs.jsonl"):
        digest.update(json.dumps({**row, "wall_s": None}, sort_keys=True).encode())
    return digest.hexdigest()


def content_sha256(value: object) -> str:
    """Return the hash of a nested state: of its values, not of the bytes of its file."""
    digest = hashlib.sha256()
    if isinstance(value, Tensor):
        digest.update(f"{value.dtype} {tuple(value.shape)} {value.tolist()!r}".encode())
    elif isinstance(value, Mapping):
        digest.update(repr([(key, content_sha256(value[key])) for key in sorted(value)]).encode())
    elif isinstance(value, list | tuple):
        digest.update(repr([content_sha256(item) for item in value]).encode())
    else:
        digest.update(f"{type(value).__name__} {value!r}".encode())
    return digest.hexdigest()
