"""Faults of files that other programs wrote, and of what `rank` is told of them: one line, exit 2, never a number."""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.own_model import question, rank, shards
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError

D = 4
LAYER = ["rank", "--hidden", "h.npy", "--weight", "w.npy", "--out", "out"]


@pytest.fixture(autouse=True)
def layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray]:
    """A layer of 30 contexts and 20 words in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(artefacts.os, "fsync", lambda descriptor: None)
    random = np.random.default_rng(0)
    h_ND, w_VD = random.normal(size=(30, D)).astype(np.float32), random.normal(size=(20, D)).astype(np.float32)
    np.save("h.npy", h_ND), np.save("w.npy", w_VD)
    return h_ND, w_VD


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a call ends with, and nothing written."""
    assert main(["rank", *words, "--out", "out"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("error: ") and sum(line.startswith("error: ") for line in lines) == 1
    assert all("Warning" not in line and "Traceback" not in line for line in lines)
    assert not Path("out").exists()
    return lines[-1]


# --- files that change or are damaged -------------------------------------------------------------------------------
@pytest.mark.fault("H1")
@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.safetensors"])
def test_h1_a_file_cut_short_while_it_is_read(name: str) -> None:
    values_NC = np.ones((5000, 8), np.float32)
    writers: dict[str, Callable[[], object]] = {
        "x.npy": lambda: np.save("x.npy", values_NC),
        "x.npz": lambda: np.savez("x.npz", x=values_NC),
        "x.safetensors": lambda: Path("x.safetensors").write_bytes(save({"x": values_NC})),
    }
    writers[name]()
    (shard,) = shards.find([name], "hidden")
    read = shard.blocks(block_bytes=8 * 8 * 1000)
    assert len(next(read)) == 1000
    os.truncate(name, 80_000)
    with pytest.raises(UserError, match=r"damaged \(.*\); export it again"):
        list(read)


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]


def npz(method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as packed, packed.open("x.npy", "w") as file:
        np.save(file, np.arange(800, dtype=np.float32).reshape(200, D))
    return out.getvalue()


def patched_npz(place: int, value: int) -> bytes:
    """An .npz with two bytes of both headers of its member set: flags are at 6, the method at 8."""
    data = bytearray(npz())
    for start, shift in ((data.index(b"PK\3\4"), 0), (data.index(b"PK\1\2"), 2)):
        data[start + place + shift : start + place + shift + 2] = struct.pack("<H", value)
    return bytes(data)


@pytest.mark.fault("H2")
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (flipped(npz(), 1000), "Bad CRC-32"),
        (flipped(npz(zipfile.ZIP_DEFLATED), 300), "x.npz"),
        (flipped(npz(zipfile.ZIP_BZIP2), 300), "x.npz"),
        (flipped(npz(zipfile.ZIP_LZMA), 300), "x.npz"),
        (patched_npz(6, 1), "encrypted"),
        (patched_npz(8, 99), "compression method"),
        (npz()[:-30], "not a zip file"),
    ],
    ids=["stored", "deflated", "bzip2", "lzma", "encrypted", "method", "cut"],
)
def test_h2_damaged_packed_arrays(capsys: pytest.CaptureFixture[str], data: bytes, words: str) -> None:
    Path("x.npz").write_bytes(data)
    assert words in refused(capsys, "--hidden", "x.npz", "--weight", "w.npy")


