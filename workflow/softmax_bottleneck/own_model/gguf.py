"""Tensors of a GGUF file, of any quantisation, in float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from softmax_bottleneck.corpora.archives import damage_refused
from softmax_bottleneck.own_model.shards import Floats
from softmax_bottleneck.store.errors import UserError


def tensors(path: Path) -> dict[str, Callable[[], Floats]]:
    """Name -> reads that tensor, of all in the file.

    Raises:
        UserError: the package gguf is not installed; DataError: not a sound GGUF file.
    """
    try:
        from gguf import GGUFReader
    except ImportError:
        raise UserError(f"{path}: needs the package gguf, which is not installed: pip install gguf") from None
    with damage_refused(f"{path}: not a sound GGUF file", "fetch it again"):
        return {tensor.name: partial(_read, path, tensor) for tensor in GGUFReader(path).tensors}


def _read(path: Path, tensor: Any) -> Floats:
    from gguf.quants import dequantize

    with damage_refused(f"{path}: {tensor.name} cannot be read", "fetch it again"):
        values: Floats = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
    return values
