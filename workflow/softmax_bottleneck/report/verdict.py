"""What came out of a study, in sentences computed from its records and from the ledger of claims.

Three sentences come first; the sections below them say more for every corpus. No sentence claims what no number says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from softmax_bottleneck.measuring import statistics
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report import cells, claims, judging
from softmax_bottleneck.report.cells import Measured
from softmax_bottleneck.report.source import exact_value, label
from softmax_bottleneck.study import Run, Study

NAMED = 4  # models or conclusions in a sentence; more are counted
MEANINGFUL_P = 0.001  # larger p-values are printed as decimals


# --- three sentences ------------------------------------------------------------------------------------------------
def in_short(study: Study, found: Records, entries: Sequence[claims.Entry]) -> list[str]:
    """At most three sentences: how the conclusions came out, which ones, and what the best model says of rank."""
    if not _finished(found):
        return []
    words = (_count_words(study, entries), _named_words(study, entries), _best_words(study, found))
    return [sentence for sentence in words if sentence]


def _finished(found: Records) -> bool:
    return not found.rows[found.rows["run_id"] != ""].empty


def _count_words(study: Study, entries: Sequence[claims.Entry]) -> str:
    """`On Penn Treebank 4 of the paper's 17 conclusions are reproduced, 2 are not, 11 cannot be decided.`"""
    if not entries:
        return ""
    numbers = claims.counts(entries)
    yes, no, open_ = (numbers[word] for word in (judging.REPRODUCED, judging.NOT_REPRODUCED, judging.NOT_ENOUGH))
    corpora = list(dict.fromkeys(entry.dataset for entry in entries))
    if len(corpora) == 1:
        title = study.datasets[corpora[0]].title
        place = f"the {title[4:]}" if title.startswith("The ") else title
        start = f"On {place} {yes} of the paper’s {len(entries)} conclusions {_are(yes)}"
    else:
        start = f"Of {len(entries)} verdicts on the paper’s conclusions, on {len(corpora)} corpora, {yes} {_are(yes)}"
    end = f"{no} {_are(no)} not, and {open_} cannot be decided with its runs."
    return f"{start} reproduced at this study’s scale, {end}"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _named_words(study: Study, entries: Sequence[claims.Entry]) -> str:
    """The conclusions that were decided: `Reproduced: "MoS beats Softmax". Not reproduced: ...`, as one sentence."""
    parts = []
    for verdict in (judging.REPRODUCED, judging.NOT_REPRODUCED):
        places: dict[str, list[str]] = {}
        for entry in entries:
            if entry.judgement.verdict == verdict:
                places.setdefault(entry.claim.statement.rstrip("."), []).append(study.datasets[entry.dataset].title)
        several = len({entry.dataset for entry in entries}) > 1
        named = [f"“{what}”" + (f" ({', '.join(where)})" if several else "") for what, where in places.items()]
        if named:
            more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
            parts.append(f"{verdict}: {'; '.join(named[:NAMED])}{more}")
    words = ". ".join(f"{part[0].upper()}{part[1:]}" for part in parts)
    return f"{words}." if words else ""


def _best_words(study: Study, found: Records) -> str:
    """Of every corpus the best model and its rank, beside the softmax's."""
    parts = []
    for name in study.datasets:
        scores, ranks = (means(study, found, name, metric) for metric in ("test_ppl", "rank_press"))
        if not scores:
            continue
        best, reference = min(scores, key=lambda model: scores[model].mean), baseline(study, name)
        words = f"{label(study, best)} is best ({_pair(scores, ranks, best)})"
        if reference and reference.model in scores and reference.model != best:
            words += f", {label(study, reference.model)} has {_pair(scores, ranks, reference.model)}"
        parts.append(words if len(study.datasets) == 1 else f"on {study.datasets[name].title} {words}")
    words = "; ".join(parts)
    return f"{words[0].upper()}{words[1:]}." if words else ""


def _pair(scores: Mapping[str, Measured], ranks: Mapping[str, Measured], model: str) -> str:
    words = f"test perplexity {scores[model].mean:.2f}"
    return f"{words}, Press rank {ranks[model].mean:.0f}" if model in ranks else words


# --- every corpus ---------------------------------------------------------------------------------------------------
def summary(found: Records) -> str:
    """How much of the study is there, in one sentence."""
    counts = found.counts()
    if not counts["planned"]:
        return "This study plans no training run."
    if not _finished(found):
        return f"No run has finished yet; {counts['planned']} are planned. The published numbers below stand alone."
    return f"{counts['ok']} of {counts['planned']} planned training runs finished and were measured."


def of_corpora(study: Study, found: Records) -> list[tuple[str, list[str]]]:
    """For every corpus with results its title and a few sentences."""
    sections = []
    for name, dataset in study.datasets.items():
        scores = means(study, found, name)
        if scores:
            words = [_perplexity_words(study, found, name, scores), _rank_words(study, found, name)]
            words += [_truth_words(study, found, name, scores)] if dataset.kind == "language" else []
            words += [_correlation_words(found, name)]
            sections.append((dataset.title, [sentence for sentence in words if sentence]))
    return sections


