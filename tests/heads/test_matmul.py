"""Every backend of the fused loss' matrix products beside torch's own; how a run chooses and keeps its backends."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from softmax_bottleneck import heads
from softmax_bottleneck.heads import matmul
from softmax_bottleneck.heads.matmul import NATIVE, ONEDNN, Factor, MatmulBackends
from softmax_bottleneck.store.errors import UserError

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
    found = matmul.scores(Factor(e_RD), Factor(weight_VD), torch.zeros(WORDS), ONEDNN, lambda: out)
    assert found is out
    torch.testing.assert_close(found, e_RD @ weight_VD.t())


@pytest.mark.parametrize(("gain", "taken"), [(3.0, True), (1.1, False)])
def test_another_backend_must_gain_clearly(monkeypatch: pytest.MonkeyPatch, gain: float, taken: bool) -> None:
    """A false clock makes the other backend `gain` times as fast."""
    now = 0.0

    def product(backend: str) -> None:
        nonlocal now
        now += 1.0 if backend == ONEDNN else 1.0 / gain

    monkeypatch.setattr(matmul.time, "perf_counter", lambda: now)
    assert matmul._faster(product, ONEDNN) == (NATIVE if taken else ONEDNN)


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
    """The `meta` device uses the GPU path."""
    x, y = (Factor(torch.empty(4, 4, dtype=torch.bfloat16, device="meta")) for _ in range(2))
    assert matmul._product(x, y).dtype == torch.float32
    ones = Factor(torch.ones(4, 4).bfloat16())
    assert matmul._product(ones, ones).dtype == torch.bfloat16


def test_parts_of_tf32x3_have_eleven_bits_and_add_up() -> None:
    """Read mantissas with NumPy's frexp: the two parts hold 22 bits of a number, and NaN and infinity stay so."""
    x = torch.randn(1000) * 10.0 ** torch.randint(-20, 20, (1000,))
    main, rest = MatmulBackends(precision="tf32x3").factor(x)
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
        head.matmul_backends = MatmulBackends(NATIVE, NATIVE, NATIVE, precision)
        found = torch.autograd.grad(head.mean_nll(h_ND, target_N), [h_ND, head.decoder.weight])
        return max(float((one - other).norm() / other.norm()) for one, other in zip(found, exact, strict=True))

    double_ND = h_ND.detach().double().requires_grad_()
    twin = copy.deepcopy(head).double()
    exact = torch.autograd.grad(twin.mean_nll(double_ND, target_N), [double_ND, twin.decoder.weight])
    assert error("fp32") < 1e-6 and error("tf32x3") < 1e-6
    assert error("bf16") > 1e-3


def test_a_cpu_refuses_tf32_in_a_line() -> None:
    head = heads.build("softmax", vocabulary_size=9, context_size=4, embedding_size=4)
    with pytest.raises(UserError, match=r"precision: tf32 is arithmetic of NVIDIA GPUs .* cpu: set fp32, or tf32x3"):
        head.select_matmul_backends(10, "tf32")
