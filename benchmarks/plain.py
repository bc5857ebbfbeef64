"""Plain baselines, written from the formulas in the papers: eager, materialised, literal.

A: the training step as published, with its two habits. It calls `gc.collect()` after every micro-batch, and fetches
   statistics of every batch of log-probabilities by `.item()`.
B: the same mathematics without these habits.

Both store the whole [N, V] matrix (MoS: [N, K, V]), compute output functions by their literal formulas in float32 and
leave differentiation to autograd. They share no code with the package; `test_benchmarks.py` compares losses, gradients
and updates of both with the package's.

Suffixes: T time steps, L = T + 1, B sequences, N = T x B tokens, D context width, E embedding width, K components (in
PLIF: knots), R = N x K rows, V words, H hidden units, G = 4 H gates.
"""

import gc
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

State = list[tuple[Tensor, Tensor]]


# --- heads ----------------------------------------------------------------------------------------------------------
class PlainHead(nn.Module):
    """l = W h + b, then a literal output function; `log_probs` is [N, V]."""

    def __init__(self, vocabulary_size: int, context_size: int, embedding_size: int) -> None:
        super().__init__()
        self.decoder = nn.Linear(embedding_size, vocabulary_size)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def log_probs(self, h_NE: Tensor) -> Tensor:
        return self.normalised(self.decoder(h_NE))

    def normalised(self, logits_NV: Tensor) -> Tensor:
        return functional.log_softmax(logits_NV, 1)

    def loss(self, h_TBD: Tensor, target_N: Tensor, statistics: bool) -> Tensor:
        """Return the mean loss in nats; `statistics` fetches minimum, maximum and mean of the log-probabilities."""
        log_p_NV = self.log_probs(h_TBD.flatten(0, -2))
        if statistics:
            for one in (log_p_NV.min(), log_p_NV.max(), log_p_NV.mean()):
                one.item()
        return functional.nll_loss(log_p_NV, target_N)


class PlainSigSoftmax(PlainHead):
    def normalised(self, logits_NV: Tensor) -> Tensor:
        g_NV = torch.exp(logits_NV) * torch.sigmoid(logits_NV)
        return torch.log(g_NV / g_NV.sum(1, keepdim=True))


class PlainGSS(PlainHead):
    def __init__(self, *sizes: int, c: float = -1.5, k: float = 2.5) -> None:
        super().__init__(*sizes)
        self.c, self.k = c, k

    def normalised(self, logits_NV: Tensor) -> Tensor:
        x_NV = logits_NV - self.c
        return functional.log_softmax(self.k * x_NV + self.c - (self.k - 1) * torch.log(torch.exp(x_NV) + 1), 1)


class PlainPLIF(PlainHead):
    def __init__(self, *sizes: int, knots: int = 100_000, bound: float = 20.0) -> None:
        super().__init__(*sizes)
        self.knots, self.bound, self.width = knots, bound, 2 * bound / knots
        self.raw_slope = nn.Parameter(torch.randn(knots) + math.log(math.e - 1))

    def normalised(self, logits_NV: Tensor) -> Tensor:
        slope_K = functional.softplus(self.raw_slope)
        before_K = torch.cumsum(slope_K, 0) - slope_K
        cell_NV = ((logits_NV + self.bound) / self.width).detach().long().clamp(0, self.knots - 1)
        inside_NV = (logits_NV - (-self.bound + cell_NV * self.width)) * slope_K[cell_NV]
        return functional.log_softmax(inside_NV + self.width * before_K[cell_NV], 1)


class _PlainMixture(PlainHead):
    def __init__(self, *sizes: int, components: int = 15) -> None:
        super().__init__(*sizes)
        _, context_size, embedding_size = sizes
        self.components, self.embedding_size = components, embedding_size
        self.prior = nn.Linear(context_size, components, bias=False)
        self.latent = nn.Linear(context_size, components * embedding_size)

    def latents(self, h_ND: Tensor) -> Tensor:
        return torch.tanh(self.latent(h_ND)).view(-1, self.components, self.embedding_size)

    def priors(self, h_ND: Tensor) -> Tensor:
        return functional.softmax(self.prior(h_ND), 1)


class PlainMoS(_PlainMixture):
    def log_probs(self, h_ND: Tensor) -> Tensor:
        logits_RV = self.decoder(self.latents(h_ND).flatten(0, 1))
        each_NKV = functional.softmax(logits_RV, 1).view(len(h_ND), self.components, -1)
        return torch.log((each_NKV * self.priors(h_ND).unsqueeze(2)).sum(1))


