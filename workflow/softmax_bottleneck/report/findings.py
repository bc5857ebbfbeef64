"""The findings: what the archives say of rank and perplexity, each with its evidence.

A finding rests on contrasts that a study's file named before its runs; `report/findings.yaml` lists them. A finding
without such a contrast is an exploratory estimate, and the page says so. All contrasts follow the rules of
`report/contrasts.py`. The functions here decide which of a finding's sentences applies; `report/summary.py`
prints them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import yaml

from softmax_bottleneck.heads.registry import declarations, outside
from softmax_bottleneck.report import contrasts, numbers
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.report.claims import known_distributions as fits
from softmax_bottleneck.report.claims import natural
from softmax_bottleneck.report.claims import rules as r
from softmax_bottleneck.report.claims.verdict import TEXTS as CLAIMS
from softmax_bottleneck.report.contrasts import Contrast, Named
from softmax_bottleneck.report.dot_plot import DotPlot, Row, contrast_plot
from softmax_bottleneck.report.samples import Model, Sample, pool_runs
from softmax_bottleneck.statistics.intervals import ALPHA, Interval
from softmax_bottleneck.store.paths import ROOT

TEXTS: Mapping[str, Any] = yaml.safe_load((ROOT / "report" / "findings.yaml").read_bytes())
# Labels of named contrasts: of a mixture with the tanh layer that it needs, and others that belong to its finding.
CONTEXTS = ("MoC against tanh layer", "tanh layer against Softmax")
MOS_GAIN = "MoS against Softmax"
PROBABILITIES = ("MoS against tanh layer", MOS_GAIN)
SAME_TIME = f"{MOS_GAIN}, the same time"
RANK_AND_KL, GAPS = "truth-rank-does-not-tell", "truth-closes-gap"  # claims on fits to known distributions
WEAK = CLAIMS["window-correlation"]["thresholds"]["weak"]  # a correlation is weak below it
LEAST_GAP = -100  # percent; a figure leaves out lower shares
ALL_HEADS = "with all heads"
HOLDS, OPEN, FAILS = "holds", "open", "fails"  # states, and keys of texts in report/findings.yaml


# --- evidence and findings ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Evidence:
    """The input of the findings: all studies, the pooled samples, and the contrasts named beforehand."""

    studies: Sequence[FinishedStudy]
    samples: Mapping[Model, Sample]
    named: Sequence[Named]

    @classmethod
    def from_studies(cls, studies: Sequence[FinishedStudy]) -> "Evidence":
        """Return the evidence of some studies."""
        samples, declared = pool_runs(studies), (TEXTS[key] for key in ("named", "left_out", "notes"))
        return cls(studies, samples, contrasts.named_contrasts(samples, studies, *declared))

    def against(self, label: str) -> list[Contrast]:
        """Return the exploratory contrasts of a head of report/findings.yaml with the softmax, one per setting."""
        return contrasts.against_baseline(self.samples, label, heads()[label])

    def labelled(self, label: str) -> list[Named]:
        """Return the named contrasts with this label, each pair of models once, those with an interval first."""
        labelled = contrasts.distinct(contrast for contrast in self.named if contrast.label == label)
        return sorted(labelled, key=lambda contrast: contrast.ends is None)


def heads() -> dict[str, Mapping[str, Any]]:
    """Return {label: head} of the heads to compare: those of report/findings.yaml, and all from outside the package."""
    return {**TEXTS["heads"], **{head.label: {"name": head.name} for head in outside()}}


def is_fixed_function(head: str) -> bool:
    """Return True if a head applies a fixed function to every logit, and the function is not the identity."""
    declared = declarations().get(head)
    return declared is not None and declared.family == "pointwise" and not declared.is_log_linear


@dataclass(frozen=True)
class Finding:
    """A finding with its evidence.

    Attributes:
        state: HOLDS if the evidence supports the finding, FAILS if it refutes it, OPEN if it does neither; some
            findings have further states.
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
    studies: Sequence[str]
    is_named: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    details: Sequence[str] = ()


def _state(otherwise: str, **conditions: bool) -> str:
    """Return the first state whose condition is true, or `otherwise`."""
    return next((state for state, condition in conditions.items() if condition), otherwise)


