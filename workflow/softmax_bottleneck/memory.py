"""Running out of memory, said in words: how much was in use, and what to do.

Too little memory of the machine may pass where a job asks for more of it, so trying again is right; a GPU does not
grow. Nothing is made smaller in silence: another batch size is another experiment.
"""

from __future__ import annotations

import resource
import sys

from softmax_bottleneck.errors import MemoryExhaustedError, UserError

CPU_ALLOCATOR = "can't allocate memory"  # in what PyTorch raises, a RuntimeError of no class of its own
GPU_CLASS = "OutOfMemoryError"


def peak_gb() -> float:
    """The most memory this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB, on macOS bytes
    return peak / 1e9 if sys.platform == "darwin" else peak * 1024 / 1e9


def told(error: BaseException, where: object) -> UserError | MemoryExhaustedError | None:
    """The error to raise instead of one that means that memory ran out; None for any other."""
    reason = " ".join(str(error).split()) or "nothing more is known"
    if type(error).__name__ == GPU_CLASS:
        return UserError(f"{where}: the GPU's memory is too small ({reason}); use a larger GPU, or "
                         "a smaller schedule.batch_size (another run, with other results)")  # fmt: skip
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and CPU_ALLOCATOR in reason):
        return MemoryExhaustedError(f"{where}: out of memory at a peak of {peak_gb():.1f} GB ({reason}); "
                                    "give the job more (in a batch system: mem_mb) and call again")  # fmt: skip
    return None
