"""The models that training leaves in a run's folder: the best one, and those kept along the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from softmax_bottleneck.jobs.devices import choose_device
from softmax_bottleneck.jobs.numerics import numerics
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.study import Run
from softmax_bottleneck.training import model as models
from softmax_bottleneck.training.run_record import EPOCHS_FILE, MODEL_FILE, RUN_FILE, run_and_record

SNAPSHOT_FOLDER = "snapshots"


@contextmanager
def loaded(run: Run, folder: Path) -> Iterator[models.LanguageModel]:
    """The best weights of a run on its device, with its threads and determinism while inside."""
    device = choose_device(run.device)
    with numerics(run, device):
        yield load_model(folder, device)


def load_model(folder: Path, device: torch.device | str = "cpu") -> models.LanguageModel:
    """The best weights of a finished run, in evaluation mode (DataError: missing, damaged)."""
    tensors = load_weights(folder)
    model = models.build(Run.from_json(artefacts.read_json(folder / RUN_FILE)), len(tensors[models.DECODER]), device)
    models.load_weights(model, tensors)
    return model.eval()


def load_weights(folder: Path, name: str = MODEL_FILE) -> dict[str, torch.Tensor]:
    """Weights of a finished run as they are stored, the best ones or a snapshot (DataError: missing, damaged)."""
    return safetensors.torch.load(artefacts.read_bytes(folder / name))


def snapshot_file(folder: Path, epoch: int) -> Path:
    """Where the weights of an epoch are kept."""
    return folder / SNAPSHOT_FOLDER / f"epoch-{epoch:05d}.safetensors"


def snapshots(folder: Path) -> list[Path]:
    """Weights that were kept along training, in the order of epochs."""
    return sorted((folder / SNAPSHOT_FOLDER).glob("epoch-*.safetensors"))


def models_along_training(
    folder: Path, device: torch.device | str = "cpu"
) -> Iterator[tuple[dict[str, Any], models.LanguageModel]]:
    """The model of a finished run as it was drawn, at the epochs kept and at its best one, in evaluation mode.

    Each comes with its line of the epoch log (of the untrained one: epoch 0, phase "untrained"). It is the same model
    with other weights every time. DataError where a file is missing or damaged.
    """
    run, record = run_and_record(folder)
    kept = {int(path.stem[6:]): path.relative_to(folder).as_posix() for path in snapshots(folder)}
    files = {record["best_epoch"]: MODEL_FILE} | kept
    model = models.build(run, len(load_weights(folder)[models.DECODER]), device).eval()
    yield {"epoch": 0, "phase": "untrained"}, model
    for row in artefacts.read_lines(folder / EPOCHS_FILE):
        if row["epoch"] in files:
            models.load_weights(model, load_weights(folder, files[row["epoch"]]))
            yield row, model
