"""The crate of a study: metadata and files agree, nothing private is packed, and the study inside it works."""

import dataclasses
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_results as fake
import numpy as np
import pytest
import safetensors.numpy
import yaml
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.corpora.sizes import size_of
from softmax_bottleneck.extras import crate
from softmax_bottleneck.records import verify
from softmax_bottleneck.store import artefacts, paths
from softmax_bottleneck.store.errors import IncompleteError, UserError
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study import Study, load_study

TEXT = re.sub(r"experiments:\n.*", "experiments:\n  known-truth: {models: all}\n", fake.STUDY, flags=re.DOTALL).replace(
    "[1, 2, 3]", "[1]"
)
SECRET = "/data/ann/corpora"


def finished(folder: Path) -> Study:
    """A finished small study of which one run diverged, in the working directory."""
    study = fake.load(folder, TEXT + f"mirror:\n  {SECRET}")
    fake.write_all(study)
    fake.write_done(study.needed[-1], status="diverged", reason="loss is not finite")
    for run in study.needed:
        weights = safetensors.numpy.save({"weight": np.full((2, 2), len(run.path), np.float32)})
        artefacts.write_bytes(Store().run_folder(run.path) / "model.safetensors", weights)
        for log in Store().run_folder(run.path).glob("*.jsonl"):
            artefacts.write_bytes(log, log.read_bytes())
        contexts = size_of(study.store, study.datasets[run.dataset]).tokens["test"] - 1
        hidden = {"hidden_TD": np.zeros((contexts, 2), np.float32), "targets_T": np.zeros(contexts, np.int32)}
        artefacts.write_npz(Store().run_folder(run.path) / "hidden.npz", **hidden)
    artefacts.write_text(Store().study_folder(study.name) / "report" / "index.html", "<!doctype html><p>A page")
    artefacts.write_text(Store().study_folder(study.name) / "records.csv", "source\n")
    for one in verify.verify(study).findings:  # the other files of the steps that wrote these two
        if one.kind == "missing":
            artefacts.write_text(Store().root / one.file, "{}\n")
    return study


@pytest.fixture
def study(place: Path) -> Study:
    return finished(place)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Study, Path]]:
    """A study and its crate, for tests that only look."""
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        study = finished(folder)
        yield study, crate.build(study).resolve()


def graph(folder: Path) -> dict[str, dict[str, Any]]:
    """Entities of a crate by their @id."""
    content = json.loads((folder / "ro-crate-metadata.json").read_text(encoding="utf-8"))
    return {entity["@id"]: entity for entity in content["@graph"]}


def references(value: object) -> set[str]:
    """Every {"@id": ...} inside a value."""
    if isinstance(value, dict):
        return {value["@id"]} if set(value) == {"@id"} else set().union(*map(references, value.values()), set())
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def test_every_file_is_described_and_every_description_has_its_file(built: tuple[Study, Path]) -> None:
    folder = built[1]
    entities = graph(folder)
    described = {name for name, entity in entities.items() if "File" in entity["@type"]}
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert described == {name for name in there if not name.endswith(".sha256")} - {"ro-crate-metadata.json"}
    for name in described:
        data = (folder / name).read_bytes()
        assert entities[name]["sha256"] == hashlib.sha256(data).hexdigest()
        assert int(entities[name]["contentSize"]) == len(data)
    assert {part["@id"] for part in entities["./"]["hasPart"]} == described
    named = references([{key: value for key, value in e.items() if key != "@id"} for e in entities.values()])
    assert all(name.startswith("https://") for name in named - set(entities))


def test_the_crate_describes_one_run_of_the_workflow(study: Study) -> None:
    """And packs the weights on request."""
    folder = crate.build(study, with_weights=True)
    entities, path = graph(folder), Store().run_folder(study.needed[0].path)
    root = entities["./"]
    assert {profile["@id"] for profile in root["conformsTo"]} == set(crate.PROFILES)
    (mention,) = root["mentions"]
    action = entities[mention["@id"]]
    assert action["instrument"] == root["mainEntity"]
    assert "ComputationalWorkflow" in entities[root["mainEntity"]["@id"]]["@type"]
    assert {"@id": "config/study.yaml"} in action["object"]
    assert {"@id": "results/fake/report/index.html"} in action["result"]
    assert (folder / path / "model.safetensors").read_bytes() == (path / "model.safetensors").read_bytes()
    assert not (folder / path / "hidden.npz").exists()


def test_no_folder_of_this_machine_is_packed(built: tuple[Study, Path]) -> None:
    folder = built[1]
    for path in (path for path in folder.rglob("*") if path.is_file()):
        for place in (SECRET, str(folder.parents[2]), str(paths.ROOT)):
            assert place.encode() not in path.read_bytes(), path


def test_a_file_that_names_a_folder_is_rejected_and_no_crate_is_left(study: Study, tmp_path: Path) -> None:
    artefacts.write_json(Store().study_folder(study.name) / "check.json", {"file": f"{tmp_path}/study.yaml"})
    with pytest.raises(UserError, match=r"check\.json: contains "):
        crate.build(study)
    assert not list(Store().study_folder(study.name).glob("*crate*"))


