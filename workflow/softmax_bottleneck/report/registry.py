"""The views: functions that turn an experiment's numbers into the sections of a table or into the drawing of a figure.

`@view("table", "wins", row="Model")` above a function registers it under the name that an experiment's YAML gives.
`options.py` lists the options of every view.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, TypeVar

from softmax_bottleneck.report import options
from softmax_bottleneck.report.cells import Section
from softmax_bottleneck.report.source import Source

Make = TypeVar("Make", bound=Callable[..., Any])
Options = TypeVar("Options")


@dataclass(frozen=True)
class View:
    """A registered view.

    Attributes:
        make: called with a source and options, yields the sections of a table or returns the drawing of a figure.
        row: what a table's rows are.
        origin: what a table's own lines are called beside those of the paper.
    """

    make: Callable[[Source, Any], Any]
    row: str
    origin: str


VIEWS: dict[tuple[str, str], View] = {}


def view(
    kind: Literal["table", "figure"], name: str, row: str = "Model", origin: str = "measured"
) -> Callable[[Make], Make]:
    """Register a view of an experiment's kind under a name."""
    assert name in options.OPTIONS[kind], f"options.py lists no options of the {kind} {name!r}"

    def register(make: Make) -> Make:
        VIEWS[kind, name] = View(make, row, origin)
        return make

    return register


def by_corpus(make: Callable[[Source, Options, str], Section]) -> Callable[[Source, Options], list[Section]]:
    """Make a table of a function of one corpus, also for published corpora that the study lacks."""

    @wraps(make)
    def sections(source: Source, options: Options) -> list[Section]:
        return [make(source, options, dataset) for dataset in source.corpora]

    return sections
