"""Published numbers, and table cells that show a study's measured numbers next to them.

The file of an experiment names the CSV files in report/published under `published`. The filters under `published` of a
column, and those under `published_rows` of a model, select the row of a cell (`Source.find_published`).

config/paper.yaml holds the published settings of each corpus and model. A cell shows the difference between the
measured and the published number only if the runs are on the published corpus and have the published settings; for a
gain or a reduction, the runs of both models. On the page, a row of a table has a line of published numbers, named
`paper`, above the line of measured numbers. If no cell of the row has such runs, the line is named `paper, full size`.
A cell with missing seeds states how many runs exist and why the others are missing.
"""

import re
from collections import ChainMap, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Annotated, Any

import pandas as pd
from pydantic import AfterValidator

from softmax_bottleneck.heads.registry import declaration, declarations
from softmax_bottleneck.records import metrics, records
from softmax_bottleneck.report import cells, numbers
from softmax_bottleneck.report.cells import Cell, MeasuredCell, PublishedCell, Section, mean_of
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import PUBLISHED, ROOT
from softmax_bottleneck.study import Column, Dataset, Run, Study, did_you_mean, load_dataset, load_study
from softmax_bottleneck.study.study_file import PlannedExperiment

PAPER_STUDY = ROOT / "config" / "paper.yaml"
# Models that the papers quote and nobody here trains.
QUOTED = {
    "mos-yang2018": "MoS (as printed by Yang et al. 2018)",
    "moc-yang2018": "MoC (as printed by Yang et al. 2018)",
}
SHORTEST_WORD = 4  # of a model's name that its label may show; shorter ones are abbreviations
NOT_IN_STUDY, BY_PAPER = "not in this study", "quoted by the paper itself"  # reasons of empty cells
OF_OPTIMIZERS = {"switch_after_epoch": "et-asgd", "nonmonotone_window": "nt-asgd"}  # settings of one optimizer alone


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
    """Return the rows of the named CSV files in report/published as one frame, file after file, all values as text.

    `names` are file names such as `kanai2018_table1.csv`. Without names, the frame has no rows. The columns are those
    of `records.COLUMNS` without `seed` and `run_id`.

    Raises:
        UserError: a file does not exist.
    """
    known = [path.name for path in PUBLISHED.glob("*.csv")]
    if unknown := next((name for name in names if name not in known), None):
        raise UserError(f"published: no file {PUBLISHED / unknown}{did_you_mean(unknown, known)}")
    frames = [records.read_csv(PUBLISHED / name) for name in names]
    columns = [column for column in records.COLUMNS if column not in ("seed", "run_id")]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns, dtype=str)


def published_dataset(dataset: Dataset) -> str:
    """Return the name of the published corpus whose numbers are compared with those of a dataset.

    For a published corpus the name is its `published_as`, for a proxy its `stands_for` (both in the dataset's YAML
    file), and for any other dataset its own name.
    """
    return str(dataset.published_as or dataset.stands_for or dataset.name)


@cache
def bundled_dataset(name: str) -> Dataset | None:
    """Return the dataset of config/datasets/`name`.yaml, or None if there is no such file."""
    is_bundled = (PAPER_STUDY.parent / "datasets" / f"{name}.yaml").is_file()
    return load_dataset(name, PAPER_STUDY.parent) if is_bundled else None


@cache
def paper_study() -> Study:
    """Return the study of config/paper.yaml, which has the published settings."""
    return load_study(PAPER_STUDY)


def same_setting(run: Run, name: str = "") -> bool:
    """Return True if a run has the settings that config/paper.yaml gives its model on its corpus, whatever its seed.

    `name` is the model's name in config/paper.yaml, by default the run's.
    """
    key = run.dataset, name or run.model
    published = (other for other in paper_study().runs if (other.dataset, other.model) == key)
    return any(other.settings == run.settings for other in published)


def label(study: Study, model: str) -> str:
    """Return the label of a model in tables and figures.

    The label comes from the first of these sources that has one: the study's YAML; QUOTED (models that nobody here
    trains); config/paper.yaml; the head that has the model's name. Without any, the label is the model's name. If an
    earlier model of the study has the same label, the first word of the model's name is appended, as in
    `Softmax (Kanai)` for `kanai-softmax`; or the whole name, if that word is a head's or does not tell models apart.
    """
    heads = {name: head.label for name, head in declarations().items()}
    known = ChainMap(dict(study.labels), QUOTED, dict(paper_study().labels), heads)
    name = known.get(model, model)
    same = [other for other, shown in study.labels.items() if shown == name]
    if model not in same[1:]:
        return name
    word = model.partition("-")[0]
    is_clear = word not in heads and [other for other in same if other.partition("-")[0] == word] == [model]
    return f"{name} ({word.capitalize() if is_clear and len(word) >= SHORTEST_WORD else model})"


