"""Tying, parameter counts as published (SPEC.md 2), optimiser groups, weights as files hold them."""

import dataclasses

import pytest
import torch
from softmax_bottleneck import heads
from softmax_bottleneck import study as config
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.training import model

PTB, WT2 = 10_000, 33_278
BODY = {
    "kind": "awd-lstm",
    "embedding_size": 400,
    "hidden_size": 1150,
    "context_size": 400,
    "layers": 3,
    "dropout_input": 0.4,
    "dropout_hidden": 0.3,
    "dropout_output": 0.4,
    "dropout_embedding": 0.1,
    "dropout_weight": 0.5,
    "embedding_noise": 0.0,
}
SCHEDULE = config.Schedule(
    optimizer="et-asgd",
    learning_rate=20.0,
    batch_size=20,
    bptt=70,
    clip=0.25,
    weight_decay=1.2e-6,
    activation_penalty=2.0,
    temporal_penalty=1.0,
    epochs=1000,
)


def run(head: str, options: dict | None = None, seed: int = 1, **body) -> config.Run:
    complete = config.Head(head, heads.options(head, options or {}))
    return config.Run("x", head, complete, config.Body(**BODY | body), SCHEDULE, seed, "identity")


def count(head: str, vocabulary_size: int, options: dict | None = None, **body) -> int:
    return model.count_parameters(model.build(run(head, options, **body), vocabulary_size, "meta"))


@pytest.mark.parametrize("head", ["softmax", "sigsoftmax", "gss"])
def test_counts_of_pointwise_heads(head):
    assert count(head, PTB) == 24_221_600
    assert count(head, WT2) == 33_556_078


def test_counts_of_plif():
    assert count("lms-plif", PTB) == 24_321_600
    assert count("lms-plif", WT2) == 33_656_078
    assert count("lms-plif", PTB, {"frozen": True}) == 24_221_600


PTB_MIXTURE = {"embedding_size": 280, "hidden_size": 960, "context_size": 620}
WT2_MIXTURE = {"embedding_size": 300, "hidden_size": 1150, "context_size": 650}


@pytest.mark.parametrize("head", ["mos", "moc"])
@pytest.mark.parametrize(
    ("components", "expected"),
    [(1, 19_057_620), (3, 19_406_620), (5, 19_755_620), (10, 20_628_120), (15, 21_500_620), (20, 22_373_120)],
)
def test_counts_of_mixtures_on_ptb(head, components, expected):
    assert count(head, PTB, {"components": components}, **PTB_MIXTURE) == expected


@pytest.mark.parametrize("head", ["mos", "moc"])
@pytest.mark.parametrize(("components", "expected"), [(10, 33_929_778), (15, 34_909_528), (20, 35_889_278)])
def test_counts_of_mixtures_on_wikitext(head, components, expected):
    assert count(head, WT2, {"components": components}, **WT2_MIXTURE) == expected


def test_counts_of_direct_output_connections():
    """Takase 2018, Tables 2 and 3: 23M and 37M."""
    assert round(count("doc", PTB, {"lower_size": 960}, **PTB_MIXTURE) / 1e6) == 23
    assert round(count("doc", WT2, {"lower_size": 1150}, **WT2_MIXTURE) / 1e6) == 37


def test_counts_of_the_fair_models():
    fair = {"embedding_size": 280, "hidden_size": 960, "context_size": 280}
    wide = {"embedding_size": 340, "hidden_size": 960, "context_size": 340}
    assert count("mos", PTB, {"components": 15}, **fair) == 17_535_200
    assert count("softmax", PTB, **wide) == 17_560_880
    assert count("softmax", PTB, **fair) == 16_350_800


SMALL = {"embedding_size": 6, "hidden_size": 7, "context_size": 6, "layers": 2}


