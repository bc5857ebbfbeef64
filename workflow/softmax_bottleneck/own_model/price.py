"""The price of width for a user's own model: nats that output heads of several widths lose on its distributions.

The distributions of some contexts over their most probable words are the truth. Every context has a free vector, so
that only the head limits the fit (`training.free_contexts`). The loss of a softmax of width d is what a better head of
that width could gain at most.

Shapes: N contexts, V words, M kept words.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.own_model.log_probs import Layer
from softmax_bottleneck.store.progress import Say
from softmax_bottleneck.study import Head

# Heads with the step size that is best on natural distributions of tens to hundreds of words.
HEADS = (
    (Head("softmax"), 0.3),
    (Head("mos", {"components": 4, "dropout_latent": 0}), 0.1),
    (Head("multi-facet", {"components": 3, "partitions": 4}), 0.1),
)
WIDTHS = (8, 16, 32, 64, 128)
CONTEXTS, WORDS, UPDATES = 512, 512, 1000  # contexts and words at most


@dataclass(frozen=True)
class PricedHead:
    """A head of one width, with at most as many parameters as a softmax of that width.

    Attributes:
        head: name of the head.
        width: width d of the softmax.
        parameters: number of its fitted parameters, context vectors included.
        nats: mean KL(P*||Q) in nats.
        share: the same as a share of the context-free KL.
    """

    head: str
    width: int
    parameters: int
    nats: float
    share: float


@dataclass(frozen=True)
class PriceCurve:
    """The prices of all heads and widths.

    Attributes:
        contexts, words: numbers N of contexts and M of words.
        kept_mass: mean probability of the kept words before it was divided by their sum.
        context_free_nats: KL of the best model that sees no context, which is the most that a head can lose.
        updates: number of updates of every fit.
        prices: the prices, head by head.
    """

    contexts: int
    words: int
    kept_mass: float
    context_free_nats: float
    updates: int
    prices: list[PricedHead]


def truth_of(layer: Layer) -> tuple[NDArray[np.float32], float]:
    """Return the distributions of evenly spaced contexts over their most probable words, [N, M], and `kept_mass`."""
    rows = np.unique(np.linspace(0, layer.m - 1, CONTEXTS).astype(np.intp))
    blocks = (layer.loaded.block(slice(row, row + 1)) for row in rows.tolist())
    p_NV = np.exp(np.concatenate([block.astype(np.float64) for block in blocks]))
    kept_NM = p_NV[:, np.argsort(-p_NV.mean(0), kind="stable")[:WORDS]]
    mass_N1 = kept_NM.sum(1, keepdims=True)
    return (kept_NM / mass_N1).astype(np.float32), float(mass_N1.mean())


def price(layer: Layer, say: Say) -> PriceCurve:
    """Fit the heads of HEADS at all WIDTHS below N and M to a layer's distributions; `say` prints progress."""
    import torch

    from softmax_bottleneck.corpora.known_distributions import KnownDistributions
    from softmax_bottleneck.training import free_contexts

    p_NM, kept_mass = truth_of(layer)
    known = KnownDistributions(p_NM, np.full(len(p_NM), 1 / len(p_NM)))
    device, priced = torch.device("cpu"), list[PricedHead]()
    for head, rate in HEADS:
        for width in [width for width in WIDTHS if width < min(p_NM.shape)]:
            most = free_contexts.count_parameters(Head("softmax"), width, p_NM.shape, bias=True)
            narrowed = free_contexts.width_with(head, p_NM.shape, bias=True, most=most)
            fit = free_contexts.FreeContexts(head, narrowed, p_NM.shape, bias=True, seed=1, device=device)
            recipe = free_contexts.Recipe(sample=0, bias=True, updates=UPDATES, learning_rate=rate)
            for number in range(UPDATES):
                free_contexts.update([fit], known, recipe, seed=1, number=number, device=device)
            nats = free_contexts.distances(fit, known, rows=len(p_NM))["kl_nats"]
            priced.append(PricedHead(head.name, width, fit.parameters, nats, nats / known.no_context_nats))
            say(f"price of {head.name} at width {width}: {nats:.4f} nats")
    contexts, words = p_NM.shape
    return PriceCurve(contexts, words, kept_mass, known.no_context_nats, UPDATES, priced)
