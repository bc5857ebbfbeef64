"""Rank of the output layer of a model. Memory is estimated before anything is computed."""

import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from softmax_bottleneck.own_model import saved_model
from softmax_bottleneck.own_model.log_probs import Bound, LogProbs, open_log_probs
from softmax_bottleneck.own_model.measures import Measures, measure
from softmax_bottleneck.own_model.request import Request
from softmax_bottleneck.ranks import RankReport, Spectrum, rank_report
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.progress import Say

NAMED = 20  # tokens in a note


@dataclass(frozen=True)
class Result:
    """Spectrum and ranks of a model; `model_notes` are about how its files were read."""

    request: Request
    model_notes: list[str]
    matrix: LogProbs
    bytes_needed: int
    spectrum: Spectrum
    ranks: RankReport
    bound: Bound | None
    measures: Measures
    seconds: float

    def notes(self) -> list[str]:
        """Return the caveats of the numbers."""
        full = self.spectrum.sigma_max > 0 and self.ranks.press.rank == min(self.spectrum.m, self.spectrum.n)
        limited = full and not self.request.weights_only
        more = "full rank: more contexts (or words) might show a higher one" if limited else ""
        return [note for note in (*self.model_notes, self.ranks.note, self.matrix.note, more) if note]


def rank(request: Request, say: Say, folder: Path) -> Result:
    """Compute singular values and ranks of a model; arrays of a saved model are written to `folder`.

    Raises:
        UserError, DataError: one line that names the file and the problem, or more memory is needed than is free.
    """
    started = time.monotonic()
    export = saved_model.Export(request, [], [])
    if request.model and request.weights_only:
        export = saved_model.export_output_matrix(request, folder)
    elif request.model:
        export = saved_model.export_layer(request, folder, say)
    matrix = open_log_probs(export.request)
    needed, free = matrix.bytes_needed(), free_bytes()
    text = f"the {matrix.title} of {matrix.m} x {matrix.n} needs {gib(needed)} of memory, and {gib(free)} are free"
    if needed > free:
        raise UserError(f"{text}; give fewer {matrix.sides[0]}: fewer of them bound the rank of all from below")
    say(text)
    spectrum = matrix.spectrum(say)
    ranks = rank_report(spectrum)
    bound, measures = matrix.bound(ranks), measure(export.request, matrix, say)
    notes = list(export.notes)
    if export.tokens and measures.words and measures.words.never:
        never = [repr(export.tokens[word]) for word in measures.words.never]
        more = f" and {len(never) - NAMED:,} more" if len(never) > NAMED else ""
        notes.append(f"unargmaxable: {', '.join(never[:NAMED])}{more}")
    seconds = time.monotonic() - started
    return Result(request, notes, matrix, needed, spectrum, ranks, bound, measures, seconds)


def free_bytes() -> int:
    """Return the memory that this machine, or the limit of a container, can give now."""
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text(encoding="utf-8").strip() if limit.exists() else ""
    available = int(psutil.virtual_memory().available)
    return min(available, int(text)) if text.isdigit() else available


def gib(count: int) -> str:
    """Format a number of bytes."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
