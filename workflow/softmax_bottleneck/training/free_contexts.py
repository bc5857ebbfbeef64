"""Output heads with free context vectors: the softmax bottleneck without a network below the head.

Every context c has its own vector h_c of D numbers, which is a parameter like the word vectors. The head alone
therefore causes the remaining distance to the true distribution. No network has to compute h_c, and no other context
limits h_c. Nothing can be overfitted, because the loss is the cross-entropy against the true distribution or
against a new sample of that distribution (Ganea et al. 2019, section 5.1, eqs. 1, 11, 12 and 14):

    min over h, W, ...  - sum_c w_c sum_v P*(v|c) log Q(v | h_c, W, ...)

Here w_c is the probability of context c, P* the true distribution, Q the head's distribution, and W, ... the head's
parameters. The optimiser is Adam over all contexts; the step size decays to zero along half a cosine. (The published
settings are unknown.) The heads are those of the language models, with or without a bias per word.

Shapes: N contexts, M words, D width, R rows (contexts) processed at once.
"""

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor, nn
from torch.optim.adam import adam

from softmax_bottleneck import heads, study
from softmax_bottleneck.corpora import known_distributions
from softmax_bottleneck.corpora.known_distributions import KnownDistributions
from softmax_bottleneck.heads.base import Head
from softmax_bottleneck.ranks import gram_singular_values, rank_report
from softmax_bottleneck.store.seeds import derive

START_SCALE = 0.1  # standard deviation; larger start vectors saturate the tanh of mixtures, which then converge slowly
BETAS = (0.9, 0.99)
EPSILON = 1e-12  # of Adam; gradients of rare contexts are small
TOP = (1, 10, 100)  # numbers m of most probable words whose part of the KL is measured
CHUNK_CELLS = {"cpu": 1 << 16, "cuda": 1 << 25}  # contexts x words at once: fits a CPU's cache or a GPU's memory
LARGEST_KL = 700.0  # nats; the perplexity of a larger divergence is beyond float64


@dataclass(frozen=True)
class Recipe:
    """The settings of the optimisation of a fit, from the entry under `fits` of a study's YAML.

    Attributes:
        sample: expected number of (context, word) pairs in the sample of one update, counted over all contexts; 0 means
            that updates use the exact distributions.
        bias: True if every word has a bias.
        updates: number of steps of Adam.
        learning_rate: initial step size.
    """

    sample: int
    bias: bool
    updates: int
    learning_rate: float

    def rate(self, update: int) -> float:
        """Return the step size of an update, counted from 0."""
        return self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * update / self.updates))


