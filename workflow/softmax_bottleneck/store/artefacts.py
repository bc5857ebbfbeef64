"""Reading and writing of result files, with a hash for every file.

Every write is atomic (temporary file in the same folder, fsync, rename) and leaves a `<name>.sha256` beside the file.
Every read checks this hash, so that a truncated or damaged file raises an error and never yields a number. A missing
hash counts as a wrong one. The only exceptions are logs while they are being written (`append_line`, `read_lines`) and
a resume state whose writer was killed before the hash, which has checksums inside (`jobs.resumable`).

What a wrong hash leads to depends on the file:

* a download (`corpora.sources`): what was fetched is discarded and the next source tried; if none is left, the step
  ends with exit code 2, and a damaged older file stays. Of a text at hand, line ends, a byte-order mark and the last
  newline are mended first;
* a result: each step that reads it ends with a DataError, exit code 2. `collect` and `verify` (exit code 3) only list
  the file, and `make repair` removes it (`records.verify` says what else), so that `make reproduce` computes it again.
  When `fit` or `measure` runs, it computes damaged results of its own again;
* a record of a finished run: the run's own step and `make repair` restore it from its copy (`jobs.outcome_record`);
* a resume state: the other state is used, or, without an intact one, the step ends with exit code 2 (`jobs.resumable`).
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.store.errors import DataError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
LEFT_S = 3600.0  # seconds without a write after which a temporary file counts as abandoned


# --- writing --------------------------------------------------------------------------------------------------------
def sha256_file(path: Path) -> str:
    """Return the hex sha256 of a file, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sidecar(path: Path) -> Path:
    """Return the path of the file that holds the sha256 of `path`."""
    return path.with_name(path.name + ".sha256")


def write_with(path: Path, write: Callable[[BinaryIO], object]) -> str:
    """Write a file atomically and return its sha256: `write` fills a temporary file, which is then renamed to `path`.

    After a crash, `path` holds the complete old or the complete new content. The old hash is removed before the rename
    and the new one appears after it. A crash in between leaves no hash: readers treat the file as damaged, and the step
    that writes it runs again.

    Args:
        path: the file; its folder is created if missing.
        write: function of one argument, an open binary file, to which it writes the content.

    Raises:
        OSError: the disk is full, over quota or failing. A full disk leaves the old file and its hash unchanged.
        Exception: any error that `write` raises; the old file and its hash stay unchanged.
    """
    temporary, mark = (file.with_name(f".{file.name}.{os.getpid()}.tmp") for file in (path, sidecar(path)))
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
        sidecar(path).unlink(missing_ok=True)  # before the rename, so that a new file never has an old hash beside it
        temporary.replace(path)
        mark.replace(sidecar(path))
        folder = os.open(path.parent, os.O_RDONLY)  # the renames survive a power cut only once the folder is synced
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise explained(error, path) from None
    finally:
        temporary.unlink(missing_ok=True)
        mark.unlink(missing_ok=True)
    return digest


@dataclass(eq=False)
class _Watched:
    """A file that keeps its first disk error in the attribute `trouble` (None: no error so far).

    Libraries written in C, such as PyTorch, replace a disk error by an unrelated one. When saving fails, `write_with`
    therefore raises the error in `trouble`, if there is one.
    """

    file: BinaryIO
    trouble: OSError | None = None

    def write(self, data: Any) -> int:
        """Write data to the file and return the number of bytes; raise disk errors and keep the first in `trouble`."""
        try:
            return self.file.write(data)
        except OSError as error:
            self.trouble = self.trouble or error
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def explained(error: OSError, path: Path) -> OSError:
    """Return `error` itself, changed so that its message names the file and, if the disk is full, the free space."""
    error.filename, error.filename2 = str(path), None
    if error.errno in FULL:
        there = next(folder for folder in path.absolute().parents if folder.is_dir())
        free = shutil.disk_usage(there).free
        error.strerror = f"disk full ({os.strerror(error.errno)}), {free / 1e6:.1f} MB free"
    return error


def sweep(folder: Path) -> None:
    """Remove temporary files in a folder and its subfolders that were not written to for an hour.

    Killed processes leave such files behind.
    """
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
    """Write JSON atomically with sorted keys; return the sha256.

    Raises:
        ValueError: the value contains NaN or infinity.
    """
    return write_text(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n")


def write_npy(path: Path, array: NDArray[Any]) -> str:
    """Write one array atomically as an .npy file, which can be memory-mapped; return the sha256."""
    return write_with(path, lambda file: np.save(file, array, allow_pickle=False))


def write_npz(path: Path, **arrays: NDArray[Any]) -> str:
    """Write named arrays as .npz atomically; return the sha256."""
    return write_with(path, lambda file: np.savez(file, allow_pickle=False, **arrays))


def remove(path: Path) -> None:
    """Remove a file and the file with its hash, if they exist."""
    path.unlink(missing_ok=True)
    sidecar(path).unlink(missing_ok=True)


def append_line(path: Path, text: str) -> None:
    """Append one line to a log and force it to the disk, so that the line survives a kill.

    This function is not atomic and writes no hash.

    Raises:
        OSError: the disk is full or failing.
    """
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
    """Return the sha256 that is stored in the hash file of `path`; None if the hash file is missing or unreadable."""
    try:
        return sidecar(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None


def is_sound(path: Path) -> bool:
    """Return True if the file exists, is readable and matches its hash file."""
    try:
        return path.is_file() and stored_hash(path) == sha256_file(path)
    except OSError:
        return False


def checked(path: Path) -> Path:
    """Return `path` if the file's content matches its hash file.

    Raises:
        DataError: the file or its hash file is missing, or content and hash differ.
    """
    if not is_sound(path):
        raise _unusable(path)
    return path


def _unusable(path: Path) -> DataError:
    if not path.is_file():
        return DataError(f"{path}: file not found; run the step that makes it")
    return DataError(f"{path}: content does not match {sidecar(path).name}; delete the file and run its step again")


def read_bytes(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        DataError: the file or its hash file is missing, or content and hash differ.
    """
    data = path.read_bytes() if path.is_file() else None
    if data is None or stored_hash(path) != hashlib.sha256(data).hexdigest():
        raise _unusable(path)
    return data


def read_text(path: Path) -> str:
    """Return the UTF-8 text of a file; raise DataError if the file or its hash file is missing or damaged."""
    return read_bytes(path).decode("utf-8")


def read_json(path: Path) -> Any:
    """Return the value of a JSON file; raise DataError if the file or its hash file is missing or damaged."""
    return json.loads(read_text(path))


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return {name: array} of an .npz file; raise DataError if the file or its hash file is missing or damaged."""
    return arrays_in(read_bytes(path))


def arrays_in(data: bytes) -> dict[str, NDArray[Any]]:
    """Return {name: array} from the bytes of an .npz file.

    Raises:
        ValueError: an array contains Python objects, which are never loaded because loading can run code.
    """
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def read_npy(path: Path) -> NDArray[Any]:
    """Return the array of an .npy file, memory-mapped read-only.

    Raises:
        DataError: the file or its hash file is missing or damaged.
    """
    array: NDArray[Any] = np.load(checked(path), mmap_mode="r", allow_pickle=False)
    return array


def read_lines(path: Path) -> list[Any]:
    """Return the values of a log with one JSON value per line; the list is empty if there is no log.

    Reading stops at the first line that is not valid JSON, such as one that a kill has cut off.

    Raises:
        DataError: the log does not match its hash file. A log that `append_line` writes has no hash file and is not
            checked.
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
