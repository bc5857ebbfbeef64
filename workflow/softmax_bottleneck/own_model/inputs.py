"""The input of the command `rank`: its options, and arrays from .npy, .npz and .safetensors files.

Arrays have any floating-point precision and lie in one file or in several (shards). No file is unpickled, and no number
is read through a memory map: if another program shortens a mapped file, the system kills the reader. Half precision
becomes float32, which holds every float16 and bfloat16 exactly. A number that is not finite, or beyond LARGEST (1e70),
raises an error that names the file and the row.

Suffixes: N rows, C columns (the last axis; all axes before it count as rows).
"""

import glob
import json
import math
import os.path
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from softmax_bottleneck import heads
from softmax_bottleneck.corpora.archives import damage_refused
from softmax_bottleneck.store import schema
from softmax_bottleneck.store.errors import DataError, UserError
from softmax_bottleneck.store.paths import natural_order

Floats = NDArray[np.floating[Any]]

LARGEST = 1e70  # no log-probability is larger; squares of numbers up to this limit fit float64
SAFETENSORS_TYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
FLOAT_TYPES = ("float16", "float32", "float64")
ARRAYS = ("hidden", "weight", "log_probs")  # options that name arrays, besides `bias`
SOURCES = ("hidden weight", "log_probs", "model text", "weight weights_only")
EXPECTED = "hidden and weight (optionally bias, head, targets); log_probs; model and text; weight and weights_only"
Files = tuple[schema.Line, ...]


# --- options --------------------------------------------------------------------------------------------------------
@schema.section
class Request:
    """The options of the command `rank`, which name the model to analyse.

    There are four kinds of input: `hidden` and `weight` (optionally `bias`, `head`, `targets`); `log_probs` alone;
    `model` and `text`; `weight` and `weights_only`. In the shapes, `words` is the size of the vocabulary.

    Attributes:
        hidden: files with the hidden states [contexts, width] that enter the output layer. Each entry is a file, a
            pattern (`part-*.npy`), or one of these with the name of an array (`model.npz::hidden`).
        weight: files with the output matrix [words, width], whole or in shards of words.
        bias: file with the output bias [words].
        head: name of a head without weights of its own (such as `softmax`, `gss` or `softcap`), and after a colon its
            options (docs/heads.md), such as `gss:c=-1.5,k=2.5`.
        log_probs: files with log-probabilities [contexts, words], whole or in shards of contexts.
        model: Hugging Face folder or .gguf file.
        text: UTF-8 text file; every token is a context whose hidden state `model` computes.
        targets: .npy file with the index of the true next word of each context; -1 if a context has none.
        weights_only: True to analyse the output matrix `weight` without hidden states.
        price: True to fit heads of several widths to the model's distributions, which needs hidden states.
        seconds: time limit of the search for unargmaxable words (words that no hidden state makes the most probable
            one); 0 skips the search.
    """

    hidden: Files = ()
    weight: Files = ()
    bias: str | None = None
    head: str = "softmax"
    log_probs: Files = ()
    model: schema.Line | None = None
    text: schema.Line | None = None
    targets: schema.Line | None = None
    weights_only: schema.Flag = False
    price: schema.Flag = False
    seconds: Annotated[schema.Number, Field(ge=0, le=1e6)] = 60.0

    def __post_init__(self) -> None:
        """Check that the options name exactly one of the four kinds of input.

        Raises:
            ValueError: the options fit no kind of input, such as `hidden` without `weight`, or mix several kinds.
                `study.read` turns this into a UserError.
        """
        sources = " ".join(key for key in (*ARRAYS, "model", "text", "weights_only") if getattr(self, key))
        if sources not in SOURCES:
            raise ValueError(f"got {sources or 'no input'}. Expected one of: {EXPECTED}")
        if self.price and sources in ("log_probs", "weight weights_only"):
            raise ValueError(f"price needs hidden states: hidden and weight, or model and text (got {sources})")
        if sources != "hidden weight" and (self.bias or self.targets or self.head != "softmax"):
            raise ValueError(f"bias, head and targets need hidden and weight (got {sources}); leave them out")

    def files(self) -> list[Path]:
        """Return the files that the options name, without duplicates; a pattern stands for all files that match it.

        A `model` folder stands for its .json and .safetensors files.

        Raises:
            UserError: an array file cannot be found or used (see `find`).
            DataError: an array file is damaged, or arrays have unequal numbers of columns (see `find`).
        """
        if self.model:
            path = Path(self.model)
            inside = sorted(file for pattern in ("*.json", "*.safetensors") for file in path.glob(pattern))
            return [*(inside or [path]), *([Path(self.text)] if self.text else [])]
        patterns = {key: getattr(self, key) for key in ARRAYS} | {"bias": (self.bias,) if self.bias else ()}
        paths = [shard.path for key, names in patterns.items() for shard in find(names, key)]
        return list(dict.fromkeys([*paths, *([Path(self.targets)] if self.targets else [])]))


