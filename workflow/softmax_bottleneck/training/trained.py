"""Loading the models of a trained run: the best one, and snapshots along training.

The best model is that of the epoch with the lowest validation loss, or of the last epoch if the schedule's
`tested_weights` is `last`. If averaged SGD has begun by that epoch, the best model has the averaged weights.
"""

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
    """Yield the best model of the finished run in `folder`, for use in a `with` block.

    The settings and weights of the model are read from `folder`. `run` decides only how the block computes: the
    device, the number of threads, and whether torch must be deterministic.
    """
    device = choose_device(run.device)
    with numerics(run, device):
        yield load_model(folder, device)


def load_model(folder: Path, device: torch.device | str = "cpu") -> models.LanguageModel:
    """Return the best model of the finished run in `folder`, in evaluation mode.

    Raises:
        DataError: a file is missing or damaged.
    """
    tensors = load_weights(folder)
    model = models.build(Run.from_json(artefacts.read_json(folder / RUN_FILE)), len(tensors[models.DECODER]), device)
    models.load_weights(model, tensors)
    return model.eval()


def load_weights(folder: Path, name: str = MODEL_FILE) -> dict[str, torch.Tensor]:
    """Return {parameter: weights} from the file `name` in the folder of a finished run (default: the best model's).

    Raises:
        DataError: the file is missing or damaged.
    """
    return safetensors.torch.load(artefacts.read_bytes(folder / name))


def snapshot_file(folder: Path, epoch: int) -> Path:
    """Return the path of an epoch's snapshot in a run's folder, such as `snapshots/epoch-00003.safetensors`."""
    return folder / SNAPSHOT_FOLDER / f"epoch-{epoch:05d}.safetensors"


def snapshots(folder: Path) -> list[Path]:
    """Return the paths of the snapshots in the run's `folder`, in the order of epochs; empty if there are none."""
    return sorted((folder / SNAPSHOT_FOLDER).glob("epoch-*.safetensors"))


def models_along_training(
    folder: Path, device: torch.device | str = "cpu"
) -> Iterator[tuple[dict[str, Any], models.LanguageModel]]:
    """Yield (line, model) in the order of epochs: first the untrained model, then every snapshot and the best model.

    `line` is the epoch's line of the epoch log: a dict with `epoch`, `phase` ("sgd", or "asgd" once weights are
    averaged), losses and further keys (list in `Trainer.end_epoch`). For the untrained model, `line` is
    `{"epoch": 0, "phase": "untrained"}`. If the best epoch has a snapshot too, only one pair is yielded for both,
    because their weights are the same. All pairs share one model object in evaluation mode, whose weights change from
    pair to pair.

    Raises:
        DataError: a file is missing or damaged.
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
