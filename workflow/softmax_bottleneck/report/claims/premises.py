"""What must be so before a verdict means anything: each premise computed from the records, with its number.

A broken premise overrides the verdicts that it could have brought about, and no others: more parameters for the side
that won spoil *reproduced*, while a smaller side that won all the same has won; a ceiling hides growth but makes none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from softmax_bottleneck.measuring.statistics import Summary
from softmax_bottleneck.records.metrics import PRESS_RANK, TEST_PPL
from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.claims.quantities import least
from softmax_bottleneck.report.claims.rules import CANNOT, CONFOUNDED, NOT_REPRODUCED, REPRODUCED, VERDICTS, Rule
from softmax_bottleneck.report.claims.view import LAW, View, varied
from softmax_bottleneck.report.source import OF_OPTIMIZERS, paper_study, published_dataset
from softmax_bottleneck.study import Study

CEILING = 0.95  # of min(N, V): a Press rank from here on says that the matrix ends, not what the head can do
SETTLED = (
    0.03  # relative, of validation perplexity: a larger fall in the last eighth of the epochs is not the end of one
)
ELSEWHERE = {"embedding_size", "hidden_size", "context_size", "epochs"}  # settings that have premises of their own
WIDE = 200  # the narrowest of the published networks whose times are compared
ANY = frozenset(VERDICTS)
DECIDED = frozenset((REPRODUCED, NOT_REPRODUCED))
UNSEEN = ANY - {REPRODUCED}


@dataclass(frozen=True)
class Premise:
    """A condition, and whether it holds.

    Attributes:
        what: is needed; nothing of a mere remark.
        text: what was found, in words that stand alone.
        spoils: the verdicts that it could have brought about if it does not hold, and what they become.
    """

    what: str
    text: str
    holds: bool
    spoils: frozenset[str] = ANY
    becomes: str = CANNOT

    @property
    def words(self) -> str:
        """`runs of 4 and 8 epochs; needed: all are trained for as many`."""
        return f"{self.text}; needed: {self.what}" if self.what else self.text

    @property
    def line(self) -> str:
        """`ok: runs of 8 epochs; needed: all are trained for as many`."""
        return f"{'ok' if self.holds else 'BROKEN'}: {self.words}"


Check = Callable[[View, Sequence[str]], Premise | None]


def of_rule(view: View, rule: Rule, patterns: Sequence[str]) -> Iterator[Premise]:
    """The premises that follow from what a rule compares."""
    sides = [[model for model in side if model != LAW] for side in rule.quantities[0].sides(view, *patterns)]
    models = [model for side in sides for model in side]
    metrics = {metric for quantity in rule.quantities for metric in quantity.metrics}
    stages = {quantity.stage for quantity in rule.quantities}
    if models:
        yield _one_setting(view, models)
    compares = bool(models) and rule.quantities[0].estimate is not least  # what must hold of every run compares none
    if compares:
        yield _epochs(view, sides, rule.favours)
        if view.study:
            yield _like_for_like(view.study, view.dataset, models)
    if PRESS_RANK in metrics:
        yield replace(_no_ceiling(view, models, next(iter(stages))), spoils=UNSEEN if rule.hidden_by_ceiling else ANY)
    if "dynamic" in stages:
        yield _moves(view, models)
    if metrics & {"sec_per_epoch", "ms_per_batch"}:
        yield _one_machine(view, models)
    if (models and TEST_PPL in metrics) or (compares and PRESS_RANK in metrics):
        yield _learned(view, models)
    if models and TEST_PPL in metrics:
        yield _settled(view, models)
    if rule.favours:
        yield _averaged_alike(view, models)


def _one_setting(view: View, models: Sequence[str]) -> Premise:
    counts = {model: set(view.runs(model, "parameters").values()) for model in models}
    odd = [view.label(model) for model, sizes in counts.items() if len(sizes) > 1]
    text = f"the runs of {', '.join(odd)} differ in size" if odd else "the runs of every model have one size"
    return Premise("one size for all runs of a model", text, not odd)


def _epochs(view: View, sides: Sequence[Sequence[str]], favours: int) -> Premise:
    """Equal schedules; of two sides that differ, the longer may win only where that is not what the claim says."""
    planned = [view.planned_epochs(side) for side in sides]
    known = sorted(set().union(*planned))
    spoils = DECIDED
    if len(known) == 2 and len(sides) == 2 and all(len(side) == 1 for side in planned):
        spoils = helped(favours if max(planned[0]) > max(planned[1]) else -favours)
    text = f"runs of {' and '.join(f'{epochs:.0f}' for epochs in known) or 'an unknown number of'} epochs"
    return Premise("all are trained for as many", text, len(known) <= 1, spoils, CONFOUNDED)


def _like_for_like(study: Study, dataset: str, models: Sequence[str]) -> Premise:
    """Runs that are compared differ in their heads alone, or in what differs in the paper, too."""
    odd = varied(study, dataset, models) - ELSEWHERE
    odd -= OF_OPTIMIZERS.keys() if "optimizer" in odd else set()
    paper, corpus = paper_study() if odd else None, published_dataset(study.datasets[dataset])
    own = [name for name, one in paper.datasets.items() if published_dataset(one) == corpus] if paper else []
    there = set[str]().union(*(varied(paper, name, models) for name in own)) if paper else set()
    text = "but for heads, sizes and seeds the runs are trained alike"
    if odd:
        text = f"besides their heads the runs differ in {', '.join(sorted(odd))}" + ", as in the paper" * (odd <= there)
    return Premise("in nothing, or in what differs in the paper", text, odd <= there, DECIDED, CONFOUNDED)


def helped(advantage: int) -> frozenset[str]:
    """The verdict that an advantage of the claimed side (+1), or of the other (-1), could have brought about."""
    return {1: frozenset((REPRODUCED,)), -1: frozenset((NOT_REPRODUCED,)), 0: DECIDED}[advantage]


def _no_ceiling(view: View, models: Sequence[str], stage: str) -> Premise:
    sides = ("rank_rows", "rank_columns")
    shares = [
        (rank / min(view.runs(model, side, stage).get(seed, math.inf) for side in sides), view.label(model))
        for model in models
        for seed, rank in view.runs(model, PRESS_RANK, stage).items()
    ]
    share, label = max(shares, default=(0.0, "no ranks"))
    text = f"the highest rank is {numbers.percent(share)} of min(N, V) ({label})"
    return Premise(f"none above {numbers.percent(CEILING)} of this ceiling", text, share <= CEILING)


def _moves(view: View, models: Sequence[str]) -> Premise:
    rates = [rate for model in models for rate in view.runs(model, "dynamic_learning_rate", "dynamic").values()]
    still = sum(rate == 0 for rate in rates)
    text = f"dynamic evaluation chose a step size of 0 in {still} of {len(rates)} runs"
    return Premise("one above 0 in every run", text, bool(rates) and not still)


def _one_machine(view: View, models: Sequence[str]) -> Premise:
    kinds = sorted({str(row.get("hardware", "")) for model in models for row in view.planned[model, ""]})
    return Premise("times of one kind of machine", f"times of {'; '.join(kinds)}", len(kinds) == 1, becomes=CONFOUNDED)


def _learned(view: View, models: Sequence[str]) -> Premise:
    poor = [(model, seed) for dataset, model, seed in view.records.unlearned if dataset == view.dataset]
    text = ", ".join(f"{view.label(model)} with seed {seed}" for model, seed in poor if model in models)
    found = f"{text} learned no more" if text else "every run learned more"
    return Premise("every run learns more", f"{found} than how frequent words are", not text)


def _settled(view: View, models: Sequence[str]) -> Premise:
    """A run that was still learning fast says which head is slow, not which is worse."""
    falls = [(fall, view.label(model)) for model in models for fall in view.late_falls(model)]
    fall, label = max(falls, default=(0.0, "no epoch logs"))
    still = "" if fall < SETTLED else "still "
    text = f"validation perplexity {still}fell by {numbers.percent(fall, 1)} ({label}) in the last eighth of the epochs"
    return Premise(f"less than {numbers.percent(SETTLED)}", text, fall < SETTLED)


def _averaged_alike(view: View, models: Sequence[str]) -> Premise:
    averaged = {model: min(view.averaged_epochs(model), default=0.0) for model in models}
    text = ", ".join(f"{view.label(model)} over {epochs:.0f}" for model, epochs in averaged.items())
    alike = len({epochs > 0 for epochs in averaged.values()}) == 1
    return Premise(
        "averages on all sides or on none", f"weights are averaged: {text} epochs", alike, becomes=CONFOUNDED
    )


# --- premises of single claims --------------------------------------------------------------------------------------
def averaged(view: View, patterns: Sequence[str]) -> Premise:
    """The treatment happened: every run's tested weights are averaged over an epoch at least."""
    runs = [epochs for pattern in patterns for m in view.matching(pattern) for epochs in view.averaged_epochs(m)]
    lacking = sum(epochs < 1 for epochs in runs)
    text = f"tested weights are averaged over an epoch or more in {len(runs) - lacking} of {len(runs)} runs"
    return Premise("in all of them", text, bool(runs) and not lacking)


