"""Conclusions of Parthiban, Mao and Inkpen 2021, with its supplement (SM)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from scipy import special

from softmax_bottleneck.ranks.robustness import TRUE_RANK
from softmax_bottleneck.records.metrics import PRESS_RANK, SIGMA_10, SPEARMAN, TEST_PPL, TOP5_HIT, TRAIN_PPL
from softmax_bottleneck.records.records import groups
from softmax_bottleneck.report.claims import engine as e
from softmax_bottleneck.report.claims import quantities as q
from softmax_bottleneck.report.claims import rules as r
from softmax_bottleneck.report.claims.premises import Premise, averaged, spread_above_noise
from softmax_bottleneck.report.claims.view import LAW, SYNTHETIC, View
from softmax_bottleneck.report.claims.wording import Code
from softmax_bottleneck.report.numbers import p_value

HEADS = ("softmax", "ss", "gss", "lms-plif", "lms-plif-frozen", "moc", "mos")
ALL, ALL_NT = "|".join(HEADS), "|".join(f"{head}-nt" for head in HEADS)
LOW, MANY = "softmax|moc|lms-plif", "ss|gss|mos"  # heads of low and of high rank in the paper
GRID, COMPONENTS, DROPOUT = "gss-grid-*", "mos-nt-components*", "mos-nt-dropout_latent*"
FEW_BENCHMARKS = 5  # they overlap: two of the published thirteen are parts of a third
SETTINGS = re.compile(r"-c(?P<c>-?[\d.]+)-k(?P<k>-?[\d.]+)$")  # in the name of a member of the family
MOVES = 0.01  # p of an F-test that the settings of a family move its rank
RHO = 0.02  # of a Spearman correlation: what is too small to matter


# --- quantities of this paper alone ---------------------------------------------------------------------------------
def _spread(view: View, pattern: str) -> list[float]:
    """Return the distance of each model's log rank from the mean."""
    logs = [math.log(view.mean(model, PRESS_RANK)) for model in view.learned(pattern) if view.runs(model, PRESS_RANK)]
    return [abs(log - math.fsum(logs) / len(logs)) for log in logs] if len(logs) >= q.MIN_POINTS else []


def _settings_move_rank(view: View, patterns: Sequence[str]) -> Premise | None:
    """Check by an F-test that log rank depends on the settings c and k in the models' names."""
    named = [(SETTINGS.search(model), view.mean(model, PRESS_RANK)) for model in view.learned(patterns[0])]
    known = [(1.0, float(found["c"]), float(found["k"]), math.log(rank)) for found, rank in named if found and rank > 0]
    if len(known) < q.MIN_POINTS:
        return None
    table_N4 = np.array(known)
    fitted, _, dimensions, _ = np.linalg.lstsq(table_N4[:, :3], table_N4[:, 3])
    total = float(((table_N4[:, 3] - table_N4[:, 3].mean()) ** 2).sum())
    rest = float(((table_N4[:, 3] - table_N4[:, :3] @ fitted) ** 2).sum())
    freedom = len(known) - int(dimensions)
    ratio = (total - rest) / max(int(dimensions) - 1, 1) / max(rest / freedom, 1e-12)
    p = float(special.fdtrc(max(int(dimensions) - 1, 1), freedom, ratio))
    return Premise(Code.TREATMENT, {"p": p_value(p), "limit": MOVES}, p < MOVES)


def _nt_losses(view: View, heads: str, _: str) -> Iterator[float]:
    """Yield, for each head with both switches, the mean over common seeds of NT's loss less ET's, in nats."""
    for head in view.matching(heads):
        et, nt = view.runs(head, TEST_PPL), view.runs(f"{head}-nt", TEST_PPL)
        if losses := [math.log(nt[seed] / ppl) for seed, ppl in et.items() if seed in nt]:
            yield math.fsum(losses) / len(losses)


