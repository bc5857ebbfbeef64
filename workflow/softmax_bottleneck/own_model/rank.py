"""The rank of somebody's own model: from hidden states and an output layer, or from log-probabilities, in files.

Memory is known before anything is computed. Where it is short, random parts of the rows or columns are analysed. That
gives a bound and an estimate: by interlacing (Horn and Johnson, Topics in Matrix Analysis, corollary 3.1.3) no singular
value of a part exceeds that of the whole with the same index, so the whole has at least as many above its tolerance as
any part.

Suffixes: m rows (contexts), n columns (words).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from softmax_bottleneck.own_model import huggingface
from softmax_bottleneck.own_model.matrix import Bound, Indices, LogProbs, log_probs_of
from softmax_bottleneck.own_model.measures import Measures, measures
from softmax_bottleneck.own_model.multi_mode import MultiMode, probe
from softmax_bottleneck.own_model.output_matrix import with_output_matrix
from softmax_bottleneck.own_model.question import Question, parse_bytes
from softmax_bottleneck.ranks import RankReport, Spectrum, press_rank, rank_report
from softmax_bottleneck.ranks.counts import SENSITIVITY
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.progress import Say

FREE_SHARE = 0.8  # of the free memory, when no limit is given
NAMED = 20  # tokens in a note
LEAST_SIDE = 256  # a part with fewer rows or columns says nothing


# --- memory ---------------------------------------------------------------------------------------------------------
def free_bytes() -> int:
    """Memory this machine can give now, in bytes; of a container, its limit at most."""
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text(encoding="utf-8").strip() if limit.exists() else ""
    available = int(psutil.virtual_memory().available)
    return min(available, int(text)) if text.isdigit() else available


def gib(count: int) -> str:
    """Bytes for people."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


@dataclass(frozen=True)
class Plan:
    """Which part is analysed, all of it unless memory is short; bytes that it needs, the whole would need, and has."""

    rows: int
    columns: int
    needed: int
    whole: int
    limit: int

    @property
    def sampled(self) -> bool:
        """Whether it is a part only."""
        return self.needed < self.whole


def plan(matrix: LogProbs, limit: int) -> Plan:
    """The largest part that fits: all, else as much as fits of the side that costs, else of both sides.

    Raises:
        UserError: not even a small part fits; the message says what would.
    """

    def part(side: int, both: bool) -> tuple[int, int]:
        rows = min(side, matrix.m) if matrix.cuts_rows or both else matrix.m
        return rows, min(side, matrix.n) if both or not matrix.cuts_rows else matrix.n

    for both in (False, True):
        side = _largest(lambda side: matrix.bytes_needed(*part(side, both)) <= limit, max(matrix.m, matrix.n))  # noqa: B023
        if side >= min(LEAST_SIDE, matrix.m, matrix.n):
            size = part(side, both)
            return Plan(*size, matrix.bytes_needed(*size), matrix.bytes_needed(matrix.m, matrix.n), limit)
    least = matrix.bytes_needed(min(LEAST_SIDE, matrix.m), min(LEAST_SIDE, matrix.n))
    raise UserError(f"max_memory: {gib(limit)} is too little even for a small part: at least {gib(least)} is needed")


