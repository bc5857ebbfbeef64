"""A claim, and its evaluation on the records of one corpus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from softmax_bottleneck.records.metrics import TEST_PPL
from softmax_bottleneck.report.claims import premises as p
from softmax_bottleneck.report.claims import rules as r
from softmax_bottleneck.report.claims.premises import Check, Premise
from softmax_bottleneck.report.claims.quantities import ALIKE
from softmax_bottleneck.report.claims.view import LAW, SYNTHETIC, View
from softmax_bottleneck.report.claims.wording import Code, Finding

STABLE = 0.9  # of the resamples must give the same verdict
WT2 = "wt2*|wikitext-2*"
NOT_WT2 = f"!{WT2}"
# Pairs of equal size that must say the same where a claim's are not; by default `<first>-equal` replaces the first.
EQUAL: Mapping[tuple[str, ...], tuple[str, ...]] = {("mos", "softmax"): ("mos-fair", "softmax-fair")}
LawControl = tuple[tuple[str, ...], tuple[str, ...]]  # models, and verdicts of the rule on them
LAW_FAILS = (r.NOT_REPRODUCED,)
DIVERGED = "diverged"
NO_SETTING = "it has no such setting"
NO_TRAINING = "it is not trained"
OF_HEADS = "this is of what a head can do, whatever the law"
NATURAL = "the law of natural text is not known"


@dataclass(frozen=True)
class Claim:
    """A conclusion of a source.

    Attributes:
        source: key of the paper.
        id: stable.
        statement: the conclusion in our words.
        where: the paper draws it.
        rule: what decides it.
        models: what the rule is asked of; a shell pattern stands for several (`|`: either).
        corpora: patterns of the corpora it is about, after `!` those it is not; SYNTHETIC needs no corpus.
        premises: besides those that follow from the rule.
        limits: what it does not say.
        law: what the rule must say with the law among these models: (models, verdicts), no verdicts: the same; or why
            it cannot be asked of the law.
    """

    source: str
    id: str
    statement: str
    where: str
    rule: r.Rule
    models: tuple[str, ...] = ()
    corpora: str = "*"
    premises: tuple[Check, ...] = ()
    limits: str = ""
    law: LawControl | str = ""

    def concerns(self, dataset: str) -> bool:
        """Return True if the claim is about a corpus."""
        own = any(fnmatchcase(dataset, pattern) for pattern in self.corpora.removeprefix("!").split("|"))
        return own != self.corpora.startswith("!") and (dataset == SYNTHETIC) == (self.corpora == SYNTHETIC)

    def place(self, corpus: str) -> str:
        """Return the corpus, or SYNTHETIC for a claim that needs none."""
        return SYNTHETIC if self.corpora == SYNTHETIC else corpus


def law_wins(reference: str) -> LawControl:
    """Return the control that LAW beats a reference: if the true distribution is no better, no model can be."""
    return (LAW, reference), (r.REPRODUCED,)


@dataclass(frozen=True)
class Entry:
    """A claim judged on one corpus.

    Attributes:
        reason: why the verdict is not the rule's own, or why the rule decides nothing.
        outcome: of the rule alone; None if it could not be evaluated.
        left_out: planned runs that are not in the numbers, and why.
        elsewhere: the verdict of archived runs by their hardware.
    """

    claim: Claim
    dataset: str
    verdict: str
    reason: Finding | None = None
    outcome: r.Outcome | None = None
    premises: tuple[Premise, ...] = ()
    left_out: tuple[Finding, ...] = ()
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    @property
    def numbers(self) -> tuple[r.Number, ...]:
        """The numbers of the rule; a tile shows the first."""
        return self.outcome.numbers if self.outcome else ()

    @property
    def stability(self) -> float | None:
        """The share of resamples with the same verdict of the rule."""
        return self.outcome.stability if self.outcome else None

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
            "stability": self.stability,
            "numbers": [asdict(number) | {"text": number.text} for number in self.numbers],
            "premises": [
                {"code": one.code, "text": one.found, "needed": one.needed, "holds": one.holds} for one in self.premises
            ],
            "left_out": list(map(str, self.left_out)),
            "elsewhere": dict(self.elsewhere),
        }


# --- judging --------------------------------------------------------------------------------------------------------
def judge(view: View, claim: Claim) -> Entry:
    """Return the verdict on a claim by the runs of a view."""
    left_out = tuple(_left_out(view, claim))
    lacking = _lacking(view, claim)
    outcome = None if lacking else claim.rule.judge(view, *claim.models)
    if outcome is None or outcome.missing:
        return Entry(
            claim, view.dataset, r.CANNOT, lacking or (outcome.missing if outcome else None), left_out=left_out
        )
    verdict, reason = outcome.verdict, None
    needed, units = outcome.needed
    if verdict == r.UNDECIDED:
        few = any(number.low is None for number in outcome.numbers)
        reason = Finding(Code.TOO_FEW if few else Code.INCONCLUSIVE, {"needed": needed, "units": units})
    elif outcome.stability < STABLE:
        facts = {"verdict": verdict, "stability": outcome.stability, "needed": needed, "units": units}
        verdict, reason = r.UNDECIDED, Finding(Code.UNSTABLE, facts)
    premises = tuple(_premises(view, claim, outcome.verdict))
    broken = [premise for premise in premises if not premise.holds and verdict in premise.spoils]
    for premise in sorted(broken, key=lambda premise: premise.becomes != r.CANNOT)[:1]:
        verdict, reason = premise.becomes, premise
    return Entry(claim, view.dataset, verdict, reason, outcome, premises, left_out)


def _lacking(view: View, claim: Claim) -> Finding | None:
    """Return what is missing before the rule can be evaluated."""
    first = claim.rule.quantities[0]
    stage = first.stage if first.stage in ("finetuned", "dynamic") else ""
    for pattern in claim.models if claim.corpora != SYNTHETIC else ():
        models = view.matching(pattern, stage)
        if not models:
            return Finding(Code.NO_MODEL, {"models": " or ".join(pattern.split("|"))})
        if not any(view.runs(model, metric, first.stage) for model in models for metric in first.metrics[:1]):
            states = {str(run["state"]) for model in models for run in view.planned[model, stage]}
            code = Code.ALL_DIVERGED if states == {DIVERGED} else Code.NO_RUN
            return Finding(code, {"models": ", ".join(map(view.label, models))})
    return None


def _premises(view: View, claim: Claim, verdict: str) -> Iterator[Premise]:
    """Yield the premises of the rule and of the claim, equal size, and the control with the true distribution."""
    if claim.corpora != SYNTHETIC:
        yield from p.of_rule(view, claim.rule, claim.models)
    yield from (premise for check in claim.premises if (premise := check(view, claim.models)))
    if claim.rule.favours:
        yield _size(view, claim, verdict)
    if not view.law:
        return
    if isinstance(claim.law, str):
        yield Premise(Code.NO_CONTROL, {"why": claim.law}, True)
    else:
        models, verdicts = claim.law
        control = claim.rule.judge(view, *models)
        if not control.missing:
            expected = verdicts or (verdict,)
            facts = {"verdict": control.verdict, "expected": "” or “".join(expected)}
            spoils = p.DECIDED if control.verdict == r.UNDECIDED else p.ANY
            yield Premise(Code.CONTROL, facts, control.verdict in expected, spoils)


def _size(view: View, claim: Claim, verdict: str) -> Premise:
    """Check that sizes are within ALIKE, or that the larger side lost, or that a pair of equal size agrees."""
    gap = p.size_gap(view, claim.models)
    if gap is None:
        return Premise(Code.SIZE_UNKNOWN, {}, True)
    facts = {"model": " or ".join(map(view.label, claim.models[0].split("|"))), "ratio": 1 + gap}
    if abs(gap) <= ALIKE:
        return Premise(Code.SIZE, facts, True)
    spoils = p.helped(claim.rule.favours if gap > 0 else -claim.rule.favours)
    for pair in ((f"{claim.models[0]}-equal", *claim.models[1:]), EQUAL.get(claim.models, ("",))):
        own = p.size_gap(view, pair) if all(view.runs(model, TEST_PPL) for model in pair) else None
        if own is not None and abs(own) <= ALIKE:
            other = claim.rule.judge(view, *pair)
            facts |= {"equal": view.label(pair[0]), "verdict": other.verdict, "number": other.numbers[0].text}
            return Premise(Code.EQUAL_PAIR, facts, other.verdict == verdict, spoils, r.CONFOUNDED)
    return Premise(Code.NO_EQUAL_PAIR, facts, False, spoils, r.CONFOUNDED)


def _left_out(view: View, claim: Claim) -> list[Finding]:
    """Return the planned runs of the claim's models without numbers, and those no better than a unigram model."""
    models = {model for pattern in claim.models for model in view.matching(pattern)}
    absent: dict[tuple[str, str], set[int]] = {}
    for (model, _), runs in view.planned.items():
        for row in runs if model in models else ():
            if row["state"] != "ok":
                absent.setdefault((view.label(model), row["state"]), set()).add(row["seed"])
    found = [
        Finding(Code.STATE, {"model": label, "state": state, "seeds": ", ".join(map(str, sorted(seeds)))})
        for (label, state), seeds in sorted(absent.items())
    ]
    unlearned = sorted((view.label(m), m, seed) for d, m, seed in view.records.unlearned if d == view.dataset)
    return found + [
        Finding(Code.UNLEARNED, {"model": label, "seed": seed, "why": view.records.unlearned[view.dataset, m, seed]})
        for label, m, seed in unlearned
        if m in models
    ]
