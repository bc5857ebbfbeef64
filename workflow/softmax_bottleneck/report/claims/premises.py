"""Premises: conditions, computed from the records, without which a verdict means nothing.

A broken premise overrides only the verdicts that it could have brought about. If the winning side has more parameters,
*reproduced* is overridden; if a smaller side wins, it has won. A ceiling can hide growth but cannot cause it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from softmax_bottleneck.measuring.statistics import Summary
from softmax_bottleneck.records.metrics import PRESS_RANK, TEST_PPL
from softmax_bottleneck.report.claims.quantities import least
from softmax_bottleneck.report.claims.rules import CANNOT, CONFOUNDED, NOT_REPRODUCED, REPRODUCED, VERDICTS, Rule
from softmax_bottleneck.report.claims.view import LAW, View, varied
from softmax_bottleneck.report.claims.wording import Code, Finding
from softmax_bottleneck.report.source import OF_OPTIMIZERS, paper_study, published_dataset
from softmax_bottleneck.study import Study

CEILING = 0.95  # of min(N, V): a higher Press rank shows the size of the matrix, not what the head can do
SETTLED = 0.03  # relative fall of validation perplexity in the last eighth of the epochs; above it, not converged
ELSEWHERE = {"embedding_size", "hidden_size", "context_size", "epochs"}  # settings that have premises of their own
WIDE = 200  # the narrowest of the published networks whose times are compared
ANY = frozenset(VERDICTS)
DECIDED = frozenset((REPRODUCED, NOT_REPRODUCED))
UNSEEN = ANY - {REPRODUCED}


@dataclass(frozen=True)
class Premise(Finding):
    """A condition, and whether it holds.

    Attributes:
        spoils: the verdicts that a broken premise could have brought about.
        becomes: the verdict that replaces them.
    """

    holds: bool
    spoils: frozenset[str] = ANY
    becomes: str = CANNOT

    @property
    def line(self) -> str:
        """The finding after `ok` or `BROKEN`."""
        return f"{'ok' if self.holds else 'BROKEN'}: {self}"


Check = Callable[[View, Sequence[str]], Premise | None]


def of_rule(view: View, rule: Rule, patterns: Sequence[str]) -> Iterator[Premise]:
    """Yield the premises that follow from what a rule compares."""
    sides = [[model for model in side if model != LAW] for side in rule.quantities[0].sides(view, *patterns)]
    models = [model for side in sides for model in side]
    metrics = {metric for quantity in rule.quantities for metric in quantity.metrics}
    stages = {quantity.stage for quantity in rule.quantities}
    compares = bool(models) and rule.quantities[0].estimate is not least  # a bound on every run compares no models
    if models:
        sizes = {model: set(view.runs(model, "parameters").values()) for model in models}
        odd = [view.label(model) for model in models if len(sizes[model]) > 1]
        yield Premise(Code.ONE_SIZE, {"models": ", ".join(odd) or "none"}, not odd)
    if compares:
        yield _epochs(view, sides, rule.favours)
        if view.study:
            yield _settings(view.study, view.dataset, models)
    if PRESS_RANK in metrics:
        yield _ceiling(view, models, next(iter(stages)), UNSEEN if rule.hidden_by_ceiling else ANY)
    if "dynamic" in stages:
        rates = [rate for model in models for rate in view.runs(model, "dynamic_learning_rate", "dynamic").values()]
        still = sum(rate == 0 for rate in rates)
        yield Premise(Code.STEP_SIZE, {"still": still, "runs": len(rates)}, bool(rates) and not still)
    if metrics & {"sec_per_epoch", "ms_per_batch"}:
        kinds = sorted({str(row.get("hardware", "")) for model in models for row in view.planned[model, ""]})
        yield Premise(Code.MACHINES, {"machines": "; ".join(kinds)}, len(kinds) == 1, becomes=CONFOUNDED)
    if (models and TEST_PPL in metrics) or (compares and PRESS_RANK in metrics):
        unlearned = [(model, seed) for dataset, model, seed in view.records.unlearned if dataset == view.dataset]
        text = ", ".join(f"{view.label(model)} with seed {seed}" for model, seed in unlearned if model in models)
        yield Premise(Code.LEARNED, {"runs": text or "none"}, not text)
    if models and TEST_PPL in metrics:  # a run that is not converged shows which head is slow, not which is worse
        falls = [(fall, view.label(model)) for model in models for fall in view.late_falls(model)]
        fall, label = max(falls, default=(0.0, "no epoch logs"))
        yield Premise(Code.CONVERGED, {"fall": fall, "model": label, "limit": SETTLED}, fall < SETTLED)
    if rule.favours:
        averages = {model: min(view.averaged_epochs(model), default=0.0) for model in models}
        text = ", ".join(f"{view.label(model)} {epochs:.0f}" for model, epochs in averages.items())
        alike = len({epochs > 0 for epochs in averages.values()}) == 1
        yield Premise(Code.AVERAGED_ALIKE, {"epochs": text}, alike, becomes=CONFOUNDED)


def _epochs(view: View, sides: Sequence[Sequence[str]], favours: int) -> Premise:
    """Check that schedules are equally long; a longer one spoils only the verdict that it helps."""
    planned = [view.planned_epochs(side) for side in sides]
    known = sorted(set().union(*planned))
    spoils = DECIDED
    if len(known) == 2 and len(sides) == 2 and all(len(side) == 1 for side in planned):
        spoils = helped(favours if max(planned[0]) > max(planned[1]) else -favours)
    text = " and ".join(f"{epochs:.0f}" for epochs in known) or "an unknown number of"
    return Premise(Code.EPOCHS, {"epochs": text}, len(known) <= 1, spoils, CONFOUNDED)


def _settings(study: Study, dataset: str, models: Sequence[str]) -> Premise:
    """Check that the runs differ in their heads alone, or also in what differs in the paper."""
    odd = varied(study, dataset, models) - ELSEWHERE
    odd -= OF_OPTIMIZERS.keys() if "optimizer" in odd else set()
    paper, corpus = paper_study() if odd else None, published_dataset(study.datasets[dataset])
    own = [name for name, one in paper.datasets.items() if published_dataset(one) == corpus] if paper else []
    published = set[str]().union(*(varied(paper, name, models) for name in own)) if paper else set()
    facts = {"settings": ", ".join(sorted(odd)) or "none"}
    return Premise(Code.SETTINGS, facts, odd <= published, DECIDED, CONFOUNDED)


def helped(advantage: int) -> frozenset[str]:
    """Return the verdicts that an advantage of the claimed side (+1), or of the other (-1), could bring about."""
    return {1: frozenset((REPRODUCED,)), -1: frozenset((NOT_REPRODUCED,)), 0: DECIDED}[advantage]


def _ceiling(view: View, models: Sequence[str], stage: str, spoils: frozenset[str]) -> Premise:
    """Check that no Press rank is as high as the size of its matrix allows."""
    sides = ("rank_rows", "rank_columns")
    shares = [
        (rank / min(view.runs(model, side, stage).get(seed, math.inf) for side in sides), view.label(model))
        for model in models
        for seed, rank in view.runs(model, PRESS_RANK, stage).items()
    ]
    share, label = max(shares, default=(0.0, "no ranks"))
    return Premise(Code.CEILING, {"share": share, "model": label, "limit": CEILING}, share <= CEILING, spoils)


# --- premises of single claims --------------------------------------------------------------------------------------
def averaged(view: View, patterns: Sequence[str]) -> Premise:
    """Check that the tested weights of every run are averaged over at least one epoch."""
    runs = [epochs for pattern in patterns for m in view.matching(pattern) for epochs in view.averaged_epochs(m)]
    enough = sum(epochs >= 1 for epochs in runs)
    return Premise(Code.AVERAGED, {"averaged": enough, "runs": len(runs)}, bool(runs) and enough == len(runs))


def wide(view: View, patterns: Sequence[str]) -> Premise:
    """Check the width where times are compared: a head's share of the time depends on the size of the network."""
    models = [model for pattern in patterns for model in view.matching(pattern)]
    width = min((width for model in models for width in view.runs(model, "embedding_size").values()), default=0.0)
    return Premise(Code.WIDTH, {"width": width, "limit": WIDE}, width >= WIDE)


def size_gap(view: View, patterns: Sequence[str]) -> float | None:
    """Return the parameters of the first side (its largest model) relative to the last, minus one, if known."""
    sides = [[view.mean(m, "parameters") for m in view.matching(p) if m != LAW] for p in (patterns[0], patterns[-1])]
    known = [[size for size in side if not math.isnan(size)] for side in sides]
    return max(known[0]) / max(known[1]) - 1 if all(known) else None


def spread_above_noise(repeated: str) -> Check:
    """Return the check that perplexities differ more between models than between seeds of one of them."""

    def check(view: View, patterns: Sequence[str]) -> Premise | None:
        seeds = list(view.runs(repeated, TEST_PPL).values())
        means = [view.mean(model, TEST_PPL) for pattern in patterns for model in view.learned(pattern)]
        points = [mean for mean in means if not math.isnan(mean)]
        if len(seeds) < 2 or len(points) < 2:
            return None
        noise, total = ((Summary.of(numbers).sd or 0.0) ** 2 for numbers in (seeds, points))
        share = noise / total if total else math.inf
        return Premise(Code.SEED_NOISE, {"share": share}, share < 0.5)

    return check
