"""The answer and the findings at the top of the report and of the README, with their figures.

A finding rests on contrasts that a study's file named before its runs; `report/findings.yaml` lists them. A finding
without such a contrast is an exploratory estimate, and the page says so. All contrasts follow the rules of
`report/contrasts.py`. The functions here decide which of a finding's sentences applies.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import yaml

from softmax_bottleneck.heads.registry import declarations, outside
from softmax_bottleneck.records.metrics import KL, PRESS_RANK
from softmax_bottleneck.report import contrasts, numbers
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.report.claims import known_distributions as fits
from softmax_bottleneck.report.claims import natural
from softmax_bottleneck.report.claims import rules as r
from softmax_bottleneck.report.claims.verdict import TEXTS as CLAIMS
from softmax_bottleneck.report.contrasts import Contrast, Named
from softmax_bottleneck.report.dot_plot import DotPlot, Row
from softmax_bottleneck.report.samples import Model, Sample, corpus_of, pool_runs, settings_of
from softmax_bottleneck.report.scatter import ABOUT, Scatter, panels
from softmax_bottleneck.statistics.intervals import ALPHA, Interval, student
from softmax_bottleneck.statistics.pooled import share_of_gain
from softmax_bottleneck.store.paths import ROOT

TEXTS: Mapping[str, Any] = yaml.safe_load((ROOT / "report" / "findings.yaml").read_bytes())
LAYERS = ("tanh layer against Softmax", "MoC against tanh layer")  # named contrasts
PROBABILITIES = ("MoS against tanh layer", "MoS against Softmax")
SAME_TIME = "MoS against Softmax, the same time"
RANK_AND_KL, GAPS = "truth-rank-does-not-tell", "truth-closes-gap"  # claims on fits to known distributions
WEAK = CLAIMS["window-correlation"]["thresholds"]["weak"]  # a correlation is weak below it
CHANGE = "change of test perplexity, % (square: exploratory)"  # an axis, whose range all figures share
MOST_ROWS = 10  # of a figure; further rows are not drawn
LEAST_GAP = -100  # percent; a figure leaves out lower shares
ALL_HEADS = "with all heads"
HOLDS, OPEN, FAILS = "holds", "open", "fails"  # states, and keys of texts in report/findings.yaml


@dataclass(frozen=True)
class Evidence:
    """The input of the findings: all studies, the pooled samples, and the contrasts named beforehand."""

    studies: Sequence[FinishedStudy]
    samples: Mapping[Model, Sample]
    named: Sequence[Named]

    @classmethod
    def of(cls, studies: Sequence[FinishedStudy]) -> "Evidence":
        """Return the evidence of some studies."""
        found = pool_runs(studies)
        lists, left_out, notes = (TEXTS[key] for key in ("named", "left_out", "notes"))
        return cls(studies, found, contrasts.named_contrasts(found, studies, lists, left_out, notes))

    def against(self, label: str) -> list[Contrast]:
        """Return the exploratory contrasts of a head of report/findings.yaml with the softmax, one per setting."""
        return contrasts.against_baseline(self.samples, label, heads()[label])

    def labelled(self, label: str) -> list[Named]:
        """Return the named contrasts with this label that have an interval, each pair of models once."""
        return contrasts.distinct(one for one in self.named if one.label == label and one.ends)


def heads() -> dict[str, Mapping[str, Any]]:
    """Return {label: head} of the heads to compare: those of report/findings.yaml, and all from outside the package."""
    listed: dict[str, Mapping[str, Any]] = TEXTS["heads"]
    return listed | {head.label: {"name": head.name} for head in outside()}


def is_fixed_function(head: str) -> bool:
    """Return True if a head applies a fixed function to every logit, and the function is not the identity."""
    declared = declarations().get(head)
    return declared is not None and declared.family == "pointwise" and not declared.is_log_linear


@dataclass(frozen=True)
class Finding:
    """A finding with its evidence.

    Attributes:
        state: HOLDS if the evidence supports the finding, FAILS if it refutes it, OPEN if it does neither.
        number: the main number with its interval, as text.
        figure: the figure.
        studies: the names of the studies that provide the evidence; they may repeat.
        is_named: True if a study's file named the comparison before its runs; otherwise the finding is exploratory.
        facts: {placeholder: value} for the sentences of the finding in report/findings.yaml.
        details: further numbers, one text each.
    """

    state: str
    number: str
    figure: DotPlot
    studies: Iterable[str]
    is_named: bool
    facts: Mapping[str, Any] = field(default_factory=dict)
    details: Sequence[str] = ()


def _figure(shown: Sequence[Contrast]) -> DotPlot:
    """Return the figure of some contrasts, of which the exploratory ones have the second colour.

    The label of a row is the first that differs from those of the other rows of its head. Without an interval, it
    has the numbers of seeds, too.
    """
    rows: list[Row] = []
    for one in shown:
        rivals = [other.setting.labels for other in shown if other is not one and _head(other) == _head(one)]
        unique = (label for n, label in enumerate(one.setting.labels) if all(label != labels[n] for labels in rivals))
        parts = [_head(one), next(unique, one.setting.label), *([] if one.ends else [numbers.counts(one.n)])]
        low, high = one.ends or (one.change, one.change)
        rows.append(Row(", ".join(parts), one.change, low, high, is_second=not isinstance(one, Named)))
    return DotPlot(rows, CHANGE)


def _state(otherwise: str, **conditions: object) -> str:
    """Return the first state whose condition is true, or `otherwise`."""
    return next((state for state, condition in conditions.items() if condition), otherwise)


def _head(contrast: Contrast) -> str:
    return contrast.label.partition(" against")[0].rstrip(",")


def _by_mixing(
    evidence: Evidence, label: str, others: Sequence[Contrast], details: Iterable[str], more: Sequence[str]
) -> Finding | None:
    """Return the finding on a contrast that studies named for LSTMs on natural text; None without any.

    `more` are the labels of further named contrasts, which are only shown. The finding fails if the perplexity is
    significantly higher on a corpus. Otherwise it holds if the perplexity is significantly lower on one.
    """
    own = [one for one in evidence.named if one.label == label and one.setting.is_lstm]
    natural = contrasts.distinct(one for one in own if not one.setting.is_synthetic)
    same = sorted(natural, key=lambda one: not one.is_tuned)  # the bracketed ones give the main number
    if not same:
        return None
    also = contrasts.distinct(one for one in evidence.named if one.label in more)
    unnamed = [one for one in others if one.setting not in {contrast.setting for contrast in same}]
    lower = [one for one in same if one.is_lower]
    rest = [one for one in same if not one.is_lower]
    changes = " and ".join(map(_change, lower))
    changes += "; not significantly on " + " and ".join(map(_change, rest)) if rest else ""
    without = {
        corpus_of(one.setting.dataset): f"; {one.setting.labels[0]}: "
        f"{one.change_text}, not significant (p = {numbers.p_value(one.adjusted_p)})"
        for one in reversed(same)
    }
    gaining = {corpus_of(one.setting.dataset) for one in lower}
    unclear = [one for one in unnamed if one.is_equal_size and not (one.setting.is_synthetic or one.sign)]
    return Finding(
        state=_state(OPEN, fails=any(one.is_higher for one in same), holds=lower),
        number=same[0].text,
        figure=_figure([*same, *unnamed]),
        studies=[name for one in [*same, *unnamed] for name in one.studies],
        is_named=True,
        facts={
            "lower": changes,
            "gain": numbers.span([-one.change for one in lower]),
            "corpora": " and ".join(contrasts.corpora(lower)),
            "without": "".join(text for corpus, text in without.items() if corpus not in gaining),
            "unclear": " and ".join(f"{one.short_text} on {one.setting.label}" for one in unclear),
            "basis": contrasts.basis(same),
            "time": contrasts.time_range(same),
        },
        details=[*(one.text for one in [*same[1:], *also]), *details],
    )


def _change(contrast: Contrast) -> str:
    return f"{contrast.setting.labels[0]} ({contrast.change_text}, {contrast.bracketed})"


def mixing_contexts(evidence: Evidence) -> Finding | None:
    """Return the finding that MoC, whose rank is the softmax's, lowers perplexity; None without the named contrast.

    `details` has MoC's gain as a share of MoS's, and that of a tanh layer alone, in every LSTM setting with intervals.
    """
    whole = {one.setting: one for one in evidence.against("MoS") if one.ends}
    layer = contrasts.against_baseline(evidence.samples, "Tanh layer", TEXTS["layer"])
    moc, layer = ([one for one in own if one.ends and one.setting.is_lstm] for own in (evidence.against("MoC"), layer))
    shares = [(part, share_text(part, whole[part.setting])) for part in [*moc, *layer] if part.setting in whole]
    details = [
        f"Exploratory: {part.label} has {share} of the gain of MoS; {part.setting.label}; {part.rates}"
        for part, share in shares
    ]
    return _by_mixing(evidence, "MoC against Softmax", moc, details, LAYERS)


def share_text(part: Contrast, whole: Contrast) -> str:
    """Return the gain of `part` as a share of that of `whole`, such as `56 % (35 to 75)`, with Fieller's 95 % interval.

    Both gains are over the same baseline.
    """
    share = share_of_gain(*([*side.log_ppl.values()] for side in (whole.baseline, part.model, whole.model)))
    ends = (numbers.number(100 * end, 0) for end in (share.low, share.high))
    interval = " to ".join(ends) if math.isfinite(share.high) else "unbounded"
    return f"{numbers.percent(share.value)} ({interval})"


def mixing_probabilities(evidence: Evidence) -> Finding | None:
    """Return the finding that MoS has a lower perplexity than MoC; None without the named contrast."""
    return _by_mixing(evidence, "MoS against MoC", (), (), PROBABILITIES)


def rank_without_mixing(evidence: Evidence) -> Finding | None:
    """Return the finding on the named contrasts of fixed pointwise heads with the softmax; None without any.

    It fails if a head has a significantly lower perplexity on natural text, each at its own best learning rate.
    Otherwise it is open if a head has a lower one at the shared rates or on a designed language, or if fewer rates were
    tried for a head than for the softmax. `details` then has the contrasts at the shared rates, too.
    """
    every = [one for one in evidence.named if is_fixed_function(one.model.model.head)]
    own = contrasts.distinct(one for one in every if one.ends and not one.setting.is_synthetic)
    if not own:
        return None
    designed = [one for one in every if one.ends and one.setting.is_synthetic]
    rest = [one for one in every if one.setting.is_synthetic or not one.ends]
    family = contrasts.corrected([(one.family, contrasts.at_shared_rates(one)) for one in evidence.named])
    shared = [one for one, named in zip(family, evidence.named, strict=True) if named in own]
    keys = {(one.setting, one.model.model.options) for one in every}
    fixed = [label for label, head in heads().items() if is_fixed_function(head["name"])]
    against = [one for label in fixed for one in evidence.against(label) if one.ends]
    others = [one for one in against if (one.setting, one.model.model.options) not in keys]
    gains, gains_shared = ([one for one in group if one.is_lower] for group in (own, shared))
    is_fair = all(one.has_equal_search for one in own)
    is_open = bool(gains_shared) or not is_fair or any(one.is_lower for one in designed)
    return Finding(
        state=_state(HOLDS, fails=gains, open=is_open),
        number=own[0].text,
        figure=_figure([*own, *designed, *others]),
        studies=[name for one in [*every, *others] for name in one.studies],
        is_named=True,
        facts={
            "lower": len(gains),
            "gaining": " and ".join(f"{_head(one)} {one.change_text} on {one.setting.labels[0]}" for one in gains),
            "shared": len(gains_shared),
            "uncorrected": sum(one.sign < 0 for one in shared),
            "gains": numbers.span([one.change for one in gains_shared]),
            "compared": len(own),
            "higher": sum(one.is_higher for one in own),
            "unclear": sum(not one.has_equal_search for one in own),
            "changes": numbers.span([one.change for one in own], signed=True),
            "corpora": " and ".join(contrasts.corpora(own)),
            "time": contrasts.time_range(own),
            "ranks": numbers.span([one.rank for one in every], 0),
            "basis": contrasts.basis(own),
            "language": "; ".join(
                f"{_head(one)}, {one.short_text}, {numbers.counts(one.n)}, {one.bracketed}" for one in designed
            ),
        },
        details=[
            *(one.text for one in [*own[1:], *rest]),
            *(f"At shared learning rates: {one.text}" for one in shared),
        ],
    )


def known_distributions(evidence: Evidence) -> Finding | None:
    """Return the estimate of how Press rank and KL are related in fits; None if no study could test the claim.

    The study with the most fits gives the numbers. The estimate holds if all of its correlations (`_correlations`) are
    weak, fails if all are strong, and is open otherwise. The other studies are in `details`.
    """
    tested = [
        (narrow_fits(study), study, entry["numbers"][0]["text"])
        for study in evidence.studies
        for entry in study.claims
        if entry["id"] == RANK_AND_KL and entry["verdict"] != r.CANNOT and entry["numbers"]
    ]
    if not tested:
        return None
    (table, study, _), *smaller = sorted(tested, key=lambda fits_of_study: -len(fits_of_study[0]))
    pearson, spearman = _correlations(table), correlation(table, ranked=True)
    is_weak = [max(abs(estimate.low), abs(estimate.high)) < WEAK for estimate in pearson.values()]
    is_strong = [max(estimate.low, -estimate.high) >= WEAK for estimate in pearson.values()]
    values = [f"{numbers.number(estimate.value, signed=True)} {heads}" for heads, estimate in pearson.items()]
    gaps = _gaps_closed(study)
    shown = [gap for gap in gaps if gap["low"] is not None and gap["high"] is not None and gap["low"] > LEAST_GAP]
    rows = [Row(_fitted(gap["what"]), gap["value"], gap["low"], gap["high"], is_second=True) for gap in shown]
    return Finding(
        state=_state(OPEN, holds=all(is_weak), fails=all(is_strong)),
        number=f"Pearson’s correlation of log Press rank and log KL, {numbers.counts(spearman.n)} seeds: "
        + "; ".join(f"{_signed(estimate)} {heads}" for heads, estimate in pearson.items()),
        figure=DotPlot(rows, "share of the softmax’s KL gap closed, %"),
        studies=[study.name, *(other.name for _, other, _ in smaller)],
        is_named=False,
        facts={
            "fits": f"{len(table):,}",
            "r": numbers.number(pearson[ALL_HEADS].value),
            "heads": table["model"].nunique(),
            "correlations": ", ".join(values),
            "spearman": numbers.number(spearman.value),
        },
        details=[
            f"Spearman’s correlation within each distribution and width, all heads: {_signed(spearman)}",
            *(f"KL gap closed at about equal size, {_fitted(gap['what'])}: {gap['text']}" for gap in gaps),
            *(f"{other.name}, {ALL_HEADS}: {text} seeds" for _, other, text in smaller),
        ],
    )


def narrow_fits(study: FinishedStudy) -> pd.DataFrame:
    """Return the fits with r > d of a study's first plan, in the columns of `known_distributions.fits_of`."""
    return fits.fits_of(r.CorpusData(study.records, r.SYNTHETIC), "r")[0].query("r > d")


