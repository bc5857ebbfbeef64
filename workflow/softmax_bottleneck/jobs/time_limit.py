"""How long a job may go on training: its own limit and the batch system's, less a margin for saving.

A batch system kills a job at its time limit. A run that stops itself before that loses nothing, and is gone on with by
the next attempt. Moments of the wall clock are turned into time left once, at the start: a clock that is set later on
moves no deadline.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass

from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.progress import duration

MAX_WALL_VARIABLE = "SOFTMAX_BOTTLENECK_MAX_WALL"
MARGIN_S = 180.0  # for the update in progress, a validation and a save, where nothing else is said ...
MARGIN_SHARE = 0.25  # ... but no more than this share of what is left, so that short jobs get somewhere
SQUEUE_TIMEOUT_S = 20.0
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Budget:
    """Seconds a process may go on for (None: no limit), whose limit that is in words, whether it is a batch job."""

    seconds: float | None
    why: str
    in_job: bool = False

    @property
    def patience_s(self) -> float:
        """Seconds to wait for another process on the same run: a batch job's whole time, none by hand.

        That other process may be a job that an earlier call of the workflow left behind, or one on a node that is gone
        and of which no sign of life will come. Failing at once would only use up the attempts.
        """
        if not self.in_job:
            return 0.0
        return math.inf if self.seconds is None else self.seconds

    def told(self) -> str:
        """For the log: `stops itself in 3:57:00 at the latest (...)`."""
        return f"stops itself in {duration(max(0.0, self.seconds or 0.0))} at the latest ({self.why})"


def seconds(text: str) -> float:
    """`90s`, `30m`, `4h`, `1.5d` in seconds.

    Raises:
        UserError: it is something else.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    if not found:
        raise UserError(f"{text!r} is no length of time; write 90s, 30m, 4h or 1.5d")
    return float(found[1]) * UNITS_S[found[2]]


def budget(
    max_wall: str | None = None, margin: str | None = None, environment: Mapping[str, str] | None = None
) -> Budget:
    """The shorter of the job's own limit and the time its batch job has left.

    Args:
        max_wall: the own limit, from now on (None: the environment's `SOFTMAX_BOTTLENECK_MAX_WALL`, else none).
        margin: how long before the end of the batch job to stop (None: three minutes, or a quarter of what is left).
        environment: the process's own when None.

    Raises:
        UserError: a length of time that is none.
    """
    known = os.environ if environment is None else environment
    own, in_job = max_wall or known.get(MAX_WALL_VARIABLE), bool(known.get("SLURM_JOB_ID"))
    limits = [Budget(seconds(own), f"max_wall {own}", in_job)] if own else []
    left_s = batch_seconds_left(known)
    if left_s is not None:
        margin_s = seconds(margin) if margin else min(MARGIN_S, MARGIN_SHARE * left_s)
        why = f"SLURM job {known['SLURM_JOB_ID']} ends in {duration(left_s)}"
        limits.append(Budget(max(0.0, left_s - margin_s), why, in_job))
    return min(limits, key=lambda limit: limit.seconds or 0.0, default=Budget(None, "no limit", in_job))


def batch_seconds_left(environment: Mapping[str, str]) -> float | None:
    """Seconds until SLURM ends this job; None outside of a job, without a time limit, or when nobody knows.

    Newer versions say so in SLURM_JOB_END_TIME; older ones, and Snakemake's plugin, which clears the variable, leave it
    to squeue.
    """
    job, end = environment.get("SLURM_JOB_ID"), environment.get("SLURM_JOB_END_TIME", "")
    if not job:
        return None
    if end.isdecimal():
        return max(0.0, float(end) - time.time())
    command = ["squeue", "--noheader", "--format=%L", f"--jobs={job}"]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=SQUEUE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _slurm_seconds(done.stdout.strip())


def _slurm_seconds(text: str) -> float | None:
    """SLURM's `[days-][[hours:]minutes:]seconds`; None for UNLIMITED, INVALID and the like."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(?:(\d+):)?(\d+)", text)
    if not found:
        return None
    days, *rest = found.groups()
    hours, minutes = rest[:2] if rest[1] is not None else (None, rest[0])
    return 86400.0 * int(days or 0) + 3600.0 * int(hours or 0) + 60.0 * int(minutes or 0) + int(rest[2])
