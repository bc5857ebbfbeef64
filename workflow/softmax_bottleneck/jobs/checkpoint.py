"""Resume states of interrupted work: two files per folder, written in turn, verified on reading, each bound to one run.

A kill at any moment leaves at least one of the two files intact. A damaged state is never loaded, and it is never
replaced silently.
"""

import logging
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from softmax_bottleneck.jobs.outcome_record import refuse_foreign
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError

NAMES = ("resume-a.pt", "resume-b.pt")
FORMAT = 2

log = logging.getLogger(__name__)


def on_device(value: Any, device: torch.device) -> Any:
    """Return a value with all tensors moved to a device, also those inside nested dicts and lists."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: on_device(child, device) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(on_device(child, device) for child in value)
    return value


class Checkpointer:
    """A store of resume states in a folder: it writes two files in turn, so that a kill leaves one of them intact.

    A state is loaded only if it was saved with an equal `identity`, a flat mapping that describes the run.

    Attributes:
        write_s: duration of the last write in seconds; 0 before the first write.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.paths = [folder / name for name in NAMES]
        self.identity = dict(identity)
        self.serial = 0
        self.write_s = 0.0
        self.target = 0  # index of the next file: never the one loaded or written last

    def save(self, state: Mapping[str, Any]) -> None:
        """Write a state over the older file (OSError: the disk is full or fails; both old files then stay intact)."""
        began = time.monotonic()
        full = {**state, "identity": self.identity, "serial": self.serial + 1, "format": FORMAT}
        artefacts.write_with(self.paths[self.target], lambda file: torch.save({"state": full}, file))
        self.serial += 1
        self.target = 1 - self.target
        self.write_s = time.monotonic() - began

    def load(self) -> dict[str, Any] | None:
        """Return the newest intact state with its tensors on the CPU; None if there is no file.

        Raises:
            UserError: all files are damaged, or the newest state belongs to another run.
        """
        states = {index: _read(path) for index, path in enumerate(self.paths) if path.exists()}
        sound = {index: state for index, state in states.items() if isinstance(state, dict)}
        if not states:
            return None
        folder = self.paths[0].parent
        problems = ", ".join(f"{self.paths[i].name} ({state})" for i, state in states.items() if i not in sound)
        if not sound:
            raise UserError(f"{folder}: no resume state can be trusted: {problems}; "
                            "restore one from a backup, or start this run over with --restart")  # fmt: skip
        if problems:
            log.warning("%s: %s is damaged; the other resume state is used", folder, problems)
        newest = max(sound, key=lambda index: int(sound[index]["serial"]))
        refuse_foreign(self.paths[newest], sound[newest]["identity"], self.identity)
        self.serial, self.target = int(sound[newest]["serial"]), 1 - newest
        return sound[newest]

    def clear(self) -> None:
        """Remove both files with resume states."""
        for path in self.paths:
            artefacts.remove(path)


def _read(path: Path) -> dict[str, Any] | str:
    """Return the state stored in a file, or the reason why the file cannot be used.

    A kill between two renames leaves a state without its hash file. Such a state is checked by the CRC checksums of its
    zip archive, which torch writes for every tensor but does not verify itself.
    """
    if artefacts.sidecar(path).exists() and not artefacts.is_sound(path):
        return "its hash does not match"
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:
                return "its content does not match the checksums inside"
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)["state"]
    except MemoryError:
        raise
    except Exception:  # readers raise many kinds of error for damaged files
        return "it cannot be read"
    return state if state["format"] == FORMAT else f"its format is not {FORMAT}"
