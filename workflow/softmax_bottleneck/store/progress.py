"""What a long step tells its reader: a line that changes on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

Say = Callable[[str], None]  # shows one line

LOG_INTERVAL_S = 60.0  # between lines within an epoch when nobody watches


@dataclass(frozen=True)
class Progress:
    """State of a training run; perplexities are None until there is one. Times in seconds."""

    label: str
    epoch: int
    epochs: int
    train_ppl: float | None
    valid_ppl: float | None
    best_ppl: float | None
    tokens_per_s: float
    eta_s: float
    epoch_done: bool


def line(progress: Progress) -> str:
    """One line of text: `softmax/1  epoch 3/20  valid ppl 85.1 (best 85.1)  12 300 tok/s  0:41 left`."""
    parts = [progress.label, f"epoch {progress.epoch}/{progress.epochs}"]
    if progress.train_ppl is not None and not progress.epoch_done:
        parts.append(f"train ppl {progress.train_ppl:.1f}")
    if progress.valid_ppl is not None and progress.best_ppl is not None:
        parts.append(f"valid ppl {progress.valid_ppl:.1f} (best {progress.best_ppl:.1f})")
    rate = f"{progress.tokens_per_s:,.0f}".replace(",", " ")
    return "  ".join([*parts, f"{rate} tok/s", f"{duration(progress.eta_s)} left"])


def duration(seconds: float) -> str:
    """`0:41`, `12:05`, `3:07:00`."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def printer(stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> Callable[[Progress], None]:
    """A callback that shows progress on `stream` (standard error): in place on a terminal, else line by line."""
    out = stream or sys.stderr
    watched = out.isatty()
    last = -LOG_INTERVAL_S

    def show(progress: Progress) -> None:
        nonlocal last
        if watched:
            out.write(
                f"\r\x1b[K{line(progress)}"
                + ("\n" if progress.epoch == progress.epochs and progress.epoch_done else "")
            )
        elif progress.epoch_done or clock() - last >= LOG_INTERVAL_S:
            last = clock()
            out.write(line(progress) + "\n")
        out.flush()

    return show
