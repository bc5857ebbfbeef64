"""Saturation of an output layer along training, and the share of the loss gradient that it preserves.

The command `rank` prints the same measures for any model (docs/ranks.md). Centred rank and preserved gradient exist for
log-linear heads only: in other heads more than the word matrix lies between context vectors and log-probabilities.

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
    """Return saturation of word matrix and hidden states; of log-linear heads also centred rank and preserved gradient.

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
    """Return the gradients [R, V] of -ln P(next word) by the logits."""
    some_N = torch.linspace(0, len(contexts.hidden) - 1, min(len(contexts.hidden), GRADIENT_CONTEXTS)).long()
    targets = iter(contexts.targets.cpu()[some_N])
    for log_p_RV in chunks_of(head, contexts.hidden[some_N.to(contexts.hidden.device)]):
        gradient_RV = log_p_RV.exp().cpu().numpy()
        gradient_RV[np.arange(len(gradient_RV)), [int(next(targets)) for _ in gradient_RV]] -= 1.0
        yield gradient_RV
