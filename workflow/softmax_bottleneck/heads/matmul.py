"""The three matrix products of the fused loss: their precision, and the backend that computes each.

    logits   l = E W^T + b
    latents  dE = G W           gradient with respect to E
    weights  dW += G^T E        gradient with respect to W

E are the latent context vectors, W and b are the decoder, and G = dL/dl. There are two backends. `native` is torch's
own product (MKL, OpenBLAS or cuBLAS), which writes into an existing array. `onednn` is a product of oneDNN that torch
reserves for its compiler. On some CPUs `onednn` is twice as fast, on others both are equally fast, and the name of the
CPU does not tell which. Both are therefore timed once before the first step. Small products are not timed and use the
backends of `SMALL`. The choice decides the last bits of every result, so a run stores the choice in its resume state
and its provenance.

Precision of the products of a training step, with sums in float32 (everything outside training steps is fp32):

    fp32     unrounded factors
    tf32     factors rounded to TF32 (11 bits) by a GPU's matrix units, in all products of a step, including the body's
    tf32x3   X is split into X1 + X2 of 11 bits each; X Y is computed in TF32 as X1 Y2 + X2 Y1 + X1 Y1, without X2 Y2.
             The errors are near those of float32.
    bf16     factors rounded to bfloat16 (8 bits); a CPU rounds the sums as well

Numerical stability: the parts X1 and X2 of tf32x3 are finite for numbers up to 2^114. Larger or non-finite numbers give
non-finite parts.

Shapes: R rows, D latent width, V vocabulary; M, K, N sizes of any product.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from softmax_bottleneck.store.errors import UserError

NATIVE, ONEDNN = "native", "onednn"
FP32, TF32, TF32X3, BF16 = "fp32", "tf32", "tf32x3", "bf16"
TF32_CUT = 2.0**13 + 1  # leaves 24 - 13 bits (Dekker 1971, "A floating-point technique ...", section 5)
SMALLEST_MEASURED = 5e8  # flops of a product
REPETITIONS = 7  # the fastest counts; the two backends take turns
# Speed-up at which another backend replaces the default: clearly more than the noise of two measurements, so that
# every run on a machine makes the same choice.
MARGIN = 1.5


class Factor(NamedTuple):
    """A factor of a matrix product in a training step, prepared for the precision of the step.

    Attributes:
        main: the matrix; with bf16 rounded to bfloat16, and with tf32x3 rounded to 11 bits per number (X1).
        rest: with tf32x3 the difference between the matrix and `main`, rounded to 11 bits (X2); otherwise None.
    """

    main: Tensor
    rest: Tensor | None = None

    def t(self) -> Factor:
        """Return the transposed factor."""
        return Factor(self.main.t(), None if self.rest is None else self.rest.t())

    @property
    def is_plain(self) -> bool:
        """True if the matrix is neither split nor bfloat16, so that either backend can multiply it directly."""
        return self.rest is None and self.main.dtype != torch.bfloat16


@dataclass(frozen=True)
class MatmulBackends:
    """The backend of each of the three products, and the precision of all three.

    bf16 is about twice as fast as fp32 on hardware that supports it; the relative error of gradients is about 4e-3.

    Attributes:
        logits, latents, weights: backend of each product, native or onednn; the defaults suit large products on CPUs.
        precision: fp32, tf32, tf32x3 or bf16, for float32 parameters; float64 is never rounded.
    """

    logits: str = ONEDNN
    latents: str = ONEDNN
    weights: str = NATIVE
    precision: str = FP32

    def factor(self, matrix: Tensor) -> Factor:
        """Return a matrix as a factor, which is rounded for bf16 and split into two parts for tf32x3."""
        if matrix.dtype == torch.float32 and self.precision == BF16:
            return Factor(matrix.bfloat16())
        if matrix.dtype == torch.float32 and self.precision == TF32X3:
            main = rounded_to_tf32(matrix)
            return Factor(main, rounded_to_tf32(matrix - main))
        return Factor(matrix)


SMALL = MatmulBackends(logits=NATIVE)
"""At the demonstration's sizes MKL is faster than oneDNN by a tenth in the first product and slower in the second."""


