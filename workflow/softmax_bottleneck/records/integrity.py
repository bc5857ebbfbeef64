"""The files of one run: each is whole, of this run, made from the others as they are now, and within what is possible.

Whatever fails here is a finding, and the run it concerns gives no number: a damaged file, one of another run, one that
was made from files since replaced, a perplexity below one. `read` looks at the small files that numbers are read from;
`inspect` hashes everything and looks into the arrays.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError
from softmax_bottleneck.study import Run

RESULTS = ("done", "measure", "topk", "rank", "wordsim", "epochs_rank", "dynamic")  # what numbers are read from
LARGE = ("model.safetensors", "hidden.npz")
RECORDS_OF_RUN = ("run.json", "outcome.json", "measured.json")
KINDS = ("damaged", "foreign", "stale", "invalid", "missing")
SLACK = 1e-6  # of quantities that are zero or more in exact arithmetic


@dataclass(frozen=True)
class Finding:
    """What is wrong with a file, and what to do about it.

    Attributes:
        kind: one of KINDS; of a study also `diverged` and `failed`.
        file: below results/.
        words: one line.
    """

    kind: str
    file: str
    words: str


@dataclass
class RunFiles:
    """What the small files of a run say, their hashes, and what is wrong with them."""

    run: Run
    folder: Path
    contents: dict[str, Any] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)  # file name -> sha256
    findings: list[Finding] = field(default_factory=list)
    curve: list[dict[str, Any]] = field(default_factory=list)  # the epoch log, whole or in progress
    sigma_K: NDArray[np.float64] | None = None  # singular values of the log-probability matrix

    @property
    def first_finding(self) -> Finding | None:
        """The gravest finding, if there is any."""
        return min(self.findings, key=lambda finding: KINDS.index(finding.kind), default=None)

    @property
    def is_evaluation(self) -> bool:
        """Whether it is the folder of a dynamic evaluation, inside its run's."""
        return self.folder.name.startswith("dynamic-")

    def damaged(self, path: Path) -> None:
        """Note that a file is not what was written."""
        self.find("damaged", path.name, f"{path.name} is damaged: `make repair` removes it")

    def find(self, kind: str, name: str, words: str) -> None:
        """Note what is wrong with a file of this run."""
        inside = f"{self.folder.name}/" if self.is_evaluation else ""
        self.findings.append(Finding(kind, f"runs/{self.run.path}/{inside}{name}", words))


# --- small files ----------------------------------------------------------------------------------------------------
def read(run: Run, folder: Path, any_code: bool = False) -> RunFiles:
    """Read the results of a run from its folder; files that are not there are no finding.

    `any_code`: the run may have been trained under another code than today's, and then has another id.
    """
    found = RunFiles(run, folder)
    for name in RESULTS:
        path = folder / f"{name}.json"
        if path.exists():
            _read_json(found, name, path)
    _read_curve(found, folder / "epochs.jsonl")
    _read_spectrum(found, folder / "spectrum.npz")
    before = folder.parent / "done.json"  # of the run that a stage starts from
    if (run.start or found.is_evaluation) and before.exists():
        found.hashes["start/done.json"] = artefacts.sha256_file(before)
    own = {found.contents.get("done", {}).get("run", {}).get("run_id", run.run_id)} if any_code else {run.run_id}
    for name, content in found.contents.items():
        _check_owner(found, name, content, own)
        _check_parents(found, name, content)
        _check_ranges(found, name, content)
    return found


def _read_json(found: RunFiles, name: str, path: Path) -> None:
    try:
        data, digest = artefacts.read_hashed(path)
        content = json.loads(data)
    except (DataError, ValueError, OSError):
        content = None
    if isinstance(content, dict) and isinstance(content.get("run", {}), dict):
        found.contents[name] = content
        found.hashes[path.name] = digest
    else:
        found.damaged(path)


def _read_curve(found: RunFiles, path: Path) -> None:
    """The epoch log: sealed when training ended, and without a hash before."""
    try:
        found.curve = [line for line in artefacts.read_lines(path) if isinstance(line, dict)]
        if artefacts.sidecar(path).exists():
            found.hashes[path.name] = artefacts.sha256_file(path)
    except (DataError, ValueError, OSError):
        found.damaged(path)


def _read_spectrum(found: RunFiles, path: Path) -> None:
    if not path.exists():
        return
    try:
        data, found.hashes[path.name] = artefacts.read_hashed(path)
        found.sigma_K = np.asarray(artefacts.arrays_in(data)["singular_values"], dtype=np.float64)
    except (DataError, ValueError, KeyError, OSError):
        found.damaged(path)


