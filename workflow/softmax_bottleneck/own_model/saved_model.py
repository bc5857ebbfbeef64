"""Export of the output layer and its inputs from a language model in a Hugging Face folder or a GGUF file.

The hidden states are the inputs of the output matrix, which a hook records. The model's own code computes them, so the
final normalisation and projections of any architecture are already applied. The rule by which the model computes its
logits from them is inferred and checked against the model's own logits. Three rules are supported: W h + b, a constant
times W h + b, and W h + b with a soft cap. Any other rule raises an error. Nothing is downloaded or unpickled, and no
code from a model folder is executed.

Suffixes: B rows of tokens, T tokens of a window, R a selection of positions, V words, D width.
"""

import json
import math
import os
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from softmax_bottleneck.corpora.archives import damage_refused
from softmax_bottleneck.own_model.inputs import Floats, Request
from softmax_bottleneck.own_model.log_probs import slices
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError, UserError
from softmax_bottleneck.store.progress import Say

WINDOW = 512  # tokens that are read at once, without the text before them
CAUSAL_TOKENS = 32  # tokens of the text on which `open_model` checks that a model is causal
TOLERANCE = 1e-4  # largest accepted difference from the model's own logits, relative to the largest logit
CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")  # keys of Gemma 2, RecurrentGemma, xLSTM
PADDING = "{} rows of the output matrix are padding, of no token, and left out"
NOT_CAUSAL = (
    "predicts a token from the text on both sides of it, so its contexts have no next token; give a causal model"
)
ADVICE = "log-probabilities of any model can be given as --log-probs"


class Export(NamedTuple):
    """The arrays to analyse, with the facts about the model from which they were exported.

    Attributes:
        request: the options of the command, with the files of the exported arrays in place of `model` and `text`.
        notes: remarks on the export, such as the perplexity on the text.
        tokens: list of tokens, in which a token's index is its id.

    If the user gave arrays, nothing is exported: `request` is unchanged, and `notes` and `tokens` are empty.
    """

    request: Request
    notes: list[str]
    tokens: list[str]


@dataclass(frozen=True)
class OutputRule:
    """A rule that computes logits from an output matrix W, a hidden state h and a bias b: g(scale (W h + b)).

    The function g is the soft cap g(x) = cap tanh(x / cap), or the identity if `cap` is None.
    """

    scale: float = 1.0
    cap: float | None = None

    def logits(self, plain_TV: Floats) -> Floats:
        """Return the logits that this rule gives for W h + b."""
        scaled_TV = self.scale * plain_TV
        return scaled_TV if self.cap is None else self.cap * np.tanh(scaled_TV / self.cap)

    def require_equal(self, plain_RV: Floats, logits_RV: Floats, path: Path) -> None:
        """Check that this rule gives the logits that the model itself computes.

        Args:
            plain_RV: W h + b at a selection of positions.
            logits_RV: the model's logits at these positions.
            path: the model, for the error message.

        Raises:
            UserError: a logit differs by more than TOLERANCE max(1, |largest logit|).
        """
        distance = float(np.abs(self.logits(plain_RV) - logits_RV).max())
        largest = float(np.abs(logits_RV).max())
        if not distance <= TOLERANCE * max(largest, 1.0):
            problem = "its logits are not W h + b, scaled W h + b or soft-capped W h + b"
            closest = f"the closest of these differs by {distance:.3g} (largest logit {largest:.3g})"
            raise UserError(f"{path}: {problem}: {closest}; {ADVICE}")


