"""The published training loops in plain PyTorch: cross entropy, torch's own optimisers, clip_grad_norm_, no dropout.

Shapes: L rows of a batched stream, B columns.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from softmax_bottleneck import study as config
from softmax_bottleneck.corpora.corpus import Corpus, batchify
from softmax_bottleneck.training import model as models
from softmax_bottleneck.training.schedule import plan_epoch
from torch.nn import functional


def naive_train_loss(losses: list[float], reached_end: bool) -> float:
    blocks = [losses[i : i + 200] for i in range(0, len(losses), 200)]
    if len(blocks[-1]) < 200 and not reached_end and len(blocks) > 1:
        blocks.pop()
    return float(np.mean([np.mean(block) for block in blocks]))


def naive_evaluate(
    model: models.LanguageModel, ids_LB: torch.Tensor, bptt: int, divisor: str | None = "length"
) -> float:
    """Return the published loss: chunk means weighted by chunk length, divided by L (or by the L - 1 targets)."""
    total, state = 0.0, model.initial_state(ids_LB.shape[1])
    for i in range(0, len(ids_LB) - 1, bptt):
        length = min(bptt, len(ids_LB) - 1 - i)
        output = model(ids_LB[i : i + length], state)
        state = output.state
        logits = model.head.decoder(output.raw_TBD).double().flatten(0, 1)
        total += length * functional.cross_entropy(logits, ids_LB[i + 1 : i + 1 + length].flatten()).item()
    return total / (len(ids_LB) - (divisor == "targets"))


def naive_training(
    run: config.Run, corpus: Corpus, weights: Mapping[str, torch.Tensor] | None = None, seed: int | None = None
) -> list[dict[str, Any]]:
    """Train as main.py of the AWD-LSTM does, or finetune.py if given weights, or Benka's script for `plateau-sgd`."""
    schedule, model = run.schedule, models.build(run, corpus.vocabulary_size)
    if weights:
        models.load_weights(model, {name: tensor.clone() for name, tensor in weights.items()})
    train_LB, valid_LB = (
        torch.from_numpy(batchify(ids, streams).astype(np.int64))
        for ids, streams in ((corpus.train, schedule.batch_size), (corpus.valid, schedule.eval_batch_size))
    )
    parameters, rate = list(model.parameters()), schedule.learning_rate
    averaging = {"lr": rate, "t0": 0, "lambd": 0.0, "weight_decay": schedule.weight_decay}
    optimiser = torch.optim.SGD(parameters, lr=rate, weight_decay=schedule.weight_decay)
    if weights:
        optimiser = torch.optim.ASGD(parameters, **averaging)
    rows: list[dict[str, Any]] = []
    for epoch in range(1, schedule.epochs + 1):
        phase, losses, state = type(optimiser).__name__.lower(), [], model.initial_state(schedule.batch_size)
        for chunk in plan_epoch(schedule, run.seed if seed is None else seed, epoch, len(train_LB)):
            optimiser.param_groups[0]["lr"] = rate * chunk.drawn / schedule.bptt
            output = model.train()(train_LB[chunk.start : chunk.start + chunk.length], state)
            state = tuple((h.detach(), c.detach()) for h, c in output.state)
            logits = model.head.decoder(output.dropped_TBD).flatten(0, 1)
            targets = train_LB[chunk.start + 1 : chunk.start + 1 + chunk.length].flatten()
            raw_loss = functional.cross_entropy(logits, targets)
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
            valid = naive_evaluate(model.eval(), valid_LB, schedule.bptt, schedule.loss_divisor)
        for p, data in zip(parameters, current, strict=True):
            p.data = data
        earlier, window = [row["valid"] for row in rows], schedule.nonmonotone_window
        stalled = len(earlier) > window and valid > min(earlier[:-window])
        rows.append({"phase": phase, "train": naive_train_loss(losses, True), "valid": valid, "lr": rate})
        if weights and stalled:
            break
        if schedule.optimizer == "plateau-sgd" and valid >= min([*earlier, math.inf]):
            rate /= schedule.plateau_factor
        switches = {"et-asgd": epoch == schedule.switch_after_epoch, "nt-asgd": stalled}
        if phase == "sgd" and switches.get(schedule.optimizer):
            optimiser = torch.optim.ASGD(parameters, **averaging)
    return rows
