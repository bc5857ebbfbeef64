"""A language model from a Hugging Face folder or a GGUF file: what enters its output matrix, written to files.

Hidden states are those that a hook on the output matrix sees, so that the last normalisation, tied weights and
projections of any architecture come right. How the model makes its logits of them is found out and checked against its
own: W h + b, that times a number, or that capped; anything else is refused. Nothing is fetched, no code of a folder is
run, nothing is unpickled.

Suffixes: T tokens of a window, V words, D width.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from softmax_bottleneck.corpora.archives import damage_refused
from softmax_bottleneck.own_model.question import Question
from softmax_bottleneck.own_model.shards import Floats
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError, UserError
from softmax_bottleneck.store.progress import Say

WINDOW = 512  # tokens that are read at once, without what stood before them
TOLERANCE = 1e-4  # of the largest logit: how far W h + b may be from the model's own
ADVICE = "log-probabilities of any model can be given as --log-probs"


@dataclass(frozen=True)
class OutputRule:
    """Logits are g(scale (W h + b)): g is the identity, or cap tanh(x / cap)."""

    scale: float = 1.0
    cap: float | None = None

    def logits(self, plain_TV: Floats) -> Floats:
        """The model's logits of W h + b."""
        scaled_TV = self.scale * plain_TV
        return scaled_TV if self.cap is None else self.cap * np.tanh(scaled_TV / self.cap)


def exported(asked: Question, folder: Path, say: Say) -> tuple[Question, list[str]]:
    """The same question about files: hidden states of the text and the output layer, written to `folder`; and notes.

    Raises:
        UserError, DataError: a model or text that is not there, is damaged, needs code of its own or the network, or
            makes its logits in a way that is not known.
    """
    assert asked.model is not None and asked.text is not None
    path, text = Path(asked.model), _read_text(Path(asked.text))
    require_loadable(path)
    torch, model, tokenizer = _loaded(path)
    shutil.rmtree(folder, ignore_errors=True)
    layer = model.get_output_embeddings()
    if layer is None or not hasattr(layer, "weight"):
        raise UserError(f"{path}: {type(model).__name__} has no output matrix; {ADVICE}")
    words = min(max(tokenizer.get_vocab().values()) + 1, len(layer.weight))  # rows beyond are padding
    weight_VD = layer.weight.detach().float().numpy()[:words]
    bias = getattr(layer, "bias", None)
    bias_V = np.zeros(words, np.float32) if bias is None else bias.detach().float().numpy()[:words]
    targets: list[int] = []
    rule: OutputRule | None = None
    nats, predicted = 0.0, 0
    windows = list(_windows(tokenizer.encode(text).ids, model.config))
    for number, ids in enumerate(windows, start=1):
        hidden_TD, logits_TV = _seen(torch, model, layer, ids)
        plain_TV, logits_TV = hidden_TD @ weight_VD.T + bias_V, logits_TV[:, :words]
        rule = rule or _rule_of(plain_TV, logits_TV, _cap(model.config), path)
        _require_equal(rule.logits(plain_TV), logits_TV, path)
        artefacts.write_npy(folder / f"hidden-{number}.npy", np.float32(rule.scale) * hidden_TD)
        nats += float(_losses(logits_TV[:-1], ids[1:]).sum())
        predicted += len(ids) - 1
        targets += [*(word if word < words else -1 for word in ids[1:]), -1]
        say(f"{number} of {len(windows)} windows of {len(windows[0])} tokens")
    assert rule is not None  # there is a window, and so a rule
    artefacts.write_npy(folder / "weight.npy", weight_VD)
    artefacts.write_npy(folder / "bias.npy", np.float32(rule.scale) * bias_V)
    artefacts.write_npy(folder / "targets.npy", np.array(targets, np.int64))
    padding = len(layer.weight) - words
    notes = [f"perplexity {math.exp(nats / predicted):.2f} on {predicted} tokens, in windows of {len(windows[0])}"]
    if padding:
        notes.append(f"{padding} rows of the output matrix are padding, of no token, and left out")
    if rule.scale != 1:
        notes.append(f"logits are scaled by {rule.scale:.6g}")
    files = replace(
        asked,
        model=None,
        text=None,
        hidden=(str(folder / "hidden-*.npy"),),
        weight=(str(folder / "weight.npy"),),
        bias=str(folder / "bias.npy") if bias is not None else None,
        targets=str(folder / "targets.npy"),
        head="softmax" if rule.cap is None else f"softcap:c={rule.cap}",
    )
    return files, notes


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        words = getattr(error, "strerror", None) or "not UTF-8"
        raise UserError(f"{path}: cannot be read ({words}); give a text file in UTF-8") from None


