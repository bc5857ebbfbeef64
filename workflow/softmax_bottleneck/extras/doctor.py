"""Check whether a study can run here before its first job: seconds now instead of a failure after a night in a queue.

Nothing is changed, downloaded or submitted. Each check reports what it found and, if something is wrong, what to do.
"""

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from softmax_bottleneck.corpora.download import sources
from softmax_bottleneck.store import artefacts, paths
from softmax_bottleneck.store.errors import IncompleteError, UserError
from softmax_bottleneck.study import Dataset, Run, Study, load_dataset, load_study, load_yaml
from softmax_bottleneck.study.costs import Cost
from softmax_bottleneck.study.plan import is_done
from softmax_bottleneck.study.schema import seconds

OK, NOTE, SHORT, BAD = "ok", "note", "short", "bad"  # fine; worth knowing; cannot finish here; must be fixed first
TIMEOUT_S = 3.0  # for the programs of SLURM and of the GPU
GIGABYTE = 1e9
DISK_SPARE = 1.1
PROFILE = paths.ROOT / "workflow" / "profiles" / "slurm" / "config.yaml"
LOCK = paths.ROOT / "envs" / "requirements.lock"
NOT_NEEDED_TO_RUN = {"pytest", "hypothesis", "ruff", "mypy", "snakefmt", "import-linter", "pytest-xdist"}


@dataclass(frozen=True)
class Finding:
    """The result of a check: its name, its state (`ok`, `note`, `short`, `bad`), what it found, what to do."""

    check: str
    state: str
    found: str
    advice: str = ""


Findings = Iterator[Finding]


def examine(file: Path, overrides: Mapping[str, Any], on_cluster: bool = False) -> list[Finding]:
    """Return the findings of all checks; an invalid study skips the checks that read it.

    A problem of SLURM is only a note unless the study is to run `on_cluster`.
    """
    checks: list[Callable[[], Findings]] = [_software, _writable, partial(_slurm, on_cluster)]
    try:
        study = load_study(file, overrides)
    except UserError as error:
        first = Finding("configuration", BAD, str(error), "fix the file; config/README.md explains every key")
    else:
        done = sum(is_done(study, run) for run in study.needed)
        first = Finding("configuration", OK, f"{study.name}: {len(study.needed)} runs, {done} of them trained")
        checks += [partial(check, study) for check in (_data, _device, _size)]
    with ThreadPoolExecutor(len(checks)) as pool:
        return [first, *(finding for found in pool.map(lambda check: list(check()), checks) for finding in found)]


# --- this machine ---------------------------------------------------------------------------------------------------
def _software() -> Findings:
    """Compare the installed packages with the lock: a missing one stops the study, another version changes numbers."""
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    locked = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    absent, other = [], []
    for name in locked.keys() - NOT_NEEDED_TO_RUN:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            absent.append(name)
        else:
            if version.partition("+")[0] != locked[name]:  # 2.13.0+cu126 is 2.13.0, built for a GPU
                other.append(f"{name} {version}")
    if absent:
        yield Finding("packages", BAD, f"not installed: {_few(absent)}", "make env, or install envs/requirements.lock")
    elif other:
        yield Finding("packages", NOTE, f"not the tested versions: {_few(other)}", "the last digits may differ")
    else:
        yield Finding("packages", OK, f"all as in envs/requirements.lock; Python {sys.version.split()[0]}")


def _few(names: Iterable[str], shown: int = 4) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - shown} more" if len(listed) > shown else ""
    return ", ".join(listed[:shown]) + more


def _writable() -> Findings:
    root = paths.Store().root
    place = root if root.is_dir() else Path()
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        yield Finding("writing", BAD, f"{place.resolve()}: {error.strerror}", "make it writable, or work elsewhere")
    else:
        yield Finding("writing", OK, f"{place.resolve()} is writable")


