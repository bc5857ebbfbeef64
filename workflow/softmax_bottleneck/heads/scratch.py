"""Reusable work arrays of the fused loss, each as large as the logits of one chunk.

On a CPU the arrays are kept from one loss to the next. The first use of newly allocated memory takes as long as a
softmax over an array of that size, which is the largest part of a small model's training step. A GPU's allocator reuses
memory by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

_KEPT = threading.local()


def scratch(name: str, shape: Sequence[int], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return an uninitialised array on the device of ``like``, with the dtype of ``like`` by default.

    On a CPU the array uses memory that belongs to this thread and ``name``. It is therefore valid until the same thread
    requests ``name`` again.
    """
    dtype = dtype or like.dtype
    if like.device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=like.device)
    num_elements = torch.Size(shape).numel()
    kept = _KEPT.__dict__.get(name)
    if kept is None or kept.dtype != dtype or kept.numel() < num_elements:
        kept = _KEPT.__dict__[name] = torch.empty(num_elements, dtype=dtype)
    array: Tensor = kept[:num_elements].view(shape)
    return array