@dataclass(frozen=True)
class OpenModel:
    """A model in memory.

    Attributes:
        path: folder or file of the model.
        torch: the module torch, which is imported only when a model is loaded.
        model: the transformers model, in float32.
        tokenizer: its tokenizer, an object of the library `tokenizers`.
        layer: the model's output layer, a torch module whose `weight` is the output matrix.
        words: number of rows of the output matrix that belong to a token; all further rows are padding.
        window: number of tokens that are given to the model at once: the model's limit, and at most WINDOW.
        cap: bound of the soft cap on the logits in the model's configuration (None: no cap).
    """

    path: Path
    torch: Any
    model: Any
    tokenizer: Any
    layer: Any
    words: int
    window: int
    cap: float | None = None

    def run(self, ids_BT: Sequence[Sequence[int]]) -> tuple[Floats, Floats]:
        """Return the input of the output matrix [B, T, D] and the model's logits [B, T, V] for B rows of T tokens.

        Raises:
            DataError: the model's own code fails on these tokens, or gives numbers that are nan.
        """
        inputs: list[Any] = []
        fault = f"{self.path}: {type(self.model).__name__} itself fails on this text"
        hook = self.layer.register_forward_pre_hook(lambda module, values: inputs.append(values[0]))
        with damage_refused(fault, "try another version of transformers, or another text"), self.torch.inference_mode():
            logits = self.model(input_ids=self.torch.tensor(ids_BT), use_cache=False).logits
        hook.remove()
        hidden_BTD, logits_BTV = inputs[0].float().numpy(), logits.float().numpy()
        if np.isnan(hidden_BTD).any() or np.isnan(logits_BTV).any():
            problem = "its logits on this text are nan: a weight is nan, or numbers overflow in float32"
            raise DataError(f"{self.path}: {problem}. Save it again from a training without nan")
        return hidden_BTD, logits_BTV


# --- the output layer with hidden states of a text ------------------------------------------------------------------
def export_layer(request: Request, folder: Path, say: Say) -> Export:
    """Run a model on a text, write the arrays for an analysis to `folder`, and return an `Export` that names the files.

    Arrays of an earlier export, which have a hash beside them, are deleted first. The written files are:
        hidden-<number>.npy   hidden states [T, D], one file per window of T tokens
        targets.npy           the next token's id at every position; -1 at the end of a window, or if it has no row in W
        weight.npy, bias.npy  W [V, D] and b [V]; no bias.npy if the layer has no bias

    If the logits are a constant times W h + b, the written hidden states and bias are multiplied by this constant.
    `model` and `text` of `request` are paths; `say` prints a line of progress.

    Raises:
        UserError: text, model, a library or the output matrix is missing, or no supported rule gives the logits.
        DataError: the text is not UTF-8, a file of the model is damaged, or the model cannot be loaded or run.
    """
    assert request.model is not None and request.text is not None
    text = _read_text(Path(request.text))
    opened = open_model(Path(request.model), text)
    ids: list[int] = opened.tokenizer.encode(text).ids
    windows = [ids[start : start + opened.window] for start in range(0, len(ids) - 1, opened.window)]  # of two or more
    if not windows:
        raise UserError("--text: fewer than two tokens; give a longer text")
    for mark in sorted(folder.glob("*.npy.sha256")):
        artefacts.remove(mark.with_suffix(""))
    words, bias = opened.words, getattr(opened.layer, "bias", None)
    weight_VD = opened.layer.weight.detach().float().numpy()[:words]
    bias_V = np.zeros(words, np.float32) if bias is None else bias.detach().float().numpy()[:words]
    targets, nats, rule = list[int](), 0.0, None
    for number, window in enumerate(windows, start=1):
        hidden_TD, logits_TV = (rows_1T[0] for rows_1T in opened.run([window]))
        target_T = np.array([*(token if token < words else -1 for token in window[1:]), -1])
        for rows in slices(len(window), words):  # logits of a window may be half a gigabyte
            plain_RV, logits_RV = hidden_TD[rows] @ weight_VD.T + bias_V, logits_TV[rows, :words]
            rule = rule or _infer_rule(plain_RV, logits_RV, opened)
            rule.require_equal(plain_RV, logits_RV, opened.path)
            known = target_T[rows] >= 0  # -1: no target
            target_R, known_RV = target_T[rows][known], logits_RV[known].astype(np.float64)
            nats += float((special.logsumexp(known_RV, 1) - known_RV[np.arange(len(target_R)), target_R]).sum())
        assert rule is not None  # a window has rows
        artefacts.write_npy(folder / f"hidden-{number}.npy", np.float32(rule.scale) * hidden_TD)
        targets += target_T.tolist()
        say(f"{number} of {len(windows)} windows of {len(windows[0])} tokens")
    assert rule is not None
    written = {"weight": weight_VD, "targets": np.array(targets, np.int64)}
    written |= {} if bias is None else {"bias": np.float32(rule.scale) * bias_V}
    for name, values in written.items():
        artefacts.write_npy(folder / f"{name}.npy", values)
    padding, predicted = len(opened.layer.weight) - words, sum(target >= 0 for target in targets)
    notes = [f"perplexity {math.exp(nats / predicted):.2f} on {predicted} tokens, in windows of {len(windows[0])}"]
    notes += [PADDING.format(padding)] if padding else []
    notes += [f"logits are scaled by {rule.scale:.6g}"] if rule.scale != 1 else []
    notes += [f"logits are capped at {rule.cap:g}: the width does not bound their rank"] if rule.cap else []
    files: dict[str, Any] = {name: str(folder / f"{name}.npy") for name in written}
    files |= {"hidden": tuple(f"{folder}/hidden-{i}.npy" for i in range(1, number + 1)), "weight": (files["weight"],)}
    head = "softmax" if rule.cap is None else f"softcap:c={rule.cap}"
    tokens = [str(opened.tokenizer.id_to_token(number)) for number in range(words)]
    return Export(replace(request, model=None, text=None, head=head, **files), notes, tokens)


