"""The training loop against a naive one, and every way of stopping it against a run that was left alone.

Shapes: L rows of a batched stream, B columns.
"""

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import small
import tiny_runs
import torch
from naive_training import naive_evaluate, naive_train_loss, naive_training
from run_hash import result_hash
from softmax_bottleneck import study as config
from softmax_bottleneck.corpora.corpus import batchify
from softmax_bottleneck.jobs.resumable import Options
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError
from softmax_bottleneck.training import loop, trained, trainer
from softmax_bottleneck.training.schedule import plan_epoch
from tiny_runs import CORPUS, VOCABULARY, Kill, die, make_run, poisoned


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> tuple[str, dict]:
    """Return the hash and done.json of the standard run, left alone."""
    folder = tmp_path_factory.mktemp("reference")
    done = loop.train_run(make_run(), CORPUS, folder)
    return result_hash(folder), done


# --- chunks ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rows", [3, 4, 17, 1000])
@pytest.mark.parametrize("variable", [True, False])
def test_chunks_cover_the_stream_as_the_published_loop_does(rows, variable):
    schedule = make_run(variable_length=variable).schedule
    chunks = plan_epoch(schedule, 7, 2, rows)
    position = 0
    for chunk in chunks:
        assert position < rows - 2
        assert chunk.start == position
        assert chunk.length == min(chunk.drawn, rows - 1 - position)
        position += chunk.drawn
    assert position >= rows - 2
    assert chunks == plan_epoch(schedule, 7, 2, rows)
    if variable and rows == 1000:
        assert chunks != plan_epoch(schedule, 7, 3, rows) != plan_epoch(schedule, 8, 3, rows)


def test_chunk_lengths_have_the_published_distribution():
    """The mean length is about 68 at bptt 70 (SPEC.md 4); truncation of the normal draw takes half a token."""
    schedule = make_run(bptt=70, max_length_delta=40).schedule
    drawn = np.array([chunk.drawn for chunk in plan_epoch(schedule, 1, 1, 400_000)])
    assert drawn.min() >= 5 and drawn.max() <= 110
    short = drawn < 52.5
    assert short.mean() == pytest.approx(0.05, abs=4 * (0.05 * 0.95 / len(drawn)) ** 0.5)
    assert drawn[short].mean() == pytest.approx(35 - 0.5, abs=0.8)
    assert drawn[~short].mean() == pytest.approx(70 - 0.5, abs=0.2)
    assert drawn[~short].std() == pytest.approx(5, abs=0.2)


