"""Tying, parameter counts as published (SPEC.md 2), optimiser groups, weights as files hold them."""

import pytest
import torch
from softmax_bottleneck import heads
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.training import model
from softmax_bottleneck.training.trainer import penalties
from tiny_runs import make_run

PTB, WT2 = 10_000, 33_278
FULL = {"embedding_size": 400, "hidden_size": 1150, "context_size": 400, "layers": 3}


def count(head: str, vocabulary_size: int, options: dict | None = None, **body) -> int:
    run = make_run(head, options=options, **FULL | body)
    return model.count_parameters(model.build(run, vocabulary_size, "meta"))


PTB_MIXTURE = {"embedding_size": 280, "hidden_size": 960, "context_size": 620}
WT2_MIXTURE = {"embedding_size": 300, "hidden_size": 1150, "context_size": 650}
FAIR = {"embedding_size": 280, "hidden_size": 960, "context_size": 280}
WIDE = {"embedding_size": 340, "hidden_size": 960, "context_size": 340}
MIXTURES_PTB = {1: 19_057_620, 3: 19_406_620, 5: 19_755_620, 10: 20_628_120, 15: 21_500_620, 20: 22_373_120}
MIXTURES_WT2 = {10: 33_929_778, 15: 34_909_528, 20: 35_889_278}
PUBLISHED = [
    *((head, words, {}, {}, total) for head in ("softmax", "sigsoftmax", "gss")
      for words, total in ((PTB, 24_221_600), (WT2, 33_556_078))),
    ("lms-plif", PTB, {}, {}, 24_321_600),
    ("lms-plif", WT2, {}, {}, 33_656_078),
    ("lms-plif", PTB, {"frozen": True}, {}, 24_221_600),
    *((head, PTB, {"components": k}, PTB_MIXTURE, total) for head in ("mos", "moc")
      for k, total in MIXTURES_PTB.items()),
    *((head, WT2, {"components": k}, WT2_MIXTURE, total) for head in ("mos", "moc")
      for k, total in MIXTURES_WT2.items()),
    ("mos", PTB, {"components": 15}, FAIR, 17_535_200),
    ("softmax", PTB, {}, WIDE, 17_560_880),
    ("softmax", PTB, {}, FAIR, 16_350_800),
]  # fmt: skip


@pytest.mark.parametrize(("head", "words", "options", "body", "total"), PUBLISHED)
def test_parameter_counts_are_the_published_ones(head, words, options, body, total):
    """SPEC.md 2: totals of SM Tables 4 and 5, and of the texts."""
    assert count(head, words, options, **body) == total


def test_counts_of_direct_output_connections():
    """Takase 2018, Tables 2 and 3: 23M and 37M."""
    assert round(count("doc", PTB, {"lower_size": 960}, **PTB_MIXTURE) / 1e6) == 23
    assert round(count("doc", WT2, {"lower_size": 1150}, **WT2_MIXTURE) / 1e6) == 37


SMALL = {"embedding_size": 6, "hidden_size": 7, "context_size": 6, "layers": 2}


@pytest.mark.parametrize(("body", "lower_size"), [
    (SMALL, 7),
    (SMALL | {"layers": 1}, 6),
    (SMALL | {"kind": "transformer", "attention_heads": 2, "dropout_weight": 0, "dropout_embedding": 0}, 6),
])  # fmt: skip
def test_a_head_may_read_the_input_of_the_last_layer(body, lower_size):
    built = model.build(make_run("doc", options={"lower_size": lower_size}, **body), 11).eval()
    ids = torch.tensor([[1, 2], [3, 4]])
    read = []
    built.body.layers[-1].register_forward_pre_hook(lambda _, given: read.append(given[0]))
    output = built(ids, built.initial_state(2))
    below_TBD, last_TBD = output.head_input_TBD.split([lower_size, 6], 2)
    assert torch.equal(last_TBD, output.raw_TBD) and torch.equal(below_TBD, output.below_TBD)
    if read:  # an LSTM's kernel is called without its module
        assert torch.equal(below_TBD, read[0])
    assert built.head.log_probs(output.head_input_TBD).shape == (4, 11)
    with pytest.raises(UserError, match=f"lower_size: 5 must be what the body's last layer reads, {lower_size}"):
        model.build(make_run("doc", options={"lower_size": 5}, **body), 11)


def test_the_activation_penalty_is_on_the_last_layer_only():
    run = make_run("doc", options={"lower_size": 7}, activation_penalty=1, temporal_penalty=0, **SMALL)
    built = model.build(run, 11).train()
    output = built(torch.tensor([[1, 2], [3, 4]]), built.initial_state(2))
    last_TBD = output.head_input_TBD[..., 7:].detach().double().numpy()
    assert penalties(output, run.schedule).item() == pytest.approx((last_TBD**2).mean())


def test_embedding_is_the_decoder():
    built = model.build(make_run("softmax", **SMALL), 11)
    assert built.body.embedding.weight is built.head.decoder.weight
    assert built.head.decoder.weight.abs().max() <= 0.1
    assert not built.head.decoder.bias.any()
    names = [name for name, _ in built.named_parameters()]
    assert len(names) == len(set(names)) == 1 + 2 * 4 + 1


def test_initial_weights_follow_the_seed_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = model.weights(model.build(make_run("mos", seed=1, **SMALL | {"context_size": 4}), 11))
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(6)
    again = model.weights(model.build(make_run("mos", seed=1, **SMALL | {"context_size": 4}), 11))
    other = model.weights(model.build(make_run("mos", seed=2, **SMALL | {"context_size": 4}), 11))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first[model.DECODER], other[model.DECODER])


@pytest.mark.parametrize("head", heads.names())
def test_groups_hold_every_trained_parameter_once(head):
    built = model.build(make_run(head, **SMALL), 11)
    groups = built.parameter_groups(20.0)
    grouped = [id(p) for group in groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in built.parameters() if p.requires_grad)
    assert groups[0]["lr"] == 20.0
