"""Run Snakemake with a profile, and repeat it after a pause if it fails.

Snakemake's own retries answer failed jobs. They are used up in seconds if SLURM itself does not answer, and are lost if
Snakemake is killed. Repeating is always safe: finished work is kept, and leases keep apart jobs of an earlier call.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from softmax_bottleneck.store import paths
from softmax_bottleneck.store.errors import BusyError
from softmax_bottleneck.store.progress import Say

PAUSE_S = 60.0  # before the second try; it doubles with each further try
PROFILE = paths.ROOT / "workflow" / "profiles" / "slurm"


def command(study: Path, overrides: Sequence[str], options: Sequence[str], profile: Path = PROFILE) -> list[str]:
    """Return Snakemake's command line for a study, with further options."""
    call = [sys.executable, "-m", "snakemake", "--snakefile", str(paths.ROOT / "Snakefile")]
    call += ["--workflow-profile", str(profile), "--configfile", str(study)]
    return [*call, *(["--config", *overrides] if overrides else []), *options]


def repeat(
    call: Sequence[str], tries: int, pause_s: float, say: Say, sleep: Callable[[float], object] = time.sleep
) -> int:
    """Call until success, `tries` calls, or another workflow runs in this project; return the last exit code."""
    for attempt in range(1, tries + 1):
        code = subprocess.run(call, check=False).returncode
        if code in (0, BusyError.exit_code) or attempt == tries:
            break
        wait_s = pause_s * 2 ** (attempt - 1)
        say(f"Snakemake ended with exit code {code}; try {attempt + 1} of {tries} in {wait_s:.0f} s")
        sleep(wait_s)
    return code
