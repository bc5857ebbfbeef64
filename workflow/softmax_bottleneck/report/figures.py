"""Figures: records, epoch logs and spectra as SVG with the data beside them.

The same input gives the same bytes: no dates, fixed ids, text as outlines. One palette serves every figure, and every
SVG changes into dark colours by itself where the reader's screen is dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from softmax_bottleneck.measuring import statistics
from softmax_bottleneck.records import records
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report import cells, fit_figures, paper_figures, tables
from softmax_bottleneck.report.cells import Source
from softmax_bottleneck.report.plots import (
    LIGHT,
    Drawing,
    corpus_title,
    count_note,
    draw_legend,
    drawn,
    empty,
    in_order,
    integer,
    panels,
    planned_runs,
    power,
    rc_settings,
    short_name,
    styles,
    to_svg,
    usable_runs,
)
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import Experiment, Run, Study, did_you_mean

DIGITS = 8  # significant ones in the data beside a figure
SQUARE = 0.42  # inches of a square of a heat map
POINTS = 150  # of a curve that is drawn thinned
EPOCHS = 150  # of a learning curve; longer ones are drawn with every second, third... epoch
CURVE_DOTS = 6000  # of all learning curves of a corpus; with hundreds of runs each is drawn with fewer


@dataclass(frozen=True)
class Figure:
    """A finished figure; `svg` is a whole SVG document, `csv` the numbers drawn."""

    id: str
    source: str
    artefact: str
    title: str
    caption: str
    alt: str
    note: str
    svg: str
    csv: str


# --- spectra --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Spectrum:
    run: Run
    relative: NDArray[np.float64]  # sigma / sigma_max, descending
    tolerance: float  # of the Press rank, divided by sigma_max; nan when unknown


def _spectra(source: Source, dataset: str) -> list[_Spectrum]:
    found = []
    for run in usable_runs(source, dataset):
        index, kept = source.records.spectrum(run.path) or (np.ones(1, np.int64), np.zeros(1))
        if kept[0] > 0:
            sigma = np.interp(np.arange(1, index[-1] + 1), index, kept)
            facts = [source.records.values(dataset, run.model, key) for key in ("rank_tolerance", "sigma_max")]
            ends = [values.get(run.seed, math.nan) for values in facts]
            found.append(_Spectrum(run, sigma / sigma[0], ends[0] / ends[1]))
    return found


def spectrum(source: Source) -> Drawing:
    """Singular values relative to the largest: the first ones on a linear axis, all of them on a log axis.

    Option `panels` chooses one of the two (`first`, `all`).
    """
    datasets = source.experiment.datasets
    sides = [SPECTRUM_PANELS[name] for name in source.experiment.options.get("panels", SPECTRUM_PANELS)]
    canvas, axes = panels(len(datasets), len(sides), 4.7 if len(sides) > 1 else 7.0, 3.5)
    rows: list[tuple[object, ...]] = []
    for row, dataset in zip(axes, datasets, strict=True):
        title = corpus_title(source, dataset)
        spectra = _spectra(source, dataset)
        for panel, draw in zip(row, sides, strict=True):
            if spectra:
                draw(source, panel, spectra, title)
            else:
                empty(panel, f"{title}: no singular values yet")
        rows += _spectrum_rows(spectra)
    models = [m for m in source.experiment.models if any(row[1] == m for row in rows)]
    draw_legend(canvas, source.study, models, lines=True)
    data = pd.DataFrame(rows, columns=["dataset", "model", "seed", "index", "relative_singular_value"])
    return Drawing(canvas, data, _spectrum_alt(source, data), count_note(source, drawn(data)))


def _indices(length: int, cliffs: Iterable[int] = ()) -> NDArray[np.intp]:
    """Indices (from 0) of a thinned curve: the first ones all, then evenly, and densely around every cliff."""
    near = [np.arange(cliff - 4, cliff + 5) for cliff in cliffs]
    chosen = np.unique(np.concatenate([np.arange(40), np.linspace(0, length - 1, POINTS).astype(int), *near]))
    return chosen[(chosen >= 0) & (chosen < length)]


def _cliff(item: _Spectrum) -> list[int]:
    return [] if math.isnan(item.tolerance) else [int(np.sum(item.relative > item.tolerance))]


def _spectrum_rows(spectra: list[_Spectrum]) -> list[tuple[object, ...]]:
    return [
        (item.run.dataset, item.run.model, item.run.seed, int(index) + 1, float(item.relative[index]))
        for item in spectra
        for index in _indices(len(item.relative), _cliff(item))
    ]


def _draw_curves(
    source: Source, axes: Axes, spectra: list[_Spectrum], curve: Callable[[_Spectrum], NDArray[np.float64]]
) -> None:
    """Thin lines for runs, a thick one for each model's mean."""
    drawn = styles(source.experiment.models)
    for model, style in drawn.items():
        own = [item for item in spectra if item.run.model == model]
        if not own:
            continue
        length = min(len(curve(item)) for item in own)
        index = _indices(length, [cliff for item in own for cliff in _cliff(item)])
        values = np.array([curve(item)[index] for item in own])
        for line in values if len(own) > 1 else ():
            axes.plot(index + 1, line, color=style.colour, linewidth=0.6, alpha=0.45)
        axes.plot(index + 1, values.mean(axis=0), color=style.colour, linestyle=style.dash, linewidth=1.9)


