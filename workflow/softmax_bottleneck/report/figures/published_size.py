"""Spectra of every run that was made elsewhere and is kept as evidence, whatever study shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
from matplotlib.ticker import FuncFormatter

from softmax_bottleneck.records.metrics import PRESS_RANK, RANK_TOLERANCE, SIGMA_MAX, VALID_PPL
from softmax_bottleneck.report.figures import plots
from softmax_bottleneck.report.figures.plots import Drawing
from softmax_bottleneck.report.options import NoOptions
from softmax_bottleneck.report.registry import figure
from softmax_bottleneck.report.source import Source

SIGMA = "relative_singular_value"
COLUMNS = ["dataset", "model", "seed", "index", SIGMA]
RANK_COLUMNS = ["dataset", "model", "seed", "epoch", PRESS_RANK, VALID_PPL]
LOWEST = 1e-9  # of the axis: what lies below is rounding


@figure("published-size-spectra")
def spectra(source: Source, options: NoOptions) -> Drawing:
    """A panel per corpus: relative singular values on log axes, a curve per model."""

    def draw(panel: Any, own: pd.DataFrame, looks: Mapping[str, plots.Style], dataset: str) -> None:
        plots.curves(panel, own[own[SIGMA] > LOWEST], "index", SIGMA, looks)
        plots.log_y(panel)
        panel.set(xlabel="index", ylabel="σ / σ max", xscale="log")  # some end at d + 2, others at the vocabulary
        if tolerances := _tolerances(source, dataset):
            plots.level(panel, max(tolerances), "Press tolerance")

    def falls(own: pd.DataFrame) -> str:
        return f"falls below a thousandth of the largest at index {own['index'][own[SIGMA] > 1e-3].max()}"

    return _by_corpus(source, _relative(source), draw, "Falling curves of relative singular values", falls)


@figure("published-size-ranks")
def ranks_along_training(source: Source, options: NoOptions) -> Drawing:
    """A panel per corpus: Press rank by epoch on a log axis, a line per model."""

    def draw(panel: Any, own: pd.DataFrame, looks: Mapping[str, plots.Style], dataset: str) -> None:
        plots.curves(panel, own, "epoch", PRESS_RANK, looks)
        panel.set(xlabel="epoch", ylabel="Press rank", yscale="log")
        panel.yaxis.set_major_formatter(FuncFormatter(plots.integer))

    def ends(own: pd.DataFrame) -> str:
        return f"goes from {own[PRESS_RANK].iloc[0]:.0f} to {own[PRESS_RANK].iloc[-1]:.0f}"

    return _by_corpus(source, _along_training(source), draw, "Lines of Press rank by epoch", ends)


def _by_corpus(
    source: Source, data: pd.DataFrame, draw: Callable[..., None], what: str, say: Callable[[pd.DataFrame], str]
) -> Drawing:
    """A panel per corpus, with the legend; what every curve does, for those who do not see it."""
    if data.empty:
        return plots.words_alone(plots.NOTHING, data)
    known = plots.styles(list(source.kept_labels))  # of all, so that both figures give a model one colour
    looks = {model: known[model] for model in dict.fromkeys(data["model"])}

    def panel(axes: Any, dataset: str, _: str) -> None:
        draw(axes, data[data["dataset"] == dataset], looks, dataset)
        axes.set(title=source.dataset(dataset).title)
        axes.xaxis.set_major_formatter(FuncFormatter(plots.integer))

    canvas = plots.crossed(list(dict.fromkeys(data["dataset"])), [""], 9.0, 4.5, panel)
    plots.legend(canvas, {model: source.kept_labels[model] for model in looks}, looks)
    runs = [
        f"{source.kept_labels[str(model)]} on {dataset} {say(own)}"
        for (dataset, model), own in data.groupby(["dataset", "model"], sort=False)
    ]
    count = data[["dataset", "model", "seed"]].drop_duplicates().shape[0]
    return Drawing(canvas, data, f"{what}: {', '.join(runs)}.", f"{count} run{'s' * (count > 1)}.")


def _tolerances(source: Source, dataset: str) -> list[float]:
    """Of the runs on a corpus, what share of the largest singular value the Press rank leaves out."""
    known = [one.values for one in source.records.evidence if one.run.dataset == dataset]
    keys = (RANK_TOLERANCE, ""), (SIGMA_MAX, "")
    return [values[keys[0]] / values[keys[1]] for values in known if values.keys() >= {*keys}]


def _relative(source: Source) -> pd.DataFrame:
    """A line per kept singular value of every run."""
    rows = [
        (one.run.dataset, one.run.model, one.run.seed, index, sigma / one.spectrum[0][1])
        for one in source.records.evidence
        for index, sigma in one.spectrum
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _along_training(source: Source) -> pd.DataFrame:
    """A line per epoch whose ranks were measured."""
    rows = [
        (one.run.dataset, one.run.model, one.run.seed, *(epoch.get(key) for key in RANK_COLUMNS[3:]))
        for one in source.records.evidence
        for epoch in one.epoch_ranks
    ]
    return pd.DataFrame(rows, columns=RANK_COLUMNS).astype({PRESS_RANK: float, VALID_PPL: float})
