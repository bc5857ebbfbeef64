"""The price of the bottleneck on natural distributions, and whether a head with more rank pays (config/price.yaml).

The *price* of a head at width d is its mean KL(P*||Q) as a share of the context-free KL, i.e. that of the best model
that sees no context. Its *gain* is the softmax's price minus its own. Margins, premises and outcomes are those that
the first lines of config/price.yaml declared before the first run, with the stricter rules of config/price-long.yaml
and the control of config/price-control.yaml.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, cast

import numpy as np
import pandas as pd

from softmax_bottleneck.heads.registry import declaration
from softmax_bottleneck.records.metrics import KL, KL_NO_CONTEXT
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report.claims import rules as r
from softmax_bottleneck.report.claims.known_distributions import BASELINE, split
from softmax_bottleneck.report.claims.verdict import Claim, Code, Premise
from softmax_bottleneck.statistics.intervals import ALPHA, MIN_RUNS, Float64, Interval, student
from softmax_bottleneck.statistics.pooled import holm
from softmax_bottleneck.statistics.samples import welch_t

MARGIN = 0.05  # share of the context-free KL by which a head must be better to pay
CHANGE, TENTH = 0.02, 0.1  # converged: twice the updates change KL by less than 2 %, or by a tenth of the margin
LEAST_WIDTH = 16  # the smallest width at which paying counts
TRUTHS = ("smollm2", "n-gram", "mixture", "mos")
CONTROL = ("mos", 64, "mos")  # truth, width and model: there the model must lose less than the softmax
SAMPLED, RECOVERED = ("sampled", 16, "mos"), 0.5  # here it can lose nothing; share of the softmax's loss to be gained
UPDATE_MS, PASSED = "update_ms", "control passed"
PAYS, NONE, OPEN = "pays", "none", "open"  # verdicts on a truth
MOST, DEPENDS = "most", "depends"  # further overall outcomes


@dataclass(frozen=True, kw_only=True)
class Price:
    """The price of a head at one width and truth, over the seeds that the softmax has, too.

    Attributes:
        truth, width, model, head: the true distribution, the planned width, the name of the model and that of its head.
        kl: mean KL in nats.
        share: the price.
        gain: gain on the softmax of the same planned width.
        at_time: gain on the softmax that takes as long for an update, which is as wide as that allows; nan if that
            is narrower than all widths, or if a softmax of the search has not converged.
        is_bound: True if the head takes longer than the widest softmax, with which `at_time` then compares it. Its gain
            at equal time is at most that.
        later: gain of one seed with twice the updates, the seed of the search; nan if that was not tried.
        change: the sum of the absolute changes of both prices by these updates.
        updates: number of these updates; 0 if they were not tried.
        p: p-value of the gain, Holm-corrected over all truths, widths and heads; nan for the softmax.
        unjudged: the broken premise because of which nothing is concluded, such as `not converged`; or empty.
        edge: True if the chosen step size is the smallest or the largest that was tried.
    """

    truth: str
    width: float
    model: str
    head: str
    kl: float
    share: Interval
    gain: Interval
    at_time: Interval
    is_bound: bool
    later: float
    change: float
    updates: float
    p: float
    unjudged: str
    edge: bool

    @property
    def verdict(self) -> str:
        """`pays`, `loses`, `small gain`, `small loss` or `open`; or that the cell is not judged, and why."""
        if self.unjudged:
            return f"not judged: {self.unjudged}"
        if abs(self.gain.value) >= MARGIN and self.gain.low * self.gain.high > 0:
            return PAYS if self.gain.value > 0 else "loses"
        if not (self.p < ALPHA and abs(self.gain.value) > self.change):
            return OPEN
        return "small gain" if self.gain.value > 0 else "small loss"

    @property
    def pays_at_time(self) -> bool:
        """True if the head pays in comparison with the softmax that takes as long."""
        return not (self.unjudged or self.is_bound) and self.at_time.low > 0 and self.at_time.value >= MARGIN


# --- from fits to prices --------------------------------------------------------------------------------------------
def prices_of(*studies: Records) -> list[Price]:
    """Return the judged prices of some studies' fits to TRUTHS and to the sampled mixture.

    For every truth, head and width, the fits that were checked with the most updates count.
    """
    longest = dict[tuple[str, str, float], Price]()
    for records in studies:
        for price in _unjudged(records):
            cell = price.truth, price.model, price.width
            longest[cell] = max(longest.get(cell, price), price, key=lambda price: price.updates)
    return judged(list(longest.values()))


@cache
def _unjudged(records: Records) -> list[Price]:
    """Return `prices` of some records; several findings, claims and tables ask for those of an archive."""
    return prices(*fits_of(records))


def fits_of(records: Records) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a line per fit, and a line per truth and seed, of the first such plan of fits in some records."""
    rows = records.synthetic
    rows = rows[rows["condition"].str.contains(f"(?:^|;)truth=(?:{'|'.join([*TRUTHS, SAMPLED[0]])});")]
    rows = rows[rows["table"] == rows["table"].iloc[0]] if len(rows) else rows
    return split(rows)


