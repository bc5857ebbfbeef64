"""Whether everything a study's numbers come from is whole, of its runs, and within what is possible.

Hashes every file of every planned run, follows what was made from what, looks for numbers that cannot be, and lists
what is missing or lies beside. `collect` does so on its way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
    """What came out.

    Attributes:
        counts: planned runs by state, and `mixed hardware`.
        files: number of files whose hash was computed.
        findings: what is wrong, in the plan's order.
        beside: run folders of the same corpus, model and seed under other settings or code; nothing reads them.
    """

    study: str
    counts: dict[str, int]
    files: int
    findings: tuple[Finding, ...]
    beside: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether every planned run is there and nothing is wrong."""
        return not self.findings and self.counts["ok"] == self.counts["planned"]

    def to_json(self) -> dict[str, Any]:
        """As stored in results/<study>/verify.json."""
        facts = asdict(self) | {"complete": self.complete}
        return facts | {"status": "ok" if self.complete else "incomplete"}

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Verification:
        """What `to_json` gave."""
        findings = tuple(Finding(**finding) for finding in facts["findings"])
        values = {key: facts[key] for key in ("study", "counts", "files")}
        return cls(**values, findings=findings, beside=tuple(facts["beside"]))

    def text(self) -> str:
        """For a terminal."""
        lines = [f"{self.study}: {len(self.findings) or 'no'} finding{'s' * (len(self.findings) != 1)}"
                 f" in {self.files} files hashed; runs {summary(self.counts)}"]  # fmt: skip
        lines += [f"  {one.kind:9} {one.file}: {one.words}" for one in self.findings[:SHOWN]]
        if len(self.findings) > SHOWN:
            lines.append(f"  and {len(self.findings) - SHOWN} more: `verify --json` lists all")
        if self.beside:
            lines.append(f"{len(self.beside)} runs of the same names under other settings or code lie beside, unread")
        return "\n".join(lines)


def summary(counts: dict[str, int]) -> str:
    """`planned 6 · ok 5 · diverged 1 ...`."""
    return " · ".join(f"{state} {number}" for state, number in counts.items())


def inspect_study(study: Study, runs: Mapping[str, RunFiles], records: Records) -> Verification:
    """Look into every file that `records` were collected from, and at the corpora and fits; nothing is written.

    Args:
        study: says what must be there.
        runs: path -> the small files of every run, as they were read.
        records: what came out of them.
    """
    sizes = {name: _size(study, name) for name in study.datasets}
    findings = [one for own in runs.values() for one in integrity.inspect(own, sizes[own.run.dataset])]
    files = sum(len(own.hashes) for own in runs.values())
    findings += _missing_files(study, runs)
    findings += _gaps(records, {one.file.removeprefix("runs/").rpartition("/")[0] for one in findings})
    for path in _corpus_files(study):
        files += 1
        findings += damage(study.store, path)
    findings += _edited_texts(study)
    for unit in study.units:
        hashed, wrong = _fits(study.store, unit)
        files += hashed
        findings += wrong
    findings += _duplicates(study)
    return Verification(study.name, records.counts(), files, tuple(findings), tuple(_beside(study)))


def _size(study: Study, name: str) -> integrity.Size | None:
    """Of a corpus as it was tokenised; None where it is not, or not any more."""
    path = study.store.tokens_folder(name) / "corpus.json"
    if not artefacts.is_sound(path):
        return None
    facts = artefacts.read_json(path)
    return integrity.Size(facts["tokens"]["test"], facts["vocabulary_size"])


def _gaps(collected: Records, known: set[str]) -> Iterator[Finding]:
    """Runs without numbers that no finding on their files explains."""
    rows = [row for frame in (collected.states, collected.stages) for row in frame.to_dict("records")]
    for row in {row["path"]: row for row in rows}.values():
        if row["state"] != "ok" and row["path"] not in known:
            yield Finding(str(row["state"]), f"runs/{row['path']}", str(row["reason"]))


BESIDE_RESULTS = (
    "epochs.jsonl",
    "spectrum.npz",
    "measure.json",
    "topk.json",
    "rank.json",
    "wordsim.json",
    "epochs_rank.json",
)
TOKEN_FILES = ("corpus.json", "vocabulary.json", "train.npy", "valid.npy", "test.npy")
DEPOSIT_FILE = "ro-crate-metadata.json"  # of an unpacked deposit, which leaves the large files out


def _missing_files(study: Study, runs: Mapping[str, RunFiles]) -> Iterator[Finding]:
    """Files of a run that another one speaks of and that are gone: later steps would miss them too late."""
    left_out = integrity.LARGE if (study.store.root.parent / DEPOSIT_FILE).is_file() else ()
    for path, own in runs.items():
        compared = study.datasets[own.run.dataset].wordsim and not own.run.start and not own.is_evaluation
        if compared and "rank" in own.contents and not (own.folder / "wordsim.json").exists():
            yield Finding("missing", f"runs/{path}/wordsim.json", "word similarity not done yet")
        for name in sorted(_spoken_of(own)):
            unsealed = name == "epochs.jsonl" and artefacts.stored_hash(own.folder / name) is None
            if (unsealed or not (own.folder / name).exists()) and name not in left_out:
                yield Finding("missing", f"runs/{path}/{name}", f"{name} is gone: `make repair` prepares its making")


