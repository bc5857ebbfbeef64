"""Claims that need no corpus: about heads fitted to known distributions, untrained layers, and matrices of rank ten.

Every seed of a fit samples its own distributions. A seed is therefore the statistical unit of the fits' intervals. The
table of fits has one row per fit, and a column for each setting and metric; the function `fits` lists its columns.

Symbols: r rank of the true distribution's logits (its log-probabilities have rank r + 2), d width of the fitted head
(D in printed texts). In fits to Dirichlet samples: alpha concentration, M words, N contexts. In untrained layers: K
softmaxes, H width, V words. LMS is the linear monotonic softmax of Ganea et al. 2019, and MoS is the mixture of
softmaxes.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Literal

import numpy as np
import pandas as pd

from softmax_bottleneck.heads.registry import declaration
from softmax_bottleneck.ranks.robustness import TRUE_RANK
from softmax_bottleneck.records.metrics import GAP_CLOSED, KL, KL_NO_CONTEXT, MODE_MATCH, PRESS_RANK
from softmax_bottleneck.report.claims import rules as r
from softmax_bottleneck.report.claims.verdict import Claim, Code, Premise
from softmax_bottleneck.statistics.correlations import pearson_r
from softmax_bottleneck.statistics.intervals import ALPHA, MIN_POINTS, Interval, smallest, spearman, student, wilson

BASELINE = "softmax"
TEXTS = ("truth", "head", "equal")  # keys of a condition with a text; all others have a number
# Godey and Artzi 2026 report that the output layer suppresses most of the gradient of the loss. Here the best gradient
# is known. The claims are about distributions with r > d, and heads with hardly more parameters than the softmax.
EARLY, LATE = "gradient_energy_early", "gradient_energy"
SOFTMAX, NARROW = "model == @head", "model == @head and r > d"  # queries of the table of fits
EXACT = "d >= r and width == d"  # query of fits that can be exact: of the planned width, which is large enough
EXACT_DIRICHLET = "d >= M"  # every distribution over M words has logits of rank M
# The condition of a sample of an untrained layer (`measuring/synthetic_experiments.py`), all at their default.
LAYER = re.compile(r"^K=(?P<K>\d+);H=(?P<H>\d+);V=(?P<V>\d+);S=\d+;untrained;equal mixing$")
# The condition of a sample of the sweep over widths and vocabularies (`measuring/synthetic_experiments.py`).
SWEEP = re.compile(r"^K=(?P<K>\d+);H=(?P<H>\d+);V=(?P<V>\d+);.*;sweep$")


# --- fits to distributions of known rank ----------------------------------------------------------------------------
def wide(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a table with one row per fit or true distribution, from records with one number per row.

    The input has the columns model, condition, seed, metric and value. The result has the columns model and seed, one
    per metric, and one per key of the conditions, such as `d` for `r=10;d=5;head=mos;equal=softmax`. The columns
    `truth`, `head` and `equal` hold texts, the others numbers. `equal` names the head whose number of parameters the
    fitted head must not exceed. It is empty if there is no such limit.
    """
    if rows.empty:
        return pd.DataFrame(columns=["model", "seed"])
    wide = rows.pivot(index=["model", "condition", "seed"], columns="metric", values="value").reset_index()
    pairs = ([part.partition("=") for part in condition.split(";")] for condition in wide["condition"])
    lines = [{"equal": ""} | {key: v if key in TEXTS else float(v) for key, _, v in parts} for parts in pairs]
    return pd.concat([wide.drop(columns="condition"), pd.DataFrame(lines, index=wide.index)], axis=1)


