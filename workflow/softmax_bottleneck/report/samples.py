"""Samples: all archived runs of a model, pooled over studies and machines, at the learning rate that the rules choose.

A setting is a corpus, a body without its inner widths, and a schedule without its learning rate. Every head has its own
learning rate, chosen by validation perplexity. The runs of all studies are pooled, and a seed that ran on two machines
counts once. docs/results.md states the rules under "How numbers become conclusions".
"""

import json
import math
import statistics
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from softmax_bottleneck.heads.registry import declarations
from softmax_bottleneck.records.metrics import TEST_PPL, VALID_PPL
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.report.source import bundled_dataset
from softmax_bottleneck.statistics.intervals import INF
from softmax_bottleneck.statistics.pooled import Choice, choose, confirmed, per_seed
from softmax_bottleneck.study import Run, canonical_json

SHAPE = ("hidden_size", "context_size")  # of a body; they make up for the parameters of a head
RATE, WIDTH, SECONDS = "learning_rate", "embedding_size", "sec_per_epoch"
# Archives whose seconds do not count: their processor is a newer one than that of the other archives with its name.
UNTIMED = {"tuned-amd-epyc", "tuned-second-amd-epyc"}
SMALL = ", small"  # ends the title of a cut; within a sentence, "small" comes first
NAMES = {"awd-lstm": "", "transformer": "Transformer", "et-asgd": "", "plateau-sgd": "", "nt-asgd": "NT-ASGD"}


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
        title: the title of the dataset as it reads within a sentence, which may differ between archives.
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
        values, width, epochs = self.values, f"d = {self.width}", f"{self.values['epochs']} epochs"
        details = [NAMES.get(values[key], values[key]) for key in ("kind", "optimizer")]
        details += [f"noise {values['embedding_noise']:g}"] if values["embedding_noise"] else []
        details += ["tied"] if values["tied"] and not self.is_lstm else []
        parts = ([self.title, *sizes, *details] for sizes in ([], [width], [epochs], [width, epochs]))
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
        searched: {learning rate: {number of the search: log validation perplexity}} of the searches for its rate.
        search_seeds: the seeds of these searches.
        left_out: the seeds that chose other settings of the model.
    """

    model: Model
    runs: Sequence[TrainedRun]
    searched: Mapping[float, Mapping[int, float]] = field(default_factory=dict)
    search_seeds: frozenset[int] = frozenset()
    left_out: frozenset[int] = frozenset()

    def logs(self, metric: str, rate: float, without: Set[int] = frozenset()) -> dict[int, float]:
        """Return {seed: logarithm of a metric} at a learning rate, without some seeds; inf for a diverged run."""
        runs = [run for run in self.runs if run.rate == rate and run.seed not in self.left_out | without]
        return per_seed((run.seed, run.machine, math.log(run.values.get(metric, INF))) for run in runs)

    @cached_property
    def choice(self) -> Choice:
        """The learning rate with the lowest validation perplexity; diverged runs count as infinitely bad.

        If a study searched it, the search decides among the rates that have runs, unless three or more other seeds
        validate better at another rate. The search's seeds are not compared if three others are. Other rates count as
        tried.
        """
        logs = {rate: self.logs(VALID_PPL, rate) for rate in {run.rate for run in self.runs}}
        # A rate may have only seeds that are left out.
        losses = {rate: by_seed for rate, by_seed in logs.items() if by_seed}
        tried = tuple(sorted({*logs, *self.searched}))
        if searched := {rate: of_rate for rate, of_rate in self.searched.items() if rate in losses}:
            of_others = {rate: self.logs(VALID_PPL, rate, self.search_seeds) for rate in losses}
            return Choice(confirmed(choose(searched).value, of_others), tried, self.search_seeds)
        return replace(choose(losses), tried=tried) if losses else Choice(tried[0], tried, frozenset())

    @cached_property
    def log_ppl(self) -> dict[int, float]:
        """{seed: log test perplexity} at the chosen learning rate, without the seeds that the choice can spare."""
        values = self.logs(TEST_PPL, self.choice.value)
        return {seed: values[seed] for seed in self.choice.compared(values) if math.isfinite(values[seed])}

    @property
    def n_diverged(self) -> int:
        """The number of compared seeds that diverged at the chosen learning rate."""
        values = self.logs(TEST_PPL, self.choice.value)
        return sum(math.isinf(values[seed]) for seed in self.choice.compared(values))

    @property
    def ppl(self) -> float:
        """The geometric mean of the compared test perplexities, or nan without any."""
        return math.exp(statistics.fmean(self.log_ppl.values())) if self.log_ppl else math.nan

    def mean(self, metric: str) -> float:
        """Return the geometric mean of a positive metric over all seeds at the chosen rate, or nan if none has it.

        Several runs of a seed count once, with their geometric mean.
        """
        runs = [run for run in self.runs if run.rate == self.choice.value and metric in run.values]
        logs = per_seed((run.seed, "", math.log(run.values[metric])) for run in runs)
        return math.exp(statistics.fmean(logs.values())) if logs else math.nan

    @cached_property
    def seconds(self) -> dict[str, list[float]]:
        """{machine with its threads: seconds per epoch of the runs at all learning rates, in ascending order}."""
        timed = [(run.machine, run.values[SECONDS]) for run in self.runs if SECONDS in run.values]
        machines = sorted({machine for machine, _ in timed})
        return {name: sorted(seconds for machine, seconds in timed if machine == name) for name in machines}


def pool_runs(studies: Iterable[FinishedStudy]) -> dict[Model, Sample]:
    """Return {model: its sample} of all finished runs whose settings are known."""
    runs_of: dict[Model, dict[Hashable, TrainedRun]] = {}
    searches_of: dict[Model, list[Sequence[Mapping[str, Any]]]] = {}
    for study in studies:
        for choice in study.tuned:
            if searched := study.settings.get((choice["dataset"], choice["model"])):
                searches_of.setdefault(model_of(searched), []).append(choice["curve"])
        for model, key, run in _trained_runs(study):
            runs_of.setdefault(model, {})[key] = run
    return {model: _sample(model, [*runs.values()], searches_of.get(model, ())) for model, runs in runs_of.items()}


def _sample(model: Model, runs: Sequence[TrainedRun], searches: Sequence[Sequence[Mapping[str, Any]]]) -> Sample:
    """Return the sample of a model from its runs and from the trials of its searches (`archive_file.Choice`).

    Only trials that vary nothing but the learning rate decide it. A diverged trial has the log perplexity inf. A seed
    is the first number in the last part of a run's path, such as 1 in `ptb/mos/1-0123456789ab`.
    """
    searched: dict[float, dict[int, float]] = {}
    for number, trials in enumerate(searches):
        for trial in trials:
            if trial["point"].keys() == {f"schedule.{RATE}"}:
                (rate,), ppl = trial["point"].values(), trial.get("valid_ppl")
                searched.setdefault(float(rate), {})[number] = math.log(ppl) if ppl else INF
    paths = (path for trials in searches for trial in trials for path in trial["runs"])
    seeds = frozenset(int(path.rpartition("/")[2].partition("-")[0]) for path in paths)
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
        if run is None or not (TEST_PPL in metrics or state["state"] == "diverged"):
            continue
        if (data := bundled_dataset(run.dataset)) and data.repeat:
            continue  # its tokens never occur in train, so that its test perplexity says nothing
        if study.name in UNTIMED:
            metrics = {metric: value for metric, value in metrics.items() if metric != SECONDS}
        machine, rate = f"{state['hardware']}, {run.threads} threads", run.schedule.learning_rate
        trained = TrainedRun(study=study.name, seed=int(state["seed"]), machine=machine, rate=rate, values=metrics)
        model = model_of(run, study.title_of(run.dataset), run.dataset in synthetic)
        yield model, (state["run_id"], machine, metrics.get(SECONDS)), trained


def model_of(run: Run, title: str = "", is_synthetic: bool = False) -> Model:
    """Return the model of a run, whatever its seed and learning rate."""
    body, schedule = asdict(run.body), asdict(run.schedule)
    shape = tuple(body.pop(name) for name in SHAPE)
    del schedule[RATE]
    title = title.removeprefix("The ")
    title = title[:1].upper() + title[1:]
    title = f"small {title.removesuffix(SMALL)}" if title.endswith(SMALL) else title
    setting = Setting(run.dataset, canonical_json(body), canonical_json(schedule), title, is_synthetic)
    declared = declarations().get(run.head.name)
    defaults = declared.defaults if declared else {}
    return Model(setting, run.head.name, canonical_json(defaults | dict(run.head.options)), shape)


# --- the samples of a setting -------------------------------------------------------------------------------------
def settings_of(pool: Iterable[Model]) -> list[Setting]:
    """Return all settings: natural text first, then LSTMs, then by corpus, longer training and larger widths first."""

    def order(setting: Setting) -> tuple[Any, ...]:
        kind = (setting.is_synthetic, not setting.is_lstm, corpus_of(setting.dataset), setting.dataset)
        return *kind, -setting.width, -setting.values["epochs"], setting.body, setting.schedule

    return sorted({model.setting for model in pool}, key=order)


def pick(pool: Mapping[Model, Sample], setting: Setting, head: Mapping[str, Any], size: float = 0.0) -> Sample | None:
    """Return the sample of a head in a setting, or None.

    Args:
        pool: all samples.
        setting: the setting.
        head: the name of the head (`name`), and the options that it must have. A list gives several values in order of
            preference; the first that the setting has is taken.
        size: number of parameters; of several inner widths, the one nearest to it is taken (default: the smallest).
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