def means(study: Study, found: Records, dataset: str, metric: str = "test_ppl") -> dict[str, Measured]:
    """Mean of a metric for every model that has it, in the study's order.

    A run counts once, under the label it is trained under; runs that learned only frequencies do not count.
    """
    trained = {
        (run.dataset, run.model, run.seed) for run in study.runs if not run.duplicate_of
    } - found.unlearned.keys()
    rows = {}
    for model in study.labels:
        values = found.values(dataset, model, metric)
        mean = cells.mean_of(value for seed, value in values.items() if (dataset, model, seed) in trained)
        if mean:
            rows[model] = mean
    return rows


def baseline(study: Study, dataset: str) -> Run | None:
    """A run of the plain softmax on a dataset: what other heads are compared with."""
    return next((run for run in study.needed if run.dataset == dataset and run.head.name == "softmax"), None)


def _spread(score: Measured, digits: int = 2) -> str:
    spread = "" if score.sd is None else f" ± {score.sd:.{digits}f}"
    return f"{score.mean:.{digits}f}{spread} (n {score.n})"


def _perplexity_words(study: Study, found: Records, dataset: str, scores: Mapping[str, Measured]) -> str:
    best = min(scores, key=lambda model: scores[model].mean)
    words = f"{label(study, best)} has the lowest test perplexity, {_spread(scores[best])}"
    plain = baseline(study, dataset)
    if plain is None or plain.model not in scores or plain.model == best:
        return f"{words}."
    reference = plain.model
    samples = [found.values(dataset, model, "test_ppl").values() for model in (best, reference)]
    test = statistics.student_t(*samples)
    p = f"p {test.reason}" if test.p is None else f"Student’s p = {p_words(test.p)}"
    return f"{words}; {label(study, reference)} has {_spread(scores[reference])} ({p})."


def p_words(p: float) -> str:
    """A p-value in a sentence: 0.26, or 1.12e−4 where decimals would say nothing."""
    return f"{p:.2g}" if p >= MEANINGFUL_P else statistics.format_p(p).replace("-", "−")


def _rank_words(study: Study, found: Records, dataset: str) -> str:
    ranks = means(study, found, dataset, "rank_press")
    if not ranks:
        return ""
    low, high = (choose(ranks, key=lambda model: ranks[model].mean) for choose in (min, max))
    ends = [f"{ranks[model].mean:.0f} ({label(study, model)})" for model in (low, high)]
    words = f"Mean Press rank runs from {ends[0]} to {ends[1]}"
    plain = baseline(study, dataset)
    if plain is None or plain.model not in ranks:
        return f"{words}."
    limit = plain.body.embedding_size + 2
    largest = max(found.values(dataset, plain.model, "rank_press").values())
    holds = "stays within" if largest <= limit else "is above"
    return f"{words}; {label(study, plain.model)}, {largest:.0f} at most, {holds} its limit of d + 2 = {limit}."


def _truth_words(study: Study, found: Records, dataset: str, scores: Mapping[str, Measured]) -> str:
    bound, rank = (exact_value(found, dataset, metric) for metric in ("entropy_ppl", "rank_truth"))
    if bound is None:
        return ""
    best = min(scores.values(), key=lambda score: score.mean)
    words = f"No model can do better than {bound:.2f} on this text; the best is {best.mean / bound - 1:.0%} above it."
    ranks = means(study, found, dataset, "rank_press")
    if rank is None or not ranks:
        return words
    over = [label(study, model) for model, score in ranks.items() if score.mean >= rank]
    return f"{words} The law’s log-probabilities have rank {rank:.0f}; {_reach(over, len(ranks))} it."


def _reach(names: Sequence[str], total: int) -> str:
    """`MoS reaches`, `SS, GSS reach`, `24 of 32 models reach`."""
    if not names:
        return "no model reaches"
    if len(names) > NAMED:
        return f"{len(names)} of {total} models reach"
    return f"{', '.join(names)} {'reaches' if len(names) == 1 else 'reach'}"


def _correlation_words(found: Records, dataset: str) -> str:
    """Pearson's r of perplexity and rank over runs (Parthiban et al. 2021, Figure 2)."""
    trained = found.rows[(found.rows["dataset"] == dataset) & (found.rows["condition"] == "")]
    chosen = trained[trained["metric"].isin(["test_ppl", "rank_press"])]
    places = zip(chosen["dataset"], chosen["model"], chosen["seed"], strict=True)
    poor = np.array([place in found.unlearned for place in places], dtype=bool)
    pairs = chosen[~poor].pivot_table(index="run_id", columns="metric", values="value").dropna()
    if len(pairs.columns) < 2:
        return ""
    result = statistics.pearson(pairs["test_ppl"], pairs["rank_press"], np.random.default_rng(0))
    if result.r is None:
        return ""
    words = f"Over {result.n} runs the rank and the test perplexity correlate with r = {result.r:+.2f}."
    runs = chosen[poor]["run_id"].nunique()
    left_out = f" Left out: {runs} that learned only how frequent words are." if runs else ""
    return words.replace("-", "−") + left_out
