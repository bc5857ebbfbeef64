"""`rank --model` on tiny random models of many families, made here, saved and read back; needs transformers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.own_model import huggingface, matrix, multi_mode, question, rank
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install softmax-bottleneck[hf]")
V, D = 61, 8
TEXT = " ".join(f"w{(i * i + 3 * i) % 50}" for i in range(70))
SIZES = {"hidden_size": D, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": V, "intermediate_size": 16}
FAMILIES: dict[str, Any] = {
    "GPT2": lambda: transformers.GPT2Config(n_embd=D, n_layer=1, n_head=2, vocab_size=V, n_positions=32),
    "Llama": lambda: transformers.LlamaConfig(**SIZES, num_key_value_heads=1, tie_word_embeddings=False),
    "Gemma2": lambda: transformers.Gemma2Config(
        **SIZES, num_key_value_heads=1, head_dim=4, final_logit_softcapping=2.0, query_pre_attn_scalar=4
    ),
    "Qwen2": lambda: transformers.Qwen2Config(**SIZES, num_key_value_heads=2, tie_word_embeddings=True),
    "GPTNeoX": lambda: transformers.GPTNeoXConfig(**SIZES),
    "Falcon": lambda: transformers.FalconConfig(**SIZES),
    "BLOOM": lambda: transformers.BloomConfig(vocab_size=V, hidden_size=D, n_layer=1, n_head=2),
    "Cohere2": lambda: transformers.Cohere2Config(**SIZES, num_key_value_heads=1, logit_scale=0.5),
    "Gemma3": lambda: transformers.Gemma3TextConfig(
        **SIZES, num_key_value_heads=1, head_dim=4, query_pre_attn_scalar=4, final_logit_softcapping=2.0
    ),
    "GPT-J": lambda: transformers.GPTJConfig(vocab_size=V, n_positions=32, n_embd=D, n_layer=1, n_head=2, rotary_dim=4),
    "Mamba2": lambda: transformers.Mamba2Config(
        hidden_size=D,
        num_hidden_layers=1,
        vocab_size=V,
        state_size=4,
        num_heads=4,
        head_dim=4,
        n_groups=1,
        chunk_size=8,
    ),
    "OLMo2": lambda: transformers.Olmo2Config(**SIZES),
    "Qwen2-MoE": lambda: transformers.Qwen2MoeConfig(
        **SIZES,
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=8,
        shared_expert_intermediate_size=8,
    ),
    "Qwen3": lambda: transformers.Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=4),
    "RWKV": lambda: transformers.RwkvConfig(
        hidden_size=D, attention_hidden_size=D, num_hidden_layers=2, vocab_size=V, context_length=32
    ),
    "OPT": lambda: transformers.OPTConfig(
        hidden_size=D, word_embed_proj_dim=6, num_hidden_layers=1, num_attention_heads=2, ffn_dim=16, vocab_size=V
    ),
    "Mamba": lambda: transformers.MambaConfig(hidden_size=D, num_hidden_layers=1, vocab_size=V, state_size=4),
    "Granite": lambda: transformers.GraniteConfig(**SIZES, num_key_value_heads=2, logits_scaling=4.0),
    "RecurrentGemma": lambda: transformers.RecurrentGemmaConfig(
        **SIZES | {"num_hidden_layers": 3}, num_key_value_heads=1, logits_soft_cap=2.0, lru_width=D
    ),
    "Phi": lambda: transformers.PhiConfig(**SIZES),  # its output layer has a bias
}
SCALES = {"Granite": 0.25, "Cohere2": 0.5}
MASKED: dict[str, Any] = {  # class of the saved model, configuration
    "BertForMaskedLM": lambda: transformers.BertConfig(**SIZES),
    "BertForPreTraining": lambda: transformers.BertConfig(**SIZES),
    "RobertaForMaskedLM": lambda: transformers.RobertaConfig(**SIZES),
    "DistilBertForMaskedLM": lambda: transformers.DistilBertConfig(
        vocab_size=V, dim=D, n_layers=1, n_heads=2, hidden_dim=16
    ),
    "XLNetLMHeadModel": lambda: transformers.XLNetConfig(vocab_size=V, d_model=D, n_layer=1, n_head=2, d_inner=16),
}
if hasattr(transformers, "Gemma4Config"):  # sees and hears as well: what is said of its text, its cap, lies deeper
    GEMMA4 = {"head_dim": 4, "global_head_dim": 4, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}
    GEMMA4 |= SIZES | {"num_key_value_heads": 1, "final_logit_softcapping": 2.0, "layer_types": ["full_attention"]}
    FAMILIES["Gemma4"] = lambda: transformers.Gemma4Config(text_config=GEMMA4, vision_config=None, audio_config=None)


def saved(family: str, folder: Path, **how: Any) -> Any:
    """Save a random model with large weights (so that caps and softmaxes matter), and a tokenizer of 50 words."""
    torch.manual_seed(len(family))
    if family in MASKED:
        model = getattr(transformers, family)(MASKED[family]()).eval()
    else:
        model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family]()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    model.save_pretrained(folder, **how)
    words = {f"w{i}": i for i in range(50)} | {"<unk>": 50}
    raw = {"version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None, "decoder": None,
           "truncation": None, "padding": None, "pre_tokenizer": {"type": "WhitespaceSplit"},
           "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}}  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(raw), encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return model


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(artefacts.os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(huggingface, "WINDOW", 30)
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path


def own_log_probs(model: Any, words: int) -> np.ndarray:
    """The model's own logits in windows of 30 tokens, normalised over the tokenizer's words, by the plain formula."""
    ids = [int(word[1:]) for word in TEXT.split()]
    parts = []
    for start in range(0, len(ids), 30):
        with torch.no_grad():
            parts.append(model(torch.tensor([ids[start : start + 30]])).logits[0, :, :words].double())
    return torch.cat(parts).log_softmax(1).numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_are_those_of_the_models_own_log_probabilities(place: Path, family: str) -> None:
    expected = np.linalg.svd(own_log_probs(saved(family, place / "model"), 51), compute_uv=False)
    asked = question.question({"model": "model", "text": "text.txt"}, "test")
    result = rank.rank(asked, lambda line: None, place / "export")
    sigma = result.spectrum.with_zeros()
    np.testing.assert_allclose(sigma, expected[: len(sigma)], atol=2e-6 * expected[0])
    assert (result.matrix.m, result.matrix.n) == (70, 51)
    assert any("10 rows of the output matrix are padding" in note for note in result.notes())
    assert result.matrix.head[0] == ("softcap" if "Gemma" in family else "softmax")
    assert any("capped at 2:" in note for note in result.notes()) == ("Gemma" in family)
    scales = [note for note in result.notes() if "scaled" in note]
    factor = SCALES.get(family)
    assert scales == ([f"logits are scaled by {factor}"] if factor else [])


@pytest.mark.parametrize("family", MASKED)
def test_a_model_whose_contexts_see_the_future_is_refused(
    place: Path, family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(family, place / "model")
    assert main(["rank", "--model", "model", "--text", "text.txt", "--out", "out"]) == 2
    (error,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
    assert "on both sides" in error and error.startswith("error: model: ")
    assert not Path("out/rank.json").exists()


def test_a_decoder_of_the_bert_family_is_read(place: Path) -> None:
    saved("BertForPreTraining", place / "model")
    facts = json.loads((place / "model" / "config.json").read_text(encoding="utf-8"))
    decoder = facts | {"is_decoder": True, "architectures": ["BertForMaskedLM"]}
    (place / "model" / "config.json").write_text(json.dumps(decoder), encoding="utf-8")
    assert main(["rank", "--model", "model", "--text", "text.txt", "--out", "out"]) == 0


@pytest.mark.parametrize("fault", [RuntimeError("shapes\ndisagree"), IndexError("out of range"), KeyError("state")])
def test_an_error_of_the_models_own_code_names_the_model(
    place: Path, fault: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved("Llama", place / "model")

    def fails(*values: Any, **options: Any) -> None:
        raise fault

    monkeypatch.setattr(transformers.LlamaModel, "forward", fails)
    assert main(["rank", "--model", "model", "--text", "text.txt", "--out", "out"]) == 2
    (error,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
    assert "model: LlamaForCausalLM itself fails on this text" in error and type(fault).__name__ in error


def test_the_perplexity_is_the_models_own(place: Path) -> None:
    log_p = own_log_probs(saved("Llama", place / "model"), 51)
    ids = [int(word[1:]) for word in TEXT.split()]
    inside = [i for i in range(1, 70) if i % 30]  # the first token of a window is not predicted
    expected = np.exp(-np.mean([log_p[i - 1, ids[i]] for i in inside]))
    asked = question.question({"model": "model", "text": "text.txt"}, "test")
    result = rank.rank(asked, lambda line: None, place / "export")
    (found,) = (re.match(r"perplexity ([\d.]+) on 67 tokens", note) for note in result.notes() if "perplexity" in note)
    assert float(found[1]) == pytest.approx(expected, abs=0.006)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_shards_of_half_precision_are_read(place: Path, dtype: torch.dtype) -> None:
    model = saved("Llama", place / "float")
    model.to(dtype).save_pretrained(place / "model", max_shard_size="2KB")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (place / "float" / name).rename(place / "model" / name)
    assert len(list((place / "model").glob("*.safetensors"))) > 1
    assert main(["rank", "--model", "model", "--text", "text.txt", "--out", "out"]) == 0
    facts = artefacts.read_json(Path("out/rank.json"))
    assert (facts["contexts"], facts["words"], facts["width"]) == (70, 51, D)
    assert facts["metrics"]["rank_press"] <= D + 2 and facts["title"] == "model"
    assert main(["rank", "--model", "model", "--weights-only", "--out", "weights"]) == 0
    weight = model.get_output_embeddings().weight.detach().float().numpy()[:51]
    sigma = artefacts.read_npz(Path("weights/spectrum.npz"))["sigma"]
    np.testing.assert_allclose(sigma, np.linalg.svd(weight, compute_uv=False), rtol=1e-5)


@pytest.mark.parametrize("family", ["GPT2", "Qwen2", "GPTNeoX", "OPT", "Mamba", "Gemma2"])
def test_weights_alone_are_found_by_their_name(place: Path, family: str) -> None:
    model = saved(family, place / "model")
    asked = question.question({"model": "model", "weights_only": True}, "test")
    result = rank.rank(asked, lambda line: None, place / "export")
    weight = model.get_output_embeddings().weight.detach().numpy()
    np.testing.assert_allclose(result.spectrum.sigma, np.linalg.svd(weight[:51], compute_uv=False), rtol=1e-4)
    assert any("10 rows of the output matrix are padding" in note for note in result.notes())
    (place / "model" / "tokenizer.json").unlink()  # then nobody knows, and all rows count
    result = rank.rank(asked, lambda line: None, place / "export")
    np.testing.assert_allclose(result.spectrum.sigma, np.linalg.svd(weight, compute_uv=False), rtol=1e-4)
    assert not any("padding" in note for note in result.notes())


@pytest.mark.parametrize("more", [{"text": "text.txt"}, {"weights_only": True}])
def test_words_that_never_win_are_named(place: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]) -> None:
    """Of many words in few dimensions some lie among the others; the numbers are those of `words_that_win`."""
    saved("Llama", place / "model")
    found = rank.rank(question.question({"model": "model"} | more, "test"), lambda line: None, place / "export")
    never = found.measures.words.never
    assert never
    names = ", ".join(f"'w{word}'" if word < 50 else "'<unk>'" for word in never)
    assert f"never the most probable one: {names}" in found.notes()
    monkeypatch.setattr(rank, "NAMED", len(never) - 1)
    again = rank.rank(question.question({"model": "model"} | more, "test"), lambda line: None, place / "export")
    assert f"never the most probable one: {names.rpartition(', ')[0]} and 1 more" in again.notes()


def refusals(folder: Path) -> dict[str, tuple[str, str]]:
    """What is done to a sound folder, and what is said then."""
    index = next(folder.glob("*.index.json")).name
    shard = sorted(folder.glob("*.safetensors"))[0].name
    return {
        "tokenizer.json": ("remove", "no tokenizer.json in it"),
        "config.json": ("remove", "no config.json in it"),
        shard: ("remove", f"{shard} is missing"),
        index: ("[1, 2", "not sound"),
        "config.json ": ('{"auto_map": {}}', "needs code of its own"),
        "config.json  ": ('{"model_type": "unheard-of"}', "cannot be loaded"),
        "tokenizer.json ": ("{", "cannot be loaded"),
        "tokenizer.json  ": ('{"model": {"type": "WordLevel", "vocab": {"w0": 61}, "unk_token": "w0"}}',
                             "the tokenizer's token 61 is none of the model's 61"),
    }  # fmt: skip


def test_folders_that_are_not_sound_are_one_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved("Llama", place / "model", max_shard_size="2KB")
    for name, (change, words) in refusals(place / "model").items():
        path = place / "model" / name.strip()
        before = path.read_bytes()
        path.unlink() if change == "remove" else path.write_text(change, encoding="utf-8")
        capsys.readouterr()
        assert main(["rank", "--model", "model", "--text", "text.txt", "--out", "out"]) == 2, name
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1 and words in lines[0], (name, lines)
        path.write_bytes(before)
    facts = json.loads((place / "model" / "config.json").read_text(encoding="utf-8"))
    (place / "model" / "config.json").write_text(json.dumps(facts | {"num_hidden_layers": 2}), encoding="utf-8")
    with pytest.raises(UserError, match=r"config.json and weights disagree: model.layers.1"):
        rank.rank(
            question.question({"model": "model", "text": "text.txt"}, "test"), lambda line: None, place / "export"
        )
    assert not Path("out").exists()


def test_code_in_a_folder_never_runs_nor_hinders_a_family_that_is_known(place: Path) -> None:
    """Old families came with code that the library has by now; the output matrix needs none."""
    expected = own_log_probs(saved("Llama", place / "model"), 51)
    (place / "model" / "modeling_own.py").write_text("from pathlib import Path\nPath('canary').touch()\n", "utf-8")
    config = place / "model" / "config.json"
    facts = json.loads(config.read_text(encoding="utf-8"))
    own = {name: f"modeling_own.{name}" for name in ("AutoConfig", "AutoModelForCausalLM")}
    config.write_text(json.dumps(facts | {"auto_map": own}), encoding="utf-8")
    asked = question.question({"model": "model", "text": "text.txt"}, "test")
    found = rank.rank(asked, lambda line: None, place / "export").spectrum.sigma
    np.testing.assert_allclose(found[:D], np.linalg.svd(expected, compute_uv=False)[:D], rtol=1e-5)
    config.write_text(json.dumps(facts | {"auto_map": own, "model_type": "unheard-of"}), encoding="utf-8")
    with pytest.raises(UserError, match="needs code of its own"):
        rank.rank(asked, lambda line: None, place / "export")
    alone = question.question({"model": "model", "weights_only": True}, "test")
    assert rank.rank(alone, lambda line: None, place / "export").ranks.press.rank == D
    assert not Path("canary").exists()


def test_logits_of_a_window_are_never_copied_whole(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be half a gigabyte: block by block what is found is the same, and memory is that of blocks."""
    saved("Gemma2", place / "model")
    asked = question.question({"model": "model", "text": "text.txt"}, "test")
    whole, notes, _ = huggingface.exported(asked, huggingface.open_model(asked), place / "whole", lambda line: None)
    monkeypatch.setattr(matrix, "BLOCK_BYTES", 8 * 51 * 7)  # seven rows
    heights = []
    plain = huggingface._require_equal
    monkeypatch.setattr(
        huggingface, "_require_equal", lambda made, own, path: (heights.append(len(made)), plain(made, own, path))
    )
    again, said, _ = huggingface.exported(asked, huggingface.open_model(asked), place / "blocks", lambda line: None)
    assert max(heights) == 7 and said == notes and whole.head == again.head == "softcap:c=2.0"
    for file in sorted((place / "whole").glob("*.npy")):
        np.testing.assert_array_equal(np.load(file), np.load(place / "blocks" / file.name))


