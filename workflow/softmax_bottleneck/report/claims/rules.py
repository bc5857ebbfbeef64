"""Rules: the regions where the 95 % interval of a quantity must lie for a claim to be reproduced, or not reproduced.

A rule has two regions, which may overlap, and tests them in order:

1. If the whole interval lies in the first region, the claim is *reproduced*.
2. Otherwise, if the whole interval lies in the second region, the claim is *not reproduced*.
3. Otherwise, the claim is *undecided*.

For example, `better` reads the difference of two log perplexities. Its first region is below 0, and its second region
is above minus a margin, here 0.005. The interval from -0.004 to -0.001 lies in both regions; the claim is reproduced,
because the first region is tested first. So any significant gain reproduces the claim, and only an interval that
excludes every gain of the margin or more refutes it. report/claims.yaml has the margin of each claim.

Perplexities, ranks, times and counts are compared by logarithms: a difference of log perplexities is in nats, and 0.005
nats are 0.5 % of any perplexity.

If a corpus is sampled from a known distribution, this distribution counts as one more model, TRUTH. The step `measure`
writes the metrics of TRUTH with a prefix (`law_test_ppl`, `law_rank_press`, ...).

A unit is one data point of a statistic, such as a run, a model, a head or a benchmark. A side is a sample of units; a
comparison has two sides. The Press rank is the number of singular values of the log-probability matrix above the
threshold of Press et al. 2007.

Suffixes of array names: N units, K numbers of one unit.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property, partial
from typing import Any

import numpy as np

from softmax_bottleneck.records.metrics import PRESS_RANK, TEST_PPL, find
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report import numbers
from softmax_bottleneck.statistics.intervals import ALPHA, INF, Float64, Interval, fisher, spearman, student
from softmax_bottleneck.study import Study

REPRODUCED, NOT_REPRODUCED, UNDECIDED = "reproduced", "not reproduced", "undecided"
CANNOT, CONFOUNDED = "cannot be tested here", "confounded"
FAILS = (NOT_REPRODUCED,)
VERDICTS = (REPRODUCED, NOT_REPRODUCED, UNDECIDED, CONFOUNDED, CANNOT)

TRUTH = "law"  # the name of the true distribution in records, and the prefix of its metrics
SYNTHETIC = "synthetic"  # the dataset of claims that need no corpus

MARGIN = 0.005  # nats: a difference that matters in comparisons that are no claim
SAME_SIZE = 0.05  # relative difference of parameters: within it two models have the same size

UNITS: dict[str, tuple[Callable[[float], float], str]] = {  # unit of a quantity -> conversion, printed suffix
    "%": (lambda x: 100 * math.expm1(x) if x < 700 else INF, "\u00a0%"),  # of a difference of logarithms
    "×": (lambda x: math.exp(x) if x < 700 else INF, "\u00a0times"),
    "share": (lambda x: 100 * x, "\u00a0%"),
    "": (float, ""),
}
Ends = tuple[float, float]
Control = tuple[int, Sequence[str]]


# --- runs of one corpus -----------------------------------------------------------------------------------------------
def matches(name: str, patterns: str) -> bool:
    """Return True if a name matches at least one of the shell patterns, which `|` separates."""
    return any(fnmatchcase(name, pattern) for pattern in patterns.split("|"))


@dataclass(frozen=True, eq=False)
class CorpusData:
    """The records of one corpus, as the rules of claims read them.

    Attributes:
        records: the records of a study, with all its corpora.
        dataset: the name of the one corpus that the methods read; SYNTHETIC for claims that need no corpus.
        study: the study of the records, or None if only its records are available, as for archived studies.
    """

    records: Records
    dataset: str
    study: Study | None = None

    @cached_property
    def planned(self) -> Mapping[tuple[str, str], list[dict[Any, Any]]]:
        """The planned runs, as {(model, stage): list with one dict per run}.

        `stage` is `finetuned`, `dynamic`, or empty for training. The keys of a dict are `stage` and the columns of the
        table `Records.states`, such as label, seed, path, state and planned_epochs.
        """
        every = self.records.all_stages
        runs = every[every["dataset"] == self.dataset].groupby(["model", "stage"], sort=False)
        return {(str(model), str(stage)): states.to_dict("records") for (model, stage), states in runs}

    @cached_property
    def truth(self) -> Mapping[str, float]:
        """The metrics {name without `law_`: value} of the corpus's true distribution; empty for an unknown one."""
        rows, prefix = self.records.rows, f"{TRUTH}_"
        rows = rows[(rows["dataset"] == self.dataset) & rows["metric"].str.startswith(prefix)]
        return {name.removeprefix(prefix): value for name, value in zip(rows["metric"], rows["value"], strict=True)}

    def matching(self, patterns: str, stage: str = "") -> list[str]:
        """Return the planned models, sorted by name, that match at least one shell pattern.

        Args:
            patterns: shell patterns, separated by `|`; or only TRUTH, for which the result is [TRUTH] if the true
                distribution of the corpus is known, and [] otherwise.
            stage: only models for which this stage is planned: `finetuned`, `dynamic`, or empty for training.
        """
        if patterns == TRUTH:
            return [TRUTH] if self.truth else []
        models = sorted({model for model, planned_stage in self.planned if planned_stage == stage})
        return [model for model in models if matches(model, patterns)]

    def learned(self, patterns: str) -> list[str]:
        """Return the planned models that match the patterns, without TRUTH and without models that failed to learn.

        A model failed to learn if the perplexity of one of its runs is hardly better than that of a unigram model. A
        model without finished runs is returned, too.
        """
        unlearned = {model for dataset, model, _ in self.records.unlearned if dataset == self.dataset}
        return [model for model in self.matching(patterns) if model not in {TRUTH, *unlearned}]

    def values(self, model: str, metric: str, stage: str = "") -> dict[int, float]:
        """Return {seed: value} of a metric over the finished runs of a model.

        TRUTH has no seeds. Its value is returned for the seeds 1, 2 and 3, because an interval needs MIN_RUNS values.

        Args:
            model: the name of the model, or TRUTH.
            metric: the name of the metric.
            stage: the stage after which the metric was measured: empty for training, `finetuned` or `dynamic`. For a
                metric of word similarity, the benchmark instead, as `benchmark=WS-353`. Ignored for TRUTH.
        """
        if model == TRUTH:
            return dict.fromkeys((1, 2, 3), self.truth[metric]) if metric in self.truth else {}
        return self.records.values(self.dataset, model, metric, stage)

    def mean(self, model: str, metric: str, stage: str = "") -> float:
        """Return the mean of a metric over the finished runs of a model, or nan if there are none.

        `stage` is as in `values`; the default is the metric after training.
        """
        values = list(self.values(model, metric, stage).values())
        return math.fsum(values) / len(values) if values else math.nan

    def label(self, model: str) -> str:
        """Return the label of a model in tables; the name of a model that is not planned is returned unchanged."""
        states = self.planned.get((model, ""), [])
        return str(states[0]["label"]) if states else {TRUTH: "the true distribution"}.get(model, model)


