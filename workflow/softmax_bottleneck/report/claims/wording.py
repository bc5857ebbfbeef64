"""Codes for why a verdict is what it is, and the English templates that print them.

Rules, premises and tiles decide by codes and numbers alone. A template may be rewritten freely: no verdict depends on
its text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Any


class Code(StrEnum):
    """A reason, a premise, or why a run is left out."""

    NO_MODEL = auto()
    NO_RUN = auto()
    ALL_DIVERGED = auto()
    NO_VALUE = auto()
    TOO_FEW = auto()
    INCONCLUSIVE = auto()
    UNSTABLE = auto()
    ONE_SIZE = auto()
    EPOCHS = auto()
    SETTINGS = auto()
    CEILING = auto()
    STEP_SIZE = auto()
    MACHINES = auto()
    LEARNED = auto()
    CONVERGED = auto()
    AVERAGED_ALIKE = auto()
    AVERAGED = auto()
    WIDTH = auto()
    SEED_NOISE = auto()
    SIZE_UNKNOWN = auto()
    SIZE = auto()
    EQUAL_PAIR = auto()
    NO_EQUAL_PAIR = auto()
    CONTROL = auto()
    NO_CONTROL = auto()
    TREATMENT = auto()
    RANKS_APART = auto()
    BENCHMARKS = auto()
    RUNS = auto()
    PUBLISHED_WIDTH = auto()
    FITS_CONVERGED = auto()
    STATE = auto()
    UNLEARNED = auto()


SIZES = "equal sizes, or that the larger side lost"
# What was found, and what is needed; a remark needs nothing.
TEMPLATES: dict[Code, tuple[str, str]] = {
    Code.NO_MODEL: ("no run of {models} in this study", ""),
    Code.NO_RUN: ("no finished run of {models}", ""),
    Code.ALL_DIVERGED: ("every run of {models} diverged", ""),
    Code.NO_VALUE: ("no value of {quantity} for {models}", ""),
    Code.TOO_FEW: ("too few {units} for an interval", "{needed} {units}"),
    Code.INCONCLUSIVE: ("the interval contains both outcomes", "{needed} {units}"),
    Code.UNSTABLE: ("{verdict} in only {stability:.0%} of resamples", "{needed} {units}"),
    Code.ONE_SIZE: ("models whose runs differ in size: {models}", "none"),
    Code.EPOCHS: ("runs of {epochs} epochs", "the same number of epochs for every run"),
    Code.SETTINGS: ("settings besides the head in which runs differ: {settings}", "none, or those of the paper"),
    Code.CEILING: ("the highest rank is {share:.0%} of min(N, V) ({model})", "at most {limit:.0%} of this ceiling"),
    Code.STEP_SIZE: ("dynamic evaluation chose a step size of 0 in {still} of {runs} runs", "more than 0 in every run"),
    Code.MACHINES: ("times were measured on {machines}", "one kind of machine"),
    Code.LEARNED: ("runs no better than a unigram model: {runs}", "none"),
    Code.CONVERGED: (
        "validation perplexity falls by at most {fall:.1%} ({model}) in the last eighth of the epochs",
        "less than {limit:.0%}",
    ),
    Code.AVERAGED_ALIKE: ("epochs over which weights are averaged: {epochs}", "averages on all sides or on none"),
    Code.AVERAGED: ("{averaged} of {runs} runs average their tested weights over at least one epoch", "all runs"),
    Code.WIDTH: ("the narrowest word vectors have width {width:.0f}; the papers use 200 to 400", "at least {limit}"),
    Code.SEED_NOISE: ("seeds cause {share:.0%} of the variance of perplexity over models", "less than half"),
    Code.SIZE_UNKNOWN: ("the numbers of parameters are not known", SIZES),
    Code.SIZE: ("{model} has {ratio:.2f} times the parameters", SIZES),
    Code.EQUAL_PAIR: (
        "{model} has {ratio:.2f} times the parameters; for {equal}, of equal size: {verdict}, {number}",
        "the same verdict",
    ),
    Code.NO_EQUAL_PAIR: ("{model} has {ratio:.2f} times the parameters, and no pair of equal size was run", SIZES),
    Code.CONTROL: ("control: for the true distribution the rule returns “{verdict}”", "“{expected}”"),
    Code.NO_CONTROL: ("no control with the true distribution: {why}", ""),
    Code.TREATMENT: ("the F-test of whether c and k change the rank gives p = {p}", "below {limit}"),
    Code.RANKS_APART: ("low ranks reach {low:.0f}, high ranks start at {high:.0f}", "less than half of the high ranks"),
    Code.BENCHMARKS: ("word-similarity benchmarks: {benchmarks}", "at least {limit}"),
    Code.RUNS: ("runs of each side: {runs}", "at least {limit} each"),
    Code.PUBLISHED_WIDTH: ("the Transformer has width {widths}", "200 or 300, as published"),
    Code.FITS_CONVERGED: (
        "{head}, as wide as its true distribution has columns, loses up to {loss:.1%} of what there is to learn",
        "less than {limit:.0%}, as converged fits lose",
    ),
    Code.STATE: ("{model}: {state} with seed {seeds}", ""),
    Code.UNLEARNED: ("{model}, seed {seed}, is left out of correlations and trends: {why}", ""),
}


@dataclass(frozen=True)
class Finding:
    """A code and the facts that its template prints."""

    code: Code
    facts: Mapping[str, Any]

    @property
    def found(self) -> str:
        """The text without what is needed."""
        return self._fill(0)

    @property
    def needed(self) -> str:
        """What is needed, as text; empty for a remark."""
        return self._fill(1)

    def __str__(self) -> str:
        return f"{self.found}; needed: {self.needed}" if self.needed else self.found

    def _fill(self, part: int) -> str:
        return re.sub(r"(?<=\d)%", "\u00a0%", TEMPLATES[self.code][part].format(**self.facts))
