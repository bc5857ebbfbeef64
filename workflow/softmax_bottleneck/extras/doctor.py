"""Quick checks of the machine before a study starts; they prevent failures after a night in a queue.

Nothing is changed, downloaded or submitted. Each check reports its result and, if something is wrong, a remedy.
"""

import argparse
import re
import shutil
import sys
from collections.abc import Iterable
from importlib import metadata
from typing import NamedTuple

from softmax_bottleneck.corpora.sources import sources
from softmax_bottleneck.jobs import processes
from softmax_bottleneck.store import errors, paths, schema
from softmax_bottleneck.study import Dataset, Study, load_yaml
from softmax_bottleneck.study.datasets import OWN_BENCHMARK

OK, NOTE, BAD = "ok", "note", "bad"  # fine; worth knowing; must be fixed first
PROFILE = paths.ROOT / "workflow" / "profiles" / "slurm" / "config.yaml"
LOCK = paths.ROOT / "envs" / "requirements.lock"
NAMED = 4  # names in a result
NOT_NEEDED_TO_RUN = {"pytest", "hypothesis", "ruff", "mypy", "snakefmt", "import-linter", "pytest-xdist"}


class Finding(NamedTuple):
    """The result of a check.

    Attributes:
        check: name of the check.
        state: OK, NOTE (worth knowing) or BAD (must be fixed before the study starts).
        found: what the check found, as text.
        advice: how to fix it; empty if nothing needs to be done.
    """

    check: str
    state: str
    found: str
    advice: str = ""


def doctor(study: Study, options: argparse.Namespace) -> None:
    """Print the results of all checks, with advice below each result that needs it.

    Raises:
        UserError: a check has the state BAD. The check of SLURM counts only if `options.step`, the command, is `slurm`.
    """
    findings = examine(study)
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        print(f"{finding.state:4}  {finding.check:{width}}  {finding.found}")
        if finding.advice:
            print(f"{'':4}  {'':{width}}  -> {finding.advice}")
    optional = set() if options.step == "slurm" else {"SLURM"}  # other commands run without SLURM
    bad = [finding.check for finding in findings if finding.state == BAD and finding.check not in optional]
    if bad:
        raise errors.UserError(f"doctor: fix before the study is started: {', '.join(bad)}")


def examine(study: Study) -> list[Finding]:
    """Return the results of all checks of this machine for a study.

    The checks of the device and of the study's size import packages. They are left out if a package is missing.
    """
    used = {name for dataset in study.datasets.values() for name in (dataset.base, dataset.wordsim) if name}
    names = (*study.datasets, *sorted(used - study.datasets.keys() - {OWN_BENCHMARK}))
    datasets = [dataset for dataset in map(study.dataset, names) if dataset.kind != "language" and dataset.files]
    findings = [_packages(), _slurm(), *(_files(study, dataset) for dataset in datasets)]
    # The other checks import torch, which may be missing.
    return findings if findings[0].state == BAD else [*findings, _device(study), _size(study)]


# --- this machine ---------------------------------------------------------------------------------------------------
def _packages() -> Finding:
    """Check that the packages of the lock file are installed: BAD if one is missing, NOTE if a version differs."""
    locked = dict(re.findall(r"^([^#=]+)==(.+)$", LOCK.read_text(encoding="utf-8"), re.MULTILINE))
    absent, other = [], []
    for name in locked.keys() - NOT_NEEDED_TO_RUN:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            absent.append(name)
            continue
        if version.partition("+")[0] != locked[name]:  # 2.13.0+cu126 is 2.13.0, built for a GPU
            other.append(f"{name} {version}")
    if absent:
        return Finding("packages", BAD, f"not installed: {_few(absent)}", "make env, or install envs/requirements.lock")
    if other:
        return Finding("packages", NOTE, f"not the tested versions: {_few(other)}", "the last digits may differ")
    return Finding("packages", OK, f"all as in envs/requirements.lock; Python {sys.version.split()[0]}")


def _few(names: Iterable[str]) -> str:
    return schema.few(sorted(names), NAMED)


def _output_of(*command: str) -> str | None:
    """Return the output of a program; None if the program is missing, fails or does not answer in time."""
    answer = processes.answer_of(*command)
    return answer.stdout if answer and answer.returncode == 0 else None


