"""Tables of fits to known laws, and what follows from them: heads on free context vectors (Ganea 2019; known truth).

The numbers of a fit are rows of the records: its plan is their `table`, its law and width stand in their `condition`.
Replicates are seeds: each draws laws of its own. Rules are judged by intervals over seeds, never over cells of one law.

Columns of a frame of fits: model, seed, d (width), equal (whether widths were cut to equal parameters), the law's own
(alpha and M words, or r columns and V words), and one per metric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from softmax_bottleneck.measuring import statistics
from softmax_bottleneck.records.records import groups
from softmax_bottleneck.report.cells import Cell, Measured, Part, Row, Source, mean_of
from softmax_bottleneck.report.judging import ALPHA, NOT_ENOUGH, signed

BASELINE = "softmax"
LAW = "law"  # in place of a model: numbers of the laws themselves
FOLLOWS, FAILS = "follows", "does not follow"
CLOSED = 0.01  # of what there is to learn: a smaller distance counts as none
BOUND = "squared_error_bound_d"  # followed by a width: a metric of laws
TINY = 1e-6  # below it a squared error is rounding
WORDS = ("head", "equal")
STRONG = 0.7  # a correlation from here on is called strong, as in the ledger of claims
MATTERS = 0.05  # of the softmax's distance: what a head must win back to count
HARDLY = 0.05  # more parameters than the softmax, such as those of a learned function, count as none
RANKS = {"rank_press": "Press rank", "rank_eff_1e-3": "Effective rank, ε = 10⁻³", "rank_eff_1e-4": "ε = 10⁻⁴"}


# --- frames ---------------------------------------------------------------------------------------------------------
def frame_of(source: Source) -> pd.DataFrame:
    """One line per fit of the experiment's plan, a column per metric; empty before anything is fitted."""
    rows = source.records.synthetic
    rows = rows[(rows["table"] == source.experiment.fits) & (rows["model"] != LAW)]
    return _wide(rows)


def laws_of(source: Source) -> pd.DataFrame:
    """One line per law: what is known of it."""
    rows = source.records.synthetic
    return _wide(rows[(rows["table"] == source.experiment.fits) & (rows["model"] == LAW)])


def _wide(rows: pd.DataFrame) -> pd.DataFrame:
    if rows.empty:
        return pd.DataFrame(columns=["model", "seed"])
    keys = ["model", "condition", "seed"]
    wide = rows.pivot(index=keys, columns="metric", values="value").reset_index()
    conditions = pd.DataFrame([condition_of(text) for text in wide["condition"]], index=wide.index)
    return pd.concat([wide.drop(columns="condition"), conditions], axis=1)


def condition_of(text: str) -> dict[str, float | str]:
    """`alpha=0.1;M=100;N=1000;d=5` as numbers by name; `head` and `equal` keep their words."""
    pairs = [word.partition("=") for word in text.split(";")]
    found: dict[str, float | str] = {key: value if key in WORDS else float(value) for key, _, value in pairs}
    return {"equal": "", **found}


def models_of(source: Source) -> dict[str, str]:
    """Label and name of the plan's models, in its order."""
    return dict(source.study.fit_labels.get(source.experiment.fits, {}))


def levels(frame: pd.DataFrame, column: str) -> list[float]:
    """Values of a column in ascending order."""
    return sorted(set(frame[column])) if column in frame else []


def is_open(frame: pd.DataFrame) -> pd.Series[bool]:
    """Where the law has more columns than the model is wide, so that a softmax (with a bias for Zipf's law) fails."""
    wider: pd.Series[bool] = frame["r"] > frame["d"]
    return wider


# --- what is lost ---------------------------------------------------------------------------------------------------
def loss(source: Source) -> list[Part]:
    """KL(P*||Q) of every model by width, a part per law; heads first at the same width, then at equal parameters."""
    frame, metric = frame_of(source), str(source.experiment.options.get("metric", "kl_nats"))
    widths = levels(frame, "d")
    parts = []
    for law, own in frame.groupby(_law_columns(frame), sort=True) if len(frame) else ():
        rows = []
        for model, name in models_of(source).items():
            cells = [own[(own["model"] == model) & (own["d"] == width)][metric].dropna() for width in widths]
            planned = own["seed"].nunique()
            shown = (Cell(measured=mean_of(values), digits=4, planned=planned) for values in cells)
            rows.append(Row(model, name, tuple(shown)))
        title = ", ".join(f"{NAMES[key]} {value:g}" for key, value in zip(_law_columns(frame), law, strict=True))
        parts.append(Part("synthetic", title, tuple(f"d = {width:g}" for width in widths), tuple(rows)))
    return parts


NAMES = {"alpha": "α =", "M": "M =", "r": "Columns of the law, r ="}


