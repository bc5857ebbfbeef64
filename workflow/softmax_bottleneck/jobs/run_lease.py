"""The lease of a run's folder, which admits one writer: a small file that names the owner and is touched while it runs.

Snakemake's lock does not survive a kill of Snakemake: an orphaned training process and its successor would write to the
same folder. With a lease, the second process is rejected, the lease of a dead owner is taken over, and an owner that
lost its lease stops. An operating-system lock does not suffice: it cannot detect an owner on another node of a cluster.
"""

import fcntl
import json
import logging
import os
import platform
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from softmax_bottleneck.jobs import processes
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import BusyError

NAME = "lease.json"
LOOK_EVERY_S = 5.0  # while waiting for another owner to end
STALE_AFTER_S = 900.0  # without a sign of life, if neither process nor batch job can be looked up

log = logging.getLogger(__name__)


class Lease:
    """The ownership of a folder for the length of a `with` block.

    `timeout_s` is the longest time to wait for another owner to end.

    Raises:
        BusyError: on entering, if another running process owns the folder; in `check`, if the lease was lost.
    """

    def __init__(self, folder: Path, timeout_s: float = 0.0) -> None:
        self.folder = folder
        self.path = folder / NAME
        self.token = uuid.uuid4().hex
        self.timeout_s = timeout_s

    def __enter__(self) -> "Lease":
        deadline, said = time.monotonic() + self.timeout_s, False
        while True:
            try:
                self._take()
                return self
            except BusyError as busy:
                if time.monotonic() >= deadline:
                    raise
                if not said:
                    log.warning("%s; waiting for its end", busy)
                said = True
            time.sleep(LOOK_EVERY_S)

    def __exit__(self, *_: object) -> None:
        if self._is_mine():
            self.path.unlink(missing_ok=True)

    def check(self) -> None:
        """Check that this process still owns the folder (BusyError: another process took it over)."""
        if not self._is_mine():
            raise BusyError(f"{self.folder}: another process took this run over; this one stops without writing")

    def beat(self) -> None:
        """Check the ownership and touch the lease file, which shows other processes that the owner still runs."""
        self.check()
        os.utime(self.path)

    def _is_mine(self) -> bool:
        return _read(self.path).get("token") == self.token

    def _take(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with _folder_lock(self.folder):
            if self.path.exists():
                self._refuse_living_owner()
                self.path.unlink(missing_ok=True)
            where = {"pid_namespace_id": processes.pid_namespace_id(), "host": platform.node()}
            owner = vars(processes.Process.of(os.getpid())) | processes.batch_job()
            try:
                with self.path.open("x", encoding="utf-8") as file:
                    file.write(json.dumps({"token": self.token, **owner, **where}) + "\n")
            except FileExistsError:
                raise BusyError(f"{self.folder}: another process has just started this run; try again later") from None
            except OSError as error:
                with suppress(OSError):
                    self.path.unlink()  # else the next call would take it for another owner's
                raise artefacts.explained(error, self.path) from None

    def _refuse_living_owner(self) -> None:
        owner, age_s = _read(self.path), max(0.0, time.time() - self.path.stat().st_mtime)
        if _lives(owner, age_s):
            job = f" (SLURM job {owner['job']})" if owner.get("job") else ""
            raise BusyError(f"{self.folder}: this run is owned by process {owner.get('pid', 'unknown')} on "
                            f"{owner.get('host', 'an unknown machine')}{job}, seen {age_s:.0f} s ago; wait for it, or "
                            "stop it and try again")  # fmt: skip
        log.warning("%s: process %s left its lease behind; taken over", self.folder, owner.get("pid", "unknown"))


def _read(path: Path) -> dict[str, Any]:
    """Return the content of a lease file; empty if the file is missing or half written."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _lives(owner: dict[str, Any], age_s: float) -> bool:
    """Return True if the owner of a lease still runs.

    The owner is looked up among this machine's processes, else in the batch system. If neither is possible, the owner
    counts as running while the lease is younger than STALE_AFTER_S. A requeued batch job keeps its number, so an owner
    with the number of the present job is known to have ended.
    """
    pid, started, job = (owner.get(key) for key in ("pid", "started", "job"))
    if (
        owner.get("pid_namespace_id") == processes.pid_namespace_id()
        and isinstance(pid, int)
        and isinstance(started, int)
    ):
        return processes.Process(pid, started).lives
    if isinstance(job, str) and job:
        in_batch_system = job != processes.batch_job().get("job") and processes.job_lives(job)
        if in_batch_system is not None:
            return in_batch_system
    return age_s < STALE_AFTER_S


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder inside the context, so that one process at a time reads and replaces the lease.

    The folder itself is locked, so that no lock file is left in it; the kernel releases the lock when the process ends.
    On network file systems without flock, the exclusive creation of the lease file still lets only one process succeed.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
