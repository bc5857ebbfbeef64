"""One writer per folder: a small file that names the owner and is touched while the owner lives.

The workflow engine's lock does not survive a kill of the engine: an orphaned trainer and its successor would write the
same folder. With a lease the second process is rejected, a dead owner's lease is taken over, and an owner that lost its
lease stops. An operating-system lock does not suffice: it says nothing about an owner on another node of a cluster.
"""

from __future__ import annotations

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

from softmax_bottleneck.jobs import slurm
from softmax_bottleneck.jobs.processes import Process, myself, pid_namespace_id
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import BusyError

NAME = "lease.json"
LOOK_EVERY_S = 5.0  # while waiting for another owner to end
STALE_AFTER_S = 900.0  # without a sign of life, if neither process nor batch job can be looked up

log = logging.getLogger(__name__)


class Lease:
    """Ownership of a folder for the length of a `with` block.

    `timeout_s` is how long to wait for another owner to end.

    Raises:
        BusyError: on entering, another living process owns the folder; in `check`, the lease was lost.
    """

    def __init__(self, folder: Path, timeout_s: float = 0.0) -> None:
        self.folder = folder
        self.path = folder / NAME
        self.token = uuid.uuid4().hex
        self.timeout_s = timeout_s

    def __enter__(self) -> Lease:
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
        """Raise BusyError if this process no longer owns the folder."""
        if not self._is_mine():
            raise BusyError(f"{self.folder}: another process took this run over; this one stops without writing")

    def beat(self) -> None:
        """Check the ownership and touch the lease as a sign of life."""
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
            where = {"pid_namespace_id": pid_namespace_id(), "host": platform.node(), **slurm.batch_job()}
            facts = {"token": self.token, **vars(myself()), **where}
            try:
                with self.path.open("x", encoding="utf-8") as file:
                    file.write(json.dumps(facts) + "\n")
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
    """Return the lease's content; empty if it is missing or half written."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _lives(owner: dict[str, Any], age_s: float) -> bool:
    """Return True if the owner runs: looked up here or in the batch system, else judged by its last sign of life.

    A requeued batch job keeps its number, so an earlier start of this very job is known to have ended.
    """
    pid, started, job = (owner.get(key) for key in ("pid", "started", "job"))
    if owner.get("pid_namespace_id") == pid_namespace_id() and isinstance(pid, int) and isinstance(started, int):
        return Process(pid, started).lives
    if isinstance(job, str) and job:
        in_batch_system = job != slurm.batch_job().get("job") and slurm.job_lives(job)
        if in_batch_system is not None:
            return in_batch_system
    return age_s < STALE_AFTER_S


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Admit one process at a time to the lines that read and replace a lease; the kernel releases it at death.

    The folder itself is locked, so that no lock file is left in it. On network file systems without flock, exclusive
    creation of the lease still lets only one process win.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