def correlation(table: pd.DataFrame, *, ranked: bool = False) -> Interval:
    """Return the mean over seeds of the correlation of log Press rank and log KL, with Student's interval.

    `ranked` and the correlation of a seed are those of `known_distributions.within_distributions`.
    """
    by_seed = table.groupby("seed")
    values = [fits.within_distributions(PRESS_RANK, KL, part, ranked=ranked) for _, part in by_seed]
    return student([np.array([value for value in values if math.isfinite(value)])[:, None]], ALPHA / 2)


def _correlations(table: pd.DataFrame) -> dict[str, Interval]:
    """Return {heads as text: correlation}: of all, without each of `without` of report/findings.yaml, without these."""
    heads, estimates = TEXTS["without"], {ALL_HEADS: correlation(table)}
    for dropped in (*([head] for head in heads), heads):
        estimates["without " + " and ".join(map(_fitted, dropped))] = correlation(table[~table["model"].isin(dropped)])
    return estimates


def _gaps_closed(study: FinishedStudy) -> list[dict[str, Any]]:
    """Return the numbers of the claim GAPS, one per head, from the largest share of the KL gap closed to the smallest.

    Their keys are those of `claims.rules.Number`, and `text`.
    """
    every = [number for entry in study.claims if entry["id"] == GAPS for number in entry["numbers"]]
    return sorted((gap for gap in every if gap["value"] is not None), key=lambda gap: -gap["value"])


