"""A run in its folder: trained to its end across kills, signals and time limits, exact to the bit.

One process at a time works on a folder (`lease`). It saves its state at the end of epochs and every few minutes, stops
at a signal with its state saved, and never throws away work that it cannot account for.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

import safetensors.torch
import torch

from softmax_bottleneck.corpora.corpus import Corpus
from softmax_bottleneck.jobs import out_of_memory as memory
from softmax_bottleneck.jobs import processes
from softmax_bottleneck.jobs.checkpoint import NAMES as RESUME_NAMES
from softmax_bottleneck.jobs.checkpoint import Checkpointer
from softmax_bottleneck.jobs.interrupt import Stop, StoppedError, signals_to
from softmax_bottleneck.jobs.numerics import numerics
from softmax_bottleneck.jobs.run_lease import Lease
from softmax_bottleneck.store import artefacts, provenance
from softmax_bottleneck.store.errors import DataError, UserError
from softmax_bottleneck.store.progress import Progress
from softmax_bottleneck.study import Run, Schedule
from softmax_bottleneck.training import model as models
from softmax_bottleneck.training.optim import ASGD
from softmax_bottleneck.training.trainer import DivergedError, Trainer, perplexity

RUN_FILE, EPOCHS_FILE, MODEL_FILE, DONE_FILE = "run.json", "epochs.jsonl", "model.safetensors", "done.json"
OUTCOME_FILE = "outcome.json"  # same content as done.json; the workflow engine may delete done.json, never this one
SAVE_INTERVAL_S = 300.0
SAVE_SHARE = 0.05  # of the time at most goes into saving when epochs are short
TICK_S = 5.0  # between signs of life (lease, progress)
SNAPSHOT_FOLDER = "snapshots"
SNAPSHOTS = 7  # of the weights along training, where they are asked for; the end of plain SGD is kept besides


def snapshot_epochs(schedule: Schedule) -> frozenset[int]:
    """Epochs whose weights tell how training goes: the first and the last, and evenly on a log scale between them."""
    powers = [index / (SNAPSHOTS - 1) for index in range(SNAPSHOTS)]
    return frozenset(round(schedule.epochs**power) for power in powers)


def snapshot_file(folder: Path, epoch: int) -> Path:
    """Where the weights of an epoch are kept."""
    return folder / SNAPSHOT_FOLDER / f"epoch-{epoch:05d}.safetensors"


# --- a run in its folder --------------------------------------------------------------------------------------------
class Session:
    """One process working on a run: saves, stops when asked, tells how it goes."""

    def __init__(
        self,
        trainer: Trainer,
        folder: Path,
        lease: Lease,
        stop: Stop,
        show: Callable[[Progress], None] | None,
        save_interval_s: float,
        snapshots: bool,
    ) -> None:
        self.trainer, self.folder, self.lease, self.stop, self.show = trainer, folder, lease, stop, show
        self.save_interval_s, self.snapshots = save_interval_s, snapshots
        self.checkpointer = Checkpointer(folder, identity(trainer.run, trainer.vocabulary_size))
        self.history: list[dict[str, Any]] = []  # one entry per process that worked on this run
        self.before_s = 0.0  # wall time of earlier sessions
        self.epoch_before_s = 0.0  # of these, what was spent on the epoch in progress
        self.started = self.epoch_started = self.saved = self.ticked = self.asked = time.monotonic()
        self.update_s = 0.0  # longest time so far between two moments at which the state could be saved
        self.validation_s = save_interval_s / 2  # as long as nothing is known
        self.first_update = 0

    def resume(self) -> None:
        """Go back to the newest sound state, if there is one, and bring the epoch log in line with it."""
        state = self.checkpointer.load()
        if state is not None:
            self.trainer.load(state["trainer"])
            self.history = list(state["history"])
            self.before_s, self.epoch_before_s = state["wall_s"], state["epoch_wall_s"]
        self.first_update = self.trainer.place.updates
        machine = hardware(self.trainer.run, self.trainer.device)
        self.history.append({"from_update": self.first_update, **machine, **processes.batch_job()})
        log = self.folder / EPOCHS_FILE
        for path in (artefacts.sidecar(log), log):
            path.unlink(missing_ok=True)
        for row in self.trainer.rows:
            self._log(row)

    def _log(self, row: dict[str, Any]) -> None:
        artefacts.append_line(self.folder / EPOCHS_FILE, json.dumps(row, sort_keys=True))

    def work(self) -> str | None:
        """Train to the end; why it diverged, or None.

        Raises:
            StoppedError: asked to stop; the state is saved.
            BusyError: another process owns the run.
        """
        trainer = self.trainer
        try:
            while not trainer.finished:
                while trainer.place.chunk < len(trainer.chunks):
                    trainer.update()
                    self._between_updates()
                self._end_epoch()
        except DivergedError as error:
            return f"{error} (epoch {trainer.place.epoch}, update {trainer.place.updates})"
        except (MemoryError, RuntimeError, IndexError) as error:
            told = memory.told(error, self.folder)
            if told is not None:
                raise told from None
            if self._finite():
                raise
            return f"weights not finite (epoch {trainer.place.epoch}, update {trainer.place.updates})"
        return None

    def _finite(self) -> bool:
        """Whether all weights are numbers: a function that looks itself up in a table fails where one is not."""
        return all(bool(parameter.isfinite().all()) for parameter in self.trainer.model.parameters())

    def _end_epoch(self) -> None:
        if self._due(self.validation_s):
            self.save()
        best, began = self.trainer.best, time.monotonic()
        row = self.trainer.end_epoch(self._epoch_s(), self._tick)
        self.asked = time.monotonic()
        self.validation_s = self.asked - began
        if row["valid_loss_nats"] < 0:
            self.trainer.best = best  # what is impossible is no better
            raise DivergedError(f"invalid: a validation perplexity of {row['valid_ppl']:.6g} is below one")
        self._log(row)
        if self.snapshots:
            self._keep_weights(row)
        self.epoch_started, self.epoch_before_s = time.monotonic(), 0.0
        self._report(row)
        if (
            self._due(self.update_s)
            or self.saved + self.checkpointer.write_s / SAVE_SHARE <= self.asked
            or self.trainer.finished
        ):
            self.save()
        self._leave_if_asked()

    def _keep_weights(self, row: dict[str, Any]) -> None:
        """Write the weights that were validated in this row, if its epoch is one to keep.

        Before the resume state of the epoch's end: whoever resumes from there finds them, and whoever resumes from
        earlier writes the same bits again.
        """
        trainer = self.trainer
        if row["epoch"] not in {*snapshot_epochs(trainer.schedule), trainer.switch_epoch}:
            return
        self.lease.check()
        optimiser = trainer.optimiser
        averaging = row["phase"] == "asgd"  # false at the switch, when the optimiser is new and has no averages
        with optimiser.swapped() if averaging and isinstance(optimiser, ASGD) else nullcontext():
            data = _stored(models.weights(trainer.model))
        artefacts.write_bytes(snapshot_file(self.folder, row["epoch"]), data)

    def _epoch_s(self) -> float:
        return self.epoch_before_s + time.monotonic() - self.epoch_started

    def _between_updates(self) -> None:
        self._tick()
        now = time.monotonic()
        self.update_s = max(self.update_s, min(now - self.asked, self.save_interval_s / 2))
        self.asked = now
        self.checkpointer.check()
        if self._due(self.update_s):
            self.save()
        self._leave_if_asked()

    def _due(self, next_s: float) -> bool:
        """Whether the state would be older than allowed if it were not saved now, and the next moment is so far."""
        return time.monotonic() - self.saved + next_s >= self.save_interval_s

    def _tick(self) -> None:
        """Every few seconds a sign of life; cheap enough to be called at every update."""
        now = time.monotonic()
        if now - self.ticked >= TICK_S:
            self.ticked = now
            self.lease.beat()
            self._report(None)

    def _leave_if_asked(self) -> None:
        reason = self.stop.reason()
        if reason is not None and not self.trainer.finished:
            self.save()
            self.checkpointer.wait()
            why, exit_code = reason
            place = self.trainer.place
            raise StoppedError(f"{self.folder}: {why}; saved at epoch {place.epoch}, update {place.updates}: "
                              "run the same step again to go on", exit_code)  # fmt: skip

    def save(self) -> None:
        """Begin to write the resume state; training goes on (BusyError when the lease was lost: nothing is written)."""
        began = time.monotonic()
        self.checkpointer.wait()
        self.lease.check()
        self.checkpointer.begin({
            "trainer": self.trainer.state(),
            "history": self.history,
            "wall_s": self.before_s + began - self.started,
            "epoch_wall_s": self._epoch_s(),
        })  # fmt: skip
        self.saved = time.monotonic()

    def _report(self, row: dict[str, Any] | None) -> None:
        """Show progress; `row` at the end of an epoch."""
        if self.show is None:
            return
        trainer, run = self.trainer, self.trainer.run
        done = trainer.place.updates - self.first_update
        elapsed = time.monotonic() - self.started
        started_epochs = trainer.place.epoch - 1 + trainer.place.chunk / len(trainer.chunks)
        share = started_epochs / trainer.schedule.epochs
        tokens = len(trainer.train_LB) * trainer.schedule.batch_size / len(trainer.chunks)
        last = row or (trainer.rows[-1] if trainer.rows else None)
        self.show(Progress(
            label=f"{run.model}/{run.seed}",
            epoch=row["epoch"] if row else trainer.place.epoch,
            epochs=trainer.schedule.epochs,
            train_ppl=row["train_ppl"] if row else perplexity(trainer.tally.mean()),
            valid_ppl=last["valid_ppl"] if last else None,
            best_ppl=perplexity(trainer.best.valid_loss) if trainer.best else None,
            tokens_per_s=done * tokens / elapsed,
            eta_s=(self.before_s + elapsed) * (1 - share) / share,  # at least one update is done by now
            epoch_done=row is not None,
        ))  # fmt: skip

    def finish(self, reason: str | None, restarted: bool, parents: Mapping[str, str]) -> dict[str, Any]:
        """Write the best weights, then what came out, then done.json; only then the resume states go."""
        self.checkpointer.wait()
        self.lease.check()
        trainer, wall_s = self.trainer, self.before_s + time.monotonic() - self.started
        model_sha256 = None
        if trainer.best is not None:
            model_sha256 = artefacts.write_bytes(self.folder / MODEL_FILE, _stored(trainer.best.weights))
        outcome = outcome_of(trainer, reason, model_sha256)
        epoch_s = [row["wall_s"] for row in trainer.rows]
        outcome["timing"] = {
            "wall_s": round(wall_s, 3),
            "seconds_per_epoch": statistics.median(epoch_s) if epoch_s else None,
        }
        outcome["provenance"] = provenance.block(
            {"corpus": trainer.run.data_identity, **parents, **self._seal_log()},
            run_id=trainer.run.run_id,
            deterministic=trainer.run.deterministic,
            sessions=self.history,
            interruptions=len(self.history) - 1,
            mixed_hardware=len({(entry["device"], entry["threads"]) for entry in self.history}) > 1,
            restarted=restarted,
            matmul_backends=vars(trainer.model.head.matmul_backends),
        )
        artefacts.write_json(self.folder / OUTCOME_FILE, outcome)
        artefacts.write_json(self.folder / DONE_FILE, outcome)
        self.checkpointer.clear()
        return outcome

    def _seal_log(self) -> dict[str, str]:
        """Nothing more is appended to the epoch log: its hash, beside it and for the record."""
        log = self.folder / EPOCHS_FILE
        return {EPOCHS_FILE: artefacts.seal(log)} if log.exists() else {}


def _stored(weights: dict[str, torch.Tensor]) -> bytes:
    return safetensors.torch.save({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()})


def outcome_of(trainer: Trainer, reason: str | None, model_sha256: str | None) -> dict[str, Any]:
    """The results of a run: equal for equal settings, however often it was interrupted."""
    best = trainer.best
    row = next((row for row in trainer.rows if best and row["epoch"] == best.epoch), None)
    return {
        "status": "ok" if reason is None else "diverged",
        "reason": reason,
        "run": trainer.run.to_json(),
        "parameters": models.count_parameters(trainer.model),
        "epochs": len(trainer.rows),
        "best_epoch": best.epoch if best else None,
        "best_valid_loss_nats": best.valid_loss if best else None,
        "train_ppl": row["train_ppl"] if row else None,
        "switch_epoch": trainer.switch_epoch,
        "steps": trainer.place.updates,
        "model_sha256": model_sha256,
    }


def identity(run: Run, vocabulary_size: int) -> dict[str, str | int | float | bool | None]:
    """What must be equal for a resume state to belong to this run, flat, so that a difference has a name."""
    facts = {**run.settings, "seed": run.seed, "code": run.code, "vocabulary_size": vocabulary_size}
    return _flat(facts) | {"torch": torch.__version__.split(".")[0]}


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, child in value.items():
        found |= _flat(child, f"{prefix}{key}.") if isinstance(child, dict) else {f"{prefix}{key}": child}
    return found


def hardware(run: Run, device: torch.device) -> dict[str, Any]:
    """What decides the bits of a session, apart from the versions."""
    if device.type == "cuda":
        return {"device": torch.cuda.get_device_name(device), "threads": run.threads}
    return {"device": f"cpu {torch.backends.cpu.get_cpu_capability()}", "threads": run.threads}


# --- the step -------------------------------------------------------------------------------------------------------
def train(
    run: Run,
    corpus: Corpus,
    folder: Path,
    *,
    progress: Callable[[Progress], None] | None = None,
    max_wall_s: float | None = None,
    wait_s: float = 0.0,
    restart: bool = False,
    save_interval_s: float = SAVE_INTERVAL_S,
    snapshots: bool = False,
    make: Callable[[Run, Corpus, torch.device], Trainer] = Trainer,
    parents: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Train a run to its end in `folder`, from its resume state if there is one; the content of done.json.

    A finished run is not trained again: its done.json is written anew from outcome.json if need be.

    Args:
        run: what to train; its settings are stored in run.json.
        corpus: token ids; `run.data_identity` says which.
        folder: owned by one process at a time; made when missing.
        progress: called at the end of every epoch and every few seconds within.
        max_wall_s: stop and save after this many seconds.
        wait_s: longest time to wait for another process that owns the run.
        restart: drop whatever the folder holds and begin anew (recorded in the provenance).
        save_interval_s: longest time between resume states; also saved at the end of an epoch, unless epochs are so
            short that saving would take a noticeable share of the time.
        snapshots: keep the weights of `snapshot_epochs` and of the end of plain SGD in `snapshots/`.
        make: the training itself; another kind of `Trainer` where a run is finetuned.
        parents: hashes of what it starts from besides the corpus, for the provenance.

    Raises:
        UserError: no such device, too little text or GPU memory, resume states damaged or of another run.
        MemoryExhaustedError: too little memory of the machine.
        BusyError: another process owns the run.
        StoppedError: a signal, the time budget, or the workflow that started it is gone; the state is saved
            (exit_code 143, 130 or 75).
    """
    stop = Stop(max_wall_s, workflow=processes.workflow())
    device = choose_device(run.device)
    with Lease(folder, wait_s) as lease, signals_to(stop), numerics(run, device):
        for leftover in folder.glob(".*.tmp"):
            leftover.unlink(missing_ok=True)
        if restart:
            _clear(folder)
        done = _finished(run, folder)
        if done is not None:
            return done
        artefacts.write_json(folder / RUN_FILE, run.to_json())
        session = Session(make(run, corpus, device), folder, lease, stop, progress, save_interval_s, snapshots)
        with session.checkpointer:
            session.resume()
            reason = session.work()
            return session.finish(reason, restart, parents)


