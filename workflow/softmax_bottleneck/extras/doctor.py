"""Whether a study can be run here, before its first job: seconds now instead of a failure after a night in a queue.

Nothing is changed, fetched or submitted. Each check says what it found and, where something is wrong, what to do.
"""

from __future__ import annotations

import importlib.util
import json
import locale
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

from softmax_bottleneck.corpora.download import sources
from softmax_bottleneck.store import artefacts, paths
from softmax_bottleneck.store.errors import IncompleteError, UserError
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study import Dataset, Run, Study, load_dataset, load_study, load_yaml
from softmax_bottleneck.study.costs import Cost
from softmax_bottleneck.study.plan import is_done
from softmax_bottleneck.study.schema import seconds

OK, NOTE, SHORT, BAD = "ok", "note", "short", "bad"  # fine; worth knowing; would end incomplete; to be mended first
ASK_TIMEOUT_S = 3.0  # for programs of the batch system and the GPU's
GIGABYTE = 1e9
DISK_SPARE = 1.1
PROFILE = paths.ROOT / "workflow" / "profiles" / "slurm" / "config.yaml"
LOCK = paths.ROOT / "envs" / "requirements.lock"
NOT_NEEDED_TO_RUN = {"pytest", "hypothesis", "ruff", "mypy", "snakefmt", "import-linter", "pytest-xdist"}


@dataclass(frozen=True)
class Finding:
    """What a check found: its name, how it stands (`ok`, `note`, `short`, `bad`), what is there, what to do."""

    check: str
    state: str
    found: str
    advice: str = ""


Findings = Iterator[Finding]


def examine(file: Path, overrides: Mapping[str, Any], on_cluster: bool = False) -> list[Finding]:
    """Every check, the slow ones side by side; a study that cannot be read leaves those that need none.

    A batch system that would not do is a fault where the study is to run `on_cluster`, else worth a note.
    """
    checks: list[Callable[[], Findings]] = [_software, _locale, _writable, partial(_batch_system, on_cluster)]
    try:
        study = load_study(file, overrides)
    except UserError as error:
        first = Finding("configuration", BAD, str(error), "mend the file; config/README.md has every key")
    else:
        done = sum(is_done(study, run) for run in study.needed)
        first = Finding("configuration", OK, f"{study.name}: {len(study.needed)} runs, {done} of them trained")
        checks += [partial(check, study) for check in (_data, _device, _size)]
    with ThreadPoolExecutor(len(checks)) as pool:
        return [first, *chain.from_iterable(pool.map(lambda check: list(check()), checks))]


# --- this machine ---------------------------------------------------------------------------------------------------
def _software() -> Findings:
    """Packages against the lock: a missing one stops the study, another version may change numbers."""
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    locked = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    absent, other = [], []
    for name in locked.keys() - NOT_NEEDED_TO_RUN:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            absent.append(name)
        else:
            if version.partition("+")[0] != locked[name]:  # 2.13.0+cu126 is the locked 2.13.0, built for a GPU
                other.append(f"{name} {version}")
    if absent:
        yield Finding("packages", BAD, f"not installed: {_few(absent)}", "make env, or install envs/requirements.lock")
    elif other:
        yield Finding("packages", NOTE, f"not the tested versions: {_few(other)}", "numbers may differ in last digits")
    else:
        yield Finding("packages", OK, f"all as in envs/requirements.lock; Python {sys.version.split()[0]}")


def _few(names: Iterable[str], shown: int = 4) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - shown} more" if len(listed) > shown else ""
    return ", ".join(listed[:shown]) + more


def _locale() -> Findings:
    used, console = locale.getpreferredencoding(False), sys.stdout.encoding or "none"
    if "utf" in used.lower() and "utf" in console.lower():
        yield Finding("locale", OK, f"text is {used}")
    else:
        found = f"files {used}, terminal {console}"
        yield Finding("locale", NOTE, found, "files are UTF-8 all the same; LC_ALL=C.UTF-8 shows names as they are")


def _writable() -> Findings:
    place = Store().root if Store().root.is_dir() else Path()
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        yield Finding("writing", BAD, f"{place.resolve()}: {error.strerror}", "make it writable, or work elsewhere")
    else:
        yield Finding("writing", OK, f"{place.resolve()} takes files")