def _finding(
    named: Sequence[Named], state: str, facts: Mapping[str, object], *,
    exploratory: Sequence[Contrast], details: Iterable[str], sources: Sequence[Contrast] = (),
) -> Finding:  # fmt: skip
    """Return the finding on named contrasts, of which the first has the main number.

    Its figure has the exploratory ones, too. `sources` have its studies, by default all contrasts of the figure.
    """
    shown = [*named, *exploratory]
    return Finding(
        state=state,
        number=named[0].text,
        figure=contrast_plot(shown),
        studies=[study for contrast in sources or shown for study in contrast.studies],
        is_named=True,
        facts={"basis": contrasts.basis(named), "time": contrasts.time_range(named), **facts},
        details=[*(contrast.text for contrast in named[1:]), *details],
    )


def _lower(named: Iterable[Named]) -> list[Named]:
    return [contrast for contrast in named if contrast.is_lower]


# --- mixing ---------------------------------------------------------------------------------------------------------
def mixing_contexts(evidence: Evidence) -> Finding | None:
    """Return the finding that MoC, whose rank is the softmax's, lowers perplexity; None without the named contrast.

    `details` has MoC's gain as a share of MoS's, and that of a tanh layer alone, in every LSTM setting with intervals.
    """
    layer = contrasts.against_baseline(evidence.samples, "Tanh layer", TEXTS["layer"])
    parts = [part for part in [*evidence.against("MoC"), *layer] if part.ends and part.setting.is_lstm]
    whole = {mos.setting: mos for mos in evidence.against("MoS") if mos.ends}
    shares = {part: contrasts.share_text(part, whole[part.setting]) for part in parts if part.setting in whole}
    details = [
        f"Exploratory: {part.label} has {share} of the gain of MoS; {part.setting.label}; {part.rates}"
        for part, share in shares.items()
    ]
    moc = [part for part in parts if part.label == "MoC"]
    sources = [*shares, *(whole[part.setting] for part in shares)]
    return _mixing(evidence, "MoC against Softmax", CONTEXTS, exploratory=moc, details=details, sources=sources)


def mixing_probabilities(evidence: Evidence) -> Finding | None:
    """Return the finding that MoS has a lower perplexity than MoC; None without the named contrast."""
    return _mixing(evidence, "MoS against MoC", PROBABILITIES)


def _mixing(
    evidence: Evidence, label: str, labels: Sequence[str], *,
    exploratory: Iterable[Contrast] = (), details: Iterable[str] = (), sources: Iterable[Contrast] = (),
) -> Finding | None:  # fmt: skip
    """Return the finding on a contrast that studies named for LSTMs of equal size on natural text; None without any.

    `labels` are those of named contrasts for `details`, which also has those of `label` at another size; the first
    is that with a tanh layer. `sources` have the studies of `details`. The finding fails if the perplexity is
    significantly higher on a corpus. Otherwise it holds if the perplexity is significantly lower on one.
    """
    labelled = [contrast for contrast in evidence.named if contrast.label == label and contrast.setting.is_lstm]
    on_text = contrasts.distinct(contrast for contrast in labelled if not contrast.setting.is_synthetic)
    named = [contrast for contrast in on_text if contrast.is_equal_size]
    named.sort(key=lambda contrast: not contrast.is_tuned)  # a bracketed one gives the main number
    if not named:
        return None
    settings = {contrast.setting for contrast in named}
    unnamed = [contrast for contrast in exploratory if contrast.setting not in settings]
    related = [contrast for contrast in on_text if contrast not in named]
    related += contrasts.distinct(contrast for contrast in evidence.named if contrast.label in labels)
    of_equal_size = [contrast for contrast in related if contrast.is_equal_size and not contrast.setting.is_synthetic]
    against_layer = [contrast for contrast in of_equal_size if contrast.label == labels[0]]
    return _finding(
        named,
        _state(OPEN, fails=any(contrast.is_higher for contrast in named), holds=bool(_lower(named))),
        _mixing_facts(named, unnamed) | {"layer": _layer(against_layer, named)},
        exploratory=unnamed,
        details=[*(contrast.text for contrast in related), *details],
        sources=[*named, *unnamed, *related, *sources],
    )


