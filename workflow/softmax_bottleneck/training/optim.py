"""Gradient descent, and its averaged form as the published runs used it.

`ASGD` is torch.optim.ASGD (Polyak and Juditsky 1992) at t0 = 0 and lambd = 0, with its two quirks: the step size in use
is the one set one update earlier, and the average begins at the second update. Learning rates are per parameter group;
`factor` scales every one of them for a single update (chunk length over nominal length; Merity et al. 2018, section 5).

Numbers that change from update to update are tensors on the parameters' device, so that a GPU may replay a recorded
update. Shapes: G groups.
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
        self.groups = [list(group["params"]) for group in groups]
        self.parameters = [parameter for parameters in self.groups for parameter in parameters]
        self.rates_G = self._numbers([float(group["lr"]) for group in groups])
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
    def step(self, factor: float | Tensor = 1.0) -> None:
        """One update with every rate times `factor`, a number or a scalar on the device."""
        rates_G = self._rates_in_use(self.rates_G * factor)
        for parameters, rate in zip(self.groups, rates_G.to(self.parameters[0].dtype).unbind(), strict=True):
            active = [parameter for parameter in parameters if parameter.grad is not None]
            gradients = [parameter.grad for parameter in active]
            torch._fused_sgd_(active, gradients, [], lr=rate, weight_decay=self.weight_decay, momentum=0.0,
                              dampening=0.0, nesterov=False, maximize=False, is_first_step=False)  # fmt: skip

    def _rates_in_use(self, rates_G: Tensor) -> Tensor:
        return rates_G

    def _numbers(self, values: Sequence[float] | float) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=self.parameters[0].device)

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
        self.steps = self._numbers(0.0)
        self.set_G = torch.zeros_like(self.rates_G)  # the rates set at the last update
        self.starts = 2  # updates that still start the mean anew; a recorded update must not be one of them
        self.averages = [torch.zeros_like(parameter) for parameter in self.parameters]

    def _rates_in_use(self, rates_G: Tensor) -> Tensor:
        """Quirk 1: the rates set at the update before; the first update uses its own."""
        used_G = rates_G if self.starts == 2 else self.set_G.clone()
        self.set_G.copy_(rates_G)
        return used_G

    @torch.no_grad()
    def step(self, factor: float | Tensor = 1.0) -> None:
        """One update, then theta enters the mean.

        Quirk 2: update 1 and update 2 both start the mean anew, so it is that of the iterates from update 2 on.
        """
        super().step(factor)
        if self.starts:
            self.starts -= 1
            torch._foreach_copy_(self.averages, self.parameters)
        else:
            differences = torch._foreach_sub(self.parameters, self.averages)
            weight = self.steps.reciprocal().to(self.parameters[0].dtype)
            torch._foreach_mul_(differences, weight)  # not as `alpha` of the addition: torch rounds in between
            torch._foreach_add_(self.averages, differences)
        self.steps += 1

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
        """Averages, number of updates, and the rates set at the last one."""
        return {"averaged": True, "steps": int(self.steps), "rates": self.set_G.tolist(), "averages": self.averages}

    def load(self, state: dict[str, Any]) -> None:
        """Take over what `state` returned."""
        self.steps, self.set_G = self._numbers(state["steps"]), self._numbers(state["rates"])
        self.starts = max(0, 2 - int(state["steps"]))
        torch._foreach_copy_(self.averages, state["averages"])


def should_switch(earlier_losses: Sequence[float], current_loss: float, window: int) -> bool:
    """Whether validation has stalled (non-monotonic trigger of NT-ASGD, Merity et al. 2018, algorithm 1).

    More than `window` earlier losses exist, and the current one is above the smallest of all but the last `window`.
    """
    return len(earlier_losses) > window and current_loss > min(earlier_losses[:-window])
