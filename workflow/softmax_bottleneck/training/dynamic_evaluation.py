"""Dynamic evaluation: the weights follow a text while it is scored (Krause et al. 2018; used by Kanai 2018, section 4).

Gradient statistics come from one pass over the training text in batches of short segments, weights fixed, with g_b the
gradient of the mean loss of batch b = 1 .. B. Per weight, with m the mean of M over the entries of a tensor,

    scaling `mean` (Krause's code):   M = sqrt(sum_b g_b^2 / B),   R = M / mean over tensors of m
    scaling `sum`  (Yang's code):     M = sqrt(sum_b g_b^2),       R = M / sum  over tensors of m

Then every segment of a text is scored, and its gradient g moves the weights theta away from, and decay moves them back
to, the trained ones theta_0 (RMS with a global prior, Krause et al. 2018, section 4):

    theta <- theta + lambda min(R, 1 / lambda) (theta_0 - theta) - eta g / (M + epsilon)

A text's loss is the mean over its predicted tokens (divisor L - 1), as in both codes.

Evaluation mode throughout: dropout and weight drop are off. Yang's code leaves the network in train mode, which cuDNN's
backward pass asked for, and with it the weight drop of 0.5 on: every segment would be scored, and its gradient made, by
a randomly damaged network. Here the kernel is told that a backward pass will come, so that evaluation mode does.

Stability: M + epsilon > 0; the clip of R keeps the way back from overshooting. A loss that is not finite counts as
infinite, so that no setting of that kind is ever chosen. At eta = 0 the weights do not move by a bit.

Shapes: L rows of a text in B columns (streams), T tokens of a segment.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softmax_bottleneck.bodies.base import State
from softmax_bottleneck.corpora.corpus import Corpus, batchify
from softmax_bottleneck.heads.row_nll import RowNLL
from softmax_bottleneck.study import Dynamic
from softmax_bottleneck.training.model import LanguageModel
from softmax_bottleneck.training.trainer import perplexity

STATIC = 2  # passes with the trained weights as they are: both texts


@dataclass(frozen=True)
class Setting:
    """Step size eta, decay lambda and epsilon of an update."""

    learning_rate: float
    decay: float
    epsilon: float


@dataclass(frozen=True)
class Statistics:
    """M and R of every trained tensor, in the model's order."""

    scale: list[Tensor]
    pull: list[Tensor]


