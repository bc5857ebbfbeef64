"""Every head's loss and gradients against float64: by the plain sweep, and by the two row kernels of a GPU.

PYTHONPATH=workflow:.venv/triton TRITON_INTERPRET=1 python benchmarks/kernels.py   # on a CPU, in Triton's interpreter
PYTHONPATH=workflow python benchmarks/kernels.py --device cuda                     # on a GPU

Each number is the largest difference to float64, over the largest number of its kind (or 0.01), over four awkward
shapes; `make triton-test` fetches triton. Without it the table has the plain sweep alone.
"""

from __future__ import annotations

import argparse
import copy
from typing import Any

import torch
from softmax_bottleneck import heads
from softmax_bottleneck.heads import row_nll
from softmax_bottleneck.heads.base import Head

SHAPES = ((3, 3, 1), (5, 3, 7), (4, 6, 130), (2, 17, 257))  # tokens, width, words
PLIF = {"knots": 40, "bound": 3.0}  # few pieces: in many, a logit's last bits move it into another
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gss, k < 1": ("gss", {"c": 0.5, "k": 0.25}),
    "lms-plif": ("lms-plif", PLIF),
    "lms-plif, frozen": ("lms-plif", PLIF | {"frozen": True}),
    "moc": ("moc", {"components": 3}),
    "mos": ("mos", {"components": 3, "probability_floor": 1e-8}),
    "moss": ("mos", {"components": 2, "pointwise": "sigsoftmax", "prior": "sigsoftmax"}),
    "mos-plif": ("mos", {"components": 2, "pointwise": "lms-plif", "pointwise_options": PLIF}),
}
POINTWISE = ("softmax", "sigsoftmax", "gss", "relu", "sigmoid", "softcap", "lms")
Results = tuple[torch.Tensor, list[torch.Tensor]]


def variants() -> dict[str, tuple[str, dict[str, Any]]]:
    """Heads by what the table calls them, with their options."""
    return {name: (name, {}) for name in POINTWISE if name in heads.names()} | VARIANTS


def build(variant: str, width: int, words: int) -> Head:
    """A head in evaluation mode with logits of some size."""
    name, options = variants()[variant]
    torch.manual_seed(7)
    head = heads.build(name, vocabulary_size=words, context_size=width, embedding_size=width, **options).eval()
    with torch.no_grad():
        head.decoder.weight.mul_(20.0)
        head.decoder.bias.normal_()
    return head


def results(head: Head, h_ND: torch.Tensor, target_N: torch.Tensor) -> Results:
    """Losses, and the gradients of their mean."""
    h_ND = h_ND.clone().requires_grad_()
    wanted = [h_ND, *(parameter for parameter in head.parameters() if parameter.requires_grad)]
    return head.nll(h_ND, target_N).detach(), list(torch.autograd.grad(head.mean_nll(h_ND, target_N), wanted))


def apart(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Largest difference, over the largest number or 0.01."""
    return float((found.double().cpu() - exact).abs().max() / exact.abs().max().clamp_min(0.01))


def differences(variant: str, device: str, kernels: bool) -> dict[str, float] | None:
    """Of losses and of gradients to float64; None where the kernels are asked for and do not know this head."""
    before, row_nll.KERNEL_DEVICES = row_nll.KERNEL_DEVICES, {device} if kernels else set()
    worst = {"loss": 0.0, "gradient": 0.0}
    try:
        for tokens, width, words in SHAPES:
            head = build(variant, width, words)
            if kernels and (row_nll._row_kernels() is None or head.pointwise.row_function() is None):
                return None
            h_ND, target_N = torch.randn(tokens, width), torch.randint(words, (tokens,))
            exact_nll, exact_grads = results(copy.deepcopy(head).double(), h_ND.double(), target_N)
            nll, grads = results(head.to(device), h_ND.to(device), target_N.to(device))
            worst["loss"] = max(worst["loss"], apart(nll, exact_nll))
            pairs = zip(grads, exact_grads, strict=True)
            worst["gradient"] = max(worst["gradient"], *(apart(one, other) for one, other in pairs))
    finally:
        row_nll.KERNEL_DEVICES = before
    return worst


def table(device: str = "cpu") -> str:
    """A row a head."""
    lines = ["| head | loss, sweep | loss, kernels | gradients, sweep | gradients, kernels |", "|---|---|---|---|---|"]
    for variant in variants():
        found = [differences(variant, device, kernels) for kernels in (False, True)]
        cells = [f"{one[key]:.1e}" if one else "–" for key in ("loss", "gradient") for one in found]
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu", help="cpu (the default) or cuda")
    print(table(parser.parse_args().device))
