"""Locks: one workflow at a time writes to a results folder, and one process at a time to the folder of a run.

The lock of a workflow covers the results folder. It is an operating-system lock, which the kernel releases when the
processes that hold it end. `reproduce` and `slurm` share the lock with the Snakemake process that they start, so that
the lock is held until both have ended. Snakemake's own lock would stay behind when Snakemake is killed, so the profiles
disable it. On a file system without operating-system locks, the workflow runs without a lock. If another workflow
imports this workflow as a Snakemake module, no lock is taken.

The lease of a run covers the folder of the run. It is a file that names the process that owns the folder. The owner
touches the file every few seconds, and removes it at the end. While the owner runs, another process is rejected or
waits. If the owner has ended without removing the file, the next process takes the lease over. An owner that has lost
its lease stops. Without leases, a training process that outlives a killed Snakemake would write to the same folder as
its successor. An operating-system lock does not suffice here: it cannot detect an owner on another node of a cluster.
"""

import errno
import fcntl
import json
import logging
import os
import platform
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from softmax_bottleneck.jobs import processes
from softmax_bottleneck.jobs.workflow import PROCESS_VARIABLE
from softmax_bottleneck.store import artefacts, errors, paths

LOCK_FILE = ".workflow.lock"
LOCK_VARIABLE = "SOFTMAX_BOTTLENECK_LOCK"  # the lock file whose lock the parent process holds and passes on
LEASE_FILE = "lease.json"
LOOK_EVERY_S = 5.0  # while waiting for another owner to end
STALE_AFTER_S = 900.0  # without a sign of life, if neither process nor batch job can be looked up
_held: list[IO[str]] = []  # the lock of the results folder, open until the process ends

log = logging.getLogger(__name__)
Lock = tuple[dict[str, str], list[int]]  # what a child process needs to share a lock: see `acquire_lock`