def _draw_first(source: Source, axes: Axes, spectra: list[_Spectrum], title: str) -> None:
    first = int(source.experiment.options.get("first", 500))
    _draw_curves(source, axes, spectra, lambda item: item.relative[:first])
    longest = max(len(item.relative) for item in spectra)
    axes.set(xlim=(0, min(first, longest)), ylim=(0, float(source.experiment.options.get("top", 0.2))))
    axes.set(title=title, xlabel=f"index (first {min(first, longest)})", ylabel="σ / σ max")


def _draw_all(source: Source, axes: Axes, spectra: list[_Spectrum], title: str) -> None:
    tolerances = [item.tolerance for item in spectra if not math.isnan(item.tolerance)]
    floor = (min(tolerances) if tolerances else 1e-5) / 300
    _draw_curves(source, axes, spectra, lambda item: np.maximum(item.relative, floor / 10))
    axes.set_yscale("log")
    axes.set(ylim=(floor, 1.5), xlim=(0, max(len(item.relative) for item in spectra)), xlabel="index (all)")
    axes.set_title(f"{title}, log axis")
    axes.yaxis.set_major_formatter(FuncFormatter(power))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    axes.xaxis.set_major_formatter(FuncFormatter(integer))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    if tolerances:
        tolerance = float(np.median(tolerances))
        axes.axhline(tolerance, color=LIGHT.ink, linestyle=(0, (4, 3)), linewidth=1)
        spot = (0.99, tolerance * 1.15)
        axes.text(*spot, "Press tolerance", transform=axes.get_yaxis_transform(), ha="right", va="bottom", fontsize=8.5)


SPECTRUM_PANELS = {"first": _draw_first, "all": _draw_all}


def _spectrum_alt(source: Source, data: pd.DataFrame) -> str:
    if data.empty:
        return "No singular values have been computed yet."
    words = []
    for (dataset, model), part in records.groups(data, "dataset", "model"):
        ranks = source.values(dataset, model, "rank_press").values()
        mean = cells.mean_of(ranks)
        if mean:
            words.append(
                f"{short_name(source.study, model)} {mean.mean:.0f} of {part['index'].max()} above the tolerance"
            )
    return "Falling curves of relative singular values per model. " + "; ".join(words) + "."


