"""Figures of fits to known laws: heat maps and curves of heads on free context vectors, and the function PLIF learns.

Ganea, Gelly, Bécigneul and Severyn 2019 (Figures 1 to 4 and 6 to 8), and the known-truth study.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from softmax_bottleneck.records.records import groups
from softmax_bottleneck.report import fit_tables
from softmax_bottleneck.report.cells import Source
from softmax_bottleneck.report.fit_tables import BASELINE, frame_of, is_open, laws_of, levels, models_of, recovery
from softmax_bottleneck.report.plots import (
    DASHES,
    LIGHT,
    SPARE,
    Drawing,
    corpus_title,
    count_note,
    drawn,
    empty,
    integer,
    panels,
    power,
    short_name,
    styles,
)

METRICS = {
    "mode_match": "modes matched",
    "kl_nats": "KL(P*‖Q), nats",
    "excess_ppl": "excess perplexity",
    "rank_press": "Press rank",
    "rank_eff_1e-3": "effective rank, ε = 10⁻³",
    "rank_eff_1e-4": "effective rank, ε = 10⁻⁴",
}
LAW_RANKS = {"rank_press": "rank_truth"}  # measured rank -> what it is of the law; others have the same name
NOT_YET = "nothing is fitted yet"
LEAST_SHARE = -1.0  # won back that a panel shows: as much again as the softmax loses
CURVE_RANGE = 8.0  # of the logits around zero at which a learned function is shown


# --- maps over M and D (Figures 2, 3 and 6 to 8) --------------------------------------------------------------------
def maps(source: Source) -> Drawing:
    """Heat maps over M and D, a row per concentration and metric, and below them curves over D, a panel per M.

    Options: `metrics`, and `alphas` that are shown (`others`: all but those).
    """
    frame = _chosen(frame_of(source), source.experiment.options)
    metrics = [metric for metric in source.experiment.options["metrics"] if metric in frame]
    if frame.empty or not metrics:
        return _nothing()
    models = [model for model in models_of(source) if model in set(frame["model"])]
    pairs = [(alpha, metric) for alpha in levels(frame, "alpha") for metric in metrics]
    columns = max(len(models), len(levels(frame, "M")))
    canvas, axes = panels(2 * len(pairs), columns, 3.1, 2.5)
    for number, (alpha, metric) in enumerate(pairs):
        own = frame[frame["alpha"] == alpha]
        _heat_row(source, axes[2 * number], own, models, metric)
        _curve_row(source, axes[2 * number + 1], own, models, metric)
    _legend(canvas, source, models)
    data = _data(frame, ["alpha", "M", "d"], metrics)
    return Drawing(canvas, data, _maps_alt(source, frame, metrics), _count(frame))


def _chosen(frame: pd.DataFrame, options: Mapping[str, Any]) -> pd.DataFrame:
    if frame.empty:
        return frame
    named = frame["alpha"].isin(options.get("alphas", levels(frame, "alpha")))
    return frame[~named if options.get("others") else named]


def _heat_row(source: Source, row: NDArray[Any], frame: pd.DataFrame, models: Sequence[str], metric: str) -> None:
    """One heat map per model; all of a row share their colours."""
    top = float(frame.groupby(["model", "M", "d"])[metric].mean().max())
    for panel, model in zip(row, models, strict=False):
        own = frame[frame["model"] == model]
        table = own.pivot_table(index="M", columns="d", values=metric, aggfunc="mean").sort_index(ascending=False)
        look: dict[str, Any] = {"annot": True, "fmt": ".2f", "cbar": False, "linewidths": 1, "linecolor": LIGHT.paper}
        look |= {"cmap": sns.color_palette("blend:#eef3f9,#69a5ea", as_cmap=True), "vmin": 0, "vmax": top}
        ticks = {"xticklabels": [f"{d:g}" for d in table], "yticklabels": [f"{m:g}" for m in table.index]}
        sns.heatmap(table, ax=panel, annot_kws={"color": "#10151b", "fontsize": 8}, **look, **ticks)
        panel.set(title=f"{models_of(source)[model]}: {METRICS[metric]}", xlabel="width D", ylabel="words M")
        panel.grid(visible=False)
        panel.tick_params(length=0)
        panel.tick_params(axis="y", rotation=0)
    for panel in row[len(models) :]:
        panel.set_axis_off()


def _curve_row(source: Source, row: NDArray[Any], frame: pd.DataFrame, models: Sequence[str], metric: str) -> None:
    """Curves over D, one panel per M; the dashed line is what a model without context has."""
    laws, alpha = laws_of(source), frame["alpha"].iloc[0]
    words = levels(frame, "M")
    for panel, size in zip(row, words, strict=False):
        _curves(source, panel, frame[frame["M"] == size], models, "d", metric)
        own = laws[(laws["alpha"] == alpha) & (laws["M"] == size)]
        if metric == "kl_nats" and len(own):
            _level(panel, float(own["kl_uniform_nats"].mean()), "no context")
        panel.set(title=f"α = {alpha:g}, M = {size:g}", xlabel="width D", ylabel=METRICS[metric])
        panel.set_ylim(bottom=0)
    for panel in row[len(words) :]:
        panel.set_axis_off()


def over_alpha(source: Source) -> Drawing:
    """Metrics against the concentration: columns are sizes M, rows metrics and widths."""
    frame = frame_of(source)
    metrics = [metric for metric in source.experiment.options["metrics"] if metric in frame]
    if frame.empty or not metrics:
        return _nothing()
    models = [model for model in models_of(source) if model in set(frame["model"])]
    pairs = [(metric, width) for metric in metrics for width in levels(frame, "d")]
    canvas, axes = panels(len(pairs), len(levels(frame, "M")), 3.1, 2.3)
    for row, (metric, width) in zip(axes, pairs, strict=True):
        for panel, size in zip(row, levels(frame, "M"), strict=True):
            own = frame[(frame["M"] == size) & (frame["d"] == width)]
            _curves(source, panel, own, models, "alpha", metric)
            panel.set(title=f"M = {size:g}, D = {width:g}", xlabel="concentration α", ylabel=METRICS[metric])
            panel.set_ylim(bottom=0)
    _legend(canvas, source, models)
    data = _data(frame, ["alpha", "M", "d"], metrics)
    return Drawing(canvas, data, _maps_alt(source, frame, metrics), _count(frame))


def _maps_alt(source: Source, frame: pd.DataFrame, metrics: Sequence[str]) -> str:
    words = []
    for model, name in models_of(source).items():
        own = frame[frame["model"] == model]
        parts = [f"{METRICS[metric]} {own[metric].min():.3g} to {own[metric].max():.3g}" for metric in metrics]
        words.append(f"{name}: {', '.join(parts)}")
    return f"Heat maps and curves over words and widths. {'; '.join(words)}."


# --- curves over r and d --------------------------------------------------------------------------------------------
def lines(source: Source) -> Drawing:
    """Metrics against the width d (option `x: d`) or the law's columns r (`x: r`), one panel per value of the other."""
    frame, x = frame_of(source), str(source.experiment.options["x"])
    metrics = [metric for metric in source.experiment.options["metrics"] if metric in frame]
    if frame.empty or not metrics:
        return _nothing()
    other = "r" if x == "d" else "d"
    models = [model for model in models_of(source) if model in set(frame["model"])]
    canvas, axes = panels(len(metrics), len(levels(frame, other)), 3.0, 2.9)
    for row, metric in zip(axes, metrics, strict=True):
        for panel, value in zip(row, levels(frame, other), strict=True):
            own = frame[frame[other] == value]
            _curves(source, panel, own, models, x, metric)
            if own[x].min() <= value <= own[x].max():
                panel.axvline(value, color=LIGHT.muted, linewidth=1, linestyle=DASHES[2])
            panel.set(title=f"{other} = {value:g}", xlabel=AXES[x], ylabel=METRICS[metric])
            _log_y(panel, own[metric])
    _legend(canvas, source, models)
    data = _data(frame, ["r", "d"], metrics)
    return Drawing(canvas, data, _lines_alt(source, frame), f"Dotted: d = r. {_count(frame)}")


