"""Arrays that other programs wrote: .npy, .npz and .safetensors, one array in one file or in shards, in any precision.

A file is read a block of rows at a time and never unpickled. Half precision becomes float32, in which every float16 and
bfloat16 is exact. A number that is not finite is refused with its file and row.

Suffixes: N rows, C columns (the last axis; all axes before it count as rows).
"""

from __future__ import annotations

import glob
import json
import math
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.store.errors import DataError, UserError

Floats = NDArray[np.floating[Any]]
Raw = NDArray[Any]

SUFFIXES = (".npy", ".npz", ".safetensors")
BLOCK_BYTES = 32 << 20
HEADER_BYTES = 100 << 20  # the largest header that the safetensors library itself accepts
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
        read: called with a number of rows, gives raw blocks [at most so many, C] in order.
    """

    path: Path
    label: str
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[int], Iterator[Raw]]

    @property
    def rows(self) -> int:
        """Number of rows N: the product of all axes but the last."""
        return math.prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        """Number of columns C."""
        return self.shape[-1]

    def blocks(self, block_bytes: int = BLOCK_BYTES) -> Iterator[Floats]:
        """All rows in blocks [any, C], float32 or float64.

        Raises:
            DataError: a number is nan or infinite, or the file ends too early.
        """
        first = 0
        for raw in self.read(max(1, block_bytes // (8 * max(1, self.columns)))):
            block = widen(raw, self.dtype)
            self._refuse_non_finite(block, first)
            first += len(block)
            yield block

    def _refuse_non_finite(self, block: Floats, first: int) -> None:
        sound = np.isfinite(block)
        if not sound.all():
            row, column = np.argwhere(~sound)[0]
            raise DataError(
                f"{self.label}: row {first + row}, column {column} is {block[row, column]}: a rank needs finite"
                " numbers; mend the export (log-probabilities: log_softmax instead of the log of a softmax)"
            )


def widen(raw: Raw, dtype: str) -> Floats:
    """float16 and bfloat16 (as its bits, uint16) in float32, without rounding; others in native byte order."""
    if dtype == "bfloat16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float64 if dtype == "float64" else np.float32, copy=False)


# --- finding --------------------------------------------------------------------------------------------------------
def find(patterns: Sequence[str], what: str) -> list[Shard]:
    """The arrays that `FILE`, `FILE::NAME` or patterns of them (`part-*.npz::hidden`) name; shards in natural order.

    Raises:
        UserError: no such file, a suffix that is none of SUFFIXES, or a name that is not in the file.
        DataError: a damaged file, an array of something else than floating-point numbers, or shards of unequal width.
    """
    found = [_open(path, name, what) for pattern in patterns for path, name in _files(pattern, what)]
    for shard in found:
        if shard.shape[-1:] != found[0].shape[-1:]:
            raise DataError(
                f"{what}: {found[0].label} has shape {found[0].shape} and {shard.label} {shard.shape}:"
                " all shards must have the same last axis"
            )
    return found


def _files(pattern: str, what: str) -> list[tuple[Path, str]]:
    place, _, name = pattern.partition("::")
    path = Path(place)
    if path.is_file():
        return [(path, name)]
    found = sorted(glob.glob(place), key=_natural)  # noqa: PTH207  # Path.glob knows no absolute patterns
    if not found:
        raise UserError(f"{what}: {place}: no such file")
    return [(Path(one), name) for one in found]


def _natural(text: str) -> list[tuple[int, str]]:
    """A key that puts shard-10 behind shard-9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


def _open(path: Path, name: str, what: str) -> Shard:
    openers = {".npy": _npy, ".npz": _npz, ".safetensors": _safetensors}
    if path.suffix not in openers:
        raise UserError(f"{what}: {path}: expected a file that ends in {', '.join(SUFFIXES)}")
    try:
        shard = openers[path.suffix](path, name)
    except (ValueError, TypeError, KeyError, EOFError, SyntaxError, OverflowError, zipfile.BadZipFile) as error:
        raise DataError(f"{what}: {path}: not a sound {path.suffix} file without pickled objects ({error})") from None
    if not shard.shape or 0 in shard.shape:
        raise DataError(f"{what}: {shard.label} has shape {shard.shape}: expected numbers in it")
    return shard


def _float_type(dtype: np.dtype[Any], label: str) -> str:
    if dtype.name not in FLOAT_TYPES:
        hint = "; numpy files cannot say bfloat16: save as .safetensors or as float32" if dtype.kind == "V" else ""
        raise DataError(f"{label}: numbers are {dtype.name}, expected one of bfloat16, {', '.join(FLOAT_TYPES)}{hint}")
    return dtype.name


