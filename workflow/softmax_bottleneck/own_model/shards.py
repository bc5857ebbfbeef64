"""Arrays that other programs wrote: .npy, .npz and .safetensors, one array in one file or in shards, in any precision.

A file is read a block of rows at a time; it is never unpickled, and never mapped into memory, because a mapped file
that somebody shortens kills its reader. Half precision becomes float32, in which every float16 and bfloat16 is exact.
A number that is not finite, or too large to be squared, is refused with its file and row.

Suffixes: N rows, C columns (the last axis; all axes before it count as rows).
"""

from __future__ import annotations

import glob
import json
import math
import os.path
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.corpora.archives import damage_refused
from softmax_bottleneck.store.errors import DataError, UserError

Floats = NDArray[np.floating[Any]]

BLOCK_BYTES = 32 << 20
HEADER_BYTES = 100 << 20  # the largest header that the safetensors library itself accepts
LARGEST = 1e70  # what is larger cannot be a logarithm of a probability, and products of it overflow a Gram matrix
# Number types by their names in safetensors and in numpy; bfloat16 is carried as its 16 bits.
SAFETENSORS_TYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
FLOAT_TYPES = ("float16", "float32", "float64")


@dataclass(frozen=True)
class Shard:
    """One array in one file.

    Attributes:
        path: the file.
        label: the file and the array's name in it, for messages.
        shape: as stored.
        dtype: float16, bfloat16, float32 or float64.
        stored: numpy's type of the numbers in the file, with their byte order.
        column_major: whether columns are consecutive (Fortran order); such an array is read as a whole.
        numbers: opens the file at the array's first number.
    """

    path: Path
    label: str
    shape: tuple[int, ...]
    dtype: str
    stored: np.dtype[Any]
    column_major: bool
    numbers: Callable[[], AbstractContextManager[IO[bytes]]]

    @property
    def rows(self) -> int:
        """Number of rows N: the product of all axes but the last."""
        return math.prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        """Number of columns C."""
        return self.shape[-1]

    @property
    def size_bytes(self) -> int:
        """Size of the numbers in the file, unpacked."""
        return math.prod(self.shape) * self.stored.itemsize

    def blocks(self, block_bytes: int = BLOCK_BYTES) -> Iterator[Floats]:
        """All rows in blocks [any, C], float32 or float64.

        Raises:
            DataError: a number is nan, infinite or beyond LARGEST; the file ends too early or is damaged.
        """
        step = self.rows if self.column_major else max(1, block_bytes // (8 * self.columns))
        with damage_refused(f"{self.label}: damaged", "export it again"), self.numbers() as file:
            for first in range(0, self.rows, step):
                block = self._read(file, min(step, self.rows - first))
                self._refuse_unusable(block, first)
                yield block

    def _read(self, file: IO[bytes], rows: int) -> Floats:
        data = file.read(rows * self.columns * self.stored.itemsize)
        if len(data) < rows * self.columns * self.stored.itemsize:
            raise EOFError("the file ends too early")
        raw = np.frombuffer(data, self.stored)
        if self.column_major:
            raw = raw.reshape(self.shape, order="F")
        return widen(raw.reshape(rows, self.columns), self.dtype)

    def _refuse_unusable(self, block_NC: Floats, first: int) -> None:
        usable_NC = np.abs(block_NC) <= min(LARGEST, float(np.finfo(block_NC.dtype).max))  # false for nan
        if not usable_NC.all():
            row, column = np.argwhere(~usable_NC)[0]
            raise DataError(
                f"{self.label}: row {first + row}, column {column} is {block_NC[row, column]}: a rank needs finite"
                f" numbers up to {LARGEST:g}; mend the export (log-probabilities: log_softmax, not log of softmax)"
            )


def widen(raw: NDArray[Any], dtype: str) -> Floats:
    """float16 and bfloat16 (as its bits, uint16) in float32, without rounding; others in native byte order."""
    if dtype == "bfloat16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float64 if dtype == "float64" else np.float32, copy=False)


# --- finding --------------------------------------------------------------------------------------------------------
def find(patterns: Sequence[str], what: str) -> list[Shard]:
    """The arrays that `FILE`, `FILE::NAME` or patterns of them (`part-*.npz::hidden`) name; shards in natural order.

    Raises:
        UserError: no such file, a suffix that is none of FORMATS, or a name that is not in the file.
        DataError: a damaged file, an array of something else than floating-point numbers, or shards of unequal width.
    """
    shards = [_open(path, name, what) for pattern in patterns for path, name in _files(pattern, what)]
    for shard in shards:
        if shard.columns != shards[0].columns:
            raise DataError(
                f"{what}: {shards[0].label} has shape {shards[0].shape} and {shard.label} {shard.shape}:"
                " all shards must have the same last axis"
            )
    return shards


def _files(pattern: str, what: str) -> Iterator[tuple[Path, str]]:
    place, _, name = pattern.partition("::")
    paths = [place] if os.path.isfile(place) else sorted(glob.glob(place), key=_natural)  # noqa: PTH113, PTH207  # no error for odd names; absolute patterns
    if not paths:
        raise UserError(f"{what}: {place}: no such file")
    for path in paths:
        if not os.path.isfile(path):  # noqa: PTH113
            raise UserError(f"{what}: {path}: expected a file, not a folder or a device")
        yield Path(path), name


def _natural(text: str) -> list[tuple[int, str]]:
    """A key that puts shard-10 behind shard-9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


def _open(path: Path, name: str, what: str) -> Shard:
    if path.suffix not in FORMATS:
        raise UserError(f"{what}: {path}: expected a file that ends in {', '.join(FORMATS)}")
    fault = f"{what}: {path}: not a sound {path.suffix} file without pickled objects"
    with damage_refused(fault, "export it again"):
        shard = FORMATS[path.suffix](path, name)
    if not shard.shape or 0 in shard.shape:
        raise DataError(f"{what}: {shard.label} has shape {shard.shape}: expected numbers in it")
    return shard


def _chosen(path: Path, name: str, names: Sequence[str]) -> str:
    """The array that is meant: the one named, or the only one there is."""
    if name in names:
        return name
    if name or len(names) != 1:
        problem = f"has no array {name!r}" if name else f"holds {len(names)} arrays: say which by {path.name}::NAME"
        raise UserError(f"{path}: {problem}; arrays: {', '.join(sorted(names)) or 'none'}")
    return names[0]


def _bytes_of(label: str, shape: Sequence[object], itemsize: int) -> int:
    """Bytes that an array of this shape takes (ValueError unless it is a shape)."""
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"{label} has shape {shape}")
    return math.prod(shape) * itemsize  # type: ignore[arg-type]


# --- formats --------------------------------------------------------------------------------------------------------
def _npy(path: Path, name: str) -> Shard:
    if name:
        raise UserError(f"{path}: an .npy file holds one array without a name: leave out ::{name}")
    with path.open("rb") as file:
        header = _npy_header(file)
        start, end = file.tell(), file.seek(0, os.SEEK_END)
    return _numpy_shard(path, str(path), header, end - start, partial(_at, path, start))


def _npz(path: Path, name: str) -> Shard:
    with zipfile.ZipFile(path) as archive:
        names = [member[:-4] for member in archive.namelist() if member.endswith(".npy")]
        member = _chosen(path, name, names) + ".npy"
        with archive.open(member) as file:
            header = _npy_header(file)
            room = archive.getinfo(member).file_size - file.tell()
    return _numpy_shard(path, f"{path}::{member[:-4]}", header, room, partial(_in_zip, path, member))


@contextmanager
def _at(path: Path, start: int) -> Iterator[IO[bytes]]:
    with path.open("rb") as file:
        file.seek(start)
        yield file


@contextmanager
def _in_zip(path: Path, member: str) -> Iterator[IO[bytes]]:
    with zipfile.ZipFile(path) as archive, archive.open(member) as file:
        _npy_header(file)
        yield file


NpyHeader = tuple[tuple[int, ...], bool, np.dtype[Any]]  # shape, whether column-major, type


def _npy_header(file: IO[bytes]) -> NpyHeader:
    """Header of the .npy that starts here; leaves the stream at its numbers."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        return read(file)
    except (MemoryError, RecursionError):  # of Python's parser: a header has 10,000 characters at most
        raise ValueError("its header is nested too deeply") from None


def _numpy_shard(
    path: Path, label: str, header: NpyHeader, room: int, numbers: Callable[[], AbstractContextManager[IO[bytes]]]
) -> Shard:
    shape, column_major, dtype = header
    if dtype.name not in FLOAT_TYPES:
        hint = "; numpy files cannot say bfloat16: save as .safetensors or as float32" if dtype.kind == "V" else ""
        raise DataError(f"{label}: numbers are {dtype.name}, expected one of bfloat16, {', '.join(FLOAT_TYPES)}{hint}")
    if _bytes_of(label, shape, dtype.itemsize) > room:
        raise ValueError(f"{label} of shape {shape} is longer than the {room} bytes there are")
    return Shard(path, label, shape, dtype.name, dtype, column_major and len(shape) > 1, numbers)


def _safetensors(path: Path, name: str) -> Shard:
    """Eight bytes of header length, a JSON header, the numbers; read here because numpy has no bfloat16."""
    header, start, size = _safetensors_header(path)
    chosen = _chosen(path, name, list(header))
    label, entry = f"{path}::{chosen}", header[chosen]
    if entry["dtype"] not in SAFETENSORS_TYPES:
        raise DataError(f"{label}: numbers are {entry['dtype']}, expected one of {', '.join(SAFETENSORS_TYPES)}")
    kind, shape = SAFETENSORS_TYPES[entry["dtype"]], tuple(entry["shape"])
    stored = np.dtype("<u2") if kind == "bfloat16" else np.dtype(kind).newbyteorder("<")
    _require_adjacent(header, size)
    first, end = entry["data_offsets"]
    if _bytes_of(label, shape, stored.itemsize) != end - first:
        raise ValueError(f"{chosen} is not where the header says")
    return Shard(path, label, shape, kind, stored, False, partial(_at, path, start + first))


def _safetensors_header(path: Path) -> tuple[dict[str, Any], int, int]:
    """What is said of every array, where the numbers start, and how many bytes of them there are."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END) - 8
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if length > min(HEADER_BYTES, size):
            raise ValueError(f"its header of {length} bytes is longer than the file")
        header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header, 8 + length, size - length


def names(path: Path) -> list[str]:
    """Names of the arrays in a .safetensors file (DataError where it is none)."""
    with damage_refused(f"{path}: not a sound .safetensors file", "export it again"):
        return list(_safetensors_header(path)[0])


def _require_adjacent(header: Mapping[str, Any], size: int) -> None:
    """ValueError unless all arrays lie one behind the other from 0 to `size`, as the format demands."""
    before = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        first, end = entry["data_offsets"]
        if first != before or end < first or end > size:
            raise ValueError(f"{name} is not where the header says")
        before = end
    if before != size:
        raise ValueError(f"{size - before} bytes at its end belong to no array")


FORMATS: Mapping[str, Callable[[Path, str], Shard]] = {".npy": _npy, ".npz": _npz, ".safetensors": _safetensors}


# --- reading --------------------------------------------------------------------------------------------------------
def dtype_of(shards: Sequence[Shard]) -> np.dtype[Any]:
    """The type that holds all shards exactly: float64 if one of them is, else float32."""
    return np.dtype(np.float64 if any(shard.dtype == "float64" for shard in shards) else np.float32)


def load(shards: Sequence[Shard], keep: NDArray[np.intp] | None = None) -> Floats:
    """Rows of all shards, one below the other, in one array; `keep` (ascending row numbers) chooses some of them."""
    total = sum(shard.rows for shard in shards)
    rows = np.empty((total if keep is None else len(keep), shards[0].columns), dtype_of(shards))
    filled = 0
    for block in blocks(shards, keep):
        rows[filled : filled + len(block)] = block
        filled += len(block)
    return rows


def blocks(shards: Sequence[Shard], keep: NDArray[np.intp] | None = None) -> Iterator[Floats]:
    """All rows, or those whose ascending numbers are in `keep`, in blocks [any, C] of one type."""
    dtype = dtype_of(shards)
    first = 0
    for block in (block for shard in shards for block in shard.blocks()):
        chosen = block
        if keep is not None:
            start, end = np.searchsorted(keep, [first, first + len(block)])
            chosen = block[keep[start:end] - first]
        first += len(block)
        if len(chosen):
            yield chosen.astype(dtype, copy=False)
