"""Figures that only the main paper has: the functions themselves, the grid, hits, sweeps, the rank during training.

Parthiban, Mao and Inkpen 2021 (Figures 1, 2, 3, 5, 6). Each view takes what `cells.Source` knows, returns a Drawing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from softmax_bottleneck.report import paper_tables
from softmax_bottleneck.report.cells import Source, published_dataset
from softmax_bottleneck.report.plots import (
    DASHES,
    LIGHT,
    SPARE,
    Drawing,
    corpus_title,
    count_note,
    draw_legend,
    drawn,
    empty,
    in_order,
    integer,
    panels,
    short_name,
    styles,
)

RANGE = (-8.0, 6.0)  # of logits in Figure 1
CURVE_POINTS = 141


# --- the functions (Figure 1) ---------------------------------------------------------------------------------------
def piecewise_linear(logits: NDArray[np.float64], c: float, k: float) -> NDArray[np.float64]:
    """Slope k below c and 1 above it, through (c, c) (Parthiban 2021, eq. 3)."""
    return np.where(logits < c, k * (logits - c) + c, logits)


def smooth(logits: NDArray[np.float64], c: float, k: float) -> NDArray[np.float64]:
    """GSS: k (l - c) + c - (k - 1) ln(exp(l - c) + 1) (Parthiban 2021, eq. 5)."""
    return k * (logits - c) + c - (k - 1) * np.logaddexp(logits - c, 0)


def pointwise(source: Source) -> Drawing:
    """Curves of the piecewise linear function and of its smooth version, for the settings in options.curves."""
    canvas, ((axes,),) = panels(1, 1, 7.0, 4.4)
    logits = np.linspace(*RANGE, CURVE_POINTS)
    axes.plot(logits, logits, color=LIGHT.muted, linewidth=1, label="identity (Softmax)")
    frames = []
    for colour, curve in zip(SPARE, source.experiment.options["curves"], strict=False):
        c, k = float(curve["c"]), float(curve["k"])
        sharp, round_ = piecewise_linear(logits, c, k), smooth(logits, c, k)
        axes.plot(logits, sharp, color=colour, linestyle=DASHES[1], linewidth=1.2)
        axes.plot(logits, round_, color=colour, linewidth=2, label=f"c = {c:g}, k = {k:g}".replace("-", "−"))
        columns = {"c": c, "k": k, "logit": logits, "piecewise_linear": sharp, "smooth": round_}
        frames.append(pd.DataFrame(columns))
    axes.set(xlim=RANGE, ylim=(-16, 7), xlabel="logit l", ylabel="f(l)")
    axes.legend(loc="lower right")
    data = pd.concat(frames, ignore_index=True)
    words = "; ".join(f"c {c:g}, k {k:g}" for c, k in data[["c", "k"]].drop_duplicates().to_numpy())
    return Drawing(canvas, data, f"Piecewise linear functions and smooth ones that hug them, for {words}.")


# --- the grid (Figure 2) --------------------------------------------------------------------------------------------
def grid_scatter(source: Source) -> Drawing:
    """Press rank against test perplexity over the grid of c and k, and the published dots with the paper's window."""
    datasets = source.experiment.datasets
    canvas, axes = panels(len(datasets), 2, 4.7, 3.8)
    frames = [paper_tables.grid_points(source, dataset) for dataset in datasets]
    notes = []
    for (left, right), dataset, frame in zip(axes, datasets, frames, strict=True):
        ours, theirs = (frame[frame["origin"] == origin] for origin in ("measured", "published"))
        same = bool(source.study.datasets[dataset].published_as)
        _grid_panel(left, ours, f"{corpus_title(source, dataset)}: measured", _k_colours(ours))
        _grid_panel(right, theirs, "published dots" if same else "published dots, full size", {})
        corpus = published_dataset(source.study.datasets[dataset])
        low, high = source.experiment.options["windows"].get(corpus, (math.nan, math.nan))
        right.axvspan(low, high, color=LIGHT.grid, zorder=0)
        notes.append(f"{corpus_title(source, dataset)}: {_r_words(ours)}; published dots: {_r_words(theirs)}")
    data = pd.concat(frames, ignore_index=True)
    ours = data[data["origin"] == "measured"]
    count = f"{count_note(source, drawn(ours))} {source.unlearned_note}".rstrip()
    note = f"Pearson's r of perplexity and rank. {'. '.join(notes)}. {count}"
    return Drawing(canvas, data, f"Scatter plots of Press rank against test perplexity. {note}", note)