AXES = {"d": "width of the model d", "r": "columns of the law r", "alpha": "concentration α"}


def _lines_alt(source: Source, frame: pd.DataFrame) -> str:
    words = []
    for model, name in models_of(source).items():
        own = frame[frame["model"] == model]
        part = [own[is_open(own)]["kl_nats"].mean(), own[~is_open(own)]["kl_nats"].mean()]
        texts = [f"{value:.4f} {where}" for value, where in zip(part, ("where r > d", "elsewhere"), strict=True)]
        words.append(f"{name} {', '.join(text for text in texts if not text.startswith('nan'))}")
    return f"Curves of the distance to the law; mean KL in nats: {'; '.join(words)}."


def true_rank(source: Source) -> Drawing:
    """Measured ranks against the rank of the law, one panel per width; dashed: the law's own."""
    frame, laws = frame_of(source), laws_of(source)
    metrics = [metric for metric in source.experiment.options["metrics"] if metric in frame]
    if frame.empty or not metrics:
        return _nothing()
    models = [model for model in models_of(source) if model in set(frame["model"])]
    canvas, axes = panels(len(metrics), len(levels(frame, "d")), 3.0, 2.9)
    for row, metric in zip(axes, metrics, strict=True):
        exact = laws.groupby("r")[LAW_RANKS.get(metric, metric)].mean()
        for panel, width in zip(row, levels(frame, "d"), strict=True):
            own = frame[frame["d"] == width].assign(true_rank=lambda part: part["r"] + 2)
            _curves(source, panel, own, models, "true_rank", metric)
            panel.plot(exact.index + 2, exact, color=LIGHT.ink, linewidth=1.2, linestyle=(0, (4, 3)))
            panel.set(title=f"d = {width:g}", xlabel="rank of the law", ylabel=METRICS[metric])
            panel.set_yscale("log", base=2)
            panel.yaxis.set_major_formatter(FuncFormatter(integer))
    _legend(canvas, source, models)
    data = _data(frame, ["r", "d"], metrics)
    means = frame.groupby("model")[metrics[0]].agg(["min", "max"])
    names = models_of(source)
    words = [f"{names[str(model)]} {low:.0f} to {high:.0f}" for model, (low, high) in means.iterrows()]
    note = f"Dashed: the law itself. {_count(frame)}"
    return Drawing(canvas, data, f"Measured against true rank. {METRICS[metrics[0]]}: {'; '.join(words)}.", note)


