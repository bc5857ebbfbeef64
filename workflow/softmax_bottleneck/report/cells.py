"""Cells of tables: measured records joined with published numbers, and what a view works with.

A difference is computed only where a run's settings are those of config/paper.yaml for the same corpus and model;
elsewhere the published number stands beside the measured one, muted. A cell with missing seeds says how many there are
and what became of the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import pandas as pd

from softmax_bottleneck.heads.registry import declarations
from softmax_bottleneck.measuring import statistics
from softmax_bottleneck.records import records
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.store import paths
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import Column, Dataset, Experiment, Run, Study, did_you_mean, load_study

PAPER_STUDY = paths.ROOT / "config" / "paper.yaml"
PUBLISHED = paths.ROOT / "report" / "published"
DASH = "—"
SEEDS_NAMED = 4  # in a cell; more are counted

# A p-value is not a mean over runs; these metrics compare the runs of two models.
TESTS = {"p_value": statistics.student_t, "p_value_welch": statistics.welch_t}
FIXED = frozenset({"params_m"})  # facts of a model, the same for every seed
GAIN = re.compile(r"^(?P<metric>.+)_gain_vs_(?P<baseline>.+)$")
REDUCTION = re.compile(r"^(?P<metric>.+)_reduction_pct$")  # relative to the baseline of the experiment


# --- cells ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Published:
    """A published number as it was printed."""

    value: str
    sd: str = ""
    n: str = ""

    @property
    def number(self) -> float | None:
        """The value as a number; None where the paper prints words (N/A)."""
        return _number(self.value)

    @property
    def text(self) -> str:
        """Value and standard deviation as printed."""
        return f"{self.value} ± {self.sd}" if self.sd else self.value

    @property
    def typeset(self) -> str:
        """The text, with true minus signs where it is a number."""
        return self.text if self.number is None else self.text.replace("-", "−")


@dataclass(frozen=True)
class Measured:
    """Mean over runs, sample standard deviation (None below two runs) and number of runs (0: not a mean over runs)."""

    mean: float
    sd: float | None = None
    n: int = 0


@dataclass(frozen=True)
class Cell:
    """One number, measured and published.

    Attributes:
        planned: how many runs should be in the mean.
        same: the runs have the published setting, so that a difference means something.
        gap: why there are fewer runs than planned, or no number, in words.
        note: further words below the number.
        words: what is shown instead of a number.
        runs: `<dataset>/<model>` whose runs are in the cell; empty when it comes from no run.
        seeds: the values of single runs behind the mean, by seed.
        wanted: whether a measured value belongs here (False: a published quotation only).
    """

    measured: Measured | None = None
    published: Published | None = None
    digits: int = 2
    is_p: bool = False
    planned: int = 0
    same: bool = False
    gap: str = ""
    note: str = ""
    runs: str = ""
    seeds: Mapping[int, float] = field(default_factory=dict)
    wanted: bool = True
    words: str = ""

    @property
    def text(self) -> str:
        """The measured mean with its standard deviation, or the words that stand in its place."""
        if self.measured is None:
            return self.words or DASH
        mean = self.format(self.measured.mean)
        return mean if self.measured.sd is None else f"{mean} ± {self.format(self.measured.sd)}"

    @property
    def count(self) -> str:
        """`n 3`, or `n 2/3` when runs are missing."""
        have = self.measured.n if self.measured else 0
        if not self.planned or not self.wanted:
            return ""
        return f"n {have}" if have == self.planned else f"n {have}/{self.planned}"

    @property
    def difference(self) -> float | None:
        """Measured minus published, where the setting is the same and both numbers exist; not of p-values."""
        if (
            self.is_p
            or not (self.same and self.wanted and self.measured and self.published)
            or self.published.number is None
        ):
            return None
        return self.measured.mean - self.published.number

    @property
    def difference_text(self) -> str:
        """The difference with its sign, or a dash."""
        value = self.difference
        return DASH if value is None else self.format(value, signed=True)

    @property
    def inside(self) -> bool | None:
        """Whether the difference lies inside the published standard deviation; None when that cannot be said."""
        spread = _number(self.published.sd) if self.published else None
        return None if self.difference is None or spread is None else abs(self.difference) <= spread

    def format(self, value: float, *, signed: bool = False) -> str:
        """A number at the cell's decimals, with a true minus sign."""
        if self.is_p:
            return statistics.format_p(value).replace("-", "−")
        text = f"{value:{'+' if signed else ''}.{self.digits}f}"
        text = text.lstrip("+-") if float(text) == 0 else text
        return text.replace("-", "−")


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Row:
    """A row: what it is (a model or a benchmark) and its cells, one per column of the part."""

    key: str
    label: str
    cells: tuple[Cell, ...]

    @property
    def same(self) -> bool:
        """Whether some cell of the row may be compared with its published number."""
        return any(cell.same for cell in self.cells)

    @property
    def compared(self) -> bool:
        """Whether differences have a line of their own; words have none."""
        return any(cell.same and not cell.words for cell in self.cells)

    @property
    def has_published(self) -> bool:
        """Whether some cell of the row has a published number."""
        return any(cell.published for cell in self.cells)


