"""Every check of `doctor`, with a problem and without one."""

import collections
import dataclasses
from importlib import metadata
from pathlib import Path
from typing import Any

import fake_slurm
import pytest
import small
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.extras import doctor
from softmax_bottleneck.extras.doctor import BAD, NOTE, OK
from softmax_bottleneck.study import Study

ROOT = Path(__file__).parents[2]
Disk = collections.namedtuple("Disk", "total used free")


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch system but the ones that a test brings."""
    monkeypatch.setenv("PATH", "/usr/bin-without-slurm")


def found(study: Study, **changes: Any) -> dict[str, doctor.Finding]:
    return {one.check: one for one in doctor.examine(dataclasses.replace(study, **changes))}


def test_a_study_that_can_run_has_no_bad_finding_and_nothing_is_changed(begun: Study) -> None:
    before = small.tree(Path.cwd())
    assert main(["doctor", "--study", str(begun.file)]) == 0
    assert small.tree(Path.cwd()) == before
    findings = found(begun)
    assert {one.state for one in findings.values()} <= {OK, NOTE}
    assert findings.keys() == {"packages", "SLURM", "device", "size"}


@pytest.mark.fault("E12")
def test_packages_that_are_missing_or_others(begun: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    original = metadata.version

    def version(name: str) -> str:
        if name == "seaborn":
            raise metadata.PackageNotFoundError(name)
        return "1.0" if name == "numpy" else original(name)

    monkeypatch.setattr(doctor.metadata, "version", version)
    one = found(begun)["packages"]
    assert one.state == BAD and "seaborn" in one.found and "requirements.lock" in one.advice
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "1.0" if name == "numpy" else original(name))
    assert (found(begun)["packages"].state, "numpy 1.0" in found(begun)["packages"].found) == (NOTE, True)
    cuda = original("torch").partition("+")[0] + "+cu130"
    monkeypatch.setattr(doctor.metadata, "version", lambda name: cuda if name == "torch" else original(name))
    assert "torch" not in found(begun)["packages"].found


def test_a_disk_that_is_too_small(begun: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: Disk(1e9, 1e9, 1e3))
    assert found(begun)["size"].state == BAD and "of disk" in found(begun)["size"].found
    assert main(["doctor", "--study", str(begun.file)]) == 2


def corpus(folder: Path, **entry: Any) -> Study:
    """The study on a corpus of three files, each with this entry."""
    files = {f"{split}.txt": {"addresses": ["https://example.org/x"], "sha256": "0" * 64, "bytes": 3} | entry
             for split in ("train", "valid", "test")}  # fmt: skip
    declared = {"name": "tiny", "kind": "corpus", "title": "A text", "files": files, "mirror": "tiny"}
    counts = {"tokens": {"train": 1000, "valid": 300, "test": 300}, "vocabulary_size": 40}
    return small.load(folder, None, declared | {"expected": counts})


def test_data_that_is_there_or_not(place: Path) -> None:
    study = corpus(place)
    one = found(study)["data: tiny"]
    assert one.state == NOTE and "3 of 3 files" in one.found
    assert str(place / "mirror" / "tiny") in found(study, mirror=place / "mirror")["data: tiny"].advice
    (place / "mirror" / "tiny").mkdir(parents=True)
    for split in ("train", "valid", "test"):
        (place / "mirror" / "tiny" / f"{split}.txt").write_bytes(b"a\n")
    assert found(study, mirror=place / "mirror")["data: tiny"].state == OK
    own = corpus(place, path="absent.txt")
    assert "absent.txt" in found(own)["data: tiny"].found and found(own)["data: tiny"].state == BAD
    archive = corpus(place, addresses=["https://example.org/x.zip"], member="t")  # its members are not looked for
    (place / "results" / "corpora" / "tiny").mkdir(parents=True)
    (place / "results" / "corpora" / "tiny" / "x.zip").write_bytes(b"zip")
    assert found(archive)["data: tiny"].found.startswith("1 files")


def test_a_gpu_that_is_missing_or_that_pytorch_cannot_use(begun: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(doctor, "_output_of", lambda *command: None)
    assert found(begun, device="cuda")["device"].state == BAD
    assert found(begun, device="cpu")["device"].state == OK
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(doctor, "_output_of", lambda *command: "NVIDIA H200\n" if command[0] == "nvidia-smi" else None)
    one = found(begun, device="auto")["device"]
    assert one.state == BAD and "NVIDIA H200" in one.found
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    assert "GPU 0, GPU 1" in found(begun, device="cuda")["device"].found


def test_a_cluster_with_its_partitions(tmp_path: Path, begun: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fake_slurm.install(tmp_path / "cluster")))
    findings = found(begun)
    assert findings["SLURM"].state == OK and "gpu" in findings["SLURM"].found
    monkeypatch.setattr(doctor, "_output_of", lambda *command: "batch\nfat\n")
    one = found(begun)["SLURM"]
    assert one.state == BAD and "batch, fat" in one.found and "gpu_partition" in one.advice
    for gpu, state in (("batch,fat", OK), (2080, BAD), (None, BAD)):
        lines = {"gpu_partition": gpu, "cpu_partition": "fat"}
        monkeypatch.setattr(doctor, "load_yaml", lambda _, lines=lines: {"__variables__": lines})
        assert found(begun)["SLURM"].state == state


def test_a_broken_slurm_stops_only_a_study_that_is_submitted(tmp_path: Path, begun: Study, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(fake_slurm.install(tmp_path / "cluster", without=("sinfo",))))
    assert found(begun)["SLURM"].state == BAD and "sinfo" in found(begun)["SLURM"].found
    assert main(["doctor", "--study", str(begun.file)]) == 0
    assert main(["slurm", "--study", str(begun.file)]) == 2
