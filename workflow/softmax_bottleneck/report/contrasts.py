"""Contrasts of two heads in one setting, from all archived runs (`report.samples`), and those that studies named."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from softmax_bottleneck.heads.registry import declarations
from softmax_bottleneck.records.metrics import PRESS_RANK, VALID_PPL
from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.archive import FinishedStudy, machine
from softmax_bottleneck.report.samples import WIDTH, Model, Sample, Setting, corpus_of, model_of, pick, settings_of
from softmax_bottleneck.statistics.intervals import ALPHA, INF, Interval, student, welch_p
from softmax_bottleneck.statistics.pooled import holm, share_of_gain
from softmax_bottleneck.study import Run

BASELINE = {"name": "softmax"}  # the head that all others are compared with
EQUAL_SIZE = 0.01  # relative difference of parameters; chosen after the runs, and the aim of rank-or-mixture.yaml
EQUAL_TIME = 0.05  # relative difference of seconds per epoch
TIMED = 3  # runs of each side on a machine that a ratio of times needs; chosen after the runs


# --- the change from one head to another ---------------------------------------------------------------------------
def difference(model: Iterable[float], baseline: Iterable[float]) -> Interval:
    """Return the difference of two means of log perplexities in nats, with Welch's 95 % interval."""
    return student([np.array([*side])[:, None] for side in (model, baseline)], ALPHA / 2)


def in_percent(nats: Interval) -> Interval:
    """Return a difference of log perplexities as a change of perplexity in percent."""
    value, low, high = (INF if end >= 700 else 100 * math.expm1(end) for end in (nats.value, nats.low, nats.high))
    return replace(nats, value=value, low=low, high=high)


