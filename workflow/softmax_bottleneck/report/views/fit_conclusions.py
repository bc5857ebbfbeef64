"""What follows from the fits to known laws: statements, each with the rule that judges it and what it does not say.

Rules are judged by intervals over seeds, never over cells of one law, since every seed draws laws of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from softmax_bottleneck.records.metrics import (
    GAP_CLOSED,
    KL,
    KL_NO_CONTEXT,
    PRESS_RANK,
    SQUARED_ERROR,
    SQUARED_ERROR_BOUND,
)
from softmax_bottleneck.records.records import groups
from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.cells import Cell, Part, crossed
from softmax_bottleneck.report.fits import BASELINE, Frames, beside, correlations, is_bottlenecked
from softmax_bottleneck.report.options import Fits
from softmax_bottleneck.report.registry import view
from softmax_bottleneck.report.source import Source

FOLLOWS, FAILS, NOT_ENOUGH = "follows", "does not follow", "not enough data"
ALPHA = 0.05  # intervals over seeds have level 1 - ALPHA
CLOSED = 0.01  # of what there is to learn: a smaller distance counts as none
TINY = 1e-6  # below it a squared error is rounding
STRONG = 0.7  # a correlation from here on is called strong, as in the ledger of claims
MATTERS = 0.05  # of the softmax's distance: what a head must close to count
HARDLY = 0.05  # more parameters than the softmax, such as those of a learned function, count as none


@dataclass(frozen=True)
class Finding:
    """What a rule says: its verdict and the numbers that decide it."""

    verdict: str
    numbers: str

    @classmethod
    def of(cls, follows: bool, text: str) -> Finding:
        """That a statement follows, or not."""
        return cls(FOLLOWS if follows else FAILS, text)


Rule = Callable[[pd.DataFrame, pd.DataFrame], Finding]


@dataclass(frozen=True)
class Conclusion:
    """A statement, the rule that judges it (of fits and laws), and what it does not say."""

    id: str
    statement: str
    criterion: str
    limits: str
    judge: Rule


CONCLUSIONS: list[Conclusion] = []


def conclusion(statement: str, criterion: str, limits: str) -> Callable[[Rule], Rule]:
    """Enter a rule and what it judges into CONCLUSIONS; its id is the rule's name."""

    def register(rule: Rule) -> Rule:
        CONCLUSIONS.append(Conclusion(rule.__name__.replace("_", "-"), statement, criterion, limits, rule))
        return rule

    return register


HEADS = ("Verdict", "Numbers", "Rule", "What it does not say")


@view("fit-conclusions", row="Statement")
def conclusions(source: Source, options: Fits) -> Iterator[Part]:
    """Every conclusion with its verdict, computed from the fits of the plan."""
    frames = Frames.of(source.study, source.records, options.fits)
    fits = frames.fits.assign(name=frames.fits["model"].map(frames.names))
    found = {one.id: one.judge(fits, frames.laws) if len(fits) else NOTHING for one in CONCLUSIONS}
    words = {one.id: (found[one.id].verdict, found[one.id].numbers, one.criterion, one.limits) for one in CONCLUSIONS}
    rows = {one.id: one.statement for one in CONCLUSIONS}
    columns = dict(enumerate(HEADS))
    yield crossed("synthetic", "What follows from the fits", rows, columns, lambda row, n: Cell(words=words[row][n]))


NOTHING = Finding(NOT_ENOUGH, "nothing is fitted yet")


# --- rules ----------------------------------------------------------------------------------------------------------
_CLOSED = f"1 − KL / KL(Softmax), mean over cells with r > d, 95 % t interval over seeds; {MATTERS:.0%} would matter"
Share = tuple[float, float, float, int]  # mean, low, high, seeds


def over_seeds(frame: pd.DataFrame, column: str) -> Share | None:
    """Mean over seeds of each seed's mean, its 95 % t interval, and the number of seeds; None with fewer than two."""
    means = frame.groupby("seed")[column].mean().dropna()
    if len(means) < 2:
        return None
    half = float(stats.t.ppf(1 - ALPHA / 2, len(means) - 1) * means.std(ddof=1) / math.sqrt(len(means)))
    return float(means.mean()), float(means.mean()) - half, float(means.mean()) + half, len(means)


