"""Singular values of log-probability matrices, and the ranks that are read off them (docs/ranks.md).

NumPy and SciPy only: ``from softmax_bottleneck.ranks import press_rank, singular_values``.
"""

from softmax_bottleneck.ranks.counts import PressRank, RankReport, effective_rank, press_rank, rank_report
from softmax_bottleneck.ranks.gram import DeviceGram, Gram, inertia_count
from softmax_bottleneck.ranks.saturation import anisotropy, singular_value_divergence, singular_value_entropy
from softmax_bottleneck.ranks.spectra import (
    centred_singular_values,
    factored_singular_values,
    gram_singular_values,
    log_normalisers,
    nested_singular_values,
    singular_values,
)
from softmax_bottleneck.ranks.spectrum import Spectrum

__all__ = [
    "DeviceGram",
    "Gram",
    "PressRank",
    "RankReport",
    "Spectrum",
    "anisotropy",
    "centred_singular_values",
    "effective_rank",
    "factored_singular_values",
    "gram_singular_values",
    "inertia_count",
    "log_normalisers",
    "nested_singular_values",
    "press_rank",
    "rank_report",
    "singular_value_divergence",
    "singular_value_entropy",
    "singular_values",
]
