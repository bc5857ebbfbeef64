"""Prompts with two right words: the multi-mode probe of a saved model (Chang and McCallum 2022, "Softmax Bottleneck
Makes Language Models Unable to Represent Multi-mode Word Distributions").

Where a is to b as c is to d, output vectors may form a parallelogram, w_a + w_d = w_b + w_c. If they do, so do the
logits of any hidden state: l_a + l_d = l_b + l_c. The words of a diagonal (a and d, b and c) are then never the two
most probable ones: min(l_a, l_d) <= max(l_b, l_c), under a monotone function of the logits as well; and a softmax, for
which P_a P_d = P_b P_c, has perplexity 4 on them at the best, twice the ideal. Edges (a and b, say) know no such limit.

The prompts, the quadruples (analogies.csv) and the control are ours.

Suffixes: Q quadruples, T templates, P ordered pairs of right words, N = Q T P prompts, B of a batch, V words, D width;
4: the words of a quadruple, of a prompt the two right ones first.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from softmax_bottleneck.measuring.statistics import LEVEL, RESAMPLES, Float64
from softmax_bottleneck.own_model.huggingface import Opened
from softmax_bottleneck.own_model.matrix import Meter
from softmax_bottleneck.own_model.shards import Floats
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.progress import Say

ANALOGIES = Path(__file__).with_name("analogies.csv")  # relation, a, b, c, d; no word twice
LEAST = 5  # quadruples
CARRIER = "the word"  # what a word follows when its tokens are counted
# {0} and {1} are right, {2} and {3} are not; each stands at the same places, whatever the pair.
TEMPLATES = (
    "Four words are on the list: {2}, {0}, {3} and {1}. Two of them are correct, {0} and {1}."
    " One of the two correct words is",
    "She read out {0}, {3}, {1} and {2}. I remembered only {0} and {1}."
    " Asked for one of the words that I remembered, I said",
    "The words in the box were {3}, {2}, {0} and {1}, and only {0} and {1} were right answers."
    " My answer was either {0} or {1}; in the end I wrote",
)
PAIRS = tuple((x, y, *sorted({0, 1, 2, 3} - {x, y})) for x, y in permutations(range(4), 2))
DIAGONAL_P = np.array([x + y == 3 for x, y, *_ in PAIRS])  # a and d, b and c
Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class Estimate:
    """A mean over quadruples, and its bootstrap interval: percentiles at `measuring.statistics.LEVEL`."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Behaviour:
    """At prompts of one kind.

    Attributes:
        perplexity: exp of the mean -ln P of the two right words: 2 at the best.
        intruded: share of prompts where a wrong word is at least as probable as the less probable right one.
    """

    perplexity: float
    intruded: float


@dataclass(frozen=True)
class MultiMode:
    """What the probe found.

    Attributes:
        quadruples: that were used.
        left_out: the others: one of their words is not one token, or two are the same one.
        prompts: that were read.
        diagonal, edge: of the two kinds of pairs.
        difference: -ln P of the right words of diagonals minus that of edges, nats.
        defect: ||w_a - w_b - w_c + w_d|| over the mean length of the four edges; 0 for a parallelogram.
        control: the same with c and d of a random quadruple of another relation.
        below_control: control minus defect.
    """

    quadruples: int
    left_out: tuple[str, ...]
    prompts: int
    diagonal: Behaviour
    edge: Behaviour
    difference: Estimate
    defect: float
    control: float
    below_control: Estimate


def probe(opened: Opened, seed: int, say: Say) -> MultiMode:
    """Put the prompts to a model; `seed`: of the control and the intervals.

    Raises:
        UserError: too few quadruples of single tokens, or a model that reads fewer tokens than a prompt has.
    """
    with ANALOGIES.open(encoding="utf-8", newline="") as file:
        found = [(relation, words, _tokens(opened, words)) for relation, *words in list(csv.reader(file))[1:]]
    used = [one for one in found if one[2]]
    relations, tokens_Q4 = [relation for relation, *_ in used], np.array([tokens for *_, tokens in used], np.int64)
    if len(used) < LEAST or len(set(relations)) < 2:
        raise UserError(
            f"{opened.path}: {len(used)} of {len(found)} analogies are of single tokens; multi_mode needs {LEAST},"
            " of two relations at least: ask without it"
        )
    prompts = [text.format(*(words[i] for i in pair)) for _, words, _ in used for text in TEMPLATES for pair in PAIRS]
    shape_QTP4 = (len(used), len(TEMPLATES), len(PAIRS), 4)
    tokens_N4 = np.broadcast_to(tokens_Q4[:, None, PAIRS], shape_QTP4).reshape(-1, 4)
    log_p_QTP4 = log_probs(opened, prompts, tokens_N4, say).reshape(shape_QTP4)
    (diagonal, loss_Q), (edge, edge_loss_Q) = (behaviour(log_p_QTP4[:, :, of]) for of in (DIAGONAL_P, ~DIAGONAL_P))
    weight_VD, rng = opened.layer.weight.detach()[: opened.words].float().numpy(), np.random.default_rng(seed)
    defect_Q = defects(weight_VD, tokens_Q4)
    control_Q = defects(weight_VD, re_paired(tokens_Q4, relations, rng))
    return MultiMode(
        len(used),
        tuple(" ".join(words) for _, words, tokens in found if not tokens),
        len(prompts),
        diagonal,
        edge,
        _estimate(loss_Q - edge_loss_Q, rng),
        float(defect_Q.mean()),
        float(control_Q.mean()),
        _estimate(control_Q - defect_Q, rng),
    )


