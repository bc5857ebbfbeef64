"""Tables that only the main paper has: settings and searches, predicted words, correlations, numerical robustness.

Parthiban, Mao and Inkpen 2021 and its supplement (SM). Each view takes what `cells.Source` knows and lays cells out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from softmax_bottleneck.measuring import statistics
from softmax_bottleneck.measuring.statistics import Correlation
from softmax_bottleneck.records import records
from softmax_bottleneck.report.cells import (
    COVERAGE,
    PUBLISHED,
    Cell,
    Measured,
    Part,
    Published,
    Row,
    Source,
    benchmarks,
    coverage_cell,
    label,
    part_of,
    published_dataset,
)
from softmax_bottleneck.study import Run

SHOWN_RANKS = ("1", "5", "10")  # of the true next word
PAPER_SIZE = 10_000  # rows and columns of the matrix in SM section 5


# --- settings (SM Tables 6 and 9) -----------------------------------------------------------------------------------
def settings(source: Source) -> list[Part]:
    """Settings by models: what the plan trains with, beside the published values."""
    models = source.experiment.entries
    lines = source.experiment.options["settings"]
    return [
        part_of(
            source,
            dataset,
            [label(source.study, model) for model in models],
            [
                Row(line["setting"], line["label"], tuple(_setting_cell(source, dataset, m, line) for m in models))
                for line in lines
            ],
        )
        for dataset in source.experiment.datasets
    ]


def _setting_cell(source: Source, dataset: str, model: str, line: Mapping[str, str]) -> Cell:
    published = _published_setting(source, dataset, model, line["published"])
    runs = source.runs(dataset, model)
    if not runs:
        return Cell(published=published, gap="not in this study")
    value = _value_of(source, runs[0], line["setting"])
    if value is None:
        return Cell(published=published, words="none")
    exact = Decimal(f"{value:.12g}").normalize().as_tuple().exponent
    return Cell(
        measured=Measured(float(value)),
        published=published,
        digits=max(0, -int(exact)),
        same=source.same(dataset, model),
        runs=f"{dataset}/{model}",
    )


def _value_of(source: Source, run: Run, setting: str) -> float | None:
    """A number of a run by its key in a study file, `body.dropout_input`; None where the head has no such option."""
    if setting == "seed":
        return source.study.author_seeds.get((run.dataset, run.model))
    group, _, key = setting.partition(".")
    found = run.head.options.get(key) if group == "head" else getattr(getattr(run, group), key)
    return None if found is None else float(found)


def _published_setting(source: Source, dataset: str, model: str, name: str) -> Published | None:
    """The value of the table's row, else of the text that speaks of all models or both corpora."""
    corpus = published_dataset(source.study.datasets[dataset])
    named = source.experiment.published_rows.get(model, {}).get("model", model)
    rows = source.published[source.published["metric"] == name]
    fits = rows["dataset"].str.split("+").map(lambda names: corpus in names) & rows["model"].isin([named, "all"])
    return Published(rows[fits]["value"].iloc[0]) if fits.any() else None


# --- searches (SM Tables 7 and 8) -----------------------------------------------------------------------------------
def search(source: Source) -> list[Part]:
    """The values a search combines, declared and published, then a row per combination that is trained."""
    study, datasets = source.study, source.experiment.datasets
    entries = [name for name in source.experiment.entries if name in study.searches]
    found = [_declared(source, dataset, entries) for dataset in datasets]
    for dataset in datasets:
        for name in entries:
            found += _trained(source, dataset, name)
    return found


def _declared(source: Source, dataset: str, entries: Sequence[str]) -> Part:
    searches = [source.study.searches[name] for name in entries]
    rows = []
    for line in source.experiment.options["settings"]:
        published = _published_values(source, line["published"])
        axes = [search.axes.get(line["setting"], ()) for search in searches]
        cells = tuple(Cell(words=", ".join(f"{v:g}" for v in axis) or "fixed", published=published) for axis in axes)
        rows.append(Row(line["setting"], line["label"], cells))
    sizes = tuple(Cell(measured=Measured(search.size), digits=0) for search in searches)
    trained = tuple(Cell(measured=Measured(len(search.members)), digits=0) for search in searches)
    rows += [Row("size", "Combinations", sizes), Row("planned", "of them planned in this study", trained)]
    return part_of(source, dataset, [name.rpartition("-")[0] for name in entries], rows)


def _published_values(source: Source, name: str) -> Published | None:
    values = source.published[source.published["metric"] == name]["value"]
    return None if values.empty else Published(values.iloc[0].replace("|", ", "))


