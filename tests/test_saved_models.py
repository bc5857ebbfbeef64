"""What `rank --model` does with a Hugging Face folder before, and without, transformers: files written here by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.own_model import question, rank
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError

V, D = 23, 4
SHARDS = [f"model-{i:05}-of-00002.safetensors" for i in (1, 2)]
TEXT, WEIGHTS = ["--text", "text.txt"], ["--weights-only"]


def written(folder: Path, tied: bool = False, **config: Any) -> np.ndarray:
    """A model in two shards with an index and a tokenizer of 20 words; its output matrix [V, D]."""
    rng = np.random.default_rng(0)
    embedding, other = "model.embed_tokens.weight", "model.norm.weight" if tied else "lm_head.weight"
    tensors = {embedding: rng.normal(size=(V, D)).astype(np.float32), other: rng.normal(size=(V, D)).astype(np.float16)}
    folder.mkdir()
    place = dict(zip(tensors, SHARDS, strict=True))
    for name, shard in place.items():
        save_file({name: tensors[name]}, folder / shard)
    words = {"vocab": {f"w{i}": i for i in range(19)}}
    tokenizer = {"model": words, "added_tokens": [{"id": 19, "content": "<end>"}]}
    for file, facts in {
        "config": config,
        "model.safetensors.index": {"weight_map": place},
        "tokenizer": tokenizer,
    }.items():
        (folder / f"{file}.json").write_text(json.dumps(facts), encoding="utf-8")
    return tensors[embedding if tied else other].astype(float)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(artefacts.os, "fsync", lambda descriptor: None)
    (tmp_path / "text.txt").write_text("w1 w2", encoding="utf-8")
    return tmp_path


def analysed() -> rank.Result:
    return rank.rank(question.question({"model": "m", "weights_only": True}, "test"), lambda line: None, Path("export"))


@pytest.mark.parametrize("tied", [False, True])
def test_the_output_matrix_is_found_and_its_padding_left_out(tied: bool) -> None:
    weight_VD = written(Path("m"), tied, auto_map={"AutoModel": "own.Model"})  # no code is needed for it
    found = analysed()
    np.testing.assert_allclose(found.spectrum.sigma, np.linalg.svd(weight_VD[:20], compute_uv=False), rtol=1e-6)
    assert "3 rows of the output matrix are padding, of no token, and left out" in found.notes()
    never = found.measures.words.never
    names = ", ".join(f"'w{word}'" if word < 19 else "'<end>'" for word in never)
    assert never and f"never the most probable one: {names}" in found.notes()


def test_a_tokenizer_that_lists_its_words_in_order_counts_as_well() -> None:
    """Unigram: pairs of a token and its score."""
    weight_VD = written(Path("m"))
    facts = {"model": {"vocab": [[f"w{i}", -1.0] for i in range(V - 1)]}}
    Path("m/tokenizer.json").write_text(json.dumps(facts), encoding="utf-8")
    sigma = np.linalg.svd(weight_VD[: V - 1], compute_uv=False)
    np.testing.assert_allclose(analysed().spectrum.sigma, sigma, rtol=1e-6)
    Path("m/tokenizer.json").unlink()  # then nobody knows, and all rows count
    found = analysed()
    np.testing.assert_allclose(found.spectrum.sigma, np.linalg.svd(weight_VD, compute_uv=False), rtol=1e-6)
    assert not [note for note in found.notes() if "padding" in note or "never" in note]


def test_embeddings_of_their_own_are_not_taken_for_the_output_matrix() -> None:
    """Of a body that was saved alone: its configuration says that the output matrix is another one."""
    written(Path("m"), tied=True, tie_word_embeddings=False)
    with pytest.raises(UserError, match=r"no tensor has a name like lm_head.weight.*--weight"):
        analysed()


REFUSALS = {
    "tokenizer.json": (TEXT, None, "no tokenizer.json in it"),
    "config.json": (WEIGHTS, None, "no config.json in it"),
    "config.json ": (WEIGHTS, "{", "config.json: not sound"),
    "tokenizer.json ": (WEIGHTS, '{"model": []}', "tokenizer.json: not sound"),
    "model.safetensors.index.json": (WEIGHTS, "[1, 2", "not sound"),
    "model.safetensors.index.json ": (TEXT, None, "no model.safetensors.index.json in it; copy it there, or ask with"),
    SHARDS[0]: (WEIGHTS, None, f"{SHARDS[0]} is missing (1 of 2 shards)"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_folder_that_is_not_sound_is_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    written(Path("m"))
    words, text, message = REFUSALS[name]
    file = Path("m", name.strip())
    file.unlink() if text is None else file.write_text(text, encoding="utf-8")
    assert main(["rank", "--model", "m", *words, "--out", "out"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not Path("out").exists()


def test_without_an_index_a_missing_shard_is_known_by_the_name_of_another(capsys: pytest.CaptureFixture[str]) -> None:
    written(Path("m"))
    Path("m/model.safetensors.index.json").unlink()
    assert analysed().ranks.press.rank == D
    Path("m", SHARDS[1]).unlink()
    assert main(["rank", "--model", "m", *WEIGHTS]) == 2
    assert f"{SHARDS[1]} is missing" in capsys.readouterr().err


@pytest.mark.parametrize("more", [TEXT, WEIGHTS])
def test_a_name_of_the_hub_and_pickled_weights_are_refused(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rank", "--model", "HuggingFaceTB/SmolLM2-135M", *more]) == 2
    error = capsys.readouterr().err
    assert "HuggingFaceTB/SmolLM2-135M: no such folder" in error and "nothing is fetched" in error
    assert error.count("\n") == 1
    written(Path("m"))
    for name in (*SHARDS, "model.safetensors.index.json"):
        Path("m", name).unlink()
    Path("m/pytorch_model.bin").write_bytes(b"pickle")
    assert main(["rank", "--model", "m", *more]) == 2
    assert "m: no .safetensors in it; pickled weights are not read" in capsys.readouterr().err


def test_without_transformers_a_text_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(Path("m"))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert main(["rank", "--model", "m", *TEXT]) == 2
    assert "m: needs tokenizers, which is not installed: pip install transformers" in capsys.readouterr().err