# --- quantities -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Quantity:
    """A quantity: a statistic of some models, with a confidence interval.

    Attributes:
        collect: called as `collect(data, *patterns)` with a `CorpusData`, the records of a corpus, and shell patterns
            of models. It yields one number per data point, or a pair of numbers if the quantity is a correlation.
        estimate: called as `estimate(sides, tail)` with one array [N, K] per side, and the probability outside each end
            of the interval. It returns the interval.
        what: the printed name of the quantity.
        unit: the unit in which the value is printed, such as `%`: a key of UNITS, which has the conversion.
        metrics: the metrics that the quantity reads. A model without the first of them counts as not run.
        units: what its data points are, as a printed plural such as `seeds`.
        names: the text that follows `what` in print, with a placeholder for the label of each model, such as `{0}
            against {1}`.
        stage: the stage after which metrics are read: empty for training, `finetuned` or `dynamic`.
        is_comparison: True if each model is a side of its own: `collect` is then called once per model, with one name.
            Otherwise all models form one side, and `collect` is called once with all patterns.
        models: called as `models(data, *patterns)`. It returns the names of the models that the quantity reads.
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
    models: Callable[..., Iterable[str]] = lambda data, *patterns: data.matching("|".join(patterns))

    def shown(self, value: float) -> float | None:
        """Return a value converted to the quantity's unit, or None if the value is not finite."""
        return UNITS[self.unit][0](value) if math.isfinite(value) else None

    def bound(self, value: float) -> float:
        """Return a bound as the quantity is computed: the logarithm of a factor, any other number unchanged."""
        return math.log(value) if self.unit == "×" else value


