"""Perplexities, predicted words, distance from a known distribution, and the log-probability matrix of a model.

Hidden states are computed once; predictions and ranks then need only the output head. A *stream* is a part of a text
that is read in order; parallel streams are read at once, like the sequences of a batch. Texts are arrays of token ids.

Suffixes: T tokens of a text in order (in `body_segments`: time steps of one segment), N contexts of one chunk, L time
steps and B streams of a text cut into parallel streams, D width of a hidden state, V vocabulary.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from softmax_bottleneck.corpora.corpus import Corpus, batchify, unigram_perplexity
from softmax_bottleneck.heads.base import Head
from softmax_bottleneck.measuring.predictions import SHOWN_WORDS, TopWords
from softmax_bottleneck.store.errors import DataError
from softmax_bottleneck.study import Schedule
from softmax_bottleneck.training.model import LanguageModel

# Largest chunk of log-probabilities in bytes, by device type. Predictions pass over a chunk many times, so on a CPU it
# should fit into the caches. Spectra pass over it a few times and are faster with more rows per matrix product; still,
# on a CPU the chunk is small enough that malloc reuses its memory instead of returning it to the system.
CHUNK_BYTES = {"cpu": 4 << 20, "cuda": 64 << 20}
SPECTRUM_BYTES = {"cpu": 16 << 20, "cuda": 64 << 20}
ROWS = 64  # the number of contexts in a chunk is a multiple of this, because small matrix products are slow
SEGMENT = 4096  # time steps per pass through a body that carries its state; for it, the length changes no number


@dataclass(frozen=True)
class Contexts:
    """The hidden states [T, D] (float32) that enter the head, and the token [T] that follows each hidden state."""

    hidden: Tensor
    targets: Tensor


@torch.no_grad()
def body_segments(
    model: LanguageModel, ids_T: NDArray[np.int32], streams: int, bptt: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs (hidden states [T, B, D], next tokens [T, B]) of a text, one pair for each segment of T time steps.

    The text is cut into B = `streams` parallel streams of equal length; up to B - 1 tokens at its end are dropped. A
    recurrent body starts with the state zero and carries its state from segment to segment. A transformer reads each
    segment on its own, as in training. The model is set to evaluation mode.

    Args:
        model: the model.
        ids_T: the text.
        streams: number of parallel streams.
        bptt: number of time steps per segment for a transformer. A recurrent body has segments of SEGMENT time steps.
    """
    model.eval()
    segment = SEGMENT if model.body.carries_state else bptt
    ids_LB = torch.from_numpy(batchify(ids_T, streams).astype(np.int64)).to(model.head.decoder.weight.device)
    state = model.initial_state(streams)
    for start in range(0, len(ids_LB) - 1, segment):
        stop = min(start + segment, len(ids_LB) - 1)
        out = model(ids_LB[start:stop], state)
        state = out.state
        yield out.head_input_TBD, ids_LB[start + 1 : stop + 1]


def hidden_states(model: LanguageModel, ids_T: NDArray[np.int32], bptt: int) -> Contexts:
    """Return the T - 1 hidden states of a text of T tokens, read as one stream, and the token after each of them.

    The published test perplexities are measured on one stream, too. The model is set to evaluation mode. `bptt` is the
    number of time steps per segment of a transformer; for a recurrent body it is not used.
    """
    segments = list(body_segments(model, ids_T, 1, bptt))
    hidden_TD, targets_T = (torch.cat(part).flatten(0, 1) for part in zip(*segments, strict=True))
    return Contexts(hidden_TD, targets_T)


@torch.no_grad()
def chunks_of(head: Head, hidden_TD: Tensor, chunk_bytes: Mapping[str, int] = SPECTRUM_BYTES) -> Iterator[Tensor]:
    """Yield the log-probabilities of hidden states [T, D] in float32, in chunks [N, V].

    The head must be in evaluation mode. `chunk_bytes` is {device type ("cpu" or "cuda"): largest size of a chunk in
    bytes}. A chunk has as many rows as this size allows, rounded down to a multiple of 64, but at least 64. The last
    chunk has the remaining rows.
    """
    for chunk_ND in hidden_TD.split(_rows_at_once(head, chunk_bytes)):
        yield head.log_probs(chunk_ND)