# --- learning curves ------------------------------------------------------------------------------------------------
def learning_curves(source: Source) -> Drawing:
    """Validation perplexity by epoch, from the epoch logs of all runs, finished or not."""
    datasets = source.experiment.datasets
    canvas, axes = panels(len(datasets), 1, 8.6, 3.9)
    frames = [_epochs(source, dataset) for dataset in datasets]
    for (panel,), dataset, frame in zip(axes, datasets, frames, strict=True):
        if frame.empty:
            empty(panel, f"{corpus_title(source, dataset)}: no epoch finished yet")
        else:
            _draw_epochs(source, panel, frame)
            panel.set(title=corpus_title(source, dataset), xlabel="epoch", ylabel="validation perplexity")
    data = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=EPOCH_COLUMNS)
    data = data.drop(columns="run")
    draw_legend(canvas, source.study, in_order(source, data), lines=True)
    return Drawing(canvas, data, _epochs_alt(source, data), count_note(source, drawn(data)))


EPOCH_COLUMNS = ["dataset", "model", "seed", "run", "epoch", "phase", "train_ppl", "valid_ppl"]


def _epochs(source: Source, dataset: str) -> pd.DataFrame:
    rows = []
    for run in planned_runs(source, dataset):
        for line in source.records.curve(run.path):
            numbers = [line[key] for key in ("epoch", "phase", "train_ppl", "valid_ppl")]
            rows.append((dataset, run.model, run.seed, run.path, *numbers))
    frame = pd.DataFrame(rows, columns=EPOCH_COLUMNS).astype({"train_ppl": float, "valid_ppl": float})
    finite: pd.DataFrame = frame[np.isfinite(frame["valid_ppl"]) & _kept_epochs(frame)]
    return finite


def _kept_epochs(frame: pd.DataFrame) -> pd.Series[bool]:
    """Epochs of long curves that are drawn: every k-th, the last ones of every run, and those around its switch."""
    step = max(1, math.ceil(frame["epoch"].max() / EPOCHS), math.ceil(len(frame) / CURVE_DOTS)) if len(frame) else 1
    runs = frame.groupby("run")
    switched = (frame["phase"] != runs["phase"].shift()) | (frame["phase"] != runs["phase"].shift(-1))
    return (frame["epoch"] % step == 0) | switched


def _draw_epochs(source: Source, axes: Axes, frame: pd.DataFrame) -> None:
    drawn = styles(source.experiment.models)
    for model in in_order(source, frame):
        own, style = frame[frame["model"] == model], drawn[model]
        alone = own["run"].nunique() == 1
        for _, run in own.groupby("run", sort=True):
            axes.plot(run["epoch"], run["valid_ppl"], color=style.colour, linewidth=0.7, alpha=0 if alone else 0.5)
            before = run[(run["phase"] == "sgd") & (run["phase"].shift(-1) == "asgd")]
            axes.plot(before["epoch"], before["valid_ppl"], "o", color=style.colour, markersize=5, mec=LIGHT.paper)
        table = own.pivot_table(index="epoch", columns="run", values="valid_ppl")
        mean = table.mean(axis=1)[table.notna().all(axis=1)]  # never a mean of fewer runs further right
        axes.plot(mean.index, mean, color=style.colour, linestyle=style.dash, linewidth=1.9)
    best = float(frame["valid_ppl"].min())
    axes.set_ylim(best * 0.97, min(float(frame["valid_ppl"].quantile(0.97)) * 1.1, best * 2.5))  # not the first fall
    axes.set_xlim(left=float(frame["epoch"].min()))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _epochs_alt(source: Source, data: pd.DataFrame) -> str:
    if data.empty:
        return "No epoch has finished yet."
    words = []
    for (dataset, model), own in records.groups(data, "dataset", "model"):
        best = own.groupby("seed")["valid_ppl"].min().mean()
        words.append(f"{short_name(source.study, model)} on {corpus_title(source, dataset)} {best:.1f}")
    return "Falling curves of validation perplexity; mean of the runs' best: " + "; ".join(words) + "."