def _signed(estimate: Interval) -> str:
    """Return an estimate with its interval as text, such as `+0.09 (+0.08 to +0.10)`."""
    return f"{numbers.number(estimate.value, signed=True)} ({numbers.interval(estimate.low, estimate.high)})"


def _fitted(what: str) -> str:
    """Return the label of the head that the name of a number ends with, as in `fraction of the KL gap closed, ss`."""
    name = what.rpartition(", ")[2]
    labels = {name: head.label for head in declarations().values() for name in (head.name, head.published_as)}
    plain = name.removesuffix("-equal")
    return labels.get(plain, plain) + (", narrower" if name != plain else "")


def same_time(evidence: Evidence) -> Finding | None:
    """Return the finding on MoS against a wider softmax that trains as long; None if no study named this contrast.

    It holds if MoS is significantly above the softmax on a corpus and below it on none, and fails the other way round.
    It is `equal` if every interval lies inside the margin that the studies declared. MoS with other inner widths that
    train no longer than that softmax are exploratory; those not significantly above it are the caveat.
    """
    own = evidence.labelled(SAME_TIME)
    if not own:
        return None
    sources = {one.study for one in own}
    margin = min(
        100 * study.contrasts.margin for study in evidence.studies if study.contrasts and study.study in sources
    )
    above, below = ([one for one in own if one.adjusted_p < ALPHA and sign * one.change > 0] for sign in (1, -1))
    are_equal = all(-margin < end < margin for one in own for end in one.ends or ())
    decided = above or below
    sizes = {
        other: other.model.mean("parameters") / one.model.mean("parameters")
        for one in own
        for other in _other_shapes(evidence, one)
    }
    others, unclear = list(sizes), [other for other in sizes if other.sign <= 0]
    return Finding(
        state=_state(OPEN, holds=above and not below, fails=below and not above, equal=are_equal),
        number=own[0].text,
        figure=_figure([*own, *others]),
        studies=[name for one in [*own, *others] for name in one.studies],
        is_named=True,
        facts={
            "unclear": len(unclear),
            "larger": numbers.span([sizes[one] for one in unclear], 2) if unclear else "",
            "device": "a CPU" if all(name.startswith("cpu") for one in own for name in one.times(1)) else "a GPU",
            "by": numbers.span([abs(one.change) for one in decided]),
            "where": " and ".join(one.setting.labels[0] for one in decided or own),
            "changes": " and ".join(f"{one.short_text} on {one.setting.labels[0]}" for one in own),
            "margin": numbers.percent(margin / 100),
            "basis": contrasts.basis(own),
            "size": numbers.span([1 / one.size for one in own]),
            "time": contrasts.time_range(own),
        },
        details=[*(one.text for one in own[1:]), *(f"Exploratory, other inner widths: {one.text}" for one in others)],
    )


