"""The files of a whole study: every file of every planned run, its corpora and its fits.

`collect` calls this on its way. It hashes everything, follows what was made from what, looks for impossible numbers,
and lists what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from softmax_bottleneck.records import integrity
from softmax_bottleneck.records.integrity import Finding, RunFiles
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study import Study, Unit

FILE = "verify.json"
SHOWN = 40  # findings on a terminal; all are in the file


@dataclass(frozen=True)
class Verification:
    """The result of a verification.

    Attributes:
        counts: planned runs by state, and `mixed hardware`.
        files: number of files whose hash was computed.
        findings: in the plan's order.
        beside: run folders of the same corpus, model and seed under other settings or code; nothing reads them.
    """

    study: str
    counts: dict[str, int]
    files: int
    findings: tuple[Finding, ...]
    beside: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """True if every planned run has its numbers and there is no finding."""
        return not self.findings and self.counts["ok"] == self.counts["planned"]

    def to_json(self) -> dict[str, Any]:
        """Return the content of results/<study>/verify.json."""
        facts = asdict(self) | {"complete": self.complete}
        return facts | {"status": "ok" if self.complete else "incomplete"}

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Verification:
        """Return the verification that `to_json` gave."""
        findings = tuple(Finding(**finding) for finding in facts["findings"])
        values = {key: facts[key] for key in ("study", "counts", "files")}
        return cls(**values, findings=findings, beside=tuple(facts["beside"]))

    def text(self) -> str:
        """Return the lines that a terminal shows."""
        counts = " · ".join(f"{state} {number}" for state, number in self.counts.items())
        number = f"{len(self.findings) or 'no'} finding{'s' * (len(self.findings) != 1)}"
        lines = [f"{self.study}: {number} in {self.files} files hashed; runs {counts}"]
        lines += [f"  {one.kind:9} {one.file}: {one.words}" for one in self.findings[:SHOWN]]
        if len(self.findings) > SHOWN:
            lines.append(f"  and {len(self.findings) - SHOWN} more: `verify --json` lists all")
        if self.beside:
            lines.append(f"{len(self.beside)} runs of the same names under other settings or code are ignored")
        return "\n".join(lines)


FILES_OF_RUN = (
    *(*integrity.LARGE, *integrity.RECORDS_OF_RUN, "epochs.jsonl", "spectrum.npz"),
    *(f"{name}.json" for name in integrity.RESULTS if name not in ("done", "dynamic")),
)
TOKEN_FILES = ("corpus.json", "vocabulary.json", "train.npy", "valid.npy", "test.npy")
DEPOSIT_FILE = "ro-crate-metadata.json"  # of an unpacked deposit, which leaves the large files out


def inspect_study(study: Study, runs: Mapping[str, RunFiles], records: Records) -> Verification:
    """Verify every file that `records` were collected from, the corpora and the fits; nothing is written.

    Args:
        study: says what must be there.
        runs: path -> the small files of every run, as they were read.
        records: the records collected from them.
    """
    sizes = {name: _size(study, name) for name in study.datasets}
    findings = [one for own in runs.values() for one in integrity.inspect(own, sizes[own.run.dataset])]
    files = sum(len(own.hashes) for own in runs.values())
    for path, own in runs.items():
        findings += _missing_files(study, path, own)
    explained = {one.file.removeprefix("runs/").rpartition("/")[0] for one in findings}
    rows = [row for frame in (records.states, records.stages) for row in frame.to_dict("records")]
    for row in {row["path"]: row for row in rows}.values():
        if row["state"] != "ok" and row["path"] not in explained:
            findings.append(Finding(str(row["state"]), f"runs/{row['path']}", str(row["reason"])))
    for file, digest in _corpus_files(study).items():
        files += 1
        findings += damage(study.store, file, digest)
    for unit in study.units:
        hashed, wrong = _fits(study.store, unit)
        files += hashed
        findings += wrong
    return Verification(study.name, records.counts(), files, tuple(findings), tuple(_beside(study)))


def _size(study: Study, name: str) -> integrity.Size | None:
    """Return the size of a corpus; None if it is not tokenised or its record is damaged."""
    path = study.store.tokens_folder(name) / "corpus.json"
    if not artefacts.is_sound(path):
        return None
    facts = artefacts.read_json(path)
    return integrity.Size(facts["tokens"]["test"], facts["vocabulary_size"])


def _missing_files(study: Study, path: str, own: RunFiles) -> Iterator[Finding]:
    """Yield the files that a run's records name and that are gone, which later steps would notice too late."""
    names = {parent for name in own.contents for parent in own.parents(name)}
    if "epochs.jsonl" in names and own.contents.get("done", {}).get("model_sha256"):
        names |= {"model.safetensors", "run.json", "outcome.json"}
    if "hidden.npz" in names:  # written by the same step
        names |= {"measure.json", "topk.json"}
    if "measured.json" in own.hashes:
        names |= artefacts.read_json(own.folder / "measured.json")["files"].keys()
    if own.is_evaluation and own.contents.get("dynamic", {}).get("status") == "ok":
        names.add("outcome.json")
    if study.datasets[own.run.dataset].wordsim and not own.run.start and "rank" in own.contents:
        names.add("wordsim.json")
    left_out = integrity.LARGE if (study.store.root.parent / DEPOSIT_FILE).is_file() else ()
    for name in sorted(names.intersection(FILES_OF_RUN).difference(left_out)):
        unsealed = name == "epochs.jsonl" and artefacts.stored_hash(own.folder / name) is None
        if unsealed or not (own.folder / name).exists():
            yield Finding("missing", f"runs/{path}/{name}", f"{name} is gone: `make repair` prepares its making")


