"""The matrix products of the fused loss: the library of each, and their precisions."""

import copy
import math
import typing

import numpy as np
import pytest
import torch
from softmax_bottleneck import heads
from softmax_bottleneck.heads import matmul
from softmax_bottleneck.heads.matmul import Factor
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import Schedule, costs

ROWS, WIDTH, WORDS = 9, 5, 13


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("name", ["softmax", "gss", "mos"])
def test_every_library_gives_the_materialised_gradients(name: str, onednn: bool, monkeypatch) -> None:
    if onednn and not matmul._has_onednn():
        pytest.skip("this build of torch has no oneDNN product")
    monkeypatch.setattr(matmul, "_has_onednn", lambda: onednn)
    for least in ("ONEDNN_NUMBERS", "ONEDNN_ROWS"):
        monkeypatch.setattr(matmul, least, 0)
    torch.manual_seed(3)
    options = {"components": 2} if name == "mos" else {}
    head = heads.build(name, vocabulary_size=WORDS, context_size=WIDTH, embedding_size=WIDTH, **options).eval()
    h_ND, target_N = torch.randn(ROWS, WIDTH, requires_grad=True), torch.randint(0, WORDS, (ROWS,))
    inputs = [h_ND, *head.parameters()]
    naive = -head.log_probs(h_ND).gather(1, target_N[:, None]).mean()
    expected = torch.autograd.grad(naive, inputs)
    found = torch.autograd.grad(head.mean_nll(h_ND, target_N), inputs)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.is_contiguous() or ours.numel() == 0
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("dtype", "words", "rows", "onednn", "expected"), [
    (torch.float32, 4096, 128, True, 3), (torch.float32, 4096, 127, True, 2), (torch.float32, 4095, 127, True, 1),
    (torch.float32, 4096, 128, False, 0), (torch.float64, 4096, 128, True, 0),
])  # fmt: skip
def test_dtype_and_size_decide_how_many_products_onednn_computes(
    dtype, words, rows, onednn, expected, monkeypatch
) -> None:
    if not matmul._has_onednn():
        pytest.skip("this build of torch has no oneDNN product")
    calls = []
    plain = matmul._onednn
    monkeypatch.setattr(matmul, "_onednn", lambda *factors: (calls.append(1), plain(*factors))[1])
    monkeypatch.setattr(matmul, "_has_onednn", lambda: onednn)
    head = heads.build("softmax", vocabulary_size=words, context_size=16, embedding_size=16).to(dtype)
    head.mean_nll(torch.randn(rows, 16, dtype=dtype), torch.zeros(rows, dtype=torch.int64)).backward()
    assert len(calls) == expected


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
    head.set_precision("bf16")
    found = torch.autograd.grad(head.mean_nll(h_ND, target_N), inputs)
    for ours, theirs in zip(found, exact, strict=True):
        assert ours.dtype == torch.float32
        assert 0 < (ours - theirs).norm() < 4 * torch.finfo(torch.bfloat16).eps * theirs.norm()
    with torch.no_grad():
        assert torch.equal(head.mean_nll(h_ND, target_N), loss)


def test_a_gpu_sums_rounded_factors_in_float32() -> None:
    """The `meta` device uses the GPU path."""
    x, y = (Factor(torch.empty(4, 4, dtype=torch.bfloat16, device="meta")) for _ in range(2))
    assert matmul._product(x, y).dtype == torch.float32
    ones = Factor(torch.ones(4, 4).bfloat16())
    assert matmul._product(ones, ones).dtype == torch.bfloat16


def test_parts_of_tf32x3_have_eleven_bits_and_add_up() -> None:
    """Read mantissas with NumPy's frexp: the two parts hold 22 bits of a number, and NaN and infinity stay so."""
    x = torch.randn(1000) * 10.0 ** torch.randint(-20, 20, (1000,))
    main, rest = matmul.factor(x, "tf32x3")
    assert rest is not None
    for part in (main, rest):
        mantissa = np.frexp(part.numpy())[0] * 2.0**11
        assert (mantissa == mantissa.round()).all()
    assert ((main.double() + rest.double() - x).abs() <= 2.0**-22 * x.abs()).all()
    for number in (math.nan, math.inf, -math.inf):
        assert not torch.isfinite(matmul.rounded_to_tf32(torch.tensor(number)))


@pytest.mark.parametrize("name", ["softmax", "mos"])
def test_tf32x3_is_as_near_to_float64_as_float32(name: str) -> None:
    torch.manual_seed(5)
    options = {"components": 2} if name == "mos" else {}
    head = heads.build(name, vocabulary_size=200, context_size=64, embedding_size=64, **options).eval()
    h_ND, target_N = torch.randn(50, 64, requires_grad=True), torch.randint(0, 200, (50,))

    def error(precision: str) -> float:
        head.set_precision(precision)
        found = torch.autograd.grad(head.mean_nll(h_ND, target_N), [h_ND, head.decoder.weight])
        return max(float((one - other).norm() / other.norm()) for one, other in zip(found, exact, strict=True))

    double_ND = h_ND.detach().double().requires_grad_()
    twin = copy.deepcopy(head).double()
    exact = torch.autograd.grad(twin.mean_nll(double_ND, target_N), [double_ND, twin.decoder.weight])
    assert error("fp32") < 1e-6 and error("tf32x3") < 1e-6
    assert error("bf16") > 1e-3


@pytest.mark.parametrize("precision", ["tf32", "tf32-bf16", "fp8"])
def test_precisions_without_hardware_are_rejected(precision: str) -> None:
    head = heads.build("softmax", vocabulary_size=9, context_size=4, embedding_size=4)
    with pytest.raises(UserError, match=f"precision: .*{precision}"):
        head.set_precision(precision)
    with pytest.raises(UserError, match="no products"):
        heads.build("mixtape", vocabulary_size=9, context_size=4, embedding_size=4).set_precision("tf32-bf16")


def test_every_precision_has_a_name_in_studies_and_a_rate_on_a_gpu() -> None:
    assert typing.get_args(typing.get_type_hints(Schedule)["precision"]) == matmul.PRECISIONS
    assert {precision for device, precision in costs.RATES if device == "gpu"} == set(matmul.PRECISIONS)
    x = torch.randn(5, 7)
    assert torch.equal(matmul.factor(x, "tf32-bf16").main, x.bfloat16())


def test_a_backward_pass_inside_autocast_is_not_rounded() -> None:
    torch.manual_seed(6)
    head = heads.build("softmax", vocabulary_size=70, context_size=30, embedding_size=30)
    head.set_precision("tf32x3")  # its products are plain operators, which autocast would round
    h_ND, target_N, weight_N = torch.randn(20, 30, requires_grad=True), torch.arange(20), torch.rand(20)
    nll_N = head.nll(h_ND, target_N)
    (expected_ND,) = torch.autograd.grad(nll_N @ weight_N, h_ND, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        (found_ND,) = torch.autograd.grad((nll_N * weight_N).sum(), h_ND)
    torch.testing.assert_close(found_ND, expected_ND, rtol=1e-5, atol=1e-6)
