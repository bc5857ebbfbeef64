"""The findings at the top of the report and of the README: each is a sentence, a number with an interval, and a figure.

A finding rests on contrasts that a study's file named before its runs; `report/findings.yaml` lists them. A finding
without such a contrast is an exploratory estimate, and the page says so. All contrasts follow the rules of
`report/contrasts.py`. The functions here decide which of a finding's sentences applies.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from softmax_bottleneck.heads.registry import declarations
from softmax_bottleneck.report import contrasts, numbers
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.report.claims import rules as r
from softmax_bottleneck.report.contrasts import Contrast, Model, Named, Sample
from softmax_bottleneck.report.dot_plot import DotPlot, Row
from softmax_bottleneck.statistics.intervals import ALPHA
from softmax_bottleneck.store.paths import ROOT

TEXTS: Mapping[str, Any] = yaml.safe_load((ROOT / "report" / "findings.yaml").read_bytes())
DECISIVE = "rank-or-mixture"  # the study whose named contrasts are the first two findings
LAYERS = ("tanh layer against Softmax", "MoC against tanh layer")  # named contrasts
POINTWISE = ("sigsoftmax", "gss")  # heads with a fixed function of every logit
RANK_AND_KL, GAPS = "truth-rank-does-not-tell", "truth-closes-gap"  # claims on fits to known distributions
WEAK = 0.24  # Parthiban et al. call correlations of 0.21 to 0.24 weak
CHANGE = "change in test perplexity, % (orange: exploratory)"  # an axis
MOST_ROWS = 10  # of a figure; further rows are not drawn
LEAST_GAP = -100  # percent; a figure leaves out lower shares
DECIDING = ("mixing-contexts", "rank-without-mixing", "equal-time")  # the findings that must hold for the answer


@dataclass(frozen=True)
class Evidence:
    """What the findings read: all studies, the pooled samples, and the contrasts named beforehand."""

    studies: Sequence[FinishedStudy]
    found: Mapping[Model, Sample]
    named: Sequence[Named]

    @classmethod
    def of(cls, studies: Sequence[FinishedStudy]) -> "Evidence":
        """Return the evidence of some studies."""
        found = contrasts.samples(studies)
        return cls(studies, found, contrasts.named(found, studies, TEXTS["named"], TEXTS["left_out"]))

    def against(self, label: str) -> list[Contrast]:
        """Return the exploratory contrasts of a head of report/findings.yaml with the softmax, one per setting."""
        return contrasts.against_baseline(self.found, label, TEXTS["heads"][label], TEXTS["baseline"])


@dataclass(frozen=True)
class Finding:
    """A finding with its evidence.

    Attributes:
        holds: True if the evidence supports the finding.
        number: the main number with its interval, as text.
        figure: the figure.
        studies: the names of the studies that provide the evidence; they may repeat.
        is_named: True if a study's file named the comparison before its runs; otherwise the finding is exploratory.
        facts: {placeholder: value} for the sentences of the finding in report/findings.yaml.
        details: further numbers, one text each.
        is_open: True if the evidence cannot decide, unless it refutes the finding.
    """

    holds: bool
    number: str
    figure: DotPlot
    studies: Iterable[str]
    is_named: bool
    facts: Mapping[str, Any] = field(default_factory=dict)
    details: Sequence[str] = ()
    is_open: bool = False

    @property
    def state(self) -> str:
        """`fails`, `open` or `holds`: the key of the finding's sentence in report/findings.yaml."""
        return "fails" if not self.holds else "open" if self.is_open else "holds"


