"""D: numbers that are none."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import small
import tiny_runs as base
import torch
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.heads.lms_plif import PiecewiseLinear
from softmax_bottleneck.records import collect
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study import Study
from softmax_bottleneck.training import train, trained, trainer


def poisoned_at(monkeypatch: pytest.MonkeyPatch, update: int, name: str, place: tuple[int, ...], bad: float) -> None:
    """One number of one parameter becomes `bad` just before an update."""

    def poison(self: trainer.Trainer) -> None:
        with torch.no_grad():
            self.model.get_parameter(name)[place] = bad

    base.poisoned(monkeypatch, update, poison)


MIXTURE = {"components": 3}


@pytest.mark.fault("D2")
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("head", "name", "place"),
    [
        ("mos", "head.latent.weight", (0, 0)),  # of the first part of the mixture alone
        ("mos", "head.prior.weight", (1, 0)),
        ("moc", "head.latent.bias", (0,)),
        ("lms-plif", "head.pointwise.raw_slope", (5,)),
        ("lms-plif", "head.decoder.weight", (0, 0)),
    ],
)
def test_one_nan_anywhere_ends_a_run_as_diverged(tmp_path, monkeypatch, head, name, place, bad):
    options = {"knots": 40} if head == "lms-plif" else MIXTURE if head in ("mos", "moc") else None
    run = base.make_run(head, options=options, learning_rate=1.0)
    poisoned_at(monkeypatch, 9, name, place, bad)
    done = train.train_run(run, base.CORPUS, tmp_path)
    assert done["status"] == "diverged" and "not finite" in done["reason"]
    assert done["epochs"] == done["best_epoch"] == 1
    assert done["model_sha256"] == artefacts.sha256_file(tmp_path / "model.safetensors")


@pytest.mark.fault("D2")
def test_a_nan_logit_stays_nan_and_changes_no_other():
    """As an index it would end the process of a GPU; here it must stay what it is, alone."""
    head = PiecewiseLinear(40, 20.0, 1.0, frozen=False, learning_rate=0.02)
    logits_RV = torch.randn(3, 5)
    logits_RV[1, 2] = math.nan
    with torch.no_grad():
        for scores_RV in (head(logits_RV), head.sweep(with_gradients=True).scores_(logits_RV.clone())):
            assert scores_RV.isnan().nonzero().tolist() == [[1, 2]]


@pytest.mark.fault("D1")
def test_a_diverged_run_exits_with_10_or_with_0_for_the_workflow(begun, monkeypatch, capsys):
    path = begun.needed[0].path
    words = ["train", "--study", str(begun.file), "--run", path]
    with monkeypatch.context() as patch:
        poisoned_at(patch, 9, "head.decoder.bias", (0,), math.nan)
        assert main(words) == 10
    line = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("error"))
    assert "diverged: " in line and "do not try it again" in line
    before = small.tree(Store().run_folder(path))
    assert main([*words, "--diverged-ok"]) == 0
    assert main(["measure", *words[1:]]) == 0
    assert before.items() <= small.tree(Store().run_folder(path)).items()  # nothing is tried again
    counts = collect.collect(begun).counts()
    assert (counts["diverged"], counts["missing"]) == (1, len(begun.needed) - 1)  # counted, not dropped


@pytest.mark.fault("D3")
def test_a_perplexity_below_one_is_invalid_and_no_best(tmp_path, monkeypatch):
    original, epochs = trainer.evaluate, []

    def evaluate(*arguments: object) -> float:
        epochs.append(1)
        return -0.1 if len(epochs) == 2 else original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(trainer, "evaluate", evaluate)
    done = train.train_run(base.make_run(), base.CORPUS, tmp_path)
    assert done["status"] == "diverged" and "invalid: a validation perplexity of 0.9" in done["reason"]
    assert done["best_epoch"] == 1 and len(artefacts.read_lines(tmp_path / "epochs.jsonl")) == 1


# --- measuring ------------------------------------------------------------------------------------------------------
def changed(study: Study, monkeypatch: pytest.MonkeyPatch, change: object, step: str) -> list[str]:
    """Words of a step on a finished mixture whose log-probabilities are changed on the way."""
    run = next(run for run in study.needed if run.model == "mos")
    original = trained.load_model

    def load_model(*arguments: object) -> object:
        model = original(*arguments)  # type: ignore[arg-type]
        plain = model.head.log_probs
        model.head.log_probs = lambda h: change(plain(h))  # type: ignore[operator]
        return model

    monkeypatch.setattr(trained, "load_model", load_model)
    return [step, "--study", str(study.file), "--run", run.path]


@pytest.mark.fault("D4")
def test_probabilities_that_do_not_sum_to_one_are_refused_in_words(study, monkeypatch, capsys):
    words = changed(study, monkeypatch, lambda log_p: log_p + 0.001, "evaluate")
    before = small.tree(Path("results"))
    assert main(words) == 2
    assert "probabilities do not sum to one" in capsys.readouterr().err
    assert small.tree(Path("results")) == before


def with_one_minus_infinity(log_p: torch.Tensor) -> torch.Tensor:
    log_p[0, 3] = -math.inf
    return log_p


@pytest.mark.fault("D5")
def test_an_infinite_log_probability_is_refused_and_never_a_rank(study, monkeypatch, capsys):
    words = changed(study, monkeypatch, with_one_minus_infinity, "spectrum")
    before = small.tree(Path("results"))
    assert main(words) == 2
    line = capsys.readouterr().err
    assert "row 0, column 3 of the matrix is -inf" in line and "stable form" in line
    assert small.tree(Path("results")) == before


@pytest.mark.fault("D6", "D7")
def test_ranks_come_with_their_neighbours_and_the_whole_spectrum(study):
    for run in study.needed:
        folder = Store().run_folder(run.path)
        facts, sigma = artefacts.read_json(folder / "rank.json"), artefacts.read_npz(folder / "spectrum.npz")
        low, rank, high = (facts["metrics"][f"rank_press{end}"] for end in ("_low", "", "_high"))
        assert low <= rank <= high and facts["tolerance_sensitive"] is (low != high)
        assert facts["dtype"] == "float32" and facts["method"] in ("svd", "factors", "gram-of-columns", "gram-of-rows")
        assert sigma["singular_values"].dtype == np.float64
        assert len(sigma["singular_values"]) == min(facts["m"], facts["n"])
        assert (sigma["singular_values"] > facts["tolerance"]).sum() == rank


# --- devices --------------------------------------------------------------------------------------------------------
@pytest.mark.fault("D9")
@pytest.mark.parametrize("step", ["train", "measure"])
def test_a_gpu_that_is_not_there_is_never_the_processor(finished, tmp_path, monkeypatch, capsys, step):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    study = small.begun(finished, tmp_path, small.values(device="cuda"))
    run = study.needed[0]
    if step == "measure":
        artefacts.write_json(Store().run_folder(run.path) / "run.json", run.to_json())
        done = {"status": "ok", "timing": {"seconds_per_epoch": 1.0}, "parameters": 1, "train_ppl": 2.0}
        artefacts.write_json(Store().run_folder(run.path) / "done.json", done)
    assert main([step, "--study", str(study.file), "--run", run.path]) == 2
    assert "device: cuda was asked for" in capsys.readouterr().err