def won_back(source: Source) -> Drawing:
    """Share of the softmax's distance that other heads win back, where the law has more columns than the model."""
    frame = frame_of(source)
    if frame.empty or not (frame["model"] == BASELINE).any():
        return _nothing()
    others = recovery(frame)
    others = others[is_open(others)]
    models = [model for model in models_of(source) if model in set(others["model"])]
    widths = levels(others, "d")
    if not widths:
        return _nothing()
    canvas, axes = panels(1, len(widths), 3.2, 3.3)
    for panel, width in zip(axes[0], widths, strict=True):
        _curves(source, panel, others[others["d"] == width], models, "r", "won_back")
        _level(panel, 0.0, "Softmax")
        panel.set(title=f"d = {width:g}", xlabel=AXES["r"], ylabel="share won back")
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        lowest, highest = others["won_back"].agg(["min", "max"])
        if lowest < LEAST_SHARE:
            panel.set_ylim(LEAST_SHARE, max(0.0, highest) + 0.05)
    _legend(canvas, source, models)
    means = others.groupby("model")["won_back"].mean()
    words = [f"{models_of(source)[model]} {means[model]:+.1%}".replace("-", "−") for model in models]
    data = _data(others, ["r", "d"], ["won_back", "width", "parameters"])
    below = [models_of(source)[model] for model in models if means[model] < LEAST_SHARE]
    note = f"Below the panels: {', '.join(below)}. {_count(others)}" if below else _count(others)
    return Drawing(canvas, data, f"Mean share of the softmax’s distance won back: {'; '.join(words)}.", note)


