"""Repeated tokens: equal coverage, sequences as updates, accuracies, the end of training, the search by updates."""

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
from softmax_bottleneck.corpora.repeat import LEARNED, repeated
from softmax_bottleneck.steps.choose import _loss
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study.languages import RepeatSettings
from softmax_bottleneck.training.loop import train_run
from softmax_bottleneck.training.repeat import Repeater
from tiny_runs import NO_DROPOUT, make_run

SETTINGS = RepeatSettings(vocabulary_size=50, sequence_length=4, repetitions=6, held_out=10, seed=3)
CORPUS = repeated(SETTINGS, "tiny")
REPEAT = {
    **{"optimizer": "sgd", "learning_rate": 3.0, "batch_size": 5, "bptt": 4, "variable_length": False, "epochs": 12},
    **{"pieces": 12, "eval_batch_size": 10, "weight_decay": 0.0, "activation_penalty": 0.0, "temporal_penalty": 0.0},
    **{"tested_weights": "last", "loss_divisor": "targets", "embedding_size": 24, "hidden_size": 32},
    **{"context_size": 24, "layers": 1, "kind": "transformer", "attention_heads": 2, "tied": False},
}


def repeat_run(**changes):
    return make_run(**NO_DROPOUT | REPEAT | changes)


def test_every_trained_token_is_covered_equally_in_every_round() -> None:
    train, valid, test = (ids.reshape(-1, 4) for ids in (CORPUS.train, CORPUS.valid, CORPUS.test))
    assert all((text == text[:, :1]).all() for text in (train, valid, test))
    rounds = train[:, 0].reshape(6, 40)
    trained = set(rounds[0].tolist())
    assert all(Counter(one.tolist()) == Counter(trained) for one in rounds)
    assert len({tuple(one) for one in rounds}) == 6  # each round has an order of its own
    assert set(test[:, 0].tolist()) == set(range(50)) - trained and set(valid[:, 0].tolist()) <= trained
    assert {split: len(ids) for split, ids in CORPUS.splits.items()} == SETTINGS.tokens


def test_an_update_reads_one_sequence_per_stream_and_nothing_else_is_predicted() -> None:
    trainer = Repeater(repeat_run(), CORPUS, torch.device("cpu"))
    seen = []
    trainer._update = lambda rows_LB: (seen.append(rows_LB), (torch.zeros(()), torch.ones(())))[1]
    while trainer.place.chunk < len(trainer.chunks):
        trainer.update()
    read = torch.cat(seen, 1)
    assert len(read) == 4 and (read == read[:1]).all()
    assert sorted(read[0].tolist()) == sorted(CORPUS.train[: 20 * 4 : 4].tolist())  # half of the first round


@pytest.mark.parametrize("changes", [{"bptt": 5}, {"batch_size": 3}, {"pieces": 7}, {"eval_batch_size": 7}])
def test_settings_that_cut_sequences_are_rejected(changes: dict[str, int]) -> None:
    with pytest.raises(UserError, match="does not consist of sequences"):
        Repeater(repeat_run(**changes), CORPUS, torch.device("cpu"))


def test_training_ends_when_the_tokens_are_learned(tmp_path) -> None:
    done = train_run(repeat_run(learning_rate=2.0, tied=True), CORPUS, tmp_path, make=Repeater)
    rows = [json.loads(line) for line in (tmp_path / "epochs.jsonl").read_text().splitlines()]
    assert [row["accuracy"] >= LEARNED for row in rows] == [*[False] * (len(rows) - 1), True]
    assert done["epochs"] == len(rows) < 12 and done["steps"] == 4 * len(rows)
    assert (done["accuracy"], done["accuracy_held_out"]) == (rows[-1]["accuracy"], rows[-1]["accuracy_held_out"])


def test_accuracies_are_those_of_argmax_by_hand() -> None:
    trainer = Repeater(repeat_run(), CORPUS, torch.device("cpu"))
    row = trainer.end_epoch(0.0)
    for name, ids in (("accuracy", CORPUS.valid), ("accuracy_held_out", CORPUS.test)):
        hits = []
        for token in ids[::4].tolist():
            hidden = trainer.model.body(torch.full((3, 1), token), ()).dropped_TBD[:, 0].double()
            logits = hidden @ trainer.model.head.decoder.weight.double().T + trainer.model.head.decoder.bias.double()
            hits += [int(place.argmax()) == token for place in logits]
        assert row[name] == pytest.approx(np.mean(hits))


def test_the_search_prefers_fewer_updates_and_then_more_learned() -> None:
    runs = [{"status": "ok", "best_valid_loss_nats": 1.0, "steps": steps, "accuracy": share}
        for steps, share in ((96, 0.99), (96, 0.5), (40, 1.0))]  # fmt: skip
    assert [math.exp(_loss(run, "steps")) for run in runs] == pytest.approx([96 * 1.01, 96 * 1.5, 40.0])
    assert _loss({"status": "diverged"}, "steps") == math.inf