def _finished(run: Run, folder: Path) -> dict[str, Any] | None:
    """What a finished run left, done.json written anew when it is missing or damaged; None when there is work to do.

    Raises:
        UserError: the folder holds another run's outcome, or one that no longer matches its weights.
    """
    paths = [path for path in (folder / OUTCOME_FILE, folder / DONE_FILE) if path.exists()]
    sound = [path for path in paths if artefacts.is_sound(path)]
    if not sound:
        if paths and not any((folder / name).exists() for name in RESUME_NAMES):
            raise DataError(f"{paths[0]}: the record of a finished run is damaged; restore it from a backup, "
                            "or train the run again with --restart")  # fmt: skip
        return None
    done: dict[str, Any] = artefacts.read_json(sound[0])
    if done["run"]["run_id"] != run.run_id:
        raise UserError(f"{sound[0]}: belongs to another run: run_id is {done['run']['run_id']!r} there and "
                        f"{run.run_id!r} here; move the folder away, or train this run with --restart")  # fmt: skip
    if _model_sha256(folder) != done["model_sha256"]:
        raise DataError(f"{folder / MODEL_FILE}: these are not the weights that {sound[0].name} speaks of; restore the "
                        "file, or train the run again with --restart")  # fmt: skip
    for path in (folder / OUTCOME_FILE, folder / DONE_FILE):
        if path not in sound:
            artefacts.write_json(path, done)
    return done


