"""Rules: the regions where the 95 % interval of a quantity must lie for a claim to be reproduced, or refuted.

A claim is *reproduced* if the whole interval lies in its region, and *not reproduced* if the whole interval lies in the
other region. MARGIN, the smallest difference that matters, separates the two. A few runs without a significant
difference therefore decide nothing.

Perplexities, ranks, times and counts are compared by logarithms: a difference of log perplexities is in nats, and 0.005
nats are 0.5 % of any perplexity. Intervals are closed forms, so 1,000 bootstrap samples cost no more than an array.

Suffixes as in `data`; S sides of a comparison, X parts of a rule.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray
from scipy import special

from softmax_bottleneck.measuring.statistics import pearson_r
from softmax_bottleneck.records.metrics import PRESS_RANK, TEST_PPL, find
from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.claims.data import TRUTH, CorpusData, Float64, Sample
from softmax_bottleneck.report.numbers import MIN_POINTS as MIN_POINTS

REPRODUCED, NOT_REPRODUCED, UNDECIDED = "reproduced", "not reproduced", "undecided"
CANNOT, CONFOUNDED = "cannot be tested here", "confounded"
FAILS = (NOT_REPRODUCED,)
VERDICTS = (REPRODUCED, NOT_REPRODUCED, UNDECIDED, CONFOUNDED, CANNOT)

MARGIN = 0.005  # nats: a perplexity difference that matters; 0.29 at the paper's 57, what its LMS-PLIF gains on PTB
SMALL = 0.01  # nats: a gain below it is called small
HIGH = math.log(2)  # a head's rank is high from twice that of Softmax on
STRONG = 0.7  # a correlation from here on (r^2 = 0.49) is strong
ALPHA = 0.05  # of every interval, two-sided, as the published tests
POWER = 0.8  # with which the units that are needed would decide
MIN_RUNS = 3  # on each side of a comparison
MOST_NEEDED = 1000  # units; more are not counted
SAME_SIZE = 0.05  # relative difference of parameters: within it two models have the same size
INF = math.inf

UNITS: dict[str, tuple[Callable[[float], float], str]] = {  # of quantities: how a value is shown, and its suffix
    "%": (lambda x: 100 * math.expm1(x) if x < 700 else INF, "\u00a0%"),  # of a difference of logarithms
    "×": (lambda x: math.exp(x) if x < 700 else INF, "\u00a0times"),
    "share": (lambda x: 100 * x, "\u00a0%"),
}
Ends = tuple[float, float]
Control = tuple[int, tuple[str, ...]]


def _suffix(unit: str) -> str:
    return UNITS[unit][1] if unit in UNITS else ""


# --- intervals ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Interval:
    """The value and interval of each bootstrap sample.

    Attributes:
        n: units on each side.
        spread: standard deviation of the value of a single unit (of one of each side), without resampling.
        least: units that an interval takes; with fewer it is infinite.
    """

    value_B: Float64
    low_B: Float64
    high_B: Float64
    n: tuple[int, ...]
    spread: float
    least: int

    def needed(self, distance: float) -> int:
        """Return the units per side with which, at POWER, the interval would end within a distance of its value."""
        if min(self.n) <= 1 or not math.isfinite(self.value_B[0]):
            return self.least
        for k in range(self.least, MOST_NEEDED):
            df = len(self.n) * (k - 1)
            if special.stdtrit(df, [1 - ALPHA / 2, POWER]).sum() * self.spread <= distance * math.sqrt(k):
                return max(k, min(self.n) + 1)
        return MOST_NEEDED


def _around(value_B: Float64, half_B: Float64, n: Sequence[int], spread: float, least: int) -> Interval:
    half_B = np.where(min(n) < least, np.inf, half_B)
    return Interval(value_B, value_B - half_B, value_B + half_B, tuple(n), spread, least)


def student(sides: Sequence[Float64], tail: float) -> Interval:
    """Mean of the first side [B, N, 1], less that of the second if there is one: Student's interval, or Welch's."""
    n = [side.shape[1] for side in sides]
    ddof = int(min(n) > 1)
    error_SB = np.stack([side[:, :, 0].var(1, ddof=ddof) / side.shape[1] for side in sides])
    mean_SB = np.stack([side[:, :, 0].mean(1) for side in sides])
    total_B = error_SB.sum(0)
    freedom_B = total_B**2 / np.maximum((error_SB**2 / np.maximum(np.array(n)[:, None] - 1, 1)).sum(0), 1e-300)
    half_B = special.stdtrit(np.maximum(freedom_B, 1.0), 1 - tail) * np.sqrt(total_B)
    spread = math.sqrt(sum(error * count for error, count in zip(error_SB[:, 0], n, strict=True)))
    return _around(mean_SB[0] - mean_SB[1:].sum(0), half_B, n, spread, MIN_RUNS)


def fisher(points: Sequence[Float64], tail: float, ranked: bool = False) -> Interval:
    """Pearson's r of points [B, N, 2] with Fisher's interval; nan if there are fewer than MIN_POINTS."""
    x_BN, y_BN = points[0][:, :, 0], points[0][:, :, 1]
    n = x_BN.shape[1]
    r_B = np.clip(pearson_r(_ranks(x_BN), _ranks(y_BN)) if ranked else pearson_r(x_BN, y_BN), -0.999999, 0.999999)
    wider_B = 1 + r_B**2 / 2 if ranked else 1.0  # Bonett and Wright 2000
    spread = float(1 - r_B[0] ** 2)
    if n < MIN_POINTS:
        none_B, high_B = np.full_like(r_B, math.nan), np.full_like(r_B, INF)
        return Interval(none_B, -high_B, high_B, (n,), spread, MIN_POINTS)
    half_B = special.ndtri(1 - tail) * np.sqrt(wider_B / (n - 3))
    low_B, high_B = (np.tanh(np.arctanh(r_B) + sign * half_B) for sign in (-1, 1))
    return Interval(r_B, low_B, high_B, (n,), spread, MIN_POINTS)


def spearman(points: Sequence[Float64], tail: float) -> Interval:
    """Spearman's rho of points [B, N, 2], ties averaged, with the interval of Bonett and Wright."""
    return fisher(points, tail, ranked=True)


