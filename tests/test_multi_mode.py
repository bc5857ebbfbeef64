"""Prompts with two right words: against loops in float64, and with parallelograms made by hand; no transformers."""

from __future__ import annotations

import csv
import itertools
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from softmax_bottleneck import heads
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.own_model import huggingface, multi_mode
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError

D = 6
ROWS = list(csv.DictReader(multi_mode.ANALOGIES.open(encoding="utf-8")))
KINDS = {"diagonal": [("a", "d"), ("b", "c")], "edge": [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]}


class Tokenizer:
    """Words and marks are tokens, `pieces` two of them; what is not in the vocabulary is <unk>."""

    def __init__(self, pieces: tuple[str, ...] = (), unknown: tuple[str, ...] = (), same: dict[str, str] | None = None):
        text = " ".join([multi_mode.CARRIER, *multi_mode.TEMPLATES, *(row[key] for row in ROWS for key in "abcd")])
        tokens = {"<unk>", "#", *re.findall(r"[a-zA-Z]+|[.,;]", text)} - set(unknown)
        self.numbers = {token: number for number, token in enumerate(sorted(tokens))}
        self.pieces, self.same = pieces, same or {}

    def encode(self, text: str) -> Any:
        words = re.findall(r"[a-zA-Z]+|[.,;]", text)
        words = [part for word in words for part in ([word, "#"] if word in self.pieces else [word])]
        known = [self.same.get(word, word) for word in words]
        return SimpleNamespace(ids=[self.numbers.get(word, self.numbers["<unk>"]) for word in known])

    def decode(self, ids: list[int]) -> str:
        return " " + " ".join(self.id_to_token(number) for number in ids)

    def id_to_token(self, number: int) -> str:
        return next(token for token, known in self.numbers.items() if known == number)


class Model(torch.nn.Module):
    """h = tanh of a decaying sum of the vectors so far; a hidden state depends on every token before it."""

    def __init__(self, words: int, padding: int = 3):
        super().__init__()
        torch.manual_seed(0)
        self.vectors = torch.nn.Embedding(words + padding, D)
        self.layer = torch.nn.Linear(D, words + padding)
        self.config = SimpleNamespace(get_text_config=lambda decoder: SimpleNamespace())
        self.shapes: list[tuple[int, ...]] = []

    def get_input_embeddings(self) -> Any:
        return self.vectors

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
        self.shapes.append(tuple(input_ids.shape))
        position = torch.arange(input_ids.shape[1], dtype=self.vectors.weight.dtype)
        before = torch.tril(0.9 ** (position[:, None] - position))
        return SimpleNamespace(logits=self.layer(torch.tanh(before @ self.vectors(input_ids))))


def opened(tokenizer: Tokenizer | None = None, window: int = 512) -> huggingface.Opened:
    """A random model in memory."""
    tokenizer = tokenizer or Tokenizer()
    words = len(tokenizer.numbers)
    model = Model(words)
    return huggingface.Opened(Path("m"), "the list. " * 20, torch, model, tokenizer, model.layer, words, window)


def quiet(line: str) -> None:
    """Nobody listens."""


def with_parallelograms(one: huggingface.Opened) -> huggingface.Opened:
    """The same with w_d = w_b + w_c - w_a, and no bias."""
    with torch.no_grad():
        one.layer.bias.zero_()
        for row in ROWS:
            a, b, c, d = (one.tokenizer.numbers[row[key]] for key in "abcd")
            one.layer.weight[d] = one.layer.weight[b] + one.layer.weight[c] - one.layer.weight[a]
    return one


def naive(one: huggingface.Opened) -> dict[str, Any]:
    """Every prompt by itself, in float64, by the definitions."""
    model = one.model.double()
    losses: dict[str, list[float]] = {"diagonal": [], "edge": []}
    ahead: dict[str, list[bool]] = {"diagonal": [], "edge": []}
    for row, (kind, pairs) in itertools.product(ROWS, KINDS.items()):
        of_row = []
        orders = [*pairs, *(pair[::-1] for pair in pairs)]
        for (x, y), template in itertools.product(orders, multi_mode.TEMPLATES):
            u, v = sorted(set("abcd") - {x, y})
            words = [row[key] for key in (x, y, u, v)]
            ids = one.tokenizer.encode(template.format(*words)).ids
            with torch.no_grad():
                logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1, : one.words].numpy()
            p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
            p_x, p_y, p_u, p_v = (p[one.tokenizer.numbers[word]] for word in words)
            of_row.append(-(math.log(p_x) + math.log(p_y)) / 2)
            ahead[kind].append(max(p_u, p_v) >= min(p_x, p_y))
        losses[kind].append(float(np.mean(of_row)))
    return {"losses": losses, "ahead": {kind: np.mean(found) for kind, found in ahead.items()}}


