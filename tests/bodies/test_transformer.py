"""The Transformer body against PyTorch's own encoder, its schedule by hand, and heads on both bodies.

Shapes: T time steps, B sequences, D width, L rows of a batched stream.
"""

import dataclasses
import math

import numpy as np
import pytest
import torch
from naive_training import naive_training
from softmax_bottleneck import bodies
from softmax_bottleneck.corpora.corpus import batchify
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.training import loop, model, trained, trainer
from tiny_runs import CORPUS, NO_DROPOUT, VOCABULARY, changed, make_run, transformer_run
from tiny_runs import TRANSFORMER_SIZES as SIZES


def body(**options) -> bodies.Body:
    torch.manual_seed(3)
    return bodies.build("transformer", vocabulary_size=VOCABULARY, **SIZES | options).double()


def tokens(length: int, batch: int = 3) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(length).integers(0, VOCABULARY, (length, batch)))


def torchs_own(ours: bodies.Body) -> torch.nn.TransformerEncoder:
    """PyTorch's encoder with the same weights."""
    width, heads = SIZES["embedding_size"], SIZES["attention_heads"]
    layer = torch.nn.TransformerEncoderLayer(width, heads, SIZES["hidden_size"], dropout=0.0)
    other = torch.nn.TransformerEncoder(layer, SIZES["layers"], enable_nested_tensor=False).double()
    names = {
        "self_attn.in_proj_": "queries_keys_values.", "self_attn.out_proj.": "mixed.", "linear1.": "widened.",
        "linear2.": "narrowed.", "norm1.": "attention_norm.", "norm2.": "feedforward_norm.",
    }  # fmt: skip
    state = ours.layers.state_dict()
    renamed = {}
    for key in other.layers.state_dict():
        index, rest = key.split(".", 1)
        theirs, mine = next((a, b) for a, b in names.items() if rest.startswith(a))
        renamed[key] = state[f"{index}.{mine}{rest.removeprefix(theirs)}"]
    other.layers.load_state_dict(renamed)
    return other