def _law_columns(frame: pd.DataFrame) -> list[str]:
    return [column for column in NAMES if column in frame]


def recovery(frame: pd.DataFrame) -> pd.DataFrame:
    """Other models with the share of the softmax's distance they win back, 1 - KL / KL(softmax), like for like."""
    others = frame[frame["model"] != BASELINE]
    softmax = frame[frame["model"] == BASELINE]
    return others.assign(won_back=1.0 - others["kl_nats"] / _beside(others, softmax, ["r", "d", "seed"], "kl_nats"))


def _beside(frame: pd.DataFrame, other: pd.DataFrame, keys: list[str], column: str) -> NDArray[np.float64]:
    """The column of another frame, which has each combination of keys once, for every line of a frame."""
    found = frame[keys].merge(other[[*keys, column]], on=keys, how="left")[column]
    return found.to_numpy(dtype=float)


# --- correlations ---------------------------------------------------------------------------------------------------
def correlations(source: Source) -> list[Part]:
    """Pearson's r of a rank and KL(P*||Q): within a head over widths, and over heads at one width; law by law."""
    frame = frame_of(source)
    if frame.empty:
        return []
    rows = [
        _correlation_row(frame[frame["model"] == model], ["r", "seed"], f"{name}, over widths", model)
        for model, name in models_of(source).items()
    ]
    rows += [
        _correlation_row(frame[frame["d"] == width], ["r", "seed"], f"All heads at d = {width:g}", f"d{width:g}")
        for width in levels(frame, "d")
    ]
    rows.append(_correlation_row(frame, ["r", "seed"], "All heads and widths", "all"))
    return [Part("synthetic", "Within one law", tuple(RANKS.values()), tuple(rows))]


def _correlation_row(frame: pd.DataFrame, by: Sequence[str], name: str, key: str) -> Row:
    cells = []
    for metric in RANKS:
        found = group_correlations(frame, by, metric)
        measured = mean_of(found)
        gap = "" if measured else "this rank does not vary, or too few fits"
        spread = f"{signed(min(found))} to {signed(max(found))}" if found else ""
        cells.append(Cell(measured=measured and Measured(measured.mean, None, measured.n), note=spread, gap=gap))
    return Row(key, name, tuple(cells))


def group_correlations(frame: pd.DataFrame, by: Sequence[str], metric: str) -> list[float]:
    """Pearson's r of a rank and the distance in each group of fits, where it can be computed."""
    found = []
    for _, own in frame.groupby(list(by)) if metric in frame else ():
        pairs = own[[metric, "kl_nats"]].dropna()
        if len(pairs) > 2 and pairs[metric].nunique() > 1:
            result = statistics.pearson(pairs[metric], pairs["kl_nats"], np.random.default_rng(0))
            found += [] if result.r is None else [result.r]
    return found


# --- what follows ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Finding:
    """What a rule says: its verdict and the numbers that decide it."""

    verdict: str
    numbers: str


@dataclass(frozen=True)
class Conclusion:
    """A statement, the rule that judges it, and what it does not say."""

    id: str
    statement: str
    criterion: str
    limits: str
    judge: Callable[[pd.DataFrame, pd.DataFrame], Finding]


def conclusions(source: Source) -> list[Part]:
    """Every conclusion with its verdict, computed from the fits of the plan."""
    frame, laws = frame_of(source), laws_of(source)
    frame = frame.assign(name=frame["model"].map(models_of(source)))
    rows = []
    for one in CONCLUSIONS:
        found = one.judge(frame, laws) if len(frame) else Finding(NOT_ENOUGH, "nothing is fitted yet")
        words = (found.verdict, found.numbers, one.criterion, one.limits)
        rows.append(Row(one.id, one.statement, tuple(Cell(words=text) for text in words)))
    heads = ("Verdict", "Numbers", "Rule", "What it does not say")
    return [Part("synthetic", "What follows from the fits", heads, tuple(rows))]


def over_seeds(frame: pd.DataFrame, column: str) -> tuple[float, float, float, int] | None:
    """Mean over seeds of each seed's mean, its 95 % t interval, and the number of seeds; None with fewer than two."""
    means = frame.groupby("seed")[column].mean().dropna()
    if len(means) < 2:
        return None
    half = float(stats.t.ppf(1 - ALPHA / 2, len(means) - 1) * means.std(ddof=1) / math.sqrt(len(means)))
    return float(means.mean()), float(means.mean()) - half, float(means.mean()) + half, len(means)


def _softmax(frame: pd.DataFrame, laws: pd.DataFrame) -> pd.DataFrame:
    """Softmax fits with their distance as a share of what there is to be learned without context."""
    own = frame[frame["model"] == BASELINE].copy()
    own["share"] = own["kl_nats"] / _beside(own, laws, ["r", "seed"], "kl_no_context_nats")
    return own


