"""Contrasts of two heads in one setting, from all archived runs.

A setting is a corpus, a body without its inner widths, and a schedule without its learning rate. Every head has its own
learning rate, chosen by validation perplexity. The runs of all studies are pooled, and a seed that ran on two machines
counts once. docs/results.md states the rules under "How numbers become conclusions".
"""

import itertools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from softmax_bottleneck.heads.registry import declarations
from softmax_bottleneck.records.metrics import PRESS_RANK, TEST_PPL, VALID_PPL
from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.archive import FinishedStudy, machine
from softmax_bottleneck.report.source import bundled_dataset
from softmax_bottleneck.statistics.intervals import ALPHA, INF, Interval, student, welch_p
from softmax_bottleneck.statistics.pooled import Choice, choose, confirmed, holm, per_seed
from softmax_bottleneck.study import Run, canonical_json

EQUAL_SIZE = 0.01  # relative difference of parameters; chosen after the runs, and the aim of rank-or-mixture.yaml
EQUAL_TIME = 0.05  # relative difference of seconds per epoch
TIMED = 3  # runs of each side on a machine that a ratio of times needs; chosen after the runs
SHAPE = ("hidden_size", "context_size")  # of a body; they make up for the parameters of a head
RATE = "learning_rate"
NAMES = {"awd-lstm": "", "transformer": "Transformer", "et-asgd": "", "plateau-sgd": "", "nt-asgd": "NT-ASGD"}


@cache
def corpus_of(dataset: str) -> str:
    """Return the corpus of a dataset: a cut of a corpus is that corpus, such as `ptb` for `ptb-small`."""
    data = bundled_dataset(dataset)
    return data.published_as or data.stands_for or data.base or dataset if data else dataset


