"""Arrays in files of other programs: .npy, .npz and .safetensors, in any precision, whole or in shards; GGUF tensors.

A file is read a block of rows at a time. It is never unpickled, and never mapped into memory, because a mapped file
that somebody shortens kills its reader. Half precision becomes float32, which holds every float16 and bfloat16 exactly.
A number that is not finite, or too large to be squared, raises an error with its file and row.

Suffixes: N rows, C columns (the last axis; all axes before it count as rows).
"""

import glob
import json
import math
import os.path
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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
LARGEST = 1e70  # a larger number is no log-probability, and its products overflow a Gram matrix
SAFETENSORS_TYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
FLOAT_TYPES = ("float16", "float32", "float64")


@dataclass(frozen=True)
class Shard:
    """One array in one file.

    Attributes:
        path: the file.
        member: the array's file inside an .npz archive, else "".
        label: the file and the array's name in it, for messages.
        shape: as stored.
        dtype: float16, bfloat16, float32 or float64.
        stored: numpy's type of the numbers in the file, with their byte order; bfloat16 is stored as uint16.
        column_major: whether columns are consecutive (Fortran order); such an array is read as a whole.
        start: position of the first number in the file or archive member.
    """

    path: Path
    member: str
    label: str
    shape: tuple[int, ...]
    dtype: str
    stored: np.dtype[Any]
    column_major: bool
    start: int

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
        """Yield all rows in blocks [any, C], float32 or float64.

        Raises:
            DataError: a number is nan, infinite or beyond LARGEST; the file ends too early or is damaged.
        """
        step = self.rows if self.column_major else max(1, block_bytes // (8 * self.columns))
        with damage_refused(f"{self.label}: damaged", "export it again"), _opened(self.path, self.member) as file:
            if self.member:
                file.read(self.start)  # a seek would skip the archive's checksum
            else:
                file.seek(self.start)
            for first in range(0, self.rows, step):
                rows = min(step, self.rows - first)
                data = file.read(rows * self.columns * self.stored.itemsize)
                if len(data) < rows * self.columns * self.stored.itemsize:
                    raise EOFError("the file ends too early")
                block_NC: NDArray[Any] = np.frombuffer(data, self.stored)
                if self.column_major:
                    block_NC = block_NC.reshape(self.shape, order="F")
                block_NC = block_NC.reshape(rows, self.columns)
                if self.dtype == "bfloat16":  # the upper half of a float32
                    block_NC = (block_NC.astype(np.uint32) << 16).view(np.float32)
                block_NC = block_NC.astype(np.float64 if self.dtype == "float64" else np.float32, copy=False)
                self._require_usable(block_NC, first)
                yield block_NC

    def _require_usable(self, block_NC: Floats, first: int) -> None:
        usable_NC = np.abs(block_NC) <= min(LARGEST, float(np.finfo(block_NC.dtype).max))  # false for nan
        if not usable_NC.all():
            row, column = np.argwhere(~usable_NC)[0]
            raise DataError(
                f"{self.label}: row {first + row}, column {column} is {block_NC[row, column]}: a rank needs finite"
                f" numbers up to {LARGEST:g}. Export it again (log-probabilities: log_softmax, not log of softmax)"
            )


@contextmanager
def _opened(path: Path, member: str) -> Iterator[IO[bytes]]:
    with ExitStack() as stack:
        if member:
            archive = stack.enter_context(zipfile.ZipFile(path))
            yield stack.enter_context(archive.open(member))
        else:
            yield stack.enter_context(path.open("rb"))


# --- finding --------------------------------------------------------------------------------------------------------
def find(patterns: Sequence[str], key: str) -> list[Shard]:
    """Open the arrays that `FILE`, `FILE::NAME` or patterns (`part-*.npz::hidden`) name; shards in natural order.

    `key` is the option that names them, for messages.

    Raises:
        UserError: no such file, a suffix that is none of FORMATS, or a name that is not in the file.
        DataError: a damaged file, an array of something else than floating-point numbers, or shards of unequal width.
    """
    shards = [_shard(path, name, key) for pattern in patterns for path, name in _files(pattern, key)]
    for shard in shards:
        if shard.columns != shards[0].columns:
            raise DataError(
                f"{key}: {shards[0].label} has shape {shards[0].shape} and {shard.label} {shard.shape}."
                " Expected the same last axis in all shards"
            )
    return shards


def _files(pattern: str, key: str) -> Iterator[tuple[Path, str]]:
    def natural(text: str) -> list[tuple[int, str]]:  # shard-10 after shard-9
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]

    place, _, name = pattern.partition("::")
    paths = [place] if os.path.isfile(place) else sorted(glob.glob(place), key=natural)  # noqa: PTH113, PTH207  # no error for odd names; absolute patterns
    if not paths:
        raise UserError(f"{key}: {place}: no such file")
    for path in paths:
        if not os.path.isfile(path):  # noqa: PTH113
            raise UserError(f"{key}: {path}: expected a file, not a folder or a device")
        yield Path(path), name


def _shard(path: Path, name: str, key: str) -> Shard:
    if path.suffix not in FORMATS:
        raise UserError(f"{key}: {path}: expected a file that ends in {', '.join(FORMATS)}")
    with damage_refused(f"{key}: {path}: not a sound {path.suffix} file without pickled objects", "export it again"):
        shard = FORMATS[path.suffix](path, name)
    if not shard.shape or 0 in shard.shape:
        raise DataError(f"{key}: {shard.label} has shape {shard.shape}. Expected numbers in it")
    return shard


