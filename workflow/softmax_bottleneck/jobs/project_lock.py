"""One workflow at a time in a project: an operating-system lock, held until the process that took it ends.

Snakemake's own lock stays behind when Snakemake is killed, until somebody removes it; the profiles disable it. This one
covers the results folder, the kernel releases it at death, and no option of Snakemake removes it. `reproduce` passes it
on to its Snakemake, so that it is held until both have ended. On file systems without such locks the lease of every run
still keeps two processes apart.
"""

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
HANDED_VARIABLE = "SOFTMAX_BOTTLENECK_LOCK"  # descriptor by which a child process inherits the lock
HELD = {errno.EACCES, errno.EAGAIN}
# With these options Snakemake starts no job; such a call may read while another works.
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
    """Return True if a command line of Snakemake starts no job."""
    return any(word.partition("=")[0] in READ_ONLY_CALLS for word in words)


def acquire() -> int:
    """Lock the results folder for this process, or take over the parent's lock; return its descriptor.

    Raises:
        BusyError: another process has the lock; the message names it.
        UserError: the folder cannot be written, or the lock file is a link.
    """
    path = Store().root / FILE
    file = _handed_over(path) or _opened(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # succeeds for an inherited lock
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
    """Return the lock inherited from the parent process; None if the descriptor is of another file."""
    number = os.environ.get(HANDED_VARIABLE, "")
    try:
        same = number.isdecimal() and os.path.samestat(os.fstat(int(number)), path.lstat())
    except OSError:
        return None
    return os.fdopen(int(number), "a+", encoding="utf-8") if same else None


def _opened(path: Path) -> IO[str]:
    """Open the lock file. Links are rejected, because the file is truncated."""
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