# --- rank against perplexity ----------------------------------------------------------------------------------------
def rank_perplexity(source: Source) -> Drawing:
    """Press rank against test perplexity, a dot per run, a cross per published mean.

    Published crosses share the axes only where the setting is the same; else they have a panel of their own.
    """
    datasets = source.experiment.datasets
    frames = [_pairs(source, dataset) for dataset in datasets]
    same = [all(source.same(dataset, model) for model in source.experiment.models) for dataset in datasets]
    canvas, axes = panels(1, len(datasets), 4.7, 3.7) if all(same) else panels(len(datasets), 2, 4.7, 3.7)
    axes = axes.T if all(same) else axes
    notes = []
    for row, dataset, frame, shared in zip(axes, datasets, frames, same, strict=True):
        measured, published = (frame[frame["origin"] == origin] for origin in ("measured", "published"))
        name = corpus_title(source, dataset)
        _scatter(source, row[0], frame if shared else measured, name if shared else f"{name}: measured")
        if len(row) > 1:
            _scatter(source, row[1], published, "paper" if shared else "paper, full size")
        notes.append(f"{name}: {_correlation(measured)}")
    data = pd.concat(frames, ignore_index=True)
    draw_legend(canvas, source.study, in_order(source, data), lines=False)
    count = count_note(source, drawn(data[data["origin"] == "measured"]))
    left_out = source.unlearned_note
    count = f"{count} {left_out}".rstrip()
    note = f"Pearson correlation of test perplexity and Press rank over the runs. {'; '.join(notes)}. {count}"
    return Drawing(canvas, data, f"Scatter plot of Press rank against test perplexity. {note}", note)


PAIR_COLUMNS = ["dataset", "model", "origin", "seed", "test_ppl", "rank_press"]


def _pairs(source: Source, dataset: str) -> pd.DataFrame:
    rows: list[tuple[object, ...]] = []
    corpus = cells.published_dataset(source.study.datasets[dataset])
    for model in source.experiment.models:
        ppl, rank = (source.learned(dataset, model, metric) for metric in ("test_ppl", "rank_press"))
        rows += [(dataset, model, "measured", seed, ppl[seed], rank[seed]) for seed in ppl if seed in rank]
        pair = [source.find_published(corpus, model, metric) for metric in ("test_ppl", "rank_press")]
        numbers = [one.number for one in pair if one is not None and one.number is not None]
        if len(numbers) == 2:
            rows.append((dataset, model, "published", None, *numbers))
    return pd.DataFrame(rows, columns=PAIR_COLUMNS).astype({"test_ppl": float, "rank_press": float, "seed": "Int64"})


def _scatter(source: Source, axes: Axes, frame: pd.DataFrame, title: str) -> None:
    if frame.empty:
        empty(axes, f"{title}: nothing to show")
        return
    for model, style in styles(source.experiment.models).items():
        own = frame[frame["model"] == model]
        runs, paper = own[own["origin"] == "measured"], own[own["origin"] == "published"]
        dot: dict[str, Any] = {
            "color": style.colour,
            "marker": style.marker,
            "markersize": 6.5,
            "mec": LIGHT.paper,
            "mew": 0.7,
        }
        axes.plot(runs["test_ppl"], runs["rank_press"], linestyle="none", **dot)
        cross: dict[str, Any] = {"marker": "x", "markersize": 8, "mew": 2, "alpha": 0.75}
        axes.plot(paper["test_ppl"], paper["rank_press"], linestyle="none", color=style.colour, **cross)
    axes.set(title=title, xlabel="test perplexity", ylabel="Press rank")
    axes.margins(0.12)
    axes.yaxis.set_major_formatter(FuncFormatter(integer))
    axes.xaxis.set_major_locator(MaxNLocator(5))


def _correlation(frame: pd.DataFrame) -> str:
    result = statistics.pearson(frame["test_ppl"], frame["rank_press"], np.random.default_rng(0))
    if result.r is None:
        return result.reason
    ends = [f"{end:+.2f}" for end in (result.low, result.high) if end is not None]
    interval = f"95 % interval {' to '.join(ends)}, " if ends else ""
    return f"r = {result.r:+.2f} ({interval}n = {result.n})".replace("-", "−")


