"""Saturation of an output layer along training, and the share of the loss gradient that the layer preserves.

Saturation means that a layer uses few of its dimensions. The command `rank` prints the same measures for any model
(docs/ranks.md). The centred rank and the preserved gradient exist for log-linear heads only, because in other heads
more than the word matrix lies between context vectors and log-probabilities.

Suffixes: N contexts, V words, D width, R rows of a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

from softmax_bottleneck.heads.base import Head
from softmax_bottleneck.measuring.perplexity import Contexts, chunks_of
from softmax_bottleneck.ranks import (
    anisotropy,
    factored_singular_values,
    gradient_share,
    rank_report,
    singular_value_entropy,
    singular_values,
)
from softmax_bottleneck.ranks.spectrum import Floats

GRADIENT_CONTEXTS = 1024  # evenly spaced


@torch.no_grad()
def saturation(head: Head, contexts: Contexts) -> dict[str, float]:
    """Return measures of saturation: entropy of the word matrix's spectrum, and anisotropy of the hidden states.

    The entropy is divided by its maximum; the anisotropy is the mean cosine of two hidden states. For log-linear heads
    the result also has the effective rank of the centred log-probabilities (`rank_centred`) and the share of the loss
    gradient's energy that reaches the body (`gradient_passed`).

    Raises:
        DataError: a number is not finite, or fewer than two hidden states are not zero.
    """
    weight_VD, hidden_ND = head.decoder.weight.cpu().numpy(), contexts.hidden.cpu().numpy()
    sigma = singular_values(weight_VD).with_zeros()
    found = {
        "weight_entropy": singular_value_entropy(sigma) / math.log(len(sigma)),
        "hidden_anisotropy": anisotropy(hidden_ND[hidden_ND.any(1)]),
    }
    if not head.is_log_linear:
        return found
    linear_ND, bias_V = (part.cpu().numpy() for part in (head.contexts(contexts.hidden), head.decoder.bias))
    # Centring removes log Z, so it may be zero.
    centred = factored_singular_values(linear_ND, weight_VD, bias_V, np.zeros(len(linear_ND)), "both")
    share = gradient_share(_gradients(head, contexts), weight_VD)
    return found | {
        "rank_centred": rank_report(centred).metrics()["rank_eff_1e-3"],
        "gradient_passed": share.energy_mean,
    }


def _gradients(head: Head, contexts: Contexts) -> Iterator[Floats]:
    """Yield the gradients [R, V] of -ln P(next word) with respect to the logits, at evenly spaced contexts."""
    some_N = torch.linspace(0, len(contexts.hidden) - 1, min(len(contexts.hidden), GRADIENT_CONTEXTS)).long()
    targets = iter(contexts.targets.cpu()[some_N])
    for log_p_RV in chunks_of(head, contexts.hidden[some_N.to(contexts.hidden.device)]):
        gradient_RV = log_p_RV.exp().cpu().numpy()
        gradient_RV[np.arange(len(gradient_RV)), [int(next(targets)) for _ in gradient_RV]] -= 1.0
        yield gradient_RV
