"""Measurements of `rank` besides ranks, on small layers, against formulas over the whole matrix."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from softmax_bottleneck.own_model import inputs, log_probs, measures, rank
from softmax_bottleneck.ranks import TopTokens
from softmax_bottleneck.store.errors import DataError
from softmax_bottleneck.study import read

N, V, D = 90, 70, 6


def analyse(**options: Any) -> rank.Result:
    layer = {"hidden": ["h.npy"], "weight": ["w.npy"], "bias": "b.npy"} | options
    return rank.rank(read(inputs.Request, layer, "test"), lambda line: None, Path("export"))


def test_centred_spectra_are_those_of_the_centred_matrix(files) -> None:
    h, w, b, _ = (array.astype(float) for array in files)
    log_p = log_softmax(h @ w.T + b, 1)
    rows = log_p - log_p.mean(1, keepdims=True)
    found = analyse().measures
    for name, centred, width in (("rows", rows, D + 1), ("both", rows - rows.mean(0), D)):
        sigma = np.linalg.svd(centred, compute_uv=False)
        np.testing.assert_allclose(found.spectra[name].with_zeros(), sigma, atol=1e-5)
        assert found.centred[name].press.rank == width


@pytest.mark.parametrize("head", ["softmax", "softcap:c=2.5", "gss:c=-1.5,k=2.5"])
def test_gradients_are_those_of_the_loss_through_every_head(files, head: str) -> None:
    """With the projection on the columns of W written out, and each head's slope by its formula."""
    h, w, b = (array.astype(float) for array in files[:3])
    y, logits = files[3], h @ w.T + b
    scores, slope = {
        "softmax": (logits, 1.0),
        "softcap:c=2.5": (2.5 * np.tanh(logits / 2.5), 1 - np.tanh(logits / 2.5) ** 2),
        "gss:c=-1.5,k=2.5": (
            2.5 * (logits + 1.5) - 1.5 - 1.5 * np.log(np.exp(logits + 1.5) + 1),
            2.5 - 1.5 / (1 + np.exp(-logits - 1.5)),
        ),
    }[head]
    gradient = ((softmax(scores, 1) - np.eye(V)[y]) * slope)[y >= 0]
    share = np.linalg.norm(gradient @ w @ np.linalg.pinv(w), axis=1) / np.linalg.norm(gradient, axis=1)
    found = analyse(head=head, targets="y.npy").measures.gradient
    assert found.contexts == (y >= 0).sum()
    assert found.norm_mean == pytest.approx(share.mean(), rel=1e-4)
    assert found.energy_mean == pytest.approx((share**2).mean(), rel=1e-4)


def test_unargmaxable_words_are_found_in_files(files) -> None:
    """No context of many thousand makes one of them the first; and of words on a line, only the ends win."""
    found, rng = analyse(targets="y.npy").measures.words, np.random.default_rng(1)
    contexts = rng.normal(size=(20_000, D)) * rng.exponential(3, (20_000, 1))
    assert not set(found.never) & set((contexts @ files[1].T + files[2]).argmax(1))
    assert found.never and found.unsettled == 0 and analyse(seconds=0).measures.words is None
    np.save("line.npy", np.arange(5.0)[:, None] * [[1.0, 2.0]])
    alone = read(inputs.Request, {"weight": ["line.npy"], "weights_only": True}, "test")
    assert rank.rank(alone, lambda line: None, Path("export")).measures.words.never == (1, 2, 3)


def test_undecided_draws_leave_two_numbers() -> None:
    rows = dict(rank._measure_rows(measures.Measures(top=TopTokens(((8, 8), (7, 9)), 9, 0.0))))
    expected = "7 to 8 in 95 % of 2 draws (0 to 9), 8 to 9 in half; 1 undecided"
    assert rows["top tokens of any probabilities"] == expected


@pytest.mark.parametrize("dtype", [np.int64, np.int16, np.uint16])
def test_targets_may_be_of_any_whole_type_and_ignore_what_pytorch_ignores(files, dtype: type) -> None:
    y = np.where(files[3] < 0, 5, files[3]) if dtype == np.uint16 else np.where(files[3] < 0, -100, files[3])
    np.save("other.npy", y.astype(dtype))
    found = measures.read_targets("other.npy", N, V)
    assert found.tolist() == np.where(files[3] < 0, 5 if dtype == np.uint16 else -1, files[3]).tolist()


@pytest.mark.parametrize("targets", [np.zeros(N), np.zeros(N - 1, int), np.full(N, V), np.full(N, -2)])
def test_targets_that_are_none_are_rejected_before_the_singular_values(files, monkeypatch, targets: np.ndarray) -> None:
    np.save("bad.npy", targets)
    monkeypatch.delattr(log_probs.Layer, "spectrum")
    with pytest.raises(DataError, match=r"targets: bad.npy.*Expected whole numbers from -1 .* to 69"):
        analyse(targets="bad.npy")
