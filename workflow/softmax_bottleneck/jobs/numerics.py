"""The settings that decide the last bits of a result: number of threads, determinism, and exact float32 (no TF32)."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from softmax_bottleneck.jobs.out_of_memory import keep_freed


class Settings(Protocol):
    """The settings that `numerics` applies; a `Run` (one training) and a `Unit` (of fits) have both as attributes."""

    @property
    def threads(self) -> int:
        """The number of CPU threads."""

    @property
    def deterministic(self) -> bool:
        """True if torch must raise an error at an operation whose result may differ from call to call."""


@contextmanager
def numerics(settings: Settings, device: torch.device) -> Iterator[None]:
    """Set torch's number of threads and its deterministic mode inside the context, and restore both afterwards.

    Three changes last until the process ends. On a GPU, TF32 and the benchmark mode of cuDNN are switched off. For
    deterministic runs on a GPU, CUBLAS_WORKSPACE_CONFIG is set. On all devices, the C library keeps freed memory for
    later allocations (`keep_freed`).
    """
    keep_freed()
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), fills
    if device.type == "cuda":
        if settings.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
        # DropConnect makes new weight tensors at every update, which cuDNN copies into its layout.
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
    _set(settings.threads, settings.deterministic, fills=False)  # filling is slow, and everything is overwritten
    try:
        yield
    finally:
        _set(*before)


def _set(threads: int, deterministic: bool, fills: bool) -> None:
    torch.set_num_threads(threads)
    # torch.use_deterministic_algorithms does the same but also imports torch's compiler, which takes a second.
    torch.set_deterministic_debug_mode("error" if deterministic else "default")
    torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]
