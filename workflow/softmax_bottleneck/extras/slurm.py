"""Run Snakemake with the SLURM profile, and repeat it after a pause if it fails.

Snakemake's own retries answer failed jobs. They are used up in seconds if SLURM itself does not answer, and are lost if
Snakemake is killed. It is safe to repeat the call: finished work is kept, and a lease prevents two jobs
from working on one run.
"""

import argparse
import subprocess
import time

from softmax_bottleneck.extras.doctor import doctor
from softmax_bottleneck.extras.reproduce import snakemake_command
from softmax_bottleneck.store.errors import BusyError, IncompleteError
from softmax_bottleneck.store.progress import Say
from softmax_bottleneck.study import Study

TRIES = 5
PAUSE_S = 60.0  # before the second try; it doubles with each further try


def slurm(study: Study, options: argparse.Namespace, say: Say) -> None:
    """Check the machine, then run the study until success, TRIES calls, or another workflow runs in this project.

    Raises:
        UserError: `doctor` found something to fix first; nothing was submitted.
        IncompleteError: the last call of Snakemake failed.
    """
    doctor(study, options, say)
    command = snakemake_command("slurm", study.file, options.set, options.snakemake)
    for attempt in range(1, TRIES + 1):
        code = subprocess.run(command, check=False).returncode
        if code in (0, BusyError.exit_code) or attempt == TRIES:
            break
        pause_s = PAUSE_S * 2 ** (attempt - 1)
        say(f"Snakemake ended with exit code {code}; try {attempt + 1} of {TRIES} in {pause_s:.0f} s")
        time.sleep(pause_s)
    if code:
        raise IncompleteError(f"Snakemake ended with exit code {code}; see its log above; repeat the command")