def safetensors(header: object, numbers: bytes = bytes(32)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + numbers


def entry(first: int, end: int, **more: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": [2, D], "data_offsets": [first, end]} | more


def npy(header: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode("latin-1") + bytes(32)


HEADERS = {
    "before the numbers.safetensors": safetensors({"x": entry(-32, 0)}),
    "behind the end.safetensors": safetensors({"x": entry(32, 64)}),
    "overlap.safetensors": safetensors({"x": entry(0, 32), "y": entry(16, 48)}, bytes(48)),
    "gap.safetensors": safetensors({"x": entry(0, 32), "y": entry(40, 72)}, bytes(72)),
    "backwards.safetensors": safetensors({"x": entry(32, 0)}),
    "more numbers than said.safetensors": safetensors({"x": entry(0, 32)}, bytes(36)),
    "another size than the shape.safetensors": safetensors({"x": entry(0, 32, shape=[3, D])}),
    "no shape.safetensors": safetensors({"x": {"dtype": "F32", "data_offsets": [0, 32]}}),
    "a list.safetensors": safetensors([1, 2]),
    "negative.safetensors": safetensors({"x": entry(0, 32, shape=[-2, -D])}),
    "halves.safetensors": safetensors({"x": entry(0, 32, shape=[2.0, D])}),
    "texts.safetensors": safetensors({"x": entry(0, 32, shape="24", dtype=["F32"])}),
    "deep.safetensors": safetensors(b"[" * 100_000),
    "digits.safetensors": safetensors(b'{"x": {"shape": [' + b"9" * 5000 + b"]}}"),
    "not utf-8.safetensors": safetensors(b'{"\xff": 1}'),
    "empty.safetensors": b"",
    "deep.npy": npy("-" * 9000 + "1"),
    "sums.npy": npy("1+" * 4000 + "1"),
    "open.npy": npy("{'descr': '<f4', 'shape': ("),
    "negative.npy": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-2, -4), }"),
    "true.npy": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (True, 8), }"),
    "huge.npy": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }"),
    "subarray.npy": npy("{'descr': ('<f4', (4,)), 'fortran_order': False, 'shape': (2,), }"),
    "empty.npy": b"",
}


@pytest.mark.fault("H3")
@pytest.mark.parametrize("name", HEADERS)
def test_h3_headers_that_lie(capsys: pytest.CaptureFixture[str], name: str) -> None:
    Path(name).write_bytes(HEADERS[name])
    message = refused(capsys, "--hidden", name, "--weight", "w.npy")
    assert name in message and len(message) < 500


def sound_files() -> dict[str, bytes]:
    values = np.arange(24, dtype=np.float32).reshape(6, D)
    npy_file = io.BytesIO()
    np.save(npy_file, values)
    return {"x.npy": npy_file.getvalue(), "x.npz": npz(zipfile.ZIP_DEFLATED), "x.safetensors": save({"x": values})}


