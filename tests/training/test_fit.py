"""Fits to known distributions: naive computations, independent optima and two theorems of Ganea et al. 2019."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import small
import torch
from fit_plans import DIRICHLET, LANGUAGE, LAW, units
from scipy import optimize
from scipy.special import log_softmax
from scipy.stats import entropy
from softmax_bottleneck.corpora import known_distributions as laws
from softmax_bottleneck.corpora.language import make_language
from softmax_bottleneck.jobs.resumable import Options
from softmax_bottleneck.records import collection, verify
from softmax_bottleneck.steps.fit import fit as fit_step
from softmax_bottleneck.steps.synthetic import synthetic as synthetic_step
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study import Head, Unit
from softmax_bottleneck.study.languages import LanguageSettings
from softmax_bottleneck.training import fitting, free_contexts
from softmax_bottleneck.training.free_contexts import FreeContexts, Recipe

CPU = torch.device("cpu")


def fitted(
    law: laws.KnownDistributions, head: str, width: int, updates: int, rate: float = 0.1, bias: bool = False, **options
):
    one = FreeContexts(Head(head, options), width, law.p_NM.shape, bias=bias, seed=1, device=CPU)
    recipe = Recipe(sample=0, bias=bias, updates=updates, learning_rate=rate)
    for number in range(updates):
        free_contexts.update([one], law, recipe, 1, number, CPU)
    return one


def test_adam_equals_the_formulas():
    """Kingma and Ba 2015, algorithm 1, in float64, with a step size for every step; no gradient counts as 0."""
    one = FreeContexts(Head("softmax", {}), 3, (7, 5), bias=True, seed=1, device=CPU)
    parameters = {"contexts": one.contexts_ND, "weight": one.head.decoder.weight, "bias": one.head.decoder.bias}
    theta = {name: tensor.detach().double().numpy().copy() for name, tensor in parameters.items()}
    m, v, rng = dict.fromkeys(theta, 0.0), dict.fromkeys(theta, 0.0), np.random.default_rng(0)
    for t in range(1, 6):
        rate = 0.1 / t
        for name, tensor in parameters.items():
            gradient = np.zeros(tensor.shape) if name == "bias" and t > 2 else rng.normal(size=tensor.shape)
            tensor.grad = torch.tensor(gradient, dtype=torch.float32) if gradient.any() else None
            m[name] = 0.9 * m[name] + 0.1 * gradient
            v[name] = 0.99 * v[name] + 0.01 * gradient**2
            theta[name] -= rate * (m[name] / (1 - 0.9**t)) / (np.sqrt(v[name] / (1 - 0.99**t)) + 1e-12)
        one.step(rate)
        assert all(tensor.grad is None for tensor in parameters.values())
    for name, tensor in parameters.items():
        np.testing.assert_allclose(tensor.detach().numpy(), theta[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("alpha", "words"), [(0.05, 12), (1.0, 5), (20.0, 30)])
def test_dirichlet_samples_have_the_right_moments(alpha, words):
    drawn = laws.dirichlet(alpha, words, 4000, seed=3)
    assert np.array_equal(laws.dirichlet(alpha, words, 1000, seed=3).p_NM, drawn.p_NM[:1000])
    assert not np.array_equal(laws.dirichlet(alpha, words, 4000, seed=4).p_NM, drawn.p_NM)
    law = drawn.p_NM.astype(np.float64)
    assert law.shape == (4000, words) and np.allclose(law.sum(1), 1, atol=1e-5)
    variance = (words - 1) / (words**2 * (words * alpha + 1))
    assert law.mean() == pytest.approx(1 / words) and law.var(0).mean() == pytest.approx(variance, rel=0.05)
    entropy = -np.sum(np.where(law > 0, law * np.log(np.maximum(law, 1e-300)), 0), axis=1)
    assert np.allclose(drawn.entropy_N, entropy) and drawn.entropy_nats == pytest.approx(entropy.mean())
    assert math.log(words) - entropy.mean() == pytest.approx(laws.dirichlet_divergence(alpha, words), rel=0.05)
    mean = law.mean(0)
    naive = np.mean([np.sum(p[p > 0] * np.log(p[p > 0] / mean[p > 0])) for p in law])
    assert drawn.no_context_nats == pytest.approx(naive, rel=1e-4)


def test_distributions_of_a_language_are_its_true_ones():
    settings = LanguageSettings.from_mapping(LAW | {"rank": 9, "seed": 4, "train_tokens": 100, "valid_tokens": 100,
                                                    "test_tokens": 100})  # fmt: skip
    truth, law = make_language(settings), laws.language(settings)
    assert law.entropy_nats == pytest.approx(truth.entropy_nats, rel=1e-5)
    assert law.no_context_nats == pytest.approx(entropy(truth.unigram_V) - truth.entropy_nats, rel=1e-4)
    assert law.facts == {"rank_truth": 11} and truth.rank == 11
    assert len(law.p_NM) == truth.reachable_C.sum()
    with pytest.raises(UserError, match="'languages' is unknown"):
        laws.make_distributions("languages", LAW, 1)


def test_every_update_has_its_own_sample_with_the_true_frequencies():
    law = laws.make_distributions(
        "language", LAW | {"rank": 9} | dict.fromkeys(("train_tokens", "valid_tokens", "test_tokens"), 100), 1
    )
    samples = [laws.fresh_sample(law, 20_000, 1, number) for number in range(40)]
    assert np.array_equal(samples[7], laws.fresh_sample(law, 20_000, 1, 7))
    assert not np.array_equal(samples[7], samples[8]) and not np.array_equal(
        samples[7], laws.fresh_sample(law, 20_000, 2, 7)
    )
    counts = np.stack(samples).astype(np.float64) * 20_000
    assert np.allclose(counts, counts.round(), atol=1e-2)
    expected = law.weight_N[:, None] * law.p_NM * 20_000
    big = expected > 20
    assert np.allclose(counts.mean(0)[big], expected[big], atol=6 * np.sqrt(expected[big].max() / 40))
    # Independent counts: their variance over updates is their mean.
    assert np.mean(counts.var(0, ddof=1)[big] / expected[big]) == pytest.approx(1, abs=0.1)


def test_one_update_is_the_gradient_of_the_exact_loss(monkeypatch):
    law = laws.dirichlet(0.5, 6, 9, seed=1)
    one = FreeContexts(Head("softmax"), 3, (9, 6), bias=False, seed=1, device=CPU)
    h, w = one.contexts_ND.detach().double().numpy(), one.head.decoder.weight.detach().double().numpy()
    difference = np.exp(log_softmax(h @ w.T, 1)) - law.p_NM  # d loss / d logits, mean weight one
    monkeypatch.setitem(free_contexts.CHUNK_CELLS, "cpu", 12)  # two rows at a time
    free_contexts.update([one], law, Recipe(0, False, 10, 0.1), 1, 0, CPU)
    # The first step of Adam is the sign of the gradient times the step size.
    assert np.allclose(one.contexts_ND.detach().numpy(), h - 0.1 * np.sign(difference @ w), atol=1e-4)
    assert np.allclose(one.head.decoder.weight.detach().numpy(), w - 0.1 * np.sign(difference.T @ h), atol=1e-4)


@pytest.mark.parametrize("head", ["softmax", "gss", "lms", "mos"])
def test_distances_are_those_of_a_naive_computation(head):
    law = laws.dirichlet(0.3, 7, 40, seed=1)
    one = fitted(law, head, 2, 5)
    log_q = np.concatenate(list(one.log_probs(11)))
    p = law.p_NM.astype(np.float64)
    kl = np.mean([np.sum(a[a > 0] * (np.log(a[a > 0]) - b[a > 0])) for a, b in zip(p, log_q, strict=True)])
    found = free_contexts.distances(one, law, 11)
    assert found["kl_nats"] == pytest.approx(kl, abs=1e-5)
    assert found["mode_match"] == pytest.approx(np.mean(p.argmax(1) == log_q.argmax(1)))
    entropy = -np.mean([np.sum(a[a > 0] * np.log(a[a > 0])) for a in p])
    assert found["excess_ppl"] == pytest.approx(math.exp(entropy + kl) - math.exp(entropy), abs=1e-4)


def test_a_softmax_of_width_min_n_v_loses_nothing_on_natural_distributions():
    """Next letters of an English text, in closed form (H W = ln P), by a naive descent in float64, and by Adam."""
    contexts, words = 12, 9
    text = [letter for letter in (Path(__file__).parents[2] / "LICENSE").read_text("utf-8").lower() if letter.isalpha()]
    by_count = sorted(set(text), key=text.count, reverse=True)
    pairs = list(pairwise(text))
    counts = np.array([[pairs.count((c, v)) for v in by_count[:words]] for c in by_count[:contexts]]) + 0.5
    law = known(np.log(counts / counts.sum(1, keepdims=True)))
    p = law.p_NM.astype(np.float64) / law.p_NM.sum(1, keepdims=True, dtype=np.float64)

    def kl(h: np.ndarray, w: np.ndarray) -> float:
        return float((p * (np.log(p) - log_softmax(h @ w, 1))).sum(1).mean())

    left, sigma, right = np.linalg.svd(np.log(p), full_matrices=False)
    exact = FreeContexts(Head("softmax"), 9, p.shape, bias=False, seed=1, device=CPU)
    exact.contexts_ND.data, exact.head.decoder.weight.data = torch.from_numpy(left * sigma), torch.from_numpy(right.T)
    exact.head.double()
    assert len(sigma) == 9 and kl(left * sigma, right) == pytest.approx(0, abs=1e-13)
    assert abs(free_contexts.distances(exact, law, contexts)["kl_nats"]) < 3e-7  # P* is rounded to float32

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        h, w = flat[: contexts * 9].reshape(contexts, 9), flat[contexts * 9 :].reshape(9, words)
        difference = (np.exp(log_softmax(h @ w, 1)) - p) / contexts
        return kl(h, w), np.concatenate([(difference @ w.T).ravel(), (h.T @ difference).ravel()])

    start = 0.1 * np.random.default_rng(1).standard_normal(9 * (contexts + words))
    naive = optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options={"ftol": 0, "gtol": 1e-10})
    assert 0 <= naive.fun + 1e-13 < 1e-9
    wide = fitted(law, "softmax", 9, 600)
    assert free_contexts.distances(wide, law, contexts)["kl_nats"] < 1e-3 * law.no_context_nats


def test_parameters_are_counted_and_cut_to_equal_ones():
    shape = (30, 9)
    mos = Head("mos", {"components": 2})
    one = FreeContexts(mos, 4, shape, bias=True, seed=1, device=CPU)
    # contexts, words and biases, K projections of D x D with bias, and K weights of the mixture
    by_hand = 30 * 4 + 9 * 4 + 9 + 2 * (4 * 4 + 4) + 2 * 4
    assert one.parameters == free_contexts.count_parameters(mos, 4, shape, True) == by_hand
    most = free_contexts.count_parameters(Head("softmax"), 6, shape, True)
    width = free_contexts.width_with(mos, shape, True, most)
    counts = [free_contexts.count_parameters(mos, w, shape, True) for w in (width, width + 1)]
    assert counts[0] <= most < counts[1]
    assert not fitted(laws.dirichlet(1.0, 5, 6, seed=1), "softmax", 2, 3).head.decoder.bias.any()


@pytest.mark.parametrize("width", [1, 3])
def test_theorem_1_no_softmax_is_nearer_than_the_tail_of_singular_values(width):
    """Compare numpy's SVD with random softmaxes and with the one nearest in squared error (by descent)."""
    rng = np.random.default_rng(1)
    log_p = np.log(rng.dirichlet(np.ones(10), 25))
    tail = np.sum(np.linalg.svd(log_p, compute_uv=False)[width + 1 :] ** 2)
    law = laws.KnownDistributions(np.exp(log_p).astype(np.float32), np.full(25, 1 / 25))
    assert laws.squared_error_bound(laws.spectrum_of(law).sigma, width + 1) == pytest.approx(tail, rel=1e-4)

    def error(flat: np.ndarray) -> float:
        h, w = flat[: 25 * width].reshape(25, width), flat[25 * width :].reshape(10, width)
        return float(np.sum((log_p - log_softmax(h @ w.T, 1)) ** 2))

    starts = [rng.standard_normal(35 * width) * scale for scale in (0.1, 1.0, 5.0)]
    nearest = optimize.minimize(error, starts[1], method="L-BFGS-B", options={"maxiter": 60})
    assert min(*(error(start) for start in starts), nearest.fun) >= tail > 0
    one = fitted(law, "softmax", width, 100)
    assert free_contexts.ranks(one, law, 25)["squared_error"] * 250 >= tail


