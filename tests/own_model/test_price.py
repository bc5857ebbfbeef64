"""The prices of `rank --price` against a naive float64 optimiser, and what the command prints and writes."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize, special
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.own_model import inputs, log_probs, price


def naive(p_NM: np.ndarray, width: int) -> float:
    """The lowest KL in nats of a softmax with free context vectors, by L-BFGS in float64 from three starts."""
    (n, m), entropy = p_NM.shape, special.entr(p_NM).sum(1).mean()

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        h, w, b = np.split(flat, [n * width, (n + m) * width])
        h, w = h.reshape(n, width), w.reshape(m, width)
        log_q = special.log_softmax(h @ w.T + b, 1)
        slope = (np.exp(log_q) - p_NM) / n
        gradient = np.concatenate([(slope @ w).ravel(), (slope.T @ h).ravel(), slope.sum(0)])
        return float(-(p_NM * log_q).sum(1).mean() - entropy), gradient

    rng = np.random.default_rng(5)
    starts = [rng.standard_normal((n + m) * width + m) for _ in range(3)]
    options = {"maxiter": 3000, "maxfun": 10_000}
    return min(optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options=options).fun for start in starts)


def test_prices_of_a_softmax_are_those_of_a_naive_optimiser(files, monkeypatch):
    monkeypatch.setattr(price, "HEADS", price.HEADS[:1])
    monkeypatch.setattr(price, "WIDTHS", (2, 6, 100))
    h_ND, w_VD, b_V, _ = files
    arrays = [inputs.find((name,), "arrays") for name in ("h.npy", "w.npy", "b.npy")]
    curve = price.price(log_probs.Layer(*arrays, "softmax", {}), lambda line: None)
    p_NM = special.softmax(h_ND.astype(np.float64) @ w_VD.T + b_V, 1)
    mean_M = p_NM.mean(0)
    assert (curve.contexts, curve.words, curve.kept_mass) == (90, 70, pytest.approx(1))
    assert curve.context_free_nats == pytest.approx(special.rel_entr(p_NM, mean_M).sum(1).mean(), rel=1e-5)
    narrow, exact = curve.prices  # at least as many words as the width
    best = naive(p_NM, 2)
    assert best - 1e-5 < narrow.nats < 1.03 * best and narrow.parameters == (90 + 70) * 2 + 70
    assert exact.width == 6 and exact.nats < 1e-3 * curve.context_free_nats  # logits have rank 6
    assert narrow.share == pytest.approx(narrow.nats / curve.context_free_nats)


def test_the_most_probable_words_are_kept(files, monkeypatch):
    monkeypatch.setattr(price, "WORDS", 20)
    monkeypatch.setattr(price, "CONTEXTS", 10)
    h_ND, w_VD, b_V, _ = files
    arrays = [inputs.find((name,), "arrays") for name in ("h.npy", "w.npy", "b.npy")]
    found, mass = price.truth_of(log_probs.Layer(*arrays, "softmax", {}))
    p_NV = special.softmax(h_ND[np.linspace(0, 89, 10).astype(int)].astype(np.float64) @ w_VD.T + b_V, 1)
    kept = np.sort(p_NV.mean(0))[::-1][:20]
    assert mass == pytest.approx(kept.sum(), abs=1e-6) and found.shape == (10, 20)
    assert np.allclose(found.sum(1), 1, atol=1e-6)


def test_the_command_prints_writes_and_draws_the_prices(files, monkeypatch, capsys):
    monkeypatch.setattr(price, "WIDTHS", (2, 4))
    monkeypatch.setattr(price, "UPDATES", 5)
    command = ["rank", "--hidden", "h.npy", "--weight", "w.npy", "--seconds", "0", "--out", "out", "--price"]
    assert main(command) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("price of width")]
    assert len(lines) == 1 + len(price.HEADS)
    written = json.loads(Path("out/rank.json").read_text(encoding="utf-8"))["price"]
    assert [(one["head"], one["width"]) for one in written["prices"]] == [
        (h.name, d) for h, _ in price.HEADS for d in (2, 4)
    ]
    most = {2: 2 * 160 + 70, 4: 4 * 160 + 70}
    assert all(one["parameters"] <= most[one["width"]] for one in written["prices"])
    assert "width d" in Path("out/spectrum.svg").read_text(encoding="utf-8") and written["updates"] == 5
    assert main(["rank", "--weight", "w.npy", "--weights-only", "--price"]) == 2
