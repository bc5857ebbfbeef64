"""Finetuning: a trained run goes on from its best weights with averaged SGD (Merity et al. 2018, section 5).

As in both published code bases (`finetune.py` of the AWD-LSTM's and of MoS's): averaging from the first update on, the
weights are kept only where the validation loss of their average improves, and it ends when that loss is above the
smallest of all but the last `nonmonotone_window` values. The first value to beat is that of the trained weights, so
that finetuning never makes the validation loss worse.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from softmax_bottleneck.corpora.corpus import Corpus
from softmax_bottleneck.store.seeds import derive
from softmax_bottleneck.study import Run
from softmax_bottleneck.training import model as models
from softmax_bottleneck.training import optim
from softmax_bottleneck.training.trainer import Best, Trainer, evaluate


class Finetuner(Trainer):
    """A run taken up again; `weights` are the trained ones, kept as epoch 0."""

    def __init__(self, run: Run, corpus: Corpus, device: torch.device, weights: Mapping[str, Tensor]) -> None:
        super().__init__(run, corpus, device)
        models.load_weights(self.model, dict(weights))
        self.draws = derive(run.seed, "finetune")  # other chunk lengths and masks than in training
        self._begin_epoch()
        loss = evaluate(self.model, self.valid_LB, self.schedule.bptt, divisor=self.schedule.loss_divisor)
        self.best = Best(0, loss, {name: tensor.to(device, copy=True) for name, tensor in weights.items()})

    @property
    def finished(self) -> bool:
        """Whether validation has stalled, or every epoch is done."""
        losses = [row["valid_loss_nats"] for row in self.rows]
        stalled = bool(losses) and optim.should_switch(losses[:-1], losses[-1], self.schedule.nonmonotone_window)
        return stalled or super().finished