# --- the lock of a results folder -----------------------------------------------------------------------------------
def acquire_lock() -> Lock:
    """Lock the results folder until this process ends; return what lets a child process share the lock.

    This process takes no lock if its parent process has locked the folder and shares that lock with this process (the
    environment variable LOCK_VARIABLE names the lock file), or if the file system does not support locks.

    Returns:
        A pair. First, environment variables for the child, always {LOCK_VARIABLE: path of the lock file}; they tell the
        child to take no lock itself. Second, the file descriptors that the child must inherit (argument `pass_fds` of
        `subprocess.Popen`): that of the lock file, or none if the parent of this process holds the lock.

    Raises:
        BusyError: another process holds the lock.
        UserError: the results folder or Snakemake's folder (.snakemake) is not writable, or the lock file is a link.
    """
    path = paths.Store().root.resolve() / LOCK_FILE
    environment = {LOCK_VARIABLE: str(path)}
    if os.environ.get(LOCK_VARIABLE) == str(path):
        return environment, []
    try:
        for folder in (Path(".snakemake").resolve(), path.parent):
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        # No links: the file is truncated below.
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        advice = "make it writable, or start the command in a writable folder"
        raise errors.UserError(f"{error.filename}: cannot be written ({error.strerror}); {advice}") from None
    file = os.fdopen(descriptor, "a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            file.seek(0)
            owner = file.read().strip() or "it has just been started"
            message = f"a workflow is already running here ({owner}); wait for it, or stop it and try again"
            raise errors.BusyError(f"{path.parent}: {message}") from None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
    file.flush()
    _held.append(file)
    return environment, [descriptor]


@contextmanager
def no_workflow_beside() -> Iterator[None]:
    """Hold the lock of the results folder in a `with` block, unless a workflow has started this process.

    Where the lock file cannot be written, the block runs without the lock: it may write to another folder, and
    otherwise its own error says what is wrong.

    Raises:
        BusyError: a workflow runs in this folder, or another command that holds the lock.
    """
    try:
        is_taken = not os.environ.get(PROCESS_VARIABLE) and bool(acquire_lock()[1])
    except (OSError, errors.UserError):
        is_taken = False
    try:
        yield
    finally:
        if is_taken:
            _held.pop().close()


# --- the lease of a run ---------------------------------------------------------------------------------------------
class Lease:
    """The ownership of a folder by this process for the length of a `with` block.

    Args:
        folder: the folder; created if missing.
        timeout_s: longest time to wait for another owner to end (default: no wait).

    Raises:
        BusyError: on entering the `with` block, another running process still owns the folder after the wait.
        OSError: the lease file cannot be written.
    """

    def __init__(self, folder: Path, timeout_s: float = 0.0) -> None:
        self.folder = folder
        self.path = folder / LEASE_FILE
        self.token = uuid.uuid4().hex
        self.timeout_s = timeout_s

    def __enter__(self) -> "Lease":
        deadline, waits = time.monotonic() + self.timeout_s, False
        while True:
            try:
                self._take()
                return self
            except errors.BusyError as busy:
                if time.monotonic() >= deadline:
                    raise
                if not waits:
                    log.warning("%s. This process now waits for the other one to end", busy)
                waits = True
            time.sleep(LOOK_EVERY_S)

    def __exit__(self, *_: object) -> None:
        if _read_lease(self.path).get("token") == self.token:
            self.path.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise BusyError if this process no longer owns the folder because another process has taken it over."""
        if _read_lease(self.path).get("token") != self.token:
            raise errors.BusyError(f"{self.folder}: another process took this run over; this one stops without writing")

    def beat(self) -> None:
        """Touch the lease file, which shows other processes that the owner still runs.

        Raises:
            BusyError: another process has taken the folder over.
        """
        self.check()
        os.utime(self.path)

    def _take(self) -> None:
        """Write the lease file, after removing the lease of an owner that has ended.

        The folder itself is locked while this method runs, so that only one process at a time reads and replaces the
        lease. On network file systems without flock, the exclusive creation of the file still lets only one process
        succeed.

        Raises:
            BusyError: the owner of an existing lease still runs, or another process has just written a lease.
            OSError: the file cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        where = {"pid_namespace_id": processes.pid_namespace_id(), "host": platform.node()}
        owner = vars(processes.Process.of(os.getpid())) | processes.batch_job()
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if self.path.exists():
                _refuse_living_owner(self.path)
                self.path.unlink(missing_ok=True)
            with self.path.open("x", encoding="utf-8") as file:
                file.write(json.dumps({"token": self.token, **owner, **where}) + "\n")
        except FileExistsError:
            raise errors.BusyError(f"{self.folder}: another process has just started this run; try later") from None
        except OSError as error:
            with suppress(OSError):
                if not _read_lease(self.path):
                    self.path.unlink()  # half written: the next call would take it for another owner's
            raise artefacts.explained(error, self.path) from None
        finally:
            os.close(descriptor)


def _read_lease(path: Path) -> dict[str, Any]:
    """Return the content of a lease file; an empty dict if the file is missing or half written."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _refuse_living_owner(path: Path) -> None:
    """Raise BusyError if the owner of the lease file `path` still runs.

    * If the owner is on this machine, the operating system says whether its process runs.
    * If the owner is a batch job on another machine, SLURM says whether the job runs. If the owner's job has the id of
      the present job, the owner has ended: SLURM has requeued the job, which keeps its id.
    * If there is no answer, the owner counts as running if the lease was touched in the last STALE_AFTER_S seconds.
    """
    try:
        owner, age_s = _read_lease(path), max(0.0, time.time() - path.stat().st_mtime)
    except FileNotFoundError:  # the owner has just ended
        return
    pid, started, job = (owner.get(key) for key in ("pid", "started", "job"))
    lives: bool | None = None
    if pid and started is not None and owner.get("pid_namespace_id") == processes.pid_namespace_id():
        lives = processes.Process(pid, started).lives
    elif job:
        lives = job != processes.batch_job().get("job") and processes.job_lives(job)
    if age_s < STALE_AFTER_S if lives is None else lives:
        where = f"{owner.get('host', 'an unknown machine')}{f' (SLURM job {job})' if job else ''}"
        message = f"this run is owned by process {pid or 'unknown'} on {where}, seen {age_s:.0f} s ago"
        raise errors.BusyError(f"{path.parent}: {message}; wait for it, or stop it and try again")
    log.warning("%s: process %s left its lease behind; taken over", path.parent, pid or "unknown")