def _other_shapes(evidence: Evidence, named: Contrast) -> list[Contrast]:
    """Return the contrasts of a model with other inner widths, and the same rival, if they train no longer than it."""
    model = named.model.model
    alike = [sample for other, sample in evidence.samples.items() if replace(other, shape=model.shape) == model]
    others = [Contrast(named.label, sample, named.baseline) for sample in alike if sample.model != model]
    longest = 1 + contrasts.EQUAL_TIME
    return [one for one in others if one.ends and max(one.times(1).values(), default=math.inf) <= longest]


def natural_distributions(evidence: Evidence) -> Finding | None:
    """Return the finding that no head with more rank pays on natural distributions; None without fits to any.

    It fails if one pays on most of them; the state is DEPENDS if on some, and OPEN if premises leave it undecided.
    The figure has the largest judged gain on every distribution.
    """
    studies = [study for study in evidence.studies if len(natural.fits_of(study.records)[0])]
    if not studies:
        return None
    table = natural.prices_of(*(study.records for study in studies))
    overall, verdicts = natural.outcome(table)
    pays, undecided = (list(verdicts.values()).count(verdict) for verdict in (natural.PAYS, natural.OPEN))
    cells = sorted(natural.candidates(table), key=lambda cell: cell.gain.value)
    best = {cell.truth: cell for cell in cells if cell.truth in verdicts and not cell.unjudged}.values()
    gains = [(f"{cell.truth}: {declarations()[cell.head].label}, d = {cell.width:g}", cell.gain) for cell in best]
    rows = [Row(name, 100 * gain.value, 100 * gain.low, 100 * gain.high, is_second=True) for name, gain in gains]
    return Finding(
        state={natural.NONE: HOLDS, natural.MOST: FAILS}.get(overall, overall),
        number=f"A head with more rank pays on {pays} of {len(verdicts)} distributions",
        figure=DotPlot(rows, "largest gain of a head with more rank, % of the context-free KL"),
        studies=[study.name for study in studies],
        is_named=False,  # the margin was declared after single seeds on one of the truths had been seen
        facts={
            "pays": pays,
            "none": len(verdicts) - pays - undecided,
            "count": len(verdicts),
            "open": undecided,
            "unclear": sum(natural.is_hopeless(table, truth) for truth in verdicts),
        },
        details=[f"{truth}: {natural.sentence(table, truth)}" for truth in verdicts]
        + [f"Mixtures: {natural.control(table) or natural.PASSED}."],
    )


