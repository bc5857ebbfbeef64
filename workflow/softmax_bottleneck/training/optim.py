"""Gradient descent, and its averaged form as the published runs used it.

`ASGD` is torch.optim.ASGD (Polyak and Juditsky 1992) at t0 = 0 and lambd = 0, with its two quirks: the step size in use
is the one set one update earlier, and the average begins at the second update. Learning rates are per parameter group;
`factor` scales every one of them for a single update (chunk length over nominal length; Merity et al. 2018, section 5).
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

    def __init__(self, groups: Sequence[dict[str, Any]], weight_decay: float) -> None:
        """Take groups of the form {"params": [tensors], "lr": rate}."""
        self.groups = [(list(group["params"]), float(group["lr"])) for group in groups]
        self.parameters = [parameter for parameters, _ in self.groups for parameter in parameters]
        self.weight_decay = weight_decay

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

    @torch.no_grad()
    def step(self, factor: float = 1.0) -> None:
        """One update with every rate times `factor`."""
        for index, (parameters, rate) in enumerate(self.groups):
            active = [parameter for parameter in parameters if parameter.grad is not None]
            gradients = [parameter.grad for parameter in active]
            if self.weight_decay:
                torch._foreach_add_(gradients, active, alpha=self.weight_decay)
            torch._foreach_add_(active, gradients, alpha=-self._rate(index, rate * factor))

    def _rate(self, index: int, rate: float) -> float:
        return rate

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

    def _rate(self, index: int, rate: float) -> float:
        """Quirk 1: the rate set at the update before; the first update uses its own."""
        if len(self.rates) <= index:
            self.rates.append(rate)
        used, self.rates[index] = self.rates[index], rate
        return used

    @torch.no_grad()
    def step(self, factor: float = 1.0) -> None:
        """One update, then theta enters the mean.

        Quirk 2: update 1 and update 2 both start the mean anew, so it is that of the iterates from update 2 on.
        """
        super().step(factor)
        weight = 1.0 / max(1, self.steps)
        self.steps += 1
        if weight == 1.0:
            torch._foreach_copy_(self.averages, self.parameters)
            return
        differences = torch._foreach_sub(self.parameters, self.averages)
        torch._foreach_mul_(differences, weight)  # not as `alpha` of the addition: torch rounds in between
        torch._foreach_add_(self.averages, differences)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """The averages in place of the parameters while inside."""
        current = [parameter.data for parameter in self.parameters]
        for parameter, average in zip(self.parameters, self.averages, strict=True):
            parameter.data = average
        try:
            yield
        finally:
            for parameter, tensor in zip(self.parameters, current, strict=True):
                parameter.data = tensor

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
