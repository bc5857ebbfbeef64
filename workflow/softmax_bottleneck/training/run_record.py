"""A finished run's own record, for the steps that go on from it; without torch, which some of them do not need."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from softmax_bottleneck.jobs import outcome_record
from softmax_bottleneck.store import artefacts, provenance
from softmax_bottleneck.study import Run

RUN_FILE, EPOCHS_FILE, MODEL_FILE, DONE_FILE = "run.json", "epochs.jsonl", "model.safetensors", "done.json"


def run_and_record(folder: Path) -> tuple[Run, dict[str, Any]]:
    """The run as it was trained, and its done.json, restored if it was lost and can be (DataError otherwise)."""
    outcome_record.restore(folder, DONE_FILE)
    return Run.from_json(artefacts.read_json(folder / RUN_FILE)), artefacts.read_json(folder / DONE_FILE)


def write_unusable(path: Path, record: Mapping[str, Any], parents: Mapping[str, str]) -> None:
    """A run that diverged is a result: the steps after it say so instead of failing."""
    facts = {key: record[key] for key in ("status", "reason")} | {"provenance": provenance.block(parents)}
    artefacts.write_json(path, facts | {"metrics": {}, "benchmarks": {}, "contexts": [], "hits": {}, "rows": []})
