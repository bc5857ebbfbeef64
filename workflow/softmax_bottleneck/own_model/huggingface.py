"""A language model from a Hugging Face folder or a GGUF file: what enters its output matrix, written to files.

Hidden states are those that a hook on the output matrix sees, so that the last normalisation, tied weights and
projections of any architecture come right. How the model makes its logits of them is found out and checked against its
own: W h + b, that times a number, or that capped; anything else is refused. Nothing is fetched, no code of a folder is
run, nothing is unpickled.

Suffixes: B rows of tokens, T tokens of a window, R some of them, V words, D width.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.corpora.archives import damage_refused
from softmax_bottleneck.jobs.out_of_memory import as_out_of_memory_error
from softmax_bottleneck.own_model.matrix import slices
from softmax_bottleneck.own_model.question import Question
from softmax_bottleneck.own_model.shards import Floats
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError, UserError
from softmax_bottleneck.store.progress import Say

WINDOW = 512  # tokens that are read at once, without what stood before them
CAUSAL_TOKENS = 32  # tokens of the text on which `require_causal` tries a model
TOLERANCE = 1e-4  # of the largest logit: how far W h + b may be from the model's own
PART = re.compile(r"(.+-)[0-9]{5}-of-([0-9]{5})[.]safetensors")
CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")  # keys of Gemma 2, RecurrentGemma, xLSTM
PADDING = "{} rows of the output matrix are padding, of no token, and left out"
NOT_CAUSAL = (
    "predicts a token from the text on both sides of it, so its contexts have no next token; give a causal model"
)
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

    def notes(self) -> list[str]:
        """What a reader must know of it."""
        scaled = [f"logits are scaled by {self.scale:.6g}"] if self.scale != 1 else []
        capped = [f"logits are capped at {self.cap:g}: the width does not bound their rank"] if self.cap else []
        return scaled + capped


@dataclass(frozen=True)
class Opened:
    """A model in memory, and the text that it is to read.

    Attributes:
        path: its folder or file.
        layer: its output matrix.
        words: rows of that which are of a token; those beyond are padding.
        window: tokens that it reads at once, in any number of rows.
    """

    path: Path
    text: str
    torch: Any
    model: Any
    tokenizer: Any
    layer: Any
    words: int
    window: int

    def token_ids(self, text: str) -> list[int]:
        """A text in tokens (DataError where the model has no vector for one)."""
        ids: list[int] = self.tokenizer.encode(text).ids
        vectors = len(self.model.get_input_embeddings().weight)
        if max(ids, default=0) >= vectors:
            fault = f"{self.path}: the tokenizer's token {max(ids)} is none of the model's {vectors}"
            raise DataError(f"{fault}; save the model with its own tokenizer")
        return ids

    def seen(self, ids_BT: Sequence[Sequence[int]]) -> tuple[Floats, Floats]:
        """What enters the output matrix [B, T, D], and the model's logits [B, T, V], of B rows of T tokens."""
        caught: list[Any] = []
        hook = self.layer.register_forward_pre_hook(lambda module, given: caught.append(given[0]))
        try:
            with self.torch.inference_mode():
                logits = self.model(input_ids=self.torch.tensor(ids_BT), use_cache=False).logits
        except Exception as error:  # a family's code may raise anything
            if as_out_of_memory_error(error, self.path):
                raise
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            message = f"{self.path}: {type(self.model).__name__} itself fails on this text ({reason})"
            raise UserError(f"{message}; try another version of transformers, or another text") from error
        finally:
            hook.remove()
        return caught[0].float().numpy(), logits.float().numpy()

    def require_causal(self) -> None:
        """Raise UserError if logits change with the tokens that follow their context."""
        ids = self.token_ids(self.text)[: min(self.window, CAUSAL_TOKENS)]
        half = len(ids) // 2
        if half == 0:
            return  # a text too short is refused where its windows are made
        vectors = min(self.words, len(self.model.get_input_embeddings().weight))
        other_ids = ids[:half] + [(token + 1) % vectors for token in ids[half:]]
        logits_TV, other_TV = (self.seen([tokens])[1][0, :half] for tokens in (ids, other_ids))
        if np.abs(logits_TV - other_TV).max() > TOLERANCE * max(float(np.abs(logits_TV).max()), 1.0):
            raise UserError(f"{self.path}: {type(self.model).__name__} {NOT_CAUSAL}")


