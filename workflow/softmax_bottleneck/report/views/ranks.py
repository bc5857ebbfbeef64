"""Tables of ranks: against perplexity over the grid of GSS, of untrained layers, of a matrix of rank 10 under noise.

Parthiban et al. 2021, Figure 2 and SM Tables 14 to 16; Merity 2017.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pandas as pd

from softmax_bottleneck.records import metrics
from softmax_bottleneck.records.metrics import TEST_PPL
from softmax_bottleneck.records.records import groups
from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.cells import Cell, Gap, GapCode, Measured, Part, Published, crossed, mean_of
from softmax_bottleneck.report.options import RankDemo, Robustness, Windows
from softmax_bottleneck.report.pairs import MEASURED, PUBLISHED, correlate, grid
from softmax_bottleneck.report.registry import by_corpus, view
from softmax_bottleneck.report.source import Source

# --- rank against perplexity over the grid (Figure 2) ---------------------------------------------------------------
PRINTED = "printed"
ORIGINS = {MEASURED: "r over this study's runs", PUBLISHED: "r over the published dots", PRINTED: "printed (magnitude)"}


@view("correlation", row="Runs", origin="this study")
@by_corpus
def correlation(source: Source, options: Windows, dataset: str) -> Part:
    """The whole grid, and the paper's window of perplexities: r measured, of the published dots, as printed."""
    corpus, points = source.corpus(dataset), grid(source, dataset)
    ours, theirs = (points[points["origin"] == origin] for origin in (MEASURED, PUBLISHED))
    text = source.published[(source.published["metric"] == metrics.PEARSON) & (source.published["dataset"] == corpus)]
    printed = dict(zip(("all", "window"), text["value"], strict=True))
    planned = sum(len(source.planned(dataset, model)) for model in source.models)
    gaps = [Gap(GapCode.GRID_RUNS, (planned - len(ours), planned))] if len(ours) < planned else []
    gaps += [Gap(GapCode.UNLEARNED, (source.unlearned_note,))] if source.unlearned_note else []
    low, high = options.windows[corpus]
    rows = {"all": "The whole grid", "window": f"Test perplexity {low} to {high}"}
    if not source.is_published(dataset):  # the window means nothing on another corpus
        rows = {"all": rows["all"], "better half": "The better half of this grid", "window": rows["window"]}

    def cell(row: str, column: str) -> Cell:
        if column == PRINTED:
            return Cell(words=printed[row]) if row in printed else Cell(wanted=False)
        if row == "better half":
            return (
                _r_cell(ours[ours[TEST_PPL] <= ours[TEST_PPL].median()]) if column == MEASURED else Cell(wanted=False)
            )
        if row == "window" and column == MEASURED and not source.is_published(dataset):
            return Cell(wanted=False)
        chosen = ours if column == MEASURED else theirs
        if row == "window":
            return _r_cell(chosen[chosen[TEST_PPL].between(low, high)])
        return _r_cell(chosen, tuple(gaps) if column == MEASURED else ())

    return source.part(dataset, rows, ORIGINS, cell)


def _r_cell(points: pd.DataFrame, gaps: tuple[Gap, ...] = ()) -> Cell:
    found = correlate(points)
    if found.r is None:
        return Cell(metric=metrics.PEARSON, gaps=(Gap(GapCode.NOT_COMPUTABLE, (found.reason,)), *gaps))
    note = ", ".join(filter(None, [numbers.interval(found.low, found.high), numbers.counts([found.n])]))
    return Cell(measured=Measured(found.r), metric=metrics.PEARSON, note=note, gaps=gaps)


# --- untrained layers (Merity 2017) ---------------------------------------------------------------------------------
# The matrices of the rank demonstration that are taken apart; the first is the published one.
MATRICES = {
    metrics.RANK: "Logarithms of probabilities, Press's tolerance",
    "rank_p": "Probabilities themselves, Press's tolerance",
    "rank_numpy": "Logarithms of probabilities, numpy's default tolerance",
}
DEFAULT = "default"  # the reading without further words


