"""The choice of the device that a process computes on, and leases that give each process a GPU of its own.

A lease is an operating-system lock on a file in the machine's folder for temporary files. The kernel releases the lock
when the process ends, however it ends. The file is named after the GPU's UUID, which is the same in every process and
project. In a batch job nothing is leased, because the batch system has assigned the GPUs.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.progress import Say

if TYPE_CHECKING:
    import torch

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"  # read by the driver when a process first uses a GPU
GIVEN_VARIABLE = "SOFTMAX_BOTTLENECK_GPU_IS_GIVEN"  # set by a parent process that holds the lease
BATCH_VARIABLES = ("SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID", "_CONDOR_JOB_AD")
LIST_TIMEOUT_S = 20.0
LOOK_EVERY_S = 1.0
_held: list[int] = []  # descriptors of this process's lease, open until it ends


def choose_device(name: str, say: Say = lambda line: None) -> torch.device:
    """Return the device for `auto`, `cuda` or `cpu`; unless `cpu` is asked for, first lease a GPU for this process.

    Raises:
        UserError: `cuda` was asked for and there is no GPU; the CPU is never used silently instead.
    """
    import torch

    if name != "cpu":
        lease_gpu(say)
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UserError("device: cuda was asked for, but PyTorch sees no GPU; check the driver and "
                        "CUDA_VISIBLE_DEVICES, or set device: cpu")  # fmt: skip
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def hardware_name(device: torch.device) -> str:
    """Return the name of the GPU or the instruction set of the CPU, on which the last bits of a result depend."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu {torch.backends.cpu.get_cpu_capability()}"


# --- GPUs of this machine -------------------------------------------------------------------------------------------
def visible_gpus() -> tuple[str, ...]:
    """Return the GPUs that this process may use: those in CUDA_VISIBLE_DEVICES, else all that nvidia-smi lists."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--list-gpus"], capture_output=True, encoding="utf-8", timeout=LIST_TIMEOUT_S
        )
        listed = tuple(re.findall(r"^GPU \d+:.*UUID: (GPU-[0-9a-f-]+)", done.stdout, re.MULTILINE))
    except (OSError, subprocess.TimeoutExpired):
        listed = ()
    named = os.environ.get(VISIBLE_VARIABLE)
    if named is None:
        return listed
    names = takewhile(lambda name: name and name != "-1", (name.strip() for name in named.split(",")))
    return tuple(listed[int(name)] if name.isdecimal() and int(name) < len(listed) else name for name in names)


def snakemake_options(device: str) -> list[str]:
    """Return the option that limits Snakemake's parallel GPU jobs to the number of GPUs; empty without a GPU."""
    count = 0 if device == "cpu" else len(visible_gpus())
    return ["--resources", f"gpu={count}"] if count else []


# --- leases ---------------------------------------------------------------------------------------------------------
def lease_gpu(say: Say = lambda line: None) -> None:
    """Lease a GPU and make it the only GPU that this process sees; wait while other processes have leased all GPUs.

    The function does nothing without a GPU, in a batch job, if the parent process holds a lease for this process, or if
    this process has a lease already. It must be called before anything uses the GPU.
    """
    given = GIVEN_VARIABLE in os.environ or any(variable in os.environ for variable in BATCH_VARIABLES)
    if _held or given:
        return
    gpus = visible_gpus()
    if gpus:
        os.environ[VISIBLE_VARIABLE] = _leased(gpus, say)


def _leased(gpus: tuple[str, ...], say: Say) -> str:
    """Lease the first GPU that no other process has leased, waiting for one if necessary, and return its name."""
    waits = False
    while True:
        for gpu in gpus:
            if _lock(gpu):
                return gpu
        if not waits:
            say(f"every GPU here ({len(gpus)}) is at work for other runs; waiting for one")
            waits = True
        time.sleep(LOOK_EVERY_S)


def _lock(name: str) -> bool:
    """Lock a GPU until this process ends; return False if another process has locked it."""
    folder = Path(tempfile.gettempdir()) / f"softmax-bottleneck-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / re.sub(r"[^A-Za-z0-9.-]", "_", name)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    _held.append(descriptor)
    return True


@contextmanager
def lent_gpu() -> Iterator[None]:
    """Release this process's lease of a GPU inside the context; on leaving, wait for the GPU and lease it again."""
    for descriptor in _held:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    yield
    for descriptor in _held:
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def shared_by(count: int, device: str, say: Say) -> tuple[list[dict[str, str]], list[int]]:
    """Return the environments of `count` child processes, and the descriptors of the GPU lease that they must inherit.

    In a batch job the children are distributed over all visible GPUs; elsewhere they share the GPU leased by this
    process.
    """
    gpus: tuple[str, ...] = ()
    if device != "cpu":
        lease_gpu(say)
        gpus = visible_gpus()
    given = [{VISIBLE_VARIABLE: gpus[n % len(gpus)], GIVEN_VARIABLE: "1"} if gpus else {} for n in range(count)]
    return [os.environ | one for one in given], list(_held)
