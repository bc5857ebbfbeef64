"""Which device work is done on, and what it is called."""

from __future__ import annotations

import torch

from softmax_bottleneck.jobs import cards
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.progress import Say


def choose_device(name: str, say: Say = lambda line: None) -> torch.device:
    """`auto` takes a GPU when there is one, leased to this process (`cards.take`).

    Raises:
        UserError: `cuda` without a GPU, which is never silently the CPU.
    """
    if name != "cpu":
        cards.take(say)
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UserError("device: cuda was asked for, but PyTorch sees no GPU; check the driver and "
                        "CUDA_VISIBLE_DEVICES, or set device: cpu")  # fmt: skip
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def hardware_name(device: torch.device) -> str:
    """What decides the last bits of a product besides the versions: the GPU, or the processor's instructions."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu {torch.backends.cpu.get_cpu_capability()}"
