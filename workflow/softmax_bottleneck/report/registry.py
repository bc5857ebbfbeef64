"""Which function makes which table or figure: a decorator above it says, `@view("wins", row="Model")`.

The options it takes are those that `options.py` declares under the same name; a table or figure takes its source and
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

from softmax_bottleneck.report import options
from softmax_bottleneck.report.cells import Part
from softmax_bottleneck.report.source import Source

Make = TypeVar("Make", bound=Callable[..., Any])
Options = TypeVar("Options")


@dataclass(frozen=True)
class View:
    """How a table is made of a source and its options.

    Attributes:
        row: what its rows are.
        origin: what its own lines are called beside those of the paper.
    """

    make: Callable[[Source, Any], Iterable[Part]]
    row: str
    origin: str


VIEWS: dict[str, View] = {}
FIGURES: dict[str, Callable[[Source, Any], Any]] = {}


def view(name: str, row: str = "Model", origin: str = "measured") -> Callable[[Make], Make]:
    """Register a table: a function of a source and options that yields its parts."""

    def register(make: Make) -> Make:
        assert name in options.TABLES, f"options.py says nothing of the table {name!r}"
        VIEWS[name] = View(make, row, origin)
        return make

    return register


def figure(name: str) -> Callable[[Make], Make]:
    """Register a figure: a function of a source and options that returns its drawing."""

    def register(make: Make) -> Make:
        assert name in options.FIGURES, f"options.py says nothing of the figure {name!r}"
        FIGURES[name] = make
        return make

    return register


def by_corpus(make: Callable[[Source, Options, str], Part | None]) -> Callable[[Source, Options], list[Part]]:
    """A table whose parts are made corpus by corpus, also of published ones that the study has not."""

    @wraps(make)
    def parts(source: Source, options: Options) -> list[Part]:
        found = (make(source, options, dataset) for dataset in source.corpora)
        return [part for part in found if part is not None]

    return parts
