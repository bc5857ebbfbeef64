"""Weights of archived runs: ranks and perplexities measured again from float16, against those of float32."""

import gzip
import json
import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import safetensors.numpy
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.extras import archived_weights
from softmax_bottleneck.report import archive
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import MemoryExhaustedError
from softmax_bottleneck.store.paths import ROOT
from softmax_bottleneck.study import Study

SHIPPED = ROOT / "report" / "evidence" / "studies" / "benka-mixture-intel-xeon.json.gz"
TOLERANCE = 0.001  # of the perplexity, relative


@pytest.fixture
def archived(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The archive of a finished study, with its weights beside it."""
    monkeypatch.setattr(archive, "FOLDER", tmp_path / "studies")
    monkeypatch.setattr(archive, "load", archive.load.__wrapped__)  # its file changes
    assert main(["archive", "--study", str(study.file), "--weights"]) == 0
    (path,) = archive.files()
    return path


def verify(study: Study, path: Path) -> int:
    return main(["verify", "--study", str(study.file), "--archive", str(path), "--weights"])


def test_ranks_and_perplexities_from_float16_agree_with_those_of_float32(study, archived, capsys) -> None:
    tensors = safetensors.numpy.load(archived_weights.file_of(archived).read_bytes())
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype("float16")}
    again = dict(archived_weights.measure_again(archived, study.store))
    assert set(again) == {run.path for run in study.needed} == {name.rpartition("/")[0] for name in tensors}
    for path, numbers in again.items():
        folder = study.store.run_folder(path)
        full = {name: tensor.size for name, tensor in safetensors.numpy.load_file(folder / "model.safetensors").items()}
        assert full == {name.rpartition("/")[2]: t.size for name, t in tensors.items() if name.startswith(f"{path}/")}
        ranks = artefacts.read_json(folder / "rank.json")["metrics"]
        ppl = artefacts.read_json(folder / "measure.json")["metrics"]["test_ppl_sound"]
        assert numbers.pop("test_ppl_sound")[0] == pytest.approx(ppl, rel=TOLERANCE)
        assert all(abs(value - ranks[name]) <= 2 and number == ranks[name] for name, (value, number) in numbers.items())
    capsys.readouterr()
    assert verify(study, archived) == 0 and len(capsys.readouterr().out.splitlines()) == 1 + len(again)


def test_perplexities_that_only_the_weights_contradict_are_refused(study, archived, capsys) -> None:
    """Both perplexities of a run are lowered together, so that no rule of the numbers is broken."""
    content = json.loads(gzip.decompress(archived.read_bytes()))
    rows = content["rows"]
    contexts = rows["n"][rows["metric"].index("hit_rate_1")]
    first = {metric: rows["metric"].index(metric) for metric in ("test_ppl", "test_ppl_sound")}
    sound = rows["value"][first["test_ppl_sound"]] * 0.99
    rows["value"][first["test_ppl_sound"]], rows["value"][first["test_ppl"]] = (sound,
        sound ** (contexts / (contexts + 1)))  # fmt: skip
    artefacts.write_bytes(archived, gzip.compress(json.dumps(content).encode()))
    assert main(["verify", "--archive", str(archived)]) == 0
    capsys.readouterr()
    assert verify(study, archived) == 2
    assert re.search(r"test_ppl_sound: .*; 1 numbers contradict the weights\n$", capsys.readouterr().err)


def swapped(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights of each run under the name of the next."""
    paths = sorted({name.rpartition("/")[0] for name in tensors if "/softmax/" in name})
    other = dict(zip(paths, paths[1:] + paths[:1], strict=True))
    parts = [(*name.rsplit("/", 1), tensor) for name, tensor in tensors.items()]
    return {f"{other.get(path, path)}/{name}": tensor for path, name, tensor in parts}


def without_a_run(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    path = min(tensors).rpartition("/")[0]
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(f"{path}/")}


def edited(change):
    """A damage that changes the tensors of a file of weights."""

    def damage(path: Path, study: Study) -> None:
        with safetensors.safe_open(path, "np") as stored:
            metadata = stored.metadata()
        artefacts.write_bytes(path, safetensors.numpy.save(change(safetensors.numpy.load(path.read_bytes())), metadata))

    return damage


DAMAGES = {
    edited(swapped): "contradict the weights",
    edited(without_a_run): ": no weights",
    edited(lambda tensors: {f"x{name}": tensor for name, tensor in tensors.items()}): "not the weights of this archive",
    edited(lambda tensors: dict(list(tensors.items())[1:])): "not the weights of this archive",
    edited(lambda tensors: {name: tensor * np.nan for name, tensor in tensors.items()}): "not finite",
    lambda path, study: path.write_bytes(path.read_bytes()[:-9]): "content does not match",
    lambda path, study: artefacts.write_bytes(path, path.read_bytes()[:-9]): "not the weights of this archive",
    lambda path, study: artefacts.write_bytes(path, b"\x80\x04no pickle is read"): "not the weights of this archive",
    lambda path, study: artefacts.remove(path): "file not found",
    lambda path, study: shutil.rmtree(study.store.tokens_folder("tiny")): "vocabulary.json",
}


@pytest.mark.fault("H8")
def test_weights_of_other_runs_damaged_weights_and_a_missing_text_are_refused_in_one_line(
    study, archived, capsys
) -> None:
    path = archived_weights.file_of(archived)
    intact = path.read_bytes()
    for damage, key in DAMAGES.items():
        artefacts.write_bytes(path, intact)
        damage(path, study)
        capsys.readouterr()
        assert verify(study, archived) == 2
        message = capsys.readouterr().err
        assert key in message and message.count("\n") == 1


def test_too_little_memory_is_not_a_fault_of_the_archive(study, archived, monkeypatch) -> None:
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")
    monkeypatch.setattr(archived_weights, "_measure", Mock(side_effect=error))
    with pytest.raises(MemoryExhaustedError):
        list(archived_weights.measure_again(archived, study.store))


@pytest.mark.fault("H8")
def test_parameters_that_contradict_the_settings_everywhere_are_refused(tmp_path: Path, capsys) -> None:
    content = json.loads(gzip.decompress(SHIPPED.read_bytes()))
    rows, path = content["rows"], tmp_path / SHIPPED.name
    for metric, less in (("parameters", 1000), ("params_m", 0.001)):
        rows["value"][rows["metric"].index(metric)] -= less
    artefacts.write_bytes(path, gzip.compress(json.dumps(content).encode()))
    archive.load(path)
    assert main(["verify", "--archive", str(path)]) == 2
    message = capsys.readouterr().err
    assert "parameters contradict its settings" in message and message.count("\n") == 1
