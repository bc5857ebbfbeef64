"""This workflow's own conclusions, from heads fitted to known distributions.

Every seed samples its own distributions. A seed is therefore the unit of each interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import numpy as np
import pandas as pd

from softmax_bottleneck.heads.registry import declaration
from softmax_bottleneck.measuring.statistics import pearson_r
from softmax_bottleneck.report.claims import quantities as q
from softmax_bottleneck.report.claims import rules as r
from softmax_bottleneck.report.claims.engine import Claim
from softmax_bottleneck.report.claims.premises import Check, Premise
from softmax_bottleneck.report.claims.view import LAW, SYNTHETIC, View, fits_of
from softmax_bottleneck.report.claims.wording import Code

BASELINE = "softmax"
CLOSED = 0.01  # of what there is to learn: a smaller distance is none
MATTERS = 0.05  # of the softmax's distance: what a head must close to count
HARDLY = 0.05  # more parameters than the softmax, such as those of a learned function, are none
# Godey and Artzi 2026 see the output layer suppress most of a loss' gradient. Here the best gradient is known. Claims
# are about true distributions with more columns than the softmax has (r > d) and heads with no more parameters.
EARLY, LATE, COSINE = "gradient_energy_early", "gradient_energy", "gradient_cosine_early"
WORDS, RANK = "gradient_words", "rank_press"
LOSS_EARLY, LOSS = "kl_nats_early", "kl_nats"
SPENT = 0.05  # of the gradient's energy: less is next to nothing
EQUAL = f"r > d and extra <= {HARDLY}"
SOFTMAXES = (BASELINE, "lms", "lms-plif", "moc", "mos")  # can be any softmax of their width, hence its law


# --- fits to languages ----------------------------------------------------------------------------------------------
@lru_cache(maxsize=8)
def fits(view: View) -> pd.DataFrame:
    """Return one line per fit: model, seed, r, d, and metrics, also of its true distribution and of its softmax.

    `lost` is KL as a share of what there is to learn, `gap_closed` the share of the softmax's KL that a head does not
    have, `extra` its parameters relative to the softmax's, less one.
    """
    frame = fits_of(view, "r")
    if not {"d", "kl_nats"} <= set(frame):
        return pd.DataFrame(columns=["model", "seed", "r", "d", "width", "lost", "extra"], dtype=float)
    law, own = (frame[chosen].dropna(axis=1, how="all") for chosen in (frame["model"] == LAW, frame["model"] != LAW))
    softmax = own.loc[own["model"] == BASELINE, ["r", "d", "seed", "kl_nats", "parameters"]]
    found = own.merge(law.drop(columns="model"), on=["r", "seed"], suffixes=("", "_law"))
    found = found.merge(softmax, on=["r", "d", "seed"], suffixes=("", "_softmax"))
    return found.assign(
        lost=found["kl_nats"] / found["kl_no_context_nats"],
        gap_closed=1 - found["kl_nats"] / found["kl_nats_softmax"],
        extra=found["parameters"] / found["parameters_softmax"] - 1,
    )


def over_seeds(what: str, unit: str, which: str, value: Callable[[pd.DataFrame], float], names: str = "") -> q.Quantity:
    """Return a number of every seed's fits that fulfil a condition."""

    def collect(view: View, head: str = BASELINE) -> list[float]:
        parts = fits(view).query(which, local_dict={"head": head}).groupby("seed")
        return [number for _, part in parts if math.isfinite(number := value(part))]

    return q.of_units(collect, q.student, what, unit, names=names)


def _least_step(own: pd.DataFrame) -> float:
    """Return the least growth of log KL when r rises or d falls by one step."""
    logs = own.pivot(index="r", columns="d", values="kl_nats").map(math.log)
    steps = np.concatenate([logs.diff(axis=0).to_numpy().ravel(), -logs.diff(axis=1).to_numpy().ravel()])
    return float(np.nanmin(steps, initial=math.inf))


def _width_and_loss(own: pd.DataFrame) -> float:
    """Return Pearson's r over softmaxes of log rank relative to r, and loss."""
    log_rank_N = np.log((own["rank_press"] / own["r"]).to_numpy())
    return float(pearson_r(log_rank_N, own["lost"].to_numpy())) if len(own) >= q.MIN_POINTS else math.nan


