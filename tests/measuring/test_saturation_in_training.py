"""Saturation of a head in training against the definitions over the whole matrix, and its figure."""

from __future__ import annotations

import csv
import io
import itertools
import math

import fake_results as fake
import numpy as np
import pytest
import torch
from softmax_bottleneck import heads
from softmax_bottleneck.measuring.perplexity import Contexts
from softmax_bottleneck.measuring.saturation import saturation
from softmax_bottleneck.records import collect
from softmax_bottleneck.report import views
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.paths import Store


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
    experiment = fake.experiment(study, "saturation-training")
    drawn = views.build(study, experiment, collect.collect(study))
    rows = list(csv.DictReader(io.StringIO(drawn.csv)))
    assert {row["gradient_passed"] for row in rows} == {"", "0.25"} and {row["weight_entropy"] for row in rows} == {
        "0.9"
    }
    assert "from 0.50 to 0.50" in drawn.alt