def _trained(source: Source, dataset: str, entry: str) -> list[Part]:
    search = source.study.searches[entry]
    columns = source.experiment.columns
    scores = {model: source.values(dataset, model, columns[0].metric) for model in search.members}
    means = {model: np.mean(list(values.values())) for model, values in scores.items() if values}
    best = min(means, key=lambda model: means[model], default=None)
    rows = []
    for model in search.members:
        cells = tuple(source.cell(dataset, model, column) for column in columns)
        name = label(source.study, model)
        rows.append(Row(model, f"{name} (best)" if model == best else name, cells))
    if not rows:
        return []
    found = part_of(source, dataset, [column.label for column in columns], rows)
    return [replace(found, title=f"{found.title}: runs of {entry}")]


# --- predicted words (Figure 3, SM Table 2) -------------------------------------------------------------------------
@dataclass(frozen=True)
class Prediction:
    """What one run predicts at one place: words with their probabilities, and whether the true one is among them.

    `target` is the word of the text; `hit` is None where the vocabulary was cut and does not hold it.
    """

    group: str
    number: int
    target: str
    top: tuple[tuple[str, float], ...]
    hit: bool | None

    @property
    def words(self) -> str:
        """`*tons 0.90`, `million 0.04`..., one a line, the true word with an asterisk."""
        return "\n".join(f"{'*' if word == self.target else ''}{word} {p:.2f}" for word, p in self.top)


GROUPS = {
    "yang2018_cherry_picked": "Yang et al. 2018",
    "authors_cherry_picked": "Authors' choice",
    "random": "Random",
}


def predictions(found: records.Records, run: Run) -> list[Prediction]:
    """The run's predictions at the study's places; empty when they are not measured yet."""
    return [
        Prediction(
            group=str(one["group"]),
            number=int(one["context"]),
            target=str(one["published_target"] or one["target"]),
            top=tuple((str(top["word"]), float(np.exp(top["log_prob"]))) for top in one["top"]),
            hit=None if one["note"] else bool(one["hit"]),
        )
        for one in found.predictions(run.path)
    ]


def predictions_of(source: Source, dataset: str) -> dict[str, list[Prediction]]:
    """Predictions of the first run of every model that has them."""
    found = {}
    for model in source.experiment.models:
        runs = source.runs(dataset, model)
        if runs and (ours := predictions(source.records, runs[0])):
            found[model] = ours
    return found


@cache
def published_words(name: str) -> Mapping[tuple[str, int, str], tuple[str, str]]:
    """(group, context, model) -> true next word and the published words with their probabilities."""
    found: dict[tuple[str, int, str], list[str]] = {}
    targets = {}
    rows = records.read_csv(PUBLISHED / name)
    for row in rows.to_dict("records"):
        key = (row["group"], int(row["context"]), row["model"])
        targets[key] = row["true_next_token"]
        found.setdefault(key, []).append(f"{'*' if row['hit'] == '1' else ''}{row['word']} {row['prob']}")
    return {key: (targets[key], "\n".join(words)) for key, words in found.items()}


def places(source: Source, dataset: str, ours: Mapping[str, list[Prediction]]) -> list[tuple[str, int, str]]:
    """(group, context, true word) of the rows: those measured, else those published on this very corpus."""
    measured = [(one.group, one.number, one.target) for found in ours.values() for one in found]
    if measured or not source.study.datasets[dataset].published_as:
        return list(dict.fromkeys(measured))
    rows = records.read_csv(PUBLISHED / "parthiban2021_sm_table2_contexts.csv")
    columns = (rows["group"], rows["context"].astype(int), rows["true_next_token"])
    return list(zip(*columns, strict=True))


def top5(source: Source) -> list[Part]:
    """Contexts by models: the five most probable next words."""
    published = published_words(str(source.experiment.options["words"]))
    parts = []
    for dataset in source.experiment.datasets:
        ours = predictions_of(source, dataset)
        rows = []
        for group, number, target in places(source, dataset, ours):
            cells = tuple(
                _words_cell(source, dataset, model, ours, published, (group, number, target))
                for model in source.experiment.models
            )
            known = all(one.hit is not None for one in _at(ours, group, number))
            name = f"{GROUPS.get(group, group)} {number}: {target}{'' if known else ' (not in this vocabulary)'}"
            rows.append(Row(f"{group} {number}", name, cells))
        parts.append(part_of(source, dataset, [label(source.study, m) for m in source.experiment.models], rows))
    return parts


def _at(ours: Mapping[str, list[Prediction]], group: str, number: int) -> Iterator[Prediction]:
    """Every model's prediction at one place."""
    return (one for found in ours.values() for one in found if (one.group, one.number) == (group, number))


