"""What `rank` measures beside ranks, on small layers, against formulas over the whole matrix; models side by side."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.own_model import matrix, question, rank
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError

N, V, D = 90, 70, 6


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, ...]:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    h, w, b = (rng.normal(size=shape).astype(np.float32) for shape in ((N, D), (V, D), (V,)))
    y = rng.integers(-1, V, N)
    np.save("h.npy", h), np.save("w.npy", w), np.save("b.npy", b), np.save("y.npy", y)
    return h.astype(float), w.astype(float), b.astype(float), y


def analyse(**given: Any) -> rank.Result:
    asked = question.question({"hidden": ["h.npy"], "weight": ["w.npy"], "bias": "b.npy"} | given, "test")
    return rank.rank(asked, lambda line: None)


def probabilities(scores: np.ndarray) -> np.ndarray:
    p = np.exp(scores - scores.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def test_centred_spectra_are_those_of_the_centred_matrix(files) -> None:
    h, w, b, _ = files
    log_p = np.log(probabilities(h @ w.T + b))
    rows = log_p - log_p.mean(1, keepdims=True)
    both = rows - rows.mean(0)
    found = analyse().measures
    for name, centred in (("rows", rows), ("both", both)):
        sigma = np.linalg.svd(centred, compute_uv=False)
        np.testing.assert_allclose(found.spectra[name].with_zeros(), sigma, atol=1e-5)
        assert found.centred[name].press.rank == {"rows": D + 1, "both": D}[name]


def test_the_cliff_of_the_block_written_out_is_the_width(files) -> None:
    cliff = analyse().bound.cliff
    assert cliff[0] == D and cliff[1] > 1e3


def test_saturation_is_the_definition(files) -> None:
    h, w, _, _ = files
    found = analyse().measures
    for rows, said in ((w, found.weight), (h, found.hidden)):
        share = np.linalg.svd(rows, compute_uv=False)
        share /= share.sum()
        assert said.entropy == pytest.approx(-(share * np.log(share)).sum() / np.log(D), rel=1e-6)
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        cosines = (unit @ unit.T)[~np.eye(len(rows), dtype=bool)]
        assert said.anisotropy == pytest.approx(cosines.mean(), abs=1e-6)


@pytest.mark.parametrize("head", ["softmax", "softcap:c=2.5", "gss:c=-1.5,k=2.5"])
def test_gradients_are_those_of_the_loss_through_every_head(files, head: str) -> None:
    """With the projection on the columns of W written out, and each head's slope by its formula."""
    h, w, b, y = files
    logits = h @ w.T + b
    scores, slope = {
        "softmax": (logits, 1.0),
        "softcap:c=2.5": (2.5 * np.tanh(logits / 2.5), 1 - np.tanh(logits / 2.5) ** 2),
        "gss:c=-1.5,k=2.5": (
            2.5 * (logits + 1.5) - 1.5 - 1.5 * np.log(np.exp(logits + 1.5) + 1),
            2.5 - 1.5 / (1 + np.exp(-logits - 1.5)),
        ),
    }[head]
    gradient = ((probabilities(scores) - np.eye(V)[y]) * slope)[y >= 0]
    passed = np.linalg.norm(gradient @ w @ np.linalg.pinv(w), axis=1)
    share = passed / np.linalg.norm(gradient, axis=1)
    found = analyse(head=head, targets="y.npy").measures.gradient
    assert found.contexts == (y >= 0).sum()
    assert found.norm_mean == pytest.approx(share.mean(), rel=1e-4)
    assert found.energy_mean == pytest.approx((share**2).mean(), rel=1e-4)
    assert found.norm_pooled**2 == pytest.approx(found.energy_pooled, rel=1e-12)


def test_words_that_never_win_are_found_in_files(files) -> None:
    """No context of many thousand makes one of them the first; and of a hull of two, only its ends win."""
    found = analyse(targets="y.npy").measures.words
    _, w, b, _ = files
    contexts = np.random.default_rng(1).normal(size=(20_000, D)) * np.random.default_rng(2).exponential(3, (20_000, 1))
    assert not set(found.never) & set((contexts @ w.T + b).argmax(1))
    assert found.never and found.unsettled == 0
    assert analyse(seconds=0).measures.words is None
    np.save("line.npy", np.arange(5.0)[:, None] * [[1.0, 2.0]])
    alone = question.question({"weight": ["line.npy"], "weights_only": True}, "test")
    assert rank.rank(alone, lambda line: None).measures.words.never == (1, 2, 3)


