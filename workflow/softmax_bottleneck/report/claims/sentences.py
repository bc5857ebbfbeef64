"""The findings of a study, in sentences computed from its records and from the ledger of claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from softmax_bottleneck.measuring import statistics
from softmax_bottleneck.records.metrics import ENTROPY_PPL, LAW_TEST_PPL, PRESS_RANK, RANK_TRUTH, TEST_PPL
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report import cells, numbers
from softmax_bottleneck.report.cells import Measured
from softmax_bottleneck.report.claims import counts
from softmax_bottleneck.report.claims.data import OWN_SOURCES, SYNTHETIC
from softmax_bottleneck.report.claims.rules import NOT_REPRODUCED, REPRODUCED, SAME_SIZE
from softmax_bottleneck.report.claims.verdict import Entry
from softmax_bottleneck.report.numbers import p_value, percent, spread
from softmax_bottleneck.report.source import Source, exact_value, label, same_setting
from softmax_bottleneck.study import Run, Study, load_dataset, load_experiment

QUOTED = 2  # conclusions in a sentence; the tiles below it show all


# --- at most three sentences ----------------------------------------------------------------------------------------
def in_short(study: Study, found: Records, entries: Sequence[Entry]) -> list[str]:
    """Return the counts of verdicts, the decided conclusions and the best model; own texts start with the model."""
    if not _finished(found):
        return []
    corpora = [Corpus(study, found, name) for name in study.datasets]
    best = [corpus.best_sentence() for corpus in corpora if corpus.scores]
    sentences = [_counted(study, entries), _decided(study, entries), _sentence("; ".join(best))]
    return [text for text in (sentences[::-1] if study.is_of_own_texts else sentences) if text]


def _finished(found: Records) -> bool:
    return bool((found.rows["run_id"] != "").any())


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _counted(study: Study, entries: Sequence[Entry]) -> str:
    """Return how many conclusions of the papers, and of this workflow, have each verdict."""

    def tally(chosen: Sequence[Entry]) -> str:
        return ", ".join(f"{number} {verdict}" for verdict, number in counts(chosen).items() if number)

    papers = [entry for entry in entries if entry.claim.source not in OWN_SOURCES]
    own = [entry for entry in entries if entry.claim.source in OWN_SOURCES]
    corpora = list(dict.fromkeys(entry.dataset for entry in entries if entry.dataset != SYNTHETIC))
    without = sum(entry.dataset == SYNTHETIC for entry in papers)
    what = f"papers’ {len(papers)} conclusions"
    if len(corpora) == 1:
        title = study.datasets[corpora[0]].title
        place = f"on {f'the {title[4:]}' if title.startswith('The ') else title}"
        what += f", {len(papers) - without} {place} and {without} without a corpus" if without else f" {place}"
    elif corpora:
        places = f"{len(corpora)} corpora{' and without one' * bool(without)}"
        what = f"{len(papers)} verdicts on the papers’ conclusions, on {places}"
    parts = [f"The {what}, at this study’s scale: {tally(papers)}."] * bool(papers)
    parts += [f"This workflow’s own {len(own)}, on fits to known laws: {tally(own)}."] * bool(own)
    return " ".join(parts)


def _decided(study: Study, entries: Sequence[Entry]) -> str:
    """Return the first conclusions that are reproduced, and not reproduced, with their corpora if there are several."""
    several = len({entry.dataset for entry in entries} - {SYNTHETIC}) > 1
    parts = []
    for verdict in (REPRODUCED, NOT_REPRODUCED):
        places: dict[str, list[str]] = {}
        for entry in entries:
            if entry.verdict == verdict and entry.claim.source not in OWN_SOURCES:
                titles = places.setdefault(entry.claim.statement.rstrip("."), [])
                titles += [] if entry.dataset == SYNTHETIC else [study.datasets[entry.dataset].title]
        quoted = [f"“{what}”" + f" ({' and '.join(where)})" * bool(several and where) for what, where in places.items()]
        if quoted:
            more = f" and {len(quoted) - QUOTED} more" if len(quoted) > QUOTED else ""
            parts.append(_sentence(f"{verdict}: {'; '.join(quoted[:QUOTED])}{more}"))
    return " ".join(parts)


# --- whole studies --------------------------------------------------------------------------------------------------
def summary(found: Records) -> str:
    """Return how much of the study has finished, in one sentence."""
    states = found.counts()
    if not states["planned"]:
        return "This study plans no training run."
    if not _finished(found):
        return f"No run has finished yet; {states['planned']} are planned. The published numbers below stand alone."
    return f"{states['ok']} of {states['planned']} planned training runs finished and were measured."


def kept(study: Study, found: Records) -> str:
    """Return what the archived runs on whole corpora reach, beside the published numbers at the same setting."""
    archived = [] if study.is_of_own_texts else found.evidence
    folder = study.file.resolve().parent
    parts = []
    for corpus in dict.fromkeys(one.run.dataset for one in archived):
        runs = [one for one in archived if one.run.dataset == corpus]
        hours = sum(one.values.get(("wall_s", ""), 0.0) for one in runs) / 3600
        text = f"{len(runs)} archived run{'s' * (len(runs) > 1)} on all of {load_dataset(corpus, folder).title}"
        for metric, name, digits in ((TEST_PPL, "test perplexity", 2), (PRESS_RANK, "Press rank", 0)):
            values = [one.values[metric, ""] for one in runs if (metric, "") in one.values]
            ends = dict.fromkeys((min(values), max(values))) if values else {}
            known = " to ".join(f"{value:,.{digits}f}" for value in ends) or "not measured"
            text += f"{',' if metric == PRESS_RANK else f' ({hours:.1f} hours):'} {name} {known}"
        source = Source.of(study, load_experiment("published-size", folder), found)
        pairs = []
        for one in runs:
            own = one.values.get((TEST_PPL, ""))
            if own is not None and source.is_published(corpus) and same_setting(one.run, source.paper):
                printed = source.find_published(source.corpus(corpus), one.run.model, TEST_PPL)
                if printed is not None:
                    pairs.append(f"{source.kept_labels[one.run.model]} {own:.2f}, published {printed.value}")
        parts.append(text + (f" (at the published setting {'; '.join(pairs)})" if pairs else ""))
    return _sentence("; ".join(parts))


def of_corpora(study: Study, found: Records) -> list[tuple[str, list[str]]]:
    """Return the title of every corpus with results, and a few sentences about it."""
    corpora = [Corpus(study, found, name) for name in study.datasets]
    return [(study.datasets[corpus.name].title, corpus.sentences()) for corpus in corpora if corpus.scores]


# --- one corpus -----------------------------------------------------------------------------------------------------
def means(study: Study, found: Records, dataset: str, metric: str = TEST_PPL) -> dict[str, Measured]:
    """Return the mean of a metric for every model that has it, in the study's order.

    A run counts once, under the label it is trained under; runs no better than a unigram model do not count.
    """
    runs = {(run.dataset, run.model, run.seed) for run in study.runs if not run.duplicate_of} - found.unlearned.keys()
    rows = {}
    for model in study.labels:
        values = found.values(dataset, model, metric)
        mean = cells.mean_of(value for seed, value in values.items() if (dataset, model, seed) in runs)
        if mean:
            rows[model] = mean
    return rows


@dataclass(frozen=True)
class Corpus:
    """The results of a study on one corpus."""

    study: Study
    found: Records
    name: str

    @cached_property
    def scores(self) -> Mapping[str, Measured]:
        """Mean test perplexities by model."""
        return means(self.study, self.found, self.name)

    @cached_property
    def ranks(self) -> Mapping[str, Measured]:
        """Mean Press ranks by model."""
        return means(self.study, self.found, self.name, PRESS_RANK)

    @cached_property
    def softmax(self) -> Run | None:
        """A run of the plain softmax, with which other heads are compared."""
        needed = self.study.needed
        return next((run for run in needed if run.dataset == self.name and run.head.name == "softmax"), None)

    @cached_property
    def best(self) -> str:
        """The model with the lowest mean among those with the most runs: the lowest of many single runs is luck."""
        n = max(score.n for score in self.scores.values())
        return min((m for m in self.scores if self.scores[m].n == n), key=lambda model: self.scores[model].mean)

    def label(self, model: str) -> str:
        """Return a model's name in the study."""
        return label(self.study, model)

    def best_sentence(self) -> str:
        """Return the lowest mean perplexity beside that of the softmax."""
        n, softmax = self.scores[self.best].n, self.softmax
        lowest = f"lowest mean test perplexity over {n} runs" if n > 1 else "lowest test perplexity of a single run"
        place = f"on {self.study.datasets[self.name].title} " if len(self.study.datasets) > 1 else ""
        text = f"{place}the {lowest} is that of {self.label(self.best)}, {self._pair(self.best)}{self._size()}"
        if softmax and softmax.model in self.scores and softmax.model != self.best:
            text += f"; {self.label(softmax.model)} has {self._pair(softmax.model)}"
        return text

    def _pair(self, model: str) -> str:
        """Return `57.08 ± 0.10 (Press rank 400)`."""
        text = spread(self.scores[model].mean, self.scores[model].sd)
        return f"{text} (Press rank {self.ranks[model].mean:.0f})" if model in self.ranks else text

    def _size(self) -> str:
        """Return `, with 1.2 times the parameters of Softmax` if the best model is larger."""
        sizes = means(self.study, self.found, self.name, "parameters")
        if self.softmax is None or not {self.best, self.softmax.model} <= sizes.keys():
            return ""
        ratio = sizes[self.best].mean / sizes[self.softmax.model].mean
        return f", with {ratio:.2g} times the parameters of {self.label(self.softmax.model)}" * (ratio > 1 + SAME_SIZE)

    def sentences(self) -> list[str]:
        """Return sentences on perplexity, on ranks, and on the true distribution, if they are known."""
        return [text for text in (self._perplexity(), self._rank_range(), self._truth()) if text]

    def _perplexity(self) -> str:
        best, softmax = self.scores[self.best], self.softmax
        text = f"{self.label(self.best)} has the lowest test perplexity, {spread(best.mean, best.sd)}{self._size()}"
        if any(score.n < best.n for score in self.scores.values()):
            text = f"Of the models with {best.n} runs {text}"
        if softmax is None or softmax.model not in self.scores or softmax.model == self.best:
            return f"{text} (n = {best.n})."
        plain = self.scores[softmax.model]
        runs = (self.found.values(self.name, model, TEST_PPL).values() for model in (self.best, softmax.model))
        test = statistics.student_t(*runs)
        others = sum(score.n == best.n for model, score in self.scores.items() if model != softmax.model)
        p = "no test" if test.p is None else f"Student’s p = {p_value(min(1.0, test.p * others))}"  # Bonferroni
        p += f", corrected for the choice among {others} models" if test.p is not None and others > 1 else ""
        reference = f"{self.label(softmax.model)} has {spread(plain.mean, plain.sd)}"
        return f"{text}; {reference} ({p}, {numbers.counts([best.n, plain.n])})."

    def _rank_range(self) -> str:
        if not self.ranks:
            return ""
        low, high = (choose(self.ranks, key=lambda model: self.ranks[model].mean) for choose in (min, max))
        least, most = (f"{self.ranks[model].mean:.0f} ({self.label(model)})" for model in (low, high))
        text = f"The lowest mean Press rank is {least}, the highest {most}"
        if self.softmax is None or self.softmax.model not in self.ranks:
            return f"{text}."
        limit = self.softmax.body.embedding_size + 2
        largest = max(self.found.values(self.name, self.softmax.model, PRESS_RANK).values())
        holds = "stays within" if largest <= limit else "is above"
        return f"{text}; {self.label(self.softmax.model)}, {largest:.0f} at most, {holds} its limit of d + 2 = {limit}."

    def _truth(self) -> str:
        """Return the perplexity of the true distribution: expected in the text's contexts, and on the text itself."""
        metrics = (ENTROPY_PPL, RANK_TRUTH, LAW_TEST_PPL)
        expected, rank, scored = (exact_value(self.found, self.name, metric) for metric in metrics)
        if expected is None:
            return ""
        text = f"The true distribution’s expected perplexity in the contexts of this text is {expected:.2f}"
        text += f"; on the text itself it scores {scored:.2f}" if scored is not None else ""
        above = self.scores[self.best].mean / (scored or expected) - 1
        side = "above" if above >= 0 else "below"
        text += f". {self.label(self.best)}, the best model, is {percent(abs(above))} {side} that."
        if rank is None or not self.ranks:
            return text
        over = sum(score.mean > rank for score in self.ranks.values())
        return f"{text} Its log-probabilities have rank {rank:.0f}; {over} of {len(self.ranks)} models exceed it."