def _words_cell(
    source: Source,
    dataset: str,
    model: str,
    ours: Mapping[str, list[Prediction]],
    published: Mapping[tuple[str, int, str], tuple[str, str]],
    place: tuple[str, int, str],
) -> Cell:
    group, number, target = place
    own = next((one for one in ours.get(model, ()) if (one.group, one.number) == (group, number)), None)
    true_word, words = published.get((group, number, model), ("", ""))
    have = source.planned(dataset, model)[:1] if own else []
    return Cell(
        words=own.words if own else "",
        published=Published(words) if words and true_word == target else None,
        same=bool(own) and source.same(dataset, model),
        gap=source.gap(dataset, model, have),
    )


def hit_rates(source: Source) -> list[Part]:
    """Models by the first 1, 5 and 10 words: the share of test contexts whose true next word is among them."""
    columns = [f"Among the first {rank} (%)" for rank in SHOWN_RANKS]
    parts = []
    for dataset in source.experiment.datasets:
        rows = [
            Row(model, label(source.study, model), tuple(_hit_cells(source, dataset, model)))
            for model in source.experiment.models
        ]
        parts.append(part_of(source, dataset, columns, rows))
    return parts


def _hit_cells(source: Source, dataset: str, model: str) -> Iterator[Cell]:
    hits = _hits(source.records, source.runs(dataset, model))
    for rank in SHOWN_RANKS:
        one = hits.get(rank)
        gap = source.gap(dataset, model, source.planned(dataset, model)[:1] if one else [])
        if one is None:
            yield Cell(gap=gap)
            continue
        low, high = (f"{100 * one[key]:.2f}" for key in ("low", "high"))
        measured = Measured(100 * one["rate"])
        yield Cell(measured=measured, note=f"{low} to {high}, n {one['n']:,}", gap=gap)


def _hits(found: records.Records, runs: Sequence[Run]) -> Mapping[str, Mapping[str, Any]]:
    """Hit rates of the first run; empty when they are not measured yet."""
    return found.hits(runs[0].path) if runs else {}


# --- coverage of benchmarks (SM Table 13) ---------------------------------------------------------------------------
def coverage(source: Source) -> list[Part]:
    """Benchmarks by their number of pairs, and of pairs with a word that the corpus does not have."""
    parts = []
    for dataset in source.experiment.datasets:
        rows = [
            Row(name, name.removeprefix("benchmark="), tuple(coverage_cell(source, dataset, m, name) for m in COVERAGE))
            for name in benchmarks(source, dataset, "n_pairs_not_in_vocab")
        ]
        parts.append(part_of(source, dataset, ["Pairs", "Not in the vocabulary"], rows))
    return parts


# --- rank against perplexity over a grid (Figure 2) -----------------------------------------------------------------
GRID_COLUMNS = ["dataset", "model", "origin", "seed", "c", "k", "test_ppl", "rank_press"]


def grid_points(source: Source, dataset: str) -> pd.DataFrame:
    """Runs of a grid with their settings, then the published dots (without settings), columns GRID_COLUMNS."""
    rows: list[tuple[object, ...]] = []
    for model in source.experiment.models:
        ppl, rank = (source.learned(dataset, model, metric) for metric in ("test_ppl", "rank_press"))
        for run in source.runs(dataset, model):
            if run.seed in ppl and run.seed in rank:
                where = (dataset, model, "measured", run.seed, run.head.options["c"], run.head.options["k"])
                rows.append((*where, ppl[run.seed], rank[run.seed]))
    dots = source.published[source.published["dataset"] == published_dataset(source.study.datasets[dataset])]
    dots = dots[dots["condition"].str.startswith("point=")]
    for _, pair in dots.groupby("condition", sort=False):
        numbers = dict(zip(pair["metric"], pair["value"].astype(float), strict=True))
        rows.append((dataset, "gss", "published", None, None, None, numbers["test_ppl"], numbers["rank_press"]))
    kinds = {"seed": "Int64", **dict.fromkeys(("c", "k", "test_ppl", "rank_press"), "float64")}
    return pd.DataFrame(rows, columns=GRID_COLUMNS).astype(kinds)


def correlate(points: pd.DataFrame) -> Correlation:
    """Pearson's r of test perplexity and rank with a bootstrap interval; below zero: higher rank, lower perplexity."""
    return statistics.pearson(points["test_ppl"], points["rank_press"], np.random.default_rng(0))


def correlation(source: Source) -> list[Part]:
    """The whole grid, and the paper's window of perplexities: r measured, of the published dots, as printed."""
    columns = ["r over this study's runs", "r over the published dots", "printed (magnitude)"]
    return [part_of(source, dataset, columns, _correlations(source, dataset)) for dataset in source.experiment.datasets]