# --- known truth ----------------------------------------------------------------------------------------------------
def truth(source: Source) -> Drawing:
    """Test perplexity beside the entropy bound, Press rank beside the true rank, on the known-truth languages."""
    known = [d for d in source.experiment.datasets if source.study.datasets[d].kind == "language"]
    models = source.experiment.models
    canvas, axes = panels(max(len(known), 1), 2, 4.7, 0.42 * len(models) + 1.5)
    if not known:
        empty(axes[0][0], "This study has no known-truth language")
        axes[0][1].set_axis_off()
    rows: list[tuple[object, ...]] = []
    for (left, right), dataset in zip(axes, known, strict=False):
        bound, rank = (cells.exact_value(source.records, dataset, key) for key in ("entropy_ppl", "rank_truth"))
        for panel, metric, exact, words in (
            (left, "test_ppl", bound, "best possible"),
            (right, "rank_press", rank, "rank of the law"),
        ):
            rows += _strip(source, panel, dataset, metric, exact, words)
        left.set(title=corpus_title(source, dataset), xlabel="test perplexity")
        right.set(title="rank of log P", xlabel="Press rank")
        right.tick_params(labelleft=False)
    data = pd.DataFrame(rows, columns=["dataset", "model", "metric", "seed", "value", "exact"])
    return Drawing(canvas, data, _truth_alt(source, data), count_note(source, drawn(data)))


def _strip(
    source: Source, axes: Axes, dataset: str, metric: str, exact: float | None, words: str
) -> list[tuple[object, ...]]:
    """One line per model: a dot per run and a bar at their mean; a dashed line at the exact value."""
    rows: list[tuple[object, ...]] = []
    for height, (model, style) in enumerate(styles(source.experiment.models).items()):
        values = source.values(dataset, model, metric)
        axes.plot(
            list(values.values()), [height] * len(values), style.marker, color=style.colour, alpha=0.8, markersize=6
        )
        mean = cells.mean_of(values.values())
        if mean:
            axes.plot([mean.mean] * 2, [height - 0.32, height + 0.32], color=style.colour, linewidth=2.4)
        rows += [(dataset, model, metric, seed, value, exact) for seed, value in values.items()]
    names = [short_name(source.study, model) for model in source.experiment.models]
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", labelsize=10, labelcolor=LIGHT.ink, length=0)
    axes.set_ylim(len(names) - 0.4, -0.95)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.08)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    if exact is not None:
        axes.axvline(exact, color=LIGHT.ink, linestyle=(0, (4, 3)), linewidth=1.2)
        left = exact < sum(axes.get_xlim()) / 2
        text = f" {words} {exact:.4g} "
        axes.text(exact, -0.9, text, ha="left" if left else "right", va="top", fontsize=8.5)
    return rows


def _truth_alt(source: Source, data: pd.DataFrame) -> str:
    if data.empty:
        return "No run on a known-truth language has finished yet."
    words = []
    for (dataset, metric), part in records.groups(data, "dataset", "metric"):
        means = "; ".join(
            f"{short_name(source.study, model)} {own['value'].mean():.4g}"
            for (model,), own in records.groups(part, "model")
        )
        exact = part["exact"].iloc[0]
        words.append(f"{corpus_title(source, dataset)}, {metric} (exact {exact:.4g}): {means}")
    return "Dots by model. " + ". ".join(words) + "."


# --- win matrices ---------------------------------------------------------------------------------------------------
def wins(source: Source) -> Drawing:
    """Heat maps of benchmarks won, measured and published side by side."""
    parts = tables.wins(source)
    columns = 2 if any(row.has_published for part in parts for row in part.rows) else 1
    bare = not any(cell.measured or cell.published for part in parts for row in part.rows for cell in row.cells)
    side = SQUARE * len(source.experiment.models)
    canvas, axes = panels(len(parts), columns, max(3.4, side + 1.5), 0.5 if bare else side + 1.1)
    rows: list[tuple[object, ...]] = []
    for pair, part in zip(axes, parts, strict=True):
        measured = [[cell.measured.mean if cell.measured else math.nan for cell in row.cells] for row in part.rows]
        published = [[_published_number(cell) for cell in row.cells] for row in part.rows]
        same = all(row.same for row in part.rows)
        titles = (f"{corpus_title(source, part.dataset)}: measured", "paper" if same else "paper, full size")
        for panel, values, title in zip(pair, (measured, published), titles, strict=False):
            _heat(source, panel, np.array(values, dtype=float), title)
        rows += [
            (part.dataset, a.key, b.key, x, y)
            for a, xs, ys in zip(part.rows, measured, published, strict=True)
            for b, x, y in zip(part.rows, xs, ys, strict=True)
            if a.key != b.key
        ]
    data = pd.DataFrame(rows, columns=["dataset", "model", "over", "measured", "published"])
    rated = source.records.rows[source.records.rows["metric"] == "spearman"]
    used = {run.run_id for part in parts for run in planned_runs(source, part.dataset)} & set(rated["run_id"])
    return Drawing(canvas, data, _wins_alt(source, data), count_note(source, len(used)))


