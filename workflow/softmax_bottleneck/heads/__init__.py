"""The output heads: every file of this folder that assigns a `Declaration` to HEAD is a head.

The module ``registry`` reads the declarations, also of heads from outside, so that configuration and reports need no
torch. Torch is imported only when a head or its class is requested.

For use in other models, this module offers the class of each head by its label: ``from softmax_bottleneck.heads import
GSS``, then ``GSS(vocabulary_size=10_000, context_size=64, embedding_size=64, c=-1.5, k=2.5)`` (docs/heads.md).
"""

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from softmax_bottleneck.heads.declaration import Declaration
from softmax_bottleneck.heads.registry import HeadFile, declaration, declarations, find, importing_from, names, options
from softmax_bottleneck.store.errors import UserError

if TYPE_CHECKING:
    from softmax_bottleneck.heads.base import Head
    from softmax_bottleneck.heads.pointwise import Pointwise

__all__ = ["Declaration", "build", "build_pointwise", "declaration", "declarations", "head_class", "names", "options"]


def head_class(name: str) -> "type[Head]":
    """Import the file of a head and return its class.

    Raises:
        UserError: no head has this name, its file cannot be imported, or the file has no class with
            ``declaration = HEAD``.
    """
    file = find(name)
    try:
        module = importlib.import_module(file.module) if file.module else _imported(file)
    except Exception as error:
        if not file.is_outside:
            raise
        raise UserError(f"{file.path}: cannot be imported ({type(error).__name__}: {error})") from error
    for value in vars(module).values():
        if isinstance(value, type) and vars(value).get("declaration") is module.HEAD:
            return value
    raise UserError(f"{file.path}: no class with the line `declaration = HEAD`. Expected the class of the head")


def _imported(file: HeadFile) -> ModuleType:
    """Import a file that belongs to no package, once."""
    name = f"outside_head_{file.head.name}"
    if name not in sys.modules:
        spec: Any = importlib.util.spec_from_file_location(name, file.path)
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            with importing_from(file.path.parent):
                spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def build(name: str, *, vocabulary_size: int, context_size: int, embedding_size: int, **given: Any) -> "Head":
    """Build a head, such as ``build("mos", vocabulary_size=100, context_size=8, embedding_size=8, components=3)``.

    ``name`` is the head's name in studies, and ``given`` are its options; an omitted option has its default.

    Raises:
        UserError: the name or an option is unknown, or a value or size is not allowed.
    """
    sizes = {"vocabulary_size": vocabulary_size, "context_size": context_size, "embedding_size": embedding_size}
    return head_class(name)(**sizes, **given)


def build_pointwise(name: str, given: Mapping[str, Any]) -> "Pointwise":
    """Build the function g that the head ``name`` applies to each logit; ``given`` are the head's options.

    Raises:
        UserError: the head is more than a pointwise function before a softmax (such as a mixture); the name or an
            option is unknown; or a value is not allowed.
    """
    from softmax_bottleneck.heads.base import PointwiseHead

    kind = head_class(name)
    if not issubclass(kind, PointwiseHead):
        usable = ", ".join(other for other, head in declarations().items() if "pointwise" in head.family)
        raise UserError(f"head {name} is not a pointwise function of the logits. Expected one of {usable}")
    return kind.function(**options(name, given))


def __getattr__(attribute: str) -> Any:
    """Return the class of a head; ``attribute`` is the head's label without spaces and punctuation.

    For example, ``LMSPLIF`` is the class of the head with the label LMS-PLIF.

    Raises:
        AttributeError: no head has this label.
    """
    labelled = {"".join(filter(str.isalnum, head.label)): name for name, head in declarations().items()}
    if attribute not in labelled:
        raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}; the classes: {', '.join(labelled)}")
    return head_class(labelled[attribute])
