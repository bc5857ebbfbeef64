"""Rules: the regions in which the interval of a quantity must lie for a claim to be reproduced, or refuted.

No rule compares a point with a threshold. A claim is *reproduced* if the whole interval lies in its region, and *not
reproduced* if the whole interval lies in the other one. MARGIN, the smallest difference that matters, separates the
two regions, so a few runs without a significant difference decide nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.records.metrics import PRESS_RANK, TEST_PPL
from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.claims.quantities import ALPHA, SUFFIXES, Quantity, against
from softmax_bottleneck.report.claims.view import View
from softmax_bottleneck.report.claims.wording import Code, Finding

REPRODUCED, NOT_REPRODUCED, UNDECIDED = "reproduced", "not reproduced", "undecided"
CANNOT, CONFOUNDED = "cannot be tested here", "confounded"
VERDICTS = (REPRODUCED, NOT_REPRODUCED, UNDECIDED, CONFOUNDED, CANNOT)

MARGIN = 0.005  # nats: a perplexity difference that matters; 0.29 at the paper's 57, what its LMS-PLIF gains on PTB
SMALL = 0.01  # nats: a gain below it is called small
HIGH = math.log(2)  # a head's rank is high from twice that of Softmax on
STRONG = 0.7  # a correlation from here on (r^2 = 0.49) is strong
INF = math.inf

Flags = NDArray[np.bool_]
Ends = tuple[float, float]


@dataclass(frozen=True)
class Number:
    """A quantity as the report prints it: in its unit, with the regions where it must lie.

    Attributes:
        holds: the claim holds if the interval is between these; None has no bound.
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
        digits = numbers.decimals(size, least=1 if self.unit in SUFFIXES else 2)
        printed = partial(numbers.number, digits=digits, signed=self.unit == "%")
        value, low, high = map(printed, (self.value, self.low, self.high))
        interval = "" if self.low is None or self.low == self.high else f" (95\u00a0% interval {low} to {high})"
        return f"{value}{SUFFIXES.get(self.unit, '')}{interval}, {numbers.counts(self.n)}"

    @property
    def regions(self) -> str:
        """`holds below 0, fails above −0.5`: where the interval must lie."""
        ends = zip(("above", "below", "below", "above"), (*self.holds, *self.fails), strict=True)
        words = [f"{side} {numbers.true_minus(f'{end:.2g}')}" for side, end in ends if end is not None]
        holds = sum(end is not None for end in self.holds)
        return f"holds {' and '.join(words[:holds])}, fails {' or '.join(words[holds:])}"


@dataclass(frozen=True)
class Outcome:
    """The answer of a rule for every resample (the first is the runs as they are), and the numbers behind it.

    Attributes:
        needed: how many units would decide it, and which, should it be undecided.
        missing: why the rule could not be evaluated.
    """

    yes_B: Flags
    no_B: Flags
    numbers: tuple[Number, ...] = ()
    needed: tuple[int, str] = (0, "")
    missing: Finding | None = None

    @property
    def verdict(self) -> str:
        """The verdict for the runs as they are."""
        return REPRODUCED if self.yes_B[0] else NOT_REPRODUCED if self.no_B[0] else UNDECIDED

    @property
    def stability(self) -> float:
        """The share of the resamples with the same verdict."""
        code_B = self.yes_B.astype(int) - self.no_B
        return float((code_B[1:] == code_B[0]).mean())


def lacks(quantity: Quantity, models: str) -> Outcome:
    """Return the outcome of a rule that lacks a quantity."""
    missing = Finding(Code.NO_VALUE, {"quantity": quantity.what, "models": models})
    return Outcome(np.zeros(2, dtype=bool), np.zeros(2, dtype=bool), missing=missing)


@dataclass(frozen=True)
class Rule:
    """A rule over models of a view.

    Attributes:
        text: the rule in English; printed only.
        quantities: the numbers that it reads.
        judge: returns its outcome: (view, *models, tests=1); `tests` rules asked at once share ALPHA (Bonferroni).
        favours: +1 when more parameters or epochs for the first model help the claim, -1 when they hurt it, 0 when
            sizes are not to be compared.
        hidden_by_ceiling: a ceiling of ranks can hide what is claimed, but not make it.
    """

    text: str
    quantities: tuple[Quantity, ...]
    judge: Callable[..., Outcome]
    favours: int = 0
    hidden_by_ceiling: bool = False


def test(quantity: Quantity, yes: Ends, no: Ends, text: str, favours: int = 0) -> Rule:
    """Return the rule that compares the interval of one quantity with two regions.

    Args:
        yes: the claim holds when the interval is inside.
        no: the claim fails when the interval is below the first or above the second.
    """

    def judge(view: View, *models: str, tests: int = 1) -> Outcome:
        samples = quantity.samples(view, *models)
        if empty := [sample.name for sample in samples if not len(sample.values_NK)]:
            return lacks(quantity, ", ".join(view.label(name) for name in empty if name in models) or "this study")
        found = quantity.estimate([sample.resampled_BNK for sample in samples], ALPHA / 2 / tests)
        yes_B = (found.low_B > yes[0]) & (found.high_B < yes[1])
        no_B = ~yes_B & ((found.high_B < no[0]) | (found.low_B > no[1]))
        value, low, high = (float(x_B[0]) for x_B in (found.value_B, found.low_B, found.high_B))
        edges = [edge for edge in (*yes, *no) if math.isfinite(edge)]
        room = max(float(np.ptp(edges)), min(abs(value - edge) for edge in edges))

        def shown(*values: float) -> tuple[float | None, ...]:
            return tuple(quantity.shown(value) if math.isfinite(value) else None for value in values)

        what = ", ".join(filter(None, (quantity.what, quantity.models.format(*map(view.label, models)))))
        ((value_shown,), (low_shown, high_shown)) = shown(value), shown(low, high)
        number = Number(what, quantity.unit, value_shown, shown(*yes), shown(*no), found.n, low_shown, high_shown)
        return Outcome(yes_B, no_B, (number,), (found.needed(room), quantity.units))

    return Rule(text, (quantity,), judge, favours)