def test_an_unfinished_study_is_rejected(study: Study) -> None:
    stages = dataclasses.replace(study.experiments[0], stages=("finetune",))
    with pytest.raises(IncompleteError, match="not finetuned yet"):
        crate.build(dataclasses.replace(study, experiments=(stages,)))
    for folder, name in (("fake", "page.json"), (f"runs/{study.needed[0].path}", "rank.json")):
        (Store().root / folder / name).unlink()
        with pytest.raises(IncompleteError, match=rf"^{folder}.*; nothing was packed"):
            crate.build(study)


def test_datasets_of_own_texts_keep_their_identity_without_their_texts(tmp_path: Path, monkeypatch) -> None:
    """The study's corpus is cut from another one, and names benchmarks; neither is in the study's list."""
    config, unpacked = tmp_path / "private" / "config", tmp_path / "unpacked"
    texts = {"train.txt": "a b c\n" * 20, "valid.txt": "a b\n", "test.txt": "c b\n", "pairs.csv": "a,b,1\n"}
    for name, text in texts.items():
        (config / "datasets" / "own").mkdir(parents=True, exist_ok=True)
        (config / "datasets" / "own" / name).write_text(text, encoding="utf-8")
    splits = [{name: {"path": f"own/{name}"}} for name in texts]
    splits[2]["test.txt"]["path"] = str(config / "datasets" / "own" / "test.txt")
    datasets = {
        "part": {"kind": "corpus", "base": "own", "vocabulary_size": 3, "train_tokens": 10, "wordsim": "pairs"},
        "own": {"kind": "corpus", "files": splits[0] | splits[1] | splits[2]},
        "pairs": {"kind": "benchmarks", "files": splits[3]},
    }
    for name, keys in datasets.items():
        text = yaml.safe_dump({"name": name, "title": name, **keys})
        (config / "datasets" / f"{name}.yaml").write_text(text, encoding="utf-8")
    (config / "other.yaml").write_text("study: other\nmirror: /data/ann", encoding="utf-8")
    (config / "head.py").write_text("mirror: int\n", encoding="utf-8")
    monkeypatch.setattr(crate, "ROOT", config.parent)
    text = fake.showing("parthiban2021-table1:").replace("[truth-demo]", "[part]")
    study = dataclasses.replace(fake.load(config, text), head_files=(config / "head.py",))
    identities = {name: study.dataset(name).identity for name in datasets}
    for name, source in crate._contents(study, with_weights=False).items():
        (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
        data = source.read_bytes() if isinstance(source, Path) else source.getvalue()
        (unpacked / name).write_bytes(data)
        assert b"/data/ann" not in data and str(tmp_path).encode() not in data
    assert not [path for path in unpacked.rglob("*") if path.name in texts]
    assert (unpacked / "config" / "head.py").read_text(encoding="utf-8") == "mirror: int\n"
    shutil.rmtree(config)
    again = load_study(unpacked / "config" / "study.yaml")
    assert {name: again.dataset(name).identity for name in datasets} == identities
    assert [run.path for run in again.needed] == [run.path for run in study.needed] != []


def test_absolute_paths_lead_to_the_packed_files(tmp_path: Path) -> None:
    values = {"extends": f"{tmp_path}/heads/base.yaml", "heads": [f"{tmp_path}/heads/my.py"], "text": "/data/ann.txt"}
    relative = crate._relative(values, tmp_path / "studies", tmp_path)
    assert relative == {"extends": "../heads/base.yaml", "heads": ["../heads/my.py"], "text": "ann.txt"}


@pytest.mark.fault("G15")
@pytest.mark.parametrize(("name", "old", "new"), [
    ("results/fake/tables/all.csv", b"19.4", b"193.9"),
    ("results/fake/records.csv", b"source", b"Source"),
    ("{run}/measure.json", b"0", b"1"),
])  # fmt: skip
def test_changed_files_are_not_packed(study: Study, capsys: pytest.CaptureFixture[str], name, old, new) -> None:
    artefacts.write_text(study.store.study_folder(study.name) / "tables" / "all.csv", "model,test_ppl\ngss,19.4\n")
    path = Path(name.format(run=study.store.run_folder(study.needed[0].path)))
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    assert main(["crate", "--study", str(study.file)]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert path.name in line and "make repair" in line
    assert not list(study.store.study_folder(study.name).glob("*crate*"))


def test_the_workflow_in_an_unpacked_crate_finds_its_runs(study: Study) -> None:
    assert main(["crate", "--zip", "--study", str(study.file)]) == 0
    folder = Store().study_folder(study.name) / "unpacked"
    shutil.unpack_archive(folder.with_name("crate.zip"), folder)
    step = [sys.executable, "-m", "softmax_bottleneck", "collect", "--study", "config/study.yaml"]
    environment = os.environ | {"PYTHONPATH": "workflow"}
    done = subprocess.run(step, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    again = (folder / "results" / "fake" / "states.csv").read_text(encoding="utf-8").splitlines()
    assert len(again) == 1 + len(study.needed)
    assert sum(",ok," in line for line in again) == len(study.needed) - 1
