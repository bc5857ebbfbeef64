"""The rank demonstration against its published table, an earlier trial, and the trained models' own heads."""

import csv
import math
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from softmax_bottleneck import heads, ranks
from softmax_bottleneck.measuring import synthetic_experiments
from softmax_bottleneck.measuring.synthetic_experiments import DEFAULT, READINGS, SWEEP, RankDemo, rank_demo, rows_of
from softmax_bottleneck.ranks import TopTokens
from softmax_bottleneck.store.seeds import derive

PUBLISHED = Path(__file__).parents[2] / "report" / "published" / "smerity2017_rank_demo.csv"
SMALL = RankDemo(hidden_size=6, vocabulary_size=50, contexts=120, components=(1, 3), draws=2)


def silent(_: str) -> None: ...
def published() -> dict[tuple[str, str], int]:
    """(model, condition) -> rank."""
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        return {(row["model"], row["condition"]): int(row["value"]) for row in csv.DictReader(file)}


def values(settings: RankDemo) -> dict[tuple[str, str, str], list[float]]:
    """(model, condition, metric) -> one value per draw."""
    found = defaultdict(list)
    for row in rank_demo(settings, silent):
        found[row["model"], row["condition"], row["metric"]].append(row["value"])
    return found


@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: reading.reading or "default")
def test_softmax_and_moc_have_the_published_34_at_every_k_and_mos_grows(reading):
    found = values(replace(reading, draws=1, probabilities=False))
    condition = {k: reading.condition(k) for k in reading.components}
    for model in ("softmax", "moc"):
        for k in reading.components:
            assert found[model, condition[k], "rank"] == [published()[model, DEFAULT.condition(k)]] == [34]
    mos = [found["mos", condition[k], "rank"][0] for k in reading.components]
    assert mos[0] == published()["mos", DEFAULT.condition(1)] == 34
    assert mos == sorted(mos) and mos[1] > 500
    # numpy's default tolerance cannot be the published one.
    assert max(max(v) for (_, _, metric), v in found.items() if metric == "rank_numpy") < 200


def test_the_closest_reading_is_close():
    closest = replace(READINGS[2], draws=2, components=(2, 3, 4, 5))
    found = values(closest)
    for k, allowed in ((2, 40), (3, 15), (4, 6), (5, 6)):
        mean = np.mean(found["mos", closest.condition(k), "rank"])
        assert mean == pytest.approx(published()["mos", DEFAULT.condition(k)], abs=allowed)


@pytest.mark.parametrize("components", [1, 3])
def test_ranks_are_those_of_the_trained_models_heads(components):
    """The same weights in the heads of the language models, in float64, and numpy's SVD: the same counts."""
    settings = replace(SMALL, draws=1, components=(components,), dtype="float64")
    h, v, s = settings.hidden_size, settings.vocabulary_size, settings.contexts
    rng = np.random.default_rng(derive(settings.seed, "rank demo", 0))
    bound = 1 / math.sqrt(h)
    x = rng.standard_normal((s, h))
    decoder = [rng.uniform(-bound, bound, shape) for shape in ((v, h), v)]
    latent = [[rng.uniform(-bound, bound, shape) for shape in ((h, h), h)] for _ in range(components)]
    found = values(settings)
    for model in ("moc", "mos"):
        head = heads.build(model, vocabulary_size=v, context_size=h, embedding_size=h, components=components).double()
        state = {
            "prior.weight": np.zeros((components, h)),  # equal mixing
            "latent.weight": np.concatenate([weight for weight, _ in latent]),
            "latent.bias": np.concatenate([bias for _, bias in latent]),
            "decoder.weight": decoder[0],
            "decoder.bias": decoder[1],
        }
        head.load_state_dict({key: torch.from_numpy(value) for key, value in state.items()}, strict=False)
        log_p = head.eval().log_probs(torch.from_numpy(x)).detach().numpy()
        for metric, matrix in (("rank", log_p), ("rank_p", np.exp(log_p))):
            sigma = np.linalg.svd(matrix, compute_uv=False)
            tolerance = 0.5 * math.sqrt(s + v + 1) * sigma[0] * 2.0**-23
            assert found[model, settings.condition(components), metric] == [(sigma > tolerance).sum()]
            default = np.linalg.matrix_rank(matrix)
            assert found[model, settings.condition(components), f"{metric}_numpy"] == [default]


