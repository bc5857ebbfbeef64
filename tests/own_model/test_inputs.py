"""Files that other programs wrote: every sound form gives the same numbers; any other is one line, never a number."""

import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file
from softmax_bottleneck.own_model import inputs
from softmax_bottleneck.store.errors import UserError

D = 4
VALUES = np.arange(800, dtype=np.float32).reshape(200, D)


@pytest.fixture(autouse=True)
def folder(place: Path) -> Path:
    return place


def read(*names: str) -> np.ndarray:
    return inputs.load(inputs.find(names, "hidden"))


def test_every_format_gives_the_same_numbers() -> None:
    np.save("plain.npy", VALUES)
    np.savez("plain.npz", other=VALUES[:2], h=VALUES)
    np.savez_compressed("small.npz", h=VALUES.astype(">f8"))
    np.save("fortran.npy", np.asfortranarray(VALUES))
    np.savez("fortran.npz", h=np.asfortranarray(VALUES))
    np.save("deep.npy", VALUES.reshape(20, 10, D))
    save_file({"a": torch.ones(3), "h": torch.from_numpy(VALUES)}, "h.safetensors")
    names = ["plain.npy", "plain.npz::h", "small.npz", "fortran.npy", "fortran.npz", "deep.npy", "h.safetensors::h"]
    for name in names:
        (shard,) = inputs.find([name], "hidden")
        assert (shard.rows, shard.columns) == (200, D)
        np.testing.assert_array_equal(shard.read(), VALUES, err_msg=name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_half_precision_is_read_as_torch_reads_it(dtype: torch.dtype) -> None:
    values = torch.randn(50, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    values[0] = torch.tensor([0.0, -0.0, 1e-7, -6e4, 3.14, 1e-40, 65504.0])  # subnormal numbers and the largest float16
    save_file({"x": values.to(dtype)}, "x.safetensors")
    found = read("x.safetensors")
    assert found.dtype == (np.float64 if dtype == torch.float64 else np.float32)
    np.testing.assert_array_equal(found, values.to(dtype).to(torch.float64).numpy())


def test_shards_are_in_natural_order() -> None:
    for part in (1, 2, 10, 11):
        np.save(f"part-{part}.npy", np.full((part, 2), part, np.float32))
    assert read("part-*.npy")[:, 0].tolist() == [1.0] * 1 + [2.0] * 2 + [10.0] * 10 + [11.0] * 11
    np.save("part-12.npy", np.full((1, 2), 1 / 3))  # in double precision: all are
    assert float(read("part-*.npy")[-1, 0]) == 1 / 3


@pytest.mark.fault("H4")
def test_odd_names_are_read() -> None:
    for part in ("h-²", "h-1", "h-\udcff"):  # a digit that is no number; a name that is not UTF-8
        np.save(f"{part}.npy", VALUES)
    assert len(read("h-*.npy")) == 600


def npz(method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as packed, packed.open("x.npy", "w") as file:
        np.save(file, VALUES)
    return out.getvalue()


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]


def patched_npz(place: int, value: int) -> bytes:
    """Set two bytes of both headers of an archive's member: flags are at 6, the method at 8."""
    data = bytearray(npz())
    for start, shift in ((data.index(b"PK\3\4"), 0), (data.index(b"PK\1\2"), 2)):
        data[start + place + shift : start + place + shift + 2] = struct.pack("<H", value)
    return bytes(data)


def safetensors(header: object, numbers: bytes = bytes(32)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + numbers


def entry(first: int, end: int, **more: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": [2, D], "data_offsets": [first, end]} | more


def npy(header: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode("latin-1") + bytes(32)


def saved(value: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, value, allow_pickle=True)
    return out.getvalue()


class Canary:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("canary"),))


DAMAGED = np.where(np.arange(800).reshape(200, D) == 41 * D + 2, np.inf, VALUES)
UNSOUND = {
    "text.txt": (b"1 2 3", "expected a file that ends in .npy, .npz, .safetensors"),
    "whole.npy": (saved(np.arange(12).reshape(2, 6)), "numbers are int64, expected float16"),
    "empty.npy": (saved(np.zeros((0, 6), np.float32)), "has shape (0, 6)"),
    "objects.npy": (saved(np.array([[Canary()]], dtype=object)), "contains pickled objects"),
    "pickled.npy": (pickle.dumps(Canary()), "not a sound .npy file"),
    "cut.npy": (saved(VALUES)[:-8], "not a sound .npy file"),
    "inf.npy": (saved(DAMAGED), "inf.npy: row 41, column 2 is inf"),
    "large.npy": (saved(np.full((2, 2), -1e300)), "row 0, column 0 is -1e+300: a rank needs finite numbers up to"),
    "open.npy": (npy("{'descr': '<f4', 'shape': ("), ""),
    "negative.npy": (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-2, -4), }"), ""),
    "true.npy": (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (True, 8), }"), ""),
    "huge.npy": (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }"), ""),
    "nothing.npy": (b"", ""),
    "junk.npz": (b"PK junk", "not a sound .npz file"),
    "cut.npz": (npz()[:-30], "not a zip file"),
    "flipped.npz": (flipped(npz(), 1000), "Bad CRC-32"),
    "deflated.npz": (flipped(npz(zipfile.ZIP_DEFLATED), 300), ""),
    "bzip2.npz": (flipped(npz(zipfile.ZIP_BZIP2), 300), ""),
    "lzma.npz": (flipped(npz(zipfile.ZIP_LZMA), 300), ""),
    "encrypted.npz": (patched_npz(6, 1), "encrypted"),
    "method.npz": (patched_npz(8, 99), "compression method"),
    "int8.safetensors": (save({"x": torch.zeros(2, D, dtype=torch.int8)}), "numbers are I8, expected one of F16, BF16"),
    "cut.safetensors": (save({"x": torch.zeros(2, D)})[:-4], "not where the header says"),
    "long.safetensors": (b"\xff" * 16, "longer than the file"),
    "before.safetensors": (safetensors({"x": entry(-32, 0)}), "x is not where the header says"),
    "behind.safetensors": (safetensors({"x": entry(32, 64)}), "x is not where the header says"),
    "backwards.safetensors": (safetensors({"x": entry(32, 0)}), "not where the header says"),
    "size.safetensors": (safetensors({"x": entry(0, 32, shape=[3, D])}), "not where the header says"),
    "no shape.safetensors": (safetensors({"x": {"dtype": "F32", "data_offsets": [0, 32]}}), ""),
    "list.safetensors": (safetensors([1, 2]), ""),
    "negative.safetensors": (safetensors({"x": entry(0, 32, shape=[-2, -D])}), ""),
    "halves.safetensors": (safetensors({"x": entry(0, 32, shape=[2.0, D])}), ""),
    "texts.safetensors": (safetensors({"x": entry(0, 32, shape="24", dtype=["F32"])}), ""),
    "deep.safetensors": (safetensors(b"[" * 100_000), ""),
    "digits.safetensors": (safetensors(b'{"x": {"shape": [' + b"9" * 5000 + b"]}}"), ""),
    "not utf-8.safetensors": (safetensors(b'{"\xff": 1}'), ""),
    "nothing.safetensors": (b"", ""),
}


@pytest.mark.fault("H2", "H3", "H5")
@pytest.mark.parametrize("name", UNSOUND)
def test_a_file_that_is_not_sound_is_one_line_and_never_runs(name: str) -> None:
    data, message = UNSOUND[name]
    Path(name).write_bytes(data)
    with pytest.raises(UserError) as caught:
        read(name)
    text = str(caught.value)
    assert name in text and message in text and "\n" not in text and len(text) < 500
    assert not Path("canary").exists()


@pytest.mark.fault("H4")
@pytest.mark.parametrize(("names", "message"), [
    (["nowhere-*.npy"], "hidden: nowhere-*.npy: no such file"),
    (["\0.npy"], "no such file"),
    (["x" * 300 + ".npy"], "no such file"),
    (["folder.npy"], "folder.npy: expected a file, not a folder or a device"),
    (["pipe.npy"], "pipe.npy: expected a file, not a folder or a device"),
    (["h.npy::x"], "an .npy file holds one array"),
    (["h.npy", "wide.npy"], "h.npy has shape (200, 4) and wide.npy (4, 7)"),
    (["two.npz"], "holds 2 arrays: choose one by two.npz::NAME; arrays: here, there"),
    (["two.npz::her"], "has no array 'her'; arrays: here, there"),
])  # fmt: skip
def test_a_name_that_chooses_no_array_is_one_line(names: list[str], message: str) -> None:
    Path("folder.npy").mkdir()
    os.mkfifo("pipe.npy")
    np.save("h.npy", VALUES), np.save("wide.npy", np.zeros((4, 7), np.float32))
    np.savez("two.npz", here=VALUES, there=VALUES)
    with pytest.raises(UserError) as caught:
        read(*names)
    assert message in str(caught.value)


@pytest.mark.fault("H1")
@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.safetensors"])
def test_a_file_cut_short_before_it_is_read(name: str) -> None:
    np.save("x.npy", VALUES), np.savez("x.npz", x=VALUES), save_file({"x": torch.from_numpy(VALUES)}, "x.safetensors")
    (shard,) = inputs.find([name], "hidden")
    os.truncate(name, 2000)
    with pytest.raises(UserError, match=r"damaged \(.*\); export it again"):
        shard.read()


SOUND = {"x.npy": saved(VALUES[:6]), "x.npz": npz(zipfile.ZIP_DEFLATED),
    "x.safetensors": save({"x": torch.from_numpy(VALUES[:6])})}  # fmt: skip


@pytest.mark.fault("H3")
@settings(max_examples=80, derandomize=True, deadline=None)
@given(name=st.sampled_from(sorted(SOUND)),
    edits=st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=4)), min_size=1, max_size=3),
    cut=st.none() | st.integers(0, 400))  # fmt: skip
def test_any_bytes_are_numbers_or_one_line(name: str, edits: list[tuple[int, bytes]], cut: int | None) -> None:
    data = SOUND[name]
    for place, new in edits:
        data = data[:place] + new + data[place + len(new) :]
    Path(name).write_bytes(data[:cut])
    try:
        (shard,) = inputs.find([name], "hidden")
        rows = len(shard.read())
    except UserError as error:
        assert name in str(error) and "\n" not in str(error) and len(str(error)) < 1000
    else:
        assert rows == shard.rows and rows * shard.columns <= 4000
