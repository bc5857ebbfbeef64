"""Tables of words: similarity benchmarks, words predicted at the paper's places, how often the true one is first.

Parthiban et al. 2021, Figures 3 and 4, SM Tables 2, 3 and 13.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

from softmax_bottleneck.measuring.wordsim import Wins, win_matrix
from softmax_bottleneck.records import metrics, records
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.cells import Cell, Gap, GapCode, Measured, Part, Published, mean_of
from softmax_bottleneck.report.options import NoOptions, Words
from softmax_bottleneck.report.registry import by_corpus, view
from softmax_bottleneck.report.source import COVERAGE, PUBLISHED, Source
from softmax_bottleneck.study import Column, Run

# --- similarity of word vectors -------------------------------------------------------------------------------------
WinCounts = Mapping[str, Mapping[str, Wins]]


@view("wordsim", row="Benchmark")
@by_corpus
def wordsim(source: Source, options: NoOptions, dataset: str) -> Part:
    """Benchmarks by models (Spearman's rho), with the pairs each benchmark keeps in the vocabulary."""
    rho = next(iter(source.experiment.columns), Column(metrics.SPEARMAN))
    columns = source.rows | dict(zip(COVERAGE, ("pairs", "not in vocabulary"), strict=True))

    def cell(benchmark: str, column: str) -> Cell:
        if column in COVERAGE:
            return source.coverage(dataset, benchmark, column)
        cell = source.cell(dataset, column, rho, benchmark)
        known = benchmark in source.records.conditions(metrics.SPEARMAN, dataset)
        return cell if known or not source.is_language(dataset) else replace(cell, gaps=(Gap(GapCode.NO_BENCHMARK),))

    return source.part(dataset, source.benchmarks(dataset), columns, cell)


@view("coverage", row="Benchmark", origin="this study")
@by_corpus
def coverage(source: Source, options: NoOptions, dataset: str) -> Part:
    """Benchmarks by their number of pairs, and of pairs with a word that the corpus does not have."""
    columns = dict(zip(COVERAGE, ("Pairs", "Not in the vocabulary"), strict=True))
    rows = source.benchmarks(dataset, metrics.PAIRS_UNKNOWN)
    return source.part(dataset, rows, columns, lambda row, metric: source.coverage(dataset, row, metric))


@view("wins", origin="this study")
@by_corpus
def wins(source: Source, options: NoOptions, dataset: str) -> Part:
    """On how many benchmarks the row's model has the larger rho than the column's (mean rho over the runs of each)."""
    columns = {model: f"over {name}" for model, name in source.rows.items()}
    counts, gaps = _win_counts(source, dataset), _gaps(source, dataset)
    return source.part(dataset, source.rows, columns, lambda a, b: _win_cell(source, dataset, (a, b), counts, gaps))


def _win_counts(source: Source, dataset: str) -> WinCounts:
    """Benchmarks won by the first model over the second, by their mean rho over runs."""
    conditions = source.records.conditions(metrics.SPEARMAN, dataset)

    def mean(model: str, condition: str) -> float | None:
        measured = mean_of(source.values(dataset, model, metrics.SPEARMAN, condition).values())
        return measured.mean if measured else None

    return win_matrix({model: {c: mean(model, c) for c in conditions} for model in source.rows})


def _gaps(source: Source, dataset: str) -> dict[str, tuple[Gap, ...]]:
    """Which runs of each model have no word similarities: `GSS: seed 1 missing`."""
    conditions = source.records.conditions(metrics.SPEARMAN, dataset)
    gaps: dict[str, tuple[Gap, ...]] = {}
    for model, name in source.rows.items():
        have = {s for condition in conditions for s in source.values(dataset, model, metrics.SPEARMAN, condition)}
        missing = "; ".join(map(str, source.gaps(dataset, model, have)))
        gaps[model] = (Gap(GapCode.OF_MODEL, (name, missing)),) if missing else ()
    return gaps


def _win_cell(
    source: Source, dataset: str, pair: tuple[str, str], counts: WinCounts, gaps: Mapping[str, tuple[Gap, ...]]
) -> Cell:
    a, b = pair
    if a == b:
        return Cell(wanted=False)
    over = {"condition": rf"wins over {re.escape(b)}(?:;|$)"}
    count = counts[a][b]
    published = source.find_published(source.corpus(dataset), a, metrics.WINS, over)
    return Cell(
        measured=Measured(float(count.wins)) if count.compared else None,
        published=published,
        metric=metrics.WINS,
        same=source.same(dataset, a, b),
        runs=f"{dataset}/{a}",
        note=f"of {count.compared}" if count.compared else "",
        gaps=gaps[a] + gaps[b] or (() if count.compared else (Gap(GapCode.NO_COMMON_BENCHMARK),)),
    )


# --- predicted words ------------------------------------------------------------------------------------------------
CONTEXTS = "parthiban2021_sm_table2_contexts.csv"
GROUPS = {
    "yang2018_cherry_picked": "Yang et al. 2018",
    "authors_cherry_picked": "Authors' choice",
    "random": "Random",
}


class Place(NamedTuple):
    """A word of the test text that is to be predicted: who chose it, its number, and the word."""

    group: str
    number: int
    target: str


@dataclass(frozen=True)
class Prediction:
    """What one run predicts at one place: words with their probabilities, and whether the true one is among them.

    `hit` is None where the vocabulary was cut and does not hold the true word.
    """

    place: Place
    top: tuple[tuple[str, float], ...]
    hit: bool | None

    @property
    def words(self) -> str:
        """`*tons 0.90`, `million 0.04`..., one a line, the true word with an asterisk."""
        return "\n".join(f"{'*' if word == self.place.target else ''}{word} {p:.2f}" for word, p in self.top)


def predictions(found: Records, run: Run) -> Iterator[Prediction]:
    """The run's predictions at the study's places; none before they are measured."""
    for context in found.predictions(run.path):
        target = str(context["published_target"] or context["target"])
        yield Prediction(
            Place(str(context["group"]), int(context["context"]), target),
            top=tuple((str(top["word"]), math.exp(top["log_prob"])) for top in context["top"]),
            hit=None if context["note"] else bool(context["hit"]),
        )


def predictions_of(source: Source, dataset: str) -> dict[str, dict[Place, Prediction]]:
    """Predictions by place of the first run of every model that has them."""
    found = {}
    for model in source.models:
        for run in source.runs(dataset, model)[:1]:
            found[model] = {one.place: one for one in predictions(source.records, run)}
    return {model: own for model, own in found.items() if own}


def places(source: Source, dataset: str, measured: Mapping[str, Mapping[Place, Prediction]]) -> list[Place]:
    """The places of the rows: those measured, then those published."""
    own = [place for predictions in measured.values() for place in predictions]
    return list(dict.fromkeys([*own, *published_places(source, dataset)]))


def published_places(source: Source, dataset: str) -> list[Place]:
    """Those published for the corpus or the one it stands for."""
    rows = records.read_csv(PUBLISHED / CONTEXTS)
    rows = rows[rows["dataset"] == source.corpus(dataset)]
    columns = (rows[key] for key in ("group", "context", "true_next_token"))
    return [Place(group, int(number), target) for group, number, target in zip(*columns, strict=True)]


@cache
def published_words(name: str) -> Mapping[tuple[Place, str], str]:
    """(place, model) -> the published words with their probabilities, one a line, a hit with an asterisk."""
    found: dict[tuple[Place, str], list[str]] = {}
    for row in records.read_csv(PUBLISHED / name).to_dict("records"):
        place = Place(row["group"], int(row["context"]), row["true_next_token"])
        found.setdefault((place, row["model"]), []).append(
            f"{'*' if row['hit'] == '1' else ''}{row['word']} {row['prob']}"
        )
    return {key: "\n".join(words) for key, words in found.items()}


SHOWN_RANKS = ("1", "5", "10")  # of the true next word


@view("top5", row="Context")
@by_corpus
def top5(source: Source, options: Words, dataset: str) -> Part:
    """Contexts by models: the five most probable next words."""
    measured = predictions_of(source, dataset)
    shown = {f"{place.group} {place.number} {place.target}": place for place in places(source, dataset, measured)}
    rows = {}
    for key, place in shown.items():
        known = all(place not in own or own[place].hit is not None for own in measured.values())
        name = f"{GROUPS.get(place.group, place.group)} {place.number}: {place.target}"
        rows[key] = name if known else f"{name} (not in this vocabulary)"
    cell = partial(_words_cell, source, dataset, measured, published_words(options.words))
    return source.part(dataset, rows, source.rows, lambda row, model: cell(shown[row], model))


def _words_cell(
    source: Source,
    dataset: str,
    measured: Mapping[str, Mapping[Place, Prediction]],
    published: Mapping[tuple[Place, str], str],
    place: Place,
    model: str,
) -> Cell:
    own, printed = measured.get(model, {}).get(place), published.get((place, model))
    return Cell(
        words=own.words if own else "",
        published=Published(printed) if printed else None,
        same=own is not None and source.same(dataset, model),
        gaps=source.gaps(dataset, model, source.planned(dataset, model)[:1] if own else [])
        or (() if own else (Gap(GapCode.NO_PLACE),)),
    )


@view("hit-rates")
@by_corpus
def hit_rates(source: Source, options: NoOptions, dataset: str) -> Part:
    """Models by the first 1, 5 and 10 words: the share of test contexts whose true next word is among them."""
    columns = {rank: f"Among the first {rank} (%)" for rank in SHOWN_RANKS}
    return source.part(dataset, source.models, columns, partial(_hit_cell, source, dataset))


def _hit_cell(source: Source, dataset: str, model: str, rank: str) -> Cell:
    """Of the first run: its share in percent, with its interval."""
    metric, seeds = f"{metrics.HIT_RATE}{rank}", source.planned(dataset, model)[:1]
    shares = [source.values(dataset, model, f"{metric}{end}") for end in ("", "_low", "_high")]
    known = [100 * values[seed] for values in shares for seed in seeds if seed in values]
    if len(known) < len(shares):
        return Cell(metric=metric, gaps=source.gaps(dataset, model, []))
    rate, low, high = known
    rows = source.records.rows
    own = rows[(rows["dataset"] == dataset) & (rows["model"] == model) & (rows["metric"] == metric)]
    contexts = own[own["seed"] == seeds[0]]["n"].iloc[0]
    note = f"{numbers.number(low)} to {numbers.number(high)}, {numbers.counts([contexts])}"
    return Cell(measured=Measured(rate), digits=2, metric=metric, note=note, gaps=source.gaps(dataset, model, seeds))