def scatter(source: Source) -> Drawing:
    """KL(P*||Q) against measured ranks, a dot per fit; dots of one head share their colour, a panel per width."""
    frame = frame_of(source)
    metrics = [metric for metric in source.experiment.options["metrics"] if metric in frame]
    if frame.empty or not metrics:
        return _nothing()
    models = [model for model in models_of(source) if model in set(frame["model"])]
    canvas, axes = panels(len(metrics), len(levels(frame, "d")), 3.0, 2.9)
    for row, metric in zip(axes, metrics, strict=True):
        for panel, width in zip(row, levels(frame, "d"), strict=True):
            own = frame[(frame["d"] == width)]
            for model, style in styles(models).items():
                dots = own[own["model"] == model]
                look: dict[str, Any] = {"color": style.colour, "marker": style.marker, "linestyle": "none"}
                panel.plot(dots[metric], dots["kl_nats"], markersize=4.5, alpha=0.8, **look)
            found = fit_tables.group_correlations(own, ["r", "seed"], metric)
            mean = f", r = {np.mean(found):+.2f}".replace("-", "−") if found else ""
            panel.set(title=f"d = {width:g}{mean}", xlabel=METRICS[metric], ylabel=METRICS["kl_nats"])
            _log_y(panel, own["kl_nats"])
    _legend(canvas, source, models)
    data = _data(frame, ["r", "d"], [*metrics, "kl_nats"])
    note = f"In the titles: Pearson’s r over heads within one law, mean over laws. {_count(frame)}"
    return Drawing(canvas, data, f"Scatter plots of the distance to the law against measured ranks. {note}", note)


# --- the same for models that read a text ---------------------------------------------------------------------------
TEXT_COLUMNS = ["dataset", "model", "head", "seed", "d", "rank_truth", "kl_truth_nats", "rank_press"]


def of_texts(source: Source) -> Drawing:
    """KL(P*||Q) of language models against the rank of the law their text is from, a panel per width; a line per head.

    Dashed: free context vectors of the same head and width, where the study has them (option `fits`).
    """
    rows = [row for dataset in source.experiment.datasets for row in _text_rows(source, dataset)]
    frame = pd.DataFrame(rows, columns=TEXT_COLUMNS)
    free = frame_of(source)
    if frame.empty:
        return _nothing()
    heads = list(dict.fromkeys(frame["head"]))
    widths = levels(frame, "d")
    canvas, axes = panels(1, len(widths), 4.2, 3.4)
    for panel, width in zip(axes[0], widths, strict=True):
        for head, style in styles(heads).items():
            own = frame[(frame["head"] == head) & (frame["d"] == width)]
            means = own.groupby("rank_truth")["kl_truth_nats"].mean()
            panel.plot(means.index, means, color=style.colour, linewidth=1.8, label=head)
            look: dict[str, Any] = {"color": style.colour, "linestyle": "none", "markersize": 4.5}
            panel.plot(own["rank_truth"], own["kl_truth_nats"], style.marker, **look)
            _free_curve(panel, free, head, width, style.colour)
        panel.set_xscale("log", base=2)
        panel.set_xticks(levels(frame, "rank_truth"), [f"{rank:g}" for rank in levels(frame, "rank_truth")])
        panel.minorticks_off()
        panel.set(title=f"d = {width:g}", xlabel="rank of the law", ylabel=METRICS["kl_nats"], ylim=(0, None))
    axes[0][-1].legend(fontsize=8)
    words = [
        f"{head} at d = {width} {own['kl_truth_nats'].mean():.3f}" for (head, width), own in groups(frame, "head", "d")
    ]
    note = f"Dashed: free context vectors. {count_note(source, drawn(frame))}"
    return Drawing(canvas, frame, f"Mean distance of language models to the law: {'; '.join(words)}.", note)