@dataclass(frozen=True, eq=False)
class Contrast:
    """The change from a baseline to a model, each at its own best tried learning rate."""

    label: str
    model: Sample
    baseline: Sample

    @cached_property
    def interval(self) -> Interval:
        """The difference of mean log test perplexities in nats, with Welch's interval; infinite if a run diverged."""
        interval = difference(self.model.log_ppl.values(), self.baseline.log_ppl.values())
        return replace(interval, low=-INF, high=INF) if self.n_diverged else interval

    @property
    def n_diverged(self) -> int:
        """The number of diverged seeds on both sides."""
        return self.model.n_diverged + self.baseline.n_diverged

    @cached_property
    def p(self) -> float:
        """The p-value of Welch's test, before any correction; nan with too few seeds, or if a run diverged."""
        sides = ([*side.log_ppl.values()] for side in (self.model, self.baseline))
        return math.nan if self.n_diverged else welch_p(*sides)

    @property
    def head(self) -> str:
        """The label of the head that is compared with another."""
        return self.label.partition(" against")[0].rstrip(",")

    @property
    def setting(self) -> Setting:
        """The setting of the model."""
        return self.model.model.setting

    @property
    def change(self) -> float:
        """The change of test perplexity in percent."""
        return in_percent(self.interval).value

    @property
    def ends(self) -> tuple[float, float] | None:
        """The ends of the interval in percent, or None with too few seeds or a diverged run."""
        percent = in_percent(self.interval)
        return (percent.low, percent.high) if math.isfinite(percent.high) else None

    @property
    def sign(self) -> int:
        """-1 or 1 if the whole interval lies below or above 0, else 0."""
        low, high = self.ends or (0.0, 0.0)
        return int(low > 0) - int(high < 0)

    @property
    def size(self) -> float:
        """The number of parameters relative to the baseline."""
        return self.model.mean("parameters") / self.baseline.mean("parameters")

    @property
    def change_text(self) -> str:
        """The change without its interval, such as `−4.5 %`."""
        return f"{numbers.number(self.change, 1, signed=True)}\u00a0%"

    @property
    def is_equal_size(self) -> bool:
        """True if the numbers of parameters differ by at most EQUAL_SIZE."""
        return abs(self.size - 1) <= EQUAL_SIZE

    def times(self, least: int = TIMED) -> dict[str, float]:
        """Return {machine: seconds per epoch relative to the baseline} where both sides have at least `least` runs.

        A ratio is of the lowest seconds of both sides, because a busy machine only slows a run.
        """
        model, base = self.model.seconds, self.baseline.seconds
        timed = [name for name in sorted(model.keys() & base.keys()) if min(len(model[name]), len(base[name])) >= least]
        return {name: model[name][0] / base[name][0] for name in timed}

    @property
    def time(self) -> str:
        """The range of `times` over processors as text, or every machine if one is a GPU; a dash without any."""
        if not any("NVIDIA" in name for name in self.times(1)):
            return time_range([self])
        by_label: dict[str, list[float]] = {}
        for name, ratio in self.times(1).items():
            few = "" if name in self.times() else f" (fewer than {TIMED} runs)"
            by_label.setdefault(machine(name.rpartition(", ")[0]) + few, []).append(ratio)
        return ", ".join(f"{label} {numbers.span(values)}" for label, values in by_label.items())

    @property
    def rank(self) -> float:
        """The Press rank relative to the baseline."""
        return self.model.mean(PRESS_RANK) / self.baseline.mean(PRESS_RANK)

    @property
    def is_fair(self) -> bool:
        """True if a verdict on the head can follow: sizes are equal, and the learning rates tried are the same."""
        return self.is_equal_size and self.has_equal_search

    @property
    def has_equal_search(self) -> bool:
        """True if both sides were searched up to a bracketed rate, or the same learning rates were tried for both.

        Otherwise one side may only be tuned better.
        """
        is_searched = bool(self.model.searched and self.baseline.searched)
        return (is_searched and self.is_tuned) or self.model.choice.tried == self.baseline.choice.tried

    @property
    def is_tuned(self) -> bool:
        """True if both learning rates lie inside their grids."""
        return self.model.choice.is_interior and self.baseline.choice.is_interior

    @property
    def rates(self) -> str:
        """The learning rates as text, such as `best of {20}: 20 and {10, 20}: 10, not bracketed`."""
        choices = (self.model.choice, self.baseline.choice)
        shown = [f"{{{', '.join(f'{rate:g}' for rate in choice.tried)}}}: {choice.value:g}" for choice in choices]
        return f"best of {' and '.join(shown)}, {self.bracketed}"

    @property
    def bracketed(self) -> str:
        """`bracketed` or `not bracketed`, by `is_tuned`."""
        return "bracketed" if self.is_tuned else "not bracketed"

    @property
    def n(self) -> tuple[int, int]:
        """The numbers of compared seeds of model and baseline."""
        return len(self.model.log_ppl), len(self.baseline.log_ppl)

    @property
    def value_text(self) -> str:
        """The change with its interval, such as `−4.5 % (95 % interval −6.8 to −2.0)`."""
        value = self.change_text
        return value if self.ends is None else f"{value} (95\u00a0% interval {numbers.interval(*self.ends, 1)})"

    @property
    def short_text(self) -> str:
        """The change with its interval, such as `−4.5 % (−6.8 to −2.0)`."""
        return self.change_text if self.ends is None else f"{self.change_text} ({numbers.interval(*self.ends, 1)})"

    @property
    def text(self) -> str:
        """The contrast as text with setting, numbers of seeds, costs (a time if known) and learning rates."""
        diverged = f", {self.n_diverged} diverged" if self.n_diverged else ""
        value = f"{self.value_text}, {numbers.counts(self.n)}{diverged}"
        time = "" if self.time == numbers.DASH else f", {self.time} × seconds per epoch"
        costs = f"{numbers.number(self.size)} × parameters{time}"
        return f"{self.label}; {self.setting.label}: {value}; {costs}; {self.rates}"

    @property
    def studies(self) -> list[str]:
        """The archives with runs of either side at its chosen learning rate; of archives that share a run, one."""
        sides = (self.model, self.baseline)
        return sorted({run.study for side in sides for run in side.runs if run.rate == side.choice.value})


