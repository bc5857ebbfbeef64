"""An operating-system lock that admits one workflow at a time to a results folder.

Snakemake's own lock stays behind when Snakemake is killed, until somebody removes it; the profiles disable it. The lock
of this module covers the results folder, the kernel releases it when its process ends, and no option of Snakemake
removes it. `reproduce` passes the lock on to its Snakemake, so that it is held until both have ended. Some file systems
have no such lock, and a workflow that uses this one as a module does not take it; there, the lease of every run still
keeps two processes apart.
"""

import errno
import fcntl
import os
import platform
import time
from typing import IO

from softmax_bottleneck.store.errors import BusyError, UserError
from softmax_bottleneck.store.paths import Store

FILE = ".workflow.lock"
HANDED_VARIABLE = "SOFTMAX_BOTTLENECK_LOCK"  # the lock file whose lock the parent process holds and passes on
HELD = {errno.EACCES, errno.EAGAIN}
_held: list[IO[str]] = []  # open until the process ends


def acquire() -> dict[str, str]:
    """Lock the results folder until this process ends; return the environment that lets a child process share the lock.

    The child must also inherit the file descriptors that `descriptors` returns.

    Raises:
        BusyError: another process holds the lock.
        UserError: the folder cannot be written, or the lock file is a symbolic link.
    """
    path = Store().root.resolve() / FILE
    environment = {HANDED_VARIABLE: str(path)}
    if os.environ.get(HANDED_VARIABLE) == str(path):
        return environment
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The file is truncated: never through a link.
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(f"{path}: is a link; remove it") from None
        raise UserError(f"{path.parent}: cannot be written ({error.strerror}); make it writable, or work in another "
                        "folder (--directory)") from None  # fmt: skip
    file = os.fdopen(descriptor, "a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in HELD:
            file.seek(0)
            owner = file.read().strip() or "it has just been started"
            raise BusyError(f"{path.parent}: a workflow is already running here ({owner}); wait for it, or stop it "
                            "and try again") from None  # fmt: skip
    _held.append(file)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
    file.flush()
    return environment


def descriptors() -> list[int]:
    """Return the file descriptors of the lock, for `pass_fds` of a child process."""
    return [file.fileno() for file in _held]