def _mixing_facts(named: Sequence[Named], unnamed: Iterable[Contrast]) -> dict[str, object]:
    lower, not_lower = _lower(named), [contrast for contrast in named if not contrast.is_lower]
    on_text = [contrast for contrast in unnamed if contrast.is_equal_size and not contrast.setting.is_synthetic]
    unclear = [f"{contrast.short_text} on {contrast.setting.labels[2]}" for contrast in on_text if not contrast.sign]
    changes = [numbers.listed(map(_change, group)) for group in (lower, not_lower) if group]
    return {
        "lower": "; not significantly on ".join(changes),
        "main": "".join(map(_on_corpus, lower[:1])),
        "others": numbers.listed(map(_on_corpus, lower[1:])),
        "width": max(contrast.setting.width for contrast in named),
        "gain": numbers.span([-contrast.change for contrast in lower]),
        "corpora": numbers.listed(contrasts.corpora(lower)),
        "without": _not_significant(not_lower),
        "unclear": numbers.listed(unclear),
    }


def _layer(against_layer: Sequence[Named], named: Sequence[Named]) -> str:
    """Return the range of the changes against a tanh layer as text; empty without any."""
    changes = numbers.span([contrast.change for contrast in against_layer], signed=True)
    where = _elsewhere(against_layer, named) or " over these corpora"
    unclear = [contrast for contrast in against_layer if not contrast.adjusted_p < ALPHA]  # nan: no test
    return f"{changes} %{where}{_not_significant(unclear)}" if against_layer else ""


def _elsewhere(shown: Iterable[Contrast], named: Iterable[Contrast]) -> str:
    """Return the corpora of the contrasts shown as text in brackets; empty if they are those of the named ones."""
    corpora = contrasts.corpora(shown)
    return "" if corpora == contrasts.corpora(named) else f" ({numbers.listed(corpora)})"


def _not_significant(named: Sequence[Named]) -> str:
    return f" (not significant: {numbers.listed(map(_on_corpus, named))})" if named else ""


def _change(contrast: Contrast) -> str:
    return f"{contrast.setting.labels[0]} ({contrast.change_text}, {contrast.bracketed})"


def _on_corpus(contrast: Contrast) -> str:
    return f"{contrast.short_text} on {contrast.setting.labels[0]}"


# --- rank without mixing --------------------------------------------------------------------------------------------
def rank_without_mixing(evidence: Evidence) -> Finding | None:
    """Return the finding on the named contrasts of fixed pointwise heads with the softmax; None without any.

    It fails if a head has a significantly lower perplexity on natural text, each at its own best learning rate.
    Otherwise it is open if a head has a lower one at the shared rates or on a designed language, or if fewer rates were
    tried for a head than for the softmax. `details` then has the contrasts at the shared rates, too.
    """
    named = [contrast for contrast in evidence.named if is_fixed_function(contrast.model.model.head)]
    on_text = contrasts.distinct(contrast for contrast in named if contrast.ends and not contrast.setting.is_synthetic)
    if not on_text:
        return None
    designed = [contrast for contrast in named if contrast.ends and contrast.setting.is_synthetic]
    uncompared = [contrast for contrast in named if contrast.setting.is_synthetic or not contrast.ends]
    shared, unnamed = _at_shared_rates(evidence, on_text), _unnamed(evidence, named)
    is_open = bool(_lower([*shared, *designed])) or not all(contrast.has_equal_search for contrast in on_text)
    ranks = numbers.span([contrast.rank for contrast in named], 0)
    overall = _over_all_heads(evidence, _lower(on_text))
    at_shared = (f"At shared learning rates: {contrast.text}" for contrast in shared)
    return _finding(
        on_text,
        _state(HOLDS, fails=bool(_lower(on_text)), open=is_open),
        _pointwise_facts(on_text, shared)
        | {"ranks": ranks, "overall": overall, "language": "; ".join(map(_on_language, designed))},
        exploratory=[*designed, *unnamed],
        sources=[*named, *unnamed],
        details=[*(contrast.text for contrast in uncompared), *at_shared],
    )


def _at_shared_rates(evidence: Evidence, kept: Sequence[Named]) -> list[Named]:
    """Return the kept contrasts that share learning rates, at these; all named ones are corrected with them."""
    pairs = [(contrast.family, contrasts.at_shared_rates(contrast)) for contrast in evidence.named]
    rows = zip(evidence.named, pairs, contrasts.corrected(pairs), strict=True)
    return [at_shared for contrast, (_, moved), at_shared in rows if contrast in kept and moved is not contrast]


