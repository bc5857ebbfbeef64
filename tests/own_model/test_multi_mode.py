"""The probe of examples/multi_mode.py: against loops in float64, and with parallelograms made by hand."""

import csv
import itertools
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from softmax_bottleneck.own_model.saved_model import OpenModel

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import multi_mode

D = 6
ROWS = list(csv.DictReader(multi_mode.ANALOGIES.open(encoding="utf-8")))
KINDS = {"diagonals": [("a", "d"), ("b", "c")], "edges": [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]}


class Tokenizer:
    """Words and marks are tokens; what is not in the vocabulary is <unk>."""

    def __init__(self) -> None:
        text = " ".join([multi_mode.CARRIER, *multi_mode.TEMPLATES, *(row[key] for row in ROWS for key in "abcd")])
        tokens = {"<unk>", *re.findall(r"[a-zA-Z]+|[.,;]", text)}
        self.numbers = {token: number for number, token in enumerate(sorted(tokens))}

    def encode(self, text: str) -> Any:
        words = re.findall(r"[a-zA-Z]+|[.,;]", text)
        return SimpleNamespace(ids=[self.numbers.get(word, self.numbers["<unk>"]) for word in words])

    def decode(self, ids: list[int]) -> str:
        return next(f" {token}" for token, known in self.numbers.items() if known == ids[0])


class Model(torch.nn.Module):
    """h = tanh of a decaying sum of the vectors so far; a hidden state depends on every token before it."""

    def __init__(self, words: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.vectors, self.layer = torch.nn.Embedding(words, D), torch.nn.Linear(D, words)

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
        position = torch.arange(input_ids.shape[1], dtype=self.vectors.weight.dtype)
        before = torch.tril(0.9 ** (position[:, None] - position))
        return SimpleNamespace(logits=self.layer(torch.tanh(before @ self.vectors(input_ids))))


def opened(tokenizer: Tokenizer | None = None, window: int = 512, parallelograms: bool = False) -> OpenModel:
    """Return a random model with 3 rows of padding, perhaps with w_d = w_b + w_c - w_a and no bias."""
    tokenizer = tokenizer or Tokenizer()
    words = len(tokenizer.numbers)
    model = Model(words + 3)
    if parallelograms:
        with torch.no_grad():
            model.layer.bias.zero_()
            for row in ROWS:
                a, b, c, d = (tokenizer.numbers[row[key]] for key in "abcd")
                model.layer.weight[d] = model.layer.weight[b] + model.layer.weight[c] - model.layer.weight[a]
    return OpenModel(Path("m"), torch, model, tokenizer, model.layer, words, window)


@pytest.mark.parametrize("parallelograms", [False, True])
def test_the_results_are_those_of_loops_in_float64(parallelograms: bool) -> None:
    """Every prompt by itself; of parallelograms no diagonal comes first, and at best its perplexity is 4."""
    one = opened(parallelograms=parallelograms)
    found, model = multi_mode.probe(one), one.model.double()
    for kind, pairs in KINDS.items():
        losses, ahead = [], []
        orders = [*pairs, *(pair[::-1] for pair in pairs)]
        for row, (x, y), template in itertools.product(ROWS, orders, multi_mode.TEMPLATES):
            words = [row[key] for key in (x, y, *sorted(set("abcd") - {x, y}))]
            with torch.no_grad():
                ids = torch.tensor([one.tokenizer.encode(template.format(*words)).ids])
                p = model(ids, use_cache=False).logits[0, -1, : one.words].softmax(0)
            p_x, p_y, p_u, p_v = (float(p[one.tokenizer.numbers[word]]) for word in words)
            losses.append(-(math.log(p_x) + math.log(p_y)) / 2)
            ahead.append(max(p_u, p_v) >= min(p_x, p_y))
        perplexity, share = re.search(r"perplexity ([\d.]+) .* ([\d.]+)% of prompts", found[kind]).groups()
        assert float(perplexity) == pytest.approx(math.exp(np.mean(losses)), rel=1e-4)
        assert float(share) == pytest.approx(100 * np.mean(ahead), abs=0.06)
        if parallelograms and kind == "diagonals":
            assert share == "100.0" and float(perplexity) >= 4
    defect = float(found["parallelogram defect"].split(";")[0])
    assert (defect == 0) if parallelograms else (defect == pytest.approx(2**0.5, abs=0.15))


def test_the_defect_is_that_of_a_loop_and_the_control_keeps_pairs_of_other_relations() -> None:
    rng = np.random.default_rng(3)
    weight_VD, tokens_Q4 = rng.normal(size=(40, D)), rng.permutation(40).reshape(10, 4)
    for found, tokens in zip(multi_mode.defects(weight_VD, tokens_Q4), tokens_Q4, strict=True):
        a, b, c, d = (weight_VD[token] for token in tokens)
        edges = [math.dist(*pair) for pair in ((a, b), (c, d), (a, c), (b, d))]
        assert found == pytest.approx(math.hypot(*(a - b - c + d)) / (sum(edges) / 4))
    relations = ["gender"] * 4 + ["plural"] * 6
    relation_of = {tuple(tokens[2:]): relation for tokens, relation in zip(tokens_Q4, relations, strict=True)}
    again = multi_mode.re_paired(tokens_Q4, relations, rng)
    for made, own, relation in zip(again, tokens_Q4, relations, strict=True):
        assert (made[:2] == own[:2]).all() and relation_of[tuple(made[2:])] != relation
