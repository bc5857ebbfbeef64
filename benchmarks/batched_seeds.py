"""Would it pay to train several seeds at once as one batched model on a CPU? The LSTM's forward pass, both ways.

By oneDNN one seed after the other, as the package does; and by a loop over time in which one batched product serves all
seeds, the best that plain torch can do: everything in place, no graph.

Shapes: S seeds, T time steps, B sequences, I inputs, H units; gates in the order input, forget, output, cell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import Case
from timing import race
from torch import Tensor, nn

SEEDS = (3, 8)


def measure(case: Case, repetitions: int) -> list[dict[str, Any]]:
    """Milliseconds a seed for all layers of a body, forward, one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    widths = list(zip(case.widths, case.widths[1:], strict=False))
    contenders: dict[str, Callable[[], object]] = {"oneDNN, seed by seed": _in_turn(widths, case)}
    contenders |= {f"{seeds} seeds at once by bmm": _at_once(seeds, widths, case) for seeds in SEEDS}
    with torch.no_grad():
        found = race(contenders, repetitions)
    torch.set_num_threads(threads)
    share = dict(zip(contenders, (1, *SEEDS), strict=True))
    return [{"layers": name, "ms": round(1e3 * one.median / share[name], 3)} for name, one in found.items()]


def _in_turn(widths: list[tuple[int, int]], case: Case) -> Callable[[], object]:
    layers = [(nn.LSTM(below, above), torch.randn(case.bptt, case.batch, below)) for below, above in widths]

    def run() -> None:
        for lstm, x_TBI in layers:
            with torch.enable_grad():  # the kernel that keeps what a backward pass needs
                lstm(x_TBI)

    return run


def _at_once(seeds: int, widths: list[tuple[int, int]], case: Case) -> Callable[[], object]:
    layers = [BatchedLSTM([nn.LSTM(below, above) for _ in range(seeds)], case) for below, above in widths]
    inputs = [torch.randn(seeds, case.bptt, case.batch, below) for below, _ in widths]
    return lambda: [layer(x_STBI) for layer, x_STBI in zip(layers, inputs, strict=True)]


class BatchedLSTM:
    """The layers of several seeds as one; keeps all that a backward pass would need."""

    def __init__(self, lstms: list[nn.LSTM], case: Case) -> None:
        seeds, units = len(lstms), lstms[0].hidden_size
        order = torch.cat([torch.arange(units) + units * gate for gate in (0, 1, 3, 2)])  # torch's: i, f, cell, o
        self._w_SIG, self._r_SHG = (
            torch.stack([lstm.get_parameter(name).detach()[order].t() for lstm in lstms])
            for name in ("weight_ih_l0", "weight_hh_l0")
        )
        biases = [sum(lstm.get_parameter(f"bias_{kind}_l0").detach() for kind in ("ih", "hh")) for lstm in lstms]
        self._bias_S1G = torch.stack([bias[order] for bias in biases if isinstance(bias, Tensor)]).unsqueeze(1)
        shape = (case.bptt, seeds, case.batch, units)
        self._gates, self._tanh_c = torch.empty(*shape[:3], 4 * units), torch.empty(shape)
        self._h, self._c = (torch.zeros(case.bptt + 1, *shape[1:]) for _ in range(2))

    def __call__(self, x_STBI: Tensor) -> Tensor:
        """Outputs [T, S, B, H], from a state of zeros."""
        seeds, steps, batch, inputs = x_STBI.shape
        units = self._h.shape[-1]
        drive = torch.baddbmm(self._bias_S1G, x_STBI.view(seeds, steps * batch, inputs), self._w_SIG)
        drive_STBG = drive.view(seeds, steps, batch, 4 * units)
        for t in range(steps):
            gates, c = self._gates[t], self._c[t + 1]
            torch.baddbmm(drive_STBG[:, t], self._h[t], self._r_SHG, out=gates)
            gates[..., : 3 * units].sigmoid_()
            gates[..., 3 * units :].tanh_()
            torch.mul(gates[..., units : 2 * units], self._c[t], out=c)
            c.addcmul_(gates[..., :units], gates[..., 3 * units :])
            torch.mul(gates[..., 2 * units : 3 * units], torch.tanh(c, out=self._tanh_c[t]), out=self._h[t + 1])
        return self._h[1:]
