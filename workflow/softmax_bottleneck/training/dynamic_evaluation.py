"""Dynamic evaluation: weights are updated on a text during scoring (Krause et al. 2018; used by Kanai 2018, section 4).

A text is read segment by segment. A segment is a few consecutive rows; a row has one token of each stream.

First, one pass over the training text, with fixed weights, gives gradient statistics M and R of each weight. Let g_b be
the gradient of the mean loss of segment b = 1 .. n, and let m_j be the mean of M over all entries of trained tensor j:

    scaling `mean` (Krause's code):   M = sqrt(sum_b g_b^2 / n),   R = M / mean_j m_j
    scaling `sum`  (Yang's code):     M = sqrt(sum_b g_b^2),       R = M / sum_j m_j

Then every segment of the validation or test text is scored. After each segment, its gradient g moves the weights theta
away from the trained weights theta_0, and a decay moves theta back (RMS with a global prior, Krause et al. 2018,
section 4). With step size eta, decay rate lambda and a small constant epsilon:

    theta <- theta + lambda min(R, 1 / lambda) (theta_0 - theta) - eta g / (M + epsilon)

A text's loss is the mean over its L - 1 predicted tokens, as in Krause's and Yang's code.

The network is always in evaluation mode: dropout and weight drop are off. Yang's code instead stays in train mode with
a weight drop of 0.5, because cuDNN's backward pass required train mode. The scores and gradients of Yang's code
therefore come from a network in which half of the recurrent weights are set to zero at random. This module needs no
train mode, because the LSTM body makes cuDNN prepare a backward pass in evaluation mode, too.

Pairs (eta, lambda) are tried on the validation text, and the pair with the lowest loss is chosen (see `Evaluator`).

Numerical stability: M + epsilon > 0, and clipping R at 1 / lambda keeps the decay from overshooting theta_0. If the
loss of a pair is not finite, it counts as infinite, so that any pair with a finite loss is preferred. With eta = 0, the
weights do not change at all.

Shapes: L rows of a text in B columns (streams), N predicted tokens of a segment.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softmax_bottleneck.bodies.base import State
from softmax_bottleneck.corpora.corpus import Corpus
from softmax_bottleneck.heads.row_nll import RowNLL
from softmax_bottleneck.study import Dynamic
from softmax_bottleneck.training.model import LanguageModel
from softmax_bottleneck.training.trainer import perplexity, stream

STATIC = 2  # number of passes with the trained weights: over the validation text and over the test text


@dataclass(frozen=True)
class Setting:
    """The step size eta, the decay rate lambda and the epsilon of an update (see the module's formulas)."""

    learning_rate: float
    decay: float
    epsilon: float


@dataclass(frozen=True)
class Statistics:
    """The gradient statistics of every trained tensor, in the model's order (see the module's formulas).

    `scale` is M, the magnitude of each weight's gradient; `pull` is R, which scales the decay of each weight.
    """

    scale: list[Tensor]
    pull: list[Tensor]


def statistics_of(squares: Sequence[Tensor], batches: int, scaling: str) -> Statistics:
    """Return the gradient statistics M and R of every trained tensor (see the module's formulas).

    Args:
        squares: for every trained tensor, its squared gradients summed over batches.
        batches: number of batches summed.
        scaling: "mean" or "sum".
    """
    divisor = batches if scaling == "mean" else 1
    scale = [(square / divisor).sqrt() for square in squares]
    level = torch.stack([tensor.mean() for tensor in scale])
    norm = level.mean() if scaling == "mean" else level.sum()
    return Statistics(scale, [tensor / norm for tensor in scale])


# --- passes over a text ---------------------------------------------------------------------------------------------
class Reading:
    """A pass over a text, segment by segment; each segment starts with the body's state after the previous one.

    Gradients do not flow from one segment to the previous one. The model is in evaluation mode. Subclasses define the
    method `use`, which processes the losses of each segment.

    Args:
        model: the model that reads the text.
        ids_LB: token ids of the text, in B streams that are read in parallel.
        segment: number of rows of a segment.

    Attributes:
        parameters: the trained tensors of the model; a tied matrix is listed once.
        position: number of rows read so far.
        hidden: the body's state after these rows.
        KEPT: names of the attributes that are saved for resuming.
        differentiates: True if `use` needs losses that can be differentiated.
    """

    KEPT: tuple[str, ...] = ("position", "hidden")
    differentiates = True

    def __init__(self, model: LanguageModel, ids_LB: Tensor, segment: int) -> None:
        self.model, self.ids_LB, self.segment = model, ids_LB, segment
        self.parameters: list[Tensor] = [tensor for tensor in model.parameters() if tensor.requires_grad]
        self.position = 0
        self.hidden: State = model.initial_state(ids_LB.shape[1])

    @property
    def finished(self) -> bool:
        """True if the whole text has been read."""
        return self.position >= len(self.ids_LB) - 1

    def step(self) -> None:
        """Read the next segment, and call `self.use` with the losses of its N predicted tokens."""
        stop = min(self.position + self.segment, len(self.ids_LB) - 1)
        output = self.model(self.ids_LB[self.position : stop], self.hidden)
        targets_N = self.ids_LB[self.position + 1 : stop + 1].reshape(-1)
        self.hidden = tuple((h_1BH.detach(), c_1BH.detach()) for h_1BH, c_1BH in output.state)
        self.position = stop
        with torch.set_grad_enabled(self.differentiates):
            losses = self.model.head.losses(output.head_input_TBD, targets_N, generator=None)
        self.use(losses)

    def use(self, losses: RowNLL) -> None:
        """Process the losses of a segment, in nats: one per predicted token (`nll_N`), and their sum (`total`).

        Subclasses define this method.
        """
        raise NotImplementedError

    def gradients(self, losses: RowNLL) -> list[Tensor]:
        """Return the gradient of a segment's mean loss per token with respect to each tensor of `self.parameters`."""
        return list(torch.autograd.grad(losses.total / len(losses.nll_N), self.parameters))

    def leave(self) -> None:
        """Finish the pass; called once, after the last segment of the text.

        This method does nothing. A subclass that changes the weights overrides it and restores the trained weights.
        """

    def state(self) -> dict[str, Any]:
        """Return the attributes in KEPT, for resuming."""
        return {name: getattr(self, name) for name in self.KEPT}

    def load(self, state: dict[str, Any]) -> None:
        """Restore the attributes from `state`, a result of the method `state`."""
        for name in self.KEPT:
            setattr(self, name, state[name])


class Gathering(Reading):
    """A pass over the training text, with fixed weights, that sums squared gradients for the gradient statistics.

    Attributes:
        squares: for every tensor of `parameters`, the squared gradients summed over the segments read so far.
        batches: number of these segments; each segment, with its rows of all streams, is one batch.
    """

    KEPT = (*Reading.KEPT, "squares", "batches")

    def __init__(self, model: LanguageModel, ids_LB: Tensor, segment: int) -> None:
        super().__init__(model, ids_LB, segment)
        self.squares = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.batches = 0

    def use(self, losses: RowNLL) -> None:
        """Add the squared gradients of a segment's mean loss to `squares`, and count the segment in `batches`."""
        gradients = self.gradients(losses)
        torch._foreach_addcmul_(self.squares, gradients, gradients)
        self.batches += 1


class Scoring(Reading):
    """A pass that scores a text with fixed weights.

    The losses are computed with the same kernels as in a pass that updates the weights (`Following`), so that the
    losses of both can be compared.
    """

    KEPT = (*Reading.KEPT, "total")
    differentiates = False

    def __init__(self, model: LanguageModel, ids_LB: Tensor, segment: int) -> None:
        super().__init__(model, ids_LB, segment)
        self.total = torch.zeros((), dtype=torch.float64, device=ids_LB.device)

    def use(self, losses: RowNLL) -> None:
        """Add the losses of a segment to the total."""
        self.total += losses.nll_N.detach().sum(dtype=torch.float64)

    def mean(self) -> float:
        """Return the mean loss per predicted token so far, in nats, or infinity if the mean is not finite."""
        loss = self.total.item() / (self.position * self.ids_LB.shape[1])
        return loss if math.isfinite(loss) else math.inf


class Following(Scoring):
    """A pass that scores a text and updates the weights after every segment.

    `statistics` holds M and R of the module's formulas, and `setting` holds eta, lambda and epsilon. At the end of the
    text the method `leave` restores the trained weights.
    """

    KEPT = (*Scoring.KEPT, "weights")
    differentiates = True

    def __init__(
        self, model: LanguageModel, ids_LB: Tensor, segment: int, statistics: Statistics, setting: Setting
    ) -> None:
        super().__init__(model, ids_LB, segment)
        self.trained = [parameter.detach().clone() for parameter in self.parameters]
        decay = setting.decay  # decay min(R, 1 / decay) = min(decay R, 1)
        self.way_back = [(pull * decay).clamp_(max=1.0) for pull in statistics.pull]
        self.pace = [setting.learning_rate / (scale + setting.epsilon) for scale in statistics.scale]

    @property
    def weights(self) -> list[Tensor]:
        """The current weights."""
        return [parameter.detach() for parameter in self.parameters]

    @weights.setter
    def weights(self, tensors: list[Tensor]) -> None:
        torch._foreach_copy_(self.weights, tensors)

    def use(self, losses: RowNLL) -> None:
        """Add the losses of a segment to the total, then update the weights."""
        super().use(losses)
        gradients = self.gradients(losses)
        with torch.no_grad():
            torch._foreach_lerp_(self.parameters, self.trained, self.way_back)
            torch._foreach_addcmul_(self.parameters, gradients, self.pace, value=-1.0)

    def leave(self) -> None:
        """Restore the trained weights."""
        self.weights = self.trained


# --- the whole evaluation -------------------------------------------------------------------------------------------
class Evaluator:
    """A dynamic evaluation in resumable steps: gradient statistics, tuning, and scores of validation and test text.

    A candidate is a `Setting`: a step size and a decay, with the same epsilon for all candidates. Every candidate is
    tried on the tuning text: the first `settings.tune_tokens` tokens of the validation text, or all of this text if
    this number is None. The candidate with the lowest loss is chosen and scores the whole validation text. If its loss
    on the whole text is not below that of the fixed trained weights, dynamic evaluation does not help. The reported
    step size is then 0, and the results are those of the trained weights.

    Args:
        model: the trained model; it is put into evaluation mode.
        corpus: token ids of the training, validation and test texts.
        settings: the settings of dynamic evaluation.

    Attributes:
        texts: token ids [L, B] of the texts in the order of reading. First the training text, for statistics; then the
            validation and test texts with the trained weights; then the tuning text once per candidate; last the
            validation and test texts with the chosen candidate.
        losses: mean loss per predicted token, in nats, of every text read so far, except the training text. A loss that
            is not finite is stored as infinity.
        sums: (squared gradients of each tensor summed over batches, number of batches); None until the training text is
            read.
        reading: the current pass over a text; None at the end.
    """

    def __init__(self, model: LanguageModel, corpus: Corpus, settings: Dynamic) -> None:
        self.model, self.settings = model.eval(), settings
        device = model.head.decoder.weight.device
        train_LB = stream(corpus.train, settings.statistics_batch_size, device)
        both = [stream(ids, 1, device) for ids in (corpus.valid, corpus.test)]
        self.tune_L1 = both[0][: settings.tune_tokens or len(both[0])]
        pairs = itertools.product(settings.learning_rates, settings.decays)
        self.candidates = [Setting(rate, decay, settings.epsilon) for rate, decay in pairs]
        self.texts = [train_LB, *both, *(self.tune_L1 for _ in self.candidates), *both]
        self.losses: list[float] = []
        self.sums: tuple[list[Tensor], int] | None = None
        self.reading = self._next_reading()

    @property
    def chosen(self) -> Setting:
        """The candidate with the lowest loss on the tuning text; defined once all candidates have been tried."""
        tried = self.losses[STATIC : STATIC + len(self.candidates)]
        return self.candidates[min(range(len(tried)), key=tried.__getitem__)]

    @property
    def helps(self) -> bool:
        """True if the chosen candidate scores the validation text better than the trained weights do."""
        return self.losses[STATIC + len(self.candidates)] < self.losses[0]

    @property
    def at_edge(self) -> bool:
        """True if the chosen step size or decay is the smallest or largest of several, so that a better one may exist.

        A grid with a single value is a setting, not a choice, and has no edge.
        """
        choices = ((self.chosen.learning_rate, self.settings.learning_rates), (self.chosen.decay, self.settings.decays))
        return any(min(grid) < max(grid) and value in (min(grid), max(grid)) for value, grid in choices)

    def _next_reading(self) -> Reading | None:
        """Return the next pass over a text, or None at the end; every pass starts from the trained weights.

        The last pass, over the test text, is left out if the chosen candidate does not help (`helps`).
        """
        segment, done = self.settings.segment, self.done
        if done == len(self.texts) or (done == len(self.texts) - 1 and not self.helps):
            return None
        if self.sums is None:
            return Gathering(self.model, self.texts[0], segment)
        tried = len(self.losses) - STATIC
        if tried < 0:
            return Scoring(self.model, self.texts[done], segment)
        setting = self.candidates[tried] if tried < len(self.candidates) else self.chosen
        statistics = statistics_of(*self.sums, self.settings.scaling)
        return Following(self.model, self.texts[done], segment, statistics, setting)

    @property
    def finished(self) -> bool:
        """True if no text is left to read."""
        return self.reading is None

    def step(self, session: object = None) -> bool:
        """Read one segment of the current text; return True if this text has ended.

        `session` is unused; the interface `Work.step` requires this argument.
        """
        reading = self.reading
        assert reading is not None
        reading.step()
        if not reading.finished:
            return False
        if isinstance(reading, Gathering):
            self.sums = reading.squares, reading.batches
        elif isinstance(reading, Scoring):
            self.losses.append(reading.mean())
        reading.leave()
        self.reading = self._next_reading()
        return True

    def results(self) -> dict[str, Any]:
        """Return the metrics of the evaluation and the losses of all candidates.

        Returns:
            A dict with four keys:
            `metrics`: ten numbers. `valid_ppl_static` and `test_ppl_static` are the perplexities of the fixed trained
                weights. `valid_ppl` and `test_ppl` are the perplexities of dynamic evaluation with the chosen
                candidate, or the static ones if the candidate does not help (`helps`). `valid_gain` and `test_gain`
                are the differences, static minus dynamic perplexity. `dynamic_learning_rate`, `dynamic_decay` and
                `dynamic_epsilon` are eta, lambda and epsilon of the chosen candidate; eta is 0 if it does not help.
                `dynamic_at_edge` is 1 if the best eta or lambda may lie outside the grid (`at_edge`), and otherwise 0.
            `tried`: one dict per candidate with `learning_rate`, `decay` and `loss_nats` (None if not finite).
            `tuned_on_tokens`: number of predicted tokens of the tuning text.
            `batches`: number of batches of the training text that gave the gradient statistics.
        """
        texts, static, tried = ("valid", "test"), self.losses[:STATIC], self.losses[STATIC:]
        losses = tried[len(self.candidates) :] if self.helps else static
        metrics = {f"{name}_ppl": perplexity(nats) for name, nats in zip(texts, losses, strict=True)}
        metrics |= {f"{name}_ppl_static": perplexity(nats) for name, nats in zip(texts, static, strict=True)}
        metrics |= {f"{name}_gain": metrics[f"{name}_ppl_static"] - metrics[f"{name}_ppl"] for name in texts}
        metrics |= {"dynamic_learning_rate": self.chosen.learning_rate if self.helps else 0.0}
        metrics |= {"dynamic_decay": self.chosen.decay, "dynamic_epsilon": self.settings.epsilon}
        metrics |= {"dynamic_at_edge": float(self.at_edge)}
        rows = [
            {"learning_rate": setting.learning_rate, "decay": setting.decay, "loss_nats": finite(nats)}
            for setting, nats in zip(self.candidates, tried, strict=False)
        ]
        batches = self.sums[1] if self.sums else 0
        return {"metrics": metrics, "tried": rows, "tuned_on_tokens": len(self.tune_L1) - 1, "batches": batches}

    @property
    def done(self) -> int:
        """The number of texts that have been read."""
        return len(self.losses) + (self.sums is not None)

    @property
    def share(self) -> float:
        """The share (0 to 1) of the work that is done: the rows read so far, divided by the rows of all texts."""
        rows = sum(len(text) for text in self.texts[: self.done]) + (self.reading.position if self.reading else 0)
        return rows / sum(len(text) for text in self.texts)

    def state(self) -> dict[str, Any]:
        """Return the whole state, for resuming: a dict of tensors and numbers with the keys losses, sums, reading."""
        reading = self.reading.state() if self.reading else None
        return {"losses": self.losses, "sums": self.sums, "reading": reading}

    def load(self, state: dict[str, Any]) -> None:
        """Restore losses, sums and current pass from `state`, a result of the method `state`."""
        self.losses, self.sums = list(state["losses"]), state["sums"]
        self.reading = self._next_reading()
        if self.reading is not None:
            self.reading.load(state["reading"])


def finite(value: float) -> float | None:
    """Return a number unchanged, or None if it is not finite, which JSON cannot represent."""
    return value if math.isfinite(value) else None
