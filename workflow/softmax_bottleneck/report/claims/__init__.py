"""The ledger of claims: conclusions of five papers and of this workflow, evaluated on a study's records.

A claim is one entry of its paper's CLAIMS: a statement, a rule, and the models it is evaluated on. Premises, intervals
and stability over resamples follow from the rule. report/not_judged.yaml lists the conclusions that no run
can decide, with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import yaml

from softmax_bottleneck.records import records as tidy
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report.claims import (
    benka2021,
    ganea2019,
    kanai2018,
    known_truth,
    merity2017,
    parthiban2021,
    premises,
    quantities,
    rules,
)
from softmax_bottleneck.report.claims.engine import STABLE, judge
from softmax_bottleneck.report.claims.engine import Claim as Claim
from softmax_bottleneck.report.claims.engine import Entry as Entry
from softmax_bottleneck.report.claims.rules import VERDICTS
from softmax_bottleneck.report.claims.view import RESAMPLES, SYNTHETIC, View
from softmax_bottleneck.store import paths, provenance
from softmax_bottleneck.study import Study

PAPERS = (parthiban2021, kanai2018, ganea2019, merity2017, benka2021)
OWN = (*known_truth.CLAIMS, *known_truth.GRADIENT_CLAIMS)
CLAIMS: tuple[Claim, ...] = (*(claim for paper in PAPERS for claim in paper.CLAIMS), *OWN)
NOT_JUDGED: Mapping[str, Mapping[str, str]] = yaml.safe_load(
    (paths.ROOT / "report" / "not_judged.yaml").read_text(encoding="utf-8")
)


def of_study(study: Study) -> list[Claim]:
    """Return the claims of the sources that a study has experiments of."""
    sources = {experiment.source for experiment in study.experiments}
    return [claim for claim in CLAIMS if claim.source in sources]


def ledger(records: Records, claims: Sequence[Claim] = CLAIMS, study: Study | None = None) -> list[Entry]:
    """Evaluate every claim on every corpus it is about, in the order of the plan, then claims that need no corpus."""
    theorems = pd.DataFrame(
        [(SYNTHETIC, *row, 1, "") for row in ganea2019.theorem_rows()],
        columns=["dataset", "model", "metric", "condition", "value", "seed", "run_id"],
    )
    records = replace(records, rows=pd.concat([records.rows, theorems], ignore_index=True))
    views = [View(records, dataset, study) for dataset in (*dict.fromkeys(records.states["dataset"]), SYNTHETIC)]
    asked = [(view, claim) for view in views for claim in claims if claim.concerns(view.dataset)]
    return [replace(judge(view, claim), elsewhere=_elsewhere(view, claim)) for view, claim in asked]


def _elsewhere(view: View, claim: Claim) -> dict[str, str]:
    """Return the verdict of archived runs on a claim, by their hardware."""
    found = {}
    known_here = [one for one in view.records.evidence if one.run.dataset == view.dataset]
    for hardware in sorted({one.hardware for one in known_here}):
        runs = [one for one in known_here if one.hardware == hardware]
        rows = [
            (view.dataset, o.run.model, c, m, x, o.run.seed, o.run_id) for o in runs for (m, c), x in o.values.items()
        ]
        frame = pd.DataFrame(rows, columns=["dataset", "model", "condition", "metric", "value", "seed", "run_id"])
        states = [
            {"dataset": view.dataset, "model": o.run.model, "label": view.label(o.run.model), "seed": o.run.seed,
             "state": "ok", "planned_epochs": o.run.schedule.epochs, "hardware": hardware}
            for o in runs
        ]  # fmt: skip
        known = Records(frame, pd.DataFrame(states, columns=list(tidy.STATE_COLUMNS)))
        found[hardware] = judge(View(known, view.dataset), claim).verdict
    return found


def counts(entries: Iterable[Entry]) -> dict[str, int]:
    """Return the number of entries of each verdict."""
    by_verdict = Counter(entry.verdict for entry in entries)
    return {verdict: by_verdict[verdict] for verdict in VERDICTS}


# --- texts ----------------------------------------------------------------------------------------------------------
def to_csv(entries: Iterable[Entry]) -> str:
    """Return one line per claim and corpus: verdict, reason, numbers and premises."""
    columns = (*("id", "source", "dataset", "verdict", "reason", "statement", "where", "criterion", "stability"),
               *("numbers", "premises", "left_out"))  # fmt: skip
    lines = []
    for entry in entries:
        facts = entry.to_json()
        facts["numbers"] = "; ".join(f"{number.what}: {number.text}" for number in entry.numbers)
        facts["premises"] = "; ".join(premise.line for premise in entry.premises)
        lines.append(facts | {"left_out": "; ".join(map(str, entry.left_out))})
    return tidy.to_csv(pd.DataFrame(lines, columns=list(columns)))


def verdicts(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield one line for every verdict."""
    return (f"{e.claim.id}, {e.dataset}: {e.verdict}" + (f" ({e.reason})" if e.reason else "") for e in entries)


def explain(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield every verdict for a terminal, with its rule, numbers and premises."""
    for entry in entries:
        claim, stability = entry.claim, entry.stability
        yield f"\n{next(verdicts([entry]))}"
        yield f"  claim      {claim.statement} ({claim.source}, {claim.where})"
        yield f"  rule       {claim.rule.text}"
        yield from (f"  number     {number.what}: {number.text}; {number.regions}" for number in entry.numbers)
        yield from (f"  premise    {premise.line}" for premise in entry.premises)
        if stability is not None:
            yield f"  stability  the rule says the same in {stability:.0%} of {RESAMPLES:,} resamples"
        yield from (f"  elsewhere  {verdict} on {hardware}" for hardware, verdict in entry.elsewhere.items())
        yield from (f"  left out   {words}" for words in entry.left_out)


# --- file -----------------------------------------------------------------------------------------------------------
def to_json(study: Study, records: Records, entries: Sequence[Entry]) -> dict[str, Any]:
    """Return the content of results/<study>/claims.json."""
    return {
        "status": "ok",
        "study": study.name,
        "criteria": criteria(),
        "counts": counts(entries),
        "claims": [entry.to_json() for entry in entries],
        "not_judged": NOT_JUDGED,
        "provenance": provenance.block(records.parents),
    }


def criteria() -> dict[str, float | int]:
    """Return the constants that verdicts depend on."""
    named = {
        rules: ("MARGIN", "SMALL", "HIGH", "STRONG"),
        premises: ("CEILING", "SETTLED", "WIDE"),
        quantities: ("ALPHA", "POWER", "ALIKE", "MIN_RUNS", "MIN_POINTS"),
    }
    found = {name.lower(): getattr(module, name) for module, names in named.items() for name in names}
    return found | {"stable": STABLE, "resamples": RESAMPLES}