def _corpus_files(study: Study) -> dict[Path, str | None]:
    """Return the files of the study's corpora, with the sha256 that the download recorded, if any."""
    files: dict[Path, str | None] = {}
    for name in study.datasets:
        tokens, corpus = study.store.tokens_folder(name), study.store.corpus_folder(name)
        if tokens.exists():
            files |= dict.fromkeys(tokens / file for file in TOKEN_FILES)
        if corpus.exists():
            listed = corpus / "files.json"
            hashed = (path for path in sorted(corpus.iterdir()) if artefacts.sidecar(path).exists())
            files |= dict.fromkeys((listed, *hashed))
            if artefacts.is_sound(listed):
                files |= {corpus / file: digest for file, digest in artefacts.read_json(listed)["files"].items()}
    return files


def damage(store: Store, path: Path, digest: str | None = None) -> list[Finding]:
    """Return a finding if a file is missing, differs from the hash beside it, or from `digest`."""
    if artefacts.is_sound(path) and digest in (None, artefacts.stored_hash(path)):
        return []
    name = path.relative_to(store.root).as_posix()
    if not path.exists():
        return [Finding("missing", name, f"{path.name} is gone: `make repair` prepares its making")]
    return [Finding("damaged", name, f"{path.name} is damaged: `make repair` removes it")]


def _fits(store: Store, unit: Unit) -> tuple[int, list[Finding]]:
    """Return the number of files hashed and the findings of a unit: its numbers, and the fits they were taken from."""
    done = store.fits_folder(unit.path) / "done.json"
    name = done.relative_to(store.root).as_posix()
    if not done.exists():
        return 0, [Finding("missing", name, "not fitted yet")]
    if not artefacts.is_sound(done):
        return 1, damage(store, done)
    parents = artefacts.read_json(done)["provenance"]["parents"]
    folder, findings = store.fits_folder(f"laws/{unit.law_path}"), []
    for part, digest in parents.items():
        if not (folder / part).exists() or artefacts.sha256_file(folder / part) != digest:
            where = (folder / part).relative_to(store.root).as_posix()
            words = f"not the fit that {name} was made from: `make repair` removes both"
            findings.append(Finding("stale", where, words))
    return 1 + len(parents), findings


def _beside(study: Study) -> Iterator[str]:
    planned = {run.path for run in study.runs}
    for dataset, model, seed in dict.fromkeys((run.dataset, run.model, run.seed) for run in study.needed):
        for folder in sorted(study.store.run_folder(dataset).glob(f"{model}/{seed}-*")):
            path = folder.relative_to(study.store.root / "runs").as_posix()
            if folder.is_dir() and path not in planned:
                yield path