def _softmax(fits: pd.DataFrame, laws: pd.DataFrame) -> pd.DataFrame:
    """Softmax fits with their distance as a share of what there is to be learned without context."""
    own = fits[fits["model"] == BASELINE].copy()
    own["share"] = own[KL] / beside(own, laws, ["r", "seed"], KL_NO_CONTEXT)
    return own


@conclusion(
    "A softmax that is as wide as its law has columns loses nothing.",
    f"d ≥ r: KL at most {CLOSED:.0%} of the KL without context, in every run",
    "That it would find the law from a text: here contexts are known and samples never end.",
)
def closes(fits: pd.DataFrame, laws: pd.DataFrame) -> Finding:
    """Softmax with d >= r: nothing worth naming is lost, in every run."""
    own = _softmax(fits, laws)
    share = own[~is_bottlenecked(own)]["share"]
    if share.empty:
        return Finding(NOT_ENOUGH, "no softmax is as wide as its law")
    return Finding.of(
        share.max() <= CLOSED, f"at most {share.max():.2%} of what there is to learn, in {len(share)} runs"
    )


@conclusion(
    "A narrower one loses something, though its samples never end.",
    f"r ≥ 2 d: KL above {CLOSED:.0%} of the KL without context, in every run",
    "That natural language has such a law; its rank is not known.",
)
def loses(fits: pd.DataFrame, laws: pd.DataFrame) -> Finding:
    """Softmax with r >= 2 d: something is lost, in every run."""
    own = _softmax(fits, laws)
    share = own[own["r"] >= 2 * own["d"]]["share"]
    if share.empty:
        return Finding(NOT_ENOUGH, "no law has twice as many columns as a softmax is wide")
    text = f"{share.min():.1%} to {share.max():.1%} of what there is to learn, in {len(share)} runs"
    return Finding.of(share.min() > CLOSED, text)


@conclusion(
    "The loss grows with the rank of the law and shrinks with the width.",
    "r > d: mean KL rises at every step of r and falls at every step of d",
    "By how much: that depends on how the law’s singular values fall off, here slowly.",
)
def grows(fits: pd.DataFrame, laws: pd.DataFrame) -> Finding:
    """Mean distance of softmax: rises with r at every d, falls with d at every r, wherever r > d."""
    own = fits[fits["model"] == BASELINE]
    means = own[is_bottlenecked(own)].groupby(["r", "d"])[KL].mean().unstack("d")
    steps = {"r": means.diff(axis=0).to_numpy(), "d": -means.diff(axis=1).to_numpy()}
    steps = {key: change[~np.isnan(change)] for key, change in steps.items()}
    if not all(len(change) for change in steps.values()):
        return Finding(NOT_ENOUGH, "too few laws and widths")
    texts = [f"along {key}: {(change > 0).sum()} of {len(change)} steps" for key, change in steps.items()]
    return Finding.of(all((change > 0).all() for change in steps.values()), "; ".join(texts))


@conclusion(
    "Within softmaxes of different widths the Press rank tells how much is lost.",
    f"law by law, Pearson’s r of rank and KL over widths: mean at most −{STRONG}",
    "Anything about other heads: within softmaxes the rank is the width.",
)
def width_tells(fits: pd.DataFrame, laws: pd.DataFrame) -> Finding:
    """Within softmax, over widths of one law, Pearson's r of Press rank and distance is strongly negative."""
    own = fits[fits["model"] == BASELINE]
    return _mean_correlation(correlations(own, ["r", "seed"], PRESS_RANK), "laws", lambda r: r <= -STRONG)


@conclusion(
    "A Press rank as high as the law’s is not enough: some head reaches it and loses as much as a softmax.",
    f"such a head exists: Press rank ≥ r + 2 in every run with r > d, and {_CLOSED}",
    "That no head of high rank helps.",
)
def rank_is_not_enough(fits: pd.DataFrame, laws: pd.DataFrame) -> Finding:
    """Some head reaches the law's rank in every run with r > d, and closes less than MATTERS of the distance."""
    others = fits[is_bottlenecked(fits) & (fits["model"] != BASELINE) & (fits["equal"] == "")]
    reached: dict[str, Share] = {}
    for (name,), own in groups(others, "name"):
        share = over_seeds(own, GAP_CLOSED)
        if share is not None and (own[PRESS_RANK] >= own["r"] + 2).all():
            reached[name] = share
    if not reached:
        return Finding(NOT_ENOUGH, "no head reaches the law’s rank in every run, with two seeds or more")
    shown = "; ".join(_share_text(name, share) for name, share in reached.items())
    return Finding.of(any(high < MATTERS for _, _, high, _ in reached.values()), f"closed: {shown}")


