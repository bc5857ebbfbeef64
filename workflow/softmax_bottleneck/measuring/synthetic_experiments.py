"""The rank demonstration of Merity 2017: ranks of untrained output layers on random contexts.

Three untrained layers read the same random context vectors x and have the same random word matrix W and bias b. MoC and
MoS have K components g_k, with random weights U_k and a_k and equal mixing weights 1/K (Merity, "Understanding the
Mixture of Softmaxes", 2017, rank table):

    softmax   ln P = log_softmax(W x + b)
    MoC       ln P = log_softmax(W (1/K sum_k g_k) + b)           g_k = tanh(U_k x + a_k), or without the tanh
    MoS       ln P = ln (1/K sum_k softmax(W g_k + b))

Published ranks: 34 for softmax and MoC at every K (the width 32, plus one for the bias and one for the log-partition),
and 34, 629, 979, 995, 997 for MoS at K = 1 to 5. Merity's text gives the sizes, but not the distribution of the
contexts, the activation, or the tolerance above which a singular value counts. A *reading* of the text is a choice of
all these settings. `READINGS` lists the measured readings. They use standard normal contexts and the tolerance of Press
et al. (`ranks.press_rank`) with float32's epsilon. Their results for MoS:

* With the tanh, the ranks are lower than published.
* Without the tanh, the ranks are higher than published.
* Without the tanh, and with contexts multiplied by 0.9, the ranks at K = 2 and 3 agree with the published ones within
  the spread of samples. The ranks at K = 4 and 5 differ from the published ones by at most four.

Two other readings are ruled out. With numpy's default tolerance, which is 74 times larger at these sizes, the rank of
MoS stays below 200. If the rank is that of P instead of ln P, a softmax alone has rank 1,000.

Suffixes: S contexts, H hidden size, V vocabulary, K components.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from softmax_bottleneck import ranks
from softmax_bottleneck.measuring.perplexity import chunks_of
from softmax_bottleneck.ranks import Spectrum, robustness
from softmax_bottleneck.ranks.robustness import Truncated
from softmax_bottleneck.ranks.spectra import dense_singular_values
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.progress import Say
from softmax_bottleneck.store.seeds import derive
from softmax_bottleneck.study import Run, Study
from softmax_bottleneck.training import trained
from softmax_bottleneck.training.run_record import run_and_record

Array = NDArray[np.floating[Any]]
Row = dict[str, str | int | float]


@dataclass(frozen=True)
class RankDemo:
    """One reading of the demonstration: a choice of all settings, including those that the text does not state.

    Attributes:
        hidden_size: width H of the context vectors.
        vocabulary_size: number V of words.
        contexts: number S of contexts.
        components: all values of K.
        input_scale: standard deviation of the elements of context vectors, which are normal.
        tanh: True if the components are g_k = tanh(U_k x + a_k), as in Yang et al. 2018; False for no tanh.
        dtype: number type in which ln P is computed, "float32" or "float64".
        probabilities: True if the ranks of P, which are full in every sample, are computed for the first sample.
        draws: number of independent samples of contexts and weights.
        seed: seed from which the random stream of every sample is derived.
    """

    hidden_size: int = 32
    vocabulary_size: int = 1000
    contexts: int = 2048
    components: tuple[int, ...] = (1, 2, 3, 4, 5)
    input_scale: float = 1.0
    tanh: bool = True
    dtype: str = "float32"
    probabilities: bool = True
    draws: int = 5
    seed: int = 0

    @property
    def reading(self) -> str:
        """The settings input_scale, tanh and dtype as text, such as `input_scale=0.9;tanh=False`.

        Settings that have their default values are left out; the text is empty for the default reading.
        """
        keys = ("input_scale", "tanh", "dtype")
        usual = {field.name: field.default for field in fields(self)}
        return ";".join(f"{key}={getattr(self, key)}" for key in keys if getattr(self, key) != usual[key])

    def condition(self, components: int) -> str:
        """Return K (`components`), the sizes and the reading as text, which is the value of `condition` in result rows.

        For the default reading and K = 2, the text is `K=2;H=32;V=1000;S=2048;untrained;equal mixing`.
        """
        sizes = f"K={components};H={self.hidden_size};V={self.vocabulary_size};S={self.contexts}"
        return ";".join(filter(None, [sizes, "untrained;equal mixing", self.reading]))


DEFAULT = RankDemo()
READINGS = (
    DEFAULT,
    replace(DEFAULT, tanh=False, probabilities=False),
    replace(DEFAULT, tanh=False, input_scale=0.9, probabilities=False),
)
# Merity's question: which K gives full rank for a width and a vocabulary? Asked in the reading closest to his ranks.
SWEEP = tuple(
    replace(READINGS[-1], hidden_size=h, vocabulary_size=v, contexts=2 * v, components=(1, 2, 3, 4, 5, 6), draws=1)
    for h in (8, 16, 32)
    for v in (125, 250, 500)
)


TOP_SIZES = ((1000, 8), (1000, 16), (1000, 32), (1000, 64), (8000, 16), (8000, 32), (8000, 64))  # V, d


def rows_of(options: Mapping[str, Any], matrix: Callable[[int], Truncated | None], say: Say) -> list[Row]:
    """Return the result rows of a synthetic experiment: dicts, each with one number (`value`) and its name (`metric`).

    The experiments "rank-demo" and "rank-sweep" measure untrained layers (`rank_demo`), the second only mixtures of
    softmaxes of several widths and vocabularies. The others change a trained model's matrix (`ranks.robustness`):
    "rebuild" by rounding, "noise" and "noise-effective" by noise.

    Args:
        options: options of the experiment: `synthetic`, one of these five names, and `size`, the number of contexts in
            a trained model's matrix.
        matrix: function from the number of contexts to the rank-ten truncation of a trained model's log-probability
            matrix, or to None if no run has such a matrix. For None there are no result rows. The
            experiments on untrained layers do not call the function.
        say: prints a line of progress.

    Raises:
        UserError: the option `synthetic` has an unknown value.
    """
    name = options["synthetic"]
    if name in robustness.EXPERIMENTS:
        truncated = matrix(int(options["size"]))
        return list(robustness.EXPERIMENTS[name](truncated, say)) if truncated else []
    if name == "rank-sweep":
        rows = (row for settings in SWEEP for row in rank_demo(settings, say))
        mixtures = (row for row in rows if (row["model"], row["metric"]) == ("mos", "rank"))
        return [row | {"condition": f"{row['condition']};sweep"} for row in mixtures]
    if name != "rank-demo":
        known = ", ".join(["rank-demo", "rank-sweep", *robustness.EXPERIMENTS])
        raise UserError(f"synthetic: {name!r} is unknown, expected one of: {known}")
    return [row for settings in READINGS for row in rank_demo(settings, say)]


def rank_demo(settings: RankDemo, say: Say) -> Iterator[Row]:
    """Yield the ranks of the three layers for every K and sample, one number per row.

    A row is a dict. `model` is the layer (softmax, moc or mos), `metric` is the name of the number `value`.
    `condition` is a text with K, sizes and reading. `draw` and `seed` are both the number of the sample, from 0.
    `source`, `table` and `dataset` are the same texts in all rows ("measured", "rank table", "synthetic").

    The metric `rank` is comparable to the published ranks: it is the Press rank of ln P, at float32's epsilon.
    `rank_numpy` uses the default tolerance of numpy.linalg.matrix_rank instead: sigma_max max(m, n) eps, with the
    epsilon of `settings.dtype`. `rank_p` and `rank_p_numpy` are the same ranks of P instead of ln P, of the first
    sample alone; they are left out if `settings.probabilities` is False. Within a sample all layers share context
    vectors, word matrix and bias. A larger K keeps the components of the smaller K and adds new ones. A softmax has no
    components, so its ranks are repeated for every K, as in the published table.
    """
    for draw in range(settings.draws):
        with_p = settings.probabilities and draw == 0
        for model, components, spectra in _layers(replace(settings, probabilities=with_p), draw):
            counted = {}
            for metric, spectrum in spectra.items():
                counted[metric] = ranks.press_rank(spectrum.sigma, spectrum.m, spectrum.n).rank
                tolerance = spectrum.sigma_max * max(spectrum.m, spectrum.n) * float(np.finfo(settings.dtype).eps)
                counted[f"{metric}_numpy"] = int((spectrum.sigma > tolerance).sum())
            for metric, value in counted.items():
                yield {
                    **{"source": "measured", "table": "rank table", "dataset": "synthetic", "model": model},
                    **{"condition": settings.condition(components), "metric": metric, "value": value},
                    **{"draw": draw, "seed": draw},
                }
        say(f"rank demo, {settings.reading or 'default reading'}: draw {draw + 1} of {settings.draws}")


# --- layers ---------------------------------------------------------------------------------------------------------
def _layers(settings: RankDemo, draw: int) -> Iterator[tuple[str, int, dict[str, Spectrum]]]:
    """Yield (layer, K, spectra) for the three layers of one sample, by ascending K.

    `draw` is the number of the sample. The spectra have the key "rank" for ln P, and the key "rank_p" for P if
    `settings.probabilities` is True.
    """
    rng = np.random.default_rng(derive(settings.seed, "rank demo", draw))
    x_SH = rng.standard_normal((settings.contexts, settings.hidden_size))
    x_SH = (x_SH * settings.input_scale).astype(settings.dtype)
    weight_VH, bias_V = _linear(settings, rng, settings.vocabulary_size)
    softmax = _linear_in_the_end(settings, x_SH, weight_VH, bias_V)
    latent_sum_SH = np.zeros_like(x_SH)
    p_sum_SV = np.zeros((len(x_SH), len(weight_VH)), settings.dtype)
    for components in range(1, max(settings.components) + 1):
        projection_HH, shift_H = _linear(settings, rng, settings.hidden_size)
        latent_SH = x_SH @ projection_HH.T + shift_H
        if settings.tanh:
            latent_SH = np.tanh(latent_SH)
        latent_sum_SH += latent_SH
        p_sum_SV += np.exp(_log_softmax(latent_SH @ weight_VH.T + bias_V))
        if components in settings.components:
            yield "softmax", components, softmax
            yield "moc", components, _linear_in_the_end(settings, latent_sum_SH / components, weight_VH, bias_V)
            mixture_SV = p_sum_SV / components
            mos = {"rank": _spectrum(np.log(mixture_SV))}
            yield "mos", components, mos | ({"rank_p": _spectrum(mixture_SV)} if settings.probabilities else {})


def _linear(settings: RankDemo, rng: np.random.Generator, outputs: int) -> tuple[Array, Array]:
    """Return weight [outputs, H] and bias [outputs] as PyTorch initialises a linear layer: U(-1/sqrt(H), 1/sqrt(H))."""
    bound = 1 / math.sqrt(settings.hidden_size)
    weight = rng.uniform(-bound, bound, (outputs, settings.hidden_size))
    return weight.astype(settings.dtype), rng.uniform(-bound, bound, outputs).astype(settings.dtype)


def _linear_in_the_end(settings: RankDemo, context_SH: Array, weight_VH: Array, bias_V: Array) -> dict[str, Spectrum]:
    """Return the spectra of a layer that ends in P = softmax(W h + b); every row of `context_SH` is a vector h.

    The key "rank" has the spectrum of ln P, computed from its factors (see `factored_singular_values`). If
    `settings.probabilities` is True, the key "rank_p" has the spectrum of P.
    """
    log_z_S = ranks.log_normalisers(context_SH, weight_VH, bias_V)
    spectra = {"rank": ranks.factored_singular_values(context_SH, weight_VH, bias_V, log_z_S)}
    if settings.probabilities:
        spectra["rank_p"] = _spectrum(np.exp(_log_softmax(context_SH @ weight_VH.T + bias_V)))
    return spectra


def _spectrum(matrix_SV: Array) -> Spectrum:
    """Return the spectrum of a matrix, by SVD if the matrix is float64 and else from its Gram matrix.

    For float64, numpy's default tolerance lies below the noise floor of a Gram matrix, so that an SVD is needed.
    """
    if matrix_SV.dtype == np.float64:
        return dense_singular_values(matrix_SV)
    return ranks.gram_singular_values([matrix_SV], matrix_SV.shape[1])


def _log_softmax(logits_SV: Array) -> Array:
    shifted_SV = logits_SV - logits_SV.max(1, keepdims=True)
    return np.asarray(shifted_SV - np.log(np.exp(shifted_SV).sum(1, keepdims=True)))


# --- tokens at the top of a softmax ---------------------------------------------------------------------------------
def top_tokens(study: Study, runs: Sequence[Run]) -> list[Row]:
    """Return the largest m of every draw (see `ranks.top_tokens`), for trained and for random output matrices.

    Runs whose head is not log-linear are left out. Random matrices have normal entries, the sizes of the trained ones,
    and those in TOP_SIZES. A control has the row lengths and biases of a trained matrix, and random directions. There
    is a row per decided draw; the condition tells how many draws are undecided, if any.
    """
    rows, sizes = list[Row](), set(TOP_SIZES)
    for run in runs:
        with trained.loaded(run, study.store.run_folder(run.path)) as model:
            if model.head.is_log_linear:
                weight_VD, bias_V = (tensor.detach().cpu().numpy() for tensor in model.head.decoder.parameters())
                rows += _top_rows(weight_VD, bias_V, run.dataset, run.model, run.seed)
                seed = derive(run.seed, "top tokens", run.dataset, run.model)
                control_VD, control = ranks.random_directions(weight_VD, seed), f"{run.model}{ranks.RANDOM_DIRECTIONS}"
                rows += _top_rows(control_VD, bias_V, run.dataset, control, run.seed)
                sizes.add(weight_VD.shape)
    for size in sorted(sizes):
        weight_VD = np.random.default_rng(derive(0, "top tokens", *size)).standard_normal(size)
        rows += _top_rows(weight_VD, None, "synthetic", "random", 0)
    return rows


def _top_rows(weight_VD: Array, bias_V: Array | None, dataset: str, model: str, seed: int) -> Iterator[Row]:
    top = ranks.top_tokens(weight_VD, bias_V)
    assert top  # without a limit of time, every draw is begun
    condition = "V={};d={}".format(*weight_VD.shape) + (f";undecided={top.undecided}" if top.undecided else "")
    for draw, (low, high) in enumerate(top.bounds):
        if low == high:
            yield {
                **{"source": "measured", "table": "top tokens", "dataset": dataset, "model": model, "seed": seed},
                **{"condition": condition, "metric": "top_m", "value": low, "draw": draw},
            }


# --- a trained model's matrix ---------------------------------------------------------------------------------------
def truncated(study: Study, runs: Sequence[Run], size: int) -> Truncated | None:
    """Return the rank-ten truncation of the log-probability matrix over the first `size` test contexts of a run.

    The function uses the first of `runs` that did not diverge and whose matrix has more than ten rows and columns. It
    returns None if there is no such run.
    """
    for run in runs:
        folder = study.store.run_folder(run.path)
        if run_and_record(folder)[1]["status"] != "ok":
            continue
        hidden_TD = artefacts.read_npz(folder / "hidden.npz")["hidden_TD"][:size]
        with trained.loaded(run, folder) as model:
            hidden = torch.from_numpy(hidden_TD).to(model.head.decoder.weight.device)
            with torch.no_grad():
                log_p_NV = np.concatenate([chunk.cpu().numpy() for chunk in chunks_of(model.head, hidden)])
        if min(log_p_NV.shape) > robustness.TRUE_RANK:
            return Truncated.of_matrix(log_p_NV, f"{run.dataset}/{run.model}")
    return None