def _over_all_heads(evidence: Evidence, lower: Iterable[Named]) -> int:
    """Return how many of some significant contrasts are so after correction over all heads, too.

    Only heads of report/findings.yaml in LSTMs can be, as in the table of heads.
    """
    adjusted = contrasts.over_all_heads(contrast for label in heads() for contrast in evidence.against(label))
    sure = {(contrast.model.model, contrast.baseline.model) for contrast, p in adjusted.items() if p < ALPHA}
    return sum((contrast.model.model, contrast.baseline.model) in sure for contrast in lower)


def _unnamed(evidence: Evidence, named: Iterable[Named]) -> list[Contrast]:
    """Return the exploratory contrasts of fixed pointwise heads with an interval, without those that were named."""
    models = {contrast.model.model for contrast in named}
    labels = [label for label, head in heads().items() if is_fixed_function(head["name"])]
    exploratory = [contrast for label in labels for contrast in evidence.against(label) if contrast.ends]
    return [contrast for contrast in exploratory if contrast.model.model not in models]


def _pointwise_facts(on_text: Sequence[Named], shared: Sequence[Named]) -> dict[str, object]:
    lower, lower_shared = _lower(on_text), _lower(shared)
    counts = {"lower": len(lower), "shared": len(lower_shared), "compared": len(on_text)}
    fair = [contrast for contrast in on_text if contrast.has_equal_search]  # otherwise a loss may be that of its rate
    losses = sum(contrast.is_higher for contrast in fair)
    judged = {*fair, *lower}
    judged_heads = [*dict.fromkeys(contrast.head for contrast in on_text if contrast in judged)]
    gaining = (f"{contrast.change_text} on {contrast.setting.labels[0]}" for contrast in lower)
    if len(judged_heads) > 1:
        gaining = (f"{contrast.head} {text}" for contrast, text in zip(lower, gaining, strict=True))
    return counts | {
        "judged": len(judged),
        "heads": numbers.listed(judged_heads),
        "gaining": numbers.listed(gaining),
        "uncorrected": sum(contrast.sign < 0 for contrast in shared),
        "gains": numbers.span([contrast.change for contrast in lower_shared]),
        "higher": losses,
        "losing": f" and lose in {losses}" if losses else "",
        "unclear": numbers.listed(dict.fromkeys(contrast.head for contrast in on_text if contrast not in judged)),
        "changes": numbers.span([contrast.change for contrast in on_text], signed=True),
        "corpora": numbers.listed(contrasts.corpora(on_text)),
    }


def _on_language(contrast: Contrast) -> str:
    return f"{contrast.head}, {contrast.short_text}, {numbers.counts(contrast.n)}, {contrast.bracketed}"


# --- the same time --------------------------------------------------------------------------------------------------
def same_time(evidence: Evidence) -> Finding | None:
    """Return the finding on MoS against a wider softmax that trains as long; None if no named one has enough runs.

    It holds if MoS is significantly above the softmax on a corpus and below it on none, and fails the other way round.
    It is `mixed` if MoS is above it in one setting and below it in another, and `equal` if every interval lies inside
    the margin that the studies declared. MoS with other inner widths that train no longer than that softmax are
    exploratory; those not significantly above it are the caveat.
    """
    named = [contrast for contrast in evidence.labelled(SAME_TIME) if contrast.ends or contrast.n_diverged]
    if not named:
        return None
    naming = {contrast.study for contrast in named}
    margins = [study.contrasts.margin for study in evidence.studies if study.contrasts and study.study in naming]
    margin = 100 * min(margins)
    above = [contrast for contrast in named if contrast.is_higher]
    below = [contrast for contrast in named if contrast.change < 0 and contrast.adjusted_p < ALPHA]
    decided = [*above, *below]
    left = [contrast for contrast in named if contrast not in decided]
    equal = [contrast for contrast in left if contrast.ends and max(map(abs, contrast.ends)) < margin]
    unclear = [contrast for contrast in left if contrast not in equal]
    sizes: dict[Contrast, float] = {}  # of MoS with other inner widths, relative to the named one
    for contrast in named:
        for other in contrasts.with_other_shapes(evidence.samples, contrast):
            sizes[other] = other.model.mean("parameters") / contrast.model.mean("parameters")
    within = numbers.percent(margin / 100)
    groups = {f"equal within {within}": equal, "not significant": unclear} if decided else {}
    others = "".join(f"; {text}: {numbers.listed(map(_on_corpus, group))}" for text, group in groups.items() if group)
    return _finding(
        named,
        _state(OPEN, mixed=bool(above and below), holds=bool(above), fails=bool(below), equal=equal == named),
        _time_facts(named, decided) | _caveat_of_sizes(named, sizes) | {"margin": within, "others": others},
        exploratory=[*sizes],
        details=[f"Exploratory, other inner widths: {contrast.text}" for contrast in sizes],
    )


