"""The fused loss beside autograd over the whole matrix: every way to ask for gradients, its chunks, its memory."""

from typing import Any

import pytest
import torch
from softmax_bottleneck import heads
from softmax_bottleneck.heads import row_nll
from softmax_bottleneck.heads.base import Head
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

N, D, V, K = 23, 6, 31, 4
HEADS: list[tuple[str, dict[str, Any]]] = [
    ("softmax", {}), ("relu", {}), ("lms", {"units": 3}), ("lms-plif", {"knots": 30}), ("mos", {"components": K}),
    ("mos", {"components": K, "pointwise": "lms-plif", "pointwise_options": {"knots": 30, "frozen": True}}),
    ("mos", {"components": K, "probability_floor": 1e-2}), ("moc", {"components": K}),
]  # fmt: skip
each_head = pytest.mark.parametrize(("name", "options"), HEADS, ids=[f"{n}-{i}" for i, (n, _) in enumerate(HEADS)])


def problem(name: str, options: dict[str, Any]) -> tuple[Head, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    head = heads.build(name, vocabulary_size=V, context_size=D, embedding_size=D, **options).double().eval()
    torch.nn.init.normal_(head.decoder.weight)
    return head, torch.randn(N, D, dtype=torch.float64, requires_grad=True), torch.randint(0, V, (N,))


def assert_same_gradients(ours: torch.Tensor, theirs: torch.Tensor, head: Head, h_ND: torch.Tensor) -> None:
    """Compare two scalar losses and their gradients by the contexts and every parameter."""
    inputs = [h_ND, *head.parameters()]
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for a, b in zip(
        torch.autograd.grad(ours, inputs, retain_graph=True, materialize_grads=True, allow_unused=True),
        torch.autograd.grad(theirs, inputs, retain_graph=True, materialize_grads=True, allow_unused=True),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def naive(head: Head, h_ND: torch.Tensor, target_N: torch.Tensor) -> torch.Tensor:
    return -head.log_probs(h_ND).gather(1, target_N.unsqueeze(1)).squeeze(1)


@each_head
def test_every_upstream_gradient(name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Sum, mean twice through one graph, scaled sum, weights of which one is zero, and both outputs at once."""
    monkeypatch.setitem(row_nll.CHUNK_BYTES, "cpu", 5 * 8 * V * K * 6)
    head, h_ND, target_N = problem(name, options)
    expected_N = naive(head, h_ND, target_N)
    weight_N = torch.linspace(-1.0, 2.0, N, dtype=torch.float64)
    weight_N[3] = 0.0
    mean = head.mean_nll(h_ND, target_N)
    for _ in range(2):
        assert_same_gradients(mean, expected_N.mean(), head, h_ND)
    assert_same_gradients(head.nll(h_ND, target_N).mean(), expected_N.mean(), head, h_ND)
    assert_same_gradients(0.3 * head.nll(h_ND, target_N).sum(), 0.3 * expected_N.sum(), head, h_ND)
    assert_same_gradients(head.nll(h_ND, target_N) @ weight_N, expected_N @ weight_N, head, h_ND)
    for weight in (weight_N, torch.ones_like(weight_N)):
        both = head.losses(h_ND, target_N, generator=None)
        expected = 2.0 * expected_N.sum() + expected_N @ weight
        assert_same_gradients(2.0 * both.total + both.nll_N @ weight, expected, head, h_ND)
    with torch.no_grad():
        quiet_N = head.nll(h_ND, target_N)
    assert not quiet_N.requires_grad and torch.equal(quiet_N, head.nll(h_ND, target_N).detach())


class LargestTensor(TorchDispatchMode):
    """Count the elements of the largest tensor that an operator returned."""

    def __init__(self) -> None:
        super().__init__()
        self.num_elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self.num_elements = max([self.num_elements, *sizes])
        return out


@each_head
def test_never_holds_all_scores(name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor above the chunk's budget or the head's own parameters: neither N x K x V nor, in a chunked N, N x V."""
    rows, words = 400, 200
    budget = 8 * words * K * 7 * 10
    monkeypatch.setitem(row_nll.CHUNK_BYTES, "cpu", budget)
    head = heads.build(name, vocabulary_size=words, context_size=D, embedding_size=D, **options).double()
    h_ND = torch.randn(rows, D, dtype=torch.float64, requires_grad=True)
    target_N = torch.randint(0, words, (rows,))
    weight_N = torch.rand(rows, dtype=torch.float64)
    with LargestTensor() as seen:
        head.mean_nll(h_ND, target_N).backward()
        (head.nll(h_ND, target_N) * weight_N).sum().backward()  # the path that sweeps twice
    assert seen.num_elements >= words  # the mode did see the chunks
    assert seen.num_elements <= max(budget // 8, rows * K * D)
    assert seen.num_elements < rows * words


@each_head
def test_losses_alone_take_chunks_that_a_cache_holds(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without gradients, a tensor stays within the smaller budget or the least number of rows."""
    monkeypatch.setattr(row_nll, "CACHED_BYTES", 1)
    monkeypatch.setattr(row_nll, "CACHED_ROWS", 10 * K)
    rows, words = 400, 200
    head = heads.build(name, vocabulary_size=words, context_size=D, embedding_size=D, **options).double().eval()
    h_ND, target_N = torch.randn(rows, D, dtype=torch.float64), torch.randint(0, words, (rows,))
    with torch.no_grad():
        with LargestTensor() as seen:
            nll_N = head.nll(h_ND, target_N)
        torch.testing.assert_close(nll_N, naive(head, h_ND, target_N), rtol=1e-12, atol=1e-12)
    if hasattr(head, "chunk_log_probs"):  # a `ChunkedHead` has no shorter chunks
        return
    assert words <= seen.num_elements <= max(2 * 10 * K * words, rows * K * D) < rows * words  # 2: complex numbers


def test_inputs_changed_before_backward_are_refused() -> None:
    head, h_ND, target_N = problem("softmax", {})
    loss = head.mean_nll(h_ND, target_N)
    with torch.no_grad():
        head.decoder.weight.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
