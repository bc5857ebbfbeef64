"""The price of the bottleneck on natural language: tables and a figure of `claims.natural`.

`fits` is the name of a plan of fits of kind `natural`, an entry under `fits` of the study.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from softmax_bottleneck.records.metrics import KL, KL_NO_CONTEXT
from softmax_bottleneck.report import figures, numbers, plots
from softmax_bottleneck.report.cells import Cell, MeasuredCell, Section, section
from softmax_bottleneck.report.claims import natural
from softmax_bottleneck.report.claims.known_distributions import BASELINE
from softmax_bottleneck.report.claims.natural import MARGIN, Price
from softmax_bottleneck.report.source import Source
from softmax_bottleneck.report.views.fits import Frames
from softmax_bottleneck.statistics.intervals import Interval

KEPT, TOP = "kept_mass", "kl_top_"


# --- tables ---------------------------------------------------------------------------------------------------------
def price_table(source: Source, *, fits: str) -> Iterator[Section]:
    """Yield a section per truth, with a row per head and a column per width: mean KL over seeds.

    Below a number stand the price with its interval and, for heads other than the softmax, the gain in points of the
    context-free KL with its interval, the gain at equal time, and the verdict. The note has the verdict on the truth.
    """
    frames = Frames.of(source, fits, "truth")
    every = natural.judged(natural.prices(frames.fits, frames.truths))
    for truth, part in groupby(every, key=lambda price: price.truth):
        found = {(price.model, price.width): price for price in part}

        def cell(model: str, width: float, found: Mapping[tuple[str, float], Price] = found) -> Cell:
            price = found.get((model, width))
            if price is None:
                return Cell(metric=KL, wanted=False)
            n = price.share.n[0]
            return Cell(MeasuredCell(price.kl, n=n), metric=KL, planned=n, note="; ".join(_notes(price)))

        own = frames.truths[frames.truths["truth"] == truth]
        note = f"Context-free KL: {own[KL_NO_CONTEXT].mean():.3f} nats. "
        note += f"Kept probability: {numbers.percent(own[KEPT].mean())}. {natural.sentence(every, truth)}"
        note += f" Mixtures: {natural.control(every) or natural.PASSED}."
        widths = {width: f"d = {width:g}" for width in sorted({width for _, width in found})}
        yield section("synthetic", truth, frames.names, widths, cell, note)


def _notes(price: Price) -> Iterator[str]:
    yield f"{_points(price.share)} % of the context-free KL"
    if price.model != BASELINE:
        yield f"gain {_points(price.gain, signed=True)}"
        if np.isfinite(price.at_time.value):
            at_most = "at most " if price.is_bound else ""
            yield f"at equal time {at_most}{_points(price.at_time, signed=True)}"
        else:
            yield "no judged softmax is as fast"
        yield price.verdict
        if price.pays_at_time:
            yield "pays at equal time"
    elif price.share.value < MARGIN:
        yield "no head can pay here"
    if price.edge:
        yield "step size at an edge"


def _points(share: Interval, *, signed: bool = False) -> str:
    """Return a share in percent with its interval, if there is one, such as `+5.30 (+4.90 to +5.70)`."""
    value, low, high = (numbers.number(100 * end, signed=signed) for end in (share.value, share.low, share.high))
    return f"{value} ({low} to {high})" if np.isfinite(share.low) else value


def price_top_table(source: Source, *, fits: str, width: int) -> Iterator[Section]:
    """Yield a section per truth, with a row per head: the parts of KL due to the top m words and to the others.

    All numbers are means over seeds at one planned width.
    """
    frames = Frames.of(source, fits, "truth")
    own = natural.compared(frames.fits)
    own = own[own["d"] == width] if "d" in own else own
    parts = sorted((name for name in map(str, own) if name.startswith(TOP)), key=lambda name: int(name[len(TOP) :]))
    columns = {name: f"top {name[len(TOP) :]}" for name in parts} | {"others": "the others", KL: "all"}
    for truth, part in own.groupby("truth", sort=False) if parts else ():
        means = part.assign(others=part[KL] - part[parts[-1]]).groupby("model")[list(columns)].mean().to_dict("index")

        def cell(model: str, column: str, means: Mapping[Any, Mapping[Any, float]] = means) -> Cell:
            found = means.get(model)
            return Cell(MeasuredCell(found[column]), metric=KL) if found else Cell(metric=KL, wanted=False)

        yield section("synthetic", f"{truth}, d = {width}", frames.names, columns, cell)


# --- the figure -----------------------------------------------------------------------------------------------------
def price_curves_figure(source: Source, *, fits: str) -> plots.Drawing:
    """Draw the price against the width in a panel per truth: a labelled line per head, with 95 % intervals."""
    frames = Frames.of(source, fits, "truth")
    found = natural.judged(natural.prices(frames.fits, frames.truths))
    if not found:
        return plots.only_text(plots.NOTHING, pd.DataFrame(columns=["truth", "model"]))
    data = pd.json_normalize([asdict(price) | {"verdict": price.verdict} for price in found], sep="_")
    data = data.drop(columns=[name for name in data if str(name).endswith(("_n", "_spread", "_units"))])
    truths, looks = dict.fromkeys(data["truth"]), figures.styles(frames.names, source.study)
    canvas, axes = plots.panels(-(-len(truths) // 2), 2, 5.6, 4.4)
    widths, lowest = sorted(set(data["width"])), data["share_value"].min() / 1.5
    top = data[["share_value", "share_high"]].replace(np.inf, MARGIN).max(axis=None)
    for panel, (truth, part) in zip(axes.flat, data.groupby("truth", sort=False), strict=False):
        ends = {}
        for model, own in part.sort_values("width").groupby("model", sort=False):
            look, share = looks[str(model)], own["share_value"]
            error = np.nan_to_num([share - own["share_low"], own["share_high"] - share], posinf=0)
            line = {"color": look.colour, "linestyle": look.dash, "linewidth": 1.9, "elinewidth": 1, "capsize": 2}
            panel.errorbar(own["width"], share, error, **line)
            fill = [plots.LIGHT.paper if text.startswith("not judged") else look.colour for text in own["verdict"]]
            panel.scatter(own["width"], share, s=26, c=fill, edgecolors=look.colour, marker=look.marker, zorder=3)
            ends[str(model)] = float(own["width"].iloc[-1]), float(share.iloc[-1])
        plots.log_x(panel, widths)
        plots.log_y(panel)
        panel.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g}\u00a0%")
        panel.set(title=str(truth), xlabel="width d", ylabel="share of the context-free KL")
        panel.set(xlim=(widths[0] / 1.15, widths[-1] * 1.15), ylim=(lowest, 1.2 * float(str(top))))
        plots.level(panel, MARGIN, "5 %: a head can pay above")
        plots.label_lines(panel, ends, frames.names, looks)
    seeds = max(price.share.n[0] for price in found)
    note = f"{len(found)} cells of {seeds} seeds."
    note += " Bars: 95 % intervals over seeds." if np.isfinite(data["share_low"]).any() else ""
    note += " Hollow: not judged." if data["verdict"].str.startswith("not judged").any() else ""
    missing = [place.rpartition(".") for place in source.study.absent_truths if place.startswith(f"{fits}.")]
    absent = [truth for *_, truth in missing if truth not in truths]
    note += f" Left out, because their saved model is missing: {', '.join(absent)}." if absent else ""
    return plots.Drawing(canvas, data, note)
