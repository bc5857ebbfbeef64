"""`verify` finds every damage to a study's files, and nothing in a sound study."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import fake_results as fake
import pytest
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.records import collection, integrity, records, verify
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study import Run, Study
from softmax_bottleneck.training.run_record import write_unusable


@pytest.fixture
def study(place: Path) -> Study:
    return fake.load(place)


def found(study: Study) -> dict[str, str]:
    """Kind of every finding, by its file without the folder of runs."""
    return {one.file.removeprefix("runs/"): one.kind for one in verify.verify(study).findings}


def folder(run: Run) -> Path:
    return Store().run_folder(run.path)


def rewrite(path: Path, **changes: Any) -> None:
    """Other content under a hash that holds."""
    artefacts.write_json(path, artefacts.read_json(path) | changes)


def test_output_that_nobody_reads_on_is_no_fault_of_the_disk(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"metrics": {}, "contexts": 1, "words": 1}', encoding="utf-8")
    words = [sys.executable, "-m", "softmax_bottleneck", "rank", "--compare", "a.json", "a.json"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.close()
        said = child.stderr.read().decode()
        assert child.wait() == 141 and "disk" not in said and "Broken" not in said


def test_a_finished_study_has_no_findings(study: Study) -> None:
    fake.write_all(study)
    records.save(collection.collect(study), study.store.study_folder(study.name))
    result = verify.verify(study)
    assert result.findings == () and result.complete
    assert result.counts["ok"] == result.counts["planned"] == len(study.needed)
    assert result.files == 5 * len(study.needed) + 1 + len(records.FILES)  # synthetic.json, and the records


def test_what_is_not_there_is_missing_with_its_reason(study: Study) -> None:
    fake.write_all(study)
    run = study.needed[2]
    for path in folder(run).iterdir():
        path.unlink()
    (one,) = verify.verify(study).findings
    assert (one.kind, one.file, one.words) == ("missing", f"runs/{run.path}", "not trained yet")


@pytest.mark.parametrize(("status", "lacking"), [("ok", ["outcome.json"]), ("diverged", [])])
def test_only_an_evaluation_that_was_made_has_two_records(study: Study, status: str, lacking: list[str]) -> None:
    """A diverged run has nothing to evaluate and nothing to recompute."""
    run = study.needed[0]
    place = folder(run) / "dynamic-0123"
    place.mkdir(parents=True)
    write_unusable(place / "dynamic.json", {"status": status, "reason": "valid perplexity 442061"}, {})
    found = integrity._missing_files(study, place.name, integrity.read(run, place))
    assert [one.file.rpartition("/")[2] for one in found] == lacking


@pytest.mark.parametrize(("name", "changes", "kind"), [
    ("done.json", {"run": {"run_id": "0" * 12}}, "foreign"),
    ("measure.json", {"provenance": {"run_id": "0" * 12}}, "foreign"),
    ("measure.json", {"provenance": {"parents": {"done.json": "0" * 64}}}, "stale"),
    ("rank.json", {"provenance": {"parents": {"spectrum.npz": "0" * 64}}}, "stale"),
])  # fmt: skip
@pytest.mark.fault("E9", "G4")
def test_what_belongs_elsewhere_is_found(study: Study, name: str, changes: dict, kind: str) -> None:
    fake.write_all(study)
    run = study.needed[0]
    rewrite(folder(run) / name, **changes)
    assert found(study) == {f"{run.path}/{name}": kind}
    results = collection.collect(study)
    assert run.run_id not in set(results.rows["run_id"])
    state, reason = results.planned(run.dataset, run.model)[["state", "reason"]].iloc[0]
    assert state == {"foreign": "unsound"}.get(kind, kind) and name in reason and "`make repair` removes it" in reason


def test_a_table_that_was_edited_is_found(study: Study) -> None:
    fake.write_all(study)
    table = Store().study_folder(study.name) / "tables" / "x.csv"
    artefacts.write_text(table, "a,1\n")
    assert found(study) == {}
    table.write_text("a,2\n", encoding="utf-8")
    assert found(study) == {"fake/tables/x.csv": "damaged"}


def test_the_command_says_what_it_found_and_exits_3(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["verify", "--study", "study.yaml"]
    fake.write_all(study)
    assert main(words) == 0
    assert "planned 18 · ok 18" in capsys.readouterr().out
    (folder(study.needed[0]) / "rank.json").write_text("{}", encoding="utf-8")
    assert main(words) == 3
    printed = capsys.readouterr()
    assert "damaged" in printed.out and "rank.json" in printed.out
    assert printed.err.count("\n") == 1 and "Traceback" not in printed.err
    assert main([*words, "--json"]) == 3
    facts = json.loads(capsys.readouterr().out)
    assert facts["counts"]["unsound"] == 1 and not facts["complete"]
