"""One process measures a run: which steps it repeats, and what a failure after training leaves."""

from collections.abc import Callable
from pathlib import Path

import pytest
import small
from softmax_bottleneck.measuring import evaluate, spectrum, wordsim
from softmax_bottleneck.steps import measure as step_measure
from softmax_bottleneck.steps.measure import measure
from softmax_bottleneck.store import artefacts, fingerprint
from softmax_bottleneck.study import Study

MODULES = {"evaluate": evaluate, "spectrum": spectrum, "wordsim": wordsim}


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of steps that are computed, in order."""
    steps: list[str] = []
    for name, module in MODULES.items():
        original = getattr(module, name)

        def call(*arguments: object, name: str = name, original: Callable[..., object] = original) -> object:
            steps.append(name)
            return original(*arguments)

        monkeypatch.setattr(module, name, call)
    return steps


def folder_of(study: Study) -> Path:
    return study.store.run_folder(study.needed[0].path)


@pytest.mark.parametrize(("name", "steps", "damage"), [
    ("measured.json", [], Path.unlink), ("measured.json", [], small.flip),
    ("measure.json", ["evaluate"], small.flip),  # the same bits again: the spectrum stays
    ("hidden.npz", ["evaluate"], Path.unlink), ("topk.json", ["evaluate"], small.flip),
    ("spectrum.npz", ["spectrum"], small.flip), ("rank.json", ["spectrum"], Path.unlink),
    ("wordsim.json", ["wordsim"], Path.unlink),
])  # fmt: skip
def test_only_a_step_with_a_missing_or_damaged_file_is_repeated(study, called, name, steps, damage):
    folder = folder_of(study)
    before = small.tree(folder)
    damage(folder / name)
    measure(study, study.needed[0].path, small.quiet)
    assert called == steps and small.tree(folder) == before


def test_contexts_count_by_their_content_not_by_the_name_of_their_file(study, called, monkeypatch, tmp_path):
    file = tmp_path / "toy_contexts.csv"
    for module in (evaluate, step_measure):
        monkeypatch.setattr(module, "contexts_file", lambda *_: file)
    for index, count in ((60, 1), (60, 1), (71, 2)):
        file.write_text(
            f"group,context,true_next_token,test_target_index_0based,n_contexts_tokens_quoted\ntoy,1,,{index},5\n"
        )
        measure(study, study.needed[0].path, small.quiet)
        (shown,) = artefacts.read_json(folder_of(study) / "topk.json")["contexts"]
        assert shown["index"] == index and called.count("evaluate") == count


@pytest.mark.parametrize("step", MODULES)
def test_a_step_is_repeated_after_an_edit_of_its_own_code(study, called, monkeypatch, step):
    current, edited = fingerprint.fingerprint, (f"measuring.{step}",)
    monkeypatch.setattr(fingerprint, "fingerprint", lambda *names: "edited" if names == edited else current(*names))
    measure(study, study.needed[0].path, small.quiet)
    # The spectrum is made from measure.json, which says by which code it was made.
    assert called == (["evaluate", "spectrum"] if step == "evaluate" else [step])