@dataclass(frozen=True)
class Part:
    """The rows of one corpus."""

    dataset: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A whole table, one part per corpus.

    Attributes:
        note: what this study cannot show of it.
        origin: what its own lines are called beside those of the paper.
    """

    id: str
    source: str
    artefact: str
    title: str
    caption: str
    head: str
    parts: tuple[Part, ...]
    note: str = ""
    origin: str = "measured"

    @property
    def csv(self) -> str:
        """One line per cell, for reading by machines."""
        lines = [
            _csv_line(part, row, column, cell)
            for part in self.parts
            for row in part.rows
            for column, cell in zip(part.columns, row.cells, strict=True)
        ]
        frame = pd.DataFrame(lines, columns=list(CSV_COLUMNS))
        return records.to_csv(frame.astype({"n": "Int64", "planned": "Int64"}))


CSV_COLUMNS = (
    *("dataset", "row", "column", "measured", "sd", "n", "planned", "published", "published_sd", "published_n"),
    *("same_setting", "difference", "inside_published_sd", "gap", "note", "words"),
)


def _csv_line(part: Part, row: Row, column: str, cell: Cell) -> tuple[object, ...]:
    measured = cell.measured
    figures = (measured.mean, measured.sd, measured.n or None) if measured else (None, None, 0)
    published = cell.published or Published("")
    words = tuple("" if value is None else str(value).lower() for value in (cell.same, cell.inside))
    return (
        *(part.dataset, row.key, column, *figures, cell.planned or None),
        *(
            published.value,
            published.sd,
            published.n,
            words[0],
            cell.difference,
            words[1],
            cell.gap,
            cell.note,
            cell.words.replace("\n", ", "),
        ),
    )


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
    if paper is None:
        return False
    twins = (other for other in paper.runs if (other.dataset, other.model) == (run.dataset, run.model))
    return any(other.settings == run.settings for other in twins)


# --- what a view works with -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Source:
    """An experiment of a study with the records and the published rows its cells come from."""

    study: Study
    experiment: Experiment
    records: Records
    published: pd.DataFrame = field(repr=False)
    paper: Study | None = None

    @property
    def baseline(self) -> str:
        """The model others are compared with (option `baseline`)."""
        return str(self.experiment.options.get("baseline", "softmax"))

    @cached_property
    def _same(self) -> dict[tuple[str, str], bool]:
        found: dict[tuple[str, str], bool] = {}
        for run in self.study.runs_of(self.experiment):
            pair = (run.dataset, run.model)
            found[pair] = found.get(pair, True) and same_setting(run, self.paper)
        return found

    @cached_property
    def _runs(self) -> dict[tuple[str, str], list[Run]]:
        found: dict[tuple[str, str], list[Run]] = {}
        for run in self.study.runs_of(self.experiment):
            found.setdefault((run.dataset, run.model), []).append(run)
        return found

    def runs(self, dataset: str, model: str) -> list[Run]:
        """The runs this experiment needs of a model, in the plan's order."""
        return self._runs.get((dataset, model), [])

    def planned(self, dataset: str, model: str) -> list[int]:
        """Seeds of the runs this experiment needs of a model, in the plan's order."""
        return [run.seed for run in self.runs(dataset, model)]

    def values(self, dataset: str, model: str, metric: str, condition: str = "") -> dict[int, float]:
        """Measured values by seed, of the runs this experiment needs."""
        found = self.records.values(dataset, model, metric, condition)
        return {seed: found[seed] for seed in self.planned(dataset, model) if seed in found}

    def learned(self, dataset: str, model: str, metric: str) -> dict[int, float]:
        """`values` without the runs that learned only how frequent words are."""
        found = self.values(dataset, model, metric)
        return {seed: value for seed, value in found.items() if (dataset, model, seed) not in self.records.unlearned}

    @property
    def unlearned_note(self) -> str:
        """A sentence on this experiment's runs that learned nothing; empty without any."""
        runs = self.study.runs_of(self.experiment)
        labels = [self.study.labels[r.model] for r in runs if (r.dataset, r.model, r.seed) in self.records.unlearned]
        names = ", ".join(dict.fromkeys(labels))
        return f"Left out, since no better than unigram counts: {names}." if names else ""

    def same(self, dataset: str, model: str) -> bool:
        """Whether all runs of a model have the published setting and the corpus is the published one."""
        return bool(self.study.datasets[dataset].published_as) and self._same.get((dataset, model), False)

    @cached_property
    def _published_rows(self) -> dict[tuple[str, str, str], list[dict[str, str]]]:
        found: dict[tuple[str, str, str], list[dict[str, str]]] = {}
        for row in self.published.to_dict("records"):
            words = {str(key): str(value) for key, value in row.items()}
            found.setdefault((words["dataset"], words["model"], words["metric"]), []).append(words)
        return found

    def find_published(
        self, dataset: str, model: str, metric: str, filters: Mapping[str, str] | None = None
    ) -> Published | None:
        """The published number of a model, under the name that `published_rows` gives it.

        `filters` are regular expressions on the published columns.

        Raises:
            UserError: two different published numbers fit; the experiment's filters must choose.
        """
        named = dict(self.experiment.published_rows.get(model, {}))
        rows = self._published_rows.get((dataset, named.pop("model", model), metric), [])
        patterns = [*named.items(), *(filters or {}).items()]
        chosen = [row for row in rows if all(re.search(pattern, row[column]) for column, pattern in patterns)]
        distinct = list(dict.fromkeys((row["value"], row["std"], row["n"]) for row in chosen))
        if len(distinct) > 1:
            names = ", ".join(sorted({f"{row['table']}: {row['condition']}" for row in chosen}))
            where = f"experiment {self.experiment.id}: {metric} of {model} on {dataset}"
            raise UserError(f"{where}: several published numbers fit ({names}); add `published` filters")
        return Published(*distinct[0]) if distinct else None

    def gap(self, dataset: str, model: str, have: Iterable[int], stage: str = "") -> str:
        """Why planned seeds are not in a cell: `seed 3 diverged; seeds 4, 5 missing`."""
        planned, have = self.planned(dataset, model), set(have)
        if not planned:
            return "not in this study"
        if have.issuperset(planned):
            return ""
        planned_states = self.records.planned(dataset, model, stage)
        states = dict(zip(*(planned_states[key] for key in ("seed", "state")), strict=True))
        absent: dict[str, list[int]] = {}
        for seed in planned:
            if seed not in have:
                state = states.get(seed, "not planned")
                absent.setdefault("not computed" if state == "ok" else state, []).append(seed)
        return "; ".join(f"{_seeds(seeds)} {state}" for state, seeds in absent.items())

    def cell(self, dataset: str, model: str, column: Column, condition: str = "") -> Cell:
        """The cell of a metric: mean over the finished runs, and the published number beside it."""
        metric, filters = column.metric, dict(column.published)
        if condition:
            filters["condition"] = f"^{re.escape(condition)}(?:;|$)"
        corpus = published_dataset(self.study.datasets[dataset])
        published = self.find_published(corpus, model, column.published_as or metric, filters)
        base = Cell(
            published=published,
            digits=column.digits,
            is_p=metric in TESTS,
            same=self.same(dataset, model),
            runs=f"{dataset}/{model}",
            wanted=column.measured,
        )
        if not column.measured:
            return base
        if metric in TESTS:
            return _test_cell(self, base, dataset, model, column)
        if gain := GAIN.match(metric):
            return _gain_cell(self, base, dataset, model, gain["metric"], gain["baseline"])
        if reduction := REDUCTION.match(metric):
            return _gain_cell(self, base, dataset, model, reduction["metric"], self.baseline, percent=True)
        return _mean_cell(self, base, dataset, model, column, condition)


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) > SEEDS_NAMED:
        return f"{len(seeds)} seeds"
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def source_of(study: Study, experiment: Experiment, found: Records) -> Source:
    """What the views of an experiment work with."""
    return Source(study, experiment, found, read_published(experiment.published), paper_study())


