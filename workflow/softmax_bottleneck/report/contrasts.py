"""Contrasts of two heads in one setting, from all archived runs.

A setting is a corpus, a body without its inner widths, and a schedule without its learning rate. Every head has its own
learning rate, chosen by validation perplexity. The runs of all studies are pooled, and a seed that ran on two machines
counts once. docs/results.md states the rules under "How numbers become conclusions".
"""

import itertools
import json
import math
import statistics
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
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
RATE, WIDTH, SECONDS = "learning_rate", "embedding_size", "sec_per_epoch"
NAMES = {"awd-lstm": "", "transformer": "Transformer", "et-asgd": "", "plateau-sgd": "", "nt-asgd": "NT-ASGD"}


@cache
def corpus_of(dataset: str) -> str:
    """Return the corpus of a dataset: a cut of a corpus is that corpus, such as `ptb` for `ptb-small`."""
    data = bundled_dataset(dataset)
    return data.published_as or data.stands_for or data.base or dataset if data else dataset


@dataclass(frozen=True)
class Setting:
    """The setting that contrasted heads share.

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
    def values(self) -> dict[str, Any]:
        """The settings of body and schedule by name."""
        return {**json.loads(self.body), **json.loads(self.schedule)}

    @property
    def width(self) -> int:
        """The width of the word vectors."""
        return int(self.values[WIDTH])

    @property
    def is_lstm(self) -> bool:
        """True if the body is an LSTM."""
        return bool(self.values["kind"] == "awd-lstm")

    @property
    def label(self) -> str:
        """The setting as text, such as `Penn Treebank, d = 64, 10 epochs`."""
        return self.labels[-1]

    @property
    def labels(self) -> list[str]:
        """Texts for the setting: without sizes, with its width, with its epochs, and with both."""
        values, title = self.values, self.title.removeprefix("The ")
        width, epochs = f"d = {self.width}", f"{values['epochs']} epochs"
        details = [NAMES.get(values[key], values[key]) for key in ("kind", "optimizer")]
        details += [f"noise {values['embedding_noise']:g}"] if values["embedding_noise"] else []
        details += ["tied"] if values["tied"] and not self.is_lstm else []
        parts = (
            [title[:1].upper() + title[1:], *sizes, *details] for sizes in ([], [width], [epochs], [width, epochs])
        )
        return [", ".join(filter(None, texts)) for texts in parts]


@dataclass(frozen=True)
class Model:
    """A head with its options in a setting, and the inner widths of the body below it."""

    setting: Setting
    head: str
    options: str
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A finished run: its study, seed, machine and learning rate, and {metric: value}; a diverged run has no values."""

    study: str
    seed: int
    machine: str
    rate: float
    values: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Sample:
    """All archived runs of a model, with the learning rate and the seeds that the rules choose among them.

    Attributes:
        model, runs: the model and its runs.
        searched: {learning rate: log validation perplexity} of the searches for its rate; empty without a search.
        search_seeds: the seeds of these searches.
        left_out: the seeds that chose other settings of the model.
    """

    model: Model
    runs: Sequence[TrainedRun]
    searched: Mapping[float, float] = field(default_factory=dict)
    search_seeds: frozenset[int] = frozenset()
    left_out: frozenset[int] = frozenset()

    def _logs(self, metric: str, rate: float, without: Set[int] = frozenset()) -> dict[int, float]:
        """Return {seed: logarithm of a metric} at a learning rate, without some seeds; inf for a diverged run."""
        runs = [run for run in self.runs if run.rate == rate and run.seed not in self.left_out | without]
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
        best = min(self.searched, key=self.searched.__getitem__)
        of_others = {rate: self._logs(VALID_PPL, rate, self.search_seeds) for rate in losses}
        return Choice(confirmed(best, of_others), tuple(sorted({*losses, *self.searched})), self.search_seeds)

    @cached_property
    def log_ppl(self) -> dict[int, float]:
        """{seed: log test perplexity} at the chosen learning rate, without the seeds that the choice can spare."""
        values = self._logs(TEST_PPL, self.choice.value)
        return {seed: values[seed] for seed in self.choice.compared(values) if math.isfinite(values[seed])}

    @property
    def n_diverged(self) -> int:
        """The number of seeds that diverged at the chosen learning rate."""
        return sum(map(math.isinf, self._logs(TEST_PPL, self.choice.value).values()))

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
        means = [statistics.geometric_mean(values) for values in by_seed.values()]
        return statistics.geometric_mean(means) if means else math.nan

    @cached_property
    def seconds(self) -> dict[str, list[float]]:
        """{machine with its threads: seconds per epoch of the runs at all learning rates, in ascending order}."""
        timed = [(run.machine, run.values[SECONDS]) for run in self.runs if SECONDS in run.values]
        machines = sorted({machine for machine, _ in timed})
        return {name: sorted(seconds for machine, seconds in timed if machine == name) for name in machines}


