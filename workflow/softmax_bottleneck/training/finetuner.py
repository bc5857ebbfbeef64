"""Finetuning: a trained run continues from its best weights with averaged SGD (Merity et al. 2018, section 5).

The procedure is that of `finetune.py` in the published code of AWD-LSTM and of MoS. Averaging starts at the first
update. After every epoch the averaged weights are evaluated on the validation text, and stored if their loss is lower
than all earlier ones. The loss of the trained weights counts as an earlier one, so that finetuning never increases the
validation loss. Finetuning ends when the validation loss stalls (`schedule.stalls` with the schedule's
`nonmonotone_window`). If the schedule's `tested_weights` is `last`, the averaged weights of the last epoch are stored,
whatever their loss.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from softmax_bottleneck.corpora.corpus import Corpus
from softmax_bottleneck.store.seeds import derive
from softmax_bottleneck.study import Run
from softmax_bottleneck.training import model as models
from softmax_bottleneck.training.schedule import stalls
from softmax_bottleneck.training.trainer import Best, Trainer


class Finetuner(Trainer):
    """A trainer that starts from trained weights, which count as the result of epoch 0.

    The attribute `best` holds the weights to be tested. At first these are the trained weights, until an epoch has a
    lower validation loss. If the schedule's `tested_weights` is `last`, every epoch replaces `best`, whatever its loss.

    Args:
        run: the finetuned run.
        corpus: token ids of its corpus.
        device: device of the computation.
        weights: {name: trained tensor}, the weights that finetuning starts from.
    """

    def __init__(self, run: Run, corpus: Corpus, device: torch.device, weights: Mapping[str, Tensor]) -> None:
        super().__init__(run, corpus, device, data_seed=derive(run.seed, "finetune"))
        models.load_weights(self.model, dict(weights))
        loss = self.valid_loss()
        self.best = Best(0, loss, {name: tensor.to(device, copy=True) for name, tensor in weights.items()})

    @property
    def finished(self) -> bool:
        """True if the validation loss stalls (`schedule.stalls`) or all epochs are done."""
        losses = [row["valid_loss_nats"] for row in self.rows]
        return stalls(losses, self.schedule.nonmonotone_window) or super().finished
