"""Beside the rank of an output layer: without offsets, how lopsided, which words never win, which gradient passes.

Of a softmax layer from its factors; of other layers and log-probabilities as far as files and memory allow.

Suffixes: N contexts, V words, D width, R rows of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.own_model.matrix import Layer, LayerMatrix, LogProbs, OutputMatrix
from softmax_bottleneck.own_model.question import Question
from softmax_bottleneck.own_model.shards import Floats
from softmax_bottleneck.ranks import (
    GradientShare,
    RankReport,
    Spectrum,
    WordsThatWin,
    anisotropy,
    factored_singular_values,
    gradient_share,
    gram_singular_values,
    rank_report,
    singular_value_entropy,
    words_that_win,
)
from softmax_bottleneck.ranks.spectra import Centring
from softmax_bottleneck.store.errors import DataError
from softmax_bottleneck.store.progress import Say

GRADIENT_CONTEXTS = 2048  # evenly spaced: the share of more of them is the same to three digits
CENTRINGS: tuple[Centring, ...] = ("rows", "both")
ROWS = 4096  # of a matrix on their way into a Gram matrix


@dataclass(frozen=True)
class Saturation:
    """Of the rows of a matrix (Godey et al. 2024): see `ranks.saturation`.

    Attributes:
        entropy: of the singular values divided by their sum, over its largest value ln D: 1 where all are equal.
        anisotropy: mean cosine of the angle between two different rows.
    """

    entropy: float
    anisotropy: float


@dataclass(frozen=True)
class Measures:
    """What was measured; None, or nothing, where it could not be.

    Attributes:
        centred: ranks of the log-probabilities without the means of `rows`, and of `both` rows and columns.
        spectra: their singular values.
        weight, hidden: saturation of the output matrix and of the hidden states.
        words: which words can win.
        gradient: which share of the loss' gradient by the logits passes the output matrix.
    """

    centred: dict[str, RankReport]
    spectra: dict[str, Spectrum]
    weight: Saturation | None = None
    hidden: Saturation | None = None
    words: WordsThatWin | None = None
    gradient: GradientShare | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """All but the spectra."""
        return {
            "centred": {name: report.to_json() for name, report in self.centred.items()},
            "saturation": {
                "weight": self.weight and asdict(self.weight),
                "hidden": self.hidden and asdict(self.hidden),
            },
            "words_that_win": self.words and asdict(self.words),
            "gradient_share": self.gradient and asdict(self.gradient),
        }


@np.errstate(over="ignore", invalid="ignore")
def measures(asked: Question, matrix: LogProbs, limit: int, say: Say) -> Measures:
    """Everything that can be measured of this matrix in `limit` bytes of memory."""
    if isinstance(matrix, Layer | OutputMatrix) and matrix.array_bytes > limit:
        return Measures({}, {}, note="centred ranks, saturation, words and gradients are left out: too little memory")
    if isinstance(matrix, OutputMatrix):
        weight_VD = matrix.weights()
        return Measures({}, {}, _saturation(weight_VD), words=_words(weight_VD, None, asked, say))
    if not isinstance(matrix, Layer):
        return Measures({}, {})
    hidden_ND, weight_VD, bias_V = matrix.arrays(None)
    spectra: dict[str, Spectrum] = {}
    if matrix.pointwise is None:
        nothing_N = np.zeros(len(hidden_ND))  # in the place of log Z, which centring takes away
        for centring in CENTRINGS:
            spectra[centring] = factored_singular_values(hidden_ND, weight_VD, bias_V, nothing_N, centring)
    target_N = _targets(asked, len(hidden_ND), len(weight_VD))
    return Measures(
        {name: rank_report(spectrum) for name, spectrum in spectra.items()},
        spectra,
        _saturation(weight_VD),
        _saturation(hidden_ND),
        _words(weight_VD, bias_V, asked, say),
        None if target_N is None else gradient_share(_gradients(matrix, target_N), weight_VD),
    )


def _saturation(rows_ND: Floats) -> Saturation | None:
    """None where no two rows have a direction."""
    rows_ND = rows_ND[np.einsum("nd,nd->n", rows_ND, rows_ND) > 0] if not rows_ND.any(1).all() else rows_ND
    if len(rows_ND) < 2 or rows_ND.shape[1] < 2:
        return None
    spectrum = gram_singular_values((rows_ND[i : i + ROWS] for i in range(0, len(rows_ND), ROWS)), rows_ND.shape[1])
    sigma = spectrum.with_zeros()
    return Saturation(singular_value_entropy(sigma) / float(np.log(len(sigma))), anisotropy(rows_ND))


def _words(weight_VD: Floats, bias_V: Floats | None, asked: Question, say: Say) -> WordsThatWin | None:
    if not asked.seconds:
        return None
    say(f"words that can never be the most probable one, for {asked.seconds:g} s at most")
    return words_that_win(weight_VD, bias_V, seconds=asked.seconds)


# --- gradients ------------------------------------------------------------------------------------------------------
def _targets(asked: Question, contexts: int, words: int) -> NDArray[np.int64] | None:
    """The word that follows each context, -1 where none does (DataError for a file that says something else)."""
    if not asked.targets:
        return None
    try:
        target_N: NDArray[np.int64] = np.load(asked.targets, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"targets: {asked.targets}: not a sound .npy file ({error}); export it again") from None
    if target_N.shape != (contexts,) or target_N.dtype.kind != "i" or target_N.min() < -1 or target_N.max() >= words:
        raise DataError(
            f"targets: {asked.targets}: {target_N.dtype} of shape {target_N.shape}: expected whole numbers from -1 to"
            f" {words - 1}, one for each of the {contexts} contexts"
        )
    return target_N


def _gradients(matrix: Layer, target_N: NDArray[np.int64]) -> Iterator[Floats]:
    """Gradients [R, V] of -ln P(target) by the logits W h + b: (p - e_target) g'(logits)."""
    known = np.flatnonzero(target_N >= 0)
    some = known[np.unique(np.linspace(0, len(known) - 1, min(len(known), GRADIENT_CONTEXTS)).astype(np.intp))]
    layer = LayerMatrix(*matrix.arrays(some), matrix.pointwise)
    for rows in layer.row_slices():
        gradient_RV, target_R = np.exp(layer.block(rows)), target_N[some[rows]]
        gradient_RV[np.arange(len(target_R)), target_R] -= 1.0
        yield gradient_RV * layer.slopes(rows) if matrix.pointwise else gradient_RV
