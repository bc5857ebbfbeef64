"""Every backend of the fused loss' matrix products beside torch's own; how a run chooses and keeps its backends."""

from __future__ import annotations

import itertools

import pytest
import torch
from softmax_bottleneck import heads
from softmax_bottleneck.heads import matmul
from softmax_bottleneck.heads.matmul import NATIVE, ONEDNN, MatmulBackends

ROWS, WIDTH, WORDS = 9, 5, 13


SETTINGS = [MatmulBackends(*chosen) for chosen in itertools.product((NATIVE, ONEDNN), repeat=3)]


@pytest.mark.parametrize("backends", SETTINGS, ids=lambda chosen: "-".join(vars(chosen).values()))
@pytest.mark.parametrize("name", ["softmax", "gss", "mos"])
def test_every_backend_gives_the_materialised_gradients(name: str, backends: MatmulBackends) -> None:
    torch.manual_seed(3)
    options = {"components": 2} if name == "mos" else {}
    head = heads.build(name, vocabulary_size=WORDS, context_size=WIDTH, embedding_size=WIDTH, **options).eval()
    h_ND, target_N = torch.randn(ROWS, WIDTH, requires_grad=True), torch.randint(0, WORDS, (ROWS,))
    inputs = [h_ND, *head.parameters()]
    naive = -head.log_probs(h_ND).gather(1, target_N[:, None]).mean()
    expected = torch.autograd.grad(naive, inputs)
    head.matmul_backends = backends
    found = torch.autograd.grad(head.mean_nll(h_ND, target_N), inputs)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.is_contiguous() or ours.numel() == 0
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_float64_and_a_build_without_onednn_take_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> torch.Tensor:
        raise AssertionError("the library is not there")

    weight_VD = torch.randn(WORDS, WIDTH)
    monkeypatch.setattr(matmul, "_has_onednn", lambda: False)
    monkeypatch.setattr(matmul, "_onednn", refuse)
    out = torch.empty(ROWS, WORDS)
    e_RD = torch.randn(ROWS, WIDTH)
    found = matmul.scores(e_RD, weight_VD, torch.zeros(WORDS), ONEDNN, lambda: out)
    assert found is out
    torch.testing.assert_close(found, e_RD @ weight_VD.t())


def test_small_products_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "_faster", lambda *_: pytest.fail("measured"))
    assert matmul.select_matmul_backends(700, torch.zeros(400, 16)) == matmul.SMALL


@pytest.mark.parametrize(("gain", "taken"), [(3.0, True), (1.1, False)])
def test_another_backend_must_gain_clearly(monkeypatch: pytest.MonkeyPatch, gain: float, taken: bool) -> None:
    """The clock says that all but the default library is `gain` times as fast."""
    now = 0.0

    def product(backend: str) -> None:
        nonlocal now
        now += 1.0 if backend == ONEDNN else 1.0 / gain

    monkeypatch.setattr(matmul.time, "perf_counter", lambda: now)
    assert matmul._faster(product, ONEDNN) == (NATIVE if taken else ONEDNN)


def test_large_products_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "SMALLEST_MEASURED", 1.0)
    monkeypatch.setattr(matmul, "_faster", lambda product, default: (product(NATIVE), product(ONEDNN), "chosen")[2])
    monkeypatch.setattr(matmul, "_has_onednn", lambda: True)
    assert matmul.select_matmul_backends(ROWS, torch.zeros(WORDS, WIDTH)) == MatmulBackends(
        "chosen", "chosen", "chosen"
    )


@pytest.mark.parametrize("name", ["softmax", "gss", "lms-plif", "mos"])
def test_bf16_rounds_the_products_of_training_only(name: str) -> None:
    """Gradients within a few of bfloat16's epsilons of float32's (in norm), other bits, the same loss without them."""
    torch.manual_seed(4)
    options = {"mos": {"components": 2}, "lms-plif": {"knots": 4}}.get(name, {})
    head = heads.build(name, vocabulary_size=300, context_size=40, embedding_size=40, **options).eval()
    h_ND, target_N = torch.randn(64, 40, requires_grad=True), torch.randint(0, 300, (64,))
    inputs = [h_ND, head.decoder.weight, head.decoder.bias]
    exact = torch.autograd.grad(head.mean_nll(h_ND, target_N), inputs)
    with torch.no_grad():
        loss = head.mean_nll(h_ND, target_N)
    head.select_matmul_backends(64, "bf16")
    found = torch.autograd.grad(head.mean_nll(h_ND, target_N), inputs)
    for ours, theirs in zip(found, exact, strict=True):
        assert ours.dtype == torch.float32
        assert 0 < (ours - theirs).norm() < 4 * torch.finfo(torch.bfloat16).eps * theirs.norm()
    with torch.no_grad():
        assert torch.equal(head.mean_nll(h_ND, target_N), loss)


def test_a_gpu_sums_rounded_factors_in_float32() -> None:
    """On `meta`, which takes a GPU's way; there the product of two bfloat16 factors is asked for as float32."""
    x_MK, y_KN = (torch.empty(4, 4, dtype=torch.bfloat16, device="meta") for _ in range(2))
    assert matmul._rounded_product(x_MK, y_KN).dtype == torch.float32
    assert matmul._rounded_product(torch.ones(4, 4).bfloat16(), torch.ones(4, 4).bfloat16()).dtype == torch.bfloat16
