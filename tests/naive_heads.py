"""The heads as their papers print them: literal, materialised, numpy float64. Nothing here is shared with the package.

Each takes the logits l [.., V] and the head's options and parameters, and returns unnormalised probabilities.
"""

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
    """Kanai 2018, eq. 11; section 3.3 adds the shift b."""
    return np.exp(logits) * sigmoid(logits + parameters.get("pointwise.shift", 0.0))


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
    "softmax": softmax, "sigsoftmax": sigsoftmax, "gss": gss, "relu": relu, "sigmoid": sigmoid_head, "softcap": softcap,
    "lms": lms, "lms-plif": lms_plif,
}  # fmt: skip


def normalised(weights: Array) -> Array:
    return weights / weights.sum(-1, keepdims=True)


def low_rank(options: Mapping[str, Any], parameters: Parameters, h: Array) -> Array:
    """Godey 2024, section 6: one matrix of rank r, multiplied out."""
    matrix = parameters["decoder.weight"] @ parameters["widen.weight"] @ parameters["narrow.weight"]
    return np.log(normalised(np.exp(h @ matrix.T + parameters["decoder.bias"])))


def mixtape(options: Mapping[str, Any], parameters: Parameters, h: Array) -> Array:
    """Yang 2019, section 3, word by word; leaves of the tree by the bits of their number, first gate first."""
    weight, bias = parameters["decoder.weight"], parameters["decoder.bias"]
    components, last_own = options["components"], len(parameters["gate_vector"]) - 1
    latent = np.tanh(h @ parameters["latent.weight"].T).reshape(len(h), components, -1)
    hidden = np.tanh(h @ parameters["gate_latent.weight"].T).reshape(len(h), components - 1, -1)
    offset = h @ parameters["gate_offset.weight"].T
    logits = np.empty((len(h), len(weight)), h.dtype)
    for n in range(len(h)):
        for v in range(len(weight)):
            row = min(v, last_own)
            gates = sigmoid(hidden[n] @ parameters["gate_vector"][row] + offset[n] + parameters["gate_bias"][row])
            total = 0.0
            for k in range(components):
                prior, node = 1.0, 0
                for bit in format(k, f"0{components.bit_length() - 1}b"):
                    prior *= 1.0 - gates[node] if bit == "1" else gates[node]
                    node = 2 * node + 1 + int(bit)
                total += prior * (weight[v] @ latent[n, k])
            logits[n, v] = total + bias[v]
    return np.log(normalised(np.exp(logits)))


def multi_facet(options: Mapping[str, Any], parameters: Parameters, h: Array) -> Array:
    """Chang and McCallum 2022, section 3, word by word."""
    weight, bias = parameters["decoder.weight"], parameters["decoder.bias"]
    partitions, words = options["partitions"], range(len(weight))
    facets = h @ parameters["latent.weight"].T + parameters["latent.bias"]
    facets = facets.reshape(len(h), -1, weight.shape[1])
    prior = normalised(np.exp(h @ parameters["prior.weight"].T + parameters["prior.bias"]))
    first = np.stack([facets[:, v % partitions] @ weight[v] + bias[v] for v in words], 1)
    p = prior[:, :1] * normalised(np.exp(first))
    for k in range(1, options["components"]):
        p += prior[:, k : k + 1] * normalised(np.exp(facets[:, partitions - 1 + k] @ weight.T + bias))
    return np.log(p)


def doc(options: Mapping[str, Any], parameters: Parameters, h: Array) -> Array:
    """Takase 2018, section 4."""
    weight, bias = parameters["decoder.weight"], parameters["decoder.bias"]
    last = h[:, options["lower_size"] :]
    below = h[:, : options["lower_size"]] if options["lower_size"] else h
    latent = np.tanh(last @ parameters["latent.weight"].T + parameters["latent.bias"])
    lower = np.tanh(below @ parameters["lower_latent.weight"].T + parameters["lower_latent.bias"])
    each = np.concatenate([latent, lower], 1).reshape(len(h), -1, weight.shape[1])
    prior = normalised(np.exp(last @ parameters["prior.weight"].T))
    return np.log((prior[:, :, None] * normalised(np.exp(each @ weight.T + bias))).sum(1))


OTHERS: dict[str, Callable[[Mapping[str, Any], Parameters, Array], Array]] = {
    "low-rank": low_rank, "mixtape": mixtape, "multi-facet": multi_facet, "doc": doc,
}  # fmt: skip
KNOWN = {*POINTWISE, *OTHERS, "moc", "mos"}  # heads with a formula here


def log_probs(
    name: str, options: Mapping[str, Any], pointwise_options: Mapping[str, Any], parameters: Parameters, h: Array
) -> Array:
    """ln P [N, V] of any shipped head; ``parameters`` as the module names them."""
    weight, bias = parameters["decoder.weight"], parameters["decoder.bias"]
    if name in OTHERS:
        return OTHERS[name](options, parameters, h)
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
