"""Small sizes: tokens per second of demonstration runs, all cores together, beside a plain loop run seed by seed.

Ours trains one run per core, each with one thread, as Snakemake does; the plain loop (nn.LSTM, materialised head,
torch's clip and SGD) has the machine for itself, first with all its threads, as a script has by default, then, for
comparison, as one process per core like ours. Called as a script this is one such process.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import batched_seeds
import torch
from cases import Case, our_step, plain_step
from plain import Dropouts
from softmax_bottleneck.jobs import out_of_memory
from timing import finish, square_rate, start

SECONDS, QUICK_SECONDS = 1.0, 0.2  # of a round
ROUNDS = 3  # of a process
STARTS = 3  # of every arrangement in fresh processes, in turn: where its memory happens to lie makes one fast or slow
KINDS = {  # of operators, by the ends of their names
    "LSTM kernels": ("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"),
    "matrix products": ("::addmm", "::mm", "::addmm_", "::_linear_pointwise", "::bmm", "::addmv_", "::addmv"),
}
HEADS = ("softmax", "sigsoftmax", "gss", "lms-plif", "moc", "mos")


def case_of(head: str) -> Case:
    """The demonstration's sizes (config/demo.yaml)."""
    mixture = head in ("moc", "mos")
    knots = (("knots", 2000),) if head == "lms-plif" else ()
    return Case("demo", head, 400, 20, 35, 16, 96, 64 if mixture else 16, 2, 20.0, Dropouts(), options=knots,
                components=4 if mixture else 1)  # fmt: skip


def measure(quick: bool) -> list[dict[str, Any]]:
    """Tokens per second by head and arrangement, medians of all rounds."""
    cores, rows = os.cpu_count() or 1, []
    arrangements = {
        "ours": ("ours", cores, 1),
        "plain": ("plain", 1, cores),
        "plain, a process per core": ("plain", cores, 1),
    }
    for head in HEADS[:1] if quick else HEADS:
        found: dict[str, list[float]] = {name: [] for name in arrangements}
        for _ in range(1 if quick else STARTS):
            for name, (variant, processes, threads) in arrangements.items():
                found[name] += together(head, variant, processes, threads, quick)
        for name, rates in found.items():
            row = {"head": head, "variant": name, "tokens_per_s": round(statistics.median(rates))}
            rows.append(row | {"low": round(min(rates)), "high": round(max(rates))})
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    profiled = profile(updates=5 if quick else 100)
    print("\n".join(f"{row['part']}: {row['ms']} ms" for row in profiled), flush=True)
    return rows + profiled + batched_seeds.measure(case_of(HEADS[0]), 3 if quick else 30)


def profile(head: str = "softmax", updates: int = 100) -> list[dict[str, Any]]:
    """Where an update of ours goes, one thread, in ms: kernels by kind, the rest (Python, autograd), and the limit.

    The limit is the arithmetic of LSTMs and head at the rate of a large square product.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    case = case_of(head)
    step, limit = our_step(case), case.step_flops() / (1e9 * max(square_rate(3).values()))
    rate(step, case.tokens, 0.5)
    began = time.perf_counter()
    for _ in range(updates):
        step()
    whole = (time.perf_counter() - began) / updates
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        for _ in range(updates):
            step()
    torch.set_num_threads(threads)
    seconds = dict.fromkeys(KINDS, 0.0) | {"element-wise": 0.0}
    for event in seen.key_averages():
        if event.key.startswith(("aten::", "mkldnn::")):
            kind = next((name for name, keys in KINDS.items() if event.key.endswith(keys)), "element-wise")
            seconds[kind] += 1e-6 * event.self_cpu_time_total / updates
    seconds |= {"Python and autograd": max(0.0, whole - sum(seconds.values())), "whole update": whole, "limit": limit}
    return [{"head": head, "part": part, "ms": round(1e3 * value, 3)} for part, value in seconds.items()]


def together(head: str, variant: str, processes: int, threads: int, quick: bool) -> list[float]:
    """Tokens per second of so many processes at once, of every round."""
    seconds = QUICK_SECONDS if quick else SECONDS
    at_work = [start("small_sizes.py", head, variant, str(seconds), threads=threads) for _ in range(processes)]
    return [sum(rates) for rates in zip(*map(finish, at_work), strict=True)]


def rate(step: Callable[[], object], tokens: int, seconds: float) -> float:
    """Tokens per second of one round."""
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
