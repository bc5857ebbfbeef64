"""An update may be recorded once and replayed (CUDA graphs), so it must not read a tensor's numbers on the host.

The device `meta` shows this without a GPU: its tensors have no numbers, so reading one or sending it to the CPU is an
error, and code that asks for the device takes a GPU's path.
"""

import pytest
import torch
from softmax_bottleneck import bodies, heads
from softmax_bottleneck.training.model import LanguageModel
from softmax_bottleneck.training.optim import ASGD

WORDS, WIDTH = 50, 12
SMALL = {"lms-plif": {"knots": 1000}, "moc": {"components": 3}, "mos": {"components": 3, "probability_floor": 1e-8}}
BODIES = {"awd-lstm": {"layers": 1, "dropout_weight": 0.5, "dropout_embedding": 0.1, "embedding_noise": 0.1},
    "transformer": {"layers": 1, "attention_heads": 2}}  # fmt: skip


def update(model: LanguageModel, optimiser: ASGD, tokens_TB: torch.Tensor) -> torch.Tensor:
    """Do one update as the trainer does."""
    output = model(tokens_TB[:-1], model.initial_state(tokens_TB.shape[1]))
    loss = model.head.mean_nll(output.dropped_TBD, tokens_TB[1:].reshape(-1))
    optimiser.zero_grad()
    torch.autograd.backward(loss)
    assert optimiser.clip(0.25).device.type == "meta"
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