def rounded_to_tf32(x: Tensor) -> Tensor:
    """Return x rounded to 11 significant bits, by arithmetic, because a bit mask could turn a NaN into a number."""
    large = x * TF32_CUT
    return large - (large - x)


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in a GPU's float32 products and LSTMs; restore the previous settings at the end."""
    products, lstms = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, lstms.allow_tf32
    products.allow_tf32, lstms.allow_tf32 = allowed, allowed
    try:
        yield
    finally:
        products.allow_tf32, lstms.allow_tf32 = before


def refuse_without_hardware(precision: str, device: torch.device) -> None:
    """Raise UserError if the precision is tf32 and the device lacks TF32, which NVIDIA GPUs have since Ampere."""
    has_tf32 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    if precision == TF32 and not has_tf32:
        raise UserError(f"schedule.precision: tf32 is arithmetic of NVIDIA GPUs since Ampere, and this device is "
                        f"{device.type}: set fp32, or tf32x3 or bf16, which every device can do")  # fmt: skip


def scores(e_RD: Factor, weight_VD: Factor, bias_V: Tensor, backend: str, out: Callable[[], Tensor]) -> Tensor:
    """Return the logits E W^T + b [R, V] of the latent vectors E, with the decoder's weight W and bias b.

    ``backend`` is native or onednn. onednn returns a new array; native writes into the array that ``out()`` returns.
    native also replaces onednn if the factors are bfloat16 or split, or if onednn is not available.
    """
    if not weight_VD.is_plain:
        return torch.add(_product(e_RD, weight_VD.t()), bias_V, out=out())
    if backend == ONEDNN and _usable(e_RD.main):
        return _onednn(e_RD.main, weight_VD.main, bias_V)
    return torch.addmm(bias_V, e_RD.main, weight_VD.main.t(), out=out())


def latents(grad_RV: Factor, weight_VD: Factor, backend: str, out_RD: Tensor) -> None:
    """Write dE = G W, the loss gradient with respect to the latent vectors E, into `out_RD`.

    G (`grad_RV`) is the loss gradient with respect to the logits, and W (`weight_VD`) the decoder's weight. `backend`
    is native or onednn; native replaces onednn if the factors are bfloat16 or split, or if onednn is not available.
    """
    if not grad_RV.is_plain:
        out_RD.copy_(_product(grad_RV, weight_VD))
    elif backend == ONEDNN and _usable(grad_RV.main):
        out_RD.copy_(_onednn(grad_RV.main, weight_VD.main.t(), None))
    else:
        torch.mm(grad_RV.main, weight_VD.main, out=out_RD)


class WeightGradient:
    """The loss gradient with respect to the decoder's weight W, a sum of G^T E over chunks of tokens.

    The sum is stored transposed for the backend onednn.

    Args:
        weight_VD: W, which gives shape, dtype and device of the sum.
        backend: native or onednn; native replaces onednn if the factors are bfloat16 or split, or if onednn is not
            available.
    """

    def __init__(self, weight_VD: Tensor, backend: str) -> None:
        self._transposed = backend == ONEDNN and _usable(weight_VD)
        self._sum = torch.zeros_like(
            weight_VD.t() if self._transposed else weight_VD, memory_format=torch.contiguous_format
        )

    def add(self, grad_RV: Factor, e_RD: Factor) -> None:
        """Add G^T E of one chunk. G is the loss gradient with respect to the logits, E are the latent vectors."""
        if not grad_RV.is_plain:
            part = _product(grad_RV.t(), e_RD)
            self._sum += part.t() if self._transposed else part
        elif self._transposed:
            self._sum += _onednn(e_RD.main.t(), grad_RV.main.t(), None)
        else:
            self._sum.addmm_(grad_RV.main.t(), e_RD.main)

    def total(self) -> Tensor:
        """Return the gradient dW [V, D] as a contiguous tensor."""
        return self._sum.t().contiguous() if self._transposed else self._sum


