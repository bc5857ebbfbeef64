"""A finished study as a Workflow Run RO-Crate: one folder that can be deposited, cited and reused.

The crate has the layout of the repository, so that `make report` in an unpacked crate rebuilds the report. If a file
does not match its hash, no crate is written. Weights are packed only on request. Hidden states and the texts of corpora
are never packed. Profiles: RO-Crate 1.1, Workflow RO-Crate 1.0, Process Run Crate 0.5 and Workflow Run Crate 0.5
(https://www.researchobject.org/workflow-run-crate/).
"""

import argparse
import hashlib
import mimetypes
import os
import re
import shutil
import socket
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import Any

import yaml
from rocrate.model import ContextEntity, Entity, File
from rocrate.rocrate import ROCrate

from softmax_bottleneck.records import verify
from softmax_bottleneck.store import artefacts, errors, progress
from softmax_bottleneck.store.fingerprint import closure
from softmax_bottleneck.store.paths import ROOT
from softmax_bottleneck.study import Dataset, Study, find_config, load_yaml
from softmax_bottleneck.study.datasets import OWN_BENCHMARK

PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
WORKFLOW_PROFILE = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"
SHA256_TERM = "https://w3id.org/ro/terms/workflow-run#sha256"
WORKFLOW_FILES = ["Snakefile", "Makefile", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"]
WORKFLOW_FILES += ["LICENSE", "CITATION.cff", "pyproject.toml"]
WORKFLOW_FOLDERS = ("workflow", "docs", "envs", "report")
RUN_FILES = {".json", ".jsonl", ".npz"}  # suffixes; with --weights also .safetensors
PACKED = ("crate", "crate.zip", "report.zip", "partial")  # made from the study's folder, not part of it
BINARY = {".npz", ".parquet", ".safetensors"}
ADVICE = "nothing was packed. `make verify` lists all problems; fix them with `make repair`, then `make reproduce`"
Source = Path | BytesIO  # the content of a file of the crate


def crate(study: Study, options: argparse.Namespace, say: progress.Say) -> None:
    """Package a finished study as an RO-Crate (files with metadata) in the folder results/<study>/crate.

    `--weights` adds the models' weights; `--zip` also writes crate.zip.
    """
    folder = build(study, options.weights)
    truths = [unit.truth for unit in study.units if unit.truth]
    if models := sorted({truth.source.model for truth in truths if truth.source.model}):
        say(f"warning: saved models are not packed, and a rebuilt report lacks their fits: {', '.join(models)}")
    say(f"wrote {shutil.make_archive(str(folder), 'zip', folder) if options.zip else folder}")


def build(study: Study, with_weights: bool = False) -> Path:
    """Write the RO-Crate of a finished study and return the folder results/<study>/crate.

    Raises:
        IncompleteError: a run, a later stage, a fit or a file of the report is missing, or a file does not match its
            hash.
        UserError: a text file to pack contains the path of the home folder, working folder or repository, or the host
            name; or a YAML file that the study extends lies outside the folder of the study's file.
    """
    home = study.store.study_folder(study.name)
    page = home / "report" / "index.html"
    for finding in verify.verify(study).findings:
        if finding.kind != "diverged":  # a diverged run is a result
            raise errors.IncompleteError(f"{finding.file}: {finding.words}; {ADVICE}")
    if not page.exists():
        raise errors.IncompleteError(f"{study.name}: there is no report; finish the study first")
    # Texts that reveal this machine: no text file of the crate may contain one.
    private, host = {str(Path.home()), str(Path.cwd()), str(ROOT)} - {"/"}, socket.gethostname()
    private |= {host} if re.search(r"[\d.-]", host) else set()  # a host name without these may be an English word
    pattern = re.compile("|".join(rf"(?<![\w.-]){re.escape(name)}(?![\w-])" for name in private))
    work = home / ".crate.tmp"
    shutil.rmtree(work, ignore_errors=True)
    try:
        _write(study, page, _contents(study, with_weights), work)
        for path in sorted(file for file in work.rglob("*") if file.is_file() and file.suffix not in BINARY):
            if match := pattern.search(path.read_bytes().decode("utf-8", errors="replace")):
                name = path.relative_to(work).as_posix()
                problem = f"contains {match[0]!r}, a path or host name of this machine"
                raise errors.UserError(f"{name}: {problem}. Remove it, or use a relative path")
        shutil.rmtree(home / "crate", ignore_errors=True)
        return work.replace(home / "crate")
    finally:
        shutil.rmtree(work, ignore_errors=True)


# --- the files ------------------------------------------------------------------------------------------------------
def _contents(study: Study, with_weights: bool) -> dict[str, Source]:
    """Return {path in the crate: file or bytes to pack}.

    Raises:
        IncompleteError: a result does not match its hash.
        UserError: a file that the study extends, or that holds one of its heads, lies outside the folder of the study.
    """
    home = study.store.study_folder(study.name)
    results = [path for path in _visible(home) if path.relative_to(home).parts[0] not in PACKED]
    datasets = _datasets(study)
    for name in datasets:  # files that identify a corpus; its text is never packed
        places = (study.store.corpus_folder(name) / "files.json", study.store.tokens_folder(name) / "corpus.json")
        results += [path for path in places if path.is_file()]
    suffixes = RUN_FILES | ({".safetensors"} if with_weights else set())
    files_of_runs = (path for run in study.needed for path in _visible(study.store.run_folder(run.path)))
    results += [path for path in files_of_runs if path.suffix in suffixes and path.name != "hidden.npz"]
    for path in results:
        if not artefacts.is_sound(path):
            raise errors.IncompleteError(f"{path}: content does not match its hash, or has none; {ADVICE}")
    workflow = [ROOT / name for name in WORKFLOW_FILES if (ROOT / name).is_file()]
    workflow += [path for folder in WORKFLOW_FOLDERS for path in _visible(ROOT / folder)]
    files: dict[str, Source] = {path.relative_to(ROOT).as_posix(): path for path in workflow}
    return files | _config(study, datasets) | {path.as_posix(): path for path in results}


def _datasets(study: Study) -> dict[str, Dataset]:
    """Return {name: dataset} of the datasets of a study, and of those that these name as their `base` or `wordsim`."""
    datasets, waiting = dict[str, Dataset](), list(study.datasets)
    while waiting:
        dataset = study.dataset(waiting.pop())
        datasets[dataset.name] = dataset
        named = (dataset.base, dataset.wordsim)
        waiting += [name for name in named if name and name != OWN_BENCHMARK and name not in datasets]
    return datasets


def _config(study: Study, datasets: Mapping[str, Dataset]) -> dict[str, Source]:
    """Return {path in the crate: file or bytes to pack} for the folder `config`.

    It has the YAML files of this repository, and those of the study, of its datasets, experiments and heads, which may
    lie outside the repository. Texts below `config` are left out.

    Raises:
        UserError: a file that the study extends, or that holds one of its heads, lies outside the folder of the study.
    """
    near, chain = study.file.resolve().parent, [study.file]
    paths = [path for path in _visible(ROOT / "config") if path.suffix in (".yaml", ".md")]
    files = {path.relative_to(ROOT).as_posix(): path for path in paths}
    files |= {f"config/datasets/{name}.yaml": one.folder / f"{name}.yaml" for name, one in datasets.items()}
    for experiment in study.experiments:
        files[f"config/experiments/{experiment.id}.yaml"] = find_config("experiments", experiment.id, near)
    while base := load_yaml(chain[-1]).get("extends"):
        chain.append(chain[-1].parent / base)
    heads = sorted(path for path in closure(study.head_files) if isinstance(path, Path))  # and files that they import
    for path in (*chain, *heads):
        if not path.resolve().is_relative_to(near):
            problem = "the study needs this file, which lies outside the study's folder"
            raise errors.UserError(f"{path}: {problem}. Move both into one folder")
        files[f"config/{path.resolve().relative_to(near).as_posix()}"] = path
    hashes = {f"config/datasets/{name}.yaml": _hashes(dataset) for name, dataset in datasets.items()}
    return {name: _portable(path, hashes.get(name, {}), near) for name, path in files.items()}


def _hashes(dataset: Dataset) -> dict[str, str]:
    """Return {name: sha256} of a dataset's local files without a declared hash."""
    undeclared = {name: entry["path"] for name, entry in dataset.files.items() if "sha256" not in entry}
    paths = {name: dataset.folder / path for name, path in undeclared.items()}
    return {name: artefacts.sha256_file(path) for name, path in paths.items() if path.is_file()}


def _portable(file: Path, hashes: Mapping[str, str], near: Path) -> Source:
    """Return a file of the folder `config`, if it is YAML with what has to change for other machines.

    A study has no `mirror`, which is a folder of this machine. An absolute path into `near`, the folder of the study,
    becomes relative, and only the name is left of others. A dataset has the `hashes` of its local texts, which are not
    packed.
    """
    if file.suffix not in (".yaml", ".yml"):
        return file
    values = load_yaml(file)
    changed = {
        key: _relative(value, file.resolve().parent, near)
        for key, value in values.items()
        if key != "mirror" or "kind" in values
    }
    for name, digest in hashes.items():
        changed["files"][name]["sha256"] = digest
    if changed == values:
        return file
    return BytesIO(yaml.safe_dump(changed, sort_keys=False, allow_unicode=True, width=120).encode("utf-8"))


def _relative(value: Any, folder: Path, near: Path) -> Any:
    """Return a value of a YAML file in `folder`; of absolute paths, only the last part is left outside `near`."""
    if isinstance(value, dict):
        return {key: _relative(inner, folder, near) for key, inner in value.items()}
    if isinstance(value, list):
        return [_relative(inner, folder, near) for inner in value]
    if not (isinstance(value, str) and Path(value).is_absolute()):
        return value
    path = Path(value).resolve()
    return Path(os.path.relpath(path, folder)).as_posix() if path.is_relative_to(near) else path.name


def _visible(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder in sorted order, except caches, hidden files and .sha256 files."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if path.is_file() and path.suffix != ".sha256" and not hidden:
            yield path


# --- the metadata ---------------------------------------------------------------------------------------------------
def _write(study: Study, page: Path, sources: Mapping[str, Source], folder: Path) -> None:
    """Write the files and the metadata of a crate to a folder.

    Args:
        study: the study.
        page: the study's report; its modification time becomes the date of the crate.
        sources: path in the crate -> file or bytes to pack, as `_contents` returns them.
        folder: folder to write to.
    """
    graph = ROCrate(version="1.1")
    graph.metadata.extra_terms["sha256"] = SHA256_TERM
    version = str(yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"])
    files = {place: _add_file(graph, place, source, version) for place, source in sources.items()}
    graph.name = f"{study.title} (softmax-bottleneck, study {study.name})"
    graph.description = (
        f"{(study.description or study.title).strip().rstrip('.')}. The workflow, its configuration and its results. "
        f"In an unpacked crate, `make report CONFIG=config/{study.file.resolve().name}` rebuilds the report."
    )
    graph.datePublished = datetime.fromtimestamp(page.stat().st_mtime, UTC).replace(microsecond=0)
    graph.license = _entity(graph, "https://spdx.org/licenses/MIT", "CreativeWork", name="MIT")
    graph.keywords = ["language models", "softmax bottleneck", "matrix rank", "reproducibility"]
    graph.root_dataset["conformsTo"] = [
        _entity(graph, url, "CreativeWork", name=name, version=url.rsplit("/", 1)[1]) for url, name in PROFILES.items()
    ]
    graph.root_dataset["author"] = _entity(graph, "#authors", "Organization", name="The softmax-bottleneck authors")
    # One execution of the workflow, with YAML and corpora as inputs and results as outputs.
    inputs: list[Entity] = [files[f"config/{study.file.resolve().name}"]]
    for dataset in study.datasets.values():
        terms = (("licence", "usageInfo"), ("citation", "citation"), ("source", "isBasedOn"))
        facts = {term: str(getattr(dataset, key)) for key, term in terms if getattr(dataset, key)}
        facts |= {"name": dataset.title, "identifier": f"sha256:{dataset.identity}"}
        inputs.append(_entity(graph, f"#corpus-{dataset.name}", "CreativeWork", **facts))
    results = [file for place, file in files.items() if place.startswith(study.store.root.as_posix())]
    facts = {"name": f"Run of study {study.name}", "description": study.title}
    facts |= {"endTime": graph.datePublished.isoformat(), "actionStatus": "http://schema.org/CompletedActionStatus"}
    action = graph.add_action(graph.mainEntity, "#study-run", object=inputs, result=results, properties=facts)
    action["agent"] = graph.root_dataset["author"]
    graph.root_dataset.append_to("mentions", action)
    graph.write(folder)
    for place, source in sources.items():
        if isinstance(source, Path) and artefacts.sidecar(source).is_file():
            shutil.copyfile(artefacts.sidecar(source), folder / f"{place}.sha256")


def _entity(graph: ROCrate, identifier: str, kind: str, /, **facts: Any) -> Entity:
    return graph.add(ContextEntity(graph, identifier, {"@type": kind, **facts}))


def _add_file(graph: ROCrate, place: str, source: Source, version: str) -> File:
    digest = (
        artefacts.sha256_file(source) if isinstance(source, Path) else hashlib.sha256(source.getvalue()).hexdigest()
    )
    kind = "application/octet-stream" if Path(place).suffix in BINARY else "text/plain"
    facts: dict[str, Any] = {"name": place, "sha256": digest}
    facts["encodingFormat"] = mimetypes.guess_type(place)[0] or kind
    if place == "README.md":
        facts["about"] = {"@id": "./"}
    if place != "Snakefile":
        return graph.add_file(source, place, record_size=True, properties=facts)
    profile = _entity(graph, WORKFLOW_PROFILE, "CreativeWork", name="ComputationalWorkflow profile")
    facts |= {"name": "softmax-bottleneck", "version": version, "conformsTo": {"@id": profile.id}}
    language = {"lang": "snakemake", "lang_version": metadata.version("snakemake")}
    return graph.add_workflow(source, place, main=True, record_size=True, properties=facts, **language)
