"""Training: SGD and then averaged SGD on chunks of random length, or SGD with a learning rate that falls on plateaus.

Averaged SGD and random chunk lengths follow Merity, Keskar and Socher 2018 (sections 2 to 5) and Parthiban et al. 2021
(section 4); `schedule.py` has learning rates and chunk lengths. A new random generator is seeded for the chunk lengths
of each epoch, and for the dropout masks of each chunk. A resumed run therefore need not repeat earlier draws. During
updates, the host waits for the device only when a block of 200 losses (`Tally`) is closed.

Shapes: L rows of a batched stream, B columns (sequences), T time steps of a chunk, D width of the hidden states.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from softmax_bottleneck.bodies.base import BodyOutput, State
from softmax_bottleneck.corpora.corpus import Corpus, batchify
from softmax_bottleneck.heads.matmul import NEED_TF32, tf32
from softmax_bottleneck.store.seeds import derive
from softmax_bottleneck.study import Run, Schedule
from softmax_bottleneck.training import model as models
from softmax_bottleneck.training import optim
from softmax_bottleneck.training.graphs import Replayed, Results, cuda_capture
from softmax_bottleneck.training.schedule import averages_from, chunk_scale, decay, plan_epoch

BLOCK = 200  # updates per block of the published train perplexity
DIVERGED_PPL = 10  # perplexity limit, as a multiple of the vocabulary size
LARGEST_EXPONENT = 700.0
# Chunks that validation reads at once, with a body that carries its state: half the time of a narrow LSTM. The loss is
# that of single chunks but for the order of a float64 sum.
VALIDATED_AT_ONCE = 8
RECORDING_DEVICES = {"cuda"}  # devices on which updates are captured and replayed (`graphs.py`)


class DivergedError(Exception):
    """The error of a diverged run: a loss or gradient is not finite, or the validation perplexity is out of range.

    The perplexity must be at least 1, and at most ten times the vocabulary size. Divergence is recorded as a result of
    the run.
    """


# --- losses ---------------------------------------------------------------------------------------------------------
def perplexity(nats: float) -> float:
    """Return exp of a loss in nats; losses above 700 count as 700, so that the result is finite."""
    return math.exp(min(nats, LARGEST_EXPONENT))


def penalties(output: BodyOutput, schedule: Schedule) -> Tensor | float:
    """Return the weighted sum of the activation penalties AR and TAR (Merity et al. 2018, section 4.6).

    AR is the mean square of the body's output after dropout. TAR is the mean squared change of the body's output before
    dropout from one time step to the next. The weights are the schedule's `activation_penalty` and `temporal_penalty`.
    The result is a scalar tensor, or the float 0.0 if no penalty applies.
    """
    penalty: Tensor | float = 0.0
    if schedule.activation_penalty:
        penalty = schedule.activation_penalty * output.dropped_TBD.square().mean()
    if schedule.temporal_penalty and len(output.raw_TBD) > 1:  # one time step has no successor
        change = torch.nn.functional.mse_loss(output.raw_TBD[1:], output.raw_TBD[:-1])
        penalty = penalty + schedule.temporal_penalty * change
    return penalty


class Tally:
    """The training loss of an epoch, computed with dropout as in the published code.

    The losses of 200 successive updates form a block; the last block of the epoch is usually shorter. The loss of the
    epoch is the unweighted mean of the mean losses of its blocks. The shorter block is left out if the planned
    end of the last chunk (`Chunk.drawn`) is one or two rows before the text's end. The only block of an epoch always
    counts. Sums stay on the device, so that only the methods `close` and `mean` wait for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.block_sum = torch.zeros((), dtype=torch.float64, device=device)
        self.norm_sum = torch.zeros_like(self.block_sum)  # only to detect gradients that are not finite
        self.updates = 0  # in the open block
        self.means: list[float] = []

    def add(self, loss: Tensor, gradient_norm: Tensor) -> None:
        """Add the loss (nats) and the gradient norm of one update to the current block; close a full block.

        Raises:
            DivergedError: a loss or a gradient of the closed block was not finite.
        """
        self.block_sum += loss
        self.norm_sum += gradient_norm
        self.updates += 1
        if self.updates == BLOCK:
            self.close()

    def close(self, keep: bool = True) -> None:
        """Store the mean loss of the current block, and start a new block. Do nothing if the block is empty.

        Args:
            keep: if false, the mean loss is discarded, unless the block is the first of the epoch.

        Raises:
            DivergedError: a loss or a gradient of the block was not finite.
        """
        if not self.updates:
            return
        total, norms = torch.stack((self.block_sum, self.norm_sum)).tolist()
        if not math.isfinite(total) or not math.isfinite(norms):
            raise DivergedError(f"{'gradient' if math.isfinite(total) else 'loss'} not finite")
        if keep or not self.means:
            self.means.append(total / self.updates)
        self.updates = 0
        self.block_sum.zero_()
        self.norm_sum.zero_()

    def mean(self) -> float:
        """Return the training loss of the epoch so far, in nats.

        This is the mean of the mean losses of all closed blocks. Before the first block is closed, it is the mean loss
        of the current block, or 0 without any update.
        """
        return statistics.fmean(self.means) if self.means else self.block_sum.item() / max(1, self.updates)


