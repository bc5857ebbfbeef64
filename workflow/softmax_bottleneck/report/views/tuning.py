"""The search of a study that tunes its models (key `tuning`), and the comparisons that it names (key `contrasts`)."""

import math
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from softmax_bottleneck.records import metrics
from softmax_bottleneck.records.records import SEARCH
from softmax_bottleneck.report import numbers, plots
from softmax_bottleneck.report.cells import Cell, MeasuredCell, Section
from softmax_bottleneck.report.contrasts import EQUAL_SIZE
from softmax_bottleneck.report.source import Source, label
from softmax_bottleneck.statistics.correlations import LEVEL
from softmax_bottleneck.statistics.intervals import ALPHA
from softmax_bottleneck.statistics.pooled import holm
from softmax_bottleneck.statistics.samples import welch_t
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
    tuned = {search.key: search for search in source.study.shown_tuned if search.key[1] in source.models}
    grid = source.study.tuning.grid if source.study.tuning else {}
    axes = [axis for axis, values in grid.items() if len(values) > 1]
    rows = [row for search in tuned.values() for axis in axes for row in _trials(source, search, axis)]
    data = pd.DataFrame(rows, columns=["dataset", "model", "setting", "value", metrics.VALID_PPL, "best", "interior"])
    if data.empty:
        return plots.only_text("This study tunes no model, or no trial has ended.", data)
    looks = plots.styles(list(source.models), source.study)

    def draw(panels: NDArray[Any], dataset: str, trials: pd.DataFrame) -> None:
        for panel, axis in zip(panels, axes, strict=True):
            for model, curve in trials[trials["setting"] == axis].groupby("model", sort=False):
                style, best = looks[str(model)], curve[curve["best"]]
                line = {"color": style.colour, "linestyle": style.dash, "marker": "."}
                panel.plot(curve["value"], curve[metrics.VALID_PPL], **line)
                dot = {"markersize": 9, "markerfacecolor": style.colour if best["interior"].all() else "none"}
                panel.plot(best["value"], best[metrics.VALID_PPL], **style.dot | dot)
            if min(grid[axis]) > 0:
                plots.log_x(panel, sorted(set(trials["value"])))
            panel.set(title=plots.corpus_title(source, dataset), xlabel=axis.rpartition(".")[2].replace("_", " "))
            panel.set_ylabel("validation perplexity")

    note = f"{data[metrics.VALID_PPL].notna().sum()} of {len(data)} trials ended with a perplexity. Search seeds: "
    note += f"{', '.join(map(str, source.study.tuning.seeds if source.study.tuning else ()))}."
    return plots.by_corpus(source, data, (len(axes), 6.4, 4.0), draw, note, has_legend=True)


def _trials(source: Source, tuned: TunedModel, axis: str) -> list[tuple[Any, ...]]:
    """Return the trials that differ from the best one in the setting `axis` alone, as rows sorted by its value."""
    (dataset, model), ppls = tuned.key, list[float]()
    for trial in tuned.rounds[-1].trials:
        values = source.records.values(dataset, trial.runs[0].model, metrics.VALID_PPL, SEARCH)
        ended = [math.log(values[run.seed]) for run in trial.runs if run.seed in values]
        ppls.append(math.exp(fmean(ended)) if len(ended) == len(trial.runs) else math.nan)
    if not np.isfinite(ppls).any():
        return []
    best = tuned.choice["best"] if tuned.choice else tuned.rounds[-1].trials[int(np.nanargmin(ppls))].point
    interior = bool(tuned.choice and tuned.choice["interior"])
    rows = [
        (dataset, model, axis, trial.point[axis], ppl, trial.point == best, interior)
        for trial, ppl in zip(tuned.rounds[-1].trials, ppls, strict=True)
        if {**trial.point, axis: None} == {**best, axis: None}
    ]
    return sorted(rows, key=lambda row: row[3])