def wide(view: View, patterns: Sequence[str]) -> Premise:
    """What a head adds to the time of a network is another share of a small one."""
    models = [model for pattern in patterns for model in view.matching(pattern)]
    least = min((width for model in models for width in view.runs(model, "embedding_size").values()), default=0.0)
    text = f"word vectors have width {least:.0f}, in the papers 200 to 400"
    return Premise(f"at least {WIDE} where times are compared", text, least >= WIDE)


def size_gap(view: View, patterns: Sequence[str]) -> float | None:
    """Parameters of the first side (its largest model) relative to the last, minus one; None when not known."""
    sides = [[view.mean(m, "parameters") for m in view.matching(p) if m != LAW] for p in (patterns[0], patterns[-1])]
    known = [[size for size in side if not math.isnan(size)] for side in sides]
    return max(known[0]) / max(known[1]) - 1 if all(known) else None


def size_words(gap: float) -> str:
    """`+67 %`."""
    return f"{gap:+.0%}".replace("%", "\u00a0%").replace("-", "−")


def spread_above_noise(repeated: str) -> Check:
    """Perplexities of the points must differ by more than seeds of one of them do, or any correlation is weak."""

    def check(view: View, patterns: Sequence[str]) -> Premise | None:
        seeds = list(view.runs(repeated, TEST_PPL).values())
        means = [view.mean(model, TEST_PPL) for pattern in patterns for model in view.learned(pattern)]
        points = [mean for mean in means if not math.isnan(mean)]
        if len(seeds) < 2 or len(points) < 2:
            return None
        noise, total = ((Summary.of(numbers).sd or 0.0) ** 2 for numbers in (seeds, points))
        share = f"seeds are {numbers.percent(noise / total)} of the variance" if total else "there is no variance"
        return Premise("less than half", f"{share} of perplexity over models", 2 * noise < total)

    return check
