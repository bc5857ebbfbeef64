"""The base classes of output heads, which have a decoder matrix, a loss, and log-probabilities.

Shapes: N = T x B tokens (T time steps of B sequences), D width of the hidden states, E embedding width,
K components of a mixture, V vocabulary.
"""

import copy
import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from softmax_bottleneck.heads.declaration import Declaration
from softmax_bottleneck.heads.matmul import FP32, check_precision
from softmax_bottleneck.heads.pointwise import Pointwise, trainable
from softmax_bottleneck.heads.row_nll import RowNLL, row_nll, without_autocast
from softmax_bottleneck.store.errors import UserError

DECODER_RANGE = 0.1


class Head(nn.Module):
    """The base class of output heads, which turn hidden states into losses and log-probabilities over V words.

    The constructor's ``vocabulary_size`` is V, ``context_size`` is D, and ``embedding_size`` is E; the other keywords
    are options of the head, which ``declaration`` lists with their defaults. ``decoder.weight`` [V, E] can be tied to
    the word vectors of the body. A subclass defines ``declaration``, ``_losses`` and ``_log_probs``; CONTRIBUTING.md
    says how to add a head.

    Results have the dtype of the decoder, or float32 if that is a half precision; hidden states are cast to it.
    Autocast is off inside the head, because it would round log-probabilities to bfloat16.
    """

    declaration: ClassVar[Declaration]
    pointwise: Pointwise
    rows_per_token = 1  # rows of logits that one token needs: the components of a mixture
    # The hidden state h of most heads is the output of the body's last layer. For a head with `lower_size` > 0, h is
    # the input of that layer (`lower_size` numbers) followed by the output.
    lower_size = 0

    def __init__(self, *, vocabulary_size: int, context_size: int, embedding_size: int, **options: Any) -> None:
        super().__init__()
        self.options = self.declaration.read(options)
        self.vocabulary_size = vocabulary_size
        self.context_size = context_size
        self.embedding_size = embedding_size
        self.decoder = nn.Linear(embedding_size, vocabulary_size)
        self.precision = FP32  # of the products of the fused loss in a training step

    def reset_decoder(self) -> None:
        """Sample the decoder's weight from U(-0.1, 0.1) and set the bias to 0 (Merity 2018).

        A subclass calls this method in its constructor, after creating its own layers and before creating a pointwise
        function with parameters, so that random numbers are drawn in a fixed order.
        """
        nn.init.uniform_(self.decoder.weight, -DECODER_RANGE, DECODER_RANGE)
        nn.init.zeros_(self.decoder.bias)

    def set_precision(self, precision: str) -> None:
        """Set the precision of the fused loss in training steps, one of ``heads/matmul.py``: fp32, tf32, tf32x3, ...

        Raises:
            UserError: the head or the device does not support this precision.
        """
        check_precision(precision, self.decoder.weight.device)
        self.precision = precision

    def forward(self, h: Tensor, target: Tensor | None = None, *, generator: torch.Generator | None = None) -> Any:
        """Return ``losses(h, target)`` or, without a target, ``log_probs(h)``."""
        dtype = self.decoder.weight.dtype
        if dtype.itemsize < torch.float32.itemsize:
            return self._in_float32().forward(h, target, generator=generator)
        with without_autocast(h.device):
            h = h.to(dtype)
            if target is None:
                return self._log_probs(h, generator)
            return self._losses(h, target.reshape(-1), generator)

    def _in_float32(self) -> "Head":
        """Return a copy of the head whose tensors are float32; gradients flow through them to the head's own."""
        tensors = (*self.parameters(), *self.buffers())
        return copy.deepcopy(self, {id(one): one.float() for one in tensors if one.is_floating_point()})

    def _losses(self, h: Tensor, target_N: Tensor, generator: torch.Generator | None) -> RowNLL:
        """Return what ``losses`` returns, for ``h`` in the decoder's dtype; every head defines this method."""
        raise NotImplementedError

    def _log_probs(self, h: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return what ``log_probs`` returns, for ``h`` in the decoder's dtype; every head defines this method."""
        raise NotImplementedError

    def losses(self, h: Tensor, target: Tensor, *, generator: torch.Generator | None) -> RowNLL:
        """Return the loss -ln P(target) of each token, [N], and the sum of these losses, both in nats.

        Args:
            h: hidden states [N, D] or [T, B, D]; N may be 0.
            target: ids of the words to predict, int64 [N] or [T, B].
            generator: random generator of the head's dropout masks in train mode; None for torch's default generator.
        """
        return self.forward(h, target, generator=generator)

    def nll(self, h: Tensor, target: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the loss -ln P(target) of each token, [N] nats, differentiable, without storing all logits.

        ``h`` is [N, D] or [T, B, D], ``target`` int64 [N] or [T, B]; ``generator`` draws the head's dropout masks in
        train mode (None: torch's default generator).
        """
        return self.losses(h, target, generator=generator).nll_N

    def mean_nll(self, h: Tensor, target: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the training loss, a scalar: the mean of -ln P(target) over all tokens, in nats; 0 without tokens.

        ``h`` is [N, D] or [T, B, D], ``target`` int64 [N] or [T, B]; ``generator`` draws the head's dropout masks in
        train mode (None: torch's default generator). The backward pass never makes the CPU wait for a GPU.
        """
        return self.losses(h, target, generator=generator).total / max(1, target.numel())

    def log_probs(self, h: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return ln P(.|context), [N, V] nats, for ``h`` [N, D] or [T, B, D].

        ``generator`` draws the head's dropout masks in train mode (None: torch's default generator).
        """
        return self.forward(h, generator=generator)

    @property
    def is_log_linear(self) -> bool:
        """True if log_probs(h) = contexts(h) W^T + b - logZ.

        W and b are the decoder's weight and bias, and logZ is one number per token. The singular values of the
        log-probabilities can then be computed from these factors, without the [N, V] matrix.
        """
        return False

    def contexts(self, h: Tensor) -> Tensor:
        """Return the context vectors c [N, E], from which the decoder computes the logits c W^T + b.

        ``h`` are the hidden states [N, D] or [T, B, D]; W and b are the weight and bias of the decoder.

        Raises:
            UserError: the head is not log-linear: its log-probabilities are not c W^T + b - logZ.
        """
        raise UserError(f"{type(self).__name__} is not log-linear, it has no context vectors: use log_probs")

    def _rows(self, h: Tensor) -> Tensor:
        return h.reshape(-1, self.context_size)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the trainable parameters as optimiser groups [{"params": [...]}, ...].

        A group of parameters that have their own learning rate also has the key "lr".
        """
        groups: list[dict[str, Any]] = []
        for module in self.modules():
            parameters = trainable(module) if isinstance(module, Pointwise) else ()
            if parameters and module.learning_rate is not None:
                groups.append({"params": list(parameters), "lr": module.learning_rate})
        grouped = {id(parameter) for group in groups for parameter in group["params"]}
        rest = [p for p in self.parameters() if p.requires_grad and id(p) not in grouped]
        return [{"params": rest}, *groups]


class SingleSoftmaxHead(Head):
    """A head with one softmax per token: log_softmax(g(W c + b)), with one context vector c and a pointwise function g.

    A subclass defines ``pointwise``, which is g, and ``_contexts``.
    """

    def _contexts(self, h: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the context vectors c [N, E] of ``h``; ``generator`` draws dropout masks in train mode."""
        raise NotImplementedError

    def _losses(self, h: Tensor, target_N: Tensor, generator: torch.Generator | None) -> RowNLL:
        context_NE, weight_VE, bias_V = self._contexts(h, generator), self.decoder.weight, self.decoder.bias
        return row_nll(context_NE, weight_VE, bias_V, target_N, self.pointwise, precision=self.precision)

    def _log_probs(self, h: Tensor, generator: torch.Generator | None) -> Tensor:
        return self.pointwise(self.decoder(self._contexts(h, generator))).log_softmax(1)

    @property
    def is_log_linear(self) -> bool:
        """True if g is the identity."""
        return self.pointwise.is_identity

    def contexts(self, h: Tensor) -> Tensor:
        """Return what `Head.contexts` defines, without dropout in evaluation mode."""
        return self._contexts(h, None) if self.is_log_linear else super().contexts(h)


class PointwiseHead(SingleSoftmaxHead):
    """The head log_softmax(g(W h + b)) of a pointwise function g (Ganea 2019, eq. 12).

    A subclass defines ``function``, the class of g. Its constructor takes the options of the head.

    Raises:
        UserError: context_size differs from embedding_size.
    """

    function: ClassVar[type[Pointwise]]

    def __init__(self, *, context_size: int, embedding_size: int, **given: Any) -> None:
        if context_size != embedding_size:
            raise UserError(
                f"this head reads contexts as wide as the embedding: got context size {context_size}, "
                f"embedding size {embedding_size}; set both to the same number, or use a mixture head"
            )
        super().__init__(context_size=context_size, embedding_size=embedding_size, **given)
        self.reset_decoder()
        self.pointwise = self.function(**dataclasses.asdict(self.options))

    def _contexts(self, h: Tensor, generator: torch.Generator | None) -> Tensor:
        return self._rows(h)