def _model_sha256(folder: Path) -> str | None:
    """Hash of the stored weights; None where there are none, as after a run that diverged at once."""
    path = folder / MODEL_FILE
    return artefacts.sha256_file(path) if path.exists() else None


def _clear(folder: Path) -> None:
    named = [folder / name for name in (DONE_FILE, OUTCOME_FILE, MODEL_FILE, EPOCHS_FILE, RUN_FILE, *RESUME_NAMES)]
    for path in (*named, *_snapshots(folder)):
        path.unlink(missing_ok=True)
        artefacts.sidecar(path).unlink(missing_ok=True)


def _snapshots(folder: Path) -> list[Path]:
    return sorted((folder / SNAPSHOT_FOLDER).glob("epoch-*.safetensors"))


def choose_device(name: str) -> torch.device:
    """`auto` takes a GPU when there is one (UserError: `cuda` without one is never silently the CPU)."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UserError("device: cuda was asked for, but PyTorch sees no GPU; check the driver and "
                        "CUDA_VISIBLE_DEVICES, or set device: cpu")  # fmt: skip
    return torch.device("cuda" if available and name != "cpu" else "cpu")


# --- finished runs --------------------------------------------------------------------------------------------------
def load_model(folder: Path, device: torch.device | str = "cpu") -> tuple[models.LanguageModel, Run]:
    """The best weights of a finished run, in evaluation mode, and its settings (DataError: missing, damaged)."""
    run = Run.from_json(artefacts.read_json(folder / RUN_FILE))
    tensors = load_weights(folder)
    model = models.build(run, len(tensors[models.DECODER]), device)
    models.load_weights(model, tensors)
    return model.eval(), run


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The best weights of a finished run as they are stored (DataError: missing, damaged)."""
    return safetensors.torch.load(artefacts.read_bytes(folder / MODEL_FILE))


