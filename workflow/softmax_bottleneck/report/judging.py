"""What claims are judged with: the records of one corpus, criteria, and verdicts on gaps, trends and correlations.

A verdict is *reproduced* only where an interval or an exact test supports the claim, *not reproduced* only where one
contradicts it, and *not enough data* everywhere else: with a single run, or with an interval that holds both answers.

The published tests ask whether two means differ; "no significant difference" is easy to have with few runs. Claims that
two models are equally good are therefore judged by whether a difference that matters (MARGIN) is excluded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
from scipy import stats

from softmax_bottleneck.measuring import statistics
from softmax_bottleneck.measuring.statistics import Summary
from softmax_bottleneck.records.records import Records

REPRODUCED, NOT_REPRODUCED, NOT_ENOUGH = "reproduced", "not reproduced", "not enough data"
VERDICTS = (REPRODUCED, NOT_REPRODUCED, NOT_ENOUGH)
BOTH = "the interval holds both answers"

# --- criteria -------------------------------------------------------------------------------------------------------
ALPHA = 0.05  # of every test; intervals have level 1 - ALPHA, as the published tests
# A perplexity difference that matters, relative: 0.29 at the paper's 57, about what its LMS-PLIF gains on PTB.
MARGIN = 0.005
RANK_RATIO = 2.0  # a head's Press rank is high when every run has at least twice the mean of Softmax, low when none has
STRONG_CORRELATION = 0.7  # from here on (r^2 = 0.49) rank explains half of the variance; below it is called weak
MIN_POINTS = 8  # models under a correlation: with fewer a bootstrap interval is too narrow to be believed
MIN_BENCHMARKS = 5  # word-similarity benchmarks: the fewest with which a sign test can tell anything
EFFECTIVE = "rank_eff_1e-4"  # the middle one of the published epsilons
EFFECTIVE_SHARE = 0.5  # of the Press rank: an effective rank up to here makes the Press rank an overestimate

HEADS = ("softmax", "ss", "gss", "lms-plif", "lms-plif-frozen", "moc", "mos")
GRID = "gss-grid-*"
PPL, RANK = "test_ppl", "rank_press"


@dataclass(frozen=True)
class Fact:
    """A number that decides a claim: what it is, as printed, and for machines (value, n, sd, low, high, p)."""

    what: str
    text: str
    values: Mapping[str, float | int | None]


@dataclass(frozen=True)
class Judgement:
    """A verdict, why in words, and the numbers behind it."""

    verdict: str
    reason: str
    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True)
class View:
    """The records of one corpus, as the rules see them."""

    records: Records
    dataset: str

    @property
    def models(self) -> list[str]:
        """Planned models, sorted, so that nothing depends on the order of a study's file."""
        states = self.records.states
        return sorted(set(states[states["dataset"] == self.dataset]["model"]))

    def matching(self, patterns: str) -> list[str]:
        """Planned models that fit one of the shell patterns, which `|` separates."""
        return [model for model in self.models if any(fnmatchcase(model, p) for p in patterns.split("|"))]

    def learned(self, patterns: str) -> list[str]:
        """`matching` without models of which a run learned only how frequent words are: no points of a trend."""
        poor = {model for dataset, model, _ in self.records.unlearned if dataset == self.dataset}
        return [model for model in self.matching(patterns) if model not in poor]

    def runs(self, model: str, metric: str, condition: str = "") -> dict[int, float]:
        """Values by seed of the runs that finished and are sound."""
        return self.records.values(self.dataset, model, metric, condition)

    def summary(self, model: str, metric: str, condition: str = "") -> Summary:
        """Mean, standard deviation and count over runs."""
        return Summary.of(self.runs(model, metric, condition).values())

    def mean(self, model: str, metric: str, condition: str = "") -> float:
        """Mean over runs; nan without any."""
        mean = self.summary(model, metric, condition).mean
        return math.nan if mean is None else mean

    def label(self, model: str) -> str:
        """A model's name as tables print it."""
        states = self.records.planned(self.dataset, model)
        return model if states.empty else str(states["label"].iloc[0])

    def with_runs(self, models: Iterable[str], *metrics: str) -> list[str]:
        """Those of the models that have every metric from at least one run."""
        return [model for model in models if all(self.runs(model, metric) for metric in metrics)]


# --- differences of two models --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Gap:
    """Mean of one model minus mean of another, with a Welch interval (None with fewer than two runs on a side)."""

    what: str
    first: Summary
    second: Summary
    difference: float
    low: float | None
    high: float | None
    p: float | None
    reason: str

    @property
    def margin(self) -> float:
        """The difference that matters, on the second model's scale."""
        return MARGIN * (self.second.mean or math.nan)

    @property
    def fact(self) -> Fact:
        """As printed: the difference, its interval, p and the two counts."""
        sizes = f"n {self.first.n} and {self.second.n}"
        interval = (
            "" if self.low is None else f", interval {signed(self.low)} to {signed(self.high)}, p = {p_text(self.p)}"
        )
        keys = {"low": self.low, "high": self.high, "p": self.p, "n": self.first.n, "n_second": self.second.n}
        return Fact(self.what, f"{signed(self.difference)}{interval} ({sizes})", {"value": self.difference, **keys})


