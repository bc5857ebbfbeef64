"""A finished study as a Workflow Run RO-Crate: one folder that can be deposited, cited and built upon.

The crate repeats the layout of the workflow and its results, so that `make report` rebuilds the
page from an unpacked one.
Weights and hidden states stay out unless asked for; their sha256 is in the crate. Profiles: RO-Crate 1.1, Workflow
RO-Crate 1.0, Process Run Crate 0.5 and Workflow Run Crate 0.5 (https://www.researchobject.org/workflow-run-crate/).
"""

from __future__ import annotations

import posixpath
import re
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import yaml
from rocrate.model.contextentity import ContextEntity
from rocrate.model.entity import Entity
from rocrate.model.file import File
from rocrate.rocrate import ROCrate

from softmax_bottleneck.records import collect as records
from softmax_bottleneck.store import artefacts, paths, provenance
from softmax_bottleneck.store.errors import IncompleteError, UserError
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
PACKED = ("crate", "crate.zip", "report.zip")  # made of the study's folder, not part of it
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


def build(study: Study, deposit: Deposit | None = None, *, packed: bool = False) -> Path:
    """Write results/<study>/crate (and crate.zip, when `packed`); return its path.

    Raises:
        IncompleteError: runs or the report are missing.
        UserError: a file would tell where, or on which machine, the study was made.
    """
    _require_finished(study)
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


def _require_finished(study: Study) -> None:
    counts = records.collect(study).counts()
    absent = counts["missing"] + counts["stale"] + counts["unsound"]
    if absent:
        raise IncompleteError(f"{study.name}: {absent} of {counts['planned']} runs are missing; finish the study first")
    if not artefacts.is_sound(_page(study)):
        raise IncompleteError(f"{_page(study)}: no sound report; finish the study first")


# --- which files ----------------------------------------------------------------------------------------------------
def contents(study: Study, include: Iterable[str] = ()) -> dict[str, Path]:
    """Place in the crate -> file, for every file of a study's crate."""
    found = {path.relative_to(paths.ROOT).as_posix(): path for path in _workflow_files()}
    found |= _own_configuration(study)
    runs = [path for run in study.needed for path in _run_files(study, run, include)[0]]
    results = [*_study_files(study), *_corpus_files(study), *runs]
    return found | {path.as_posix(): path for path in results}


def _workflow_files() -> Iterator[Path]:
    yield from (paths.ROOT / name for name in WORKFLOW_FILES if (paths.ROOT / name).is_file())
    for folder in WORKFLOW_FOLDERS:
        yield from _visible(paths.ROOT / folder)


def _visible(folder: Path) -> Iterator[Path]:
    """Files below a folder, in order, without caches and hidden ones."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(part.startswith(".") or part == "__pycache__" for part in parts):
            yield path


def study_place(study: Study) -> str:
    """Where the study's own YAML lies in its crate."""
    return f"config/{study.file.name}"


def _own_configuration(study: Study) -> dict[str, Path]:
    """The study's YAML, and those it names; they may lie outside the workflow."""
    near = study.file.resolve().parent
    found = _study_chain(study)
    for dataset in _datasets(study):
        found[f"config/datasets/{dataset.name}.yaml"] = dataset.folder / f"{dataset.name}.yaml"
    for experiment in study.experiments:
        found[f"config/experiments/{experiment.id}.yaml"] = find_config("experiments", experiment.id, near)
    return found


def _study_chain(study: Study) -> dict[str, Path]:
    """The study's YAML and those it extends, at the same places relative to each other."""
    found: dict[str, Path] = {}
    place, path = study_place(study), study.file
    while place not in found:
        found[place] = path
        base = load_yaml(path).get("extends")
        if base is not None:
            place, path = posixpath.normpath(f"{posixpath.dirname(place)}/{base}"), path.parent / base
        if place.startswith(".."):
            raise UserError(f"{path}: extends a study far from it; put both into one folder")
    return found


def _datasets(study: Study) -> list[Dataset]:
    return list(study.datasets.values())


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
    patterns, wanted = set(HEAVY.values()), {HEAVY[name] for name in include}
    inside: list[Path] = []
    outside: list[Path] = []
    for path in _visible(study.store.run_folder(run.path)):
        heavy = [pattern for pattern in patterns if path.match(pattern)]
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
    made = datetime.fromtimestamp(_page(study).stat().st_mtime, UTC).replace(microsecond=0)
    with tempfile.TemporaryDirectory() as cleaned:
        files = contents(study, deposit.include) | _without_mirror(study, Path(cleaned))
        entities = {place: _add_file(crate, place, path) for place, path in files.items()}
        _describe_root(crate, study, deposit, made)
        people = _add_people(crate, deposit)
        _add_workflow_run(crate, study, entities, people, made)
        for run in study.needed:
            _add_training(crate, study, run, entities, people, deposit)
        crate.write(folder)
    for place, path in files.items():
        if artefacts.sidecar(path).is_file():
            shutil.copyfile(artefacts.sidecar(path), folder / f"{place}.sha256")