def test_theorem_2_the_best_context_vector_gives_the_distribution_of_largest_entropy():
    """min_h H(P*, Q_h) = max H(R) over distributions R with the mean word vector of P*, found by SLSQP."""
    law = laws.dirichlet(1.0, 6, 4, seed=5)
    one = fitted(law, "softmax", 2, 3000, rate=0.05)
    w = one.head.decoder.weight.detach().double().numpy()
    log_q = np.concatenate(list(one.log_probs(4)))
    for p, q in zip(law.p_NM.astype(np.float64), log_q, strict=True):
        constraints = [{"type": "eq", "fun": lambda r: r.sum() - 1},
            {"type": "eq", "fun": lambda r, p=p: w.T @ (r - p)}]  # fmt: skip
        largest = optimize.minimize(
            lambda r: float(np.sum(r * np.log(np.maximum(r, 1e-300)))), np.full(6, 1 / 6), bounds=[(1e-12, 1)] * 6,
            constraints=constraints, options={"maxiter": 500, "ftol": 1e-13},
        )  # fmt: skip
        assert largest.success
        cross_entropy = -float(p @ q)
        assert cross_entropy == pytest.approx(-largest.fun, abs=2e-4)
        assert np.allclose(w.T @ np.exp(q), w.T @ p, atol=5e-3)  # moments match
        assert cross_entropy >= -float(p @ np.log(p)) - 1e-6  # part i


