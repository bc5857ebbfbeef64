"""The provenance of a result: versions, hardware, commit, and the hashes of its inputs."""

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from softmax_bottleneck.store.paths import ROOT

SCHEMA = 1  # version of the provenance block
GENERATION = {"family": "cpu family", "model": "model"}  # names of entries in /proc/cpuinfo
PACKAGES = ("torch", "numpy", "scipy", "pandas", "snakemake")


def block(parents: Mapping[str, str] | None = None, **entries: object) -> dict[str, object]:
    """Return the provenance of a result: versions, hardware, commit, and the hashes of its inputs.

    Args:
        parents: name -> sha256 of every input (default: no inputs).
        entries: further entries, such as run_id, flags and interruptions.

    Returns:
        A dict with all of `entries` and these keys: `schema` (version of this format), `parents`, `git` (`commit`, and
        `dirty`, which is True if a tracked file was changed since), `versions` (of Python and PACKAGES) and `hardware`
        (`cpu`: model of the processor, `cores`: number of logical cores, `machine`: architecture, such as x86_64). The
        commit is "unknown" outside a Git repository.
    """
    commit = _commit(ROOT)
    return {
        "schema": SCHEMA,
        "parents": dict(parents or {}),
        "git": {"commit": commit.removesuffix("-dirty"), "dirty": commit.endswith("-dirty")},
        "versions": dict(_versions()),
        "hardware": {"cpu": _processor(), "cores": os.cpu_count(), "machine": platform.machine()},
        **entries,
    }


# Every process reads these facts once: a step may write many records.
@cache
def _versions() -> dict[str, str]:
    """Return the versions of Python and of PACKAGES."""
    versions = {"python": platform.python_version()} | dict.fromkeys(PACKAGES, "not installed")
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


@cache
def _commit(root: Path) -> str:
    """Return the commit of the clone at `root`, with `-dirty` if a tracked file was changed; or "unknown"."""
    git = ["git", "-C", str(root), "-c", f"safe.directory={root}"]  # another user may own the clone
    describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run([*git, *describe], capture_output=True, encoding="utf-8", check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


@cache
def _processor() -> str:
    """Return the name of the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    return processor_name(cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else "")


def processor_name(cpuinfo: str) -> str:
    """Return the processor's name from the text of /proc/cpuinfo, such as `AMD EPYC 9654 96-Core Processor`.

    A name with no number but its clock's, as in virtual machines, is followed by family and model: generations differ
    in speed.
    """
    entries = dict(re.findall(r"^([\w ]+?)\s*:[ \t]*(.*?)\s*$", cpuinfo, re.MULTILINE))
    name = entries.get("model name") or platform.processor() or "unknown"
    generation = [f"{key} {entries[entry]}" for key, entry in GENERATION.items() if entries.get(entry)]
    return name if re.search(r"\d", name.partition("@")[0]) else " ".join([name, *generation])
