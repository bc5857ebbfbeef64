"""Made-up records on which a rule's answer is known: the claim holds, fails, or a premise is broken, by construction.

They are judged whenever a ledger is made, so that a rule that cannot tell right from wrong is seen beside its claim.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

import pandas as pd

from softmax_bottleneck.records.metrics import PRESS_RANK
from softmax_bottleneck.records.records import DYNAMIC, FINETUNED, Records
from softmax_bottleneck.report.claims.engine import Claim, judge
from softmax_bottleneck.report.claims.premises import averaged
from softmax_bottleneck.report.claims.quantities import Row
from softmax_bottleneck.report.claims.rules import CANNOT, CONFOUNDED, NOT_REPRODUCED, REPRODUCED, UNDECIDED
from softmax_bottleneck.report.claims.view import View

CORPUS = "made-up"
# What a sound run of every made-up model says besides the numbers that are judged.
FACTS = {"parameters": 1e6, "embedding_size": 200.0, "best_epoch": 10.0, "switch_epoch": 6.0, "rank_columns": 1e6}
STAGE_FACTS: Mapping[str, Mapping[str, float]] = {FINETUNED: FACTS, DYNAMIC: {"dynamic_learning_rate": 1e-4}}
STATE = {"state": "ok", "reason": "", "planned_epochs": 10, "hardware": "made-up"}
COLUMNS = ("dataset", "model", "condition", "metric", "value", "seed", "run_id")


def records_of(rows: Iterable[Row], place: str = CORPUS, **facts: float) -> Records:
    """Records with these numbers, as if of sound runs; `facts` (`<model> <metric>`) replace FACTS."""
    numbers = {row[:3]: list(row[3]) for row in rows}
    runs = {
        (model, stage if stage in STAGE_FACTS else ""): len(values) for (model, _, stage), values in numbers.items()
    }
    runs = {**{(model, ""): n for (model, _), n in runs.items()}, **runs} if place == CORPUS else {}
    for (model, stage), n in runs.items():
        for metric, value in STAGE_FACTS.get(stage, FACTS).items():
            numbers.setdefault((model, metric, stage), [facts.get(f"{model} {metric}", value)] * n)
    lines = [
        (place, model, stage, metric, value, seed, f"{model}-{seed}" * bool(runs))
        for (model, metric, stage), values in numbers.items()
        for seed, value in enumerate(values, 1)
        if not math.isnan(value)
    ]
    states = [
        {"dataset": place, "model": model, "label": model, "seed": seed + 1, "stage": stage, **STATE}
        for (model, stage), n in runs.items()
        for seed in range(n)
    ]
    frame = pd.DataFrame(states, columns=["dataset", "model", "label", "seed", "stage", *STATE])
    return Records(pd.DataFrame(lines, columns=list(COLUMNS)), frame[frame["stage"] == ""], frame[frame["stage"] != ""])


def made(claim: Claim, holds: bool) -> Records:
    """Records in which a claim holds, or fails, by construction."""
    return records_of(claim.rule.example(holds, *claim.models), claim.place(CORPUS))


def broken(claim: Claim) -> dict[str, Records]:
    """Records in which a claim would hold, but a premise is broken: by what; the most telling first."""
    rows, place, rule = claim.rule.example(True, *claim.models), claim.place(CORPUS), claim.rule
    models = list(dict.fromkeys(row[0] for row in rows))
    firsts = [model for model in models if any(fnmatchcase(model, p) for p in "|".join(claim.models[:1]).split("|"))]
    metrics = {name for quantity in rule.quantities for name in (*quantity.metrics, quantity.stage)}
    size = FACTS["parameters"] * (1.67 if rule.favours > 0 else 0.6)
    breaks = {
        "never averaged": (averaged in claim.premises, models, "switch_epoch", math.nan),
        "dynamic evaluation stands still": (DYNAMIC in metrics, models, "dynamic_learning_rate", 0.0),
        "ranks at their ceiling": (PRESS_RANK in metrics and not rule.hidden_by_ceiling, models, "rank_columns", 1.0),
        "sizes that favour it": (bool(rule.favours), firsts, "parameters", size),
        "one side averaged": (bool(rule.favours), firsts, "switch_epoch", math.nan),
    }
    found = {
        name: records_of(rows, place, **{f"{model} {metric}": value for model in own})
        for name, (concerned, own, metric, value) in breaks.items()
        if concerned
    }
    if place == CORPUS and all(quantity.units == "seeds" for quantity in rule.quantities):
        found["two seeds"] = records_of([(*row[:3], row[3][:2]) for row in rows])
    return found | {"nothing has run": records_of([], place)}


@dataclass(frozen=True)
class Control:
    """A construction, what the claim's rule says of it, and what it must say."""

    what: str
    verdict: str
    expected: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether the rule tells it."""
        return self.verdict in self.expected

    @property
    def text(self) -> str:
        """`true by construction: reproduced`."""
        return f"{self.what}: {self.verdict}" + ("" if self.passed else f" (MUST BE {' or '.join(self.expected)})")


@cache
def of_claim(claim: Claim) -> tuple[Control, ...]:
    """The three controls of a claim."""
    name, spoilt = next(iter(broken(claim).items()))
    cases = (
        ("true by construction", made(claim, True), (REPRODUCED,)),
        ("false by construction", made(claim, False), (NOT_REPRODUCED,)),
        (f"premise broken ({name})", spoilt, (UNDECIDED, CANNOT, CONFOUNDED)),
    )
    return tuple(
        Control(what, judge(View(found, claim.place(CORPUS)), claim).verdict, must) for what, found, must in cases
    )
