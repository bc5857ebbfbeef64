"""Dynamic evaluation against the published loop written out in NumPy and plain PyTorch.

Shapes: L rows of a text in B columns.
"""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from softmax_bottleneck import study as config
from softmax_bottleneck.corpora.corpus import batchify
from softmax_bottleneck.measuring import perplexity
from softmax_bottleneck.steps import dynamic as evaluation
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.training import dynamic_evaluation as dynamic
from softmax_bottleneck.training import model, trainer
from tiny_runs import VOCABULARY, make_corpus, make_run, transformer_run

CORPUS = make_corpus(train_tokens=400, other_tokens=67)
SETTINGS = config.Dynamic(
    segment=5, statistics_batch_size=10, learning_rates=(0.002, 0.02), decays=(0.01, 0.2), epsilon=1e-3
)


def settings(**changes) -> config.Dynamic:
    return dataclasses.replace(SETTINGS, **changes)


def built(head: str = "softmax", dtype: torch.dtype = torch.float64, options: dict | None = None):
    return model.build(make_run(head, options=options), VOCABULARY).to(dtype).eval()


def evaluator(net, **changes) -> dynamic.Evaluator:
    return dynamic.Evaluator(net, CORPUS, settings(**changes))


def finish(one: dynamic.Evaluator) -> dict:
    while not one.finished:
        one.step()
    return one.results()


def segments(length: int, segment: int):
    """Yield start and stop of the inputs; targets are one token later, and the last segment is short."""
    start = 0
    while start < length - 1:
        stop = min(start + segment, length - 1)
        yield start, stop
        start = stop


def naive_loss(net, ids_LB, start, stop, hidden):
    """Return the mean cross entropy of a segment by torch's own functions, and the state after it."""
    output = net(ids_LB[start:stop], hidden)
    log_p = net.head.log_probs(output.dropped_TBD)
    loss = torch.nn.functional.nll_loss(log_p, ids_LB[start + 1 : stop + 1].reshape(-1))
    return loss, tuple((h.detach(), c.detach()) for h, c in output.state)