def _rows(own: Sequence[Contrast], others: Sequence[Contrast]) -> list[Row]:
    """Return rows of a figure: named contrasts first, then exploratory ones in the second colour.

    The label of a row is the first that differs from those of the other rows of its head. Without an interval, it
    has the numbers of seeds, too.
    """
    rows: list[Row] = []
    for one in (*own, *others):
        rivals = [other.setting.labels for other in (*own, *others) if other is not one and _head(other) == _head(one)]
        unique = (label for n, label in enumerate(one.setting.labels) if all(label != labels[n] for labels in rivals))
        parts = [_head(one), next(unique, one.setting.label), *([] if one.ends else [numbers.counts(one.n)])]
        low, high = one.ends or (one.change, one.change)
        rows.append(Row(", ".join(parts), one.change, low, high, is_second=len(rows) >= len(own)))
    return rows


def _head(contrast: Contrast) -> str:
    return contrast.label.partition(" against")[0].rstrip(",")


def _by_mixing(
    evidence: Evidence, label: str, others: Sequence[Contrast], details: Iterable[str], more: Sequence[str]
) -> Finding | None:
    """Return the finding on a contrast that several studies named for LSTMs; None if DECISIVE has no runs of it.

    `more` are the labels of further named contrasts, which are only shown. The finding holds if the perplexity is
    significantly lower on a corpus and significantly higher on none.
    """
    same = [one for one in evidence.named if one.contrast.label == label and one.contrast.setting.is_lstm]
    main = next((one for one in same if one.study == DECISIVE), None)
    if main is None:
        return None
    rest = [one for one in same if one is not main]
    corpora = [(contrasts.corpus_of(one.contrast.setting.dataset), one.is_lower) for one in same]
    every, lower = {corpus for corpus, _ in corpora}, {corpus for corpus, is_lower in corpora if is_lower}
    also = [one for one in evidence.named if one.contrast.label in more]
    shown = [one.contrast for one in (main, *rest)]
    unnamed = [one for one in others if one.setting not in {contrast.setting for contrast in shown}]
    return Finding(
        holds=bool(lower) and not any(one.contrast.change > 0 and one.p < ALPHA for one in same),
        number=main.text,
        figure=DotPlot(_rows(shown, unnamed), CHANGE),
        studies=[name for one in [*shown, *unnamed] for name in one.studies],
        is_named=True,
        facts={"lower": len(lower), "compared": len(every), "change": numbers.number(abs(main.contrast.change), 1)},
        details=[*(one.text for one in [*rest, *also]), *details],
    )


def mixing_contexts(evidence: Evidence) -> Finding | None:
    """Return the finding that MoC, whose rank is the softmax's, lowers perplexity; None without the named contrast.

    `details` has MoC's gain as a share of MoS's, and that of a tanh layer alone, in every LSTM setting with intervals.
    """
    whole = {one.setting: one for one in evidence.against("MoS") if one.ends}
    layer = contrasts.against_baseline(evidence.found, "Tanh layer", TEXTS["layer"], TEXTS["baseline"])
    moc, layer = ([one for one in own if one.ends and one.setting.is_lstm] for own in (evidence.against("MoC"), layer))
    shares = [(part, share_text(part, whole[part.setting])) for part in [*moc, *layer] if part.setting in whole]
    details = [
        f"Exploratory: {part.label} has {share} of the gain of MoS; {part.setting.label}; {part.rates}"
        for part, share in shares
    ]
    return _by_mixing(evidence, "MoC against Softmax", moc, details, LAYERS)


def share_text(part: Contrast, whole: Contrast) -> str:
    """Return the gain of `part` as a share of that of `whole` with its 95 % interval, such as `56 % (35 to 75)`."""
    share = contrasts.gain_share(part, whole)
    ends = (numbers.number(100 * end, 0) for end in (share.low, share.high))
    interval = " to ".join(ends) if math.isfinite(share.high) else "unbounded"
    return f"{numbers.percent(share.value)} ({interval})"


def mixing_probabilities(evidence: Evidence) -> Finding | None:
    """Return the finding that MoS has a lower perplexity than MoC; None without the named contrast."""
    return _by_mixing(evidence, "MoS against MoC", (), (), ["MoS against Softmax"])


