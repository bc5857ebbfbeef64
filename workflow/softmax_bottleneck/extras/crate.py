"""A finished study as a Workflow Run RO-Crate: one folder that can be deposited, cited and built upon.

The crate repeats the layout of the workflow and its results, so that `make report` rebuilds the page from an unpacked
one. Nothing is packed that does not verify. Weights and hidden states stay out unless asked for; their sha256 is in the
crate. Profiles: RO-Crate 1.1, Workflow RO-Crate 1.0, Process Run Crate 0.5 and Workflow Run Crate 0.5
(https://www.researchobject.org/workflow-run-crate/).
"""

from __future__ import annotations

import posixpath
import re
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import yaml
from rocrate.model.contextentity import ContextEntity
from rocrate.model.entity import Entity
from rocrate.model.file import File
from rocrate.rocrate import ROCrate

from softmax_bottleneck.records import verify
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import IncompleteError, UserError
from softmax_bottleneck.store.paths import ROOT
from softmax_bottleneck.study import Dataset, Run, Study, find_config, load_yaml

PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
WORKFLOW_PROFILE = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"
PARAMETER_PROFILE = "https://bioschemas.org/profiles/FormalParameter/1.0-RELEASE"
SHA256_TERM = "https://w3id.org/ro/terms/workflow-run#sha256"
WORKFLOW_FILES = (
    *("Snakefile", "Makefile", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"),
    *("LICENSE", "CITATION.cff", "pyproject.toml"),
)
WORKFLOW_FOLDERS = ("workflow", "config", "docs", "envs", "report")
HEAVY = {"weights": "*.safetensors", "hidden": "hidden.npz"}  # left out unless asked for by these names
LIGHT = {".json", ".jsonl", ".npz"}
PACKED = ("crate", "crate.zip", "report.zip", "partial")  # made of the study's folder, not part of it
TRAINER = "workflow/softmax_bottleneck/training/train.py"
ADVICE = "nothing is packed; `make verify` lists what is wrong, `make repair` makes it again"
MEDIA = {
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".csv": "text/csv",
    ".html": "text/html",
    ".svg": "image/svg+xml",
    ".md": "text/markdown",
    ".py": "text/x-python",
    ".yaml": "application/yaml",
    ".parquet": "application/vnd.apache.parquet",
    ".npz": "application/zip",
    ".safetensors": "application/octet-stream",
}  # everything else is plain text
ZIP_TIME = (1980, 1, 1, 0, 0, 0)  # the same files make the same zip


@dataclass(frozen=True)
class Deposit:
    """What a depositor decides.

    Attributes:
        authors: `Name` or `Name <https://orcid.org/...>` of those who ran the study.
        licence: SPDX identifier of the licence of the results.
        include: what of HEAVY goes in.
    """

    authors: tuple[str, ...] = ()
    licence: str = "MIT"
    include: frozenset[str] = frozenset()


Source = Path | BytesIO  # where the bytes of a file of the crate are


def build(study: Study, deposit: Deposit | None = None, *, packed: bool = False) -> Path:
    """Write results/<study>/crate (and crate.zip, when `packed`); return its path.

    Raises:
        IncompleteError: runs or the report are missing, or something does not verify.
        UserError: a file would tell where, or on which machine, the study was made.
    """
    _require_verified(study)
    folder = study.store.study_folder(study.name) / "crate"
    work = folder.with_name(".crate.tmp")
    shutil.rmtree(work, ignore_errors=True)
    try:
        _write(study, deposit or Deposit(), work)
        _refuse_private(work)
        shutil.rmtree(folder, ignore_errors=True)
        work.replace(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return _pack(folder) if packed else folder


def _page(study: Study) -> Path:
    return study.store.study_folder(study.name) / "report" / "index.html"


def _require_verified(study: Study) -> None:
    found = verify.verify(study)
    for finding in found.findings:
        if finding.kind not in ("missing", "diverged"):  # the latter is a result like any other
            raise IncompleteError(f"{finding.file}: {finding.words}; {ADVICE}")
    absent = sum(found.counts[state] for state in ("missing", "stale", "unsound"))
    if absent:
        raise IncompleteError(
            f"{study.name}: {absent} of {found.counts['planned']} runs are missing; finish the study first"
        )
    if not _page(study).exists():
        raise IncompleteError(f"{_page(study)}: no report; finish the study first")


# --- which files ----------------------------------------------------------------------------------------------------
def contents(study: Study, include: Iterable[str] = ()) -> dict[str, Source]:
    """Place in the crate -> its bytes, for every file of a study's crate.

    Raises:
        IncompleteError: a result is not what the hash beside it says, or has none.
    """
    results = [*_study_files(study), *_corpus_files(study)]
    results += [path for run in study.needed for path in _run_files(study, run, include)[0]]
    for path in results:
        if not artefacts.is_sound(path):
            raise IncompleteError(f"{path}: not the file that the hash beside it speaks of; {ADVICE}")
    found: dict[str, Source] = {path.relative_to(ROOT).as_posix(): path for path in _workflow_files()}
    return found | _own_configuration(study) | {path.as_posix(): path for path in results}


def _workflow_files() -> Iterator[Path]:
    yield from (ROOT / name for name in WORKFLOW_FILES if (ROOT / name).is_file())
    for folder in WORKFLOW_FOLDERS:
        yield from _visible(ROOT / folder)


def _visible(folder: Path) -> Iterator[Path]:
    """Files below a folder, in order, without caches and hidden ones."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(part.startswith(".") or part == "__pycache__" for part in parts):
            yield path


def study_place(study: Study) -> str:
    """Where the study's own YAML lies in its crate."""
    return f"config/{study.file.name}"


def _own_configuration(study: Study) -> dict[str, Source]:
    """The study's YAML, those it extends and those they name; all may lie outside the workflow."""
    near = study.file.resolve().parent
    found: dict[str, Source] = {}
    for dataset in study.datasets.values():
        found[f"config/datasets/{dataset.name}.yaml"] = dataset.folder / f"{dataset.name}.yaml"
    for experiment in study.experiments:
        found[f"config/experiments/{experiment.id}.yaml"] = find_config("experiments", experiment.id, near)
    place, path = study_place(study), study.file
    while place not in found:
        # The folder with copies of the corpora is of its author's machine.
        text = re.sub(r"^mirror:.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        found[place] = BytesIO(text.encode("utf-8"))
        base = load_yaml(path).get("extends")
        if base is not None:
            place, path = posixpath.normpath(f"{posixpath.dirname(place)}/{base}"), path.parent / base
        if place.startswith(".."):
            raise UserError(f"{path}: extends a study far from it; put both into one folder")
    return found


def _study_files(study: Study) -> Iterator[Path]:
    folder = study.store.study_folder(study.name)
    for path in _visible(folder):
        if path.suffix != ".sha256" and path.relative_to(folder).parts[0] not in PACKED:
            yield path


def _corpus_files(study: Study) -> Iterator[Path]:
    """What says which corpus it was, never its text."""
    for name in study.datasets:
        places = (study.store.corpus_folder(name) / "files.json", study.store.tokens_folder(name) / "corpus.json")
        yield from (path for path in places if path.is_file())


def _run_files(study: Study, run: Run, include: Iterable[str]) -> tuple[list[Path], list[Path]]:
    """Files of a run that go into the crate, and those that are named by their hash; private ones are neither."""
    wanted = {HEAVY[name] for name in include}
    inside: list[Path] = []
    outside: list[Path] = []
    for path in _visible(study.store.run_folder(run.path)):
        heavy = [pattern for pattern in HEAVY.values() if path.match(pattern)]
        if heavy:
            (inside if heavy[0] in wanted else outside).append(path)
        elif path.suffix in LIGHT:
            inside.append(path)
    return inside, outside


# --- the metadata ---------------------------------------------------------------------------------------------------
def _write(study: Study, deposit: Deposit, folder: Path) -> None:
    """Fill `folder` with the study's files and the metadata that describe them."""
    crate = ROCrate(version="1.1")
    crate.metadata.extra_terms["sha256"] = SHA256_TERM
    files = contents(study, deposit.include)
    entities = {place: _add_file(crate, place, source) for place, source in files.items()}
    _describe_root(crate, study, deposit)
    people = _add_people(crate, deposit)
    corpora = {dataset.name: _add_corpus(crate, dataset) for dataset in study.datasets.values()}
    _add_workflow_run(crate, study, entities, [*corpora.values()], people)
    for run in study.needed:
        _add_training(crate, study, run, entities, people, deposit, corpora[run.dataset])
    crate.write(folder)
    for place, source in files.items():
        if isinstance(source, Path) and artefacts.sidecar(source).is_file():
            shutil.copyfile(artefacts.sidecar(source), folder / f"{place}.sha256")


def _entity(crate: ROCrate, identifier: str, kind: str, /, **facts: Any) -> Entity:
    return crate.add(ContextEntity(crate, identifier, {"@type": kind, **facts}))


def _add_file(crate: ROCrate, place: str, source: Source) -> File:
    digest = artefacts.sha256_file(source) if isinstance(source, Path) else artefacts.sha256_bytes(source.getvalue())
    facts: dict[str, Any] = {"name": place, "sha256": digest}
    facts["encodingFormat"] = MEDIA.get(Path(place).suffix, "text/plain")
    if place == "README.md":
        facts["about"] = {"@id": "./"}
    if place == TRAINER:
        facts |= {"@type": ["File", "SoftwareSourceCode"], "version": _version()}
    if place != "Snakefile":
        return crate.add_file(source, place, record_size=True, properties=facts)
    profile = _entity(crate, WORKFLOW_PROFILE, "CreativeWork", name="ComputationalWorkflow profile")
    facts |= {"name": "softmax-bottleneck", "version": _version(), "conformsTo": {"@id": profile.id}}
    language = {"lang": "snakemake", "lang_version": metadata.version("snakemake")}
    return crate.add_workflow(source, place, main=True, record_size=True, properties=facts, **language)


def _version() -> str:
    return str(yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"])


def _describe_root(crate: ROCrate, study: Study, deposit: Deposit) -> None:
    crate.name = f"{study.title} (softmax-bottleneck, study {study.name})"
    crate.description = (
        f"{(study.description or study.title).strip().rstrip('.')}. "
        "The workflow, its configuration and its results; of weights and hidden states that are left out, the hashes. "
        f"Unpacked, `make report CONFIG={study_place(study)}` rebuilds the report."
    )
    crate.datePublished = _time_of(_page(study))
    licence = f"https://spdx.org/licenses/{deposit.licence}"
    crate.license = _entity(crate, licence, "CreativeWork", name=deposit.licence)
    crate.keywords = ["language models", "softmax bottleneck", "matrix rank", "reproducibility"]
    crate.root_dataset["conformsTo"] = [
        _entity(crate, url, "CreativeWork", name=name, version=url.rsplit("/", 1)[1]) for url, name in PROFILES.items()
    ]


def _time_of(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).replace(microsecond=0)


def _add_people(crate: ROCrate, deposit: Deposit) -> list[Entity] | Entity:
    """Those who ran the study; nobody is guessed from the machine. JSON-LD wants no list of one."""
    people = []
    for index, author in enumerate(deposit.authors):
        match = re.fullmatch(r"\s*([^<>]+?)\s*(?:<(https://orcid\.org/[0-9X-]+)>)?\s*", author)
        if not match:
            raise UserError(f"--author {author!r}: expected `Name` or `Name <https://orcid.org/0000-0000-0000-0000>`")
        people.append(_entity(crate, match[2] or f"#author-{index + 1}", "Person", name=match[1]))
    if not people:
        people.append(_entity(crate, "#authors", "Organization", name="The softmax-bottleneck authors"))
    crate.root_dataset["author"] = agents = people if len(people) > 1 else people[0]
    return agents


def _add_corpus(crate: ROCrate, dataset: Dataset) -> Entity:
    """A corpus by what identifies it; its text belongs to its owners and is not in the crate."""
    terms = (("licence", "usageInfo"), ("citation", "citation"), ("source", "isBasedOn"))
    facts = {term: str(getattr(dataset, key)) for key, term in terms if getattr(dataset, key)}
    facts |= {"name": dataset.title, "identifier": f"sha256:{dataset.identity}"}
    return _entity(crate, f"#corpus-{dataset.name}", "CreativeWork", **facts)


def _add_workflow_run(
    crate: ROCrate, study: Study, entities: Mapping[str, File], corpora: list[Entity], people: list[Entity] | Entity
) -> None:
    """The whole study as one execution of the workflow, with its parameters: the study in, records and page out."""
    home = study.store.study_folder(study.name).as_posix()
    given = entities[study_place(study)]
    action = _add_action(crate, "#study-run", f"Run of study {study.name}", study.title, people, _page(study))
    action["instrument"] = crate.mainEntity
    action["object"] = [given, *corpora]
    action["result"] = [entity for place, entity in entities.items() if place.startswith(f"{home}/")]
    made = {"records": f"{home}/records.csv", "report": f"{home}/report/index.html"}
    profile = _entity(crate, PARAMETER_PROFILE, "CreativeWork", name="FormalParameter profile")

    def parameter(name: str, example: File) -> Entity:
        facts = {"name": name, "additionalType": "File", "workExample": {"@id": example.id}}
        example["exampleOfWork"] = made = _entity(
            crate, f"#parameter-{name}", "FormalParameter", conformsTo={"@id": profile.id}, **facts
        )
        return made

    crate.mainEntity["input"] = parameter("study", given)
    crate.mainEntity["output"] = [parameter(name, entities[place]) for name, place in made.items()]


def _add_action(
    crate: ROCrate, identifier: str, name: str, description: str, people: list[Entity] | Entity, last: Path
) -> Entity:
    """Something that was done by these people, until the file `last` was written."""
    action = _entity(crate, identifier, "CreateAction", name=name, description=description)
    action["actionStatus"] = "http://schema.org/CompletedActionStatus"
    action["agent"] = people
    action["endTime"] = _time_of(last).isoformat()
    crate.root_dataset.append_to("mentions", action)
    return action


def _add_training(
    crate: ROCrate,
    study: Study,
    run: Run,
    entities: Mapping[str, File],
    people: list[Entity] | Entity,
    deposit: Deposit,
    corpus: Entity,
) -> None:
    """One training run with what was measured of it; files that are left out by their hash."""
    folder = study.store.run_folder(run.path)
    name = f"Training of {run.model} on {run.dataset} with seed {run.seed}"
    what = "Training, perplexities, ranks."
    action = _add_action(crate, f"#run-{run.run_id}", name, what, people, folder / "done.json")
    action["instrument"], action["object"] = entities[TRAINER], corpus
    left_out = [
        _entity(
            crate,
            f"#left-out/{path.as_posix()}",
            "CreativeWork",
            name=path.as_posix(),
            contentSize=str(path.stat().st_size),
            sha256=artefacts.sha256_file(path),
            description="Not in this crate; the hash says which file it is.",
        )
        for path in _run_files(study, run, deposit.include)[1]
    ]
    inside = [entity for place, entity in entities.items() if place.startswith(f"{folder.as_posix()}/")]
    action["result"] = inside + left_out
    done = artefacts.read_json(folder / "done.json")
    if done["status"] != "ok":
        action["actionStatus"] = "http://schema.org/FailedActionStatus"
        action["error"] = str(done.get("reason") or done["status"])


# --- what must not get out ------------------------------------------------------------------------------------------
def _refuse_private(folder: Path) -> None:
    """No file of the crate may name the folders or the machine it was made on."""
    places = {str(Path.home()), str(Path.cwd()), str(ROOT)} - {"/"}
    words = [re.escape(place) + r"(?![\w.-])" for place in places]
    host = socket.gethostname()
    if re.search(r"[\d.-]", host):  # `node17` tells something; a plain word would be found in innocent text
        words.append(rf"(?<![\w.-]){re.escape(host)}(?![\w-])")
    telling = re.compile("|".join(words))
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix not in {".npz", ".parquet", ".safetensors"}:
            match = telling.search(path.read_bytes().decode("utf-8", errors="replace"))
            if match:
                name = path.relative_to(folder).as_posix()
                raise UserError(f"{name}: names {match[0]!r}, which is of this machine; use a relative path there")


def _pack(folder: Path) -> Path:
    """The folder as a zip, the same bytes for the same files."""
    target = folder.with_suffix(".zip")
    temporary = target.with_name(f".{target.name}.tmp")
    with ZipFile(temporary, "w", ZIP_DEFLATED) as packed:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            info = ZipInfo(path.relative_to(folder).as_posix(), ZIP_TIME)
            info.compress_type, info.external_attr = ZIP_DEFLATED, 0o644 << 16
            packed.writestr(info, path.read_bytes())
    temporary.replace(target)
    return target
