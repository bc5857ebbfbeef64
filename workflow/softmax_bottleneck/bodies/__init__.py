"""The bodies, i.e. the networks below the output heads: one module each, whose `BODY` is the class of the network."""

import inspect
from importlib import import_module
from typing import Any

from softmax_bottleneck.bodies.base import Body
from softmax_bottleneck.store.errors import UserError


def build(kind: str, *, vocabulary_size: int, **options: Any) -> Body:
    """Build the body that configurations call `kind`.

    Args:
        kind: name of a module of this folder, with hyphens, such as `awd-lstm` for `awd_lstm.py`.
        vocabulary_size: number of word types.
        options: keyword arguments of the body, such as `layers=3`. An option that this kind of body does not have must
            be 0 or False, and is ignored.

    Raises:
        UserError: an option that the body does not have is neither 0 nor False, or a value is not allowed.
    """
    body = import_module(f"{__name__}.{kind.replace('-', '_')}").BODY
    allowed = inspect.signature(body).parameters
    for name, value in options.items():
        if name not in allowed and value:
            raise UserError(f"body: {kind} has no {name}, so it must be 0, not {value}")
    return body(vocabulary_size=vocabulary_size, **{name: options[name] for name in options if name in allowed})
