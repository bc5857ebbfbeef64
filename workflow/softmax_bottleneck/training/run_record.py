"""The record of a finished run, for later steps; without torch, which some of them do not need."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from softmax_bottleneck.jobs import outcome_record
from softmax_bottleneck.store import artefacts, provenance
from softmax_bottleneck.study import Run

RUN_FILE, EPOCHS_FILE, MODEL_FILE, DONE_FILE = "run.json", "epochs.jsonl", "model.safetensors", "done.json"


def run_and_record(folder: Path) -> tuple[Run, dict[str, Any]]:
    """Return the run as trained and its done.json, restored if possible (DataError: missing or damaged)."""
    outcome_record.restore(folder, DONE_FILE)
    return Run.from_json(artefacts.read_json(folder / RUN_FILE)), artefacts.read_json(folder / DONE_FILE)


def write_unusable(path: Path, record: Mapping[str, Any], parents: Mapping[str, str]) -> None:
    """Write a later step's result for a diverged run: status and reason, and no numbers."""
    facts = {key: record[key] for key in ("status", "reason")} | {"provenance": provenance.block(parents)}
    artefacts.write_json(path, facts | {"metrics": {}, "benchmarks": {}, "contexts": [], "hits": {}, "rows": []})