def mean_of(values: Iterable[float]) -> Measured | None:
    """Mean, sample standard deviation and count; None without values."""
    found = statistics.Summary.of(values)
    return None if found.mean is None else Measured(found.mean, found.sd, found.n)


def _mean_cell(source: Source, base: Cell, dataset: str, model: str, column: Column, condition: str) -> Cell:
    metric, stage = column.metric, column.stage
    values = source.values(dataset, model, metric, condition or stage)
    if metric in FIXED and len(set(values.values())) == 1:
        return replace(base, measured=Measured(next(iter(values.values()))))
    planned, gap = len(source.planned(dataset, model)), source.gap(dataset, model, values, stage)
    return replace(base, measured=mean_of(values.values()), planned=planned, gap=gap, seeds=values)


def _test_cell(source: Source, base: Cell, dataset: str, model: str, column: Column) -> Cell:
    """Two-sided unpaired test of test perplexity against the baseline (SM Table 1)."""
    if model == source.baseline:
        return replace(base, note="reference", runs="")
    tested = str(source.experiment.options.get("tested", "test_ppl"))
    left_out = set(source.experiment.options.get("seeds_not_tested", ()))
    samples = [
        [value for seed, value in source.values(dataset, name, tested, column.stage).items() if seed not in left_out]
        for name in (model, source.baseline)
    ]
    result = TESTS[column.metric](*samples)
    counts = f"n {len(samples[0])} and {len(samples[1])}"
    if result.p is None:
        return replace(base, gap=result.reason)
    return replace(base, measured=Measured(result.p), note=counts)