class FreeContexts:
    """A head and one free vector per context, with their optimiser, during a fit.

    Args:
        head: name and options of the head, such as Head("mos", {"components": 3}).
        width: width D of context and word vectors.
        shape: (number of contexts N, number of words M).
        bias: True to fit a bias per word; otherwise all biases stay zero.
        seed: seed of the initial values.
        device: device of the computation.

    Attributes:
        parameters: number of fitted parameters, context vectors included.
        rate_factor: number by which the step sizes of the recipe are multiplied (1).
        cpu_s: seconds of processor time of all updates of this fit so far.
    """

    rate_factor = 1.0
    cpu_s = 0.0

    def __init__(
        self, head: study.Head, width: int, shape: tuple[int, int], *, bias: bool, seed: int, device: torch.device
    ) -> None:
        contexts, words = shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(seed, "free contexts", width))  # the same start for all heads
            start_ND = torch.randn(contexts, width) * START_SCALE
            self.head = _build(head, width, words, bias)
        self.contexts_ND = nn.Parameter(start_ND.to(device))
        self.head.to(device).eval()  # dropout is off
        trained: list[Tensor] = [self.contexts_ND, *(p for p in self.head.parameters() if p.requires_grad)]
        self.parameters = sum(parameter.numel() for parameter in trained)
        self._trained = trained
        self.moments = {name: [torch.zeros_like(one) for one in trained] for name in ("exp_avgs", "exp_avg_sqs")}
        self.moments["state_steps"] = [torch.zeros(()) for _ in trained]  # the function of torch counts on the CPU

    def add_gradients(self, mass_RM: Tensor, start: int) -> None:
        """Compute the gradients of the loss -sum(mass_RM * log Q) over the contexts start .. start + R - 1.

        `mass_RM` has the target weight of every (context, word) pair. Gradients of the head's parameters are added to
        those of earlier calls. Gradients of the R context vectors replace those of earlier calls. Between two calls of
        `step`, every context must therefore be passed exactly once.
        """
        rows = slice(start, start + len(mass_RM))
        h_RD = self.contexts_ND.detach()[rows].requires_grad_()
        torch.autograd.backward(-(mass_RM * self.head.log_probs(h_RD)).sum())
        if self.contexts_ND.grad is None:
            self.contexts_ND.grad = torch.zeros_like(self.contexts_ND)
        assert h_RD.grad is not None
        self.contexts_ND.grad[rows] = h_RD.grad

    def step(self, rate: float) -> None:
        """Do one step of Adam, of step size `rate`, with the gradients added since the last step.

        This calls the function of `torch.optim.Adam`, whose class imports torch's compiler: a second of each process.
        """
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in self._trained]
        with torch.no_grad():
            adam(self._trained, gradients, self.moments["exp_avgs"], self.moments["exp_avg_sqs"], [],
                 self.moments["state_steps"], amsgrad=False, beta1=BETAS[0], beta2=BETAS[1], lr=rate, weight_decay=0.0,
                 eps=EPSILON, maximize=False)  # fmt: skip
        for one in self._trained:
            one.grad = None

    @torch.no_grad()
    def log_probs(self, chunk: int) -> Iterator[NDArray[np.float64]]:
        """Yield the log-probabilities of all contexts, in nats, in arrays [`chunk`, M] (the last may be shorter)."""
        for start in range(0, len(self.contexts_ND), chunk):
            yield self.head.log_probs(self.contexts_ND[start : start + chunk]).cpu().double().numpy()

    def state(self) -> dict[str, Any]:
        """Return the state of the fit, for resuming."""
        weights = {"contexts": self.contexts_ND.detach(), "head": self.head.state_dict()}
        return {**weights, "moments": self.moments, "cpu_s": self.cpu_s}

    def load(self, state: dict[str, Any]) -> None:
        """Restore the state that `state` returned."""
        with torch.no_grad():
            self.contexts_ND.copy_(state["contexts"])
        self.head.load_state_dict(state["head"])
        self.cpu_s = state["cpu_s"]
        for name, tensors in self.moments.items():
            torch._foreach_copy_(tensors, state["moments"][name])


def _build(head: study.Head, width: int, words: int, bias: bool) -> Head:
    sizes = {"vocabulary_size": words, "context_size": width, "embedding_size": width}
    built = heads.build(head.name, **sizes, **head.options)
    built.decoder.bias.requires_grad_(bias)  # it is initialised to zero, and stays zero without a bias
    return built


def count_parameters(head: study.Head, width: int, shape: tuple[int, int], bias: bool) -> int:
    """Return the number of fitted parameters: context vectors, word vectors, and the head's other parameters.

    Args:
        head: name and options of the head.
        width: width of context and word vectors.
        shape: (number of contexts, number of words).
        bias: True if every word has a fitted bias.
    """
    with torch.device("meta"):
        built = _build(head, width, shape[1], bias)
    return shape[0] * width + sum(p.numel() for p in built.parameters() if p.requires_grad)