@dataclass(frozen=True)
class Family:
    """Contrasts whose p-values are corrected together: the named ones of a study, on one corpus or on all (`""`).

    The key `contrasts` of a study's file makes a family per corpus. Older studies named one family in all. `tests` is
    the number of contrasts that were named, with those that have no test yet.
    """

    study: str
    dataset: str = ""
    tests: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Named(Contrast):
    """A contrast that a study's file named before its runs.

    Attributes:
        family: the contrasts that are corrected together.
        adjusted_p: the p-value after Holm's correction over the family.
        note: what was known or added between the naming and the runs, and the model's options if labels are equal.
    """

    family: Family
    adjusted_p: float
    note: str = ""

    @property
    def study(self) -> str:
        """The name of the study."""
        return self.family.study

    @property
    def is_lower(self) -> bool:
        """True if the perplexity is significantly lower after correction, at equal size."""
        return self.change < 0 and self.adjusted_p < ALPHA and self.is_equal_size

    @property
    def is_higher(self) -> bool:
        """True if the perplexity is significantly higher after correction."""
        return self.change > 0 and self.adjusted_p < ALPHA

    @property
    def text(self) -> str:
        """The contrast as text with its corrected p-value, the family of the correction, and the note."""
        where = f"{self.study} on this corpus" if self.family.dataset else self.study
        p = f"p = {numbers.p_value(self.adjusted_p)} after Holm’s correction (family of {self.family.tests} in {where})"
        return "; ".join(filter(None, [super().text, "" if math.isnan(self.adjusted_p) else p, self.note]))


def time_range(contrasts: Iterable[Contrast]) -> str:
    """Return the range of seconds per epoch relative to the baseline over contrasts and machines, or a dash."""
    return numbers.span([ratio for contrast in contrasts for ratio in contrast.times().values()])


def corpora(contrasts: Iterable[Contrast]) -> list[str]:
    """Return the titles of the corpora, each once: of the whole corpus if it is among them, else of its cut."""
    titles: dict[str, str] = {}
    for contrast in contrasts:
        corpus, title = corpus_of(contrast.setting.dataset), contrast.setting.title
        titles[corpus] = min(titles.get(corpus, title), title, key=len)
    return list(titles.values())


def basis(contrasts: Sequence[Contrast]) -> str:
    """Return the numbers of seeds, and how many contrasts have bracketed rates, such as `n = 3, 1 of 3 bracketed`."""
    counts = numbers.span([n for contrast in contrasts for n in contrast.n], 0)
    return f"n = {counts}, {sum(contrast.is_tuned for contrast in contrasts)} of {len(contrasts)} bracketed"


def share_text(part: Contrast, whole: Contrast) -> str:
    """Return the gain of `part` as a share of that of `whole`, such as `56 % (35 to 75)`, with Fieller's 95 % interval.

    Both gains are over the same baseline, without diverged runs.
    """
    share = share_of_gain(*([*side.log_ppl.values()] for side in (whole.baseline, part.model, whole.model)))
    ends = (numbers.number(100 * end, 0) for end in (share.low, share.high))
    interval = " to ".join(ends) if math.isfinite(share.high) else "unbounded"
    return f"{numbers.percent(share.value)} ({interval})"


def distinct(named: Iterable[Named]) -> list[Named]:
    """Return named contrasts without repeats: of those with the same two models, the one with the largest p-value.

    Of equal p-values, that of the largest family counts. One without a p-value gives way to any that has one.
    """

    def strictness(one: Named) -> tuple[float, int]:
        return (-1.0 if math.isnan(one.adjusted_p) else one.adjusted_p), one.family.tests

    kept: dict[tuple[Model, Model], Named] = {}
    for candidate in named:
        pair = (candidate.model.model, candidate.baseline.model)
        kept[pair] = max(kept.get(pair, candidate), candidate, key=strictness)
    return list(kept.values())


