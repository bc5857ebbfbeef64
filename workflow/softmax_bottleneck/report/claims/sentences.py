"""The findings of a study, in sentences computed from its records and from the ledger of claims.

Three sentences come first; the sections below them say more for every corpus. No sentence claims what no number says.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from softmax_bottleneck.measuring import statistics
from softmax_bottleneck.records.evidence import Evidence
from softmax_bottleneck.records.metrics import ENTROPY_PPL, LAW_TEST_PPL, PRESS_RANK, RANK_TRUTH, TEST_PPL
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report import cells, numbers
from softmax_bottleneck.report.cells import Measured
from softmax_bottleneck.report.claims.engine import Entry
from softmax_bottleneck.report.claims.premises import CEILING
from softmax_bottleneck.report.claims.quantities import ALIKE
from softmax_bottleneck.report.claims.rules import NOT_REPRODUCED, REPRODUCED, VERDICTS
from softmax_bottleneck.report.claims.view import OWN_SOURCES, SYNTHETIC
from softmax_bottleneck.report.numbers import p_value, percent, spread
from softmax_bottleneck.report.source import Source, exact_value, label, same_setting
from softmax_bottleneck.study import Run, Study, load_dataset, load_experiment

NAMED = 4  # models in a sentence; more are counted
QUOTED = 2  # conclusions in a sentence; the tiles below it show all


# --- three sentences ------------------------------------------------------------------------------------------------
def in_short(study: Study, found: Records, entries: Sequence[Entry]) -> list[str]:
    """At most three sentences: how the conclusions came out, which ones, and the best model, on own texts first."""
    if not _finished(found):
        return []
    words = [_count_words(study, entries), _named_words(study, entries), _best_words(study, found)]
    words = words[::-1] if study.is_of_own_texts else words
    return [sentence for sentence in words if sentence]


def _finished(found: Records) -> bool:
    return not found.rows[found.rows["run_id"] != ""].empty


def _count_words(study: Study, entries: Sequence[Entry]) -> str:
    """`The papers' 58 conclusions on Penn Treebank, at this study's scale: 4 reproduced, 2 not reproduced, ...`."""
    papers = [entry for entry in entries if entry.claim.source not in OWN_SOURCES]
    own = [entry for entry in entries if entry.claim.source in OWN_SOURCES]
    corpora = list(dict.fromkeys(entry.dataset for entry in entries if entry.dataset != SYNTHETIC))
    words = []
    without = sum(entry.dataset == SYNTHETIC for entry in papers)
    if papers:
        what = f"papers’ {len(papers)} conclusions"
        if len(corpora) == 1:
            title = study.datasets[corpora[0]].title
            here = f"on {f'the {title[4:]}' if title.startswith('The ') else title}"
            what += f", {len(papers) - without} {here} and {without} without a corpus" if without else f" {here}"
        elif corpora:
            places = f"{len(corpora)} corpora{' and without one' * bool(without)}"
            what = f"{len(papers)} verdicts on the papers’ conclusions, on {places}"
        words.append(f"The {what}, at this study’s scale: {_counts(papers)}.")
    if own:
        words.append(f"This workflow’s own {len(own)}, on fits to known laws: {_counts(own)}.")
    return " ".join(words)


def _counts(entries: Sequence[Entry]) -> str:
    """`4 reproduced, 11 undecided`: the verdicts that occur."""
    counts = Counter(entry.verdict for entry in entries)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])


def _named_words(study: Study, entries: Sequence[Entry]) -> str:
    """The conclusions that were decided: `Reproduced: "MoS beats Softmax". Not reproduced: ...`, as one sentence."""
    parts = []
    for verdict in (REPRODUCED, NOT_REPRODUCED):
        places: dict[str, list[str]] = {}
        for entry in entries:
            if entry.verdict == verdict and entry.claim.source not in OWN_SOURCES:
                own = places.setdefault(entry.claim.statement.rstrip("."), [])
                own += [] if entry.dataset == SYNTHETIC else [study.datasets[entry.dataset].title]
        several = len({entry.dataset for entry in entries} - {SYNTHETIC}) > 1
        named = [f"“{what}”" + f" ({' and '.join(where)})" * bool(several and where) for what, where in places.items()]
        if named:
            more = f" and {len(named) - QUOTED} more" if len(named) > QUOTED else ""
            parts.append(f"{verdict}: {'; '.join(named[:QUOTED])}{more}")
    words = ". ".join(f"{part[0].upper()}{part[1:]}" for part in parts)
    return f"{words}." if words else ""


def _best_words(study: Study, found: Records) -> str:
    """Of every corpus the lowest mean perplexity beside the softmax's; whether they differ, the ledger says."""
    parts = []
    for name in study.datasets:
        scores, ranks = (means(study, found, name, metric) for metric in (TEST_PPL, PRESS_RANK))
        if not scores:
            continue
        best, reference = best_of(scores), baseline(study, name)
        n = scores[best].n
        lowest = f"lowest mean test perplexity over {n} runs" if n > 1 else "lowest test perplexity of a single run"
        words = f"the {lowest} is that of {label(study, best)}, {_pair(scores, ranks, best)}"
        words += _size_words(study, found, name, best)
        if reference and reference.model in scores and reference.model != best:
            words += f"; {label(study, reference.model)} has {_pair(scores, ranks, reference.model)}"
        parts.append(words if len(study.datasets) == 1 else f"on {study.datasets[name].title} {words}")
    words = "; ".join(parts)
    return f"{words[0].upper()}{words[1:]}." if words else ""


