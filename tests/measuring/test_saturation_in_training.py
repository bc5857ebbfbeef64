"""Saturation of a head in training against the definitions over the whole matrix, and its figure."""

import itertools
import math

import numpy as np
import pytest
import torch
from softmax_bottleneck import heads
from softmax_bottleneck.measuring.perplexity import Contexts
from softmax_bottleneck.measuring.saturation import saturation


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