def test_every_epoch_reads_its_own_piece():
    run, corpus = make_run(pieces=3, epochs=5, switch_after_epoch=2, learning_rate=1.0), tiny_runs.make_corpus(400)
    at_work = trainer.Trainer(run, corpus, torch.device("cpu"))
    pieces = np.split(corpus.train, [134, 267])  # 400 tokens in three pieces that follow each other
    for epoch in range(5):
        piece = pieces[epoch % 3]
        assert np.array_equal(at_work.train_LB.numpy().T.ravel(), piece[: len(piece) // 4 * 4])
        while at_work.place.chunk < len(at_work.chunks):
            at_work.update()
        at_work.end_epoch(0.0)


# --- losses ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [1, 200, 201, 450])
@pytest.mark.parametrize("reached_end", [True, False])
def test_train_loss_is_the_published_mean_of_block_means(count, reached_end):
    losses = np.random.default_rng(count).normal(5, 1, count).tolist()
    tally = trainer.Tally(torch.device("cpu"))
    for loss in losses:
        tally.add(torch.tensor(loss, dtype=torch.float64), torch.tensor(1.0))
    tally.close(keep=reached_end)
    assert tally.mean() == pytest.approx(naive_train_loss(losses, reached_end), rel=1e-12)


@pytest.mark.parametrize(("bptt", "counts"), [(1, False), (2, False), (5, True)])  # the last position: L - 2, L - 1, L
def test_a_short_last_block_counts_where_the_published_loop_logs_it(tmp_path, monkeypatch, bptt, counts):
    """The published loop logs a block where `i >= L`; the text here has L = 75 rows."""
    losses, add = list[float](), trainer.Tally.add
    monkeypatch.setattr(trainer, "BLOCK", 10)
    monkeypatch.setattr(trainer.Tally, "add", lambda self, nll, norm: (losses.append(float(nll)), add(self, nll, norm)))
    done = loop.train_run(make_run(variable_length=False, bptt=bptt, epochs=1), CORPUS, tmp_path)
    blocks = [losses[i : i + 10] for i in range(0, len(losses), 10)]
    published = blocks if counts else blocks[:-1]
    assert len(blocks[-1]) < 10
    assert math.log(done["train_ppl"]) == pytest.approx(np.mean([np.mean(block) for block in published]), rel=1e-6)


@pytest.mark.fault("D1", "D2")
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_or_gradient_that_is_not_finite_ends_the_block(bad):
    for pair, word in (((bad, 1.0), "loss"), ((1.0, bad), "gradient")):
        tally = trainer.Tally(torch.device("cpu"))
        tally.add(*map(torch.tensor, pair))
        for _ in range(198):
            tally.add(torch.tensor(1.0), torch.tensor(1.0))
        with pytest.raises(trainer.DivergedError, match=word):
            tally.add(torch.tensor(1.0), torch.tensor(1.0))


@pytest.mark.parametrize("rows", [2, 12, 13, 14, 40])
def test_evaluation_equals_the_published_loop(rows):
    run = make_run()
    model = loop.models.build(run, VOCABULARY)
    ids_LB = torch.from_numpy(np.random.default_rng(rows).integers(0, VOCABULARY, (rows, 3)))
    expected = naive_evaluate(model.eval(), ids_LB, 12)
    for chunk in (12, 12 * trainer.VALIDATED_AT_ONCE):
        assert trainer.evaluate(model.train(), ids_LB, chunk) == pytest.approx(expected, rel=1e-6)


# --- the whole loop -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("optimizer", ["sgd", "et-asgd", "nt-asgd"])
def test_equals_a_naive_training_loop(tmp_path, optimizer):
    run = make_run(optimizer=optimizer, epochs=7, switch_after_epoch=3, learning_rate=20.0, **tiny_runs.NO_DROPOUT)
    done = loop.train_run(run, CORPUS, tmp_path)
    expected = naive_training(run, CORPUS)
    rows = artefacts.read_lines(tmp_path / "epochs.jsonl")
    assert [row["phase"] for row in rows] == [row["phase"] for row in expected]
    assert (optimizer == "sgd") == (expected[-1]["phase"] == "sgd")
    for row, naive in zip(rows, expected, strict=True):
        assert row["valid_loss_nats"] == pytest.approx(naive["valid"], rel=2e-5)
        assert math.log(row["train_ppl"]) == pytest.approx(naive["train"], rel=2e-5)
    losses = [row["valid_loss_nats"] for row in rows]
    best = rows[int(np.argmin(losses))]
    assert done["best_epoch"] == best["epoch"]
    assert done["best_valid_loss_nats"] == min(losses)
    assert done["train_ppl"] == best["train_ppl"]
    assert [row["best"] for row in rows] == [loss == min(losses[: i + 1]) for i, loss in enumerate(losses)]
    phases = [row["phase"] for row in expected]
    assert done["switch_epoch"] == (phases.index("asgd") if "asgd" in phases else None)


def test_done_and_the_stored_model(tmp_path, reference):
    run = make_run()
    done = loop.train_run(run, CORPUS, tmp_path)
    assert done == artefacts.read_json(tmp_path / "done.json")
    assert tiny_runs.results(done) == tiny_runs.results(reference[1])
    assert result_hash(tmp_path) == reference[0]
    assert done["status"] == "ok" and done["switch_epoch"] == 1 and done["epochs"] == 3
    assert done["model_sha256"] == artefacts.sha256_file(tmp_path / "model.safetensors")
    assert not list(tmp_path.glob("resume-*")) and not (tmp_path / "lease.json").exists()
    model, stored = trained.load_model(tmp_path), config.Run.from_json(artefacts.read_json(tmp_path / "run.json"))
    assert stored == run
    valid_LB = torch.from_numpy(batchify(CORPUS.valid, 3).astype(np.int64))
    assert trainer.evaluate(model, valid_LB, 12) == pytest.approx(done["best_valid_loss_nats"], rel=1e-12)


@pytest.mark.parametrize("changes", [
    {"bptt": 500, "max_length_delta": 0},
    {"layers": 1},
    {"batch_size": 100},  # three rows: one update an epoch
    {"eval_batch_size": 45},  # two rows
])  # fmt: skip
def test_corners(tmp_path, changes):
    done = loop.train_run(make_run(**changes), CORPUS, tmp_path)
    assert done["status"] == "ok" and math.isfinite(done["best_valid_loss_nats"])


# --- snapshots ------------------------------------------------------------------------------------------------------
def test_epochs_kept_lie_evenly_on_a_log_scale():
    kept = {epochs: sorted(loop.snapshot_epochs(make_run(epochs=epochs).schedule)) for epochs in (1, 3, 12, 1000)}
    assert kept == {1: [1], 3: [1, 2, 3], 12: [1, 2, 3, 5, 8, 12], 1000: [1, 3, 10, 32, 100, 316, 1000]}


@pytest.mark.parametrize("changes", [{"optimizer": "et-asgd"}, {"optimizer": "nt-asgd", "nonmonotone_window": 1}])
def test_snapshots_are_the_weights_that_were_validated(tmp_path, monkeypatch, changes):
    """At the switch there are no averages yet, after it there are; nothing else of the run changes, nor does a kill."""
    run = make_run(epochs=17, switch_after_epoch=9, learning_rate=30.0, **changes)
    interrupted(run, tmp_path / "kept", monkeypatch, 50, keeps_snapshots=True)
    done = loop.train_run(run, CORPUS, tmp_path / "kept", keeps_snapshots=True)
    loop.train_run(run, CORPUS, tmp_path / "plain")
    assert result_hash(tmp_path / "kept") == result_hash(tmp_path / "plain")
    assert not trained.snapshots(tmp_path / "plain")
    found = {row["epoch"]: (row, model) for row, model in kept_models(tmp_path / "kept")}
    assert set(found) == {0, *loop.snapshot_epochs(run.schedule), done["switch_epoch"], done["best_epoch"]}
    assert done["switch_epoch"] is not None and found[done["switch_epoch"]][0]["phase"] == "sgd"
    valid_LB = torch.from_numpy(batchify(CORPUS.valid, run.schedule.eval_batch_size).astype(np.int64))
    for epoch, (row, model) in found.items():
        if epoch:
            loss = trainer.evaluate(model, valid_LB, run.schedule.bptt)
            assert loss == pytest.approx(row["valid_loss_nats"], rel=1e-12)


def kept_models(folder: Path):
    """Return rows and models along training, each model a copy of its own."""
    return [(row, copy.deepcopy(model)) for row, model in trained.models_along_training(folder)]


def interrupted(run, folder, monkeypatch, update: int, **options) -> None:
    """Kill a run that saves after every update."""
    with monkeypatch.context() as patch:
        poisoned(patch, update, lambda _: die())
        with pytest.raises(Kill):
            loop.train_run(run, CORPUS, folder, Options(save_interval_s=0.0), **options)


UNLOCKED = {"components": 2, "dropout_latent": 0.2, "locked_dropout": False}


@pytest.mark.fault("A1")
@pytest.mark.parametrize("run", [
    make_run("mos", learning_rate=1.0, epochs=2),
    make_run("lms-plif", learning_rate=1.0, epochs=2, options={"knots": 200}),
    tiny_runs.transformer_run("mos", UNLOCKED),
    make_run(learning_rate=1.0, epochs=4, pieces=3),
], ids=["mos", "lms-plif", "transformer", "pieces"])  # fmt: skip
def test_every_kind_of_run_resumes_to_the_bit(tmp_path, monkeypatch, run):
    loop.train_run(run, CORPUS, tmp_path / "whole")
    for update in (1, 9):
        interrupted(run, tmp_path / "cut", monkeypatch, update)
    again = loop.train_run(run, CORPUS, tmp_path / "cut")
    assert result_hash(tmp_path / "cut") == result_hash(tmp_path / "whole")
    assert again["provenance"]["interruptions"] == 2


@pytest.mark.parametrize(
    ("precision", "allowed"), [("fp32", False), ("bf16", False), ("tf32", True), ("tf32-bf16", True)]
)
def test_tf32_is_allowed_in_updates_of_two_precisions(precision, allowed, monkeypatch):
    monkeypatch.setattr("softmax_bottleneck.heads.base.check_precision", lambda *_: None)  # a CPU has no TF32
    training = trainer.Trainer(make_run(precision=precision), CORPUS, torch.device("cpu"))
    seen = []
    update = training._update
    monkeypatch.setattr(
        training, "_update", lambda rows: (seen.append(torch.backends.cudnn.allow_tf32), update(rows))[1]
    )
    before = torch.backends.cuda.matmul.allow_tf32
    training.update()
    assert (seen, torch.backends.cuda.matmul.allow_tf32) == ([allowed], before)


@pytest.mark.fault("E9")
def test_damaged_weights_of_a_finished_run_are_reported(tmp_path):
    loop.train_run(make_run(), CORPUS, tmp_path)
    small.flip(tmp_path / "model.safetensors")
    with pytest.raises(DataError, match=r"model\.safetensors"):
        trained.load_model(tmp_path)
    with pytest.raises(DataError, match=r"not the weights .* --restart"):
        loop.train_run(make_run(), CORPUS, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"not the weights .* --restart"):
        loop.train_run(make_run(), CORPUS, tmp_path)


def nan_weight(self) -> None:
    with torch.no_grad():
        self.model.head.decoder.weight[0, 0] = math.nan


def nan_gradient(self) -> None:
    self.model.head.decoder.weight.register_hook(lambda gradient: gradient * math.nan)


def infinite_mixture(self) -> None:
    with torch.no_grad():
        self.model.head.latent.weight[0, 0] = math.inf  # of the first part of the mixture alone


def nan_slope(self) -> None:
    with torch.no_grad():
        self.model.head.pointwise.raw_slope[5] = math.nan


POISONS = [("softmax", nan_weight), ("softmax", nan_gradient), ("mos", infinite_mixture), ("lms-plif", nan_slope)]


@pytest.mark.fault("D1", "D2")
@pytest.mark.parametrize(("head", "poison"), POISONS)
def test_divergence_is_a_recorded_result(tmp_path, monkeypatch, head, poison):
    run = make_run(head, options={"mos": {"components": 3}, "lms-plif": {"knots": 40}}.get(head), learning_rate=1.0)
    poisoned(monkeypatch, 12, poison)
    done = loop.train_run(run, CORPUS, tmp_path)
    assert done == artefacts.read_json(tmp_path / "done.json")
    assert done["status"] == "diverged" and "not finite (epoch 2" in done["reason"]
    assert done["epochs"] == done["best_epoch"] == 1  # the earlier epoch stays
    assert done["model_sha256"] == artefacts.sha256_file(tmp_path / "model.safetensors")
    poisoned(monkeypatch, 0, lambda _: die())
    assert loop.train_run(run, CORPUS, tmp_path) == done  # and is not tried again


def test_divergence_in_the_first_epoch_leaves_no_weights(tmp_path, monkeypatch):
    poisoned(monkeypatch, 0, nan_weight)
    done = loop.train_run(make_run(), CORPUS, tmp_path)
    assert (done["status"], done["best_epoch"], done["model_sha256"]) == ("diverged", None, None)
    assert not (tmp_path / "model.safetensors").exists()
    assert result_hash(tmp_path)


@pytest.mark.fault("D3")
def test_absurd_but_finite_perplexity_is_divergence(tmp_path):
    done = loop.train_run(make_run(learning_rate=1e3, clip=1e3), CORPUS, tmp_path)
    assert done["status"] == "diverged"
    assert "over 10 times the vocabulary size" in done["reason"]


@pytest.mark.fault("D2", "D3")
@pytest.mark.parametrize(("loss", "reason"), [(math.nan, "valid loss not finite"), (-0.1, "perplexity of 0.9")])
def test_a_validation_loss_that_is_impossible_is_divergence(tmp_path, monkeypatch, loss, reason):
    original, epochs = trainer.evaluate, iter(range(9))
    monkeypatch.setattr(trainer, "evaluate", lambda *given: loss if next(epochs) == 1 else original(*given))
    done = loop.train_run(make_run(), CORPUS, tmp_path)
    assert done["status"] == "diverged" and reason in done["reason"]
    assert done["best_epoch"] == 1 and len(artefacts.read_lines(tmp_path / "epochs.jsonl")) == 1
