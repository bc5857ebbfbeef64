"""The files of one run: whole, of this run, made from the other files as they are now, and within what is possible.

Whatever fails here is a finding, and the run gives no number. `read` looks at the small files that hold the numbers.
`inspect` hashes everything else and looks into the arrays.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError
from softmax_bottleneck.study import Run

RESULTS = ("done", "measure", "topk", "rank", "wordsim", "epochs_rank", "dynamic")  # hold the numbers
LARGE = ("model.safetensors", "hidden.npz")
RECORDS_OF_RUN = ("run.json", "outcome.json", "measured.json")
KINDS = ("damaged", "foreign", "stale", "invalid", "missing")
SLACK = 1e-6  # of quantities that are zero or more in exact arithmetic
UNREADABLE = (DataError, SafetensorError, ValueError, KeyError, OSError)


@dataclass(frozen=True)
class Finding:
    """What is wrong with a file.

    Attributes:
        kind: one of KINDS; of a study also `diverged` and `failed`.
        file: its path below results/.
        words: the problem and its fix, in one line.
    """

    kind: str
    file: str
    words: str


@dataclass(frozen=True)
class Size:
    """The size of a run's corpus: tokens of the test text, and words in the vocabulary."""

    test_tokens: int
    vocabulary_size: int


@dataclass
class RunFiles:
    """The content of a run's small files, the hashes of all files that were read, and the findings.

    Attributes:
        contents: name of a JSON file without its ending -> content.
        hashes: file name -> sha256.
        curve: the epoch log, complete or in progress.
        sigma_K: singular values of the log-probability matrix, in descending order.
    """

    run: Run
    folder: Path
    contents: dict[str, Any] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    curve: list[dict[str, Any]] = field(default_factory=list)
    sigma_K: NDArray[np.float64] | None = None

    @property
    def first_finding(self) -> Finding | None:
        """The gravest finding."""
        return min(self.findings, key=lambda finding: KINDS.index(finding.kind), default=None)

    @property
    def is_evaluation(self) -> bool:
        """True for the folder of a dynamic evaluation, inside its run's."""
        return self.folder.name.startswith("dynamic-")

    def find(self, kind: str, name: str, problem: str) -> None:
        """Add a finding about a file of this run."""
        inside = f"{self.folder.name}/" if self.is_evaluation else ""
        words = f"{problem}: `make repair` removes it"
        self.findings.append(Finding(kind, f"runs/{self.run.path}/{inside}{name}", words))

    def load(self, name: str, parse: Callable[[bytes], Any]) -> Any:
        """Return a file's parsed content and note its hash; None if it is absent, or damaged (a finding)."""
        path = self.folder / name
        if not path.exists():
            return None
        try:
            data, digest = artefacts.read_hashed(path)
            content = parse(data)
        except UNREADABLE:
            self.find("damaged", name, f"{name} is damaged")
            return None
        self.hashes[name] = digest
        return content

    def parents(self, name: str) -> Mapping[str, str]:
        """Return the hashes of the files that a result was made from, by file name."""
        return mapping(mapping(self.contents[name].get("provenance")).get("parents"))


def mapping(value: object) -> dict[str, Any]:
    """Return the value as a dict if it is a mapping, else an empty dict."""
    return dict(value) if isinstance(value, Mapping) else {}


