"""Gradient descent, and its averaged form as the published runs used it.

`ASGD` is torch.optim.ASGD (Polyak and Juditsky 1992) at t0 = 0 and lambd = 0, with its two quirks: the step size in use
is the one set one update earlier, and the average begins at the second update. Learning rates are per parameter group;
`factor` scales every one of them for a single update (chunk length over nominal length; Merity et al. 2018, section 5).

An update has two halves, so that a GPU may replay a recorded one: `prepare` works out the numbers that change from
update to update, on the host; `apply` uses them, on the device, and looks at nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

CLIP_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_


class SGD:
    """Plain stochastic gradient descent: theta <- theta - rate * (gradient + weight_decay * theta)."""

    averaged = False
    is_steady = True
    """Whether the update that is prepared is like those after it."""

    def __init__(self, groups: Sequence[dict[str, Any]], weight_decay: float) -> None:
        """Take groups of the form {"params": [tensors], "lr": rate}."""
        self.groups = [(list(group["params"]), float(group["lr"])) for group in groups]
        self.parameters = [parameter for parameters, _ in self.groups for parameter in parameters]
        self.weight_decay = weight_decay
        self.numbers: Sequence[float | Tensor] = ()  # of the update at hand: every group's rate, and what ASGD adds

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def clip(self, largest: float) -> Tensor:
        """Scale the gradients so that their global norm is at most `largest`; the norm before, left on the device."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, (largest / (norm + CLIP_EPSILON)).clamp_(max=1.0))
        return norm

    def step(self, factor: float = 1.0) -> None:
        """One update with every rate times `factor`."""
        self.prepare(factor)
        self.apply()

    def prepare(self, factor: float) -> None:
        """Set the numbers of the next update."""
        self._set([rate * factor for _, rate in self.groups])

    def _set(self, numbers: list[float]) -> None:
        """As they are for a CPU; elsewhere into scalars that keep their place in memory."""
        like = self.parameters[0]
        if like.device.type == "cpu":
            self.numbers = numbers
            return
        self.numbers = self.numbers or [torch.empty((), dtype=like.dtype, device=like.device) for _ in numbers]
        for scalar, number in zip(self.numbers, numbers, strict=True):
            scalar.fill_(number)  # type: ignore[union-attr]

    @torch.no_grad()
    def apply(self) -> None:
        """The update of the numbers that are set."""
        for (parameters, _), rate in zip(self.groups, self.numbers, strict=False):
            active = [parameter for parameter in parameters if parameter.grad is not None]
            gradients = [parameter.grad for parameter in active]
            torch._fused_sgd_(active, gradients, [], lr=rate, weight_decay=self.weight_decay, momentum=0.0,
                              dampening=0.0, nesterov=False, maximize=False, is_first_step=False)  # fmt: skip

    def state(self) -> dict[str, Any]:
        """What a resumed run needs: tensors, numbers and lists of them."""
        return {"averaged": self.averaged}

    def load(self, state: dict[str, Any]) -> None:
        """Take over what `state` returned."""


class ASGD(SGD):
    """SGD that also keeps the mean of its iterates; only the mean is evaluated."""

    averaged = True

    def __init__(self, groups: Sequence[dict[str, Any]], weight_decay: float) -> None:
        super().__init__(groups, weight_decay)
        self.steps = 0
        self.rates: list[float] = []  # of every group, as set at the last update
        self.averages = [torch.zeros_like(parameter) for parameter in self.parameters]

    @property
    def is_steady(self) -> bool:  # type: ignore[override]
        """As ``SGD.is_steady``; the first two start the mean."""
        return self.steps > 2

    def prepare(self, factor: float) -> None:
        """Quirk 1: the rates set at the update before; the first update uses its own."""
        rates = [rate * factor for _, rate in self.groups]
        used, self.rates = self.rates or rates, rates
        self._set([*used, 1.0 / max(1, self.steps)])
        self.steps += 1

    @torch.no_grad()
    def apply(self) -> None:
        """One update, then theta enters the mean.

        Quirk 2: update 1 and update 2 both start the mean anew, so it is that of the iterates from update 2 on.
        """
        super().apply()
        if not self.is_steady:
            torch._foreach_copy_(self.averages, self.parameters)
            return
        differences = torch._foreach_sub(self.parameters, self.averages)
        torch._foreach_mul_(differences, self.numbers[-1])  # not as `alpha` of the addition: torch rounds in between
        torch._foreach_add_(self.averages, differences)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """The averages in place of the parameters while inside."""
        with torch.no_grad():  # copied, not exchanged: a recorded update knows its tensors by their places in memory
            current = [parameter.clone() for parameter in self.parameters]
            torch._foreach_copy_(self.parameters, self.averages)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, current)

    def state(self) -> dict[str, Any]:
        """Averages, number of updates, and the rates of the last one."""
        return {"averaged": True, "steps": self.steps, "rates": list(self.rates), "averages": self.averages}

    def load(self, state: dict[str, Any]) -> None:
        """Take over what `state` returned."""
        self.steps, self.rates = int(state["steps"]), [float(rate) for rate in state["rates"]]
        torch._foreach_copy_(self.averages, state["averages"])


def should_switch(earlier_losses: Sequence[float], current_loss: float, window: int) -> bool:
    """Whether validation has stalled (non-monotonic trigger of NT-ASGD, Merity et al. 2018, algorithm 1).

    More than `window` earlier losses exist, and the current one is above the smallest of all but the last `window`.
    """
    return len(earlier_losses) > window and current_loss > min(earlier_losses[:-window])
