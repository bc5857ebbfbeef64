"""The search of a study that tunes its models (key `tuning`), and the comparisons that it names (key `contrasts`)."""

import math
from statistics import fmean, geometric_mean
from typing import Any

import numpy as np
import pandas as pd

from softmax_bottleneck.records import metrics
from softmax_bottleneck.records.records import SEARCH
from softmax_bottleneck.report import figures, numbers, plots
from softmax_bottleneck.report.cells import Cell, MeasuredCell, Section
from softmax_bottleneck.report.contrasts import EQUAL_SIZE, difference, in_percent
from softmax_bottleneck.report.source import Source, label
from softmax_bottleneck.statistics.intervals import ALPHA, MIN_RUNS, Interval, welch_p
from softmax_bottleneck.statistics.pooled import holm
from softmax_bottleneck.study import Contrast, TunedModel

CONTRAST_COLUMNS = {
    "change": "Change of test perplexity (%)",
    "interval": "95 % interval (%)",
    "p": "p (Holm)",
    "parameters": "Parameters, ratio",
    "seconds": "Seconds per epoch, ratio",
    "verdict": "Verdict",
}
RATIOS = {"parameters": "parameters", "seconds": "sec_per_epoch"}  # column -> metric


# --- the search -----------------------------------------------------------------------------------------------------
def tuning_figure(source: Source) -> plots.Drawing:
    """Draw the validation perplexity of every trial, with a row per corpus and a panel per setting that is tuned.

    A line joins the trials of a model that differ from its best point in the panel's setting alone. A large dot is the
    best value by the measure of the search; it is hollow if a neighbour was not tried. A diverged trial has no point.
    """
    searches = [search for search in source.study.shown_tuned if search.key[1] in source.models]
    tuning = source.study.tuning
    axes = [axis for axis, values in tuning.grid.items() if len(values) > 1] if tuning else []
    rows = [row for search in searches for axis in axes for row in _trials(source, search, axis)]
    data = pd.DataFrame(rows, columns=["dataset", "model", "setting", "value", metrics.VALID_PPL, "best", "interior"])
    if tuning is None or data.empty:
        return plots.only_text("This study tunes no model, or no trial has ended.", data)
    looks = figures.styles(source.models, source.study)

    def draw(panels: plots.AxesArray, dataset: str, trials: pd.DataFrame) -> None:
        for panel, axis in zip(panels, axes, strict=True):
            of_axis = trials[trials["setting"] == axis]
            for model, curve in of_axis.groupby("model", sort=False):
                style, best = looks[str(model)], curve[curve["best"]]
                line = {"color": style.colour, "linestyle": style.dash, "marker": "."}
                panel.plot(curve["value"], curve[metrics.VALID_PPL], **line)
                dot = {"markersize": 9, "markerfacecolor": style.colour if best["interior"].all() else "none"}
                panel.plot(best["value"], best[metrics.VALID_PPL], **style.dot | dot)
            if all(type(value) in (int, float) and value > 0 for value in of_axis["value"]):
                plots.log_x(panel, sorted(set(of_axis["value"])))
            panel.set(title=figures.corpus_title(source, dataset), xlabel=axis.rpartition(".")[2].replace("_", " "))
            panel.set_ylabel("validation perplexity")

    ended = f"{data[metrics.VALID_PPL].notna().sum()} of {len(data)} trials ended with a perplexity"
    note = f"{ended}. Search seeds: {', '.join(map(str, tuning.seeds))}."
    drawing = figures.by_corpus(source, data, (len(axes), 6.4, 4.0), draw, note)
    drawn = [model for model in source.rows if model in set(data["model"])]
    plots.legend(drawing.canvas, {model: figures.short_name(source.study, model) for model in drawn}, looks)
    return drawing


def _trials(source: Source, tuned: TunedModel, axis: str) -> list[tuple[Any, ...]]:
    """Return the trials that differ from the best one in the setting `axis` alone, as rows sorted by its value."""
    dataset, model = tuned.key
    trials, ppls = tuned.rounds[-1].trials, list[float]()
    for trial in trials:
        by_seed = source.records.values(dataset, trial.runs[0].model, metrics.VALID_PPL, SEARCH)
        ended = [by_seed[run.seed] for run in trial.runs if run.seed in by_seed]
        ppls.append(geometric_mean(ended) if len(ended) == len(trial.runs) else math.nan)
    if not np.isfinite(ppls).any():
        return []
    best = tuned.choice["best"] if tuned.choice else trials[int(np.nanargmin(ppls))].point
    interior = bool(tuned.choice and tuned.choice["interior"])
    rows = [
        (dataset, model, axis, trial.point[axis], ppl, trial.point == best, interior)
        for trial, ppl in zip(trials, ppls, strict=True)
        if {**trial.point, axis: None} == {**best, axis: None}
    ]
    return sorted(rows, key=lambda row: row[3])