def _rows_at_once(head: Head, chunk_bytes: Mapping[str, int]) -> int:
    """Return the number of rows of a chunk: the largest multiple of 64 that fits into `chunk_bytes`, at least 64."""
    fitting = chunk_bytes.get(head.decoder.weight.device.type, chunk_bytes["cpu"]) // (4 * head.vocabulary_size)
    return max(ROWS, fitting // ROWS * ROWS)


@dataclass(frozen=True)
class Predictions:
    """The predictions of a model in the T contexts of a text.

    Attributes:
        log_p_T: log-probability of the true word in each context, in nats.
        true_rank_T: rank of the true word by probability: 1 for the most probable word. Of two equally probable words,
            the one with the smaller token id ranks first.
        top: {index of a context: its five most probable words}, for the contexts in the argument `rows` of `predict`.
        kl_T: KL(P* || Q) of each context in nats, for a known true distribution P* and the model's Q; None if P* is
            unknown.
    """

    log_p_T: NDArray[np.float64]
    true_rank_T: NDArray[np.int64]
    top: dict[int, TopWords]
    kl_T: NDArray[np.float64] | None


KlNats = Callable[[NDArray[np.float32], int], NDArray[np.float64]]


@torch.no_grad()
def predict(
    model: LanguageModel, contexts: Contexts, rows: Collection[int] = (), kl: KlNats | None = None
) -> Predictions:
    """Return the predictions of a model in all contexts of a text, from one pass over its log-probabilities.

    Args:
        model: the model, which is set to evaluation mode.
        contexts: hidden states and next tokens of the text.
        rows: indices of the contexts whose most probable words are returned; by default none.
        kl: function `kl(log_q_NV, start)` that returns KL(P* || Q) [N] in nats for the N contexts from index `start`
            on. None if the true distribution P* is unknown.

    Raises:
        DataError: the probabilities of a context do not sum to one.
    """
    log_p_T: list[Tensor] = []
    true_rank_T: list[Tensor] = []
    kl_T: list[NDArray[np.float64]] = []
    top: dict[int, TopWords] = {}
    tolerance = 1e-4 + model.head.decoder.out_features * float(getattr(model.head, "probability_floor", 0.0))
    start = 0
    for log_p_NV in chunks_of(model.eval().head, contexts.hidden, CHUNK_BYTES):
        _refuse_unnormalised(log_p_NV, tolerance)
        targets_N1 = contexts.targets[start : start + len(log_p_NV), None]
        log_p_T.append(log_p_NV.gather(1, targets_N1)[:, 0])
        true_rank_T.append(_rank_of(log_p_NV, targets_N1))
        for row in (row for row in rows if start <= row < start + len(log_p_NV)):
            top[row] = _top_words(log_p_NV[row - start], int(true_rank_T[-1][row - start]))
        if kl is not None:
            kl_T.append(kl(log_p_NV.cpu().numpy(), start))
        start += len(log_p_NV)
    return Predictions(
        torch.cat(log_p_T).double().cpu().numpy(),
        torch.cat(true_rank_T).cpu().numpy(),
        top,
        np.concatenate(kl_T) if kl_T else None,
    )


def _rank_of(log_p_NV: Tensor, targets_N1: Tensor) -> Tensor:
    """Return the rank [N] of each true word by probability, 1 for the most probable word; `targets_N1` has their ids.

    Of two equally probable words, the one with the smaller id ranks first. `log_p_NV` holds the log-probabilities.
    """
    log_p_N1 = log_p_NV.gather(1, targets_N1)
    ids_V = torch.arange(log_p_NV.shape[1], device=log_p_NV.device)
    before_NV = (log_p_NV > log_p_N1).logical_or_((log_p_NV == log_p_N1).logical_and_(ids_V < targets_N1))
    return 1 + before_NV.sum(1)


def _top_words(log_p_V: Tensor, true_rank: int) -> TopWords:
    log_p, ids = log_p_V.sort(descending=True, stable=True)
    return TopWords(ids[:SHOWN_WORDS].cpu().numpy(), log_p[:SHOWN_WORDS].double().cpu().numpy(), true_rank)


def _refuse_unnormalised(log_p_NV: Tensor, tolerance: float) -> None:
    """Raise DataError if the logarithm of a row's total probability differs from zero by `tolerance` or more."""
    worst = log_p_NV.logsumexp(1).abs().max().item()
    if not worst < tolerance:
        raise DataError(f"probabilities do not sum to one: log of a row's sum is {worst:.2e} (limit {tolerance:.0e}); "
                        "the head's log_probs must be normalised")  # fmt: skip


@torch.no_grad()
def losses(model: LanguageModel, ids_T: NDArray[np.int32], streams: int, bptt: int) -> NDArray[np.float64]:
    """Return the losses in nats of the predicted tokens of a text, which is read in parallel streams.

    `streams` is the number B of streams, and `bptt` the number of time steps per segment of a transformer. Each stream
    has L = T // B tokens (tokens left over at the end are dropped), and its first token is not predicted. The array has
    the shape [(L - 1) B]: first the losses of the second tokens of all streams, then those of the third tokens, and so
    on. The head's fused loss is used, so that the log-probabilities of the whole text are never in memory at once.
    """
    segments = body_segments(model, ids_T, streams, bptt)
    found = [model.head.nll(hidden_TBD, targets_TB.flatten()).double() for hidden_TBD, targets_TB in segments]
    return torch.cat(found).cpu().numpy()


@dataclass(frozen=True)
class Perplexities:
    """The perplexity of one text by two definitions, which divide the sum of losses by different numbers.

    Attributes:
        published: the perplexity that the AWD-LSTM code reports: the sum is divided by the number of all tokens,
            although the first token of each stream is not predicted.
        sound: the correct perplexity: the sum is divided by the number of predicted tokens.
    """

    published: float
    sound: float


def perplexities(log_p_T: NDArray[np.float64], streams: int = 1) -> Perplexities:
    """Return the perplexity of a text by both definitions of `Perplexities`.

    `log_p_T` holds the log-probabilities of the predicted tokens, in nats. `streams` is the number of parallel streams
    in which the text was read: the first token of each stream is not predicted.
    """
    total_nats = -math.fsum(log_p_T)
    return Perplexities(math.exp(total_nats / (len(log_p_T) + streams)), math.exp(total_nats / len(log_p_T)))


def perplexity_metrics(
    model: LanguageModel, corpus: Corpus, log_p_T: NDArray[np.float64], schedule: Schedule
) -> dict[str, float]:
    """Return a model's perplexities on train, valid and test, and the test perplexity of a unigram model.

    Args:
        model: the model, which is set to evaluation mode.
        corpus: the texts.
        log_p_T: log-probabilities of the words of the test text, read as one stream. They are used only if
            `schedule.test_batch_size` is 1. Otherwise the test text is read again, in `test_batch_size` streams.
        schedule: settings of the training; train and valid are read in `schedule.eval_batch_size` parallel streams.

    Returns:
        A dict with these keys:

        * test_ppl, valid_ppl: the sum of losses is divided by the number of all tokens, as published, if
          `schedule.loss_divisor` is "length", and by the number of predicted tokens if it is "targets".
        * test_ppl_sound, valid_ppl_sound, train_ppl_sound: the divisor is always the number of predicted tokens.
        * unigram_ppl: perplexity of test under a unigram model of train with add-one smoothing.
    """

    def streamed(ids_T: NDArray[np.int32], streams: int) -> Perplexities:
        return perplexities(-losses(model, ids_T, streams, schedule.bptt), streams)

    streams = schedule.test_batch_size
    test = perplexities(log_p_T) if streams == 1 else streamed(corpus.test, streams)
    valid, train = (streamed(ids_T, schedule.eval_batch_size) for ids_T in (corpus.valid, corpus.train))
    exact = schedule.loss_divisor == "targets"
    return {
        "test_ppl": test.sound if exact else test.published,
        "test_ppl_sound": test.sound,
        "valid_ppl": valid.sound if exact else valid.published,
        "valid_ppl_sound": valid.sound,
        "train_ppl_sound": train.sound,
        "unigram_ppl": unigram_perplexity(corpus),
    }