def split(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return two tables (see `wide`), one of the fits and one of the true distributions among some records."""
    is_truth = rows["model"] == r.TRUTH
    return wide(rows[~is_truth]), wide(rows[is_truth])


def fits_of(data: r.CorpusData, key: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return two tables, one of the fits and one of the true distributions whose condition has the key `key`.

    The columns are model and seed, one per metric, and one per key of the conditions (see `wide`). Pass the key `r`
    for distributions of known rank, and `alpha` for Dirichlet samples. If several plans have fits with this key, the
    table has those of the first plan only, because plans may differ in settings: the first of the study's YAML or, for
    records without a study, of the records.
    """
    rows = data.records.synthetic
    rows = rows[rows["condition"].str.contains(rf"(?:^|;){key}=")]
    plans = data.study.fits if data.study else rows["table"].unique()
    return split(rows[rows["table"] == next((name for name in plans if name in set(rows["table"])), "")])


def share_closed(kl: pd.Series, kl_softmax: pd.Series) -> pd.Series:
    """Return the share of the softmax's KL that fits to the same distribution close; negative if they are worse."""
    return 1.0 - kl / kl_softmax


@cache
def fits(data: r.CorpusData) -> pd.DataFrame:
    """Return a table with one row per fit to a distribution of known rank.

    A fit without a softmax fit of the same r, d and seed has no row. Without any fits the table has columns but no
    rows. The columns are:

    * model, seed, r, d (here the planned width), and one column per metric of the fit.
    * `width`, one of these metrics: the width of the fitted head. It differs from d if the head was made wider or
      narrower to have at most as many parameters as another head.
    * `<metric>_truth`, the same metric of the true distribution.
    * `<metric>_softmax`, the same metric of the softmax fit with the same r, d and seed.
    * `lost`: the KL as a share of the unigram model's KL.
    * `gap_closed`: the fraction of the softmax's KL that the head closes; negative if the head is worse.
    * `extra`: the relative excess of the head's parameters over the softmax's; 0.1 is 10 % more.
    """
    fitted, truth = fits_of(data, "r")
    if not {"d", KL} <= set(fitted):
        return pd.DataFrame(columns=["model", "seed", "r", "d", "width", "lost", "extra"], dtype=float)
    joined = fitted.merge(truth.drop(columns="model"), on=["r", "seed"], suffixes=("", "_truth"))
    softmax = fitted[fitted["model"] == BASELINE].drop(columns="model")
    joined = joined.merge(softmax, on=["r", "d", "seed"], suffixes=("", "_softmax"))
    return joined.assign(
        lost=joined[KL] / joined[KL_NO_CONTEXT],
        extra=joined["parameters"] / joined["parameters_softmax"] - 1,
        **{GAP_CLOSED: share_closed(joined[KL], joined[f"{KL}_softmax"])},
    )


def over_seeds(what: str, unit: str, which: str, value: Callable[[pd.DataFrame], float], names: str = "") -> r.Quantity:
    """Return a quantity with one number per seed, estimated by its mean with a Student interval.

    Args:
        what: the printed name of the quantity.
        unit: `share` for a share, `%` for a difference of logarithms, or empty; the first two are printed in percent.
        which: a pandas query that selects rows of the table of fits. In it, `@head` is the model of the claim, or the
            softmax if the claim names no model.
        value: computes the number from the selected rows of one seed. A number that is not finite is left out.
        names: a text printed after `what`, in which `{0}` becomes the label of the claim's model; empty for none.
    """

    def collect(data: r.CorpusData, head: str = BASELINE) -> list[float]:
        parts = fits(data).query(which, local_dict={"head": head}).groupby("seed")
        return [number for _, part in parts if math.isfinite(number := value(part))]

    return r.Quantity(collect, student, what, unit, names=names)


# A function below with a decorator becomes the quantity whose numbers it collects.
@partial(over_seeds, "smallest growth of KL at a step of r or d, r > d", "%", NARROW)
def smallest_step(part: pd.DataFrame) -> float:
    """Return the smallest increase of ln KL over all steps in the grid (r, d) of `part`, the fits of one seed.

    A step goes to the next larger r at equal d, or to the next smaller d at equal r. Without any step, return inf.
    """
    logs = part.pivot(index="r", columns="d", values=KL).map(math.log)
    steps = np.concatenate([logs.diff(axis=0).to_numpy().ravel(), -logs.diff(axis=1).to_numpy().ravel()])
    return float(np.nanmin(steps, initial=math.inf))


@partial(over_seeds, "Pearson’s r of rank over r, and KL", "", SOFTMAX)
def width_and_loss(part: pd.DataFrame) -> float:
    """Return Pearson's correlation of log(Press rank / r) and relative KL over the softmax fits of one seed.

    `part` has these fits, from the table of fits. The relative KL (column `lost`) is the KL of a fit divided by the KL
    of a unigram model. The Press rank is the number of singular values of the fitted log-probabilities above
    the threshold of Press et al. 2007. For fewer than MIN_POINTS fits return nan.
    """
    log_rank_N = np.log((part[PRESS_RANK] / part["r"]).to_numpy())
    return float(pearson_r(log_rank_N, part["lost"].to_numpy())) if len(part) >= MIN_POINTS else math.nan


def within_distributions(first: str, second: str, part: pd.DataFrame, *, ranked: bool = False) -> float:
    """Return Pearson's correlation of the logarithms of the columns `first` and `second` of `part`.

    `part` has the fits of one seed. From each logarithm, the mean over all heads with the same r and d is subtracted
    first, so that only differences between heads count. If `ranked` is true, the ranks among these heads take the place
    of the logarithms. Fits in which a column is not positive are left out. Return nan if a column is missing or fewer
    than MIN_POINTS fits remain.
    """
    if not {first, second} <= set(part):
        return math.nan
    part = part[(part[[first, second]] > 0).all(axis=1)]
    distribution = [part["r"], part["d"]]
    scores = part[[first, second]].groupby(distribution).rank() if ranked else part[[first, second]].map(math.log)
    centred = (scores - scores.groupby(distribution).transform("mean")).round(12).to_numpy()  # equal ranks leave zeros
    return float(pearson_r(centred[:, 0], centred[:, 1])) if len(part) >= MIN_POINTS else math.nan


def rank_and_kl(table: pd.DataFrame, *, ranked: bool = False) -> Interval:
    """Return the mean over seeds of the correlation of log Press rank and log KL, with Student's interval.

    `table` has the columns of `fits_of`; `ranked` and the correlation of a seed are those of `within_distributions`.
    """
    by_seed = table.groupby("seed")
    values = [within_distributions(PRESS_RANK, KL, part, ranked=ranked) for _, part in by_seed]
    return student([np.array([value for value in values if math.isfinite(value)])[:, None]], ALPHA / 2)


def _correlation(first: str, second: str, names: str, which: str) -> r.Quantity:
    what = f"Pearson’s r of {names}, same distribution and width"
    return over_seeds(what, "", which, partial(within_distributions, first, second))


def _mean(metric: str, part: pd.DataFrame) -> float:
    return float(part[metric].mean()) if metric in part else math.nan


def _lost(end: str, part: pd.DataFrame) -> float:
    return float(part["lost"].agg(end))


def predicts(first: str, second: str, names: str, strong: float, extra: float) -> r.Rule:
    """Return the rule that the logarithms of two columns of the table of fits have a correlation below -`strong`.

    The rule takes the logarithm of both columns, and subtracts from each value the mean over all heads with the same r,
    d and seed. It then computes Pearson's correlation for each seed, and tests the mean over the seeds. A fit counts if
    r > d and its head has at most the fraction `extra` more parameters than the softmax.

    Args:
        first: the name of the column that should predict: a rank or a measure of the gradient.
        second: the name of the column that should be predicted: a KL divergence.
        names: the printed names of the two logarithms, such as `log rank and log KL`.
        strong, extra: thresholds of the claim in report/claims.yaml.
    """
    return r.below(_correlation(first, second, names, f"r > d and extra <= {extra}"), -strong)


def _some_head(rule: r.Rule, condition: str, exact: float = math.inf) -> r.Rule:
    """Return the rule that holds if `rule` holds for at least one qualifying head other than the softmax.

    Args:
        rule: the rule for one head.
        condition: a pandas query on the table of fits. A head qualifies if every one of its fits with r > d matches the
            query. An example is `extra <= 0.05`: at most 5 % more parameters than the softmax.
        exact: if finite, the head must also have fits that are wide enough to be exact (d >= r, with the planned
            width). The KL of each of these fits must be less than this share of the unigram model's KL.
    """

    def chosen(data: r.CorpusData) -> list[str]:
        lost = fits(data).query(EXACT).groupby("model")["lost"].max()
        narrow = fits(data).query("r > d and model != @head", local_dict={"head": BASELINE})
        models = [str(model) for model, part in narrow.groupby("model") if len(part.query(condition)) == len(part)]
        return [model for model in models if exact == math.inf or lost.get(model, 1.0) < exact]

    return r.heads(rule, all_=False, chosen=chosen)


def converged(
    data: r.CorpusData,
    _claim: Claim,
    kl_share: float,
    heads: Sequence[str],
    table: Literal["exact_fits", "exact_dirichlet_fits"] = "exact_fits",
    spoils: Sequence[str] = r.VERDICTS,
) -> Premise:
    """Return the premise that the fits of `heads` recover every true distribution that the heads can represent.

    A fit recovers a distribution if its KL is less than the share `kl_share` of the unigram model's KL. The premise is
    broken, too, if no fit of `heads` is wide enough to represent its distribution.

    Args:
        data: the records of the study.
        kl_share: the share.
        heads: names such as `mos`.
        table: the fits that are wide enough to be exact: `exact_fits` of synthetic languages (EXACT), or
            `exact_dirichlet_fits` of Dirichlet samples (EXACT_DIRICHLET).
        spoils: the verdicts that become `cannot be tested here` if the premise is broken.

    Raises:
        KeyError: report/claims.yaml names another table.
    """
    wanted: Mapping[str, tuple[Callable[[r.CorpusData], pd.DataFrame], str]] = {
        "exact_fits": (fits, EXACT), "exact_dirichlet_fits": (dirichlet, EXACT_DIRICHLET)
    }  # fmt: skip
    table_of, is_exact = wanted[table]
    exact = table_of(data).query(is_exact)
    lost = exact.groupby("model")["lost"].max().reindex(list(heads)).dropna()
    if lost.empty:
        return Premise(Code.FITS_UNCHECKED, {}, False, tuple(spoils))
    values = {"head": declaration(str(lost.idxmax())).label, "loss": lost.max(), "limit": kl_share}
    return Premise(Code.FITS_CONVERGED, values, bool(lost.max() < kl_share), tuple(spoils))


@partial(r.Quantity, estimate=smallest, what="squared error less its bound, smallest over fits", units="fits")
def theorem_gaps(data: r.CorpusData) -> list[float]:
    """Return, for every softmax fit, the mean squared error of its log-probabilities minus the least possible error.

    The least possible error is the bound of theorem 1 of Ganea et al. 2019, computed from the singular values of the
    true log-probabilities. A negative difference, beyond rounding, would contradict the theorem.
    """
    rows = fits(data).query(SOFTMAX, local_dict={"head": BASELINE}).to_dict("records")
    return [row["squared_error"] - row[f"squared_error_bound_d{row['d']:g}"] for row in rows if "squared_error" in row]


# --- fits to Dirichlet samples --------------------------------------------------------------------------------------
DIRICHLET = ("softmax", "mos", "lms")  # the heads of Ganea et al. 2019


def dirichlet(data: r.CorpusData) -> pd.DataFrame:
    """Return a table with one row per fit to a Dirichlet sample of M words.

    The columns are model, seed, alpha, M, N, d, one per metric, and `lost`: the KL as a share of that of the best model
    that does not see the context. Without any fits the table has columns but no rows.
    """
    (fitted, truth), keys = fits_of(data, "alpha"), ["alpha", "M", "seed"]
    if not {"d", KL} <= set(fitted):
        return pd.DataFrame(columns=["model", *keys, "d", "lost", KL, MODE_MATCH], dtype=float)
    joined = fitted.merge(truth.reindex(columns=[*keys, KL_NO_CONTEXT]), on=keys, how="left")
    return joined.assign(lost=joined[KL] / joined[KL_NO_CONTEXT])


def _cells(data: r.CorpusData, metric: str) -> pd.DataFrame:
    """Return a metric of the fits to Dirichlet samples, averaged over seeds, in a table with one row per (alpha, M, d).

    The columns are alpha, M, d, and one per head: softmax, mos and lms. Rows in which a head has no value are left out.
    """
    table = dirichlet(data).pivot_table(index=["alpha", "M", "d"], columns="model", values=metric)
    return table.reindex(columns=list(DIRICHLET)).dropna().reset_index()


def _lms_best(metric: str, sign: int, name: str) -> r.Quantity:
    """Return the quantity that is the share of the cells (alpha, M, d < M) where LMS is better than Softmax and MoS.

    A cell has the means over the seeds of the fits to Dirichlet samples with one alpha, M and d. `metric` is the name
    of the compared metric in the records, such as `kl_nats`. `sign` is 1 if larger values of the metric are better, and
    -1 if smaller ones are. `name` is how the rule prints the metric, such as "KL".
    """

    def collect(data: r.CorpusData) -> "pd.Series[bool]":
        cells = _cells(data, metric).query("d < M")  # with d >= M a difference shows only the optimiser
        return sign * cells["lms"] > (sign * cells[["softmax", "mos"]]).max(axis=1)

    return r.Quantity(collect, wilson, f"cells where LMS is best in {name}", "share", units="cells")


def _lms_gain(metric: str, sign: int, name: str) -> r.Rule:
    """Return the rule that the advantage of LMS over Softmax grows with M / d; arguments are as in `_lms_best`.

    The advantage is the difference of the two heads' metrics, as in Ganea et al. 2019, section 5.1.
    """

    def collect(data: r.CorpusData) -> Iterator[tuple[float, float]]:
        cells = _cells(data, metric).query("d < M")
        return zip(cells["M"] / cells["d"], sign * (cells["lms"] - cells["softmax"]), strict=True)

    what = f"Spearman’s ρ of M / D and the difference of LMS and Softmax in {name}"
    return r.above(r.Quantity(collect, spearman, what, units="cells"), 0)


@partial(r.Quantity, estimate=wilson, what="steps of D at which the KL of Softmax falls", unit="share", units="steps")
def softmax_falls(data: r.CorpusData) -> list[float]:
    """Return a number for each step from a d < M to the next larger d: 1 if the softmax's KL falls, and otherwise 0."""
    cells = _cells(data, KL)
    cells["step"] = cells.groupby(["alpha", "M"])["softmax"].diff(-1)  # to the next larger d
    return list((cells.query("d < M")["step"].dropna() > 0).astype(float))


# --- noise and untrained layers -------------------------------------------------------------------------------------
@partial(r.Quantity, estimate=smallest, what="true rank less effective rank, smallest over noise levels",
         units="levels")  # fmt: skip
def noise(data: r.CorpusData) -> Iterable[float]:
    """Return TRUE_RANK minus the largest effective rank, for each noise level with a Press rank of 2 TRUE_RANK or more.

    Noise is added to matrices of rank TRUE_RANK (`ranks/robustness.py`). The Press rank counts the singular values
    above a tolerance for rounding errors. The effective rank is the smallest number of singular values whose squares
    sum to at least 1 - epsilon of the total. The largest of the effective ranks measured for several epsilon is used.

    Returns:
        One number per such level. If no level has so high a Press rank, the result is [-inf], which makes the claim
        *not reproduced*. If no effective rank was measured, the result is empty, and the claim cannot be tested.
    """
    rows = data.records.synthetic
    means = rows[rows["condition"].str.contains(r"(?:^|[; ])c=")].pivot_table("value", "condition", "metric")
    known = means.assign(effective=means.filter(like="rank_eff_").max(axis=1)).query("effective > 0")
    if known.empty:
        return []
    return list(TRUE_RANK - known[known[PRESS_RANK] >= 2 * TRUE_RANK]["effective"]) or [-math.inf]


@partial(r.Quantity, estimate=smallest, what="change of the Press rank, largest over rounds", units="rounds")
def rebuilt(data: r.CorpusData) -> Iterable[float]:
    """Return -|Press rank - TRUE_RANK| in each round of rebuilding a matrix of rank TRUE_RANK.

    A round decomposes the matrix by SVD and multiplies all factors again (`ranks/robustness.py`), so that only rounding
    errors can change the rank. With the minus sign, the smallest number stands for the largest change.
    """
    rows = data.records.synthetic
    chosen = rows[rows["condition"].str.startswith("iteration=") & (rows["metric"] == PRESS_RANK)]
    return -abs(chosen["value"] - TRUE_RANK)


def _layers(data: r.CorpusData, model: str) -> pd.DataFrame:
    """Return a table with one row per random untrained layer of the head `model` (default settings only, see LAYER).

    The columns are those of `sweep`, `room` = H + 2 - rank, and `fullness` = rank / V.
    """
    rows = data.records.synthetic
    layers = sweep(rows[(rows["metric"] == "rank") & (rows["model"] == model)], LAYER)
    return layers.assign(room=layers["H"] + 2 - layers["rank"], fullness=layers["rank"] / layers["V"])


def sweep(rows: pd.DataFrame, condition: re.Pattern[str] = SWEEP) -> pd.DataFrame:
    """Return the ranks of untrained layers in a table with the columns K (softmaxes), H (width), V (words) and rank.

    `rows` are synthetic records (`Records.synthetic`). Those with another `condition` are left out; by default, only
    the sweep over widths and vocabularies counts.
    """
    sizes = rows["condition"].astype(str).str.extract(condition).dropna().astype(int)
    return sizes.assign(rank=rows["value"].loc[sizes.index].astype(float))


def softmaxes_needed(ranks: pd.DataFrame, share: float) -> dict[tuple[int, int], int | None]:
    """Return {(H, V): smallest K whose rank is at least a share of V}; None if no K of the sweep has such a rank.

    `ranks` is a table as `sweep` returns it.
    """
    full = ranks[ranks["rank"] >= share * ranks["V"]].groupby(["H", "V"])["K"].min().to_dict()
    return {(int(h), int(v)): full.get((h, v)) for h, v in sorted(set(zip(ranks["H"], ranks["V"], strict=True)))}


def needs_more(share: float) -> r.Rule:
    """Return the rule that the number of softmaxes that nearly full rank needs grows with V / H.

    Where no K of the sweep is enough, one more than the largest counts.
    """

    def collect(data: r.CorpusData) -> list[tuple[float, float]]:
        ranks = sweep(data.records.synthetic)
        needed = softmaxes_needed(ranks, share)
        return [(words / width, float(k or ranks["K"].max() + 1)) for (width, words), k in needed.items()]

    what = f"Spearman’s ρ of V / H and the softmaxes that {share:.0%} of full rank needs"
    return r.above(r.Quantity(collect, spearman, what, units="sizes"), 0)


def _room(model: str) -> r.Quantity:
    """Return the quantity that is the smallest room of random untrained layers of a head: width H plus 2 less rank."""
    what = f"H + 2 less the rank of {model}, smallest over samples"
    return r.Quantity(lambda data: _layers(data, model)["room"], smallest, what, units="samples")


# --- quantities -----------------------------------------------------------------------------------------------------
UNIGRAM = "as a share of the unigram model’s KL"
growth_of_mos = r.Quantity(
    lambda data: _layers(data, "mos")[["K", "rank"]].to_numpy(), spearman, "Spearman’s ρ of K and the rank of MoS",
    units="samples"
)  # fmt: skip
room_of_softmax, room_of_moc = map(_room, ("softmax", "moc"))
lms_best_kl, lms_best_modes = _lms_best(KL, -1, "KL"), _lms_best(MODE_MATCH, 1, "mode matching")
gap_closed = over_seeds("fraction of the KL gap closed", "share", NARROW, partial(_mean, GAP_CLOSED), names="{0}")
largest_loss = over_seeds(f"largest KL with d ≥ r, {UNIGRAM}", "share", f"{SOFTMAX} and d >= r", partial(_lost, "max"))
least_loss = over_seeds(
    f"smallest KL with r ≥ 2 d, {UNIGRAM}", "share", f"{SOFTMAX} and r >= 2 * d", partial(_lost, "min")
)
rank_and_loss = _correlation(PRESS_RANK, KL, "log rank and log KL", "r > d")
preserved_early = over_seeds("preserved energy of the best gradient, early", "share", NARROW, partial(_mean, EARLY))
preserved_late = over_seeds("preserved energy of the best gradient, at the end", "share", NARROW, partial(_mean, LATE))


# --- rules: their arguments are in report/claims.yaml -----------------------------------------------------------------
def lms_gains() -> r.Rule:
    """Return the rule that the advantage of LMS grows with M / d, in KL and in mode matching."""
    return r.every(_lms_gain(KL, -1, "KL"), _lms_gain(MODE_MATCH, 1, "mode matching"), agree=True)


def nearly_full(components: int, share: float) -> r.Rule:
    """Return the rule that untrained mixtures of at least so many softmaxes have more than a share of full rank."""

    def collect(data: r.CorpusData) -> "pd.Series[float]":
        return _layers(data, "mos").query(f"K >= {components}")["fullness"]

    what = f"rank of MoS over V, {components} softmaxes or more"
    return r.above(r.Quantity(collect, student, what, "share", units="samples"), share)


def rank_is_not_enough(gap: float, kl_share: float) -> r.Rule:
    """Return the rule that some converged head has the rank of every true distribution and closes less than `gap`."""
    return _some_head(r.below(gap_closed, gap), "rank_press >= r + 2 and width == d", kl_share)


def closes_gap(gap: float, extra: float) -> r.Rule:
    """Return the rule that some head with at most `extra` more parameters than the softmax closes more than `gap`."""
    return _some_head(r.above(gap_closed, gap), f"extra <= {extra}")
