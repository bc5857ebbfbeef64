"""The published training loop in plain PyTorch: cross entropy, torch's own optimisers, clip_grad_norm_, no dropout.

Shapes: L rows of a batched stream, B columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from softmax_bottleneck import study as config
from softmax_bottleneck.corpora.corpus import Corpus, batchify
from softmax_bottleneck.training import model as models
from softmax_bottleneck.training import trainer
from torch.nn import functional


def naive_train_loss(losses: list[float], reached_end: bool) -> float:
    blocks = [losses[i : i + 200] for i in range(0, len(losses), 200)]
    if len(blocks[-1]) < 200 and not reached_end and len(blocks) > 1:
        blocks.pop()
    return float(np.mean([np.mean(block) for block in blocks]))


def naive_evaluate(model: models.LanguageModel, ids_LB: torch.Tensor, bptt: int) -> float:
    """The published loop: chunk means weighted by chunk length, divided by L."""
    total, state = 0.0, model.initial_state(ids_LB.shape[1])
    for i in range(0, len(ids_LB) - 1, bptt):
        length = min(bptt, len(ids_LB) - 1 - i)
        output = model(ids_LB[i : i + length], state)
        state = output.state
        logits = model.head.decoder(output.raw_TBD).double().flatten(0, 1)
        total += length * functional.cross_entropy(logits, ids_LB[i + 1 : i + 1 + length].flatten()).item()
    return total / len(ids_LB)


def naive_training(run: config.Run, corpus: Corpus) -> list[dict[str, Any]]:
    """The published main.py in plain PyTorch: cross entropy, torch's own optimisers, clip_grad_norm_, no dropout."""
    schedule = run.schedule
    model = models.build(run, corpus.vocabulary_size)
    streams = {s: torch.from_numpy(batchify(getattr(corpus, s), b).astype(np.int64)) for s, b in
               (("train", schedule.batch_size), ("valid", schedule.eval_batch_size))}  # fmt: skip
    parameters = list(model.parameters())
    optimiser = torch.optim.SGD(parameters, lr=schedule.learning_rate, weight_decay=schedule.weight_decay)
    earlier, rows = [], []
    for epoch in range(1, schedule.epochs + 1):
        phase, losses, state = type(optimiser).__name__.lower(), [], model.initial_state(schedule.batch_size)
        data = streams["train"]
        for chunk in trainer.plan_epoch(schedule, run.seed, epoch, len(data)):
            optimiser.param_groups[0]["lr"] = schedule.learning_rate * chunk.drawn / schedule.bptt
            inputs = data[chunk.start : chunk.start + chunk.length]
            targets = data[chunk.start + 1 : chunk.start + 1 + chunk.length]
            output = model.train()(inputs, state)
            state = tuple((h.detach(), c.detach()) for h, c in output.state)
            logits = model.head.decoder(output.dropped_TBD).flatten(0, 1)
            raw_loss = functional.cross_entropy(logits, targets.flatten())
            loss = raw_loss + schedule.activation_penalty * output.dropped_TBD.pow(2).mean()
            loss = loss + schedule.temporal_penalty * (output.raw_TBD[1:] - output.raw_TBD[:-1]).pow(2).mean()
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, schedule.clip)
            optimiser.step()
            losses.append(raw_loss.item())
        current = [p.data for p in parameters]
        if phase == "asgd":
            for p in parameters:
                p.data = optimiser.state[p]["ax"]
        with torch.no_grad():
            valid = naive_evaluate(model.eval(), streams["valid"], schedule.bptt)
        for p, data_ in zip(parameters, current, strict=True):
            p.data = data_
        window = schedule.nonmonotone_window
        stalled = len(earlier) > window and valid > min(earlier[:-window])
        fixed = epoch == schedule.switch_after_epoch
        if phase == "sgd" and {"et-asgd": fixed, "nt-asgd": stalled, "sgd": False}[schedule.optimizer]:
            optimiser = torch.optim.ASGD(parameters, lr=schedule.learning_rate, t0=0, lambd=0.0,
                                         weight_decay=schedule.weight_decay)  # fmt: skip
        earlier.append(valid)
        rows.append({"phase": phase, "train": naive_train_loss(losses, True), "valid": valid})
    return rows