def width_with(head: study.Head, shape: tuple[int, int], bias: bool, most: int) -> int:
    """Return the largest width at which a head has at most `most` fitted parameters.

    Context vectors, word vectors and the head's other parameters are counted. The result is at least 1, even if a head
    of width 1 has more parameters.

    Args:
        head: name and options of the head.
        shape: (number of contexts, number of words).
        bias: True if every word has a fitted bias.
        most: largest number of parameters.
    """
    width = 1
    while count_parameters(head, width + 1, shape, bias) <= most:
        width += 1
    return width


# --- updates --------------------------------------------------------------------------------------------------------
def update(
    fits: list[FreeContexts], known: KnownDistributions, recipe: Recipe, seed: int, number: int, device: torch.device
) -> None:
    """Do one step of Adam, over all contexts, in each of several fits to the same known distributions.

    If `recipe.sample` is positive, a new sample of about this many (context, word) pairs is the target of all fits. If
    `recipe.sample` is 0, the exact distributions are the target. The probabilities of the pairs, or their frequencies
    in the sample, are multiplied by N, so that gradients do not shrink as contexts are added. All fits must be on
    `device`.

    `number` is the number of the update, from 0. The step size depends on `number`, the sample on `number` and `seed`.
    """
    sample_NM = known_distributions.fresh_sample(known, recipe.sample, seed, number) if recipe.sample else None
    rows = chunk_rows(known, device)
    for start in range(0, len(known.p_NM), rows):
        part = slice(start, start + rows)
        mass_RM = known.p_NM[part] * known.weight_N[part, None] if sample_NM is None else sample_NM[part]
        mass = torch.from_numpy((mass_RM * len(known.p_NM)).astype(np.float32)).to(device)
        for fit in fits:
            with _timed(fit):
                fit.add_gradients(mass, start)
    for fit in fits:
        with _timed(fit):
            fit.step(recipe.rate(number) * fit.rate_factor)


@contextmanager
def _timed(fit: FreeContexts) -> Iterator[None]:
    started = time.process_time()
    yield
    fit.cpu_s += time.process_time() - started


