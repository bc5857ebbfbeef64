"""What a run will cost, before it is started: arithmetic, hours, memory and disk, from its settings alone.

Hours are arithmetic over a rate, plus a time for every update. The rates of a GPU are modelled, those of a CPU's core
measured; a plan says so. They are for deciding where to run, and in what order, not for a bill.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from softmax_bottleneck.study import Evaluation, Fit, Run, Unit


@dataclass(frozen=True)
class Rates:
    """What a device sustains, multiply-adds counted as two.

    Attributes:
        vocabulary, network: FLOP/s of training's products over the vocabulary, and of all others.
        update_s: launches, masks and waiting for the steps in time, of every update.
        segment_s: the same of a forward pass over the few words of a segment of dynamic evaluation.
        float64, eigenvalues: FLOP/s of Gram matrices, and of their eigenvalues (4/3 n^3).
        weights: bytes/s at which one stream of text, a token at a time, reads the network's weights.
        cells: words in contexts per second of an update of fits, besides products; for a function, or one of a mixture.
    """

    vocabulary: float
    network: float
    update_s: float
    segment_s: float
    float64: float
    eigenvalues: float
    weights: float
    cells: float


_CORE = Rates(60e9, 60e9, 4e-3, 8e-4, 45e9, 20e9, 1e10, 5.5e7)
_H100 = Rates(45e12, 45e12, 3e-3, 1e-3, 40e12, 0.5e12, 2e12, 4e10)
RATES = {
    ("cpu", "fp32"): _CORE,
    ("cpu", "tf32x3"): replace(_CORE, vocabulary=20e9),
    ("cpu", "bf16"): replace(_CORE, vocabulary=100e9),
    ("gpu", "fp32"): _H100,
    ("gpu", "tf32x3"): replace(_H100, vocabulary=80e12),
    ("gpu", "tf32"): replace(_H100, vocabulary=240e12, network=240e12, update_s=3.4e-3),
    ("gpu", "bf16"): replace(_H100, vocabulary=400e12),
}
"""By device and precision; a CPU has no tf32."""
BASIS = "GPU hours are modelled, for one H100 (docs/gpu.md); CPU hours rest on measurements of one core."
BACKWARD = 3  # forward + backward is about three forward passes
MEAN_CHUNK = 0.975  # of bptt, where lengths are drawn
UPDATE_FLOPS = 10  # per weight, of one update in dynamic evaluation
FIT_UPDATE_S = 1e-3  # of every fit besides
# Words in contexts per second that the host makes for an update: the law's own, or those of a fresh sample.
LAW_CELLS, SAMPLE_CELLS = 7e8, 3e7
# Weights, gradients, averages and the best so far; all but the gradients once more while a resume state is written.
HELD_WEIGHTS = 7
KEPT_WEIGHTS = 8  # copies that a run leaves whose ranks along training are asked for
LOG_LINEAR = {"softmax", "moc"}  # heads whose spectrum comes from factors, not from a Gram matrix


@dataclass(frozen=True)
class Cost:
    """Estimate of one run.

    cpu_h, gpu_h: hours of its training; measure_cpu_h, measure_gpu_h: of what is measured then, perplexities and ranks.
    flops: of the whole training. memory_gb: largest working set in training. spectrum_gb: memory for the singular
    values, on the host. disk_gb: weights, two resume states, the hidden states of the test text; weights kept on the
    way.
    """

    flops: float
    cpu_h: float
    gpu_h: float
    measure_cpu_h: float
    measure_gpu_h: float
    memory_gb: float
    spectrum_gb: float
    disk_gb: float

    def hours(self, kind: str) -> float:
        """All of them on a `cpu` or `gpu`."""
        return float(getattr(self, f"{kind}_h") + getattr(self, f"measure_{kind}_h"))


@dataclass(frozen=True)
class _Model:
    """Arithmetic of a model: FLOP of one forward pass per token, over the vocabulary and in all the rest."""

    vocabulary: float
    network: float

    @classmethod
    def of(cls, run: Run, parameters: int, vocabulary_size: int) -> _Model:
        words = run.body.embedding_size * vocabulary_size
        return cls(2 * words * _rows_of(run), 2 * max(0, parameters - words))

    def seconds(self, tokens: float, rates: Rates) -> float:
        """Of a forward pass over so many tokens."""
        return tokens * (self.vocabulary / rates.vocabulary + self.network / rates.network)


def _rows_of(model: Run | Fit) -> int:
    """Of logits, for one context."""
    return int(model.head.options.get("components", 1)) if model.head.name != "moc" else 1


def rates_of(kind: str, precision: str) -> Rates:
    """Of a device; at fp32 where it has not the precision."""
    return RATES.get((kind, precision), RATES[kind, "fp32"])


def evaluation_hours(
    wanted: Evaluation, parameters: int, tokens: dict[str, int], vocabulary_size: int
) -> dict[str, float]:
    """Hours of a dynamic evaluation by kind of device: statistics, every setting tried, both texts twice.

    Both texts are read once by the trained weights, without a backward pass. Every update goes a few times through all
    weights.
    """
    settings, model = wanted.settings, _Model.of(wanted.run, parameters, vocabulary_size)
    tried = len(settings.learning_rates) * len(settings.decays) * (settings.tune_tokens or tokens["valid"])
    static = tokens["valid"] + tokens["test"]
    followed = tried + static
    passes = static + BACKWARD * (followed + tokens["train"] / settings.statistics_batch_size)
    hours = {}
    for kind in ("cpu", "gpu"):
        rates = rates_of(kind, "fp32")
        seconds = model.seconds(static + BACKWARD * (followed + tokens["train"]), rates)
        seconds += passes / settings.segment * rates.segment_s
        seconds += followed / settings.segment * UPDATE_FLOPS * parameters / rates.network
        hours[kind] = seconds / 3600
    return hours


def fit_hours(unit: Unit, kind: str) -> float:
    """Hours of the fits of a unit; those of equal parameters are taken at the width they may not exceed."""
    rates, (contexts, words) = rates_of(kind, "fp32"), unit.shape
    cells = contexts * words
    seconds = cells / (SAMPLE_CELLS if unit.sample else LAW_CELLS)
    for fit in unit.fits:
        products = BACKWARD * 2 * cells * fit.width * _rows_of(fit) / rates.vocabulary
        functions = cells * max(_rows_of(fit), fit.head.options.get("units", 2) / 2) / rates.cells
        seconds += products + functions + FIT_UPDATE_S
    return unit.updates * seconds / 3600


def training_hours(run: Run, parameters: int, tokens: dict[str, int], vocabulary_size: int, kind: str) -> float:
    """Hours of all epochs and their validation, which is fp32."""
    schedule, model = run.schedule, _Model.of(run, parameters, vocabulary_size)
    rates, exact = rates_of(kind, schedule.precision), rates_of(kind, "fp32")
    epoch = tokens["train"] / schedule.pieces
    updates = epoch / (schedule.batch_size * schedule.bptt * (MEAN_CHUNK if schedule.variable_length else 1.0))
    passes = tokens["valid"] / (schedule.eval_batch_size * schedule.bptt) / BACKWARD
    seconds = BACKWARD * model.seconds(epoch, rates) + updates * rates.update_s
    seconds += model.seconds(tokens["valid"], exact) + passes * exact.update_s
    return schedule.epochs * seconds / 3600


def measuring_hours(
    run: Run, parameters: int, tokens: dict[str, int], vocabulary_size: int, tracked: bool, kind: str
) -> float:
    """Hours of perplexities and of all spectra: one, and those of the weights that were kept."""
    rates, model = rates_of(kind, "fp32"), _Model.of(run, parameters, vocabulary_size)
    contexts, width = tokens["test"], run.body.embedding_size + 2
    if run.head.name in LOG_LINEAR:
        decomposed = (4 * width + 2) * width * (contexts + vocabulary_size) / rates.float64
        decomposed += 2 * contexts * vocabulary_size * width / rates.float64  # the normalisers
    else:
        smaller, larger = sorted((contexts, vocabulary_size))
        decomposed = larger * smaller**2 / rates.float64 + 4 / 3 * smaller**3 / rates.eigenvalues
        decomposed += contexts * model.vocabulary / rates.vocabulary
    one_stream = contexts * max(model.network * 2 / rates.weights, model.network / rates.network)
    spectra = (1 + (KEPT_WEIGHTS + 1) * tracked) * (decomposed + one_stream)
    return (spectra + model.seconds(tokens["valid"] + 2 * contexts, rates)) / 3600


def estimate(run: Run, parameters: int, tokens: dict[str, int], vocabulary_size: int, tracked: bool = False) -> Cost:
    """Cost of a run with so many trainable parameters on a corpus with so many tokens per split.

    `tracked` says whether it keeps weights on the way.
    """
    model = _Model.of(run, parameters, vocabulary_size)
    passes = BACKWARD * tokens["train"] / run.schedule.pieces + tokens["valid"]
    flops = float(run.schedule.epochs) * passes * (model.vocabulary + model.network)
    weights_gb = 4e-9 * parameters
    hidden_gb = 4e-9 * tokens["test"] * run.body.context_size
    activations_gb = 4e-9 * run.schedule.batch_size * run.schedule.bptt * run.body.hidden_size * run.body.layers * 10
    smaller = min(tokens["test"], vocabulary_size)
    factors = 2 * (tokens["test"] + vocabulary_size) * (run.body.embedding_size + 2)
    sizes = (run, parameters, tokens, vocabulary_size)
    return Cost(
        flops=flops,
        cpu_h=training_hours(*sizes, "cpu"),
        gpu_h=training_hours(*sizes, "gpu"),
        measure_cpu_h=measuring_hours(*sizes, tracked, "cpu"),
        measure_gpu_h=measuring_hours(*sizes, tracked, "gpu"),
        memory_gb=HELD_WEIGHTS * weights_gb + activations_gb + 0.3,
        spectrum_gb=8e-9 * (factors if run.head.name in LOG_LINEAR else smaller**2) + hidden_gb,
        disk_gb=(7 + KEPT_WEIGHTS * tracked) * weights_gb + hidden_gb,
    )
