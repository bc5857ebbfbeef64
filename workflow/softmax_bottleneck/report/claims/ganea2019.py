"""Conclusions of Ganea, Gelly, Bécigneul and Severyn 2019: language models, fits to random laws, theorems."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pandas as pd

from softmax_bottleneck.report.claims import quantities as q
from softmax_bottleneck.report.claims import rules as r
from softmax_bottleneck.report.claims.engine import LAW_FAILS, NO_TRAINING, Claim, law_wins
from softmax_bottleneck.report.claims.known_truth import theorem_gaps
from softmax_bottleneck.report.claims.premises import wide
from softmax_bottleneck.report.claims.view import LAW, SYNTHETIC, View, fits_of
from softmax_bottleneck.store.seeds import derive

SOFTMAX, PLIF, MOS, BOTH = (f"ganea-{head}" for head in ("softmax", "lms-plif", "mos", "mos-plif"))
POWERS, POWER_RANK, POWER_SIZE = (2, 3), 3, 40  # of matrices for theorem 5
SQUARE_SIZE = 20  # of those for theorem 6


# --- fits to Dirichlet draws ----------------------------------------------------------------------------------------
def _cells(view: View, metric: str) -> pd.DataFrame:
    """Return a metric of every head by distribution and width, averaged over seeds; drop cells that lack a head."""
    frame = fits_of(view, "alpha")
    heads = ["softmax", "mos", "lms"]
    if not {"d", metric} <= set(frame):
        return pd.DataFrame(columns=heads)
    return frame.pivot_table(index=["alpha", "M", "d"], columns="model", values=metric).reindex(columns=heads).dropna()


def _lms_best(metric: str, sign: int) -> q.Quantity:
    def collect(view: View) -> Iterator[float]:
        cells = sign * _cells(view, metric)
        return map(float, cells["lms"] > cells[["softmax", "mos"]].max(axis=1))

    what = f"cells where LMS is best in {'mode matching' if sign > 0 else 'KL'}"
    return q.of_units(collect, q.wilson, what, "share", units="cells")


def _gains(view: View) -> Iterator[tuple[float, float]]:
    for row in _cells(view, "kl_nats").reset_index().to_dict("records"):
        yield row["M"] / row["d"], math.log(row["softmax"] / row["lms"])


def _falls(view: View) -> Iterator[float]:
    cells = _cells(view, "kl_nats").reset_index()
    for _, own in cells.groupby(["alpha", "M"]) if len(cells) else ():
        yield from map(float, np.diff(own["softmax"]) < 0)


# --- theorems -------------------------------------------------------------------------------------------------------
def theorem_rows() -> list[tuple[str, str, str, float]]:
    """Return (model, metric, condition, rank) of the element-wise powers of drawn matrices, which need no runs."""
    rows: list[tuple[str, str, str, float]] = []
    for draw in range(5):
        rng = np.random.default_rng(derive(draw, "theorems"))
        for model, shape, powers in (
            ("power", (POWER_SIZE, POWER_RANK), POWERS),
            ("square", (SQUARE_SIZE, SQUARE_SIZE - 1), (2,)),
        ):
            left, right = rng.standard_normal((2, *shape))
            ranks = {p: float(np.linalg.matrix_rank((left @ right.T) ** p)) for p in powers}
            rows += [(model, f"rank_{draw}", f"p={p}", rank) for p, rank in ranks.items()]
    return rows


def _theorem(model: str, room: Callable[[int, float], float]) -> r.Rule:
    def collect(view: View) -> Iterator[float]:
        rows = view.records.synthetic
        own = rows[rows["model"] == model]
        powers = own["condition"].str.removeprefix("p=").astype(int)
        return map(room, powers, own["value"])

    quantity = q.of_units(collect, q.least, "how far the ranks stay within the theorem, least of all", units="draws")
    return r.above(quantity, -0.5, "every drawn matrix fulfils it")


GAINS = q.of_units(_gains, q.spearman, "Spearman’s ρ of M / D and LMS’s gain", units="cells")
FALLS = q.of_units(_falls, q.wilson, "steps of D at which Softmax’s KL falls", "share", units="steps")
ERRORS = q.of_units(theorem_gaps, q.least, "squared error less its bound, least of all fits", units="fits")
SHAPE = q.within_run("slope_std", "slope_std_init", "spread of learned slopes over that of the random ones")
TIME = q.against("sec_per_epoch", "×")

# --- the claims -----------------------------------------------------------------------------------------------------
claim = partial(Claim, "ganea2019")
CLAIMS = (
    claim("ganea-plif-better", "LMS-PLIF beats Softmax.", "Table 1", r.better(), (PLIF, SOFTMAX),
          law=law_wins(SOFTMAX)),
    claim("ganea-mos-better", "MoS beats LMS-PLIF.", "Table 1", r.better(), (MOS, PLIF), law=law_wins(PLIF)),
    claim("ganea-both-best", "MoS over PLIF is best.", "Table 1", r.better(), (BOTH, MOS), law=law_wins(MOS)),
    claim("ganea-ss-no-gain", "SigSoftmax gains nothing that matters without finetuning.", "section 5.2", r.no_gain(),
          ("ss", "softmax"), law=((LAW, "softmax"), LAW_FAILS)),
    claim("ganea-plif-cheap", "LMS-PLIF takes hardly more time than Softmax.", "Table 1",
          r.below(TIME, math.log(1.25)), (PLIF, SOFTMAX),
          premises=(wide,), law=NO_TRAINING),
    claim("ganea-mos-costly", "MoS takes at least twice the time of Softmax.", "Table 1",
          r.above(TIME, math.log(2)), (MOS, SOFTMAX), premises=(wide,), law=NO_TRAINING),
    claim("ganea-learned-shape", "LMS-PLIF learns a function far from linear: training spreads its slopes.", "Table 2",
          r.above(SHAPE, math.log(1.05)), (PLIF,), law=NO_TRAINING),
    claim("ganea-lms-kl", "On random laws LMS is mostly nearer than Softmax and MoS.", "Figure 3",
          r.above(_lms_best("kl_nats", -1), 0.5), corpora=SYNTHETIC),
    claim("ganea-lms-modes", "On random laws LMS mostly finds more modes, too.", "Figure 2",
          r.above(_lms_best("mode_match", 1), 0.5), corpora=SYNTHETIC),
    claim("ganea-lms-low-d", "LMS gains most where many words meet a narrow model.", "section 5.1",
          r.above(GAINS, 0), corpora=SYNTHETIC),
    claim("ganea-width-helps", "The least cross-entropy of a softmax falls as it gets wider.", "Corollary 2.1",
          r.above(FALLS, 0.8), corpora=SYNTHETIC),
    claim("ganea-theorem-1", "No softmax is nearer in squared error of log P than the law’s singular values allow.",
          "Theorem 1", r.above(ERRORS, -1e-6, "no fit is below the bound"), corpora=SYNTHETIC,
          limits="Anything about cross-entropy: what is least in one is not in the other."),
    claim("ganea-theorem-5", "Element by element, the p-th power of a rank-d matrix has rank C(d + p − 1, p) at most.",
          "Theorem 5", _theorem("power", lambda p, rank: math.comb(POWER_RANK + p - 1, p) - rank),
          corpora=SYNTHETIC),
    claim("ganea-theorem-6", "Squaring, element by element, makes a square matrix of rank N − 1 full-rank.",
          "Theorem 6", _theorem("square", lambda p, rank: rank - SQUARE_SIZE), corpora=SYNTHETIC),
)  # fmt: skip