def _text_rows(source: Source, dataset: str) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for model in source.experiment.models:
        metrics = [source.values(dataset, model, metric) for metric in TEXT_COLUMNS[5:]]
        for run in source.runs(dataset, model):
            if all(run.seed in values for values in metrics):
                numbers = [values[run.seed] for values in metrics]
                rows.append((dataset, model, run.head.name, run.seed, run.body.embedding_size, *numbers))
    return rows


def _free_curve(axes: Axes, free: pd.DataFrame, head: str, width: float, colour: str) -> None:
    if free.empty:
        return
    own = free[(free["head"] == head) & (free["d"] == width) & (free["equal"] == "")]
    means = own.groupby("r")["kl_nats"].mean()
    axes.plot(means.index + 2, means, color=colour, linestyle=DASHES[1], linewidth=1.2)


# --- parts of figures -----------------------------------------------------------------------------------------------
def _curves(source: Source, axes: Axes, frame: pd.DataFrame, models: Sequence[str], x: str, metric: str) -> None:
    """Means over seeds as lines, seeds as dots."""
    for model, style in styles(models).items():
        own = frame[frame["model"] == model]
        means = own.groupby(x)[metric].mean()
        dash = DASHES[1] if (own["equal"] != "").any() else "-"
        axes.plot(means.index, means, color=style.colour, linestyle=dash, linewidth=1.7)
        axes.plot(own[x], own[metric], style.marker, color=style.colour, markersize=3.5, alpha=0.6, linestyle="none")
    values = levels(frame, x)
    axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()


def _log_y(axes: Axes, values: pd.Series[float]) -> None:
    """A log axis where values spread over more than a factor of twenty."""
    positive = values[values > 0]
    if len(positive) and positive.max() > 20 * positive.min():
        axes.set_yscale("log")
        axes.set_ylim(bottom=max(float(positive.min()) / 1.5, float(positive.max()) * 1e-5))
        axes.yaxis.set_major_formatter(FuncFormatter(power))
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))


def _level(axes: Axes, value: float, words: str) -> None:
    axes.axhline(value, color=LIGHT.muted, linewidth=1, linestyle=(0, (4, 3)))
    axes.text(0.98, value, words, transform=axes.get_yaxis_transform(), ha="right", va="bottom", fontsize=8)


def _legend(canvas: Any, source: Source, models: Sequence[str]) -> None:
    handles = [
        Line2D([], [], color=style.colour, marker=style.marker, linewidth=2, label=models_of(source)[model])
        for model, style in styles(models).items()
    ]
    columns = max(1, int(canvas.get_figwidth() / 1.9))
    canvas.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), columns))


def _data(frame: pd.DataFrame, keys: Sequence[str], metrics: Sequence[str]) -> pd.DataFrame:
    shown = [*keys, "model", "equal", "seed", *metrics]
    return frame[[column for column in shown if column in frame]].sort_values([*keys, "model", "seed"])


def _count(frame: pd.DataFrame) -> str:
    seeds = frame["seed"].nunique()
    return f"{len(frame)} fits of {seeds} seed{'s' if seeds > 1 else ''} are in this figure."


def _nothing() -> Drawing:
    canvas, ((axes,),) = panels(1, 1, 8.6, 0.3)
    empty(axes, NOT_YET)
    return Drawing(canvas, pd.DataFrame(columns=["model", "seed"]), NOT_YET)


