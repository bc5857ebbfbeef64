"""Damage to any file of a finished study is found, removed with what was made from it, and what is left is sound."""

import filecmp
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import fake_results as fake
import pytest
import small
from softmax_bottleneck.records.verify import repair, verify
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.study import Study


def lose(path: Path) -> None:
    path.unlink()
    artefacts.sidecar(path).unlink(missing_ok=True)


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def garble_the_hash(path: Path) -> None:
    artefacts.sidecar(path).write_bytes(b"\xff\xfe")


DAMAGE: tuple[Callable[[Path], None], ...] = (small.flip, lose, become_a_folder, garble_the_hash)


@pytest.fixture(scope="module")
def home(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Study]:
    """A finished study; every test leaves it as it was."""
    folder = tmp_path_factory.mktemp("whole")
    with small.inside(folder):
        study = small.copied(finished, folder)
        shutil.copytree("results", "kept")
        yield study


@pytest.fixture(autouse=True)
def restored(home: Study) -> Iterator[None]:
    yield
    shutil.rmtree("results")
    restore()


def restore() -> None:
    """Copy what is not as it was."""
    shutil.copytree("kept", "results", dirs_exist_ok=True, copy_function=copy_changed)


def copy_changed(source: str, target: str) -> None:
    if not (Path(target).exists() and filecmp.cmp(source, target)):
        shutil.copy2(source, target)


def kinds(study: Study) -> list[Path]:
    """One file of every kind below results/."""
    root = study.store.root
    known: dict[str, Path] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.suffix != ".sha256" and artefacts.sidecar(path).exists():
            room = path.relative_to(root).parts[0]
            kind = path.suffix if path.parent.name in ("tables", "figures") else path.name
            known.setdefault(f"{room}/{path.parent.name if room == study.name else room}/{kind}", path)
    return list(known.values())


@pytest.mark.fault("E14")
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_every_damage_to_every_kind_of_file_is_found_and_removed(home: Study, damage: Callable[[Path], None]) -> None:
    assert verify(home).complete and len(kinds(home)) >= 25
    for path in kinds(home)[:: 1 if damage is small.flip else 3]:
        if path.name == "measured.json" and damage is lose:
            continue  # Snakemake makes it again, from what is there
        damage(path)
        restored_first = path.name in ("done.json", "outcome.json")  # from its twin, where that is sound
        assert not (restored_first and damage is garble_the_hash and verify(home).complete), path
        found, _ = repair(home)
        assert restored_first or not found.complete, path
        left = [finding for finding in verify(home).findings if finding.kind != "missing"]
        assert left == [], (path, left)
        assert not path.is_dir()
        restore()


@pytest.mark.fault("E14")
def test_a_sound_study_loses_nothing_to_repair(home: Study) -> None:
    before = small.tree(home.store.root)
    _, removed = repair(home)
    assert removed == [] and small.tree(home.store.root) == before


@pytest.mark.fault("E14")
def test_an_unfinished_study_loses_nothing_to_repair_but_what_is_damaged(home: Study) -> None:
    """One run not begun, one stopped on the way, its neighbours of the same model finished."""
    stopped, not_begun = (run for run in home.needed if run.seed == 1)
    shutil.rmtree(home.store.run_folder(not_begun.path))
    for path in home.store.run_folder(stopped.path).iterdir():
        if path.name.split(".")[0] not in ("run", "epochs"):
            path.unlink()
    (home.store.run_folder(stopped.path) / "resume-a.pt").write_bytes(b"some epochs")
    before = small.tree(home.store.root / "runs")
    found, _ = repair(home)
    assert not found.complete and small.tree(home.store.root / "runs") == before
    small.flip(home.store.run_folder(home.needed[-1].path) / "rank.json")
    _, removed = repair(home)
    kept = small.tree(home.store.root / "runs")
    gone = {Path(name).name.removesuffix(".sha256") for name in before.keys() - kept.keys()}
    assert gone == {"rank.json", "measured.json"} == {path.name for path in removed if path.parts[0] == "runs"}


@pytest.mark.fault("E14")
def test_what_was_removed_is_made_again_to_the_same_bits(home: Study) -> None:
    run = home.needed[0]
    folder = home.store.run_folder(run.path)
    bits = ("model.safetensors", "hidden.npz", "spectrum.npz")
    before = {file: artefacts.sha256_file(folder / file) for file in bits}
    small.flip(folder / "model.safetensors")  # with all that was made from it
    repair(home)
    for step in small.STEPS:
        step(home, run.path, small.quiet)
    fake.build(home)
    assert verify(home).complete
    assert {file: artefacts.sha256_file(folder / file) for file in bits} == before
