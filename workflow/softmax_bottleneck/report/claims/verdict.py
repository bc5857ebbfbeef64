"""The verdict on a claim: the verdict of its rule, unless a broken premise overrides it.

A premise is a condition, computed from the records, without which a verdict means nothing. If a premise is
broken, a verdict such as *cannot be tested here* replaces the rule's verdict, but only if the broken premise could have
caused the rule's verdict. Most broken premises could have caused any verdict. Two that could have caused only some:

* The compared models differ in size. A win of the larger model is overridden, but a win of the smaller model counts.
* A rank is close to the largest rank that the matrix can have. This limit can hide a growth of ranks, but cannot cause
  it. So the verdict "ranks grow" counts, and the verdict "ranks do not grow" is overridden.

Reasons of verdicts are codes; no verdict depends on their texts, which are in report/reasons.yaml. The module
report/claims/rules.py defines the names of the verdicts (VERDICTS), the Press rank, and SYNTHETIC, the name used
instead of a corpus for claims that need no corpus.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import yaml

from softmax_bottleneck.records.metrics import PRESS_RANK, TEST_PPL
from softmax_bottleneck.records.records import DYNAMIC
from softmax_bottleneck.report.claims import rules as r
from softmax_bottleneck.report.source import OF_OPTIMIZERS, paper_study, published_dataset
from softmax_bottleneck.statistics.intervals import MIN_POINTS, smallest
from softmax_bottleneck.store.paths import ROOT
from softmax_bottleneck.study import Study

MAX_RANK_SHARE = 0.95  # of min(N, V): a higher Press rank shows the size of the matrix, not what the head can do
MAX_FALL = 0.03  # relative fall of validation perplexity in the last eighth of the epochs; above it, not converged
SIZES = {"embedding_size", "hidden_size", "context_size"}  # settings covered by the premise on the number of parameters
# The pair of equal size that must agree if the sizes of a claim's own pair differ and there is no `<first>-equal`.
EQUAL_PAIRS: Mapping[tuple[str, ...], tuple[str, ...]] = {("mos", "softmax"): ("mos-fair", "softmax-fair")}
DECIDED = (r.REPRODUCED, r.NOT_REPRODUCED)

Code = StrEnum(
    "Code",
    "NO_MODEL NO_RUN NO_VALUE TOO_FEW INCONCLUSIVE SETTINGS CEILING LEARNED CONVERGED AVERAGED "
    "SEED_NOISE SIZE EQUAL_PAIR NO_EQUAL_PAIR CONTROL RANKS_APART BENCHMARKS RUNS FITS_CONVERGED FITS_UNCHECKED "
    "DISAGREE DYNAMIC TOKENS_LEARNED PRICES_JUDGED "
    "EQUAL_VALUES UNRECORDED",
)


Texts = dict[str, dict[str, Any]]
TEMPLATES: Texts = yaml.safe_load((ROOT / "report" / "reasons.yaml").read_bytes())
# Source -> `evaluated` or `not evaluated` -> conclusions.
CONCLUSIONS: Texts = yaml.safe_load((ROOT / "report" / "claims.yaml").read_bytes())
TEXTS: Texts = {
    name: {"source": source, **texts}
    for source, conclusions in CONCLUSIONS.items()
    for name, texts in conclusions["evaluated"].items()
}


@dataclass(frozen=True)
class Reason:
    """The reason for a verdict.

    Attributes:
        code: the key of the reason's text in report/reasons.yaml.
        facts: the values for the placeholders of this text.
    """

    code: Code
    facts: Mapping[str, Any]

    def __str__(self) -> str:
        """Return the reason as text, such as `too few seeds for an interval; needed: 3 seeds`.

        The part after the semicolon is left out if the code has no requirement in report/reasons.yaml.
        """
        text = "; needed: ".join(TEMPLATES[self.code].values()).format(**self.facts)
        return re.sub(r"(?<=\d)%", "\u00a0%", text)


@dataclass(frozen=True)
class Premise(Reason):
    """A condition for the validity of a verdict, together with the result of checking it.

    A broken premise replaces the rule's verdict, and is itself the reason for the new one. A premise that holds changes
    nothing; its text is printed among the claim's details.

    Attributes:
        code, facts: what the text of the premise is made from, as in `Reason`.
        holds: True if the condition is met.
        spoils: the verdicts of the rule that a broken premise replaces; by default all.
        becomes: the verdict that replaces them. If it is empty, the premise is a warning: the verdict stays, and the
            warning is shown as its reason.
    """

    holds: bool
    spoils: tuple[str, ...] = r.VERDICTS
    becomes: str = r.CANNOT


@dataclass(frozen=True)
class Claim:
    """A conclusion of a paper, with the rule that tests it.

    Attributes:
        source: the key of the paper.
        id: a permanent name.
        statement: the conclusion in our words.
        rule: the rule that decides it.
        models: one shell pattern per model of the rule, in the order of the rule, such as ("ss|gss", "softmax"); `|`
            separates alternatives.
        where: the section, table or figure of the paper that states the conclusion.
        limits: what the evidence does not show, as text.
        corpora: patterns of the corpora that the claim is about, separated by `|`; a leading `!` means all corpora but
            these. SYNTHETIC marks a claim that needs no corpus.
        premises: functions that make premises of this claim, besides the premises of its rule. Each is called with the
            data of a corpus and the claim. It returns a `Premise`, or None if its condition does not matter there.
    """

    source: str
    id: str
    statement: str
    rule: r.Rule
    models: tuple[str, ...] = ()
    where: str = "fits to known distributions"
    limits: str = ""
    corpora: str = "*"
    premises: "tuple[Callable[[r.CorpusData, Claim], Premise | None], ...]" = ()

    def concerns(self, dataset: str) -> bool:
        """Return True if the claim is about the corpus `dataset`.

        If `dataset` is SYNTHETIC, return True for the claims that need no corpus, and only for these.
        """
        is_named = r.matches(dataset, self.corpora.removeprefix("!"))
        return is_named != self.corpora.startswith("!") and (dataset == r.SYNTHETIC) == (self.corpora == r.SYNTHETIC)


@dataclass(frozen=True)
class Entry:
    """The result of a claim evaluated on one corpus.

    Attributes:
        claim: the claim.
        dataset: the corpus, or SYNTHETIC.
        verdict: one of VERDICTS.
        reason: None if the rule gave *reproduced* or *not reproduced* and no premise of this verdict is broken.
            Otherwise the reason why the rule could not decide, or the broken premise, which may be a mere warning.
        numbers: the numbers that the rule computed; empty if the rule could not be evaluated.
        premises: the premises that were checked.
    """

    claim: Claim
    dataset: str
    verdict: str
    reason: Reason | None = None
    numbers: tuple[r.Number, ...] = ()
    premises: tuple[Premise, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the entry as a JSON object: the claim's texts, the verdict, and its reason, numbers and premises."""
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
def judge(data: r.CorpusData, claim: Claim) -> Entry:
    """Return the entry of a claim on one corpus, with the verdict from the runs on this corpus.

    The verdict is CANNOT in three cases: a pattern of the claim matches no planned model; none of the models that a
    pattern matches has a measured value; or the rule cannot be evaluated. Otherwise the rule decides, unless a broken
    premise replaces the rule's verdict.
    """
    first = claim.rule.quantities[0]
    for pattern in claim.models if claim.corpora != r.SYNTHETIC else ():
        models = data.matching(pattern, first.stage)
        if not models:
            missing = Reason(Code.NO_MODEL, {"models": " or ".join(pattern.split("|"))})
            return Entry(claim, data.dataset, r.CANNOT, missing)
        if not any(data.values(model, metric, first.stage) for model in models for metric in first.metrics[:1]):
            missing = Reason(Code.NO_RUN, {"models": ", ".join(map(data.label, models))})
            return Entry(claim, data.dataset, r.CANNOT, missing)
    decision = claim.rule.judge(data, *claim.models)
    verdict, reason = decision.verdict, None
    if decision.missing:
        return Entry(claim, data.dataset, verdict, Reason(Code.NO_VALUE, decision.missing))
    if verdict == r.UNDECIDED:
        code = Code.INCONCLUSIVE if decision.needed else Code.DISAGREE
        if unbounded := [number for number in decision.numbers if number.low is None]:
            has_enough = all(number.value is None and min(number.n) >= MIN_POINTS for number in unbounded)
            code = Code.EQUAL_VALUES if has_enough else Code.TOO_FEW
        reason = Reason(code, {"needed": decision.needed, "units": decision.units})
    premises = tuple(premises_of(data, claim, verdict))
    broken = [premise for premise in premises if not premise.holds and verdict in premise.spoils]
    if broken:
        # The first broken premise that makes the claim untestable; without one, the first that changes the verdict.
        reason = min(broken, key=lambda premise: (premise.becomes != r.CANNOT, not premise.becomes))
        verdict = reason.becomes or verdict
    return Entry(claim, data.dataset, verdict, reason, decision.numbers, premises)