# --- the function (Figures 1 and 4) ---------------------------------------------------------------------------------
def illustration(source: Source) -> Drawing:
    """A continuous increasing piecewise linear function with few pieces, drawn from the formula of LMS-PLIF."""
    slope_K = np.array(source.experiment.options["slopes"], dtype=float)
    bound = float(source.experiment.options.get("bound", 2.0))
    knots = np.linspace(-bound, bound, len(slope_K) + 1)
    values = np.concatenate([[0.0], np.cumsum(slope_K) * 2 * bound / len(slope_K)])
    canvas, ((axes,),) = panels(1, 1, 6.0, 3.6)
    axes.plot(knots, values, "o-", color=SPARE[0], linewidth=2, markersize=5, mec=LIGHT.paper)
    axes.set(xlabel="logit l", ylabel="g(l)", title=f"{len(slope_K)} pieces of equal width")
    data = pd.DataFrame({"knot": knots, "value": values})
    return Drawing(canvas, data, f"A rising line with kinks at {len(slope_K) + 1} knots; slopes {slope_K.tolist()}.")


def learned(source: Source) -> Drawing:
    """The piecewise linear function before and after training, less its value at 0, and their difference, by run."""
    datasets = source.experiment.datasets
    canvas, axes = panels(max(1, len(datasets)), 2, 4.7, 3.4)
    frames = [_function_rows(source, dataset) for dataset in datasets]
    for (left, right), dataset, frame in zip(axes, datasets, frames, strict=False):
        if frame.empty:
            empty(left, f"{corpus_title(source, dataset)}: no learned function yet")
            right.set_axis_off()
            continue
        _function_panels(source, left, right, frame)
        left.set(title=f"{corpus_title(source, dataset)}", xlabel="logit l", ylabel="g(l) − g(0)")
        right.set(title="what training changed", xlabel="logit l", ylabel="learned − initial")
    data = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=FUNCTION_COLUMNS)
    note = f"Dashed: as the seed drew it. {count_note(source, drawn(data))}"
    return Drawing(canvas, data, _function_alt(source, data), note)


FUNCTION_COLUMNS = ["dataset", "model", "seed", "logit", "initial", "learned"]


def _function_rows(source: Source, dataset: str) -> pd.DataFrame:
    rows: list[tuple[object, ...]] = []
    for model in source.experiment.models:
        for run in source.runs(dataset, model):
            if curves := source.records.function(run.path):
                columns = [np.array(curves[key]) for key in ("logit", "initial", "trained")]
                zero = int(np.argmin(np.abs(columns[0])))
                shifted = (columns[0], columns[1] - columns[1][zero], columns[2] - columns[2][zero])
                rows += [(dataset, model, run.seed, *map(float, point)) for point in zip(*shifted, strict=True)]
    return pd.DataFrame(rows, columns=FUNCTION_COLUMNS)


def _function_panels(source: Source, left: Axes, right: Axes, frame: pd.DataFrame) -> None:
    near = frame[frame["logit"].abs() <= CURVE_RANGE]
    for model, style in styles(source.experiment.models).items():
        for _, own in near[near["model"] == model].groupby("seed"):
            left.plot(own["logit"], own["initial"], color=LIGHT.muted, linestyle=DASHES[1], linewidth=1)
            left.plot(own["logit"], own["learned"], color=style.colour, linewidth=1.6)
            right.plot(own["logit"], own["learned"] - own["initial"], color=style.colour, linewidth=1.4)


def _function_alt(source: Source, data: pd.DataFrame) -> str:
    if data.empty:
        return "No learned function has been measured yet."
    near = data[data["logit"].abs() <= CURVE_RANGE]
    change = (near["learned"] - near["initial"]).abs()
    words = [f"{short_name(source.study, str(model))} {own.max():.3g}" for model, own in change.groupby(near["model"])]
    reach = f"{CURVE_RANGE:g}"
    return f"Rising curves before and after training. Largest change for logits within ±{reach}: {'; '.join(words)}."


VIEWS: Mapping[str, Callable[[Source], Drawing]] = {
    "fit-maps": maps,
    "fit-alpha": over_alpha,
    "fit-lines": lines,
    "fit-rank": true_rank,
    "fit-won-back": won_back,
    "fit-scatter": scatter,
    "plif-pieces": illustration,
    "learned-function": learned,
    "truth-of-texts": of_texts,
}