# --- which models are contrasted ------------------------------------------------------------------------------------
def against_baseline(pool: Mapping[Model, Sample], label: str, head: Mapping[str, Any]) -> list[Contrast]:
    """Return the contrast of a head with BASELINE in every setting that has both: natural text and LSTMs first."""
    bases = [(setting, base) for setting in settings_of(pool) if (base := pick(pool, setting, BASELINE))]
    pairs = [(pick(pool, setting, head, base.mean("parameters")), base) for setting, base in bases]
    return [Contrast(label, sample, base) for sample, base in pairs if sample]


def over_all_heads(contrasts: Iterable[Contrast]) -> dict[Contrast, float]:
    """Return {contrast: p-value after Holm's correction} of the family that the table of heads judges.

    `contrasts` are those of all heads with the softmax. The family is those of LSTMs on natural text with an interval;
    without any natural text, those on synthetic languages.
    """
    every = list(contrasts)
    natural = [contrast for contrast in every if not contrast.setting.is_synthetic]
    return adjusted([contrast for contrast in natural or every if contrast.setting.is_lstm and contrast.ends])


def adjusted(family: Sequence[Contrast]) -> dict[Contrast, float]:
    """Return {contrast: p-value after Holm's correction} of one family."""
    return dict(zip(family, holm([contrast.p for contrast in family]), strict=True))


def at_equal_time(pool: Mapping[Model, Sample], contrast: Contrast) -> Contrast | None:
    """Return the contrast with the best wider softmax that takes no more time, chosen by validation perplexity.

    Times are equal within EQUAL_TIME. The two settings differ in `embedding_size`. Return None unless both sides have
    TIMED runs on a machine.
    """

    def but_width(model: Model) -> tuple[Any, ...]:
        return {**model.setting.values, WIDTH: 0}, model.setting.dataset, model.head, model.options

    base = contrast.baseline.model
    alike = [model for model in pool if but_width(model) == but_width(base)]
    wider = [model for model in alike if model.setting.width > base.setting.width]
    rivals = [Contrast(contrast.label, contrast.model, pool[model]) for model in wider]
    rivals = [rival for rival in rivals if rival.baseline.log_ppl and not rival.baseline.n_diverged]
    rivals = [rival for rival in rivals if min(rival.times().values(), default=0) >= 1 / (1 + EQUAL_TIME)]
    order = (VALID_PPL, "parameters")
    return min(rivals, key=lambda rival: [rival.baseline.mean(metric) for metric in order], default=None)


def with_other_shapes(pool: Mapping[Model, Sample], contrast: Contrast) -> list[Contrast]:
    """Return the contrasts of a model's other inner widths with the same rival, if no slower than it (EQUAL_TIME)."""
    model = contrast.model.model
    models = [other for other in pool if replace(other, shape=model.shape) == model != other]
    reshaped = [Contrast(contrast.label, pool[other], contrast.baseline) for other in models]
    return [other for other in reshaped if other.ends and max(other.times(1).values(), default=INF) <= 1 + EQUAL_TIME]


def at_shared_rates(contrast: Contrast) -> Contrast:
    """Return the contrast of the runs at learning rates that were tried for both sides, or the same without any."""
    shared = {*contrast.model.choice.tried} & {*contrast.baseline.choice.tried}

    def at_shared(side: Sample) -> Sample:
        searched = {rate: loss for rate, loss in side.searched.items() if rate in shared}
        return replace(side, runs=[run for run in side.runs if run.rate in shared], searched=searched)

    if not shared:
        return contrast
    at_both = Contrast(contrast.label, at_shared(contrast.model), at_shared(contrast.baseline))
    return at_both if at_both.model.log_ppl and at_both.baseline.log_ppl else contrast


