"""The row kernels of a GPU in Triton's interpreter, beside float64: losses and gradients of every head that has them.

`make triton-test` installs triton beside the environment and runs this; elsewhere it is skipped.
"""

import dataclasses
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: make triton-test")

import triton
import triton.language as tl
from softmax_bottleneck import heads
from softmax_bottleneck.heads import row_nll, triton_rows
from softmax_bottleneck.heads.base import Head

PLIF = {"knots": 40, "bound": 3.0}  # logits lie beyond the bound too
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("softmax", {}), "sigsoftmax": ("sigsoftmax", {}), "gss": ("gss", {"c": -1.5, "k": 2.5}),
    "gss below one": ("gss", {"c": 0.5, "k": 0.25}), "relu": ("relu", {}), "sigmoid": ("sigmoid", {}),
    "plif": ("lms-plif", PLIF), "plif frozen": ("lms-plif", PLIF | {"frozen": True}), "moc": ("moc", {"components": 3}),
    "mos": ("mos", {"components": 3, "probability_floor": 1e-8}),
    "moss": ("mos", {"components": 2, "pointwise": "sigsoftmax", "prior": "sigsoftmax"}),
    "mos-plif": ("mos", {"components": 2, "pointwise": "lms-plif", "pointwise_options": PLIF}),
}  # fmt: skip
SHAPES = [(3, 3, 1), (5, 3, 7), (2, 17, 130)]  # contexts, width, words; the second with weights


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels are taken, and their programs go over several blocks of words."""
    monkeypatch.setattr(row_nll, "KERNEL_DEVICES", {"cpu"})
    monkeypatch.setattr(triton_rows, "LONGEST_BLOCK", 64)


def build(case: str, width: int, words: int) -> Head:
    torch.manual_seed(7)
    name, options = CASES[case]
    head = heads.build(name, vocabulary_size=words, context_size=width, embedding_size=width, **options).eval()
    with torch.no_grad():
        head.decoder.weight.mul_(20.0)
        head.decoder.bias.normal_()
    return head


def data(rows: int, width: int, words: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(8)
    h_ND = torch.randn(rows, width, generator=generator)
    weight_N = torch.randn(rows, generator=generator)
    return h_ND, torch.randint(words, (rows,), generator=generator), weight_N


def fused(head: Head, h_ND: torch.Tensor, target_N: torch.Tensor, weight_N: torch.Tensor | None) -> list[torch.Tensor]:
    """Losses and the gradients of their sum, or of their weighted sum."""
    h_ND = h_ND.clone().requires_grad_()
    nll_N = head.nll(h_ND, target_N)
    total = head.mean_nll(h_ND, target_N) if weight_N is None else nll_N @ weight_N.to(nll_N.dtype)
    parameters = [parameter for parameter in head.parameters() if parameter.requires_grad]
    return [nll_N.detach(), *torch.autograd.grad(total, [h_ND, *parameters])]


def worst(found: list[torch.Tensor], exact: list[torch.Tensor]) -> list[float]:
    """Largest error of each, relative to the largest number in it."""
    pairs = zip(found, exact, strict=True)
    return [float((one.double() - other).abs().max() / other.abs().max().clamp_min(1e-12)) for one, other in pairs]


@pytest.mark.parametrize(("shape", "weighted"), [(shape, shape == SHAPES[1]) for shape in SHAPES], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_equal_to_float64_like_the_plain_sweep(case, shape, weighted, monkeypatch) -> None:
    rows, width, words = shape
    h_ND, target_N, weight_N = data(rows, width, words)
    arguments = (h_ND, target_N, weight_N if weighted else None)
    head = build(case, width, words)
    found = fused(head, *arguments)
    monkeypatch.setattr(row_nll, "KERNEL_DEVICES", set())
    plain = fused(head, *arguments)
    exact = fused(head.double(), h_ND.double(), *arguments[1:])
    for kernel, sweep in zip(worst(found, exact), worst(plain, exact), strict=True):
        assert kernel <= 8 * sweep + 2e-6


@pytest.mark.parametrize("case", ["softmax", "gss", "plif", "mos"])
def test_the_kernels_run(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []
    plain_launch = triton_rows.RowSweep._launch
    monkeypatch.setattr(triton_rows.RowSweep, "_launch", lambda *a: (launched.append(a[1]), plain_launch(*a)))
    fused(build(case, 4, 11), *data(5, 4, 11)[:2], None)
    assert launched[-2:] == [triton_rows._losses, triton_rows._gradients]


def test_rows_in_another_order_give_the_same_bits() -> None:
    """The gradients of their logits, and sums over all rows: the slopes'."""
    function = build("plif", 3, 70).pointwise.row_function()
    assert function is not None
    logits_RV, target_R1, weight_R1 = torch.randn(12, 70) * 3, torch.randint(70, (12, 1)), torch.rand(12, 1)

    def results(order_R: torch.Tensor) -> list[torch.Tensor]:
        sweep = triton_rows.RowSweep(function, with_gradients=True)
        nll_R1 = sweep.nll_(logits_RV[order_R].clone(), target_R1[order_R])
        grad_RV, _ = sweep.grad_(weight_R1[order_R])
        back_R = order_R.argsort()
        return [nll_R1[back_R], grad_RV[back_R], *sweep.parameter_grads()]

    for one, other in zip(results(torch.arange(12)), results(torch.randperm(12)), strict=True):
        assert one.any()
        assert torch.equal(one, other)


