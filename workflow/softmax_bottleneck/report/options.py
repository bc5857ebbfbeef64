"""The views of tables and figures, and the `options` that each takes from an experiment, as frozen values.

This module imports neither pandas nor matplotlib, so that an unknown option fails before the first job starts:
`check_options` is called by the steps `check`, `plan` and `render`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from softmax_bottleneck.records import metrics
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import Experiment, Study, did_you_mean, find_config, load_experiment, read, schema


def _known_metric(name: str) -> str:
    try:
        metrics.find(name)
    except UserError as error:
        raise ValueError(str(error)) from None
    return name


MetricName = Annotated[str, AfterValidator(_known_metric)]


# --- options --------------------------------------------------------------------------------------------------------
@schema.section
class NoOptions:
    """The options of a view that takes none."""


@schema.section
class Comparison:
    """Models by metrics.

    Attributes:
        baseline: the model with which others are compared.
        tested: the metric whose means the p-values compare.
        seeds_not_tested: seeds that enter means and no test.
    """

    baseline: str = "softmax"
    tested: MetricName = metrics.TEST_PPL
    seeds_not_tested: tuple[schema.Integer, ...] = ()


@schema.section
class Pairwise:
    """Every model tested against every other: a metric, the stage it is of, and whether variances may differ."""

    tested: MetricName = metrics.TEST_PPL
    stage: Literal["", "finetuned", "dynamic"] = ""
    welch: schema.Flag = False


@schema.section
class Setting:
    """A line of a table of settings: its key in a study file, its name in report/published, its label."""

    setting: str
    published: str
    label: str


@schema.section
class Settings:
    """The lines of a table of settings, or of the values that a search combines."""

    settings: tuple[Setting, ...]


@schema.section
class PublishedWords:
    """The file of report/published with the words that the paper prints."""

    words: str


@schema.section
class Windows:
    """The window of perplexities that the paper singles out, by published corpus."""

    windows: Mapping[str, tuple[schema.Number, schema.Number]]


@schema.section
class RankDemo:
    """The rank of untrained layers: which numbers the step `synthetic` draws."""

    synthetic: Literal["rank-demo"]


@schema.section
class Robustness:
    """Rank under rounding or noise: which numbers the step `synthetic` draws, and of how many contexts."""

    synthetic: Literal["rebuild", "noise", "noise-effective"]
    size: Annotated[schema.Integer, Field(ge=20, le=20_000)] = 1000


@schema.section
class Fits:
    """The entry of a study's `fits` that is shown."""

    fits: str


@schema.section
class FitLoss(Fits):
    """One metric of fits."""

    metric: MetricName = metrics.KL


@schema.section
class FitMetrics(Fits):
    """Several metrics of fits."""

    metrics: tuple[MetricName, ...]


@schema.section
class FitMaps(FitMetrics):
    """Metrics for some concentrations α: those named, all where none is, or, with `others`, all but those."""

    alphas: tuple[schema.Number, ...] = ()
    others: schema.Flag = False


@schema.section
class FitCurves(FitMetrics):
    """Metrics along `x`, a panel per value of `panels`, a row of panels per metric and, if given, value of `rows`.

    d is the width of the model, r and `rank` are the columns and the rank of the law, M its words, alpha its
    concentration.
    """

    x: Literal["d", "r", "rank", "alpha"]
    panels: Literal["d", "r", "M"]
    rows: Literal["", "d"] = ""


@schema.section
class Spectrum:
    """Which panels of singular values.

    Relative to the largest, the `first` ones on a linear axis up to `top`, or `all` on a log axis; or all as they are
    (`raw`).
    """

    panels: tuple[Literal["first", "all", "raw"], ...] = ("first", "all")
    first: schema.Positive = 500
    top: schema.Number = 0.2


@schema.section
class Curve:
    """A setting of GSS: slope k below c."""

    c: schema.Number
    k: schema.Number


@schema.section
class Pointwise:
    """The settings of GSS whose curves are drawn."""

    curves: tuple[Curve, ...]


@schema.section
class Pieces:
    """A piecewise linear function on [−bound, bound]: the slope of every piece."""

    slopes: tuple[schema.Number, ...]
    bound: schema.Number = 2.0


@schema.section
class Sweeps:
    """What is drawn along settings of a head.

    Attributes:
        sweeps: the settings, with their labels.
        panels: the metrics of every panel.
        above: a metric of the same models that stands on the upper axis.
    """

    sweeps: Mapping[str, str]
    panels: tuple[tuple[MetricName, ...], ...] = ((metrics.TEST_PPL,), (metrics.PRESS_RANK,))
    above: tuple[MetricName, ...] = ()


@schema.section
class Snapshots:
    """Whether training keeps the weights of some epochs, so that there is something to draw."""

    snapshots: schema.Flag = False


# --- which view takes which -----------------------------------------------------------------------------------------
TABLES: Mapping[str, type] = {
    "summary": Comparison,
    "truth": Comparison,
    "pairwise": Pairwise,
    "wordsim": NoOptions,
    "wins": NoOptions,
    "coverage": NoOptions,
    "settings": Settings,
    "search": Settings,
    "published-size": NoOptions,
    "top5": PublishedWords,
    "hit-rates": NoOptions,
    "correlation": Windows,
    "rank-demo": RankDemo,
    "robustness": Robustness,
    "fit-loss": FitLoss,
    "fit-correlations": Fits,
    "fit-conclusions": Fits,
}
FIGURES: Mapping[str, type] = {
    "overview": NoOptions,
    "spectrum": Spectrum,
    "published-size-ranks": NoOptions,
    "published-size-spectra": NoOptions,
    "published-size-widths": NoOptions,
    "learning-curves": NoOptions,
    "rank-training": Snapshots,
    "saturation-training": Snapshots,
    "rank-perplexity": NoOptions,
    "grid-scatter": Windows,
    "sweep": Sweeps,
    "truth": NoOptions,
    "wins": NoOptions,
    "hits": NoOptions,
    "pointwise": Pointwise,
    "plif-pieces": Pieces,
    "learned-function": NoOptions,
    "fit-maps": FitMaps,
    "fit-curves": FitCurves,
    "fit-scatter": FitMetrics,
    "law-uniformity": Fits,
    "truth-of-texts": Fits,
}
OPTIONS: Mapping[str, Mapping[str, type]] = {"table": TABLES, "figure": FIGURES}


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


def options_of(study: Study, experiment: Experiment) -> Any:
    """Return the options of an experiment as its view takes them.

    Raises:
        UserError: an unknown view or option, naming the key and the file: the study's where it changes the options.
    """
    known = OPTIONS[experiment.kind]
    if experiment.view not in known:
        hint = did_you_mean(experiment.view, known)
        raise UserError(f"{_file_of(study, experiment)}: view: unknown {experiment.view!r}{hint}")
    try:
        return read(known[experiment.view], dict(experiment.options), "options")
    except UserError as error:
        is_own = experiment.options == load_experiment(experiment.id, study.file.parent).options
        place = _file_of(study, experiment) if is_own else f"{study.file}: experiments.{experiment.id}"
        raise UserError(f"{place}: {error}") from None


def _file_of(study: Study, experiment: Experiment) -> str:
    return str(find_config("experiments", experiment.id, study.file.parent))
