"""Checks of a study's files: each is intact, belongs to the study, and was made from the present version of its inputs.

`read` checks the small files of a run, which hold the numbers; a run with a failed check yields no numbers. `inspect`
also hashes the other files of a run. `inspect_study`, called by `collect`, adds the corpora and the fits, and lists
missing files.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.records.records import SEARCH, Records
from softmax_bottleneck.store import artefacts, errors
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study import Run, Study, truths

RESULTS = ("done", "measure", "topk", "rank", "wordsim", "epochs_rank", "dynamic")  # hold the numbers
LARGE = ("model.safetensors", "hidden.npz")
RECORDS_OF_RUN = ("run.json", "outcome.json", "measured.json")
FILES_OF_RUN = {  # files of a run's folder besides its record; a result's parents may also be in other folders
    *(*LARGE, *RECORDS_OF_RUN, "epochs.jsonl", "spectrum.npz"),
    *(f"{name}.json" for name in RESULTS if name not in ("done", "dynamic")),
}
TOKEN_FILES = ("corpus.json", "vocabulary.json", "train.npy", "valid.npy", "test.npy")
# What to do about a damaged and about a missing file.
REMOVED = "`make repair` removes it and all results that depend on it"
RECOMPUTED = "`make repair` removes what depends on it; `make reproduce` recomputes both"
KINDS = ("damaged", "foreign", "stale", "missing")  # of findings, the most serious first
UNREADABLE = (errors.DataError, ValueError, KeyError, OSError)
FILE = "verify.json"
DEPOSIT_FILE = "ro-crate-metadata.json"  # of an unpacked deposit, which leaves the large files out


@dataclass(frozen=True)
class Finding:
    """A problem with a file, or with a run whose files are intact but which is not in the state `ok`.

    Attributes:
        kind: for a file, `damaged`, `foreign` (of another run or study), `stale` (made from another version of an
            input) or `missing` (absent). For a run, its state: `diverged`, `failed` or `missing` (not trained, or its
            perplexities or ranks are not measured).
        file: path of the file, or of the run's folder, below results/.
        words: the problem and, if there is one, its fix, in one line.
    """

    kind: str
    file: str
    words: str


@dataclass
class RunFiles:
    """The contents of a run's small files, the hashes of all files that were read, and the problems found.

    Attributes:
        run, folder: the run, and the folder of its files.
        contents: name of a JSON file without its ending -> content.
        hashes: file name -> sha256.
        findings: the problems found.
        curve: the lines of the epoch log so far, one dict per line.
        sigma_K: singular values of the log-probability matrix, in descending order; None if spectrum.npz is absent or
            damaged.
    """

    run: Run
    folder: Path
    contents: dict[str, Any] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    curve: list[dict[str, Any]] = field(default_factory=list)
    sigma_K: NDArray[np.float64] | None = None

    @property
    def is_evaluation(self) -> bool:
        """True if the folder is that of a dynamic evaluation, which lies inside the folder of the evaluated run."""
        return self.folder.name.startswith("dynamic-")

    def find(self, kind: str, name: str, problem: str) -> None:
        """Append a problem with the file `name` of this run to `findings`.

        `kind` is one of KINDS. `problem` describes the problem; the fix, `make repair`, is added to this text.
        """
        inside = f"{self.folder.name}/" if self.is_evaluation else ""
        self.findings.append(Finding(kind, f"runs/{self.run.path}/{inside}{name}", f"{problem}: {REMOVED}"))

    def load(self, name: str, parse: Callable[[bytes], Any]) -> Any:
        """Return the parsed content of a file, and add the file's hash to `hashes`.

        The result is None if the file is absent or damaged. Only a damaged file is added to `findings`.

        Args:
            name: name of the file with its ending, such as `rank.json`.
            parse: function from the file's bytes to the content. If reading or parsing the file raises one of the
                exceptions UNREADABLE, the file is damaged.
        """
        path = self.folder / name
        if not path.exists():
            return None
        try:
            content = parse(artefacts.read_bytes(path))
        except UNREADABLE:
            self.find("damaged", name, f"{name} is damaged")
            return None
        self.hashes[name] = artefacts.stored_hash(path) or ""
        return content

    def parents(self, name: str) -> Mapping[str, str]:
        """Return {file name: sha256} of the files that the result `<name>.json` was made from."""
        return mapping(mapping(self.contents[name].get("provenance")).get("parents"))


def mapping(value: object) -> dict[str, Any]:
    """Return the value as a dict if it is a mapping, else an empty dict."""
    return dict(value) if isinstance(value, Mapping) else {}


def is_number(value: object) -> TypeGuard[int | float]:
    """Return True if the value is a finite int or float, and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# --- small files ----------------------------------------------------------------------------------------------------
