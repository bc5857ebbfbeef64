"""Cards (GPUs) of this machine: which may be used, and one leased to each process that computes on one.

A lease is a lock of the operating system on a file of the card's, in the machine's folder for temporary files: the
kernel frees it when the process ends, however it ends. It goes by the card's UUID, which means the same in every
process and project. In a batch job the batch system has given the cards, and nothing is leased.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.progress import Say

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"  # read by the driver when a process first asks for a card
RUNS_VARIABLE = "SOFTMAX_BOTTLENECK_RUNS_PER_GPU"  # how many processes may share a card; one when absent
GIVEN_VARIABLE = "SOFTMAX_BOTTLENECK_GPU_IS_GIVEN"  # by the process that started this one and holds the lease
BATCH_VARIABLES = ("SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID", "_CONDOR_JOB_AD")
LIST_TIMEOUT_S = 20.0
LOOK_EVERY_S = 1.0
_held: list[int] = []  # descriptors of this process' lease, open until it ends


def visible() -> tuple[str, ...]:
    """The cards that this process may use, as CUDA_VISIBLE_DEVICES names them: those it names, else all there are."""
    there, named = _listed(), os.environ.get(VISIBLE_VARIABLE)
    if named is None:
        return there
    words = takewhile(lambda word: word and word != "-1", (word.strip() for word in named.split(",")))
    return tuple(there[int(word)] if word.isdecimal() and int(word) < len(there) else word for word in words)


def _listed() -> tuple[str, ...]:
    """UUIDs of the machine's cards; none where nvidia-smi is missing or does not answer."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--list-gpus"], capture_output=True, encoding="utf-8", timeout=LIST_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(re.findall(r"^GPU \d+:.*UUID: (GPU-[0-9a-f-]+)", done.stdout, re.MULTILINE))


def runs_per_card() -> int:
    """How many processes may share a card (UserError: the variable is no whole number of at least 1)."""
    words = os.environ.get(RUNS_VARIABLE, "1")
    if not words.isdecimal() or not int(words):
        raise UserError(f"{RUNS_VARIABLE}: {words!r:.40} is no number of runs; give 1 or more, or leave it out")
    return int(words)


def snakemake_words(device: str) -> list[str]:
    """The option that keeps so many jobs at work as cards can be leased; none where there is no card or none wanted."""
    count = 0 if device == "cpu" else len(visible()) * runs_per_card()
    return ["--resources", f"gpu={count}"] if count else []


def take(say: Say = lambda line: None) -> None:
    """Lease a card for this process and make it the only one it sees; waits while all are taken.

    Nothing where there is none, in a batch job, where the process that started this one has leased for it, and when
    called again. To be called before anything asks for the GPU.
    """
    given = GIVEN_VARIABLE in os.environ or any(variable in os.environ for variable in BATCH_VARIABLES)
    if _held or given:
        return
    cards = visible()
    if cards:
        os.environ[VISIBLE_VARIABLE] = _leased(cards, say)


def _leased(cards: Sequence[str], say: Say) -> str:
    """The card whose lease this process now has, one with the fewest others on it."""
    places = [(place, card) for place in range(runs_per_card()) for card in cards]
    said = False
    while True:
        for place, card in places:
            if _lock(f"{card}.{place}"):
                return card
        if not said:
            say(f"every GPU here ({len(cards)}) is at work for other runs; waiting for one")
            said = True
        time.sleep(LOOK_EVERY_S)


def _lock(name: str) -> bool:
    """Take a lock for as long as this process lives; whether it was free."""
    folder = Path(tempfile.gettempdir()) / f"softmax-bottleneck-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / re.sub(r"[^A-Za-z0-9.-]", "_", name)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    _held.append(descriptor)
    return True


@contextmanager
def lent() -> Iterator[None]:
    """While inside, another process may have this one's card; afterwards it is waited for."""
    for descriptor in _held:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    yield
    for descriptor in _held:
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def shared_by(count: int, device: str, say: Say) -> tuple[list[dict[str, str]], list[int]]:
    """Environments of so many processes of this job, which go round its cards, and the leases they must inherit.

    In a batch job these are all that are visible, as of a whole node; else the one that is leased here.
    """
    cards: tuple[str, ...] = ()
    if device != "cpu":
        take(say)
        cards = visible()
    given = [{VISIBLE_VARIABLE: cards[n % len(cards)], GIVEN_VARIABLE: "1"} if cards else {} for n in range(count)]
    return [os.environ | one for one in given], list(_held)
