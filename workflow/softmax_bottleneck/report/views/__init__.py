"""Tables: measured records joined with published numbers, cell by cell.

A table is an experiment's YAML and a view, a function here that lays cells out of what `source.Source` knows.
"""

from __future__ import annotations

from collections.abc import Mapping

from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report.cells import Table
from softmax_bottleneck.report.options import options_of
from softmax_bottleneck.report.registry import VIEWS
from softmax_bottleneck.report.source import Source
from softmax_bottleneck.report.templates import environment
from softmax_bottleneck.report.views import (  # noqa: F401  they register
    fit_conclusions,
    fits,
    perplexity,
    published_size,
    ranks,
    settings,
    words,
)
from softmax_bottleneck.study import Experiment, Study


def build(study: Study, experiment: Experiment, found: Records) -> Table:
    """The table of an experiment (UserError for a view or an option there is not)."""
    options, view, source = options_of(study, experiment), VIEWS[experiment.view], Source.of(study, experiment, found)
    parts = () if experiment.is_void and not experiment.quotes else tuple(view.make(source, options))
    texts = (experiment.id, experiment.source, experiment.artefact, experiment.title, source.caption)
    return Table(*texts, view.row, parts, experiment.needs, view.origin)


def table_page(table: Table, heads: Mapping[str, str] | None = None, study_file: str = "") -> str:
    """The table alone as a small HTML page.

    With `heads` (model -> head) its counts lead to the report's runs; `study_file`: for commands that print one.
    """
    return environment().get_template("table-page.html.j2").render(table=table, heads=heads, study_file=study_file)
