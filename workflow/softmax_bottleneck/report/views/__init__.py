"""Tables and figures: measured records joined with published numbers.

A table or figure is an experiment's YAML and a view, a function in a module here, one module per topic. The same input
gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import matplotlib as mpl
import pandas as pd

from softmax_bottleneck.records import records
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report import plots
from softmax_bottleneck.report.cells import Table
from softmax_bottleneck.report.options import options_of
from softmax_bottleneck.report.registry import VIEWS
from softmax_bottleneck.report.source import Source
from softmax_bottleneck.report.templates import environment
from softmax_bottleneck.report.views import (  # noqa: F401  they register
    fits,
    functions,
    overview,
    perplexity,
    published_size,
    rank_perplexity,
    ranks,
    settings,
    words,
)
from softmax_bottleneck.study import Experiment, Study

DIGITS = 8  # significant ones in the data beside a figure


@dataclass(frozen=True)
class Figure:
    """A finished figure.

    Attributes:
        caption: the experiment's, with the settings of its runs.
        alt: a description for those who do not see it.
        note: which runs are drawn, and what is missing.
        alone: what is published alone.
        svg: a whole SVG document.
        csv: the numbers drawn.
    """

    experiment: Experiment
    caption: str
    alt: str
    note: str
    alone: str
    svg: str
    csv: str


def build(study: Study, experiment: Experiment, found: Records) -> Table | Figure:
    """Return the table or figure of an experiment (UserError for an unknown view or option)."""
    source, options = Source(study, experiment, found), options_of(study, experiment)
    view = VIEWS[experiment.kind, experiment.view]
    is_empty = experiment.is_void and not experiment.quotes
    if experiment.kind == "table":
        sections = () if is_empty else tuple(view.make(source, options))
        return Table(experiment, source.caption, view.row, view.origin, sections)
    with mpl.rc_context(fname=plots.STYLE_SHEET):
        if is_empty:
            drawing = plots.only_text(experiment.needs, pd.DataFrame({"needs": [experiment.needs]}))
        else:
            drawing = view.make(source, options)
        svg = plots.to_svg(drawing.canvas)
    note = " ".join(filter(None, [drawing.note, "" if is_empty else experiment.needs, source.published_alone]))
    csv = records.to_csv(drawing.data, digits=DIGITS)
    return Figure(experiment, source.caption, drawing.alt, note, source.published_alone, svg, csv)


def table_page(table: Table, heads: Mapping[str, str] | None = None, study_file: str = "") -> str:
    """Return the table alone as a small HTML page.

    With `heads` (model -> head) its counts lead to the report's runs; `study_file`: for commands that print a number.
    """
    return environment().get_template("table-page.html.j2").render(table=table, heads=heads, study_file=study_file)