def prices(fits: pd.DataFrame, truths: pd.DataFrame) -> list[Price]:
    """Return the price of every truth, width and head, from a line per fit and a line per truth and seed.

    Their p-values are uncorrected, and the control of mixtures is not applied: `judged` does both.
    """
    if not {KL, UPDATE_MS, "truth"} <= set(fits):
        return []
    free = truths.drop_duplicates(["truth", "seed"])[["truth", "seed", KL_NO_CONTEXT]]
    fits = fits.reindex(columns=list(dict.fromkeys([*fits, "rate", "updates"])))
    fits = fits.merge(free.rename(columns={KL_NO_CONTEXT: "free"}), on=["truth", "seed"])
    checks = {key: _check(part) for key, part in fits.groupby(["truth", "model"])}
    tried = fits.groupby(["truth", "model"])["rate"].agg(["min", "max"])
    cells = compared(fits)
    softmax = cells[cells["model"] == BASELINE].sort_values(UPDATE_MS)
    cells = cells.merge(softmax[["truth", "d", "seed", KL]], on=["truth", "d", "seed"], suffixes=("", "_equal"))
    rivals = dict(list(softmax.groupby(["truth", "seed"])))
    runs = zip(cells["truth"], cells["seed"], cells[UPDATE_MS], strict=True)
    rival_kl = np.array([_at_time(rivals[truth, seed], ms) for truth, seed, ms in runs])
    rival_kl[[not checks[truth, BASELINE]["is_small"].all() for truth in cells["truth"]]] = math.nan
    cells["slow"] = cells[UPDATE_MS] > cells["truth"].map(softmax.groupby("truth")[UPDATE_MS].max())
    losses = {"share": cells[KL], "gain": cells[f"{KL}_equal"] - cells[KL], "at_time": rival_kl - cells[KL]}
    cells = cells.assign(**{name: nats / cells["free"] for name, nats in losses.items()})
    table = list[Price]()
    for (truth, model, head, width), seeds in cast("Any", cells.groupby(["truth", "model", "head", "d"])):
        intervals = {name: student([seeds[[name]].to_numpy()], ALPHA / 2) for name in losses}
        own, equal = (checks[truth, name].reindex([width]).iloc[0] for name in (model, BASELINE))
        ends, rate = tried.loc[(truth, model)], seeds["learning_rate"].iloc[0]
        table.append(Price(
            truth=truth, width=width, model=model, head=head, kl=float(seeds[KL].mean()), **intervals,
            is_bound=bool(seeds["slow"].any()), later=equal["later"] - own["later"],
            change=own["change"] + equal["change"], updates=np.nan_to_num(own["updates"]),
            p=math.nan if model == BASELINE else _p_value(seeds["gain"].tolist()),
            unjudged=_broken_premise(own["is_small"], equal["is_small"], len(seeds)),
            edge=not ends["min"] < rate < ends["max"],
        ))  # fmt: skip
    return table