def _without_mirror(study: Study, folder: Path) -> dict[str, Path]:
    """Copies of the study's YAML without the folder of its author's machine in which copies of the corpora lie."""
    found = {}
    for place, path in _study_chain(study).items():
        found[place] = folder / place
        found[place].parent.mkdir(parents=True, exist_ok=True)
        text = re.sub(r"^mirror:.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        found[place].write_text(text, encoding="utf-8")
    return found


def _add_file(crate: ROCrate, place: str, path: Path) -> File:
    facts: dict[str, Any] = {"name": place, "sha256": artefacts.sha256_file(path)}
    facts["encodingFormat"] = MEDIA.get(Path(place).suffix, "text/plain")
    if place == "README.md":
        facts["about"] = {"@id": "./"}
    if place == "Snakefile":
        return _add_main_workflow(crate, path, facts)
    if place == "workflow/softmax_bottleneck/training/trainer.py":
        facts |= {"@type": ["File", "SoftwareSourceCode"], "version": _version()}
    return crate.add_file(path, place, record_size=True, properties=facts)


def _version() -> str:
    cited = yaml.safe_load((paths.ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    return str(cited["version"])


def _add_main_workflow(crate: ROCrate, path: Path, facts: Mapping[str, Any]) -> File:
    snakemake = provenance.block()["versions"]["snakemake"]  # type: ignore[index]
    more = {"name": "softmax-bottleneck", "version": _version(), "conformsTo": {"@id": WORKFLOW_PROFILE}}
    crate.add(
        ContextEntity(crate, WORKFLOW_PROFILE, {"@type": "CreativeWork", "name": "ComputationalWorkflow profile"})
    )
    return crate.add_workflow(
        path,
        "Snakefile",
        main=True,
        lang="snakemake",
        lang_version=snakemake,
        record_size=True,
        properties={**facts, **more},
    )


def _describe_root(crate: ROCrate, study: Study, deposit: Deposit, made: datetime) -> None:
    crate.name = f"{study.title} (softmax-bottleneck, study {study.name})"
    crate.description = (
        f"{(study.description or study.title).strip().rstrip('.')}. "
        "The workflow, its configuration and its results; of weights and hidden states that are left out, the hashes. "
        f"Unpacked, `make report CONFIG={study_place(study)}` rebuilds the report."
    )
    crate.datePublished = made
    licence = f"https://spdx.org/licenses/{deposit.licence}"
    crate.license = crate.add(ContextEntity(crate, licence, {"@type": "CreativeWork", "name": deposit.licence}))
    crate.keywords = ["language models", "softmax bottleneck", "matrix rank", "reproducibility"]
    named = [
        ContextEntity(crate, url, {"@type": "CreativeWork", "name": name, "version": url.rsplit("/", 1)[1]})
        for url, name in PROFILES.items()
    ]
    crate.add(*named)
    crate.root_dataset["conformsTo"] = named


def _add_people(crate: ROCrate, deposit: Deposit) -> list[Entity]:
    """Those who ran the study; nobody is guessed from the machine."""
    found = []
    for index, author in enumerate(deposit.authors):
        match = re.fullmatch(r"\s*([^<>]+?)\s*(?:<(https://orcid\.org/[0-9X-]+)>)?\s*", author)
        if not match:
            raise UserError(f"--author {author!r}: expected `Name` or `Name <https://orcid.org/0000-0000-0000-0000>`")
        facts = {"@type": "Person", "name": match[1]}
        found.append(crate.add(ContextEntity(crate, match[2] or f"#author-{index + 1}", facts)))
    if not found:
        facts = {"@type": "Organization", "name": "The softmax-bottleneck authors"}
        found.append(crate.add(ContextEntity(crate, "#authors", facts)))
    crate.root_dataset["author"] = _one_or_all(found)
    return found


def _one_or_all(values: list[Entity]) -> Entity | list[Entity]:
    """JSON-LD as the specification wants it: a single value is no list."""
    return values[0] if len(values) == 1 else values


def _add_workflow_run(
    crate: ROCrate, study: Study, entities: Mapping[str, File], people: list[Entity], made: datetime
) -> None:
    """The whole study as one execution of the workflow, with its parameters: the study in, records and page out."""
    home = study.store.study_folder(study.name).as_posix()
    results = [entity for place, entity in entities.items() if place.startswith(f"{home}/")]
    action = _action(crate, "#study-run", f"Run of study {study.name}", study.title, people)
    action["instrument"] = crate.mainEntity
    action["object"] = [entities[study_place(study)], *(_add_corpus(crate, dataset) for dataset in _datasets(study))]
    action["result"] = results
    action["endTime"] = made.isoformat()
    outer = {"records": f"{home}/records.csv", "report": f"{home}/report/index.html"}
    crate.mainEntity["input"] = _parameter(crate, "study", entities[study_place(study)])
    crate.mainEntity["output"] = [_parameter(crate, name, entities[place]) for name, place in outer.items()]


def _action(crate: ROCrate, identifier: str, name: str, description: str, people: list[Entity]) -> Entity:
    facts = {"@type": "CreateAction", "name": name, "description": description}
    action = crate.add(ContextEntity(crate, identifier, facts))
    action["actionStatus"] = "http://schema.org/CompletedActionStatus"
    action["agent"] = _one_or_all(people)
    crate.root_dataset.append_to("mentions", action)
    return action


def _parameter(crate: ROCrate, name: str, example: File) -> Entity:
    facts = {"@type": "FormalParameter", "name": name, "additionalType": "File", "workExample": {"@id": example.id}}
    crate.add(ContextEntity(crate, PARAMETER_PROFILE, {"@type": "CreativeWork", "name": "FormalParameter profile"}))
    parameter = crate.add(
        ContextEntity(crate, f"#parameter-{name}", facts | {"conformsTo": {"@id": PARAMETER_PROFILE}})
    )
    example["exampleOfWork"] = parameter
    return parameter


def _add_corpus(crate: ROCrate, dataset: Dataset) -> Entity:
    """A corpus by what identifies it; its text belongs to its owners and is not in the crate."""
    facts = {"@type": "CreativeWork", "name": dataset.title, "identifier": f"sha256:{dataset.identity}"}
    for key, term in (("licence", "usageInfo"), ("citation", "citation"), ("source", "isBasedOn")):
        if getattr(dataset, key):
            facts[term] = str(getattr(dataset, key))
    return crate.add(ContextEntity(crate, f"#corpus-{dataset.name}", facts))


def _add_training(
    crate: ROCrate, study: Study, run: Run, entities: Mapping[str, File], people: list[Entity], deposit: Deposit
) -> None:
    """One training run with what was measured of it."""
    folder = study.store.run_folder(run.path)
    done = artefacts.read_json(folder / "done.json")
    text = f"{run.model} on {run.dataset} with seed {run.seed}"
    action = _action(crate, f"#run-{run.run_id}", f"Training of {text}", "Training, perplexities, ranks.", people)
    action["instrument"] = entities["workflow/softmax_bottleneck/training/trainer.py"]
    action["object"] = crate.get(f"#corpus-{run.dataset}")
    places = [entity for place, entity in entities.items() if place.startswith(f"{folder.as_posix()}/")]
    action["result"] = places + [_left_out(crate, path) for path in _run_files(study, run, deposit.include)[1]]
    action["endTime"] = _time_of(folder / "done.json")
    if done["status"] != "ok":
        action["actionStatus"] = "http://schema.org/FailedActionStatus"
        action["error"] = str(done.get("reason") or done["status"])


def _time_of(path: Path) -> str:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).replace(microsecond=0).isoformat()


def _left_out(crate: ROCrate, path: Path) -> Entity:
    """A file that is not in the crate, by its hash."""
    facts = {"@type": "CreativeWork", "name": path.as_posix(), "contentSize": str(path.stat().st_size)}
    facts |= {
        "sha256": artefacts.sha256_file(path),
        "description": "Not in this crate; the hash says which file it is.",
    }
    return crate.add(ContextEntity(crate, f"#left-out/{path.as_posix()}", facts))


# --- what must not get out ------------------------------------------------------------------------------------------
def _refuse_private(folder: Path) -> None:
    """No file of the crate may name the folders or the machine it was made on."""
    places = {str(Path.home()), str(Path.cwd()), str(paths.ROOT)} - {"/"}
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
