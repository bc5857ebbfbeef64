"""The heads as their papers print them: literal, materialised, numpy float64. Nothing here is shared with the package.

Each takes the logits l [.., V] and the head's options and parameters, and returns unnormalised probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray
Parameters = Mapping[str, Array]


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def softmax(logits: Array, options: Mapping[str, Any], parameters: Parameters) -> Array:
    return np.exp(logits)


def sigsoftmax(logits: Array, options: Mapping[str, Any], parameters: Parameters) -> Array:
    """Kanai 2018, eq. 11."""
    return np.exp(logits) * sigmoid(logits)


def gss(logits: Array, options: Mapping[str, Any], parameters: Parameters) -> Array:
    """Parthiban 2021, eq. 3 and 5, with lmkit's literal ln(exp(x) + 1)."""
    c, k = options["c"], options["k"]
    return np.exp(k * (logits - c) + c - (k - 1.0) * np.log(np.exp(logits - c) + 1.0))


def relu(logits: Array, options: Mapping[str, Any], parameters: Parameters) -> Array:
    return np.maximum(logits, 0.0) + 1e-8


def sigmoid_head(logits: Array, options: Mapping[str, Any], parameters: Parameters) -> Array:
    return sigmoid(logits)


def softcap(logits: Array, options: Mapping[str, Any], parameters: Parameters) -> Array:
    """Gemma 2, section 2, with tanh written out."""
    up, down = np.exp(logits / options["c"]), np.exp(-logits / options["c"])
    return np.exp(options["c"] * (up - down) / (up + down))


def lms(logits: Array, options: Mapping[str, Any], parameters: Parameters) -> Array:
    """Ganea 2019, eq. 14."""
    u, v = (np.log(1.0 + np.exp(parameters[f"pointwise.raw_{name}"])) for name in "uv")
    hidden = sigmoid(u * logits[..., None] + parameters["pointwise.inner_bias"])
    return np.exp((v * hidden).sum(-1) + parameters["pointwise.outer_bias"])


def lms_plif(logits: Array, options: Mapping[str, Any], parameters: Parameters) -> Array:
    """Ganea 2019, section 4: linear interpolation between the values at the knots, the end pieces extended."""
    slopes = np.log(1.0 + np.exp(parameters["pointwise.raw_slope"]))
    knots = np.linspace(-options["bound"], options["bound"], options["knots"] + 1)
    values = np.concatenate([[0.0], np.cumsum(slopes * np.diff(knots))])
    inside = np.interp(logits, knots, values)
    below, above = np.minimum(logits - knots[0], 0.0), np.maximum(logits - knots[-1], 0.0)
    return np.exp(inside + slopes[0] * below + slopes[-1] * above)


POINTWISE: dict[str, Callable[[Array, Mapping[str, Any], Parameters], Array]] = {
    "softmax": softmax,
    "sigsoftmax": sigsoftmax,
    "gss": gss,
    "relu": relu,
    "sigmoid": sigmoid_head,
    "softcap": softcap,
    "lms": lms,
    "lms-plif": lms_plif,
}


def normalised(weights: Array) -> Array:
    return weights / weights.sum(-1, keepdims=True)


def log_probs(
    name: str, options: Mapping[str, Any], pointwise_options: Mapping[str, Any], parameters: Parameters, h: Array
) -> Array:
    """ln P [N, V] of any shipped head; ``parameters`` as the module names them."""
    weight, bias = parameters["decoder.weight"], parameters["decoder.bias"]
    if name in POINTWISE:
        return np.log(normalised(POINTWISE[name](h @ weight.T + bias, options, parameters)))
    g = POINTWISE[options["pointwise"]]
    latent = np.tanh(h @ parameters["latent.weight"].T + parameters["latent.bias"])
    latent = latent.reshape(len(h), options["components"], weight.shape[1])
    prior = normalised(POINTWISE[options["prior"]](h @ parameters["prior.weight"].T, {}, {}))
    if name == "moc":
        mixed = (prior[:, :, None] * latent).sum(1)
        return np.log(normalised(g(mixed @ weight.T + bias, pointwise_options, parameters)))
    each = normalised(g(latent @ weight.T + bias, pointwise_options, parameters))
    return np.log((prior[:, :, None] * each).sum(1) + options["probability_floor"])