@dataclass(frozen=True)
class Setting:
    """The setting that two contrasted heads share.

    Attributes:
        dataset: the name of the dataset.
        body, schedule: canonical JSON of the body without SHAPE, and of the schedule without RATE.
        title: the title of the dataset, which may differ between archives.
        is_synthetic: True if the corpus is sampled from a known distribution.
    """

    dataset: str
    body: str
    schedule: str
    title: str = field(default="", compare=False)
    is_synthetic: bool = field(default=False, compare=False)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The settings of body and schedule by name."""
        return {**json.loads(self.body), **json.loads(self.schedule)}

    @property
    def is_lstm(self) -> bool:
        """True if the body is an LSTM."""
        return bool(self.facts["kind"] == "awd-lstm")

    @property
    def label(self) -> str:
        """The setting as text, such as `Penn Treebank, d = 64, 10 epochs`."""
        return self.labels[-1]

    @property
    def labels(self) -> list[str]:
        """Texts for the setting: without sizes, with its width, with its epochs, and with both."""
        facts = self.facts
        sizes = [f"d = {facts['embedding_size']}", f"{facts['epochs']} epochs"]
        parts = [NAMES.get(facts[key], facts[key]) for key in ("kind", "optimizer")]
        parts += [f"noise {facts['embedding_noise']:g}"] if facts["embedding_noise"] else []
        parts += ["tied"] if facts["tied"] and not self.is_lstm else []
        title = self.title.removeprefix("The ")
        known = [title[:1].upper() + title[1:], *filter(None, parts)]
        return [", ".join([known[0], *shown, *known[1:]]) for shown in ([], sizes[:1], sizes[1:], sizes)]


@dataclass(frozen=True)
class Model:
    """A head with its options in a setting, and the inner widths of the body below it."""

    setting: Setting
    head: str
    options: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class TrainedRun:
    """A finished run: its study, seed, machine and learning rate, and {metric: value}; a diverged run has no values."""

    study: str
    seed: int
    machine: str
    rate: float
    values: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Sample:
    """All archived runs of a model, with the learning rate and the seeds that the rules choose among them."""

    model: Model
    runs: Sequence[TrainedRun]
    searched: Mapping[float, float] = field(default_factory=dict)  # log validation perplexities of a search by rate
    search_seeds: frozenset[int] = frozenset()
    left_out: frozenset[int] = frozenset()  # seeds that chose the settings of this model

    def _logs(self, metric: str, rate: float) -> dict[int, float]:
        runs = [run for run in self.runs if run.rate == rate and run.seed not in self.left_out]
        return per_seed((run.seed, run.machine, math.log(run.values.get(metric, INF))) for run in runs)

    @cached_property
    def choice(self) -> Choice:
        """The learning rate with the lowest validation perplexity; diverged runs count as infinitely bad.

        If a study searched it, the search decides, unless three or more other seeds validate better at another rate.
        The search's seeds are not compared. Other rates count as tried.
        """
        losses = {rate: self._logs(VALID_PPL, rate) for rate in {run.rate for run in self.runs}}
        if not self.searched:
            return choose(losses)
        tried = tuple(sorted({*losses, *self.searched}))
        best = min(self.searched, key=lambda rate: self.searched[rate])
        others = {
            rate: {seed: loss for seed, loss in own.items() if seed not in self.search_seeds}
            for rate, own in losses.items()
        }
        return Choice(confirmed(best, others), tried, self.search_seeds)

    @cached_property
    def log_ppl(self) -> dict[int, float]:
        """{seed: log test perplexity} at the chosen learning rate, without the seeds that the choice can spare."""
        values = self._logs(TEST_PPL, self.choice.value)
        return {seed: values[seed] for seed in self.choice.compared(values) if math.isfinite(values[seed])}

    @property
    def n_diverged(self) -> int:
        """The number of seeds that diverged at the chosen learning rate."""
        return sum(math.isinf(value) for value in self._logs(TEST_PPL, self.choice.value).values())

    @property
    def ppl(self) -> float:
        """The geometric mean of the compared test perplexities, or nan without any."""
        return math.exp(statistics.fmean(self.log_ppl.values())) if self.log_ppl else math.nan

    def mean(self, metric: str) -> float:
        """Return the geometric mean of a positive metric over seeds at the chosen rate, or nan if none has it.

        Several runs of a seed count once, with their geometric mean.
        """
        by_seed: dict[int, list[float]] = {}
        for run in self.runs:
            if run.rate == self.choice.value and metric in run.values:
                by_seed.setdefault(run.seed, []).append(run.values[metric])
        seeds = [statistics.geometric_mean(values) for values in by_seed.values()]
        return statistics.geometric_mean(seeds) if seeds else math.nan

    @cached_property
    def seconds(self) -> dict[str, list[float]]:
        """{machine with its threads: seconds per epoch of the runs at all learning rates, in ascending order}."""
        timed = sorted((run.machine, run.values["sec_per_epoch"]) for run in self.runs if "sec_per_epoch" in run.values)
        groups = itertools.groupby(timed, key=lambda pair: pair[0])
        return {machine: [seconds for _, seconds in of_machine] for machine, of_machine in groups}

    @property
    def studies(self) -> list[str]:
        """The names of the archives with runs at the chosen learning rate."""
        return sorted({run.study for run in self.runs if run.rate == self.choice.value})


def samples(studies: Iterable[FinishedStudy]) -> dict[Model, Sample]:
    """Return {model: its sample} of all finished runs whose settings are known."""
    runs_of: dict[Model, dict[tuple[str, str, float | None], TrainedRun]] = {}
    searches: dict[Model, tuple[dict[float, float], frozenset[int]]] = {}
    for study in studies:
        for choice in study.tuned:
            run = study.settings.get((choice["dataset"], choice["model"]))
            if run and not _repeats_tokens(run.dataset):
                curve, seeds = searches.get(model_of(run), ({}, frozenset()))
                used = {_seed(path) for trial in choice["curve"] for path in trial["runs"]}
                searches[model_of(run)] = (curve | _curve(choice), seeds | used)
        synthetic = {data.dataset for data in study.views if data.truth}
        rows = study.records.rows
        plain = rows[(rows["condition"] == "") & (rows["run_id"] != "")].set_index("metric")
        values: dict[str, Any] = {str(run_id): part.to_dict() for run_id, part in plain.groupby("run_id")["value"]}
        for state in study.records.states.to_dict("records"):
            run, metrics = study.settings.get((state["dataset"], state["model"])), values.get(state["run_id"], {})
            if run is None or _repeats_tokens(run.dataset) or not (TEST_PPL in metrics or state["state"] == "diverged"):
                continue
            model = model_of(run, study.title_of(run.dataset), run.dataset in synthetic)
            machine = f"{state['hardware']}, {run.threads} threads"
            trained = TrainedRun(study.name, int(state["seed"]), machine, run.schedule.learning_rate, metrics)
            # Models and studies share runs. A run that was repeated has the same run_id, but other seconds.
            runs_of.setdefault(model, {})[state["run_id"], machine, metrics.get("sec_per_epoch")] = trained
    unsearched: tuple[dict[float, float], frozenset[int]] = ({}, frozenset())
    return {model: Sample(model, [*runs.values()], *searches.get(model, unsearched)) for model, runs in runs_of.items()}


def _seed(path: str) -> int:
    """Return the seed in the path of a run, such as 1 for `ptb/mos/1-0123456789ab`."""
    return int(path.rpartition("/")[2].partition("-")[0])


@cache
def _repeats_tokens(dataset: str) -> bool:
    """Return True if test perplexity says nothing on a dataset, because its tokens never occur in train."""
    data = bundled_dataset(dataset)
    return bool(data and data.repeat)


def _curve(choice: Mapping[str, Any]) -> dict[float, float]:
    """Return {learning rate: log validation perplexity} of a search that varies nothing else; inf if a run diverged."""
    trials = [(trial["point"], trial.get("valid_ppl")) for trial in choice["curve"]]
    rates = [(point[f"schedule.{RATE}"], ppl) for point, ppl in trials if point.keys() == {f"schedule.{RATE}"}]
    return {float(rate): math.log(ppl) if ppl else INF for rate, ppl in rates}


def model_of(run: Run, title: str = "", is_synthetic: bool = False) -> Model:
    """Return the model of a run, whatever its seed and learning rate."""
    body, schedule = asdict(run.body), asdict(run.schedule)
    shape = tuple(body.pop(name) for name in SHAPE)
    del schedule[RATE]
    setting = Setting(run.dataset, canonical_json(body), canonical_json(schedule), title, is_synthetic)
    declared = declarations().get(run.head.name)
    defaults = declared.defaults if declared else {}
    return Model(setting, run.head.name, canonical_json(defaults | dict(run.head.options)), shape)


@dataclass(frozen=True, eq=False)
class Contrast:
    """The change from a baseline to a model, each at its own best tried learning rate."""

    label: str
    model: Sample
    baseline: Sample

    @cached_property
    def interval(self) -> Interval:
        """The difference of mean log test perplexities in nats, with Welch's interval; infinite if a run diverged."""
        sides = [np.array([*side.log_ppl.values()])[:, None] for side in (self.model, self.baseline)]
        difference = student(sides, ALPHA / 2)
        return replace(difference, low=-INF, high=INF) if self.n_diverged else difference

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
    def setting(self) -> Setting:
        """The setting of the model."""
        return self.model.model.setting

    @property
    def change(self) -> float:
        """The change of test perplexity in percent."""
        return 100 * math.expm1(self.interval.value)

    @property
    def ends(self) -> tuple[float, float] | None:
        """The ends of the interval in percent, or None with too few seeds."""
        low, high = (100 * math.expm1(end) if end < 700 else INF for end in (self.interval.low, self.interval.high))
        return (low, high) if math.isfinite(high) else None

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
        sides = (self.model.seconds, self.baseline.seconds)
        shared = sorted(sides[0].keys() & sides[1].keys())
        known = [name for name in shared if min(len(side[name]) for side in sides) >= least]
        return {name: sides[0][name][0] / sides[1][name][0] for name in known}

    @property
    def time(self) -> str:
        """The range of `times` over processors as text, or every machine if one is a GPU; a dash without any."""
        ratios, timed, few = self.times(1), self.times(), f" (fewer than {TIMED} runs)"
        names = {machine(name.rpartition(", ")[0]): name for name in ratios}
        if not any("NVIDIA" in label for label in names):
            return time_range([self])
        texts = {label: numbers.number(ratios[name], 1) for label, name in names.items()}
        return ", ".join(f"{label}{'' if names[label] in timed else few} {text}" for label, text in texts.items())

    @property
    def single_time(self) -> str:
        """The range of `times` as text, even of single runs."""
        return numbers.span([*self.times(1).values()])

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
        """The contrast as text with setting, numbers of seeds, costs and learning rates."""
        diverged = f", {self.n_diverged} diverged" if self.n_diverged else ""
        value = f"{self.value_text}, {numbers.counts(self.n)}{diverged}"
        return f"{self.label}; {self.setting.label}: {value}; {self.costs}; {self.rates}"

    @property
    def costs(self) -> str:
        """The costs relative to the baseline as text; a time that is unknown is left out."""
        time = "" if self.time == numbers.DASH else f", {self.time} × seconds per epoch"
        return f"{numbers.number(self.size)} × parameters{time}"

    @property
    def studies(self) -> list[str]:
        """The archives of both sides."""
        return sorted({*self.model.studies, *self.baseline.studies})