def _r_within(first: str, second: str, own: pd.DataFrame) -> float:
    """Return Pearson's r over heads of two logarithms, both less their means at the same rank r and width d."""
    if not {first, second} <= set(own):
        return math.nan
    own = own[(own[[first, second]] > 0).all(axis=1)]
    logs = own[[first, second]].map(math.log)
    centred = (logs - logs.groupby([own["r"], own["d"]]).transform("mean")).to_numpy()
    return float(pearson_r(centred[:, 0], centred[:, 1])) if len(own) >= q.MIN_POINTS else math.nan


def _mean(metric: str) -> Callable[[pd.DataFrame], float]:
    return lambda own: float(own[metric].mean()) if metric in own else math.nan


def _heads(condition: str, converged: bool = False) -> Callable[[View, str], list[str]]:
    """Return the function that finds heads, except the softmax, all of whose fits with r > d fulfil a condition.

    With `converged`, their fits with d >= r must also have found the true distribution.
    """

    def chosen(view: View, _: str) -> list[str]:
        lost = _largest_losses(view)
        narrow = fits(view).query("r > d and model != @head", local_dict={"head": BASELINE})
        models = [str(model) for model, own in narrow.groupby("model") if len(own.query(condition)) == len(own)]
        return [model for model in models if not converged or lost.get(model, 1.0) < CLOSED]

    return chosen


def _largest_losses(view: View) -> pd.Series[float]:
    """Return the largest loss of each model with d >= r."""
    largest: pd.Series[float] = fits(view).query("d >= r and width == d").groupby("model")["lost"].max()
    return largest


def _ended(*spoils: str, heads: Sequence[str] = (BASELINE,)) -> Check:
    """Return the check that fits have converged: a head that can represent its distribution must have found it."""

    def check(view: View, models: Sequence[str]) -> Premise | None:
        lost = _largest_losses(view).reindex(list(heads)).dropna()
        if lost.empty:
            return None
        facts = {"head": declaration(str(lost.idxmax())).label, "loss": lost.max(), "limit": CLOSED}
        return Premise(Code.FITS_CONVERGED, facts, bool(lost.max() < CLOSED), frozenset(spoils))

    return check


def theorem_gaps(view: View) -> list[float]:
    """Return the mean squared error of every softmax less the least that the singular values allow."""
    rows = fits(view).query("model == @head", local_dict={"head": BASELINE}).to_dict("records")
    return [row["squared_error"] - row[f"squared_error_bound_d{row['d']:g}"] for row in rows if "squared_error" in row]


def _telling(first: str, second: str, what: str) -> q.Quantity:
    words = f"Pearson’s r of {what} within law and width"
    return over_seeds(words, "", EQUAL, partial(_r_within, first, second))


# --- the claims -----------------------------------------------------------------------------------------------------
SOFTMAX, OPEN = "model == @head", "model == @head and r > d"
TO_LEARN = "of what there is to learn"
CLOSES = over_seeds("share of the gap closed", "share", OPEN, lambda own: own["gap_closed"].mean(), names="{0}")
LARGEST = over_seeds(f"largest loss with d ≥ r, {TO_LEARN}", "share", f"{SOFTMAX} and d >= r",
                     lambda own: own["lost"].max())  # fmt: skip
LEAST = over_seeds(f"least loss with r ≥ 2 d, {TO_LEARN}", "share", f"{SOFTMAX} and r >= 2 * d",
                   lambda own: own["lost"].min())  # fmt: skip