@pytest.mark.parametrize("case", ["softmax", "sigsoftmax", "gss", "relu", "sigmoid", "plif"])
def test_extreme_logits_stay_finite(case: str) -> None:
    head = build(case, 2, 9)
    with torch.no_grad():
        head.decoder.weight.copy_(torch.linspace(-1e4, 1e4, 18).view(9, 2))
    results = fused(head, torch.eye(2), torch.tensor([0, 8]), None)
    assert all(result.isfinite().all() for result in results)


@triton.jit
def _at_least_zero(values):
    tl.store(values, tl.maximum(tl.load(values), 0.0))


@pytest.fixture
def maximum_of_a_gpu() -> None:
    """On a GPU the maximum of NaN and a number is the number; the interpreter of triton 3.7 returns NaN."""
    values = torch.tensor([float("nan")])
    _at_least_zero[(1,)](values)
    if values.isnan().any():
        pytest.skip(f"the interpreter of triton {triton.__version__} returns NaN where a GPU returns a number")


@pytest.mark.usefixtures("maximum_of_a_gpu")
@pytest.mark.parametrize("case", ["softmax", "plif", "plif frozen", "mos-plif"])
def test_a_loss_that_is_not_a_number_shows(case: str) -> None:
    """Also where it is looked up in a table; a cell that does not exist would end the process on a GPU."""
    h_ND, target_N, _ = data(3, 4, 10)
    h_ND[1, 2] = float("nan")
    found, *_ = fused(build(case, 4, 10), h_ND, target_N, None)
    assert found.isnan().tolist() == [False, True, False]


@pytest.mark.usefixtures("maximum_of_a_gpu")
def test_the_cell_of_a_nan_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel finds it, with the interpreter's own comparison of numbers."""
    function = build("plif", 3, 70).pointwise.row_function()
    assert function is not None and function.table_K2 is not None
    guarded_K2 = torch.full((len(function.table_K2) + 2, 2), 7e9)  # what lies beside the table in memory
    guarded_K2[1:-1] = function.table_K2
    sweep = triton_rows.RowSweep(dataclasses.replace(function, table_K2=guarded_K2[1:-1]), with_gradients=True)
    logits_RV = torch.tensor([[0.1, float("nan"), 0.3], [float("-inf"), 0.0, 1e30]])
    nll_R1 = sweep.nll_(logits_RV, torch.tensor([[0], [2]]))
    assert nll_R1.isnan().tolist() == [[True], [False]] and nll_R1[1] == 0.0


@pytest.mark.parametrize("case", ["softmax", "sigsoftmax", "gss", "gss below one"])
def test_an_offset_of_all_logits_costs_no_digits(case: str) -> None:
    """Losses and gradients of logits that are exact in float32, beside float64."""
    head = build(case, 2, 9)
    with torch.no_grad():
        head.decoder.weight.zero_()
        head.decoder.bias.mul_(1024.0).round_().div_(1024.0).add_(1e4)
    found = fused(head, torch.zeros(9, 2), torch.arange(9), None)
    exact = fused(head.double(), torch.zeros(9, 2, dtype=torch.float64), torch.arange(9), None)
    for ours, theirs in zip(found, exact, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("case", CASES)
def test_no_tokens_have_no_gradients(case: str) -> None:
    nll_N, *grads = fused(build(case, 3, 7), *data(0, 3, 7)[:2], None)
    assert nll_N.shape == (0,) and not any(grad.any() for grad in grads)