def _read_text(path: Path) -> str:
    if not path.is_file():
        raise UserError(f"{path}: no such file; give a text file in UTF-8")
    with damage_refused(f"{path}: not UTF-8", "give a text file in UTF-8"):
        text = path.read_text(encoding="utf-8-sig")  # a byte-order mark is no token
    return text


def _infer_rule(plain_RV: Floats, logits_RV: Floats, opened: OpenModel) -> OutputRule:
    """Return the candidate rule whose logits are closest to the model's, even if they are not close.

    The caller must therefore call the rule's method `require_equal`, which raises an error if the logits differ too
    much. The candidates are W h + b, the soft cap of the model's configuration applied to W h + b, and a constant times
    W h + b. The constant is fitted by least squares.

    Args:
        plain_RV: W h + b at a selection of positions.
        logits_RV: the model's logits at these positions.
        opened: the model, for its soft cap.
    """
    scale = float((plain_RV * logits_RV).sum() / (plain_RV * plain_RV).sum())
    rules = [OutputRule(cap=opened.cap), OutputRule()]
    if abs(scale - 1) > TOLERANCE:  # else it would fit rounding errors
        rules.append(OutputRule(scale=scale))
    return min(rules, key=lambda rule: float(np.abs(rule.logits(plain_RV) - logits_RV).max()))


