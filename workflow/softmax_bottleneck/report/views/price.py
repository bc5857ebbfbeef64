"""The price of the bottleneck on natural language: nats that heads of several widths lose on natural distributions.

The *price* of a head at width d is its mean KL(P*||Q). Its *gain* is the softmax's KL minus its own, as a share of the
context-free KL, i.e. that of the best model that sees no context. `fits` is the name of a plan of fits of kind
`natural`, an entry under `fits` of the study.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from softmax_bottleneck.records.metrics import KL, KL_NO_CONTEXT
from softmax_bottleneck.report import numbers, plots
from softmax_bottleneck.report.cells import Cell, MeasuredCell, Section, section
from softmax_bottleneck.report.claims.known_distributions import BASELINE
from softmax_bottleneck.report.source import Source
from softmax_bottleneck.report.views.fits import Frames
from softmax_bottleneck.statistics.intervals import ALPHA, Interval, student
from softmax_bottleneck.statistics.pooled import holm

MARGIN = 0.05  # share of the context-free KL by which a head must be better to pay (config/price.yaml)
CHANGE, TENTH = 0.02, 0.1  # converged: twice the updates change KL by less than 2 %, or by a tenth of the margin
UPDATE_MS, KEPT, TOP = "update_ms", "kept_mass", "kl_top_"
CSV = ("truth", "width", "model", "kl", "low", "high", "share", "gain", "gain_at_time", "p", "verdict", "edge")


@dataclass(frozen=True, kw_only=True)
class Price:
    """The price of a head at one width and truth, over seeds.

    Attributes:
        truth, width, model: the true distribution, the planned width and the name of the head's model.
        kl: mean KL in nats.
        share: the same as a share of the context-free KL.
        gain: gain on the softmax of the same planned width.
        at_time: gain on the softmax that takes as long for an update. Its KL is interpolated between its widths on log
            scales; beyond its largest width it is that of the largest width.
        p: p-value of the gain, Holm-corrected over all truths, widths and heads; nan for the softmax.
        converged: True if twice the updates hardly change KL (CHANGE, TENTH), at the searched width nearest to `width`.
        edge: True if the chosen step size is the smallest or the largest of the search.
    """

    truth: str
    width: float
    model: str
    kl: Interval
    share: float
    gain: Interval
    at_time: Interval
    p: float
    converged: bool
    edge: bool

    @property
    def verdict(self) -> str:
        """`pays`, `small gain`, `loses` or `open`, as the gain shows; `not converged` if the fits have not."""
        if not self.converged:
            return "not converged"
        if self.gain.low > 0 and self.gain.value >= MARGIN:
            return "pays"
        if not self.p < ALPHA:
            return "open"
        return "small gain" if self.gain.value > 0 else "loses"


def prices(frames: Frames, tail: float = ALPHA / 2) -> list[Price]:
    """Return the price of every truth, width and head; `tail` is the probability outside each end of an interval."""
    if not {KL, UPDATE_MS, "truth"} <= set(frames.fits):
        return []
    truths = frames.truths[["truth", "seed", KL_NO_CONTEXT]].drop_duplicates(["truth", "seed"])
    fits = frames.fits.reindex(columns=[*frames.fits, *({"rate", "updates"} - set(frames.fits))])
    fits = fits.merge(truths.rename(columns={KL_NO_CONTEXT: "free"}), on=["truth", "seed"])
    own = compared(fits)
    found = []
    for (truth, width, model), part in own.groupby(["truth", "d", "model"], sort=False):
        softmax = own[(own["truth"] == truth) & (own["model"] == BASELINE)]
        equal = softmax[softmax["d"] == width].set_index("seed")[KL]
        lines = [line for line in part.to_dict("records") if line["seed"] in equal.index]
        if not lines:
            continue
        pairs = [[equal[line["seed"]], _at_time(softmax, line)] for line in lines]
        gains = [[(kl - line[KL]) / line["free"] for kl in pair] for line, pair in zip(lines, pairs, strict=True)]
        sides = [[line[KL] for line in lines], *zip(*gains, strict=True)]
        kl, gain, at_time = (student([np.array(side)[:, None]], tail) for side in sides)
        share = float((part[KL] / part["free"]).mean())
        searched = fits[(fits["truth"] == truth) & (fits["model"] == model)]
        converged, edge = _premises(searched.to_dict("records"), float(str(width)))
        p = math.nan if model == BASELINE else _p_value(gain)
        found.append(Price(truth=str(truth), width=float(str(width)), model=str(model), kl=kl, share=share, gain=gain,
                           at_time=at_time, p=p, converged=converged, edge=edge))  # fmt: skip
    corrected = holm([price.p for price in found])
    return [replace(price, p=p) for price, p in zip(found, corrected, strict=True)]


def _p_value(gain: Interval) -> float:
    """Return the two-sided p-value of a mean gain by Student's test over seeds; nan with fewer than two seeds."""
    if gain.n[0] < 2 or not gain.spread:
        return math.nan
    return float(2 * special.stdtr(gain.n[0] - 1, -abs(gain.value) / gain.spread * math.sqrt(gain.n[0])))


def compared(fits: pd.DataFrame) -> pd.DataFrame:
    """Return the fits that are compared: those of no search, which have no `rate` and no `updates`."""
    return fits[fits.reindex(columns=["rate", "updates"]).isna().all(axis=1)]


def _at_time(softmax: pd.DataFrame, line: Mapping[Any, Any]) -> float:
    """Return the lowest KL of a softmax that takes no longer for an update than the fit of a line, on its seed."""
    same = softmax[softmax["seed"] == line["seed"]].sort_values(UPDATE_MS)
    ms, kl = (np.log(same[name].clip(lower=1e-9).to_numpy()) for name in (UPDATE_MS, KL))
    return math.exp(float(np.interp(math.log(line[UPDATE_MS]), ms, np.minimum.accumulate(kl))))


