"""The report of a whole reproduction, 350 runs: small enough to mail, quick to make."""

from __future__ import annotations

import resource
from pathlib import Path

import fake_results as fake
from softmax_bottleneck.store import artefacts
from test_report import build_without_torch

RUNS = 350
BYTES = 5_000_000
SECONDS = 60  # of processor time: what else the machine does must not matter


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_report_of_350_runs_is_small_and_made_within_a_minute(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(artefacts.os, "fsync", lambda descriptor: None)
    study = fake.load(tmp_path, fake.paper_text(str(list(range(1001, 1015))), experiments=()))
    assert len(study.needed) >= RUNS
    for run in study.needed:
        fake.write_run(run)
        fake.write_topk(run)
    fake.write_synthetic(study)
    before = processor_seconds()
    build_without_torch(tmp_path)
    page = tmp_path / "results" / study.name / "report" / "index.html"
    print(f"{len(study.needed)} runs: {page.stat().st_size:,} bytes, {processor_seconds() - before:.0f} s")
    assert page.stat().st_size < BYTES
    assert processor_seconds() - before < SECONDS
