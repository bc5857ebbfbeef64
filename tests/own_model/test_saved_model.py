"""A Hugging Face folder before, and without, transformers: files written here by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.own_model import rank, request
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError

V, D = 23, 4
SHARDS = [f"model-{i:05}-of-00002.safetensors" for i in (1, 2)]
INDEX = "model.safetensors.index.json"
TEXT, WEIGHTS = ["--text", "text.txt"], ["--weights-only"]


def save_model(tied: bool = False, **config: Any) -> np.ndarray:
    """Write a model in two shards with an index and a tokenizer of 20 words; return its output matrix [V, D]."""
    rng, folder = np.random.default_rng(0), Path("m")
    embedding, other = "model.embed_tokens.weight", "model.norm.weight" if tied else "lm_head.weight"
    tensors = {embedding: rng.normal(size=(V, D)).astype(np.float32), other: rng.normal(size=(V, D)).astype(np.float16)}
    folder.mkdir()
    places = dict(zip(tensors, SHARDS, strict=True))
    for name, shard in places.items():
        save_file({name: tensors[name]}, folder / shard)
    words = {"vocab": {f"w{i}": i for i in range(19)}}
    tokenizer = {"model": words, "added_tokens": [{"id": 19, "content": "<end>"}]}
    for file, facts in {"config.json": config, INDEX: {"weight_map": places}, "tokenizer.json": tokenizer}.items():
        (folder / file).write_text(json.dumps(facts), encoding="utf-8")
    return tensors[embedding if tied else other].astype(float)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(artefacts.os, "fsync", lambda descriptor: None)
    (tmp_path / "text.txt").write_text("w1 w2", encoding="utf-8")
    return tmp_path


def analyse() -> rank.Result:
    options = {"model": "m", "weights_only": True}
    return rank.rank(request.request(options, "test"), lambda line: None, Path("export"))


@pytest.mark.parametrize("tied", [False, True])
def test_the_output_matrix_is_found_and_its_padding_left_out(tied: bool) -> None:
    weight_VD = save_model(tied, auto_map={"AutoModel": "own.Model"})  # no code is needed for it
    result = analyse()
    np.testing.assert_allclose(result.spectrum.sigma, np.linalg.svd(weight_VD[:20], compute_uv=False), rtol=1e-6)
    assert "3 rows of the output matrix are padding, of no token, and left out" in result.notes
    never = result.measures.words.never
    names = ", ".join(f"'w{word}'" if word < 19 else "'<end>'" for word in never)
    assert never and f"unargmaxable: {names}" in result.notes


def test_a_tokenizer_that_lists_its_words_in_order_counts_as_well() -> None:
    """Unigram: pairs of a token and its score. Without a tokenizer all rows count."""
    weight_VD = save_model()
    facts = {"model": {"vocab": [[f"w{i}", -1.0] for i in range(V - 1)]}}
    Path("m/tokenizer.json").write_text(json.dumps(facts), encoding="utf-8")
    np.testing.assert_allclose(analyse().spectrum.sigma, np.linalg.svd(weight_VD[:-1], compute_uv=False), rtol=1e-6)
    Path("m/tokenizer.json").unlink()
    result = analyse()
    np.testing.assert_allclose(result.spectrum.sigma, np.linalg.svd(weight_VD, compute_uv=False), rtol=1e-6)
    assert not [note for note in result.notes if "padding" in note or "unargmaxable" in note]


def test_untied_embeddings_are_not_taken_for_the_output_matrix() -> None:
    save_model(tied=True, tie_word_embeddings=False)
    with pytest.raises(UserError, match=r"no tensor has a name like lm_head.weight.*--weight"):
        analyse()


UNSOUND = [
    ("tokenizer.json", TEXT, None, "no tokenizer.json in it"),
    ("config.json", WEIGHTS, None, "no config.json in it"),
    ("config.json", WEIGHTS, "{", "config.json or an index is not sound"),
    ("tokenizer.json", WEIGHTS, '{"model": []}', "tokenizer.json: not sound"),
    (INDEX, WEIGHTS, "[1, 2", "not sound"),
    (SHARDS[0], WEIGHTS, None, f"{SHARDS[0]} is missing (1 of 2 shards)"),
]


@pytest.mark.parametrize(("name", "words", "text", "message"), UNSOUND)
def test_a_folder_that_is_not_sound_is_one_line(
    name: str, words: list[str], text: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model()
    file = Path("m", name)
    file.unlink() if text is None else file.write_text(text, encoding="utf-8")
    assert main(["rank", "--model", "m", *words, "--out", "out"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not Path("out").exists()


@pytest.mark.parametrize("more", [TEXT, WEIGHTS])
def test_a_name_of_the_hub_and_pickled_weights_are_rejected(more: list[str], capsys) -> None:
    assert main(["rank", "--model", "HuggingFaceTB/SmolLM2-135M", *more]) == 2
    error = capsys.readouterr().err
    assert "HuggingFaceTB/SmolLM2-135M: no such folder" in error and error.count("\n") == 1
    save_model()
    for name in (*SHARDS, INDEX):
        Path("m", name).unlink()
    Path("m/pytorch_model.bin").write_bytes(b"pickle")
    assert main(["rank", "--model", "m", *more]) == 2
    assert "m: no .safetensors in it; pickled weights are not read" in capsys.readouterr().err


def test_without_transformers_a_text_cannot_be_read(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    save_model()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert main(["rank", "--model", "m", *TEXT]) == 2
    assert "m: needs tokenizers, which is not installed: pip install transformers" in capsys.readouterr().err