@view("rank-demo")
def rank_demo(source: Source, options: RankDemo) -> Iterator[Part]:
    """Rank of untrained layers by number of components, mean over draws: matrices, readings, and the closest reading.

    A row per model and reading of the text; published numbers stand beside the first matrix alone.
    """
    drawn = source.records.synthetic
    plain = {word for condition in source.published["condition"] for word in condition.split(";")}
    drawn = drawn.assign(
        reading=[_reading(text, plain) for text in drawn["condition"]],
        components=[_components(text) for text in drawn["condition"]],
    )
    parts = [_demo_part(source, drawn[drawn["metric"] == metric], metric) for metric in MATRICES]
    parts.append(_closest_reading(source, drawn[drawn["metric"] == metrics.RANK]))
    yield from (part for part in parts if part.rows)


def _components(condition: str) -> int:
    found = re.search(r"(?:^|;)K=(\d+)", condition)
    return int(found[1]) if found else 1


def _reading(condition: str, plain: set[str]) -> str:
    """The words of a condition that no published condition has: how the text was read."""
    return ", ".join(word for word in condition.split(";") if word not in plain and not word.startswith("K="))


def _published_rank(source: Source, model: str, components: int) -> Published | None:
    where = {"condition": rf"(?:^|;)K={components}(?:;|$)"}
    return source.find_published("synthetic", model, metrics.RANK, where)


def _demo_part(source: Source, drawn: pd.DataFrame, metric: str) -> Part:
    printed = source.published if metric == metrics.RANK else source.published.iloc[:0]
    models = list(dict.fromkeys([*printed["model"], *drawn["model"]]))
    keys = {(model, "") for model in printed["model"]} | set(zip(drawn["model"], drawn["reading"], strict=True))
    rows = {f"{m} {r}".strip(): (m, r) for m, r in sorted(keys, key=lambda key: (key[1], models.index(key[0])))}
    labels = {row: f"{source.label(m)} ({r})" if r else source.label(m) for row, (m, r) in rows.items()}
    columns = {k: f"K = {k}" for k in sorted({*map(_components, printed["condition"]), *drawn["components"]})}

    def cell(row: str, components: int) -> Cell:
        model, reading = rows[row]
        own = drawn[(drawn["model"] == model) & (drawn["reading"] == reading) & (drawn["components"] == components)]
        published = _published_rank(source, model, components) if metric == metrics.RANK else None
        same = metric == metrics.RANK
        gaps = (Gap(GapCode.NOT_DRAWN),) if own.empty else ()
        return Cell(mean_of(own["value"]), published, metric=metric, planned=len(own), same=same, gaps=gaps)

    return crossed("synthetic", MATRICES[metric], labels, columns, cell)


def _closest_reading(source: Source, drawn: pd.DataFrame) -> Part:
    """MoS of every reading less the published rank, at each K above one, and the mean of the absolute differences."""
    distances: dict[str, dict[int, float]] = {}
    for (reading, components), own in groups(drawn[drawn["model"] == "mos"], "reading", "components"):
        printed = _published_rank(source, "mos", k := int(components))
        if printed is not None and printed.number is not None and k > 1:
            distances.setdefault(reading or DEFAULT, {})[k] = float(own["value"].mean()) - printed.number
    means = {reading: sum(map(abs, own.values())) / len(own) for reading, own in distances.items()}
    names = {DEFAULT: "tanh, standard normal contexts"}
    rows = {key: f"MoS ({names.get(key, key)})" for key in sorted(means, key=lambda one: means[one])}
    columns = {0: "Mean distance"} | {k: f"K = {k}" for k in sorted({k for own in distances.values() for k in own})}

    def cell(reading: str, k: int) -> Cell:
        return Cell(Measured(distances[reading][k] if k else means[reading]), digits=0 if k else 1)

    return crossed("synthetic", "Measured less published rank, the closest reading first", rows, columns, cell)