compared = partial(Quantity, estimate=student, names="{0} against {1}", is_comparison=True)


def against(metric: str, unit: str = "%", stage: str = "", log: bool = True) -> Quantity:
    """Return the quantity that compares a metric of two models over seeds: the first model relative to the second.

    Args:
        metric: the name of the metric.
        unit: how the comparison is printed: `%` for a ratio as a change in percent, `×` for a ratio as a factor, and an
            empty string for a plain number.
        stage: the stage after which the metric is read: empty for training, `finetuned` or `dynamic`.
        log: if true, compare by ratio, computed as a difference of logarithms; otherwise by difference.
    """

    def collect(data: CorpusData, model: str) -> list[float]:
        values = np.array([*data.values(model, metric, stage).values()], dtype=np.float64)
        return list(np.log(values) if log else values)

    return compared(collect, what=find(metric).words, unit=unit, metrics=(metric,), stage=stage)


def within_run(first: str, second: str, what: str, unit: str = "%") -> Quantity:
    """Return the quantity that is the ratio of two metrics of the same run, averaged over the seeds of a model.

    The average is computed from the logarithms of the ratios.

    Args:
        first: the metric in the numerator.
        second: the metric in the denominator.
        what: the printed name of the quantity.
        unit: how the ratio is printed: `%` for its difference from 1 in percent, or `×` for a factor.
    """

    def collect(data: CorpusData, model: str) -> list[float]:
        below = data.values(model, second)
        return [math.log(value / below[seed]) for seed, value in data.values(model, first).items() if seed in below]

    return Quantity(collect, student, what, unit, (first, second), names="{0}")


def along(metric: str, below: str = "", within: Ends = (0, INF)) -> Quantity:
    """Return the quantity that is Spearman's correlation between a metric and a number in the name of the models.

    The pattern of the claim ends in `*`, such as `mos-nt-components*`. For the model `mos-nt-components15`, the number
    is 15. Each run is one point. Models whose ending is not a number and models that failed to learn are left out.

    Args:
        metric: the name of the metric.
        below: the name of a second metric: `metric` is divided by it, within each run. Empty for no division.
        within: the smallest and largest number; models with other numbers are left out.
    """

    def settings(data: CorpusData, pattern: str) -> dict[str, float]:
        numbers_of = {}
        for model in data.learned(pattern):
            with suppress(ValueError):  # a variant of a member, not a member
                numbers_of[model] = float(model.removeprefix(pattern.rstrip("*")))
        return {model: setting for model, setting in numbers_of.items() if within[0] <= setting <= within[1]}

    def collect(data: CorpusData, pattern: str) -> Iterator[tuple[float, float]]:
        for model, setting in settings(data, pattern).items():
            values = data.values(model, metric)
            divisors = data.values(model, below) if below else dict.fromkeys(values, 1.0)
            yield from ((setting, value / divisors[seed]) for seed, value in values.items() if seed in divisors)

    metrics = (metric, below) if below else (metric,)
    what = f"Spearman’s ρ of {' over '.join(find(name).words for name in metrics)} and the setting"
    return Quantity(collect, spearman, what, "", metrics, "runs", "{0}", models=settings)


