"""Compare ours with a plain training loop at the demonstration's sizes, in tokens per second of all cores together.

Ours trains one run per core, each with one thread, as Snakemake does. The plain loop (nn.LSTM, materialised head,
torch's clip and SGD) runs in two arrangements: seed by seed with all threads, as a script does by default, and as one
process per core. Called as a script, this module is one such process.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from cases import Case, our_step, plain_step
from plain import HEADS, Dropouts
from softmax_bottleneck.jobs import out_of_memory
from timing import finish, show, start

SECONDS, QUICK_SECONDS = 1.0, 0.2  # of a round
ROUNDS = 3  # per process
STARTS = 3  # fresh processes per arrangement: where a process's memory happens to lie decides its speed


def case_of(head: str) -> Case:
    """Return the sizes of config/demo.yaml."""
    knots = (("knots", 500),) if head == "lms-plif" else ()
    components = 3 if head in ("moc", "mos") else 1
    return Case("demo", head, 500, 20, 35, 16, 64, 16, 1, 12.0, Dropouts(), options=knots, components=components)


def measure(quick: bool) -> list[dict[str, Any]]:
    """Return tokens per second by head and arrangement: medians over all rounds."""
    cores, rows = os.cpu_count() or 1, []
    arrangements = {
        "ours": ("ours", cores, 1),
        "plain": ("plain", 1, cores),
        "plain, a process per core": ("plain", cores, 1),
    }
    for head in list(HEADS)[:1] if quick else HEADS:
        found: dict[str, list[float]] = {name: [] for name in arrangements}
        for _ in range(1 if quick else STARTS):
            for name, (variant, processes, threads) in arrangements.items():
                found[name] += together(head, variant, processes, threads, quick)
        for name, rates in found.items():
            row = {"head": head, "variant": name, "tokens_per_s": round(statistics.median(rates))}
            rows.append(row | {"low": round(min(rates)), "high": round(max(rates))})
            show(rows[-1])
    return rows


def together(head: str, variant: str, processes: int, threads: int, quick: bool) -> list[float]:
    """Return the summed tokens per second of several processes at once, one number per round."""
    seconds = QUICK_SECONDS if quick else SECONDS
    at_work = [start("demo_sizes.py", head, variant, str(seconds), threads=threads) for _ in range(processes)]
    return [sum(rates) for rates in zip(*map(finish, at_work), strict=True)]


def rate(step: Callable[[], object], tokens: int, seconds: float) -> float:
    """Return the tokens per second of one round."""
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        step()
        count += 1
    return tokens * count / (time.perf_counter() - began)


if __name__ == "__main__":
    head, variant, seconds = sys.argv[1:]
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if variant == "ours":
        out_of_memory.keep_freed()  # as the steps of the workflow do
    case = case_of(head)
    step = our_step(case) if variant == "ours" else plain_step(case, habits=False)
    print(json.dumps([rate(step, case.tokens, float(seconds)) for _ in range(ROUNDS + 1)][1:]))  # the first warms up