def open_model(asked: Question) -> Opened:
    """The model and the text asked about.

    Raises:
        UserError, DataError: one that is not there, is damaged, is not causal, needs code of its own or the network.
    """
    assert asked.model is not None and asked.text is not None
    path, text = Path(asked.model), _read_text(Path(asked.text))
    torch, model, tokenizer = _loaded(path, require_loadable(path))
    layer = model.get_output_embeddings()
    if layer is None or not hasattr(layer, "weight"):
        raise UserError(f"{path}: {type(model).__name__} has no output matrix; {ADVICE}")
    words = min(max(tokenizer.get_vocab().values()) + 1, len(layer.weight))
    most = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    window = min(WINDOW, most) if most and most > 0 else WINDOW  # XLNet says -1: as many as there are
    opened = Opened(path, text, torch, model, tokenizer, layer, words, window)
    opened.require_causal()
    return opened


def exported(asked: Question, opened: Opened, folder: Path, say: Say) -> tuple[Question, list[str], list[str]]:
    """The same question about files: hidden states of the text and the output layer, written to `folder`.

    With it notes, and the tokens in the order of their numbers.

    Raises:
        UserError, DataError: a text too short, or a model that makes its logits in a way that is not known.
    """
    shutil.rmtree(folder, ignore_errors=True)
    path, layer, words = opened.path, opened.layer, opened.words
    weight_VD = layer.weight.detach().float().numpy()[:words]
    bias = getattr(layer, "bias", None)
    bias_V = np.zeros(words, np.float32) if bias is None else bias.detach().float().numpy()[:words]
    targets: list[int] = []
    rule: OutputRule | None = None
    nats = 0.0
    config = opened.model.config.get_text_config(decoder=True)  # of a model that sees or hears as well
    cap = next(filter(None, (getattr(config, name, None) for name in CAPS)), None)
    windows = list(_windows(opened.token_ids(opened.text), opened.window))
    for number, ids in enumerate(windows, start=1):
        hidden_TD, logits_TV = (rows_1T[0] for rows_1T in opened.seen([ids]))
        following_T = np.array([*(word if word < words else -1 for word in ids[1:]), -1])
        for rows in slices(len(ids), words):  # logits of a window may be half a gigabyte
            plain_RV, logits_RV = hidden_TD[rows] @ weight_VD.T + bias_V, logits_TV[rows, :words]
            rule = rule or _rule_of(plain_RV, logits_RV, cap, path)
            _require_equal(rule.logits(plain_RV), logits_RV, path)
            nats += _loss(logits_RV, following_T[rows])
        assert rule is not None  # a window has rows
        artefacts.write_npy(folder / f"hidden-{number}.npy", np.float32(rule.scale) * hidden_TD)
        targets += following_T.tolist()
        say(f"{number} of {len(windows)} windows of {len(windows[0])} tokens")
    assert rule is not None  # there is a window
    artefacts.write_npy(folder / "weight.npy", weight_VD)
    artefacts.write_npy(folder / "bias.npy", np.float32(rule.scale) * bias_V)
    artefacts.write_npy(folder / "targets.npy", np.array(targets, np.int64))
    padding, predicted = len(layer.weight) - words, sum(word >= 0 for word in targets)
    notes = [f"perplexity {math.exp(nats / predicted):.2f} on {predicted} tokens, in windows of {len(windows[0])}"]
    notes += [*([PADDING.format(padding)] if padding else []), *rule.notes()]
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
    return files, notes, [str(opened.tokenizer.id_to_token(number)) for number in range(words)]


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        words = getattr(error, "strerror", None) or "not UTF-8"
        raise UserError(f"{path}: cannot be read ({words}); give a text file in UTF-8") from None


