"""Updates recorded once for each length of a chunk and replayed (CUDA graphs): one launch in place of hundreds.

The first update of a length is made call by call, so that its kernels are there, and recorded after it without being
made again; the next ones of that length are replayed. A recorded update reads and writes the same places in memory each
time: the weights, the states that are carried on, the optimiser's scalars, the rows it is given. Its kernels are those
of the update that was called, and its random numbers follow from the generator's seed as they did, so the bits are the
same; a seed is set before every update. A length that comes once costs a recording and gains nothing.

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
    """An update of one length: the place of its rows, what makes it, the places of its results."""

    rows_LB: Tensor
    replay: Callable[[], object]
    results: Results


class Replayed:
    """An update, replayed where one of its length is recorded (`recorded`, by the number of rows).

    `refused` is told why recording fails; nothing of this object is to be used after that.
    """

    def __init__(self, update: Update, capture: Capture, refused: Callable[[str], None]) -> None:
        self._update, self._capture, self._refused = update, capture, refused
        self.recorded: dict[int, _Recorded] = {}

    def __call__(self, rows_LB: Tensor) -> Results:
        """Its results are valid until the next call."""
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
        except RuntimeError as error:  # an operation that waits for the host, or too little memory for a recording
            self._refused(" ".join(str(error).split())[:200])


def cuda_capture(generator: torch.Generator) -> Capture:
    """Recording as CUDA graphs in one pool of memory: they are replayed one after the other, never side by side."""
    pool = torch.cuda.graph_pool_handle()

    def capture(work: Callable[[], Results]) -> tuple[Callable[[], object], Results]:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(generator)
        with torch.cuda.graph(graph, pool=pool):
            results = work()
        return graph.replay, results

    return capture