def test_logits_of_an_unknown_kind_are_refused(place: Path) -> None:
    plain = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    with pytest.raises(UserError, match=r"neither W h \+ b nor that scaled or capped: they differ by .*--log-probs"):
        huggingface._rule_of(plain, plain**3, None, Path("model"))


def test_gguf_files(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gguf = pytest.importorskip("gguf", reason="needs gguf: pip install softmax-bottleneck[gguf]")
    values = np.random.default_rng(1).normal(size=(40, 32)).astype(np.float32)
    writer = gguf.GGUFWriter("small.gguf", "llama")
    packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("token_embd.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
    assert main(["rank", "--model", "small.gguf", "--weights-only", "--out", "out"]) == 0
    expected = np.linalg.svd(gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0), compute_uv=False)
    np.testing.assert_allclose(artefacts.read_npz(Path("out/spectrum.npz"))["sigma"], expected, rtol=1e-5)
    assert main(["rank", "--model", "small.gguf", "--text", "text.txt", "--out", "out"]) == 2
    assert "error: small.gguf: cannot be loaded" in capsys.readouterr().err
    Path("small.gguf").write_bytes(Path("small.gguf").read_bytes()[:100])
    assert main(["rank", "--model", "small.gguf", "--weights-only", "--out", "out"]) == 2
    assert "small.gguf: not a sound GGUF file" in capsys.readouterr().err


def test_a_gguf_file_reads_a_text(place: Path) -> None:
    """A random Llama of one layer whose tokens are characters, against its own logits."""
    gguf = pytest.importorskip("gguf", reason="needs gguf: pip install softmax-bottleneck[gguf]")
    rng, writer = np.random.default_rng(2), gguf.GGUFWriter("letters.gguf", "llama")
    writer.add_block_count(1), writer.add_context_length(64), writer.add_embedding_length(32)
    writer.add_feed_forward_length(32), writer.add_head_count(2), writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5), writer.add_rope_dimension_count(16), writer.add_vocab_size(50)
    letters = [chr(33 + i) for i in range(47)]
    writer.add_tokenizer_model("gpt2"), writer.add_token_list(["<end>", *letters, "Ġ", '!"'])
    writer.add_token_types([3] + 49 * [1]), writer.add_token_merges(['! "'])
    writer.add_bos_token_id(0), writer.add_eos_token_id(0)
    shapes = {"token_embd": (50, 32), "output": (50, 32), "output_norm": (32,)}
    for name, height in (("attn_q", 32), ("attn_k", 16), ("attn_v", 16), ("attn_output", 32), ("ffn_gate", 32),
                         ("ffn_up", 32), ("ffn_down", 32), ("attn_norm", 0), ("ffn_norm", 0)):  # fmt: skip
        shapes[f"blk.0.{name}"] = (height, 32) if height else (32,)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
    numbers = [(i * i + 3 * i) % 43 + 2 for i in range(60)]
    Path("text.txt").write_text("".join(letters[i] for i in numbers), encoding="utf-8")
    model = transformers.AutoModelForCausalLM.from_pretrained(place, gguf_file="letters.gguf", dtype=torch.float32)
    with torch.no_grad():
        logits = model.eval()(torch.tensor(numbers).view(2, 30) + 1).logits.double()
    expected = np.linalg.svd(logits.log_softmax(2).flatten(0, 1).numpy(), compute_uv=False)
    asked = question.question({"model": "letters.gguf", "text": "text.txt"}, "test")
    result = rank.rank(asked, lambda line: None, place / "export")
    np.testing.assert_allclose(result.spectrum.sigma[:33], expected[:33], rtol=1e-4)
    assert (result.matrix.m, result.matrix.n, result.matrix.width, result.ranks.press.rank) == (60, 50, 32, 33)


