"""Tables and figures: measured records joined with published numbers.

A table or figure is an experiment's YAML and a view, a function in a module here, one module per topic. The same input
gives the same bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import pandas as pd

from softmax_bottleneck.records import metrics, records
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report import plots
from softmax_bottleneck.report.cells import Table
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
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import Experiment, Study, did_you_mean, find_config, load_experiment, read

DIGITS = 8  # significant ones in the data beside a figure


@dataclass(frozen=True)
class Figure:
    """A finished figure.

    Attributes:
        caption: the experiment's, with the settings of its runs.
        alt: a description for those who do not see it.
        note: which runs are drawn, and what is missing.
        svg: a whole SVG document.
        csv: the numbers drawn.
    """

    experiment: Experiment
    caption: str
    alt: str
    note: str
    svg: str
    csv: str


def check_options(study: Study) -> None:
    """Reject an unknown view, metric or option, at any depth, before anything is computed.

    Raises:
        UserError: naming file and key, with the nearest name there is.
    """
    for experiment in study.experiments:
        options_of(study, experiment)
        for number, column in enumerate(experiment.columns):
            try:
                metrics.find(column.metric, column.stage)
            except UserError as error:
                raise UserError(f"{_file_of(study, experiment)}: columns.{number}.metric: {error}") from None


def options_of(study: Study, experiment: Experiment) -> dict[str, Any]:
    """Return the options of an experiment as its view takes them.

    Raises:
        UserError: an unknown view or option, naming the key and the file: the study's where it changes the options.
    """
    known = {name: view for (kind, name), view in VIEWS.items() if kind == experiment.kind}
    if experiment.view not in known:
        hint = did_you_mean(experiment.view, known)
        raise UserError(f"{_file_of(study, experiment)}: view: unknown {experiment.view!r}{hint}")
    try:
        return {**vars(read(known[experiment.view].options, dict(experiment.options), "options"))}
    except UserError as error:
        is_own = experiment.options == load_experiment(experiment.id, study.file.parent).options
        place = _file_of(study, experiment) if is_own else f"{study.file}: experiments.{experiment.id}"
        raise UserError(f"{place}: {error}") from None


def _file_of(study: Study, experiment: Experiment) -> str:
    return str(find_config("experiments", experiment.id, study.file.parent))


def build(study: Study, experiment: Experiment, results: Records) -> Table | Figure:
    """Return the table or figure of an experiment (UserError for an unknown view or option)."""
    source, options = Source(study, experiment, results), options_of(study, experiment)
    view = VIEWS[experiment.kind, experiment.view]
    is_empty = experiment.is_void and not experiment.quotes
    if experiment.kind == "table":
        sections = () if is_empty else tuple(view.make(source, **options))
        return Table(experiment, source.caption, view.row, view.origin, sections)
    with mpl.rc_context(fname=plots.STYLE_SHEET):
        if is_empty:
            drawing = plots.only_text(experiment.needs, pd.DataFrame({"needs": [experiment.needs]}))
        else:
            drawing = view.make(source, **options)
        svg = plots.to_svg(drawing.canvas)
    note = " ".join(filter(None, [drawing.note, "" if is_empty else experiment.needs, source.published_alone]))
    csv = records.to_csv(drawing.data, digits=DIGITS)
    return Figure(experiment, source.caption, drawing.alt, note, svg, csv)


def table_page(table: Table, heads: Mapping[str, str] | None = None, study_file: str = "") -> str:
    """Return the table alone as a small HTML page.

    With `heads` (model -> head) its counts lead to the report's runs; `study_file`: for commands that print a number.
    """
    return environment().get_template("table-page.html.j2").render(table=table, heads=heads, study_file=study_file)