def gap(view: View, first: str, second: str, metric: str, tests: int = 1) -> Gap:
    """Mean of a metric of `first` minus that of `second`; `tests` questions asked at once share ALPHA (Bonferroni)."""
    sides = view.summary(first, metric), view.summary(second, metric)
    test = statistics.welch_t_from_summary(*sides)
    what = f"{METRICS[metric]}, {view.label(first)} minus {view.label(second)}"
    difference = math.nan if test.difference is None else test.difference
    if test.p is None or test.df is None:
        return Gap(what, *sides, difference, None, None, None, test.reason)
    error = math.hypot(*((side.sd or 0.0) / math.sqrt(side.n) for side in sides))
    half = error * float(stats.t.ppf(1 - ALPHA / tests / 2, test.df))
    return Gap(what, *sides, difference, difference - half, difference + half, test.p, "")


METRICS = {PPL: "test perplexity", "train_ppl": "train perplexity", RANK: "Press rank"}


def larger(one: Gap) -> str:
    """Verdict on `first` being larger: its interval is above zero; refuted when a margin's worth is excluded."""
    if one.low is None or one.high is None:
        return NOT_ENOUGH
    return REPRODUCED if one.low > 0 else NOT_REPRODUCED if one.high < one.margin else NOT_ENOUGH


def no_larger(one: Gap) -> str:
    """Verdict on `first` being no larger by a margin that matters; refuted when its interval is above zero."""
    if one.low is None or one.high is None:
        return NOT_ENOUGH
    return REPRODUCED if one.high < one.margin else NOT_REPRODUCED if one.low > 0 else NOT_ENOUGH


def all_of(verdicts: Sequence[str]) -> str:
    """Reproduced when all are; not reproduced when one is not."""
    if NOT_REPRODUCED in verdicts:
        return NOT_REPRODUCED
    return REPRODUCED if all(verdict == REPRODUCED for verdict in verdicts) else NOT_ENOUGH


def any_of(verdicts: Sequence[str]) -> str:
    """Reproduced when one is; not reproduced when none is."""
    if REPRODUCED in verdicts:
        return REPRODUCED
    return NOT_REPRODUCED if all(verdict == NOT_REPRODUCED for verdict in verdicts) else NOT_ENOUGH


def why(verdict: str, gaps: Sequence[Gap]) -> str:
    """What a verdict on gaps rests on, or what is missing."""
    reasons = list(dict.fromkeys(one.reason for one in gaps if one.reason))
    if reasons:
        return "; ".join(reasons)
    sizes = " and ".join(dict.fromkeys(f"{one.margin:.2f}" for one in gaps))
    open_ = f"{BOTH}; " if verdict == NOT_ENOUGH else ""
    return f"{open_}a difference of {sizes} would matter"


def judge_gaps(verdict: str, gaps: Sequence[Gap], more: Sequence[Fact] = ()) -> Judgement:
    """A judgement whose numbers are the gaps, and more."""
    return Judgement(verdict, why(verdict, gaps), (*(one.fact for one in gaps), *more))


# --- facts ----------------------------------------------------------------------------------------------------------
def signed(value: float | None, digits: int = 2) -> str:
    """`+0.20` or `−0.20` with a true minus sign; a dash for nothing."""
    return "—" if value is None or math.isnan(value) else f"{value:+.{digits}f}".replace("-", "−")


def p_text(value: float | None) -> str:
    """A p-value as printed."""
    return "—" if value is None else statistics.format_p(value).replace("-", "−")


def mean_fact(view: View, model: str, metric: str, digits: int = 2) -> Fact:
    """Mean of a metric over runs, with standard deviation and n."""
    one = view.summary(model, metric)
    spread = "" if one.sd is None else f" ± {one.sd:.{digits}f}"
    text = "—" if one.mean is None else f"{one.mean:.{digits}f}{spread} (n {one.n})"
    return Fact(f"{METRICS[metric]}, {view.label(model)}", text, {"value": one.mean, "sd": one.sd, "n": one.n})


# --- correlations ---------------------------------------------------------------------------------------------------
def weakly_correlated(patterns: str) -> Callable[[View], Judgement]:
    """Rule: over models, one point each, |r| of test perplexity and rank stays below STRONG_CORRELATION."""

    def judge(view: View) -> Judgement:
        models = view.with_runs(view.learned(patterns), PPL, RANK)
        if len(models) < MIN_POINTS:
            return Judgement(NOT_ENOUGH, f"{len(models)} models with perplexity and rank, at least {MIN_POINTS} needed")
        ppl_N, rank_N = ([view.mean(model, metric) for model in models] for metric in (PPL, RANK))
        found = statistics.pearson(ppl_N, rank_N, np.random.default_rng(0))
        if found.r is None or found.low is None or found.high is None:
            return Judgement(NOT_ENOUGH, found.reason or "no interval")
        inside = max(abs(found.low), abs(found.high)) < STRONG_CORRELATION
        outside = found.low > STRONG_CORRELATION or found.high < -STRONG_CORRELATION
        verdict = REPRODUCED if inside else NOT_REPRODUCED if outside else NOT_ENOUGH
        text = f"{signed(found.r)}, interval {signed(found.low)} to {signed(found.high)} (n {found.n} models)"
        values = {"value": found.r, "low": found.low, "high": found.high, "n": found.n}
        reason = BOTH if verdict == NOT_ENOUGH else f"{STRONG_CORRELATION} would be strong"
        return Judgement(verdict, reason, (Fact("Pearson’s r of perplexity and rank", text, values),))

    return judge


