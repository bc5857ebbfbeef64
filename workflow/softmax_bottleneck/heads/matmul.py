"""The three matrix products of the fused loss: their precision, and the library that computes each on a CPU.

    logits   l = E W^T + b
    latents  dE = G W           gradient with respect to E
    weights  dW += G^T E        gradient with respect to W

E are the latent context vectors, W and b are the decoder, and G = dL/dl. In float32 on a CPU, oneDNN computes the
latents, the logits if W has at least 65,536 numbers, and the weights (as E^T G, transposed) from 128 rows on; it has a
product that torch reserves for its compiler. Torch's own product (MKL, OpenBLAS or cuBLAS), which writes into an
existing array, computes all others. The size alone decides, not a measurement, because the last bits of a result depend
on the library. `benchmarks/README.md` has the measurements behind this rule.

Precision of the products of a training step, with sums in float32 (everything outside training steps is fp32):

    fp32       unrounded factors
    tf32       factors rounded to TF32 (11 bits) by a GPU's matrix units, in all products of a step, also the body's
    tf32x3     X is split into X1 + X2 of 11 bits each; X Y is computed in TF32 as X1 Y2 + X2 Y1 + X1 Y1, without X2 Y2.
               The errors are near those of float32.
    bf16       factors rounded to bfloat16 (8 bits); a CPU rounds the sums as well
    tf32-bf16  these three products as in bf16, all other products of a step as in tf32

bf16 is about twice as fast as fp32 on hardware that supports it; the relative error of gradients is about 4e-3.

Numerical stability: the parts X1 and X2 of tf32x3 are finite for numbers up to 2^114. Numbers from 2^115 on, and
non-finite ones, give non-finite parts.

Shapes: R rows, D latent width, V vocabulary; M, K, N sizes of any product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from softmax_bottleneck.store.errors import UserError

FP32, TF32, TF32X3, BF16, TF32_BF16 = PRECISIONS = "fp32", "tf32", "tf32x3", "bf16", "tf32-bf16"
NEED_TF32 = {TF32, TF32_BF16}  # precisions that use TF32 outside the products over the vocabulary
ONEDNN_NUMBERS = 2**16  # smallest decoder, V x D, for which oneDNN computes the logits
ONEDNN_ROWS = 128  # fewest rows of which oneDNN computes the weights
TF32_CUT = 2.0**13 + 1  # leaves 24 - 13 bits (Dekker 1971, "A floating-point technique ...", section 5)


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
        """True if the matrix is neither split nor bfloat16, so that either library can multiply it directly."""
        return self.rest is None and self.main.dtype != torch.bfloat16


def factor(matrix: Tensor, precision: str) -> Factor:
    """Return a matrix as a factor: rounded for bf16, split into two parts for tf32x3; float64 is never rounded."""
    if matrix.dtype == torch.float32 and precision in {BF16, TF32_BF16}:
        return Factor(matrix.bfloat16())
    if matrix.dtype == torch.float32 and precision == TF32X3:
        main = rounded_to_tf32(matrix)
        return Factor(main, rounded_to_tf32(matrix - main))
    return Factor(matrix)


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


def check_precision(precision: str, device: torch.device) -> None:
    """Raise UserError if the precision is unknown, or needs the TF32 of NVIDIA GPUs since Ampere on another device."""
    if precision not in PRECISIONS:
        raise UserError(f'schedule.precision: unknown precision (got "{precision}"). Expected {", ".join(PRECISIONS)}')
    has_tf32 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    if precision in NEED_TF32 and not has_tf32:
        raise UserError(f"schedule.precision: {precision} is arithmetic of NVIDIA GPUs since Ampere, and this device "
                        f"is {device.type}: set fp32, or tf32x3 or bf16, which every device can do")  # fmt: skip


def scores(e_RD: Factor, weight_VD: Factor, bias_V: Tensor, out: Callable[[], Tensor]) -> Tensor:
    """Return the logits E W^T + b [R, V] of the latent vectors E, with the decoder's weight W and bias b.

    oneDNN returns a new array; every other product writes into the array that ``out()`` returns.
    """
    if not weight_VD.is_plain:
        return torch.add(_product(e_RD, weight_VD.t()), bias_V, out=out())
    if weight_VD.main.numel() >= ONEDNN_NUMBERS and _onednn_can(e_RD.main):
        return _onednn(e_RD.main, weight_VD.main, bias_V)
    return torch.addmm(bias_V, e_RD.main, weight_VD.main.t(), out=out())


def latents(grad_RV: Factor, weight_VD: Factor, out_RD: Tensor) -> None:
    """Write dE = G W, the loss gradient with respect to the latent vectors E, into `out_RD`.

    G (`grad_RV`) is the loss gradient with respect to the logits, and W (`weight_VD`) the decoder's weight.
    """
    if not grad_RV.is_plain:
        out_RD.copy_(_product(grad_RV, weight_VD))
    elif _onednn_can(grad_RV.main):
        out_RD.copy_(_onednn(grad_RV.main, weight_VD.main.t(), None))
    else:
        torch.mm(grad_RV.main, weight_VD.main, out=out_RD)


def add_weights(sum_VD: Tensor, grad_RV: Factor, e_RD: Factor) -> None:
    """Add G^T E, a chunk's part of the loss gradient with respect to the decoder's weight, to ``sum_VD``.

    G (`grad_RV`) is the loss gradient with respect to the logits, and E (`e_RD`) are the latent vectors.
    """
    if not grad_RV.is_plain:
        sum_VD += _product(grad_RV.t(), e_RD)
    elif len(grad_RV.main) >= ONEDNN_ROWS and _onednn_can(grad_RV.main):
        sum_VD += _onednn(e_RD.main.t(), grad_RV.main.t(), None).t()  # G^T E itself takes twice as long
    else:
        sum_VD.addmm_(grad_RV.main.t(), e_RD.main)


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
    return torch.ops.mkldnn._linear_pointwise(x_MK, y_NK, bias_N, "none", [], "")


def _onednn_can(like: Tensor) -> bool:
    return like.device.type == "cpu" and like.dtype == torch.float32 and _has_onednn()


@cache
def _has_onednn() -> bool:
    """Return True if this build of torch has the private oneDNN product and computes a test product correctly."""
    x_23, y_43 = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(4, 3)
    try:
        return bool(torch.equal(_onednn(x_23, y_43, torch.ones(4)), x_23 @ y_43.t() + 1.0))
    except (AttributeError, RuntimeError, TypeError):
        return False
