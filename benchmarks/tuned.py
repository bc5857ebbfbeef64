"""Time an epoch of every model of config/tuned.yaml and its pilot: updates of all models in turn, on one thread.

The text is random, of the corpus's vocabulary and length, so that no corpus is needed.
"""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases import UPDATES, endless
from softmax_bottleneck.corpora.corpus import Corpus
from softmax_bottleneck.corpora.sizes import size_of
from softmax_bottleneck.jobs import out_of_memory
from softmax_bottleneck.study import Run, load_dataset, load_study
from softmax_bottleneck.study.plan import Size
from softmax_bottleneck.training.trainer import Trainer
from timing import race, show

CONFIG = Path(__file__).parents[1] / "config"
STUDIES = ("tuned-small", "tuned")
REPETITIONS = 15


def trainer(run: Run, size: Size) -> Trainer:
    """Return the trainer of a run on random text, with chunks of equal length."""
    schedule = dataclasses.replace(run.schedule, variable_length=False, max_length_delta=0)
    tokens = (UPDATES * schedule.bptt + 2) * schedule.batch_size
    text = np.random.default_rng(1).integers(size.vocabulary_size, size=tokens).astype(np.int32)
    corpus = Corpus("bench", tuple(map(str, range(size.vocabulary_size))), text, text[:1000], text[:1000])
    return Trainer(dataclasses.replace(run, schedule=schedule), corpus, torch.device("cpu"))


def measure(quick: bool) -> list[dict[str, Any]]:
    """Return seconds an epoch by study and model: median, lowest and highest of updates in turn."""
    out_of_memory.keep_freed()  # as the steps of the workflow do; this part is measured last
    threads, rows = torch.get_num_threads(), []
    torch.set_num_threads(1)
    for name in STUDIES[:1] if quick else STUDIES:
        study = load_study(CONFIG / f"{name}.yaml")
        dataset = study.tuned[0].key[0]
        size = size_of(study.store, load_dataset(dataset, CONFIG / "datasets"))
        runs = {tuned.key[1]: tuned.expected[0] for tuned in study.tuned if tuned.key[0] == dataset}
        steps = {model: endless(trainer(run, size)) for model, run in runs.items()}
        for model, timing in race(steps, 2 if quick else REPETITIONS).items():
            schedule = runs[model].schedule
            updates = math.ceil(size.tokens["train"] / (schedule.batch_size * schedule.bptt))
            seconds = {"epoch_s": timing.median, "epoch_s_low": timing.low, "epoch_s_high": timing.high}
            epochs = {key: round(updates * value, 2) for key, value in seconds.items()}
            rows.append({"study": name, "corpus": dataset, "model": model, **epochs})
            show(rows[-1])
    torch.set_num_threads(threads)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table of seconds an epoch, with the ratio to the softmax and to MoS of the same study."""
    if not rows:
        return ""
    lines = ["| tuned: corpus | model | s an epoch (lowest to highest) | x softmax | x MoS |", "|" + "---|" * 5]
    for row in rows:
        epoch_s = {other["model"]: other["epoch_s"] for other in rows if other["study"] == row["study"]}
        spread = f"{row['epoch_s']:.1f} ({row['epoch_s_low']:.1f} to {row['epoch_s_high']:.1f})"
        ratios = [f"{row['epoch_s'] / epoch_s[baseline]:.2f}" for baseline in ("softmax", "mos")]
        lines.append("| " + " | ".join([row["corpus"], row["model"], spread, *ratios]) + " |")
    return "\n".join(lines)
