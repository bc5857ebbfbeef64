"""Training on text that is never read twice: one piece of the corpus per epoch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from run_hash import result_hash
from softmax_bottleneck import study as config
from softmax_bottleneck.corpora.corpus import Corpus
from softmax_bottleneck.jobs.devices import choose_device
from softmax_bottleneck.jobs.interrupt import TimeLimit
from softmax_bottleneck.jobs.resumable import Options
from softmax_bottleneck.store.errors import BusyError
from softmax_bottleneck.training import train, trainer

BODY = config.Body(
    kind="awd-lstm",
    embedding_size=4,
    hidden_size=5,
    context_size=4,
    layers=2,
    **dict.fromkeys(("dropout_input", "dropout_hidden", "dropout_output", "dropout_embedding", "dropout_weight"), 0.1),
    embedding_noise=0.0,
)
SCHEDULE = config.Schedule(
    optimizer="et-asgd",
    learning_rate=1.0,
    batch_size=4,
    bptt=6,
    variable_length=True,
    max_length_delta=4,
    clip=0.25,
    weight_decay=1e-6,
    activation_penalty=0.0,
    temporal_penalty=0.0,
    epochs=5,
    switch_after_epoch=2,
    nonmonotone_window=2,
    eval_batch_size=2,
    pieces=3,
)
RUN = config.Run("toy", "softmax", config.Head("softmax"), BODY, SCHEDULE, seed=3, data_identity="toy")


def corpus() -> Corpus:
    rng = np.random.default_rng(1)
    ids = {
        name: rng.integers(0, 9, size).astype(np.int32) for name, size in (("train", 400), ("valid", 60), ("test", 60))
    }
    return Corpus(name="toy", words=tuple("abcdefghi"), **ids)


def test_every_epoch_reads_its_own_piece() -> None:
    text, at_work = corpus(), trainer.Trainer(RUN, corpus(), choose_device("cpu"))
    pieces = np.split(text.train, [134, 267])  # 400 tokens in three pieces that follow each other
    for epoch in range(5):
        piece = pieces[epoch % 3]
        rows = len(piece) // 4
        assert np.array_equal(at_work.train_LB.numpy().T.ravel(), piece[: rows * 4])
        while at_work.place.chunk < len(at_work.chunks):
            at_work.update()
        at_work.end_epoch(0.0)


def test_a_run_stopped_at_any_moment_ends_in_the_same_bits(tmp_path: Path) -> None:
    train.train_run(RUN, corpus(), tmp_path / "whole")
    for _ in range(500):
        try:
            train.train_run(RUN, corpus(), tmp_path / "parts", Options(limit=TimeLimit(0.0), save_interval_s=0.0))
            break
        except BusyError:
            continue
    else:
        pytest.fail("it never ends")
    assert result_hash(tmp_path / "whole") == result_hash(tmp_path / "parts")