def judged(table: Sequence[Price]) -> list[Price]:
    """Return prices with Holm's correction over all of them, and with mixtures not judged unless the control passed."""
    failed, adjusted = control(table), holm([price.p for price in table])
    mixtures = [price.head for price in table if failed and declaration(price.head).family == "mixture"]
    pairs = zip(table, adjusted, strict=True)
    return [replace(price, p=p, unjudged=failed if price.head in mixtures else price.unjudged) for price, p in pairs]


def _broken_premise(head: object, softmax: object, seeds: int) -> str:
    """Return why a cell is not judged; `head` and `softmax` are whether their check was passed, and nan without one."""
    if seeds < MIN_RUNS:
        return "too few seeds"
    if head is not True:
        return "not converged" if head is False else "not checked"
    return "" if softmax is True else f"{BASELINE} not converged"


def compared(fits: pd.DataFrame) -> pd.DataFrame:
    """Return the fits that are compared: those of no search, which have no `rate` and no `updates`."""
    return fits[fits.reindex(columns=["rate", "updates"]).isna().all(axis=1)]


def _p_value(gains: Sequence[float]) -> float:
    """Return the p-value of a mean gain by Student's test over seeds; nan if it cannot be computed (`welch_t`).

    Welch's test of a sample and of a number without variance is Student's test of this sample.
    """
    p = welch_t(gains, [0.0] * len(gains)).p if np.isfinite(gains).all() else None
    return math.nan if p is None else p


def _at_time(softmax: pd.DataFrame, ms: float) -> float:
    """Return the lowest KL of one seed's softmaxes whose update takes at most `ms`, interpolated on log scales.

    `softmax` is sorted by time. If all take longer, the result is nan.
    """
    times, kl = (np.log(softmax[name].clip(lower=1e-9).to_numpy()) for name in (UPDATE_MS, KL))
    return float(np.exp(np.interp(math.log(ms), times, np.minimum.accumulate(kl), left=math.nan)))


def _check(search: pd.DataFrame) -> pd.DataFrame:
    """Return what twice the updates did to a model at a truth, by searched width.

    The columns are `updates`, `later` (the price with these updates), `change` (the absolute change of the price) and
    `is_small` (whether CHANGE or TENTH allows this change).
    """
    longer, tried = search[search["updates"].notna()], search[search["rate"].notna()]
    both = longer.merge(tried, "left", left_on=["d", "learning_rate"], right_on=["d", "rate"], suffixes=("", "_before"))
    change = (both[KL] - both[f"{KL}_before"]).abs()
    is_small = (change < CHANGE * both[f"{KL}_before"]) | (change < TENTH * MARGIN * both["free"])
    columns = {"updates": both["updates"], "later": both[KL] / both["free"], "change": change / both["free"]}
    return pd.DataFrame(columns | {"is_small": is_small.astype(object)}).set_index(both["d"])


def control(table: Iterable[Price]) -> str:
    """Return why nothing is concluded about mixtures: `control failed` or `control not run`; empty if it passed.

    If the sampled mixture was fitted, it decides alone: the interval of MoS's gain must lie above RECOVERED times the
    softmax's loss.
    """
    cells = {(price.truth, price.width, price.model): price for price in table}
    cell = cells.get(SAMPLED, cells.get(CONTROL))
    if cell is None:
        return "control not run"
    needed = RECOVERED * (cell.share.value + cell.gain.value) if cell.truth == SAMPLED[0] else 0.0
    return "" if cell.gain.low > needed and cell.later > needed else "control failed"


# --- outcomes -------------------------------------------------------------------------------------------------------
def outcome(table: Sequence[Price], truths: Sequence[str] = TRUTHS) -> tuple[str, dict[str, str]]:
    """Return the outcome that a table of prices shows, and the verdict on every truth.

    The verdict is PAYS if a head with more rank pays at width LEAST_WIDTH or more, and NONE if none does. It is OPEN if
    a cell is missing or not judged that could change this. The outcome is MOST if a head pays on more than half of the
    truths, NONE if on none, otherwise DEPENDS; or OPEN if open truths could change it.
    """
    verdicts = {truth: _verdict([price for price in table if price.truth == truth], table) for truth in truths}
    pays = list(verdicts.values()).count(PAYS)
    least, most = (_overall(count, len(truths)) for count in (pays, pays + list(verdicts.values()).count(OPEN)))
    return least if least == most else OPEN, verdicts