def rows_of(unit: Unit, folder: Path, **options) -> list[dict]:
    return fitting.fit_unit(unit, folder / unit.path, folder / "laws" / unit.law_path, Options(**options))["rows"]


def test_fits_do_not_depend_on_other_fits_and_are_not_made_again(tmp_path, monkeypatch):
    alone = units(LANGUAGE, widths=[3], models={"mos": LANGUAGE["models"]["mos"]})[0]
    few, more = units(LANGUAGE, widths=[3])[0], units(LANGUAGE, widths=[3, 8])[0]
    assert alone.law_id == few.law_id
    before = rows_of(few, tmp_path)
    wanted = [row for row in rows_of(alone, tmp_path / "alone") if row["model"] == "mos"]
    assert wanted and [row for row in before if row["model"] == "mos"] == wanted
    made = []
    begin = fitting.Fitting._begin
    monkeypatch.setattr(fitting.Fitting, "_begin", lambda self, fit: made.append(fit.width) or begin(self, fit))
    after = rows_of(more, tmp_path)
    assert set(made) == {8}
    assert [row for row in before if row["model"] != "law"] == [r for r in after if ";d=3;" in r["condition"]]


def test_steps_fit_collect_and_verify(place):
    study, changed = (
        small.load(place, small.values(fits={"dirichlet": DIRICHLET | more}, experiments={"ganea2019-figure3": {}}))
        for more in ({"updates": 5}, {"updates": 6})
    )
    (unit,) = study.units
    assert [one.kind for one in verify.verify(study).findings] == ["missing"]
    fit_step(study, unit.path, small.quiet)
    synthetic_step(study, small.quiet)
    shown = collection.collect(study).synthetic
    assert {"kl_nats", "mode_match", "kl_uniform_nats"} <= set(shown["metric"]) and set(shown["table"]) == {"dirichlet"}
    assert collection.collect(changed).synthetic.empty  # the results are of other fits
    assert not verify.verify(study).findings
    (part,) = (place / "results" / "fits" / "laws").rglob("softmax-*.json")
    artefacts.write_json(part, artefacts.read_json(part) | {"metrics": {}})
    assert [(one.kind, part.name in one.file) for one in verify.verify(study).findings] == [("stale", True)]
    done = Store().fits_folder(unit.path) / "done.json"
    done.write_bytes(done.read_bytes() + b" ")
    assert [one.kind for one in verify.verify(study).findings] == ["damaged"]
    with pytest.raises(UserError, match="no fits"):
        study.unit("dirichlet/none/1-000000000000")


