"""The three matrix products of the fused loss, and the choice of the backend that makes each.

    logits  l = E W^T + b,      latents  dE = G W,      weights  dW += G^T E

`native` is torch's own product (MKL, OpenBLAS or cuBLAS, in place), `onednn` the one torch keeps for its compiler. On
some CPUs the second is twice as fast, on others they are alike, and no name of a CPU tells; so large problems measure
both, once, before the first step. The choice decides the last bits of every result: it is part of a run's resume state
and of its provenance. Products too small for a measurement to mean anything take `SMALL`.

Shapes: R rows, D latent width, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

NATIVE, ONEDNN = "native", "onednn"
FLOAT32, BF16 = "float32", "bf16"
SMALLEST_MEASURED = 5e8  # flops of a product
REPETITIONS = 7  # of which the fastest counts, the two backends in turn
# What another backend must gain to be taken in place of the default: clearly more than two measurements differ by, so
# that every run on a machine chooses alike.
MARGIN = 1.5


@dataclass(frozen=True)
class MatmulBackends:
    """The backend of each product of the module's docstring.

    ``precision`` bf16 rounds the factors of a training step's three products to bfloat16 and sums in float32: about
    twice as fast where the hardware has it, at a gradient error of some 4e-3. It is for float32 parameters; losses
    outside training, and everything that is not such a product, stay float32.
    """

    logits: str = ONEDNN
    latents: str = ONEDNN
    weights: str = NATIVE
    precision: str = FLOAT32

    def factor(self, weight_VD: Tensor) -> Tensor:
        """The word matrix as the products of a training step take it."""
        return weight_VD.bfloat16() if self.precision == BF16 and weight_VD.dtype == torch.float32 else weight_VD


SMALL = MatmulBackends(logits=NATIVE)
"""At the demonstration's sizes MKL is faster than oneDNN by a tenth in the first product and slower in the second."""


def scores(e_RD: Tensor, weight_VD: Tensor, bias_V: Tensor, backend: str, out: Callable[[], Tensor]) -> Tensor:
    """E W^T + b; a backend that writes in place does so into ``out()``. W decides the precision."""
    if weight_VD.dtype != e_RD.dtype:
        return torch.add(_rounded_product(e_RD.to(weight_VD.dtype), weight_VD.t()), bias_V, out=out())
    if backend == ONEDNN and _usable(e_RD):
        return _onednn(e_RD, weight_VD, bias_V)
    return torch.addmm(bias_V, e_RD, weight_VD.t(), out=out())


def latents(grad_RV: Tensor, weight_VD: Tensor, backend: str, out_RD: Tensor) -> None:
    """out = G W, G and W of the precision of the product."""
    if grad_RV.dtype != out_RD.dtype:
        out_RD.copy_(_rounded_product(grad_RV, weight_VD))
    elif backend == ONEDNN and _usable(grad_RV):
        out_RD.copy_(_onednn(grad_RV, weight_VD.t(), None))
    else:
        torch.mm(grad_RV, weight_VD, out=out_RD)


class WeightGradient:
    """Sum over chunks of G^T E; the backend decides in which orientation it is kept."""

    def __init__(self, weight_VD: Tensor, backend: str) -> None:
        self._transposed = backend == ONEDNN and _usable(weight_VD)
        self._sum = torch.zeros_like(
            weight_VD.t() if self._transposed else weight_VD, memory_format=torch.contiguous_format
        )

    def add(self, grad_RV: Tensor, e_RD: Tensor) -> None:
        """The rows of one chunk, G of the precision of the product."""
        if grad_RV.dtype != e_RD.dtype:
            part = _rounded_product(grad_RV.t(), e_RD.to(grad_RV.dtype))
            self._sum += part.t() if self._transposed else part
        elif self._transposed:
            self._sum += _onednn(e_RD.t(), grad_RV.t(), None)
        else:
            self._sum.addmm_(grad_RV.t(), e_RD)

    def total(self) -> Tensor:
        """dW [V, D], contiguous."""
        return self._sum.t().contiguous() if self._transposed else self._sum


def _rounded_product(x_MK: Tensor, y_KN: Tensor) -> Tensor:
    """X Y of bfloat16 factors, summed in float32; a CPU has no product that does not round the sums as well."""
    return x_MK @ y_KN if x_MK.device.type == "cpu" else torch.mm(x_MK, y_KN, out_dtype=torch.float32)


def _onednn(x_MK: Tensor, y_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x_MK, y_NK, bias_N, "none", [], "")
    return product


def _usable(like: Tensor) -> bool:
    return like.device.type == "cpu" and like.dtype == torch.float32 and _has_onednn()


@cache
def _has_onednn() -> bool:
    """Whether this build of torch has the operation, and it does what its name says (it is not public)."""
    x_23, y_43 = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(4, 3)
    try:
        return bool(torch.equal(_onednn(x_23, y_43, torch.ones(4)), x_23 @ y_43.t() + 1.0))
    except (AttributeError, RuntimeError, TypeError):
        return False


@torch.no_grad()
def select_matmul_backends(num_rows: int, weight_VD: Tensor, precision: str = FLOAT32) -> MatmulBackends:
    """The faster backend of each product for chunks of so many rows; `SMALL` where they are too small to tell."""
    num_words, width = weight_VD.shape
    if not _usable(weight_VD) or 2.0 * num_rows * num_words * width < SMALLEST_MEASURED:
        return dataclasses.replace(SMALL, precision=precision)
    e_RD, grad_RV = weight_VD.new_zeros(num_rows, width), weight_VD.new_zeros(num_rows, num_words)
    bias_V, out_RD, out_RV = weight_VD.new_zeros(num_words), torch.empty_like(e_RD), torch.empty_like(grad_RV)
    sums = {backend: WeightGradient(weight_VD, backend) for backend in (NATIVE, ONEDNN)}
    contenders: dict[str, Callable[[str], object]] = {
        "logits": lambda backend: scores(e_RD, weight_VD, bias_V, backend, lambda: out_RV),
        "latents": lambda backend: latents(grad_RV, weight_VD, backend, out_RD),
        "weights": lambda backend: sums[backend].add(grad_RV, e_RD),
    }
    default = dataclasses.asdict(MatmulBackends())
    fastest = {name: _faster(product, default[name]) for name, product in contenders.items()}
    return MatmulBackends(**fastest, precision=precision)


def _faster(product: Callable[[str], object], default: str) -> str:
    other = NATIVE if default == ONEDNN else ONEDNN
    seconds = {default: [1e9], other: [1e9]}
    for _ in range(REPETITIONS + 1):  # the first of each also builds its kernels; the minimum passes over it
        for backend, measured in seconds.items():
            began = time.perf_counter()
            product(backend)
            measured.append(time.perf_counter() - began)
    return other if min(seconds[default]) > MARGIN * min(seconds[other]) else default
