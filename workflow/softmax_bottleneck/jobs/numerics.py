"""What decides the last bits of a result besides its settings: threads, determinism, and that float32 means float32."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from softmax_bottleneck.jobs.out_of_memory import keep_freed


class Settings(Protocol):
    """What a run or a fit says of it."""

    @property
    def threads(self) -> int:
        """Of the processor, for one product."""

    @property
    def deterministic(self) -> bool:
        """Whether operations whose order of sums varies are refused."""


@contextmanager
def numerics(settings: Settings, device: torch.device) -> Iterator[None]:
    """Threads and determinism while inside; float32 means float32 (no TF32). Freed memory is kept from here on."""
    keep_freed()
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), fills
    if device.type == "cuda":
        if settings.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
        # Dropped weights are new tensors at every update; copying them into cuDNN's layout is the price of DropConnect.
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
    _set(settings.threads, settings.deterministic, fills=False)  # filling is slow, and all of it is overwritten
    try:
        yield
    finally:
        _set(*before)


def _set(threads: int, deterministic: bool, fills: bool) -> None:
    torch.set_num_threads(threads)
    # As torch.use_deterministic_algorithms, which imports torch's compiler besides: a second of every step.
    torch.set_deterministic_debug_mode("error" if deterministic else "default")
    torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]
