"""Read and write result files: the only module that knows formats and hashes.

Every write is atomic (temporary file in the same folder, fsync, rename) and leaves a `<name>.sha256` beside the file;
every read checks it, so that a truncated or damaged file is an error and never a number.
"""

import errno
import hashlib
import io
import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.store.errors import DataError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
LEFT_S = 3600.0  # age at which an unfinished file counts as abandoned


# --- writing --------------------------------------------------------------------------------------------------------
def sha256_bytes(data: bytes) -> str:
    """Return the hex sha256 of bytes."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the hex sha256 of a file, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sidecar(path: Path) -> Path:
    """Return the file that holds the sha256 of `path`."""
    return path.with_name(path.name + ".sha256")


def write_with(path: Path, write: Callable[[BinaryIO], object]) -> str:
    """Let `write` fill a temporary file, then rename it to `path`; return its sha256.

    After a crash, the old or the new file is complete. A crash between the renames of file and hash leaves a file
    without its hash, which counts as damaged and is recomputed.

    Raises:
        OSError: the disk is full, over quota or failing; a full disk leaves the old file and its hash unchanged.
    """
    temporary, mark = _temporary(path), _temporary(sidecar(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            watched = _Watched(file)
            try:
                write(cast(BinaryIO, watched))
            except Exception as error:
                raise (watched.trouble or error) from None
            file.flush()
            os.fsync(file.fileno())
        digest = sha256_file(temporary)
        mark.write_text(f"{digest}\n", encoding="ascii")  # before anything is renamed, because the disk may be full
        _exchange(temporary, path)
        _seal(mark, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise explained(error, path) from None
    finally:
        temporary.unlink(missing_ok=True)
        mark.unlink(missing_ok=True)
    return digest


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


class _Watched:
    """A file that remembers the first disk error, which writers in C report as another error."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.trouble: OSError | None = None

    def write(self, data: Any) -> int:
        """Write to the file."""
        try:
            return self._file.write(data)
        except OSError as error:
            self.trouble = self.trouble or error
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _exchange(temporary: Path, path: Path) -> None:
    """Rename a file to `path`; the old hash is removed first: never a new file beside an old hash."""
    sidecar(path).unlink(missing_ok=True)
    temporary.replace(path)


def _seal(mark: Path, path: Path) -> None:
    mark.replace(sidecar(path))


def explained(error: OSError, path: Path) -> OSError:
    """Add the file to a disk error and, if the disk is full, the size that is free; return the error."""
    error.filename, error.filename2 = str(path), None
    if error.errno in FULL:
        there = next(folder for folder in path.absolute().parents if folder.is_dir())
        free = shutil.disk_usage(there).free
        error.strerror = f"disk full ({os.strerror(error.errno)}), {free / 1e6:.1f} MB free"
    return error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(folder: Path) -> None:
    """Remove the unfinished files of killed processes below a folder: those that nobody has written to for an hour."""
    for path in folder.rglob(".*.tmp"):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > LEFT_S:
                path.unlink()


def write_bytes(path: Path, data: bytes) -> str:
    """Write bytes atomically; return the sha256."""
    return write_with(path, lambda file: file.write(data))


def write_text(path: Path, text: str) -> str:
    """Write UTF-8 text atomically; return the sha256."""
    return write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: object) -> str:
    """Write JSON atomically with sorted keys (ValueError: NaN or infinity)."""
    return write_text(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n")


def write_npy(path: Path, array: NDArray[Any]) -> str:
    """Write one array that can be memory-mapped."""
    return write_with(path, lambda file: np.save(file, array, allow_pickle=False))


def write_npz(path: Path, **arrays: NDArray[Any]) -> str:
    """Write named arrays."""
    return write_with(path, lambda file: np.savez(file, allow_pickle=False, **arrays))


def remove(path: Path) -> None:
    """Remove a file and its hash, if they exist."""
    path.unlink(missing_ok=True)
    sidecar(path).unlink(missing_ok=True)


def append_line(path: Path, text: str) -> None:
    """Append one line and force it to the disk, so that the log survives a kill."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise explained(error, path) from None


# --- reading --------------------------------------------------------------------------------------------------------
def stored_hash(path: Path) -> str | None:
    """Return the sha256 beside a file, or None if it is missing or unreadable."""
    try:
        return sidecar(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None


def is_sound(path: Path) -> bool:
    """Return True if the file exists, is readable and matches the hash beside it."""
    try:
        return path.is_file() and stored_hash(path) == sha256_file(path)
    except OSError:
        return False


def checked(path: Path) -> Path:
    """Return the path if its content matches the hash beside it.

    Raises:
        DataError: the file or its hash is missing, or they differ.
    """
    if not path.is_file():
        raise DataError(f"{path}: file not found; run the step that makes it")
    if not is_sound(path):
        raise DataError(f"{path}: content does not match {sidecar(path).name}; delete the file and run its step again")
    return path


def read_bytes(path: Path) -> bytes:
    """Return the content of a file (DataError: missing, or does not match its hash)."""
    if not path.is_file():
        raise DataError(f"{path}: file not found; run the step that makes it")
    data = path.read_bytes()
    if stored_hash(path) != sha256_bytes(data):
        raise DataError(f"{path}: content does not match {sidecar(path).name}; delete the file and run its step again")
    return data


def read_text(path: Path) -> str:
    """Return the UTF-8 text of a file (DataError as `read_bytes`)."""
    return read_bytes(path).decode("utf-8")


def read_json(path: Path) -> Any:
    """Return the value of a JSON file (DataError as `read_bytes`)."""
    return json.loads(read_text(path))


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return the named arrays of a file (DataError as `read_bytes`)."""
    return arrays_in(read_bytes(path))


def arrays_in(data: bytes) -> dict[str, NDArray[Any]]:
    """Return the named arrays of the bytes of an .npz file (ValueError: it contains objects)."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def read_npy(path: Path) -> NDArray[Any]:
    """Return the array of a file, memory-mapped read-only (DataError as `read_bytes`)."""
    array: NDArray[Any] = np.load(checked(path), mmap_mode="r", allow_pickle=False)
    return array


def read_lines(path: Path) -> list[Any]:
    """Return the values of a log of JSON lines, without a last line that a kill cut off.

    Raises:
        DataError: the log was sealed and has changed since.
    """
    if not path.exists():
        return []
    if sidecar(path).exists():
        checked(path)
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows
