"""What a view works with: an experiment of a study, the records, and the published numbers beside them.

A difference is computed only where a run's settings are those of config/paper.yaml for the same corpus and model;
elsewhere the published number stands beside the measured one, muted. A cell with missing seeds says how many there are
and what became of the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import pandas as pd

from softmax_bottleneck.heads.registry import declarations
from softmax_bottleneck.records import metrics, records
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.cells import Cell, Column, Gap, GapCode, Measured, Part, Published, crossed, mean_of
from softmax_bottleneck.store import paths
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import Column as Asked
from softmax_bottleneck.study import (
    Dataset,
    Experiment,
    Run,
    Study,
    canonical_json,
    did_you_mean,
    load_dataset,
    load_study,
)

PAPER_STUDY = paths.ROOT / "config" / "paper.yaml"
PUBLISHED = paths.ROOT / "report" / "published"
# Models that the papers quote and nobody here trains.
QUOTED = {
    "mos-yang2018": "MoS (as printed by Yang et al. 2018)",
    "moc-yang2018": "MoC (as printed by Yang et al. 2018)",
}
VALIDATION = (metrics.VALID_PPL, "valid_ppl_sound", "valid_ppl_static")
OF_OPTIMIZERS = {"switch_after_epoch": "et-asgd", "nonmonotone_window": "nt-asgd"}  # settings that one alone has
COVERAGE = (metrics.PAIRS, metrics.PAIRS_UNKNOWN)


# --- published numbers and settings ---------------------------------------------------------------------------------
@cache
def read_published(names: tuple[str, ...]) -> pd.DataFrame:
    """The published rows of an experiment's files, every cell as text (UserError for a file there is not)."""
    frames = []
    for name in names:
        path = PUBLISHED / name
        if not path.is_file():
            raise UserError(f"published: no file {path}{did_you_mean(name, [p.name for p in PUBLISHED.glob('*.csv')])}")
        frames.append(records.read_csv(path))
    columns = [column for column in records.COLUMNS if column not in ("seed", "run_id")]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns, dtype=str)


def published_dataset(dataset: Dataset) -> str:
    """The corpus of the published tables that stands beside this one; its own name when it declares none."""
    return str(dataset.published_as or dataset.stands_for or dataset.name)


@cache
def paper_study() -> Study | None:
    """The study with the published settings; None when the workflow is used without it."""
    return load_study(PAPER_STUDY) if PAPER_STUDY.is_file() else None


def same_setting(run: Run, paper: Study | None) -> bool:
    """Whether a run has the settings that config/paper.yaml gives this model on this corpus, whatever its seed."""
    published = paper.runs if paper else ()
    alike = (other for other in published if (other.dataset, other.model) == (run.dataset, run.model))
    return any(other.settings == run.settings for other in alike)


def besides_width(run: Run) -> str:
    """The settings of a run as text, without the width d of its word vectors, on which a context's may depend."""
    body = run.settings["body"]
    relative = {"embedding_size": 1, "context_size": body["context_size"] / body["embedding_size"]}
    return canonical_json(run.settings | {"body": body | relative})


def experiment_of(study: Study, name: str, kind: str) -> Experiment:
    """The study's table or figure with this id (UserError with the nearest id there is)."""
    known = {experiment.id: experiment for experiment in study.experiments if experiment.kind == kind}
    if name not in known:
        raise UserError(f"{study.file}: no {kind} {name!r} in this study{did_you_mean(name, list(known))}")
    return known[name]


def label(study: Study, model: str) -> str:
    """A model's name in tables and figures; of one not in the study, that of config/paper.yaml or of its head.

    A name that an earlier model of the study has too is followed by the key: `Softmax (kanai-softmax)`.
    """
    paper, declared = paper_study(), declarations().get(model)
    known = (study.labels, QUOTED, paper.labels if paper else {})
    name = next((labels[model] for labels in known if model in labels), declared.label if declared else model)
    first = next((other for other, shown in study.labels.items() if shown == name), model)
    return name if model in (first, name) or model not in study.labels else f"{name} ({model})"


@cache
def _shipped() -> Mapping[str, frozenset[tuple[str, str]]]:
    """The studies of this workflow on real text, the small one first: file -> (published corpus, model) of its runs."""
    files = [file for name in ("ptb-cpu", "paper") if (file := PAPER_STUDY.with_name(f"{name}.yaml")).is_file()]
    studies = {f"config/{file.name}": load_study(file) for file in files}
    return {
        name: frozenset(
            [(study.datasets[run.dataset].corpus, run.model) for run in study.runs]
            + [(dataset.corpus, search) for dataset in study.datasets.values() for search in study.searches]
        )
        for name, study in studies.items()
    }


def absent_model(corpus: str, model: str) -> Gap:
    """Return the gap of a model that a study lacks on a published corpus, with the study that has it."""
    if model in QUOTED:
        return Gap(GapCode.QUOTATION)
    files = [name for name, runs in _shipped().items() if (corpus, model) in runs]
    return Gap(GapCode.IN_OTHER_STUDY, (files[0],)) if files else Gap(GapCode.NOT_IN_STUDY)


def exact_value(found: Records, dataset: str, metric: str) -> float | None:
    """A known property of the language, the same in every run's records; None before the first run."""
    rows = found.rows[(found.rows["dataset"] == dataset) & (found.rows["metric"] == metric)]
    return None if rows.empty else float(rows["value"].iloc[0])


# --- the source -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Source:
    """An experiment of a study with the records and the published rows its cells come from."""

    study: Study
    experiment: Experiment
    records: Records
    published: pd.DataFrame = field(repr=False)
    paper: Study | None = None

    @classmethod
    def of(cls, study: Study, experiment: Experiment, found: Records) -> Source:
        """With the published files that the experiment names."""
        return cls(study, experiment, found, read_published(experiment.published), paper_study())

    # --- what is shown ---
    @property
    def datasets(self) -> tuple[str, ...]:
        """Its corpora."""
        return self.experiment.datasets

    @property
    def corpora(self) -> tuple[str, ...]:
        """Its corpora, then those of the published table that this study has not."""
        return (*self.datasets, *self.experiment.absent_datasets)

    @property
    def models(self) -> dict[str, str]:
        """Its models and their names."""
        return {model: self.label(model) for model in self.experiment.models}

    @property
    def rows(self) -> dict[str, str]:
        """Its models, then those of the published table that this study has not."""
        return self.models | {model: self.label(model) for model in self.experiment.absent}

    @property
    def absent_words(self) -> str:
        """Which published models and corpora this study has not, and which study has them; empty without any."""
        absent = [model for model in self.experiment.absent if self.label(model) != model]  # a grid's name is no label
        rows = [(self.label(model), [(name, model) for name in self.datasets]) for model in absent]
        far = [(self.dataset(d).title, [(d, model) for model in self.rows]) for d in self.experiment.absent_datasets]
        found: dict[str, list[str]] = {}
        for name, pairs in (*rows, *far):
            words = [str(absent_model(self.corpus(dataset), model)) for dataset, model in pairs]
            found.setdefault(max(words, key=len, default=GapCode.NOT_IN_STUDY.value), []).append(name)
        lines = [f"{', '.join(dict.fromkeys(names))} ({words})" for words, names in found.items()]
        return f"Published alone: {'; '.join(lines)}." if lines else ""

    @property
    def caption(self) -> str:
        """The experiment's, with the values of the runs that are shown (those of the paper where there is none)."""
        return re.sub(r"[{]([a-z_.]+)[}]", lambda key: self._said(key[1]), self.experiment.caption)

    def _said(self, key: str) -> str:
        if key == "corpora":
            return " and ".join(self.dataset(name).title for name in self.corpora[: len(self.datasets) or None])
        names, part, _, setting = {*self.rows}, *key.partition(".")
        runs = self.study.runs_of(self.experiment)
        if not runs and self.paper:
            corpora = {self.corpus(name) for name in self.corpora}
            beside = {name for name, one in self.paper.datasets.items() if published_dataset(one) in corpora}
            runs = tuple(run for run in self.paper.runs if run.model in names and run.dataset in beside)
        if setting in OF_OPTIMIZERS:
            runs = tuple(run for run in runs if run.schedule.optimizer == OF_OPTIMIZERS[setting])
        owners = [run.head.options if part == "head" else vars(getattr(run, part)) for run in runs]
        values = dict.fromkeys(owner[setting] for owner in owners if setting in owner)
        texts = [value.upper() if isinstance(value, str) else numbers.true_minus(f"{value:g}") for value in values]
        return ", ".join(texts) or "none"

    def dataset(self, name: str) -> Dataset:
        """A corpus of the study, or one of the published table that it has not."""
        return self.study.datasets.get(name) or load_dataset(name, self.study.file.resolve().parent)

    def label(self, model: str) -> str:
        """A model's name."""
        return label(self.study, model)

    @cached_property
    def kept_labels(self) -> dict[str, str]:
        """Names of the models trained elsewhere, as there; of those with one name all but the shortest key add it."""
        kept = {one.run.model: one.label or self.label(one.run.model) for one in self.records.evidence}
        plain = {name: model for model, name in sorted(kept.items(), key=lambda item: -len(item[0]))}
        return {model: name if plain[name] == model else f"{name} ({model})" for model, name in kept.items()}

    @cached_property
    def kept_families(self) -> dict[str, str]:
        """Models trained elsewhere -> of those alike in all but their width the one with the shortest name."""
        runs = sorted((one.run for one in self.records.evidence), key=lambda run: len(run.model))
        first: dict[str, str] = {}
        return {run.model: first.setdefault(besides_width(run), run.model) for run in runs}

    def heads(self, columns: Iterable[Asked]) -> dict[int, str]:
        """The number of every column and its head, the catalogue's label where the experiment gives none."""
        return {n: c.label or metrics.find(c.metric, c.stage).label for n, c in enumerate(columns)}

    def corpus(self, dataset: str) -> str:
        """The published corpus that stands beside one of the study."""
        return published_dataset(self.dataset(dataset))

    def published_title(self, dataset: str) -> str:
        """What the corpus is called whose published numbers stand beside one of the study."""
        titles = {published_dataset(one): one.title for one in (self.paper.datasets.values() if self.paper else ())}
        return titles.get(self.corpus(dataset), self.dataset(dataset).title)

    def is_published(self, dataset: str) -> bool:
        """Whether a corpus is itself a published one."""
        return bool(self.dataset(dataset).published_as)

    def is_language(self, dataset: str) -> bool:
        """Whether the law of a corpus is known."""
        return self.dataset(dataset).kind == "language"

    def part(
        self, dataset: str, rows: Mapping[str, str], columns: Mapping[Column, str], cell: Callable[[str, Column], Cell]
    ) -> Part:
        """Rows by columns of one corpus under its title, and that of the published numbers beside it."""
        title, published = self.dataset(dataset).title, self.published_title(dataset)
        if self.experiment.quotes and published != title:
            title = f"{title}; in the paper: {published}"
        return crossed(dataset, title, rows, columns, cell)

    # --- runs and their numbers ---
    @cached_property
    def _runs(self) -> dict[tuple[str, str], list[Run]]:
        runs: dict[tuple[str, str], list[Run]] = {}
        for run in self.study.runs_of(self.experiment):
            runs.setdefault((run.dataset, run.model), []).append(run)
        return runs

    def runs(self, dataset: str, model: str) -> list[Run]:
        """The runs this experiment needs of a model, in the plan's order."""
        return self._runs.get((dataset, model), [])

    def planned(self, dataset: str, model: str) -> list[int]:
        """Seeds of the runs this experiment needs of a model, in the plan's order."""
        return [run.seed for run in self.runs(dataset, model)]

    def values(self, dataset: str, model: str, metric: str, condition: str = "") -> dict[int, float]:
        """Measured values by seed, of the runs this experiment needs."""
        values = self.records.values(dataset, model, metric, condition)
        return {seed: values[seed] for seed in self.planned(dataset, model) if seed in values}

    def learned(self, dataset: str, model: str, metric: str) -> dict[int, float]:
        """`values` without the runs that learned no more than how frequent words are."""
        values = self.values(dataset, model, metric)
        return {seed: value for seed, value in values.items() if (dataset, model, seed) not in self.records.unlearned}

    def stopped(self, dataset: str, model: str) -> list[float]:
        """Validation perplexities at which diverged runs of this experiment were stopped."""
        found = self.records.stopped(dataset, model)
        return [found[seed] for seed in self.planned(dataset, model) if seed in found]

    @property
    def unlearned_note(self) -> str:
        """A sentence on this experiment's runs that learned nothing; empty without any."""
        runs = self.study.runs_of(self.experiment)
        labels = [self.study.labels[r.model] for r in runs if (r.dataset, r.model, r.seed) in self.records.unlearned]
        names = ", ".join(dict.fromkeys(labels))
        return f"Left out, since no better than unigram counts: {names}." if names else ""

    @cached_property
    def _same(self) -> dict[tuple[str, str], bool]:
        return {pair: all(same_setting(run, self.paper) for run in runs) for pair, runs in self._runs.items()}

    def same(self, dataset: str, *models: str) -> bool:
        """Whether all runs of these models have the published setting and the corpus is the published one."""
        return self.is_published(dataset) and all(self._same.get((dataset, model), False) for model in models)

    def gaps(self, dataset: str, model: str, have: Iterable[int], stage: str = "") -> tuple[Gap, ...]:
        """Return why planned seeds are not in a cell: `seed 3 diverged; seeds 4, 5 missing`."""
        planned, have = self.planned(dataset, model), set(have)
        if not planned and model in self.study.labels and dataset in self.study.datasets:
            return (Gap(GapCode.NOT_TRAINED),)
        if not planned:
            return (absent_model(self.corpus(dataset), model),)
        if have.issuperset(planned):
            return ()
        planned_states = self.records.planned(dataset, model, stage)
        states = dict(zip(*(planned_states[key] for key in ("seed", "state")), strict=True))
        absent: dict[str, list[int]] = {}
        for seed in planned:
            if seed not in have:
                state = states.get(seed, "not planned")
                absent.setdefault("not computed" if state == "ok" else state, []).append(seed)
        return tuple(Gap(GapCode.SEEDS, (numbers.seeds(seeds), state)) for state, seeds in absent.items())

    # --- published numbers ---
    @cached_property
    def _published_rows(self) -> dict[tuple[str, str, str], list[dict[str, str]]]:
        rows: dict[tuple[str, str, str], list[dict[str, str]]] = {}
        for row in self.published.to_dict("records"):
            words = {str(key): str(value) for key, value in row.items()}
            rows.setdefault((words["dataset"], words["model"], words["metric"]), []).append(words)
        return rows

    def find_published(
        self, corpus: str, model: str, metric: str, filters: Mapping[str, str] | None = None
    ) -> Published | None:
        """The published number of a model, under the name that `published_rows` gives it.

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
        return Published(*distinct[0]) if distinct else None

    def published_pair(self, dataset: str, model: str, *names: str) -> list[float]:
        """The published numbers of a model, or none where one of them is missing."""
        printed = [self.find_published(self.corpus(dataset), model, name) for name in names]
        values = [one.number for one in printed if one is not None and one.number is not None]
        return values if len(values) == len(names) else []

    # --- cells ---
    def blank(self, dataset: str, model: str, column: Asked, condition: str = "") -> Cell:
        """The cell of a metric with its published number and none measured."""
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

    def cell(self, dataset: str, model: str, column: Asked, condition: str = "") -> Cell:
        """The cell of a metric: the published number and the mean over the finished runs."""
        blank = self.blank(dataset, model, column, condition)
        values = self.values(dataset, model, column.metric, condition or column.stage)
        if column.metric == metrics.PARAMETERS_MILLIONS and len(set(values.values())) == 1:
            return replace(blank, measured=Measured(next(iter(values.values()))))  # the same for every seed
        gaps = self.gaps(dataset, model, values, column.stage)
        stopped = self.stopped(dataset, model) if column.metric in VALIDATION else []
        both = mean_of([*values.values(), *stopped]) if stopped else None
        note = f"{numbers.spread(both.mean, both.sd)} with diverged runs where they were stopped" if both else ""
        planned = len(self.planned(dataset, model))
        return replace(blank, measured=mean_of(values.values()), planned=planned, gaps=gaps, seeds=values, note=note)

    def benchmarks(self, dataset: str, metric: str = metrics.SPEARMAN) -> dict[str, str]:
        """Benchmarks with a published number, in their order, then others that were measured.

        The condition of their numbers -> their name.
        """
        rows = self.published[self.published["metric"] == metric]
        known = [text.split(";")[0] for text in rows[rows["dataset"] == self.corpus(dataset)]["condition"]]
        conditions = [*known, *self.records.conditions(metric, dataset)]
        return {condition: condition.removeprefix("benchmark=") for condition in conditions}

    def coverage(self, dataset: str, condition: str, metric: str) -> Cell:
        """A count that depends on the vocabulary alone, so that any run tells it."""
        rows = self.records.rows
        chosen = rows[(rows["dataset"] == dataset) & (rows["metric"] == metric) & (rows["condition"] == condition)]
        corpus = "wordsim" if metric == metrics.PAIRS else self.corpus(dataset)
        return Cell(
            measured=None if chosen.empty else Measured(float(chosen["value"].iloc[0])),
            published=self.find_published(corpus, "", metric, {"condition": f"^{re.escape(condition)}$"}),
            metric=metric,
            same=self.is_published(dataset),
            gaps=(Gap(GapCode.NOT_COUNTED),) if chosen.empty else (),
        )