@pytest.mark.fault("H3")
@settings(max_examples=300, derandomize=True, deadline=None)
@given(
    name=st.sampled_from(sorted(sound_files())),
    edits=st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=4)), min_size=1, max_size=3),
    cut=st.none() | st.integers(0, 400),
)
def test_h3_any_bytes_are_numbers_or_one_line(
    name: str, edits: list[tuple[int, bytes]], cut: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = sound_files()[name]
    for place, new in edits:
        data = data[:place] + new + data[place + len(new) :]
    path = tmp_path_factory.mktemp("fuzz") / name
    path.write_bytes(data[:cut])
    try:
        (shard,) = shards.find([str(path)], "hidden")
        rows = sum(len(block) for block in shard.blocks())
    except UserError as error:
        assert str(path) in str(error) and "\n" not in str(error) and len(str(error)) < 1000
    else:
        assert rows == shard.rows and shard.size_bytes <= 4000


@pytest.mark.fault("H4")
def test_h4_folders_pipes_and_odd_names(
    capsys: pytest.CaptureFixture[str], layer: tuple[np.ndarray, np.ndarray]
) -> None:
    Path("folder.npy").mkdir()
    os.mkfifo("pipe.npy")
    for name in ("folder.npy", "pipe.npy"):
        assert f"{name}: expected a file, not a folder or a device" in refused(
            capsys, "--hidden", name, "--weight", "w.npy"
        )
    for name in ("\0.npy", "x" * 300 + ".npy", "["):
        assert "no such file" in refused(capsys, "--hidden", name, "--weight", "w.npy")
    for part in ("h-²", "h-1", "h-\udcff"):  # a digit that is no number; a name that is not UTF-8
        np.save(f"{part}.npy", layer[0])
    assert main(["rank", "--hidden", "h-*.npy", "--weight", "w.npy", "--out", "out", "--log", "log"]) == 0
    assert artefacts.read_json(Path("out/rank.json"))["contexts"] == 90
    assert main(["rank", "--hidden", "h-\udcff.npy::x", "--weight", "w.npy", "--log", "log"]) == 2
    assert r"hidden.0: 'h-\udcff.npy::x' is not allowed" in Path("log").read_text(encoding="utf-8")


# --- numbers --------------------------------------------------------------------------------------------------------
@pytest.mark.fault("H5")
def test_h5_numbers_that_overflow(capsys: pytest.CaptureFixture[str], layer: tuple[np.ndarray, np.ndarray]) -> None:
    log_p_NV = np.array([[0.0, -1e300], [-1e300, 0.0], [np.log(0.5)] * 2])
    np.save("p.npy", log_p_NV)
    words = "row 0, column 1 is -1e+300: a rank needs finite numbers up to 1e+70"
    assert words in refused(capsys, "--log-probs", "p.npy")
    np.save("huge.npy", layer[0] * np.float32(1e38))
    for head in ("softmax", "gss"):
        words = refused(capsys, "--hidden", "huge.npy", "--weight", "huge.npy", "--head", head)
        assert "hidden: row 0 gives logits that overflow float32" in words
    with np.errstate(over="ignore"):
        np.save("inf.npy", layer[0] * np.float32(1e39))
    assert "is inf" in refused(capsys, "--hidden", "inf.npy", "--weight", "w.npy")


@pytest.mark.fault("H6")
def test_h6_one_word_has_rank_zero_by_every_way(layer: tuple[np.ndarray, np.ndarray]) -> None:
    """Its log-probability is 0 in every context: the zero matrix."""
    (
        np.save("one.npy", layer[1][:1]),
        np.save("b.npy", np.float32([0.7])),
        np.save("p.npy", np.zeros((30, 1), np.float32)),
    )
    ways = [{"head": "softmax"}, {"head": "softmax", "bias": "b.npy"}, {"head": "gss"}]
    asked = [{"hidden": ["h.npy"], "weight": ["one.npy"]} | way for way in ways] + [
        {"log_probs": ["p.npy"], "width": D}
    ]
    for given_ in asked:
        result = rank.rank(question.question(given_, "test"), lambda line: None)
        assert result.ranks.press.rank == 0 and set(result.ranks.effective.values()) == {0}, given_
    assert main(["rank", "--hidden", "h.npy", "--weight", "one.npy", "--out", "out"]) == 0


# --- what is said on the command line -------------------------------------------------------------------------------
@pytest.mark.fault("H7")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--head", "gss:c=["], "option \"c\" must be a number, got '['"),
        (["--head", "gss:c=!!python/name:os.system"], "must be a number"),
        (["--head", "gss:c=nan"], "must be a number, got nan"),
        (["--head", "gss:c=" + "9" * 5000], "must be a number"),
        (["--head", "gss:c=" + "[" * 5000], "must be a number"),
        (["--head", "gss:=1"], 'has no option ""'),
        (["--max-memory", "4GB\n"], "'4GB\\n' is no size: expected one like 4GB"),
        (["--max-memory", "9" * 400 + "GB"], "is no size"),
        (["--max-memory", "٤GB"], "is no size"),
        (["--title", "\udcff"], "title: '\\udcff' is not allowed"),
        (["--width", "0"], "width: 0 is not allowed"),
    ],
    ids=lambda value: "-".join(value)[:24] if isinstance(value, list) else "",
)
def test_h7_options_that_mean_nothing(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert message in refused(capsys, "--hidden", "h.npy", "--weight", "w.npy", *words)
