"""A finished study as a Workflow Run RO-Crate: one folder that can be deposited, cited and reused.

The crate has the layout of the repository, so that `make report` rebuilds the report from an unpacked one. Files that
do not match their hash are never packed. Weights and hidden states are packed only on request; otherwise the crate
lists their sha256. Profiles: RO-Crate 1.1, Workflow RO-Crate 1.0, Process Run Crate 0.5 and Workflow Run Crate 0.5
(https://www.researchobject.org/workflow-run-crate/).
"""

import mimetypes
import re
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import Any

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
HEAVY = {"weights": "*.safetensors", "hidden": "hidden.npz"}  # packed only if --include names them
LIGHT = {".json", ".jsonl", ".npz"}
PACKED = ("crate", "crate.zip", "report.zip", "partial")  # made from the study's folder, not part of it
TRAINER = "workflow/softmax_bottleneck/training/train.py"
BINARY = {".npz", ".parquet", ".safetensors"}
ADVICE = "nothing was packed. `make verify` lists all problems; `make repair` removes them, to be recomputed"
Source = Path | BytesIO  # the content of a file of the crate


def build(
    study: Study, authors: Sequence[str] = (), licence: str = "MIT", include: Iterable[str] = (), packed: bool = False
) -> Path:
    """Write results/<study>/crate (and crate.zip, if `packed`); return its path.

    Args:
        study: the finished study.
        authors: `Name` or `Name <https://orcid.org/...>` of those who ran the study.
        licence: SPDX identifier of the licence of the results.
        include: names of HEAVY.
        packed: whether to write a zip file as well.

    Raises:
        IncompleteError: runs or the report are missing, or a file does not match its hash.
        UserError: a file names a folder or the host name of this machine.
    """
    _require_complete(study)
    folder = study.store.study_folder(study.name) / "crate"
    work = folder.with_name(".crate.tmp")
    shutil.rmtree(work, ignore_errors=True)
    try:
        _write(study, authors, licence, include, work)
        _reject_private(work)
        shutil.rmtree(folder, ignore_errors=True)
        work.replace(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Path(shutil.make_archive(str(folder), "zip", folder)) if packed else folder


def _require_complete(study: Study) -> None:
    found, page = verify.verify(study), _page(study)
    for finding in found.findings:
        if finding.kind not in ("missing", "diverged"):  # a diverged run is a result
            raise IncompleteError(f"{finding.file}: {finding.words}; {ADVICE}")
    absent = sum(found.counts[state] for state in ("missing", "stale", "unsound"))
    if absent:
        planned = found.counts["planned"]
        raise IncompleteError(f"{study.name}: {absent} of {planned} runs are missing; finish the study first")
    if not page.exists():
        raise IncompleteError(f"{page}: no report; finish the study first")


def _page(study: Study) -> Path:
    return study.store.study_folder(study.name) / "report" / "index.html"


# --- the files ------------------------------------------------------------------------------------------------------
def _contents(study: Study, include: Iterable[str]) -> dict[str, Source]:
    """Return path in the crate -> content of every file (IncompleteError: a result does not match its hash)."""
    home = study.store.study_folder(study.name)
    results = [path for path in _visible(home) if path.relative_to(home).parts[0] not in PACKED]
    for name in study.datasets:  # what identifies a corpus, but never its text
        places = (study.store.corpus_folder(name) / "files.json", study.store.tokens_folder(name) / "corpus.json")
        results += [path for path in places if path.is_file()]
    results += [path for run in study.needed for path in _run_files(study, run, include)[0]]
    for path in results:
        if not artefacts.is_sound(path):
            raise IncompleteError(f"{path}: content does not match its hash, or has none; {ADVICE}")
    workflow = [ROOT / name for name in WORKFLOW_FILES if (ROOT / name).is_file()]
    workflow += [path for folder in WORKFLOW_FOLDERS for path in _visible(ROOT / folder)]
    files: dict[str, Source] = {path.relative_to(ROOT).as_posix(): path for path in workflow}
    return files | _configuration(study) | {path.as_posix(): path for path in results}


def _visible(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder in order, without caches, hidden files and the hashes beside files."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if (
            path.is_file()
            and path.suffix != ".sha256"
            and not any(part.startswith(".") or part == "__pycache__" for part in parts)
        ):
            yield path


def _run_files(study: Study, run: Run, include: Iterable[str]) -> tuple[list[Path], list[Path]]:
    """Return the files of a run to pack, and those of which only the hash is listed."""
    wanted = {HEAVY[name] for name in include}
    inside: list[Path] = []
    outside: list[Path] = []
    for path in _visible(study.store.run_folder(run.path)):
        heavy = next((pattern for pattern in HEAVY.values() if path.match(pattern)), None)
        if heavy:
            (inside if heavy in wanted else outside).append(path)
        elif path.suffix in LIGHT:
            inside.append(path)
    return inside, outside


def _configuration(study: Study) -> dict[str, Source]:
    """Return the study's YAML, those it extends, and those it names; they may lie outside the repository."""
    near = study.file.resolve().parent
    files: dict[str, Source] = {}
    for dataset in study.datasets.values():
        files[f"config/datasets/{dataset.name}.yaml"] = dataset.folder / f"{dataset.name}.yaml"
    for experiment in study.experiments:
        files[f"config/experiments/{experiment.id}.yaml"] = find_config("experiments", experiment.id, near)
    path: Path | None = study.file
    while path is not None:
        if not path.resolve().is_relative_to(near):
            raise UserError(f"{path}: lies outside the study's folder. Expected both in one folder")
        place = f"config/{path.resolve().relative_to(near).as_posix()}"
        # The mirror is a folder of the author's machine.
        text = re.sub(r"^mirror:.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        files[place] = BytesIO(text.encode("utf-8"))
        base = load_yaml(path).get("extends")
        path = path.parent / base if base else None
    return files


# --- the metadata ---------------------------------------------------------------------------------------------------
def _write(study: Study, authors: Sequence[str], licence: str, include: Iterable[str], folder: Path) -> None:
    """Fill `folder` with the study's files and their metadata."""
    crate = ROCrate(version="1.1")
    crate.metadata.extra_terms["sha256"] = SHA256_TERM
    sources = _contents(study, include)
    files = {place: _add_file(crate, place, source) for place, source in sources.items()}
    _describe(crate, study, licence)
    people = _add_people(crate, authors)
    corpora = {dataset.name: _add_corpus(crate, dataset) for dataset in study.datasets.values()}
    _add_workflow_run(crate, study, files, [*corpora.values()], people)
    for run in study.needed:
        outside = _run_files(study, run, include)[1]
        _add_training(crate, study, run, files, outside, corpora[run.dataset], people)
    crate.write(folder)
    for place, source in sources.items():
        if isinstance(source, Path) and artefacts.sidecar(source).is_file():
            shutil.copyfile(artefacts.sidecar(source), folder / f"{place}.sha256")


def _entity(crate: ROCrate, identifier: str, kind: str, /, **facts: Any) -> Entity:
    return crate.add(ContextEntity(crate, identifier, {"@type": kind, **facts}))


def _add_file(crate: ROCrate, place: str, source: Source) -> File:
    digest = artefacts.sha256_file(source) if isinstance(source, Path) else artefacts.sha256_bytes(source.getvalue())
    kind = "application/octet-stream" if Path(place).suffix in BINARY else "text/plain"
    facts: dict[str, Any] = {"name": place, "sha256": digest}
    facts["encodingFormat"] = mimetypes.guess_type(place)[0] or kind
    version = str(yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"])
    if place == "README.md":
        facts["about"] = {"@id": "./"}
    if place == TRAINER:
        facts |= {"@type": ["File", "SoftwareSourceCode"], "version": version}
    if place != "Snakefile":
        return crate.add_file(source, place, record_size=True, properties=facts)
    profile = _entity(crate, WORKFLOW_PROFILE, "CreativeWork", name="ComputationalWorkflow profile")
    facts |= {"name": "softmax-bottleneck", "version": version, "conformsTo": {"@id": profile.id}}
    language = {"lang": "snakemake", "lang_version": metadata.version("snakemake")}
    return crate.add_workflow(source, place, main=True, record_size=True, properties=facts, **language)


def _describe(crate: ROCrate, study: Study, licence: str) -> None:
    crate.name = f"{study.title} (softmax-bottleneck, study {study.name})"
    crate.description = (
        f"{(study.description or study.title).strip().rstrip('.')}. "
        "The workflow, its configuration and its results; weights and hidden states may be listed by hash only. "
        f"In an unpacked crate, `make report CONFIG=config/{study.file.name}` rebuilds the report."
    )
    crate.datePublished = _time_of(_page(study))
    crate.license = _entity(crate, f"https://spdx.org/licenses/{licence}", "CreativeWork", name=licence)
    crate.keywords = ["language models", "softmax bottleneck", "matrix rank", "reproducibility"]
    crate.root_dataset["conformsTo"] = [
        _entity(crate, url, "CreativeWork", name=name, version=url.rsplit("/", 1)[1]) for url, name in PROFILES.items()
    ]


def _time_of(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).replace(microsecond=0)


def _add_people(crate: ROCrate, authors: Sequence[str]) -> list[Entity] | Entity:
    """Add the named authors, or this project's; JSON-LD has no list of one element."""
    people = []
    for index, author in enumerate(authors):
        match = re.fullmatch(r"\s*([^<>]+?)\s*(?:<(https://orcid\.org/[0-9X-]+)>)?\s*", author)
        if not match:
            raise UserError(f"--author {author!r}: expected `Name` or `Name <https://orcid.org/0000-0000-0000-0000>`")
        people.append(_entity(crate, match[2] or f"#author-{index + 1}", "Person", name=match[1]))
    if not people:
        people.append(_entity(crate, "#authors", "Organization", name="The softmax-bottleneck authors"))
    crate.root_dataset["author"] = agents = people if len(people) > 1 else people[0]
    return agents


def _add_corpus(crate: ROCrate, dataset: Dataset) -> Entity:
    terms = (("licence", "usageInfo"), ("citation", "citation"), ("source", "isBasedOn"))
    facts = {term: str(getattr(dataset, key)) for key, term in terms if getattr(dataset, key)}
    facts |= {"name": dataset.title, "identifier": f"sha256:{dataset.identity}"}
    return _entity(crate, f"#corpus-{dataset.name}", "CreativeWork", **facts)


def _add_action(crate: ROCrate, identifier: str, people: list[Entity] | Entity, last: Path, **facts: Any) -> Entity:
    """Add an action of these people that ended when the file `last` was written."""
    action = _entity(crate, identifier, "CreateAction", endTime=_time_of(last).isoformat(), **facts)
    action["actionStatus"] = "http://schema.org/CompletedActionStatus"
    action["agent"] = people
    crate.root_dataset.append_to("mentions", action)
    return action


def _add_workflow_run(
    crate: ROCrate, study: Study, files: Mapping[str, File], corpora: list[Entity], people: list[Entity] | Entity
) -> None:
    """Describe the study as one execution of the workflow: its YAML is the input, records and report the outputs."""
    home = study.store.study_folder(study.name).as_posix()
    profile = _entity(crate, PARAMETER_PROFILE, "CreativeWork", name="FormalParameter profile")

    def parameter(name: str, place: str) -> Entity:
        facts = {"name": name, "additionalType": "File", "workExample": {"@id": files[place].id}}
        entity = _entity(crate, f"#parameter-{name}", "FormalParameter", conformsTo={"@id": profile.id}, **facts)
        files[place]["exampleOfWork"] = entity
        return entity

    given = f"config/{study.file.name}"
    crate.mainEntity["input"] = parameter("study", given)
    crate.mainEntity["output"] = [
        parameter("records", f"{home}/records.csv"),
        parameter("report", f"{home}/report/index.html"),
    ]
    facts = {"name": f"Run of study {study.name}", "description": study.title}
    action = _add_action(crate, "#study-run", people, _page(study), **facts)
    action["instrument"] = crate.mainEntity
    action["object"] = [files[given], *corpora]
    action["result"] = [file for place, file in files.items() if place.startswith(f"{home}/")]


def _add_training(
    crate: ROCrate, study: Study, run: Run, files: Mapping[str, File], outside: list[Path], corpus: Entity,
    people: list[Entity] | Entity,
) -> None:  # fmt: skip
    """Describe a training run and its measurements; files that are not packed are listed with their hash."""
    folder = study.store.run_folder(run.path)
    name = f"Training of {run.model} on {run.dataset} with seed {run.seed}"
    facts = {"name": name, "description": "Training, perplexities, ranks."}
    action = _add_action(crate, f"#run-{run.run_id}", people, folder / "done.json", **facts)
    action["instrument"], action["object"] = files[TRAINER], corpus
    results: list[Entity] = [file for place, file in files.items() if place.startswith(f"{folder.as_posix()}/")]
    for path in outside:
        facts = {"name": path.as_posix(), "contentSize": str(path.stat().st_size)}
        facts |= {"sha256": artefacts.sha256_file(path), "description": "Not in this crate; the hash identifies it."}
        results.append(_entity(crate, f"#left-out/{path.as_posix()}", "CreativeWork", **facts))
    action["result"] = results
    done = artefacts.read_json(folder / "done.json")
    if done["status"] != "ok":
        action["actionStatus"] = "http://schema.org/FailedActionStatus"
        action["error"] = str(done.get("reason") or done["status"])


# --- private information --------------------------------------------------------------------------------------------
def _reject_private(folder: Path) -> None:
    """Raise UserError if a file of the crate names a folder or the host name of this machine."""
    places = {str(Path.home()), str(Path.cwd()), str(ROOT)} - {"/"}
    patterns = [re.escape(place) + r"(?![\w.-])" for place in places]
    host = socket.gethostname()
    if re.search(r"[\d.-]", host):  # `node17` identifies a machine; a plain word also occurs in innocent text
        patterns.append(rf"(?<![\w.-]){re.escape(host)}(?![\w-])")
    private = re.compile("|".join(patterns))
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix not in BINARY:
            match = private.search(path.read_bytes().decode("utf-8", errors="replace"))
            if match:
                name = path.relative_to(folder).as_posix()
                raise UserError(f"{name}: names {match[0]!r}, which is of this machine. Use a relative path")