# --- loading --------------------------------------------------------------------------------------------------------
def require_loadable(path: Path, with_text: bool = True) -> None:
    """Refuse what transformers would fetch, run, unpickle or fill up with random numbers (UserError, DataError)."""
    if path.suffix == ".gguf" and path.is_file():
        return
    if not path.is_dir():
        raise UserError(f"{path}: no such folder; give one of this machine, or a .gguf file: nothing is fetched")
    needed = ["config.json", *(["tokenizer.json"] if with_text else [])]
    for name in needed:
        if not (path / name).is_file():
            raise UserError(f"{path}: no {name} in it; save the model with it (save_pretrained)")
    with damage_refused(f"{path / 'config.json'}: not sound", "save the model again"):
        facts = json.loads((path / "config.json").read_text(encoding="utf-8"))
        own_code = "auto_map" in facts
        shards = {name for index in path.glob("*.safetensors.index.json") for name in _shards(index)}
    if own_code:
        raise UserError(f"{path}: needs code of its own (auto_map), which is not run; {ADVICE}")
    missing = sorted(name for name in shards if not (path / name).is_file())
    if missing:
        raise DataError(f"{path}: {missing[0]} is missing ({len(missing)} of {len(shards)} shards); copy it there")
    if not list(path.glob("*.safetensors")):
        raise UserError(f"{path}: no .safetensors in it; pickled weights are not read: save it with save_pretrained")


def _shards(index: Path) -> set[str]:
    return {Path(name).name for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}


def _loaded(path: Path) -> tuple[Any, Any, Any]:
    """Torch, the model in float32, and its tokenizer."""
    # Before the imports that read them.
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TQDM_DISABLE": "1"}
    try:
        import tokenizers
        import torch
        import transformers
    except ImportError as error:
        raise UserError(f"{path}: needs {error.name}, which is not installed: pip install transformers") from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    folder = path
    given: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    with damage_refused(f"{path}: cannot be loaded", "save the model again, or with another version of transformers"):
        if path.suffix == ".gguf":
            folder, given = path.parent, given | {"gguf_file": path.name}
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **given).backend_tokenizer
        else:  # as the file says, whatever class the family has
            tokenizer = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True, use_safetensors=True, **given
        )
    wrong = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
    if wrong:
        raise DataError(f"{path}: config.json and weights disagree: {wrong[0]} and {len(wrong) - 1} more are not there")
    return torch, model.eval(), tokenizer


# --- running --------------------------------------------------------------------------------------------------------
def _windows(ids: list[int], config: Any) -> Iterator[list[int]]:
    """Token ids in stretches that the model can read, of two at least."""
    size = min(WINDOW, getattr(config, "max_position_embeddings", None) or WINDOW)
    stretches = [ids[start : start + size] for start in range(0, len(ids), size)]
    if len(stretches[0] if stretches else []) < 2:
        raise UserError("--text: fewer than two tokens; give a longer text")
    yield from (stretch for stretch in stretches if len(stretch) > 1)


def _seen(torch: Any, model: Any, layer: Any, ids: list[int]) -> tuple[Floats, Floats]:
    """What enters the output matrix [T, D], and the model's logits [T, V]."""
    caught: list[Any] = []
    hook = layer.register_forward_pre_hook(lambda module, given: caught.append(given[0]))
    try:
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits
    finally:
        hook.remove()
    return caught[0][0].float().numpy(), logits[0].float().numpy()


def _cap(config: Any) -> float | None:
    return getattr(config, "final_logit_softcapping", None) or None


def _rule_of(plain_TV: Floats, logits_TV: Floats, cap: float | None, path: Path) -> OutputRule:
    """How a model makes its logits of W h + b."""
    scale = float((plain_TV * logits_TV).sum() / (plain_TV * plain_TV).sum())
    rules = [OutputRule(), OutputRule(cap=cap), OutputRule(scale=scale)]
    distances = [np.abs(rule.logits(plain_TV) - logits_TV).max() for rule in rules]
    best = rules[int(np.argmin(distances))]
    _require_equal(best.logits(plain_TV), logits_TV, path)
    return best


def _require_equal(made_TV: Floats, own_TV: Floats, path: Path) -> None:
    distance, largest = float(np.abs(made_TV - own_TV).max()), float(np.abs(own_TV).max())
    if not distance <= TOLERANCE * max(largest, 1.0):
        raise UserError(
            f"{path}: its logits are neither W h + b nor that scaled or capped: they differ by {distance:.3g}"
            f" (largest logit {largest:.3g}); {ADVICE}"
        )


def _losses(logits_TV: Floats, targets: list[int]) -> Floats:
    """-ln P(target) [T], nats."""
    largest_T1 = logits_TV.max(1, keepdims=True)
    log_z_T = np.log(np.exp((logits_TV - largest_T1).astype(np.float64)).sum(1)) + largest_T1[:, 0]
    losses_T: Floats = log_z_T - logits_TV[np.arange(len(targets)), targets]
    return losses_T
