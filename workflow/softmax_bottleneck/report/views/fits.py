"""Tables of fits to known laws: what is lost by head and width, and what ranks say of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pandas as pd

from softmax_bottleneck.records import metrics
from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.cells import Cell, Gap, GapCode, Measured, Part, crossed, mean_of
from softmax_bottleneck.report.fits import Frames, correlations, levels
from softmax_bottleneck.report.options import FitLoss, Fits
from softmax_bottleneck.report.registry import view
from softmax_bottleneck.report.source import Source

RANKS = (metrics.PRESS_RANK, "rank_eff_1e-3", "rank_eff_1e-4")
LAW_NAMES = {"alpha": "α =", "M": "M =", "r": "Columns of the law, r ="}


@view("fit-loss")
def loss(source: Source, options: FitLoss) -> Iterator[Part]:
    """KL(P*||Q) of every model by width, a part per law; heads first at the same width, then at equal parameters."""
    frames = Frames.of(source.study, source.records, options.fits)
    widths = {width: f"d = {width:g}" for width in levels(frames.fits, "d")}
    columns = [column for column in LAW_NAMES if column in frames.fits]
    for law, own in frames.fits.groupby(columns, sort=True) if len(frames.fits) else ():
        title = ", ".join(f"{LAW_NAMES[key]} {value:g}" for key, value in zip(columns, law, strict=True))
        yield crossed("synthetic", title, frames.names, widths, partial(_loss_cell, own, options.metric))


def _loss_cell(fits: pd.DataFrame, metric: str, model: str, width: float) -> Cell:
    values = fits[(fits["model"] == model) & (fits["d"] == width)][metric].dropna()
    return Cell(measured=mean_of(values), metric=metric, planned=fits["seed"].nunique())


@view("fit-correlations", row="Fits")
def fit_correlations(source: Source, options: Fits) -> Iterator[Part]:
    """Pearson's r of a rank and KL(P*||Q): within a head over widths, and over heads at one width; law by law."""
    frames = Frames.of(source.study, source.records, options.fits)
    fits = frames.fits
    if fits.empty:
        return
    groups = {model: (f"{name}, over widths", fits[fits["model"] == model]) for model, name in frames.names.items()}
    groups |= {f"d{d:g}": (f"All heads at d = {d:g}", fits[fits["d"] == d]) for d in levels(fits, "d")}
    groups["all"] = ("All heads and widths", fits)
    rows, columns = {key: name for key, (name, _) in groups.items()}, {rank: metrics.find(rank).label for rank in RANKS}
    yield crossed("synthetic", "Within one law", rows, columns, lambda row, rank: _r_cell(groups[row][1], rank))


def _r_cell(fits: pd.DataFrame, rank: str) -> Cell:
    """Mean over laws; below it the range."""
    found = correlations(fits, ["r", "seed"], rank)
    mean = mean_of(found)
    if mean is None:
        return Cell(metric=metrics.PEARSON, gaps=(Gap(GapCode.TOO_FEW_FITS, (numbers.MIN_POINTS,)),))
    return Cell(
        Measured(mean.mean, None, mean.n), metric=metrics.PEARSON, note=numbers.interval(min(found), max(found))
    )
