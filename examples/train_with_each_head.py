"""Train a small language model with each output head: how to put a head of this package on a model of your own.

Run it from the repository: `PYTHONPATH=workflow python examples/train_with_each_head.py` (seconds on one core).

Shapes: T time steps, B parallel streams, V vocabulary, D hidden width, N = T x B tokens.
"""

from __future__ import annotations

import argparse
import math

import torch
from softmax_bottleneck.heads import GSS, LMS, LMSPLIF, MoC, MoS, ReLU, Sigmoid, SigSoftmax, Softmax
from torch import Tensor, nn

V, D, B, T = 200, 24, 16, 20
SIZES = {"vocabulary_size": V, "context_size": D, "embedding_size": D}
HEADS = {
    "Softmax": lambda: Softmax(**SIZES),
    "SigSoftmax": lambda: SigSoftmax(**SIZES),
    "GSS": lambda: GSS(**SIZES, c=-1.5, k=2.5),
    "ReLU": lambda: ReLU(**SIZES),
    "Sigmoid": lambda: Sigmoid(**SIZES),
    "LMS": lambda: LMS(**SIZES, units=8),
    "LMS-PLIF": lambda: LMSPLIF(**SIZES, knots=1000, w_variance=0.1),
    "MoC": lambda: MoC(**SIZES, components=5),
    "MoS": lambda: MoS(**SIZES, components=5),
    "MoS over SigSoftmax": lambda: MoS(**SIZES, components=5, pointwise="sigsoftmax", prior="sigsoftmax"),
}


class Model(nn.Module):
    """Any body will do: the head only wants its hidden states [T, B, D] and the tokens that follow."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, D)
        self.body = nn.LSTM(D, D)
        self.head = head
        self.embedding.weight = head.decoder.weight  # weight tying; leave it out for an untied output matrix

    def forward(self, tokens_TB: Tensor) -> Tensor:
        """Hidden states [T, B, D]."""
        hidden_TBD, _ = self.body(self.embedding(tokens_TB))
        return hidden_TBD


def corpus(generator: torch.Generator) -> Tensor:
    """Token ids [L, B] of a random language of order one: every word is followed by one of five."""
    followers_V5 = torch.randint(V, (V, 5), generator=generator)
    ids = [torch.randint(V, (B,), generator=generator)]
    for _ in range(40 * T):
        ids.append(followers_V5[ids[-1], torch.randint(5, (B,), generator=generator)])
    return torch.stack(ids)


def train(head: nn.Module, ids_LB: Tensor, steps: int) -> tuple[float, float]:
    """Loss in nats per token of the first step and of the last ones."""
    model = Model(head)
    # The head's groups carry the learning rates some functions need for themselves (LMS-PLIF's slopes).
    groups = [{"params": list(model.body.parameters())}, *head.parameter_groups()]
    optimiser = torch.optim.Adam(groups, lr=0.01)
    losses = []
    for step in range(steps):
        start = step * T % (len(ids_LB) - T)
        loss = head.mean_nll(model(ids_LB[start : start + T]), ids_LB[start + 1 : start + T + 1])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses[0], sum(losses[-10:]) / len(losses[-10:])


@torch.no_grad()
def check(head: nn.Module) -> None:
    """Probabilities sum to one, and the loss is that of the probabilities."""
    head.eval()
    hidden_ND, targets_N = torch.randn(7, D), torch.arange(7)
    log_p_NV = head.log_probs(hidden_ND)
    assert torch.allclose(log_p_NV.logsumexp(1), torch.zeros(7), atol=1e-4)
    assert torch.allclose(head.nll(hidden_ND, targets_N), -log_p_NV[torch.arange(7), targets_N], atol=1e-4)


def main() -> None:
    """Print the loss of every head."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--steps", type=int, default=150, help="training steps per head")
    steps = arguments.parse_args().steps
    ids_LB = corpus(torch.Generator().manual_seed(1))
    print(
        f"{steps} steps each; a model that knows nothing has {math.log(V):.2f} nats, the language itself at most 1.61"
    )
    for name, build in HEADS.items():
        torch.manual_seed(1)
        head = build()
        first, last = train(head, ids_LB, steps)
        check(head)
        print(f"{name:20}  loss {first:.2f} -> {last:.2f} nats per token")


if __name__ == "__main__":
    main()