# --- sweeps ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Sweep:
    """Runs of one model along one setting.

    Attributes:
        pattern: of the labels; what follows the fixed part is the setting's value.
        name: of the setting, in words.
        rising: whether a claim reads it upwards.
    """

    pattern: str
    name: str
    rising: bool = True

    def settings(self, view: View) -> dict[str, float]:
        """Planned models of the sweep and their setting, in ascending order of it."""
        found = {model: self._setting(model) for model in view.learned(self.pattern)}
        known = {model: setting for model, setting in found.items() if setting is not None}
        return dict(sorted(known.items(), key=lambda item: item[1]))

    def _setting(self, model: str) -> float | None:
        try:
            return float(model.removeprefix(self.pattern.rstrip("*")))
        except ValueError:  # a variant of a member, not a member
            return None

    def points(self, view: View, value: Callable[[View, str, int], float | None]) -> list[tuple[float, float]]:
        """(setting, value) of every run that has the value."""
        found = []
        for model, setting in self.settings(view).items():
            values = (value(view, model, seed) for seed in view.runs(model, PPL))
            found += [(setting, one) for one in values if one is not None]
        return found


COMPONENTS = Sweep("mos-nt-components*", "K")
DROPOUT = Sweep("mos-nt-dropout_latent*", "dropout", rising=False)


def metric(name: str) -> Callable[[View, str, int], float | None]:
    """A run's number, for trends."""
    return lambda view, model, seed: view.runs(model, name).get(seed)


def train_to_test(view: View, model: str, seed: int) -> float | None:
    """Test over train perplexity of a run."""
    test, train = (view.runs(model, metric).get(seed) for metric in (PPL, "train_ppl"))
    return None if test is None or train is None else test / train


@dataclass(frozen=True)
class Trend:
    """A quantity that a claim says rises (or falls) along a sweep."""

    what: str
    value: Callable[[View, str, int], float | None]
    rises: bool = True

    def judge(self, view: View, sweep: Sweep) -> Judgement:
        """Kendall's tau over runs: reproduced when its sign is the claimed one and p < ALPHA."""
        points = sweep.points(view, self.value)
        settings = {setting for setting, _ in points}
        if len(settings) < 2 or len({value for _, value in points}) < 2:
            return Judgement(NOT_ENOUGH, f"{self.what}: {len(points)} runs at {len(settings)} values of {sweep.name}")
        test = stats.kendalltau(*zip(*sorted(points), strict=True))
        tau = float(test.statistic) * (1 if sweep.rising else -1)
        up = "rising" if sweep.rising else "falling"
        text = f"Kendall’s τ {signed(tau)}, p = {p_text(float(test.pvalue))} (n {len(points)} runs)"
        fact = Fact(
            f"{self.what} along {up} {sweep.name}", text, {"value": tau, "p": float(test.pvalue), "n": len(points)}
        )
        if test.pvalue >= ALPHA:
            return Judgement(NOT_ENOUGH, f"{self.what}: no clear trend in {len(points)} runs", (fact,))
        claimed = (tau > 0) == self.rises
        return Judgement(REPRODUCED if claimed else NOT_REPRODUCED, "the trend is clear", (fact,))


def along(sweep: Sweep, *trends: Trend) -> Callable[[View], Judgement]:
    """Rule: every trend holds along the sweep."""

    def judge(view: View) -> Judgement:
        judgements = [trend.judge(view, sweep) for trend in trends]
        verdict = all_of([one.verdict for one in judgements])
        reasons = dict.fromkeys(one.reason for one in judgements if one.verdict == verdict)
        facts = [fact for one in judgements for fact in one.facts]
        return Judgement(verdict, "; ".join(reasons), (*facts, _sweep_fact(view, sweep)))

    return judge


def _sweep_fact(view: View, sweep: Sweep) -> Fact:
    """Perplexity and rank at every setting, means over runs."""
    texts, runs = [], 0
    for model, setting in sweep.settings(view).items():
        ppl, rank = (view.summary(model, name) for name in (PPL, RANK))
        if ppl.mean is not None:
            runs += ppl.n
            texts.append(f"{setting:g}: {ppl.mean:.2f}" + ("" if rank.mean is None else f" / {rank.mean:.0f}"))
    return Fact(f"test perplexity / rank by {sweep.name}", "; ".join(texts), {"n": runs})
