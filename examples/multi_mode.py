"""Prompts with two correct words: the multi-mode probe of a saved model (Chang and McCallum 2022, "Softmax Bottleneck
Makes Language Models Unable to Represent Multi-mode Word Distributions").

Run it from the repository: `PYTHONPATH=workflow python examples/multi_mode.py DIR|FILE.gguf` (needs transformers).

Where a is to b as c is to d, output vectors may form a parallelogram, w_a + w_d = w_b + w_c. If they do, so do the
logits of any hidden state: l_a + l_d = l_b + l_c. The words of a diagonal (a and d, b and c) are then never the two
most probable ones: min(l_a, l_d) <= max(l_b, l_c), under a monotone function of the logits as well; and a softmax, for
which P_a P_d = P_b P_c, has at best perplexity 4 on them, twice the ideal. Edges (a and b, say) have no such limit.
The prompts, the analogies (analogies.csv) and the control are ours; docs/own-model.md explains the numbers.

Suffixes: Q analogies, T templates, P ordered pairs of correct words, N = Q T P prompts, B a batch, V words, D width;
4: the words of an analogy, in a prompt the two correct ones first.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats
from softmax_bottleneck.own_model.saved_model import OpenModel, open_model
from softmax_bottleneck.store.errors import UserError

ANALOGIES = Path(__file__).with_name("analogies.csv")  # relation, a, b, c, d; no word twice
CARRIER = "the word"  # a word is tokenised after this text
# {0} and {1} are correct, {2} and {3} are not; each stands at the same places, whatever the pair.
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
Floats = NDArray[np.float64]


def probe(opened: OpenModel, seed: int = 1) -> dict[str, str]:
    """Prompt a model with every analogy whose words are single tokens; return the results by name.

    Raises:
        UserError: fewer than five analogies, or of one relation; a model that reads fewer tokens than a prompt has.
    """
    with ANALOGIES.open(encoding="utf-8", newline="") as file:
        analogies = [(relation, words, single_tokens(opened, words)) for relation, *words in list(csv.reader(file))[1:]]
    used = [(relation, words, tokens) for relation, words, tokens in analogies if tokens]
    relations, tokens_Q4 = [relation for relation, *_ in used], np.array([tokens for *_, tokens in used], np.int64)
    if len(used) < 5 or len(set(relations)) < 2:
        raise UserError(f"{opened.path}: {len(used)} analogies are of single tokens; five of two relations are needed")
    prompts = [text.format(*(words[i] for i in pair)) for _, words, _ in used for text in TEMPLATES for pair in PAIRS]
    shape_QTP4 = (len(used), len(TEMPLATES), len(PAIRS), 4)
    tokens_N4 = np.broadcast_to(tokens_Q4[:, None, PAIRS], shape_QTP4).reshape(-1, 4)
    log_p_QTP4 = log_probs(opened, prompts, tokens_N4).reshape(shape_QTP4)
    results = {"analogies": f"{len(used)} of {len(analogies)}, in {len(prompts):,} prompts"}
    losses = []
    for name, pairs in (("diagonals", DIAGONAL_P), ("edges", ~DIAGONAL_P)):
        correct, wrong = log_p_QTP4[:, :, pairs, :2], log_p_QTP4[:, :, pairs, 2:]
        losses.append(-correct.mean((1, 2, 3)))
        ahead = float((wrong.max(-1) >= correct.min(-1)).mean())
        perplexity = f"perplexity {np.exp(losses[-1].mean()):.2f} (ideal: 2)"
        results[name] = f"{perplexity}; a wrong word ahead of a correct one in {ahead:.1%} of prompts"
    weight_VD, rng = opened.layer.weight.detach()[: opened.words].float().numpy(), np.random.default_rng(seed)
    defect_Q = defects(weight_VD, tokens_Q4)
    control_Q = defects(weight_VD, re_paired(tokens_Q4, relations, rng))
    results["diagonals are harder by"] = f"{interval(losses[0] - losses[1], rng)} nats"
    results["parallelogram defect"] = f"{defect_Q.mean():.3f}; re-paired {control_Q.mean():.3f}"
    results["re-paired is higher by"] = interval(control_Q - defect_Q, rng)
    return results


# --- prompts --------------------------------------------------------------------------------------------------------
def single_tokens(opened: OpenModel, words: Sequence[str]) -> list[int]:
    """Return the tokens of four words after another word; none unless each word is one token, and all differ."""
    encode = opened.tokenizer.encode
    start, ids = encode(CARRIER).ids, [encode(f"{CARRIER} {word}").ids for word in words]
    if any(tokens[:-1] != start or tokens[-1] >= opened.words for tokens in ids):
        return []
    last = [tokens[-1] for tokens in ids]
    decoded = [opened.tokenizer.decode([token]).strip().casefold() for token in last]  # an unknown word is not itself
    return last if len(set(last)) == 4 and decoded == [word.casefold() for word in words] else []


def log_probs(opened: OpenModel, prompts: Sequence[str], tokens_N4: Tokens) -> Floats:
    """Return ln P [N, 4] of four words after each prompt, by the model's logits over the words of its tokenizer."""
    ids, log_p_N4 = [opened.tokenizer.encode(prompt).ids for prompt in prompts], np.empty(tokens_N4.shape)
    longest = max(map(len, ids))
    if longest > opened.window:
        raise UserError(f"{opened.path}: reads {opened.window} tokens at most, the longest prompt has {longest}")
    order, done = np.argsort([len(prompt) for prompt in ids], kind="stable"), 0
    while done < len(ids):
        length = len(ids[order[done]])
        batch = order[done : done + opened.window // length]
        batch = batch[[len(ids[n]) == length for n in batch]]  # of one length, so that nothing is padded
        logits_BV = opened.run([ids[n] for n in batch])[1][:, -1, : opened.words].astype(np.float64)
        log_p_N4[batch] = np.take_along_axis(special.log_softmax(logits_BV, 1), tokens_N4[batch], 1)
        done += len(batch)
    return log_p_N4


# --- geometry -------------------------------------------------------------------------------------------------------
def defects(weight_VD: NDArray[np.floating], tokens_Q4: Tokens) -> Floats:
    """Return ||w_a - w_b - w_c + w_d|| over the mean length of the edges ab, cd, ac and bd [Q]: 0 of parallelograms."""
    a_QD, b_QD, c_QD, d_QD = weight_VD[tokens_Q4.T].astype(np.float64)
    edges = [np.linalg.norm(edge, axis=1) for edge in (a_QD - b_QD, c_QD - d_QD, a_QD - c_QD, b_QD - d_QD)]
    return np.asarray(np.linalg.norm(a_QD - b_QD - c_QD + d_QD, axis=1) / np.mean(edges, axis=0))


def re_paired(tokens_Q4: Tokens, relations: Sequence[str], rng: np.random.Generator) -> Tokens:
    """Pair each a, b with the c, d of an analogy of another relation: as close as before, not parallel."""
    others = [rng.choice([q for q, other in enumerate(relations) if other != own]) for own in relations]
    return np.hstack([tokens_Q4[:, :2], tokens_Q4[others, 2:]])


def interval(value_Q: Floats, rng: np.random.Generator) -> str:
    """Return the mean over analogies with its 95 % bootstrap interval."""
    found = stats.bootstrap((value_Q,), np.mean, method="percentile", rng=rng).confidence_interval
    return f"{value_Q.mean():.3f} [{found.low:.3f}, {found.high:.3f}]"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        for name, text in probe(open_model(Path(sys.argv[1]), TEMPLATES[0])).items():
            print(f"{name:24}  {text}")
    except UserError as error:
        sys.exit(f"error: {error}")