# --- premises -------------------------------------------------------------------------------------------------------
def premises_of(data: r.CorpusData, claim: Claim, verdict: str) -> Iterator[Premise]:
    """Yield the premises of a claim, both those that hold and those that are broken.

    The order is: the premises of the rule, those of `Claim.premises`, the premise on the sizes of the models, and the
    premise that the control passes. The control evaluates the rule with the true distribution as one of the models, and
    passes if the verdict is as expected (see `Rule`). The control is left out if the true distribution is unknown.
    `verdict` is the rule's verdict on the claim's own models.
    """
    rule = claim.rule
    if claim.corpora != r.SYNTHETIC:
        yield from _of_rule(data, rule, claim.models)
    yield from (premise for check in claim.premises if (premise := check(data, claim)))
    if rule.favours and not math.isnan(gap := _size_gap(data, claim.models)):
        yield _size(data, claim, verdict, gap)
    if control := _control(data, claim, verdict):
        yield control


def _control(data: r.CorpusData, claim: Claim, verdict: str) -> Premise | None:
    """Return the premise that the control passes; None if the rule has no control or the truth lacks its numbers."""
    if not claim.rule.control or not data.truth:
        return None
    position, verdicts = claim.rule.control
    control = claim.rule.judge(data, *claim.models[:position], r.TRUTH, *claim.models[position + 1 :])
    if control.missing:
        return None
    expected = verdicts or (verdict,)
    facts = {"verdict": control.verdict, "expected": "” or “".join(expected)}
    spoils = DECIDED if control.verdict == r.UNDECIDED else r.VERDICTS
    return Premise(Code.CONTROL, facts, control.verdict in expected, spoils)


