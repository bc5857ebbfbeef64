"""The views: functions that turn an experiment's numbers into the sections of a table or into the drawing of a figure.

`@view("table", "wins", row="Model")` above a function registers it under the name that an experiment's YAML gives. The
keyword arguments of the function are the `options` that the YAML may set, with their types and defaults.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from pydantic import AfterValidator

from softmax_bottleneck.records import metrics
from softmax_bottleneck.report.cells import Section
from softmax_bottleneck.report.source import Source
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import schema

Make = TypeVar("Make", bound=Callable[..., Any])


def _known_metric(name: str) -> str:
    try:
        metrics.find(name)
    except UserError as error:
        raise ValueError(str(error)) from None
    return name


MetricName = Annotated[str, AfterValidator(_known_metric)]


@dataclass(frozen=True)
class View:
    """A registered view.

    Attributes:
        make: called with a source and options, yields the sections of a table or returns the drawing of a figure.
        options: a frozen dataclass of its options.
        row: what a table's rows are.
        origin: what a table's own lines are called beside those of the paper.
    """

    make: Callable[..., Any]
    options: type
    row: str
    origin: str


VIEWS: dict[tuple[str, str], View] = {}


def view(
    kind: Literal["table", "figure"], name: str, row: str = "Model", origin: str = "measured"
) -> Callable[[Make], Make]:
    """Register a view of an experiment's kind under a name."""

    def register(make: Make) -> Make:
        parameters = inspect.signature(make).parameters.values()
        options = [option for option in parameters if option.kind is option.KEYWORD_ONLY]
        types = get_type_hints(inspect.unwrap(make), include_extras=True)
        fields: dict[str, Any] = {
            option.name: option.default for option in options if option.default is not option.empty
        }
        fields |= {"__annotations__": {option.name: types[option.name] for option in options}}
        VIEWS[kind, name] = View(make, schema.section(type("Options", (), fields)), row, origin)
        return make

    return register


def by_corpus(make: Callable[..., Section]) -> Callable[..., list[Section]]:
    """Make a table of a function of one corpus, also for published corpora that the study lacks."""

    @wraps(make)
    def sections(source: Source, **options: Any) -> list[Section]:
        return [make(source, dataset, **options) for dataset in source.corpora]

    return sections