def _gain_cell(
    source: Source, base: Cell, dataset: str, model: str, metric: str, baseline: str, *, percent: bool = False
) -> Cell:
    """How much smaller the mean of a metric is than the baseline's, or by how many percent of that."""
    if model == baseline:
        return replace(base, note="reference", runs="")
    own, other = (source.values(dataset, name, metric) for name in (model, baseline))
    gaps = [g for g in (source.gap(dataset, model, own), source.gap(dataset, baseline, other)) if g]
    means = [mean_of(values.values()) for values in (own, other)]
    if means[0] is None or means[1] is None:
        return replace(base, gap="; ".join(gaps))
    gain = (means[1].mean - means[0].mean) * (100 / means[1].mean if percent else 1)
    return replace(base, measured=Measured(gain), note=f"n {len(own)} and {len(other)}", gap="; ".join(gaps))


# --- views ----------------------------------------------------------------------------------------------------------
def part_of(source: Source, dataset: str, columns: Sequence[str], rows: Iterable[Row], note: str = "") -> Part:
    """The rows of one corpus under its title."""
    return Part(dataset, source.study.datasets[dataset].title, tuple(columns), tuple(rows), note)


def exact_value(found: Records, dataset: str, metric: str) -> float | None:
    """A known property of the language, the same in every run's records; None before the first run."""
    rows = found.rows[(found.rows["dataset"] == dataset) & (found.rows["metric"] == metric)]
    return None if rows.empty else float(rows["value"].iloc[0])


COVERAGE = ("n_pairs", "n_pairs_not_in_vocab")


def benchmarks(source: Source, dataset: str, metric: str = "spearman") -> list[str]:
    """Benchmarks with a published number, in their order (for a corpus of words), then others that were measured."""
    declared = source.study.datasets[dataset]
    rows = source.published[source.published["metric"] == metric]
    names = [text.split(";")[0] for text in rows[rows["dataset"] == published_dataset(declared)]["condition"]]
    known = names if declared.kind != "language" else []
    return list(dict.fromkeys([*known, *source.records.conditions(metric, dataset)]))


def coverage_cell(source: Source, dataset: str, metric: str, condition: str) -> Cell:
    """Counts that depend on the vocabulary alone, so any run tells them."""
    rows = source.records.rows
    chosen = rows[(rows["dataset"] == dataset) & (rows["metric"] == metric) & (rows["condition"] == condition)]
    declared = source.study.datasets[dataset]
    corpus = "wordsim" if metric == "n_pairs" else published_dataset(declared)
    return Cell(
        measured=None if chosen.empty else Measured(float(chosen["value"].iloc[0])),
        published=source.find_published(corpus, "", metric, {"condition": f"^{re.escape(condition)}$"}),
        digits=0,
        same=bool(declared.published_as),
    )


def label(study: Study, model: str) -> str:
    """A model's name in tables and figures; of one that is not in the study, its head's."""
    declared = declarations().get(model)
    return study.labels.get(model) or (declared.label if declared else model)