def correlation(what: str, windows: Mapping[str, Ends] | None = None) -> Quantity:
    """Return the quantity that is Pearson's correlation of test perplexity and Press rank; each model is one point.

    The claim's first pattern names a reference model; if it is a wildcard, the first matching model is the reference. A
    model counts if it has as many planned epochs as the reference, and about the same size (within SAME_SIZE). Models
    that failed to learn do not count. If TRUTH is one of the claim's patterns, the true distribution is one more point.

    Args:
        what: the printed name of the quantity.
        windows: {corpus: (low, high)}: only models with a test perplexity in this range count, and none on other
            corpora. By default all models count.
    """

    def points(data: CorpusData, *patterns: str) -> dict[str, Ends]:
        low, high = (0.0, INF) if windows is None else windows.get(data.dataset, (INF, INF))
        learned = data.learned("|".join(patterns))
        models = [m for m in learned if data.values(m, PRESS_RANK) and data.values(m, TEST_PPL)]
        first = next((model for model in models if model == patterns[0]), next(iter(models), ""))
        epochs = {m: {float(row["planned_epochs"]) for row in data.planned[m, ""]} for m in models}
        sizes = {m: data.mean(m, "parameters") for m in models}
        own = [m for m in models if epochs[m] == epochs[first] and abs(sizes[m] / sizes[first] - 1) <= SAME_SIZE]
        own += data.matching(TRUTH) if TRUTH in patterns else []
        means = {model: (data.mean(model, TEST_PPL), data.mean(model, PRESS_RANK)) for model in own}
        return {model: (ppl, rank) for model, (ppl, rank) in means.items() if low <= ppl <= high}

    metrics = (TEST_PPL, PRESS_RANK)
    return Quantity(lambda *args: points(*args).values(), fisher, what, "", metrics, "models", models=points)


# --- decisions -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Number:
    """The value and interval of a quantity in the unit in which they are printed.

    For example, a difference of logarithms is converted to a change in percent.

    Attributes:
        what: the printed name of the quantity, followed by the labels of the models.
        unit: the unit of `value`, `low` and `high`, such as `%`: a key of UNITS.
        value: the value; None if it is not finite.
        low, high: the ends of the interval; None if not finite, as for too few data points.
        n: the number of data points of each side: (3,) for one side, (3, 4) for a comparison of two.
    """

    what: str
    unit: str
    value: float | None
    low: float | None
    high: float | None
    n: tuple[int, ...]

    @property
    def text(self) -> str:
        """The number as text, such as `−3.4 % (95 % interval −4.0 to −2.9), n = 3 each`."""
        size = max(abs(x or 0) for x in (self.value, *((self.low, self.high) if self.unit != "×" else ())))
        digits = numbers.decimals(size, minimum=1 if self.unit else 2)
        printed = partial(numbers.number, digits=digits, signed=self.unit == "%")
        value, low, high = map(printed, (self.value, self.low, self.high))
        interval = "" if self.low is None or self.low == self.high else f" (95\u00a0% interval {low} to {high})"
        return f"{value}{UNITS[self.unit][1]}{interval}, {numbers.counts(self.n)}"


@dataclass(frozen=True)
class Decision:
    """The verdict of a rule, and the numbers from which the verdict follows.

    Attributes:
        verdict: REPRODUCED, NOT_REPRODUCED or UNDECIDED; CANNOT if a number is missing.
        numbers: the value and interval of each quantity of the rule, in order; for a rule on several heads, those of
            each head in turn.
        needed: the number of units per side that would probably decide the rule; of use only if it is undecided. Zero
            if no number would, because two parts of the rule disagree.
        units: the printed plural of these units, such as `seeds`.
        missing: if the rule cannot be evaluated, {"quantity": printed name, "models": labels of the models without a
            value of this quantity}; otherwise empty.
    """

    verdict: str
    numbers: tuple[Number, ...] = ()
    needed: int = 0
    units: str = ""
    missing: Mapping[str, str] = field(default_factory=dict)


