"""Published numbers, and cells that place measured numbers of a study beside them.

A difference is computed only where a run's settings are those of config/paper.yaml for the same corpus and model;
elsewhere the published number stands beside the measured one, muted. A cell with missing seeds says how many there are
and what became of the others.
"""

import re
from collections import ChainMap, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, cached_property
from typing import Annotated, Any

import pandas as pd
from pydantic import AfterValidator

from softmax_bottleneck.heads.registry import declarations
from softmax_bottleneck.measuring import statistics
from softmax_bottleneck.records import metrics, records
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report import cells, numbers
from softmax_bottleneck.report.cells import Cell, MeasuredCell, PublishedCell, Section, mean_of
from softmax_bottleneck.store import paths
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import Column as ColumnSpec
from softmax_bottleneck.study import Dataset, Experiment, Run, Study, did_you_mean, load_dataset, load_study

PAPER_STUDY = paths.ROOT / "config" / "paper.yaml"
PUBLISHED = paths.ROOT / "report" / "published"
# Models that the papers quote and nobody here trains.
QUOTED = {
    "mos-yang2018": "MoS (as printed by Yang et al. 2018)",
    "moc-yang2018": "MoC (as printed by Yang et al. 2018)",
}
NOT_IN_STUDY, BY_PAPER = "not in this study", "quoted by the paper itself"  # reasons of empty cells
VALIDATION = (metrics.VALID_PPL, "valid_ppl_sound", "valid_ppl_static")
OF_OPTIMIZERS = {"switch_after_epoch": "et-asgd", "nonmonotone_window": "nt-asgd"}  # settings that one alone has


def _known_metric(name: str) -> str:
    try:
        metrics.find(name)
    except UserError as error:
        raise ValueError(str(error)) from None
    return name


MetricName = Annotated[str, AfterValidator(_known_metric)]  # as an option of a view


# --- published numbers and settings ---------------------------------------------------------------------------------
@cache
def read_published(names: tuple[str, ...]) -> pd.DataFrame:
    """Return the rows of files in report/published, every cell as text (UserError for an unknown file)."""
    frames = []
    for name in names:
        path = PUBLISHED / name
        if not path.is_file():
            raise UserError(f"published: no file {path}{did_you_mean(name, [p.name for p in PUBLISHED.glob('*.csv')])}")
        frames.append(records.read_csv(path))
    columns = [column for column in records.COLUMNS if column not in ("seed", "run_id")]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns, dtype=str)


def published_dataset(dataset: Dataset) -> str:
    """Return the corpus of the published tables that a corpus stands for; its own name when it declares none."""
    return str(dataset.published_as or dataset.stands_for or dataset.name)


@cache
def paper_study() -> Study:
    """Return the study with the published settings."""
    return load_study(PAPER_STUDY)


def same_setting(run: Run) -> bool:
    """Return True if a run has the settings that config/paper.yaml gives its model on its corpus, whatever its seed."""
    published = (other for other in paper_study().runs if (other.dataset, other.model) == (run.dataset, run.model))
    return any(other.settings == run.settings for other in published)


def label(study: Study, model: str) -> str:
    """Return a model's name in tables and figures; for one not in the study that of config/paper.yaml or its head.

    A name that an earlier model of the study has too is followed by the key: `Softmax (kanai-softmax)`.
    """
    heads = {name: head.label for name, head in declarations().items()}
    known = ChainMap(dict(study.labels), QUOTED, dict(paper_study().labels), heads)
    name = known.get(model, model)
    first = next((other for other, shown in study.labels.items() if shown == name), model)
    return name if model in (first, name) or model not in study.labels else f"{name} ({model})"


def exact_value(results: Records, dataset: str, metric: str) -> float | None:
    """Return a known property of a synthetic language, the same in every run's records; None before the first run."""
    rows = results.rows[(results.rows["dataset"] == dataset) & (results.rows["metric"] == metric)]
    return None if rows.empty else float(rows["value"].iloc[0])


