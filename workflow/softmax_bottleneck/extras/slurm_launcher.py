"""A study on a cluster from one command: looked at first, then Snakemake with the profile, repeated after a pause.

Snakemake's retries answer jobs that fail. They are used up in seconds when the batch system itself is away, and nothing
is left when Snakemake is killed with its machine. What is done stays done, and leases keep jobs apart that an earlier
call left behind, so that calling again is always right.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from softmax_bottleneck.store import paths
from softmax_bottleneck.store.errors import BusyError

Say = Callable[[str], None]
TRIES = 5
PAUSE_S = 60.0  # before the second try; twice as long before each further one
PROFILE = paths.ROOT / "workflow" / "profiles" / "slurm"


def command(study: Path, overrides: Sequence[str], words: Sequence[str], profile: Path = PROFILE) -> list[str]:
    """Snakemake's command line for a study through a profile (None is named: SLURM's), with further words."""
    call = [sys.executable, "-m", "snakemake", "--snakefile", str(paths.ROOT / "Snakefile")]
    call += ["--workflow-profile", str(profile), "--configfile", str(study)]
    return [*call, *(["--config", *overrides] if overrides else []), *words]


def repeat(
    call: Sequence[str], tries: int, pause_s: float, say: Say, sleep: Callable[[float], object] = time.sleep
) -> int:
    """Call until it succeeds, another workflow works here, or the tries are used up; the last exit code."""
    for attempt in range(1, tries + 1):
        code = subprocess.run(call, check=False).returncode
        if code in (0, BusyError.exit_code) or attempt == tries:
            break
        wait_s = pause_s * 2 ** (attempt - 1)
        say(f"Snakemake ended with exit code {code}; try {attempt + 1} of {tries} in {wait_s:.0f} s")
        sleep(wait_s)
    return code