class PlainMoC(_PlainMixture):
    def log_probs(self, h_ND: Tensor) -> Tensor:
        mixed_NE = (self.latents(h_ND) * self.priors(h_ND).unsqueeze(2)).sum(1)
        return torch.log(functional.softmax(self.decoder(mixed_NE), 1))


HEADS: dict[str, type[PlainHead]] = {
    "softmax": PlainHead,
    "sigsoftmax": PlainSigSoftmax,
    "gss": PlainGSS,
    "lms-plif": PlainPLIF,
    "moc": PlainMoC,
    "mos": PlainMoS,
}


# --- the model ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Dropouts:
    """Dropout probabilities: whole words, input of the LSTMs, between and after them, and their recurrent weights."""

    words: float = 0.0
    inputs: float = 0.0
    hidden: float = 0.0
    output: float = 0.0
    weights: float = 0.0


class PlainModel(nn.Module):
    """AWD-LSTM with tied word vectors below a plain head."""

    def __init__(self, head: PlainHead, widths: list[int], dropouts: Dropouts) -> None:
        """`widths`: of the word vectors and of each layer's output."""
        super().__init__()
        self.head, self.dropouts = head, dropouts
        self.lstms = nn.ModuleList(nn.LSTM(below, above) for below, above in pairwise(widths))

    def state(self, batch_size: int) -> State:
        shapes = [(1, batch_size, lstm.hidden_size) for lstm in self.lstms]
        like = self.head.decoder.weight
        return [(like.new_zeros(shape), like.new_zeros(shape)) for shape in shapes]

    def forward(self, tokens_TB: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """Return the last layer's output before and after its dropout, and the state."""
        table_VE = self.head.decoder.weight
        if self.dropouts.words:  # a masked copy of the whole table
            table_VE = table_VE * _mask((len(table_VE), 1), self.dropouts.words, table_VE)
        x_TBD = raw_TBD = _locked(functional.embedding(tokens_TB, table_VE), self.dropouts.inputs)
        carried: State = []
        for index, (lstm, hidden) in enumerate(zip(self.lstms, state, strict=True)):
            raw_TBD, after = self._layer(lstm, x_TBD, hidden)
            last = index == len(self.lstms) - 1
            x_TBD = _locked(raw_TBD, self.dropouts.output if last else self.dropouts.hidden)
            carried.append((after[0].detach(), after[1].detach()))
        return raw_TBD, x_TBD, carried

    def _layer(self, lstm: nn.Module, x_TBD: Tensor, hidden: tuple[Tensor, Tensor]) -> Any:
        if not self.dropouts.weights:
            return lstm(x_TBD, hidden)
        raw_GH = lstm.get_parameter("weight_hh_l0")
        dropped = {"weight_hh_l0": functional.dropout(raw_GH, self.dropouts.weights)}
        return torch.func.functional_call(lstm, dropped, (x_TBD, hidden))


def _mask(shape: tuple[int, ...], dropout: float, like: Tensor) -> Tensor:
    return like.new_empty(shape).bernoulli_(1 - dropout) / (1 - dropout)


def _locked(x_TBD: Tensor, dropout: float) -> Tensor:
    return x_TBD * _mask((1, *x_TBD.shape[1:]), dropout, x_TBD) if dropout else x_TBD


# --- the step -------------------------------------------------------------------------------------------------------
class PlainStep:
    """Training updates: A with the habits, B without."""

    def __init__(self, model: PlainModel, learning_rate: float, habits: bool) -> None:
        self.model, self.learning_rate, self.habits = model, learning_rate, habits
        self.optimiser = torch.optim.SGD(model.parameters(), lr=learning_rate, weight_decay=1.2e-6)
        self.total: Tensor | float = 0.0

    def __call__(self, tokens_LB: Tensor, state: State) -> State:
        """Train on the rows of a batch (inputs are all but the last, targets all but the first)."""
        self.optimiser.zero_grad()
        raw_TBD, dropped_TBD, carried = self.model(tokens_LB[:-1], state)
        loss = self.model.head.loss(dropped_TBD, tokens_LB[1:].reshape(-1), self.habits)
        penalties = 2.0 * dropped_TBD.pow(2).mean() + (raw_TBD[1:] - raw_TBD[:-1]).pow(2).mean()
        (loss + penalties).backward()
        self.total = self.total + (loss.item() if self.habits else loss.detach())
        if self.habits:
            gc.collect()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.25)
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning_rate * (len(tokens_LB) - 1) / 70
        self.optimiser.step()
        return carried
