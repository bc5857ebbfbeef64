"""What `doctor` finds before the first job of a study: each check with something wrong, and with nothing."""

from __future__ import annotations

import collections
from importlib import metadata
from pathlib import Path
from typing import Any

import fake_slurm
import pytest
import small
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.extras import doctor
from softmax_bottleneck.extras.doctor import BAD, NOTE, OK, SHORT
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.study import Study

ROOT = Path(__file__).parents[2]
Disk = collections.namedtuple("Disk", "total used free")


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch system but the ones that a test brings."""
    monkeypatch.setenv("PATH", "/usr/bin-without-slurm")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(fake_slurm.install(tmp_path / "cluster")))
    return tmp_path / "cluster"


def found(study: Study, **overrides: Any) -> dict[str, doctor.Finding]:
    return {one.check: one for one in doctor.examine(study.file, overrides, on_cluster=True)}


def test_a_study_that_can_run_has_no_bad_finding_and_nothing_is_changed(begun: Study) -> None:
    before = small.tree(Path.cwd())
    assert main(["doctor", "--study", str(begun.file)]) == 0
    assert small.tree(Path.cwd()) == before
    findings = found(begun)
    assert {one.state for one in findings.values()} <= {OK, NOTE}
    assert findings.keys() >= {
        *("configuration", "packages", "writing", "SLURM", "data: tiny", "device", "disk", "time limits")
    }


def test_an_invalid_study_is_named_and_the_machine_is_checked_all_the_same(
    begun: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    begun.file.write_text(begun.file.read_text(encoding="utf-8") + "dropuot: 1\n", encoding="utf-8")
    assert main(["doctor", "--study", str(begun.file)]) == 2
    shown = capsys.readouterr()
    assert "unknown key 'dropuot'" in shown.out and "writing" in shown.out
    assert shown.err.strip().endswith(": configuration")


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


def test_a_folder_that_takes_no_files(begun: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refused)
    assert found(begun)["writing"].state == BAD and "Read-only" in found(begun)["writing"].found


def test_a_disk_that_is_too_small(begun: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: Disk(1e9, 1e9, 1e3))
    assert found(begun)["disk"].state == SHORT
    assert main(["doctor", "--study", str(begun.file)]) == 3


def corpus(folder: Path, **entry: Any) -> Study:
    """The study on a corpus of three files, each with this entry."""
    files = {f"{split}.txt": {"addresses": ["https://example.org/x"], "sha256": "0" * 64, "bytes": 3} | entry
             for split in ("train", "valid", "test")}  # fmt: skip
    declared = {"name": "tiny", "kind": "corpus", "title": "A text", "files": files, "mirror": "tiny"}
    counts = {"tokens": {"train": 1000, "valid": 300, "test": 300}, "vocabulary_size": 40}
    return small.load(folder, None, declared | {"expected": counts})


def test_data_still_to_be_fetched_right_and_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = corpus(tmp_path, sha256=artefacts.sha256_bytes(b"a\n"))
    one = found(study)["data: tiny"]
    assert one.state == NOTE and "3 of 3 files" in one.found
    (tmp_path / "mirror" / "tiny").mkdir(parents=True)
    for split in ("train", "valid", "test"):
        (tmp_path / "mirror" / "tiny" / f"{split}.txt").write_bytes(b"a\n")
    one = found(study, mirror=str(tmp_path / "mirror"))["data: tiny"]
    assert one.state == OK and "in the mirror" in one.found
    (tmp_path / "results" / "corpora" / "tiny").mkdir(parents=True)
    (tmp_path / "results" / "corpora" / "tiny" / "train.txt").write_bytes(b"b\n")
    one = found(study, mirror=str(tmp_path / "mirror"))["data: tiny"]
    assert one.state == BAD and "train.txt has another sha256" in one.found


def test_an_archive_is_looked_for_not_its_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = corpus(tmp_path, addresses=["https://example.org/x.zip"], sha256=artefacts.sha256_bytes(b"zip"), member="t")
    (tmp_path / "results" / "corpora" / "tiny").mkdir(parents=True)
    for name, data in (("x.zip", b"zip"), ("train.txt", b"a text of it\n")):
        (tmp_path / "results" / "corpora" / "tiny" / name).write_bytes(data)
    one = found(study)["data: tiny"]
    assert one.state == OK and one.found.startswith("1 files")


def test_a_gpu_that_is_asked_for_and_not_there(begun: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert found(begun, device="cuda")["device"].state == BAD
    assert found(begun, device="cpu")["device"].state == OK
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(doctor, "_output_of", lambda *command: "NVIDIA H200\n" if command[0] == "nvidia-smi" else None)
    one = found(begun, device="auto")["device"]
    assert one.state == BAD and "NVIDIA H200" in one.found
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    assert "GPU 0, GPU 1" in found(begun, device="cuda")["device"].found


def test_time_limits_against_the_longest_run(begun: Study, cluster: Path) -> None:
    assert found(begun)["time limits"].state == OK
    one = found(begun, max_wall="0.001s")["time limits"]
    assert one.state == SHORT and "6 attempts" in one.found


def test_a_cluster_without_accounting_is_a_note(begun: Study, cluster: Path) -> None:
    assert found(begun)["SLURM"].state == OK and found(begun)["partitions"].state == OK
    (cluster / "sacct").write_text("failing", encoding="utf-8")
    assert found(begun)["SLURM"].state == NOTE and "squeue" in found(begun)["SLURM"].found


def test_a_cluster_whose_partitions_have_other_names(
    begun: Study, cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_output_of", lambda *command: "batch\nfat\n" if command[0] == "sinfo" else "")
    one = found(begun)["partitions"]
    assert one.state == BAD and "batch, fat" in one.found and "gpu_partition" in one.advice


def test_a_cluster_that_is_half_there_or_silent(tmp_path: Path, begun: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fake_slurm.install(tmp_path / "one", without=("squeue",))))
    assert found(begun)["SLURM"].state == BAD and "squeue" in found(begun)["SLURM"].found
    monkeypatch.setenv("PATH", str(fake_slurm.install(tmp_path / "two", without=("sinfo",))))
    assert found(begun)["SLURM"].state == BAD and "sinfo does not answer" in found(begun)["SLURM"].found


def test_a_silent_cluster_stops_no_study_that_runs_on_this_machine(
    tmp_path: Path, begun: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(fake_slurm.install(tmp_path / "one", without=("sinfo",))))
    one = next(one for one in doctor.examine(begun.file, {}) if one.check == "SLURM")
    assert one.state == NOTE
