"""Rank of the output layer of a model: of its whole matrix, or of random rows where memory is short.

Memory is estimated before anything is computed. Some rows bound the rank of the whole: by interlacing (Horn and
Johnson, Topics in Matrix Analysis, corollary 3.1.3) no singular value of a part exceeds that of the whole with the same
index, so the whole has at least as many above its tolerance as any part.

Suffixes: m rows (contexts), n columns (words).
"""

import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from softmax_bottleneck.own_model import saved_model
from softmax_bottleneck.own_model.log_probs import Bound, LogProbs, open_log_probs
from softmax_bottleneck.own_model.measures import Measures, measure
from softmax_bottleneck.own_model.request import Request, parse_bytes
from softmax_bottleneck.ranks import RankReport, Spectrum, press_rank, rank_report
from softmax_bottleneck.ranks.counts import SENSITIVITY
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.progress import Say

FREE_SHARE = 0.8  # of the free memory, when no limit is given
NAMED = 20  # tokens in a note
LEAST_ROWS = 256  # fewer show nothing


@dataclass(frozen=True)
class Sample:
    """Bounds on the Press rank of the whole matrix from random rows of it.

    Attributes:
        rows: how many.
        at_least: their singular values above the tolerance of the whole (x 1.01): the whole has no fewer.
        at_most: the largest rank that theory or size allow.
    """

    rows: int
    at_least: int
    at_most: int


@dataclass(frozen=True)
class Result:
    """Spectrum and ranks of a model, or of the sampled rows; `model_notes` are about how its files were read."""

    request: Request
    model_notes: list[str]
    matrix: LogProbs
    bytes_needed: int
    spectrum: Spectrum
    ranks: RankReport
    bound: Bound | None
    sample: Sample | None
    measures: Measures
    seconds: float

    def notes(self) -> list[str]:
        """Return the caveats of the numbers."""
        full = self.spectrum.sigma_max > 0 and self.ranks.press.rank == min(self.spectrum.m, self.spectrum.n)
        limited = full and not self.sample and not self.request.weights_only
        more = "full rank: more contexts (or words) might show a higher one" if limited else ""
        notes = (*self.model_notes, self.ranks.note, self.matrix.note, self.measures.note, more)
        return [note for note in notes if note]


def rank(request: Request, say: Say, folder: Path) -> Result:
    """Compute singular values and ranks of a model; arrays of a saved model are written to `folder`.

    Raises:
        UserError, DataError: one line that names the file and the problem.
    """
    started = time.monotonic()
    export = saved_model.Export(request, [], [])
    if request.model and request.weights_only:
        export = saved_model.export_output_matrix(request, folder)
    elif request.model:
        export = saved_model.export_layer(request, folder, say)
    matrix = open_log_probs(export.request)
    limit = parse_bytes(request.max_memory) if request.max_memory else int(FREE_SHARE * free_bytes())
    fitting, sample = fitting_rows(matrix, limit), None
    needed = f"the {matrix.title} of {matrix.m} x {matrix.n} needs {gib(matrix.bytes_needed(matrix.m))} of memory"
    if fitting < matrix.m:
        say(f"{needed}, more than the limit of {gib(limit)}: {fitting} random rows instead")
        rows = np.random.default_rng(request.seed).choice(matrix.m, fitting, replace=False)
        spectrum = matrix.spectrum(np.sort(rows).astype(np.intp), say)
        sample = Sample(fitting, lower_bound(spectrum, matrix.m, matrix.n), matrix.highest_rank)
    else:
        say(f"{needed}; the limit is {gib(limit)}")
        spectrum = matrix.spectrum(None, say)
    ranks = rank_report(spectrum)
    bound = matrix.bound(ranks)
    measures = measure(export.request, matrix, limit, say)
    notes = list(export.notes)
    if export.tokens and measures.words and measures.words.never:
        never = [repr(export.tokens[word]) for word in measures.words.never]
        more = f" and {len(never) - NAMED:,} more" if len(never) > NAMED else ""
        notes.append(f"unargmaxable: {', '.join(never[:NAMED])}{more}")
    seconds = time.monotonic() - started
    needed_bytes = matrix.bytes_needed(fitting)
    return Result(request, notes, matrix, needed_bytes, spectrum, ranks, bound, sample, measures, seconds)


# --- memory ---------------------------------------------------------------------------------------------------------
def free_bytes() -> int:
    """Return the memory that this machine, or the limit of a container, can give now."""
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text(encoding="utf-8").strip() if limit.exists() else ""
    available = int(psutil.virtual_memory().available)
    return min(available, int(text)) if text.isdigit() else available


def gib(count: int) -> str:
    """Format a number of bytes."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def fitting_rows(matrix: LogProbs, limit: int) -> int:
    """Return the largest number of rows whose analysis fits into so many bytes.

    Raises:
        UserError: not even a few rows fit; the message says what would.
    """
    fitting, too_many = 0, matrix.m + 1
    while too_many - fitting > 1:
        rows = (fitting + too_many) // 2
        fitting, too_many = (rows, too_many) if matrix.bytes_needed(rows) <= limit else (fitting, rows)
    least = min(LEAST_ROWS, matrix.m)
    if fitting < least:
        needed = gib(matrix.bytes_needed(least))
        raise UserError(f"max_memory: {gib(limit)} is too little even for {least} rows: {needed} are needed")
    return fitting


def lower_bound(part: Spectrum, m: int, n: int) -> int:
    """Return how many singular values of the whole m x n matrix are above its Press tolerance, at least.

    Interlacing makes the part's singular values lower bounds of the whole's. The whole's tolerance needs its largest
    singular value: estimated as the part's, scaled by the square root of the share of the entries (the direction that
    carries it, the mean log-probability of each word, is spread over all of them), with one per cent to spare.
    """
    sigma_max = part.sigma_max * math.sqrt(m * n / (part.m * part.n))
    tolerance = press_rank([sigma_max], m, n).tolerance
    return int((part.sigma > tolerance * (1 + SENSITIVITY)).sum())
