"""Snakemake whose SLURM plugin asks for the state of jobs every two seconds.

By itself it waits ten seconds longer after every time that nothing was finished, which is right for jobs of hours.
"""

import sys

from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor

EVERY_S = 2
Executor.next_seconds_between_status_checks = property(lambda self: EVERY_S, lambda self, seconds: None)

if __name__ == "__main__":
    sys.exit(main())