def samples(studies: Iterable[FinishedStudy]) -> dict[Model, Sample]:
    """Return {model: its sample} of all finished runs whose settings are known."""
    runs_of: dict[Model, dict[Hashable, TrainedRun]] = {}
    trials_of: dict[Model, list[Mapping[str, Any]]] = {}
    for study in studies:
        for choice in study.tuned:
            if searched := study.settings.get((choice["dataset"], choice["model"])):
                trials_of.setdefault(model_of(searched), []).extend(choice["curve"])
        for model, key, run in _trained_runs(study):
            runs_of.setdefault(model, {})[key] = run
    return {model: _sample(model, [*runs.values()], trials_of.get(model, ())) for model, runs in runs_of.items()}


def _sample(model: Model, runs: Sequence[TrainedRun], trials: Sequence[Mapping[str, Any]]) -> Sample:
    """Return the sample of a model from its runs and from the trials of its searches (`archive_file.Choice`).

    Only trials that vary nothing but the learning rate decide it. A diverged trial has the log perplexity inf. A seed
    is the first number in the last part of a run's path, such as 1 in `ptb/mos/1-0123456789ab`.
    """
    rate = f"schedule.{RATE}"
    of_rate = [(trial["point"][rate], trial.get("valid_ppl")) for trial in trials if trial["point"].keys() == {rate}]
    searched = {float(value): math.log(ppl) if ppl else INF for value, ppl in of_rate}
    seeds = frozenset(int(path.rpartition("/")[2].partition("-")[0]) for trial in trials for path in trial["runs"])
    return Sample(model, runs, searched, seeds)


def _trained_runs(study: FinishedStudy) -> Iterator[tuple[Model, Hashable, TrainedRun]]:
    """Yield (model, key, run) for the finished runs of a study; runs with the same key are the same run.

    Models and studies share runs. A run that was repeated has the same run_id, but other seconds, and counts twice.
    """
    synthetic = {data.dataset for data in study.views if data.truth}
    rows = study.records.rows
    plain = rows[(rows["condition"] == "") & (rows["run_id"] != "")].set_index("metric")
    values: dict[str, Any] = {str(run_id): part.to_dict() for run_id, part in plain.groupby("run_id")["value"]}
    for state in study.records.states.to_dict("records"):
        run, metrics = study.settings.get((state["dataset"], state["model"])), values.get(state["run_id"], {})
        if run is None or _repeats_tokens(run.dataset) or not (TEST_PPL in metrics or state["state"] == "diverged"):
            continue
        machine, rate = f"{state['hardware']}, {run.threads} threads", run.schedule.learning_rate
        trained = TrainedRun(study=study.name, seed=int(state["seed"]), machine=machine, rate=rate, values=metrics)
        model = model_of(run, study.title_of(run.dataset), run.dataset in synthetic)
        yield model, (state["run_id"], machine, metrics.get(SECONDS)), trained


@cache
def _repeats_tokens(dataset: str) -> bool:
    """Return True if test perplexity says nothing on a dataset, because its tokens never occur in train."""
    data = bundled_dataset(dataset)
    return bool(data and data.repeat)


def model_of(run: Run, title: str = "", is_synthetic: bool = False) -> Model:
    """Return the model of a run, whatever its seed and learning rate."""
    body, schedule = asdict(run.body), asdict(run.schedule)
    shape = tuple(body.pop(name) for name in SHAPE)
    del schedule[RATE]
    setting = Setting(run.dataset, canonical_json(body), canonical_json(schedule), title, is_synthetic)
    declared = declarations().get(run.head.name)
    defaults = declared.defaults if declared else {}
    return Model(setting, run.head.name, canonical_json(defaults | dict(run.head.options)), shape)


# --- the change from one head to another ---------------------------------------------------------------------------
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
        """The contrast as text with setting, numbers of seeds, costs (a time if known) and learning rates."""
        diverged = f", {self.n_diverged} diverged" if self.n_diverged else ""
        value = f"{self.value_text}, {numbers.counts(self.n)}{diverged}"
        time = "" if self.time == numbers.DASH else f", {self.time} × seconds per epoch"
        return (
            f"{self.label}; {self.setting.label}: {value}; {numbers.number(self.size)} × parameters{time}; {self.rates}"
        )

    @property
    def studies(self) -> list[str]:
        """The names of the archives with runs of either side at its chosen learning rate."""
        sides = (self.model, self.baseline)
        return sorted({run.study for side in sides for run in side.runs if run.rate == side.choice.value})


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
        if (model.setting, model.head) == (setting, head["name"]) and sample.log_ppl:
            options = json.loads(model.options)
            if all(options.get(key) in values for key, values in wanted.items()):
                preference = [values.index(options[key]) for key, values in wanted.items()]
                candidates.append((preference, abs(sample.mean("parameters") - size), model.shape, sample))
    return min(candidates, key=lambda candidate: candidate[:3])[-1] if candidates else None


