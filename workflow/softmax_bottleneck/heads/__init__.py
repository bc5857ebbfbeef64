"""The output heads: every file of this folder that declares NAME, LABEL and OPTIONS is a head.

NAME is the head's name in configurations, LABEL its name in tables, and OPTIONS the JSON schemas of its options. The
module ``registry`` reads them from the source code, so that configuration and reports need no torch. Torch is imported
only when a head or its class is requested.

For use in other models, this module also offers each head as a class named by its label. The class is created on first
access, and its options have defaults: ``from softmax_bottleneck.heads import GSS``, then
``GSS(vocabulary_size=10_000, context_size=64, embedding_size=64, c=-1.5, k=2.5)`` (docs/heads.md).
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from softmax_bottleneck.heads.registry import Declaration, declaration, declarations, module_path, names, options
from softmax_bottleneck.store.errors import UserError

if TYPE_CHECKING:
    from softmax_bottleneck.heads.base import Head
    from softmax_bottleneck.heads.pointwise import Pointwise

__all__ = ["Declaration", "build", "build_pointwise", "declaration", "declarations", "module_path", "names", "options"]


def build(name: str, *, vocabulary_size: int, context_size: int, embedding_size: int, **given: Any) -> Head:
    """Build a head, such as ``build("mos", vocabulary_size=100, context_size=8, embedding_size=8, components=3)``.

    ``name`` is the head's NAME, and ``given`` are its options; an omitted option has its default.

    Raises:
        UserError: the name or an option is unknown, or a value or size is not allowed.
    """
    from softmax_bottleneck.heads.base import PointwiseHead

    sizes = {"vocabulary_size": vocabulary_size, "context_size": context_size, "embedding_size": embedding_size}
    kind, checked = _class(name), options(name, given)
    if _is_pointwise(kind):
        return PointwiseHead(lambda: kind(**checked), **sizes)
    head: Head = kind(**sizes, **checked)
    return head


def __getattr__(attribute: str) -> Any:
    """Return the class of a head; ``attribute`` is the head's label without spaces and punctuation.

    For example, ``LMSPLIF`` is the class of the head with the label LMS-PLIF.

    Raises:
        AttributeError: no head has this label.
    """
    labelled = {_attribute(head): head.name for head in declarations().values()}
    if attribute not in labelled:
        known = ", ".join(labelled)
        raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}; the heads' classes: {known}")
    globals()[attribute] = kind = _library_class(attribute, labelled[attribute])
    return kind


def __dir__() -> list[str]:
    return sorted({*globals(), *map(_attribute, declarations().values())})


def _attribute(head: Declaration) -> str:
    return "".join(character for character in head.label if character.isalnum())


def _library_class(attribute: str, name: str) -> type[Head]:
    """Return a new subclass of Head, named ``attribute``, for the head ``name``.

    It is derived from the class in the head's file. If that class is only a pointwise function, the new class is
    derived from PointwiseHead and applies the function. The constructor takes sizes and options as keywords and checks
    them. ``help(...)`` shows the options' defaults.
    """
    from softmax_bottleneck.heads.base import PointwiseHead

    kind = _class(name)
    base = PointwiseHead if _is_pointwise(kind) else kind

    def __init__(self: Any, *, vocabulary_size: int, context_size: int, embedding_size: int, **given: Any) -> None:  # noqa: N807
        sizes: dict[str, Any] = {"vocabulary_size": vocabulary_size, "context_size": context_size}
        sizes["embedding_size"] = embedding_size
        checked = options(name, given)
        if base is PointwiseHead:
            base.__init__(self, lambda: kind(**checked), **sizes)
        else:
            base.__init__(self, **sizes, **checked)

    plain = inspect.signature(__init__)
    named = [
        inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=schema["default"])
        for key, schema in declaration(name).options.items()
    ]
    shown = plain.replace(parameters=[*list(plain.parameters.values())[:-1], *named])
    __init__.__signature__ = shown  # type: ignore[attr-defined]  # what help() and editors show
    __init__.__qualname__ = f"{attribute}.__init__"
    about = sys.modules[kind.__module__].__doc__
    return type(attribute, (base,), {"__init__": __init__, "__module__": __name__, "__doc__": about})


def build_pointwise(name: str, given: Mapping[str, Any]) -> Pointwise:
    """Build the function g that the head ``name`` applies to each logit; ``given`` are the head's options.

    Raises:
        UserError: the head is more than a pointwise function before a softmax (such as a mixture); the name or an
            option is unknown; or a value is not allowed.
    """
    kind, checked = _class(name), options(name, given)
    if not _is_pointwise(kind):
        usable = ", ".join(other for other in names() if _is_pointwise(_class(other)))
        raise UserError(f'head "{name}" is not a pointwise function of the logits; those are: {usable}')
    pointwise: Pointwise = kind(**checked)
    return pointwise


def _class(name: str) -> Any:
    """Return the class in the file of the head ``name``; it is a subclass of Head or of Pointwise."""
    from softmax_bottleneck.heads.base import Head
    from softmax_bottleneck.heads.pointwise import Pointwise

    module = importlib.import_module(f"{__name__}.{module_path(name).stem}")
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    (kind,) = (value for value in own if issubclass(value, (Head, Pointwise)))
    return kind


def _is_pointwise(kind: type) -> bool:
    from softmax_bottleneck.heads.pointwise import Pointwise

    return issubclass(kind, Pointwise)