STEP = over_seeds("least growth at a step of r or d, r > d", "%", OPEN, _least_step)
WIDTH = over_seeds("Pearson’s r of rank over r, and loss", "", SOFTMAX, _width_and_loss)
RANK_AND_LOSS = over_seeds(
    "Pearson’s r of log rank and log loss within law and width", "", "r > d", partial(_r_within, RANK, LOSS)
)
claim = partial(Claim, "known-truth", where="fits to known laws", corpora=SYNTHETIC)
CLAIMS = (
    claim("truth-closes", "A softmax that is as wide as its law has columns finds it, and loses nothing.",
          rule=r.below(LARGEST, CLOSED),
          limits="That it would find the law from a text: here contexts are known and samples never end."),
    claim("truth-loses", "A narrower one loses something, though its samples never end.",
          rule=r.above(LEAST, CLOSED), limits="That natural language has such a law; its rank is not known."),
    claim("truth-grows", "The loss grows with the rank of the law and shrinks with the width.",
          rule=r.above(STEP, 0, margin=CLOSED),
          limits="By how much: that depends on how the law’s singular values fall off, here slowly."),
    claim("truth-width-tells", "Within softmaxes of different widths the Press rank tells how much is lost.",
          rule=r.below(WIDTH, -r.STRONG),
          limits="Anything about other heads: within softmaxes the rank is the width."),
    claim("truth-rank-is-not-enough",
          "A Press rank as high as the law’s is not enough: some head reaches it and closes no gap.", models=("*",),
          rule=r.heads(r.below(CLOSES, MATTERS), all_=False,
                       chosen=_heads("rank_press >= r + 2 and width == d", converged=True)),
          premises=(_ended(r.REPRODUCED),), limits="That no head of high rank helps."),
    claim("truth-rank-does-not-tell",
          "Across heads of the same width the Press rank does not tell which one is near the law.",
          rule=r.weak(RANK_AND_LOSS), premises=(_ended(r.REPRODUCED, r.NOT_REPRODUCED, heads=SOFTMAXES),),
          limits="That another measure of the spectrum could not."),
    claim("truth-closes-gap", "With no more parameters than a softmax some head closes a part of the gap.",
          rule=r.heads(r.above(CLOSES, MATTERS), all_=False,
                       chosen=_heads(f"extra <= {HARDLY}")), models=("*",),
          premises=(_ended(r.NOT_REPRODUCED, heads=SOFTMAXES),),
          limits="That it pays in a language model, where contexts are computed and parameters are spent otherwise."),
)  # fmt: skip

PASSED = over_seeds("energy of the best gradient that passes early", "share", OPEN, _mean(EARLY))
LEFT = over_seeds("energy of the best gradient that passes at the end", "share", OPEN, _mean(LATE))
claim = partial(Claim, "gradient", where="fits to known laws", corpora=SYNTHETIC)
GRADIENT_CLAIMS = (
    claim("gradient-suppressed", "A softmax narrower than its law passes less than half of the best gradient’s energy.",
          rule=r.below(PASSED, 0.5), limits="That this is what it loses by."),
    claim("gradient-spent", "At the end next to nothing of the best gradient passes a narrow softmax any more.",
          rule=r.below(LEFT, SPENT),
          limits="That a network below it would get as far: context vectors are free here."),
    claim("gradient-speed", "Heads that let more of the best gradient through are nearer to the law early on.",
          rule=r.below(_telling(EARLY, LOSS_EARLY, "log energy passed and log loss, both early,"), -r.STRONG),
          limits="That a network below would learn faster."),
    claim("gradient-direction", "Heads whose steps lead along the best gradient are nearer to the law early on.",
          rule=r.below(_telling(COSINE, LOSS_EARLY, "log cosine and log loss, both early,"), -r.STRONG),
          limits="Where they end: a fast head may stop far from the law."),
    claim("gradient-explains", "Heads that let more of the best gradient through early end nearer to the law.",
          rule=r.below(_telling(EARLY, LOSS, "log energy passed early and log loss"), -r.STRONG),
          limits="Cause: a head that passes more is another function as well."),
    claim("gradient-words", "Heads that let more of the observed words’ gradients through end nearer to the law.",
          rule=r.below(_telling(WORDS, LOSS, "log energy of words passed and log loss"), -r.STRONG),
          limits="Cause: a head that has learned more may pass more for that."),
    claim("gradient-rank", "At equal parameters heads of higher Press rank end nearer to the law.",
          rule=r.below(_telling(RANK, LOSS, "log rank and log loss"), -r.STRONG),
          limits="Anything about ranks of natural language."),
)  # fmt: skip