def chunk_rows(known: KnownDistributions, device: torch.device) -> int:
    """Return the number of contexts processed at once on a device, at least 1.

    This number times the number of words is at most the device's CHUNK_CELLS, unless one context is already more.
    """
    return max(1, CHUNK_CELLS.get(device.type, CHUNK_CELLS["cuda"]) // known.p_NM.shape[1])


# --- measuring ------------------------------------------------------------------------------------------------------
def distances(fit: FreeContexts, known: KnownDistributions, rows: int) -> dict[str, float]:
    """Return the distances of a fit from the true distributions `known`, computed in chunks of `rows` contexts.

    Returns:
        `kl_nats`: the mean of KL(P*||Q) over contexts, weighted by their probabilities.
        `mode_match`: the probability of the contexts for which Q and P* have the same most probable word (Ganea et al.
            2019, eq. 10).
        `excess_ppl`: the perplexity of Q minus the perplexity of P*, the lowest possible one.
    """
    kl = match = 0.0
    starts = range(0, len(known.p_NM), rows)
    for start, log_q_RM in zip(starts, fit.log_probs(rows), strict=True):
        part = slice(start, start + len(log_q_RM))
        p_RM = known.p_NM[part].astype(np.float64)
        weight_R = known.weight_N[part]
        cross_R = -(p_RM * log_q_RM).sum(1) / p_RM.sum(1)
        kl += float(weight_R @ (cross_R - known.entropy_N[part]))
        match += float(weight_R @ (log_q_RM.argmax(1) == p_RM.argmax(1)))
    best = math.exp(known.entropy_nats)
    ratio = math.exp(kl) if kl < LARGEST_KL else math.inf
    return {"kl_nats": kl, "mode_match": match, "excess_ppl": best * ratio - best}


def top_distances(fit: FreeContexts, known: KnownDistributions, rows: int) -> dict[str, float]:
    """Return the parts of the mean KL(P*||Q) in nats that are due to the m most probable words of P* in each context.

    A word adds P* ln(P* / Q) - P* + Q, which is never negative. The sum over all words is KL, because P* and Q sum to
    one. The keys are `kl_top_1`, `kl_top_10` and `kl_top_100`; an m above the number of words is left out.
    """
    sizes = [m for m in TOP if m < known.p_NM.shape[1]]
    lost = dict.fromkeys(sizes, 0.0)
    for start, log_q_RM in zip(range(0, len(known.p_NM), rows), fit.log_probs(rows), strict=True):
        part = slice(start, start + len(log_q_RM))
        p_RM = known.p_NM[part].astype(np.float64)
        lost_RM = special.xlogy(p_RM, p_RM) - p_RM * log_q_RM - p_RM + np.exp(log_q_RM)  # finite where exp(log Q) is 0
        sorted_RM = np.take_along_axis(lost_RM, np.argsort(-p_RM, 1, kind="stable"), 1)
        for m in sizes:
            lost[m] += float(known.weight_N[part] @ sorted_RM[:, :m].sum(1))
    return {f"kl_top_{m}": nats for m, nats in lost.items()}


def ranks(fit: FreeContexts, known: KnownDistributions, rows: int) -> dict[str, float]:
    """Return the ranks of the matrix log Q [N, M] and the squared error of log Q, from chunks of `rows` contexts.

    Returns:
        A dict {metric: value}. `rank_press` is the Press rank; `rank_press_low` and `rank_press_high` are the same with
        a tolerance 1 % larger and 1 % smaller. `rank_eff_1e-3`, `rank_eff_1e-4` and `rank_eff_1e-5` are effective
        ranks. `squared_error` is the mean of (log P* - log Q)^2 over all contexts and words.

    Raises:
        DataError: log Q is not finite, because Q gives a word the probability zero.
    """
    spectrum = gram_singular_values(fit.log_probs(rows), known.p_NM.shape[1])
    starts = range(0, len(known.p_NM), rows)
    chunks = zip(starts, fit.log_probs(rows), strict=True)
    squares = [((np.log(known.p_NM[start : start + rows]) - log_q_RM) ** 2).sum() for start, log_q_RM in chunks]
    return {**rank_report(spectrum).metrics(), "squared_error": float(np.sum(squares)) / known.p_NM.size}


def law_metrics(known: KnownDistributions) -> dict[str, float]:
    """Return the metrics of the true distributions.

    Returns:
        `entropy_nats`: the mean entropy. `kl_no_context_nats`: the lowest mean KL of a model that does not see the
        context. In addition, all items of `known.facts`, such as `rank_truth`, the exact rank of log P* of a synthetic
        language.
    """
    return {**known.facts, "kl_no_context_nats": known.no_context_nats, "entropy_nats": known.entropy_nats}


def law_ranks(known: KnownDistributions, widths: Iterable[int], bias: bool) -> dict[str, float]:
    """Return the ranks of log P*, and a lower bound on the squared error of a softmax for each width in `widths`.

    The log-probabilities of a softmax of width d have a rank of at most d + 1, or d + 2 with a bias per word (`bias`).
    The bound is the minimum mean squared entry of log P* - X over matrices X of at most this rank (Ganea et al. 2019,
    theorem 1, see `squared_error_bound`).

    Returns:
        A dict {metric: value}. The ranks have the same keys as in the result of `ranks`: `rank_press`,
        `rank_press_low`, `rank_press_high`, and effective ranks such as `rank_eff_1e-3`. The bound of width 16 has the
        key `squared_error_bound_d16`.
    """
    spectrum = known_distributions.spectrum_of(known)
    metrics: dict[str, float] = dict(rank_report(spectrum).metrics())
    for width in widths:
        least = known_distributions.squared_error_bound(spectrum.sigma, width + 1 + bias)
        metrics[f"squared_error_bound_d{width}"] = least / known.p_NM.size
    return metrics
