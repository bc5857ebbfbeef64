"""Complete published runs on a GPU, side by side: trained, measured, ranked, and written as evidence.

`gpu.py --part 2` and `--part 3` call this. Each run is trained by the package's own step in a process of its own, all
on one card, and stops itself when the time is over; what is not finished goes on in the next call of the same part.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from softmax_bottleneck import study as config
from softmax_bottleneck.jobs.cards import RUNS_VARIABLE

ROOT = Path(__file__).parents[1]
TRANSFORMERS = ("transformer", "transformer-ss", "transformer-gss", "transformer-sigmoid", "transformer-relu",
                "transformer-moc")  # fmt: skip
PARTS = {2: TRANSFORMERS, 3: ("transformer-mos", "transformer-lms-plif")}
DRY_PARTS = {2: ("softmax", "gss"), 3: ("mos",)}
MEASURED = ("measure", "spectrum")


def runs_of(part: int, dry: bool) -> tuple[Path, list[config.Run]]:
    """The study's file, and the first seed of every model of a part (dry: of the tests' smallest study)."""
    file = ROOT / ("tests/nano.yaml" if dry else "config/paper.yaml")
    wanted, dataset = (DRY_PARTS[part], "truth-nano") if dry else (PARTS[part], "ptb")
    found: dict[str, config.Run] = {}
    for run in config.load_study(file).needed:
        if run.dataset == dataset and run.model in wanted:
            found.setdefault(run.model, run)
    return file, [found[model] for model in wanted if model in found]


def step(name: str, file: Path, *words: str) -> subprocess.Popen[str]:
    """A step of the package, begun."""
    command = [sys.executable, "-m", "softmax_bottleneck", name, "--study", str(file), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Its exit code and last line."""
    output, _ = process.communicate()
    return {"exit": process.returncode, "said": (output.strip().splitlines() or [""])[-1][-300:]}


def tokens(file: Path, dataset: str, mirror: str | None) -> dict[str, Any]:
    """The corpus' tokens, from the mirror where there is one; what failed first."""
    found: dict[str, Any] = {}
    for name in ("download", "tokenise"):
        words = ["--set", f"mirror={mirror}"] if mirror else []
        found = finished(step(name, file, "--dataset", dataset, *words))
        if found["exit"]:
            break
    return found


def record(run: config.Run, folder: Path) -> dict[str, Any]:
    """What the run's own records say."""
    facts: dict[str, Any] = {}
    for name, keys in {
        "done.json": ("status", "epochs", "best_valid_loss_nats", "timing", "steps"),
        "measure.json": ("metrics",),
        "rank.json": ("metrics", "method"),
    }.items():
        path = folder / name
        if path.exists():
            content = json.loads(path.read_text(encoding="utf-8"))
            facts[name] = {key: content[key] for key in keys if key in content}
    return facts


def work(part: int, out: Path, minutes: float, mirror: str | None, dry: bool) -> dict[str, Any]:
    """Do a part, for so many minutes at most of training; its results, also in `out`/part-<n>.json."""
    file, runs = runs_of(part, dry)
    os.environ |= {RUNS_VARIABLE: str(len(runs)), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    began = time.monotonic()
    found: dict[str, Any] = {"part": part, "tokens": tokens(file, runs[0].dataset, mirror), "runs": {}}
    limit = f"{max(1, round(60 * minutes))}s"
    training = {run.path: step("train", file, "--run", run.path, "--max-wall", limit, "--diverged-ok") for run in runs}
    for run in runs:
        entry = found["runs"][run.path] = {"train": finished(training[run.path])}
        entry["trained_after_s"] = round(time.monotonic() - began, 1)
    for run in runs:
        entry = found["runs"][run.path]
        for name in MEASURED if entry["train"]["exit"] == 0 else ():
            entry[name] = finished(step(name, file, "--run", run.path))
        entry |= record(run, config.load_study(file).store.run_folder(run.path))
        if all(entry.get(name, {"exit": 1})["exit"] == 0 for name in MEASURED):
            _write_evidence(run, file, out)
    found["s"] = round(time.monotonic() - began, 1)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"part-{part}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def _write_evidence(run: config.Run, file: Path, out: Path) -> None:
    words = ["--study", str(file), "--run", run.path, "--origin", "benchmarks/gpu.py"]
    command = [sys.executable, "-m", "softmax_bottleneck", "evidence", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{run.path.replace('/', '-')}.json").write_text(done.stdout, encoding="utf-8")


def summary(found: dict[str, Any]) -> str:
    """A line a run."""
    lines = []
    for path, entry in found["runs"].items():
        epoch_s = entry.get("done.json", {}).get("timing", {}).get("seconds_per_epoch")
        rank = entry.get("rank.json", {}).get("metrics", {}).get("rank_press")
        lines.append(f"{path}  exit {entry['train']['exit']}  {epoch_s} s/epoch  Press rank {rank}")
    return "\n".join(lines)
