"""Two functions for memory: one keeps freed memory for reuse, the other turns out-of-memory errors into clear ones.

If the machine's memory runs out, another attempt can succeed, because a batch job can request more memory. A GPU's
memory cannot grow, so that the user must change the settings or the GPU. The program never reduces the batch size by
itself, because a run with another batch size has other results.
"""

import ctypes
import re
import resource
import sys

from softmax_bottleneck.store.errors import MemoryExhaustedError, UserError

CPU_ALLOCATOR = "can't allocate memory"  # in PyTorch's message: a RuntimeError without a class of its own
GPU_CLASS = "OutOfMemoryError"
# Messages of the libraries below PyTorch, in a RuntimeError.
GPU_WORDS = re.compile(r"CU(BLAS|DNN|SOLVER|SPARSE)_STATUS_(ALLOC|INTERNAL_ERROR_DEVICE_ALLOCATION)_FAILED"
                       r"|CUDA(_ERROR_| error: |: )out[_ ]of[_ ]memory", re.IGNORECASE)  # fmt: skip
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # numbers of two parameters of the C function mallopt
LARGEST_MMAP_THRESHOLD = 32 * 2**20  # accepted by glibc; larger blocks always come fresh from the system
LARGEST_INT = 2**31 - 1


def keep_freed() -> bool:
    """Make the C library keep freed memory for the next allocation; return True if this works, as it does with glibc.

    By default glibc returns large blocks of memory to the system. The system then clears every page of the next block,
    which takes a tenth of the time of a training step of the published models. With this setting, the peak memory of
    the process stays the same, but freed memory is not returned to the system.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD) and mallopt(M_TRIM_THRESHOLD, LARGEST_INT))


def as_out_of_memory_error(error: BaseException, where: object) -> UserError | MemoryExhaustedError | None:
    """Return a clear error to raise instead of `error`, or None if `error` does not mean that memory ran out.

    The returned error is a UserError for the memory of a GPU, and a MemoryExhaustedError for the memory of the machine.
    Its message begins with `where`, such as the name of a job.
    """
    reason = " ".join(str(error).split()) or "nothing more is known"
    if type(error).__name__ == GPU_CLASS or (isinstance(error, RuntimeError) and GPU_WORDS.search(reason)):
        return UserError(f"{where}: the GPU's memory is too small ({reason}); use a larger GPU, or "
                         "a smaller schedule.batch_size (another run, with other results)")  # fmt: skip
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and CPU_ALLOCATOR in reason):
        unit = 1 if sys.platform == "darwin" else 1024  # bytes per unit of ru_maxrss, the peak of this process
        peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
        return MemoryExhaustedError(f"{where}: out of memory at a peak of {peak_gb:.1f} GB ({reason}); "
                                    "give the job more (in a batch system: mem_mb) and call again")  # fmt: skip
    return None