def _caveat_of_sizes(named: Sequence[Named], sizes: Mapping[Contrast, float]) -> dict[str, object]:
    not_above = {contrast: size for contrast, size in sizes.items() if contrast.sign <= 0}
    larger = numbers.span([*not_above.values()], 2)
    return {"unclear": len(not_above), "larger": larger, "there": _elsewhere(not_above, named)}


def _time_facts(named: Sequence[Named], decided: Sequence[Named]) -> dict[str, object]:
    is_on_cpu = all(machine.startswith("cpu") for contrast in named for machine in contrast.times(1))
    return {
        "device": "a CPU" if is_on_cpu else "a GPU",
        "by": numbers.span([abs(contrast.change) for contrast in decided]),
        "where": numbers.listed(contrasts.corpora(decided or named)),
        "changes": numbers.listed(map(_on_corpus, named)),
        "size": numbers.span([1 / contrast.size for contrast in named]),
    }


# --- fits to distributions ------------------------------------------------------------------------------------------
def natural_distributions(evidence: Evidence) -> Finding | None:
    """Return the finding that no head with more rank pays on natural distributions; None without fits to any.

    It fails if one pays on most of them; it is `depends` if on some, and OPEN if premises leave it undecided. It is
    exploratory: the margin was declared after single seeds on one of the truths had been seen.
    """
    studies = [study for study in evidence.studies if len(natural.fits_of(study.records)[0])]
    if not studies:
        return None
    table = natural.prices_of(*(study.records for study in studies))
    outcome, verdicts = natural.outcome(table)
    pays, undecided = (list(verdicts.values()).count(verdict) for verdict in (natural.PAYS, natural.OPEN))
    rows, axis = _largest_gains(table, verdicts), "best judged higher-rank head’s gain, % of unigram’s KL"
    facts = {"pays": pays, "none": len(verdicts) - pays - undecided, "count": len(verdicts), "open": undecided}
    sentences = [f"{truth}: {natural.sentence(table, truth)}" for truth in verdicts]
    return Finding(
        state={natural.NONE: HOLDS, natural.MOST: FAILS}.get(outcome, outcome),
        number=f"A head with more rank pays on {pays} of {len(verdicts)} distributions",
        figure=DotPlot(rows, axis),
        studies=[study.name for study in studies],
        facts=facts | {"unclear": sum(natural.is_hopeless(table, truth) for truth in verdicts)},
        details=[*sentences, f"Mixtures: {natural.control(table) or natural.PASSED}."],
    )


def _largest_gains(table: Iterable[natural.Price], truths: Collection[str]) -> list[Row]:
    """Return a row per distribution with a judged gain of a head with more rank, in percent."""
    largest: dict[str, Row] = {}
    for price in sorted(natural.candidates(table), key=lambda price: price.gain.value):
        if price.truth in truths and not price.unjudged:
            label = f"{price.truth}: {declarations()[price.head].label}, d = {price.width:g}"
            value, low, high = (100 * end for end in (price.gain.value, price.gain.low, price.gain.high))
            largest[price.truth] = Row(label, value=value, low=low, high=high, is_second=True)
    return [*largest.values()]


def known_distributions(evidence: Evidence) -> Finding | None:
    """Return the estimate of how Press rank and KL are related in fits; None if no study could test the claim.

    The study with the most fits gives the numbers, and `relation` the state. The other studies are in `details`.
    """
    tested = sorted(filter(_tested, evidence.studies), key=lambda study: -len(narrow_fits(study)))
    if not tested:
        return None
    study, *smaller = tested
    table, gaps = narrow_fits(study), _gaps_closed(study)
    pearson, spearman = _correlations(table), fits.rank_and_kl(table, ranked=True)
    estimates = "; ".join(f"{_signed(estimate)} {chosen}" for chosen, estimate in pearson.items())
    values = [f"{numbers.number(estimate.value, signed=True)} {chosen}" for chosen, estimate in pearson.items()]
    facts = {"fits": f"{len(table):,}", "heads": table["model"].nunique(), "correlations": ", ".join(values)}
    main = {"r": numbers.number(pearson[ALL_HEADS].value), "spearman": numbers.number(spearman.value)}
    return Finding(
        state=relation(pearson.values()),
        number=f"Pearson’s correlation of log Press rank and log KL, {numbers.counts(spearman.n)} seeds: {estimates}",
        figure=DotPlot(_gap_rows(gaps), "share of the softmax’s KL gap closed, %"),
        studies=[study.name for study in tested],
        facts=facts | main,
        details=[
            f"Spearman’s correlation within each distribution and width, all heads: {_signed(spearman)}",
            *(f"KL gap closed at about equal size, {_fitted(gap['what'])}: {gap['text']}" for gap in gaps),
            *(f"{other.name}, {ALL_HEADS}: {_tested(other)} seeds" for other in smaller),
        ],
    )