def _product(x_MK: Factor, y_KN: Factor) -> Tensor:
    """Return the product X Y of two factors that are both split or both bfloat16.

    The result is float32, except for bfloat16 factors on a CPU, which give bfloat16.
    """
    if x_MK.rest is not None and y_KN.rest is not None:
        with tf32(True):  # TF32 does not change factors of 11 bits
            return (x_MK.main @ y_KN.rest).addmm_(x_MK.rest, y_KN.main).addmm_(x_MK.main, y_KN.main)
    if x_MK.main.device.type == "cpu":  # every bfloat16 product on a CPU also rounds the sums
        return x_MK.main @ y_KN.main
    return torch.mm(x_MK.main, y_KN.main, out_dtype=torch.float32)


def _onednn(x_MK: Tensor, y_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x_MK, y_NK, bias_N, "none", [], "")
    return product


def _usable(like: Tensor) -> bool:
    return like.device.type == "cpu" and like.dtype == torch.float32 and _has_onednn()


@cache
def _has_onednn() -> bool:
    """Return True if this build of torch has the private oneDNN product and computes a test product correctly."""
    x_23, y_43 = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(4, 3)
    try:
        return bool(torch.equal(_onednn(x_23, y_43, torch.ones(4)), x_23 @ y_43.t() + 1.0))
    except (AttributeError, RuntimeError, TypeError):
        return False


@torch.no_grad()
def select_matmul_backends(num_rows: int, weight_VD: Tensor, precision: str = FP32) -> MatmulBackends:
    """Measure which backend is faster in each of the three products, and return the choice with the precision.

    A product keeps its default in `MatmulBackends` unless the other backend is more than 1.5 times as fast (MARGIN).
    Without any measurement, the choice is `SMALL` (onednn for `latents`, native for `logits` and `weights`) in two
    cases: the products are small, or onednn is not available (GPUs, float64, other builds of torch). In the second case
    the products themselves replace onednn by native.

    Args:
        num_rows: number of rows R of a chunk.
        weight_VD: the decoder W, which gives shape, dtype and device.
        precision: fp32, tf32, tf32x3 or bf16.

    Raises:
        UserError: the device does not support this precision.
    """
    refuse_without_hardware(precision, weight_VD.device)
    num_words, width = weight_VD.shape
    if not _usable(weight_VD) or 2.0 * num_rows * num_words * width < SMALLEST_MEASURED:
        return dataclasses.replace(SMALL, precision=precision)
    e_RD, grad_RV = weight_VD.new_zeros(num_rows, width), weight_VD.new_zeros(num_rows, num_words)
    bias_V, out_RD, out_RV = weight_VD.new_zeros(num_words), torch.empty_like(e_RD), torch.empty_like(grad_RV)
    e, grad, weight = Factor(e_RD), Factor(grad_RV), Factor(weight_VD)
    sums = {backend: WeightGradient(weight_VD, backend) for backend in (NATIVE, ONEDNN)}
    contenders: dict[str, Callable[[str], object]] = {
        "logits": lambda backend: scores(e, weight, bias_V, backend, lambda: out_RV),
        "latents": lambda backend: latents(grad, weight, backend, out_RD),
        "weights": lambda backend: sums[backend].add(grad, e),
    }
    default = dataclasses.asdict(MatmulBackends())
    fastest = {name: _faster(product, default[name]) for name, product in contenders.items()}
    return MatmulBackends(**fastest, precision=precision)


def _faster(product: Callable[[str], object], default: str) -> str:
    other = NATIVE if default == ONEDNN else ONEDNN
    seconds = {default: [1e9], other: [1e9]}
    for _ in range(REPETITIONS + 1):  # the first call also builds kernels; the minimum ignores it
        for backend, measured in seconds.items():
            began = time.perf_counter()
            product(backend)
            measured.append(time.perf_counter() - began)
    return other if min(seconds[default]) > MARGIN * min(seconds[other]) else default