def _ranks(x_BN: Float64) -> Float64:
    """Return ranks up to a constant, ties averaged."""
    return np.asarray(np.sign(x_BN[:, :, None] - x_BN[:, None]).sum(2))


def wilson(sides: Sequence[Float64], tail: float) -> Interval:
    """Share of ones among units [B, N, 1] with Wilson's interval."""
    share_B, n = sides[0][:, :, 0].mean(1), sides[0].shape[1]
    z = float(special.ndtri(1 - tail))
    centre_B = (share_B + z * z / (2 * n)) / (1 + z * z / n)
    half_B = z * np.sqrt(share_B * (1 - share_B) / n + (z / (2 * n)) ** 2) / (1 + z * z / n)
    spread = math.sqrt(max(share_B[0] * (1 - share_B[0]), 0.05))
    return replace(_around(centre_B, half_B, [n], spread, MIN_POINTS), value_B=share_B)


def least(sides: Sequence[Float64], tail: float) -> Interval:
    """Smallest of units [B, N, 1]: for what must hold in every one of them, and needs no interval."""
    value_B = sides[0][:, :, 0].min(1)
    return Interval(value_B, value_B, value_B, (sides[0].shape[1],), 0.0, 1)


# --- quantities -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Quantity:
    """A number of some models that has an interval.

    Attributes:
        collect: yields, from data and models, one or more numbers of each unit (run, model, head, ...).
        estimate: returns the interval from (bootstrap samples, tail probability).
        what: its name; printed only.
        unit: a key of UNITS, or another unit in which it is printed as it is.
        metrics: that it reads; every run has the first.
        units: what more of are needed when it is undecided.
        names: a template for the names of the models, such as `{0} against {1}`.
        stage: of training at which it reads them.
        is_comparison: every model is a side of its own, with its own units.
        sides: returns the models that it compares, by pattern.
    """

    collect: Callable[..., Iterable[float | tuple[float, ...]]]
    estimate: Callable[[Sequence[Float64], float], Interval]
    what: str
    unit: str = ""
    metrics: tuple[str, ...] = ()
    units: str = "seeds"
    names: str = ""
    stage: str = ""
    is_comparison: bool = False
    sides: Callable[..., list[list[str]]] = lambda data, *patterns: [data.matching(pattern) for pattern in patterns]

    def samples(self, data: CorpusData, *models: str) -> list[Sample]:
        """Return a sample of units for each side."""
        sides = [(model,) for model in models] if self.is_comparison else [models]
        values = [(side, list(self.collect(data, *side))) for side in sides]
        return [
            Sample("|".join(side), np.array(own, dtype=np.float64).reshape(len(own), -1 if own else 1))
            for side, own in values
        ]

    def shown(self, value: float) -> float | None:
        """Return a value in its unit, or None if it is not finite."""
        if not math.isfinite(value):
            return None
        return UNITS[self.unit][0](value) if self.unit in UNITS else float(value)