def test_perplexities_and_intruders_are_those_of_loops_in_float64() -> None:
    found = multi_mode.probe(opened(), 1, quiet)
    expected = naive(opened())
    for kind, of in (("diagonal", found.diagonal), ("edge", found.edge)):
        assert of.perplexity == pytest.approx(math.exp(np.mean(expected["losses"][kind])), rel=1e-5)
        assert of.intruded == pytest.approx(expected["ahead"][kind])
    difference = np.subtract(expected["losses"]["diagonal"], expected["losses"]["edge"])
    assert found.difference.mean == pytest.approx(difference.mean(), abs=1e-6)
    half = 1.96 * difference.std() / math.sqrt(len(difference))  # a bootstrap interval of a mean is near the normal one
    assert found.difference.low == pytest.approx(difference.mean() - half, abs=0.2 * half)
    assert found.difference.high == pytest.approx(difference.mean() + half, abs=0.2 * half)
    assert (found.quadruples, found.left_out, found.prompts) == (len(ROWS), (), len(ROWS) * 3 * 12)


def test_no_hidden_state_ranks_a_diagonal_of_a_parallelogram_first() -> None:
    one = with_parallelograms(opened())
    hidden_ND = torch.randn(2000, D, dtype=torch.float64) * torch.logspace(-2, 2, 2000)[:, None]
    logits_NV = (hidden_ND @ one.layer.weight.detach().double().T).numpy()
    for row in ROWS:
        a, b, c, d = (logits_NV[:, one.tokenizer.numbers[row[key]]] for key in "abcd")
        assert (np.minimum(a, d) <= np.maximum(b, c) + 1e-4).all()
        assert (np.minimum(b, c) <= np.maximum(a, d) + 1e-4).all()
    found = multi_mode.probe(one, 1, quiet)
    assert found.diagonal.intruded == 1.0 > found.edge.intruded
    assert found.diagonal.perplexity >= 4
    assert found.defect == pytest.approx(0, abs=1e-6) and found.below_control.low > 0.3


def test_without_parallelograms_a_diagonal_is_an_edge_like_any() -> None:
    """Of four random logits a pair is in front one time in six; vectors without any order have a defect near sqrt 2."""
    found = multi_mode.probe(opened(), 1, quiet)
    assert found.diagonal.intruded == pytest.approx(5 / 6, abs=0.12) and found.diagonal.intruded < 1
    assert found.difference.low < 0 < found.difference.high
    assert found.defect == pytest.approx(found.control, abs=0.15) and found.control == pytest.approx(2**0.5, abs=0.15)


