"""The verdict on a claim: the outcome of its rule, and its premises.

A premise is a condition, computed from the records, without which a verdict means nothing. A broken premise overrides
only the verdicts that it could have brought about. If the winning side has more parameters, *reproduced* is overridden;
if the smaller side wins, it has won. A ceiling can hide growth but cannot cause it.

Verdicts depend on codes and numbers alone. Their texts are in report/reasons.yaml.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

import yaml

from softmax_bottleneck.records.metrics import PRESS_RANK, TEST_PPL
from softmax_bottleneck.report.claims import rules as r
from softmax_bottleneck.report.claims.data import SYNTHETIC, TRUTH, CorpusData, differing_settings
from softmax_bottleneck.report.source import OF_OPTIMIZERS, paper_study, published_dataset
from softmax_bottleneck.store import paths
from softmax_bottleneck.study import Study

CEILING = 0.95  # of min(N, V): a higher Press rank shows the size of the matrix, not what the head can do
CONVERGED = 0.03  # relative fall of validation perplexity in the last eighth of the epochs; above it, not converged
OTHER_PREMISES = {"embedding_size", "hidden_size", "context_size", "epochs"}  # settings that have premises of their own
# The pair of equal size that must agree if the sizes of a claim's own pair differ; otherwise `<first>-equal`, <second>.
EQUAL_PAIRS: Mapping[tuple[str, ...], tuple[str, ...]] = {("mos", "softmax"): ("mos-fair", "softmax-fair")}
DIVERGED = "diverged"  # a state of runs
ANY = frozenset(r.VERDICTS)
DECIDED = frozenset((r.REPRODUCED, r.NOT_REPRODUCED))

Code = StrEnum(
    "Code",
    "NO_MODEL NO_RUN ALL_DIVERGED NO_VALUE TOO_FEW INCONCLUSIVE ONE_SIZE EPOCHS SETTINGS CEILING "
    "STEP_SIZE MACHINES LEARNED CONVERGED AVERAGED_ALIKE AVERAGED WIDTH SEED_NOISE SIZE_UNKNOWN SIZE "
    "EQUAL_PAIR NO_EQUAL_PAIR CONTROL TREATMENT RANKS_APART BENCHMARKS RUNS PUBLISHED_WIDTH "
    "FITS_CONVERGED",
)


def _report_yaml(name: str) -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load((paths.ROOT / "report" / name).read_text(encoding="utf-8")))


TEMPLATES = _report_yaml("reasons.yaml")
CONCLUSIONS = _report_yaml("claims.yaml")  # source -> `evaluated` or `not evaluated` -> conclusions
TEXTS: dict[str, dict[str, Any]] = {
    name: {"source": source, **texts}
    for source, conclusions in CONCLUSIONS.items()
    for name, texts in conclusions["evaluated"].items()
}


@dataclass(frozen=True)
class Finding:
    """A code and the facts that its text prints."""

    code: Code
    facts: Mapping[str, Any]

    def __str__(self) -> str:
        """Return what was found and what is needed; a remark needs nothing."""
        text = "; needed: ".join(TEMPLATES[self.code].values()).format(**self.facts)
        return re.sub(r"(?<=\d)%", "\u00a0%", text)


@dataclass(frozen=True)
class Premise(Finding):
    """A condition, and whether it holds.

    Attributes:
        spoils: the verdicts that a broken premise could have brought about.
        becomes: the verdict that replaces them.
    """

    holds: bool
    spoils: frozenset[str] = ANY
    becomes: str = r.CANNOT


@dataclass(frozen=True)
class Claim:
    """A conclusion of a source.

    Attributes:
        source: key of the paper.
        id: stable.
        statement: the conclusion in our words.
        rule: what decides it.
        models: that the rule is evaluated on; a shell pattern stands for several (`|`: either).
        where: the section, table or figure of the paper.
        limits: what it does not show.
        corpora: patterns of the corpora it is about, after `!` those it is not; SYNTHETIC needs no corpus.
        premises: besides those that follow from the rule.
    """

    source: str
    id: str
    statement: str
    rule: r.Rule
    models: tuple[str, ...] = ()
    where: str = "fits to known distributions"
    limits: str = ""
    corpora: str = "*"
    premises: tuple[Callable[[CorpusData, Sequence[str]], Premise | None], ...] = ()

    def concerns(self, dataset: str) -> bool:
        """Return True if the claim is about a corpus."""
        matches = any(fnmatchcase(dataset, pattern) for pattern in self.corpora.removeprefix("!").split("|"))
        return matches != self.corpora.startswith("!") and (dataset == SYNTHETIC) == (self.corpora == SYNTHETIC)


def claim(name: str, rule: r.Rule, *models: str, **options: Any) -> Claim:
    """Return the claim whose source, statement and limits are in report/claims.yaml; `control` is that of its rule."""
    rule = replace(rule, control=options.pop("control", rule.control))
    return Claim(id=name, rule=rule, models=models, **TEXTS[name], **options)


@dataclass(frozen=True)
class Entry:
    """A claim evaluated on one corpus.

    Attributes:
        reason: why the verdict is not the rule's own, or why the rule decides nothing.
        outcome: of the rule alone; None if it could not be evaluated.
    """

    claim: Claim
    dataset: str
    verdict: str
    reason: Finding | None = None
    outcome: r.Outcome | None = None
    premises: tuple[Premise, ...] = ()

    @property
    def numbers(self) -> tuple[r.Number, ...]:
        """The numbers of the rule; a tile shows the first."""
        return self.outcome.numbers if self.outcome else ()

    def to_json(self) -> dict[str, Any]:
        """Return the entry as a JSON object."""
        claim = self.claim
        return {
            **{key: getattr(claim, key) for key in ("id", "source", "statement", "where", "limits")},
            "criterion": claim.rule.text,
            "models": list(claim.models),
            "dataset": self.dataset,
            "verdict": self.verdict,
            "reason": str(self.reason or ""),
            "code": self.reason.code if self.reason else "",
            "numbers": [asdict(number) | {"text": number.text} for number in self.numbers],
            "premises": [{"code": one.code, "text": str(one), "holds": one.holds} for one in self.premises],
        }


# --- judging --------------------------------------------------------------------------------------------------------
def judge(data: CorpusData, claim: Claim) -> Entry:
    """Return the verdict on a claim by the runs of a corpus."""
    if missing := _missing(data, claim):
        return Entry(claim, data.dataset, r.CANNOT, missing)
    outcome = claim.rule.judge(data, *claim.models)
    verdict, reason = outcome.verdict, None
    if outcome.missing:
        return Entry(claim, data.dataset, verdict, Finding(Code.NO_VALUE, outcome.missing))
    if verdict == r.UNDECIDED:
        few = any(number.low is None for number in outcome.numbers)
        facts = {"needed": outcome.needed, "units": outcome.units}
        reason = Finding(Code.TOO_FEW if few else Code.INCONCLUSIVE, facts)
    premises = tuple(_premises(data, claim, verdict))
    broken = [premise for premise in premises if not premise.holds and verdict in premise.spoils]
    if broken:
        reason = min(broken, key=lambda premise: premise.becomes != r.CANNOT)
        verdict = reason.becomes
    return Entry(claim, data.dataset, verdict, reason, outcome, premises)


def _missing(data: CorpusData, claim: Claim) -> Finding | None:
    """Return what is missing before the rule can be evaluated."""
    first = claim.rule.quantities[0]
    stage = first.stage if first.stage in ("finetuned", "dynamic") else ""
    for pattern in claim.models if claim.corpora != SYNTHETIC else ():
        models = data.matching(pattern, stage)
        if not models:
            return Finding(Code.NO_MODEL, {"models": " or ".join(pattern.split("|"))})
        if not any(data.values(model, metric, first.stage) for model in models for metric in first.metrics[:1]):
            states = {str(run["state"]) for model in models for run in data.planned[model, stage]}
            code = Code.ALL_DIVERGED if states == {DIVERGED} else Code.NO_RUN
            return Finding(code, {"models": ", ".join(map(data.label, models))})
    return None


def _premises(data: CorpusData, claim: Claim, verdict: str) -> Iterator[Premise]:
    """Yield the premises of the rule and of the claim, equal size, and the control with the true distribution."""
    if claim.corpora != SYNTHETIC:
        yield from premises_of_rule(data, claim.rule, claim.models)
    yield from (premise for check in claim.premises if (premise := check(data, claim.models)))
    if claim.rule.favours:
        yield _size(data, claim, verdict)
    if claim.rule.control and data.truth:
        place, verdicts = claim.rule.control
        control = claim.rule.judge(data, *claim.models[:place], TRUTH, *claim.models[place + 1 :])
        expected = verdicts or (verdict,)
        facts = {"verdict": control.verdict, "expected": "” or “".join(expected)}
        spoils = DECIDED if control.verdict == r.UNDECIDED else ANY
        if not control.missing:
            yield Premise(Code.CONTROL, facts, control.verdict in expected, spoils)


# --- premises -------------------------------------------------------------------------------------------------------
def premises_of_rule(data: CorpusData, rule: r.Rule, patterns: Sequence[str]) -> Iterator[Premise]:
    """Yield the premises that follow from what a rule compares."""
    sides = [[model for model in side if model != TRUTH] for side in rule.quantities[0].sides(data, *patterns)]
    models = [model for side in sides for model in side]
    metrics = {metric for quantity in rule.quantities for metric in quantity.metrics}
    stages = {quantity.stage for quantity in rule.quantities}
    compares = bool(models) and rule.quantities[0].estimate is not r.least  # a bound on every run compares no models
    if models:
        odd = [data.label(model) for model in models if len(set(data.values(model, "parameters").values())) > 1]
        yield Premise(Code.ONE_SIZE, {"models": ", ".join(odd) or "none"}, not odd)
    if compares:
        yield _epochs(data, sides, rule.favours)
        if data.study:
            yield _settings(data.study, data.dataset, models)
    if PRESS_RANK in metrics:
        yield _ceiling(data, models, next(iter(stages)), ANY - {r.REPRODUCED} if rule.hidden_by_ceiling else ANY)
    if "dynamic" in stages:
        rates = [rate for model in models for rate in data.values(model, "dynamic_learning_rate", "dynamic").values()]
        still = sum(rate == 0 for rate in rates)
        yield Premise(Code.STEP_SIZE, {"still": still, "runs": len(rates)}, bool(rates) and not still)
    if metrics & {"sec_per_epoch", "ms_per_batch"}:
        kinds = sorted({str(row.get("hardware", "")) for model in models for row in data.planned[model, ""]})
        yield Premise(Code.MACHINES, {"machines": "; ".join(kinds)}, len(kinds) == 1, becomes=r.CONFOUNDED)
    if (models and TEST_PPL in metrics) or (compares and PRESS_RANK in metrics):
        unlearned = [(model, seed) for dataset, model, seed in data.records.unlearned if dataset == data.dataset]
        text = ", ".join(f"{data.label(model)} with seed {seed}" for model, seed in unlearned if model in models)
        yield Premise(Code.LEARNED, {"runs": text or "none"}, not text)
    if models and TEST_PPL in metrics:  # a run that is not converged shows which head is slow, not which is worse
        falls = [(fall, data.label(model)) for model in models for fall in data.late_falls(model)]
        fall, label = max(falls, default=(0.0, "no epoch logs"))
        yield Premise(Code.CONVERGED, {"fall": fall, "model": label, "limit": CONVERGED}, fall < CONVERGED)
    if rule.favours:
        averages = {model: min(data.averaged_epochs(model), default=0.0) for model in models}
        text = ", ".join(f"{data.label(model)} {epochs:.0f}" for model, epochs in averages.items())
        alike = len({epochs > 0 for epochs in averages.values()}) == 1
        yield Premise(Code.AVERAGED_ALIKE, {"epochs": text}, alike, becomes=r.CONFOUNDED)


def _epochs(data: CorpusData, sides: Sequence[Sequence[str]], favours: int) -> Premise:
    """Check that schedules are equally long; a longer one spoils only the verdict that it helps."""
    planned = [data.planned_epochs(side) for side in sides]
    distinct = sorted(set().union(*planned))
    spoils = DECIDED
    if len(distinct) == 2 and len(sides) == 2 and all(len(side) == 1 for side in planned):
        spoils = _helped(favours if max(planned[0]) > max(planned[1]) else -favours)
    text = " and ".join(f"{epochs:.0f}" for epochs in distinct) or "an unknown number of"
    return Premise(Code.EPOCHS, {"epochs": text}, len(distinct) <= 1, spoils, r.CONFOUNDED)


def _helped(advantage: int) -> frozenset[str]:
    """Return the verdicts that an advantage of the claimed side (+1), or of the other (-1), could bring about."""
    return {1: frozenset((r.REPRODUCED,)), -1: frozenset(r.FAILS), 0: DECIDED}[advantage]


def _settings(study: Study, dataset: str, models: Sequence[str]) -> Premise:
    """Check that the runs differ in their heads alone, or also in what differs in the paper."""
    odd = differing_settings(study, dataset, models) - OTHER_PREMISES
    odd -= OF_OPTIMIZERS.keys() if "optimizer" in odd else set()
    published: set[str] = set()
    if odd and (paper := paper_study()):
        corpus = published_dataset(study.datasets[dataset])
        names = [name for name, spec in paper.datasets.items() if published_dataset(spec) == corpus]
        published = published.union(*(differing_settings(paper, name, models) for name in names))
    facts = {"settings": ", ".join(sorted(odd)) or "none"}
    return Premise(Code.SETTINGS, facts, odd <= published, DECIDED, r.CONFOUNDED)


def _ceiling(data: CorpusData, models: Sequence[str], stage: str, spoils: frozenset[str]) -> Premise:
    """Check that no Press rank is as high as the size of its matrix allows."""
    sides = ("rank_rows", "rank_columns")
    shares = [
        (rank / min(data.values(model, side, stage).get(seed, math.inf) for side in sides), data.label(model))
        for model in models
        for seed, rank in data.values(model, PRESS_RANK, stage).items()
    ]
    share, label = max(shares, default=(0.0, "no ranks"))
    return Premise(Code.CEILING, {"share": share, "model": label, "limit": CEILING}, share <= CEILING, spoils)


def _size(data: CorpusData, claim: Claim, verdict: str) -> Premise:
    """Check that both sides have the same size, or that the larger side lost, or that a pair of equal size agrees."""
    gap = _size_gap(data, claim.models)
    if gap is None:
        return Premise(Code.SIZE_UNKNOWN, {}, True)
    facts = {"model": " or ".join(map(data.label, claim.models[0].split("|"))), "ratio": 1 + gap}
    if abs(gap) <= r.SAME_SIZE:
        return Premise(Code.SIZE, facts, True)
    spoils = _helped(claim.rule.favours if gap > 0 else -claim.rule.favours)
    for pair in ((f"{claim.models[0]}-equal", *claim.models[1:]), EQUAL_PAIRS.get(claim.models, ("",))):
        own = _size_gap(data, pair) if all(data.values(model, TEST_PPL) for model in pair) else None
        if own is not None and abs(own) <= r.SAME_SIZE:
            equal = claim.rule.judge(data, *pair)
            facts |= {"equal": data.label(pair[0]), "verdict": equal.verdict, "number": equal.numbers[0].text}
            return Premise(Code.EQUAL_PAIR, facts, equal.verdict == verdict, spoils, r.CONFOUNDED)
    return Premise(Code.NO_EQUAL_PAIR, facts, False, spoils, r.CONFOUNDED)


def _size_gap(data: CorpusData, patterns: Sequence[str]) -> float | None:
    """Return the parameters of the first side (its largest model) relative to the last, minus one, if known."""
    sides = [[data.mean(m, "parameters") for m in data.matching(p) if m != TRUTH] for p in (patterns[0], patterns[-1])]
    first, last = ([size for size in side if not math.isnan(size)] for side in sides)
    return max(first) / max(last) - 1 if first and last else None