def _of_rule(data: r.CorpusData, rule: r.Rule, patterns: Sequence[str]) -> Iterator[Premise]:
    """Yield those of five premises that a rule needs; `patterns` are the shell patterns of the claim's models.

    The premises: the compared runs have equal settings (or differ as in the paper); no rank is close to the largest
    possible one (`_ceiling`); every run has learned; every run has converged; and, as a warning that leaves the verdict
    as it is, no choice of a dynamic evaluation is doubtful (`Records.dynamic_doubts`). Another warning counts the runs
    without a record of what a premise is about.
    """
    models = [model for model in rule.quantities[0].models(data, *patterns) if model != r.TRUTH]
    metrics = {metric for quantity in rule.quantities for metric in quantity.metrics}
    compares = bool(models) and rule.quantities[0].estimate is not smallest  # a bound on every run compares no models
    if compares and data.study:
        yield _settings(data.study, data.dataset, models)
    if PRESS_RANK in metrics:
        yield from _ceiling(data, models, rule)
    if (models and TEST_PPL in metrics) or (compares and PRESS_RANK in metrics):
        yield _learned(data, models)
    if models and TEST_PPL in metrics:
        yield from _converged(data, models)
    if models and rule.quantities[0].stage == DYNAMIC:
        yield _dynamic(data, models)


