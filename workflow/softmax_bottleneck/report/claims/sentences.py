"""The findings at the top of a report, in sentences computed from the records."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from softmax_bottleneck.measuring import statistics
from softmax_bottleneck.records.metrics import ENTROPY_PPL, LAW_TEST_PPL, PRESS_RANK, RANK_TRUTH, TEST_PPL
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report import cells, numbers
from softmax_bottleneck.report.cells import Measured
from softmax_bottleneck.report.claims.rules import SAME_SIZE
from softmax_bottleneck.report.numbers import p_value, percent, spread
from softmax_bottleneck.report.source import exact_value, label
from softmax_bottleneck.study import Run, Study, load_dataset


def in_short(study: Study, records: Records) -> str:
    """Return the best model of each corpus, and how far it is from the true distribution; empty before any run."""
    if (records.rows["run_id"] == "").all():
        return ""
    corpora = [corpus for name in study.datasets if (corpus := Corpus(study, records, name)).scores]
    return " ".join(text for one in corpora for text in (one.best_sentence(), one.truth_sentence()) if text)


def summary(records: Records) -> str:
    """Return how much of the study has finished, in one sentence."""
    states = records.counts()
    if not states["planned"]:
        return "This study plans no training run."
    if (records.rows["run_id"] == "").all():
        return f"No run has finished yet; {states['planned']} are planned. The published numbers below stand alone."
    return f"{states['ok']} of {states['planned']} planned training runs finished and were measured."


def archived_runs(study: Study, records: Records) -> str:
    """Return what the archived runs on whole corpora reach; nothing for own texts."""
    archived = [run for run in records.evidence if (TEST_PPL, "") in run.values and not study.is_of_own_texts]
    parts = []
    for corpus in dict.fromkeys(run.run.dataset for run in archived):
        runs = [run for run in archived if run.run.dataset == corpus]
        hours = sum(run.values.get(("wall_s", ""), 0.0) for run in runs) / 3600
        ppls = [run.values[TEST_PPL, ""] for run in runs]
        title = load_dataset(corpus, study.file.resolve().parent).title
        ends = " to ".join(f"{ppl:.2f}" for ppl in sorted({min(ppls), max(ppls)}))
        parts.append(f"Archived runs on all of {title}: {len(runs)} ({hours:.1f} hours), test perplexity {ends}.")
    return " ".join(parts)


def means(study: Study, records: Records, dataset: str, metric: str = TEST_PPL) -> dict[str, Measured]:
    """Return the mean of a metric for every model that has it, in the study's order.

    A run counts once, under the label it is trained under; runs no better than a unigram model do not count.
    """
    runs = {(run.dataset, run.model, run.seed) for run in study.runs if not run.duplicate_of} - records.unlearned.keys()
    rows = {}
    for model in study.labels:
        values = records.values(dataset, model, metric)
        mean = cells.mean_of(value for seed, value in values.items() if (dataset, model, seed) in runs)
        if mean:
            rows[model] = mean
    return rows


@dataclass(frozen=True)
class Corpus:
    """The results of a study on one corpus."""

    study: Study
    records: Records
    name: str

    @cached_property
    def scores(self) -> dict[str, Measured]:
        """Mean test perplexities by model."""
        return means(self.study, self.records, self.name)

    @cached_property
    def softmax(self) -> Run | None:
        """A run of the plain softmax, with which other heads are compared."""
        runs = [run for run in self.study.needed if run.dataset == self.name and run.head.name == "softmax"]
        return runs[0] if runs and runs[0].model in self.scores else None

    @cached_property
    def best(self) -> str:
        """The model with the lowest mean among those with the most runs: the lowest of many single runs is luck."""
        n = max(score.n for score in self.scores.values())
        return min((m for m in self.scores if self.scores[m].n == n), key=lambda model: self.scores[model].mean)

    def best_sentence(self) -> str:
        """Return the lowest mean perplexity, tested against that of the softmax."""
        n = self.scores[self.best].n
        place = f"On {self.study.datasets[self.name].title}, " if len(self.study.datasets) > 1 else ""
        text = f"{place}{self._named(self.best)} has the lowest test perplexity{f' over {n} runs' if n > 1 else ''}: "
        text += self._ppl(self.best)
        if self.softmax is None or self.softmax.model == self.best:
            return f"{text}."
        model, sizes = self.softmax.model, means(self.study, self.records, self.name, "parameters")
        ratio = sizes[self.best].mean / sizes[model].mean if {self.best, model} <= sizes.keys() else 1.0
        larger = f", with {ratio:.2g} times the parameters of {self._named(model)}" * (ratio > 1 + SAME_SIZE)
        sides = (self.records.values(self.name, name, TEST_PPL).values() for name in (self.best, model))
        p = statistics.student_t(*sides).p
        others = sum(score.n == n for name, score in self.scores.items() if name != model)
        test = "no test" if p is None else f"Student’s p = {p_value(min(1.0, p * others))}"  # Bonferroni
        test += f", corrected for the choice among {others} models" if p is not None and others > 1 else ""
        sizes_n = numbers.counts([n, self.scores[model].n])
        return f"{text}{larger}; {self._named(model)} has {self._ppl(model)} ({test}, {sizes_n})."

    def _named(self, model: str) -> str:
        return label(self.study, model)

    def _ppl(self, model: str) -> str:
        return spread(self.scores[model].mean, self.scores[model].sd)

    def truth_sentence(self) -> str:
        """Return the perplexity of the true distribution: expected in the text's contexts, and on the text itself."""
        metrics = (ENTROPY_PPL, RANK_TRUTH, LAW_TEST_PPL)
        expected, rank, scored = (exact_value(self.records, self.name, metric) for metric in metrics)
        if expected is None:
            return ""
        text = f"The true distribution’s expected perplexity in the contexts of this text is {expected:.2f}"
        text += f"; on the text itself it is {scored:.2f}" if scored is not None else ""
        above = self.scores[self.best].mean / (scored or expected) - 1
        side = "above" if above >= 0 else "below"
        text += f". {self._named(self.best)}, the best model, is {percent(abs(above))} {side} that."
        if rank is None:
            return text
        ranks = means(self.study, self.records, self.name, PRESS_RANK).values()
        over = sum(mean.mean > rank for mean in ranks)
        return f"{text} The true log-probabilities have rank {rank:.0f}; {over} of {len(ranks)} models exceed it."