@conclusion(
    "Across heads of the same width the Press rank does not tell which one is near the law.",
    f"law by law and width by width, Pearson’s r of rank and KL over heads: mean within ±{STRONG}",
    "That another measure of the spectrum could not.",
)
def rank_does_not_tell(fits: pd.DataFrame, laws: pd.DataFrame) -> Finding:
    """Over heads at one width and law, Pearson's r of Press rank and distance is weak on average."""
    return _mean_correlation(correlations(fits, ["r", "d", "seed"], PRESS_RANK), "groups", lambda r: abs(r) < STRONG)


@conclusion(
    "With no more parameters than a softmax some head closes a part of the gap.",
    f"such a head exists: {_CLOSED}; at most {HARDLY:.0%} more parameters, context vectors included",
    "That it pays in a language model, where contexts are computed and parameters are spent otherwise.",
)
def closes_gap(fits: pd.DataFrame, laws: pd.DataFrame) -> Finding:
    """Some head closes MATTERS of the distance at equal parameters where r > d, by an interval over seeds."""
    others = fits[is_bottlenecked(fits) & (fits["model"] != BASELINE)]
    cut = others["model"].isin(set(others.loc[others["equal"] != "", "model"]))
    equal = others[cut | _same_parameters(fits, others)]
    shares = {name: over_seeds(own, GAP_CLOSED) for (name,), own in groups(equal, "name")}
    known = {name: share for name, share in shares.items() if share is not None}
    if not known:
        return Finding(NOT_ENOUGH, "fewer than two seeds, or no model with equal parameters")
    shown = [_share_text(name, share) for name, share in sorted(known.items(), key=lambda item: -item[1][0])]
    return Finding.of(any(low > MATTERS for _, low, _, _ in known.values()), "; ".join(shown))


def _share_text(name: str, share: Share) -> str:
    mean, low, high = (numbers.signed(100 * value, 1) for value in share[:3])
    return f"{name} {mean} % ({low} to {high})"


def _same_parameters(fits: pd.DataFrame, others: pd.DataFrame) -> pd.Series[bool]:
    """Fits with hardly more parameters than the softmax of the same law and width."""
    softmax = beside(others, fits[fits["model"] == BASELINE], ["r", "d", "seed"], "parameters")
    hardly_more: pd.Series[bool] = others["parameters"] <= (1 + HARDLY) * softmax
    return hardly_more


def _mean_correlation(found: list[float], of: str, holds: Callable[[float], bool]) -> Finding:
    if len(found) < 2:
        return Finding(NOT_ENOUGH, f"too few {of}")
    mean = float(np.mean(found))
    ends = f"{numbers.signed(min(found))} to {numbers.signed(max(found))}"
    return Finding.of(holds(mean), f"mean r {numbers.signed(mean)}, from {ends} ({len(found)} {of})")


@conclusion(
    "No softmax is nearer in squared error of log-probabilities than Ganea et al.’s Theorem 1 allows.",
    "mean squared difference ≥ the law’s squared singular values beyond the (d + 2)-th, per cell, in every run",
    "Anything about cross-entropy: what is least in one is not in the other.",
)
def theorem_1(fits: pd.DataFrame, laws: pd.DataFrame) -> Finding:
    """Mean squared difference of log-probabilities, softmax: never below what the law's singular values allow."""
    none = Finding(NOT_ENOUGH, "no squared error was measured")
    if SQUARED_ERROR not in fits:
        return none
    bounds = laws[["r", "seed", *(column for column in map(str, laws) if column.startswith(SQUARED_ERROR_BOUND))]]
    own = fits[(fits["model"] == BASELINE) & fits[SQUARED_ERROR].notna()].merge(bounds, on=["r", "seed"])
    pairs = [(row[SQUARED_ERROR], row[f"{SQUARED_ERROR_BOUND}{row['d']:g}"]) for row in own.to_dict("records")]
    if not pairs:
        return none
    ratios = [error / bound for error, bound in pairs if bound > TINY]
    text = f"{len(pairs)} runs; " + (f"error over bound from {min(ratios):.2f} up" if ratios else "bounds are 0")
    return Finding.of(all(error >= bound - TINY for error, bound in pairs), text)