@torch.no_grad()
def evaluate(
    model: models.LanguageModel,
    ids_LB: Tensor,
    chunk: int,
    on_chunk: Callable[[], object] = lambda: None,
    divisor: Literal["length", "targets"] = "length",
) -> float:
    """Return the loss per token of a text in nats, with the model in evaluation mode.

    Each chunk starts with the body's state after the previous chunk.

    Args:
        model: the language model; it stays in evaluation mode.
        ids_LB: token ids of the text, in B sequences of L tokens, of which L - 1 are targets.
        chunk: number of rows of a chunk.
        on_chunk: function called after every chunk.
        divisor: divisor of the sum of all losses: `length` for L * B, as in the code of AWD-LSTM; or `targets` for
            (L - 1) * B, the number of targets, which gives the exact mean.
    """
    model.eval()
    rows, columns = ids_LB.shape
    state = model.initial_state(columns)
    total = torch.zeros((), dtype=torch.float64, device=ids_LB.device)
    for start in range(0, rows - 1, chunk):
        stop = min(start + chunk, rows - 1)
        output = model(ids_LB[start:stop], state)
        state = output.state
        nll_N = model.head.nll(output.head_input_TBD, ids_LB[start + 1 : stop + 1].reshape(-1))
        total += nll_N.sum(dtype=torch.float64)
        on_chunk()
    return total.item() / ((rows - (divisor == "targets")) * columns)


# --- the loop -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Place:
    """The position of a run in its training text: the epoch in progress (from 1), and what is finished.

    `chunk` counts the finished chunks of this epoch, `updates` the updates of all epochs.
    """

    epoch: int = 1
    chunk: int = 0
    updates: int = 0


@dataclass(frozen=True)
class Best:
    """The weights to be tested: their epoch, their validation loss in nats, and the tensors by name.

    The epoch is the one with the lowest validation loss so far, or the last one if the schedule's `tested_weights` is
    `last`. Weights of the ASGD phase are averaged weights.
    """

    epoch: int
    valid_loss: float
    weights: dict[str, Tensor]


