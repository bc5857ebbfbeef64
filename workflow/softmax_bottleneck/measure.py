"""What a trained run is measured on: perplexities, hidden states, distance to a known law, log-probability matrix.

Hidden states are computed once; perplexity, rank and distance are then a matrix product away from them.
Suffixes: T tokens in order, N contexts of one chunk, D context width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from softmax_bottleneck.corpus import Corpus, batchify, unigram_perplexity
from softmax_bottleneck.model import LanguageModel
from softmax_bottleneck.spectrum import Spectrum, factored_singular_values, gram_singular_values, log_normalisers

CHUNK_BYTES = 64 << 20  # of one chunk of log-probabilities
SEGMENT = 4096  # tokens of one pass through the body; the state is carried, so the length changes no number


@dataclass(frozen=True)
class Contexts:
    """Hidden states [T, D] (float32) before the head, and the token [T] that followed each."""

    hidden: Tensor
    targets: Tensor


@torch.no_grad()
def hidden_states(model: LanguageModel, ids_T: NDArray[np.int32], batch_size: int = 1) -> Contexts:
    """Hidden states of a text in evaluation mode, state carried through from zero.

    With batch_size 1 (the published test setting) contexts are in the order of the text, T - 1 of them. With more, the
    text is cut into that many streams (SPEC: batching) and the contexts of all streams are returned.
    """
    model.eval()
    ids_LB = torch.from_numpy(batchify(ids_T, batch_size).astype(np.int64)).to(model.head.decoder.weight.device)
    state = model.body.initial_state(batch_size)
    pieces = []
    for start in range(0, len(ids_LB) - 1, SEGMENT):
        out = model.body(ids_LB[start : min(start + SEGMENT, len(ids_LB) - 1)], state)
        state = out.state
        pieces.append(out.dropped_TBD)
    hidden_LBD = torch.cat(pieces)
    return Contexts(hidden_LBD.flatten(0, 1), ids_LB[1:].flatten())


@torch.no_grad()
def log_probability_chunks(model: LanguageModel, hidden_TD: Tensor, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Tensor]:
    """The log-probability matrix [T, V] in float32, a few rows [N, V] at a time."""
    model.eval()
    vocabulary_size = model.head.decoder.out_features
    rows = max(1, chunk_bytes // (4 * vocabulary_size))
    for chunk_ND in hidden_TD.split(rows):
        yield model.head.log_probs(chunk_ND)


@torch.no_grad()
def target_log_probs(model: LanguageModel, contexts: Contexts) -> NDArray[np.float64]:
    """Log-probability of every target, float64 [T]; rows that do not sum to one are an error."""
    found = []
    start = 0
    tolerance = 1e-4 + model.head.decoder.out_features * float(getattr(model.head, "probability_floor", 0.0))
    for log_p_NV in log_probability_chunks(model, contexts.hidden):
        _refuse_unnormalised(log_p_NV, tolerance)
        targets_N = contexts.targets[start : start + len(log_p_NV)]
        found.append(log_p_NV.gather(1, targets_N[:, None])[:, 0].double())
        start += len(log_p_NV)
    return torch.cat(found).cpu().numpy()


@torch.no_grad()
def losses(model: LanguageModel, contexts: Contexts) -> NDArray[np.float64]:
    """Loss of every target in nats, float64 [T], by the head's fused loss: no row of log-probabilities is made."""
    model.eval()
    pairs = zip(contexts.hidden.split(SEGMENT), contexts.targets.split(SEGMENT), strict=True)
    return torch.cat([model.head.nll(hidden_ND, targets_N).double() for hidden_ND, targets_N in pairs]).cpu().numpy()


def _refuse_unnormalised(log_p_NV: Tensor, tolerance: float) -> None:
    worst = log_p_NV.double().logsumexp(1).abs().max().item()
    if not worst < tolerance:
        raise ValueError(f"probabilities do not sum to one: log of a row's sum is {worst:.2e} (limit {tolerance:.0e})")


@dataclass(frozen=True)
class Perplexities:
    """Perplexity of one text by both divisors.

    published: the sum of losses over the text's length L, though only L - 1 tokens are predicted (SPEC section 1).
    sound: over the number of tokens predicted.
    """

    published: float
    sound: float


def perplexities(log_p_T: NDArray[np.float64], streams: int = 1) -> Perplexities:
    """Both perplexities of a text scored in `streams` parallel streams."""
    total_nats = -math.fsum(log_p_T)
    return Perplexities(math.exp(total_nats / (len(log_p_T) + streams)), math.exp(total_nats / len(log_p_T)))


def evaluate(model: LanguageModel, corpus: Corpus, eval_batch_size: int) -> tuple[dict[str, float], Contexts]:
    """Perplexities on all splits, and the contexts of the test text (batch size 1, as published)."""
    contexts = hidden_states(model, corpus.test)
    test = perplexities(target_log_probs(model, contexts))
    metrics = {"test_ppl": test.published, "test_ppl_sound": test.sound}
    for split, ids_T in (("valid", corpus.valid), ("train", corpus.train)):
        found = perplexities(-losses(model, hidden_states(model, ids_T, eval_batch_size)), eval_batch_size)
        metrics |= {f"{split}_ppl_sound": found.sound} | ({"valid_ppl": found.published} if split == "valid" else {})
    return metrics | {"unigram_ppl": unigram_perplexity(corpus)}, contexts


def distance_to_law(
    model: LanguageModel, hidden_TD: Tensor, kl_nats: Callable[[NDArray[np.float32], int], NDArray[np.float64]]
) -> float:
    """Mean KL(P* || Q) in nats over all contexts; `kl_nats(log_q_NV, start)` gives it for each from `start` on."""
    parts: list[NDArray[np.float64]] = []
    start = 0
    for log_q_NV in log_probability_chunks(model, hidden_TD):
        parts.append(kl_nats(log_q_NV.cpu().numpy(), start))
        start += len(log_q_NV)
    return math.fsum(np.concatenate(parts)) / start


@torch.no_grad()
def spectrum(model: LanguageModel, hidden_TD: NDArray[np.float32]) -> Spectrum:
    """Singular values of the log-probability matrix over all contexts: from its factors where the head is log-linear."""
    model.eval()
    hidden = torch.from_numpy(hidden_TD).to(model.head.decoder.weight.device)
    if not model.head.is_log_linear:
        chunks = (log_p_NV.cpu().numpy() for log_p_NV in log_probability_chunks(model, hidden))
        return gram_singular_values(chunks, model.head.decoder.out_features)
    weight_VD, bias_V = (tensor.cpu().numpy() for tensor in (model.head.decoder.weight, model.head.decoder.bias))
    contexts_ND = model.head.contexts(hidden).cpu().numpy()
    return factored_singular_values(contexts_ND, weight_VD, bias_V, log_normalisers(contexts_ND, weight_VD, bias_V))