def against(metric: str, unit: str = "%", stage: str = "", log: bool = True, what: str = "") -> Quantity:
    """Compare a metric of two models over seeds: their ratio, or (not `log`) their difference."""

    def collect(data: CorpusData, model: str) -> list[float]:
        values = np.array([*data.values(model, metric, stage).values()], dtype=np.float64)
        return list(np.log(values) if log else values)

    what, names = what or find(metric).words, "{0} against {1}"
    return Quantity(collect, student, what, unit, (metric,), names=names, stage=stage, is_comparison=True)


def within_run(first: str, second: str, what: str, unit: str = "%") -> Quantity:
    """Divide one metric of a run by another of the same run."""

    def collect(data: CorpusData, model: str) -> Iterator[float]:
        return map(math.log, _ratios(data, model, first, second).values())

    return Quantity(collect, student, what, unit, (first, second), names="{0}")


def _ratios(data: CorpusData, model: str, first: str, second: str) -> dict[int, float]:
    below = data.values(model, second)
    return {seed: value / below[seed] for seed, value in data.values(model, first).items() if seed in below}


def along(metric: str, below: str = "", within: Ends = (0, INF)) -> Quantity:
    """Correlate (Spearman) a metric of runs, or its ratio to `below`, with the setting that ends their models' names.

    Settings outside `within` are left out.
    """

    def settings(data: CorpusData, pattern: str) -> dict[str, float]:
        found = {}
        for model in data.learned(pattern):
            with suppress(ValueError):  # a variant of a member, not a member
                found[model] = float(model.removeprefix(pattern.rstrip("*")))
        return {model: setting for model, setting in found.items() if within[0] <= setting <= within[1]}

    def collect(data: CorpusData, pattern: str) -> Iterator[tuple[float, float]]:
        for model, setting in settings(data, pattern).items():
            values = _ratios(data, model, metric, below) if below else data.values(model, metric)
            yield from ((setting, value) for value in values.values())

    what = find(metric).words + (f" over {find(below).words}" if below else "")
    metrics = (metric, below) if below else (metric,)
    quantity = Quantity(collect, spearman, f"Spearman’s ρ of {what} and the setting", "", metrics, "runs", "{0}")
    return replace(quantity, sides=lambda data, pattern: [list(settings(data, pattern))])