def parse_head(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of a head from text such as `gss:c=-1.5,k=2.5`.

    Options that the text leaves out have their default values.

    Raises:
        UserError: the text is malformed, or the head or an option is invalid.
    """
    name, _, rest = text.partition(":")
    given: dict[str, Any] = {}
    for pair in filter(None, rest.split(",")):
        key, separator, value = pair.partition("=")
        if not separator:
            raise UserError(f"head {text}: expected NAME:OPTION=VALUE,OPTION=VALUE")
        number = value.strip()
        try:
            given[key.strip()] = int(number) if number.lstrip("-").isdecimal() else float(number)
        except ValueError:
            given[key.strip()] = number
    return name, heads.options(name, given)


# --- arrays ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shard:
    """One array in one file; its data are not loaded.

    Attributes:
        path: the file.
        member: the array's name inside an .npz or .safetensors file, else "".
        shape: shape of the stored array.
        dtype: float16, bfloat16, float32 or float64.
        start: byte offset of the first number in a .safetensors file; 0 for other files, where it is not used.
    """

    path: Path
    member: str
    shape: tuple[int, ...]
    dtype: str
    start: int = 0

    @property
    def label(self) -> str:
        """The array's name in messages: `FILE`, or `FILE::NAME` if the file names its arrays."""
        return f"{self.path}::{self.member}" if self.member else str(self.path)

    @property
    def rows(self) -> int:
        """The number of rows N: the product of all axes but the last."""
        return math.prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        """The number of columns C, the length of the last axis."""
        return self.shape[-1]

    def read(self) -> Floats:
        """Return all rows [N, C] as float32 or float64.

        Raises:
            DataError: a number is nan, infinite or beyond LARGEST, or the file is truncated or damaged.
        """
        with damage_refused(f"{self.label}: damaged", "export it again"):
            if self.path.suffix == ".safetensors":
                stored = "<u2" if self.dtype == "bfloat16" else np.dtype(self.dtype).newbyteorder("<")
                rows_NC = np.fromfile(self.path, stored, math.prod(self.shape), offset=self.start)
            elif self.member:
                with np.load(self.path, allow_pickle=False) as archive:
                    rows_NC = archive[self.member]
            else:
                rows_NC = np.load(self.path, allow_pickle=False)
            rows_NC = rows_NC.reshape(self.rows, self.columns)
            if self.dtype == "bfloat16":  # the upper half of a float32
                rows_NC = np.left_shift(rows_NC, 16, dtype=np.uint32).view(np.float32)
            rows_NC = rows_NC.astype(np.float64 if self.dtype == "float64" else np.float32, copy=False)
        limit = min(LARGEST, float(np.finfo(rows_NC.dtype).max))
        if not (rows_NC.min() >= -limit and rows_NC.max() <= limit):  # false for nan
            row, column = np.argwhere(~(np.abs(rows_NC) <= limit))[0]
            problem = f"row {row}, column {column} is {rows_NC[row, column]}"
            advice = "Export it again (log-probabilities: log_softmax, not log of softmax)"
            raise DataError(f"{self.label}: {problem}: a rank needs finite numbers up to {LARGEST:g}. {advice}")
        return rows_NC


def find(patterns: Sequence[str], key: str) -> list[Shard]:
    """Return the arrays that `patterns` name, without loading their data.

    Args:
        patterns: each is `FILE`, `FILE::NAME` with the name of an array in the file, or one of these with wildcards in
            the file (`part-*.npz::hidden`). Files that match one pattern are in natural order: shard-9 before shard-10.
        key: name of the option that gave the patterns, such as `weight`, for error messages.

    Raises:
        UserError: no file matches, a file's suffix is not .npy, .npz or .safetensors, the file has no array of the
            given name, or it holds several arrays and no name is given.
        DataError: a file is damaged, an array is empty or holds no floating-point numbers, or the arrays have unequal
            numbers of columns.
    """
    shards: list[Shard] = []
    for pattern in patterns:
        place, _, name = pattern.partition("::")
        files = [place] if os.path.isfile(place) else sorted(glob.glob(place), key=natural_order)  # noqa: PTH113, PTH207  # no error for odd names; absolute patterns
        if not files:
            raise UserError(f"{key}: {place}: no such file")
        for file in files:
            path = Path(file)
            if not os.path.isfile(file):  # noqa: PTH113
                raise UserError(f"{key}: {file}: expected a file, not a folder or a device")
            if path.suffix not in FORMATS:
                raise UserError(f"{key}: {path}: expected a file that ends in {', '.join(FORMATS)}")
            fault = f"{key}: {path}: not a sound {path.suffix} file, or it contains pickled objects"
            with damage_refused(fault, "export it again"):
                shard = FORMATS[path.suffix](path, name)
            if not shard.shape or 0 in shard.shape:
                raise DataError(f"{key}: {shard.label} has shape {shard.shape}. Expected numbers in it")
            shards.append(shard)
            if shard.columns != shards[0].columns:
                problem = f"{shards[0].label} has shape {shards[0].shape} and {shard.label} {shard.shape}"
                raise DataError(f"{key}: {problem}. Expected the same last axis in all shards")
    return shards


def _chosen(path: Path, name: str, names: Sequence[str]) -> str:
    """Return `name` or, if `name` is empty, the name of the only array in the file `path`.

    `names` are the names of all arrays in the file.

    Raises:
        UserError: there is no array `name`, or `name` is empty and the file does not hold exactly one array.
    """
    if name in names:
        return name
    if name or len(names) != 1:
        problem = f"has no array {name!r}" if name else f"holds {len(names)} arrays: choose one by {path.name}::NAME"
        raise UserError(f"{path}: {problem}; arrays: {', '.join(sorted(names)) or 'none'}")
    return names[0]


# --- formats --------------------------------------------------------------------------------------------------------
@np.errstate(over="ignore")  # a damaged header may give sizes whose product overflows
def _numpy(path: Path, name: str) -> Shard:
    """Return the description of the array in an .npy file, or of the array `name` in an .npz file.

    An empty `name` means the only array. Of an .npy file, only the header is read.

    Raises:
        UserError: an .npz file has no array `name`, or `name` is empty and the file does not hold exactly one array; or
            `name` is given for an .npy file, whose array has no name.
        DataError: the array holds no floating-point numbers.
    """
    values, member = np.load(path, mmap_mode="r", allow_pickle=False), ""
    if path.suffix == ".npz":
        with values as archive:
            member = _chosen(path, name, archive.files)
            values = archive[member]
    elif name:
        raise UserError(f"{path}: an .npy file holds one array without a name: leave out ::{name}")
    shard = Shard(path, member, values.shape, values.dtype.name)
    if shard.dtype not in FLOAT_TYPES:
        hint = "; numpy files cannot hold bfloat16: use .safetensors or float32" if values.dtype.kind == "V" else ""
        raise DataError(f"{shard.label}: numbers are {shard.dtype}, expected {', '.join(FLOAT_TYPES)}{hint}")
    return shard


def _safetensors(path: Path, name: str) -> Shard:
    """Return the description of the array `name` in a .safetensors file (an empty `name`: of the only array).

    Only the header is read: eight bytes with the length of a JSON text, and this text. The safetensors library is not
    used, because its numpy interface has no bfloat16.

    Raises:
        UserError: there is no array `name`, or `name` is empty and the file does not hold exactly one array.
        DataError: the array holds no floating-point numbers.
        ValueError: the header contradicts the size of the file or of the array. `find` turns this into a DataError.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError(f"its header of {length} bytes is longer than the file")
        header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    start = 8 + length
    chosen = _chosen(path, name, list(header))
    entry = header[chosen]
    if entry["dtype"] not in SAFETENSORS_TYPES:
        expected = ", ".join(SAFETENSORS_TYPES)
        raise DataError(f"{path}::{chosen}: numbers are {entry['dtype']}, expected one of {expected}")
    dtype, (first, end) = SAFETENSORS_TYPES[entry["dtype"]], entry["data_offsets"]
    size = math.prod(entry["shape"]) * (2 if dtype == "bfloat16" else np.dtype(dtype).itemsize)
    if first < 0 or end - first != size or start + end > path.stat().st_size:
        raise ValueError(f"{chosen} is not where the header says")
    return Shard(path, chosen, tuple(entry["shape"]), dtype, start + first)


FORMATS: Mapping[str, Callable[[Path, str], Shard]] = {".npy": _numpy, ".npz": _numpy, ".safetensors": _safetensors}


# --- reading --------------------------------------------------------------------------------------------------------
def dtype_of(shards: Sequence[Shard]) -> np.dtype[Any]:
    """Return the type that represents all shards exactly: float64 if any shard is float64, else float32."""
    return np.dtype(np.float64 if any(shard.dtype == "float64" for shard in shards) else np.float32)


def load(shards: Sequence[Shard]) -> Floats:
    """Return the rows of all shards in one array [N, C]; besides this array, memory holds one shard at a time.

    Raises:
        DataError: as in `Shard.read`.
    """
    if len(shards) == 1:
        return shards[0].read()
    rows_NC = np.empty((sum(shard.rows for shard in shards), shards[0].columns), dtype_of(shards))
    first = 0
    for shard in shards:
        rows_NC[first : first + shard.rows] = shard.read()
        first += shard.rows
    return rows_NC