def _chosen(path: Path, name: str, names: Sequence[str]) -> str:
    """The array that is meant: the one named, or the only one there is."""
    if name in names:
        return name
    if name or len(names) != 1:
        problem = f"has no array {name!r}" if name else f"holds {len(names)} arrays: say which by {path.name}::NAME"
        raise UserError(f"{path}: {problem}; arrays: {', '.join(sorted(names)) or 'none'}")
    return names[0]


# --- formats --------------------------------------------------------------------------------------------------------
def _npy(path: Path, name: str) -> Shard:
    if name:
        raise UserError(f"{path}: an .npy file holds one array without a name: leave out ::{name}")
    values = np.lib.format.open_memmap(path, mode="r")
    return _mapped(path, str(path), values, _float_type(values.dtype, str(path)))


def _mapped(path: Path, label: str, values: Raw, dtype: str) -> Shard:
    def read(rows: int) -> Iterator[Raw]:
        flat_NC = values.reshape(-1, values.shape[-1])
        for start in range(0, len(flat_NC), rows):
            yield np.asarray(flat_NC[start : start + rows])

    return Shard(path, label, values.shape, dtype, read)


def _npz(path: Path, name: str) -> Shard:
    with zipfile.ZipFile(path) as archive:
        names = [member[:-4] for member in archive.namelist() if member.endswith(".npy")]
        chosen = _chosen(path, name, names)
        with archive.open(f"{chosen}.npy") as file:
            shape, fortran, dtype = _npy_header(file)
    label = f"{path}::{chosen}"
    kind = _float_type(dtype, label)

    def read(rows: int) -> Iterator[Raw]:
        with zipfile.ZipFile(path) as archive, archive.open(f"{chosen}.npy") as file:
            if fortran:  # its rows are not consecutive: this once the whole array is read
                yield np.lib.format.read_array(file, allow_pickle=False).reshape(-1, shape[-1])
                return
            _npy_header(file)
            yield from _rows_of_stream(file, rows, shape, dtype, label)

    return Shard(path, label, shape, kind, read)


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, column order and type of the .npy that starts here; leaves the stream at its numbers."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)


def _rows_of_stream(
    file: IO[bytes], rows: int, shape: tuple[int, ...], dtype: np.dtype[Any], label: str
) -> Iterator[Raw]:
    width, left = shape[-1], math.prod(shape[:-1])
    while left:
        count = min(rows, left)
        try:
            data = file.read(count * width * dtype.itemsize)
        except (zipfile.BadZipFile, EOFError) as error:
            raise DataError(f"{label}: damaged ({error}): export it again") from None
        if len(data) < count * width * dtype.itemsize:
            raise DataError(f"{label}: the file ends {left} rows too early: export it again")
        yield np.frombuffer(data, dtype=dtype).reshape(count, width)
        left -= count


def _safetensors(path: Path, name: str) -> Shard:
    """Eight bytes of header length, a JSON header, the numbers; read here because numpy has no bfloat16."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(HEADER_BYTES, path.stat().st_size - 8):
            raise ValueError(f"its header of {length} bytes is longer than the file")
        header = json.loads(file.read(length))
    chosen = _chosen(path, name, [key for key in header if key != "__metadata__"])
    label = f"{path}::{chosen}"
    entry = header[chosen]
    if entry["dtype"] not in SAFETENSORS_TYPES:
        raise DataError(f"{label}: numbers are {entry['dtype']}, expected one of {', '.join(SAFETENSORS_TYPES)}")
    kind, shape = SAFETENSORS_TYPES[entry["dtype"]], tuple(entry["shape"])
    stored = np.dtype("<u2") if kind == "bfloat16" else np.dtype(kind).newbyteorder("<")
    start, end = entry["data_offsets"]
    if end - start != math.prod(shape) * stored.itemsize or 8 + length + end > path.stat().st_size:
        raise ValueError(f"{chosen} is not where the header says")
    if not math.prod(shape):  # an empty file cannot be mapped
        return Shard(path, label, shape, kind, lambda rows: iter(()))
    values = np.memmap(path, dtype=stored, mode="r", offset=8 + length + start, shape=shape)
    return _mapped(path, label, values, kind)


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
    for shard in shards:
        for block in shard.blocks():
            chosen = block
            if keep is not None:
                start, end = np.searchsorted(keep, [first, first + len(block)])
                chosen = block[keep[start:end] - first]
            first += len(block)
            if len(chosen):
                yield chosen.astype(dtype, copy=False)