def _r_words(points: pd.DataFrame) -> str:
    found = paper_tables.correlate(points)
    return found.reason if found.r is None else f"r = {found.r:+.2f} (n = {found.n})".replace("-", "−")


def _k_colours(points: pd.DataFrame) -> dict[float, Any]:
    values = sorted(set(points["k"]))
    return dict(zip(values, sns.color_palette("flare", len(values)), strict=True))


def _grid_panel(axes: Axes, points: pd.DataFrame, title: str, colours: Mapping[float, Any]) -> None:
    """Dots with their least-squares line, as the paper draws it."""
    if points.empty:
        empty(axes, f"{title}: nothing to show")
        return
    look: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 6.5, "mec": LIGHT.paper, "mew": 0.7}
    for k, colour in colours.items():
        own = points[points["k"] == k]
        axes.plot(own["test_ppl"], own["rank_press"], color=colour, label=f"k = {k:g}", **look)
    if not colours:
        axes.plot(points["test_ppl"], points["rank_press"], color=LIGHT.muted, **look)
    if len(points) > 2:
        slope, offset = np.polyfit(points["test_ppl"], points["rank_press"], 1)
        ends = np.array([points["test_ppl"].min(), points["test_ppl"].max()])
        axes.plot(ends, slope * ends + offset, color=LIGHT.ink, linewidth=1, linestyle=DASHES[1])
    axes.set(title=title, xlabel="test perplexity", ylabel="Press rank")
    axes.yaxis.set_major_formatter(FuncFormatter(integer))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    if colours:
        axes.legend(fontsize=8, handletextpad=0.1, labelspacing=0.2)


# --- hits (Figure 3) ------------------------------------------------------------------------------------------------
HIT_COLUMNS = ["dataset", "model", "group", "context", "target", "measured", "published"]


def hits(source: Source) -> Drawing:
    """Models by contexts: is the true next word among the first five? Measured, then published on the same contexts."""
    datasets = source.experiment.datasets
    frames = [pd.DataFrame(_hit_rows(source, dataset), columns=HIT_COLUMNS) for dataset in datasets]
    data = pd.concat(frames, ignore_index=True)
    sides = ["measured", *(["published"] if data["published"].notna().any() else [])]
    height = 0.3 * len(source.experiment.models) + 1.6
    canvas, axes = panels(len(datasets) * len(sides), 1, 9.2, height if len(data) else 0.6)
    places = [(dataset, frame, side) for dataset, frame in zip(datasets, frames, strict=True) for side in sides]
    for (panel,), (dataset, frame, side) in zip(axes, places, strict=True):
        _hit_panel(source, panel, frame, side, f"{corpus_title(source, dataset)}: {side}")
    runs = data[data["measured"].notna()][["dataset", "model"]].drop_duplicates()
    return Drawing(canvas, data, _hits_alt(source, data), count_note(source, len(runs)))


def _hit_rows(source: Source, dataset: str) -> Iterator[tuple[object, ...]]:
    ours = paper_tables.predictions_of(source, dataset)
    corpus = published_dataset(source.study.datasets[dataset])
    same_text = bool(source.study.datasets[dataset].published_as)
    for group, number, target in paper_tables.places(source, dataset, ours):
        for model in source.experiment.models:
            own = next((one for one in ours.get(model, ()) if (one.group, one.number) == (group, number)), None)
            where = {"condition": f"^group={group};context={number}$"}
            theirs = source.find_published(corpus, model, "top5_hit", where) if same_text else None
            numbers = [None if own is None or own.hit is None else float(own.hit), theirs.number if theirs else None]
            yield (dataset, model, group, number, target, *numbers)


def _hit_panel(source: Source, axes: Axes, frame: pd.DataFrame, side: str, title: str) -> None:
    if frame.empty or frame[side].isna().all():
        empty(axes, f"{title}: nothing to show")
        return
    models = [model for model in source.experiment.models if frame.loc[frame["model"] == model, side].notna().any()]
    places = frame[["group", "context", "target"]].drop_duplicates()
    drawn_styles = styles(source.experiment.models)
    for height, model in enumerate(models):
        own = frame[frame["model"] == model][side].to_numpy(dtype=float)
        place = np.arange(len(own))
        look: dict[str, Any] = {"marker": "s", "color": drawn_styles[model].colour, "linestyle": "none"}
        axes.plot(place[own == 1], [height] * int((own == 1).sum()), markersize=11, **look)
        axes.plot(place[own == 0], [height] * int((own == 0).sum()), markersize=11, fillstyle="none", mew=0.8, **look)
        axes.text(len(own) - 0.2, height, f"{np.nansum(own):.0f} of {np.isfinite(own).sum()}", va="center", fontsize=9)
    for edge in np.flatnonzero(places["group"].to_numpy()[1:] != places["group"].to_numpy()[:-1]):
        axes.axvline(edge + 0.5, color=LIGHT.muted, linewidth=1)
    axes.set_yticks(range(len(models)), [short_name(source.study, model) for model in models])
    axes.set_xticks(range(len(places)), list(places["target"]), rotation=50, ha="right")
    axes.set(xlim=(-0.7, len(places) + 0.9), ylim=(len(models) - 0.4, -0.6), title=f"{title} ({_groups(places)})")
    axes.tick_params(length=0, labelcolor=LIGHT.ink)
    axes.grid(visible=False)


