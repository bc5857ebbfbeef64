"""Tables and figures of words: similarity benchmarks, predicted words, and hits among the first five predictions.

They correspond to Figures 3 and 4 and SM Tables 2, 3 and 13 of Parthiban et al. 2021. In all functions, `source` is an
experiment with its records and published numbers, and `dataset` is the name of a corpus.
"""

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from softmax_bottleneck.records import records
from softmax_bottleneck.records.metrics import PAIRS, PAIRS_UNKNOWN, SPEARMAN, TOP5_HIT, WINS
from softmax_bottleneck.report import figures, plots
from softmax_bottleneck.report.cells import Cell, MeasuredCell, PublishedCell, Section
from softmax_bottleneck.report.source import Source, read_published
from softmax_bottleneck.statistics.correlations import win_matrix
from softmax_bottleneck.statistics.samples import Summary
from softmax_bottleneck.store.paths import PUBLISHED
from softmax_bottleneck.study import Column, Run

SIDES = ["measured", "published"]


# --- similarity of word vectors -------------------------------------------------------------------------------------
def wordsim_table(source: Source, dataset: str) -> Section:
    """Return a section with a row per benchmark of word similarity and a column per model.

    A cell shows Spearman's rho between the similarities of word vectors and human ratings. The last two columns give
    the number of word pairs of a benchmark, and the number of pairs with a word that is not in the vocabulary.
    """
    rho = next(iter(source.experiment.columns), Column(SPEARMAN))
    measured = source.records.conditions(SPEARMAN, dataset)

    def cell(benchmark: str, column: str) -> Cell:
        if column in (PAIRS, PAIRS_UNKNOWN):
            return _coverage_cell(source, dataset, benchmark, column)
        cell = source.cell(dataset, column, rho, benchmark)
        is_foreign = benchmark not in measured and source.study.dataset(dataset).kind == "language"
        return replace(cell, gaps=("not a benchmark of this language",)) if is_foreign else cell

    columns = source.rows | {PAIRS: "pairs", PAIRS_UNKNOWN: "not in vocabulary"}
    return source.section(dataset, _benchmarks(source, dataset, SPEARMAN), columns, cell)


def coverage_table(source: Source, dataset: str) -> Section:
    """Return a section with a row per benchmark of word similarity and two columns with numbers of word pairs.

    The columns count all pairs of the benchmark, and the pairs with a word that is not in the corpus's vocabulary.
    """
    columns, cell = {PAIRS: "Pairs", PAIRS_UNKNOWN: "Not in the vocabulary"}, partial(_coverage_cell, source, dataset)
    return source.section(dataset, _benchmarks(source, dataset, PAIRS_UNKNOWN), columns, cell)


def _benchmarks(source: Source, dataset: str, metric: str) -> dict[str, str]:
    """Return {`benchmark=<name>`: name} for all benchmarks with a published or measured number of the metric.

    Benchmarks with a published number come first. The keys are conditions in the records.
    """
    rows = source.published[source.published["metric"] == metric]
    known = [text.split(";")[0] for text in rows[rows["dataset"] == source.corpus(dataset)]["condition"]]
    conditions = [*known, *source.records.conditions(metric, dataset)]
    return {condition: condition.removeprefix("benchmark=") for condition in conditions}


def _coverage_cell(source: Source, dataset: str, condition: str, metric: str) -> Cell:
    """Return the cell with a number of word pairs, of any run because all runs on a corpus have the same.

    Args:
        dataset: the corpus, whose vocabulary decides which words are unknown.
        condition: the benchmark as `benchmark=<name>`.
        metric: PAIRS (all pairs) or PAIRS_UNKNOWN (pairs with a word that is not in the vocabulary).
    """
    rows = source.records.rows.query("dataset == @dataset and metric == @metric and condition == @condition")
    size = source.study.dataset(dataset).vocabulary_size
    corpus = "wordsim" if metric == PAIRS else source.corpus(dataset)
    published = source.find_published(corpus, "", metric, {"condition": f"^{re.escape(condition)}$"})
    blank = Cell(published=published, metric=metric, same=source.is_published(dataset))
    if rows.empty:
        return replace(blank, gaps=("not counted for this corpus",))
    note = f"vocabulary cut to {size:,} words" if size is not None and metric == PAIRS_UNKNOWN else ""
    return replace(blank, measured=MeasuredCell(float(rows["value"].iloc[0])), note=note)


