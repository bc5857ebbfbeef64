"""Training on text that is never read twice: one piece of the corpus per epoch."""

from pathlib import Path

import numpy as np
import pytest
from run_hash import result_hash
from softmax_bottleneck.jobs.devices import choose_device
from softmax_bottleneck.jobs.interrupt import TimeLimit
from softmax_bottleneck.jobs.resumable import Options
from softmax_bottleneck.store.errors import BusyError
from softmax_bottleneck.training import train, trainer
from tiny_runs import make_corpus, make_run

RUN, CORPUS = make_run(pieces=3, epochs=5, switch_after_epoch=2, learning_rate=1.0), make_corpus(train_tokens=400)


def test_every_epoch_reads_its_own_piece() -> None:
    at_work = trainer.Trainer(RUN, CORPUS, choose_device("cpu"))
    pieces = np.split(CORPUS.train, [134, 267])  # 400 tokens in three pieces that follow each other
    for epoch in range(5):
        piece = pieces[epoch % 3]
        rows = len(piece) // 4
        assert np.array_equal(at_work.train_LB.numpy().T.ravel(), piece[: rows * 4])
        while at_work.place.chunk < len(at_work.chunks):
            at_work.update()
        at_work.end_epoch(0.0)


def test_a_run_stopped_after_every_update_ends_in_the_same_bits(tmp_path: Path) -> None:
    train.train_run(RUN, CORPUS, tmp_path / "whole")
    for _ in range(500):
        try:
            train.train_run(RUN, CORPUS, tmp_path / "parts", Options(limit=TimeLimit(0.0), save_interval_s=0.0))
            break
        except BusyError:
            continue
    else:
        pytest.fail("it never ends")
    assert result_hash(tmp_path / "whole") == result_hash(tmp_path / "parts")
