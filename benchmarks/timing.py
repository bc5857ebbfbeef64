"""Measure time and memory: medians of interleaved runs, the machine's rate, and peak memory in a separate process."""

import contextlib
import ctypes
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

MIB = 2**20
SQUARE = 2048  # size of the matrix product that measures the machine


@dataclass(frozen=True)
class Timing:
    """Seconds per call after a warm-up: median, fastest, slowest, and the number of repetitions."""

    median: float
    low: float
    high: float
    repetitions: int

    def row(self) -> dict[str, float]:
        """Return the record's entries, in milliseconds."""
        found = {"ms": self.median, "ms_low": self.low, "ms_high": self.high}
        return {key: round(1e3 * value, 3) for key, value in found.items()} | {"repetitions": self.repetitions}


def race(
    contenders: Mapping[str, Callable[[], object]], repetitions: int, synchronise: Callable[[], object] = lambda: None
) -> dict[str, Timing]:
    """Time every contender as `race_of` does."""

    def timer(run: Callable[[], object]) -> Callable[[], float]:
        return lambda: seconds_of(run, synchronise)

    return race_of({name: timer(run) for name, run in contenders.items()}, repetitions)


def seconds_of(run: Callable[[], object], synchronise: Callable[[], object] = lambda: None) -> float:
    synchronise()
    began = time.perf_counter()
    run()
    synchronise()
    return time.perf_counter() - began


def race_of(timers: Mapping[str, Callable[[], float]], repetitions: int) -> dict[str, Timing]:
    """Call every timer once to warm up, then all in turn, forwards and backwards alternately.

    Alternating the order means that no contender always follows the same other one.
    """
    seconds: dict[str, list[float]] = {name: [] for name in timers}
    order = list(timers)
    for name in order:
        timers[name]()
    for _ in range(repetitions):
        for name in order:
            seconds[name].append(timers[name]())
        order.reverse()
    return {
        name: Timing(statistics.median(found), min(found), max(found), repetitions) for name, found in seconds.items()
    }


def show(row: Mapping[str, Any]) -> None:
    """Print a row of results."""
    print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)


# --- the machine ----------------------------------------------------------------------------------------------------
def products_of(rows: int, width: int, columns: int) -> list[dict[str, Callable[[], object]]]:
    """Return the three matrix products of a linear map and its gradients, each by torch and, where present, oneDNN."""
    x, w, g = torch.randn(rows, width), torch.randn(columns, width), torch.randn(rows, columns)
    forward, back, weight = torch.empty(rows, columns), torch.empty(rows, width), torch.empty(columns, width)
    native: list[Callable[[], object]] = [
        lambda: torch.mm(x, w.t(), out=forward),
        lambda: torch.mm(g, w, out=back),
        lambda: torch.mm(g.t(), x, out=weight),
    ]
    try:
        onednn = torch.ops.mkldnn._linear_pointwise
    except AttributeError:
        return [{"native": product} for product in native]
    other: list[Callable[[], object]] = [
        lambda: onednn(x, w, None, "none", [], ""),
        lambda: onednn(g, w.t(), None, "none", [], ""),
        lambda: onednn(x.t(), g.t(), None, "none", [], ""),
    ]
    return [{"native": one, "onednn": two} for one, two in zip(native, other, strict=True)]


def floor_s(rows: int, width: int, columns: int, repetitions: int = 3, most: int = 512) -> float:
    """Return the seconds that the three products of `products_of` take at the best measured rate.

    At most `most` rows are computed at once. A loss with gradients cannot take less time than its products.
    """
    at_once = min(rows, most)
    best = [min(t.low for t in race(one, repetitions).values()) for one in products_of(at_once, width, columns)]
    return sum(best) * rows / at_once


def square_rate(repetitions: int = 5) -> dict[str, float]:
    """Return the GFLOP/s of a square float32 product with all threads, by library."""
    forward = products_of(SQUARE, SQUARE, SQUARE)[0]
    return {name: round(2e-9 * SQUARE**3 / t.low, 1) for name, t in race(forward, repetitions).items()}


def provenance(**more: Any) -> dict[str, Any]:
    """Return hardware, versions and how busy the machine was."""
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        cpuinfo = ""
    facts = dict(line.replace("\t", "").split(":", 1) for line in cpuinfo.split("\n\n")[0].splitlines() if ":" in line)
    wanted = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    return {
        "cpu": facts.get("model name", platform.processor()).strip(),
        "family": facts.get("cpu family", "").strip(),
        "model": facts.get("model", "").strip(),
        "instructions": [flag for flag in wanted if flag in facts.get("flags", "").split()],
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "gc_collect_ms": round(1e3 * race({"gc": gc.collect}, 3)["gc"].median, 1),  # part of A's times
        "load_average": [round(load, 2) for load in os.getloadavg()],
        **more,
    }


# --- memory ---------------------------------------------------------------------------------------------------------
def peak_mib(run: Callable[[], object], kept_bytes: int = 0) -> float:
    """Return by how many MiB the peak resident memory during `run` exceeds that before it, minus `kept_bytes`."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # memory freed earlier would be reused unseen
        trim(0)
    before = _resident_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets the peak
    run()
    return max(0.0, (_resident_bytes("VmHWM") - before - kept_bytes) / MIB)


def _resident_bytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) * 1024


# --- processes ------------------------------------------------------------------------------------------------------
def start(script: str, *arguments: str, threads: int | None = None, stdin: int | None = None) -> subprocess.Popen[str]:
    """Start a script of this folder in a fresh process."""
    count = str(threads or torch.get_num_threads())
    environment = os.environ | {"OMP_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count, "MKL_NUM_THREADS": count}
    command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True, env=environment)


def finish(process: subprocess.Popen[str]) -> Any:
    """Wait for a process and return the JSON of its last line."""
    out, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{process.args}: exit code {process.returncode}")
    return json.loads(out.strip().splitlines()[-1])


def elsewhere(script: str, *arguments: str) -> Any:
    """Run a script in a fresh process and return the JSON of its last line."""
    return finish(start(script, *arguments))


class Served:
    """A timer in a process of its own that stays alive between its turns (the script calls `serve`)."""

    def __init__(self, script: str, *arguments: str) -> None:
        self._process = start(script, *arguments, stdin=subprocess.PIPE)

    def __call__(self) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # the process has ended: reported below
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args}: exit code {self._process.wait()}")
        return float(line)

    def close(self) -> None:
        """Let the process end."""
        self._process.communicate()


def serve(run: Callable[[], object]) -> None:
    """Print the seconds of one run for every line on standard input (the other end of `Served`)."""
    for _ in sys.stdin:
        print(seconds_of(run), flush=True)
