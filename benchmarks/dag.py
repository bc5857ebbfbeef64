"""How long Snakemake takes to plan a study (`snakemake -n`), against the number of its runs."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SEEDS = (3, 30, 100)  # of the smallest study, which has three models
REPETITIONS = 3


def measure(quick: bool) -> list[dict[str, Any]]:
    """Seconds of a dry run and how many jobs it lists."""
    rows: list[dict[str, Any]] = []
    for seeds in SEEDS[:1] if quick else SEEDS:
        found = [dry_run(seeds) for _ in range(1 if quick else REPETITIONS)]
        rows.append({"runs": 3 * seeds, "jobs": found[0][1], "s": round(statistics.median(s for s, _ in found), 2)})
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    return rows


def dry_run(seeds: int) -> tuple[float, int]:
    """Seconds and jobs of one dry run of the smallest study with so many seeds."""
    plain = (ROOT / "tests" / "nano.yaml").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder) / "many.yaml"
        study.write_text(re.sub(r"seeds: .*", f"seeds: {list(range(1, seeds + 1))}", plain, count=1), encoding="utf-8")
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--directory", folder]
        command += ["--configfile", str(study), "--cores", "1", "--dry-run", "--quiet", "rules"]
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=True, cwd=ROOT)
        seconds = time.perf_counter() - began
    counted = re.search(r"^total\s+(\d+)", done.stdout, re.MULTILINE)
    return seconds, int(counted[1]) if counted else 0
