"""Resume states: two files written in turn while training goes on, checked on reading, bound to one run.

A kill at any moment leaves at least one of them whole. What cannot be trusted is never used, and never replaced without
a word.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
import time
import zipfile
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError

NAMES = ("resume-a.pt", "resume-b.pt")
FORMAT = 1

log = logging.getLogger(__name__)


def content_sha256(value: object) -> str:
    """Hash of nested dicts, lists, tensors and numbers: what a state says, whatever bytes it is stored in."""
    digest = hashlib.sha256()
    _feed(digest, value)
    return digest.hexdigest()


def _feed(digest: hashlib._Hash, value: object) -> None:
    if isinstance(value, Tensor):
        digest.update(f"tensor {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        digest.update(f"mapping {len(value)}\n".encode())
        for key in sorted(value):
            digest.update(f"{key}\n".encode())
            _feed(digest, value[key])
    elif isinstance(value, list | tuple):
        digest.update(f"list {len(value)}\n".encode())
        for item in value:
            _feed(digest, item)
    else:
        digest.update(f"{type(value).__name__} {value!r}\n".encode())


def copied(value: Any) -> Any:
    """Nested dicts, lists, tensors and numbers that nothing else will change, the tensors on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: copied(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copied(child) for child in value)
    return value


class Checkpointer:
    """The resume files of one run folder; as a context, nothing is being written any more when it is left.

    `identity` is a flat mapping of what must be equal for a state to belong to this run.

    Attributes:
        write_s: seconds that the last save took, not counting the copy; 0 before the first.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.paths = [folder / name for name in NAMES]
        self.identity = dict(identity)
        self.serial = 0
        self.write_s = 0.0
        self.target = 0  # index of the file that is written next: never the one loaded or written last
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="resume state")
        self._begun: Future[None] | None = None

    def begin(self, state: Mapping[str, Any]) -> None:
        """As `save`, but only the copy is waited for: it is written while the caller works on and changes the state.

        What goes wrong is raised by whichever method is called next once it is known. One at a time: a save begun
        earlier is waited for.
        """
        self.wait()
        self._begun = self._thread.submit(self._write, copied(state))

    def check(self) -> None:
        """Raise what went wrong in a save that was begun and has ended; costs nothing (OSError, as `save`)."""
        if self._begun is not None and self._begun.done():
            self.wait()

    def wait(self) -> None:
        """Until a save that was begun is on the disk (OSError, as `save`)."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._thread.shutdown()
        if kind is None:
            self.wait()

    def save(self, state: Mapping[str, Any]) -> None:
        """Write a state over the older file (OSError, such as a full disk, leaves both files as they were)."""
        self.wait()
        self._write(state)

    def _write(self, state: Mapping[str, Any]) -> None:
        began = time.monotonic()
        full = {**state, "identity": self.identity, "serial": self.serial + 1, "format": FORMAT}
        stored = {"state": full, "content_sha256": content_sha256(full)}
        artefacts.write_with(self.paths[self.target], lambda file: torch.save(stored, file))
        self.serial += 1
        self.target = 1 - self.target
        self.write_s = time.monotonic() - began

    def load(self) -> dict[str, Any] | None:
        """The newest sound state, on the CPU; None when there is none.

        Raises:
            UserError: files are there but none can be trusted, or the state belongs to another run.
        """
        present = [index for index, path in enumerate(self.paths) if path.exists()]
        states = {index: _read(self.paths[index]) for index in present}
        sound = {index: state for index, state in states.items() if isinstance(state, dict)}
        problems = [f"{self.paths[index].name} ({state})" for index, state in states.items() if isinstance(state, str)]
        if not present:
            return None
        folder = self.paths[0].parent
        if not sound:
            raise UserError(f"{folder}: no resume state can be trusted: {', '.join(problems)}; "
                            "restore one from a backup, or start this run over with --restart")  # fmt: skip
        if problems:
            log.warning("%s: %s is damaged; the other resume state is used", folder, ", ".join(problems))
        newest = max(sound, key=lambda index: int(sound[index]["serial"]))
        self._refuse_foreign(sound[newest], self.paths[newest])
        self.serial, self.target = int(sound[newest]["serial"]), 1 - newest
        return sound[newest]

    def _refuse_foreign(self, state: dict[str, Any], path: Path) -> None:
        stored = state["identity"]
        for key in sorted({*stored, *self.identity}):
            here, there = self.identity.get(key, "absent"), stored.get(key, "absent")
            if here != there:
                raise UserError(f"{path}: belongs to another run: {key} is {there!r} there and {here!r} here; "
                                "move the folder away, or start this run over with --restart")  # fmt: skip

    def clear(self) -> None:
        """Remove both files: the run is finished, or starts over."""
        self.wait()
        for path in self.paths:
            path.unlink(missing_ok=True)
            artefacts.sidecar(path).unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | str:
    """The state of a file, or why it cannot be used.

    A missing sidecar (kill between two renames) is no damage: the hash inside decides.
    """
    if artefacts.sidecar(path).exists() and not artefacts.is_sound(path):
        return "its hash does not match"
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
        state: dict[str, Any] = stored["state"]
        if stored["content_sha256"] != content_sha256(state):
            return "its content does not match the hash inside"
        if state["format"] != FORMAT:
            return f"written in format {state['format']}, this version reads {FORMAT}"
    except (
        OSError,
        RuntimeError,
        EOFError,
        KeyError,
        TypeError,
        ValueError,
        pickle.UnpicklingError,
        zipfile.BadZipFile,
    ):
        return "it cannot be read"
    return state