def correlation(what: str, window: float = INF) -> Quantity:
    """Correlate (Pearson) the test perplexity and the Press rank of models, one point each.

    Points have the size (within SAME_SIZE) and schedule of the first model, and a log perplexity within a `window` of
    the median. TRUTH is another point if it is among the patterns.
    """

    def points(data: CorpusData, *patterns: str) -> list[str]:
        learned = data.learned("|".join(patterns))
        models = [m for m in learned if data.values(m, PRESS_RANK) and data.values(m, TEST_PPL)]
        first = [model for model in models if model == patterns[0]] or models[:1]
        own = [m for m in models if data.planned_epochs([m]) == data.planned_epochs(first)]
        own = [m for m in own if abs(data.mean(m, "parameters") / data.mean(first[0], "parameters") - 1) <= SAME_SIZE]
        own += data.matching(TRUTH) * (TRUTH in patterns)
        log_ppl = [math.log(data.mean(model, TEST_PPL)) for model in own]
        return [model for model, x in zip(own, log_ppl, strict=True) if abs(x - np.median(log_ppl)) <= window]

    def collect(data: CorpusData, *patterns: str) -> Iterator[Ends]:
        return ((data.mean(model, TEST_PPL), data.mean(model, PRESS_RANK)) for model in points(data, *patterns))

    quantity = Quantity(collect, fisher, what, metrics=(TEST_PPL, PRESS_RANK), units="models")
    return replace(quantity, sides=lambda data, *patterns: [points(data, *patterns)])


# --- outcomes -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Number:
    """The value of a quantity in its unit, with the regions where its interval must lie.

    Attributes:
        holds: the claim holds if the interval is between these; None is no bound.
        fails: the claim fails if the interval is below the first or above the second.
    """

    what: str
    unit: str
    value: float | None
    holds: tuple[float | None, ...]
    fails: tuple[float | None, ...]
    n: tuple[int, ...]
    low: float | None = None
    high: float | None = None

    @property
    def text(self) -> str:
        """`−3.4 % (95 % interval −4.0 to −2.9), n = 3 each`."""
        size = max(abs(x or 0) for x in (self.value, *((self.low, self.high) if self.unit != "×" else ())))
        digits = numbers.decimals(size, least=1 if self.unit in UNITS else 2)
        printed = partial(numbers.number, digits=digits, signed=self.unit == "%")
        value, low, high = map(printed, (self.value, self.low, self.high))
        interval = "" if self.low is None or self.low == self.high else f" (95\u00a0% interval {low} to {high})"
        return f"{value}{_suffix(self.unit)}{interval}, {numbers.counts(self.n)}"


@dataclass(frozen=True)
class Outcome:
    """The answer of a rule for every bootstrap sample (the first is the data itself), and the numbers behind it.

    Attributes:
        needed: how many units would decide it, and of what.
        missing: the quantity and the models that lack it, if the rule cannot be evaluated.
    """

    yes_B: NDArray[np.bool_]
    no_B: NDArray[np.bool_]
    numbers: tuple[Number, ...] = ()
    needed: tuple[int, str] = (0, "")
    missing: Mapping[str, str] | None = None

    @property
    def verdict(self) -> str:
        """The verdict on the data itself."""
        return REPRODUCED if self.yes_B[0] else NOT_REPRODUCED if self.no_B[0] else UNDECIDED

    @property
    def stability(self) -> float:
        """The share of bootstrap samples with the same verdict."""
        code_B = self.yes_B.astype(int) - self.no_B
        return float((code_B[1:] == code_B[0]).mean())


def _lacks(quantity: Quantity, models: str) -> Outcome:
    no_B = np.zeros(2, dtype=bool)
    return Outcome(no_B, no_B, missing={"quantity": quantity.what, "models": models})