def read(run: Run, folder: Path) -> RunFiles:
    """Read and check the small files of a run, which are in `folder`; the result's list `findings` has the problems.

    A problem is a file that is damaged (its hash does not match), foreign (it names another run), or stale (it was made
    from another version of one of the run's other files). Absent files are not a problem.
    """
    found = RunFiles(run, folder)
    for name in RESULTS:
        content = found.load(f"{name}.json", _record)
        if content is not None:
            found.contents[name] = content
    found.sigma_K = found.load("spectrum.npz", lambda data: artefacts.arrays_in(data)["singular_values"].astype(float))
    log = folder / "epochs.jsonl"  # hashed only if it has a hash file
    try:
        found.curve = [line for line in artefacts.read_lines(log) if isinstance(line, dict)]
        if artefacts.sidecar(log).exists():
            found.hashes[log.name] = artefacts.sha256_file(log)
    except UNREADABLE:
        found.find("damaged", log.name, f"{log.name} is damaged")
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
    return found


def _record(data: bytes) -> dict[str, Any]:
    content = json.loads(data)
    if not isinstance(content, dict) or not isinstance(content.get("run", {}), dict):
        raise ValueError("no record")
    return content


def inspect(found: RunFiles) -> list[Finding]:
    """Check the other files of a run, and return all problems, including those that `read` found.

    The new problems and hashes are added to `found`. The hash of a file is compared with its .sha256 file, and with the
    hash that another file states. For example, done.json states the hash of the weights. run.json must have the
    settings and the seed of `found.run`. Absent files are no problem here; `inspect_study` reports them.
    """
    snapshots = sorted((found.folder / "snapshots").glob("*.safetensors"))
    for name in (*LARGE, *RECORDS_OF_RUN, *(path.relative_to(found.folder).as_posix() for path in snapshots)):
        found.load(name, len)
    hashes, done = found.hashes, found.contents.get("done", {})
    for name in ("measure", "topk", "rank"):
        for parent, digest in found.parents(name).items() if name in found.contents else ():
            if parent in LARGE and hashes.get(parent, digest) != digest:
                found.find("stale", f"{name}.json", f"{name}.json was made from another {parent}")
    if "model.safetensors" in hashes and done.get("model_sha256", "") not in ("", hashes["model.safetensors"]):
        found.find("stale", "model.safetensors", "model.safetensors has other weights than done.json names")
    result = "dynamic.json" if found.is_evaluation else "done.json"
    if hashes.get("outcome.json", "") not in ("", hashes.get(result, "")):
        found.find("stale", "outcome.json", f"outcome.json differs from {result}")
    if "run.json" in hashes:
        stored = artefacts.read_json(found.folder / "run.json")
        for key, value in json.loads(json.dumps(found.run.settings | {"seed": found.run.seed})).items():
            if mapping(stored).get(key) != value:
                found.find("foreign", "run.json", f"run.json has another {key} than the study")
    return found.findings


# --- the study ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Verification:
    """The result of verifying all files of a study.

    Attributes:
        study: name of the study.
        counts: {key: number of runs}. `planned` counts all runs. Each run counts under one state: `ok`, `diverged`,
            `failed`, `missing`, `stale` (a file was made from another version of an input) or `unsound` (a file is
            damaged or foreign). A run that was resumed on another device or with another number of threads counts
            under `mixed hardware`, too.
        files: number of files whose hash was computed.
        findings: the problems found: first of the runs, then of the corpora, then of the fits.
    """

    study: str
    counts: dict[str, int]
    files: int
    findings: tuple[Finding, ...]

    @property
    def complete(self) -> bool:
        """True if every planned run has its numbers and no problem was found."""
        return not self.findings and self.counts["ok"] == self.counts["planned"]

    def to_json(self) -> dict[str, Any]:
        """Return a dict for verify.json: all attributes, `complete`, and `status`.

        `complete` is True if every planned run has its numbers and no problem was found. `status` is then "ok", else
        "incomplete".
        """
        facts = asdict(self) | {"complete": self.complete}
        return facts | {"status": "ok" if self.complete else "incomplete"}

    def text(self) -> str:
        """Return the verification as lines for the terminal."""
        counts = " · ".join(f"{state} {number}" for state, number in self.counts.items())
        number = f"{len(self.findings) or 'no'} finding{'s' * (len(self.findings) != 1)}"
        lines = [f"{self.study}: {number} in {self.files} files hashed; runs {counts}"]
        return "\n".join([*lines, *(f"  {one.kind:9} {one.file}: {one.words}" for one in self.findings)])