# --- loading --------------------------------------------------------------------------------------------------------
def open_model(path: Path, text: str) -> OpenModel:
    """Load a model in float32 from a folder or .gguf file, and check that it is causal.

    The check runs the model on the first tokens of `text` (at most CAUSAL_TOKENS), and again with their second half
    changed: the logits of the first half must stay the same. A text of fewer than two tokens is not checked.

    Raises:
        UserError: the model or a library is missing, the model is not causal, or it has no output matrix.
        DataError: a file of the model is missing or damaged, the model cannot be loaded (e.g. needs its own code), or
            the tokenizer is of another model.
    """
    if path.suffix != ".gguf" or not path.is_file():
        _require_loadable(path)
    with redirect_stdout(None):  # transformers prints messages about its own docstrings
        torch, model, tokenizer = _load(path)
    layer = model.get_output_embeddings()
    if layer is None or not hasattr(layer, "weight"):
        raise UserError(f"{path}: {type(model).__name__} has no output matrix; {ADVICE}")
    words = min(max(tokenizer.get_vocab().values()) + 1, len(layer.weight))
    of_text = model.config.get_text_config(decoder=True)  # multimodal models have a configuration for text alone
    longest = getattr(of_text, "max_position_embeddings", None) or -1  # XLNet says -1: no limit
    cap = next(filter(None, (getattr(of_text, name, None) for name in CAPS)), None)
    window = min(WINDOW, longest) if longest > 0 else WINDOW
    opened = OpenModel(path, torch, model, tokenizer, layer, words, window, cap)
    # In a causal model, a change of the later tokens of a text does not change the logits before them.
    tokens, vectors = tokenizer.encode(text).ids, len(model.get_input_embeddings().weight)
    if max(tokens, default=0) >= vectors:
        problem = f"tokenizer.json gives token {max(tokens)} on this text, and the model has {vectors} input vectors"
        raise DataError(f"{path}: {problem}: they belong to different models. Save model and tokenizer together")
    ids = tokens[: min(window, CAUSAL_TOKENS)]
    half = len(ids) // 2
    if half > 0:  # too short a text is rejected later
        vectors = min(words, vectors)
        other_ids = ids[:half] + [(token + 1) % vectors for token in ids[half:]]
        logits_TV, other_TV = (opened.run([row])[1][0, :half] for row in (ids, other_ids))
        if np.abs(logits_TV - other_TV).max() > TOLERANCE * max(float(np.abs(logits_TV).max()), 1.0):
            raise UserError(f"{path}: {type(model).__name__} {NOT_CAUSAL}")
    return opened


def _require_loadable(path: Path) -> None:
    """Check that transformers can load a folder without downloading, unpickling, or filling weights at random.

    Raises:
        UserError: the folder, its configuration, its tokenizer or its .safetensors weights are missing.
        DataError: the index of the weights is damaged, or a shard that it lists is missing.
    """
    if not path.is_dir():
        raise UserError(f"{path}: no such folder. Give a folder on this machine or a .gguf file; nothing is downloaded")
    for name in ("config.json", "tokenizer.json"):
        if not (path / name).is_file():
            raise UserError(f"{path}: no {name} in this folder; save model and tokenizer there with save_pretrained")
    with damage_refused(f"{path}: its index is not sound", "save the model again"):
        indices = [json.loads(file.read_text(encoding="utf-8")) for file in path.glob("*.safetensors.index.json")]
        shards = {Path(name).name for index in indices for name in index["weight_map"].values()}
    missing = sorted(name for name in shards if not (path / name).is_file())
    if missing:
        raise DataError(f"{path}: {missing[0]} is missing ({len(missing)} of {len(shards)} shards); copy it there")
    if not list(path.glob("*.safetensors")):
        raise UserError(f"{path}: no .safetensors in it; pickled weights are not read: save it with save_pretrained")


def _load(path: Path) -> tuple[Any, Any, Any]:
    """Return the module torch, the model in float32, and its tokenizer.

    Raises:
        UserError: a library is not installed.
        DataError: the model cannot be loaded, or its configuration and its weights disagree.
    """
    # The imports below read these.
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TQDM_DISABLE": "1"}
    try:
        import tokenizers
        import torch
        import transformers
    except ImportError as error:
        raise UserError(f"{path}: needs {error.name}, which is not installed: pip install transformers") from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    folder, options = path, dict[str, Any](local_files_only=True, trust_remote_code=False)
    with damage_refused(f"{path}: cannot be loaded", f"save it again, or try another transformers version; {ADVICE}"):
        if path.is_file():  # GGUF
            folder, options = path.parent, options | {"gguf_file": path.name}
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options).backend_tokenizer
        else:  # reads tokenizer.json directly, independent of the tokenizer class of the model's family
            tokenizer = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True, use_safetensors=True, **options
        )
    wrong = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
    if wrong:
        problem = f"{wrong[0]} and {len(wrong) - 1} more are missing or have another shape"
        raise DataError(f"{path}: config.json and weights disagree: {problem}; save the model again")
    return torch, model.eval(), tokenizer
