"""The choice of the device that a process computes on, and leases that give each process a GPU of its own.

The rules `train`, `finetune`, `dynamic`, `measure`, `fit`, `truth` and `synthetic` use a GPU, if the study's `device`
allows it. `reproduce` lets Snakemake run at most as many of their jobs at once as `visible_gpus` lists. Each process
leases the first free GPU of this list, and waits while there is none. On a cluster, each job requests a GPU
(workflow/profiles/slurm).

A lease is an operating-system lock on a file in the user's own subfolder of the folder for temporary files. The
kernel releases the lock when the process ends, however it ends. The file is named after the GPU's UUID, which is the
same in every process and project. Processes of other users, or with another TMPDIR, do not see the lease. In a batch
job with one GPU none is leased, because the batch system has assigned it.

A small model leaves most of a GPU idle, and every batch job waits in the queue. Therefore one job can train several
runs at once (`train_together`). Each run has its own process and its own done.json, as if it were trained alone.
Finished runs stay finished if another run fails or the job ends; the next attempt trains only the others.
"""

import fcntl
import os
import re
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from softmax_bottleneck.jobs import interrupt, processes, workflow
from softmax_bottleneck.store import errors, progress

if TYPE_CHECKING:
    import torch

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"  # read by the driver when a process first uses a GPU
ORDER_VARIABLE = "CUDA_DEVICE_ORDER"  # how the driver numbers GPUs
GIVEN_VARIABLE = "SOFTMAX_BOTTLENECK_GPU_IS_GIVEN"  # set by a parent process that holds the lease
BATCH_VARIABLES = ("SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID", "_CONDOR_JOB_AD")
LOOK_EVERY_S = 1.0
_held: list[int] = []  # the descriptor of this process's lease (none or one), open until the process ends


def choose_device(name: str, say: progress.Say = lambda line: None) -> "torch.device":
    """Return the device to compute on; unless `name` is `cpu`, first lease a GPU for this process (`lease_gpu`).

    Args:
        name: `cpu`, `cuda`, or `auto` (a GPU if there is one, else the CPU).
        say: prints a line when a wait for a GPU begins (default: prints nothing).

    Raises:
        UserError: `name` is `cuda` and there is no GPU, or the folder for leases is not this user's own.
    """
    import torch

    if name != "cpu":
        lease_gpu(say)
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise errors.UserError("device: cuda was asked for, but PyTorch sees no GPU; check the driver and "
                        "CUDA_VISIBLE_DEVICES, or set device: cpu")  # fmt: skip
    return torch.device("cuda" if available and name != "cpu" else "cpu")


# --- GPUs of this machine -------------------------------------------------------------------------------------------
def visible_gpus() -> tuple[str, ...]:
    """Return the ids, usually UUIDs, of the GPUs that this process may use; empty if there is none.

    The environment variable CUDA_VISIBLE_DEVICES lists the ids. An index such as `0` in the variable is replaced by
    the UUID that nvidia-smi reports for this GPU. Indices therefore count as in nvidia-smi, along the bus, and not in
    CUDA's default order, which starts with the fastest GPU. Without the variable, all GPUs that nvidia-smi lists are
    returned.
    """
    answer = processes.answer_of("nvidia-smi", "--list-gpus")
    listed = tuple(re.findall(r"^GPU \d+:.*UUID: (GPU-[0-9a-f-]+)", answer.stdout if answer else "", re.MULTILINE))
    named = os.environ.get(VISIBLE_VARIABLE)
    if named is None:
        return listed
    names = takewhile(lambda name: name and name != "-1", (name.strip() for name in named.split(",")))
    return tuple(listed[int(name)] if name.isdecimal() and int(name) < len(listed) else name for name in names)


def lease_gpu(say: progress.Say = lambda line: None) -> None:
    """Lease a GPU and make it the only GPU that this process sees; wait while other processes have leased all GPUs.

    Call this function before anything uses the GPU. It leases nothing without a GPU, in a batch job with one GPU (the
    batch system may share it between jobs), if this process has a lease already, or if `train_together` has started
    this process and given it a GPU. `say` prints a line when a wait begins (default: prints nothing). CUDA_DEVICE_ORDER
    is set if it is unset, so that an index in CUDA_VISIBLE_DEVICES names the GPU that `visible_gpus` means.
    """
    os.environ.setdefault(ORDER_VARIABLE, "PCI_BUS_ID")
    gpus = () if _held or GIVEN_VARIABLE in os.environ else visible_gpus()
    if not gpus or (_in_batch_job() and len(gpus) == 1):
        return
    folder = Path(tempfile.gettempdir()) / f"softmax-bottleneck-{os.getuid()}"
    _make_private(folder)
    if any(_lease(gpu, folder) for gpu in gpus):
        return
    say(f"every GPU here ({len(gpus)}) is at work for other runs; waiting for one")
    while not any(_lease(gpu, folder) for gpu in gpus):
        time.sleep(LOOK_EVERY_S)


