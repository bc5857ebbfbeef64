"""`rank --model` on tiny random models of many families, built and saved here; needs transformers (`make models`)."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.own_model import inputs, rank, saved_model
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import read

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install softmax-bottleneck[hf]")
V, D, WINDOW = 61, 8, 30
TEXT = " ".join(f"w{(i * i + 3 * i) % 50}" for i in range(70))
IDS = [int(word[1:]) for word in TEXT.split()]
SIZES = {"hidden_size": D, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": V, "intermediate_size": 16}
GPT = {"n_embd": D, "n_layer": 1, "n_head": 2, "vocab_size": V, "n_positions": 32}
ONE_KEY, TWO_KEYS = SIZES | {"num_key_value_heads": 1}, SIZES | {"num_key_value_heads": 2}
GEMMA = ONE_KEY | {"head_dim": 4, "final_logit_softcapping": 2.0}
MEASURED = "measured"
BOTH_SIDES = "predicts a token from the text on both sides of it"


class Folder(NamedTuple):
    """A saved model: its configuration and options, a change of the folder, and what `rank --model` does.

    `outcome` is MEASURED or the message of the error (exit code 2); `note` is expected among the notes.
    """

    config: str
    options: dict[str, Any]
    outcome: str = MEASURED
    note: str = ""
    saved_as: str = ""  # class, if not the causal one
    dtype: torch.dtype = torch.float32
    change: Callable[[Path], Any] = lambda folder: None


def edit_config(**changed: Any) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        facts = json.loads((folder / "config.json").read_text(encoding="utf-8")) | changed
        (folder / "config.json").write_text(json.dumps(facts), encoding="utf-8")

    return change


def write(name: str, text: str | None) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        for path in list(folder.glob(name)) or [folder / name]:
            path.unlink() if text is None else path.write_text(text, encoding="utf-8")

    return change


def pickled(folder: Path) -> None:
    write("*.safetensors*", None)(folder)
    torch.save({"weight": torch.zeros(2)}, folder / "pytorch_model.bin")


def adapter_only(folder: Path) -> None:
    write("config.json", None)(folder)
    write("adapter_config.json", '{"peft_type": "LORA", "base_model_name_or_path": "somewhere/else"}')(folder)


def with_code(**changed: Any) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        write("modeling_own.py", "from pathlib import Path\nPath('canary').touch()\n")(folder)
        own = {name: f"modeling_own.{name}" for name in ("AutoConfig", "AutoModelForCausalLM")}
        edit_config(auto_map=own, **changed)(folder)

    return change


WORDS_61 = """{"model": {"type": "WordLevel", "vocab": {"w0": 61}, "unk_token": "w0"},
 "pre_tokenizer": {"type": "WhitespaceSplit"}}"""
FOLDERS = {
    "GPT-2": Folder("GPT2Config", GPT),
    "GPT-NeoX": Folder("GPTNeoXConfig", SIZES),
    "Gemma 2": Folder("Gemma2Config", GEMMA | {"query_pre_attn_scalar": 4}, note="logits are capped at 2:"),
    "Granite": Folder("GraniteConfig", TWO_KEYS | {"logits_scaling": 4.0}, note="logits are scaled by 0.25"),
    "Llama": Folder("LlamaConfig", ONE_KEY | {"tie_word_embeddings": False}),
    "Mamba": Folder("MambaConfig", {"hidden_size": D, "num_hidden_layers": 1, "vocab_size": V, "state_size": 4}),
    "OPT with a projection": Folder("OPTConfig", SIZES | {"ffn_dim": 16, "word_embed_proj_dim": 6}),
    "Phi": Folder("PhiConfig", SIZES),  # its output layer has a bias
    "Qwen2": Folder("Qwen2Config", TWO_KEYS | {"tie_word_embeddings": True}),
    "BERT as a decoder": Folder("BertConfig", SIZES | {"is_decoder": True}),
    # --- masked models, and one that permutes
    "BERT": Folder("BertConfig", SIZES, BOTH_SIDES, saved_as="BertForMaskedLM"),
    "DistilBERT": Folder(
        "DistilBertConfig", {"vocab_size": V, "dim": D, "n_layers": 1, "n_heads": 2, "hidden_dim": 16},
        "cannot be loaded", saved_as="DistilBertForMaskedLM",
    ),
    "XLNet": Folder(
        "XLNetConfig", {"vocab_size": V, "d_model": D, "n_layer": 1, "n_head": 2, "d_inner": 16}, BOTH_SIDES
    ),
    # --- models whose own code fails
    "StableLM": Folder("StableLmConfig", SIZES, "StableLmForCausalLM itself fails on this text ("),
    "tokenizer of another model": Folder(
        "LlamaConfig", ONE_KEY, "belong to different models", change=write("tokenizer.json", WORDS_61)
    ),
    # --- ways of saving
    "bf16": Folder("LlamaConfig", ONE_KEY, dtype=torch.bfloat16),
    "fp16": Folder("LlamaConfig", ONE_KEY, dtype=torch.float16),
    "code of a known family": Folder("LlamaConfig", ONE_KEY, change=with_code()),
    "code of its own": Folder("LlamaConfig", ONE_KEY, "cannot be loaded", change=with_code(model_type="unheard")),
    "unknown family": Folder("LlamaConfig", ONE_KEY, "cannot be loaded", change=edit_config(model_type="unheard")),
    "pickles": Folder("LlamaConfig", ONE_KEY, "pickled weights are not read", change=pickled),
    "adapter": Folder("LlamaConfig", ONE_KEY, "no config.json in this folder", change=adapter_only),
    "broken tokenizer": Folder("LlamaConfig", ONE_KEY, "cannot be loaded", change=write("tokenizer.json", "{")),
    "layer missing": Folder(
        "LlamaConfig", ONE_KEY, "config.json and weights disagree: model.layers.1",
        change=edit_config(num_hidden_layers=2),
    ),
}  # fmt: skip
if hasattr(transformers, "Gemma4Config"):  # sees and hears as well: the cap of its text part lies deeper
    deep = {"global_head_dim": 4, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}
    deep = {
        "text_config": GEMMA | deep | {"layer_types": ["full_attention"]}, "vision_config": None, "audio_config": None,
    }  # fmt: skip
    FOLDERS["Gemma 4"] = Folder("Gemma4Config", deep, note="logits are capped at 2:")


def save(name: str) -> Any:
    """Save a random model with large weights (so that caps and softmaxes matter), and a tokenizer of 50 words."""
    row, folder = FOLDERS[name], Path("model")
    torch.manual_seed(len(name))
    config = getattr(transformers, row.config)(**row.options)
    if row.saved_as:
        model = getattr(transformers, row.saved_as)(config).eval()
    else:
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    model.to(row.dtype).save_pretrained(folder, max_shard_size="2KB" if row.config == "LlamaConfig" else "1GB")
    words = {f"w{i}": i for i in range(50)} | {"<unk>": 50}
    raw = {"version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None, "decoder": None,
           "truncation": None, "padding": None, "pre_tokenizer": {"type": "WhitespaceSplit"},
           "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}}  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(raw), encoding="utf-8")
    row.change(folder)
    return model.float()


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(artefacts.os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(saved_model, "WINDOW", WINDOW)
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path


def analyse(**options: Any) -> rank.Result:
    options = {"model": "model", "seconds": 0} | (options or {"text": "text.txt"})
    return rank.rank(read(inputs.Request, options, "test"), lambda line: None, Path("export"))


def own_log_probs(model: Any) -> np.ndarray:
    """The model's own logits in windows of 30 tokens, normalised over the tokenizer's words, by the plain formula."""
    with torch.no_grad():
        windows = [torch.tensor([IDS[start : start + WINDOW]]) for start in range(0, len(IDS), WINDOW)]
        parts = [model(window).logits[0, :, :51].double() for window in windows]
    return torch.cat(parts).log_softmax(1).numpy()


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_measured_or_rejected(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    row, model = FOLDERS[name], save(name)
    if row.outcome != MEASURED:
        assert main(["rank", "--model", "model", "--text", "text.txt", "--out", "out"]) == 2
        (error,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
        assert error.startswith("error: model") and row.outcome in error and not Path("out/rank.json").exists()
    else:
        log_p, result = own_log_probs(model), analyse()
        expected, sigma = np.linalg.svd(log_p, compute_uv=False), result.spectrum.with_zeros()
        np.testing.assert_allclose(sigma, expected[: len(sigma)], atol=2e-6 * expected[0])
        assert (result.matrix.m, result.matrix.n) == (70, 51)
        assert result.matrix.head[0] == ("softcap" if "capped" in row.note else "softmax")
        inside = [i for i in range(1, 70) if i % WINDOW]  # the first token of a window is not predicted
        perplexity = np.exp(-np.mean([log_p[i - 1, IDS[i]] for i in inside]))
        (found,) = (re.match(r"perplexity ([\d.]+) on 67 tokens", note) for note in result.notes if "perpl" in note)
        assert float(found[1]) == pytest.approx(perplexity, rel=1e-3, abs=0.006)
        notes = " | ".join(result.notes)
        assert "10 rows of the output matrix are padding" in notes and row.note in notes
        assert ("scaled" in notes) == ("scaled" in row.note)
    assert not Path("canary").exists()


def test_unargmaxable_words_are_named() -> None:
    """Many words in few dimensions: some are unargmaxable; the counts are those of `words_that_win`."""
    save("Llama")
    result = analyse(text="text.txt", seconds=60)
    never = [f"'w{word}'" if word < 50 else "'<unk>'" for word in result.measures.words.never]
    assert never and f"unargmaxable: {', '.join(never)}" in result.notes


@pytest.mark.parametrize(
    ("data", "message"), [(None, "no such file"), (b"\x8b", "not UTF-8"), (b"w1", "fewer than two")]
)
def test_a_text_that_cannot_be_read_is_one_line(data: bytes | None, message: str, capsys) -> None:
    save("Llama")
    Path("text.txt").unlink() if data is None else Path("text.txt").write_bytes(data)
    assert main(["rank", "--model", "model", "--text", "text.txt", "--out", "out"]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_logits_of_an_unknown_kind_are_rejected() -> None:
    plain = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    with pytest.raises(UserError, match=r"not W h \+ b.*: the closest of these differs by .*--log-probs"):
        saved_model.OutputRule(scale=2.0).require_equal(plain, plain**3, Path("model"))


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
    heights = {
        "attn_q": 32, "attn_k": 16, "attn_v": 16, "attn_output": 32, "ffn_gate": 32, "ffn_up": 32, "ffn_down": 32,
    }  # fmt: skip
    shapes |= {f"blk.0.{name}": (height, 32) for name, height in heights.items()}
    shapes |= {f"blk.0.{name}": (32,) for name in ("attn_norm", "ffn_norm")}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
    numbers = [(i * i + 3 * i) % 43 + 2 for i in range(60)]
    Path("text.txt").write_text("".join(letters[i] for i in numbers), encoding="utf-8")
    model = transformers.AutoModelForCausalLM.from_pretrained(place, gguf_file="letters.gguf", dtype=torch.float32)
    with torch.no_grad():
        logits = model.eval()(torch.tensor(numbers).view(2, 30) + 1).logits.double()
    expected = np.linalg.svd(logits.log_softmax(2).flatten(0, 1).numpy(), compute_uv=False)
    result = analyse(model="letters.gguf", text="text.txt")
    np.testing.assert_allclose(result.spectrum.sigma[:33], expected[:33], rtol=1e-4)
    assert (result.matrix.m, result.matrix.n, result.matrix.width, result.ranks.press.rank) == (60, 50, 32, 33)


@pytest.mark.tier2
def test_smollm2_has_the_rank_of_its_width() -> None:
    """577 = d + 1 (it has no bias), 576 centred, and the cliff of a written-out block at 576."""
    root = Path(__file__).parents[2]
    files = sorted((root / ".venv" / "models").glob("*/SmolLM2-135M*.gguf"))
    if not files:
        pytest.skip("SmolLM2 is not here: make models")
    Path("text.txt").write_text((root / "docs" / "own-model.md").read_text(encoding="utf-8"), encoding="utf-8")
    result = analyse(model=str(files[0]), text="text.txt")
    assert (result.matrix.n, result.matrix.width, result.ranks.press.rank) == (49_152, 576, 577)
    assert result.measures.centred["both"].press.rank == 576 == result.bound.cliff[0]
    assert 0.0 < result.measures.gradient.energy_mean < result.measures.gradient.norm_mean < 0.5
