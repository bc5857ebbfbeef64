"""Training on sequences that repeat one token, until nearly all next tokens are predicted.

Suffixes: L tokens of a sequence, B sequences.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from softmax_bottleneck.corpora.corpus import Corpus
from softmax_bottleneck.corpora.repeat import LEARNED
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import Run
from softmax_bottleneck.training.model import LanguageModel
from softmax_bottleneck.training.schedule import Chunk
from softmax_bottleneck.training.trainer import Trainer

ACCURACIES = ("accuracy", "accuracy_held_out")


class Repeater(Trainer):
    """A trainer whose updates read one sequence per stream, so that every predicted token follows from the input.

    After every epoch, the log has two more numbers: `accuracy` on valid, whose tokens occur in train, and
    `accuracy_held_out` on test, whose tokens do not. The test text chooses nothing.

    Raises:
        UserError: a stream of a piece of train, or of valid, does not consist of sequences of `bptt` equal tokens.
    """

    def __init__(self, run: Run, corpus: Corpus, device: torch.device) -> None:
        super().__init__(run, corpus, device)
        length = self.schedule.bptt
        for ids_LB in (*self.pieces, self.valid_LB):
            if len(ids_LB) % length or ids_LB.unflatten(0, (-1, length)).diff(dim=1).any():
                raise UserError(f"{run.path}: schedule: a stream does not consist of sequences of {length} (bptt) equal"
                                " tokens. Fix: set bptt to the dataset's sequence_length, eval_batch_size to its "
                                "held_out, and batch_size and pieces such that they divide its tokens")  # fmt: skip
        self.sequences = [
            torch.from_numpy(ids_T.reshape(-1, length).T.astype("int64")).to(device)
            for ids_T in (corpus.valid, corpus.test)
        ]

    def _begin_epoch(self) -> None:
        super()._begin_epoch()
        length = self.schedule.bptt
        self.chunks = [Chunk(start, length - 1, length) for start in range(0, len(self.train_LB), length)]

    @property
    def finished(self) -> bool:
        """True if the last epoch reached the accuracy LEARNED, or all epochs are done."""
        return super().finished or bool(self.rows and self.rows[-1]["accuracy"] >= LEARNED)

    def end_epoch(self, wall_s: float, on_chunk: Callable[[], object] = lambda: None) -> dict[str, Any]:
        """Do what `Trainer.end_epoch` does, and add both accuracies to the epoch's log line."""
        row = super().end_epoch(wall_s, on_chunk)
        row |= {name: accuracy(self.model, ids_LB) for name, ids_LB in zip(ACCURACIES, self.sequences, strict=True)}
        return row


@torch.no_grad()
def accuracy(model: LanguageModel, ids_LB: Tensor) -> float:
    """Return the share of the tokens after the first of each sequence that the model, in evaluation mode, predicts."""
    model.eval()
    output = model(ids_LB[:-1], model.initial_state(ids_LB.shape[1]))
    predicted_N = model.head.log_probs(output.head_input_TBD).argmax(1)
    return float((predicted_N == ids_LB[1:].flatten()).double().mean())