# --- loading --------------------------------------------------------------------------------------------------------
def require_loadable(path: Path, with_text: bool = True) -> dict[str, Any]:
    """A model's configuration; refused is what transformers would fetch, run, unpickle or fill with random numbers.

    Raises:
        UserError, DataError: naming what is missing or damaged. A GGUF file is not looked into.
    """
    if path.suffix == ".gguf" and path.is_file():
        return {}
    if not path.is_dir():
        raise UserError(f"{path}: no such folder; give one of this machine, or a .gguf file: nothing is fetched")
    needed = ["config.json", *(["tokenizer.json"] if with_text else [])]
    for name in needed:
        if not (path / name).is_file():
            raise UserError(f"{path}: no {name} in it; save the model with it (save_pretrained)")
    with damage_refused(f"{path / 'config.json'}: not sound", "save the model again"):
        facts: dict[str, Any] = json.loads((path / "config.json").read_text(encoding="utf-8"))
        shards = _shards(path)
    missing = sorted(name for name in shards if not (path / name).is_file())
    if missing:
        raise DataError(f"{path}: {missing[0]} is missing ({len(missing)} of {len(shards)} shards); copy it there")
    if not list(path.glob("*.safetensors")):
        raise UserError(f"{path}: no .safetensors in it; pickled weights are not read: save it with save_pretrained")
    if with_text and shards and not [*path.glob("model.safetensors"), *path.glob("*.index.json")]:
        raise UserError(f"{path}: no model.safetensors.index.json in it; copy it there, or ask with --weights-only")
    return facts


def _shards(path: Path) -> set[str]:
    """Names of the shards that an index, or the name of one of them (00001-of-00003), says there are."""
    indices = [json.loads(index.read_text(encoding="utf-8")) for index in path.glob("*.safetensors.index.json")]
    names = {Path(name).name for index in indices for name in index["weight_map"].values()}
    for part in filter(None, (PART.fullmatch(file.name) for file in path.glob("*.safetensors"))):
        names |= {f"{part[1]}{number:05}-of-{part[2]}.safetensors" for number in range(1, int(part[2]) + 1)}
    return names


def _loaded(path: Path, facts: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Torch, the model in float32, and its tokenizer; `facts` are its configuration."""
    # Before the imports that read them.
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TQDM_DISABLE": "1"}
    try:
        import tokenizers
        import torch
        import transformers
    except ImportError as error:
        raise UserError(f"{path}: needs {error.name}, which is not installed: pip install transformers") from None
    if "auto_map" in facts and facts.get("model_type") not in transformers.CONFIG_MAPPING:
        raise UserError(f"{path}: needs code of its own (auto_map), which is not run; {ADVICE}")
    masked = [name for name in facts.get("architectures") or () if str(name).endswith("ForMaskedLM")]
    if masked and not facts.get("is_decoder"):
        raise UserError(f"{path}: {masked[0]} {NOT_CAUSAL}")
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
def _windows(ids: list[int], size: int) -> Iterator[list[int]]:
    """Token ids in stretches that the model can read, of two at least."""
    stretches = [ids[start : start + size] for start in range(0, len(ids), size)]
    if len(stretches[0] if stretches else []) < 2:
        raise UserError("--text: fewer than two tokens; give a longer text")
    yield from (stretch for stretch in stretches if len(stretch) > 1)


def _rule_of(plain_RV: Floats, logits_RV: Floats, cap: float | None, path: Path) -> OutputRule:
    """How a model makes its logits of W h + b; `cap` is what its configuration says."""
    scale = float((plain_RV * logits_RV).sum() / (plain_RV * plain_RV).sum())
    rules = [OutputRule(cap=cap), OutputRule()]
    if abs(scale - 1) > TOLERANCE:  # else it would fit rounding errors
        rules.append(OutputRule(scale=scale))
    distances = [np.abs(rule.logits(plain_RV) - logits_RV).max() for rule in rules]
    best = rules[int(np.argmin(distances))]
    _require_equal(best.logits(plain_RV), logits_RV, path)
    return best


def _require_equal(made_RV: Floats, own_RV: Floats, path: Path) -> None:
    distance, largest = float(np.abs(made_RV - own_RV).max()), float(np.abs(own_RV).max())
    if not distance <= TOLERANCE * max(largest, 1.0):
        raise UserError(
            f"{path}: its logits are neither W h + b nor that scaled or capped: they differ by {distance:.3g}"
            f" (largest logit {largest:.3g}); {ADVICE}"
        )


def _loss(logits_RV: Floats, target_R: NDArray[np.int64]) -> float:
    """Sum of -ln P(target), nats, of the rows that have one (-1: none)."""
    logits_RV, target_R = logits_RV[target_R >= 0], target_R[target_R >= 0]
    largest_R1 = logits_RV.max(1, keepdims=True)
    log_z_R = np.log(np.exp((logits_RV - largest_R1).astype(np.float64)).sum(1)) + largest_R1[:, 0]
    return float((log_z_R - logits_RV[np.arange(len(target_R)), target_R]).sum())