def _groups(places: pd.DataFrame) -> str:
    counts = places.groupby("group", sort=False).size()
    return ", ".join(f"{paper_tables.GROUPS.get(str(group), str(group))}: {n}" for group, n in counts.items())


def _hits_alt(source: Source, data: pd.DataFrame) -> str:
    measured = data[data["measured"].notna()]
    if measured.empty:
        return "No predictions have been measured yet."
    counts = measured.groupby("model", sort=False)["measured"].agg(["sum", "count"])
    words = [
        f"{short_name(source.study, str(m))} {row['sum']:.0f} of {row['count']:.0f}" for m, row in counts.iterrows()
    ]
    return "Squares, filled where the true word is among the first five: " + "; ".join(words) + "."


# --- sweeps (Figures 5 and 6) ---------------------------------------------------------------------------------------
SWEEP_COLUMNS = ["dataset", "setting", "value", "model", "origin", "seed", "test_ppl", "rank_press"]


def sweep(source: Source) -> Drawing:
    """Test perplexity and Press rank against a setting of the head (options.sweeps), measured and published."""
    sweeps: Mapping[str, str] = source.experiment.options["sweeps"]
    frames = {
        (dataset, setting): _sweep_points(source, dataset, setting)
        for dataset in source.experiment.datasets
        for setting in sweeps
    }
    frames = {key: frame for key, frame in frames.items() if len(frame)}
    canvas, axes = panels(max(1, len(frames)), 2, 4.7, 3.0 if frames else 0.5)
    if not frames:
        empty(axes[0][0], "no run of these sweeps is in this study")
        axes[0][1].set_axis_off()
    for pair, ((dataset, setting), frame) in zip(axes, frames.items(), strict=False):
        for panel, metric, words in zip(
            pair, ("test_ppl", "rank_press"), ("test perplexity", "Press rank"), strict=True
        ):
            _sweep_panel(panel, frame, metric, own_axis=not _all_same(source, dataset, frame))
            panel.set(title=corpus_title(source, dataset), xlabel=sweeps[setting], ylabel=words)
            panel.xaxis.set_major_locator(MaxNLocator(6, integer=setting == "components"))
    data = pd.concat(frames.values(), ignore_index=True) if frames else pd.DataFrame(columns=SWEEP_COLUMNS)
    ours = data[data["origin"] == "measured"]
    words = "Dashed: published; where the setting is not the same, on an axis of its own at the right."
    note = f"{words} {count_note(source, drawn(ours))}"
    return Drawing(canvas, data, _sweep_alt(ours), note)


def _sweep_points(source: Source, dataset: str, setting: str) -> pd.DataFrame:
    rows: list[tuple[object, ...]] = []
    corpus = published_dataset(source.study.datasets[dataset])
    for model in source.experiment.models:
        if not _is_of_sweep(source, model, setting):
            continue
        metrics = ("test_ppl", "rank_press")
        ppl, rank = (source.values(dataset, model, metric) for metric in metrics)
        for run in source.runs(dataset, model):
            value = float(run.head.options[setting])
            if run.seed in ppl and run.seed in rank:
                where = (dataset, setting, value, model, "measured", run.seed)
                rows.append((*where, ppl[run.seed], rank[run.seed]))
            published = [source.find_published(corpus, model, metric) for metric in metrics]
            numbers = [one.number for one in published if one]
            if len(numbers) == len(metrics):
                rows.append((dataset, setting, value, model, "published", None, *numbers))
    frame = pd.DataFrame(rows, columns=SWEEP_COLUMNS)
    return frame.astype({"seed": "Int64", "test_ppl": float, "rank_press": float}).sort_values("value", kind="stable")


def _is_of_sweep(source: Source, model: str, setting: str) -> bool:
    """Whether the model is a member of a grid over this setting."""
    searches = source.study.searches.values()
    return any(model in search.members and f"head.{setting}" in search.axes for search in searches)