@dataclass(frozen=True, eq=False)
class Named:
    """A contrast that a study's file named before its runs.

    Attributes:
        study: the name of the study.
        contrast: the contrast, each side at its own best tried rate.
        p: its p-value after Holm's correction over the named contrasts of the study.
        tests: the number of these contrasts that have a p-value.
        note: what was known or added between the naming and the runs, as text.
    """

    study: str
    contrast: Contrast
    p: float
    tests: int
    note: str = ""

    @property
    def is_lower(self) -> bool:
        """True if the perplexity is significantly lower after correction, at equal size."""
        return self.contrast.change < 0 and self.p < ALPHA and self.contrast.is_equal_size

    @property
    def text(self) -> str:
        """The contrast as text with its corrected p-value, the family of the correction, and the note."""
        p = f"p = {numbers.p_value(self.p)} after Holm’s correction (family of {self.tests} in {self.study})"
        return "; ".join(filter(None, [self.contrast.text, "" if math.isnan(self.p) else p, self.note]))


def time_range(contrasts: Iterable[Contrast]) -> str:
    """Return the range of seconds per epoch relative to the baseline over contrasts and machines, or a dash."""
    return numbers.span([ratio for contrast in contrasts for ratio in contrast.times().values()])


def corpora(contrasts: Iterable[Contrast]) -> list[str]:
    """Return the titles of the corpora, each once: of the whole corpus if it is among them, else of its cut."""
    titles: dict[str, str] = {}
    for contrast in contrasts:
        corpus, title = corpus_of(contrast.setting.dataset), contrast.setting.labels[0]
        titles[corpus] = min(titles.get(corpus, title), title, key=len)
    return list(titles.values())