def every(*parts: Rule) -> Rule:
    """Return the rule that all parts hold for the same models."""

    return Rule(
        "; and ".join(part.text for part in parts),
        tuple(quantity for part in parts for quantity in part.quantities),
        lambda view, *models, tests=1: _joined([part.judge(view, *models, tests=tests) for part in parts], all_=True),
        next((part.favours for part in parts if part.favours), 0),
        any(part.hidden_by_ceiling for part in parts),
    )


def heads(part: Rule, *, all_: bool = True, chosen: Callable[[View, str], list[str]] | None = None) -> Rule:
    """Return the rule that a part holds for all models of the first pattern (or of `chosen`), or for some."""

    def judge(view: View, pattern: str, *others: str, tests: int = 1) -> Outcome:
        first = part.quantities[0]
        models = chosen(view, pattern) if chosen else view.with_runs(pattern, *first.metrics[:1], stage=first.stage)
        share = tests if all_ else len(models)
        found = [part.judge(view, model, *others, tests=share) for model in models]
        return _joined(found, all_) if found else lacks(first, "any head" + " that qualifies" * bool(chosen))

    return replace(part, text=f"for {'every' if all_ else 'some'} head: {part.text}", judge=judge)


def _joined(outcomes: Sequence[Outcome], all_: bool) -> Outcome:
    """Return the outcome of all rules (`all_`), or of any."""
    if lacking := next((outcome for outcome in outcomes if outcome.missing), None):
        return lacking
    yes_XB, no_XB = (np.stack([getattr(outcome, name) for outcome in outcomes]) for name in ("yes_B", "no_B"))
    yes_B, no_B = (np.all(yes_XB, 0), np.any(no_XB, 0)) if all_ else (np.any(yes_XB, 0), np.all(no_XB, 0))
    found = tuple(number for outcome in outcomes for number in outcome.numbers)
    needed = [outcome.needed for outcome in outcomes if outcome.verdict == UNDECIDED] or [outcomes[0].needed]
    return Outcome(np.asarray(yes_B), np.asarray(no_B & ~yes_B), found, max(needed, key=itemgetter(0)))


# --- rules of several sources ---------------------------------------------------------------------------------------
def _on_perplexity(yes: Ends, no: Ends, text: str, favours: int) -> Callable[..., Rule]:
    """Return the function that makes a rule on the difference in log perplexity of two models at a stage."""
    text = f"the interval of the difference in log perplexity {text}"
    return lambda stage="": test(against(TEST_PPL, stage=stage), yes, no, text, favours)


LEAST = f"{100 * MARGIN:g}\u00a0%"
better = _on_perplexity((-INF, 0), (-INF, -MARGIN), f"is below zero; refuted when it excludes a gain of {LEAST}", +1)
larger = _on_perplexity(  # sizes are what the claim is about
    (0, INF), (MARGIN, INF), f"is above zero; refuted when it excludes a loss of {LEAST}", 0
)
no_worse = _on_perplexity((-INF, MARGIN), (-INF, 0), f"excludes a loss of {LEAST}; refuted when it is above zero", +1)
no_gain = _on_perplexity((-MARGIN, INF), (0, INF), f"excludes a gain of {LEAST}; refuted when it is below zero", -1)
minimal_gain = _on_perplexity(
    (-SMALL, 0), (-SMALL, 0), f"is within −{100 * SMALL:g}\u00a0% and zero; refuted when outside", +1
)


def above(quantity: Quantity, bound: float, text: str = "", margin: float = 0.0) -> Rule:
    """Return the rule that an interval is above a bound; refuted when it is below the bound plus a margin."""
    text = text or f"the interval of {quantity.what} is above {_printed(quantity, bound)}; refuted when it is below"
    return test(quantity, (bound, INF), (bound + margin, INF), text)


def below(quantity: Quantity, bound: float) -> Rule:
    """Return the rule that an interval is below a bound; refuted when it is above."""
    text = f"the interval of {quantity.what} is below {_printed(quantity, bound)}; refuted when it is above"
    return test(quantity, (-INF, bound), (-INF, bound), text)


def between(quantity: Quantity, ends: Ends) -> Rule:
    """Return the rule that an interval is within two bounds; refuted when it is outside."""
    low, high = (_printed(quantity, end) for end in ends)
    text = f"the interval of {quantity.what} is within {low} and {high}; refuted when outside"
    return test(quantity, ends, ends, text)


def _printed(quantity: Quantity, value: float) -> str:
    return numbers.true_minus(f"{quantity.shown(value):.3g}{SUFFIXES.get(quantity.unit, '')}")


def rank_against(stage: str = "", metric: str = PRESS_RANK) -> Quantity:
    """Return the quantity that compares the Press ranks of two models."""
    return against(metric, "×", stage)


def weak(quantity: Quantity) -> Rule:
    """Return the rule that a correlation is weak."""
    return between(quantity, (-STRONG, STRONG))


def hidden(rule: Rule) -> Rule:
    """Mark a rule on high or rising ranks: a ceiling can hide what it claims, but not make it."""
    return replace(rule, hidden_by_ceiling=True)


HIGH_RANK = hidden(above(rank_against(), HIGH))
LOW_RANK = below(rank_against(), HIGH)
