"""How long a job may go on: its own limit and the batch system's, less a margin for saving.

A batch system kills a job at its time limit. A job that stops itself before that loses nothing, and the next attempt
goes on with it. Moments of the wall clock are turned into time left once, at the start: a clock that is set later on
moves no deadline.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from softmax_bottleneck.jobs import slurm
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.progress import duration

MAX_WALL_VARIABLE = "SOFTMAX_BOTTLENECK_MAX_WALL"
MARGIN_S = 180.0  # for the step in progress, a validation and a save, where nothing else is said ...
MARGIN_SHARE = 0.25  # ... but no more than this share of what is left, so that short jobs get somewhere
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class TimeLimit:
    """Seconds a process may go on for (None: no limit), whose limit that is in words, whether it is a batch job."""

    seconds: float | None = None
    why: str = "no limit"
    in_batch_job: bool = False

    @property
    def lock_timeout_s(self) -> float:
        """Seconds to wait for another process on the same work: a batch job's whole time, none by hand.

        That other process may be a job that an earlier call of the workflow left behind, or one on a node that is gone
        and of which no sign of life will come. Failing at once would only use up the attempts.
        """
        if not self.in_batch_job:
            return 0.0
        return math.inf if self.seconds is None else self.seconds

    def __str__(self) -> str:
        """For the log: `stops itself in 3:57:00 at the latest (...)`."""
        return f"stops itself in {duration(max(0.0, self.seconds or 0.0))} at the latest ({self.why})"


def seconds(text: str) -> float:
    """`90s`, `30m`, `4h`, `1.5d` in seconds.

    Raises:
        UserError: it is something else.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    if not match:
        raise UserError(f"{text!r} is no length of time; write 90s, 30m, 4h or 1.5d")
    return float(match[1]) * UNITS_S[match[2]]


def time_limit(
    max_wall: str | None = None, margin: str | None = None, environment: Mapping[str, str] = os.environ
) -> TimeLimit:
    """The shorter of the job's own limit and the time its batch job has left.

    Args:
        max_wall: the own limit, from now on (None: the environment's `SOFTMAX_BOTTLENECK_MAX_WALL`, else none).
        margin: how long before the end of the batch job to stop (None: three minutes, or a quarter of what is left).
        environment: where the variables are looked up.

    Raises:
        UserError: a length of time that is none.
    """
    own, job = max_wall or environment.get(MAX_WALL_VARIABLE), environment.get(slurm.JOB_VARIABLE)
    limits = [TimeLimit(seconds(own), f"max_wall {own}", bool(job))] if own else []
    left_s = slurm.seconds_left(environment)
    if left_s is not None:
        margin_s = seconds(margin) if margin else min(MARGIN_S, MARGIN_SHARE * left_s)
        why = f"SLURM job {job} ends in {duration(left_s)}"
        limits.append(TimeLimit(max(0.0, left_s - margin_s), why, bool(job)))
    return min(limits, key=lambda limit: limit.seconds or 0.0, default=TimeLimit(in_batch_job=bool(job)))
