"""The share of the logit gradient that a head passes on to the context vectors, for known distributions.

Let Q be the head's distribution in a context and P* the true distribution. If the V logits were free parameters and the
next word were w, the gradient of the loss with respect to the logits would be Q - e_w, where e_w is the unit vector of
w. The expectation of this gradient under P* is g = Q - P*.

With a head, the logits are functions of the context vector h. Let J [V, D] be the derivative of log Q with respect to
h. The mean of each column of J is subtracted, because adding a constant to all logits does not change Q. Let P_J be the
projection onto the span of the columns of J. Then P_J g is the part of g that the head passes on. A gradient step on h
changes log Q in the direction -J J^T g. The three metrics of a context are

    gradient_energy = |P_J g|^2 / |g|^2
    gradient_words  = sum_w P*(w) |P_J (Q - e_w)|^2 / |Q - e_w|^2
    gradient_cosine = g . J J^T g / (|g| |J J^T g|)

The reported values are means over contexts, weighted by the probabilities of the contexts. For a softmax, J is the
centred word matrix. Godey and Artzi 2026 measure `gradient_words` of softmax models on texts; 1 - `gradient_words` is
the share that the head suppresses. When h is optimal, J^T g = 0, and `gradient_energy` and `gradient_cosine` are 0 for
every head. The metrics are therefore also measured early in a fit.

Shapes: N contexts, V words, D width.
"""

import copy
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from softmax_bottleneck.corpora.known_distributions import KnownDistributions
from softmax_bottleneck.heads.base import Head
from softmax_bottleneck.training.free_contexts import FreeContexts

Float64 = NDArray[np.float64]

STEP = 1e-4  # of the difference quotients, in float64; context vectors have lengths of some tenths
CELLS = 1 << 22  # limit on entries of all J together; beyond it, only evenly spaced contexts are used
SMALLEST_SINGULAR = 1e-9  # relative to the largest; smaller ones are errors of the difference quotients


@torch.no_grad()
def gradient_shares(fit: FreeContexts, known: KnownDistributions) -> dict[str, float]:
    """Return `gradient_energy`, `gradient_words` and `gradient_cosine` of a fit (formulas in the module's docstring).

    If the matrices J of all contexts have more than CELLS (2^22) entries in total, only evenly spaced contexts are
    used. The result is an empty dict if a derivative of log Q is not finite.
    """
    (count, width), words = fit.contexts_ND.shape, known.p_NM.shape[1]
    some_N = np.unique(np.linspace(0, count - 1, max(1, min(count, CELLS // (words * width)))).astype(np.intp))
    head, h_ND = copy.deepcopy(fit.head).double(), fit.contexts_ND[torch.from_numpy(some_N)].double()
    slope_NVD = np.stack([_slope(head, h_ND, unit_D) for unit_D in torch.eye(width).to(h_ND)], 2)
    if not np.isfinite(slope_NVD).all():
        return {}
    basis_NVD, sigma_ND, _ = np.linalg.svd(slope_NVD - slope_NVD.mean(1, keepdims=True), full_matrices=False)
    basis_NVD *= (sigma_ND > SMALLEST_SINGULAR * sigma_ND[:, :1])[:, None]
    p_NV = known.p_NM[some_N].astype(np.float64)
    p_NV /= p_NV.sum(1, keepdims=True)
    q_NV = head.log_probs(h_ND).exp().cpu().numpy()
    mean = partial(np.average, weights=known.weight_N[some_N])
    energy_N, cosine_N = _of_best(basis_NVD, sigma_ND, q_NV - p_NV)
    return {
        "gradient_energy": float(mean(energy_N)),
        "gradient_words": float(mean(_of_words(basis_NVD, q_NV, p_NV))),
        "gradient_cosine": float(mean(cosine_N)),
    }


def _slope(head: Head, h_ND: torch.Tensor, unit_D: torch.Tensor) -> Float64:
    """Return the derivative [N, V] of log Q when h moves along the unit vector `unit_D`, by central differences."""
    up_NV, down_NV = (head.log_probs(h_ND + sign * STEP * unit_D) for sign in (1.0, -1.0))
    return ((up_NV - down_NV) / (2.0 * STEP)).cpu().numpy()


def _of_best(basis_NVD: Float64, sigma_ND: Float64, gradient_NV: Float64) -> tuple[Float64, Float64]:
    """Return `gradient_energy` [N] and `gradient_cosine` [N], the two metrics of the expected gradient g.

    Both are 0 in a context where P_J g = 0.

    Args:
        basis_NVD: the left singular vectors of each context's J; zero where the singular value is negligible.
        sigma_ND: the singular values of each J.
        gradient_NV: the expected gradient g = Q - P* with respect to free logits.
    """
    along_ND = np.einsum("nvd,nv->nd", basis_NVD, gradient_NV)
    passed_ND = along_ND * sigma_ND**2
    length_N, reach_N = np.linalg.norm(gradient_NV, axis=1), np.linalg.norm(passed_ND, axis=1)
    cosine_N = (along_ND * passed_ND).sum(1) / np.maximum(length_N * reach_N, np.finfo(float).tiny)
    return (along_ND**2).sum(1) / length_N**2, cosine_N


def _of_words(basis_NVD: Float64, q_NV: Float64, p_NV: Float64) -> Float64:
    """Return `gradient_words` [N] of each context.

    The identity used is |P_J (Q - e_w)|^2 = |P_J Q|^2 - 2 (P_J Q)_w + |P_J e_w|^2.

    Args:
        basis_NVD: the left singular vectors of each context's J; zero where the singular value is negligible.
        q_NV: the head's distributions Q.
        p_NV: the true distributions P*.
    """
    along_ND = np.einsum("nvd,nv->nd", basis_NVD, q_NV)
    projected_NV = np.einsum("nvd,nd->nv", basis_NVD, along_ND)
    passed_NV = (along_ND**2).sum(1)[:, None] - 2.0 * projected_NV + (basis_NVD**2).sum(2)
    whole_NV = (q_NV**2).sum(1)[:, None] - 2.0 * q_NV + 1.0
    return np.asarray((p_NV * passed_NV / whole_NV).sum(1))