def naive_positions(length: int, width: int) -> np.ndarray:
    table = np.zeros((length, width))
    for t in range(length):
        for i in range(width):
            angle = t / 10_000 ** (2 * (i // 2) / width)
            table[t, i] = math.sin(angle) if i % 2 == 0 else math.cos(angle)
    return table


def randomised(ours: bodies.Body) -> bodies.Body:
    """Return the body with biases and norms that are not neutral."""
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return ours


@pytest.mark.parametrize("length", [1, 7, 300])  # 300: more positions than are computed at first
def test_equals_pytorchs_encoder_with_the_same_weights(length):
    ours = randomised(body()).eval()
    ids_TB = tokens(length)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(length, dtype=torch.float64)
    positions_TD = torch.from_numpy(naive_positions(length, 12))
    x_TBD = (ours.embedding(ids_TB) * math.sqrt(12) + positions_TD[:, None]).detach()
    other = torchs_own(ours)
    expected_TBD = other(x_TBD, mask=mask)
    output = ours(ids_TB, ours.initial_state(3))
    torch.testing.assert_close(output.raw_TBD, expected_TBD, rtol=1e-6, atol=1e-6)  # positions are kept in float32
    assert output.dropped_TBD is output.raw_TBD and output.state == ()
    weight_TBD = torch.randn(length, 3, 12, dtype=torch.float64)
    (expected_TBD * weight_TBD).sum().backward()
    (output.raw_TBD * weight_TBD).sum().backward()
    mine, its = ours.layers[0], other.layers[0]
    for one, other_one in (
        (mine.queries_keys_values.weight, its.self_attn.in_proj_weight),
        (mine.widened.bias, its.linear1.bias),
        (mine.attention_norm.weight, its.norm1.weight),
    ):
        torch.testing.assert_close(one.grad, other_one.grad, rtol=1e-5, atol=1e-5)


def test_no_position_sees_a_later_one():
    ours = body().eval()
    ids_TB = tokens(12)
    changed_TB = ids_TB.clone()
    changed_TB[7:] = (changed_TB[7:] + 1) % VOCABULARY
    before, after = (ours(ids, ()).raw_TBD for ids in (ids_TB, changed_TB))
    assert torch.equal(before[:7], after[:7]) and not torch.allclose(before[7], after[7])


def test_dropout_is_drawn_from_the_generator_in_training_only():
    ours = body(dropout_input=0.2, dropout_hidden=0.3, dropout_output=0.4)
    ids_TB = tokens(10)
    drawn = [ours.train()(ids_TB, (), generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(drawn[0].dropped_TBD, drawn[1].dropped_TBD)
    assert not torch.equal(drawn[0].raw_TBD, drawn[2].raw_TBD)
    share = (drawn[0].dropped_TBD == 0).double().mean().item()
    assert share == pytest.approx(0.4, abs=4 * math.sqrt(0.24 / 360))
    kept = drawn[0].dropped_TBD != 0
    torch.testing.assert_close(drawn[0].dropped_TBD[kept], drawn[0].raw_TBD[kept] / 0.6)
    still = [ours.eval()(ids_TB, (), generator=torch.Generator().manual_seed(seed)).raw_TBD for seed in (1, 2)]
    assert torch.equal(*still)


@pytest.mark.parametrize(("kind", "options", "words"), [
    ("transformer", SIZES | {"context_size": 6}, "context_size 6 must equal embedding_size 12"),
    ("transformer", SIZES | {"attention_heads": 5}, "attention_heads: 5 does not divide embedding_size 12"),
    ("transformer", SIZES | {"attention_heads": 0}, "attention_heads: 0 does not divide"),
    ("transformer", SIZES | {"dropout_weight": 0.5}, "transformer has no dropout_weight, so it must be 0, not 0.5"),
    ("awd-lstm", SIZES, "awd-lstm has no attention_heads, so it must be 0, not 4"),
])  # fmt: skip
def test_options_that_do_not_fit_are_refused(kind, options, words):
    with pytest.raises(UserError, match=words):
        bodies.build(kind, vocabulary_size=VOCABULARY, **options)


def test_parameters_of_the_published_sizes():
    """Ten softmaxes add 0.404 million numbers at width 200 and 0.906 million at width 300 (SPEC.md A14)."""
    for width, added in ((200, 404_000), (300, 906_000)):
        run = transformer_run()
        sizes = {"embedding_size": width, "context_size": width, "hidden_size": width, "layers": 4}
        plain = changed(run, body=dataclasses.replace(run.body, **sizes))
        mixed = changed(transformer_run("mos", {"components": 10}), body=plain.body)
        counts = [model.count_parameters(model.build(one, 10_000, "meta")) for one in (plain, mixed)]
        layer = 4 * width * width + 4 * width + 2 * (width * width + width) + 4 * width
        assert counts[0] == 2 * 10_000 * width + 10_000 + 4 * layer
        assert counts[1] - counts[0] == 10 * (width * width + width) + 10 * width
        assert counts[1] - counts[0] == pytest.approx(added, rel=2e-3)


def test_matrices_are_xaviers_and_not_shared():
    built = model.build(transformer_run(), VOCABULARY)
    assert built.body.embedding.weight is not built.head.decoder.weight
    for name, matrix in built.named_parameters():
        if matrix.dim() > 1:
            limit = math.sqrt(6 / sum(matrix.shape))
            assert 0.8 * limit < matrix.abs().max() <= limit, name
    tied = changed(transformer_run(), body=dataclasses.replace(transformer_run().body, tied=True))
    shared = model.build(tied, VOCABULARY)
    assert shared.body.embedding.weight is shared.head.decoder.weight
    assert {*model.weights(built)} - {*model.weights(shared)} == {model.EMBEDDING}


@pytest.mark.parametrize("tied", [True, False])
def test_weights_go_out_and_in(tied):
    run = transformer_run()
    run = changed(run, body=dataclasses.replace(run.body, tied=tied))
    first, second = model.build(run, VOCABULARY).eval(), model.build(changed(run, seed=9), VOCABULARY).eval()
    model.load_weights(second, model.weights(first))
    ids_TB = tokens(6)
    assert torch.equal(first(ids_TB, ()).raw_TBD, second(ids_TB, ()).raw_TBD)
    assert torch.equal(first.body.embedding.weight, second.body.embedding.weight)


def test_the_plateau_schedule_equals_a_naive_loop(tmp_path):
    """Benka's step size falls after every epoch that does not improve, and a loss is divided by its targets."""
    run = transformer_run(epochs=9, weight_decay=0.0, learning_rate=6.0)
    run = changed(run, body=dataclasses.replace(run.body, **NO_DROPOUT))
    done = loop.train_run(run, CORPUS, tmp_path)
    rows, expected = artefacts.read_lines(tmp_path / "epochs.jsonl"), naive_training(run, CORPUS)
    assert len({row["lr"] for row in expected}) > 2  # the rate fell more than once
    for row, naive in zip(rows, expected, strict=True):
        assert row["lr"] == pytest.approx(naive["lr"], rel=1e-12)
        assert row["valid_loss_nats"] == pytest.approx(naive["valid"], rel=1e-4)
    losses = [row["valid_loss_nats"] for row in rows]
    assert [row["best"] for row in rows] == [loss == min(losses[: i + 1]) for i, loss in enumerate(losses)]
    assert done["best_epoch"] == 9 and done["best_valid_loss_nats"] == losses[-1] > min(losses)
    stored = trained.load_model(tmp_path)
    valid_LB = torch.from_numpy(batchify(CORPUS.valid, run.schedule.eval_batch_size).astype(np.int64))
    assert trainer.evaluate(stored, valid_LB, 12, divisor="targets") == losses[-1]


def test_averaging_can_begin_with_the_first_update(tmp_path):
    run = make_run(epochs=2)
    run = changed(run, schedule=dataclasses.replace(run.schedule, optimizer="asgd"))
    done = loop.train_run(run, CORPUS, tmp_path)
    assert [row["phase"] for row in artefacts.read_lines(tmp_path / "epochs.jsonl")] == ["asgd", "asgd"]
    assert done["switch_epoch"] is None