def _published_number(cell: cells.Cell) -> float:
    number = cell.published.number if cell.published else None
    return math.nan if number is None else number


def _heat(source: Source, axes: Axes, values: NDArray[np.float64], title: str) -> None:
    if np.isnan(values).all():
        empty(axes, f"{title}: nothing to show")
        return
    names = [short_name(source.study, model) for model in source.experiment.models]
    colours = sns.color_palette("blend:#eef3f9,#69a5ea", as_cmap=True)
    look: dict[str, Any] = {"annot_kws": {"color": "#10151b"}}  # on these blues legible in both dresses
    look |= {"annot": True, "fmt": ".0f", "cbar": False, "square": True, "linewidths": 1.5, "linecolor": LIGHT.paper}
    sns.heatmap(values, ax=axes, cmap=colours, vmin=0, xticklabels=names, yticklabels=names, **look)
    axes.grid(visible=False)
    axes.set(title=title, xlabel="over", ylabel="")
    axes.tick_params(length=0, labelcolor=LIGHT.ink)
    axes.set_xticks(axes.get_xticks(), names, rotation=40, ha="right", rotation_mode="anchor")
    axes.tick_params(axis="y", rotation=0)


def _wins_alt(source: Source, data: pd.DataFrame) -> str:
    if data["measured"].isna().all():
        return "Heat maps of benchmarks won; no word-similarity result yet, published counts only."
    words = []
    for (dataset, model), own in records.groups(data, "dataset", "model"):
        words.append(
            f"{short_name(source.study, model)} on {corpus_title(source, dataset)}: {own['measured'].sum():.0f}"
        )
    return "Heat maps of benchmarks won by the row's model; wins over all others: " + "; ".join(words) + "."


# --- experiments ----------------------------------------------------------------------------------------------------
VIEWS: Mapping[str, Callable[[Source], Drawing]] = {
    "spectrum": spectrum,
    "learning-curves": learning_curves,
    "rank-perplexity": rank_perplexity,
    "truth": truth,
    "wins": wins,
}


def build(study: Study, experiment: Experiment, found: Records) -> Figure:
    """The figure of an experiment (UserError for a view there is not)."""
    known = views()
    if experiment.view not in known:
        hint = did_you_mean(experiment.view, list(known))
        raise UserError(f"experiment {experiment.id}: view: unknown {experiment.view!r}{hint}")
    source = cells.source_of(study, experiment, found)
    with mpl.rc_context(rc_settings()):
        drawing = _void(experiment.needs) if experiment.is_void else known[experiment.view](source)
        svg = to_svg(drawing.canvas)
    texts = (experiment.id, experiment.source, experiment.artefact, experiment.title, experiment.caption)
    note = " ".join(filter(None, [drawing.note, "" if experiment.is_void else experiment.needs]))
    return Figure(*texts, drawing.alt, note, svg, csv=records.to_csv(drawing.data, digits=DIGITS))


def _void(words: str) -> Drawing:
    """The reason why a study cannot draw a figure, in its place."""
    canvas, ((axes,),) = panels(1, 1, 8.6, 0.3)
    empty(axes, words)
    return Drawing(canvas, pd.DataFrame({"needs": [words]}), words)


def views() -> Mapping[str, Callable[[Source], Drawing]]:
    """All views of figures by name."""
    return {**VIEWS, **paper_figures.VIEWS, **fit_figures.VIEWS}