def inspect_study(study: Study, runs: Mapping[str, RunFiles], records: Records) -> Verification:
    """Check all files of the runs, corpora and fits of a study, and return the result.

    Nothing is written. Problems are returned as findings and raise no error.

    Args:
        study: the study.
        runs: {path of a run: its small files, as returned by `read`}. Each `RunFiles` gets further findings and hashes.
        records: the records collected from `runs`; the states of the runs are read from them.
    """
    findings = [one for files in runs.values() for one in inspect(files)]
    hashed = sum(len(files.hashes) for files in runs.values())
    for path, files in runs.items():
        findings += _missing_files(study, path, files)
    explained = {one.file.removeprefix("runs/").rpartition("/")[0] for one in findings}
    rows = [row for frame in (records.states, records.stages) for row in frame.to_dict("records")]
    for row in {row["path"]: row for row in rows}.values():
        is_result = row["state"] == "diverged" and row.get("stage") == SEARCH  # a point that a search tried in vain
        if row["state"] != "ok" and row["path"] not in explained and not is_result:
            findings.append(Finding(str(row["state"]), f"runs/{row['path']}", str(row["reason"])))
    shared = list(_shared_files(study))
    findings += [one for file, digest in shared for one in damage(study.store, file, digest)]
    for done in (study.store.fits_folder(unit.path) / "done.json" for unit in study.units):
        if not done.exists():
            findings.append(Finding("missing", done.relative_to(study.store.root).as_posix(), "not fitted yet"))
    return Verification(study.name, records.counts(), hashed + len(shared), tuple(findings))


def _shared_files(study: Study) -> Iterator[tuple[Path, str | None]]:
    """Yield (file, sha256) for the files of the corpora, natural distributions and fits of a study.

    The sha256 is the one that another file states, such as the done.json of a unit of fits; None if no file does.
    """
    store = study.store
    for name in study.datasets:
        tokens, corpus = store.tokens_folder(name), store.corpus_folder(name)
        hashes: dict[Path, str | None] = {}  # also None: the download recorded no sha256
        if tokens.exists():
            hashes |= dict.fromkeys(tokens / file for file in TOKEN_FILES)
        if corpus.exists():
            listed = corpus / "files.json"
            sealed = (path for path in sorted(corpus.iterdir()) if artefacts.sidecar(path).exists())
            hashes |= dict.fromkeys((listed, *sealed))
            if artefacts.is_sound(listed):
                hashes |= {corpus / file: digest for file, digest in artefacts.read_json(listed)["files"].items()}
        yield from hashes.items()
    for folder in (store.fits_folder(f"truths/{truth.path}") for truth in study.truths):
        if folder.exists():
            yield from dict.fromkeys((folder / truths.FILE, folder / truths.ARRAYS)).items()
    for unit in study.units:
        done, folder = store.fits_folder(unit.path) / "done.json", store.fits_folder(f"laws/{unit.law_path}")
        if done.exists():
            yield done, None
        if artefacts.is_sound(done):
            parents = artefacts.read_json(done)["provenance"]["parents"]
            yield from ((folder / part, digest) for part, digest in parents.items())


def _missing_files(study: Study, path: str, files: RunFiles) -> Iterator[Finding]:
    """Yield a finding for each missing file of a run; the run's JSON files show which files should exist.

    `path` is the run's folder below results/runs, and `files` has its small files. If the results were unpacked from a
    deposit (a published archive, which leaves out the weights and hidden.npz), these two files are not expected.
    """
    names = {parent for name in files.contents for parent in files.parents(name)}
    if "epochs.jsonl" in names and files.contents.get("done", {}).get("model_sha256"):
        names |= {"model.safetensors", "run.json", "outcome.json"}
    if "hidden.npz" in names:  # written by the same step
        names |= {"measure.json", "topk.json"}
    if "measured.json" in files.hashes:
        names |= artefacts.read_json(files.folder / "measured.json")["files"].keys()
    if files.is_evaluation and files.contents.get("dynamic", {}).get("status") == "ok":
        names.add("outcome.json")
    if study.datasets[files.run.dataset].wordsim and not files.run.start and "rank" in files.contents:
        names.add("wordsim.json")
    left_out = LARGE if (study.store.root.parent / DEPOSIT_FILE).is_file() else ()
    for name in sorted(names.intersection(FILES_OF_RUN).difference(left_out)):
        unsealed = name == "epochs.jsonl" and artefacts.stored_hash(files.folder / name) is None
        if unsealed or not (files.folder / name).exists():
            yield Finding("missing", f"runs/{path}/{name}", f"{name} is missing: {RECOMPUTED}")


def damage(store: Store, path: Path, digest: str | None = None) -> list[Finding]:
    """Return a list with one finding if a file is missing, damaged or stale, or an empty list.

    A file is damaged if it has no .sha256 file, or if its sha256 differs from the stored one. It is stale if its sha256
    differs from `digest`, which another file states. `store` is the results folder that contains `path`.
    """
    name = path.relative_to(store.root).as_posix()
    if not path.exists():
        return [Finding("missing", name, f"{path.name} is missing: {RECOMPUTED}")]
    if not artefacts.is_sound(path):
        return [Finding("damaged", name, f"{path.name} is damaged: {REMOVED}")]
    if digest not in (None, artefacts.stored_hash(path)):
        return [Finding("stale", name, f"{path.name} is not the file that results were made from: {REMOVED}")]
    return []
