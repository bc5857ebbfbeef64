"""A Hugging Face folder before transformers reads it: what is missing or damaged is one line with exit code 2."""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.own_model import saved_model
from softmax_bottleneck.store import artefacts

SHARDS = [f"model-{i:05}-of-00002.safetensors" for i in (1, 2)]
INDEX = "model.safetensors.index.json"


@pytest.fixture(autouse=True)
def folder(place: Path) -> Path:
    """A folder with all the files that are looked for, and a text beside it."""
    Path("text.txt").write_text("w1 w2", encoding="utf-8")
    model = Path("m")
    model.mkdir()
    for name in ("config.json", "tokenizer.json", *SHARDS):
        (model / name).write_text("{}", encoding="utf-8")
    (model / INDEX).write_text(json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}), encoding="utf-8")
    return model


def error_of(model: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["rank", "--model", model, "--text", "text.txt", "--out", "out"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and not Path("out").exists()
    return error


@pytest.mark.parametrize(("name", "text", "message"), [
    ("tokenizer.json", None, "no tokenizer.json in this folder"),
    ("config.json", None, "no config.json in this folder"),
    (INDEX, "[1, 2", "its index is not sound"),
    (SHARDS[0], None, f"{SHARDS[0]} is missing (1 of 2 shards)"),
])  # fmt: skip
def test_a_folder_that_is_not_sound_is_one_line(folder, name: str, text: str | None, message: str, capsys) -> None:
    (folder / name).unlink() if text is None else (folder / name).write_text(text, encoding="utf-8")
    assert message in error_of("m", capsys)


def test_a_name_of_the_hub_and_pickled_weights_are_rejected(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "HuggingFaceTB/SmolLM2-135M"
    assert f"{name}: no such folder" in error_of(name, capsys)
    for name in (*SHARDS, INDEX):
        (folder / name).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    assert "m: no .safetensors in it; pickled weights are not read" in error_of("m", capsys)


def test_without_transformers_a_text_cannot_be_read(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert "m: needs tokenizers, which is not installed: pip install transformers" in error_of("m", capsys)


@pytest.fixture
def small_model(monkeypatch: pytest.MonkeyPatch) -> torch.nn.Linear:
    """The output layer of a random model with 128 input vectors, read with a tokenizer of bytes."""
    vectors, layer = torch.nn.Embedding(128, 4), torch.nn.Linear(4, 128)

    class Model(torch.nn.Module):
        config = SimpleNamespace(get_text_config=lambda decoder: SimpleNamespace(max_position_embeddings=64))

        def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
            return SimpleNamespace(logits=layer(vectors(input_ids)))

        def get_input_embeddings(self) -> torch.nn.Embedding:
            return vectors

        def get_output_embeddings(self) -> torch.nn.Linear:
            return layer

    tokenizer = SimpleNamespace(encode=lambda text: SimpleNamespace(ids=[*text.encode()]), id_to_token=str,
        get_vocab=lambda: {str(n): n for n in range(256)})  # fmt: skip
    monkeypatch.setattr(saved_model, "_load", lambda path: (torch, Model(), tokenizer))
    return layer


def test_a_weight_that_is_nan_and_a_tokenizer_of_another_model(small_model: torch.nn.Linear, capsys) -> None:
    Path("text.txt").write_text("größer", encoding="utf-8")
    assert "token 195 on this text, and the model has 128 input vectors" in error_of("m", capsys)
    Path("text.txt").write_text("larger", encoding="utf-8")
    with torch.no_grad():
        small_model.weight[7, 2] = float("nan")
    assert "are nan" in error_of("m", capsys)


def test_a_byte_order_mark_is_no_token(small_model: torch.nn.Linear) -> None:
    Path("text.txt").write_bytes(b"\xef\xbb\xbflarger")
    assert main(["rank", "--model", "m", "--text", "text.txt", "--seconds", "0", "--out", "out"]) == 0
    assert artefacts.read_json(Path("out/rank.json"))["contexts"] == 6


def test_an_export_deletes_only_arrays_of_an_earlier_export(folder: Path, small_model) -> None:
    """Even if the model and a user's own hidden states lie in the same folder."""
    Path("out").mkdir()
    export = folder.rename("out/export")
    (export / "hidden-9.npy").write_bytes(b"a user's")
    before = {path: path.read_bytes() for path in export.iterdir()}
    for length in (100, 50):  # two windows, then one
        Path("text.txt").write_text("text " * (length // 5), encoding="utf-8")
        assert main(["rank", "--model", str(export), "--text", "text.txt", "--seconds", "0", "--out", "out"]) == 0
        assert artefacts.read_json(Path("out/rank.json"))["contexts"] == length
    assert before == {path: path.read_bytes() for path in before}
    assert sorted(path.name for path in export.glob("hidden-*.npy")) == ["hidden-1.npy", "hidden-9.npy"]


def test_models_whose_names_have_dots_have_a_folder_each(folder: Path, small_model) -> None:
    shutil.copytree(folder, "Model-0.5B"), folder.rename("Model-0.5B-Instruct"), Path("Model-0.5B.Q4.gguf").touch()
    for name in ("Model-0.5B", "Model-0.5B-Instruct", "Model-0.5B.Q4.gguf"):
        assert main(["rank", "--model", name, "--text", "text.txt", "--seconds", "0"]) == 0
    results = {path.name for path in Path("results/own").iterdir()}
    assert results == {"Model-0.5B", "Model-0.5B-Instruct", "Model-0.5B.Q4"}