def _device(study: Study) -> Finding:
    """Check that the GPU, the build of PyTorch and the study's setting `device` (auto, cpu or cuda) fit together.

    The result is BAD if PyTorch cannot use the GPU of this machine, or if the study needs a GPU and the machine has
    none. A login node of a cluster needs no GPU, so a missing GPU there is only a NOTE.
    """
    import torch

    build = f"PyTorch {torch.__version__} for {f'CUDA {torch.version.cuda}' if torch.version.cuda else 'CPUs only'}"
    usable = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    found = f"{build}; {_few(usable) or 'no GPU'}; device: {study.device}"
    if usable or study.device == "cpu":
        return Finding("device", OK, found)
    if present := _output_of("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"):
        advice = "install the PyTorch build for this GPU's CUDA version (pytorch.org), or repair the driver"
        return Finding("device", BAD, f"{build}, which cannot use the GPU {present.splitlines()[0]}", advice)
    if study.device == "cuda" and (shutil.which("sbatch") is None or not torch.version.cuda):
        return Finding("device", BAD, found, "set device: auto or cpu, or use a GPU node")
    return Finding("device", NOTE, found)


def _slurm() -> Finding:
    """Check that SLURM answers and has the GPU and CPU partitions that the file PROFILE names: OK or BAD.

    The result is also OK on a machine without SLURM.
    """
    if shutil.which("sbatch") is None:
        return Finding("SLURM", OK, "not installed; jobs run on this machine")
    listed = _output_of("sinfo", "--noheader", "--format=%R")
    if listed is None:
        problem = f"sinfo fails or does not answer in {processes.TIMEOUT_S:.0f} s"
        return Finding("SLURM", BAD, problem, "run `sinfo` to see its error, or ask the administrators")
    lines = load_yaml(PROFILE)["__variables__"]  # a line may list several partitions
    wanted = dict.fromkeys(f"{lines['gpu_partition']},{lines['cpu_partition']}".split(","))
    unknown = [repr(name) for name in wanted if name not in listed.split()]
    if unknown:
        advice = f"set gpu_partition and cpu_partition in {PROFILE.relative_to(paths.ROOT)}"
        return Finding("SLURM", BAD, f"no partition {' or '.join(unknown)} among {_few(listed.split())}", advice)
    return Finding("SLURM", OK, f"partitions {' and '.join(wanted)}")


# --- the study ------------------------------------------------------------------------------------------------------
def _files(study: Study, dataset: Dataset) -> Finding:
    """Check that the files of a corpus or benchmark are on this machine. Hashes are not compared.

    A missing local file, for which the dataset's YAML gives a `path`, is BAD. Every other file may be in the folder of
    the corpus or in the study's mirror. If it is missing, the result is a NOTE, because `download` can fetch it.
    """
    mirror = study.mirror / dataset.mirror if study.mirror and dataset.mirror else None
    folders = list(filter(None, (study.store.corpus_folder(dataset.name), mirror)))
    label, files = f"data: {dataset.name}", sources(dataset)
    absent = [str(file.path) for file in files if file.path and not file.path.is_file()]
    if absent:
        return Finding(label, BAD, f"missing: {_few(absent)}", "put the files there, or change their `path`")
    missing = sum(not file.path and not any((folder / file.name).is_file() for folder in folders) for file in files)
    if missing:
        advice = "`download` needs the network on this machine, not on nodes; or set mirror: to a folder with copies"
        if mirror:
            advice = f"put them into {mirror}{'' if mirror.is_dir() else ', which does not exist'}, or correct mirror:"
        return Finding(label, NOTE, f"{missing} of {len(files)} files are not downloaded yet", advice)
    return Finding(label, OK, f"{len(files)} files are there")


def _size(study: Study) -> Finding:
    """Check that memory and disk suffice for the study's unfinished runs, and that its texts are long enough.

    Each split must be long enough to be cut into its number of parallel streams, such as `schedule.batch_size`. The
    test split must also have at least as many contexts as the ranks use (`rank_contexts` in the dataset's YAML). A
    failed check is BAD. On a machine with SLURM it is only a NOTE, because compute nodes have more memory.
    """
    from softmax_bottleneck.training import feasibility

    try:
        left = feasibility.check_limits(study, feasibility.costs(study))
    except errors.UserError as error:
        state = NOTE if shutil.which("sbatch") else BAD  # a login node has less memory than those that compute
        return Finding("size", state, str(error), "change the study, or free memory or disk")
    return Finding("size", OK, left)
