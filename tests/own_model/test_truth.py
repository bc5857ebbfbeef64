"""Natural next-word distributions: the step that computes them, and fits to them with a search for the step size."""

from pathlib import Path
from typing import Any

import naive_heads
import numpy as np
import pytest
import small
from softmax_bottleneck.corpora import corpus as corpora
from softmax_bottleneck.corpora import ngram
from softmax_bottleneck.records import collection, verify
from softmax_bottleneck.report.claims.known_distributions import wide
from softmax_bottleneck.steps import fit, synthetic
from softmax_bottleneck.steps import truth as step
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.seeds import derive
from softmax_bottleneck.study import Study
from softmax_bottleneck.training.trained import load_weights

PLAN: dict[str, Any] = {
    "kind": "natural", "truths": {"counts": {"kind": "n-gram", "corpus": "tiny", "order": 2}}, "contexts": 40,
    "words": [20], "widths": [2, 4], "updates": 12, "seeds": [1],
    "models": {
        "softmax": {"head": "softmax"},
        "mos": {"head": {"name": "mos", "components": 2}, "equal_to": "softmax", "widths": [4], "rates": [0.001, 0.2]},
    },
    "search": {"rates": [0.001, 0.2, 0.3], "seed": 9, "widths": [4], "check_updates": 24},
}  # fmt: skip


def planned(place: Path, **changes: Any) -> Study:
    small.tokenised(place)
    return small.load(place, small.values(fits={"price": PLAN | changes}, experiments={"price-table": {}}))


def test_the_step_keeps_the_most_probable_tokens_of_a_bigram_model(place):
    """Compare the drawn contexts; tests/corpora has the probabilities by hand."""
    study = planned(place)
    wanted = study.truths[0]
    step.truth(study, wanted.path, small.quiet)
    folder = study.store.fits_folder(f"truths/{wanted.path}")
    arrays, facts = artefacts.read_npz(folder / "truth.npz"), artefacts.read_json(folder / "truth.json")["facts"]
    corpus = corpora.load(study.store.tokens_folder("tiny"))
    starts = np.random.default_rng(derive(wanted.seed, "contexts")).integers(0, len(corpus.test) - 128 + 1, 2)
    before = corpus.test[np.concatenate([np.arange(start + 96, start + 128) for start in starts])[:40]]
    expected = np.exp(ngram.log_probs(ngram.estimate(corpus.train, 40, 2), before[:, None], 40))
    kept = arrays["token_M"]
    left_out = np.setdiff1d(np.arange(40), kept)
    assert facts["tokens"] == 40 and expected.mean(0)[left_out].max() <= expected.mean(0)[kept].min() + 1e-6
    assert facts["kept_mass"] == pytest.approx(expected[:, kept].sum(1).mean(), abs=1e-6)
    assert np.allclose(arrays["p_NM"], expected[:, kept] / expected[:, kept].sum(1, keepdims=True), atol=1e-6)


def test_fits_use_the_best_step_size_of_the_search(place):
    study = planned(place)
    assert [unit.seed for unit in study.units] == [9, 9, 9, 9, 1]
    for truth in study.truths:
        step.truth(study, truth.path, small.quiet)
    for unit in study.units:
        fit.fit(study, unit.path, small.quiet)
    synthetic.synthetic(study, small.quiet)
    assert not verify.verify(study).findings
    frame = wide(collection.collect(study).synthetic)
    fits = frame[(frame["model"] != "law")]
    tried = fits[fits["rate"].notna()].pivot(index="model", columns="rate", values="kl_nats")
    assert (tried[0.2] < tried[0.001]).all() and tried[0.3].isna().to_dict() == {"softmax": False, "mos": True}
    best = tried.idxmin(axis=1)
    own = fits[fits["rate"].isna() & fits["updates"].isna()]
    assert set(zip(own["model"], own["d"], strict=True)) == {("softmax", 2), ("softmax", 4), ("mos", 4)}
    assert ((own["learning_rate"] == own["model"].map(best)).all() and own["update_ms"].gt(0).all()
        and own["seed"].eq(1).all())  # fmt: skip
    longer = fits[fits["updates"] == 24]
    assert (longer.set_index("model")["kl_nats"] < tried.min(axis=1)).all()
    assert (own["kl_top_1"] <= own["kl_top_10"]).all() and (own["kl_top_10"] <= own["kl_nats"] + 1e-6).all()
    truth = frame[frame["model"] == "law"]
    assert truth["kept_mass"].between(0.4, 1).all()
    file = study.store.fits_folder(f"truths/{study.units[-1].truth.path}") / "truth.npz"
    file.write_bytes(file.read_bytes() + b" ")
    damaged = [(one.kind, Path(one.file).name) for one in verify.verify(study).findings]
    assert damaged == [("damaged", "truth.npz")]
    removed = verify.repair(study)[1]
    assert {file.parent.relative_to("results"), Path("fits", study.units[-1].path, "done.json")} <= set(removed)
    assert (study.store.fits_folder(study.units[0].path) / "done.json").exists()