def best_of(scores: Mapping[str, Measured]) -> str:
    """The model of the lowest mean among those with the most runs: the lowest of many single runs is luck."""
    n = max(score.n for score in scores.values())
    return min((model for model in scores if scores[model].n == n), key=lambda model: scores[model].mean)


def _size_words(study: Study, found: Records, dataset: str, model: str) -> str:
    """`, with 1.2 times the parameters of Softmax`, of a model that is larger."""
    sizes, plain = means(study, found, dataset, "parameters"), baseline(study, dataset)
    if plain is None or not {model, plain.model} <= sizes.keys():
        return ""
    ratio = sizes[model].mean / sizes[plain.model].mean
    return f", with {ratio:.2g} times the parameters of {label(study, plain.model)}" if ratio > 1 + ALIKE else ""


def _pair(scores: Mapping[str, Measured], ranks: Mapping[str, Measured], model: str) -> str:
    score = scores[model]
    words = f"{score.mean:.2f}" + (f" ± {score.sd:.2f}" if score.sd is not None else "")
    return f"{words} (Press rank {ranks[model].mean:.0f})" if model in ranks else words


# --- every corpus ---------------------------------------------------------------------------------------------------
def summary(found: Records) -> str:
    """How much of the study is there, in one sentence."""
    counts = found.counts()
    if not counts["planned"]:
        return "This study plans no training run."
    if not _finished(found):
        return f"No run has finished yet; {counts['planned']} are planned. The published numbers below stand alone."
    return f"{counts['ok']} of {counts['planned']} planned training runs finished and were measured."


def kept(study: Study, found: Records) -> str:
    """What was trained elsewhere on whole corpora: `On all of Penn Treebank 6 runs are kept, made in 4.8 hours...`."""
    runs = [] if study.is_of_own_texts else found.evidence
    parts = []
    for name in dict.fromkeys(one.run.dataset for one in runs):
        own = [one for one in runs if one.run.dataset == name]
        hours = sum(one.values.get(("wall_s", ""), 0.0) for one in own) / 3600
        title = load_dataset(name, study.file.resolve().parent).title
        words = f"on all of {title} {len(own)} run{'s are' if len(own) > 1 else ' is'} kept, made in {hours:.1f} hours"
        words += f": test perplexity {_ends(own, TEST_PPL, 2)}, Press rank {_ends(own, PRESS_RANK, 0)}"
        parts.append(words + _beside_published(study, found, own))
    words = "; ".join(parts)
    return f"{words[0].upper()}{words[1:]}." if words else ""


def _beside_published(study: Study, found: Records, runs: Sequence[Evidence]) -> str:
    """` (at the published setting MoS 55.02, published 54.91)`; empty where no run has both."""
    source = Source.of(study, load_experiment("published-size", study.file.resolve().parent), found)
    words = []
    for one in runs:
        corpus, own = one.run.dataset, one.values.get((TEST_PPL, ""))
        if own is not None and source.is_published(corpus) and same_setting(one.run, source.paper):
            printed = source.find_published(source.corpus(corpus), one.run.model, TEST_PPL)
            if printed is not None:
                words.append(f"{source.kept_labels[one.run.model]} {own:.2f}, published {printed.value}")
    return f" (at the published setting {'; '.join(words)})" if words else ""


def _ends(runs: Sequence[Evidence], metric: str, digits: int) -> str:
    """`66 to 6,998`: the least and the largest of a number that is known."""
    values = [one.values[metric, ""] for one in runs if (metric, "") in one.values]
    ends = dict.fromkeys((min(values), max(values))) if values else {}
    return " to ".join(f"{value:,.{digits}f}" for value in ends) or "not measured"


