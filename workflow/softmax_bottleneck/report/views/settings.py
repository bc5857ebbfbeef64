"""Tables of hyperparameters and of hyperparameter searches, and figures of the pointwise functions of heads.

They correspond to SM Tables 6 to 9 and Figure 1 of Parthiban et al. 2021 and to Figures 1 and 4 of Ganea et al. 2019.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from functools import partial

import numpy as np
import pandas as pd

from softmax_bottleneck.report import figures, numbers, plots
from softmax_bottleneck.report.cells import Cell, MeasuredCell, PublishedCell, Section
from softmax_bottleneck.report.source import Source, label
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import Search, schema

RANGE = (-6.0, 6.0)  # of the x axis (logits) and the y axis of Figure 1
CURVE_POINTS = 121
CURVE_RANGE = 8.0  # a learned function is shown for logits from -8 to 8


# --- hyperparameters -------------------------------------------------------------------------------------------------
@schema.section
class Setting:
    """A row of a table of settings.

    Attributes:
        setting: key in a study file, such as `schedule.epochs`, or `seed`.
        published: the paper's name of the setting, such as `wdrop`: a value of the column `metric` in the CSV files of
            report/published.
        label: text in front of the row.
    """

    setting: str
    published: str
    label: str


def settings_table(source: Source, dataset: str, *, settings: tuple[Setting, ...]) -> Section:
    """Return a section with a row per setting and a column per model; a cell has the study's and the published value.

    `none` instead of the study's value means that the model's head has no such setting. The row `seed` shows the
    published seed and the study's `author_seed`: the seed that the study copies from the paper and uses for its first
    run of the model. In this row, `none` means that the study has no `author_seed` for the model.
    """
    published_names = {line.setting: line.published for line in settings}

    def cell(setting: str, model: str) -> Cell:
        name = source.experiment.published_rows.get(model, {}).get("model", source.published_names.get(model, model))
        rows = source.published[source.published["metric"] == published_names[setting]]
        # A published value may apply to all models (model `all`) or to both corpora (such as `ptb+wt2`).
        of_corpus = rows["dataset"].str.split("+").map(lambda names: source.corpus(dataset) in names)
        values = rows[of_corpus & rows["model"].isin([name, "all"])]["value"]
        published = None if values.empty else PublishedCell(values.iloc[0])
        runs = source.runs(dataset, model)
        if not runs:
            return Cell(published=published, gaps=source.gaps(dataset, model, ()))
        seed = source.study.author_seeds.get((dataset, model))  # of the published single run
        value: float | None = seed if setting == "seed" else runs[0].value(setting)
        if value is None:  # the head has no such option, or the seed is not published
            return Cell(published=published, label="none")
        exponent = Decimal(f"{value:.12g}").normalize().as_tuple().exponent
        same, digits = source.same(dataset, model), max(0, -int(exponent))
        return Cell(MeasuredCell(float(value)), published, digits, same=same, runs=f"{dataset}/{model}")

    models = (*source.experiment.entries, *source.experiment.absent)
    columns = {model: label(source.study, model) for model in models}
    return source.section(dataset, {line.setting: line.label for line in settings}, columns, cell)


def search_table(source: Source, *, settings: tuple[Setting, ...]) -> Iterator[Section]:
    """Yield the sections of a table on hyperparameter searches (grids of settings): first what is tried, then results.

    What is tried: one section per corpus, with a column per search and a row per item of `settings`. A cell lists the
    values that the search tries, next to the published values. Two more rows count all combinations of these values,
    and the combinations that the study trains.

    Results: one section per corpus and search, with a row per trained model and a column per metric.

    Raises:
        UserError: an entry of the experiment is not a search.
    """
    if other := next((entry for entry in source.experiment.entries if entry not in source.study.searches), None):
        raise UserError(f"models: {other!r} is not a search. Name entries of `models` that have a `grid`")
    published_names = {line.setting: line.published for line in settings}
    counts = {"size": "Combinations", "planned": "of them planned in this study"}

    def declared_cell(dataset: str, row: str, entry: str) -> Cell:
        declared = source.study.searches.get(entry, Search({}, 0, ()))
        gaps = () if declared.size else source.gaps(dataset, entry, ())
        if row in counts:
            count = declared.size if row == "size" else len(declared.members)
            return Cell(gaps=gaps) if gaps else Cell(MeasuredCell(count), digits=0)
        values = ", ".join(f"{value:g}" for value in declared.axes.get(row, ()))
        printed = source.published[source.published["metric"] == published_names[row]]["value"]
        published = None if printed.empty else PublishedCell(printed.iloc[0].replace("|", ", "))
        return Cell(label="" if gaps else values or "fixed", published=published, gaps=gaps)

    entries = (*source.experiment.entries, *source.experiment.absent)
    searches = {entry: entry.rpartition("-")[0] for entry in entries}
    for dataset in source.corpora:
        rows = {line.setting: line.label for line in settings} | counts
        yield source.section(dataset, rows, searches, partial(declared_cell, dataset))
    columns = source.experiment.columns
    for dataset, entry in itertools.product(source.datasets, source.experiment.entries):

        def cell(model: str, number: int, dataset: str = dataset) -> Cell:
            return source.cell(dataset, model, columns[number])

        if rows := {model: label(source.study, model) for model in source.study.searches[entry].members}:
            section = source.section(dataset, rows, source.column_labels(columns), cell)
            yield replace(section, title=f"{section.title}: runs of {entry}")


# --- pointwise functions ---------------------------------------------------------------------------------------------
@schema.section
class Curve:
    """The parameters c and k of GSS (generalised SigSoftmax), whose slope is k far below c and 1 far above c."""

    c: schema.Number
    k: schema.Number


def pointwise_figure(source: Source, *, curves: tuple[Curve, ...]) -> plots.Drawing:
    """Draw a piecewise linear function of the logit l and its smooth version, GSS, for each (c, k) of `curves`.

    The piecewise linear function has the slope k below c and 1 above c (Parthiban et al. 2021, eq. 3). The smooth
    function is GSS(l) = k (l - c) + c - (k - 1) ln(exp(l - c) + 1) (eq. 5).
    """
    canvas, ((axes,),) = plots.panels(1, 1, 7.0, 4.4)
    logits = np.linspace(*RANGE, CURVE_POINTS)
    axes.plot(logits, logits, color=plots.LIGHT.muted, linewidth=1, label="identity (Softmax)")
    frames = []
    for colour, curve in zip(itertools.cycle(plots.SPARE), curves, strict=False):
        below = curve.k * (logits - curve.c) + curve.c
        sharp = np.where(logits < curve.c, below, logits)
        rounded = below - (curve.k - 1) * np.logaddexp(logits - curve.c, 0)
        axes.plot(logits, sharp, color=colour, linestyle=plots.DASHES[1], linewidth=1.2)
        name = numbers.true_minus(f"c = {curve.c:g}, k = {curve.k:g}")
        axes.plot(logits, rounded, color=colour, linewidth=2, label=name)
        columns = {"c": curve.c, "k": curve.k, "logit": logits, "piecewise_linear": sharp, "smooth": rounded}
        frames.append(pd.DataFrame(columns))
    axes.set(xlim=RANGE, ylim=RANGE, xlabel="logit l", ylabel="f(l)")
    axes.legend(loc="lower right")
    return plots.Drawing(canvas, pd.concat(frames, ignore_index=True))


def plif_pieces_figure(
    source: Source, *, slopes: tuple[schema.Number, ...], bound: schema.Number = 2.0
) -> plots.Drawing:
    """Draw an example of the piecewise linear function g(l) that the head LMS-PLIF learns (Ganea et al. 2019).

    The pieces divide [−bound, bound] into equal widths, and g(−bound) = 0. `slopes` has the slope of each piece, from
    left to right.
    """
    slope_K, width = np.array(slopes), 2 * bound / len(slopes)
    knots = np.linspace(-bound, bound, len(slope_K) + 1)
    values = np.concatenate([[0.0], np.cumsum(slope_K) * width])
    canvas, ((axes,),) = plots.panels(1, 1, 6.0, 3.6)
    axes.plot(knots, values, "o-", color=plots.SPARE[0], linewidth=2, markersize=5, mec=plots.LIGHT.paper)
    axes.set(xlabel="logit l", ylabel="g(l)", title=f"{len(slope_K)} pieces of equal width")
    return plots.Drawing(canvas, pd.DataFrame({"knot": knots, "value": values}))


def learned_function_figure(source: Source) -> plots.Drawing:
    """Draw each run's learned piecewise linear function g(l) of the logit l before and after training.

    Each corpus has two panels. The left panel shows g(l) - g(0) before and after training. The right panel shows the
    curve after training minus the curve before.
    """
    frames = [pd.DataFrame(columns=["dataset", "model", "seed", "logit", "initial", "learned"])]
    for dataset in source.corpora:
        for run in source.runs(dataset):
            if function := source.records.detail(run.path, "function"):
                curve = pd.DataFrame(function).rename(columns={"trained": "learned"})[["logit", "initial", "learned"]]
                zero = curve.iloc[int(curve["logit"].abs().argmin())]
                curve[["initial", "learned"]] -= zero[["initial", "learned"]]
                frames.append(curve.assign(dataset=dataset, model=run.model, seed=run.seed)[list(frames[0])])
    data = pd.concat(frames[1:] or frames, ignore_index=True)
    looks = figures.styles(source.models, source.study)

    def draw(row: plots.AxesArray, dataset: str, own: pd.DataFrame) -> None:
        left, right = row
        own = own[own["logit"].abs() <= CURVE_RANGE]
        for model, style in looks.items():
            for _, run in own[own["model"] == model].groupby("seed"):
                left.plot(run["logit"], run["initial"], color=plots.LIGHT.muted, linestyle=plots.DASHES[1], linewidth=1)
                left.plot(run["logit"], run["learned"], color=style.colour, linewidth=1.6)
                right.plot(run["logit"], run["learned"] - run["initial"], color=style.colour, linewidth=1.4)
        left.set(title=figures.corpus_title(source, dataset), xlabel="logit l", ylabel="g(l) − g(0)")
        right.set(title="what training changed", xlabel="logit l", ylabel="learned − initial")

    note = ("Dashed: before training. " if len(data) else "") + figures.count_note(source, data)
    return figures.by_corpus(source, data, (2, 4.7, 3.4), draw, note)