IN_ORDER = (
    mixing_contexts, mixing_probabilities, same_time, rank_without_mixing, natural_distributions, known_distributions
)  # fmt: skip
FINDINGS: Mapping[str, Callable[[Evidence], Finding | None]] = {  # named as in report/findings.yaml
    find.__name__.replace("_", "-"): find for find in IN_ORDER
}


def verdict(found: Mapping[str, Finding]) -> tuple[str, str]:
    """Return the answer, i.e. what the named findings say of rank, and the sentences that follow it (may be empty).

    A gain of MoS over MoC, or of a pointwise head, speaks for rank; a gain of MoC over the softmax, or pointwise heads
    without one, against. Unless all named findings that are not open point the same way, the answer is the first of
    `mixed` whose states are all met, else `either`. A sentence on equal time follows if a study named that contrast.
    """
    texts, states = TEXTS["answer"], {f"{name} {finding.state}" for name, finding in found.items()}
    if not any(finding.is_named for finding in found.values()):
        return str(texts["none"]), ""
    answers = [texts[key] for key in ("for", "against") if states.intersection(texts[key]["if"])]
    if len(answers) != 1:
        answers = [mixed for mixed in texts["mixed"] if states.issuperset(mixed["if"])] or [{"text": texts["either"]}]
    more = []
    if "more" in answers[0]:
        more.append(answers[0]["more"].format(**found["rank-without-mixing"].facts))
    if time := found.get("same-time"):
        more.append(texts["time"][time.state].format(**time.facts))
    return answers[0]["text"], " ".join(more)


