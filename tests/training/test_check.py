"""A study that does not fit the machine or its corpora is rejected before the first job; edits make other runs."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import small
from softmax_bottleneck import study as config
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.corpora.sizes import size_of
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.training import feasibility


@pytest.mark.fault("C7")
@pytest.mark.parametrize(("memory_gb", "free_gb", "words"), [(0.1, 1, "training on tiny"), (9, 1e-6, "4 runs need")])
def test_what_does_not_fit_is_rejected_before_the_first_job(
    begun, tmp_path, capsys, monkeypatch, memory_gb, free_gb, words
):
    monkeypatch.setattr(feasibility.os, "sysconf", lambda name: memory_gb * 1e9 if name == "SC_PHYS_PAGES" else 1)
    monkeypatch.setattr(feasibility.shutil, "disk_usage", lambda path: SimpleNamespace(free=free_gb * 1e9))
    values = small.values()
    assert main(["check", "--study", str(small.write(tmp_path, values))]) == 2
    assert re.search(words, capsys.readouterr().err)
    assert not Path("results/small").exists()


@pytest.mark.fault("C9")
def test_more_contexts_than_there_are_are_rejected_with_their_number(begun, tmp_path, capsys):
    size = size_of(begun.store, begun.datasets["tiny"])
    there = size.tokens["test"] - 1
    for asked, code in ((there + 1, 2), (there, 0)):
        file = small.write(tmp_path, dataset=small.DATASET | {"rank_contexts": asked})
        config.load_dataset.cache_clear()
        assert main(["check", "--study", str(file)]) == code
        assert main(["tokenise", "--study", str(file), "--dataset", "tiny"]) == code
    line = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("error"))
    assert "rank_contexts" in line and str(there + 1) in line and str(there) in line
    config.load_dataset.cache_clear()


@pytest.mark.fault("C15")
@pytest.mark.parametrize(("key", "value", "words"), [
    ("batch_size", 65536, "schedule.batch_size"), ("eval_batch_size", 4096, "schedule.eval_batch_size"),
    ("test_batch_size", 4096, "schedule.test_batch_size"), ("pieces", 1000, "schedule.batch_size"),
])  # fmt: skip
def test_more_streams_than_a_text_has_are_rejected_before_the_first_job(begun, tmp_path, capsys, key, value, words):
    values = small.changed(small.STUDY, ("settings", 0, "schedule", key), value)
    assert main(["check", "--study", str(small.write(tmp_path, values))]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("last_of_sgd", "models"), [(2, []), (3, ["softmax", "mos"]), (4, ["softmax", "mos"])])
def test_models_whose_weights_are_never_averaged_are_named(begun, tmp_path, capsys, last_of_sgd, models):
    """Training has three epochs."""
    values = small.changed(small.STUDY, ("settings", 0, "schedule", "switch_after_epoch"), last_of_sgd)
    study = small.load(tmp_path, values)
    assert feasibility.never_averaged(study) == models
    assert main(["check", "--study", str(study.file)]) == 0
    assert capsys.readouterr().err.count("warning: ") == bool(models)


def test_options_that_do_not_fit_name_file_and_model(begun, tmp_path, capsys):
    body = small.STUDY["settings"][0]["body"] | {"kind": "transformer", "attention_heads": 1}
    file = small.write(tmp_path, small.changed(small.STUDY, ("settings", 0, "body"), body))
    assert main(["check", "--study", str(file)]) == 2
    words = capsys.readouterr().err
    assert str(file) in words and "models.softmax" in words and "dropout_embedding" in words


def test_models_of_a_grid_with_one_structure_are_built_once(begun, tmp_path, monkeypatch):
    """Their numbers of parameters are those of every model built for itself."""
    grid = {"head.components": [2, 3], "head.dropout_latent": [0, 0.1, 0.2, 0.3], "body.dropout_hidden": [0.1, 0.2]}
    values = small.values(experiments={"known-truth": {"models": ["softmax", "mos"]}})
    study = small.load(tmp_path, small.changed(values, ("models", "mos"), {"head": "mos", "grid": grid}))
    expected = {run.path: feasibility.parameters(run, 40) for run in study.needed}
    built = []
    build = feasibility.build
    monkeypatch.setattr(feasibility, "build", lambda run, *words: built.append(run.model) or build(run, *words))
    assert {path: count for path, (count, _) in feasibility.costs(study).items()} == expected
    assert len(expected) == 2 * 17 and len(set(expected.values())) == 3
    assert len(built) == 1 + 2 * 2  # Softmax, and MoS by components and whether its dropout is zero


@pytest.mark.fault("C8")
def test_an_edited_study_is_another_run_and_the_run_before_the_edit_is_rejected(begun, tmp_path, capsys):
    before = begun.needed[0]
    assert main(["train", "--study", "study.yaml", "--run", before.path]) == 0
    kept = artefacts.read_json(Store().run_folder(before.path) / "run.json")
    small.write(tmp_path, small.changed(small.STUDY, ("settings", 0, "schedule", "learning_rate"), 6))
    after = config.load_study(Path("study.yaml")).needed[0]
    assert after.path != before.path and (after.model, after.seed) == (before.model, before.seed)
    assert main(["train", "--study", "study.yaml", "--run", before.path]) == 2  # planned before the edit
    assert "the configuration or the code has changed" in capsys.readouterr().err
    assert main(["train", "--study", "study.yaml", "--run", after.path]) == 0
    assert artefacts.read_json(Store().run_folder(before.path) / "run.json") == kept