# --- a matrix of rank 10 (Parthiban et al. 2021, SM Tables 14 to 16) ------------------------------------------------
PAPER_SIZE = 10_000  # rows and columns of the paper's matrix
ROBUSTNESS = (
    *(metrics.PRESS_RANK, metrics.RANK_PREDICTED, metrics.RANK_PREDICTED_PAPER, metrics.RECONSTRUCTION_ERROR),
    *("rank_eff_1e-3", "rank_eff_1e-4", "rank_eff_1e-5"),
)


@view("robustness", row="Matrix")
def robustness(source: Source, options: Robustness) -> Iterator[Part]:
    """Rounds or noise levels by what was computed for them, beside the published numbers."""
    names = (source.experiment.artefact, "SM 5.1 text")
    drawn, printed = (frame[frame["table"].isin(names)] for frame in (source.records.synthetic, source.published))
    measured, published = _by_step(drawn), _by_step(printed)
    steps = {step: step for step, _ in [*published, *measured]}
    present = {metric for _, metric in [*published, *measured]}
    columns = {metric: metrics.find(metric).label for metric in ROBUSTNESS if metric in present}
    found = [re.search(r"size=(\d+);of=([^;/]+)/([^;]+)", text) for text in drawn["condition"].iloc[:1]]
    size, dataset, model = found[0].groups() if found and found[0] else ("0", "", "")
    same_matrix = int(size) == PAPER_SIZE and source.same(dataset, model)

    def cell(step: str, metric: str) -> Cell:
        """A prediction for the paper's size may be compared with the paper whatever size was drawn here."""
        predicts_paper = metric == metrics.RANK_PREDICTED_PAPER
        text = published.get((step, metrics.PRESS_RANK if predicts_paper else metric))
        value = measured.get((step, metric))
        missing = _why_not_drawn(source) if drawn.empty else (Gap(GapCode.LEVEL_NOT_DRAWN),)
        is_error = metric == metrics.RECONSTRUCTION_ERROR
        if value is None and text is None and len(drawn):
            return Cell(metric=metric, wanted=False)
        return Cell(
            measured=None if value is None or is_error else Measured(float(value)),
            published=Published(text) if text else None,
            metric=metric,
            same=predicts_paper or same_matrix,
            gaps=missing if value is None else (),
            words=numbers.true_minus(f"{float(value):.2e}") if is_error and value is not None else "",
        )

    where = source.dataset(dataset).title if dataset else ""
    note = (
        f"The matrix is that of {source.label(model)} on {where}: its first {int(size):,} test contexts."
        if dataset
        else ""
    )
    yield crossed("synthetic", "Ten singular values of a trained model", steps, columns, cell, note)


def _why_not_drawn(source: Source) -> tuple[Gap, ...]:
    missing = (source.gaps(dataset, model, ()) for dataset in source.datasets for model in source.models)
    needs = source.experiment.needs
    return next(filter(None, missing), (Gap(GapCode.NEEDS, (needs,)) if needs else Gap(GapCode.NOT_DRAWN),))


def _by_step(frame: pd.DataFrame) -> dict[tuple[str, str], str]:
    """(`c = 1e-20` or `round 3`, metric) -> the first value, as text."""
    found: dict[tuple[str, str], str] = {}
    for condition, metric, value in zip(frame["condition"], frame["metric"], frame["value"], strict=True):
        noise, rounds = re.search(r"c=(1e-\d+)", condition), re.search(r"iteration=(\d+)", condition)
        step = f"c = {noise[1]}" if noise else f"round {rounds[1]}" if rounds else "all singular values"
        words = ", diagonal as printed" if "as printed" in condition else ""
        found.setdefault((step + words, metric), str(value))
    return found