def _largest(holds: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` for which a condition holds that large numbers break; 0 if none."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


# --- the analysis ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Sample:
    """What parts of a matrix say of the whole; see docs/own-model.md.

    Attributes:
        rows, columns: size of a part.
        ranks: Press rank of each part, by its own tolerance; their mean and sample standard deviation.
        half_size, half_rank: the same of a part with half the sampled rows or columns.
        saturated: whether twice that found less than one per cent more: then the whole has probably little more.
        at_least: singular values of a part above the whole's tolerance (x 1.01): the whole has no fewer.
        at_most: what theory or size allow.
    """

    rows: int
    columns: int
    ranks: tuple[int, ...]
    mean: float
    deviation: float
    half_size: tuple[int, int]
    half_rank: int
    saturated: bool
    at_least: int
    at_most: int


@dataclass(frozen=True)
class Result:
    """Spectrum and ranks of a model, of the first part where it was sampled; `made`: notes on how its files were."""

    asked: Question
    made: list[str]
    matrix: LogProbs
    plan: Plan
    spectrum: Spectrum
    ranks: RankReport
    bound: Bound | None
    sample: Sample | None
    measures: Measures
    multi_mode: MultiMode | None
    seconds: float

    def notes(self) -> list[str]:
        """What a reader must know beside the numbers."""
        full = self.spectrum.sigma_max > 0 and self.ranks.press.rank == min(self.spectrum.m, self.spectrum.n)
        higher = full and not self.sample and not self.asked.weights_only
        more = "full rank: more contexts (or words) might show a higher one" if higher else ""
        return [note for note in (*self.made, self.ranks.note, self.matrix.note, self.measures.note, more) if note]


def rank(asked: Question, say: Say, folder: Path | None = None) -> Result:
    """Singular values and ranks of the model asked about; what has to be made of it first is written to `folder`.

    Raises:
        UserError, DataError: one line that names the file and what is wrong with it.
    """
    started = time.monotonic()
    files, made, tokens, two_modes = asked, list[str](), list[str](), None
    if asked.model and folder and asked.weights_only:
        files, made, tokens = with_output_matrix(asked, folder)
    elif asked.model and folder:
        files, made, tokens, two_modes = _read_model(asked, folder, say)
    matrix = log_probs_of(files)
    chosen = plan(matrix, parse_bytes(asked.max_memory) if asked.max_memory else int(FREE_SHARE * free_bytes()))
    whole = f"the {matrix.title} of {matrix.m} x {matrix.n} needs {gib(chosen.whole)} of memory"
    if chosen.sampled:
        parts = f"{asked.repeats} random parts of {chosen.rows} x {chosen.columns} in {gib(chosen.needed)}"
        say(f"{whole}, more than the limit of {gib(chosen.limit)}: {parts} instead")
        spectrum, sample = _sampled(asked, matrix, chosen, say)
    else:
        say(f"{whole}; the limit is {gib(chosen.limit)}")
        spectrum, sample = matrix.spectrum(None, None, say), None
    ranks = rank_report(spectrum)
    bound = matrix.bound(ranks)
    beside = measures(files, matrix, chosen.limit, say)
    if beside.words and beside.words.never and tokens:
        never = [repr(tokens[word]) for word in beside.words.never]
        more = f" and {len(never) - NAMED:,} more" if len(never) > NAMED else ""
        made.append(f"never the most probable one: {', '.join(never[:NAMED])}{more}")
    return Result(
        asked, made, matrix, chosen, spectrum, ranks, bound, sample, beside, two_modes, time.monotonic() - started
    )


def _read_model(asked: Question, folder: Path, say: Say) -> tuple[Question, list[str], list[str], MultiMode | None]:
    """As `huggingface.exported`, and the multi-mode probe if asked for; the model is in memory no longer."""
    opened = huggingface.open_model(asked)
    files = huggingface.exported(asked, opened, folder, say)
    return *files, probe(opened, asked.seed, say) if asked.multi_mode else None


# --- parts of a matrix ----------------------------------------------------------------------------------------------
def _sampled(asked: Question, matrix: LogProbs, chosen: Plan, say: Say) -> tuple[Spectrum, Sample]:
    """The spectrum of the first part, and what all parts say."""
    rng = np.random.default_rng(asked.seed)
    rows, columns = chosen.rows, chosen.columns
    half = (rows if rows == matrix.m else rows // 2, columns if columns == matrix.n else columns // 2)

    def part(rows: int, columns: int, name: str) -> Spectrum:
        say(f"{name}: {rows} x {columns}")
        return matrix.spectrum(_draw(rng, matrix.m, rows), _draw(rng, matrix.n, columns), say)

    parts = [part(rows, columns, f"part {index + 1} of {asked.repeats}") for index in range(asked.repeats)]
    smaller = part(*half, "half the part, to see whether the rank still grows")
    ranks, half_rank = tuple(_press(one) for one in parts), _press(smaller)
    mean = statistics.fmean(ranks)
    sample = Sample(
        rows,
        columns,
        ranks,
        mean,
        deviation=statistics.stdev(ranks),
        half_size=half,
        half_rank=half_rank,
        saturated=mean <= 1.01 * half_rank,
        at_least=max(lower_bound(one, matrix.m, matrix.n) for one in parts),
        at_most=matrix.highest_rank,
    )
    return parts[0], sample


def _draw(rng: np.random.Generator, whole: int, part: int) -> Indices | None:
    return None if part == whole else np.sort(rng.choice(whole, part, replace=False)).astype(np.intp)


def _press(part: Spectrum) -> int:
    return press_rank(part.sigma, part.m, part.n).rank


def lower_bound(part: Spectrum, m: int, n: int) -> int:
    """How many singular values of the whole m x n matrix are above its Press tolerance, at least.

    Interlacing makes the part's singular values lower bounds of the whole's. The whole's tolerance needs its largest
    singular value: estimated as the part's, scaled by the square root of the share of the entries (the direction that
    carries it, the mean log-probability of each word, is spread over all of them), with one per cent to spare.
    """
    sigma_max = part.sigma_max * math.sqrt(m * n / (part.m * part.n))
    tolerance = press_rank([sigma_max], m, n).tolerance
    return int((part.sigma > tolerance * (1 + SENSITIVITY)).sum())
