"""Clocks and memory: medians of contenders that take turns, the machine's own rate, peaks in a process of their own."""

from __future__ import annotations

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
SQUARE = 2048  # of the product that measures the machine
CLOCK: dict[str, Callable[[], float]] = {"now": time.perf_counter}


def busy_machine() -> None:
    """Where others work at the same time: one thread, and seconds of CPU in place of seconds."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    CLOCK["now"] = time.process_time


@dataclass(frozen=True)
class Timing:
    """Seconds of repetitions after a warm-up: median, fastest, slowest, how many."""

    median: float
    low: float
    high: float
    repetitions: int

    def row(self) -> dict[str, float]:
        """For the record, in milliseconds."""
        found = {"ms": self.median, "ms_low": self.low, "ms_high": self.high}
        return {key: round(1e3 * value, 3) for key, value in found.items()} | {"repetitions": self.repetitions}


def race(
    contenders: Mapping[str, Callable[[], object]], repetitions: int, synchronise: Callable[[], object] = lambda: None
) -> dict[str, Timing]:
    """Seconds of each, as `race_of`."""

    def timer(run: Callable[[], object]) -> Callable[[], float]:
        return lambda: seconds_of(run, synchronise)

    return race_of({name: timer(run) for name, run in contenders.items()}, repetitions)


def seconds_of(run: Callable[[], object], synchronise: Callable[[], object] = lambda: None) -> float:
    synchronise()
    began = CLOCK["now"]()
    run()
    synchronise()
    return CLOCK["now"]() - began


def race_of(timers: Mapping[str, Callable[[], float]], repetitions: int) -> dict[str, Timing]:
    """What each says it took: once to warm up, then all in turn, forwards and backwards alternately, so that none
    always follows another."""
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


# --- the machine ----------------------------------------------------------------------------------------------------
def products_of(rows: int, width: int, columns: int) -> list[dict[str, Callable[[], object]]]:
    """The three products of a linear map and its gradients, each by torch and by oneDNN where that is there."""
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
    """Seconds that the three products take at the best rate seen here, by either library, at most `most` rows at once.

    The limit of a loss of which nothing but its products costs time.
    """
    at_once = min(rows, most)
    best = [min(t.low for t in race(one, repetitions).values()) for one in products_of(at_once, width, columns)]
    return sum(best) * rows / at_once


def square_rate(repetitions: int = 5) -> dict[str, float]:
    """GFLOP/s of a square float32 product, by library: what the machine can do with all its threads."""
    forward = products_of(SQUARE, SQUARE, SQUARE)[0]
    return {name: round(2e-9 * SQUARE**3 / t.low, 1) for name, t in race(forward, repetitions).items()}


def provenance(**more: Any) -> dict[str, Any]:
    """Hardware and versions, and how busy the machine was."""
    names = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    flags = next((line for line in _lines("/proc/cpuinfo") if line.startswith("flags")), "").split()
    family = {
        key: next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith(key)), "")
        for key in ("cpu family", "model\t")
    }
    return {
        "cpu": names[0] if names else platform.processor(),
        "family": family["cpu family"],
        "model": family["model\t"],
        "instructions": [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags],
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "clock": CLOCK["now"].__name__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "gc_collect_ms": round(1e3 * race({"gc": gc.collect}, 3)["gc"].median, 1),  # within A's times
        "load_average": [round(load, 2) for load in os.getloadavg()],
        **more,
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


# --- memory ---------------------------------------------------------------------------------------------------------
def peak_mib(run: Callable[[], object], kept_bytes: int = 0) -> float:
    """Largest resident memory while `run` is under way, above what there was, without `kept_bytes` that it leaves."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # what was freed before would be used again unseen
        trim(0)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # forgets the peak so far
    run()
    return max(0.0, (_status("VmHWM") - before - kept_bytes) / MIB)


def _status(key: str) -> int:
    line = next(line for line in _lines("/proc/self/status") if line.startswith(key))
    return int(line.split()[1]) * 1024


def elsewhere(script: str, *arguments: str, threads: int | None = None) -> Any:
    """The JSON that a fresh Python process prints as its last line."""
    return finish(start(script, *arguments, threads=threads))


def start(script: str, *arguments: str, threads: int | None = None, stdin: int | None = None) -> subprocess.Popen[str]:
    """A fresh process of a script of this folder."""
    count = str(threads or torch.get_num_threads())
    environment = os.environ | {"OMP_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count, "MKL_NUM_THREADS": count}
    command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True, env=environment)


def finish(process: subprocess.Popen[str]) -> Any:
    """Wait for it and read what it says."""
    out, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{process.args}: exit code {process.returncode}")
    return json.loads(out.strip().splitlines()[-1])


class Served:
    """A timer in a process of its own, alive between its turns: a script that runs once per line it reads (`serve`)."""

    def __init__(self, script: str, *arguments: str) -> None:
        self._process = start(script, *arguments, stdin=subprocess.PIPE)

    def __call__(self) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it ended before its turn: said below
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        told = self._process.stdout.readline()
        if not told:
            raise RuntimeError(f"{self._process.args}: exit code {self._process.wait()}")
        return float(told)

    def close(self) -> None:
        """Let the process end."""
        self._process.communicate()


def serve(run: Callable[[], object]) -> None:
    """The other end of `Served`: seconds of a run for every line, until there are no more."""
    for _ in sys.stdin:
        print(seconds_of(run), flush=True)
