"""The rank engine beside the SVDs of NumPy and torch, on the same matrices of log-probabilities.

The matrices are those of an untrained GSS head (softmax for the factored method) over random contexts. Called as a
script, this module measures one method once, with its peak memory.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from softmax_bottleneck import heads
from softmax_bottleneck.heads.base import Head
from softmax_bottleneck.jobs import out_of_memory
from softmax_bottleneck.measuring.perplexity import chunks_of
from softmax_bottleneck.measuring.spectrum import gram_maker
from softmax_bottleneck.ranks import factored_singular_values, gram_singular_values, log_normalisers, press_rank
from timing import elsewhere, peak_mib, race, show

SIZES = ((4_000, 1_000), (12_000, 2_500))  # contexts x words
SMALL = ((600, 200),)
WIDTH = 64
FULL = (82_429, 10_000)  # the test set of Penn Treebank
FULL_WIDTH = 400


def measure(quick: bool) -> list[dict[str, Any]]:
    """Return seconds, peak memory and Press rank of every method at every size."""
    rows: list[dict[str, Any]] = []
    for m, n in SMALL if quick else SIZES:
        for kind, methods in (("general", ("numpy", "torch", "ours")), ("softmax", ("numpy", "factors"))):
            model = problem(kind, m, n)
            counts: dict[str, int] = {}
            timings = race({name: counted(name, *model, counts) for name in methods}, 2 if quick else 3)
            for name, timing in timings.items():
                row = {"head": kind, "m": m, "n": n, "method": name, **timing.row(), "rank": counts[name]}
                alone = elsewhere("rank_engine.py", kind, str(m), str(n), name, str(WIDTH))
                rows.append(row | {"peak_mib": alone["peak_mib"]})
                show(rows[-1])
    return rows


def full() -> list[dict[str, Any]]:
    """Measure every method once at the paper's size, each in a process of its own.

    NumPy's SVD takes most of ten minutes and 16 GiB.
    """
    rows: list[dict[str, Any]] = []
    for method in METHODS:
        kind = "softmax" if method == "factors" else "general"
        found = elsewhere("rank_engine.py", kind, str(FULL[0]), str(FULL[1]), method, str(FULL_WIDTH))
        rows.append({"head": kind, "m": FULL[0], "n": FULL[1], "method": method, **found})
        show(rows[-1])
    return rows


def once(kind: str, m: int, n: int, method: str, width: int) -> dict[str, Any]:
    """Return time, peak memory (MiB) and Press rank of one method on one problem."""
    if method in OURS:
        out_of_memory.keep_freed()  # as the steps of the workflow do
    counts: dict[str, int] = {}
    run = counted(method, *problem(kind, m, n, width), counts)
    began = time.perf_counter()
    peak = peak_mib(run)
    return {"ms": round(1e3 * (time.perf_counter() - began)), "rank": counts[method], "peak_mib": round(peak, 1)}


def problem(kind: str, m: int, n: int, width: int = WIDTH) -> tuple[Head, torch.Tensor]:
    """Return a head and contexts [m, width]."""
    torch.manual_seed(1)
    name = "gss" if kind == "general" else "softmax"
    head = heads.build(name, vocabulary_size=n, context_size=width, embedding_size=width).eval()
    return head, torch.randn(m, width) * 4.0


def counted(method: str, head: Head, h_ND: torch.Tensor, counts: dict[str, int]) -> Callable[[], None]:
    """Return a function that computes the Press rank by `method` and stores it in `counts[method]`."""

    def run() -> None:
        with torch.no_grad():
            counts[method] = METHODS[method](head, h_ND)

    return run


def by_numpy(head: Head, h_ND: torch.Tensor) -> int:
    """Use the published method: the whole float32 matrix and NumPy's SVD."""
    matrix = head.log_probs(h_ND).numpy()
    return press_rank(np.linalg.svd(matrix, compute_uv=False), *matrix.shape).rank


def by_torch(head: Head, h_ND: torch.Tensor) -> int:
    matrix = head.log_probs(h_ND)
    return press_rank(torch.linalg.svdvals(matrix).numpy(), *matrix.shape).rank


def by_gram(head: Head, h_ND: torch.Tensor) -> int:
    chunks = (log_p_NV.numpy() for log_p_NV in chunks_of(head, h_ND))
    found = gram_singular_values(chunks, head.vocabulary_size, make_gram=gram_maker(h_ND.device))
    return press_rank(found.sigma, found.m, found.n).rank


def by_factors(head: Head, h_ND: torch.Tensor) -> int:
    weight, bias, contexts = head.decoder.weight.numpy(), head.decoder.bias.numpy(), h_ND.numpy()
    found = factored_singular_values(contexts, weight, bias, log_normalisers(contexts, weight, bias))
    return press_rank(found.sigma, found.m, found.n).rank


OURS = ("ours", "factors")
METHODS = {"numpy": by_numpy, "torch": by_torch, "ours": by_gram, "factors": by_factors}


if __name__ == "__main__":
    kind, m, n, method, width = sys.argv[1:]
    print(json.dumps(once(kind, int(m), int(n), method, int(width))))