def exact_value(results: records.Records, dataset: str, metric: str) -> float | None:
    """Return the value of a metric that depends only on a synthetic corpus and not on models, such as `entropy_ppl`.

    Every run on the corpus `dataset` records the same value. The result is None if no run has recorded it.
    """
    rows = results.rows[(results.rows["dataset"] == dataset) & (results.rows["metric"] == metric)]
    return None if rows.empty else float(rows["value"].iloc[0])


# --- an experiment's numbers ----------------------------------------------------------------------------------------
class Source:
    """An experiment of a study with the records and the published numbers from which its table or figure is made.

    Corpora and models are given by name; the argument `dataset` of the methods is the name of a corpus.

    Attributes:
        study, experiment, records: the study, its experiment, and the records of the study.
        published: a frame with a row per published number from the experiment's files in report/published, with the
            columns that `read_published` states; all values are text.
        datasets: the study's corpora for the experiment; proxies replace a published corpus that the study lacks.
        corpora: all of `datasets`, then the corpora in the experiment's YAML that the study lacks and has no proxy for.
        models: {model: label} of the models of the experiment that are in the study.
        published_names: {model: its name in report/published}; `published_rows` of the experiment may replace it.
        rows: {model: label} of all of `models`, then of the models in the experiment's YAML that the study lacks.
    """

    def __init__(self, study: Study, experiment: PlannedExperiment, results: records.Records) -> None:
        self.study, self.experiment, self.records = study, experiment, results
        self.published = read_published(experiment.published)
        self.datasets = experiment.datasets
        self.corpora = (*experiment.datasets, *experiment.absent_datasets)
        self.models = {model: label(study, model) for model in experiment.models}
        self._runs: dict[tuple[str, str], list[Run]] = defaultdict(list)
        for run in study.runs_of(experiment):
            self._runs[run.dataset, run.model].append(run)
        self._published: dict[tuple[str, str, str], list[dict[Any, str]]] = defaultdict(list)
        for row in self.published.to_dict("records"):
            self._published[row["dataset"], row["model"], row["metric"]].append(row)
        self.published_names = {model: self._published_name(model) for model in self.models}
        absent = [model for model in experiment.absent if model not in self.published_names.values()]
        self.rows = self.models | {model: label(study, model) for model in absent}
        self._same = {
            (dataset, model): all(same_setting(run, self.published_names[model]) for run in runs)
            for (dataset, model), runs in self._runs.items()
        }

    def _published_name(self, model: str) -> str:
        """Return the name of a model of the study in report/published.

        It is the model's own name. If neither the files nor config/paper.yaml have this name, and the experiment has no
        `published_rows`, it is the `published_as` of the model's head. For this, no other model may have that name or
        that head, and the head's options and the kind of body must be those of config/paper.yaml.
        """
        runs = {other: first for (_, other), (first, *_) in self._runs.items()}
        alike = [other for other, run in runs.items() if model in runs and run.head.name == runs[model].head.name]
        name = declaration(runs[model].head.name).published_as if alike == [model] else ""
        is_known = model in paper_study().labels or any(model == other for _, other, _ in self._published)
        if not name or name in self.models or is_known or self.experiment.published_rows:
            return model
        paper = [(run.head, run.body.kind) for run in paper_study().runs if run.model == name]
        return name if (runs[model].head, runs[model].body.kind) in paper else model

    @property
    def caption(self) -> str:
        """The experiment's caption, with its placeholders, such as `{schedule.epochs}`, replaced by settings.

        The settings are those of the experiment's runs. If the experiment has no runs in this study, they are those of
        config/paper.yaml.
        """
        runs = self.study.runs_of(self.experiment)
        if not runs:
            paper, corpora = paper_study(), {self.corpus(name) for name in self.corpora}
            published = {name for name, corpus in paper.datasets.items() if published_dataset(corpus) in corpora}
            runs = tuple(run for run in paper.runs if run.model in self.rows and run.dataset in published)

        def text(placeholder: re.Match[str]) -> str:  # `corpora`, or a setting like `schedule.epochs`
            if placeholder[1] == "corpora":
                return " and ".join(self.study.dataset(name).title for name in self.datasets or self.corpora)
            group, _, setting = placeholder[1].partition(".")
            optimizer = OF_OPTIMIZERS.get(setting)
            chosen = [run for run in runs if optimizer in (None, run.schedule.optimizer)]
            owners = [run.head.options if group == "head" else vars(getattr(run, group)) for run in chosen]
            values = dict.fromkeys(owner[setting] for owner in owners if setting in owner)
            texts = [value.upper() if isinstance(value, str) else numbers.true_minus(f"{value:g}") for value in values]
            return ", ".join(texts) or "none"

        return re.sub(r"[{]([a-z_.]+)[}]", text, self.experiment.caption)

    def corpus(self, dataset: str) -> str:
        """Return the name of the published corpus whose numbers are compared with those of this dataset.

        It is the name in report/published, for the published corpus itself and for its proxies. A dataset that is
        neither has its own name.
        """
        return published_dataset(self.study.dataset(dataset))

    def published_title(self, dataset: str) -> str:
        """Return the title of the published corpus whose numbers are compared with those of this dataset."""
        titles = {published_dataset(corpus): corpus.title for corpus in paper_study().datasets.values()}
        return titles.get(self.corpus(dataset), self.study.dataset(dataset).title)

    def is_published(self, dataset: str) -> bool:
        """Return True if papers publish numbers for this corpus itself, not only for one that it is a proxy for."""
        return bool(self.study.dataset(dataset).published_as)

    def section(self, dataset: str, rows: cells.Labels, columns: cells.Labels, cell: cells.CellOf) -> Section:
        """Return the section of a table for one corpus.

        The title of the section is the title of the corpus. If the published numbers belong to another corpus, the
        title of that corpus follows.

        Args:
            dataset: the corpus.
            rows: {key of a row: label}, such as {model: label}.
            columns: {key of a column: label}.
            cell: function `cell(row key, column key)` that returns the cell.
        """
        title, published = self.study.dataset(dataset).title, self.published_title(dataset)
        if self.experiment.quotes and published != title:
            title = f"{title}; in the paper: {published}"
        return cells.section(dataset, title, rows, columns, cell)

    # --- runs and their numbers ---
    def runs(self, dataset: str, model: str | None = None) -> list[Run]:
        """Return this experiment's runs of a model, or of all models, on a corpus, in the study's order."""
        if model is not None:
            return self._runs.get((dataset, model), [])
        return [run for run in self.study.runs_of(self.experiment) if run.dataset == dataset]

    def planned(self, dataset: str, model: str) -> list[int]:
        """Return the seeds of this experiment's runs of a model on a corpus, finished or not."""
        return [run.seed for run in self.runs(dataset, model)]

    def values(
        self, dataset: str, model: str, metric: str, condition: str = "", *, learned: bool = False
    ) -> dict[int, float]:
        """Return {seed: measured value} of a metric, for this experiment's runs of a model that have a value.

        Args:
            dataset: the corpus.
            model: the model.
            metric: the name of the metric.
            condition: the condition of the numbers in the records. For most metrics it is the stage: empty (training),
                `finetuned` or `dynamic`. For a metric with several numbers per run it selects one of them, such as
                `benchmark=WS-353`.
            learned: True to leave out runs that are hardly better than a unigram model (`Records.unlearned`).
        """
        values = self.records.values(dataset, model, metric, condition)
        unlearned = self.records.unlearned if learned else {}
        seeds = self.planned(dataset, model)
        return {seed: values[seed] for seed in seeds if seed in values and (dataset, model, seed) not in unlearned}

    @property
    def unlearned_note(self) -> str:
        """A sentence that lists the models with runs that are hardly better than a unigram model (`Records.unlearned`).

        Figures of ranks leave these runs out, and show the sentence. It is empty if the experiment has no such runs.
        """
        runs = self.study.runs_of(self.experiment)
        labels = [self.study.labels[r.model] for r in runs if (r.dataset, r.model, r.seed) in self.records.unlearned]
        names = ", ".join(dict.fromkeys(labels))
        return f"Left out, since no better than unigram counts: {names}." if names else ""

    def same(self, dataset: str, *models: str) -> bool:
        """Return True if the corpus is published and each model has runs, all of them with the published settings."""
        return self.is_published(dataset) and all(self._same.get((dataset, model), False) for model in models)

    def gaps(self, dataset: str, model: str, have: Iterable[int], stage: str = "") -> tuple[str, ...]:
        """Return the reasons why seeds have no number, such as ("seed 3 diverged", "seeds 4, 5 missing").

        Each text names the seeds that share one reason. The tuple is empty if every run has a number. If the experiment
        has no run of this model on this corpus, the tuple has one text without seeds, such as "not in this study".

        Args:
            dataset: the corpus.
            model: the model.
            have: the seeds of the runs that have a number.
            stage: the stage of the number: empty for training, `finetuned` or `dynamic`.
        """
        planned, have = self.planned(dataset, model), set(have)
        if not planned and model in self.study.labels and dataset in self.study.datasets:
            return ("not trained for this table",)
        if not planned:
            return (BY_PAPER if model in QUOTED else NOT_IN_STUDY,)
        if have.issuperset(planned):
            return ()
        states = self.records.planned(dataset, model, stage).set_index("seed")["state"].to_dict()
        absent: dict[str, list[int]] = {}
        for seed in (seed for seed in planned if seed not in have):
            state = states.get(seed, "not planned")
            absent.setdefault("not computed" if state == "ok" else state, []).append(seed)
        return tuple(f"{numbers.seeds(seeds)} {state}" for state, seeds in absent.items())

    # --- published numbers ---
    def find_published(
        self, corpus: str, model: str, metric: str, filters: Mapping[str, str] | None = None
    ) -> PublishedCell | None:
        """Return the published number of a model's metric on a published corpus; None if there is none.

        Args:
            corpus: name of the corpus in the files of report/published.
            model: name of the model in the study. If the experiment's `published_rows` has an entry for the model, that
                entry may give the model's name in the files, and filters that apply besides `filters`. Otherwise
                `_published_name` gives the name.
            metric: name of the metric in the files.
            filters: {column of the files: regular expression that its value must match}; by default no filters.

        Raises:
            UserError: the filters leave two rows that differ in the number, its standard deviation or its runs.
        """
        named = dict(self.experiment.published_rows.get(model, {}))
        rows = self._published.get((corpus, named.pop("model", self.published_names.get(model, model)), metric), [])
        patterns = [*named.items(), *(filters or {}).items()]
        chosen = [row for row in rows if all(re.search(pattern, row[column]) for column, pattern in patterns)]
        distinct = list(dict.fromkeys((row["value"], row["std"], row["n"]) for row in chosen))
        if len(distinct) > 1:
            names = ", ".join(sorted({f"{row['table']}: {row['condition']}" for row in chosen}))
            where = f"experiment {self.experiment.id}: {metric} of {model} on {corpus}"
            raise UserError(f"{where}: several published numbers fit ({names}); add `published` filters")
        return PublishedCell(*distinct[0]) if distinct else None

    # --- cells ---
    def column_labels(self, columns: Iterable[Column]) -> dict[int, str]:
        """Return {index of a column, from 0: heading}; the heading is the label of the column or of its metric."""
        return {n: c.label or metrics.find(c.metric, c.stage).label for n, c in enumerate(columns)}

    def blank(self, dataset: str, model: str, column: Column, condition: str = "") -> Cell:
        """Return a cell with the published number, if there is one, and without a measured number.

        Of the published numbers for the model, corpus and metric, the filters `column.published` select at most one.
        They are {column of `self.published`: regular expression}, such as `{table: "^Table 2$"}`.

        Args:
            dataset: the corpus.
            model: the model.
            column: the column of the table, which gives the metric, the filters and the number of decimals.
            condition: for a metric with several numbers per run, the condition of one, such as `benchmark=WS-353`. It
                selects published numbers with this condition, alone or with an addition (`benchmark=WS-353;ET-ASGD`).

        Raises:
            UserError: as in `find_published`.
        """
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

    def cell(self, dataset: str, model: str, column: Column, condition: str = "") -> Cell:
        """Return a cell that has the published number and the mean of the measured numbers of all finished runs.

        `column` gives the metric and the stage of the measured numbers. For a metric with several numbers per run, set
        `condition` to the condition of one of them, such as `benchmark=WS-353`. `blank` finds the published number.
        """
        blank = self.blank(dataset, model, column, condition)
        values = self.values(dataset, model, column.metric, condition or column.stage)
        if column.metric == metrics.PARAMETERS_MILLIONS and len(set(values.values())) == 1:
            return replace(blank, measured=MeasuredCell(next(iter(values.values()))))  # the same for every seed
        gaps, planned = self.gaps(dataset, model, values, column.stage), len(self.planned(dataset, model))
        is_adapted = column.stage == records.DYNAMIC and column.metric in (metrics.VALID_PPL, metrics.TEST_PPL)
        note = self._dynamic_warning(dataset, model) if is_adapted and values else ""
        return replace(blank, measured=mean_of(values.values()), planned=planned, gaps=gaps, seeds=values, note=note)

    def _dynamic_warning(self, dataset: str, model: str) -> str:
        """Return a warning about doubtful choices of dynamic evaluation, or "" (see `Records.dynamic_doubts`)."""
        doubts = self.records.dynamic_doubts(dataset, model)
        at_edge = f"{doubts.at_edge} of {doubts.runs} choices on an edge of the grid" if doubts.at_edge else ""
        damaged = f"{doubts.damaging} of {doubts.runs} improve validation and damage test" if doubts.damaging else ""
        return "; ".join(filter(None, [at_edge, damaged]))