def has_snapshots(folder: Path) -> bool:
    """Whether weights of some epochs were kept along training."""
    return bool(_snapshots(folder))


def models_along_training(
    folder: Path, device: torch.device | str = "cpu"
) -> Iterator[tuple[dict[str, Any], models.LanguageModel]]:
    """The model of a finished run as it was drawn, at the epochs kept and at its best one, in evaluation mode.

    Each comes with its line of the epoch log (of the untrained one: epoch 0, phase "untrained"). It is the same model
    with other weights every time. DataError where a file is missing or damaged.
    """
    run, done = (artefacts.read_json(folder / name) for name in (RUN_FILE, DONE_FILE))
    files = {done["best_epoch"]: folder / MODEL_FILE} | {int(path.stem[6:]): path for path in _snapshots(folder)}
    best = safetensors.torch.load(artefacts.read_bytes(folder / MODEL_FILE))
    model = models.build(Run.from_json(run), len(best[models.DECODER]), device).eval()
    yield {"epoch": 0, "phase": "untrained"}, model
    for row in artefacts.read_lines(folder / EPOCHS_FILE):
        if row["epoch"] in files:
            models.load_weights(model, safetensors.torch.load(artefacts.read_bytes(files[row["epoch"]])))
            yield row, model


def result_hash(folder: Path) -> str:
    """Hash of what a run came to: its weights, and its epochs without the times."""
    digest = hashlib.sha256(str(_model_sha256(folder)).encode())
    for row in artefacts.read_lines(folder / EPOCHS_FILE):
        digest.update(json.dumps({**row, "wall_s": None}, sort_keys=True).encode())
    return digest.hexdigest()