def named_contrasts(
    pool: Mapping[Model, Sample],
    studies: Sequence[FinishedStudy],
    lists: Mapping[str, Any],
    left_out: Mapping[str, Mapping[str, Sequence[int]]],
    notes: Mapping[str, Mapping[str, str]],
) -> list[Named]:
    """Return the contrasts that studies named before their runs and that have runs, which may all have diverged.

    Args:
        pool: all samples.
        studies: the studies, whose settings tell what the names of models mean.
        lists: {study: {dataset: {label: [model, baseline]}}}, for studies whose files do not have the key `contrasts`.
        left_out: {study: {model: seeds}}: seeds that chose the settings of a model.
        notes: {study: {dataset: note}}, printed beside the contrasts.
    """
    settings = {(study.study, *key): run for study in studies for key, run in study.settings.items()}

    def side(study: str, dataset: str, name: str) -> Sample | None:
        run = settings.get((study, dataset, name))
        sample = pool.get(model_of(run)) if run else None
        return sample and replace(sample, left_out=frozenset(left_out.get(study, {}).get(name, ())))

    listed = [
        (Family(study, tests=sum(map(len, by_dataset.values()))), dataset, label, names)
        for study, by_dataset in lists.items()
        for dataset, by_label in by_dataset.items()
        for label, names in by_label.items()
    ]
    pairs = []
    for family, dataset, label, names in [*listed, *_declared(studies, settings)]:
        sides = [sample for name in names if (sample := side(family.study, dataset, name))]
        if len(sides) == len(names) and all(sample.log_ppl or sample.n_diverged for sample in sides):
            pairs.append((family, Contrast(label, *sides)))
    every = corrected(pairs)
    alike = Counter((named.family, named.label, named.setting) for named in every)
    return [
        replace(named, note="; ".join(filter(None, [
            notes.get(named.study, {}).get(named.setting.dataset, ""),
            named.model.model.options if alike[named.family, named.label, named.setting] > 1 else "",
        ])))
        for named in every
    ]  # fmt: skip


def _declared(
    studies: Iterable[FinishedStudy], settings: Mapping[tuple[str, str, str], Run]
) -> list[tuple[Family, str, str, Sequence[str]]]:
    """Return (family, dataset, label, names of model and baseline) of the contrasts that the files of studies declare.

    `settings` is {(study, dataset, model): a run}; a study may have several archives, each with some of its models.
    Models of one head with other options have the same label.
    """
    declared = dict.fromkeys(
        (Family(study.study, dataset, len(study.contrasts.family)), contrast)
        for study in studies if study.contrasts
        for dataset, contrast in itertools.product(study.datasets, study.contrasts.family)
    )  # fmt: skip
    entries: list[tuple[Family, str, str, Sequence[str]]] = []
    for family, contrast in declared:
        sides, dataset = (contrast.model, contrast.against), family.dataset
        labels = [_head_label(run) for side in sides if (run := settings.get((family.study, dataset, side)))]
        if len(labels) == len(sides):
            label = " against ".join(labels) + ("" if contrast.same_size else f", {contrast.label}")
            entries.append((family, dataset, label, sides))
    return entries


def _head_label(run: Run) -> str:
    if run.head.options.get("components") == 1:
        return "tanh layer"
    declared = declarations().get(run.head.name)
    return declared.label if declared else run.model


def corrected(pairs: Sequence[tuple[Family, Contrast]]) -> list[Named]:
    """Return the contrasts of pairs (family, contrast) with p-values after Holm's correction within each family.

    A named contrast without a test (not run yet, too few seeds, or a diverged run) has no p-value, but counts (p = 1).
    """
    named = []
    for family in dict.fromkeys(family for family, _ in pairs):
        together = [contrast for other, contrast in pairs if other == family]
        p_values = [math.nan if contrast.n_diverged else contrast.p for contrast in together]
        for contrast, p in zip(together, holm(p_values, family.tests), strict=True):
            named.append(Named(contrast.label, contrast.model, contrast.baseline, family=family, adjusted_p=p))
    return named
