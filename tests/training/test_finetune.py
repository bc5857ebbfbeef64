"""Finetuning against the published loop in plain PyTorch, its stop rule, and resuming."""

import pytest
import torch
from naive_training import naive_training
from run_hash import result_hash
from softmax_bottleneck import study as config
from softmax_bottleneck.jobs.resumable import DEFAULTS, Options
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.seeds import derive
from softmax_bottleneck.training import finetuner, loop, model, trained
from tiny_runs import CORPUS, NO_DROPOUT, VOCABULARY, Kill, changed, die, make_run, poisoned, results


def finetuned(run: config.Run, **schedule) -> config.Run:
    """Return the run that finetunes the weights of `run`, as a study plans it."""
    settings = {"segment": 5, "statistics_batch_size": 10, "scaling": "mean", "learning_rates": [1e-4], "decays": [0.0],
                "epsilon": 1e-5, "tune_tokens": None}  # fmt: skip
    stages = config.Stages.of(run.head, run.schedule, schedule, settings)
    return changed(run, schedule=stages.finetune, start=run.path)


def start_of(run: config.Run) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.weights(model.build(run, VOCABULARY)).items()}


def tune(run: config.Run, folder, weights, options: Options = DEFAULTS) -> dict:
    return loop.train_run(run, CORPUS, folder, options, make=lambda *given: finetuner.Finetuner(*given, weights))


@pytest.mark.parametrize(("rate", "epochs"), [(5.0, 2), (30.0, 30)])
def test_equals_the_published_loop_and_its_stop_rule(tmp_path, rate, epochs):
    base = make_run(**NO_DROPOUT)
    run = finetuned(base, learning_rate=rate, epochs=epochs)
    weights = start_of(base)
    done = tune(run, tmp_path, weights)
    expected = [row["valid"] for row in naive_training(run, CORPUS, weights, derive(run.seed, "finetune"))]
    rows = artefacts.read_lines(tmp_path / "epochs.jsonl")
    assert len(rows) == len(expected) and {row["phase"] for row in rows} == {"asgd"}
    assert [row["valid_loss_nats"] for row in rows] == pytest.approx(expected, rel=1e-4)
    assert (len(rows) < epochs) == (epochs == 30)  # the long one stopped by itself
    assert done["best_valid_loss_nats"] <= min(row["valid_loss_nats"] for row in rows)


def test_finetuning_that_does_not_help_keeps_the_trained_weights(tmp_path):
    """A step size that ruins the weights leaves those of the base run as the best."""
    base = make_run(epochs=4, learning_rate=2.0)
    before = loop.train_run(base, CORPUS, tmp_path / "base")
    weights = trained.load_weights(tmp_path / "base")
    done = tune(finetuned(base, learning_rate=500.0, clip=100.0, epochs=2), tmp_path / "tuned", weights)
    assert done["best_epoch"] == 0 and done["train_ppl"] is None
    assert done["best_valid_loss_nats"] == before["best_valid_loss_nats"]
    kept = trained.load_weights(tmp_path / "tuned")
    assert all(torch.equal(tensor, weights[name]) for name, tensor in kept.items())


def test_it_resumes_to_the_same_bits(tmp_path, monkeypatch):
    base = make_run()
    run, weights = finetuned(base, epochs=2), start_of(base)
    whole = tune(run, tmp_path / "whole", weights)
    for update in (1, 6):
        with monkeypatch.context() as patch, pytest.raises(Kill):
            poisoned(patch, update, lambda _: die())
            tune(run, tmp_path / "broken", weights, Options(save_interval_s=0.0))
    assert results(tune(run, tmp_path / "broken", weights)) == results(whole)
    assert result_hash(tmp_path / "broken") == result_hash(tmp_path / "whole")


@pytest.mark.parametrize(("head", "delta"), [("softmax", 10), ("mos", 40)])
def test_chunks_of_finetuning_are_capped_as_in_the_code_of_each(head, delta):
    """Merity's chunks are at most bptt + 10 long, Yang's, for mixtures, bptt + max_seq_len_delta."""
    assert finetuned(make_run(head, max_length_delta=40)).schedule.max_length_delta == delta
    assert finetuned(make_run(head, max_length_delta=40), max_length_delta=7).schedule.max_length_delta == 7
