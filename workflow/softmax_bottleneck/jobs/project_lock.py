"""One workflow at a time in a project: a lock of the operating system, held until the process that took it ends.

Snakemake's own lock stays behind when Snakemake is killed, until somebody removes it by hand; the profiles turn it off.
This one is of the whole results folder, the kernel frees it at death, and no option of Snakemake removes it. What
`reproduce` took it hands to its Snakemake, so that it is held until both have ended. On file systems without such locks
the lease of every run still keeps two processes apart.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from softmax_bottleneck.store.errors import BusyError, UserError
from softmax_bottleneck.store.paths import Store

FILE = ".workflow.lock"
HANDED_VARIABLE = "SOFTMAX_BOTTLENECK_LOCK"  # number of the descriptor by which a child inherits the lock
HELD = {errno.EACCES, errno.EAGAIN}
# Options of Snakemake with which it starts no job: such a call may read while another works.
READ_ONLY_CALLS = frozenset(
    [
        *("--dry-run", "--dryrun", "-n", "--lint", "--report", "--summary", "-S", "--detailed-summary", "-D", "--dag"),
        *("--rulegraph", "--filegraph", "--d3dag", "--list-rules", "--list", "-l", "--list-target-rules", "--lt"),
        *("--list-input-changes", "--list-code-changes", "--list-params-changes", "--list-untracked"),
        "--print-compilation",
    ]
)
_held: list[IO[str]] = []  # open until the process ends


def is_read_only_call(words: Iterable[str]) -> bool:
    """Whether a command line of Snakemake is one that starts no job."""
    return any(word.partition("=")[0] in READ_ONLY_CALLS for word in words)


def acquire() -> int:
    """Take the results folder for this process, or go on with what the process that started it took; the descriptor.

    Raises:
        BusyError: another process has it; names it.
        UserError: the folder cannot be written, or the lock's name is a link's.
    """
    path = Store().root / FILE
    file = _handed_over(path) or _opened(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of what was handed over: held already
    except OSError as error:
        if error.errno in HELD:
            raise BusyError(f"{path.parent}: {_owner(file)}; wait for it, or stop it and try again") from None
    _held.append(file)
    file.truncate(0)
    facts = {"pid": os.getpid(), "host": platform.node(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    file.write(json.dumps(facts) + "\n")
    file.flush()
    return file.fileno()


def _handed_over(path: Path) -> IO[str] | None:
    """The lock that the process that started this one took; None where the descriptor is of something else."""
    number = os.environ.get(HANDED_VARIABLE, "")
    try:
        same = number.isdecimal() and os.path.samestat(os.fstat(int(number)), path.lstat())
    except OSError:
        return None
    return os.fdopen(int(number), "a+", encoding="utf-8") if same else None


def _opened(path: Path) -> IO[str]:
    """The lock's file; never what a link in its place points to, since its content is thrown away."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(f"{path}: is a link; remove it") from None
        raise UserError(f"{path.parent}: cannot be written ({error.strerror}); make it writable, or work in another "
                        "folder (--directory)") from None  # fmt: skip
    return os.fdopen(descriptor, "a+", encoding="utf-8")


def _owner(file: IO[str]) -> str:
    file.seek(0)
    try:
        facts = json.loads(file.read())
        return f"a workflow is already running here (process {facts['pid']} on {facts['host']} since {facts['since']})"
    except (ValueError, KeyError, TypeError):
        return "a workflow has just been started here"
