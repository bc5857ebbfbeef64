"""Tables and figures: measured records joined with published numbers.

The YAML file of an experiment names the view that makes its table or figure. A view is a function in a module of this
package: the view `rank-demo` of a table is `rank_demo_table`, and the names of figures end in `_figure`. The first
argument of a view is a `Source`. If the view of a table has a second argument, `dataset`, the view is called once per
corpus and returns one section of the table; otherwise it returns all sections. The keyword-only arguments of a view are
the options that the YAML file may set. Equal records give equal files.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, get_type_hints

import pandas as pd
from matplotlib import style

from softmax_bottleneck.records import metrics, records
from softmax_bottleneck.report import plots
from softmax_bottleneck.report.cells import Table
from softmax_bottleneck.report.source import Source
from softmax_bottleneck.report.views import (
    both_sides,
    fits,
    perplexity,
    price,
    published_size,
    ranks,
    settings,
    synthetic_ranks,
    tuning,
    words,
)
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import PlannedExperiment, Study, did_you_mean, find_config, load_experiment, read, schema

MODULES = (both_sides, fits, perplexity, price, published_size, ranks, settings, synthetic_ranks, tuning, words)
# Kind of experiment -> name of a view -> the function that makes it: `rank-demo` of a table is `rank_demo_table`.
VIEWS: Mapping[str, Mapping[str, FunctionType]] = {
    kind: {
        name.removesuffix(f"_{kind}").replace("_", "-"): function
        for module in MODULES
        for name, function in vars(module).items()
        if name.endswith(f"_{kind}")
    }
    for kind in ("table", "figure")
}
ROWS = {  # view -> heading of the column of row labels; for all other views it is `Model`
    **dict.fromkeys(("coverage", "wordsim"), "Benchmark"),
    **{"contrasts": "Contrast", "correlation": "Runs", "published-size": "Run", "rank-sweep": "Width and vocabulary"},
    **{"robustness": "Matrix", "search": "Setting or run", "settings": "Setting", "top5": "Context"},
}
DIGITS = 8  # significant ones in the data beside a figure


@dataclass(frozen=True)
class Figure:
    """A finished figure.

    Attributes:
        caption: the experiment's caption, in which the settings of its runs are filled in.
        note: text below the figure: which runs are drawn and which are missing.
        svg: a complete SVG document.
        csv: the numbers drawn, as text of a CSV file, with DIGITS significant digits.
    """

    caption: str
    note: str
    svg: str
    csv: str


def check_options(study: Study) -> None:
    """Check every experiment of a study before anything is computed; its view is called once with empty records.

    Raises:
        UserError: a view, option or metric is unknown, the value of an option is not allowed, or the view fails with
            the experiment's models, corpora and options.
    """
    rows, states = (pd.DataFrame(columns=list(names)) for names in (records.COLUMNS, records.STATE_COLUMNS))
    empty = records.Records(rows, states)
    for experiment in study.experiments:
        options_of(study, experiment)
        file = find_config("experiments", experiment.id, study.file.parent)
        for number, column in enumerate(experiment.columns):
            try:
                metrics.find(column.metric, column.stage)
            except UserError as error:
                raise UserError(f"{file}: columns.{number}.metric: {error}") from None
        try:
            _content(Source(study, experiment, empty))
        except Exception as error:
            problem = "cannot be made with its models, corpora and options"
            problem = str(error) if isinstance(error, UserError) else f"{problem} ({type(error).__name__}: {error})"
            raise UserError(f"{study.file}: experiments.{experiment.id}: {problem}") from error


def options_of(study: Study, experiment: PlannedExperiment) -> dict[str, Any]:
    """Return {option: value} of an experiment, as keyword arguments of its view, with defaults filled in.

    Raises:
        UserError: the view or an option is unknown, or a value is not allowed. The message names the file to correct:
            that of the experiment, or that of the study if the study overrides the options.
    """
    known, file = VIEWS[experiment.kind], find_config("experiments", experiment.id, study.file.parent)
    if experiment.view not in known:
        raise UserError(f"{file}: view: unknown {experiment.view!r}{did_you_mean(experiment.view, known)}")
    view = known[experiment.view]
    types = get_type_hints(view, include_extras=True)
    options = {name: kind for name, kind in types.items() if name not in ("source", "dataset", "return")}
    fields = {**(view.__kwdefaults__ or {}), "__annotations__": options}
    # A dataclass whose fields are the keyword-only arguments of the view; `read` validates their values.
    options_type: type[Any] = schema.section(type("Options", (), fields))
    try:
        return {**vars(read(options_type, dict(experiment.options), "options"))}
    except UserError as error:
        is_own = experiment.options == load_experiment(experiment.id, study.file.parent).options
        place = file if is_own else f"{study.file}: experiments.{experiment.id}"
        raise UserError(f"{place}: {error}") from None


def build(study: Study, experiment: PlannedExperiment, results: records.Records) -> Table | Figure:
    """Return the table or figure of an experiment, made from `results`, the records of the study.

    If the study has no model or no corpus for the experiment, a table has no sections, and a figure shows the reason as
    text. An experiment that quotes published results (`Experiment.quotes`) shows these results even then.

    Raises:
        UserError: the view or an option is unknown, an option has an invalid value, a file of published numbers is
            missing, or two published numbers fit one cell.
    """
    source = Source(study, experiment, results)
    if experiment.kind == "table":
        return Table(experiment, source.caption, ROWS.get(experiment.view, "Model"), _content(source))
    with style.context(plots.STYLE_SHEET, after_reset=True):  # a user's matplotlibrc must not change the figure
        drawing = _content(source)
        svg = plots.to_svg(drawing.canvas)
    is_empty = experiment.is_void and not experiment.quotes  # then the drawing shows `needs`
    note = " ".join(filter(None, [drawing.note, "" if is_empty else experiment.needs]))
    return Figure(source.caption, note, svg, records.to_csv(drawing.data, digits=DIGITS))


def _content(source: Source) -> Any:
    """Return the sections of an experiment's table, as a tuple, or the `Drawing` of its figure."""
    experiment, is_table = source.experiment, source.experiment.kind == "table"
    options, view = options_of(source.study, experiment), VIEWS[experiment.kind][experiment.view]
    if experiment.is_void and not experiment.quotes:
        needs = experiment.needs
        return () if is_table else plots.only_text(needs, pd.DataFrame({"needs": [needs]}))
    if is_table and "dataset" in view.__annotations__:
        return tuple(view(source, dataset, **options) for dataset in source.corpora)
    content = view(source, **options)
    return tuple(content) if is_table else content
