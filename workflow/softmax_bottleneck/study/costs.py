"""What a run will cost, before it is started: arithmetic, hours, memory and disk, from its settings alone.

Rates are rough on purpose and stated: the plan is for deciding where to run, not for a bill.
"""

from __future__ import annotations

from dataclasses import dataclass

from softmax_bottleneck.study import Evaluation, Run

# Sustained float32 rates assumed (multiply-adds counted as two), in FLOP/s.
RATES = {"cpu": 60e9, "gpu": 20e12}
STEP_OVERHEAD_S = {"cpu": 4e-3, "gpu": 6e-3}  # calls, launches and dropout masks of one update
BACKWARD = 3  # forward + backward is about three forward passes
UPDATE_FLOPS = 10  # per weight, of one update in dynamic evaluation
# Weights, gradients, averages and the best so far; all but the gradients once more while a resume state is written.
HELD_WEIGHTS = 7
KEPT_WEIGHTS = 8  # copies that a run leaves whose ranks along training are asked for
COPIED_SIDES = range(4096, 16_385)  # as in `measure`, which imports torch: a Gram matrix of these is held twice
LOG_LINEAR = {"softmax", "low-rank", "moc"}  # heads whose spectrum comes from factors, not from a Gram matrix


@dataclass(frozen=True)
class Cost:
    """Estimate of one training run.

    flops: of the whole training. cpu_h, gpu_h: hours at the assumed rates. memory_gb: largest working set in training.
    spectrum_gb: memory for the singular values, on the host. disk_gb: weights, two resume states, the hidden states of
    the test text; weights kept on the way.
    """

    flops: float
    cpu_h: float
    gpu_h: float
    memory_gb: float
    spectrum_gb: float
    disk_gb: float


def _token_flops(run: Run, parameters: int, vocabulary_size: int) -> float:
    """Arithmetic of one forward pass per token."""
    rows = int(run.head.options.get("components", 1)) if run.head.name != "moc" else 1
    decoder = 2 * run.body.embedding_size * vocabulary_size * rows
    return decoder + 2 * max(0, parameters - run.body.embedding_size * vocabulary_size)


def evaluation_hours(
    wanted: Evaluation, parameters: int, tokens: dict[str, int], vocabulary_size: int
) -> dict[str, float]:
    """Hours of a dynamic evaluation by kind of device: statistics, every setting tried, both texts twice.

    Every update also goes a few times through all weights.
    """
    settings = wanted.settings
    tried = len(settings.learning_rates) * len(settings.decays) * (settings.tune_tokens or tokens["valid"])
    read = tried + 2 * (tokens["valid"] + tokens["test"])
    steps = read / settings.segment + tokens["train"] / settings.segment / settings.statistics_batch_size
    flops = (read + tokens["train"]) * BACKWARD * _token_flops(wanted.run, parameters, vocabulary_size)
    flops += steps * UPDATE_FLOPS * parameters
    return {kind: (flops / rate + steps * STEP_OVERHEAD_S[kind]) / 3600 for kind, rate in RATES.items()}


def estimate(run: Run, parameters: int, tokens: dict[str, int], vocabulary_size: int, tracked: bool = False) -> Cost:
    """Cost of a run with so many trainable parameters on a corpus with so many tokens per split.

    `tracked` says whether it keeps weights on the way.
    """
    epoch = tokens["train"] / run.schedule.pieces
    per_epoch = (BACKWARD * epoch + tokens["valid"]) * _token_flops(run, parameters, vocabulary_size)
    flops = float(run.schedule.epochs) * per_epoch
    updates = run.schedule.epochs * epoch / (run.schedule.batch_size * run.schedule.bptt)
    hours = {kind: (flops / rate + updates * STEP_OVERHEAD_S[kind]) / 3600 for kind, rate in RATES.items()}
    weights_gb = 4e-9 * parameters
    hidden_gb = 4e-9 * tokens["test"] * run.body.context_size
    activations_gb = 4e-9 * run.schedule.batch_size * run.schedule.bptt * run.body.hidden_size * run.body.layers * 10
    disk_gb = (7 + KEPT_WEIGHTS * tracked) * weights_gb + hidden_gb
    smaller = min(tokens["test"], vocabulary_size)
    factors = 2 * (tokens["test"] + vocabulary_size) * (run.body.embedding_size + 2)
    gram = smaller**2 * (1 + (smaller in COPIED_SIDES))
    spectrum_gb = 8e-9 * (factors if run.head.name in LOG_LINEAR else gram) + hidden_gb
    training_gb = HELD_WEIGHTS * weights_gb + activations_gb + 0.3
    return Cost(flops, hours["cpu"], hours["gpu"], training_gb, spectrum_gb, disk_gb)