def not_shown(evidence: Evidence) -> str:
    """Return the sentences on what the named comparisons leave open; empty without any on natural text."""
    named = contrasts.distinct(evidence.named)
    lstms = [one.setting for one in named if one.ends and one.setting.is_lstm and not one.setting.is_synthetic]
    width = max((setting.width for setting in lstms), default=0)
    facts = {"width": width, "tuned": sum(one.is_tuned for one in named), "named": len(named)}
    time = "" if same_time(evidence) else ", equal training time"
    return TEXTS["not_shown"].format(time=time, **facts) if lstms else ""


def picture(found: Mapping[Model, Sample]) -> Scatter:
    """Return the figure of every head of report/findings.yaml against the softmax."""
    by_head = (contrasts.against_baseline(found, label, head) for label, head in heads().items())
    places = {setting: place for place, setting in enumerate(settings_of(found))}
    return Scatter(panels(sorted(itertools.chain(*by_head), key=lambda one: places[one.setting])), TEXTS["legend"])


def printed_picture(scatter: Scatter) -> dict[str, Any]:
    """Return the texts `caption` and `legend` (a list) of a figure, and its `panels`, each with `svg` and `alt`."""
    printed = [{"svg": scatter.svg(one), "alt": f"{ABOUT}, {one.about}. {one.text}."} for one in scatter.panels]
    return {"caption": TEXTS["picture"], "legend": [TEXTS["rank"], *scatter.legend], "panels": printed}