def _hash(found: RunFiles, path: Path) -> None:
    try:
        found.hashes[path.name] = artefacts.sha256_file(path)
    except OSError:  # a folder in its place, no right to read it
        return found.damaged(path)
    if artefacts.stored_hash(path) != found.hashes[path.name]:
        found.damaged(path)


def _check_owner(found: RunFiles, name: str, content: Mapping[str, Any], own: set[str]) -> None:
    stored = {_mapping(content.get("run")).get("run_id"), _mapping(content.get("provenance")).get("run_id")} - {None}
    if stored - own:
        other = sorted(str(one) for one in stored - own)[0]
        found.find("foreign", f"{name}.json", f"{name}.json belongs to run {other}: `make repair` removes it")


def _check_parents(found: RunFiles, name: str, content: Mapping[str, Any]) -> None:
    """Compare the hashes of what a file was made from with those of the files beside it."""
    for parent, stored in _mapping(_mapping(content.get("provenance")).get("parents")).items():
        if found.hashes.get(parent, stored) != stored:
            words = f"{name}.json was made from another {parent}: `make repair` removes it"
            found.find("stale", f"{name}.json", words)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


# --- what is possible -----------------------------------------------------------------------------------------------
def _check_ranges(found: RunFiles, name: str, content: Mapping[str, Any]) -> None:
    for words in _impossible(name, content):
        found.find("invalid", f"{name}.json", f"{name}.json: {words}: `make repair` removes it")


def _impossible(name: str, content: Mapping[str, Any]) -> Iterator[str]:
    if name in ("measure", "dynamic"):
        yield from _perplexities(_mapping(content.get("metrics")))
    elif name == "rank":
        yield from _ranks(content)
    elif name == "epochs_rank":
        for row in content.get("rows") or ():
            yield from (f"{key} is {value!r}" for key, value in _mapping(row).items() if not _is_plain(value))
    elif name == "wordsim":
        yield from _similarities(_mapping(content.get("benchmarks")))
    elif name == "topk":
        for k, share in _mapping(content.get("hits")).items():
            rate = _mapping(share).get("rate", 0.0)
            if not _is_number(rate) or not 0 <= rate <= 1:
                yield f"the hit rate of {k} is {rate!r}, expected 0 to 1"


def _perplexities(metrics: Mapping[str, Any]) -> Iterator[str]:
    for key, value in metrics.items():
        if not _is_plain(value):
            yield f"{key} is {value!r}, expected a finite number"
        elif _is_number(value) and key.startswith(("kl_", "excess_")) and value < -SLACK:
            yield f"{key} is {value!r}, expected at least 0"
        elif _is_number(value) and "ppl" in key and not key.startswith("excess_") and not value > 1:
            yield f"{key} is {value!r}, and a perplexity is more than 1"


def _ranks(content: Mapping[str, Any]) -> Iterator[str]:
    sizes: dict[str, Mapping[str, Any]] = {"": content, "_all": _mapping(content.get("all"))}
    for key, value in _mapping(content.get("metrics")).items():
        size = sizes["_all" if key.endswith("_all") else ""]
        limit = min(size.get("m", math.inf), size.get("n", math.inf))
        if not _is_number(value) or not 0 <= value <= limit or value != int(value):
            yield f"{key} is {value!r}, expected a whole number up to {limit}"


def _similarities(benchmarks: Mapping[str, Any]) -> Iterator[str]:
    for label, result in benchmarks.items():
        rho, pairs, known = (_mapping(result).get(key) for key in ("rho", "n_pairs", "n_found"))
        if rho is not None and not (_is_number(rho) and -1 - SLACK <= rho <= 1 + SLACK):
            yield f"rho of {label} is {rho!r}, expected -1 to 1"
        if _is_number(pairs) and _is_number(known) and known > pairs:
            yield f"{label} has {known} pairs of {pairs}"


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_plain(value: object) -> bool:
    """No number that is not one."""
    return not isinstance(value, float) or math.isfinite(value)


# --- everything -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Size:
    """What is known of a run's corpus: tokens of the test text, number of words."""

    test_tokens: int
    vocabulary_size: int


Check = Callable[[RunFiles, Size | None], Iterator[str]]