def _overall(pays: int, truths: int) -> str:
    if 2 * pays > truths:
        return MOST
    return DEPENDS if pays else NONE


def _verdict(own: Sequence[Price], table: Sequence[Price]) -> str:
    """Return the verdict on a truth from its prices `own`; a head that other truths of the table have is expected."""
    if any(price.verdict == PAYS for price in candidates(own)):
        return PAYS
    cells = {(price.model, price.width): bool(price.unjudged) for price in own}
    wanted = {(price.model, price.width) for price in candidates(table)}
    is_open = any(cells.get(cell, True) for cell in wanted if cell[1] not in hopeless(own))
    return OPEN if is_open or not wanted or not own else NONE


def candidates(table: Iterable[Price]) -> list[Price]:
    """Return the prices that decide: those at width LEAST_WIDTH or more of heads with more rank than a softmax."""
    return [price for price in table if price.width >= LEAST_WIDTH and not declaration(price.head).is_log_linear]


def hopeless(own: Iterable[Price]) -> list[float]:
    """Return the widths at which no head can pay on a truth with prices `own`: the softmax loses less than MARGIN."""
    return sorted(price.width for price in own if price.model == BASELINE and price.share.value < MARGIN)


def is_hopeless(table: Iterable[Price], truth: str) -> bool:
    """Return True if no head can pay on a truth: the softmax loses less than MARGIN at all widths that decide."""
    softmax = [price for price in table if (price.truth, price.model) == (truth, BASELINE)]
    widths = {price.width for price in softmax if price.width >= LEAST_WIDTH}
    return bool(widths) and widths <= set(hopeless(softmax))


def sentence(table: Sequence[Price], truth: str) -> str:
    """Return the verdict on a truth as text, with the heads that pay and the widths at which none can."""
    own = [price for price in table if price.truth == truth]
    paying = [price for price in candidates(own) if price.verdict == PAYS]
    at_time = {True: ", also at equal time", False: ""}
    names = [f"{declaration(p.head).label} at d = {p.width:g}{at_time[p.pays_at_time]}" for p in paying]
    text = {
        PAYS: f"A head with more rank pays ({'; '.join(names)}).",
        NONE: f"No head with more rank pays at d = {LEAST_WIDTH} or more.",
        OPEN: "It is open whether a head with more rank pays.",
    }[_verdict(own, table)]
    widths = ", ".join(f"{width:g}" for width in hopeless(own))
    return f"{text} The softmax loses less than 5 %, so that no head can pay, at d = {widths}." if widths else text


# --- the claim ------------------------------------------------------------------------------------------------------
def _share(sides: Sequence[Float64], _tail: float) -> Interval:
    """Return the share of ones in one side [N, 1]. At the ends of the interval, all nan are zeros, or all are ones."""
    low, high = (float(np.nan_to_num(sides[0], nan=value).mean()) for value in (0, 1))
    return Interval(low, low, high, (len(sides[0]),), 0.0, 1)


PAID = "natural distributions on which a head with more rank pays (ends: open ones do not, or do)"


@partial(r.Quantity, estimate=_share, what=PAID, unit="share", units="distributions")
def paid(data: r.CorpusData) -> list[float]:
    """Return for every one of TRUTHS 1 if a head with more rank pays, 0 if none does, and nan if that is open."""
    table = prices_of(data.records)
    return [{PAYS: 1.0, NONE: 0.0}.get(verdict, math.nan) for verdict in outcome(table)[1].values()] if table else []


def prices_judged(data: r.CorpusData, _claim: Claim) -> Premise:
    """Return the premise that the control of mixtures passed and that no truth is open."""
    table = prices_of(data.records)
    left, failed = [truth for truth, verdict in outcome(table)[1].items() if verdict == OPEN], control(table)
    facts = {"control": failed or PASSED, "truths": ", ".join(left) or "none"}
    return Premise(Code.PRICES_JUDGED, facts, not (left or failed), (r.UNDECIDED,), "")
