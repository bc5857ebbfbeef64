"""A language model: a body and a head, which usually share word vectors and output weights (tying).

Tying: Inan et al. 2017; Press and Wolf 2017. Benka 2021 does not tie.

Shapes: T time steps, B sequences, D width of the hidden states, V words.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from softmax_bottleneck import bodies, heads
from softmax_bottleneck.bodies.base import Body, BodyOutput, State
from softmax_bottleneck.heads.base import Head
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.seeds import derive
from softmax_bottleneck.study import Run

EMBEDDING = "body.embedding.weight"
DECODER = "head.decoder.weight"


class LanguageModel(nn.Module):
    """A body and a head; if `tied`, the head's matrix replaces the body's word vectors."""

    def __init__(self, body: Body, head: Head, *, tied: bool = True) -> None:
        super().__init__()
        self.body = body
        self.head = head
        self.tied = tied
        self.tie()

    def tie(self) -> None:
        """Let decoder and embedding share one parameter, if the model is tied.

        Call this method again after any operation that replaces parameters.
        """
        if self.tied:
            self.body.embedding.weight = self.head.decoder.weight

    def forward(self, tokens_TB: Tensor, state: State, *, generator: torch.Generator | None = None) -> BodyOutput:
        """Return the body's output for a chunk of tokens; its field `head_input_TBD` is the input of the head.

        `state` is the body's state before the chunk. `generator` gives the random numbers of dropout in train mode. A
        head with `lower_size` > 0 reads [T, B, `lower_size` + D]: on the last axis, the input of the body's last layer
        comes first, then `dropped_TBD`. Any other head reads `dropped_TBD`.
        """
        output = self.body.forward(tokens_TB, state, generator=generator)
        if self.head.lower_size:
            output = output._replace(head_input_TBD=torch.cat([output.below_TBD, output.dropped_TBD], 2))
        return output

    def initial_state(self, batch_size: int) -> State:
        """Return the state before the first token of `batch_size` sequences."""
        return self.body.initial_state(batch_size)

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Return the trained parameters as [{"params": [...], "lr": float}].

        The first group has the given learning rate. Further groups are parameters of the head for which the head itself
        sets a learning rate.
        """
        own = [group for group in self.head.parameter_groups() if "lr" in group]
        claimed = {id(parameter) for group in own for parameter in group["params"]}
        rest = [p for p in self.parameters() if p.requires_grad and id(p) not in claimed]
        own = [{"params": [p for p in group["params"] if p.requires_grad], "lr": group["lr"]} for group in own]
        return [{"params": rest, "lr": learning_rate}, *(group for group in own if group["params"])]


def build(run: Run, vocabulary_size: int, device: torch.device | str = "cpu") -> LanguageModel:
    """Build the untrained model of a run; its random initial weights are determined by the run's seed.

    Weights are sampled on the CPU, so that they are the same for every device. On the device "meta" no weights are
    allocated, which is enough to count parameters.

    Raises:
        UserError: the sizes or options of body and head do not fit together, or an option is unknown or not allowed.
    """
    options = dataclasses.asdict(run.body)
    kind, tied, initialisation = (options.pop(key) for key in ("kind", "tied", "initialisation"))
    sizes = {key: options[key] for key in ("context_size", "embedding_size")}
    meta = torch.device(device).type == "meta"
    with torch.random.fork_rng(devices=[]), torch.device("meta" if meta else "cpu"):
        torch.manual_seed(derive(run.seed, "init"))
        body = bodies.build(kind, vocabulary_size=vocabulary_size, **options)
        lower_size = run.head.options.get("lower_size", 0)
        if lower_size not in (0, body.below_size):
            raise UserError(f"{run.model}: head.lower_size: {lower_size} must be what the body's last layer reads,"
                            f" {body.below_size}, or 0")  # fmt: skip
        sizes["context_size"] += lower_size
        head = heads.build(run.head.name, vocabulary_size=vocabulary_size, **sizes, **run.head.options)
        model = LanguageModel(body, head, tied=tied)
        if initialisation == "xavier":  # every matrix (Glorot and Bengio 2010), as Benka's code does after building
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    nn.init.xavier_uniform_(parameter)
    if not meta:
        model = model.to(device)
        model.tie()  # moving may create separate tensors for the two names
    return model


def count_parameters(model: nn.Module) -> int:
    """Return the number of trainable parameters; a tied matrix counts once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def weights(model: LanguageModel) -> dict[str, Tensor]:
    """Return the state dict of a model; a tied matrix occurs once, with the name `head.decoder.weight`."""
    return {name: tensor for name, tensor in model.state_dict().items() if not (model.tied and name == EMBEDDING)}


def load_weights(model: LanguageModel, tensors: dict[str, Tensor]) -> None:
    """Load the tensors that `weights` returned into `model`.

    Raises:
        KeyError, RuntimeError: the weights are those of another architecture.
    """
    model.load_state_dict({**tensors, EMBEDDING: tensors[DECODER]} if model.tied else tensors)
