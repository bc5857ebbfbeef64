"""The learning rate of a run, the lengths of its chunks, and the epoch from which it averages weights.

All functions are pure. Averaging depends on the schedule and on the validation losses of the finished epochs, `decay`
on which of these losses were the lowest so far. Chunk lengths depend on the schedule, the seed, the epoch and the
length of the text. The step size for a chunk of T drawn tokens is

    learning_rate * decay * T / bptt        (Merity, Keskar and Socher 2018, section 5)

where `learning_rate` is in run.json, under `schedule` (the value of the study, or the one that its search chose).
`decay` falls on plateaus with the optimizer `plateau-sgd` (Benka 2021), and is 1 with all others. LMS-PLIF's slopes
have their own learning rate in the place of `learning_rate`. Averaged SGD takes the step size of the previous chunk, as
PyTorch's class does (`optim.ASGD`). Finetuning has a schedule of its own, with the optimizer `asgd`
(`study.runs.Stages`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.seeds import derive
from softmax_bottleneck.study import Schedule

SHORT_CHUNK_SHARE = 0.05  # share of chunks with half the nominal length
LENGTH_SPREAD = 5  # standard deviation of chunk lengths, tokens
SHORTEST_CHUNK = 5


# --- learning rate --------------------------------------------------------------------------------------------------
def decay(schedule: Schedule, is_best: Sequence[bool]) -> float:
    """Return the factor of all learning rates in the next epoch.

    `is_best` says of each finished epoch whether its validation loss was the lowest up to then. With `plateau-sgd`, an
    epoch whose loss was not divides the rates by `plateau_factor`.
    """
    if schedule.optimizer != "plateau-sgd":
        return 1.0
    return float(schedule.plateau_factor ** -(len(is_best) - sum(is_best)))


def chunk_scale(schedule: Schedule, drawn: int, factor: float) -> float:
    """Return the factor of all learning rates for a chunk of `drawn` tokens; `factor` is the `decay` of its epoch."""
    return factor * drawn / schedule.bptt


# --- averaging ------------------------------------------------------------------------------------------------------
def averages_from(schedule: Schedule, losses: Sequence[float]) -> int | None:
    """Return the first epoch whose updates average weights, or None if that is not known after the finished epochs.

    `asgd` averages from epoch 1, `et-asgd` after the epoch `switch_after_epoch`, and `nt-asgd` after the first epoch in
    which the validation loss stalls (`stalls`). `losses` are the validation losses of the finished epochs.
    """
    if schedule.optimizer == "asgd":
        return 1
    if schedule.optimizer == "et-asgd":
        return schedule.switch_after_epoch + 1
    if schedule.optimizer == "nt-asgd":
        window = schedule.nonmonotone_window
        return next((n + 1 for n in range(1, len(losses) + 1) if stalls(losses[:n], window)), None)
    return None


def stalls(losses: Sequence[float], window: int) -> bool:
    """Return True if the last validation loss exceeds the lowest one of all epochs before the `window` preceding ones.

    This is the criterion by which NT-ASGD starts to average (Merity et al. 2018, algorithm 1) and by which finetuning
    ends. With at most `window` + 1 losses, return False.
    """
    return len(losses) > window + 1 and losses[-1] > min(losses[: -window - 1])


# --- chunks ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Chunk:
    """The part of the training text [L, B] that one update reads.

    Attributes:
        start: index of the first row of inputs.
        length: number of rows of inputs. The targets are as many rows, one row later.
        drawn: planned length. `length` is smaller only at the end of the text.
    """

    start: int
    length: int
    drawn: int  # scales the learning rate and advances the position


def plan_epoch(schedule: Schedule, seed: int, epoch: int, rows: int) -> list[Chunk]:
    """Return the chunks of an epoch, in the order of the text; equal arguments give equal chunks.

    Every chunk has `schedule.bptt` rows, or a random number of rows if `schedule.variable_length` is true (Merity et
    al. 2018, section 5). A random length is normally distributed with standard deviation 5. The mean is `bptt` with
    probability 0.95, otherwise `bptt` / 2. The drawn length is then clipped to at least 5 and at most `bptt` +
    `schedule.max_length_delta`. The last chunk is cut at the end of the text. As published, no chunk starts in the last
    two rows.

    Args:
        schedule: the schedule of the run.
        seed: the seed of the run.
        epoch: the number of the epoch, from 1.
        rows: number of rows L of the training text [L, B].

    Raises:
        UserError: the text has fewer than three rows.
    """
    if rows < 3:
        raise UserError(f"train split: {rows} rows per sequence are too few to train on; need >= "
                        f"{3 * schedule.batch_size} tokens at batch_size {schedule.batch_size}: use a smaller one "
                        "or more text")  # fmt: skip
    generator = np.random.default_rng(derive(seed, "chunk lengths", epoch))
    chunks, position = [], 0
    while position < rows - 2:
        drawn = _draw_length(schedule, generator) if schedule.variable_length else schedule.bptt
        chunks.append(Chunk(position, min(drawn, rows - 1 - position), drawn))
        position += drawn
    return chunks


def _draw_length(schedule: Schedule, generator: np.random.Generator) -> int:
    short = generator.random() < SHORT_CHUNK_SHARE
    nominal = schedule.bptt / 2 if short else schedule.bptt
    length = max(SHORTEST_CHUNK, int(generator.normal(nominal, LENGTH_SPREAD)))
    return min(length, schedule.bptt + schedule.max_length_delta)