def known(log_p: np.ndarray) -> laws.KnownDistributions:
    return laws.KnownDistributions(np.exp(log_p).astype(np.float32), np.full(len(log_p), 1 / len(log_p)))


def test_a_truth_of_rank_r_costs_a_softmax_with_biases_nothing_at_width_r_minus_2():
    """ln P = H W^T + b - ln Z has rank 3 + 2 = 5; one width less is not enough."""
    rng = np.random.default_rng(2)
    logits = 2 * rng.standard_normal((40, 3)) @ rng.standard_normal((12, 3)).T + rng.standard_normal(12)
    log_p = log_softmax(logits, 1)
    assert np.linalg.matrix_rank(log_p) == 5
    law = known(log_p)
    exact, narrow = (fitted(law, "softmax", width, 1000, bias=True) for width in (3, 2))
    assert free_contexts.distances(exact, law, 40)["kl_nats"] < 1e-4 * law.no_context_nats
    assert free_contexts.distances(narrow, law, 40)["kl_nats"] > 1e-2 * law.no_context_nats


def test_top_words_and_the_others_share_the_whole_divergence():
    law = laws.dirichlet(0.3, 12, 30, seed=1)
    one = fitted(law, "softmax", 2, 20)
    p, q = law.p_NM.astype(np.float64), np.exp(np.concatenate(list(one.log_probs(11))))
    naive = []
    for p_M, q_M in zip(p, q, strict=True):
        lost = [(a * math.log(a / b) if a else 0.0) - a + b for a, b in zip(p_M, q_M, strict=True)]
        naive.append([sum(lost[word] for word in np.argsort(-p_M, kind="stable")[:m]) for m in (1, 10, 12)])
    top_1, top_10, whole = np.mean(naive, axis=0)
    found = free_contexts.top_distances(one, law, 11)
    assert found == pytest.approx({"kl_top_1": top_1, "kl_top_10": top_10}, abs=1e-6)
    assert whole == pytest.approx(free_contexts.distances(one, law, 11)["kl_nats"], abs=1e-6)


@pytest.mark.parametrize(("log_q", "finite"), [(-800.0, True), (-9000.0, False)])
def test_a_word_whose_probability_underflows_leaves_finite_parts(log_q, finite, monkeypatch):
    """exp(-800) is 0 in float64; a KL of 9,000 / 4 nats has no finite perplexity, and the fit counts as diverged."""
    law = known(np.log(np.full((3, 12), 1 / 12)))
    one = fitted(law, "softmax", 2, 1)
    log_q_NM = np.array([[log_q] * 3 + [-math.log(9)] * 9] * 3)
    monkeypatch.setattr(one, "log_probs", lambda rows: iter([log_q_NM]))
    kl = -math.log(12) - 3 / 12 * log_q + 9 / 12 * math.log(9)
    distances = free_contexts.distances(one, law, 3)
    assert distances["kl_nats"] == pytest.approx(kl, rel=1e-6)
    assert math.isfinite(distances["excess_ppl"]) == finite
    top_1 = 1 / 12 * (-math.log(12) - log_q) - 1 / 12
    assert free_contexts.top_distances(one, law, 3)["kl_top_1"] == pytest.approx(top_1, rel=1e-6)