def basis(contrasts: Sequence[Contrast]) -> str:
    """Return the numbers of seeds, and how many contrasts have bracketed rates, such as `n = 3, 1 of 3 bracketed`."""
    counts = numbers.span([n for contrast in contrasts for n in contrast.n], 0)
    return f"n = {counts}, {sum(contrast.is_tuned for contrast in contrasts)} of {len(contrasts)} bracketed"


def distinct(named: Iterable[Named]) -> list[Named]:
    """Return named contrasts without repeats: of those with the same two models, the one with the largest p-value.

    One without a p-value gives way to any that has one.
    """
    kept: dict[tuple[Model, Model], Named] = {}
    for candidate in named:
        pair = (candidate.contrast.model.model, candidate.contrast.baseline.model)
        if pair not in kept or math.isnan(kept[pair].p) or candidate.p > kept[pair].p:
            kept[pair] = candidate
    return list(kept.values())


# --- which models are contrasted ------------------------------------------------------------------------------------
def pick(pool: Mapping[Model, Sample], setting: Setting, head: Mapping[str, Any], size: float = 0.0) -> Sample | None:
    """Return the sample of a head in a setting, or None.

    Args:
        pool: all samples.
        setting: the setting.
        head: the name of the head (`name`), and the options that it must have. A list gives several values in order of
            preference; the first that the setting has is taken.
        size: number of parameters; of several inner widths, the one nearest to it is taken.
    """
    wanted = {key: value if isinstance(value, list) else [value] for key, value in head.items() if key != "name"}
    candidates = []
    for model, sample in pool.items():
        if model.setting == setting and model.head == head["name"] and sample.log_ppl:
            options = json.loads(model.options)
            if all(options.get(key) in values for key, values in wanted.items()):
                order = [values.index(options[key]) for key, values in wanted.items()]
                candidates.append((order, abs(sample.mean("parameters") - size), model.shape, sample))
    return min(candidates, key=lambda candidate: candidate[:3])[-1] if candidates else None


def against_baseline(
    pool: Mapping[Model, Sample], label: str, head: Mapping[str, Any], baseline: Mapping[str, Any]
) -> list[Contrast]:
    """Return the contrast of a head with a baseline in every setting that has both: natural text and LSTMs first."""
    bases = [(setting, base) for setting in settings_of(pool) if (base := pick(pool, setting, baseline))]
    pairs = [(pick(pool, setting, head, base.mean("parameters")), base) for setting, base in bases]
    return [Contrast(label, sample, base) for sample, base in pairs if sample]


def settings_of(pool: Mapping[Model, Sample]) -> list[Setting]:
    """Return all settings: natural text first, then LSTMs, then by corpus, longer training and larger widths first."""

    def order(setting: Setting) -> tuple[Any, ...]:
        facts = setting.facts
        sizes = (-facts["embedding_size"], -facts["epochs"])
        kind = (setting.is_synthetic, not setting.is_lstm, corpus_of(setting.dataset), setting.dataset)
        return *kind, *sizes, setting.body, setting.schedule

    return sorted({model.setting for model in pool}, key=order)


