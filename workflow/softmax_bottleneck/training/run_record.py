"""Read run.json and done.json (the record) of a finished run, and write a step's result file for a diverged run.

The module does not import torch, so that steps without torch, such as `wordsim`, can use it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from softmax_bottleneck.jobs import outcome_record
from softmax_bottleneck.store import artefacts, provenance
from softmax_bottleneck.study import Run

RUN_FILE, EPOCHS_FILE, MODEL_FILE, DONE_FILE = "run.json", "epochs.jsonl", "model.safetensors", "done.json"


def run_and_record(folder: Path) -> tuple[Run, dict[str, Any]]:
    """Return (run, record) from the folder of a finished run: the `Run` of run.json, and the content of done.json.

    A missing or damaged done.json is first restored from the copy outcome.json if this copy is intact.

    Raises:
        DataError: run.json or done.json is missing or damaged.
    """
    outcome_record.restore(folder, DONE_FILE)
    return Run.from_json(artefacts.read_json(folder / RUN_FILE)), artefacts.read_json(folder / DONE_FILE)


def write_unusable(path: Path, record: Mapping[str, Any], parents: Mapping[str, str]) -> None:
    """Write the result file of a step that needs a trained model, for a run that has diverged.

    The file has `status` ("diverged") and `reason` (a text) from the record, the provenance, and empty results.

    Args:
        path: the result file, such as dynamic.json.
        record: the content of the diverged run's done.json.
        parents: {name: sha256} of the step's input files, for the provenance.
    """
    facts = {key: record[key] for key in ("status", "reason")} | {"provenance": provenance.block(parents)}
    artefacts.write_json(path, facts | {"metrics": {}, "benchmarks": {}, "contexts": [], "hits": {}, "rows": []})