# --- rules ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Rule:
    """A rule over models.

    Attributes:
        text: the rule in English; printed only.
        quantities: the numbers that it reads.
        judge: returns its outcome from (data, *models, tests=1); that many rules share ALPHA (Bonferroni).
        favours: +1 if more parameters or epochs of the first model help the claim, -1 if they hurt it, 0 if sizes are
            not compared.
        control: where the true distribution is known, the position among the models at which a control evaluates the
            rule on it, and the verdicts that it must return; no verdicts: that of the claim.
        hidden_by_ceiling: a ceiling of ranks can hide what is claimed, but cannot cause it.
    """

    text: str
    quantities: tuple[Quantity, ...]
    judge: Callable[..., Outcome]
    favours: int = 0
    control: Control | None = None
    hidden_by_ceiling: bool = False


def interval_rule(quantity: Quantity, holds: Ends, fails: Ends, text: str = "") -> Rule:
    """Return the rule that compares the interval of one quantity with two regions.

    Args:
        holds: the claim holds if the interval lies between these.
        fails: otherwise the claim fails if the interval is below the first or above the second.
    """

    def judge(data: CorpusData, *models: str, tests: int = 1) -> Outcome:
        samples = quantity.samples(data, *models)
        if empty := [sample.name for sample in samples if not len(sample.values_NK)]:
            return _lacks(quantity, ", ".join(data.label(name) for name in empty if name in models) or "this study")
        interval = quantity.estimate([sample.resampled_BNK for sample in samples], ALPHA / 2 / tests)
        yes_B = (interval.low_B > holds[0]) & (interval.high_B < holds[1])
        no_B = ~yes_B & ((interval.high_B < fails[0]) | (interval.low_B > fails[1]))
        value, low, high = (float(x_B[0]) for x_B in (interval.value_B, interval.low_B, interval.high_B))
        edges = [edge for edge in (*holds, *fails) if math.isfinite(edge)]
        distance = max(float(np.ptp(edges)), min(abs(value - edge) for edge in edges))
        number = Number(
            what=", ".join(filter(None, (quantity.what, quantity.names.format(*map(data.label, models))))),
            unit=quantity.unit,
            value=quantity.shown(value),
            holds=tuple(map(quantity.shown, holds)),
            fails=tuple(map(quantity.shown, fails)),
            n=interval.n,
            low=quantity.shown(low),
            high=quantity.shown(high),
        )
        return Outcome(yes_B, no_B, (number,), (interval.needed(distance), quantity.units))

    return Rule(text or _text(quantity, holds, fails), (quantity,), judge)


def _text(quantity: Quantity, holds: Ends, fails: Ends) -> str:
    """Return `the interval of Press rank lies above 2 times; otherwise refuted if it lies below 2 times`."""

    def bounds(*ends: tuple[str, float]) -> list[str]:
        digits = 2 if quantity.unit == "%" else 3  # a margin of 0.005 nats is 0.501 %
        shown = [(side, quantity.shown(end)) for side, end in ends if math.isfinite(end)]
        return [f"{side} {numbers.true_minus(f'{end:.{digits}g}')}{_suffix(quantity.unit)}" for side, end in shown]

    region = " and ".join(bounds(("above", holds[0]), ("below", holds[1])))
    other = " or ".join(bounds(("below", fails[0]), ("above", fails[1])))
    return f"the interval of {quantity.what} lies {region}; otherwise refuted if it lies {other}"


def every(*parts: Rule) -> Rule:
    """Return the rule that all parts hold for the same models."""
    return Rule(
        "; and ".join(part.text for part in parts),
        tuple(quantity for part in parts for quantity in part.quantities),
        lambda data, *models, tests=1: _joined([part.judge(data, *models, tests=tests) for part in parts], all_=True),
        next((part.favours for part in parts if part.favours), 0),
        hidden_by_ceiling=any(part.hidden_by_ceiling for part in parts),
    )