def rank_without_mixing(evidence: Evidence) -> Finding | None:
    """Return the finding on the named contrasts of SigSoftmax and GSS with the softmax; None without any.

    It fails if a head has a significantly lower perplexity, each at its own best learning rate. Otherwise it is open if
    fewer rates were tried for a head than for the softmax; `details` then has the contrasts at the shared rates, too.
    """
    own = [one for one in evidence.named if one.contrast.model.model.head in POINTWISE and one.contrast.ends]
    if not own:
        return None
    named = [one.contrast for one in own]
    shared = contrasts.families((one.study, contrasts.at_shared_rates(one.contrast)) for one in own)
    keys = {(one.setting, one.model.model.options) for one in named}
    every = [one for label in ("SigSoftmax", "GSS") for one in evidence.against(label) if one.ends]
    others = [one for one in every if (one.setting, one.model.model.options) not in keys]
    ratios = [numbers.number(end(one.rank for one in named), 0) for end in (min, max)]
    lower, lower_shared = (sum(one.is_lower for one in group) for group in (own, shared))
    return Finding(
        holds=not lower,
        is_open=not all(one.has_equal_search for one in named),
        number=own[0].text,
        figure=DotPlot(_rows(named, others), CHANGE),
        studies=[name for one in [*named, *others] for name in one.studies],
        is_named=True,
        facts={"lower": lower, "shared": lower_shared, "compared": len(own)},
        details=[
            f"These heads have {ratios[0]} to {ratios[1]} times the softmax’s Press rank",
            *(one.text for one in own[1:]),
            *(f"At shared learning rates: {one.text}" for one in shared),
        ],
    )


def known_distributions(evidence: Evidence) -> Finding | None:
    """Return the estimate of how well Press ranks predict the KL in fits to known distributions; None without fits.

    The study with the most fits gives the main number. The others are in `details`, with the heads' gains.
    """
    studies = sorted(evidence.studies, key=lambda study: -len(study.records.synthetic))
    entries = [(study, entry) for study in studies for entry in study.claims if entry["verdict"] != r.CANNOT]
    valid = [(study, one) for study, entry in entries if entry["id"] == RANK_AND_KL for one in entry["numbers"][:1]]
    if not valid:
        return None
    study, number = valid[0]
    closed = [one for entry in study.claims if entry["id"] == GAPS for one in entry["numbers"]]
    gains = [(_fitted(one["what"]), one) for one in sorted(closed, key=lambda one: -one["value"])]
    rows = [Row(name, one["value"], one["low"], one["high"], is_second=True) for name, one in gains if one["high"]]
    return Finding(
        holds=max(abs(number["low"] or math.inf), abs(number["high"] or math.inf)) <= WEAK,
        number=f"r = {number['text']} seeds, {_count(study)}",
        figure=DotPlot([row for row in rows if row.low > LEAST_GAP], "share of the softmax’s KL gap closed, %"),
        studies=[one.name for one, _ in valid],
        is_named=False,
        facts={"r": numbers.number(number["value"], 2)},
        details=[
            *(f"KL gap closed at about equal size, {name}: {one['text']}" for name, one in gains),
            *(f"r = {other['text']} seeds ({one.name}, {_count(one)})" for one, other in valid[1:]),
        ],
    )


def _count(study: FinishedStudy) -> str:
    """Return the numbers of fits of a study as text: of all, and of those with r > d, to which r refers."""
    rows = study.records.synthetic
    sizes = rows[rows["metric"] == "kl_nats"]["condition"].str.extract(r"(?:^|;)r=(\d+);.*\bd=(\d+)").astype(float)
    tables = rows.loc[sizes.index, "table"]
    first = sizes[tables == tables[sizes[1].notna()].value_counts().index[0]].dropna()
    return f"{(first[0] > first[1]).sum():,} of {len(first):,} fits have r > d"