def naive_statistics(net, scaling: str, streams: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return M and R as in `dynamiceval.py` of Krause's code (`mean`) and of Yang's (`sum`)."""
    ids_LB = torch.from_numpy(batchify(CORPUS.train, streams).astype(np.int64))
    named = dict(net.named_parameters())
    squares, batches = {name: np.zeros(tuple(p.shape)) for name, p in named.items()}, 0
    hidden = net.initial_state(streams)
    for start, stop in segments(len(ids_LB), 5):
        net.zero_grad()
        loss, hidden = naive_loss(net, ids_LB, start, stop, hidden)
        loss.backward()
        for name, p in named.items():
            squares[name] += p.grad.numpy() ** 2
        batches += 1
    if scaling == "mean":
        squares = {name: square / batches for name, square in squares.items()}
    scale = {name: np.sqrt(square) for name, square in squares.items()}
    level = [array.mean() for array in scale.values()]
    norm = sum(level) / len(level) if scaling == "mean" else sum(level)
    return scale, {name: array / norm for name, array in scale.items()}


def naive_dynamic(net, ids_T, scaling: str, rate: float, decay: float, epsilon: float) -> float:
    """Return the loss in nats, total_loss / batch of the published code, whose short last segment counts less."""
    scale, pull = naive_statistics(net, scaling, 10)
    named = dict(net.named_parameters())
    trained = {name: p.detach().numpy().copy() for name, p in named.items()}
    ids_L1 = torch.from_numpy(ids_T.astype(np.int64))[:, None]
    hidden, total, batch = net.initial_state(1), 0.0, 0.0
    for start, stop in segments(len(ids_L1), 5):
        net.zero_grad()
        loss, hidden = naive_loss(net, ids_L1, start, stop, hidden)
        loss.backward()
        total += (stop - start) / 5 * loss.item()
        batch += (stop - start) / 5
        for name, p in named.items():
            ratio = np.minimum(pull[name], 1 / decay) if decay else pull[name]
            now = p.detach().numpy()
            change = decay * ratio * (trained[name] - now) - rate * p.grad.numpy() / (scale[name] + epsilon)
            p.data = torch.from_numpy(now + change)
    for name, p in named.items():
        p.data = torch.from_numpy(trained[name])
    return total / batch


HEADS = {"softmax": {}, "sigsoftmax": {}, "mos": {"components": 2, "dropout_latent": 0.3, "probability_floor": 1e-8}}


@pytest.mark.parametrize(("head", "scaling"), [("softmax", "sum"), ("sigsoftmax", "mean"), ("mos", "mean")])
def test_equals_the_published_loop(head, scaling):
    net = built(head, options=HEADS[head])
    one = evaluator(net, scaling=scaling, learning_rates=(0.005,), decays=(0.3,))
    while len(one.losses) < 4:
        one.step()
    expected = naive_dynamic(net, CORPUS.valid, scaling, 0.005, 0.3, 1e-3)
    assert one.losses[2:] == pytest.approx([expected, expected], rel=1e-9)
    assert not np.isclose(one.losses[0], expected, rtol=1e-4)  # it does something


def static_loss(net, ids_T) -> float:
    """Return the loss of the trained weights by a plain loop, with the kernels of a pass with gradients."""
    ids_L1 = torch.from_numpy(ids_T.astype(np.int64))[:, None]
    hidden, total = net.initial_state(1), 0.0
    for start, stop in segments(len(ids_L1), 5):
        output = net(ids_L1[start:stop], hidden)
        hidden = tuple((h.detach(), c.detach()) for h, c in output.state)
        nll_N = net.head.nll(output.dropped_TBD, ids_L1[start + 1 : stop + 1].reshape(-1))
        total += nll_N.sum(dtype=torch.float64).item()
    return total / (len(ids_L1) - 1)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_a_step_size_of_zero_is_the_static_perplexity_to_the_last_digit(head, decay):
    net = built(head, torch.float32, HEADS[head])
    before = {name: tensor.clone() for name, tensor in model.weights(net).items()}
    one = evaluator(net, learning_rates=(0.0,), decays=(decay,))
    found = finish(one)
    static = [static_loss(net, ids) for ids in (CORPUS.valid, CORPUS.test)]
    assert one.losses == [*static, static[0], static[0]]
    metrics = found["metrics"]
    assert metrics["valid_ppl"] == metrics["valid_ppl_static"] == trainer.perplexity(static[0])
    assert metrics["test_ppl"] == metrics["test_ppl_static"] and metrics["dynamic_learning_rate"] == 0
    measured = perplexity.perplexities(-perplexity.losses(net, CORPUS.test, 1, 12)).sound  # by another route
    assert metrics["test_ppl"] == pytest.approx(measured, rel=1e-6)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.weights(net).items())


@pytest.mark.parametrize("rates", [(50.0,), (1000.0,), (0.002, 0.02)])
def test_it_is_never_worse_than_the_trained_weights_on_validation(rates):
    net = built(dtype=torch.float32)
    before = {name: tensor.clone() for name, tensor in model.weights(net).items()}
    found = finish(evaluator(net, learning_rates=rates, tune_tokens=20))
    metrics = found["metrics"]
    assert metrics["valid_ppl"] <= metrics["valid_ppl_static"]
    assert math.isfinite(metrics["test_ppl"])
    if rates[0] >= 1:
        assert metrics["valid_gain"] == 0 and metrics["dynamic_learning_rate"] == 0
        assert metrics["test_ppl"] == metrics["test_ppl_static"]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.weights(net).items())
    json.dumps(found, allow_nan=False)


def test_every_setting_is_tried_on_the_tuning_text_and_the_best_one_used():
    one = evaluator(built(), tune_tokens=31)
    found = finish(one)
    assert [(row["learning_rate"], row["decay"]) for row in found["tried"]] == [
        (rate, decay) for rate in SETTINGS.learning_rates for decay in SETTINGS.decays
    ]
    net = built()
    expected = [naive_dynamic(net, CORPUS.valid[:31], "mean", row["learning_rate"], row["decay"], 1e-3)
                for row in found["tried"]]  # fmt: skip
    assert [row["loss_nats"] for row in found["tried"]] == pytest.approx(expected, rel=1e-9)
    best = found["tried"][int(np.argmin(expected))]
    assert one.chosen == dynamic.Setting(best["learning_rate"], best["decay"], 1e-3)
    assert found["tuned_on_tokens"] == 30


@pytest.mark.parametrize(("rates", "decays", "tried", "edge"), [
    ((1, 2, 3), (0.5,), (4, 2, 3), False),
    ((1, 2, 3), (0.5,), (2, 3, 4), True),
    ((3, 1, 2), (0.5,), (2, 3, 4), True),  # in any order
    ((2,), (0.5,), (3,), False),  # a setting, no choice
    ((2,), (0.1, 0.5), (3, 2), True),
])  # fmt: skip
def test_a_choice_on_an_edge_of_the_grid_is_recorded(rates, decays, tried, edge) -> None:
    one = evaluator(built(), learning_rates=rates, decays=decays)
    one.losses = [5.0, 5.0, *map(float, tried), 2.0, 2.0]
    one.sums = ([], 7)
    assert one.at_edge == edge and one.results()["metrics"]["dynamic_at_edge"] == float(edge)


def test_it_helps_where_the_test_text_repeats_itself():
    """Words that a model never saw together follow each other again and again."""
    repeated = np.tile(np.arange(7, 12, dtype=np.int32), 60)
    corpus = dataclasses.replace(CORPUS, valid=repeated, test=repeated)
    one = dynamic.Evaluator(built(dtype=torch.float32), corpus, settings(learning_rates=(0.02,), decays=(0.001,)))
    metrics = finish(one)["metrics"]
    assert metrics["test_ppl"] < 0.5 * metrics["test_ppl_static"]


def test_a_body_without_memory_is_refused(tmp_path):
    run = transformer_run()
    net = model.build(run, VOCABULARY)
    with pytest.raises(UserError, match="transformer does not"):
        evaluation.evaluate(config.Evaluation(run, SETTINGS), net, CORPUS, tmp_path, parents={})