def closes(frame: pd.DataFrame, laws: pd.DataFrame) -> Finding:
    """Softmax with d >= r: nothing worth naming is lost, in every run."""
    own = _softmax(frame, laws)
    own = own[~is_open(own)]
    if own.empty:
        return Finding(NOT_ENOUGH, "no softmax is as wide as its law")
    text = f"at most {own['share'].max():.2%} of what there is to learn, in {len(own)} runs"
    return Finding(FOLLOWS if own["share"].max() <= CLOSED else FAILS, text)


def loses(frame: pd.DataFrame, laws: pd.DataFrame) -> Finding:
    """Softmax with r >= 2 d: something is lost, in every run."""
    own = _softmax(frame, laws)
    own = own[own["r"] >= 2 * own["d"]]
    if own.empty:
        return Finding(NOT_ENOUGH, "no law has twice as many columns as a softmax is wide")
    text = f"{own['share'].min():.1%} to {own['share'].max():.1%} of what there is to learn, in {len(own)} runs"
    return Finding(FOLLOWS if own["share"].min() > CLOSED else FAILS, text)


def grows(frame: pd.DataFrame, laws: pd.DataFrame) -> Finding:
    """Mean distance of softmax: rises with r at every d, falls with d at every r, wherever r > d."""
    own = frame[frame["model"] == BASELINE]
    means = own[is_open(own)].groupby(["r", "d"])["kl_nats"].mean().unstack("d")
    steps = {"r": means.diff(axis=0), "d": -means.diff(axis=1)}
    values = {key: change.to_numpy()[~np.isnan(change.to_numpy())] for key, change in steps.items()}
    if not all(len(change) for change in values.values()):
        return Finding(NOT_ENOUGH, "too few laws and widths")
    texts = [f"along {key}: {(change > 0).sum()} of {len(change)} steps" for key, change in values.items()]
    return Finding(FOLLOWS if all((change > 0).all() for change in values.values()) else FAILS, "; ".join(texts))


def rank_is_not_enough(frame: pd.DataFrame, laws: pd.DataFrame) -> Finding:
    """Some head reaches the law's rank in every run with r > d, and wins back less than MATTERS of the distance."""
    others = recovery(frame)
    others = others[is_open(others) & (others["equal"] == "")]
    reached, shown = [], []
    for (name,), own in groups(others, "name"):
        share = over_seeds(own, "won_back")
        if share is None or not (own["rank_press"] >= own["r"] + 2).all():
            continue
        reached.append(share[2] < MATTERS)
        shown.append(_share_text(name, share))
    if not reached:
        return Finding(NOT_ENOUGH, "no head reaches the law’s rank in every run, with two seeds or more")
    return Finding(FOLLOWS if any(reached) else FAILS, f"won back: {'; '.join(shown)}")


def wins_back(frame: pd.DataFrame, laws: pd.DataFrame) -> Finding:
    """Some head wins back MATTERS of the distance at equal parameters where r > d, by an interval over seeds."""
    others = recovery(frame)
    others = others[is_open(others)]
    richer = set(others.loc[others["equal"] != "", "model"])
    equal = others[others["model"].isin(richer) | (_same_parameters(frame, others))]
    shares = {name: over_seeds(own, "won_back") for (name,), own in groups(equal, "name")}
    known = {name: share for name, share in shares.items() if share is not None}
    if not known:
        return Finding(NOT_ENOUGH, "fewer than two seeds, or no model with equal parameters")
    shown = [_share_text(name, share) for name, share in sorted(known.items(), key=lambda item: -item[1][0])]
    return Finding(FOLLOWS if any(s[1] > MATTERS for s in known.values()) else FAILS, "; ".join(shown))


def _share_text(name: str, share: tuple[float, float, float, int]) -> str:
    mean, low, high, _ = share
    return f"{name} {signed(100 * mean, 1)} % ({signed(100 * low, 1)} to {signed(100 * high, 1)})"


def _same_parameters(frame: pd.DataFrame, others: pd.DataFrame) -> pd.Series[bool]:
    """Fits with hardly more parameters than the softmax of the same law and width."""
    softmax = frame[frame["model"] == BASELINE]
    found: pd.Series[bool] = others["parameters"] <= (1 + HARDLY) * _beside(
        others, softmax, ["r", "d", "seed"], "parameters"
    )
    return found


def rank_does_not_tell(frame: pd.DataFrame, laws: pd.DataFrame) -> Finding:
    """Over heads at one width and law, Pearson's r of Press rank and distance is weak on average."""
    found = group_correlations(frame, ["r", "d", "seed"], "rank_press")
    if len(found) < 2:
        return Finding(NOT_ENOUGH, "too few groups of heads")
    mean = float(np.mean(found))
    text = f"mean r {signed(mean)}, from {signed(min(found))} to {signed(max(found))} ({len(found)} groups)"
    return Finding(FOLLOWS if abs(mean) < STRONG else FAILS, text)