def _settings(study: Study, dataset: str, models: Sequence[str]) -> Premise:
    """Return the premise that runs differ only in their heads and sizes, or in settings that differ in the paper, too.

    Settings that only one optimizer reads may differ if the optimizer does.
    """
    odd = _differing_settings(study, dataset, models) - SIZES
    odd -= OF_OPTIMIZERS.keys() if "optimizer" in odd else set()
    paper, corpus = paper_study(), published_dataset(study.datasets[dataset])
    names = [name for name, spec in paper.datasets.items() if odd and published_dataset(spec) == corpus]
    published = set().union(*(_differing_settings(paper, name, models) for name in names))
    facts = {"settings": ", ".join(sorted(odd)) or "none"}
    return Premise(Code.SETTINGS, facts, odd <= published, DECIDED, r.CONFOUNDED)


def _learned(data: r.CorpusData, models: Sequence[str]) -> Premise:
    """Return the premise that every run has learned more than word frequencies (`Records.unlearned`)."""
    unlearned = [run for run in sorted(data.records.unlearned) if run[0] == data.dataset and run[1] in models]
    text = ", ".join(f"{data.label(model)} with seed {seed}" for _, model, seed in unlearned)
    return Premise(Code.LEARNED, {"runs": text or "none"}, not text)


def _converged(data: r.CorpusData, models: Sequence[str]) -> Iterator[Premise]:
    """Yield the premise that no validation perplexity fell by MAX_FALL or more in the last eighth of the epochs.

    A run that is not converged shows which head is slow, not which is worse. Only finished runs count, as they alone
    are compared.
    """
    rows = [(model, row) for model in models for row in data.planned.get((model, ""), []) if row["state"] == "ok"]
    curves = [(data.records.curve(str(row.get("path", ""))), data.label(model)) for model, row in rows]
    logs = [([epoch["valid_ppl"] for epoch in curve], label) for curve, label in curves]
    falls = [(1 - ppls[-1] / ppls[-1 - math.ceil(len(ppls) / 8)], label) for ppls, label in logs if len(ppls) > 1]
    if falls:
        fall, label = max(falls, key=lambda pair: (math.isnan(pair[0]), pair))  # nan is not converged
        yield Premise(Code.CONVERGED, {"fall": fall, "model": label, "limit": MAX_FALL}, fall < MAX_FALL)
    yield from _unrecorded("two epochs", [len(ppls) > 1 for ppls, _ in logs])


def _unrecorded(what: str, is_recorded: Sequence[bool]) -> Iterator[Premise]:
    """Yield a warning if some runs have no record of `what`, so that a premise is not checked for them."""
    if lacking := is_recorded.count(False):
        facts = {"what": what, "lacking": lacking, "runs": len(is_recorded)}
        yield Premise(Code.UNRECORDED, facts, False, DECIDED, becomes="")


def _dynamic(data: r.CorpusData, models: Sequence[str]) -> Premise:
    """Return the premise that no choice of a dynamic evaluation is doubtful; a broken one is only a warning."""
    doubts = [data.records.dynamic_doubts(data.dataset, model) for model in models]
    edge, damaging, runs = map(sum, zip(*doubts, strict=True))
    facts = {"edge": edge, "apart": damaging, "runs": runs}
    return Premise(Code.DYNAMIC, facts, not edge and not damaging, DECIDED, becomes="")


def _differing_settings(study: Study, dataset: str, models: Sequence[str]) -> set[str]:
    """Return the names of the settings of body and schedule in which the runs of some models on a corpus differ."""
    chosen = [run for run in study.runs if run.dataset == dataset and run.model in set(models)]
    settings = [asdict(run.body) | asdict(run.schedule) for run in chosen]
    return {key for setting in settings for key in setting if setting[key] != settings[0][key]}


