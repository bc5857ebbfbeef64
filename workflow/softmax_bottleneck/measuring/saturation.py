"""Saturation of an output layer along training, and the share of the loss gradient that the layer passes to the body.

Saturation means that a layer uses few of its dimensions. The command `rank` prints the same measures for any model
(docs/ranks.md). Two measures, `rank_centred` and `gradient_passed`, are defined for log-linear heads only. Such a head
computes log-probabilities as log_softmax(W h + b), where h is a context vector and W is the output matrix.

Suffixes: N contexts, V words, D width, R contexts of one chunk.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch

from softmax_bottleneck import ranks
from softmax_bottleneck.heads.base import Head
from softmax_bottleneck.measuring.perplexity import Contexts, chunks_of
from softmax_bottleneck.ranks.spectrum import Floats

GRADIENT_CONTEXTS = 1024  # largest number of contexts whose gradients are computed; they are evenly spaced in the text


@torch.no_grad()
def saturation(head: Head, contexts: Contexts) -> dict[str, float]:
    """Return measures of the saturation of an output layer on a text.

    Args:
        head: the output layer.
        contexts: the hidden states [N, D] of the text that enter the layer, and the next token [N] of each.

    Returns:
        A dict of numbers. The last two keys exist only for a log-linear head:

        * weight_entropy: entropy of the normalised singular values of the output matrix, as a share of the largest
          possible entropy.
        * hidden_anisotropy: mean cosine over all pairs of nonzero hidden states.
        * rank_centred: smallest number of singular values with 99.9 % of the squared norm of the log-probability
          matrix, after its rows and columns are centred (`ranks.counts.effective_rank` with epsilon = 1e-3).
        * gradient_passed: share of the squared norm of the loss gradient (with respect to the logits) that reaches the
          body. It is the mean over at most 1,024 contexts, which `ranks.gradients` calls `energy_mean`.

    Raises:
        DataError: a number is not finite, or there are fewer than two nonzero hidden states.
    """
    weight_VD, hidden_ND = head.decoder.weight.cpu().numpy(), contexts.hidden.cpu().numpy()
    sigma = ranks.singular_values(weight_VD).with_zeros()
    measures = {
        "weight_entropy": ranks.singular_value_entropy(sigma) / math.log(len(sigma)),
        "hidden_anisotropy": ranks.anisotropy(hidden_ND[hidden_ND.any(1)]),
    }
    if not head.is_log_linear:
        return measures
    linear_ND, bias_V = (part.cpu().numpy() for part in (head.contexts(contexts.hidden), head.decoder.bias))
    # Centring the rows subtracts log Z in any case, so zeros may be passed instead of log Z.
    centred = ranks.factored_singular_values(linear_ND, weight_VD, bias_V, np.zeros(len(linear_ND)), "both")
    share = ranks.gradient_share(_gradients(head, contexts), weight_VD)
    return measures | {
        "rank_centred": ranks.rank_report(centred).metrics()["rank_eff_1e-3"],
        "gradient_passed": share.energy_mean,
    }


def _gradients(head: Head, contexts: Contexts) -> Iterator[Floats]:
    """Yield gradients [R, V] of -ln P(next word) with respect to the logits, in chunks of R contexts.

    At most GRADIENT_CONTEXTS contexts are taken, evenly spaced in the text.
    """
    some_N = torch.linspace(0, len(contexts.hidden) - 1, min(len(contexts.hidden), GRADIENT_CONTEXTS)).long()
    targets = iter(contexts.targets.cpu()[some_N])
    for log_p_RV in chunks_of(head, contexts.hidden[some_N.to(contexts.hidden.device)]):
        gradient_RV = log_p_RV.exp().cpu().numpy()
        gradient_RV[np.arange(len(gradient_RV)), [int(next(targets)) for _ in gradient_RV]] -= 1.0
        yield gradient_RV