class Trainer:
    """The training of a run in progress: model, optimiser, position and results.

    Args:
        run: the run.
        corpus: token ids of its corpus.
        device: the device to train on.
        data_seed: seed of chunk lengths and dropout masks; by default the run's seed.

    Attributes:
        pieces: the training text, as a list of tensors [L, B]. Their number is the schedule's `pieces`, by default one.
            Each epoch reads the next tensor; the first one follows the last.
        place: the position in the training text.
        hidden: the body's state at this position.
        tally: the training loss of the current epoch.
        rows: one line of the epoch log per finished epoch.
        best: the weights that would be tested if training ended now; None before the first validation.
        switch_epoch: the epoch after which averaging started; None if averaging has not started, or started with the
            first update (`asgd`, as in finetuning).
        replayed: the update function that replays CUDA graphs; None without CUDA graphs.
    """

    def __init__(self, run: Run, corpus: Corpus, device: torch.device, data_seed: int | None = None) -> None:
        self.run, self.schedule, self.device = run, run.schedule, device
        pieces = np.array_split(corpus.train, run.schedule.pieces)
        self.pieces = [stream(piece, run.schedule.batch_size, device) for piece in pieces]
        self.valid_LB = stream(corpus.valid, run.schedule.eval_batch_size, device)
        self.vocabulary_size = corpus.vocabulary_size
        self.model = models.build(run, corpus.vocabulary_size, device)
        self.model.head.set_precision(run.schedule.precision)
        self.data_seed = run.seed if data_seed is None else data_seed
        self.graphs_refused = ""  # why the capture of an update failed; empty if none failed
        self.optimise_by(optim.ASGD if averages_from(run.schedule, ()) == 1 else optim.SGD)
        self.place = Place()
        self.hidden: State = self.model.initial_state(run.schedule.batch_size)  # its memory location must not change
        self.tally = Tally(device)
        self.rows: list[dict[str, Any]] = []
        self.best: Best | None = None
        self.switch_epoch: int | None = None
        self._begin_epoch()

    @property
    def train_LB(self) -> Tensor:
        """The training text [L, B] of the current epoch, which is one of `pieces`."""
        return self.pieces[(self.place.epoch - 1) % len(self.pieces)]

    def optimise_by(self, kind: type[optim.SGD]) -> None:
        """Create the optimiser, `optim.SGD` or `optim.ASGD`, and discard the CUDA graphs of the previous one."""
        self.optimiser = kind(self.model.parameter_groups(self.schedule.learning_rate), self.schedule.weight_decay)
        self.dropout = torch.Generator(self.device)
        records = self.run.graphs and self.device.type in RECORDING_DEVICES and not self.graphs_refused
        self.replayed = Replayed(self._update, cuda_capture(self.dropout), self._refuse_graphs) if records else None

    def _refuse_graphs(self, reason: str) -> None:
        """Switch CUDA graphs off after the failed capture of an update; `reason` says in words why it failed.

        Dropout gets a new generator, because the failed capture may still use the old one.
        """
        self.graphs_refused, self.replayed, self.dropout = reason, None, torch.Generator(self.device)

    def _begin_epoch(self) -> None:
        """Set the chunks of the current epoch, and the factor of all learning rates in this epoch (`decay`)."""
        self.chunks = plan_epoch(self.schedule, self.data_seed, self.place.epoch, len(self.train_LB))
        self.decay = decay(self.schedule, [row["best"] for row in self.rows])

    @property
    def finished(self) -> bool:
        """True if all epochs are done."""
        return self.place.epoch > self.schedule.epochs

    def update(self) -> None:
        """Do one step of gradient descent on the next chunk, and add its loss to the tally.

        Raises:
            DivergedError: the update ends a block in which a loss or gradient was not finite.
        """
        chunk = self.chunks[self.place.chunk]
        if not self.model.training:
            self.model.train()
        self.dropout.manual_seed(derive(self.data_seed, "dropout", self.place.epoch, self.place.chunk))
        self.optimiser.prepare(chunk_scale(self.schedule, chunk.drawn, self.decay))
        rows_LB = self.train_LB[chunk.start : chunk.start + chunk.length + 1]
        update = self.replayed if self.replayed and self.optimiser.is_steady else self._update
        with tf32(self.schedule.precision in NEED_TF32):
            nll, norm = update(rows_LB)
        self.place = Place(self.place.epoch, self.place.chunk + 1, self.place.updates + 1)
        self.tally.add(nll, norm)

    def _update(self, rows_LB: Tensor) -> Results:
        """Do the part of an update that runs on the device; return (loss, gradient norm) as scalar tensors.

        `rows_LB` are the token ids of a chunk: its inputs and one more row, as targets are shifted by one. The host
        does not wait for the device. The loss is the mean per target in nats, without penalties. The gradient norm is
        the norm before clipping.
        """
        output = self.model(rows_LB[:-1], self.hidden, generator=self.dropout)
        nll = self.model.head.mean_nll(output.head_input_TBD, rows_LB[1:].reshape(-1), generator=self.dropout)
        self.optimiser.zero_grad()
        torch.autograd.backward(nll + penalties(output, self.schedule))
        norm = self.optimiser.clip(self.schedule.clip)
        self.optimiser.apply()
        self._carry(output.state)
        return nll.detach(), norm

    @torch.no_grad()
    def _carry(self, state: State) -> None:
        """Copy a state of the body into the tensors of `hidden`, in place; the next chunk starts with this state."""
        for kept, new in zip(self.hidden, state, strict=True):
            torch._foreach_copy_(kept, new)

    def end_epoch(self, wall_s: float, on_chunk: Callable[[], object] = lambda: None) -> dict[str, Any]:
        """Compute the validation loss at the end of an epoch, prepare the next epoch, and return this epoch's log line.

        In averaged SGD, the averaged weights are evaluated. The evaluated weights are copied to `best` if this loss is
        the lowest so far, or if the schedule's `tested_weights` is `last`. Training changes from SGD to averaged SGD
        after a fixed epoch (optimizer `et-asgd`) or when the validation loss stalls (`nt-asgd`; `averages_from`).

        Args:
            wall_s: wall time of the epoch in seconds, for the epoch log.
            on_chunk: called after every chunk of the validation text.

        Returns:
            A dict with the keys `epoch`, `phase` (`sgd` or `asgd`), `train_ppl`, `valid_loss_nats`, `valid_ppl`, `lr`
            (learning rate), `wall_s`, `steps` (updates of the epoch) and `best` (true for the lowest loss so far).

        Raises:
            DivergedError: a loss or gradient is not finite, or the validation perplexity is below one or over ten times
                the vocabulary size.
        """
        reached_end = self.chunks[-1].start + self.chunks[-1].drawn >= len(self.train_LB)
        self.tally.close(keep=reached_end)
        valid_loss, is_best = self._validate(on_chunk)
        row = self._log_line(valid_loss, is_best, wall_s)
        self.rows.append(row)
        self._advance()
        return row

    def valid_loss(self, on_chunk: Callable[[], object] = lambda: None) -> float:
        """Return the loss of the present weights on the validation text in nats; `evaluate` explains `on_chunk`."""
        rows = self.schedule.bptt * (VALIDATED_AT_ONCE if self.model.body.carries_state else 1)
        return evaluate(self.model, self.valid_LB, rows, on_chunk, self.schedule.loss_divisor)

    def _validate(self, on_chunk: Callable[[], object]) -> tuple[float, bool]:
        """Return the validation loss in nats, and whether it is the lowest so far; copy the weights to be tested."""
        to_beat = [row["valid_loss_nats"] for row in self.rows]
        to_beat += [self.best.valid_loss] if self.best else []  # finetuning starts with a best loss
        with self.optimiser.swapped() if isinstance(self.optimiser, optim.ASGD) else nullcontext():
            valid_loss = self.valid_loss(on_chunk)
            self._refuse_absurd(valid_loss)
            is_best = not to_beat or valid_loss < min(to_beat)
            if is_best or self.schedule.tested_weights == "last":
                weights = {name: tensor.detach().clone() for name, tensor in models.weights(self.model).items()}
                self.best = Best(self.place.epoch, valid_loss, weights)
        return valid_loss, is_best

    def _log_line(self, valid_loss: float, is_best: bool, wall_s: float) -> dict[str, Any]:
        return {
            "epoch": self.place.epoch,
            "phase": "asgd" if self.optimiser.averaged else "sgd",
            "train_ppl": perplexity(self.tally.mean()),
            "valid_loss_nats": valid_loss,
            "valid_ppl": perplexity(valid_loss),
            "lr": self.schedule.learning_rate * self.decay,
            "wall_s": round(wall_s, 3),
            "steps": len(self.chunks),
            "best": is_best,
        }

    def _advance(self) -> None:
        """Prepare the next epoch: the optimiser, the place, the state of the body, the tally and the chunks."""
        starts = averages_from(self.schedule, [row["valid_loss_nats"] for row in self.rows])
        if not self.optimiser.averaged and starts == self.place.epoch + 1:
            self.switch_epoch = self.place.epoch
            self.optimise_by(optim.ASGD)
        self.place = Place(self.place.epoch + 1, 0, self.place.updates)
        self._carry(self.model.initial_state(self.schedule.batch_size))
        self.tally = Tally(self.device)
        self._begin_epoch()

    def _refuse_absurd(self, valid_loss: float) -> None:
        if not math.isfinite(valid_loss):
            raise DivergedError("valid loss not finite")
        valid_ppl = perplexity(valid_loss)
        if valid_ppl > DIVERGED_PPL * self.vocabulary_size:
            raise DivergedError(f"valid perplexity {valid_ppl:.6g} is over {DIVERGED_PPL} times the vocabulary size")
        if valid_loss < 0:
            raise DivergedError(f"invalid: a validation perplexity of {valid_ppl:.6g} is below one")

    def state(self) -> dict[str, Any]:
        """Return the whole state of training, for resuming, as tensors, numbers and text."""
        return {
            "place": dataclasses.asdict(self.place),
            "weights": models.weights(self.model),
            "optimiser": self.optimiser.state(),
            "hidden": self.hidden,
            "tally": vars(self.tally),
            "rows": self.rows,
            "best": vars(self.best) if self.best else None,
            "switch_epoch": self.switch_epoch,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore what the method `state` returned; the tensors of the argument must be on the trainer's device."""
        self.place = Place(**state["place"])
        models.load_weights(self.model, state["weights"])
        self.optimise_by(optim.ASGD if state["optimiser"]["averaged"] else optim.SGD)
        self.optimiser.load(state["optimiser"])
        self._carry(state["hidden"])
        vars(self.tally).update(state["tally"])
        self.rows = [dict(row) for row in state["rows"]]
        self.best = Best(**state["best"]) if state["best"] else None
        self.switch_epoch = state["switch_epoch"]
        self._begin_epoch()


def stream(ids_T: np.ndarray[Any, Any], batch_size: int, device: torch.device) -> Tensor:
    """Return token ids [T] as a tensor [L, B] of `batch_size` parallel sequences (`batchify`) on a device."""
    return torch.from_numpy(batchify(ids_T, batch_size).astype(np.int64)).to(device)
