"""Rules: where the interval of a quantity must lie for a claim to be reproduced, and where for it not to be.

Nothing is decided by a point against a threshold. A rule says *reproduced* when the whole interval is where the claim
has it, *not reproduced* when the whole interval is where the claim cannot be; a difference that matters (MARGIN) keeps
the two apart, so that "no significant difference" of a few runs is neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.records.metrics import PRESS_RANK, TEST_PPL
from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.claims.quantities import ALPHA, SUFFIXES, Quantity, Row, against
from softmax_bottleneck.report.claims.view import View

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
    """A quantity as a reader, and a tile of the page, need it: in its unit, with where it must lie.

    Attributes:
        holds: the claim has the interval between these; None is without end.
        fails: it is refuted by one below the first or above the second.
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
    """What a rule says of every resample (the first is the runs as they are), and the numbers behind it.

    Attributes:
        needed: more of what is needed, and how many, should it be undecided.
        missing: what the rule lacks, if it cannot be asked at all.
    """

    yes_B: Flags
    no_B: Flags
    numbers: tuple[Number, ...] = ()
    needed: str = ""
    missing: str = ""

    @property
    def verdict(self) -> str:
        """Of the runs as they are."""
        return REPRODUCED if self.yes_B[0] else NOT_REPRODUCED if self.no_B[0] else UNDECIDED

    @property
    def stability(self) -> float:
        """Share of the resamples with the same verdict."""
        code_B = self.yes_B.astype(int) - self.no_B
        return float((code_B[1:] == code_B[0]).mean())


def lacks(words: str) -> Outcome:
    """The outcome of a rule that cannot be asked."""
    return Outcome(np.zeros(2, dtype=bool), np.zeros(2, dtype=bool), missing=words)


@dataclass(frozen=True)
class Rule:
    """A rule over models of a view.

    Attributes:
        words: it, in words.
        quantities: what it reads.
        judge: its outcome: (view, *models, tests=1); so many questions asked at once share ALPHA (Bonferroni).
        example: made-up runs in which the claim holds, or fails, by construction: (holds, *models).
        favours: +1 when more parameters or epochs for the first model help the claim, -1 when they hurt it, 0 when
            sizes are not to be compared.
        hidden_by_ceiling: a ceiling of ranks can hide what is claimed, but not make it.
    """

    words: str
    quantities: tuple[Quantity, ...]
    judge: Callable[..., Outcome]
    example: Callable[..., list[Row]]
    favours: int = 0
    hidden_by_ceiling: bool = False


def test(quantity: Quantity, yes: Ends, no: Ends, made: Ends, words: str, favours: int = 0) -> Rule:
    """One quantity against two regions.

    Args:
        yes: the claim holds when the interval is inside.
        no: the claim fails when the interval is below the first or above the second.
        made: values of the quantity with which the claim holds, and fails, by construction.
    """

    def judge(view: View, *models: str, tests: int = 1) -> Outcome:
        samples = quantity.samples(view, *models)
        if empty := [sample.name for sample in samples if not len(sample.values_NK)]:
            own = ", ".join(view.label(name) for name in empty if name in models)
            return lacks(f"no {quantity.what.split(',')[0]}" + f" of {own}" * bool(own))
        found = quantity.estimate([sample.resampled_BNK for sample in samples], ALPHA / 2 / tests)
        yes_B = (found.low_B > yes[0]) & (found.high_B < yes[1])
        no_B = ~yes_B & ((found.high_B < no[0]) | (found.low_B > no[1]))
        value, low, high = (float(x_B[0]) for x_B in (found.value_B, found.low_B, found.high_B))
        edges = [edge for edge in (*yes, *no) if math.isfinite(edge)]
        room = max(float(np.ptp(edges)), min(abs(value - edge) for edge in edges))

        def shown(*values: float) -> tuple[float | None, ...]:
            return tuple(quantity.shown(value) if math.isfinite(value) else None for value in values)

        what = quantity.what.format(*map(view.label, models))
        ends = dict(zip(("low", "high"), shown(low, high), strict=True))
        number = Number(what, quantity.unit, shown(value)[0], shown(*yes), shown(*no), found.n, **ends)
        return Outcome(yes_B, no_B, (number,), f"{quantity.units} needed: {found.needed(room)}")

    return Rule(words, (quantity,), judge, lambda holds, *models: quantity.example(made[not holds], *models), favours)


def every(*parts: Rule) -> Rule:
    """All of several rules on the same models; made-up runs fail by the last."""

    def example(holds: bool, *models: str) -> list[Row]:
        return [row for part in parts for row in part.example(holds or part is not parts[-1], *models)]

    return Rule(
        "; and ".join(part.words for part in parts),
        tuple(quantity for part in parts for quantity in part.quantities),
        lambda view, *models, tests=1: _joined([part.judge(view, *models, tests=tests) for part in parts], all_=True),
        example,
        next((part.favours for part in parts if part.favours), 0),
        any(part.hidden_by_ceiling for part in parts),
    )


