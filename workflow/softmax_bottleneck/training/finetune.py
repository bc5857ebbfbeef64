"""Finetuning: a trained run continues from its best weights with averaged SGD (Merity et al. 2018, section 5).

The procedure is that of `finetune.py` in the published code of AWD-LSTM and of MoS. Averaging starts at the first
update. After every epoch the averaged weights are evaluated on the validation text, and stored if their loss is lower
than all earlier ones. The loss of the trained weights counts as an earlier one, so that finetuning never increases the
validation loss. Finetuning ends when the validation loss stalls (`schedule.stalls` with the schedule's
`nonmonotone_window`). If the schedule's `tested_weights` is `last`, the averaged weights of the last epoch are stored,
whatever their loss.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from softmax_bottleneck.corpora import corpus as corpora
from softmax_bottleneck.corpora.corpus import Corpus
from softmax_bottleneck.jobs.resumable import Options
from softmax_bottleneck.store import artefacts, provenance
from softmax_bottleneck.store.progress import Say
from softmax_bottleneck.store.seeds import derive
from softmax_bottleneck.study import Run, Study
from softmax_bottleneck.training import model as models
from softmax_bottleneck.training import trained
from softmax_bottleneck.training.run_record import DONE_FILE, RUN_FILE, run_and_record
from softmax_bottleneck.training.schedule import stalls
from softmax_bottleneck.training.train import train_run
from softmax_bottleneck.training.trainer import Best, Trainer, evaluate


def finetune(study: Study, path: str, say: Say, restart: bool = False) -> dict[str, Any]:
    """Finetune a trained run from its stored weights, or resume finetuning; return the content of the new done.json.

    `path` is the path of the finetuned run; `Run.start` is the path of the trained run. If the trained run has
    diverged, nothing is computed, and done.json has the status and the reason of the trained run. `restart` discards
    earlier states and results.
    """
    run = study.run(path)
    start, folder = study.store.run_folder(run.start), study.store.run_folder(path)
    _, before = run_and_record(start)
    parents = {"start/done.json": artefacts.sha256_file(start / DONE_FILE)}
    if before["status"] != "ok":
        block = provenance.block(parents, run_id=run.run_id)
        reason = f"the run it goes on from: {before['reason']}"
        record = before | {"run": run.to_json(), "model_sha256": None, "reason": reason, "provenance": block}
        artefacts.write_json(folder / RUN_FILE, run.to_json())
        artefacts.write_json(folder / DONE_FILE, record)
        return record
    corpus = corpora.load_for(study, run)
    options = Options.of(study, say, restart)
    make = partial(Finetuner, weights=trained.load_weights(start))
    return train_run(run, corpus, folder, options, make=make, parents=parents)


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
        loss = evaluate(self.model, self.valid_LB, self.schedule.bptt, divisor=self.schedule.loss_divisor)
        self.best = Best(0, loss, {name: tensor.to(device, copy=True) for name, tensor in weights.items()})

    @property
    def finished(self) -> bool:
        """True if the validation loss stalls (`schedule.stalls`) or all epochs are done."""
        losses = [row["valid_loss_nats"] for row in self.rows]
        return stalls(losses, self.schedule.nonmonotone_window) or super().finished