# --- rules ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Rule:
    """A rule that turns the numbers of some models into a verdict.

    Attributes:
        text: the rule in English, for printing.
        quantities: the quantities that the rule reads.
        judge: called as `judge(data, *models, tests=1)`. `data` has the records of a corpus (a `CorpusData`). `models`
            are the claim's shell patterns of models, such as "softmax" or "mos*". `tests` is the number of rules that
            share the error probability ALPHA (Bonferroni). The result is a `Decision`: the verdict with its numbers.
        favours: the verdict that becomes likelier if the first model has more parameters than the second. +1 is
            *reproduced*, as for "MoS is better than Softmax"; -1 is *not reproduced*, as for "SS does not gain on
            Softmax". With 0, a difference in size does not matter.
        control: (position, verdicts), or None for no control. A control evaluates the rule again, with TRUTH in place
            of the model at `position`: (0, ...) turns (lms-plif, softmax) into (TRUTH, softmax). The position after the
            last model appends TRUTH. The control is passed if this evaluation gives one of `verdicts`; empty `verdicts`
            require the verdict on the claim's own models. If TRUTH is unknown, there is no control.
        hidden_by_ceiling: True if the claim expects high or rising ranks. The verdict *reproduced* then counts even if
            a rank is close to the largest that the matrix can have: this limit can hide high ranks, but not cause them.
    """

    text: str
    quantities: tuple[Quantity, ...]
    judge: Callable[..., Decision]
    favours: int = 0
    control: Control | None = None
    hidden_by_ceiling: bool = False


def interval_rule(quantity: Quantity, holds: Ends, fails: Ends | None = None) -> Rule:
    """Return the rule that compares the interval of one quantity with two regions, as in the module's docstring.

    Bounds are in the unit in which the quantity is computed, such as nats, even if it is printed in percent.

    Args:
        quantity: the quantity.
        holds: (low, high). The first region is between these bounds. A claim is *reproduced* if the whole interval lies
            in this region.
        fails: (low, high), by default the bounds `holds`. The second region is outside these bounds. If the first test
            fails and the whole interval lies below `low` or above `high`, the claim is *not reproduced*. Otherwise it
            is *undecided*.
    """
    fails = fails or holds

    def judge(data: CorpusData, *models: str, tests: int = 1) -> Decision:
        sides = [(model,) for model in models] if quantity.is_comparison else [models]
        samples = [np.array(list(quantity.collect(data, *side)), dtype=np.float64) for side in sides]
        if empty := [side for side, sample in zip(sides, samples, strict=True) if not len(sample)]:
            labels = ", ".join(data.label(side[0]) for side in empty if len(side) == 1)
            return Decision(CANNOT, missing={"quantity": quantity.what, "models": labels or "this study"})
        interval = quantity.estimate([sample.reshape(len(sample), -1) for sample in samples], ALPHA / 2 / tests)
        value, low, high = interval.value, interval.low, interval.high
        verdict = UNDECIDED
        if low > holds[0] and high < holds[1]:
            verdict = REPRODUCED
        elif high < fails[0] or low > fails[1]:
            verdict = NOT_REPRODUCED
        # The half-width that decides: the distance to the nearest bound or, if larger, between the outermost bounds.
        edges = [edge for edge in (*holds, *fails) if math.isfinite(edge)]
        distance = max(float(np.ptp(edges)), min(abs(value - edge) for edge in edges))
        what = ", ".join(filter(None, (quantity.what, quantity.names.format(*map(data.label, models)))))
        shown = quantity.shown
        number = Number(what, quantity.unit, shown(value), shown(low), shown(high), interval.n)
        return Decision(verdict, (number,), interval.needed(distance), quantity.units)

    return Rule(_text(quantity, holds, fails), (quantity,), judge)