def test_the_sweep_counts_the_singular_values_of_a_mixture_computed_by_hand() -> None:
    """The smallest size of the sweep in float64, with Press's tolerance of float32, and only mixtures of softmaxes."""
    rows = rows_of({"synthetic": "rank-sweep"}, lambda size: None, silent)
    assert len(rows) == 9 * 6 and {(row["model"], row["metric"]) for row in rows} == {("mos", "rank")}
    settings = SWEEP[0]
    width, words, contexts = settings.hidden_size, settings.vocabulary_size, settings.contexts
    rng, bound = np.random.default_rng(derive(settings.seed, "rank demo", 0)), 1 / math.sqrt(width)
    x = rng.standard_normal((contexts, width)) * settings.input_scale
    weight, bias = rng.uniform(-bound, bound, (words, width)), rng.uniform(-bound, bound, words)
    total = np.zeros((contexts, words))
    for k in settings.components:
        hidden = x @ rng.uniform(-bound, bound, (width, width)).T + rng.uniform(-bound, bound, width)
        p = np.exp(hidden @ weight.T + bias)
        total += p / p.sum(1, keepdims=True)
        sigma = np.linalg.svd(np.log(total / k), compute_uv=False)
        tolerance = 0.5 * math.sqrt(contexts + words + 1) * sigma[0] * np.finfo(np.float32).eps
        (found,) = [row["value"] for row in rows if row["condition"].startswith(f"K={k};H={width};V={words};")]
        assert found == pytest.approx(int((sigma > tolerance).sum()), abs=3)  # float32 moves those at the tolerance


def test_every_trained_matrix_has_a_control_with_its_lengths_and_biases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare with normal rows scaled one by one in float64; rows of length 1 are those of a plain random matrix."""
    weight, bias = torch.randn(12, 3, generator=torch.manual_seed(1)).exp(), torch.arange(12.0)
    head = SimpleNamespace(is_log_linear=True, decoder=SimpleNamespace(parameters=lambda: (weight, bias)))
    model, matrices, largest = nullcontext(SimpleNamespace(head=head)), [], TopTokens(((0, 2), (1, 1)), 3, 0.0)
    monkeypatch.setattr(synthetic_experiments.trained, "loaded", lambda run, folder: model)
    monkeypatch.setattr(ranks, "top_tokens", lambda *layer: matrices.append(layer) or largest)
    study = SimpleNamespace(store=SimpleNamespace(run_folder=lambda path: path))
    runs = [SimpleNamespace(dataset="ptb", model="softmax", seed=seed, path="") for seed in (1, 2)]
    rows = synthetic_experiments.top_tokens(study, runs)
    for seed, (control, its_bias), row in zip((1, 2), matrices[1:4:2], rows[1:4:2], strict=True):
        assert (row["model"], row["seed"]) == ("softmax-random-directions", seed) and its_bias.tolist() == bias.tolist()
        assert (row["condition"], row["value"], row["draw"]) == ("V=12;d=3;undecided=1", 1, 1)
        normal = np.random.default_rng(derive(seed, "top tokens", "ptb", "softmax")).standard_normal((12, 3))
        for new, given, free in zip(control, weight.tolist(), normal, strict=True):
            assert new == pytest.approx(free * math.hypot(*given) / math.hypot(*free), rel=1e-6)
    unit = ranks.random_directions(np.tile([0.0, 1.0, 0.0], (12, 1)), 7)
    plain = np.random.default_rng(7).standard_normal((12, 3))
    np.testing.assert_allclose(unit * np.sqrt((plain**2).sum(1, keepdims=True)), plain)
