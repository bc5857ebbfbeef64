"""The known-truth language against naive float64 recomputation, enumeration and simulation."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from softmax_bottleneck.corpora import corpus, words
from softmax_bottleneck.corpora.language import generator, load_truth, make_language, write_language
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError, UserError
from softmax_bottleneck.study import load_dataset
from softmax_bottleneck.study.languages import LanguageSettings

DATASETS = Path(__file__).parents[2] / "config" / "datasets"


def declared(name):
    settings = load_dataset(name, DATASETS).language
    assert settings is not None
    return settings


@pytest.fixture(scope="module")
def nano():
    return make_language(declared("truth-nano"))


@pytest.fixture(scope="module")
def demo():
    return make_language(declared("truth-demo"))


@pytest.fixture(scope="module")
def text(nano):
    return nano.sample(100_000, generator(7, "a long text"))


def naive_law(language):
    """Return P*(v|c) for every context by scalar arithmetic."""
    law = []
    for context in language.contexts_CR.tolist():
        logits = [math.fsum(u * b for u, b in zip(context, column, strict=True)) + zipf
            for column, zipf in zip(language.columns_VR.tolist(), language.zipf_V.tolist(), strict=True)]  # fmt: skip
        total = math.fsum(map(math.exp, logits))
        law.append([math.exp(logit) / total for logit in logits])
    return np.array(law)


def naive_chain(language, law):
    """Return the transition matrix between contexts (topic, previous word), by the definition of markers."""
    size = len(language.words)
    step = np.zeros((len(law), len(law)))
    for context in range(len(law)):
        for word in range(size):
            marked = language.sets_topic_V[word]
            topic = marked if marked >= 0 else context // size
            step[context, topic * size + word] += law[context, word]
    return step


@pytest.fixture(scope="module")
def enumerated(nano):
    """Return distributions and stationary weights of the tiny language, by a linear solve instead of iteration."""
    law = naive_law(nano)
    step = naive_chain(nano, law)
    unknown = len(step)
    equations = np.vstack([step.T - np.eye(unknown), np.ones(unknown)])
    weight = np.linalg.lstsq(equations, np.append(np.zeros(unknown), 1.0), rcond=None)[0]
    return law, weight


def test_log_probabilities_equal_the_formula(nano, enumerated):
    law, weight = enumerated
    np.testing.assert_allclose(np.exp(nano.log_p_CV), law, rtol=1e-12)
    np.testing.assert_allclose(nano.weight_C, weight, atol=1e-12)
    assert nano.weight_C[~nano.reachable_C].sum() == 0.0
    assert (nano.weight_C[nano.reachable_C] > 0).all()


@pytest.mark.parametrize(("name", "rank"), [("nano", 26), ("demo", 102)])
def test_rank_is_exactly_two_more_than_the_columns(name, rank, request):
    language = request.getfixturevalue(name)
    reachable = language.log_p_CV[language.reachable_C]
    values = np.linalg.svd(reachable, compute_uv=False)
    assert np.linalg.matrix_rank(reachable) == rank == language.rank
    np.testing.assert_allclose(language.singular_values, values[:rank], rtol=1e-9)
    # Far above the tolerance of the published rule (float32), so that the rule finds the true rank too.
    press = 0.5 * math.sqrt(sum(reachable.shape) + 1) * values[0] * np.finfo(np.float32).eps
    assert values[rank - 1] > 5 * press > 1e6 * values[rank]


def test_entropies_against_enumeration(nano, enumerated):
    law, weight = enumerated
    entropy = -(weight[:, None] * law * np.log(law)).sum()
    assert nano.entropy_nats == pytest.approx(entropy, abs=1e-10)
    np.testing.assert_allclose(nano.unigram_V, weight @ law, atol=1e-12)


def test_the_demo_is_as_its_description_says(demo):
    """Its YAML promises perplexities 9.61 (best), 13.42 (one word of history) and 185.1 (none) and 988 contexts."""
    joint = demo.weight_C[:, None] * np.exp(demo.log_p_CV)
    pair = joint.reshape(demo.topics, len(demo.words), -1).sum(axis=0)
    one_word = scipy.stats.entropy(pair.ravel()) - scipy.stats.entropy(pair.sum(axis=1))
    perplexities = np.exp([demo.entropy_nats, one_word, scipy.stats.entropy(demo.unigram_V)])
    np.testing.assert_allclose(perplexities, [9.61, 13.42, 185.12], atol=0.005)
    assert demo.reachable_C.sum() == 988
    rates = np.sort(demo.unigram_V)[::-1]
    slope = np.polyfit(np.log(np.arange(len(rates)) + 2.7), np.log(rates), 1)[0]
    assert -1.6 < slope < -0.7  # Zipf-like
    assert 1 / 280 < demo.unigram_V[0] < 1 / 250  # a line has about 266 words


def test_samples_follow_the_true_distribution(nano, text):
    ids, states = text
    law = np.exp(nano.log_p_CV)
    statistic = freedom = 0.0
    for state in np.flatnonzero(np.bincount(states, minlength=len(law)) >= 1000):
        seen = np.bincount(ids[states == state], minlength=len(nano.words))
        expected = law[state] * seen.sum()
        common = expected >= 5
        seen = np.append(seen[common], seen[~common].sum())
        expected = np.append(expected[common], expected[~common].sum())
        statistic += ((seen - expected) ** 2 / expected).sum()
        freedom += len(seen) - 1
    assert freedom > 500
    assert 1e-3 < scipy.stats.chi2.sf(statistic, freedom) < 1 - 1e-3


def test_distance_of_another_law_in_another_order_of_words(nano):
    rng = np.random.default_rng(5)
    states = rng.integers(0, len(nano.log_p_CV), 20)
    model = rng.dirichlet(np.ones(len(nano.words)), 20)
    order = rng.permutation(len(nano.words))
    words = tuple(nano.words[i] for i in order)
    expected = [scipy.stats.entropy(np.exp(nano.log_p_CV[s]), q) for s, q in zip(states, model, strict=True)]
    np.testing.assert_allclose(nano.kl_nats(np.log(model)[:, order], states, words), expected, rtol=1e-10)
    model[3, 7] = 0.0
    with np.errstate(divide="ignore"):
        assert nano.kl_nats(np.log(model), states)[3] == math.inf
    with pytest.raises(DataError, match="dictionary is not the law's: 1 words differ"):
        nano.kl_nats(nano.log_p_CV[states, 1:], states, nano.words[1:])


def test_similarity_is_the_weighted_correlation_of_columns(nano, enumerated):
    law, weight = enumerated
    profile = np.log(law) - (np.log(law) @ (weight @ law))[:, None]
    correlation = np.cov(profile.T, aweights=np.maximum(weight, 0), ddof=0)
    scale = np.sqrt(np.diag(correlation))
    np.testing.assert_allclose(nano.similarity_VV, correlation / np.outer(scale, scale), atol=1e-8)


def test_a_written_language_is_as_declared(tmp_path):
    name = "truth-nano"
    write_language(declared(name), tmp_path)
    found = words.read_corpus(name, tmp_path)
    corpus.check_expected(found, load_dataset(name, DATASETS).expected)
    truth = load_truth(tmp_path)
    assert truth.language.rank == declared(name).rank + 2
    order = truth.language.order(found.words)
    for split, ids in found.splits.items():  # every token was drawn in the context that is recorded for it
        states = truth.states[split]
        assert len(states) == len(ids)
        np.testing.assert_array_equal(states[1:] % len(order), order[ids[:-1]])
    rows = [row.split("\t") for row in artefacts.read_text(tmp_path / "word-similarity.txt").splitlines()]
    assert [(one, other, float(score)) for one, other, score in rows] == truth.language.word_similarity()
    # The language is worth learning: far below what frequencies alone give.
    bound = math.exp(truth.language.context_entropy_nats(truth.states["test"]).mean())
    assert bound < corpus.unigram_perplexity(found) / 2


@pytest.mark.parametrize(("change", "message"), [
    ({"rank": 59}, "rank: 59 is not allowed .at most 58 for 60 words"),
    ({"rank": 7}, "rank: 7 is not allowed .at least 8"),
    ({"markers_per_topic": 20}, "markers_per_topic: 20 is not allowed .at most 19"),
    ({"vocabulary_size": 100_000}, "topics: 3 is not allowed .at most 0"),
    ({"rank": True}, "rank: True is not allowed"),
    ({"zipf": 1}, "unknown key 'zipf'; allowed are affinity_bandwidth, "),
])  # fmt: skip
def test_impossible_settings_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        LanguageSettings.from_mapping(dataclasses.asdict(declared("truth-nano")) | change)
