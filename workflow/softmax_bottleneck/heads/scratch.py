"""Reusable work arrays of the fused loss, each as large as the logits of one chunk.

On a CPU the arrays are kept from one loss to the next, because the first use of newly allocated memory is slow. The
first use of an array takes as long as a softmax over it. The softmax takes most of a small model's training step.
On a GPU this module keeps no arrays, because torch's allocator reuses memory by itself.
"""

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

_KEPT = threading.local()


def scratch(name: str, shape: Sequence[int], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return an uninitialised array of this shape on the device of ``like``, by default with the dtype of ``like``.

    On a CPU each pair of thread and ``name`` has its own memory. The next call with the same name in the same thread
    returns the same memory, so the array must not be used after that call.
    """
    dtype = dtype or like.dtype
    if like.device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=like.device)
    num_elements = torch.Size(shape).numel()
    kept = _KEPT.__dict__.get(name)
    if kept is None or kept.dtype != dtype or kept.numel() < num_elements:
        kept = _KEPT.__dict__[name] = torch.empty(num_elements, dtype=dtype)
    return kept[:num_elements].view(shape)