def test_prompts_with_two_right_words_are_put_to_a_saved_model(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many at once, by its own tokenizer, as one by one; unk is no word."""
    saved("Llama", place / "model")
    quadruples = [f"{'one' if i % 8 else 'two'},w{i},w{i + 1},w{i + 2},w{i + 3}\n" for i in range(0, 48, 4)]
    (place / "own.csv").write_text("relation,a,b,c,d\n" + "".join(quadruples) + "one,w48,w49,x,y\n", encoding="utf-8")
    monkeypatch.setattr(multi_mode, "ANALOGIES", place / "own.csv")
    asked = question.question({"model": "model", "text": "text.txt", "multi_mode": True, "seconds": 0}, "test")
    monkeypatch.setattr(huggingface, "WINDOW", 200)
    found = rank.rank(asked, lambda line: None, place / "export").multi_mode
    assert (found.quadruples, found.left_out) == (12, ("w48 w49 x y",))
    plain = huggingface.Opened.seen
    rows = []

    def one_by_one(self: huggingface.Opened, ids_BT: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        rows.append(len(ids_BT))
        hidden, logits = zip(*(plain(self, [ids]) for ids in ids_BT), strict=True)
        return np.concatenate(hidden), np.concatenate(logits)

    monkeypatch.setattr(huggingface.Opened, "seen", one_by_one)
    again = rank.rank(asked, lambda line: None, place / "export").multi_mode
    assert max(rows) > 1 and again.diagonal.perplexity == pytest.approx(found.diagonal.perplexity, rel=1e-6)
    assert again.difference.mean == pytest.approx(found.difference.mean, abs=1e-6)


@pytest.mark.tier2
def test_smollm2_has_the_rank_of_its_width(place: Path) -> None:
    """The real one: 577 = d + 1 (it has no bias), 576 centred, and the cliff of a written-out block at 576."""
    found = sorted((Path(__file__).parents[1] / ".venv" / "models").glob("*/SmolLM2-135M*.gguf"))
    if not found:
        pytest.skip("SmolLM2 is not here: make models")
    text = (Path(__file__).parents[1] / "docs" / "own-model.md").read_text(encoding="utf-8")
    Path("text.txt").write_text(text, encoding="utf-8")
    asked = question.question({"model": str(found[0]), "text": "text.txt", "seconds": 0}, "test")
    result = rank.rank(asked, lambda line: None, place / "export")
    assert (result.matrix.n, result.matrix.width, result.ranks.press.rank) == (49_152, 576, 577)
    assert result.measures.centred["both"].press.rank == 576 == result.bound.cliff[0]
    assert 0.0 < result.measures.gradient.energy_mean < result.measures.gradient.norm_mean < 0.5
