"""Gradient descent against torch.optim, naive loops and SPEC.md 4, bit for bit where the arithmetic is the same."""

import pytest
import torch
from softmax_bottleneck.training.optim import ASGD, SGD

FACTORS = [1.0, 0.5, 1.3, 68 / 70, 1.0, 35 / 70, 1.1, 0.9]


def parameters(dtype=torch.float32, seed: int = 0) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in ((4, 3), (5,), ())]


def set_gradients(tensors, step: int) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for tensor in tensors:
        tensor.grad = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)


@pytest.mark.parametrize("weight_decay", [0.0, 1.2e-3])
@pytest.mark.parametrize("kind", ["sgd", "asgd"])
def test_equals_torch_step_by_step(kind, weight_decay):
    """Two groups with rates of their own, both scaled at every update; ASGD with t0=0, lambd=0."""
    ours, theirs = parameters(), parameters()
    rates = (2.0, 0.02)
    grouped = [[p[:2], p[2:]] for p in (ours, theirs)]
    our_groups, their_groups = ([{"params": ps, "lr": lr} for ps, lr in zip(g, rates, strict=True)] for g in grouped)
    if kind == "sgd":
        mine, reference = SGD(our_groups, weight_decay), torch.optim.SGD(their_groups, weight_decay=weight_decay)
    else:
        mine = ASGD(our_groups, weight_decay)
        reference = torch.optim.ASGD(their_groups, t0=0, lambd=0.0, weight_decay=weight_decay, foreach=False)
    for step, factor in enumerate(FACTORS):
        set_gradients(ours, step)
        set_gradients(theirs, step)
        for group, rate in zip(reference.param_groups, rates, strict=True):
            group["lr"] = rate * factor
        mine.step(factor)
        reference.step()
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one, other), step
        if kind == "asgd":
            for average, other in zip(mine.averages, theirs, strict=True):
                assert torch.equal(average, reference.state[other]["ax"]), step


def test_clip_is_by_global_norm():
    ours, theirs = parameters(), parameters()
    for largest in (0.25, 100.0):
        set_gradients(ours, 1)
        set_gradients(theirs, 1)
        expected = torch.nn.utils.clip_grad_norm_(theirs, largest)
        norm = SGD([{"params": ours, "lr": 1.0}], 0.0).clip(largest)
        flat = torch.cat([p.grad.flatten() for p in ours]).double()
        torch.testing.assert_close(norm, expected)
        assert flat.norm().item() == pytest.approx(min(largest, norm.item()), rel=1e-5)
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one.grad, other.grad)


def test_swapped_shows_the_averages_and_gives_the_weights_back():
    tensors = parameters()
    asgd = ASGD([{"params": tensors, "lr": 1.0}], 0.0)
    for step in range(3):
        set_gradients(tensors, step)
        asgd.step()
    before = [tensor.detach().clone() for tensor in tensors]
    with pytest.raises(KeyError), asgd.swapped():
        assert all(torch.equal(p, a) for p, a in zip(tensors, asgd.averages, strict=True))
        raise KeyError
    assert all(torch.equal(p, b) for p, b in zip(tensors, before, strict=True))
    assert not torch.equal(tensors[0], asgd.averages[0])