def relation(correlations: Iterable[Interval]) -> str:
    """Return the state that follows from the correlations with all heads and without some.

    It is HOLDS if all are weak, and FAILS if all are strong with one sign. Otherwise it is `depends` if two intervals
    exclude each other, so that the correlation depends on the heads, and OPEN if the intervals are too wide to tell.
    """
    lows, highs = zip(*((estimate.low, estimate.high) for estimate in correlations), strict=True)
    are_weak = min(lows) > -WEAK and max(highs) < WEAK
    are_strong = min(lows) >= WEAK or max(highs) <= -WEAK
    return _state(OPEN, holds=are_weak, fails=are_strong, depends=max(lows) > min(highs))


def narrow_fits(study: FinishedStudy) -> pd.DataFrame:
    """Return the fits with r > d of a study's first plan, in the columns of `known_distributions.fits_of`."""
    return fits.fits_of(r.CorpusData(study.records, r.SYNTHETIC), "r")[0].query("r > d")


def _correlations(table: pd.DataFrame) -> dict[str, Interval]:
    """Return {heads as text: correlation}: of all, without each of `without` of report/findings.yaml, without these."""
    listed, pearson = TEXTS["without"], {ALL_HEADS: fits.rank_and_kl(table)}
    for dropped in (*([head] for head in listed), listed):
        names = numbers.listed(map(_fitted, dropped))
        pearson[f"without {names}"] = fits.rank_and_kl(table[~table["model"].isin(dropped)])
    return pearson


def _tested(study: FinishedStudy) -> str:
    """Return the number of the claim RANK_AND_KL as text; empty if the study could not test the claim."""
    entries = (entry for entry in study.claims if entry["id"] == RANK_AND_KL and entry["verdict"] != r.CANNOT)
    return next((str(entry["numbers"][0]["text"]) for entry in entries if entry["numbers"]), "")


def _gaps_closed(study: FinishedStudy) -> list[dict[str, Any]]:
    """Return the numbers of the claim GAPS, one per head, from the largest share of the KL gap closed to the smallest.

    Their keys are those of `claims.rules.Number`, and `text`.
    """
    gaps = [gap for entry in study.claims if entry["id"] == GAPS for gap in entry["numbers"]]
    return sorted((gap for gap in gaps if gap["value"] is not None), key=lambda gap: -gap["value"])


def _gap_rows(gaps: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return a row for every gap with an interval above LEAST_GAP."""
    shown = [gap for gap in gaps if None not in (gap["low"], gap["high"]) and gap["low"] > LEAST_GAP]
    return [Row(_fitted(gap["what"]), gap["value"], low=gap["low"], high=gap["high"], is_second=True) for gap in shown]


def _signed(estimate: Interval) -> str:
    """Return an estimate with its interval as text, such as `+0.09 (+0.08 to +0.10)`."""
    return f"{numbers.number(estimate.value, signed=True)} ({numbers.interval(estimate.low, estimate.high)})"


def _fitted(what: str) -> str:
    """Return the label of the head that the name of a number ends with, as in `fraction of the KL gap closed, ss`."""
    name = what.rpartition(", ")[2]
    plain = name.removesuffix("-equal")
    labels = (head.label for head in declarations().values() if plain in (head.name, head.published_as))
    return next(labels, plain) + (", narrower" if name != plain else "")


FINDINGS: Mapping[str, Callable[[Evidence], Finding | None]] = {  # in their order, named as in report/findings.yaml
    "mixing-contexts": mixing_contexts,
    "mixing-probabilities": mixing_probabilities,
    "same-time": same_time,
    "rank-without-mixing": rank_without_mixing,
    "natural-distributions": natural_distributions,
    "known-distributions": known_distributions,
}