# --- the comparisons ------------------------------------------------------------------------------------------------
def verdict(change: Interval, p: float, margin: float) -> str:
    """Return what a comparison shows: `better`, `worse`, `equal` within the margin, or `open`.

    `change` is in percent, `p` is corrected, and `margin` is a relative change.
    """
    limit = 100 * margin
    if p < ALPHA:
        side, is_beyond = "better" if change.value < 0 else "worse", change.high < -limit or change.low > limit
        return f"{side} by more than {numbers.percent(margin)}" if is_beyond else side
    return f"equal within {numbers.percent(margin)}" if -limit < change.low and change.high < limit else "open"


def contrasts_table(source: Source, dataset: str) -> Section:
    """Return a section with a row per comparison of the study's `contrasts`; their p-values on a corpus are a family.

    The change is that of the mean log test perplexity over seeds. As in the findings (`report.contrasts`), it needs
    MIN_RUNS seeds on each side, of which none diverged: the other seeds alone would flatter their model. Without them
    it counts in its family as p = 1. Parameters and seconds per epoch are ratios of means.
    """
    planned = source.study.contrasts
    family = {f"{pair.model}-{pair.against}": pair for pair in planned.family} if planned else {}
    reasons = {row: _why_open(source, dataset, pair) for row, pair in family.items()}
    known = {row: _sides(source, dataset, pair, metrics.TEST_PPL) for row, pair in family.items() if not reasons[row]}
    logs = {row: [[math.log(ppl) for ppl in side] for side in sides] for row, sides in known.items()}
    adjusted = holm([welch_p(*sides) for sides in logs.values()], len(family))
    corrected = dict(zip(logs, adjusted, strict=True))

    def cell(row: str, column: str) -> Cell:
        if column in RATIOS:
            return _ratio_cell(source, dataset, family[row], column)
        if reasons[row]:
            return Cell(reason=reasons[row])
        changed = in_percent(difference(*logs[row]))
        if column == "change":
            return Cell(MeasuredCell(changed.value), digits=2, note=_tuned_note(source, dataset, family[row]))
        if column == "interval":
            return Cell(label=numbers.interval(changed.low, changed.high))
        if column == "p":
            return Cell(MeasuredCell(corrected[row]), metric=metrics.P_VALUE_WELCH)
        return Cell(label=verdict(changed, corrected[row], planned.margin if planned else 0.0))

    names = {row: [label(source.study, model) for model in (pair.model, pair.against)] for row, pair in family.items()}
    labels = {row: f"{' against '.join(names[row])}: {pair.label}" for row, pair in family.items()}
    return source.section(dataset, labels, CONTRAST_COLUMNS, cell)


def _sides(source: Source, dataset: str, contrast: Contrast, metric: str) -> list[list[float]]:
    """Return the values of a metric over the seeds of the first and of the second model of a contrast."""
    models = (contrast.model, contrast.against)
    return [list(source.records.values(dataset, model, metric).values()) for model in models]


def _why_open(source: Source, dataset: str, contrast: Contrast) -> str:
    """Return the reason why a contrast has no interval; empty if it has one."""
    models = (contrast.model, contrast.against)
    states = pd.concat([source.records.planned(dataset, model)["state"] for model in models])
    if diverged := int((states == "diverged").sum()):
        return f"{diverged} of {len(states)} runs diverged"
    fewest = min(map(len, _sides(source, dataset, contrast, metrics.TEST_PPL)))
    return "" if fewest >= MIN_RUNS else f"fewer than {MIN_RUNS} seeds on a side"


def _ratio_cell(source: Source, dataset: str, contrast: Contrast, column: str) -> Cell:
    """Return a cell with a mean of the first model of a contrast relative to that of the second (columns RATIOS)."""
    first, second = _sides(source, dataset, contrast, RATIOS[column])
    if not (first and second):
        return Cell(digits=2)
    ratio = fmean(first) / fmean(second)
    is_unequal = column == "parameters" and contrast.same_size and abs(ratio - 1) > EQUAL_SIZE
    return Cell(MeasuredCell(ratio), digits=2, note="not the same size" if is_unequal else "")


def _tuned_note(source: Source, dataset: str, contrast: Contrast) -> str:
    """Return a note on the models of a contrast whose chosen settings lie at the edge of what was tried, or ""."""
    choices = {search.key: search.choice for search in source.study.shown_tuned}
    chosen = [choices.get((dataset, model)) for model in (contrast.model, contrast.against)]
    edges = [choice["model"] for choice in chosen if choice and not choice["interior"]]
    return f"not bracketed: {', '.join(edges)}" if edges else ""