def _vector_gaps(view: View, *models: str) -> Iterator[float]:
    for condition in sorted(view.records.conditions(SPEARMAN, view.dataset)):
        means = [view.mean(model, SPEARMAN, condition) for model in models]
        if not any(map(math.isnan, means)):
            yield means[0] - means[1]


def _ranks_apart(view: View, models: Sequence[str]) -> Premise | None:
    """Check that every run of a low-rank head has less than half of the rank of any run of a high-rank head."""
    low, high = ([rank for m in view.matching(p) for rank in view.runs(m, PRESS_RANK).values()] for p in models)
    if not low or not high:
        return None
    return Premise(Code.RANKS_APART, {"low": max(low), "high": min(high)}, 2 * max(low) < min(high))


def _enough_benchmarks(view: View, models: Sequence[str]) -> Premise:
    n = len(list(_vector_gaps(view, *models)))
    return Premise(Code.BENCHMARKS, {"benchmarks": n, "limit": FEW_BENCHMARKS}, n >= FEW_BENCHMARKS)


def _enough_runs(view: View, models: Sequence[str]) -> Premise:
    runs = [len(view.runs(model, TEST_PPL)) for model in models]
    facts = {"runs": " and ".join(map(str, runs)), "limit": q.MIN_RUNS}
    return Premise(Code.RUNS, facts, min(runs) >= q.MIN_RUNS, becomes=r.UNDECIDED)


def _hits(view: View, low: str, high: str) -> Iterator[float]:
    """Yield, for each context where a high-rank model is right, 1 if a low-rank model is right, too."""
    for condition in sorted(view.records.conditions(TOP5_HIT, view.dataset)):
        right = [any(view.mean(model, TOP5_HIT, condition) >= 0.5 for model in view.matching(p)) for p in (low, high)]
        if right[1]:
            yield float(right[0])


def _noise(view: View) -> list[float]:
    """Return the true rank less the effective rank at each noise level that doubles the Press rank."""
    rows = view.records.synthetic
    parts = groups(rows[rows["condition"].str.contains(r"(?:^|[; ])c=")], "condition")
    means = [part.groupby("metric")["value"].mean() for _, part in parts]
    known = [(ranks[PRESS_RANK], ranks[ranks.index.str.startswith("rank_eff_")].max()) for ranks in means]
    gaps = [TRUE_RANK - effective for press, effective in known if effective > 0 and press >= 2 * TRUE_RANK]
    return gaps or [-math.inf] * bool(known)


def _rebuilt(view: View) -> list[float]:
    rows = view.records.synthetic
    chosen = rows[rows["condition"].str.startswith("iteration=") & (rows["metric"] == PRESS_RANK)]
    return [-abs(rank - TRUE_RANK) for rank in chosen["value"]]


CORRELATION = "Pearson’s r of perplexity and rank"
SPREAD = q.of_units(_spread, q.student, "mean distance of log rank from its mean", "×", (PRESS_RANK,), "models")
SWITCHES = q.of_units(
    _nt_losses, q.student, "test perplexity of NT against ET, mean over heads", "%", (TEST_PPL,), "heads"
)
VECTORS = q.of_units(
    _vector_gaps, q.student, "Spearman’s ρ of word similarity", "", (TEST_PPL,), "benchmarks", "{0} less {1}"
)
HITS = q.of_units(
    _hits,
    q.wilson,
    "contexts a high-rank head gets right that a low-rank one does too",
    "share",
    (TEST_PPL,),
    "contexts",
)
NOISE = q.of_units(_noise, q.least, "true rank less effective rank, least of all noise levels", units="levels")
REBUILT = q.of_units(_rebuilt, q.least, "change of the Press rank, largest of all rounds", units="rounds")
SHARE = q.within_run("rank_eff_1e-4", PRESS_RANK, "effective rank (ε = 1e−4) over Press rank", "×")
FIRST = q.within_run(PRESS_RANK, "rank_press_all", "Press rank of the first contexts over that of all")
TENTH = q.against(SIGMA_10, "", log=False)
TRAIN = q.against(TRAIN_PPL)