def _chosen(path: Path, name: str, names: Sequence[str]) -> str:
    """Return the array that is named, or the only one there is."""
    if name in names:
        return name
    if name or len(names) != 1:
        problem = f"has no array {name!r}" if name else f"holds {len(names)} arrays: choose one by {path.name}::NAME"
        raise UserError(f"{path}: {problem}; arrays: {', '.join(sorted(names)) or 'none'}")
    return names[0]


def _bytes_of(label: str, shape: Sequence[object], itemsize: int) -> int:
    """Return the bytes that an array of this shape takes (ValueError unless it is a shape)."""
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"{label} has shape {shape}")
    return math.prod(shape) * itemsize  # type: ignore[arg-type]


# --- formats --------------------------------------------------------------------------------------------------------
def _numpy(path: Path, name: str) -> Shard:
    """Read the header of an .npy file, or of one inside an .npz archive."""
    member, label, size = "", str(path), path.stat().st_size
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as archive:
            names = [file[:-4] for file in archive.namelist() if file.endswith(".npy")]
            member = _chosen(path, name, names) + ".npy"
            label, size = f"{path}::{member[:-4]}", archive.getinfo(member).file_size
    elif name:
        raise UserError(f"{path}: an .npy file holds one array without a name: leave out ::{name}")
    with _opened(path, member) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        try:
            shape, column_major, dtype = read(file)
        except (MemoryError, RecursionError):  # of Python's parser: a header has 10,000 characters at most
            raise ValueError("its header is nested too deeply") from None
        start = file.tell()
    if dtype.name not in FLOAT_TYPES:
        hint = "; numpy files cannot hold bfloat16: save as .safetensors or as float32" if dtype.kind == "V" else ""
        raise DataError(f"{label}: numbers are {dtype.name}, expected one of bfloat16, {', '.join(FLOAT_TYPES)}{hint}")
    if _bytes_of(label, shape, dtype.itemsize) > size - start:
        raise ValueError(f"{label} of shape {shape} is longer than the {size - start} bytes there are")
    return Shard(path, member, label, shape, dtype.name, dtype, column_major and len(shape) > 1, start)


def _safetensors(path: Path, name: str) -> Shard:
    header, start = _safetensors_header(path)
    chosen = _chosen(path, name, list(header))
    label, entry = f"{path}::{chosen}", header[chosen]
    if entry["dtype"] not in SAFETENSORS_TYPES:
        raise DataError(f"{label}: numbers are {entry['dtype']}, expected one of {', '.join(SAFETENSORS_TYPES)}")
    dtype, shape = SAFETENSORS_TYPES[entry["dtype"]], tuple(entry["shape"])
    stored = np.dtype("<u2") if dtype == "bfloat16" else np.dtype(dtype).newbyteorder("<")
    first, end = entry["data_offsets"]
    inside = first >= 0 and start + end <= path.stat().st_size
    if not inside or _bytes_of(label, shape, stored.itemsize) != end - first:
        raise ValueError(f"{chosen} is not where the header says")
    return Shard(path, "", label, shape, dtype, stored, False, start + first)


def _safetensors_header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the entry of every array and the position of the first number.

    The format is eight bytes of header length, a JSON header and the numbers, read here because numpy has no bfloat16.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(HEADER_BYTES, path.stat().st_size):
            raise ValueError(f"its header of {length} bytes is longer than the file")
        header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header, 8 + length


FORMATS: Mapping[str, Callable[[Path, str], Shard]] = {".npy": _numpy, ".npz": _numpy, ".safetensors": _safetensors}


def safetensors_names(path: Path) -> list[str]:
    """Return the names of the arrays in a .safetensors file (DataError where it is none)."""
    with damage_refused(f"{path}: not a sound .safetensors file", "export it again"):
        return list(_safetensors_header(path)[0])


def gguf_tensors(path: Path) -> dict[str, Callable[[], Floats]]:
    """Map the name of every tensor in a GGUF file to a function that reads it, of any quantisation, in float32.

    Raises:
        UserError: the package gguf is not installed.
        DataError: not a sound GGUF file; the functions as well.
    """
    try:
        from gguf import GGUFReader
        from gguf.quants import dequantize
    except ImportError:
        raise UserError(f"{path}: needs the package gguf, which is not installed: pip install gguf") from None

    def read(tensor: Any) -> Floats:
        with damage_refused(f"{path}: {tensor.name} cannot be read", "download it again"):
            values: Floats = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        return values

    with damage_refused(f"{path}: not a sound GGUF file", "download it again"):
        return {tensor.name: partial(read, tensor) for tensor in GGUFReader(path).tensors}


# --- reading --------------------------------------------------------------------------------------------------------
def dtype_of(shards: Sequence[Shard]) -> np.dtype[Any]:
    """Return the type that holds all shards exactly: float64 if one of them is, else float32."""
    return np.dtype(np.float64 if any(shard.dtype == "float64" for shard in shards) else np.float32)


def load(shards: Sequence[Shard], keep: NDArray[np.intp] | None = None) -> Floats:
    """Stack the rows of all shards in one array; `keep` (ascending row numbers) chooses some of them."""
    total = sum(shard.rows for shard in shards)
    rows_NC = np.empty((total if keep is None else len(keep), shards[0].columns), dtype_of(shards))
    first = filled = 0
    for block in blocks(shards):
        if keep is None:
            chosen = block
        else:
            start, end = np.searchsorted(keep, [first, first + len(block)])
            chosen = block[keep[start:end] - first]
        rows_NC[filled : filled + len(chosen)] = chosen
        first, filled = first + len(block), filled + len(chosen)
    return rows_NC


def blocks(shards: Sequence[Shard]) -> Iterator[Floats]:
    """Yield all rows in blocks [any, C] of one type."""
    dtype = dtype_of(shards)
    return (block.astype(dtype, copy=False) for shard in shards for block in shard.blocks())