def against_baseline(
    pool: Mapping[Model, Sample], label: str, head: Mapping[str, Any], baseline: Mapping[str, Any]
) -> list[Contrast]:
    """Return the contrast of a head with a baseline in every setting that has both: natural text and LSTMs first."""
    bases = [(setting, base) for setting in settings_of(pool) if (base := pick(pool, setting, baseline))]
    pairs = [(pick(pool, setting, head, base.mean("parameters")), base) for setting, base in bases]
    return [Contrast(label, sample, base) for sample, base in pairs if sample]


def settings_of(pool: Iterable[Model]) -> list[Setting]:
    """Return all settings: natural text first, then LSTMs, then by corpus, longer training and larger widths first."""

    def order(setting: Setting) -> tuple[Any, ...]:
        kind = (setting.is_synthetic, not setting.is_lstm, corpus_of(setting.dataset), setting.dataset)
        return *kind, -setting.width, -setting.values["epochs"], setting.body, setting.schedule

    return sorted({model.setting for model in pool}, key=order)


def at_equal_time(pool: Mapping[Model, Sample], contrast: Contrast) -> Contrast | None:
    """Return the contrast with the best wider softmax that takes no more time, chosen by validation perplexity.

    The two settings differ in `embedding_size`. Return None if no wider softmax was timed on a machine of the model.
    """

    def but_width(model: Model) -> tuple[Any, ...]:
        return {**model.setting.values, WIDTH: 0}, model.setting.dataset, model.head, model.options

    base = contrast.baseline.model
    wider = [
        model for model in pool if but_width(model) == but_width(base) and model.setting.width > base.setting.width
    ]
    rivals = [Contrast(contrast.label, contrast.model, pool[model]) for model in wider]
    rivals = [rival for rival in rivals if min(rival.times(1).values(), default=0) >= 1 / (1 + EQUAL_TIME)]
    order = (VALID_PPL, "parameters")
    return min(rivals, key=lambda rival: [rival.baseline.mean(metric) for metric in order], default=None)


def at_shared_rates(contrast: Contrast) -> Contrast:
    """Return the contrast of the runs at the learning rates that were tried for both sides."""
    shared = {*contrast.model.choice.tried} & {*contrast.baseline.choice.tried}

    def at_shared(side: Sample) -> Sample:
        searched = {rate: loss for rate, loss in side.searched.items() if rate in shared}
        return replace(side, runs=[run for run in side.runs if run.rate in shared], searched=searched)

    return Contrast(contrast.label, at_shared(contrast.model), at_shared(contrast.baseline)) if shared else contrast


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
    settings = {(study.study, *key): run for study in studies for key, run in study.settings.items()}

    def side(study: str, dataset: str, name: str) -> Sample | None:
        run = settings.get((study, dataset, name))
        sample = pool.get(model_of(run)) if run else None
        return sample and replace(sample, left_out=frozenset(left_out.get(study, {}).get(name, ())))

    listed: dict[tuple[str, str, str], tuple[str, str]] = {}
    for study, by_dataset in lists.items():
        for dataset, by_label in by_dataset.items():
            listed |= {(study, dataset, label): (model, baseline) for label, (model, baseline) in by_label.items()}
    pairs = []
    for (study, dataset, label), names in (listed | _declared(studies)).items():
        sides = [sample for name in names if (sample := side(study, dataset, name)) and sample.log_ppl]
        if len(sides) == len(names):
            pairs.append((study, Contrast(label, *sides)))
    named = families(pairs)
    return [replace(entry, note=notes.get(entry.study, {}).get(entry.contrast.setting.dataset, "")) for entry in named]


def _declared(studies: Iterable[FinishedStudy]) -> dict[tuple[str, str, str], tuple[str, str]]:
    """Return {(study, dataset, label): (model, baseline)} of the contrasts that the files of studies declare."""
    names = {}
    for study in studies:
        for dataset, contrast in itertools.product(study.datasets, study.contrasts.family if study.contrasts else ()):
            sides = (contrast.model, contrast.against)
            labels = [_head_label(run) for side in sides if (run := study.settings.get((dataset, side)))]
            if len(labels) == len(sides):
                label = " against ".join(labels) + ("" if contrast.same_size else f", {contrast.label}")
                names[study.study, dataset, label] = sides
    return names


def _head_label(run: Run) -> str:
    if run.head.options.get("components") == 1:
        return "tanh layer"
    declared = declarations().get(run.head.name)
    return declared.label if declared else run.model


def families(pairs: Sequence[tuple[str, Contrast]]) -> list[Named]:
    """Return the contrasts of pairs (study, contrast) with p-values after Holm's correction within each study."""
    named = []
    for study in dict.fromkeys(study for study, _ in pairs):
        family = [contrast for name, contrast in pairs if name == study]
        adjusted = holm([contrast.p for contrast in family])
        tests = sum(not math.isnan(p) for p in adjusted)
        named += [Named(study, contrast, p, tests) for contrast, p in zip(family, adjusted, strict=True)]
    return named
