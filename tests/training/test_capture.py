"""An update may be recorded once and replayed (CUDA graphs), so it must not read a tensor's numbers on the host.

The device `meta` shows this without a GPU: its tensors have no numbers, so reading one or sending it to the CPU is an
error, and code that asks for the device takes a GPU's path. Calls that `meta` allows (a scalar made on the CPU and
copied) are searched for in the sources.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from softmax_bottleneck import bodies, heads
from softmax_bottleneck.training.model import LanguageModel
from softmax_bottleneck.training.optim import ASGD
from torch.utils._python_dispatch import TorchDispatchMode

PACKAGE = Path(heads.__file__).parents[1]
ROOMS = sorted([*PACKAGE.glob("heads/*.py"), *PACKAGE.glob("bodies/*.py"), PACKAGE / "training" / "optim.py"])
WAITS = {"item", "cpu", "tolist", "numpy", "nonzero", "new_tensor", "tensor", "equal"}
OUTSIDE_THE_STEP = {
    "matmul.py:_has_onednn": "of a CPU, once a process",
    "row_nll.py:_uniform": "for `nll`; a training step takes `mean_nll`",
}
WORDS, WIDTH = 50, 12
SMALL = {"lms-plif": {"knots": 1000}, "moc": {"components": 3}, "mos": {"components": 3, "probability_floor": 1e-8}}
BODIES = {
    "awd-lstm": {"layers": 1, "dropout_weight": 0.5, "dropout_embedding": 0.1, "embedding_noise": 0.1},
    "transformer": {"layers": 1, "attention_heads": 2},
}


def update(model: LanguageModel, optimiser: ASGD, tokens_TB: torch.Tensor) -> torch.Tensor:
    """Do one update as the trainer does."""
    output = model(tokens_TB[:-1], model.initial_state(tokens_TB.shape[1]))
    loss = model.head.mean_nll(output.dropped_TBD, tokens_TB[1:].reshape(-1))
    optimiser.zero_grad()
    torch.autograd.backward(loss)
    norm = optimiser.clip(0.25)
    assert norm.device.type == "meta"
    optimiser.step(0.5)
    return loss


@pytest.mark.parametrize(
    ("head", "body"), [*((name, "awd-lstm") for name in heads.names()), ("softmax", "transformer")]
)
def test_an_update_reads_no_value_on_the_host(head: str, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "_fused_sgd_", lambda *_, lr, **__: lr.device)  # has no form for `meta`
    sizes = {"context_size": WIDTH, "embedding_size": WIDTH}
    with torch.device("meta"):
        hidden = bodies.build(body, vocabulary_size=WORDS, hidden_size=21, dropout_input=0.1, dropout_hidden=0.1,
                              dropout_output=0.1, **BODIES[body], **sizes)  # fmt: skip
        model = LanguageModel(hidden, heads.build(head, vocabulary_size=WORDS, **sizes, **SMALL.get(head, {})))
        optimiser = ASGD(model.parameter_groups(1.0), 1e-6)
        tokens_TB = torch.zeros(8, 4, dtype=torch.int64)
        for _ in range(3):
            assert update(model, optimiser, tokens_TB).device.type == "meta"
        scalars = list(optimiser.numbers)
        update(model, optimiser, tokens_TB)
        assert all(one is other for one, other in zip(optimiser.numbers, scalars, strict=True))
        assert all(p.grad is not None and p.grad.shape == p.shape for p in optimiser.parameters)


class Unasked(TorchDispatchMode):
    """The names of the operations that run without deterministic mode."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not torch.are_deterministic_algorithms_enabled():
            self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_order_independent_operations_are_not_sorted_first() -> None:
    """A GPU would sort sums of integers and one index per row in deterministic mode, which is off around them."""
    torch.use_deterministic_algorithms(True)
    try:
        with torch.device("meta"), Unasked() as unasked:
            head = heads.build("lms-plif", vocabulary_size=WORDS, context_size=WIDTH, embedding_size=WIDTH, knots=1000)
            h_ND = torch.zeros(8, WIDTH, requires_grad=True)
            torch.autograd.backward(head.mean_nll(h_ND, torch.zeros(8, dtype=torch.int64)))
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert unasked.names - {"mul", "round_", "_to_copy", "neg", "expm1"} == {"index_add_", "scatter_"}


@pytest.mark.parametrize("path", ROOMS, ids=lambda path: path.name)
def test_no_call_waits_for_the_device(path: Path) -> None:
    for function in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)):
        calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
        waiting = {call.attr for call in calls if isinstance(call, ast.Attribute)} & WAITS
        assert not waiting or f"{path.name}:{function.name}" in OUTSIDE_THE_STEP, (function.name, waiting)