def _text(quantity: Quantity, holds: Ends, fails: Ends) -> str:
    """Return a rule in English: the interval lies inside the bounds `holds`, or else outside the bounds `fails`.

    Example for a ratio of ranks, with `holds` and `fails` both (ln 2, INF): `the interval of Press rank lies above 2
    times; otherwise not reproduced if it lies below 2 times`.
    """
    suffix = UNITS[quantity.unit][1]
    digits = 2 if quantity.unit == "%" else 3  # a margin of 0.005 nats is 0.501 %

    def bounds(*sides: tuple[str, float]) -> list[str]:
        finite = [(side, quantity.shown(end)) for side, end in sides if math.isfinite(end)]
        return [f"{side} {numbers.true_minus(f'{end:.{digits}g}')}{suffix}" for side, end in finite]

    inside = " and ".join(bounds(("above", holds[0]), ("below", holds[1])))
    outside = " or ".join(bounds(("below", fails[0]), ("above", fails[1])))
    return f"the interval of {quantity.what} lies {inside}; otherwise not reproduced if it lies {outside}"


def every(*parts: Rule, agree: bool = False) -> Rule:
    """Return the rule that is *reproduced* if all given rules are, for the same models.

    The new rule is *not reproduced* if at least one given rule has the verdict *not reproduced* or, with `agree`, if
    all of them have. Otherwise it is *undecided*. Its attribute `favours` is the first nonzero one of the given rules.
    It has no control.
    """

    def judge(data: CorpusData, *models: str, tests: int = 1) -> Decision:
        decisions = [part.judge(data, *models, tests=tests) for part in parts]
        joint, verdicts = _joined(decisions, all_=True), {decision.verdict for decision in decisions}
        if not agree or joint.missing or len(verdicts) == 1:
            return joint
        return replace(joint, verdict=UNDECIDED, needed=joint.needed if UNDECIDED in verdicts else 0)

    return Rule(
        "; and ".join(part.text for part in parts) + ("; undecided if these disagree" if agree else ""),
        tuple(quantity for part in parts for quantity in part.quantities),
        judge,
        next((part.favours for part in parts if part.favours), 0),
        hidden_by_ceiling=any(part.hidden_by_ceiling for part in parts),
    )


def heads(part: Rule, *, all_: bool = True, chosen: Callable[[CorpusData], list[str]] | None = None) -> Rule:
    """Return the rule that `part` is *reproduced* for every head (`all_=True`) or for at least one (`all_=False`).

    The heads are the models that match the claim's first pattern and have values of the first metric of `part`. Each
    head is judged by `part`, with the head's name in place of the first pattern. If one head suffices, the error
    probability ALPHA is divided by the number of heads (Bonferroni).

    The new rule is *not reproduced* if `part` is *not reproduced* for some head (`all_=True`) or for every head
    (`all_=False`). Otherwise it is *undecided*.

    Args:
        part: the rule for one head.
        all_: True if `part` must be reproduced for every head, False if one head is enough.
        chosen: called as `chosen(data)` with a `CorpusData`; returns the names of the heads that are judged, in place
            of those that match the first pattern.
    """
    first = part.quantities[0]

    def judge(data: CorpusData, pattern: str, *others: str, tests: int = 1) -> Decision:
        models = chosen(data) if chosen else data.matching(pattern)
        models = [model for model in models if chosen or data.values(model, first.metrics[0], first.stage)]
        if not models:
            missing = "any head that qualifies" if chosen else "any head"
            return Decision(CANNOT, missing={"quantity": first.what, "models": missing})
        share = tests * (1 if all_ else len(models))
        return _joined([part.judge(data, model, *others, tests=share) for model in models], all_)

    return replace(part, text=f"for {'every' if all_ else 'some'} head: {part.text}", judge=judge)