def _premises(lines: Sequence[Mapping[Any, Any]], width: float) -> tuple[bool, bool]:
    """Return (converged, edge) of a model and truth at the searched width nearest to `width`, from lines of fits."""
    longer = [line for line in lines if line["updates"] > 0]
    if not longer:
        return False, True
    after = min(longer, key=lambda line: abs(math.log(line["d"] / width)))
    tried = {line["rate"]: line for line in lines if line["d"] == after["d"] and line["rate"] > 0}
    rate = after["learning_rate"]
    if rate not in tried:
        return False, True
    before, change = tried[rate], abs(after[KL] - tried[rate][KL])
    converged = change < CHANGE * before[KL] or change < TENTH * MARGIN * before["free"]
    return converged, rate in (min(tried), max(tried))


# --- tables ---------------------------------------------------------------------------------------------------------
def price_table(source: Source, *, fits: str) -> Iterator[Section]:
    """Yield a section per truth, with a row per head and a column per width: mean KL over seeds with its interval.

    Below a number stand the share of the context-free KL and, for heads other than the softmax, the gain in points of
    that share with its interval, the gain at equal time, and the verdict.
    """
    frames = Frames.of(source, fits)
    for truth, part in groupby(prices(frames), key=lambda price: price.truth):
        found = {(price.model, price.width): price for price in part}

        def cell(model: str, width: float, found: Mapping[tuple[str, float], Price] = found) -> Cell:
            price = found.get((model, width))
            if price is None:
                return Cell(metric=KL, wanted=False)
            n = price.kl.n[0]
            return Cell(MeasuredCell(price.kl.value, n=n), metric=KL, planned=n, note="; ".join(_notes(price)))

        own = frames.truths[frames.truths["truth"] == truth]
        note = f"Context-free KL: {own[KL_NO_CONTEXT].mean():.3f} nats. "
        note += f"Kept probability: {numbers.percent(own[KEPT].mean())}."
        widths = {width: f"d = {width:g}" for width in sorted({width for _, width in found})}
        yield section("synthetic", truth, frames.names, widths, cell, note)


def _notes(price: Price) -> Iterator[str]:
    yield f"{numbers.number(price.kl.low, 4)} to {numbers.number(price.kl.high, 4)}"
    yield f"{numbers.number(100 * price.share)} % of the context-free KL"
    if price.model != BASELINE:
        for name, gain in (("gain", price.gain), ("gain at equal time", price.at_time)):
            ends = numbers.interval(100 * gain.low, 100 * gain.high)
            yield f"{name} {numbers.number(100 * gain.value, signed=True)} ({ends})"
        yield price.verdict
    if price.edge:
        yield "step size at an edge"


def price_top_table(source: Source, *, fits: str, width: int) -> Iterator[Section]:
    """Yield a section per truth, with a row per head: the parts of KL due to the top m words and to the others.

    All numbers are means over seeds at one planned width.
    """
    frames = Frames.of(source, fits)
    own = compared(frames.fits)
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
    """Draw, in a panel per truth, the nats lost against the width: a labelled line per head, with 95 % intervals."""
    frames = Frames.of(source, fits)
    found = prices(frames)
    data = pd.DataFrame([_numbers(price) for price in found], columns=list(CSV))
    if not found:
        return plots.only_text(plots.NOTHING, data)
    count = data["truth"].nunique()
    canvas, axes = plots.panels(-(-count // 2), 2, 5.6, 4.4)
    for panel in axes.flat[count:]:
        panel.set_axis_off()
    looks = plots.styles(list(frames.names))
    for panel, (truth, part) in zip(axes.flat, data.groupby("truth", sort=False), strict=False):
        ends = {}
        for model, own in part.sort_values("width").groupby("model", sort=False):
            look, low = looks[str(model)], np.maximum(own["low"], own["kl"] / 10)
            panel.plot(own["width"], own["kl"], color=look.colour, linestyle=look.dash, linewidth=1.9)
            if np.isfinite(own["high"]).all():
                panel.fill_between(own["width"], low, own["high"], color=look.colour, alpha=0.12, linewidth=0)
            ends[str(model)] = float(own["width"].iloc[-1]), float(own["kl"].iloc[-1])
        plots.log_x(panel, sorted(set(part["width"])))
        plots.log_y(panel)
        panel.set(title=str(truth), xlabel="width d", ylabel="nats lost")
        free = frames.truths[frames.truths["truth"] == truth][KL_NO_CONTEXT].mean()
        plots.level(panel, MARGIN * free, "5 % of the context-free KL", end="left")
        plots.label_lines(panel, ends, frames.names, looks)
    seeds = max(price.kl.n[0] for price in found)
    note = f"{len(found)} cells of {seeds} seeds. Shaded: 95 % intervals over seeds."
    absent = [name.rpartition(".")[2] for name in source.study.absent_truths if name.startswith(f"{fits}.")]
    note += f" Left out, because their saved model is missing: {', '.join(absent)}." if absent else ""
    return plots.Drawing(canvas, data, note)


def _numbers(price: Price) -> list[Any]:
    """Return the numbers of a price that the figure's CSV lists, in the order of CSV."""
    kl = [price.kl.value, price.kl.low, price.kl.high]
    gains = [price.gain.value, price.at_time.value, price.p, price.verdict]
    return [price.truth, price.width, price.model, *kl, price.share, *gains, price.edge]
