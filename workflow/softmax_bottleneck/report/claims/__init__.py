"""The claims of seven papers and of this workflow, evaluated on a study's records.

A claim is a rule together with the models on which the rule is evaluated. report/claims.yaml lists the claims, and
names functions and quantities of `rules`, `trained_models` and `known_distributions`. To understand a verdict, read
`verdict.judge`, then the rule in `rules`, then `rules.CorpusData`, which provides the numbers that rules read.
"""

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report.claims import both_sides, known_distributions, natural, rules, trained_models
from softmax_bottleneck.report.claims.rules import SYNTHETIC, VERDICTS, CorpusData
from softmax_bottleneck.report.claims.verdict import CONCLUSIONS, TEXTS, Claim, Entry, judge
from softmax_bottleneck.store import provenance
from softmax_bottleneck.study import Study

NAMES = ChainMap(*map(vars, (both_sides, trained_models, natural, known_distributions, rules)))


def _claim(name: str, texts: Mapping[str, Any]) -> Claim:
    """Return the claim of an entry in report/claims.yaml, whose first lines explain its keys."""
    facts = dict(texts)
    arguments = {**facts.pop("arguments", {}), **facts.pop("thresholds", {})}
    if "quantity" in arguments:
        arguments["quantity"] = NAMES[arguments["quantity"]]
    rule = NAMES[facts.pop("rule")](**arguments)
    rule = rules.heads(rule) if facts.pop("every_head", False) else rule
    changes = {key: facts.pop(key) for key in ("control", "hidden_by_ceiling") if key in facts}
    rule = replace(rule, text=facts.pop("criterion", rule.text), **changes)
    premises = tuple(partial(NAMES[check], **bounds) for check, bounds in facts.pop("premises", {}).items())
    return Claim(id=name, rule=rule, models=tuple(facts.pop("models", ())), premises=premises, **facts)


CLAIMS = tuple(_claim(name, texts) for name, texts in TEXTS.items())
NOT_JUDGED = {source: part["not evaluated"] for source, part in CONCLUSIONS.items() if "not evaluated" in part}


def of_study(study: Study) -> list[Claim]:
    """Return the claims of all papers from which the study has a table or figure, and the workflow's own claims.

    The workflow's own claims have the source `rank-or-mixture`. They are always included.
    """
    sources = {"rank-or-mixture", *(experiment.source for experiment in study.experiments)}
    return [claim for claim in CLAIMS if claim.source in sources]


def ledger(records: Records, claims: Sequence[Claim] = CLAIMS, study: Study | None = None) -> list[Entry]:
    """Return the verdicts on claims: one entry for each claim and each corpus to which the claim applies.

    The entries are grouped by corpus. Claims about known distributions have no corpus and come last.

    Args:
        records: the records of a study.
        claims: the claims to evaluate.
        study: the study of the records. If it is None, premises about the settings of the runs are not checked.
    """
    datasets = (*dict.fromkeys(records.states["dataset"]), SYNTHETIC)
    views = [CorpusData(records, dataset, study) for dataset in datasets]
    return [judge(data, claim) for data in views for claim in claims if claim.concerns(data.dataset)]


# --- output ---------------------------------------------------------------------------------------------------------
Facts = Mapping[str, Any]  # an entry as claims.json has it


def explain(entries: Iterable[Facts], details: bool) -> Iterator[str]:
    """Yield lines of text for a terminal: one per verdict; with `details`, also the claim, rule, numbers and premises.

    `entries` are the dicts under `claims` in claims.json.
    """
    for entry in entries:
        reason = f" ({entry['reason']})" if entry["reason"] else ""
        yield f"{entry['id']}, {entry['dataset']}: {entry['verdict']}{reason}"
        if details:
            yield f"  claim      {entry['statement']} ({entry['source']}, {entry['where']})"
            yield f"  rule       {entry['criterion']}"
            yield from (f"  numbers    {number['what']}: {number['text']}" for number in entry["numbers"])
            for premise in entry["premises"]:
                yield f"  premises   {'ok' if premise['holds'] else 'BROKEN'}: {premise['text']}"


def to_json(study: Study, records: Records, entries: Sequence[Entry]) -> dict[str, Any]:
    """Return the content of results/<study>/claims.json.

    The keys are status ("ok"), study (its name), counts ({verdict: number of entries}), claims (a dict per entry),
    not_judged and provenance. `not_judged` is {paper: {conclusion: reason}} for conclusions that no run can decide.
    """
    return {
        "status": "ok",
        "study": study.name,
        "counts": {name: sum(entry.verdict == name for entry in entries) for name in VERDICTS},
        "claims": [entry.to_json() for entry in entries],
        "not_judged": NOT_JUDGED,
        "provenance": provenance.block(records.parents),
    }