# --- the comparisons ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Change:
    """A relative change of perplexity with its 95 % interval (Welch's, of log perplexities) and p-value."""

    value: float
    low: float
    high: float
    p: float

    @classmethod
    def of(cls, values: list[float], baseline: list[float]) -> "Change | None":
        """Return the change from `baseline` to `values`, perplexities of at least two seeds each; None with fewer."""
        logs = [[math.log(ppl) for ppl in side] for side in (values, baseline)]
        test = welch_t(*logs)
        if test.p is None or test.df is None:
            return None
        error = math.sqrt(sum(variance(side) / len(side) for side in logs))
        centre, half = fmean(logs[0]) - fmean(logs[1]), float(special.stdtrit(test.df, (1 + LEVEL) / 2)) * error
        value, low, high = map(math.expm1, (centre, centre - half, centre + half))
        return cls(value, low, high, test.p)


def verdict(change: Change, p: float, margin: float) -> str:
    """Return what a comparison shows: `better`, `worse`, `equal` within the margin, or `open`; `p` is corrected."""
    if p < ALPHA:
        side, is_beyond = "better" if change.value < 0 else "worse", change.high < -margin or change.low > margin
        return f"{side} by more than {numbers.percent(margin)}" if is_beyond else side
    return f"equal within {numbers.percent(margin)}" if -margin < change.low and change.high < margin else "open"


def contrasts_table(source: Source, dataset: str) -> Section:
    """Return a section with a row per comparison of the study's `contrasts`; their p-values on a corpus are a family.

    The change is that of the mean log test perplexity over seeds. Parameters and seconds per epoch are ratios of means.
    """
    planned = source.study.contrasts
    family = {f"{pair.model}-{pair.against}": pair for pair in planned.family} if planned else {}

    def sides(pair: Contrast, metric: str) -> list[list[float]]:
        return [list(source.records.values(dataset, model, metric).values()) for model in (pair.model, pair.against)]

    changes = {name: Change.of(*sides(pair, metrics.TEST_PPL)) for name, pair in family.items()}
    known = {name: change for name, change in changes.items() if change}
    corrected = dict(zip(known, holm([change.p for change in known.values()]), strict=True))

    def cell(row: str, column: str) -> Cell:
        pair, change = family[row], known.get(row)
        if column in RATIOS:
            values = sides(pair, RATIOS[column])
            if not all(values):
                return Cell(digits=2)
            ratio = fmean(values[0]) / fmean(values[1])
            is_unequal = column == "parameters" and pair.same_size and abs(ratio - 1) > EQUAL_SIZE
            return Cell(MeasuredCell(ratio), digits=2, note="not the same size" if is_unequal else "")
        if change is None:
            return Cell(reason="fewer than two seeds on a side")
        if column == "change":
            return Cell(MeasuredCell(100 * change.value), digits=2, note=_tuned_note(source, dataset, pair))
        if column == "interval":
            return Cell(label=numbers.interval(100 * change.low, 100 * change.high))
        if column == "p":
            return Cell(MeasuredCell(corrected[row]), metric=metrics.P_VALUE_WELCH)
        return Cell(label=verdict(change, corrected[row], planned.margin if planned else 0.0))

    names = {model: label(source.study, model) for pair in family.values() for model in (pair.model, pair.against)}
    labels = {name: f"{names[pair.model]} against {names[pair.against]}: {pair.label}" for name, pair in family.items()}
    return source.section(dataset, labels, CONTRAST_COLUMNS, cell)


def _tuned_note(source: Source, dataset: str, contrast: Contrast) -> str:
    """Return a note on the models of a contrast whose chosen settings lie at the edge of what was tried, or ""."""
    choices = {search.key: search.choice for search in source.study.shown_tuned}
    chosen = [choices.get((dataset, model)) for model in (contrast.model, contrast.against)]
    edges = [choice["model"] for choice in chosen if choice and not choice["interior"]]
    return f"not bracketed: {', '.join(edges)}" if edges else ""
