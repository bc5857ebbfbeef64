"""A bad file never becomes a number, and no crash leaves half a file under a final name."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(value=JSON)
def test_json_round_trip(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    path = tmp_path_factory.mktemp("json") / "a.json"
    artefacts.write_json(path, value)
    assert artefacts.read_json(path) == value


def test_arrays_round_trip(tmp_path: Path) -> None:
    sigma, ids = np.linspace(1, 0, 7), np.arange(5, dtype=np.int32)
    artefacts.write_npz(tmp_path / "a.npz", sigma=sigma, ids=ids)
    artefacts.write_npy(tmp_path / "b.npy", ids)
    found = artefacts.read_npz(tmp_path / "a.npz")
    np.testing.assert_array_equal(found["sigma"], sigma)
    np.testing.assert_array_equal(artefacts.read_npy(tmp_path / "b.npy"), ids)
    assert found["ids"].dtype == np.int32


@pytest.mark.fault("E9")
def test_every_kind_of_damage_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    rng = np.random.default_rng(0)
    whole = rng.bytes(257)
    for trial in range(30):
        artefacts.write_bytes(path, whole)
        damaged = bytearray(whole)
        place = int(rng.integers(len(whole)))
        if trial % 3 == 0:
            damaged[place] ^= 1 << int(rng.integers(8))
        elif trial % 3 == 1:
            del damaged[place:]
        else:
            damaged.insert(place, 0)
        path.write_bytes(bytes(damaged))
        with pytest.raises(DataError, match=r"a\.bin: content does not match"):
            artefacts.read_bytes(path)


def test_a_missing_hash_or_file_is_an_error(tmp_path: Path) -> None:
    artefacts.write_text(tmp_path / "a.txt", "x")
    artefacts.sidecar(tmp_path / "a.txt").unlink()
    with pytest.raises(DataError, match="does not match"):
        artefacts.read_text(tmp_path / "a.txt")
    with pytest.raises(DataError, match="not found"):
        artefacts.read_text(tmp_path / "b.txt")


@pytest.mark.fault("E1")
def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    artefacts.write_text(path, "old")

    def break_off(file: object) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        artefacts.write_with(path, break_off)
    assert artefacts.read_text(path) == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.txt", "a.txt.sha256"]


def test_a_half_written_last_line_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    artefacts.append_line(log, '{"epoch": 1}')
    with log.open("a", encoding="utf-8") as file:
        file.write('{"epo')
    assert artefacts.read_lines(log) == [{"epoch": 1}]