def wins_figure(source: Source) -> plots.Drawing:
    """Draw heat maps with the number of word-similarity benchmarks on which one model wins over another (Figure 4).

    The model in a row wins over the model in a column if its mean Spearman's rho over runs is larger. Measured and
    published numbers have maps of their own.
    """
    rows = [row for dataset in source.corpora for row in _wins_on(source, dataset)]
    data = pd.DataFrame(rows, columns=["dataset", "model", "over", *SIDES])
    sides = SIDES if data["published"].notna().any() else SIDES[:1]
    models, names = list(source.rows), [figures.short_name(source.study, model) for model in source.rows]

    def draw(row: plots.AxesArray, dataset: str, shown: pd.DataFrame) -> None:
        same = source.same(dataset, *source.models)
        titles = (f"{figures.corpus_title(source, dataset)}: measured", figures.paper_title(source, dataset, same))
        for axes, side, title in zip(row, sides, titles, strict=False):
            if shown[side].isna().all():
                plots.empty(axes, f"{title}: nothing to show")
                continue
            table = shown.pivot(index="model", columns="over", values=side).reindex(index=models, columns=models)
            plots.heat_map(axes, table, ".0f", square=True, linewidths=1.5, xticklabels=names, yticklabels=names)
            axes.set(title=title, xlabel="over", ylabel="")
            axes.set_xticks(axes.get_xticks(), names, rotation=40, ha="right", rotation_mode="anchor")

    inches = 0.42 * len(models)  # of a map
    size = (len(sides), max(3.4, inches + 1.5), inches + 1.1)
    rated = source.records.rows[source.records.rows["metric"] == SPEARMAN]
    used = rated[rated["run_id"].isin([run.run_id for run in source.study.runs_of(source.experiment)])]
    return figures.by_corpus(source, data, size, draw, figures.count_note(source, used))


def _wins_on(source: Source, dataset: str) -> Iterator[tuple[str, str, str, float, float | None]]:
    """Yield (corpus, model, other model, measured wins over the other, published wins); nan without benchmarks."""
    conditions = source.records.conditions(SPEARMAN, dataset)
    samples = {m: {c: source.values(dataset, m, SPEARMAN, c).values() for c in conditions} for m in source.rows}
    rhos = {m: {c: Summary.of(values).mean for c, values in by.items()} for m, by in samples.items()}
    for model, counts in win_matrix(rhos).items():
        for other, count in counts.items():
            over = {"condition": rf"wins over {re.escape(other)}(?:;|$)"}
            published = source.find_published(source.corpus(dataset), model, WINS, over)
            measured = float(count.wins) if count.compared else math.nan
            yield dataset, model, other, measured, published.number if published else math.nan


# --- predicted words ------------------------------------------------------------------------------------------------
CONTEXTS = "parthiban2021_sm_table2_contexts.csv"
GROUPS = {"yang2018_cherry_picked": "Yang et al. 2018", "authors_cherry_picked": "Authors' choice", "random": "Random"}


class Place(NamedTuple):
    """A position in the test text at which the next word is predicted.

    `group` says how the position was chosen (a key of GROUPS, such as `random`); `number` counts within the group, from
    1; `target` is the true next word.
    """

    group: str
    number: int
    target: str


class Prediction(NamedTuple):
    """The five most probable words of one run at one position.

    Attributes:
        text: a line per word with its probability, such as `*tons 0.90`; an asterisk marks the true word.
        hit: True if the true word is one of the five; None if the corpus's vocabulary does not contain it.
    """

    text: str
    hit: bool | None


Predictions = dict[str, dict[Place, Prediction]]  # by model and position


def predictions(results: records.Records, run: Run) -> Iterator[tuple[Place, Prediction]]:
    """Yield (position in the test text, prediction) of a run; `results` are the records of its study."""
    for context in results.detail(run.path, "predictions") or ():
        target = str(context["published_target"] or context["target"])
        words = ((str(top["word"]), math.exp(top["log_prob"])) for top in context["top"])
        text = "\n".join(f"{'*' if word == target else ''}{word} {p:.2f}" for word, p in words)
        place = Place(str(context["group"]), int(context["context"]), target)
        yield place, Prediction(text, None if context["note"] else bool(context["hit"]))


def _predictions_on(source: Source, dataset: str) -> tuple[Predictions, list[Place], list[Place]]:
    """Return (predictions, all positions, published positions) for a corpus.

    The predictions are {model: {position: prediction}} of each model's first run. The published positions are those
    that the file CONTEXTS lists for the corpus. The list of all positions has those with predictions first, then the
    other published ones.
    """
    first = {model: run for model in source.models for run in source.runs(dataset, model)[:1]}
    measured = {model: dict(predictions(source.records, run)) for model, run in first.items()}
    rows = records.read_csv(PUBLISHED / CONTEXTS)
    rows = rows[rows["dataset"] == source.corpus(dataset)]
    texts = rows[["group", "context", "true_next_token"]].to_numpy()
    printed = [Place(group, int(number), target) for group, number, target in texts]
    return measured, list(dict.fromkeys(itertools.chain(*measured.values(), printed))), printed