def inspect(found: RunFiles, size: Size | None) -> list[Finding]:
    """All findings on a run's files: those of `read`, every hash, and what is in the arrays.

    Large files that are not there (a deposit leaves them out) are no finding; their hashes in other files are compared
    only where they are.
    """
    for name in (*LARGE, *RECORDS_OF_RUN):
        if (found.folder / name).exists():
            _hash(found, found.folder / name)
    for path in sorted((found.folder / "snapshots").glob("*.safetensors")):
        _hash(found, path)
    for name in ("measure", "topk", "rank"):
        _check_large_parents(found, name)
    done = found.contents.get("done", {})
    weights = found.hashes.get("model.safetensors")
    if weights is not None and done and done.get("model_sha256", weights) != weights:
        found.find("stale", "model.safetensors", "model.safetensors are not the weights that done.json speaks of")
    result = "dynamic.json" if found.is_evaluation else "done.json"
    if found.hashes.get("outcome.json", "") not in ("", found.hashes.get(result, "")):
        found.find("stale", "outcome.json", f"outcome.json is not what {result} says: `make repair` settles it")
    _check_settings(found)
    damaged = {one.file.rpartition("/")[2] for one in found.findings if one.kind == "damaged"}
    for name, check in _ARRAYS.items():
        if (found.folder / name).exists() and name not in damaged:
            _check_array(found, name, check, size)
    return found.findings


def _check_large_parents(found: RunFiles, name: str) -> None:
    parents = _mapping(_mapping(found.contents.get(name, {}).get("provenance")).get("parents"))
    for parent in set(LARGE) & set(parents):
        if found.hashes.get(parent, parents[parent]) != parents[parent]:
            words = f"{name}.json was made from another {parent}: `make repair` removes it"
            found.find("stale", f"{name}.json", words)


def _check_settings(found: RunFiles) -> None:
    """The frozen settings in the folder are those the run_id stands for."""
    path = found.folder / "run.json"
    if not artefacts.is_sound(path):
        return
    stored = json.loads(artefacts.read_text(path))
    plain = json.loads(json.dumps(found.run.settings | {"seed": found.run.seed}))
    for key, value in plain.items():
        if _mapping(stored).get(key) != value:
            found.find("foreign", "run.json", f"run.json has another {key} than the study")


def _check_array(found: RunFiles, name: str, check: Check, size: Size | None) -> None:
    try:
        words = list(check(found, size))
    except (DataError, SafetensorError, KeyError, ValueError) as error:
        words = [f"cannot be read ({error})"]
    for one in words:
        found.find("invalid", name, f"{name}: {one}: `make repair` removes it")


def _weights(found: RunFiles, size: Size | None) -> Iterator[str]:
    with safe_open(found.folder / "model.safetensors", framework="numpy") as file:
        for name in sorted(file.keys()):
            if not np.isfinite(file.get_tensor(name)).all():
                yield f"{name} is not finite"


def _hidden(found: RunFiles, size: Size | None) -> Iterator[str]:
    arrays = artefacts.read_npz(found.folder / "hidden.npz")
    hidden_TD, targets_T = arrays["hidden_TD"], arrays["targets_T"]
    if not np.isfinite(hidden_TD).all():
        yield "hidden states are not finite"
    if len(hidden_TD) != len(targets_T) or (size and len(hidden_TD) != size.test_tokens - 1):
        yield f"{len(hidden_TD)} contexts, expected {size.test_tokens - 1 if size else len(targets_T)}"
    if size and len(targets_T) and not 0 <= targets_T.min() <= targets_T.max() < size.vocabulary_size:
        yield "targets outside the vocabulary"


def _spectrum(found: RunFiles, size: Size | None) -> Iterator[str]:
    rank = found.contents.get("rank", {})
    for name, sigma in artefacts.read_npz(found.folder / "spectrum.npz").items():
        facts = _mapping(rank.get("all")) if name.endswith("_all") else rank
        if not np.isfinite(sigma).all() or (sigma < 0).any() or (np.diff(sigma) > 0).any():
            yield f"{name} are not finite numbers in descending order"
        elif {"m", "n"} <= facts.keys() and len(sigma) != min(facts["m"], facts["n"]):
            yield f"{len(sigma)} {name}, expected {min(facts['m'], facts['n'])}"
        if size and "n" in facts and facts["n"] != size.vocabulary_size:
            yield f"{facts['n']} columns, expected {size.vocabulary_size}"


_ARRAYS: Mapping[str, Check] = {"model.safetensors": _weights, "hidden.npz": _hidden, "spectrum.npz": _spectrum}
