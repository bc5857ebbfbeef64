"""Measures of saturation against loops over their definitions, and their extremes."""

from __future__ import annotations

import csv
import io
import itertools
import math

import fake_results as fake
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from softmax_bottleneck import heads
from softmax_bottleneck.measuring.perplexity import Contexts
from softmax_bottleneck.measuring.saturation import saturation
from softmax_bottleneck.ranks import anisotropy, singular_value_divergence, singular_value_entropy
from softmax_bottleneck.records import collect
from softmax_bottleneck.report import source, views
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError
from softmax_bottleneck.store.paths import Store

values = st.lists(st.floats(0.0, 1e6), min_size=1, max_size=12).filter(any)


@given(values)
def test_entropy_is_the_definition(sigma):
    total = math.fsum(sigma)
    entropy = -math.fsum(value / total * math.log(value / total) for value in sigma if value / total > 0)
    divergence = math.fsum(value / total * math.log(value / total * len(sigma)) for value in sigma if value / total > 0)
    assert singular_value_entropy(sigma) == pytest.approx(entropy, abs=1e-12)
    assert singular_value_divergence(sigma) == pytest.approx(divergence, abs=1e-12)


def test_entropy_at_its_ends():
    assert singular_value_entropy([3.0, 0.0, 0.0]) == 0.0
    assert singular_value_divergence([3.0, 0.0, 0.0]) == pytest.approx(math.log(3))
    assert singular_value_entropy(np.ones(50)) == pytest.approx(math.log(50))
    assert singular_value_divergence(np.ones(50)) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("sigma", [[0.0, 0.0], [], [1.0, float("nan")], [1.0, -1.0]])
def test_what_is_no_spectrum_is_refused(sigma):
    with pytest.raises(DataError):
        singular_value_entropy(sigma)


@pytest.mark.parametrize(("count", "width", "offset"), [(2, 1, 0.0), (7, 3, 0.0), (40, 5, 2.0), (30, 60, -1.0)])
def test_anisotropy_is_the_mean_over_all_pairs(count, width, offset):
    vectors = np.random.default_rng(1).normal(size=(count, width)) + offset
    cosines = [float(a @ b) / math.sqrt(float(a @ a) * float(b @ b)) for a, b in itertools.permutations(vectors, 2)]
    assert anisotropy(vectors) == pytest.approx(math.fsum(cosines) / len(cosines), abs=1e-12)


def test_anisotropy_at_its_ends():
    assert anisotropy(np.eye(9)) == pytest.approx(0.0, abs=1e-15)
    assert anisotropy(np.arange(1.0, 6.0)[:, None] * np.array([[0.3, -2.0]])) == pytest.approx(1.0)
    assert anisotropy(np.array([[1.0, 0.0], [-2.0, 0.0]])) == pytest.approx(-1.0)


@pytest.mark.parametrize(
    "vectors", [np.ones((1, 3)), np.zeros((2, 3)), np.array([[1.0, 2.0], [0.0, 0.0]]), np.full((2, 2), np.nan)]
)
def test_vectors_without_an_angle_are_refused(vectors):
    with pytest.raises(DataError):
        anisotropy(vectors)


# --- of a model along training --------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "options"), [("softmax", {}), ("moc", {"components": 2}), ("sigsoftmax", {})])
def test_a_head_in_training_is_measured_by_the_definitions(name, options):
    torch.manual_seed(3)
    width = 5 if name == "moc" else 4
    head = heads.build(name, vocabulary_size=30, context_size=width, embedding_size=4, **heads.options(name, options))
    contexts = Contexts(torch.randn(40, width) + 0.5, torch.randint(30, (40,)))
    found = saturation(head.eval(), contexts)
    weight_VD = head.decoder.weight.detach().numpy().astype(float)
    shares = np.linalg.svd(weight_VD, compute_uv=False)
    shares /= shares.sum()
    assert found["weight_entropy"] == pytest.approx(-(shares * np.log(shares)).sum() / math.log(4), rel=1e-5)
    h = contexts.hidden.numpy().astype(float)
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in itertools.combinations(h, 2)]
    assert found["hidden_anisotropy"] == pytest.approx(np.mean(cosines), rel=1e-5)
    assert ("rank_centred" in found) == ("gradient_passed" in found) == (name != "sigsoftmax")
    if name == "sigsoftmax":
        return
    log_p = head.log_probs(contexts.hidden).detach().numpy().astype(float)
    centred = log_p - log_p.mean(1, keepdims=True)
    energy = np.linalg.svd(centred - centred.mean(0), compute_uv=False) ** 2
    assert found["rank_centred"] == 1 + int((energy.cumsum() < (1 - 1e-3) * energy.sum()).sum())
    gradient = np.exp(log_p) - np.eye(30)[contexts.targets.numpy()]
    passed = gradient @ weight_VD @ np.linalg.pinv(weight_VD)
    assert found["gradient_passed"] == pytest.approx(((passed**2).sum(1) / (gradient**2).sum(1)).mean(), rel=1e-5)


def test_what_was_measured_is_drawn_by_epoch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = fake.load(tmp_path, fake.STUDY + "  saturation-training: {models: all, seeds: all}\n")
    numbers = {"weight_entropy": 0.9, "hidden_anisotropy": 0.5}
    for number, run in enumerate(study.runs):
        more = {"rank_centred": 7, "gradient_passed": 0.25} if number else {}
        rows = [{"epoch": epoch, **numbers, **more} for epoch in (1, 2)]
        artefacts.write_json(Store().run_folder(run.path) / "epochs_rank.json", {"status": "ok", "rows": rows})
        fake.write_run(run)
    experiment = source.experiment_of(study, "saturation-training", "figure")
    drawn = views.build(study, experiment, collect.collect(study))
    rows = list(csv.DictReader(io.StringIO(drawn.csv)))
    assert {row["gradient_passed"] for row in rows} == {"", "0.25"} and {row["weight_entropy"] for row in rows} == {
        "0.9"
    }
    assert "from 0.50 to 0.50" in drawn.alt
