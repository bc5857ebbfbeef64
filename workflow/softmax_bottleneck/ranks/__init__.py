"""Singular values of log-probability matrices, and the ranks counted from them (docs/ranks.md).

The package needs only NumPy and SciPy. Example: ``from softmax_bottleneck.ranks import press_rank, singular_values``.
"""

from softmax_bottleneck.ranks.argmax import WordsThatWin, words_that_win
from softmax_bottleneck.ranks.counts import (
    PressRank,
    RankReport,
    effective_rank,
    press_rank,
    rank_report,
    spectral_cliff,
)
from softmax_bottleneck.ranks.gradients import GradientShare, gradient_share
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
from softmax_bottleneck.ranks.top_tokens import RANDOM_DIRECTIONS, TopTokens, random_directions, top_tokens