# --- prompts --------------------------------------------------------------------------------------------------------
def _tokens(opened: Opened, words: Sequence[str]) -> list[int]:
    """Numbers of words as they follow another one; none unless each is one token, and no two are the same."""
    start, found = opened.token_ids(CARRIER), [opened.token_ids(f"{CARRIER} {word}") for word in words]
    if any(ids[:-1] != start or ids[-1] >= opened.words for ids in found) or len({ids[-1] for ids in found}) < 4:
        return []
    read = [opened.tokenizer.decode(ids[-1:]).strip().casefold() for ids in found]  # an unknown word is not itself
    return [ids[-1] for ids in found] if read == [word.casefold() for word in words] else []


def log_probs(opened: Opened, prompts: Sequence[str], tokens_N4: Tokens, say: Say) -> Float64:
    """ln P [N, 4] of four words after each prompt, of the model's own logits over the words of its tokenizer."""
    ids, log_p_N4 = [opened.token_ids(prompt) for prompt in prompts], np.empty(tokens_N4.shape)
    if (longest := max(map(len, ids))) > opened.window:
        raise UserError(f"{opened.path}: reads {opened.window} tokens at most, prompts of multi_mode have {longest}")
    order, meter, done = np.argsort([len(one) for one in ids], kind="stable"), Meter(say, "prompts", len(ids)), 0
    while done < len(ids):
        length = len(ids[order[done]])
        batch = order[done : done + opened.window // length]
        batch = batch[[len(ids[n]) == length for n in batch]]  # of one length, so that nothing is padded
        logits_BV = opened.seen([ids[n] for n in batch])[1][:, -1, : opened.words].astype(np.float64)
        log_p_N4[batch] = np.take_along_axis(special.log_softmax(logits_BV, 1), tokens_N4[batch], 1)
        done += len(batch)
        meter(done)
    return log_p_N4


def behaviour(log_p_QTP4: Float64) -> tuple[Behaviour, Float64]:
    """At the prompts of one kind of pairs; and the mean -ln P [Q] of their right words, nats."""
    right, wrong = log_p_QTP4[..., :2], log_p_QTP4[..., 2:]
    loss_Q: Float64 = -right.mean((1, 2, 3))
    return Behaviour(float(np.exp(loss_Q.mean())), float((wrong.max(-1) >= right.min(-1)).mean())), loss_Q


# --- geometry -------------------------------------------------------------------------------------------------------
def defects(weight_VD: Floats, tokens_Q4: Tokens) -> Float64:
    """||w_a - w_b - w_c + w_d|| over the mean length of the edges ab, cd, ac and bd [Q]."""
    a_QD, b_QD, c_QD, d_QD = weight_VD[tokens_Q4.T].astype(np.float64)
    edges = [np.linalg.norm(edge, axis=1) for edge in (a_QD - b_QD, c_QD - d_QD, a_QD - c_QD, b_QD - d_QD)]
    lengths_Q: Float64 = np.linalg.norm(a_QD - b_QD - c_QD + d_QD, axis=1) / np.mean(edges, axis=0)
    return lengths_Q


def re_paired(tokens_Q4: Tokens, relations: Sequence[str], rng: np.random.Generator) -> Tokens:
    """The pairs a, b, each beside the c, d of a quadruple of another relation: as close as before, not parallel."""
    others = [rng.choice([q for q, other in enumerate(relations) if other != own]) for own in relations]
    return np.hstack([tokens_Q4[:, :2], tokens_Q4[others, 2:]])


def _estimate(value_Q: Float64, rng: np.random.Generator) -> Estimate:
    from scipy import stats  # half a second to import

    options: dict[str, Any] = {"n_resamples": RESAMPLES, "confidence_level": LEVEL, "method": "percentile", "rng": rng}
    interval = stats.bootstrap((value_Q,), np.mean, **options).confidence_interval
    return Estimate(float(value_Q.mean()), float(interval.low), float(interval.high))
