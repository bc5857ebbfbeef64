"""The figure at the top of the report: test perplexity, parameters and rank of every model of a study.

Every study has this figure, which comes from no paper. It shows the models that are no member of a grid and were
trained for as many epochs as the softmax.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.ticker import EngFormatter, NullFormatter

from softmax_bottleneck.records.metrics import ENTROPY_PPL, LAW_TEST_PPL, TEST_PPL
from softmax_bottleneck.records.records import groups
from softmax_bottleneck.report import plots
from softmax_bottleneck.report.plots import LIGHT, Drawing
from softmax_bottleneck.report.source import Source, exact_value
from softmax_bottleneck.study import ROOT, Experiment, Study, load_experiment

RANK, SIZE = "rank_eff_1e-3", "parameters"
COLUMNS = ["dataset", "model", "seeds", SIZE, TEST_PPL, RANK]
REFERENCE = "softmax"
FAR = 0.5  # of the models' range: a bound further below is written at the edge of the panel
SHADES = "flare"  # light to dark, so that it survives every colour-vision deficiency and grey


def experiment(study: Study) -> Experiment:
    """Return the `Experiment` of the overview figure, with all models of a study that are not part of a grid."""
    in_grids = {model for search in study.searches.values() for model in search.members}
    models = dict.fromkeys(run.model for run in study.needed if run.model not in in_grids)
    datasets = dict.fromkeys(run.dataset for run in study.needed)
    return replace(load_experiment("overview", ROOT / "config"), models=tuple(models), datasets=tuple(datasets))


def overview_figure(source: Source) -> Drawing:
    """Draw test perplexities: a panel per corpus with results, a dot per model (the best first) shaded by its rank.

    The rank is the effective rank with epsilon = 0.001.
    """
    data = _points(source)
    if data.empty:
        return plots.only_text(plots.NOTHING, data)
    frames = [(corpus, own.sort_values(TEST_PPL)) for (corpus,), own in groups(data, "dataset")]
    amount = EngFormatter(places=1)
    columns, most = min(2, len(frames)), max(len(own) for _, own in frames)
    canvas, axes = plots.panels(-(-len(frames) // columns), columns, 6.3, 0.24 * most + 0.9)
    low, high = (1.0, 2.0) if data[RANK].isna().all() else (float(data[RANK].min()), float(data[RANK].max()))
    shades = ScalarMappable(LogNorm(low, max(high, 1.01 * low)), SHADES)
    for panel, (dataset, own) in zip(axes.flat, frames, strict=False):
        names = [
            f"{plots.short_name(source.study, m)}, {amount(n)}" for m, n in zip(own["model"], own[SIZE], strict=True)
        ]
        colours = [LIGHT.paper if np.isnan(rank) else shades.to_rgba(rank) for rank in own[RANK]]
        panel.scatter(own[TEST_PPL], range(len(own)), c=colours, s=48, edgecolors=LIGHT.ink, linewidths=0.6, zorder=3)
        panel.set_yticks(range(len(own)), names)
        panel.set(title=plots.corpus_title(source, dataset), xlabel="test perplexity", ylim=(len(own) - 0.4, -0.6))
        _bound(source, panel, dataset, own[TEST_PPL])
    for panel in axes.flat[len(frames) :]:
        panel.set_axis_off()
    bar = canvas.colorbar(shades, ax=axes, label="effective rank (ε = 0.001)", aspect=30, pad=0.02)
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
    bar.set_ticks([low, high], labels=[f"{low:.0f}", f"{high:.0f}"])
    left_out = len(set(source.models) - set(data["model"]))
    others = f" {left_out} more not drawn: another schedule, or no results." if left_out else ""
    return Drawing(canvas, data, f"Runs: {int(data['seeds'].sum())}, models: {len(data)}.{others}")


def _points(source: Source) -> pd.DataFrame:
    """Return a line per corpus and model trained for as many epochs as the softmax.

    Each line has the means over runs of the number of parameters, test perplexity and effective rank.
    """
    rows = []
    for dataset in source.datasets:
        epochs = {model: {run.schedule.epochs for run in source.runs(dataset, model)} for model in source.models}
        for model in source.models:
            numbers = (source.values(dataset, model, name, learned=True) for name in (SIZE, TEST_PPL, RANK))
            size, ppl, rank = (list(values.values()) for values in numbers)
            if ppl and size and epochs[model] == epochs.get(REFERENCE, epochs[model]):
                means = (float(np.mean(values)) if values else np.nan for values in (size, ppl, rank))
                rows.append((dataset, model, len(ppl), *means))
    return pd.DataFrame(rows, columns=COLUMNS)


def _bound(source: Source, axes: Axes, dataset: str, ppl: pd.Series) -> None:
    """Draw a dashed line at the true distribution's perplexity, or write the number at the edge if it is far below.

    The perplexity is that on the test text if known, or else the expected one; if both are unknown, nothing is drawn.
    """
    expected, exact = (exact_value(source.records, dataset, metric) for metric in (ENTROPY_PPL, LAW_TEST_PPL))
    bound = expected if exact is None else exact
    if bound is None:
        return
    text = f"true distribution{', as expected' if exact is None else ' on this text'}: {bound:.2f}"
    if ppl.min() - bound > FAR * max(ppl.max() - ppl.min(), 0.01 * ppl.min()):
        axes.text(0.99, 0.98, f"← {text}", transform=axes.transAxes, ha="right", va="top", fontsize=8.5)
    else:
        axes.axvline(bound, color=LIGHT.ink, linewidth=1, linestyle=plots.DASHED)
        axes.text(bound, 0.01, f" {text}", transform=axes.get_xaxis_transform(), va="bottom", fontsize=8.5)
