"""One workflow at a time in a project: a lock of the operating system, held until the process that took it ends.

Snakemake's own lock covers only the outputs of one call, and any call that ends removes the locks of all others. This
one is of the whole results folder, and no option of Snakemake removes it. On file systems without such
locks the lease of every run still keeps two processes apart.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import time
from collections.abc import Iterable
from typing import IO

from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import BusyError, UserError

FILE = ".workflow.lock"
HELD = {errno.EACCES, errno.EAGAIN}
# Calls of Snakemake that start no job and may look on while another works.
LOOKING_ON = frozenset(
    [
        *("--dry-run", "--dryrun", "-n", "--lint", "--report", "--summary", "-S", "--detailed-summary", "-D", "--dag"),
        *("--rulegraph", "--filegraph", "--d3dag", "--list-rules", "--list", "-l", "--list-target-rules", "--lt"),
        *("--list-input-changes", "--list-code-changes", "--list-params-changes", "--list-untracked"),
        "--print-compilation",
    ]
)
_taken: list[IO[str]] = []  # open until the process ends


def looks_on(words: Iterable[str]) -> bool:
    """Whether a command line of Snakemake is one that starts no job."""
    return any(word.partition("=")[0] in LOOKING_ON for word in words)


def take() -> None:
    """Take the results folder for this process.

    Raises:
        BusyError: another process has it; names it.
        UserError: the folder cannot be written.
    """
    path = artefacts.RESULTS / FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path.parent}: cannot be written ({error.strerror}); make it writable, or work in another "
                        "folder (--directory)") from None  # fmt: skip
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in HELD:
            raise BusyError(f"{path.parent}: {_owner(file)}; wait for it, or stop it and try again") from None
    _taken.append(file)
    file.truncate(0)
    facts = {"pid": os.getpid(), "host": platform.node(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    file.write(json.dumps(facts) + "\n")
    file.flush()


def _owner(file: IO[str]) -> str:
    file.seek(0)
    try:
        facts = json.loads(file.read())
        return f"a workflow is already running here (process {facts['pid']} on {facts['host']} since {facts['since']})"
    except (ValueError, KeyError, TypeError):
        return "a workflow has just been started here"