def is_number(value: object) -> TypeGuard[int | float]:
    """Return True for a finite int or float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# --- small files ----------------------------------------------------------------------------------------------------
def read(run: Run, folder: Path) -> RunFiles:
    """Read the results of a run from its folder; absent files are no finding."""
    found = RunFiles(run, folder)
    for name in RESULTS:
        content = found.load(f"{name}.json", _record)
        if content is not None:
            found.contents[name] = content
    found.sigma_K = found.load("spectrum.npz", lambda data: artefacts.arrays_in(data)["singular_values"].astype(float))
    _read_curve(found)
    before = folder.parent / "done.json"  # of the run that finetuning or a dynamic evaluation starts from
    if (run.start or found.is_evaluation) and before.exists():
        found.hashes["start/done.json"] = artefacts.sha256_file(before)
    for name, content in found.contents.items():
        ids = {mapping(content.get(key)).get("run_id", run.run_id) for key in ("run", "provenance")} - {run.run_id}
        if ids:
            found.find("foreign", f"{name}.json", f"{name}.json belongs to run {min(map(str, ids))}")
        for parent, digest in found.parents(name).items():
            if found.hashes.get(parent, digest) != digest:
                found.find("stale", f"{name}.json", f"{name}.json was made from another {parent}")
        for problem in _impossible(name, content):
            found.find("invalid", f"{name}.json", f"{name}.json: {problem}")
    return found


def _record(data: bytes) -> dict[str, Any]:
    content = json.loads(data)
    if not isinstance(content, dict) or not isinstance(content.get("run", {}), dict):
        raise ValueError("no record")
    return content


def _read_curve(found: RunFiles) -> None:
    """Read the epoch log, which has a hash only after training has ended."""
    path = found.folder / "epochs.jsonl"
    try:
        found.curve = [line for line in artefacts.read_lines(path) if isinstance(line, dict)]
        if artefacts.sidecar(path).exists():
            found.hashes[path.name] = artefacts.sha256_file(path)
    except UNREADABLE:
        found.find("damaged", path.name, f"{path.name} is damaged")


def _impossible(name: str, content: Mapping[str, Any]) -> Iterator[str]:
    """Yield what no measurement can give, in the JSON file of this name."""
    metrics = mapping(content.get("metrics"))
    if name in ("measure", "dynamic"):
        for key, value in metrics.items():
            if not is_number(value) and isinstance(value, float):
                yield f"{key} is {value!r}, expected a finite number"
            elif is_number(value) and key.startswith(("kl_", "excess_")) and value < -SLACK:
                yield f"{key} is {value!r}, expected at least 0"
            elif is_number(value) and "ppl" in key and not key.startswith("excess_") and not value > 1:
                yield f"{key} is {value!r}, and a perplexity is more than 1"
    if name == "rank":
        for key, value in metrics.items():
            size = mapping(content.get("all")) if key.endswith("_all") else content
            limit = min(size.get("m", math.inf), size.get("n", math.inf))
            if not is_number(value) or not 0 <= value <= limit or value != int(value):
                yield f"{key} is {value!r}, expected a whole number up to {limit}"
    for row in content.get("rows") or () if name == "epochs_rank" else ():
        bad = {key: value for key, value in mapping(row).items() if isinstance(value, float) and not is_number(value)}
        yield from (f"{key} is {value!r}" for key, value in bad.items())
    for label, result in mapping(content.get("benchmarks")).items():
        rho, pairs, known = (mapping(result).get(key) for key in ("rho", "n_pairs", "n_found"))
        if rho is not None and not (is_number(rho) and -1 - SLACK <= rho <= 1 + SLACK):
            yield f"rho of {label} is {rho!r}, expected -1 to 1"
        if is_number(pairs) and is_number(known) and known > pairs:
            yield f"{label} has {known} pairs of {pairs}"
    for k, share in mapping(content.get("hits")).items():
        rate = mapping(share).get("rate", 0.0)
        if not is_number(rate) or not 0 <= rate <= 1:
            yield f"the hit rate of {k} is {rate!r}, expected 0 to 1"


# --- everything -----------------------------------------------------------------------------------------------------
def inspect(found: RunFiles, size: Size | None) -> list[Finding]:
    """Return all findings on a run's files: those of `read`, every hash, and problems in the arrays.

    Large files may be absent, as in a deposit. Their hashes in other files are compared only if they are there.
    """
    weights = found.load("model.safetensors", safetensors.numpy.load)
    hidden = found.load("hidden.npz", artefacts.arrays_in)
    spectra = found.load("spectrum.npz", artefacts.arrays_in) if found.sigma_K is not None else None
    for name in (*RECORDS_OF_RUN, *(path.relative_to(found.folder).as_posix() for path in _snapshots(found))):
        found.load(name, len)
    for name in ("measure", "topk", "rank"):
        for parent, digest in found.parents(name).items() if name in found.contents else ():
            if parent in LARGE and found.hashes.get(parent, digest) != digest:
                found.find("stale", f"{name}.json", f"{name}.json was made from another {parent}")
    trained = found.contents.get("done", {}).get("model_sha256")
    if weights is not None and trained and trained != found.hashes["model.safetensors"]:
        found.find("stale", "model.safetensors", "model.safetensors has other weights than done.json names")
    result = "dynamic.json" if found.is_evaluation else "done.json"
    if found.hashes.get("outcome.json", "") not in ("", found.hashes.get(result, "")):
        found.find("stale", "outcome.json", f"outcome.json differs from {result}")
    if "run.json" in found.hashes:
        stored = artefacts.read_json(found.folder / "run.json")
        for key, value in json.loads(json.dumps(found.run.settings | {"seed": found.run.seed})).items():
            if mapping(stored).get(key) != value:
                found.find("foreign", "run.json", f"run.json has another {key} than the study")
    for name in (name for name, tensor in (weights or {}).items() if not np.isfinite(tensor).all()):
        found.find("invalid", "model.safetensors", f"model.safetensors: {name} is not finite")
    for name, arrays, check in (("hidden.npz", hidden, _hidden), ("spectrum.npz", spectra, _spectra)):
        for problem in check(arrays, found.contents.get("rank", {}), size) if arrays is not None else ():
            found.find("invalid", name, f"{name}: {problem}")
    return found.findings


def _snapshots(found: RunFiles) -> list[Path]:
    return sorted((found.folder / "snapshots").glob("*.safetensors"))


def _hidden(arrays: Mapping[str, NDArray[Any]], _: Mapping[str, Any], size: Size | None) -> Iterator[str]:
    if not {"hidden_TD", "targets_T"} <= arrays.keys():
        yield "arrays are missing"
        return
    hidden_TD, targets_T = arrays["hidden_TD"], arrays["targets_T"]
    if not np.isfinite(hidden_TD).all():
        yield "hidden states are not finite"
    if len(hidden_TD) != len(targets_T) or (size and len(hidden_TD) != size.test_tokens - 1):
        yield f"{len(hidden_TD)} contexts, expected {size.test_tokens - 1 if size else len(targets_T)}"
    if size and len(targets_T) and not 0 <= targets_T.min() <= targets_T.max() < size.vocabulary_size:
        yield "targets outside the vocabulary"


def _spectra(arrays: Mapping[str, NDArray[Any]], rank: Mapping[str, Any], size: Size | None) -> Iterator[str]:
    for name, sigma in arrays.items():
        facts = mapping(rank.get("all")) if name.endswith("_all") else rank
        if not np.isfinite(sigma).all() or (sigma < 0).any() or (np.diff(sigma) > 0).any():
            yield f"{name} are not finite numbers in descending order"
        elif {"m", "n"} <= facts.keys() and len(sigma) != min(facts["m"], facts["n"]):
            yield f"{len(sigma)} {name}, expected {min(facts['m'], facts['n'])}"
        if size and "n" in facts and facts["n"] != size.vocabulary_size:
            yield f"{facts['n']} columns, expected {size.vocabulary_size}"