def answer(studies: Sequence[FinishedStudy]) -> dict[str, Any]:
    """Return the question, its answer, and every finding that the studies have evidence for.

    Returns:
        A dict with the texts `question`, `answer`, `more` (what follows the answer), `not_shown` and `terms`
        (explanations of terms), the dict `counts` (of `archives`, `studies` and pooled `runs`), `archives` ({name:
        title and hardware}), the dict `picture` (of the figure, see `printed_picture`), and the list `findings`. Each
        finding is a dict with these keys:

        * `id`, `title`, `short`, `caveat`, `sentence`, `number`: texts; `short` is the finding in at most 20 words,
          `caveat` (may be empty) what is not significant, `sentence` the finding with all its numbers, and `number` the
          main number with its interval.
        * `kind`: `exploratory` if no study named its comparison before the runs, `learning rates exploratory` if these
          were added after the first runs, otherwise empty.
        * `overturn`: the result that would refute the finding, as text.
        * `details`, `studies`, `claims`: lists of texts: further numbers, names of studies, and ids of related claims.
        * `svg`, `alt`: the figure as SVG, and its alternative text.
    """
    evidence = Evidence.of(studies)
    found = {name: finding for name, find in FINDINGS.items() if (finding := find(evidence))}
    lead, more = verdict(found)
    axes: dict[str, list[Row]] = {}
    for finding in found.values():
        axes.setdefault(finding.figure.axis, []).extend(finding.figure.rows[:MOST_ROWS])
    return {
        "question": TEXTS["question"],
        "answer": lead,
        "more": more,
        "not_shown": not_shown(evidence),
        "terms": TEXTS["terms"],
        "counts": counts(studies, evidence.samples),
        "archives": {study.name: f"{study.title} ({study.hardware})" for study in studies},
        "picture": printed_picture(picture(evidence.samples)),
        "findings": [_printed(name, finding, axes[finding.figure.axis], studies) for name, finding in found.items()],
    }


def _kind(finding: Finding, studies: Sequence[FinishedStudy]) -> str:
    if not finding.is_named:
        return "exploratory"
    names = {study.study for study in studies if study.name in finding.studies}
    return "learning rates exploratory" if names.intersection(TEXTS["rates added"]) else ""


def _printed(name: str, finding: Finding, rows: Sequence[Row], studies: Sequence[FinishedStudy]) -> dict[str, Any]:
    """Return a finding as a dict of texts; the range of its figure is that of `rows`."""
    texts = TEXTS["findings"][name]
    sentences = [texts[finding.state], texts["language"] if finding.facts.get("language") else ""]
    figure = replace(finding.figure, rows=finding.figure.rows[:MOST_ROWS], range_rows=rows)
    return {
        "id": name,
        "title": texts["title"],
        "short": texts["short"][finding.state].format(**finding.facts),
        "caveat": texts["caveat"].format(**finding.facts) if finding.facts.get("unclear") else "",
        "sentence": " ".join(filter(None, sentences)).format(**finding.facts),
        "kind": _kind(finding, studies),
        "number": finding.number,
        "overturn": texts["overturn"].format(weak=numbers.number(WEAK)),
        "details": list(finding.details),
        "studies": list(dict.fromkeys(finding.studies)),
        "claims": texts["claims"],
        "svg": figure.svg(),
        "alt": f"{figure.axis}: {'; '.join(f'{row.label} {figure.text(row)}' for row in figure.rows)}.",
    }


def counts(studies: Sequence[FinishedStudy], found: Mapping[Model, Sample]) -> dict[str, int]:
    """Return the numbers of archives, of their studies, and of pooled runs; a seed on two machines counts twice."""
    runs = {(model, run.rate, run.seed, run.machine) for model, own in found.items() for run in own.runs if run.values}
    return {"archives": len(studies), "studies": len({study.study for study in studies}), "runs": len(runs)}