def at_equal_time(pool: Mapping[Model, Sample], contrast: Contrast) -> Contrast | None:
    """Return the contrast with the best wider softmax that takes no more time, chosen by validation perplexity.

    The two settings differ in `embedding_size`. Return None if no wider softmax was timed on a machine of the model.
    """

    def but_width(model: Model) -> tuple[Any, ...]:
        return {**model.setting.facts, "embedding_size": 0}, model.setting.dataset, model.head, model.options

    def width(model: Model) -> float:
        return float(model.setting.facts["embedding_size"])

    base = contrast.baseline.model
    alike = [model for model in pool if but_width(model) == but_width(base) and width(model) > width(base)]
    rivals = [Contrast(contrast.label, contrast.model, pool[model]) for model in alike]
    rivals = [rival for rival in rivals if min(rival.times(1).values(), default=0) >= 1 / (1 + EQUAL_TIME)]
    order = (VALID_PPL, "parameters")
    return min(rivals, key=lambda rival: [rival.baseline.mean(metric) for metric in order], default=None)


def at_shared_rates(contrast: Contrast) -> Contrast:
    """Return the contrast of the runs at the learning rates that were tried for both sides."""
    sides = (contrast.model, contrast.baseline)
    shared = set(sides[0].choice.tried) & set(sides[1].choice.tried)

    def at_shared(side: Sample) -> Sample:
        searched = {rate: loss for rate, loss in side.searched.items() if rate in shared}
        return replace(side, runs=[run for run in side.runs if run.rate in shared], searched=searched)

    return Contrast(contrast.label, *map(at_shared, sides)) if shared else contrast


def named_contrasts(
    pool: Mapping[Model, Sample],
    studies: Sequence[FinishedStudy],
    lists: Mapping[str, Any],
    left_out: Mapping[str, Mapping[str, Sequence[int]]],
    notes: Mapping[str, Mapping[str, str]],
) -> list[Named]:
    """Return the contrasts that studies named before their runs and that have runs.

    Args:
        pool: all samples.
        studies: the studies, whose settings tell what the names of models mean.
        lists: {study: {dataset: {label: [model, baseline]}}}, for studies whose files do not have the key `contrasts`.
        left_out: {study: {model: seeds}}: seeds that chose the settings of a model.
        notes: {study: {dataset: note}}, printed beside the contrasts.
    """
    settings = {study.study: study.settings for study in studies}

    def side(study: str, dataset: str, name: str) -> Sample | None:
        run = settings.get(study, {}).get((dataset, name))
        sample = pool.get(model_of(run)) if run else None
        return sample and replace(sample, left_out=frozenset(left_out.get(study, {}).get(name, ())))

    pairs = []
    for study, datasets in {**lists, **_declared(studies)}.items():
        for dataset, contrasts in datasets.items():
            for label, names in contrasts.items():
                sides = [sample for name in names if (sample := side(study, dataset, name)) and sample.log_ppl]
                if len(sides) == len(names):
                    pairs.append((study, Contrast(label, *sides)))
    named = families(pairs)
    return [replace(entry, note=notes.get(entry.study, {}).get(entry.contrast.setting.dataset, "")) for entry in named]


def _declared(studies: Sequence[FinishedStudy]) -> dict[str, dict[str, dict[str, list[str]]]]:
    """Return the contrasts of the studies that declare them (key `contrasts`), as `lists` of `named_contrasts`."""

    def label(run: Run) -> str:
        if run.head.options.get("components") == 1:
            return "tanh layer"
        declared = declarations().get(run.head.name)
        return declared.label if declared else run.model

    by_study: dict[str, dict[str, dict[str, list[str]]]] = {}
    for study in studies:
        for contrast, dataset in itertools.product(study.contrasts.family if study.contrasts else (), study.datasets):
            runs = [study.settings.get((dataset, name)) for name in (contrast.model, contrast.against)]
            known = [label(run) for run in runs if run]
            if len(known) == len(runs):
                text = " against ".join(known) + ("" if contrast.same_size else f", {contrast.label}")
                by_study.setdefault(study.study, {}).setdefault(dataset, {})[text] = [contrast.model, contrast.against]
    return by_study


def families(pairs: Iterable[tuple[str, Contrast]]) -> list[Named]:
    """Return the contrasts of pairs (study, contrast) with p-values after Holm's correction within each study."""
    named = []
    for study, group in itertools.groupby(pairs, key=lambda pair: pair[0]):
        contrasts = [contrast for _, contrast in group]
        tests = sum(not math.isnan(contrast.p) for contrast in contrasts)
        corrected = holm([contrast.p for contrast in contrasts])
        named += [Named(study, contrast, p, tests) for contrast, p in zip(contrasts, corrected, strict=True)]
    return named