def _joined(decisions: Sequence[Decision], all_: bool) -> Decision:
    """Return the joint decision of several rules: all must hold (`all_=True`), or one is enough (`all_=False`).

    * All must hold: *reproduced* if every rule is, *not reproduced* if some rule is *not reproduced*, else *undecided*.
    * One is enough: *reproduced* if some rule is, *not reproduced* if every rule is *not reproduced*, else *undecided*.

    If a rule cannot be evaluated, the decision of this rule is returned.
    """
    if lacking := next((decision for decision in decisions if decision.missing), None):
        return lacking
    verdicts = {decision.verdict for decision in decisions}
    first, second = (NOT_REPRODUCED, REPRODUCED) if all_ else (REPRODUCED, NOT_REPRODUCED)
    verdict = second if verdicts == {second} else UNDECIDED
    if first in verdicts:
        verdict = first
    undecided = [decision for decision in decisions if decision.verdict == UNDECIDED]
    most = max(undecided or decisions[:1], key=lambda decision: decision.needed)
    return replace(most, verdict=verdict, numbers=sum((decision.numbers for decision in decisions), ()))


# --- rules that several claims use; their arguments are thresholds in report/claims.yaml ------------------------------
def on_perplexity(holds: Ends, fails: Ends, favours: int, control: Control | None, stage: str = "") -> Rule:
    """Return the rule on the log test perplexity of the first model minus that of the second model, in nats.

    Args:
        holds, fails: pairs (low, high) in nats. An interval inside `holds` reproduces the claim; any other interval
            that lies outside `fails` refutes it.
        favours, control: attributes of the new rule (see `Rule`).
        stage: the stage after which perplexity is measured: empty for training, `finetuned` or `dynamic`.
    """
    rule = interval_rule(against(TEST_PPL, stage=stage), holds, fails)
    return replace(rule, favours=favours, control=control)


# In the following rules, `margin` is a difference of log perplexities that matters, in nats, and `stage` is that of
# `on_perplexity`. No model has a lower perplexity than the true distribution. So as the first model it must be better
# (`better`) and must gain (`no_gain` must fail). As the second model it must make the first one worse (`larger_ppl`,
# and `no_worse` must fail). A rule without this outcome cannot tell models apart on this corpus.
def better(margin: float = MARGIN, stage: str = "") -> Rule:
    """Return the rule that the first model has a lower perplexity; refuted if it gains less than `margin`."""
    return on_perplexity((-INF, 0), (-INF, -margin), +1, (0, (REPRODUCED,)), stage)


def larger_ppl(margin: float) -> Rule:
    """Return the rule that the first model has a higher perplexity, for models of unequal size."""
    return on_perplexity((0, INF), (margin, INF), 0, (1, (REPRODUCED,)))


def no_worse(margin: float, stage: str = "") -> Rule:
    """Return the rule that the first model is worse by less than `margin`; refuted if it is worse at all."""
    return on_perplexity((-INF, margin), (-INF, 0), +1, (1, FAILS), stage)


def no_gain(margin: float) -> Rule:
    """Return the rule that the first model gains less than `margin`; refuted if it gains at all."""
    return on_perplexity((-margin, INF), (0, INF), -1, (0, FAILS))


def above(quantity: Quantity, bound: float, margin: float = 0.0) -> Rule:
    """Return the rule that a quantity's interval lies above a bound.

    An interval above `bound` reproduces the claim. Any other interval that lies below `bound + margin` refutes it.
    `bound` is a factor for a quantity in the unit `×`. Otherwise `bound` and `margin` are in the quantity's own unit
    before conversion for printing, such as nats.
    """
    low = quantity.bound(bound)
    return interval_rule(quantity, (low, INF), (low + margin, INF))


def below(quantity: Quantity, bound: float) -> Rule:
    """Return the rule that a quantity's interval lies below a bound (as in `above`), or is refuted above it."""
    return interval_rule(quantity, (-INF, quantity.bound(bound)))


def weak(quantity: Quantity, bound: float) -> Rule:
    """Return the rule that a quantity's interval, such as that of a correlation, lies between -`bound` and `bound`."""
    return interval_rule(quantity, (-bound, bound))


rank_against = partial(against, PRESS_RANK, "×")  # of two models, at a stage


def higher_rank(times: float, stage: str = "") -> Rule:
    """Return the rule that the first model has more than `times` the Press rank of the second."""
    return replace(above(rank_against(stage), times), hidden_by_ceiling=True)
