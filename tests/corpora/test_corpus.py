"""Streams, baselines, identity and files of a corpus; the real corpora are the published ones."""

import hashlib
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import flip
from softmax_bottleneck.corpora import corpus, words
from softmax_bottleneck.corpora.corpus import EOS
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError
from softmax_bottleneck.study import load_dataset
from test_tokenise import small

DATASETS = Path(__file__).parents[2] / "config" / "datasets"


@pytest.mark.fault("B5")
def test_token_hash_is_of_the_words_not_of_the_ids():
    made = small()
    text = "the cat sat <eos> the <unk> ran <eos> \nthe cat <eos> \nthe ran sat <eos> \n"
    assert corpus.token_sha256(made) == hashlib.sha256(text.encode()).hexdigest()
    order = np.random.default_rng(0).permutation(made.vocabulary_size)
    back = np.argsort(order).astype(np.int32)
    again = corpus.Corpus("other", tuple(made.words[i] for i in order), *(back[ids] for ids in made.splits.values()))
    assert corpus.token_sha256(again) == corpus.token_sha256(made)
    assert corpus.token_sha256(small(test="the sat ran\n")) != corpus.token_sha256(made)


def test_expected_counts_name_what_differs():
    made = small()
    found = corpus.counts_and_hash(made)
    corpus.check_expected(made, found)
    with pytest.raises(DataError, match="small: valid tokens: expected 4, got 3"):
        corpus.check_expected(made, {"tokens": {"train": 8, "valid": 4}})
    with pytest.raises(DataError, match="vocabulary_size: expected 7, got 6"):
        corpus.check_expected(made, {"vocabulary_size": 7})
    with pytest.raises(DataError, match=f"token_sha256: expected {'0' * 64}, got {found['token_sha256']}"):
        corpus.check_expected(made, {"token_sha256": "0" * 64})


@pytest.fixture(scope="module", params=["ptb", "wikitext-2"])
def real(request, mirror):
    dataset = load_dataset(request.param, DATASETS)
    return dataset, words.read_corpus(dataset.name, mirror / dataset.mirror)


@pytest.mark.fault("B5")
@pytest.mark.corpora
def test_real_corpora_are_the_published_ones(real):
    dataset, found = real
    corpus.check_expected(found, dataset.expected)
    tokens, size, eos, lengths = {  # published counts; train rows per batch size
        "ptb": ((929_589, 73_760, 82_430), 10_000, 24, {20: 46_479, 12: 77_465}),
        "wikitext-2": ((2_088_628, 217_646, 245_569), 33_278, 0, {80: 26_107, 15: 139_241}),
    }[dataset.name]
    assert tuple(len(ids) for ids in found.splits.values()) == tokens
    assert (found.vocabulary_size, found.words[eos]) == (size, EOS)
    assert {batch: len(corpus.batchify(found.train, batch)) for batch in lengths} == lengths
    assert np.isin(found.test, found.train).all()
    assert np.isin(found.valid, found.train).all()


@pytest.mark.corpora
def test_small_penn_treebank_is_as_declared(mirror):
    dataset = load_dataset("ptb-small", DATASETS)
    whole = words.read_corpus("ptb", mirror / "ptb")
    found = words.restrict(whole, dataset.vocabulary_size, dataset.train_tokens, dataset.name)
    corpus.check_expected(found, dataset.expected)
    assert round(corpus.unigram_perplexity(found)) == 199  # an earlier, independent program read this off these texts


@given(st.integers(1, 7), st.integers(0, 60))
@settings(derandomize=True, deadline=None)
def test_batches_are_stretches_side_by_side(batch_size, tokens):
    ids = np.arange(tokens, dtype=np.int32)
    rows = tokens // batch_size
    if rows < 2:
        with pytest.raises(DataError, match=f"need >= {2 * batch_size} tokens"):
            corpus.batchify(ids, batch_size)
        return
    laid = corpus.batchify(ids, batch_size)
    assert laid.tolist() == [[column * rows + row for column in range(batch_size)] for row in range(rows)]
    assert laid.flags.c_contiguous


def test_unigram_perplexity_against_plain_counting():
    rng = np.random.default_rng(3)
    train, test = rng.integers(0, 9, 400), rng.integers(0, 10, 80)  # word 9 is not in train
    text = corpus.Corpus("x", tuple("abcdefghij"), *(ids.astype(np.int32) for ids in (train, test, test)))
    count = Counter(train.tolist())
    unigram = {word: (count[word] + 1) / (400 + 10) for word in range(10)}
    one = [-math.log(unigram[word]) for word in test[1:].tolist()]
    assert corpus.unigram_perplexity(text) == pytest.approx(math.exp(math.fsum(one) / 79), rel=1e-12)


def test_saved_corpora_come_back_and_damage_is_noticed(tmp_path):
    made = small(train='null nan " $x true\n<unk> é\n', valid="nan é\n", test="true\n")
    corpus.save(made, tmp_path, {"train.txt": "0" * 64})
    back = corpus.load(tmp_path)
    assert (back.name, back.words) == (made.name, made.words)
    assert all(np.array_equal(back.splits[split], made.splits[split]) for split in corpus.SPLITS)
    assert artefacts.read_json(tmp_path / "vocabulary.json")["provenance"]["parents"] == {"train.txt": "0" * 64}
    with pytest.raises(DataError, match="or of other code; run the step tokenise again"):
        corpus.load(tmp_path, "other")
    size, first = made.vocabulary_size, made.test[0]
    for other in ([*made.test, 0], [size, *made.test[1:]], [first - size, *made.test[1:]], made.test[::-1]):
        artefacts.write_npy(tmp_path / "test.npy", np.array(other, np.int32))  # sound, but another corpus'
        with pytest.raises(DataError, match=f"{tmp_path}: files of different texts.*; run the step tokenise"):
            corpus.load(tmp_path)
    flip(tmp_path / "train.npy")
    with pytest.raises(DataError, match=r"train\.npy: content does not match"):
        corpus.load(tmp_path)