def _ceiling(data: r.CorpusData, models: Sequence[str], rule: r.Rule) -> Iterator[Premise]:
    """Yield the premise that no run's Press rank is close to the largest possible rank.

    A matrix of N contexts and V words has at most rank min(N, V); if only one of the two is recorded, it is the limit.
    The premise is broken if a run of `models` has a Press rank above MAX_RANK_SHARE times this value. A broken premise
    replaces every verdict, with one exception: if `rule.hidden_by_ceiling` is True, the verdict *reproduced* stays.
    """
    sides, stage = ("rank_rows", "rank_columns"), rule.quantities[0].stage
    shares = [
        (rank / min(data.values(model, side, stage).get(seed, math.inf) for side in sides), data.label(model))
        for model in models
        for seed, rank in data.values(model, PRESS_RANK, stage).items()
    ]
    if known := [pair for pair in shares if pair[0]]:  # the share of an infinite size is 0
        share, label = max(known)
        spoils = tuple(verdict for verdict in r.VERDICTS if verdict != r.REPRODUCED or not rule.hidden_by_ceiling)
        facts = {"share": share, "model": label, "limit": MAX_RANK_SHARE}
        yield Premise(Code.CEILING, facts, share <= MAX_RANK_SHARE, spoils)
    yield from _unrecorded("the size of their matrix", [share > 0 for share, _ in shares])


def _size(data: r.CorpusData, claim: Claim, verdict: str, gap: float) -> Premise:
    """Return the premise that the sizes of a claim's models do not explain the verdict.

    If the sizes of the first and the last model differ by at most SAME_SIZE, the premise holds. Otherwise the rule is
    evaluated a second time, on models of equal size. In these, `-equal` is appended to the names of the claim's first
    models (`mos-equal` for `mos`). A pair is used if all its models have a test perplexity, their sizes differ by at
    most SAME_SIZE, and the rule has its numbers; otherwise the pair in EQUAL_PAIRS is tried.

    If both evaluations give the same verdict, the premise holds, too. If the verdicts differ, or no models of equal
    size have the rule's numbers, it is broken. A broken premise replaces only a verdict in favour of the larger model.

    Args:
        data: the records of the corpus.
        claim: the claim.
        verdict: the verdict of the rule on the claim's own models.
        gap: how much larger the first model is than the last: 0.1 for 10 % more parameters.
    """
    facts = {"model": " or ".join(map(data.label, claim.models[0].split("|"))), "ratio": 1 + gap}
    if abs(gap) <= r.SAME_SIZE:
        return Premise(Code.SIZE, facts, True)
    spoils = (r.REPRODUCED if (gap > 0) == (claim.rule.favours > 0) else r.NOT_REPRODUCED,)
    first = "|".join(f"{name}-equal" for name in claim.models[0].split("|"))
    for pair in ((first, *claim.models[1:]), EQUAL_PAIRS.get(claim.models, ("",))):
        matching = [data.matching(pattern) for pattern in pair]
        has_ppl = all(models and all(data.values(model, TEST_PPL) for model in models) for models in matching)
        is_equal = has_ppl and abs(_size_gap(data, pair)) <= r.SAME_SIZE
        if is_equal and not (equal := claim.rule.judge(data, *pair)).missing:
            facts |= {"equal": " or ".join(map(data.label, matching[0])), "verdict": equal.verdict}
            facts |= {"number": equal.numbers[0].text}
            return Premise(Code.EQUAL_PAIR, facts, equal.verdict == verdict, spoils, r.CONFOUNDED)
    return Premise(Code.NO_EQUAL_PAIR, facts, False, spoils, r.CONFOUNDED)


def _size_gap(data: r.CorpusData, patterns: Sequence[str]) -> float:
    """Return how much larger the model of the first pattern is than that of the last: 0.1 for 10 % more parameters.

    If a pattern matches several models, its largest model counts. Return nan if a size is unknown.
    """
    sides = [[data.mean(m, "parameters") for m in data.matching(p)] for p in (patterns[0], patterns[-1])]
    first, last = ([size for size in side if not math.isnan(size)] for side in sides)
    return max(first) / max(last) - 1 if first and last else math.nan
