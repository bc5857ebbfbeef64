"""The answer at the top of the report and of the README: the findings as texts, with their figures."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from softmax_bottleneck.report import contrasts, numbers
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.report.dot_plot import Row
from softmax_bottleneck.report.findings import FINDINGS, MOS_GAIN, SAME_TIME, TEXTS, WEAK, Evidence, Finding, heads
from softmax_bottleneck.report.samples import Model, Sample, settings_of
from softmax_bottleneck.report.scatter import ABOUT, Scatter, panels

MOST_ROWS = 10  # of a figure; further rows are not drawn
TOP = 5  # findings that README.md and the first screen of the report have


def answer(studies: Sequence[FinishedStudy]) -> dict[str, Any]:
    """Return the question, its answer, and every finding that the studies have evidence for.

    The result has the texts `question`, `answer`, `more` (what follows the answer), `not_shown` and `terms`
    (explanations of terms), the dict `counts` (of `archives`, `studies` and pooled `runs`), `archives` ({name: title
    and hardware}), the dict `picture` (of the figure, see `printed_picture`), and the list `findings` (see `_printed`),
    of which the first `top` open the report.
    """
    evidence = Evidence.from_studies(studies)
    findings = {name: finding for name, find in FINDINGS.items() if (finding := find(evidence))}
    lead, more = verdict(findings)
    rows: dict[str, list[Row]] = {}
    for finding in findings.values():
        rows.setdefault(finding.figure.axis, []).extend(finding.figure.rows[:MOST_ROWS])
    return {
        "question": TEXTS["question"],
        "answer": lead,
        "more": more,
        "not_shown": not_shown(evidence),
        "terms": TEXTS["terms"],
        "counts": counts(studies, evidence.samples),
        "archives": {study.name: f"{study.title} ({study.hardware})" for study in studies},
        "picture": printed_picture(picture(evidence.samples)),
        "top": TOP,
        "findings": [_printed(name, finding, rows, kind=_kind(finding, studies)) for name, finding in findings.items()],
    }


def _printed(name: str, finding: Finding, rows: Mapping[str, Sequence[Row]], *, kind: str) -> dict[str, Any]:
    """Return a finding as a dict of texts; `rows` are those of all figures, by axis, which set its range.

    * `id`, `title`, `short`, `caveat`, `sentence`, `number`: texts; `short` is the finding in at most 20 words,
      `caveat` (may be empty) what limits it, `sentence` the finding with all its numbers, and `number` the
      main number with its interval.
    * `kind`: see `_kind`.
    * `overturn`: the result that would refute the finding, as text.
    * `details`, `studies`, `claims`: lists of texts: further numbers, names of studies, and ids of related claims.
    * `svg`, `alt`: the figure as SVG, and its alternative text.
    """
    texts = TEXTS["findings"][name]
    sentences = [texts[finding.state], texts["language"] if finding.facts.get("language") else ""]
    caveats = [text for fact, text in texts.get("caveat", {}).items() if finding.facts.get(fact)]
    figure = replace(finding.figure, rows=finding.figure.rows[:MOST_ROWS], range_rows=rows[finding.figure.axis])
    return {
        "id": name,
        "title": texts["title"],
        "short": texts["short"][finding.state].format(**finding.facts),
        "caveat": " ".join(caveats).format(**finding.facts),
        "sentence": " ".join(filter(None, sentences)).format(**finding.facts),
        "kind": kind,
        "number": finding.number,
        "overturn": texts["overturn"].format(weak=numbers.number(WEAK)),
        "details": list(finding.details),
        "studies": list(dict.fromkeys(finding.studies)),
        "claims": texts["claims"],
        "svg": figure.svg(),
        "alt": f"{figure.axis}: {'; '.join(f'{row.label} {figure.text(row)}' for row in figure.rows)}.",
    }


def _kind(finding: Finding, studies: Sequence[FinishedStudy]) -> str:
    """Return `exploratory` if no study named the comparison before its runs, otherwise an empty text.

    It is `learning rates exploratory` if these were added after the first runs.
    """
    names = {study.study for study in studies if study.name in finding.studies}
    named = "learning rates exploratory" if names.intersection(TEXTS["rates added"]) else ""
    return named if finding.is_named else "exploratory"


def verdict(findings: Mapping[str, Finding]) -> tuple[str, str]:
    """Return the answer, i.e. what the named findings say of rank, and the sentences that follow it (may be empty).

    A gain of MoS over MoC, or of a pointwise head, speaks for rank; a loss of MoS to MoC, a gain of MoC over the
    softmax, or pointwise heads without one, against. Unless all named findings that are not open point the same way,
    the answer is the first of `mixed` whose states are all met, else `either`. A sentence on equal time follows if a
    study named that contrast.
    """
    texts, states = TEXTS["answer"], {f"{name} {finding.state}" for name, finding in findings.items()}
    if not any(finding.is_named for finding in findings.values()):
        return str(texts["none"]), ""
    answers = [texts[key] for key in ("for", "against") if states.intersection(texts[key]["if"])]
    if len(answers) != 1:
        answers = [mixed for mixed in texts["mixed"] if states.issuperset(mixed["if"])] or [{"text": texts["either"]}]
    more = [answers[0]["more"].format(**findings["rank-without-mixing"].facts)] if "more" in answers[0] else []
    if time := findings.get("same-time"):
        more.append(texts["time"][time.state].format(**time.facts))
    facts_of = {name: finding.facts for name, finding in findings.items()}
    return str(answers[0]["text"]).format(**facts_of), " ".join(more)


def not_shown(evidence: Evidence) -> str:
    """Return the sentences on what the named comparisons leave open; empty without any on natural text."""
    named = contrasts.distinct(evidence.named)
    in_lstms = [contrast for contrast in named if contrast.setting.is_lstm and not contrast.setting.is_synthetic]
    widths = [contrast.setting.width for contrast in in_lstms if contrast.ends]
    timed = {contrast.setting for contrast in named if contrast.label == SAME_TIME and contrast.ends}
    untimed = [one.setting for one in in_lstms if one.label == MOS_GAIN and one.setting not in timed]
    where = f" on {numbers.listed(setting.labels[1] for setting in untimed)}" if timed else ""
    time = f", or at equal time{where}" if untimed or not timed else ""
    tuned = sum(contrast.is_tuned for contrast in named)
    return str(TEXTS["not_shown"].format(width=max(widths), time=time, tuned=tuned, named=len(named))) if widths else ""


def counts(studies: Sequence[FinishedStudy], samples: Mapping[Model, Sample]) -> dict[str, int]:
    """Return the numbers of archives, of their studies, and of pooled runs; a seed on two machines counts twice."""
    trained = [(model, run) for model, sample in samples.items() for run in sample.runs if run.values]
    runs = {(model, run.rate, run.seed, run.machine) for model, run in trained}
    return {"archives": len(studies), "studies": len({study.study for study in studies}), "runs": len(runs)}


def picture(samples: Mapping[Model, Sample]) -> Scatter:
    """Return the figure of every head of report/findings.yaml against the softmax."""
    by_head = (contrasts.against_baseline(samples, label, head) for label, head in heads().items())
    places = {setting: place for place, setting in enumerate(settings_of(samples))}
    in_order = sorted(itertools.chain(*by_head), key=lambda contrast: places[contrast.setting])
    return Scatter(panels(in_order))


def printed_picture(scatter: Scatter) -> dict[str, Any]:
    """Return the texts `rank` and `caption` of a figure, and its `panels`, each with `svg` and `alt`."""
    printed = [{"svg": scatter.svg(panel), "alt": f"{ABOUT}, {panel.about}. {panel.text}."} for panel in scatter.panels]
    return {"rank": TEXTS["rank"], "caption": TEXTS["picture"], "panels": printed}