def _all_same(source: Source, dataset: str, frame: pd.DataFrame) -> bool:
    return all(source.same(dataset, model) for model in set(frame["model"]))


def _sweep_panel(axes: Axes, frame: pd.DataFrame, metric: str, *, own_axis: bool) -> None:
    ours, theirs = (frame[frame["origin"] == origin] for origin in ("measured", "published"))
    colour = styles(["mos"])["mos"].colour
    axes.plot(ours["value"], ours[metric], "o-", color=colour, markersize=6, linewidth=1.9, mec=LIGHT.paper)
    _rank_ticks(axes, metric)
    if len(theirs):
        other: Any = axes.twinx() if own_axis else axes
        other.plot(theirs["value"], theirs[metric], "x", linestyle=DASHES[1], color=LIGHT.muted, linewidth=1.2)
        if own_axis:
            other.grid(visible=False)
            other.set_ylabel("paper, full size", color=LIGHT.muted)
            other.yaxis.set_major_formatter("{x:.1f}")
            _rank_ticks(other, metric)


def _rank_ticks(axes: Axes, metric: str) -> None:
    if metric == "rank_press":
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(integer))


def _sweep_alt(ours: pd.DataFrame) -> str:
    if ours.empty:
        return "No run of these sweeps has finished yet."
    words = [
        f"{row.setting} {row.value:g}: perplexity {row.test_ppl:.2f}, rank {row.rank_press:.0f}"
        for row in ours.itertuples()
    ]
    return "Lines of perplexity and rank against a setting. " + "; ".join(words) + "."


# --- rank during training -------------------------------------------------------------------------------------------
TRAINING_COLUMNS = ["dataset", "model", "seed", "epoch", "rank_press", "rank_eff_1e-3", "valid_ppl"]


def rank_training(source: Source) -> Drawing:
    """Press rank by epoch, and against validation perplexity, from every run that kept its epochs."""
    datasets = source.experiment.datasets
    canvas, axes = panels(len(datasets), 2, 4.7, 3.4)
    frames = [_training_rows(source, dataset) for dataset in datasets]
    for (left, right), dataset, frame in zip(axes, datasets, frames, strict=True):
        if frame.empty:
            empty(left, f"{corpus_title(source, dataset)}: no ranks along training yet")
            right.set_axis_off()
            continue
        for model, style in styles(source.experiment.models).items():
            own = frame[frame["model"] == model]
            look: dict[str, Any] = {"color": style.colour, "linestyle": style.dash, "linewidth": 1.8}
            left.plot(own["epoch"], own["rank_press"], **look)
            right.plot(own["valid_ppl"], own["rank_press"], marker="o", markersize=3, **look)
        left.set(title=corpus_title(source, dataset), xlabel="epoch", ylabel="Press rank")
        right.set(title="against validation perplexity", xlabel="validation perplexity")
        right.invert_xaxis()
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        for panel in (left, right):
            panel.yaxis.set_major_formatter(FuncFormatter(integer))
    data = pd.concat(frames, ignore_index=True)
    draw_legend(canvas, source.study, in_order(source, data), lines=True)
    return Drawing(canvas, data, _training_alt(source, data), count_note(source, drawn(data)))


def _training_rows(source: Source, dataset: str) -> pd.DataFrame:
    rows: list[Sequence[object]] = []
    for model in source.experiment.models:
        for run in source.runs(dataset, model):
            ranks = source.records.epoch_ranks(run.path)
            rows += [(dataset, model, run.seed, *(row.get(key) for key in TRAINING_COLUMNS[3:])) for row in ranks]
    frame = pd.DataFrame(rows, columns=TRAINING_COLUMNS)
    return frame.astype(dict.fromkeys(TRAINING_COLUMNS[3:], float) | {"seed": "Int64"})


def _training_alt(source: Source, data: pd.DataFrame) -> str:
    if data.empty:
        return "No ranks along training have been computed yet."
    ends = data.groupby(["dataset", "model"], sort=False)["rank_press"].agg(["first", "last"])
    words = [
        f"{short_name(source.study, model)} from {first:.0f} to {last:.0f}"
        for (_, model), first, last in zip(ends.index.to_list(), ends["first"], ends["last"], strict=True)
    ]
    return "Lines of Press rank by epoch: " + "; ".join(words) + "."


VIEWS: Mapping[str, Callable[[Source], Drawing]] = {
    "pointwise": pointwise,
    "grid-scatter": grid_scatter,
    "hits": hits,
    "sweep": sweep,
    "rank-training": rank_training,
}
