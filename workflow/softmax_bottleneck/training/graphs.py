"""CUDA graphs of training updates: an update is captured once for each chunk length, then replayed by a single launch.

For the first chunk of a length, the update runs normally, which also loads the GPU kernels. The same operations are
then captured without being run. Updates on later chunks of that length replay the capture. A length that occurs only
once costs a capture and gains nothing.

A captured update always reads and writes the same memory: weights, body states carried from chunk to chunk, the
optimiser's scalars, and the input tokens. It runs the kernels of a normal update. Its random numbers follow from the
generator's seed, which is set before every update. A replayed update therefore gives the same bits as a normal update.

Shapes: a chunk has L rows (time steps) of B columns (parallel sequences).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Results = tuple[Tensor, Tensor]
Update = Callable[[Tensor], Results]
# A function that captures a call without executing it. It returns a function that replays the call, and the tensors
# into which every replay writes the results.
Capture = Callable[[Callable[[], Results]], tuple[Callable[[], object], Results]]


@dataclass(frozen=True)
class _Recorded:
    """A captured update for chunks of one length.

    Attributes:
        rows_LB: the memory from which the captured update reads its rows; new rows are copied to it before a replay.
        replay: function that executes the captured update.
        results: the loss and the gradient norm; every replay overwrites them.
    """

    rows_LB: Tensor
    replay: Callable[[], object]
    results: Results


class Replayed:
    """An update function that replays a captured update if there is one for the number of input rows.

    Args:
        update: function that does an update on rows [L, B] of token ids and returns the loss and the gradient norm.
        capture: function that captures a call without executing it, such as the result of `cuda_capture`. It returns a
            function that replays the call, and the tensors into which every replay writes its results.
        refused: function called with the reason (text) if a capture fails. The update itself has been done by then.
            Later updates must call `update` directly instead of this object.

    Attributes:
        recorded: {number of rows L: captured update}.
    """

    def __init__(self, update: Update, capture: Capture, refused: Callable[[str], None]) -> None:
        self._update, self._capture, self._refused = update, capture, refused
        self.recorded: dict[int, _Recorded] = {}

    def __call__(self, rows_LB: Tensor) -> Results:
        """Do an update on rows of token ids [L, B], if possible by a replay; return its loss and gradient norm.

        The next call may overwrite the two returned tensors.
        """
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
    """Return a function `capture(work)` that captures the call `work()` as a CUDA graph without executing it.

    `capture` returns a function that replays the graph, and the tensors into which every replay writes its results.
    `generator` gives the random numbers of every captured call. All graphs captured by the returned function share one
    memory pool, because no two of them are replayed at once.
    """
    pool = torch.cuda.graph_pool_handle()

    def capture(work: Callable[[], Results]) -> tuple[Callable[[], object], Results]:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(generator)
        with torch.cuda.graph(graph, pool=pool):
            results = work()
        return graph.replay, results

    return capture