def top5_table(source: Source, dataset: str, *, words: str) -> Section:
    """Return a section with a row per position in the test text and a column per model: the five most probable words.

    The measured words are those of a model's first run. `words` is the name of the CSV file in report/published with
    the published words, such as `parthiban2021_sm_table2_top5.csv`.
    """
    measured, places, _ = _predictions_on(source, dataset)
    printed: dict[tuple[Place, str], list[str]] = {}  # lines of text, as in `Prediction.text`
    for word in read_published((words,)).to_dict("records"):
        place = Place(word["group"], int(word["context"]), word["true_next_token"])
        line = f"{'*' if word['hit'] == '1' else ''}{word['word']} {word['prob']}"
        printed.setdefault((place, word["model"]), []).append(line)
    shown = {f"{place.group} {place.number} {place.target}": place for place in places}
    rows = {}
    for key, place in shown.items():
        is_known = all(place not in by_place or by_place[place].hit is not None for by_place in measured.values())
        name = f"{GROUPS.get(place.group, place.group)} {place.number}: {place.target}"
        rows[key] = name if is_known else f"{name} (not in this vocabulary)"

    def cell(row: str, model: str) -> Cell:
        prediction, text = measured.get(model, {}).get(shown[row]), "\n".join(printed.get((shown[row], model), ()))
        quoted = PublishedCell(text) if text else None
        if not prediction:
            return Cell(published=quoted, gaps=source.gaps(dataset, model, ()) or ("not a place of this text",))
        gaps, same = source.gaps(dataset, model, source.planned(dataset, model)[:1]), source.same(dataset, model)
        return Cell(label=prediction.text, published=quoted, same=same, gaps=gaps)

    return source.section(dataset, rows, source.rows, cell)


def hits_figure(source: Source) -> plots.Drawing:
    """Draw a square per model and position, filled if the true next word is among the five most probable (Figure 3).

    The measured hits of each model's first run and the published hits have panels of their own.
    """
    rows: list[tuple[object, ...]] = []
    for dataset in source.corpora:
        predicted, places, printed = _predictions_on(source, dataset)
        for place, model in itertools.product(places, source.rows):
            where = {"condition": f"^group={place.group};context={place.number}$"}
            prediction, corpus = predicted.get(model, {}).get(place), source.corpus(dataset)
            published = source.find_published(corpus, model, TOP5_HIT, where) if place in printed else None
            hit = None if prediction is None or prediction.hit is None else float(prediction.hit)
            rows.append((dataset, model, *place, hit, published.number if published else None))
    data = pd.DataFrame(rows, columns=["dataset", "model", "group", "context", "target", *SIDES])
    sides = SIDES if data["published"].notna().any() else SIDES[:1]
    height = 0.3 * len(source.rows) + 1.6 if len(data) else 0.6
    panels = [(dataset, side) for dataset in source.corpora for side in sides]
    canvas = plots.crossed(panels, [None], 9.2, height, partial(_hit_panel, source, data))
    measured = data.dropna(subset="measured")
    return plots.Drawing(canvas, data, figures.count_note(source, measured))


def _hit_panel(source: Source, data: pd.DataFrame, axes: Axes, row: tuple[str, str], _: object) -> None:
    """Draw one panel on `axes`: for each model a row with a square per position, and the number of hits at the end.

    A filled square is a hit. Each line of `data` is a model at a position, which the columns group, context (its number
    in the group) and target (the true word) name; the other columns are dataset, model, measured and published. `row`
    is the corpus and the column to draw, `measured` or `published`: 1 for a hit, 0 for a miss, nan for no number.
    Positions and models that have only nan are left out. `source` has the titles and the order of the models.
    """
    dataset, side = row
    name = figures.corpus_title(source, dataset) if side == "measured" else source.published_title(dataset)
    title = f"{name}: {side}"
    data = data[data["dataset"] == dataset]
    data = data[data.groupby(["group", "context", "target"])[side].transform("count") > 0]
    shown = set(data.dropna(subset=side)["model"])
    if not shown:
        plots.empty(axes, f"{title}: nothing to show")
        return
    spots = data[["group", "context", "target"]].drop_duplicates()
    looks, names = figures.styles(source.rows, source.study), list[str]()
    for height, model in enumerate(model for model in source.rows if model in shown):
        hit = data[data["model"] == model][side].to_numpy(dtype=float)
        for value, fill in ((1, "full"), (0, "none")):
            spot = np.flatnonzero(hit == value)
            look = looks[model].dot | {"marker": "s", "markersize": 11, "fillstyle": fill, "mew": 0.8}
            axes.plot(spot, [height] * len(spot), **look)
        axes.text(len(hit) - 0.2, height, f"{np.nansum(hit):.0f} of {np.isfinite(hit).sum()}", va="center", fontsize=9)
        names.append(figures.short_name(source.study, model))
    for edge in np.flatnonzero(spots["group"].to_numpy()[1:] != spots["group"].to_numpy()[:-1]):
        axes.axvline(edge + 0.5, color=plots.LIGHT.muted, linewidth=1)
    counts = ", ".join(f"{GROUPS.get(group, group)}: {len(rows)}" for (group,), rows in records.groups(spots, "group"))
    axes.set_yticks(range(len(names)), names)
    axes.set_xticks(range(len(spots)), list(spots["target"]), rotation=50, ha="right")
    axes.set(xlim=(-0.7, len(spots) + 0.9), ylim=(len(names) - 0.4, -0.6), title=f"{title} ({counts})")
    axes.tick_params(length=0, labelcolor=plots.LIGHT.ink)
    axes.grid(visible=False)
