"""Measures of an output layer besides its rank: centred ranks, saturation, unargmaxable words, gradient share.

Saturation is explained in the class `Saturation`, the gradient share in the module `ranks.gradients`. Unargmaxable
words are never the most probable word, whatever the hidden state. For a softmax layer, all measures are computed from
its hidden states and weights. For other inputs, only some measures or none are computed (see `measure`).

Suffixes: N contexts, V words, D width, R rows of a block.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck import ranks
from softmax_bottleneck.corpora.archives import damage_refused
from softmax_bottleneck.own_model import inputs, log_probs
from softmax_bottleneck.own_model.inputs import Floats, Request
from softmax_bottleneck.ranks.spectra import Centring
from softmax_bottleneck.store.errors import DataError, UserError
from softmax_bottleneck.store.progress import Say

GRADIENT_CONTEXTS = 2048  # evenly spaced contexts; more of them give the same share to three digits
CENTRINGS: tuple[Centring, ...] = ("rows", "both")
IGNORED = -100  # PyTorch's ignore_index
ROWS = 4096  # rows of a matrix that are added to a Gram matrix at once


@dataclass(frozen=True)
class Saturation:
    """Two measures of saturation, the degeneration of the rows of a matrix towards few directions (Godey et al. 2024).

    Attributes:
        entropy: entropy of the distribution that the singular values form when divided by their sum, as a fraction of
            its maximum ln(min(N, D)), where N x D is the matrix's size; 1 if all singular values are equal.
        anisotropy: mean cosine of the angle between two different rows.
    """

    entropy: float
    anisotropy: float


@dataclass(frozen=True)
class Measures:
    """The measures of an output layer.

    A measure that was not computed is None, or {} in the case of `centred` and `spectra`.

    Attributes:
        centred: ranks of the log-probability matrix after centring. The key "rows" stands for centring by rows, the key
            "both" for centring by rows and columns.
        spectra: singular values of the same centred matrices, with the same keys.
        zero_rows: number of rows of zeros at the end of the output matrix, as padding of the vocabulary leaves them.
        weight: saturation of the output matrix.
        hidden: saturation of the hidden states.
        words: counts of the words that can be the most probable word, and ids of the unargmaxable words.
        top: the numbers of tokens that can have any probabilities at the top.
        gradient: the gradient share, which is how much of the loss gradient with respect to the logits reaches the
            body. A `GradientShare` has one number for each of four definitions.
    """

    centred: dict[str, ranks.RankReport] = field(default_factory=dict)
    spectra: dict[str, ranks.Spectrum] = field(default_factory=dict)
    zero_rows: int = 0
    weight: Saturation | None = None
    hidden: Saturation | None = None
    words: ranks.WordsThatWin | None = None
    top: ranks.TopTokens | None = None
    gradient: ranks.GradientShare | None = None


@np.errstate(over="ignore", invalid="ignore")
def measure(request: Request, matrix: log_probs.LogProbs, target_N: NDArray[np.int64] | None, say: Say) -> Measures:
    """Return the measures that the input allows; the others are None or empty.

    * Stored log-probabilities allow no measure.
    * An output matrix alone allows its saturation and the unargmaxable words.
    * Hidden states with an output layer allow all measures, but centred ranks only for a softmax head.

    The gradient share also needs the next words. The search for unargmaxable words takes at most `request.seconds`
    seconds, and is skipped if these are 0. A softmax head is searched for top tokens in the time that remains.

    Args:
        request: the options of the command.
        matrix: the opened input.
        target_N: the word after each context (`read_targets`); None if these are unknown.
        say: prints a line of progress.
    """
    if isinstance(matrix, log_probs.StoredLogProbs):
        return Measures()
    if isinstance(matrix, log_probs.OutputMatrix):
        weight_VD, bias_V, measures = inputs.load(matrix.files), None, Measures()
    else:
        layer = matrix.loaded
        hidden_ND, weight_VD, bias_V = layer.hidden_ND, layer.weight_VD, layer.bias_V
        spectra: dict[str, ranks.Spectrum] = {}
        zero_N = np.zeros(len(hidden_ND))  # instead of log Z, which centring removes
        for centring in CENTRINGS if matrix.pointwise is None else ():
            spectra[centring] = ranks.factored_singular_values(hidden_ND, weight_VD, bias_V, zero_N, centring)
        measures = Measures(
            centred={name: ranks.rank_report(spectrum) for name, spectrum in spectra.items()},
            spectra=spectra,
            hidden=_saturation(hidden_ND),
            gradient=None if target_N is None else ranks.gradient_share(_gradients(layer, target_N), weight_VD),
        )
    words = top = None
    if request.seconds:
        say(f"searching for unargmaxable words and for top tokens, for at most {request.seconds:g} s")
        words = ranks.words_that_win(weight_VD, bias_V, seconds=request.seconds)
        if isinstance(matrix, log_probs.OutputMatrix) or matrix.pointwise is None:
            top = ranks.top_tokens(weight_VD, bias_V, seconds=max(0.0, request.seconds - words.wall_s))
    zero_rows = len(weight_VD) - 1 - int(np.flatnonzero(weight_VD.any(1)).max(initial=-1))
    return replace(measures, zero_rows=zero_rows, weight=_saturation(weight_VD), words=words, top=top)


def _saturation(rows_ND: Floats) -> Saturation | None:
    """Return the saturation of a matrix: the entropy of its singular values and the mean cosine between its rows.

    Rows of zeros have no direction and are removed first. The result is None if fewer than two rows or columns remain.
    """
    if not rows_ND.any(1).all():
        rows_ND = rows_ND[np.einsum("nd,nd->n", rows_ND, rows_ND) > 0]
    if len(rows_ND) < 2 or rows_ND.shape[1] < 2:
        return None
    blocks = (rows_ND[i : i + ROWS] for i in range(0, len(rows_ND), ROWS))
    sigma = ranks.gram_singular_values(blocks, rows_ND.shape[1]).with_zeros()
    return Saturation(ranks.singular_value_entropy(sigma) / float(np.log(len(sigma))), ranks.anisotropy(rows_ND))


def read_targets(path: str, contexts: int, words: int) -> NDArray[np.int64]:
    """Return the index [N] of the word that follows each context, from a .npy file; -1 stands for no next word.

    The file may have -100, PyTorch's `ignore_index`, instead of -1.

    Args:
        path: the file.
        contexts: number of contexts N.
        words: number of words.

    Raises:
        UserError: there is no such file.
        DataError: the file is damaged or no .npy file, or does not hold one valid index per context.
    """
    if not Path(path).is_file():
        raise UserError(f"targets: {path}: no such file")
    with damage_refused(f"targets: {path}: not a sound .npy file", "export it again"), Path(path).open("rb") as file:
        stored_N = np.lib.format.read_array(file, allow_pickle=False)  # np.load accepts .npz as well
    if stored_N.shape != (contexts,) or stored_N.dtype.kind not in "iu":
        problem = f"got {stored_N.dtype} numbers of shape {stored_N.shape}"
    else:
        target_N: NDArray[np.int64] = np.where(stored_N == IGNORED, -1, stored_N).astype(np.int64)
        wrong = np.flatnonzero((target_N < -1) | (target_N >= words))
        if not len(wrong):
            return target_N
        problem = f"entry {wrong[0]} is {stored_N[wrong[0]]}"
    expected = f"whole numbers from -1 (no next word) to {words - 1}, one for each of the {contexts} contexts"
    raise DataError(f"targets: {path}: {problem}. Expected {expected}")


def _gradients(layer: log_probs.LoadedLayer, target_N: NDArray[np.int64]) -> Iterator[Floats]:
    """Yield the gradients [R, V] of -ln P(target) with respect to the logits W h + b, in blocks of contexts.

    Each gradient is (p - e_target) g'(logits). Here p holds the probabilities, e_target is the one-hot target, and g is
    the head's pointwise function (the identity for a softmax). At most GRADIENT_CONTEXTS contexts are used, evenly
    spaced among those with a target. `layer` holds hidden states and output layer; `target_N` is as in `read_targets`.
    """
    known = np.flatnonzero(target_N >= 0)
    some = known[np.unique(np.linspace(0, len(known) - 1, min(len(known), GRADIENT_CONTEXTS)).astype(np.intp))]
    layer = replace(layer, hidden_ND=layer.hidden_ND[some])
    for rows in log_probs.slices(len(some), len(layer.bias_V)):
        gradient_RV, target_R = np.exp(layer.block(rows)), target_N[some[rows]]
        gradient_RV[np.arange(len(target_R)), target_R] -= 1.0
        yield gradient_RV * layer.slopes(rows) if layer.pointwise else gradient_RV
