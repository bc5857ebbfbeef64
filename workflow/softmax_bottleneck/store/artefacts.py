"""Where artefacts lie and how they are written: the only module that knows file names, formats and hashes.

Every write is atomic (temporary file in the same folder, fsync, rename) and leaves a `<name>.sha256` beside the file;
every read checks it, so that a truncated or flipped file is an error and never a number.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.store.errors import DataError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
LEFT_S = 3600.0  # after which an unfinished file is taken to be left over


# --- writing --------------------------------------------------------------------------------------------------------
def sha256_bytes(data: bytes) -> str:
    """Hex sha256 of bytes."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sidecar(path: Path) -> Path:
    """The file that holds the sha256 of `path`."""
    return path.with_name(path.name + ".sha256")


def write_with(path: Path, write: Callable[[BinaryIO], object]) -> str:
    """Let `write` fill a temporary file, then give it its name; return its sha256.

    A crash at any moment leaves the old file, or the new one, whole; a crash between the two renames leaves a file
    without its hash, which counts as unsound and is made again.

    Raises:
        OSError: the disk refused (full, quota, broken); the old file and its hash are as they were.
    """
    temporary, mark = _temporary(path), _temporary(sidecar(path))
    watched: _Watched | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            watched = _Watched(file)
            watched.filled_by(write)
            file.flush()
            os.fsync(file.fileno())
        digest = sha256_file(temporary)
        _write_small(mark, f"{digest}\n")  # before anything is renamed: it may not fit any more
        _exchange(temporary, path)
        _seal(mark, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise explained(error, path, watched.asked if watched else 0) from None
    finally:
        temporary.unlink(missing_ok=True)
        mark.unlink(missing_ok=True)
    return digest


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


class _Watched:
    """A file that remembers the first error of the disk, which writers in C report as something else.

    Attributes:
        asked: bytes that were to be written until now.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._trouble: OSError | None = None
        self.asked = 0

    def filled_by(self, write: Callable[[BinaryIO], object]) -> None:
        """Call `write` with this file; an error of the disk comes out as what it is."""
        try:
            write(cast(BinaryIO, self))
        except Exception:
            if self._trouble is not None:
                raise self._trouble from None
            raise

    def write(self, data: Any) -> int:
        """As the file's own."""
        self.asked += memoryview(data).nbytes
        try:
            return self._file.write(data)
        except OSError as error:
            self._trouble = self._trouble or error
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _exchange(temporary: Path, path: Path) -> None:
    """Give a file its name; the old file's hash goes before, and comes back when the renaming fails."""
    old = sidecar(path)
    aside = _temporary(old).with_suffix(".old.tmp")
    had_hash = old.exists()
    if had_hash:
        old.replace(aside)  # never a new file beside an old hash
    try:
        temporary.replace(path)
    except OSError:
        if had_hash:
            aside.replace(old)
        raise
    aside.unlink(missing_ok=True)


def _seal(mark: Path, path: Path) -> None:
    mark.replace(sidecar(path))


def explained(error: OSError, path: Path, asked: int = 0) -> OSError:
    """An error of the disk that names the file that was to be written, and how much there is to free."""
    error.filename, error.filename2 = str(path), None
    if error.errno in FULL:
        there = next(folder for folder in path.absolute().parents if folder.is_dir())
        free = shutil.disk_usage(there).free
        words = os.strerror(error.errno)
        error.strerror = f"disk full ({words}): {asked / 1e6:.1f} MB or more to write, {free / 1e6:.1f} MB free"
    return error


def _write_small(path: Path, text: str) -> None:
    temporary = _temporary(path)
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(folder: Path) -> None:
    """Remove what killed processes left half-written below a folder.

    What a living process of this machine writes stays; so does, for an hour, what another machine may be writing.
    """
    if not folder.is_dir():
        return
    with tempfile.TemporaryFile(dir=folder) as probe:  # the file system's own clock
        now = os.fstat(probe.fileno()).st_mtime
    for path in folder.rglob(".*.tmp"):
        owner = path.suffixes[-2].lstrip(".") if len(path.suffixes) > 1 else ""
        with suppress(FileNotFoundError):
            if not (owner.isdecimal() and Path(f"/proc/{owner}").exists()) and now - path.stat().st_mtime > LEFT_S:
                path.unlink()


def write_bytes(path: Path, data: bytes) -> str:
    """Write bytes atomically; return the sha256."""
    return write_with(path, lambda file: file.write(data))


def write_text(path: Path, text: str) -> str:
    """Write UTF-8 text atomically; return the sha256."""
    return write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: object) -> str:
    """Write JSON atomically (sorted keys, no NaN: a number that is not one must be said in words)."""
    return write_text(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n")


def write_npy(path: Path, array: NDArray[Any]) -> str:
    """Write one array, memory-mappable."""
    return write_with(path, lambda file: np.save(file, array, allow_pickle=False))


def write_npz(path: Path, **arrays: NDArray[Any]) -> str:
    """Write named arrays."""
    return write_with(path, lambda file: np.savez(file, allow_pickle=False, **arrays))


def remove(path: Path) -> None:
    """Remove a file and its hash, where they are there."""
    path.unlink(missing_ok=True)
    sidecar(path).unlink(missing_ok=True)


def append_line(path: Path, text: str) -> None:
    """Append one line and force it to the disk: a log that survives a kill."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise explained(error, path, len(text)) from None


def seal(path: Path) -> str:
    """Leave the sha256 of a log beside it, and return it: nothing more will be appended, and readers may check it."""
    digest = sha256_file(path)
    _write_small(sidecar(path), f"{digest}\n")
    _sync_folder(path.parent)
    return digest


# --- reading --------------------------------------------------------------------------------------------------------
def stored_hash(path: Path) -> str | None:
    """The sha256 that lies beside a file; None where there is none that can be read."""
    try:
        return sidecar(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None


def is_sound(path: Path) -> bool:
    """Whether the file exists, can be read, and equals the hash beside it."""
    try:
        return path.is_file() and stored_hash(path) == sha256_file(path)
    except OSError:
        return False


def checked(path: Path) -> Path:
    """The path, if its content equals the hash beside it.

    Raises:
        DataError: the file or its hash is missing, or they differ.
    """
    if not path.is_file():
        raise DataError(f"{path}: file not found; run the step that makes it")
    if not is_sound(path):
        raise _mismatch(path)
    return path


def _mismatch(path: Path) -> DataError:
    return DataError(f"{path}: content does not match {sidecar(path).name}; delete the file and run its step again")


def read_hashed(path: Path) -> tuple[bytes, str]:
    """Content of a file whose hash holds, read once, and that sha256 (DataError otherwise)."""
    if not path.is_file():
        raise DataError(f"{path}: file not found; run the step that makes it")
    data = path.read_bytes()
    digest = sha256_bytes(data)
    if stored_hash(path) != digest:
        raise _mismatch(path)
    return data, digest


def read_bytes(path: Path) -> bytes:
    """Content of a file whose hash holds (DataError otherwise)."""
    return read_hashed(path)[0]


def read_text(path: Path) -> str:
    """UTF-8 text of a file whose hash holds (DataError otherwise)."""
    return read_bytes(path).decode("utf-8")


def read_json(path: Path) -> Any:
    """JSON of a file whose hash holds (DataError otherwise)."""
    return json.loads(read_text(path))


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Named arrays of a file whose hash holds (DataError otherwise)."""
    return arrays_in(read_bytes(path))


def arrays_in(data: bytes) -> dict[str, NDArray[Any]]:
    """Named arrays of the bytes of an .npz file, which may hold no objects (ValueError)."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def read_npy(path: Path) -> NDArray[Any]:
    """One array, memory-mapped read-only, of a file whose hash holds (DataError otherwise)."""
    array: NDArray[Any] = np.load(checked(path), mmap_mode="r", allow_pickle=False)
    return array


def read_lines(path: Path) -> list[Any]:
    """JSON lines of a log; a half-written last line (a kill in the middle of it) is left out.

    Raises:
        DataError: the log was sealed, and is not what it was then.
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
