"""A recorded update equals a normal one bit for bit; on a CPU, with a tape of operations in place of CUDA.

The tape records every operation with its tensors. Playing it repeats them in the same places in memory, as a CUDA graph
does: everything that Python decided or counted between them stays as it was during the recording.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from softmax_bottleneck.training import trainer
from softmax_bottleneck.training.graphs import Results
from softmax_bottleneck.training.optim import ASGD, SGD
from softmax_bottleneck.training.trainer import Trainer
from tiny_runs import CORPUS, changed, make_run
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CPU = torch.device("cpu")


class Tape(TorchDispatchMode):
    """The operations of a recording, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        self.calls.append((torch.is_grad_enabled(), func, args, kwargs or {}, results))
        return results

    def play(self) -> None:
        """Repeat the operations below autograd; some kernels store less if no gradients are needed."""
        with torch._C._AutoDispatchBelowAutograd():
            for with_gradients, func, args, kwargs, results in self.calls:
                with torch.set_grad_enabled(with_gradients):
                    again = func(*args, **kwargs)
                for place, new in zip(tree_leaves(results), tree_leaves(again), strict=True):
                    if isinstance(place, torch.Tensor) and place.data_ptr() != new.data_ptr():
                        place.copy_(new)


class Recording:
    """A trainer's capture function that records on tapes and undoes what the recording has changed."""

    def __init__(self) -> None:
        self.trainer: Trainer | None = None
        self.played = 0

    def __call__(self, work: Callable[[], Results]) -> tuple[Callable[[], object], Results]:
        assert self.trainer is not None
        fixed = [*self.trainer.optimiser.parameters, *tree_leaves(self.trainer.hidden)]
        fixed += getattr(self.trainer.optimiser, "averages", [])
        before, seed = [tensor.detach().clone() for tensor in fixed], self.trainer.dropout.get_state()
        with Tape() as tape:
            results = work()
        with torch.no_grad():
            torch._foreach_copy_(fixed, before)
        self.trainer.dropout.set_state(seed)

        def play() -> None:
            self.played += 1
            tape.play()

        return play, results


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    """Record updates on a CPU, and keep the optimiser's numbers in tensors, as on a GPU."""

    def set_numbers(optimiser: SGD, numbers: list[float]) -> None:
        optimiser.numbers = optimiser.numbers or [torch.empty(()) for _ in numbers]
        for scalar, number in zip(optimiser.numbers, numbers, strict=True):
            scalar.fill_(number)

    found = Recording()
    monkeypatch.setattr(trainer, "RECORDING_DEVICES", {"cpu"})
    monkeypatch.setattr(trainer, "cuda_capture", lambda generator: found)
    monkeypatch.setattr(SGD, "_set", set_numbers)
    yield found


def assert_same_bits(one: Trainer, other: Trainer) -> None:
    """Compare weights, averages, carried states and losses."""
    pairs = [(one.state()[key], other.state()[key]) for key in ("weights", "hidden", "optimiser", "tally")]
    for ours, theirs in zip(*(tree_leaves(side) for side in zip(*pairs, strict=True)), strict=True):
        assert torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs


def go(one: Trainer, updates: int) -> None:
    for _ in range(updates):
        if one.place.chunk == len(one.chunks):
            one.end_epoch(0.0)
        one.update()


@pytest.mark.parametrize("model", ["transformer", "mos", "lms-plif"])
def test_a_replayed_update_equals_a_normal_one_bit_for_bit(recording: Recording, model: str) -> None:
    """Train by SGD, through the switch and the two updates that start the mean, with dropout and varying lengths."""
    options = {"mos": {"components": 2}, "lms-plif": {"knots": 50}}.get(model, {})
    run = make_run("softmax" if model == "transformer" else model, options=options, learning_rate=1.0)
    if model == "transformer":
        other = {"kind": model, "attention_heads": 2, "dropout_embedding": 0.0, "dropout_weight": 0.0}
        run = changed(run, body=dataclasses.replace(run.body, **other))
    called = Trainer(changed(run, graphs=False), CORPUS, CPU)
    recording.trainer = replayed = Trainer(run, CORPUS, CPU)
    assert called.replayed is None
    for _ in range(3 * len(called.chunks)):
        go(called, 1)
        go(replayed, 1)
        assert_same_bits(called, replayed)
    assert isinstance(replayed.optimiser, ASGD) and replayed.optimiser.steps > 4
    assert recording.played > len(called.chunks) // 2
    assert replayed.replayed is not None and not replayed.graphs_refused


def test_a_replayed_run_resumes_from_the_state_of_a_normal_one(recording: Recording) -> None:
    run = make_run(learning_rate=1.0)
    called = Trainer(changed(run, graphs=False), CORPUS, CPU)
    go(called, 3)
    recording.trainer = replayed = Trainer(run, CORPUS, CPU)
    replayed.load(called.state())
    for one in (called, replayed):
        go(one, len(called.chunks) - 3)
    assert_same_bits(called, replayed)


def test_a_failed_capture_is_reported_and_work_continues(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(work: Callable[[], Results]) -> tuple[Callable[[], object], Results]:
        raise RuntimeError("operation not permitted when stream is capturing")

    plain = Trainer(changed(make_run(learning_rate=1.0), graphs=False), CORPUS, CPU)
    monkeypatch.setattr(trainer, "cuda_capture", lambda generator: refuse)
    refused = Trainer(make_run(learning_rate=1.0), CORPUS, CPU)
    generator = refused.dropout
    for one in (plain, refused):
        go(one, 4)
    assert_same_bits(plain, refused)
    assert refused.graphs_refused == "operation not permitted when stream is capturing"
    assert refused.replayed is None and refused.dropout is not generator
    refused.optimise_by(ASGD)
    assert refused.replayed is None
