"""Finetuning: a trained run continues from its best weights with averaged SGD (Merity et al. 2018, section 5).

As in both published code bases (`finetune.py` of AWD-LSTM and of MoS), averaging starts at the first update, and
weights are stored only if the validation loss of their average improves. Finetuning ends when that loss exceeds the
minimum of all losses except the last `nonmonotone_window`. The first loss to beat is that of the trained weights, so
that finetuning never increases the validation loss. If the schedule's `tested_weights` is `last`, the weights of the
last epoch are stored instead, whatever their loss.
"""

from __future__ import annotations

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
from softmax_bottleneck.training import optim, trained
from softmax_bottleneck.training.run_record import DONE_FILE, RUN_FILE, run_and_record
from softmax_bottleneck.training.train import train_run
from softmax_bottleneck.training.trainer import Best, Trainer, evaluate


def finetune(study: Study, path: str, say: Say, restart: bool = False) -> dict[str, Any]:
    """Finetune a trained run from its stored weights, or resume finetuning; return the content of the new done.json.

    `path` names the finetuned run; `Run.start` names the trained run. If the trained run has diverged, done.json has
    this status and its reason, and nothing is computed. `restart` discards earlier progress.
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
    """A trainer that starts from the trained `weights`.

    The trained weights count as epoch 0: they stay the best weights until an epoch has a lower validation loss, or
    until the first epoch ends if `tested_weights` is `last`.
    """

    def __init__(self, run: Run, corpus: Corpus, device: torch.device, weights: Mapping[str, Tensor]) -> None:
        super().__init__(run, corpus, device)
        models.load_weights(self.model, dict(weights))
        self.data_seed = derive(run.seed, "finetune")  # chunk lengths and masks differ from training
        self._begin_epoch()
        loss = evaluate(self.model, self.valid_LB, self.schedule.bptt, divisor=self.schedule.loss_divisor)
        self.best = Best(0, loss, {name: tensor.to(device, copy=True) for name, tensor in weights.items()})

    @property
    def finished(self) -> bool:
        """True if validation has stalled or all epochs are done."""
        losses = [row["valid_loss_nats"] for row in self.rows]
        stalled = bool(losses) and optim.should_switch(losses[:-1], losses[-1], self.schedule.nonmonotone_window)
        return stalled or super().finished
