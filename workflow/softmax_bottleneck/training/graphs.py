"""Updates captured once for each chunk length and replayed as CUDA graphs: one launch instead of hundreds.

The first update of a length runs normally, which loads its kernels, and is captured afterwards without running again.
Later updates of that length are replayed. A captured update always reads and writes the same memory locations: weights,
carried states, the optimiser's scalars, its rows. Its kernels are those of the normal update, and its random numbers
follow from the generator's seed, which is set before every update, so the bits are equal. A length that occurs only
once costs a capture and gains nothing.

Shapes: L rows of a stream, B columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Results = tuple[Tensor, Tensor]
Update = Callable[[Tensor], Results]
Capture = Callable[[Callable[[], Results]], tuple[Callable[[], object], Results]]
"""Records a call without making it: what makes it, and the places of its results."""


@dataclass(frozen=True)
class _Recorded:
    """A captured update of one length: its input rows, the function that replays it, and its results."""

    rows_LB: Tensor
    replay: Callable[[], object]
    results: Results


class Replayed:
    """An update that is replayed if one of its length has been captured (`recorded`, by number of rows).

    `refused` is called with the reason if a capture fails; this object must not be used after that.
    """

    def __init__(self, update: Update, capture: Capture, refused: Callable[[str], None]) -> None:
        self._update, self._capture, self._refused = update, capture, refused
        self.recorded: dict[int, _Recorded] = {}

    def __call__(self, rows_LB: Tensor) -> Results:
        """Run an update; the results are valid until the next call."""
        known = self.recorded.get(len(rows_LB))
        if known is None:
            results = self._update(rows_LB)
            self._record(rows_LB.clone())
            return results
        known.rows_LB.copy_(rows_LB)
        known.replay()
        return known.results

    def _record(self, rows_LB: Tensor) -> None:
        try:
            self.recorded[len(rows_LB)] = _Recorded(rows_LB, *self._capture(lambda: self._update(rows_LB)))
        except RuntimeError as error:  # an operation that waits for the host, or too little memory for a capture
            self._refused(" ".join(str(error).split())[:200])


def cuda_capture(generator: torch.Generator) -> Capture:
    """Return a capture function for CUDA graphs in one memory pool (they are never replayed concurrently)."""
    pool = torch.cuda.graph_pool_handle()

    def capture(work: Callable[[], Results]) -> tuple[Callable[[], object], Results]:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(generator)
        with torch.cuda.graph(graph, pool=pool):
            results = work()
        return graph.replay, results

    return capture
