"""The networks below the heads. A body is one module here that names its class `BODY`; the file is all it takes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from softmax_bottleneck.bodies.base import Body


def build(kind: str, *, vocabulary_size: int, **options: Any) -> Body:
    """A body by the name used in configurations (`awd-lstm` is the module `awd_lstm`)."""
    module = import_module(f"{__name__}.{kind.replace('-', '_')}")
    body: Body = module.BODY(vocabulary_size=vocabulary_size, **options)
    return body
