"""Time and memory of `rank` on a synthetic output layer as large as GPT-2's: 20,000 contexts x 50,257 words.

python benchmarks/rank_large.py --head gss:c=-1.5,k=2.5  # the whole: about 5 GiB, 20 minutes on two busy cores
python benchmarks/rank_large.py --head gss:c=-1.5,k=2.5 --max-memory 2GB  # random parts that fit into 2 GB
python benchmarks/rank_large.py  # softmax: seconds

The layer is written to a temporary folder and analysed by the command line in a process of its own, so that the peak is
that of `rank` alone. One JSON object is printed, and added as a line to benchmarks/results/rank_large.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "rank_large.jsonl"
GIB = 1 << 30


def write_layer(folder: Path, contexts: int, words: int, width: int, seed: int = 0) -> None:
    """Hidden states, output weights and a bias of plausible scale: logits of spread about 3."""
    rng = np.random.default_rng(seed)
    np.save(folder / "hidden.npy", rng.standard_normal((contexts, width), dtype=np.float32))
    weight = rng.standard_normal((words, width), dtype=np.float32) * np.float32(3 / np.sqrt(width))
    np.save(folder / "weight.npy", weight)
    np.save(folder / "bias.npy", rng.standard_normal(words, dtype=np.float32))


# A process begins with the peak of the one it was started from; this one is small.
LAUNCHER = """
import json, os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)])
_, status, used = os.wait4(pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]))
"""


def measure(folder: Path, head: str, max_memory: str | None, threads: int) -> dict[str, Any]:
    """Run `rank` on the layer in a folder; what it found and what it took."""
    command = [sys.executable, "-m", "softmax_bottleneck", "rank", "--hidden", "hidden.npy", "--weight", "weight.npy"]
    command += [
        "--bias",
        "bias.npy",
        "--seconds",
        "0",
        "--head",
        head,
        "--out",
        "out",
        *(["--max-memory", max_memory] if max_memory else []),
    ]
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    settings = {"PYTHONPATH": str(ROOT / "workflow"), **dict.fromkeys(names, str(threads))}
    started = time.monotonic()
    launched = subprocess.run(
        [sys.executable, "-S", "-c", LAUNCHER, *command],
        cwd=folder,
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        check=True,
    )
    exit_code, processor_s, peak_bytes = json.loads(launched.stdout)
    if exit_code:
        raise SystemExit(f"rank ended with exit code {exit_code}")
    found = json.loads((folder / "out" / "rank.json").read_text(encoding="utf-8"))
    return {
        **{key: found[key] for key in ("status", "contexts", "words", "width", "bound", "sample")},
        "head": head,
        "rank_press": found["metrics"]["rank_press"],
        "wall_s": round(time.monotonic() - started, 1),
        "processor_s": round(processor_s, 1),
        "peak_gib": round(peak_bytes / GIB, 2),
        "planned_gib": round(found["memory_estimate_bytes"] / GIB, 2),
        "threads": threads,
    }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure once, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--head", default="softmax")
    parser.add_argument("--contexts", type=int, default=20_000)
    parser.add_argument("--words", type=int, default=50_257)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--max-memory")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        write_layer(Path(name), asked.contexts, asked.words, asked.width)
        found = measure(Path(name), asked.head, asked.max_memory, asked.threads)
    asked.results.parent.mkdir(parents=True, exist_ok=True)
    with asked.results.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(found) + "\n")
    print(json.dumps(found, indent=2))
    return found


if __name__ == "__main__":
    main()
