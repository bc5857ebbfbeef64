"""The bodies, i.e. the networks below the output heads. Each module of this folder that defines `BODY` is a body."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from softmax_bottleneck.bodies.base import Body
from softmax_bottleneck.store.errors import UserError


def build(kind: str, *, vocabulary_size: int, **options: Any) -> Body:
    """Build the body that configurations call `kind` (`awd-lstm` is the module `awd_lstm`).

    Options of other bodies may be given as 0 or False; they are ignored.

    Raises:
        UserError: an option of another body is neither 0 nor False, or a value is not allowed.
    """
    module = import_module(f"{__name__}.{kind.replace('-', '_')}")
    own = inspect.signature(module.BODY).parameters
    for name, value in options.items():
        if name not in own and value:
            raise UserError(f"body: {kind} has no {name}, so it must be 0, not {value}")
    body: Body = module.BODY(
        vocabulary_size=vocabulary_size, **{name: value for name, value in options.items() if name in own}
    )
    return body