def _fitted(what: str) -> str:
    """Return the label of the head that the name of a number ends with, as in `fraction of the KL gap closed, ss`."""
    name = what.rpartition(", ")[2]
    labels = {head: declared.label for head, declared in declarations().items()} | {"ss": "SigSoftmax"}
    plain = name.removesuffix("-equal")
    return labels.get(plain, plain) + (", narrower" if name != plain else "")


def equal_time(evidence: Evidence) -> Finding | None:
    """Return the estimate of MoS against the best softmax that takes no more time; None if no wider one was timed."""
    lstms = [one for one in evidence.against("MoS") if one.setting.is_lstm and not one.setting.is_synthetic]
    equal = [one for one in lstms if one.is_equal_size]
    known = [(one, rival) for one in equal if (rival := contrasts.at_equal_time(evidence.found, one))]
    if not known:
        return None
    main, rival = max(known, key=lambda pair: min(pair[0].n))
    return Finding(
        holds=rival.change > 0,
        number=_rival(rival),
        figure=DotPlot(_rows((), [rival for _, rival in known]), "MoS against a softmax of at most its time, %"),
        studies=[name for _, rival in known for name in rival.studies],
        is_named=False,
        facts={"change": numbers.number(100 * abs(math.expm1(-rival.interval.value)), 1), "n": min(rival.n)},
        details=[*(_rival(other) for one, other in known if one is not main), f"At equal size: {main.text}"],
    )


def _rival(contrast: Contrast) -> str:
    """Return a contrast with a softmax in another setting as text."""
    wide = contrast.baseline.model.setting.label
    return f"{contrast.label} at {contrast.setting.label} and Softmax at {wide}: {contrast.text.partition(': ')[2]}"


IN_ORDER = (mixing_contexts, mixing_probabilities, rank_without_mixing, known_distributions, equal_time)
FINDINGS: Mapping[str, Callable[[Evidence], Finding | None]] = {  # named as in report/findings.yaml
    find.__name__.replace("_", "-"): find for find in IN_ORDER
}


def answer(studies: Sequence[FinishedStudy]) -> dict[str, Any]:
    """Return the question, its answer, and every finding that the studies have evidence for.

    Returns:
        A dict with the texts `question`, `answer` and `terms` (explanations of terms), and the list `findings`. Each
        finding is a dict with these keys:

        * `id`, `title`, `sentence`, `number`: texts; `number` is the main number with its interval.
        * `is_named`: True if its comparison was named before the runs; otherwise it is an exploratory estimate.
        * `overturn`: the result that would refute the finding, as text.
        * `details`, `studies`, `claims`: lists of texts: further numbers, names of studies, and ids of related claims.
        * `svg`, `axis`, `alt`: the figure as SVG, the label of its axis, and its alternative text.
    """
    evidence = Evidence.of(studies)
    found = {name: finding for name, find in FINDINGS.items() if (finding := find(evidence))}
    is_answered = all(name in found and found[name].holds for name in DECIDING)
    printed = []
    for name, finding in found.items():
        texts = TEXTS["findings"][name]
        figure = replace(finding.figure, rows=finding.figure.rows[:MOST_ROWS])
        rows = "; ".join(f"{row.label} {figure.text(row)}" for row in figure.rows)
        printed.append({
            "id": name,
            "title": texts["title"],
            "sentence": texts[finding.state].format(**finding.facts),
            "is_named": finding.is_named,
            "number": finding.number,
            "overturn": texts["overturn"].format(weak=numbers.number(WEAK)),
            "details": list(finding.details),
            "studies": list(dict.fromkeys(finding.studies)),
            "claims": texts["claims"],
            "svg": figure.svg(),
            "axis": figure.axis,
            "alt": f"{figure.axis}: {rows}.",
        })  # fmt: skip
    return {
        "question": TEXTS["question"],
        "answer": TEXTS["answer" if is_answered else "open"],
        "terms": TEXTS["terms"],
        "findings": printed,
    }
