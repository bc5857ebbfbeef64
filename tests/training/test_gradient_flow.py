"""Preserved gradient norms at known distributions, compared with autograd's derivatives and sums over words."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from fit_plans import LANGUAGE, units
from softmax_bottleneck import heads
from softmax_bottleneck.corpora.known_distributions import dirichlet, make_distributions
from softmax_bottleneck.study import Head
from softmax_bottleneck.training import free_contexts
from softmax_bottleneck.training.fitting import fit_unit
from softmax_bottleneck.training.free_contexts import FreeContexts, Recipe
from softmax_bottleneck.training.gradient_flow import gradient_shares

# Contexts of different weight.
KNOWN = dataclasses.replace(dirichlet(0.5, 12, 6, seed=1), weight_N=np.arange(1.0, 7.0) / 21)


def begun(name: str, width: int, **options: object) -> FreeContexts:
    head = Head(name, heads.options(name, options))
    return FreeContexts(head, width, KNOWN.p_NM.shape, bias=True, seed=1, device=torch.device("cpu"))


def naive(fit: FreeContexts) -> dict[str, float]:
    """Compute the shares context by context and word by word, with autograd's Jacobian and least squares."""
    head, found = fit.head.double(), np.zeros(3)
    for h_D, p_V, weight in zip(
        fit.contexts_ND.detach().double(), KNOWN.p_NM.astype(float), KNOWN.weight_N, strict=True
    ):
        jacobian = torch.autograd.functional.jacobian(lambda x: head.log_probs(x[None])[0], h_D).numpy()
        jacobian -= jacobian.mean(0)

        def energy(gradient_V: np.ndarray, jacobian: np.ndarray = jacobian) -> float:
            passed_V = jacobian @ np.linalg.lstsq(jacobian, gradient_V, rcond=1e-9)[0]
            return passed_V @ passed_V / (gradient_V @ gradient_V)

        p_V = p_V / p_V.sum()
        q_V = head.log_probs(h_D[None])[0].exp().detach().numpy()
        best_V, led_V = q_V - p_V, jacobian @ (jacobian.T @ (q_V - p_V))
        words = sum(p * energy(q_V - np.eye(len(p_V))[word]) for word, p in enumerate(p_V))
        cosine = led_V @ best_V / np.linalg.norm(led_V) / np.linalg.norm(best_V)
        found += weight * np.array([energy(best_V), words, cosine])
    return dict(zip(("gradient_energy", "gradient_words", "gradient_cosine"), found, strict=True))


@pytest.mark.parametrize(("name", "options"), [
    ("softmax", {}), ("sigsoftmax", {}), ("softcap", {"c": 3}), ("lms-plif", {"knots": 40}),
    ("mixtape", {"gate_size": 2}), ("mos", {"components": 2}),
    ("low-rank", {"rank": 2}),  # fewer directions than the vectors are long
])  # fmt: skip
def test_shares_equal_those_of_the_jacobian(name: str, options: dict[str, object]) -> None:
    fit = begun(name, 3, **options)
    weights = {key: value.clone() for key, value in fit.head.state_dict().items()}
    found = gradient_shares(fit, KNOWN)
    kept = fit.head.state_dict()
    assert all(kept[key].dtype == value.dtype and torch.equal(kept[key], value) for key, value in weights.items())
    assert found == pytest.approx(naive(fit), rel=1e-4)


def test_a_fitted_head_preserves_no_expected_gradient() -> None:
    recipe, fit = Recipe(0, True, 600, 0.1), begun("softmax", 3)
    before = gradient_shares(fit, KNOWN)
    for number in range(recipe.updates):
        free_contexts.update([fit], KNOWN, recipe, 1, number, torch.device("cpu"))
    after = gradient_shares(fit, KNOWN)
    assert after["gradient_energy"] < 1e-4 < before["gradient_energy"]
    assert after["gradient_words"] > 0.05


def test_a_fit_is_measured_after_a_twentieth_of_its_updates_and_at_its_end(tmp_path: Path) -> None:
    alone = {"models": {"softmax": {"head": "softmax"}}, "seeds": [1], "sample": 0, "gradient": True}
    (unit,) = units(LANGUAGE, ranks=[14], widths=[3], updates=40, **alone)
    rows = fit_unit(unit, tmp_path / "unit", tmp_path / "law")["rows"]
    found = {row["metric"]: row["value"] for row in rows if row["model"] == "softmax"}
    known, recipe = make_distributions(unit.kind, unit.law, unit.seed), Recipe(0, True, 40, 0.05)
    fit = FreeContexts(Head("softmax"), 3, known.p_NM.shape, bias=True, seed=unit.seed, device=torch.device("cpu"))
    for number in range(40):
        free_contexts.update([fit], known, recipe, unit.seed, number, torch.device("cpu"))
        when = {1: "_early", 39: ""}.get(number)
        if when is not None:
            expected = gradient_shares(fit, known) | {"kl_nats": free_contexts.distances(fit, known, 10)["kl_nats"]}
            assert {name: found[name + when] for name in expected} == pytest.approx(expected)