def _lease(gpu: str, folder: Path) -> bool:
    """Lease this GPU by a lock on its file in `folder`; return False if another process has leased it."""
    path = folder / re.sub(r"[^A-Za-z0-9.-]", "_", gpu)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    _held.append(descriptor)
    os.environ[VISIBLE_VARIABLE] = gpu
    return True


def _in_batch_job() -> bool:
    return any(variable in os.environ for variable in BATCH_VARIABLES)


def _make_private(folder: Path) -> None:
    """Create a folder for this user alone; everyone may write to the folder above it.

    Raises:
        UserError: there is something else in its place: a link, a file, or another user's folder.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        problem = "is a link, a file or another user's folder"
        raise errors.UserError(f"{folder}: {problem}. Expected a folder of your own. Fix: remove it, or set TMPDIR")
    folder.chmod(0o700)


@contextmanager
def lent_gpu() -> Iterator[None]:
    """Release this process's GPU lease inside the context, and lease the same GPU again on leaving.

    Leaving the context waits while another process holds the lease. Without a lease, the context has no effect.
    """
    for descriptor in _held:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    try:
        yield
    finally:
        for descriptor in _held:
            fcntl.flock(descriptor, fcntl.LOCK_EX)


# --- several runs in one job ----------------------------------------------------------------------------------------
def train_together(
    command: Sequence[str], paths: Sequence[str], device: str = "cpu", say: progress.Say = lambda line: None
) -> None:
    """Run `command --run <path>` for all paths in parallel on a device, and wait for the end of these processes.

    In a batch job the processes are distributed over all visible GPUs. Elsewhere they share the GPU that this process
    leases. On a CPU, each process has `Run.threads` threads. A signal to this process is passed on to all training
    processes, so that each of them saves its state and stops.

    A run with the exit code 130, 143 or 75 counts as stopped (see `interrupt`), and a run with any other nonzero
    exit code as failed. A run that was not started because of a signal counts as stopped with 75. Another call resumes
    all unfinished runs.

    Args:
        command: the command to which `--run <path>` is appended.
        paths: paths of the runs.
        device: `cpu`, `cuda`, or `auto` (a GPU if there is one, else the CPU).
        say: prints a line when a wait for a GPU begins (default: prints nothing).

    Raises:
        UserError: the first failed run (in the order of `paths`) ended with a UserError.
        StoppedError: the first failed run ended with another error, or no run failed and at least one was stopped.
            Its `exit_code` is that of the first failed run or, if none failed, of the first stopped run.
    """
    children: list[subprocess.Popen[bytes]] = []
    received: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        received.append(number)
        for child in children:
            child.send_signal(number)

    workflow.export_workflow()  # if this process is killed, the children notice it, save and stop
    if device != "cpu" and not _in_batch_job():
        lease_gpu(say)
    gpus = () if device == "cpu" else visible_gpus()
    with interrupt.signals_to(pass_on):
        for number, path in enumerate(paths):
            if received:  # a signal: the next attempt trains this run and those after it
                break
            given = {VISIBLE_VARIABLE: gpus[number % len(gpus)], GIVEN_VARIABLE: "1"} if gpus else {}
            # In its own session, a child gets a Ctrl-C once, from here, and not a second time from the terminal.
            child = subprocess.Popen(
                [*command, "--run", path], env=os.environ | given, pass_fds=_held, start_new_session=True
            )
            children.append(child)
        codes = {path: child.wait() for path, child in zip(paths, children, strict=False)}
    codes |= dict.fromkeys(paths[len(children) :], workflow.TRY_AGAIN)
    failed = {path: code if code > 0 else 128 - code for path, code in codes.items() if code}
    if failed:
        which = ", ".join(f"{path} (exit {code})" for path, code in failed.items())
        message = f"{len(failed)} of {len(paths)} seeds did not finish: {which}; run the same step again to resume them"
        # Errors that need a correction come first.
        code = min(failed.values(), key=lambda code: code in interrupt.EXIT_CODES.values())
        raise errors.UserError(message) if code == errors.UserError.exit_code else interrupt.StoppedError(message, code)