@pytest.mark.parametrize(
    ("body", "lower_size"),
    [
        (SMALL, 7),
        (SMALL | {"layers": 1}, 6),
        (SMALL | {"kind": "transformer", "attention_heads": 2, "dropout_weight": 0, "dropout_embedding": 0}, 6),
    ],
)
def test_a_head_may_read_what_the_last_layer_reads(body, lower_size):
    built = model.build(run("doc", {"lower_size": lower_size}, **body), 11).eval()
    ids = torch.tensor([[1, 2], [3, 4]])
    read = []
    built.body.layers[-1].register_forward_pre_hook(lambda _, given: read.append(given[0]))
    output = built(ids, built.initial_state(2))
    below_TBD, last_TBD = output.dropped_TBD.split([lower_size, 6], 2)
    assert torch.equal(last_TBD, output.raw_TBD) and torch.equal(below_TBD, output.below_TBD)
    if read:  # an LSTM's kernel is called without its module
        assert torch.equal(below_TBD, read[0])
    assert built.head.log_probs(output.dropped_TBD).shape == (4, 11)
    with pytest.raises(UserError, match=f"lower_size: 5 must be what the body's last layer reads, {lower_size}"):
        model.build(run("doc", {"lower_size": 5}, **body), 11)


def test_embedding_is_the_decoder():
    built = model.build(run("softmax", **SMALL), 11)
    assert built.body.embedding.weight is built.head.decoder.weight
    assert built.head.decoder.weight.abs().max() <= 0.1
    assert not built.head.decoder.bias.any()
    names = [name for name, _ in built.named_parameters()]
    assert len(names) == len(set(names)) == 1 + 2 * 4 + 1


def test_initial_weights_follow_the_seed_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = model.weights(model.build(run("mos", seed=1, **SMALL | {"context_size": 4}), 11))
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(6)
    again = model.weights(model.build(run("mos", seed=1, **SMALL | {"context_size": 4}), 11))
    other = model.weights(model.build(run("mos", seed=2, **SMALL | {"context_size": 4}), 11))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first[model.DECODER], other[model.DECODER])


@pytest.mark.parametrize("head", heads.names())
def test_groups_hold_every_trained_parameter_once(head):
    built = model.build(run(head, **SMALL), 11)
    groups = built.parameter_groups(20.0)
    grouped = [id(p) for group in groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in built.parameters() if p.requires_grad)
    assert groups[0]["lr"] == 20.0


def test_plif_slopes_have_their_own_rate():
    (_, slopes) = model.build(run("lms-plif", **SMALL), 11).parameter_groups(20.0)
    assert slopes["lr"] == 0.02
    assert [p.numel() for p in slopes["params"]] == [100_000]
    assert len(model.build(run("lms-plif", {"frozen": True}, **SMALL), 11).parameter_groups(20.0)) == 1


def test_weights_leave_out_the_second_name_and_come_back():
    first = model.build(run("softmax", seed=1, **SMALL), 11)
    second = model.build(run("softmax", seed=2, **SMALL), 11)
    kept = model.weights(first)
    assert model.EMBEDDING not in kept and model.DECODER in kept
    model.load_weights(second, kept)
    assert second.body.embedding.weight is second.head.decoder.weight
    ids = torch.tensor([[1, 2], [3, 4]])
    one, two = (m.eval()(ids, m.initial_state(2)).raw_TBD for m in (first, second))
    assert torch.equal(one, two)


def test_weights_of_another_architecture_are_refused():
    wide = model.build(run("softmax", **SMALL | {"hidden_size": 9}), 11)
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_weights(wide, model.weights(model.build(run("softmax", **SMALL), 11)))


def test_run_settings_reach_the_body():
    changed = dataclasses.replace(run("softmax", **SMALL).body, dropout_weight=0.25, embedding_noise=0.1)
    built = model.build(dataclasses.replace(run("softmax", **SMALL), body=changed), 11)
    assert (built.body.dropout_weight, built.body.embedding_noise) == (0.25, 0.1)
    assert built.body.layer_dropouts == [0.3, 0.4]
