"""Figures of pointwise functions of logits: GSS, piecewise linear functions, and the functions that PLIF learns.

They correspond to Figure 1 of Parthiban et al. 2021 and to Figures 1 and 4 of Ganea et al. 2019.
"""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from softmax_bottleneck.report import numbers, plots
from softmax_bottleneck.report.plots import DASHES, LIGHT, SPARE, Drawing
from softmax_bottleneck.report.source import Source
from softmax_bottleneck.study import schema

RANGE = (-6.0, 6.0)  # of logits, and of their images, in Figure 1
CURVE_POINTS = 121
CURVE_RANGE = 8.0  # of the logits around zero at which a learned function is shown


def piecewise_linear(logits: NDArray[np.float64], c: float, k: float) -> NDArray[np.float64]:
    """Return the function through (c, c) with slope k below c and slope 1 above c (Parthiban et al. 2021, eq. 3)."""
    return np.where(logits < c, k * (logits - c) + c, logits)


def smooth(logits: NDArray[np.float64], c: float, k: float) -> NDArray[np.float64]:
    """Return GSS of logits l: k (l - c) + c - (k - 1) ln(exp(l - c) + 1) (Parthiban et al. 2021, eq. 5)."""
    return k * (logits - c) + c - (k - 1) * np.logaddexp(logits - c, 0)


@schema.section
class Curve:
    """The two parameters of GSS: the function has slope k far below c and slope 1 far above c."""

    c: schema.Number
    k: schema.Number


def pointwise_figure(source: Source, *, curves: tuple[Curve, ...]) -> Drawing:
    """Draw, for each setting of c and k, the piecewise linear function and its smooth version, GSS."""
    canvas, ((axes,),) = plots.panels(1, 1, 7.0, 4.4)
    logits = np.linspace(*RANGE, CURVE_POINTS)
    axes.plot(logits, logits, color=LIGHT.muted, linewidth=1, label="identity (Softmax)")
    frames = []
    for colour, curve in zip(SPARE, curves, strict=False):
        sharp, rounded = (function(logits, curve.c, curve.k) for function in (piecewise_linear, smooth))
        axes.plot(logits, sharp, color=colour, linestyle=DASHES[1], linewidth=1.2)
        name = numbers.true_minus(f"c = {curve.c:g}, k = {curve.k:g}")
        axes.plot(logits, rounded, color=colour, linewidth=2, label=name)
        columns = {"c": curve.c, "k": curve.k, "logit": logits, "piecewise_linear": sharp, "smooth": rounded}
        frames.append(pd.DataFrame(columns))
    axes.set(xlim=RANGE, ylim=RANGE, xlabel="logit l", ylabel="f(l)")
    axes.legend(loc="lower right")
    return Drawing(canvas, pd.concat(frames, ignore_index=True))


def plif_pieces_figure(source: Source, *, slopes: tuple[schema.Number, ...], bound: schema.Number = 2.0) -> Drawing:
    """Draw the piecewise linear function of LMS-PLIF on [−bound, bound] from the slopes of its equally wide pieces."""
    slope_K, width = np.array(slopes), 2 * bound / len(slopes)
    knots = np.linspace(-bound, bound, len(slope_K) + 1)
    values = np.concatenate([[0.0], np.cumsum(slope_K) * width])
    canvas, ((axes,),) = plots.panels(1, 1, 6.0, 3.6)
    axes.plot(knots, values, "o-", color=SPARE[0], linewidth=2, markersize=5, mec=LIGHT.paper)
    axes.set(xlabel="logit l", ylabel="g(l)", title=f"{len(slope_K)} pieces of equal width")
    return Drawing(canvas, pd.DataFrame({"knot": knots, "value": values}))


def learned_function_figure(source: Source) -> Drawing:
    """Draw g(l) - g(0) of each run's piecewise linear function g before and after training, and the difference."""
    frames = [pd.DataFrame(columns=["dataset", "model", "seed", "logit", "initial", "learned"])]
    for dataset in source.corpora:
        for run in source.runs_on(dataset):
            if function := source.records.detail(run.path, "function"):
                curve = pd.DataFrame(function).rename(columns={"trained": "learned"})[["logit", "initial", "learned"]]
                zero = curve.iloc[int(curve["logit"].abs().argmin())]
                curve[["initial", "learned"]] -= zero[["initial", "learned"]]
                frames.append(curve.assign(dataset=dataset, model=run.model, seed=run.seed)[list(frames[0])])
    data = pd.concat(frames[1:] or frames, ignore_index=True)
    looks = plots.styles(list(source.models))

    def draw(row: NDArray[Any], dataset: str, own: pd.DataFrame) -> None:
        left, right = row
        own = own[own["logit"].abs() <= CURVE_RANGE]
        for model, style in looks.items():
            for _, run in own[own["model"] == model].groupby("seed"):
                left.plot(run["logit"], run["initial"], color=LIGHT.muted, linestyle=DASHES[1], linewidth=1)
                left.plot(run["logit"], run["learned"], color=style.colour, linewidth=1.6)
                right.plot(run["logit"], run["learned"] - run["initial"], color=style.colour, linewidth=1.4)
        left.set(title=plots.corpus_title(source, dataset), xlabel="logit l", ylabel="g(l) − g(0)")
        right.set(title="what training changed", xlabel="logit l", ylabel="learned − initial")

    canvas = plots.by_corpus(source, data, (2, 4.7, 3.4), draw)
    return Drawing(canvas, data, f"Dashed: before training. {plots.count_note(source, data)}")
