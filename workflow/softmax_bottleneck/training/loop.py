"""The training of a run as a resumable job, which writes epochs, weights and record; `Trainer` has the mathematics."""

import json
import statistics
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

import safetensors.torch
import torch

from softmax_bottleneck.corpora.corpus import Corpus
from softmax_bottleneck.jobs.devices import choose_device
from softmax_bottleneck.jobs.numerics import numerics
from softmax_bottleneck.jobs.resumable import DEFAULTS, Job, Options, Outcome, Session, Work, run_to_end
from softmax_bottleneck.store import artefacts, errors
from softmax_bottleneck.study import Run, Schedule
from softmax_bottleneck.training import model as models
from softmax_bottleneck.training.optim import ASGD
from softmax_bottleneck.training.repeat import ACCURACIES
from softmax_bottleneck.training.run_record import DONE_FILE, EPOCHS_FILE, MODEL_FILE, RUN_FILE
from softmax_bottleneck.training.trained import snapshot_file, snapshots
from softmax_bottleneck.training.trainer import DivergedError, Trainer, perplexity

SNAPSHOTS = 7  # snapshots along training, if requested; the end of plain SGD is stored too


def train_run(
    run: Run,
    corpus: Corpus,
    folder: Path,
    options: Options = DEFAULTS,
    *,
    keeps_snapshots: bool = False,
    make: Callable[[Run, Corpus, torch.device], Trainer] = Trainer,
    parents: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Train a run to its end in `folder`; return the content of done.json (see `Training.outcome`).

    If the run is finished already, the content of its done.json is returned without training. A run that diverges ends
    with the status "diverged", without an error.

    Args:
        run: the run; its settings are stored in run.json.
        corpus: token ids of the run's corpus, whose hash is `run.data_identity`.
        folder: folder of the run's files, created if missing; a lease admits one process at a time.
        options: time limit, progress output and restart, see `Options`.
        keeps_snapshots: True to store weights in the subfolder `snapshots` along training: after at most seven epochs,
            evenly spaced on a log scale from the first to the last (`snapshot_epochs`), and when averaging starts.
        make: function that creates the trainer from (run, corpus, device); for finetuning it makes a `Finetuner`.
        parents: {name: sha256} of the inputs besides the corpus, for the provenance.

    Raises:
        UserError: the run's device is not available; the text is too short; the GPU's memory is too small; all resume
            states in `folder` are damaged; or a file there belongs to another run.
        DataError: done.json of the finished run is damaged, or states another hash than that of the weights.
        StoppedError: a signal or the time limit stopped training; the state is saved.
        BusyError, MemoryExhaustedError, OSError: another process trains the run, memory ran out, or writing failed.
    """
    device = choose_device(run.device, options.say)

    def begin() -> Work:
        artefacts.write_json(folder / RUN_FILE, run.to_json())
        return Training(make(run, corpus, device), folder, keeps_snapshots, parents)

    def is_whole(record: Mapping[str, Any]) -> bool:
        path = folder / MODEL_FILE
        if (artefacts.sha256_file(path) if path.exists() else None) != record["model_sha256"]:
            fix = "restore the file, or train the run again with --restart"
            raise errors.DataError(f"{path}: these are not the weights that {DONE_FILE} speaks of; {fix}")
        return True

    identity = {**run.settings, "seed": run.seed, "code": run.code, "vocabulary_size": corpus.vocabulary_size}
    files = [*(folder / name for name in (MODEL_FILE, EPOCHS_FILE, RUN_FILE)), *snapshots(folder)]
    job = Job(name=f"{run.model}/{run.seed}", folder=folder, result=DONE_FILE, ids={"run_id": run.run_id},
              identity=_flat(identity), device=device, numerics=numerics(run, device),
              files=files, is_whole=is_whole)  # fmt: skip
    return run_to_end(job, begin, options)


def snapshot_epochs(schedule: Schedule) -> frozenset[int]:
    """Return the epochs of snapshots: the first, the last, and epochs evenly spaced on a log scale between them.

    There are at most SNAPSHOTS (seven) epochs, and fewer if the schedule has few epochs.
    """
    powers = [index / (SNAPSHOTS - 1) for index in range(SNAPSHOTS)]
    return frozenset(round(schedule.epochs**power) for power in powers)


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one flat mapping with dotted keys, such as `schedule.learning_rate`."""
    flat: dict[str, Any] = {}
    for key, child in value.items():
        flat |= _flat(child, f"{prefix}{key}.") if isinstance(child, dict) else {f"{prefix}{key}": child}
    return flat


class Training(Work):
    """The training of a run as resumable work.

    In the words of `Work`, a step is an update or the validation at the end of an epoch, and a part is an epoch.

    Args:
        trainer: the training in progress.
        folder: the run's folder.
        keeps_snapshots: True to store weights in the subfolder `snapshots` after some epochs (`snapshot_epochs`).
        parents: {name: sha256} of the inputs besides the corpus.
    """

    def __init__(self, trainer: Trainer, folder: Path, keeps_snapshots: bool, parents: Mapping[str, str]) -> None:
        self.trainer, self.folder, self.keeps_snapshots, self.parents = trainer, folder, keeps_snapshots, parents
        self.epoch_began_s = 0.0  # wall time of all sessions at the start of the epoch
        self.diverged = ""  # the reason, once the run has diverged

    @property
    def finished(self) -> bool:
        """True if all epochs are done, finetuning has ended early (`Finetuner.finished`), or the run has diverged."""
        return bool(self.diverged) or self.trainer.finished

    @property
    def where(self) -> str:
        """The current position, such as `epoch 2, update 11`; updates are counted from the start of training."""
        return f"epoch {self.trainer.place.epoch}, update {self.trainer.place.updates}"

    @property
    def next_step(self) -> str:
        """The kind of the next step: "update" or "validation"."""
        return "update" if self.trainer.place.chunk < len(self.trainer.chunks) else "validation"

    def step(self, session: Session) -> bool:
        """Do one update, or the validation that ends an epoch; return True if the epoch has ended.

        If the run diverges, the reason is stored in `self.diverged` and False is returned. `session` provides the wall
        time. Its method `tick` is called after every chunk of the validation text, to keep the lease.
        """
        try:
            if self.next_step == "update":
                self.trainer.update()
                return False
            self.trainer.end_epoch(session.wall_s() - self.epoch_began_s, session.tick)
        except DivergedError as error:
            self.diverged = f"{error} ({self.where})"
            return False
        except (RuntimeError, IndexError):  # a lookup table of a piecewise function fails on NaN
            if all(bool(parameter.isfinite().all()) for parameter in self.trainer.model.parameters()):
                raise
            self.diverged = f"weights not finite ({self.where})"
            return False
        self.epoch_began_s = session.wall_s()
        return True

    def keep(self) -> None:
        """Write the epoch log and, if snapshots are requested and due, the weights of the epoch that has just ended.

        Snapshots are due after at most seven epochs, evenly spaced on a log scale from the first to the last
        (`snapshot_epochs`), and after the last epoch before averaging starts.
        """
        self._write_log()
        row, trainer = self.trainer.rows[-1], self.trainer
        if self.keeps_snapshots and row["epoch"] in {*snapshot_epochs(trainer.schedule), trainer.switch_epoch}:
            optimiser = trainer.optimiser  # at the switch it is new and has no averages
            averaged = optimiser.swapped() if row["phase"] == "asgd" and isinstance(optimiser, ASGD) else nullcontext()
            with averaged:
                data = _stored(models.weights(trainer.model))
            artefacts.write_bytes(snapshot_file(self.folder, row["epoch"]), data)

    def _write_log(self) -> str:
        lines = [json.dumps(row, sort_keys=True) + "\n" for row in self.trainer.rows]
        return artefacts.write_text(self.folder / EPOCHS_FILE, "".join(lines))

    def state(self) -> dict[str, Any]:
        """Return the state of training, for resuming."""
        return {"trainer": self.trainer.state(), "epoch_began_s": self.epoch_began_s, "diverged": self.diverged}

    def load(self, state: dict[str, Any]) -> None:
        """Restore the state that `state` returned."""
        self.trainer.load(state["trainer"])
        self.epoch_began_s, self.diverged = state["epoch_began_s"], state["diverged"]

    def progress(self, wall_s: float) -> tuple[float, str]:
        """Return the finished share of all epochs (0 to 1), and a line with epoch, perplexities and speed.

        `wall_s` is the wall time of training so far, in seconds.
        """
        trainer, place, epochs = self.trainer, self.trainer.place, self.trainer.schedule.epochs
        words = f"epoch {place.epoch}/{epochs}  train ppl {perplexity(trainer.tally.mean()):.1f}"
        if not place.chunk:  # an epoch has just ended
            words = f"epoch {place.epoch - 1}/{epochs}"
        if trainer.rows and trainer.best:
            best_ppl = perplexity(trainer.best.valid_loss)
            words += f"  valid ppl {trainer.rows[-1]['valid_ppl']:.1f} (best {best_ppl:.1f})"
        tokens = place.updates * len(trainer.train_LB) * trainer.schedule.batch_size / len(trainer.chunks)
        speed = f"{tokens / wall_s:,.0f} tok/s".replace(",", " ")
        speed += f"  without CUDA graphs ({trainer.graphs_refused})" if trainer.graphs_refused else ""
        return (place.epoch - 1 + place.chunk / len(trainer.chunks)) / epochs, f"{words}  {speed}"

    def outcome(self, session: Session) -> Outcome:
        """Write the epoch log and the weights to be tested; return (record, parents, extras).

        Returns:
            record: the content of done.json. The keys are `status` (`ok` or `diverged`), `reason` (of divergence),
                `run` (as in run.json), `parameters` (their number), `epochs` (finished), `best_epoch` (epoch of the
                stored weights), `best_valid_loss_nats` and `train_ppl` (of this epoch), `switch_epoch` (after which
                averaging started), `steps` (updates), `model_sha256` (hash of the weights' file) and `timing` (`wall_s`
                and the median `seconds_per_epoch`, both in seconds); on repeated tokens also the ACCURACIES. Values
                that do not exist are None. Only `timing` depends on interruptions.
            parents: {name: hash} of the corpus, the other inputs and the epoch log.
            extras: for the provenance: `deterministic` (true or false) and `graphs` (true or false, or the reason why
                CUDA graphs could not be used).
        """
        trainer, run, best = self.trainer, self.trainer.run, self.trainer.best
        parents = {"corpus": run.data_identity, **self.parents}
        if trainer.rows:
            parents[EPOCHS_FILE] = self._write_log()
        row = next((row for row in trainer.rows if best and row["epoch"] == best.epoch), None)
        facts = {
            "status": "diverged" if self.diverged else "ok",
            "reason": self.diverged or None,
            "run": run.to_json(),
            "parameters": models.count_parameters(trainer.model),
            "epochs": len(trainer.rows),
            "best_epoch": best.epoch if best else None,
            "best_valid_loss_nats": best.valid_loss if best else None,
            "train_ppl": row["train_ppl"] if row else None,
            "switch_epoch": trainer.switch_epoch,
            "steps": trainer.place.updates,
            **{name: trainer.rows[-1][name] for name in ACCURACIES if trainer.rows and name in trainer.rows[-1]},
            "model_sha256": artefacts.write_bytes(self.folder / MODEL_FILE, _stored(best.weights)) if best else None,
            "timing": {
                "wall_s": round(session.wall_s(), 3),
                "seconds_per_epoch": statistics.median(row["wall_s"] for row in trainer.rows) if trainer.rows else None,
            },
        }
        graphs = trainer.graphs_refused or trainer.replayed is not None
        return facts, parents, {"deterministic": run.deterministic, "graphs": graphs}


def _stored(weights: dict[str, torch.Tensor]) -> bytes:
    return safetensors.torch.save({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()})