def _output_of(*command: str) -> str | None:
    """Return the output of a program, or None if it is missing, fails or does not answer in time."""
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _device(study: Study) -> Findings:
    """Check that the GPU, PyTorch's build and the study's `device` fit together."""
    if importlib.util.find_spec("torch") is None:
        yield Finding("device", BAD, "PyTorch is not installed", "make env")
        return
    import torch

    wanted = study.device
    build = f"PyTorch {torch.__version__} for {f'CUDA {torch.version.cuda}' if torch.version.cuda else 'CPUs only'}"
    usable = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    present = _output_of("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    if usable:
        yield Finding("device", OK, f"{build}; {_few(usable)}; device: {wanted}")
    elif present and wanted != "cpu":
        advice = "install the build for its CUDA version (pytorch.org), or repair the driver"
        yield Finding("device", BAD, f"{build}, which cannot use the GPU {present.splitlines()[0]}", advice)
    elif wanted == "cuda" and (shutil.which("sbatch") is None or not torch.version.cuda):
        yield Finding("device", BAD, f"{build}; no GPU, but device: cuda", "set device: auto or cpu, or use a GPU node")
    elif wanted == "cpu":
        yield Finding("device", OK, f"{build}; device: cpu")
    else:
        advice = "" if torch.version.cuda else "trains on CPUs; to use a GPU, install a build for CUDA"
        yield Finding("device", NOTE, f"{build}; no GPU here; device: {wanted}", advice)


# --- the study ------------------------------------------------------------------------------------------------------
def _data(study: Study) -> Findings:
    """Check that the files of corpora and benchmarks are present and correct, or report which must be downloaded."""
    near = study.file.resolve().parent
    waiting, seen = list(study.datasets.values()), set[str]()
    while waiting:
        dataset = waiting.pop(0)
        wordsim = dataset.wordsim if dataset.wordsim != "self" else None
        waiting += [load_dataset(str(name), near) for name in (dataset.base, wordsim) if name and name not in seen]
        if dataset.name not in seen and dataset.kind == "language":
            yield Finding(f"data: {dataset.name}", OK, "sampled when needed")
        elif dataset.name not in seen and dataset.files:
            yield _files(study, dataset)
        seen.add(dataset.name)


def _files(study: Study, dataset: Dataset) -> Finding:
    """Look for the files of a dataset where `download` looks, in the same order."""
    label, folders = f"data: {dataset.name}", {"in results": study.store.corpus_folder(dataset.name)}
    if study.mirror and dataset.mirror:
        folders["in the mirror"] = study.mirror / dataset.mirror
    files, wrong, missing, places = sources(dataset), list[str](), 0, set[str]()
    for file in files:
        candidates = {place: folder / file.name for place, folder in folders.items()}
        if file.path:
            candidates = {"beside the study": file.path}
        place = next((place for place, path in candidates.items() if path.is_file()), None)
        if place is None and file.path:
            wrong.append(f"{file.path} is missing")
        elif place is None:
            missing += 1
        elif file.sha256 and artefacts.sha256_file(candidates[place]) != file.sha256:
            wrong.append(f"{candidates[place]} has another sha256")
        else:
            places.add(place)
    if wrong:
        return Finding(label, BAD, _few(wrong), "delete the file; it is then downloaded and checked")
    if missing:
        advice = "needs network access here, not on the compute nodes; or set mirror: to a folder with copies"
        return Finding(label, NOTE, f"{missing} of {len(files)} files are not downloaded yet", advice)
    return Finding(label, OK, f"{len(files)} files with the right sha256, {_few(places)}")


def _size(study: Study) -> Findings:
    """Compare the disk space and hours of the remaining runs with what this machine and the profile offer."""
    from softmax_bottleneck.training import check  # imports torch, which may be missing

    try:
        costs = {path: cost for path, (_, cost) in check.costs(study).items()}
    except UserError as error:
        yield Finding("models", BAD, str(error), "fix the study")
        return
    left = [run for run in study.needed if not is_done(study, run)]
    need_gb, free_gb = sum(costs[run.path].disk_gb for run in left), shutil.disk_usage(Path()).free / GIGABYTE
    found = f"{free_gb:.1f} GB free, about {need_gb:.1f} GB needed for {len(left)} runs"
    if free_gb > need_gb * DISK_SPARE:
        yield Finding("disk", OK, found)
    else:
        yield Finding("disk", SHORT, found, "free some space, or use a larger disk")
    if left:
        yield _hours(study, left, costs)


def _hours(study: Study, left: list[Run], costs: Mapping[str, Cost]) -> Finding:
    """Compare the longest run with the time limits of all attempts of a SLURM job, each at most `max_wall`."""
    import torch

    kind = "cpu" if left[0].device == "cpu" or torch.version.cuda is None else "gpu"
    need_h, longest = max((getattr(costs[run.path], f"{kind}_h"), run.path) for run in left)
    profile = load_yaml(PROFILE)["__variables__"]
    most_h = seconds(study.max_wall) / 3600 if study.max_wall else float("inf")
    minutes = [min(profile["gpu_minutes"] * (1 + n), profile["most_gpu_minutes"]) for n in range(profile["attempts"])]
    given_h = sum(min(limit / 60, most_h) for limit in minutes)
    found = (
        f"longest run about {need_h:.1f} {kind.upper()} hours ({longest}); {len(minutes)} attempts under SLURM have"
        f" {given_h:.1f} h together"
    )
    if need_h < given_h:
        return Finding("time limits", OK, found)
    return Finding("time limits", SHORT, found, f"raise gpu_minutes or attempts in {PROFILE.relative_to(paths.ROOT)}")


# --- SLURM ----------------------------------------------------------------------------------------------------------
def _slurm(is_needed: bool) -> Findings:
    """Check SLURM; if the study does not need it, a problem is only a note."""
    for finding in _slurm_findings():
        if finding.state == BAD and not is_needed:
            finding = replace(finding, state=NOTE, advice=f"only `make slurm` needs it; {finding.advice}")
        yield finding


def _slurm_findings() -> Findings:
    """Check SLURM's programs, whether they answer, and whether the profile's partitions exist."""
    present = [name for name in ("sbatch", "squeue", "scancel", "sacct") if shutil.which(name)]
    absent = [name for name in ("squeue", "scancel") if name not in present]
    if "sbatch" not in present:
        yield Finding("SLURM", OK, "not installed; jobs run on this machine")
        return
    listed = _output_of("sinfo", "--noheader", "--format=%R")
    if absent:
        advice = "install them: jobs can be neither watched nor cancelled"
        yield Finding("SLURM", BAD, f"sbatch is installed, {' and '.join(absent)} not", advice)
        return
    if listed is None:
        yield Finding("SLURM", BAD, f"sinfo does not answer in {TIMEOUT_S:.0f} s", "ask the cluster's administrators")
        return
    if _output_of("sacct", "--noheader", "--allocations", "--starttime=now") is not None:
        yield Finding("SLURM", OK, f"{', '.join(present)}; job states from sacct")
    else:
        yield Finding("SLURM", NOTE, f"{', '.join(present)}; job states from squeue: accounting does not answer")
    profile, known = load_yaml(PROFILE)["__variables__"], set(listed.split())
    wanted = dict.fromkeys([profile["gpu_partition"], profile["cpu_partition"]])
    unknown = [name for name in wanted if name not in known]
    if unknown:
        advice = f"set gpu_partition and cpu_partition in {PROFILE.relative_to(paths.ROOT)}"
        yield Finding("partitions", BAD, f"no {' and no '.join(unknown)} among {_few(known)}", advice)
    else:
        yield Finding("partitions", OK, f"found {' and '.join(wanted)}")


# --- the answer -----------------------------------------------------------------------------------------------------
def text(findings: list[Finding]) -> str:
    """Return the findings as a table, each with its advice in the line below."""
    width = max(len(finding.check) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.state:5}  {finding.check:{width}}  {finding.found}")
        if finding.advice:
            lines.append(f"{'':5}  {'':{width}}  -> {finding.advice}")
    return "\n".join(lines)


def verdict(findings: list[Finding]) -> None:
    """Return if all is well.

    Raises:
        UserError: something must be fixed first (exit 2).
        IncompleteError: the study would start, but cannot finish here (exit 3).
    """
    named = {state: ", ".join(one.check for one in findings if one.state == state) for state in (BAD, SHORT)}
    if named[BAD]:
        raise UserError(f"doctor: fix before the study is started: {named[BAD]}")
    if named[SHORT]:
        raise IncompleteError(f"doctor: the study could start, but not finish: {named[SHORT]}")