def heads(part: Rule, *, all_: bool = True, chosen: Callable[[View, str], list[str]] | None = None) -> Rule:
    """A rule asked of each model of the first pattern (or of the `chosen`) beside the same others: of all, or some."""

    def judge(view: View, pattern: str, *others: str, tests: int = 1) -> Outcome:
        first = part.quantities[0]
        models = chosen(view, pattern) if chosen else view.with_runs(pattern, *first.metrics[:1], stage=first.stage)
        share = tests if all_ else len(models)
        found = [part.judge(view, model, *others, tests=share) for model in models]
        missing = f"no {first.what.split(',')[0]} of any head{' that qualifies' * bool(chosen)}"
        return _joined(found, all_) if found else lacks(missing)

    def example(holds: bool, pattern: str, *others: str) -> list[Row]:
        return [row for head in pattern.split("|") for row in part.example(holds, head, *others)]

    words = f"for {'every' if all_ else 'some'} head: {part.words}"
    return replace(part, words=words, judge=judge, example=example)


def _joined(outcomes: Sequence[Outcome], all_: bool) -> Outcome:
    if missing := [outcome.missing for outcome in outcomes if outcome.missing]:
        return lacks("; ".join(dict.fromkeys(missing)))
    yes_XB, no_XB = (np.stack([getattr(outcome, name) for outcome in outcomes]) for name in ("yes_B", "no_B"))
    yes_B, no_B = (np.all(yes_XB, 0), np.any(no_XB, 0)) if all_ else (np.any(yes_XB, 0), np.all(no_XB, 0))
    found = tuple(number for outcome in outcomes for number in outcome.numbers)
    needed = [outcome.needed for outcome in outcomes if outcome.verdict == UNDECIDED] or [outcomes[0].needed]
    return Outcome(
        np.asarray(yes_B), np.asarray(no_B & ~yes_B), found, max(needed, key=lambda words: int(words.split()[-1]))
    )


# --- rules of several sources ---------------------------------------------------------------------------------------
def _on_perplexity(yes: Ends, no: Ends, made: Ends, words: str, favours: int) -> Callable[..., Rule]:
    words = f"the interval of the difference in log perplexity {words}".replace("MARGIN", f"{100 * MARGIN:g}\u00a0%")
    return lambda stage="": test(against(TEST_PPL, stage=stage), yes, no, made, words, favours)


# Of the first model against the second, at a stage.
better = _on_perplexity(
    (-INF, 0), (-INF, -MARGIN), (-0.05, 0.03), "is below zero; refuted when it excludes a gain of MARGIN", +1
)
larger = _on_perplexity(  # sizes are what the claim is about
    (0, INF), (MARGIN, INF), (0.05, -0.03), "is above zero; refuted when it excludes a loss of MARGIN", 0
)
no_worse = _on_perplexity(
    (-INF, MARGIN), (-INF, 0), (-0.01, 0.05), "excludes a loss of MARGIN; refuted when it is above zero", +1
)
no_gain = _on_perplexity(
    (-MARGIN, INF), (0, INF), (0.0, -0.05), "excludes a gain of MARGIN; refuted when it is below zero", -1
)
minimal_gain = _on_perplexity(
    (-SMALL, 0), (-SMALL, 0), (-0.005, 0.03), f"is within −{100 * SMALL:g}\u00a0% and zero; refuted when outside", +1
)


def above(quantity: Quantity, bound: float, made: Ends, words: str = "", margin: float = 0.0) -> Rule:
    """The interval is above a bound; refuted when it is below it, or below a margin more."""
    words = words or f"the interval of {_name(quantity)} is above {_printed(quantity, bound)}; refuted when it is below"
    return test(quantity, (bound, INF), (bound + margin, INF), made, words)


def below(quantity: Quantity, bound: float, made: Ends, words: str = "") -> Rule:
    """The interval is below a bound; refuted when it is above."""
    words = words or f"the interval of {_name(quantity)} is below {_printed(quantity, bound)}; refuted when it is above"
    return test(quantity, (-INF, bound), (-INF, bound), made, words)


def between(quantity: Quantity, ends: Ends, made: Ends, words: str = "") -> Rule:
    """The interval is within two bounds; refuted when it is outside."""
    low, high = (_printed(quantity, end) for end in ends)
    return test(
        quantity,
        ends,
        ends,
        made,
        words or f"the interval of {_name(quantity)} is within {low} and {high}; refuted when outside",
    )


def _name(quantity: Quantity) -> str:
    return quantity.what.split(", {0}")[0]


def _printed(quantity: Quantity, value: float) -> str:
    return numbers.true_minus(f"{quantity.shown(value):.3g}{SUFFIXES.get(quantity.unit, '')}")


def rank_against(stage: str = "", metric: str = PRESS_RANK) -> Quantity:
    """A Press rank against another model's."""
    return against(metric, "×", stage)


def weak(quantity: Quantity, made: Ends = (0.1, 0.97)) -> Rule:
    """A correlation is weak."""
    return between(quantity, (-STRONG, STRONG), made)


def hidden(rule: Rule) -> Rule:
    """A rule on ranks that are high or rise: a ceiling can hide it, but not make it."""
    return replace(rule, hidden_by_ceiling=True)


HIGH_RANK = hidden(above(rank_against(), HIGH, (math.log(5), 0.0)))
LOW_RANK = below(rank_against(), HIGH, (math.log(1.2), math.log(5)))
