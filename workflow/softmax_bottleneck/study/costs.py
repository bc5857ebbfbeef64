"""Estimates of the FLOP, hours, memory and disk space of a run, from its settings alone.

The hours are the FLOP divided by a rate (FLOP/s), plus a time for every update. The rates of a CPU core were measured.
Those of a GPU were measured on one H200 for updates of an LSTM and are modelled for everything else (docs/gpu.md). The
estimates help to decide where to run, and in which order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from softmax_bottleneck.study import Evaluation, Fit, Run, Unit
from softmax_bottleneck.study.plan import Size


@dataclass(frozen=True)
class Rates:
    """The sustained rates of a device. A multiply-add counts as two FLOP.

    Attributes:
        vocabulary: FLOP/s of the products with the output matrix, which give the logits of all words.
        network: FLOP/s of all other matrix products of a model.
        lstm: the same for the products of an LSTM, which has few rows at each time step.
        update_s: seconds of overhead per update: kernel launches and dropout masks.
        step_s: seconds of overhead per time step and LSTM layer of an update.
        segment_s: seconds of overhead per segment of dynamic evaluation (the tokens between two updates).
        float64: FLOP/s of Gram matrices in float64.
        eigenvalues: FLOP/s of the eigenvalues of an n x n Gram matrix, which take 4/3 n^3 FLOP.
        weights: bytes/s at which the network's weights are read from memory. This rate limits the evaluation of one
            long text at batch size 1, where every token reads all weights.
        cells: (context, word) pairs per second for which an update of a fit turns logits into the loss and its
            gradients; the matrix products are not included. The rate holds for a head that applies one function to each
            logit. A mixture of K components is K times slower. A linear monotonic softmax (`heads.lms`) with K sigmoids
            is K / 2 times slower.
    """

    vocabulary: float
    network: float
    lstm: float
    update_s: float
    step_s: float
    segment_s: float
    float64: float
    eigenvalues: float
    weights: float
    cells: float


_CORE = Rates(
    vocabulary=60e9, network=60e9, lstm=60e9, update_s=4e-3, step_s=0.0, segment_s=8e-4, float64=45e9, eigenvalues=20e9,
    weights=1e10, cells=5.5e7,
)  # fmt: skip
_GPU = Rates(
    vocabulary=45e12, network=45e12, lstm=19e12, update_s=3e-3, step_s=1.8e-5, segment_s=1e-3, float64=40e12,
    eigenvalues=0.5e12, weights=2e12, cells=4e10,
)  # fmt: skip
# Rates by device and precision; a CPU has no TF32.
RATES = {
    ("cpu", "fp32"): _CORE,
    ("cpu", "tf32x3"): replace(_CORE, vocabulary=20e9),
    ("cpu", "bf16"): replace(_CORE, vocabulary=100e9),
    ("gpu", "fp32"): _GPU,
    ("gpu", "tf32x3"): replace(_GPU, vocabulary=80e12),
    ("gpu", "tf32"): replace(_GPU, vocabulary=240e12, network=240e12, lstm=240e12, step_s=2.5e-5),
    ("gpu", "bf16"): replace(_GPU, vocabulary=400e12),
    ("gpu", "tf32-bf16"): replace(_GPU, vocabulary=400e12, network=240e12, lstm=240e12, step_s=2.5e-5),
}
BASIS = "GPU hours rest on measurements on one H200 and a model (docs/gpu.md); CPU hours on measurements of one core."
BACKWARD = 3  # forward + backward is about three forward passes
MEAN_CHUNK = 0.975  # mean chunk length / bptt, if lengths are random
UPDATE_FLOPS = 10  # per weight and update of dynamic evaluation
FIT_UPDATE_S = 1e-3  # overhead of every fit per update
# (Context, word) pairs per second that the host prepares for an update: exact probabilities, or a new sample.
LAW_CELLS, SAMPLE_CELLS = 7e8, 3e7
# Copies of the weights in memory: weights, gradients, averages and the best weights. All of these except the gradients
# are copied once more while a resume state is written.
HELD_WEIGHTS = 7
KEPT_WEIGHTS = 8  # copies of the weights that a run stores during training if its ranks along training are measured
LOG_LINEAR = {"softmax", "moc"}  # heads whose spectrum is computed from factors, without a Gram matrix


@dataclass(frozen=True)
class Cost:
    """The estimated cost of one run.

    Attributes:
        cpu_h, gpu_h: hours of training on a CPU core and on a GPU.
        measure_cpu_h, measure_gpu_h: hours of measuring perplexities and ranks on a CPU core and on a GPU.
        memory_gb: peak memory of training in GB (10^9 bytes).
        spectrum_gb: memory of the host (not of the GPU) in GB while singular values are computed.
        disk_gb: disk space in GB for the weights, two resume states and the hidden states of the test text. If the run
            stores its weights at some epochs (argument `tracked` of `estimate`), these weights are counted, too.
    """

    cpu_h: float
    gpu_h: float
    measure_cpu_h: float
    measure_gpu_h: float
    memory_gb: float
    spectrum_gb: float
    disk_gb: float

    def hours(self, kind: str) -> float:
        """Return the hours of training and measuring; `kind` is the device, "cpu" (one core) or "gpu"."""
        return float(getattr(self, f"{kind}_h") + getattr(self, f"measure_{kind}_h"))


@dataclass(frozen=True)
class _Model:
    """The FLOP that the forward pass of one model needs per token.

    Attributes:
        vocabulary: FLOP of the products with the output matrix [vocabulary_size, embedding_size], one product per
            component of a mixture.
        network: FLOP of all other matrix products.
        layers: number of LSTM layers; 0 for other bodies.
    """

    vocabulary: float
    network: float
    layers: int

    @classmethod
    def of(cls, run: Run, parameters: int, vocabulary_size: int) -> _Model:
        words = run.body.embedding_size * vocabulary_size
        layers = run.body.layers if run.body.kind == "awd-lstm" else 0
        return cls(2 * words * _rows_of(run), 2 * max(0, parameters - words), layers)

    def seconds(self, tokens: float, rates: Rates) -> float:
        """Return the seconds that a forward pass over a number of tokens takes at these rates."""
        network = rates.lstm if self.layers else rates.network
        return tokens * (self.vocabulary / rates.vocabulary + self.network / network)

    def update_s(self, steps: float, rates: Rates) -> float:
        """Return the seconds of overhead of an update with a number of time steps."""
        return rates.update_s + self.layers * steps * rates.step_s


def _rows_of(model: Run | Fit) -> int:
    """Return the number of logit vectors [V] that a head computes per context.

    A head that mixes distributions or logits computes one per component. The `lower_components` of `doc` are not
    counted. All other heads compute only one, and so does MoC, which mixes context vectors before the product with the
    output matrix.
    """
    return int(model.head.options.get("components", 1)) if model.head.name != "moc" else 1


def rates_of(kind: str, precision: str) -> Rates:
    """Return the rates of a device (`kind` is `cpu` or `gpu`) at a precision (a value of `schedule.precision`).

    A precision that the device lacks counts as fp32.
    """
    return RATES.get((kind, precision), RATES[kind, "fp32"])


def evaluation_hours(wanted: Evaluation, parameters: int, size: Size, kind: str) -> float:
    """Return the hours that a dynamic evaluation takes on a device.

    The hours include the gradient statistics of the training text and the search over step sizes and decays on the
    validation text. They also include scoring the validation and test texts with fixed and with dynamic weights.

    Args:
        wanted: the dynamic evaluation, with its run and settings.
        parameters: number of trainable parameters of the model.
        size: number of tokens and of word types of the corpus.
        kind: device, `cpu` (one core) or `gpu`.
    """
    settings, model = wanted.settings, _Model.of(wanted.run, parameters, size.vocabulary_size)
    rates, tokens = rates_of(kind, "fp32"), size.tokens
    tried = len(settings.learning_rates) * len(settings.decays) * (settings.tune_tokens or tokens["valid"])
    static = tokens["valid"] + tokens["test"]
    followed = tried + static
    passes = static + BACKWARD * (followed + tokens["train"] / settings.statistics_batch_size)
    seconds = model.seconds(static + BACKWARD * (followed + tokens["train"]), rates)
    seconds += passes / settings.segment * rates.segment_s
    seconds += passes * model.layers * rates.step_s
    seconds += followed / settings.segment * UPDATE_FLOPS * parameters / rates.network
    return seconds / 3600


def fit_hours(unit: Unit, kind: str) -> float:
    """Return the hours that a unit of fits takes on a device; `kind` is `cpu` (one core) or `gpu`.

    Every fit is counted at its planned width. The estimate is too high if the head is made narrower so that it has no
    more parameters than another head (`Fit.equal_to`).
    """
    rates, (contexts, words) = rates_of(kind, "fp32"), unit.shape
    cells = contexts * words
    seconds = cells / (SAMPLE_CELLS if unit.sample else LAW_CELLS)
    for fit in unit.fits:
        products = BACKWARD * 2 * cells * fit.width * _rows_of(fit) / rates.vocabulary
        functions = cells * max(_rows_of(fit), fit.head.options.get("units", 2) / 2) / rates.cells
        seconds += products + functions + FIT_UPDATE_S
    return unit.updates * seconds / 3600


def training_hours(run: Run, parameters: int, size: Size, kind: str) -> float:
    """Return the hours of all training epochs and of their validation, which always runs in fp32.

    Args:
        run: the run with its settings.
        parameters: number of trainable parameters.
        size: number of tokens and of word types of the corpus.
        kind: device, `cpu` (one core) or `gpu`.
    """
    schedule, model, tokens = run.schedule, _Model.of(run, parameters, size.vocabulary_size), size.tokens
    rates, exact = rates_of(kind, schedule.precision), rates_of(kind, "fp32")
    epoch = tokens["train"] / schedule.pieces
    steps = schedule.bptt * (MEAN_CHUNK if schedule.variable_length else 1.0)
    updates = epoch / (schedule.batch_size * steps)
    passes = tokens["valid"] / (schedule.eval_batch_size * schedule.bptt) / BACKWARD
    seconds = BACKWARD * model.seconds(epoch, rates) + updates * model.update_s(steps, rates)
    seconds += model.seconds(tokens["valid"], exact) + passes * model.update_s(schedule.bptt, exact)
    return schedule.epochs * seconds / 3600


def measuring_hours(run: Run, parameters: int, size: Size, tracked: bool, kind: str) -> float:
    """Return the hours to measure a trained run: its perplexities and the singular values of its log-probabilities.

    Args:
        run: the run with its settings.
        parameters: number of trainable parameters.
        size: number of tokens and of word types of the corpus.
        tracked: True if the run stores its weights at some epochs; the singular values at these epochs count as well.
        kind: device, `cpu` (one core) or `gpu`.
    """
    contexts, words, width = size.tokens["test"], size.vocabulary_size, run.body.embedding_size + 2
    rates, model = rates_of(kind, "fp32"), _Model.of(run, parameters, words)
    if run.head.name in LOG_LINEAR:
        decomposed = (4 * width + 2) * width * (contexts + words) / _CORE.float64  # always on the host
        decomposed += 2 * contexts * words * width / rates.float64  # the normalisers
    else:
        smaller, larger = sorted((contexts, words))
        decomposed = larger * smaller**2 / rates.float64 + 4 / 3 * smaller**3 / rates.eigenvalues
        decomposed += contexts * model.vocabulary / rates.vocabulary
    one_stream = contexts * max(model.network * 2 / rates.weights, model.network / rates.network)
    one_stream += contexts * model.layers * rates.step_s
    spectra = (1 + (KEPT_WEIGHTS + 1) * tracked) * (decomposed + one_stream)
    return (spectra + model.seconds(size.tokens["valid"] + 2 * contexts, rates)) / 3600


def estimate(run: Run, parameters: int, size: Size, tracked: bool = False) -> Cost:
    """Return the estimated cost of a run.

    Args:
        run: the run with its settings.
        parameters: number of trainable parameters.
        size: number of tokens and of word types of the corpus.
        tracked: True if the run stores its weights at some epochs and their ranks are measured, too.
    """
    weights_gb = 4e-9 * parameters
    contexts, words = size.tokens["test"], size.vocabulary_size
    hidden_gb = 4e-9 * contexts * run.body.context_size
    activations_gb = 4e-9 * run.schedule.batch_size * run.schedule.bptt * run.body.hidden_size * run.body.layers * 10
    factors = 2 * (contexts + words) * (run.body.embedding_size + 2)
    return Cost(
        cpu_h=training_hours(run, parameters, size, "cpu"),
        gpu_h=training_hours(run, parameters, size, "gpu"),
        measure_cpu_h=measuring_hours(run, parameters, size, tracked, "cpu"),
        measure_gpu_h=measuring_hours(run, parameters, size, tracked, "gpu"),
        memory_gb=HELD_WEIGHTS * weights_gb + activations_gb + 0.3,
        spectrum_gb=8e-9 * (factors if run.head.name in LOG_LINEAR else min(contexts, words) ** 2) + hidden_gb,
        disk_gb=(7 + KEPT_WEIGHTS * tracked) * weights_gb + hidden_gb,
    )