def of_corpora(study: Study, found: Records) -> list[tuple[str, list[str]]]:
    """For every corpus with results its title and a few sentences."""
    sections = []
    for name, dataset in study.datasets.items():
        scores = means(study, found, name)
        if scores:
            words = [_perplexity_words(study, found, name, scores), _rank_words(study, found, name)]
            words += [_truth_words(study, found, name, scores)]
            sections.append((dataset.title, [sentence for sentence in words if sentence]))
    return sections


def means(study: Study, found: Records, dataset: str, metric: str = TEST_PPL) -> dict[str, Measured]:
    """Mean of a metric for every model that has it, in the study's order.

    A run counts once, under the label it is trained under; runs that learned no more than frequencies do not count.
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


def _perplexity_words(study: Study, found: Records, dataset: str, scores: Mapping[str, Measured]) -> str:
    best = best_of(scores)
    words = f"{label(study, best)} has the lowest test perplexity, {spread(scores[best].mean, scores[best].sd)}"
    words += _size_words(study, found, dataset, best)
    if any(score.n < scores[best].n for score in scores.values()):
        words = f"Of the models with {scores[best].n} runs {words}"
    plain = baseline(study, dataset)
    if plain is None or plain.model not in scores or plain.model == best:
        return f"{words} (n = {scores[best].n})."
    counts = numbers.counts([scores[model].n for model in (best, plain.model)])
    test = statistics.student_t(*(found.values(dataset, m, TEST_PPL).values() for m in (best, plain.model)))
    others = sum(score.n == scores[best].n for model, score in scores.items() if model != plain.model)
    p = "no test" if test.p is None else f"Student’s p = {p_value(min(1.0, test.p * others))}"  # Bonferroni
    p += f", corrected for the choice among {others} models" if test.p is not None and others > 1 else ""
    reference = spread(scores[plain.model].mean, scores[plain.model].sd)
    return f"{words}; {label(study, plain.model)} has {reference} ({p}, {counts})."


def _rank_words(study: Study, found: Records, dataset: str) -> str:
    ranks = means(study, found, dataset, PRESS_RANK)
    if not ranks:
        return ""
    low, high = (choose(ranks, key=lambda model: ranks[model].mean) for choose in (min, max))
    least, most = (f"{ranks[model].mean:.0f}" for model in (low, high))
    words = f"Mean Press ranks range from {least} ({label(study, low)}) to {most} ({label(study, high)})"
    if least == most:
        words = f"The mean Press rank of {'every model' if len(ranks) > 1 else label(study, low)} is {least}"
    plain = baseline(study, dataset)
    if plain is None or plain.model not in ranks:
        return f"{words}."
    limit = plain.body.embedding_size + 2
    largest = max(found.values(dataset, plain.model, PRESS_RANK).values())
    holds = "stays within" if largest <= limit else "is above"
    return f"{words}; {label(study, plain.model)}, {largest:.0f} at most, {holds} its limit of d + 2 = {limit}."


def _truth_words(study: Study, found: Records, dataset: str, scores: Mapping[str, Measured]) -> str:
    """The law's perplexity on this very text, and the one that its contexts make to be expected: two numbers."""
    metrics = (ENTROPY_PPL, RANK_TRUTH, LAW_TEST_PPL)
    expected, rank, scored = (exact_value(found, dataset, metric) for metric in metrics)
    if expected is None:
        return ""
    best = best_of(scores)
    words = f"The law’s expected perplexity in the contexts of this text is {expected:.2f}"
    if scored is not None:
        words += f"; on the text itself it scores {scored:.2f}"
    above = scores[best].mean / (scored or expected) - 1
    side = "above" if above >= 0 else "below"
    words += f". {label(study, best)}, the best model, is {percent(abs(above))} {side} that."
    ranks = means(study, found, dataset, PRESS_RANK)
    if rank is None or not ranks:
        return words
    return f"{words} Its log-probabilities have rank {rank:.0f}; {_exceed_words(study, found, dataset, ranks, rank)}."


def _exceed_words(study: Study, found: Records, dataset: str, ranks: Mapping[str, Measured], rank: float) -> str:
    """`MoS exceeds it`, `24 of 32 models exceed it; most saturate at the vocabulary`."""
    over = [model for model, score in ranks.items() if score.mean > rank]
    if not over:
        return "no model exceeds it"
    several = f"{len(over)} of {len(ranks)} models"
    names = several if len(over) > NAMED else ", ".join(label(study, model) for model in over)
    ceiling = exact_value(found, dataset, "rank_columns") or math.inf
    saturated = sum(ranks[model].mean > CEILING * ceiling for model in over)
    more = "; most saturate at the vocabulary" if 2 * saturated > len(over) > 1 else ""
    return f"{names} {'exceeds' if len(over) == 1 else 'exceed'} it{more}"