def test_the_defect_is_that_of_a_loop_and_the_control_keeps_pairs_of_other_relations() -> None:
    rng = np.random.default_rng(3)
    weight_VD, tokens_Q4 = rng.normal(size=(40, D)), rng.permutation(40).reshape(10, 4)
    for found, tokens in zip(multi_mode.defects(weight_VD, tokens_Q4), tokens_Q4, strict=True):
        a, b, c, d = (weight_VD[token] for token in tokens)
        edges = [math.dist(*pair) for pair in ((a, b), (c, d), (a, c), (b, d))]
        assert found == pytest.approx(math.hypot(*(a - b - c + d)) / (sum(edges) / 4))
    relations = ["gender"] * 4 + ["plural"] * 6
    again = [multi_mode.re_paired(tokens_Q4, relations, np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert (again[0] == again[1]).all() and (again[0] != again[2]).any()
    relation_of = {tuple(tokens[2:]): relation for tokens, relation in zip(tokens_Q4, relations, strict=True)}
    for made, own, relation in zip(again[0], tokens_Q4, relations, strict=True):
        assert (made[:2] == own[:2]).all() and relation_of[tuple(made[2:])] != relation


def test_words_that_are_not_one_token_of_their_own_are_left_out_and_counted() -> None:
    tokenizer = Tokenizer(pieces=("queen", "Paris"), unknown=("cats",), same={"bigger": "big"})
    found = multi_mode.probe(opened(tokenizer), 1, quiet)
    assert found.left_out == (
        "king queen man woman", "Paris France Berlin Germany", "cat cats dog dogs", "big bigger small smaller"
    )  # fmt: skip
    assert found.quadruples == len(ROWS) - 4 and found.prompts == found.quadruples * 36


def test_the_list_names_no_word_twice() -> None:
    words = [row[key] for row in ROWS for key in "abcd"]
    assert len(set(words)) == len(words) and 40 <= len(ROWS) <= 60
    assert all(word.isalpha() and word.isascii() for word in words)


def test_every_prompt_names_the_four_words_and_ends_before_the_next() -> None:
    for template in multi_mode.TEMPLATES:
        assert [template.count(f"{{{i}}}") for i in range(4)] == [template.count("{0}"), template.count("{0}"), 1, 1]
        assert template[-1].isalpha()
    assert sum(multi_mode.DIAGONAL_P) == 4 and len(multi_mode.PAIRS) == 12


def test_prompts_of_one_length_are_read_together_as_many_as_a_window_has_room_for() -> None:
    one = opened(window=100)
    multi_mode.probe(one, 1, quiet)
    assert max(rows * length for rows, length in one.model.shapes) <= 100
    assert {length for _, length in one.model.shapes} == {
        len(one.token_ids(text.format("king", "queen", "man", "woman"))) for text in multi_mode.TEMPLATES
    }
    assert sum(rows for rows, _ in one.model.shapes) == len(ROWS) * 36


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (opened(Tokenizer(unknown=tuple(row["a"] for row in ROWS[4:]))),
         f"m: 4 of {len(ROWS)} analogies are of single tokens; multi_mode needs 5"),
        (opened(Tokenizer(unknown=tuple(row["a"] for row in ROWS if row["relation"] != "plural"))), "of two relations"),
        (opened(window=20), "m: reads 20 tokens at most, prompts of multi_mode have 3"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_asked_is_one_line(one: huggingface.Opened, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        multi_mode.probe(one, 1, quiet)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "given", [["--model", "m", "--weights-only"], ["--hidden", "h.npy", "--weight", "w.npy"], ["--log-probs", "p.npy"]]
)
def test_without_a_text_to_read_there_is_nobody_to_ask(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rank", *given, "--multi-mode"]) == 2
    error = capsys.readouterr().err
    assert "multi_mode puts prompts to a model: give model and text" in error and error.count("\n") == 1


def test_the_page_the_numbers_and_the_comparison_show_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(artefacts.os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(huggingface, "open_model", lambda asked: with_parallelograms(opened()))
    for name in ("m.gguf", "text.txt"):
        Path(name).write_text("any", encoding="utf-8")
    given = ["rank", "--model", "m.gguf", "--text", "text.txt", "--seconds", "0"]
    assert main([*given, "--multi-mode", "--out", "a"]) == 0 == main([*given, "--out", "b"])
    shown = capsys.readouterr().out
    facts = artefacts.read_json(Path("a/rank.json"))["multi_mode"]
    perplexity = facts["diagonal"]["perplexity"]
    assert f"perplexity {perplexity:.2f} (ideal: 2); a wrong word ahead of a right one in 100.0 % of" in shown
    assert facts["quadruples"] == len(ROWS) and facts["edge"]["intruded"] < 1 and facts["defect"] < 1e-6
    html, plain = (Path(name, "index.html").read_text(encoding="utf-8") for name in "ab")
    assert f"perplexity {perplexity:.2f} (ideal: 2)" in html and "One softmax cannot rank a diagonal first" in html
    assert "diagonal" not in plain and artefacts.read_json(Path("b/rank.json"))["multi_mode"] is None
    assert main(["rank", "--compare", "a/rank.json", "b/rank.json", "--out", "c"]) == 0
    table = artefacts.read_json(Path("c/comparison.json"))["table"]
    assert table["perplexity of a right diagonal"] == [f"{perplexity:.4f}", "–"]


def test_a_multi_facet_head_learns_a_diagonal_and_a_softmax_cannot() -> None:
    """P(a) = P(d) = 1/2 over frozen vectors with w_a + w_d = w_b + w_c: perplexity 4 is a softmax's best, not 2."""
    generator = torch.Generator().manual_seed(5)
    w_a, w_b, w_c = torch.randn(3, 4, generator=generator)
    found = {}
    for name, options in (("softmax", {}), ("multi-facet", {"components": 1, "partitions": 2})):
        torch.manual_seed(6)
        head = heads.build(name, vocabulary_size=4, context_size=4, embedding_size=4, **options)
        with torch.no_grad():  # a and d are of one partition: their numbers are even
            head.decoder.weight.copy_(torch.stack([w_a, w_b, w_b + w_c - w_a, w_c]))
            head.decoder.bias.zero_()
        context = torch.randn(1, 4, requires_grad=True, generator=generator)
        free = [parameter for key, parameter in head.named_parameters() if not key.startswith("decoder")]
        optimiser = torch.optim.Adam([context, *free], lr=0.2)
        for _ in range(200):
            optimiser.zero_grad()
            loss = -head.log_probs(context)[0, [0, 2]].mean()
            loss.backward()
            optimiser.step()
        found[name] = math.exp(loss.item())
    assert found["softmax"] == pytest.approx(4, abs=1e-3)
    assert found["multi-facet"] == pytest.approx(2, abs=0.02)
