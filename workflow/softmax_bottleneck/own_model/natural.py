"""Natural next-word distributions, in contexts of a test text: of a run, a saved model, n-grams or a mixture.

As a control, there are those of a mixture of softmaxes with random weights, whose contexts are random vectors.

A context is a position of the test text with the tokens before it. Random windows of WINDOW tokens are read, and the
last quarter of each window are the contexts, so that each has at least 96 tokens of history. (An n-gram model reads the
last n - 1 of them. The hidden states of a run follow the whole text before them.) Only the V most probable tokens on
average are kept, and their probabilities are divided by their sum in each context.

Shapes: N contexts, T tokens, V tokens of a source, M kept tokens, D width and K components of a sampled mixture.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special

from softmax_bottleneck.corpora import ngram
from softmax_bottleneck.corpora.corpus import EOS, Corpus, load
from softmax_bottleneck.own_model import saved_model
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError
from softmax_bottleneck.store.seeds import derive
from softmax_bottleneck.study import Study
from softmax_bottleneck.study.truths import Truth
from softmax_bottleneck.training import trained

Floats = NDArray[np.float32]
Ids = NDArray[np.intp]

WINDOW = 128  # tokens
PART = 4  # one in four tokens of a window is a context
ROWS = 64  # contexts whose log-probabilities a head computes at once
SHARPNESS = 3.0  # standard deviation of a sampled mixture's logits for latent vectors of +-1


def log_probs(study: Study, wanted: Truth) -> Floats:
    """Return ln P of every context and token, [N, V]."""
    if wanted.source.kind == "sampled":
        return _of_sampled_mixture(wanted)
    corpus = load(study.store.tokens_folder(wanted.corpus), study.datasets[wanted.corpus].tokens_id)
    if wanted.run:
        return _of_run(study, wanted, _contexts(_windows(len(corpus.test) - 1, wanted, WINDOW), wanted, WINDOW))
    if wanted.source.model is None:
        position_N = _contexts(_windows(len(corpus.test), wanted, WINDOW), wanted, WINDOW)
        return _of_ngrams(corpus.train, corpus.test, position_N, corpus.vocabulary_size, wanted.source.order)
    opened = saved_model.open_model(wanted.source.model_path, _text(corpus, "test"))
    ids_T = np.array(opened.tokenizer.encode(_text(corpus, "test")).ids)
    start_W = _windows(len(ids_T), wanted, opened.window)
    window = min(WINDOW, opened.window)
    log_p_NV = np.concatenate([
        special.log_softmax(opened.run([ids_T[start : start + window].tolist()])[1][0, -(window // PART) :], 1)
        for start in start_W
    ])[: wanted.contexts, : opened.words]  # fmt: skip
    if wanted.source.kind == "model":
        return log_p_NV
    train_T = np.array(opened.tokenizer.encode(_text(corpus, "train")).ids)
    position_N = _contexts(start_W, wanted, window)
    return np.logaddexp(
        log_p_NV, _of_ngrams(train_T, ids_T, position_N, opened.words, wanted.source.order)
    ) - np.float32(np.log(2))


def _text(corpus: Corpus, split: str) -> str:
    """Return a split of a corpus as text: words separated by spaces, lines by newlines."""
    words = [corpus.words[number] for number in corpus.splits[split]]
    return " ".join("\n" if word == EOS else word for word in words)


def _windows(tokens: int, wanted: Truth, longest: int) -> Ids:
    """Return the random start positions of the windows in a text of `tokens` tokens.

    A window has WINDOW tokens, or `longest` if that is less.

    Raises:
        DataError: the text is shorter than a window.
    """
    window = min(WINDOW, longest)
    if tokens < window:
        raise DataError(f"{wanted.corpus}: its test text has {tokens} tokens. Expected {window} or more")
    rng = np.random.default_rng(derive(wanted.seed, "contexts"))
    return rng.integers(0, tokens - window + 1, -(-wanted.contexts // (window // PART)))


def _contexts(start_W: Ids, wanted: Truth, window: int) -> Ids:
    """Return the positions of the contexts: the last quarter of every window, N in all."""
    return (start_W[:, None] + np.arange(window - window // PART, window)).ravel()[: wanted.contexts]


def _of_ngrams(
    train_T: NDArray[np.integer], test_T: NDArray[np.integer], position_N: Ids, words: int, order: int
) -> Floats:
    """Return ln P of the n-gram model of a training text after the n - 1 tokens that end at each position."""
    history_NL = test_T[position_N[:, None] + np.arange(2 - order, 1)]
    return ngram.log_probs(ngram.estimate(train_T, words, order), history_NL, words).astype(np.float32)


def _of_run(study: Study, wanted: Truth, position_N: Ids) -> Floats:
    """Return ln P of a trained run after the token at each position of the test text."""
    folder = study.store.run_folder(wanted.run)
    hidden_ND = torch.from_numpy(artefacts.read_npz(folder / "hidden.npz")["hidden_TD"][position_N])
    with trained.loaded(study.run(wanted.run), folder) as model, torch.inference_mode():
        hidden_ND = hidden_ND.to(model.head.decoder.weight.device)
        return np.concatenate([model.head.log_probs(rows_RD).cpu().numpy() for rows_RD in torch.split(hidden_ND, ROWS)])


def _of_sampled_mixture(wanted: Truth) -> Floats:
    """Return ln P of a mixture of softmaxes (Yang et al. 2018) whose weights and context vectors are random.

    P(v|n) = sum_k prior_nk softmax(W latent_nk)_v with latent_nk = tanh(A_k h_n) and prior_n = softmax(2 B h_n). All
    entries are normal; A and B keep the variance of h, and W that of SHARPNESS^2 / D.
    """
    components, width = wanted.source.components, wanted.source.width
    assert components and width
    rng = np.random.default_rng(derive(wanted.seed, "sampled mixture"))
    h_ND = rng.standard_normal((wanted.contexts, width))
    weight_VD = rng.standard_normal((wanted.words, width)) * SHARPNESS / np.sqrt(width)
    latent_NKD = np.tanh(h_ND @ rng.standard_normal((components, width, width)) / np.sqrt(width)).swapaxes(0, 1)
    log_prior_NK = special.log_softmax(2.0 * h_ND @ rng.standard_normal((width, components)) / np.sqrt(width), 1)
    log_p_NKV = special.log_softmax(latent_NKD @ weight_VD.T, 2) + log_prior_NK[:, :, None]
    return special.logsumexp(log_p_NKV, 1).astype(np.float32)