def parameters_of(model: LanguageModel) -> list[Tensor]:
    """What is updated: every trained tensor, a tied one once."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def statistics_of(squares: Sequence[Tensor], batches: int, scaling: str) -> Statistics:
    """M and R from sums of squared gradients over so many batches (`mean` or `sum`, see the module's docstring)."""
    divisor = batches if scaling == "mean" else 1
    scale = [(square / divisor).sqrt() for square in squares]
    level = torch.stack([one.mean() for one in scale])
    norm = level.mean() if scaling == "mean" else level.sum()
    return Statistics(scale, [one / norm for one in scale])


# --- two ways through a text ----------------------------------------------------------------------------------------
class _Reading:
    """A text [L, B] read segment by segment in evaluation mode, with gradients; state carried, graph cut between."""

    def __init__(self, model: LanguageModel, ids_LB: Tensor, segment: int) -> None:
        self.model, self.ids_LB, self.segment = model, ids_LB, segment
        self.parameters = parameters_of(model)
        self.position = 0
        self.hidden: State = model.initial_state(ids_LB.shape[1])

    @property
    def finished(self) -> bool:
        return self.position >= len(self.ids_LB) - 1

    def read(self) -> RowNLL:
        """Losses of the next segment's tokens and their sum, nats, with the graph behind them."""
        stop = min(self.position + self.segment, len(self.ids_LB) - 1)
        output = self.model(self.ids_LB[self.position : stop], self.hidden)
        targets_N = self.ids_LB[self.position + 1 : stop + 1].reshape(-1)
        self.hidden = tuple((h_1BH.detach(), c_1BH.detach()) for h_1BH, c_1BH in output.state)
        self.position = stop
        return self.model.head.losses(output.dropped_TBD, targets_N, generator=None)

    def gradients(self, found: RowNLL) -> list[Tensor]:
        """Gradient of the mean loss of what was read, for every parameter."""
        return list(torch.autograd.grad(found.total / len(found.nll_N), self.parameters))

    def state(self) -> dict[str, Any]:
        return {"position": self.position, "hidden": [list(pair) for pair in self.hidden]}

    def load(self, state: dict[str, Any]) -> None:
        device = self.ids_LB.device
        self.position = state["position"]
        self.hidden = tuple((h_1BH.to(device), c_1BH.to(device)) for h_1BH, c_1BH in state["hidden"])


class Gathering(_Reading):
    """Sums of squared gradients over the batches of the training text."""

    def __init__(self, model: LanguageModel, ids_LB: Tensor, segment: int) -> None:
        super().__init__(model, ids_LB, segment)
        self.squares = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.batches = 0

    def step(self) -> None:
        """One batch."""
        gradients = self.gradients(self.read())
        torch._foreach_addcmul_(self.squares, gradients, gradients)
        self.batches += 1

    def state(self) -> dict[str, Any]:
        """For the resume state."""
        return super().state() | {"squares": self.squares, "batches": self.batches}

    def load(self, state: dict[str, Any]) -> None:
        """Take over what `state` returned."""
        super().load(state)
        torch._foreach_copy_(self.squares, state["squares"])
        self.batches = state["batches"]


class Scoring(_Reading):
    """A text scored by weights that stay as they are, by the same kernels as where they do not."""

    def __init__(self, model: LanguageModel, ids_LB: Tensor, segment: int) -> None:
        super().__init__(model, ids_LB, segment)
        self.total = torch.zeros((), dtype=torch.float64, device=ids_LB.device)

    def score(self) -> RowNLL:
        """Read one segment and add up its losses."""
        found = self.read()
        self.total += found.nll_N.detach().sum(dtype=torch.float64)
        return found

    def step(self) -> None:
        """One segment."""
        self.score()

    def mean(self) -> float:
        """Loss per predicted token so far, nats; infinite when it is not a number."""
        loss = self.total.item() / (self.position * self.ids_LB.shape[1])
        return loss if math.isfinite(loss) else math.inf

    def leave(self) -> None:
        """Nothing to put back."""

    def state(self) -> dict[str, Any]:
        """For the resume state."""
        return super().state() | {"total": self.total}

    def load(self, state: dict[str, Any]) -> None:
        """Take over what `state` returned."""
        super().load(state)
        self.total.copy_(state["total"])


class Following(Scoring):
    """A text scored while the weights follow it; `leave` puts the trained ones back."""

    def __init__(self, model: LanguageModel, ids_LB: Tensor, segment: int, found: Statistics, setting: Setting) -> None:
        super().__init__(model, ids_LB, segment)
        self.trained = [parameter.detach().clone() for parameter in self.parameters]
        decay = setting.decay  # times min(R, 1 / decay) is min(decay R, 1)
        self.way_back = [(pull * decay).clamp_(max=1.0) for pull in found.pull]
        self.pace = [setting.learning_rate / (scale + setting.epsilon) for scale in found.scale]

    @torch.no_grad()
    def _update(self, gradients: list[Tensor]) -> None:
        torch._foreach_lerp_(self.parameters, self.trained, self.way_back)
        torch._foreach_addcmul_(self.parameters, gradients, self.pace, value=-1.0)

    def step(self) -> None:
        """Score one segment, then learn from it."""
        self._update(self.gradients(self.score()))

    @torch.no_grad()
    def leave(self) -> None:
        """Back to the trained weights."""
        torch._foreach_copy_(self.parameters, self.trained)

    def state(self) -> dict[str, Any]:
        """For the resume state."""
        return super().state() | {"weights": [p.detach() for p in self.parameters]}

    @torch.no_grad()
    def load(self, state: dict[str, Any]) -> None:
        """Take over what `state` returned."""
        super().load(state)
        torch._foreach_copy_(self.parameters, state["weights"])


# --- the whole evaluation -------------------------------------------------------------------------------------------
class Evaluator:
    """Statistics, tuning on the validation text, and the scores of both texts, in resumable steps.

    Every setting is tried on the first `tune_tokens` tokens of the validation text; the best one then reads all of it.
    If the trained weights alone score better there, the step size becomes 0: the result is never worse than they are.
    """

    def __init__(self, model: LanguageModel, corpus: Corpus, settings: Dynamic) -> None:
        self.model, self.settings = model.eval(), settings
        device = model.head.decoder.weight.device
        self.train_LB = _stream(corpus.train, settings.statistics_batch_size, device)
        self.valid_L1, self.test_L1 = (_stream(ids, 1, device) for ids in (corpus.valid, corpus.test))
        limit = settings.tune_tokens or len(self.valid_L1)
        self.tune_L1 = self.valid_L1[:limit]
        self.losses: list[float] = []  # of the passes that are done, in the order of `_passes`
        self.sums: tuple[list[Tensor], int] | None = None  # of squared gradients, and over how many batches
        self.gathering: Gathering | None = None
        self.scoring: Scoring | None = None
        self._open()

    @property
    def candidates(self) -> list[Setting]:
        """The settings that are tried."""
        pairs = itertools.product(self.settings.learning_rates, self.settings.decays)
        return [Setting(rate, decay, self.settings.epsilon) for rate, decay in pairs]

    @property
    def chosen(self) -> Setting:
        """The best of those tried; known when all are."""
        tried = self.losses[STATIC : STATIC + len(self.candidates)]
        return self.candidates[min(range(len(tried)), key=tried.__getitem__)]

    @property
    def helps(self) -> bool:
        """Whether the chosen setting scores the validation text better than the trained weights; known afterwards."""
        return self.losses[STATIC + len(self.candidates)] < self.losses[0]

    def _pass(self, index: int) -> tuple[Tensor, Setting | None] | None:
        """Text and setting of a pass: none on both texts, every candidate, the chosen one on both; None at the end."""
        texts = (self.valid_L1, self.test_L1)
        if index < STATIC:
            return texts[index], None
        index -= STATIC
        if index < len(self.candidates):
            return self.tune_L1, self.candidates[index]
        index -= len(self.candidates)
        if index >= len(texts) or (index and not self.helps):
            return None
        return texts[index], self.chosen

    def _open(self) -> None:
        """Begin what comes next; what it begins with are the trained weights."""
        segment = self.settings.segment
        self.gathering = self.scoring = None
        if self.sums is None:
            self.gathering = Gathering(self.model, self.train_LB, segment)
            return
        match self._pass(len(self.losses)):
            case (ids_L1, None):
                self.scoring = Scoring(self.model, ids_L1, segment)
            case (ids_L1, Setting() as setting):
                found = statistics_of(*self.sums, self.settings.scaling)
                self.scoring = Following(self.model, ids_L1, segment, found, setting)

    @property
    def finished(self) -> bool:
        """Whether both texts are scored."""
        return self.gathering is None and self.scoring is None

    def step(self) -> None:
        """One batch of the training text, or one segment of another."""
        if self.gathering is not None:
            self.gathering.step()
            if self.gathering.finished:
                self.sums = self.gathering.squares, self.gathering.batches
                self._open()
        elif self.scoring is not None:
            self.scoring.step()
            if self.scoring.finished:
                self.losses.append(self.scoring.mean())
                self.scoring.leave()
                self._open()

    def results(self) -> dict[str, Any]:
        """What came out: metrics (perplexities over L - 1 tokens), and every setting that was tried."""
        texts, static, tried = ("valid", "test"), self.losses[:STATIC], self.losses[STATIC:]
        losses = tried[len(self.candidates) :] if self.helps else static
        metrics = {f"{name}_ppl": perplexity(nats) for name, nats in zip(texts, losses, strict=True)}
        metrics |= {f"{name}_ppl_static": perplexity(nats) for name, nats in zip(texts, static, strict=True)}
        metrics |= {f"{name}_gain": metrics[f"{name}_ppl_static"] - metrics[f"{name}_ppl"] for name in texts}
        metrics |= {"dynamic_learning_rate": self.chosen.learning_rate if self.helps else 0.0}
        metrics |= {"dynamic_decay": self.chosen.decay, "dynamic_epsilon": self.settings.epsilon}
        rows = [
            {"learning_rate": one.learning_rate, "decay": one.decay, "loss_nats": finite(nats)}
            for one, nats in zip(self.candidates, tried, strict=False)
        ]
        return {
            "metrics": metrics,
            "tried": rows,
            "tuned_on_tokens": len(self.tune_L1) - 1,
            "batches": self.sums[1] if self.sums else 0,
        }

    def progress(self) -> str:
        """What is going on, in words."""
        work = self.gathering or self.scoring
        share = f"{work.position / len(work.ids_LB):.0%}" if work else "done"
        if self.gathering is not None:
            return f"gradient statistics, {share}"
        return f"pass {len(self.losses) + 1} of {STATIC + len(self.candidates) + 2}, {share}"

    def state(self) -> dict[str, Any]:
        """All of it, as tensors, numbers and text."""
        work = self.gathering or self.scoring
        sums = {"squares": self.sums[0], "batches": self.sums[1]} if self.sums else None
        return {"losses": self.losses, "sums": sums, "work": work.state() if work else None}

    def load(self, state: dict[str, Any]) -> None:
        """Take over what `state` returned (tensors may come from another device)."""
        if state["sums"]:
            squares = [one.to(self.train_LB.device) for one in state["sums"]["squares"]]
            self.sums = squares, state["sums"]["batches"]
        self.losses = list(state["losses"])
        self._open()
        work = self.gathering or self.scoring
        if work is not None:
            work.load(state["work"])


def finite(value: float) -> float | None:
    """A number that JSON can hold."""
    return value if math.isfinite(value) else None


def _stream(ids_T: np.ndarray[Any, Any], streams: int, device: torch.device) -> Tensor:
    return torch.from_numpy(batchify(ids_T, streams).astype(np.int64)).to(device)
