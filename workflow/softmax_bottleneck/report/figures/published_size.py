"""Spectra of every run that was made elsewhere and is kept as evidence, whatever study shows them."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.ticker import FuncFormatter

from softmax_bottleneck.records.metrics import RANK_TOLERANCE, SIGMA_MAX
from softmax_bottleneck.report.figures import plots
from softmax_bottleneck.report.figures.plots import Drawing
from softmax_bottleneck.report.options import NoOptions
from softmax_bottleneck.report.registry import figure
from softmax_bottleneck.report.source import Source

COLUMNS = ["dataset", "model", "seed", "index", "relative_singular_value"]
LOWEST = 1e-9  # of the axis: what lies below is rounding


@figure("published-size-spectra")
def spectra(source: Source, options: NoOptions) -> Drawing:
    """A panel per corpus: relative singular values on log axes, a curve per model."""
    data = _relative(source)
    if data.empty:
        return plots.words_alone(plots.NOTHING, data)
    corpora = list(dict.fromkeys(data["dataset"]))
    looks = plots.styles(list(dict.fromkeys(data["model"])))

    def draw(panel: Any, dataset: str, _: str) -> None:
        own = data[(data["dataset"] == dataset) & (data[COLUMNS[-1]] > LOWEST)]
        plots.curves(panel, own, "index", COLUMNS[-1], looks)
        plots.log_y(panel)
        panel.set(title=source.dataset(dataset).title, xlabel="index", ylabel="σ / σ max")
        if tolerances := _tolerances(source, dataset):
            plots.level(panel, max(tolerances), "Press tolerance")
        panel.set_xscale("log")  # some curves end at d + 2, others at the vocabulary
        panel.xaxis.set_major_formatter(FuncFormatter(plots.integer))

    canvas = plots.crossed(corpora, [""], 9.0, 4.5, draw)
    plots.legend(canvas, {model: source.label(model) for model in looks}, looks)
    alt = "Falling curves of relative singular values: " + ", ".join(
        f"{source.label(str(model))} on {dataset} falls below a thousandth of the largest at index "
        f"{own['index'][own[COLUMNS[-1]] > 1e-3].max()}"
        for (dataset, model), own in data.groupby(["dataset", "model"], sort=False)
    )
    count = data[["dataset", "model", "seed"]].drop_duplicates().shape[0]
    return Drawing(canvas, data, f"{alt}.", f"{count} run{'s' * (count > 1)}.")


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
