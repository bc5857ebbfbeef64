"""Where the shelf of a trained LMS-PLIF begins: with its own slopes, with those of other runs, with slopes drawn anew.

python docs/redraw_slopes.py results/runs/ptb/lms-plif*/1-*   # where they were trained; two minutes a run

The logits stay as trained. The shelf are the singular values of the log-probability matrix beyond d + 2, the last that
a softmax can have; docs/ranks.md has the answer for two widths d.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "workflow"))

from softmax_bottleneck.heads.lms_plif import PiecewiseLinear  # noqa: E402
from softmax_bottleneck.measuring.perplexity import hidden_states  # noqa: E402
from softmax_bottleneck.ranks import singular_values  # noqa: E402
from softmax_bottleneck.store import artefacts  # noqa: E402
from softmax_bottleneck.store.errors import UserError  # noqa: E402
from softmax_bottleneck.store.paths import Store  # noqa: E402
from softmax_bottleneck.study import Run  # noqa: E402
from softmax_bottleneck.training.trained import load_model  # noqa: E402


@dataclass(frozen=True)
class Trained:
    """The logits [N, V] of a trained network of width d for N contexts, its function of them and its options."""

    logits_NV: Tensor
    width: int
    slopes: PiecewiseLinear
    options: Mapping[str, Any]

    def shelf(self, slopes: PiecewiseLinear) -> float:
        """First singular value beyond d + 2, of the largest, of log softmax(g(logits)) with these slopes of g."""
        log_p_NV = slopes(self.logits_NV).double().log_softmax(1)
        sigma_K = singular_values(log_p_NV.numpy()).sigma
        return float(sigma_K[self.width + 2] / sigma_K[0])

    def redrawn(self, draws: int) -> Iterator[PiecewiseLinear]:
        """Slopes as a run begins with, from the seeds 0 to draws - 1."""
        for seed in range(draws):
            torch.manual_seed(seed)
            yield PiecewiseLinear(**self.options)


@torch.no_grad()
def trained(folder: Path, contexts: int) -> Trained:
    """A finished run, on contexts that lie evenly in its test text."""
    run, model = Run.from_json(artefacts.read_json(folder / "run.json")), load_model(folder)
    if run.head.name != "lms-plif":
        raise UserError(f"{folder}: its head is {run.head.name}; name runs of lms-plif")
    test_T = np.load(Store().tokens_folder(run.dataset) / "test.npy")
    hidden_ND = hidden_states(model, test_T, run.schedule.bptt).hidden
    some = torch.linspace(0, len(hidden_ND) - 1, min(contexts, len(hidden_ND))).long()
    head, width = model.head, run.body.embedding_size
    if len(some) < width + 3:
        raise UserError(
            f"--contexts {len(some)}: the shelf begins at singular value {width + 3} of a matrix with a row each"
        )
    return Trained(head.decoder(hidden_ND[some]), width, head.pointwise, run.head.options)


@torch.no_grad()
def compare(runs: Mapping[str, Trained], draws: int) -> Iterator[str]:
    """A line per run whose logits are kept, and per run whose slopes they get, and one for all new draws."""
    for name, own in runs.items():
        yield f"{name}: with its own slopes the shelf begins at {own.shelf(own.slopes):.1e} of the largest"
        for other, lender in runs.items():
            if other != name:
                yield f"  with those of {other} at {own.shelf(lender.slopes):.1e}"
        drawn = [own.shelf(slopes) for slopes in own.redrawn(draws)]
        yield f"  with {draws} new draws at {min(drawn):.1e} to {max(drawn):.1e}, median {np.median(drawn):.1e}"


def main(arguments: list[str] | None = None) -> None:
    """Read the runs, say what was asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a finished run of lms-plif")
    parser.add_argument("--draws", type=int, default=100, help="new draws of the slopes per run (100)")
    parser.add_argument("--contexts", type=int, default=1000, help="contexts of the test text (1000)")
    asked = parser.parse_args(arguments)
    if asked.draws < 1:
        parser.error(f"--draws {asked.draws}: at least one")
    runs = {f"{folder.parent.name}/{folder.name}": trained(folder, asked.contexts) for folder in asked.runs}
    for line in compare(runs, asked.draws):
        print(line, flush=True)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