def _correlations(source: Source, dataset: str) -> Iterator[Row]:
    corpus = published_dataset(source.study.datasets[dataset])
    points = grid_points(source, dataset)
    ours, theirs = (points[points["origin"] == origin] for origin in ("measured", "published"))
    planned = sum(len(source.planned(dataset, model)) for model in source.experiment.models)
    gap = f"{planned - len(ours)} of {planned} runs of the grid not in it" if len(ours) < planned else ""
    gap = " ".join(filter(None, [gap, source.unlearned_note]))
    text = source.published[(source.published["metric"] == "pearson_r") & (source.published["dataset"] == corpus)]
    printed = [Cell(words=value) for value in text["value"]]
    yield Row("all", "The whole grid", (_r_cell(ours, gap), _r_cell(theirs), printed[0]))
    low, high = source.experiment.options["windows"][corpus]
    inside = [_r_cell(some[some["test_ppl"].between(low, high)]) for some in (ours, theirs)]
    if not source.study.datasets[dataset].published_as:  # the window means nothing on another corpus
        better = ours[ours["test_ppl"] <= ours["test_ppl"].median()]
        yield Row(
            "better half", "The better half of this grid", (_r_cell(better), Cell(wanted=False), Cell(wanted=False))
        )
        inside[0] = Cell(wanted=False)
    yield Row("window", f"Test perplexity {low} to {high}", (*inside, printed[1]))


def _r_cell(points: pd.DataFrame, gap: str = "") -> Cell:
    found = correlate(points)
    if found.r is None:
        return Cell(gap="; ".join(filter(None, [found.reason, gap])))
    ends = [f"{end:+.2f}".replace("-", "−") for end in (found.low, found.high) if end is not None]
    return Cell(measured=Measured(found.r), note=", ".join(filter(None, [" to ".join(ends), f"n {found.n}"])), gap=gap)


# --- numerical robustness (SM Tables 14 to 16) ----------------------------------------------------------------------
ROBUSTNESS = {
    "rank_press": "Press rank",
    "rank_predicted": "Predicted for this size",
    "rank_predicted_paper": f"Predicted for {PAPER_SIZE:,}",
    "reconstruction_error": "Squared error, relative",
    "rank_eff_1e-3": "Effective rank, ε = 10⁻³",
    "rank_eff_1e-4": "ε = 10⁻⁴",
    "rank_eff_1e-5": "ε = 10⁻⁵",
}


def robustness(source: Source) -> list[Part]:
    """Rounds or noise levels by what was computed for them, beside the published numbers."""
    drawn, published = (
        frame[frame["table"] == source.experiment.artefact] for frame in (source.records.synthetic, source.published)
    )
    steps = dict.fromkeys(_step(text) for text in [*published["condition"], *drawn["condition"]])
    metrics = [key for key in ROBUSTNESS if key in {*drawn["metric"], *published["metric"]}]
    sizes = dict.fromkeys(found[1] for text in drawn["condition"] if (found := re.search(r"size=(\d+)", text)))
    rows = [
        Row(step, step, tuple(_robust_cell(drawn, published, step, metric, list(sizes)) for metric in metrics))
        for step in steps
    ]
    note = f"Measured on {', '.join(f'{int(size):,} x {int(size):,}' for size in sizes)}." if sizes else ""
    return [Part("synthetic", "A matrix of rank 10", tuple(ROBUSTNESS[key] for key in metrics), tuple(rows), note)]


def _robust_cell(drawn: pd.DataFrame, published: pd.DataFrame, step: str, metric: str, sizes: list[str]) -> Cell:
    """A prediction for the paper's size may be compared with the paper whatever size was drawn here."""
    at_paper_size = metric == "rank_predicted_paper"
    wanted = "rank_press" if at_paper_size else metric
    printed = [v for v, text, m in _lines(published) if m == wanted and _step(text) == step]
    values = [float(v) for v, text, m in _lines(drawn) if m == metric and _step(text) == step]
    base = Cell(
        published=Published(str(printed[0])) if printed and metric != "rank_predicted" else None,
        digits=0,
        same=at_paper_size or sizes == [str(PAPER_SIZE)],
        gap="" if values else "not drawn yet" if drawn.empty else "not drawn at this level",
    )
    if not values:
        return base
    if metric == "reconstruction_error":
        return replace(base, words=f"{values[0]:.2e}".replace("-", "−"))
    return replace(base, measured=Measured(values[0]))


def _lines(frame: pd.DataFrame) -> Iterator[tuple[Any, str, str]]:
    return zip(frame["value"], frame["condition"], frame["metric"], strict=True)


def _step(condition: str) -> str:
    """`c = 1e-20` or `round 3` of a published or measured condition."""
    noise, rounds = re.search(r"c=(1e-\d+)", condition), re.search(r"iteration=(\d+)", condition)
    return f"c = {noise[1]}" if noise else f"round {rounds[1]}" if rounds else condition


VIEWS: Mapping[str, Callable[[Source], list[Part]]] = {
    "settings": settings,
    "search": search,
    "top5": top5,
    "hit-rates": hit_rates,
    "coverage": coverage,
    "correlation": correlation,
    "robustness": robustness,
}