# --- an experiment's numbers ----------------------------------------------------------------------------------------
class Source:
    """An experiment of a study with the records and the published rows from which its cells are built.

    Attributes:
        datasets: its corpora.
        corpora: its corpora, then those of the published table that this study lacks.
        models: its models and their names.
        rows: its models, then those of the published table that this study lacks, and their names.
    """

    def __init__(self, study: Study, experiment: Experiment, results: Records) -> None:
        self.study, self.experiment, self.records = study, experiment, results
        self.published = read_published(experiment.published)
        self.datasets = experiment.datasets
        self.corpora = (*experiment.datasets, *experiment.absent_datasets)
        self.models = {model: label(study, model) for model in experiment.models}
        self.rows = self.models | {model: label(study, model) for model in experiment.absent}
        self._runs: dict[tuple[str, str], list[Run]] = defaultdict(list)
        for run in study.runs_of(experiment):
            self._runs[run.dataset, run.model].append(run)

    @property
    def published_alone(self) -> str:
        """A sentence on the published models and corpora that this study lacks; empty without any."""
        absent = [self.rows[model] for model in self.experiment.absent if self.rows[model] != model]  # no grid's names
        absent += [self.dataset(name).title for name in self.experiment.absent_datasets]
        return f"Published alone: {', '.join(dict.fromkeys(absent))}." if absent else ""

    @property
    def caption(self) -> str:
        """The experiment's, with the settings of the runs that are shown (of the paper's where there are none)."""
        return re.sub(r"[{]([a-z_.]+)[}]", lambda key: self._setting(key[1]), self.experiment.caption)

    def _setting(self, key: str) -> str:
        """Return the values of `corpora` or of a setting like `schedule.epochs` as text."""
        if key == "corpora":
            return " and ".join(self.dataset(name).title for name in self.corpora[: len(self.datasets) or None])
        group, _, setting = key.partition(".")
        runs = self.study.runs_of(self.experiment)
        if not runs:
            paper, corpora = paper_study(), {self.corpus(name) for name in self.corpora}
            published = {name for name, corpus in paper.datasets.items() if published_dataset(corpus) in corpora}
            runs = tuple(run for run in paper.runs if run.model in self.rows and run.dataset in published)
        if setting in OF_OPTIMIZERS:
            runs = tuple(run for run in runs if run.schedule.optimizer == OF_OPTIMIZERS[setting])
        owners = [run.head.options if group == "head" else vars(getattr(run, group)) for run in runs]
        values = dict.fromkeys(owner[setting] for owner in owners if setting in owner)
        texts = [value.upper() if isinstance(value, str) else numbers.true_minus(f"{value:g}") for value in values]
        return ", ".join(texts) or "none"

    def dataset(self, name: str) -> Dataset:
        """Return a corpus of the study, or one of the published table that the study lacks."""
        return self.study.datasets.get(name) or load_dataset(name, self.study.file.resolve().parent)

    def corpus(self, dataset: str) -> str:
        """Return the published corpus that stands beside one of the study."""
        return published_dataset(self.dataset(dataset))

    def published_title(self, dataset: str) -> str:
        """Return the title of the corpus whose published numbers stand beside one of the study."""
        titles = {published_dataset(corpus): corpus.title for corpus in paper_study().datasets.values()}
        return titles.get(self.corpus(dataset), self.dataset(dataset).title)

    def is_published(self, dataset: str) -> bool:
        """Return True if a corpus is itself a published one."""
        return bool(self.dataset(dataset).published_as)

    def section(
        self,
        dataset: str,
        rows: Mapping[str, str],
        columns: Mapping[cells.Column, str],
        cell: Callable[[str, cells.Column], Cell],
    ) -> Section:
        """Return rows by columns of one corpus under its title, and that of the published numbers beside it."""
        title, published = self.dataset(dataset).title, self.published_title(dataset)
        if self.experiment.quotes and published != title:
            title = f"{title}; in the paper: {published}"
        return cells.section(dataset, title, rows, columns, cell)

    # --- runs and their numbers ---
    def runs(self, dataset: str, model: str) -> list[Run]:
        """Return the runs this experiment needs of a model, in the plan's order."""
        return self._runs.get((dataset, model), [])

    def runs_on(self, dataset: str) -> list[Run]:
        """Return the runs this experiment needs on a corpus, in the plan's order."""
        return [run for run in self.study.runs_of(self.experiment) if run.dataset == dataset]

    def planned(self, dataset: str, model: str) -> list[int]:
        """Return the seeds of these runs."""
        return [run.seed for run in self.runs(dataset, model)]

    def values(
        self, dataset: str, model: str, metric: str, condition: str = "", *, learned: bool = False
    ) -> dict[int, float]:
        """Return measured values by seed; with `learned` only those of runs better than a unigram model."""
        values = self.records.values(dataset, model, metric, condition)
        unlearned = self.records.unlearned if learned else {}
        seeds = self.planned(dataset, model)
        return {seed: values[seed] for seed in seeds if seed in values and (dataset, model, seed) not in unlearned}

    @property
    def unlearned_note(self) -> str:
        """A sentence on this experiment's runs that are no better than a unigram model; empty without any."""
        runs = self.study.runs_of(self.experiment)
        labels = [self.study.labels[r.model] for r in runs if (r.dataset, r.model, r.seed) in self.records.unlearned]
        names = ", ".join(dict.fromkeys(labels))
        return f"Left out, since no better than unigram counts: {names}." if names else ""

    @cached_property
    def _same(self) -> dict[tuple[str, str], bool]:
        return {pair: all(map(same_setting, runs)) for pair, runs in self._runs.items()}

    def same(self, dataset: str, *models: str) -> bool:
        """Return True if all runs of these models have the published setting and the corpus is the published one."""
        return self.is_published(dataset) and all(self._same.get((dataset, model), False) for model in models)

    def gaps(self, dataset: str, model: str, have: Iterable[int], stage: str = "") -> tuple[str, ...]:
        """Return why planned seeds are not in a cell: `seed 3 diverged; seeds 4, 5 missing`."""
        planned, have = self.planned(dataset, model), set(have)
        if not planned and model in self.study.labels and dataset in self.study.datasets:
            return ("not trained for this table",)
        if not planned:
            return (BY_PAPER if model in QUOTED else NOT_IN_STUDY,)
        if have.issuperset(planned):
            return ()
        planned_states = self.records.planned(dataset, model, stage)
        states = dict(zip(planned_states["seed"], planned_states["state"], strict=True))
        absent: dict[str, list[int]] = {}
        for seed in planned:
            if seed not in have:
                state = states.get(seed, "not planned")
                absent.setdefault("not computed" if state == "ok" else state, []).append(seed)
        return tuple(f"{numbers.seeds(seeds)} {state}" for state, seeds in absent.items())

    # --- published numbers ---
    @cached_property
    def _published_rows(self) -> dict[tuple[str, str, str], list[dict[Any, str]]]:
        rows: dict[tuple[str, str, str], list[dict[Any, str]]] = defaultdict(list)
        for row in self.published.to_dict("records"):
            rows[row["dataset"], row["model"], row["metric"]].append(row)
        return rows

    def find_published(
        self, corpus: str, model: str, metric: str, filters: Mapping[str, str] | None = None
    ) -> PublishedCell | None:
        """Return the published number of a model, under the name that `published_rows` gives it.

        `filters` are regular expressions on the published columns.

        Raises:
            UserError: two different published numbers fit; the experiment's filters must choose.
        """
        named = dict(self.experiment.published_rows.get(model, {}))
        rows = self._published_rows.get((corpus, named.pop("model", model), metric), [])
        patterns = [*named.items(), *(filters or {}).items()]
        chosen = [row for row in rows if all(re.search(pattern, row[column]) for column, pattern in patterns)]
        distinct = list(dict.fromkeys((row["value"], row["std"], row["n"]) for row in chosen))
        if len(distinct) > 1:
            names = ", ".join(sorted({f"{row['table']}: {row['condition']}" for row in chosen}))
            where = f"experiment {self.experiment.id}: {metric} of {model} on {corpus}"
            raise UserError(f"{where}: several published numbers fit ({names}); add `published` filters")
        return PublishedCell(*distinct[0]) if distinct else None

    # --- cells ---
    def column_labels(self, columns: Iterable[ColumnSpec]) -> dict[int, str]:
        """Return the number of every column and its head, the catalogue's label where the experiment gives none."""
        return {n: c.label or metrics.find(c.metric, c.stage).label for n, c in enumerate(columns)}

    def blank(self, dataset: str, model: str, column: ColumnSpec, condition: str = "") -> Cell:
        """Return the cell of a metric with its published number and none measured."""
        filters = dict(column.published)
        if condition:
            filters["condition"] = f"^{re.escape(condition)}(?:;|$)"
        return Cell(
            published=self.find_published(self.corpus(dataset), model, column.published_as or column.metric, filters),
            digits=column.digits,
            metric=column.metric,
            stage=column.stage,
            same=self.same(dataset, model),
            runs=f"{dataset}/{model}",
            wanted=column.measured,
        )

    def cell(self, dataset: str, model: str, column: ColumnSpec, condition: str = "") -> Cell:
        """Return the cell of a metric: the published number and the mean over the finished runs."""
        blank = self.blank(dataset, model, column, condition)
        values = self.values(dataset, model, column.metric, condition or column.stage)
        if column.metric == metrics.PARAMETERS_MILLIONS and len(set(values.values())) == 1:
            return replace(blank, measured=MeasuredCell(next(iter(values.values()))))  # the same for every seed
        planned, note = self.planned(dataset, model), ""
        stopped = self.records.stopped(dataset, model) if column.metric in VALIDATION else {}
        if diverged := [stopped[seed] for seed in planned if seed in stopped]:
            both = statistics.Summary.of([*values.values(), *diverged])
            note = f"{numbers.spread(both.mean, both.sd)} with diverged runs where they were stopped"
        return replace(
            blank,
            measured=mean_of(values.values()),
            planned=len(planned),
            gaps=self.gaps(dataset, model, values, column.stage),
            seeds=values,
            note=note,
        )