# --- the claims -----------------------------------------------------------------------------------------------------
claim = partial(e.Claim, "parthiban2021")
GRID_PREMISES = (spread_above_noise("gss"), _settings_move_rank)
CLAIMS = (
    claim("grid-correlation", "Across the GSS family, rank and test perplexity are only weakly correlated.", "Figure 2",
          r.weak(q.correlation(f"{CORRELATION} over the family")), (GRID,), premises=GRID_PREMISES,
          law=((GRID, LAW), ())),
    claim("window-correlation", "Among its better members, leaving out outliers, the correlation is weak too.",
          "Figure 2", r.weak(q.correlation(f"{CORRELATION} within 1 % of the median", r.SMALL)), (GRID,),
          premises=GRID_PREMISES, law=((GRID, LAW), ())),
    claim("all-correlation", "Across all heads, rank and test perplexity are only weakly correlated.", "Abstract",
          r.weak(q.correlation(f"{CORRELATION} over heads")), ("softmax", f"{ALL}|{GRID}"),
          premises=GRID_PREMISES[:1],
          law=(("softmax", f"{ALL}|{GRID}", LAW), ())),
    claim("diverse-ranks", "Members of the GSS family differ widely in rank: as if spread over a factor of 2.",
          "Figure 2", r.above(SPREAD, r.HIGH / 4), (GRID,), premises=(_settings_move_rank,),
          law="it is no member of the family"),
    claim("not-necessary", "A high rank is not necessary: LMS-PLIF has a low rank and beats Softmax.", "Table 2",
          r.every(r.LOW_RANK, r.better()), ("lms-plif", "softmax"), law=((LAW, "softmax"), e.LAW_FAILS)),
    claim("not-sufficient", "A high rank is not sufficient: SS or GSS have one and hardly beat Softmax.", "Table 2",
          r.heads(r.every(r.HIGH_RANK, r.no_gain()), all_=False), ("ss|gss", "softmax"),
          law=((LAW, "softmax"), e.LAW_FAILS)),
    claim("rank-order", "LMS-PLIF has a far lower rank than SS and yet is the better model.", "Table 1",
          r.every(r.below(r.rank_against(), -r.HIGH), r.better()), ("lms-plif", "ss"),
          law=((LAW, "ss"), e.LAW_FAILS)),
    claim("plif-better", "LMS-PLIF beats Softmax.", "Table 2", r.better(), ("lms-plif", "softmax"),
          law=e.law_wins("softmax")),
    claim("mos-better", "MoS beats Softmax.", "Table 2", r.better(), ("mos", "softmax"), law=e.law_wins("softmax")),
    claim("mos-beats-plif", "MoS gains more than LMS-PLIF does.", "Table 2", r.better(), ("mos", "lms-plif"),
          law=e.law_wins("lms-plif")),
    claim("no-gain", "SS and GSS gain nothing that matters.", "Table 2", r.heads(r.no_gain()),
          ("ss|gss", "softmax"), e.NOT_WT2, law=((LAW, "softmax"), e.LAW_FAILS)),
    claim("minimal-gain", "SS and GSS gain significantly, but minimally, on WikiText-2.", "Table 2",
          r.heads(r.minimal_gain()), ("ss|gss", "softmax"), e.WT2, law=e.NATURAL),
    claim("low-rank-hits", "Where a high-rank head has the true word in its top five, a low-rank one has it too.",
          "Figure 3", r.above(HITS, 0.8),
          (f"{LOW}|moc-nt", f"{MANY}|mos-nt"), premises=(_ranks_apart,), law="its first five words are not recorded"),
    claim("moc-embeddings", "MoC, without a high rank, learns word vectors no worse than MoS’s.", "Figure 4",
          r.above(VECTORS, -RHO, margin=RHO), ("moc", "mos"),
          premises=(_ranks_apart, _enough_benchmarks, _enough_runs), law="it has no word vectors"),
    claim("frozen-plif", "Frozen random slopes are no worse than learned ones in LMS-PLIF.", "Table 4", r.no_worse(),
          ("lms-plif-frozen", "lms-plif"), law=(("lms-plif-frozen", LAW), e.LAW_FAILS)),
    claim("plif-regularises", "PLIF trades train for test perplexity, as a regulariser does.", "Tables 2 and 3",
          r.every(r.above(TRAIN, 0, margin=r.MARGIN), r.better()), ("lms-plif-frozen", "softmax"),
          law=((LAW, "softmax"), (*e.LAW_FAILS, r.UNDECIDED))),
    claim("rank-grows-with-k", "The rank of MoS grows with its number of components.", "SM Tables 4 and 5",
          r.hidden(r.above(q.along(PRESS_RANK), 0)), (COMPONENTS,), law=e.NO_SETTING),
    claim("k-helps", "More components lower the test perplexity of MoS.", "Figures 5 and 6",
          r.below(q.along(TEST_PPL), 0), (COMPONENTS,), law=e.NO_SETTING),
    claim("k-overfits", "More components widen the gap between train and test perplexity.", "Figure 6",
          r.above(q.along(TEST_PPL, TRAIN_PPL), 0), (COMPONENTS,), law=e.NO_SETTING),
    claim("rank-without-gain", "With less dropout in its mixture, MoS’s rank rises and its test perplexity gets worse.",
          "Figure 5, SM Table 12",
          r.every(r.hidden(r.below(q.along(PRESS_RANK), 0)), r.below(q.along(TEST_PPL), 0)),
          (DROPOUT,), law=e.NO_SETTING),
    claim("fair-softmax", "Compared fairly, Softmax is no worse than MoS.", "Table 5", r.no_worse(),
          ("softmax-fair", "mos-fair"), law=(("softmax-fair", LAW), e.LAW_FAILS)),
    claim("narrow-softmax", "As narrow as MoS, Softmax cannot be made as good.", "text on Table 5",
          r.larger(), ("softmax-fair280", "mos-fair"), law=(("softmax-fair280", LAW), (r.REPRODUCED,))),
    claim("press-overestimates", "Press’s rank overestimates: the effective rank is at most half of it.", "Table 6",
          r.hidden(r.heads(r.below(SHARE, math.log(0.5)))), (MANY,), law=((LAW,), e.LAW_FAILS)),
    claim("spectra-alike", "Normalised, the singular values of all heads fall off alike: to a tenth of the plot.",
          "Figure 7", r.heads(r.between(TENTH, (-0.02, 0.02))), ("ss|gss|lms-plif|mos", "softmax"),
          law="of its spectrum ranks alone are recorded"),
    claim("fewer-contexts", "The matrix of the first contexts has a lower Press rank than that of all.", "SM 5.1",
          r.below(FIRST, 0.0), ("mos-nt",), law="its rank is exact, of however many contexts"),
    claim("et-better", "Switching to averaged SGD at a fixed epoch (ET) is better than on no progress (NT).",
          "SM Tables 10 and 11", r.above(SWITCHES, 0, margin=r.MARGIN), (ALL, ALL_NT),
          premises=(averaged,), law=e.NO_TRAINING),
    claim("noise-inflates", "Tiny noise makes a low-rank matrix look full-rank to Press’s rank, not to the other.",
          "SM Tables 15 and 16", r.above(NOISE, -0.5, "at every noise level that doubles the Press rank, no "
          "effective rank exceeds the true one"), corpora=SYNTHETIC),
    claim("rebuilding", "Press’s rank is robust to taking a matrix apart and putting it together.", "SM Table 14",
          r.above(REBUILT, -0.5, "the rank is the same in every round"), corpora=SYNTHETIC),
)  # fmt: skip