def width_tells(frame: pd.DataFrame, laws: pd.DataFrame) -> Finding:
    """Within softmax, over widths of one law, Pearson's r of Press rank and distance is strongly negative."""
    found = group_correlations(frame[frame["model"] == BASELINE], ["r", "seed"], "rank_press")
    if len(found) < 2:
        return Finding(NOT_ENOUGH, "too few laws, or widths")
    mean = float(np.mean(found))
    text = f"mean r {signed(mean)}, from {signed(min(found))} to {signed(max(found))} ({len(found)} laws)"
    return Finding(FOLLOWS if mean <= -STRONG else FAILS, text)


def theorem_holds(frame: pd.DataFrame, laws: pd.DataFrame) -> Finding:
    """Mean squared difference of log-probabilities, softmax: never below what the law's singular values allow."""
    if "squared_error" not in frame:
        return Finding(NOT_ENOUGH, "no squared error was measured")
    bounds = laws[["r", "seed", *(column for column in map(str, laws) if column.startswith(BOUND))]]
    own = frame[(frame["model"] == BASELINE) & frame["squared_error"].notna()].merge(bounds, on=["r", "seed"])
    pairs = [(row["squared_error"], row[f"{BOUND}{row['d']:g}"]) for row in own.to_dict("records")]
    if not pairs:
        return Finding(NOT_ENOUGH, "no squared error was measured")
    ratios = [error / bound for error, bound in pairs if bound > TINY]
    text = f"{len(pairs)} runs; " + (f"error over bound from {min(ratios):.2f} up" if ratios else "bounds are 0")
    return Finding(FOLLOWS if all(error >= bound - TINY for error, bound in pairs) else FAILS, text)


_WON = f"1 − KL / KL(Softmax), mean over cells with r > d, 95 % t interval over seeds; {MATTERS:.0%} would matter"
CONCLUSIONS: tuple[Conclusion, ...] = (
    Conclusion(
        "closes",
        "A softmax that is as wide as its law has columns loses nothing.",
        f"d ≥ r: KL at most {CLOSED:.0%} of the KL without context, in every run",
        "That it would find the law from a text: here contexts are known and samples never end.",
        closes,
    ),
    Conclusion(
        "loses",
        "A narrower one loses something, though its samples never end.",
        f"r ≥ 2 d: KL above {CLOSED:.0%} of the KL without context, in every run",
        "That natural language has such a law; its rank is not known.",
        loses,
    ),
    Conclusion(
        "grows",
        "The loss grows with the rank of the law and shrinks with the width.",
        "r > d: mean KL rises at every step of r and falls at every step of d",
        "By how much: that depends on how the law’s singular values fall off, here slowly.",
        grows,
    ),
    Conclusion(
        "width-tells",
        "Within softmaxes of different widths the Press rank tells how much is lost.",
        f"law by law, Pearson’s r of rank and KL over widths: mean at most −{STRONG}",
        "Anything about other heads: within softmaxes the rank is the width.",
        width_tells,
    ),
    Conclusion(
        "rank-is-not-enough",
        "A Press rank as high as the law’s is not enough: some head reaches it and loses as much as a softmax.",
        f"such a head exists: Press rank ≥ r + 2 in every run with r > d, and {_WON}",
        "That no head of high rank helps.",
        rank_is_not_enough,
    ),
    Conclusion(
        "rank-does-not-tell",
        "Across heads of the same width the Press rank does not tell which one is near the law.",
        f"law by law and width by width, Pearson’s r of rank and KL over heads: mean within ±{STRONG}",
        "That another measure of the spectrum could not.",
        rank_does_not_tell,
    ),
    Conclusion(
        "wins-back",
        "With no more parameters than a softmax some head wins back a part of the loss.",
        f"such a head exists: {_WON}; at most {HARDLY:.0%} more parameters, context vectors included",
        "That it pays in a language model, where contexts are computed and parameters are spent otherwise.",
        wins_back,
    ),
    Conclusion(
        "theorem-1",
        "No softmax is nearer in squared error of log-probabilities than Ganea et al.’s Theorem 1 allows.",
        "mean squared difference ≥ the law’s squared singular values beyond the (d + 2)-th, per cell, in every run",
        "Anything about cross-entropy: what is least in one is not in the other.",
        theorem_holds,
    ),
)


VIEWS: Mapping[str, Callable[[Source], list[Part]]] = {
    "fit-loss": loss,
    "fit-correlations": correlations,
    "fit-conclusions": conclusions,
}