def _spoken_of(own: RunFiles) -> set[str]:
    """Files that a run's results were made from or stand for, by what the results say."""
    names = {parent for content in own.contents.values() for parent in content.get("provenance", {}).get("parents", {})}
    if "epochs.jsonl" in names and own.contents.get("done", {}).get("model_sha256"):
        names |= {"model.safetensors", "run.json", "outcome.json"}
    if "hidden.npz" in names:  # of the same step
        names |= {"measure.json", "topk.json"}
    if artefacts.is_sound(own.folder / "measured.json"):
        names |= artefacts.read_json(own.folder / "measured.json")["files"].keys()
    if own.is_evaluation and own.contents.get("dynamic", {}).get("status") == "ok":
        names.add("outcome.json")
    return names & {*integrity.LARGE, *integrity.RECORDS_OF_RUN, *BESIDE_RESULTS}


def _corpus_files(study: Study) -> Iterator[Path]:
    """Files of the study's corpora that must have a hash beside them, where the corpus is there at all."""
    for name in study.datasets:
        tokens, corpus = study.store.tokens_folder(name), study.store.corpus_folder(name)
        if tokens.exists():
            yield from (tokens / file for file in TOKEN_FILES)
        if corpus.exists():
            yield corpus / "files.json"
            yield from (path for path in sorted(corpus.iterdir()) if artefacts.sidecar(path).exists())


def _edited_texts(study: Study) -> Iterator[Finding]:
    """Texts that are not the ones that were brought here."""
    for name in study.datasets:
        folder = study.store.corpus_folder(name)
        if artefacts.is_sound(folder / "files.json"):
            for file, digest in artefacts.read_json(folder / "files.json")["files"].items():
                path = folder / file
                if not artefacts.is_sound(path) or artefacts.stored_hash(path) != digest:
                    where = path.relative_to(study.store.root).as_posix()
                    yield Finding("damaged", where, f"{file} is not the text brought here: `make repair` removes it")


def damage(store: Store, path: Path) -> list[Finding]:
    """A finding when a file is not what was written, or not there."""
    if artefacts.is_sound(path):
        return []
    name = path.relative_to(store.root).as_posix()
    if not path.exists():
        return [Finding("missing", name, f"{path.name} is gone: `make repair` prepares its making")]
    return [Finding("damaged", name, f"{path.name} is damaged: `make repair` removes it")]


def _fits(store: Store, unit: Unit) -> tuple[int, list[Finding]]:
    """Files hashed and findings of a unit of fits: its numbers, and the files of single fits they were taken from."""
    done = store.fits_folder(unit.path) / "done.json"
    name = done.relative_to(store.root).as_posix()
    if not done.exists():
        return 0, [Finding("missing", name, "not fitted yet")]
    if not artefacts.is_sound(done):
        return 1, damage(store, done)
    parents = artefacts.read_json(done)["provenance"]["parents"]
    folder = store.fits_folder(f"laws/{unit.law_path}")
    findings = []
    for part, digest in parents.items():
        if not (folder / part).exists() or artefacts.sha256_file(folder / part) != digest:
            where = (folder / part).relative_to(store.root).as_posix()
            findings.append(
                Finding("stale", where, f"not the fit that {name} was made from: `make repair` removes both")
            )
    return 1 + len(parents), findings


def _duplicates(study: Study) -> Iterator[Finding]:
    """The same run trained under two names, with results that differ though they were to be equal."""
    for run in study.needed:
        own = _weights(study.store.run_folder(run.path))
        for other in _folders(study.store, run.dataset, f"*/{run.seed}-{run.run_id}"):
            if own and _weights(other) not in (None, own):
                name = other.relative_to(study.store.root).as_posix()
                words = f"the same run as {run.path}, with other weights: delete the one that is wrong"
                yield Finding("duplicate", name, words)


def _weights(folder: Path) -> str | None:
    path = folder / "done.json"
    return artefacts.read_json(path).get("model_sha256") if artefacts.is_sound(path) else None


def _folders(store: Store, dataset: str, pattern: str) -> list[Path]:
    return sorted(path for path in store.run_folder(dataset).glob(pattern) if path.is_dir())


def _beside(study: Study) -> Iterator[str]:
    planned = {run.path for run in study.runs}
    named: Iterable[tuple[str, str, int]] = dict.fromkeys((r.dataset, r.model, r.seed) for r in study.needed)
    for dataset, model, seed in named:
        for folder in _folders(study.store, dataset, f"{model}/{seed}-*"):
            path = folder.relative_to(study.store.root / "runs").as_posix()
            if path not in planned:
                yield path
