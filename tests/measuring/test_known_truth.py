"""Scores of the true distribution on its own text, compared with dense matrices and numpy's SVD."""

import math
from pathlib import Path

import numpy as np
import pytest
from softmax_bottleneck.corpora import language
from softmax_bottleneck.corpora.words import read_corpus
from softmax_bottleneck.measuring.known_truth import law_metrics
from softmax_bottleneck.ranks.spectrum import FLOAT32_EPS
from softmax_bottleneck.study.languages import LanguageSettings

SETTINGS = LanguageSettings(
    vocabulary_size=60, rank=20, topics=3, classes=4, markers_per_topic=2, seed=3,
    train_tokens=4000, valid_tokens=500, test_tokens=1500,
)  # fmt: skip


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> tuple[language.Truth, Path]:
    folder = tmp_path_factory.mktemp("law")
    language.write_language(SETTINGS, folder)
    return language.load_truth(folder), folder


def test_the_law_scores_its_own_text_as_a_model_would(sampled) -> None:
    truth, folder = sampled
    corpus = read_corpus("law", folder)
    found = law_metrics(truth, corpus)
    index = {word: place for place, word in enumerate(truth.language.words)}
    for split in ("train", "test"):
        words = [corpus.words[i] for i in getattr(corpus, split)]
        state, log_p = 0, []  # the context (topic 0, <eos>), followed by hand
        for position, word in enumerate(words):
            v = index[word]
            assert truth.states[split][position] == state
            if position:
                log_p.append(truth.language.log_p_CV[state, v])
            topic = int(truth.language.sets_topic_V[v])
            state = (topic if topic >= 0 else state // len(index)) * len(index) + v
        assert found[f"law_{split}_ppl"] == pytest.approx(math.exp(-sum(log_p) / len(words)))
    expected = math.exp(truth.language.context_entropy_nats(truth.states["test"][1:]).mean())
    assert found["law_test_ppl"] != pytest.approx(expected, rel=1e-4)  # two numbers
    assert found["law_test_ppl"] == pytest.approx(expected, rel=0.1)


def test_the_laws_ranks_are_those_of_its_matrix_over_the_test_contexts(sampled) -> None:
    truth, folder = sampled
    found = law_metrics(truth, read_corpus("law", folder))
    matrix = truth.language.log_p_CV[truth.states["test"][1:]]
    sigma = np.linalg.svd(matrix, compute_uv=False)
    tolerance = 0.5 * math.sqrt(sum(matrix.shape) + 1) * sigma[0] * FLOAT32_EPS
    assert found["law_rank_press"] == (sigma > tolerance).sum() == truth.language.rank == 22
    energy = np.cumsum(sigma**2) / (sigma**2).sum()
    for epsilon in ("1e-3", "1e-4", "1e-5"):
        assert found[f"law_rank_eff_{epsilon}"] == 1 + (energy < 1 - float(epsilon)).sum()
    assert found["law_rank_eff_1e-4"] < 22
