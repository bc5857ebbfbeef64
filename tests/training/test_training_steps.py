"""The steps of a run on the command line: divergence, probabilities that are no numbers, and a missing GPU."""

import math
from pathlib import Path

import pytest
import small
import torch
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.records import collection
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.training import trained, trainer
from tiny_runs import poisoned


def nan_bias(self: trainer.Trainer) -> None:
    with torch.no_grad():
        self.model.head.decoder.bias[0] = math.nan


@pytest.mark.fault("D1")
def test_a_diverged_run_exits_with_10_or_with_0_for_the_workflow(begun, monkeypatch, capsys):
    path = begun.needed[0].path
    words = ["train", "--study", str(begun.file), "--run", path]
    with monkeypatch.context() as patch:
        poisoned(patch, 9, nan_bias)
        assert main(words) == 10
    line = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("error"))
    assert "diverged: " in line
    before = small.tree(Store().run_folder(path))
    assert main([*words, "--diverged-ok"]) == 0
    assert main(["measure", *words[1:]]) == 0
    assert before.items() <= small.tree(Store().run_folder(path)).items()  # nothing is tried again
    counts = collection.collect(begun).counts()
    assert (counts["diverged"], counts["missing"]) == (1, len(begun.needed) - 1)  # counted, not dropped


@pytest.mark.fault("D5")
def test_an_infinite_log_probability_is_refused_and_never_a_rank(study, monkeypatch, capsys):
    run = next(run for run in study.needed if run.model == "mos")
    model = trained.load_model(Store().run_folder(run.path))
    plain = model.head.log_probs

    def with_one_minus_infinity(h_ND: torch.Tensor) -> torch.Tensor:
        log_p_NV = plain(h_ND)
        log_p_NV[0, 3] = -math.inf
        return log_p_NV

    model.head.log_probs = with_one_minus_infinity
    monkeypatch.setattr(trained, "load_model", lambda *_: model)
    (study.store.run_folder(run.path) / "rank.json").unlink()
    before = small.tree(Path("results"))
    assert main(["measure", "--study", str(study.file), "--run", run.path]) == 2
    assert "row 0, column 3 of the matrix is -inf" in capsys.readouterr().err
    assert small.tree(Path("results")) == before


@pytest.mark.fault("D9")
def test_a_gpu_that_is_not_there_is_never_the_processor(begun, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    study = small.load(tmp_path, small.values(device="cuda"))
    assert main(["train", "--study", str(study.file), "--run", study.needed[0].path]) == 2
    assert "device: cuda was asked for" in capsys.readouterr().err
