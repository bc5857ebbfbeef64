"""The provenance of a result: versions, hardware, commit, and the hashes of its inputs."""

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from softmax_bottleneck.store.paths import ROOT

SCHEMA = 1  # version of the provenance block
PACKAGES = ("torch", "numpy", "scipy", "pandas", "snakemake")


def block(parents: Mapping[str, str] | None = None, **entries: object) -> dict[str, object]:
    """Return the provenance of a result: versions, hardware, commit, and the hashes of its inputs.

    Args:
        parents: name -> sha256 of every input (default: no inputs).
        entries: further entries, such as run_id, flags and interruptions.

    Returns:
        A dict with all of `entries` and these keys: `schema` (version of this format), `parents`, `git` (`commit`, and
        `dirty`, which is True if there are uncommitted changes), `versions` (of Python and PACKAGES) and `hardware`
        (`cpu`: model of the processor, `cores`: number of logical cores, `machine`: architecture, such as x86_64). The
        commit is "unknown" outside a Git repository.
    """
    versions = {"python": platform.python_version()} | dict.fromkeys(PACKAGES, "not installed")
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    git = ["git", "-C", str(ROOT), "-c", f"safe.directory={ROOT}"]  # another user may own the clone
    describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]  # the commit, with `-dirty` if changed
    try:
        done = subprocess.run([*git, *describe], capture_output=True, encoding="utf-8", check=True)
        commit = done.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    model = re.search(r"^model name[^:]*:(.*)$", text, re.MULTILINE)
    cpu = model[1].strip() if model else platform.processor() or "unknown"
    return {
        "schema": SCHEMA,
        "parents": dict(parents or {}),
        "git": {"commit": commit.removesuffix("-dirty"), "dirty": commit.endswith("-dirty")},
        "versions": versions,
        "hardware": {"cpu": cpu, "cores": os.cpu_count(), "machine": platform.machine()},
        **entries,
    }
