"""SGD, and averaged SGD (Polyak and Juditsky 1992) as used by Merity et al. 2018.

`ASGD` computes the same as torch.optim.ASGD with t0 = 0 and lambd = 0, and keeps two quirks of PyTorch's class. Every
update but the first uses the learning rates that were meant for the previous update. The average of the weights starts
at the second update.

Each parameter group has a learning rate. The argument `factor` of `step` and `prepare` multiplies all rates for one
update. In training it is `schedule.chunk_scale`.

An update has two halves, so that a GPU can replay `apply` as a CUDA graph. `prepare` runs on the host and computes the
numbers that change from update to update. `apply` runs on the device and uses only these numbers.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

CLIP_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_


class SGD:
    """Stochastic gradient descent: theta <- theta - rate * (gradient + weight_decay * theta)."""

    averaged = False
    # True if the prepared update does the same operations as all later updates and can therefore be replayed.
    is_steady = True

    def __init__(self, groups: Sequence[dict[str, Any]], weight_decay: float) -> None:
        """Store parameter groups of the form {"params": [tensors], "lr": rate}, and the weight decay for all groups."""
        self.groups = [(list(group["params"]), float(group["lr"])) for group in groups]
        self.parameters = [parameter for parameters, _ in self.groups for parameter in parameters]
        self.weight_decay = weight_decay
        self.numbers: Sequence[float | Tensor] = ()  # for `apply`: every group's rate, and in ASGD the mean's weight

    def zero_grad(self) -> None:
        """Discard the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def clip(self, largest: float) -> Tensor:
        """Scale the gradients in place to a global norm of at most `largest`; return the norm before scaling.

        The norm stays on the device, so that the host need not wait.
        """
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, (largest / (norm + CLIP_EPSILON)).clamp_(max=1.0))
        return norm

    def step(self, factor: float = 1.0) -> None:
        """Do one update with all learning rates multiplied by `factor`."""
        self.prepare(factor)
        self.apply()

    def prepare(self, factor: float) -> None:
        """Compute the learning rates of the next update: the rate of each group times `factor`."""
        self._set([rate * factor for _, rate in self.groups])

    def _set(self, numbers: list[float]) -> None:
        """Store the numbers that `apply` uses: floats on a CPU, else scalar tensors at a fixed memory location."""
        like = self.parameters[0]
        if like.device.type == "cpu":
            self.numbers = numbers
            return
        self.numbers = self.numbers or [torch.empty((), dtype=like.dtype, device=like.device) for _ in numbers]
        for scalar, number in zip(self.numbers, numbers, strict=True):
            scalar.fill_(number)  # type: ignore[union-attr]

    @torch.no_grad()
    def apply(self) -> None:
        """Do the update with the prepared numbers."""
        for (parameters, _), rate in zip(self.groups, self.numbers, strict=False):
            active = [parameter for parameter in parameters if parameter.grad is not None]
            gradients = [parameter.grad for parameter in active]
            torch._fused_sgd_(active, gradients, [], lr=rate, weight_decay=self.weight_decay, momentum=0.0,
                              dampening=0.0, nesterov=False, maximize=False, is_first_step=False)  # fmt: skip

    def state(self) -> dict[str, Any]:
        """Return the kind of optimiser, which is the whole state of plain SGD: {"averaged": False}."""
        return {"averaged": self.averaged}

    def load(self, state: dict[str, Any]) -> None:
        """Do nothing, because plain SGD has no state to restore."""


class ASGD(SGD):
    """SGD with a running mean of the weights; the model is evaluated with this mean as its weights (see `swapped`)."""

    averaged = True

    def __init__(self, groups: Sequence[dict[str, Any]], weight_decay: float) -> None:
        super().__init__(groups, weight_decay)
        self.steps = 0
        self.rates: list[float] = []  # rates of all groups, set at the last update
        self.averages = [torch.zeros_like(parameter) for parameter in self.parameters]

    @property
    def is_steady(self) -> bool:  # type: ignore[override]
        """True if the prepared update is the third or a later one.

        The first two updates restart the mean. All later updates do the same operations as each other, so that one CUDA
        graph can replay them.
        """
        return self.steps > 2

    def prepare(self, factor: float) -> None:
        """Compute the numbers for the next call of `apply`: learning rates, and the new weights' share of the mean.

        Quirk 1: the rates are multiplied by the `factor` of the previous call of `prepare`, not by that of this call.
        Only the first call uses its own `factor`.
        """
        rates = [rate * factor for _, rate in self.groups]
        used, self.rates = self.rates or rates, rates
        self._set([*used, 1.0 / max(1, self.steps)])
        self.steps += 1

    @torch.no_grad()
    def apply(self) -> None:
        """Update the weights with the prepared numbers, and add the new weights to the running mean.

        Quirk 2: updates 1 and 2 both restart the mean, so that the mean covers the weights from update 2 on.
        """
        super().apply()
        if not self.is_steady:
            torch._foreach_copy_(self.averages, self.parameters)
            return
        differences = torch._foreach_sub(self.parameters, self.averages)
        torch._foreach_mul_(differences, self.numbers[-1])  # not as `alpha` of the addition, which rounds differently
        torch._foreach_add_(self.averages, differences)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Return a context manager that sets the parameters to their running means and restores them on exit."""
        with torch.no_grad():  # copied, not exchanged: a captured update refers to memory locations
            current = [parameter.clone() for parameter in self.parameters]
            torch._foreach_copy_(self.parameters, self.averages)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, current)

    def state(self) -> dict[str, Any]:
        """Return the state for resuming: a dict with the keys `averaged`, `steps`, `rates` and `averages`.

        `steps` is the number of updates. `rates` has, for each group, the learning rate that the next update will use.
        `averages` has the mean of every parameter. `averaged` is True.
        """
        return {"averaged": True, "steps": self.steps, "rates": list(self.rates), "averages": self.averages}

    def load(self, state: dict[str, Any]) -> None:
        """Restore the state that the method `state` returned."""
        self.steps, self.rates = int(state["steps"]), [float(rate) for rate in state["rates"]]
        torch._foreach_copy_(self.averages, state["averages"])