def test_a_sampled_mixture_is_a_mixture_of_softmaxes_without_a_corpus(place):
    sampled = {"kind": "sampled", "components": 2, "width": 3}
    study = planned(place, truths={"control": sampled}, words=[5], contexts=4)
    wanted = study.truths[0]
    step.truth(study, wanted.path, small.quiet)
    arrays = artefacts.read_npz(study.store.fits_folder(f"truths/{wanted.path}") / "truth.npz")
    rng = np.random.default_rng(derive(wanted.seed, "sampled mixture"))
    h, weight, layers = (rng.standard_normal(shape) for shape in ((4, 3), (5, 3), (2, 3, 3)))
    gate = rng.standard_normal((3, 2))
    expected = np.zeros((4, 5))
    for n, k in np.ndindex(4, 2):
        scores = 3.0 / np.sqrt(3) * weight @ np.tanh(h[n] @ layers[k] / np.sqrt(3))
        prior = np.exp(2 / np.sqrt(3) * h[n] @ gate)
        expected[n] += prior[k] / prior.sum() * np.exp(scores) / np.exp(scores).sum()
    layers, gate, weight = layers.swapaxes(1, 2) / np.sqrt(3), 2 / np.sqrt(3) * gate.T, 3 / np.sqrt(3) * weight
    wider = ((0, 0), (0, 1))  # padded with zeros, MoS of width 4 has the same distributions
    weights = {"latent.weight": np.pad(layers, ((0, 0), (0, 1), (0, 1))).reshape(8, 4), "latent.bias": np.zeros(8),
               "prior.weight": np.pad(gate, wider), "decoder.weight": np.pad(weight, wider),
               "decoder.bias": np.zeros(5)}  # fmt: skip
    options = {"components": 2, "pointwise": "softmax", "prior": "softmax", "probability_floor": 0.0}
    log_p = naive_heads.log_probs("mos", options, {}, weights, np.pad(h, wider))
    assert np.allclose(np.exp(log_p), expected, atol=1e-12)
    assert wanted.corpus == "" and not wanted.inputs
    assert np.allclose(arrays["p_NM"], expected[:, arrays["token_M"]], atol=1e-6)


@pytest.mark.parametrize(("changes", "words"), [
    ({"truths": {"x": {"kind": "sampled", "width": 3}}}, "Expected components and width"),
    ({"truths": {"x": {"kind": "model", "corpus": "tiny"}}}, "Expected corpus and model"),
    ({"truths": {"x": {"kind": "n-gram", "corpus": "tinny"}}}, "unknown dataset 'tinny'"),
    ({"truths": {"x": {"kind": "run", "run": "mose"}}}, "unknown model 'mose'"),
    ({"search": PLAN["search"] | {"seed": 1}}, "one of the plan's seeds"), ({"learning_rate": 0.1}, "one of the two"),
    ({"truths": {}}, "truths is not set"),
])  # fmt: skip
def test_mistakes_are_named(place, changes, words):
    with pytest.raises(UserError, match=words):
        planned(place, **changes)


def test_sources_without_their_model_are_left_out(place):
    missing = {"kind": "model", "corpus": "tiny", "model": "no/such.gguf"}
    study = planned(place, truths=PLAN["truths"] | {"absent": missing})
    assert {truth.name for truth in study.truths} == {"counts"}
    assert study.absent_truths == {"price.truths.absent": "no/such.gguf"}


def test_a_truth_of_a_run_needs_its_run_and_has_its_probabilities(place):
    study = planned(place, truths={"trained": {"kind": "run", "run": "mos"}}, words=[40], contexts=8)
    (run,) = study.needed
    assert (run.model, run.seed) == ("mos", 1)
    for one in small.STEPS:
        one(study, run.path, small.quiet)
    wanted = study.truths[0]
    step.truth(study, wanted.path, small.quiet)
    arrays = artefacts.read_npz(study.store.fits_folder(f"truths/{wanted.path}") / "truth.npz")
    folder = study.store.run_folder(run.path)
    hidden = artefacts.read_npz(folder / "hidden.npz")["hidden_TD"].astype(np.float64)
    start = np.random.default_rng(derive(wanted.seed, "contexts")).integers(0, len(hidden) - 128 + 1, 1)[0]
    weights = {name.removeprefix("head."): value.double().numpy() for name, value in load_weights(folder).items()}
    log_p = naive_heads.log_probs("mos", run.head.options, {}, weights, hidden[start + 96 : start + 104])
    assert np.allclose(arrays["p_NM"], np.exp(log_p)[:, arrays["token_M"]], atol=1e-5)