def _ask(*command: str) -> str | None:
    """What a program says; None when it is missing, fails or does not answer in time."""
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=ASK_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _device(study: Study) -> Findings:
    """The GPU, PyTorch's build and the study's `device` must fit together."""
    if importlib.util.find_spec("torch") is None:
        yield Finding("device", BAD, "PyTorch is not installed", "make env")
        return
    import torch

    wanted = study.device
    build = f"PyTorch {torch.__version__} for {f'CUDA {torch.version.cuda}' if torch.version.cuda else 'CPUs only'}"
    seen = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    listed = _ask("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    if seen:
        yield Finding("device", OK, f"{build}; {_few(seen)}; device: {wanted}")
    elif listed and wanted != "cpu":
        advice = "install the build for its CUDA version (pytorch.org), or mend the driver"
        yield Finding("device", BAD, f"{build}, which does not see the GPU {listed.splitlines()[0]}", advice)
    elif wanted == "cuda" and (shutil.which("sbatch") is None or not torch.version.cuda):
        yield Finding("device", BAD, f"{build}; no GPU, but device: cuda", "set device: auto or cpu, or go to a GPU")
    elif wanted == "cpu":
        yield Finding("device", OK, f"{build}; device: cpu")
    else:
        advice = "" if torch.version.cuda else "trains on CPUs; a GPU, here or of a job's node, needs another build"
        yield Finding("device", NOTE, f"{build}; no GPU here; device: {wanted}", advice)


# --- the study ------------------------------------------------------------------------------------------------------
def _data(study: Study) -> Findings:
    """Corpora and benchmarks: there and right, in the mirror, or still to be fetched."""
    near = study.file.resolve().parent
    names = dict.fromkeys(name for dataset in study.datasets.values() for name in _sources(dataset, near))
    for name in names:
        dataset = load_dataset(name, near)
        if dataset.kind == "language":
            yield Finding(f"data: {name}", OK, "sampled from its law when needed")
        elif dataset.files:
            yield _files(study, dataset)


def _sources(dataset: Dataset, near: Path) -> Iterator[str]:
    """The datasets whose files a dataset needs."""
    yield dataset.base or dataset.name
    if dataset.wordsim and dataset.wordsim != "self":
        yield str(dataset.wordsim)
    if dataset.base:
        yield from _sources(load_dataset(dataset.base, near), near)


def _files(study: Study, dataset: Dataset) -> Finding:
    """Where the files of a dataset are; the first place that has one counts, as for `download`."""
    label, places = f"data: {dataset.name}", {"in results": study.store.corpus_folder(dataset.name)}
    if study.mirror and dataset.mirror:
        places["in the mirror"] = study.mirror / dataset.mirror
    files = sources(dataset)
    wrong: list[str] = []
    missing: list[str] = []
    right = set()
    for file in files:
        paths_of = {"beside the study": file.path} if file.path else {w: p / file.name for w, p in places.items()}
        where = next((where for where, path in paths_of.items() if path.is_file()), None)
        if where is None:
            (wrong if file.path else missing).append(f"{file.path or file.name} is missing")
        elif file.sha256 and artefacts.sha256_file(paths_of[where]) != file.sha256:
            wrong.append(f"{paths_of[where]} has another sha256")
        else:
            right.add(where)
    if wrong:
        return Finding(label, BAD, _few(wrong), "delete the file: it is fetched again and checked")
    if missing:
        network = "needs the network, here and not on the compute nodes; or set mirror: to a folder with copies"
        return Finding(label, NOTE, f"{len(missing)} of {len(files)} files are still to be fetched", network)
    return Finding(label, OK, f"{len(files)} files, right by sha256, {_few(right)}")


def _size(study: Study) -> Findings:
    """Disk and hours of what is left to do, as `plan` estimates them."""
    from softmax_bottleneck.training import check  # imports torch, which doctor may find missing

    try:
        costs = {path: cost for path, (_, cost) in check.costs(study).items()}
    except UserError as error:
        yield Finding("models", BAD, str(error), "mend the study")
        return
    left = [run for run in study.needed if not is_done(study, run)]
    need_gb, free_gb = sum(costs[run.path].disk_gb for run in left), shutil.disk_usage(Path()).free / GIGABYTE
    enough = free_gb > need_gb * DISK_SPARE
    found = f"{free_gb:.1f} GB free, about {need_gb:.1f} GB needed for {len(left)} runs"
    yield Finding("disk", OK if enough else SHORT, found, "" if enough else "free space, or work on a larger disk")
    if left:
        yield _hours(study, left, costs)


def _hours(study: Study, left: list[Run], costs: Mapping[str, Cost]) -> Finding:
    """The longest run against what all attempts of a job add up to, each cut to `max_wall`."""
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


# --- the batch system -----------------------------------------------------------------------------------------------
def _batch_system(is_needed: bool) -> Findings:
    """SLURM as it is; where this study does not need it, what is wrong with it is a note."""
    for finding in _slurm():
        if finding.state == BAD and not is_needed:
            finding = replace(finding, state=NOTE, advice=f"`make slurm` alone needs it; {finding.advice}")
        yield finding


def _slurm() -> Findings:
    """SLURM's programs, whether they answer, and whether the profile's partitions are there."""
    present = [name for name in ("sbatch", "squeue", "scancel", "sacct") if shutil.which(name)]
    if "sbatch" not in present:
        yield Finding("SLURM", OK, "none here; jobs run on this machine")
        return
    absent = {"squeue", "scancel"} - set(present)
    if absent:
        advice = "without them jobs are neither watched nor cancelled"
        yield Finding("SLURM", BAD, f"sbatch is here, {' and '.join(sorted(absent))} is not", advice)
        return
    listed = _ask("sinfo", "--noheader", "--format=%R")
    if listed is None:
        yield Finding("SLURM", BAD, f"sinfo does not answer in {ASK_TIMEOUT_S:.0f} s", "ask the cluster's people")
        return
    accounting = _ask("sacct", "--noheader", "--allocations", "--starttime=now") is not None
    states = "sacct" if accounting else "squeue: there is no accounting, or it does not answer"
    yield Finding("SLURM", OK if accounting else NOTE, f"{', '.join(present)}; states of jobs from {states}")
    yield _partitions(set(listed.split()))


def _partitions(there: set[str]) -> Finding:
    profile = load_yaml(PROFILE)["__variables__"]
    wanted = [profile["gpu_partition"], profile["cpu_partition"]]
    unknown = [name for name in dict.fromkeys(wanted) if name not in there]
    if not unknown:
        return Finding("partitions", OK, f"{' and '.join(dict.fromkeys(wanted))} are there")
    found = f"no {' and no '.join(unknown)} among {_few(sorted(there))}"
    advice = f"set gpu_partition and cpu_partition in {PROFILE.relative_to(paths.ROOT)}"
    return Finding("partitions", BAD, found, advice)


# --- the answer -----------------------------------------------------------------------------------------------------
def text(findings: list[Finding]) -> str:
    """The table as a person reads it: state, check, what was found, and below it what to do."""
    width = max(len(finding.check) for finding in findings)
    lines = []
    for one in findings:
        lines.append(f"{one.state:5}  {one.check:{width}}  {one.found}")
        if one.advice:
            lines.append(f"{'':5}  {'':{width}}  -> {one.advice}")
    return "\n".join(lines)


def as_json(findings: list[Finding]) -> str:
    """The same for programs: a list of {check, state, found, advice}."""
    return json.dumps([asdict(finding) for finding in findings], indent=1, ensure_ascii=False)


def verdict(findings: list[Finding]) -> None:
    """Silence when all is well.

    Raises:
        UserError: something is to be mended first (exit 2).
        IncompleteError: it would start, but not come to its end here (exit 3).
    """
    for state, kind, words in (
        (BAD, UserError, "to be mended before the study is started"),
        (SHORT, IncompleteError, "the study would start, but not come to its end"),
    ):
        named = [finding.check for finding in findings if finding.state == state]
        if named:
            raise kind(f"doctor: {words}: {', '.join(named)}")