def heads(part: Rule, *, all_: bool = True, chosen: Callable[[CorpusData], list[str]] | None = None) -> Rule:
    """Return the rule that a part holds for all models of the first pattern (or of `chosen`), or for some."""
    first = part.quantities[0]

    def with_runs(data: CorpusData, pattern: str) -> list[str]:
        metrics = first.metrics[:1]
        return [m for m in data.matching(pattern) if all(data.values(m, metric, first.stage) for metric in metrics)]

    def judge(data: CorpusData, pattern: str, *others: str, tests: int = 1) -> Outcome:
        models = chosen(data) if chosen else with_runs(data, pattern)
        share = tests if all_ else len(models)
        outcomes = [part.judge(data, model, *others, tests=share) for model in models]
        return _joined(outcomes, all_) if outcomes else _lacks(first, "any head" + " that qualifies" * bool(chosen))

    return replace(part, text=f"for {'every' if all_ else 'some'} head: {part.text}", judge=judge)


def _joined(outcomes: Sequence[Outcome], all_: bool) -> Outcome:
    """Return the outcome of all rules (`all_`), or of any."""
    if lacking := next((outcome for outcome in outcomes if outcome.missing), None):
        return lacking
    yes_XB, no_XB = (np.stack([getattr(outcome, name) for outcome in outcomes]) for name in ("yes_B", "no_B"))
    yes_B, no_B = (np.all(yes_XB, 0), np.any(no_XB, 0)) if all_ else (np.any(yes_XB, 0), np.all(no_XB, 0))
    joined = tuple(number for outcome in outcomes for number in outcome.numbers)
    needed = [outcome.needed for outcome in outcomes if outcome.verdict == UNDECIDED] or [outcomes[0].needed]
    return Outcome(np.asarray(yes_B), np.asarray(no_B & ~yes_B), joined, max(needed, key=itemgetter(0)))


# --- rules that several claims use ----------------------------------------------------------------------------------
def _on_perplexity(holds: Ends, fails: Ends, favours: int, control: Control | None, stage: str = "") -> Rule:
    """Return the rule on the difference in log perplexity of two models at a stage."""
    rule = interval_rule(against(TEST_PPL, stage=stage), holds, fails)
    return replace(rule, favours=favours, control=control)


# If the true distribution is not better than a baseline, no model can be.
better = partial(_on_perplexity, (-INF, 0), (-INF, -MARGIN), +1, (0, (REPRODUCED,)))
larger_ppl = partial(_on_perplexity, (0, INF), (MARGIN, INF), 0, (1, (REPRODUCED,)))  # such a claim is about sizes
no_worse = partial(_on_perplexity, (-INF, MARGIN), (-INF, 0), +1, (1, FAILS))
no_gain = partial(_on_perplexity, (-MARGIN, INF), (0, INF), -1, (0, FAILS))
minimal_gain = partial(_on_perplexity, (-SMALL, 0), (-SMALL, 0), +1, None)


def above(quantity: Quantity, bound: float, text: str = "", margin: float = 0.0) -> Rule:
    """Return the rule that an interval is above a bound; refuted when it is below the bound plus a margin."""
    return interval_rule(quantity, (bound, INF), (bound + margin, INF), text)


def below(quantity: Quantity, bound: float) -> Rule:
    """Return the rule that an interval is below a bound; refuted when it is above."""
    return interval_rule(quantity, (-INF, bound), (-INF, bound))


def between(quantity: Quantity, ends: Ends) -> Rule:
    """Return the rule that an interval is within two bounds; refuted when it is outside."""
    return interval_rule(quantity, ends, ends)


def weak(quantity: Quantity) -> Rule:
    """Return the rule that a correlation is weak."""
    return between(quantity, (-STRONG, STRONG))


def hidden(rule: Rule) -> Rule:
    """Mark a rule on high or rising ranks: a ceiling can hide what it claims, but cannot cause it."""
    return replace(rule, hidden_by_ceiling=True)


rank_against = partial(against, PRESS_RANK, "×")  # of two models, at a stage
HIGH_RANK = hidden(above(rank_against(), HIGH))
LOW_RANK = below(rank_against(), HIGH)