@pytest.mark.parametrize("targets", [np.zeros(N), np.zeros(N - 1, int), np.full(N, V), np.full(N, -2)])
def test_targets_that_are_none_are_refused(files, targets: np.ndarray) -> None:
    np.save("bad.npy", targets)
    with pytest.raises(DataError, match=r"targets: bad.npy.*expected whole numbers from -1 to 69"):
        analyse(targets="bad.npy")


def test_memory_that_is_short_leaves_them_out_and_says_so(files, monkeypatch) -> None:
    monkeypatch.setattr(matrix, "BASE_BYTES", 0)
    rng = np.random.default_rng(0)
    np.save("long.npy", rng.normal(size=(900, D)).astype(np.float32))
    np.save("wide.npy", rng.normal(size=(300, D)).astype(np.float32))
    found = analyse(hidden=["long.npy"], weight=["wide.npy"], bias=None, max_memory="25KB")
    assert found.measures.words is None and any("left out: too little memory" in note for note in found.notes())


def test_memory_of_a_softmax_is_that_of_its_factors(tmp_path, monkeypatch) -> None:
    """The peak of everything measured, traced, at a fortieth of 20,000 contexts x 262,144 words and the same shape."""
    monkeypatch.chdir(tmp_path)
    m, n, d = 500, 6554, 640
    rng = np.random.default_rng(0)
    np.save("h.npy", rng.normal(size=(m, d)).astype(np.float32))
    np.save("w.npy", rng.normal(size=(n, d)).astype(np.float32))
    np.save("y.npy", rng.integers(0, n, m))
    asked = question.question({"hidden": ["h.npy"], "weight": ["w.npy"], "targets": "y.npy", "seconds": 1}, "test")
    tracemalloc.start()
    found = rank.rank(asked, lambda line: None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= found.plan.needed
    layer = matrix.Layer.__new__(matrix.Layer)
    layer.n, layer.width, layer.dtype, layer.pointwise = 262_144, 2304, np.dtype(np.float32), None
    layer.base_bytes = matrix.BASE_BYTES
    assert layer.bytes_needed(20_000, 262_144) < 8e9


def test_models_side_by_side(files, capsys) -> None:
    np.save("h2.npy", files[0].astype(np.float32)[:, :3]), np.save("w2.npy", files[1].astype(np.float32)[:, :3])
    assert (
        main(["rank", "--hidden", "h.npy", "--weight", "w.npy", "--targets", "y.npy", "--title", "<b>A", "--out", "a"])
        == 0
    )
    assert main(["rank", "--hidden", "h2.npy", "--weight", "w2.npy", "--title", "<b>A", "--out", "b"]) == 0
    capsys.readouterr()
    assert main(["rank", "--compare", "a/rank.json", "b/rank.json", "--out", "both"]) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"^Press rank +{D + 1} +4$", shown, re.MULTILINE)  # no bias: one less
    assert re.search(rf"^width by the cliff +{D} +3$", shown, re.MULTILINE)
    assert re.search(r"^gradient that passes, norm +0\.\d+ +–$", shown, re.MULTILINE)
    facts = artefacts.read_json(Path("both/comparison.json"))
    assert facts["models"] == ["<b>A", "<b>A (2)"] and facts["table"]["words"] == ["70", "70"]
    page = artefacts.read_text(Path("both/index.html"))
    assert "<b>" not in page and page.count('scope="col"') == 3
    for arguments, words in (
        (["a/rank.json"], "two models or more"),
        (["a/rank.json", "none.json"], "none.json"),
        (["a/rank.json", "b/rank.json", "--seed", "1"], "no other option"),
        (["a/rank.json", "both/comparison.json"], "not a rank.json"),
    ):
        assert main(["rank", "--compare", *arguments]) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1
