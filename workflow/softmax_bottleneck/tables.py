"""Tables: measured records joined with published numbers, cell by cell.

A table is an experiment's YAML and a view, the function that lays cells out. A difference is computed only where a
run's settings are those of config/paper.yaml for the same corpus and model; elsewhere the published number stands
beside the measured one, muted. A cell with missing seeds says how many there are and what became of the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path

import jinja2
import pandas as pd

from softmax_bottleneck import artefacts, evidence, heads, records, statistics
from softmax_bottleneck import wordsim as similarity
from softmax_bottleneck.config import Column, Dataset, Experiment, Run, Study, did_you_mean, load_study
from softmax_bottleneck.errors import UserError
from softmax_bottleneck.evidence import Evidence
from softmax_bottleneck.records import Records

PAPER_STUDY = artefacts.ROOT / "config" / "paper.yaml"
PUBLISHED = artefacts.ROOT / "report" / "published"
DASH = "—"
SEEDS_NAMED = 4  # in a cell; more are counted
# A p-value is not a mean over runs; these metrics compare the runs of two models.
TESTS = {"p_value": statistics.student_t, "p_value_welch": statistics.welch_t}
FIXED = frozenset({"params_m"})  # facts of a model, the same for every seed
GAIN = re.compile(r"^(?P<metric>.+)_gain_vs_(?P<baseline>.+)$")


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

    def gap(self, dataset: str, model: str, have: Iterable[int]) -> str:
        """Why planned seeds are not in a cell: `seed 3 diverged; seeds 4, 5 missing`."""
        planned, have = self.planned(dataset, model), set(have)
        if not planned:
            return "not in this study"
        states = dict(zip(*(self.records.planned(dataset, model)[key] for key in ("seed", "state")), strict=True))
        absent: dict[str, list[int]] = {}
        for seed in planned:
            if seed not in have:
                absent.setdefault("not computed" if states[seed] == "ok" else states[seed], []).append(seed)
        return "; ".join(f"{_seeds(seeds)} {state}" for state, seeds in absent.items())

    def cell(self, dataset: str, model: str, column: Column, condition: str = "") -> Cell:
        """The cell of a metric: mean over the finished runs, and the published number beside it."""
        metric, filters = column.metric, dict(column.published)
        if condition:
            filters["condition"] = f"^{re.escape(condition)}(?:;|$)"
        published = self.find_published(published_dataset(self.study.datasets[dataset]), model, metric, filters)
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
            return _test_cell(self, base, dataset, model, metric)
        if gain := GAIN.match(metric):
            return _gain_cell(self, base, dataset, model, gain["metric"], gain["baseline"])
        return _mean_cell(self, base, dataset, model, metric, condition)


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


def _mean_cell(source: Source, base: Cell, dataset: str, model: str, metric: str, condition: str) -> Cell:
    values = source.values(dataset, model, metric, condition)
    if metric in FIXED and len(set(values.values())) == 1:
        return replace(base, measured=Measured(next(iter(values.values()))))
    planned = len(source.planned(dataset, model))
    return replace(base, measured=mean_of(values.values()), planned=planned, gap=source.gap(dataset, model, values))


def _test_cell(source: Source, base: Cell, dataset: str, model: str, metric: str) -> Cell:
    """Two-sided unpaired test of test perplexity against the baseline (SM Table 1)."""
    if model == source.baseline:
        return replace(base, note="reference", runs="")
    tested = str(source.experiment.options.get("tested", "test_ppl"))
    left_out = set(source.experiment.options.get("seeds_not_tested", ()))
    samples = [
        [value for seed, value in source.values(dataset, name, tested).items() if seed not in left_out]
        for name in (model, source.baseline)
    ]
    result = TESTS[metric](*samples)
    counts = f"n {len(samples[0])} and {len(samples[1])}"
    if result.p is None:
        return replace(base, gap=result.reason)
    return replace(base, measured=Measured(result.p), note=counts)


def _gain_cell(source: Source, base: Cell, dataset: str, model: str, metric: str, baseline: str) -> Cell:
    """How much smaller the mean of a metric is than the baseline's."""
    if model == baseline:
        return replace(base, note="reference", runs="")
    own, other = (source.values(dataset, name, metric) for name in (model, baseline))
    gaps = [g for g in (source.gap(dataset, model, own), source.gap(dataset, baseline, other)) if g]
    means = [mean_of(values.values()) for values in (own, other)]
    if means[0] is None or means[1] is None:
        return replace(base, gap="; ".join(gaps))
    gain = means[1].mean - means[0].mean
    return replace(base, measured=Measured(gain), note=f"n {len(own)} and {len(other)}", gap="; ".join(gaps))


# --- views ----------------------------------------------------------------------------------------------------------
def part_of(source: Source, dataset: str, columns: Sequence[str], rows: Iterable[Row], note: str = "") -> Part:
    """The rows of one corpus under its title."""
    return Part(dataset, source.study.datasets[dataset].title, tuple(columns), tuple(rows), note)


def summary(source: Source) -> list[Part]:
    """Models by metrics, one part per corpus."""
    columns = source.experiment.columns
    return [
        part_of(
            source,
            dataset,
            [column.label for column in columns],
            [row for model in source.experiment.models for row in _model_rows(source, dataset, model)],
        )
        for dataset in source.experiment.datasets
    ]


def _model_rows(source: Source, dataset: str, model: str) -> Iterator[Row]:
    """The study's own row of a model, then one for every origin of imported runs."""
    columns, name = source.experiment.columns, label(source.study, model)
    yield Row(model, name, tuple(source.cell(dataset, model, column) for column in columns))
    imported: dict[tuple[str, str], list[Evidence]] = {}
    for one in evidence.chosen(source.study, source.experiment, source.records.evidence):
        if (one.run.dataset, one.run.model) == (dataset, model):
            imported.setdefault((one.origin, one.hardware), []).append(one)
    for (origin, hardware), runs in imported.items():
        cells = tuple(_imported_cell(source, dataset, model, column, runs) for column in columns)
        yield Row(f"{model} evidence {runs[0].name}", f"{name}, imported: {origin}, {hardware}", cells)


def _imported_cell(source: Source, dataset: str, model: str, column: Column, runs: Sequence[Evidence]) -> Cell:
    """Mean over imported runs beside the published number; they are not tested against the study's own."""
    if not column.measured or column.metric in TESTS or GAIN.match(column.metric):
        return Cell(wanted=False)
    corpus = published_dataset(source.study.datasets[dataset])
    values = [one.values[column.metric, ""] for one in runs if (column.metric, "") in one.values]
    return Cell(
        measured=mean_of(values),
        published=source.find_published(corpus, model, column.metric, dict(column.published)),
        digits=column.digits,
        planned=len(runs),
        same=bool(source.study.datasets[dataset].published_as)
        and all(same_setting(one.run, source.paper) for one in runs),
        gap="" if len(values) == len(runs) else f"{len(runs) - len(values)} imported without this number",
        note=f"seed{'s' if len(runs) > 1 else ''} {', '.join(str(one.run.seed) for one in runs)}",
    )


def truth(source: Source) -> list[Part]:
    """As `summary` for the known-truth languages only, headed by the language's own values."""
    known = [part for part in summary(source) if source.study.datasets[part.dataset].kind == "language"]
    return [Part(p.dataset, p.title, p.columns, (_language_row(source, p.dataset), *p.rows), p.note) for p in known]


# What the language itself scores: metric of a model -> metric that holds the exact value (None: exactly zero).
EXACT: Mapping[str, str | None] = {
    "test_ppl": "entropy_ppl",
    "rank_press": "rank_truth",
    "excess_ppl": None,
    "kl_truth_nats": None,
}


def exact_value(found: Records, dataset: str, metric: str) -> float | None:
    """A known property of the language, the same in every run's records; None before the first run."""
    rows = found.rows[(found.rows["dataset"] == dataset) & (found.rows["metric"] == metric)]
    return None if rows.empty else float(rows["value"].iloc[0])


def _language_row(source: Source, dataset: str) -> Row:
    cells = []
    for column in source.experiment.columns:
        metric = EXACT.get(column.metric, "")
        value = 0.0 if metric is None else exact_value(source.records, dataset, metric)
        measured = None if value is None else Measured(value)
        known = measured is not None
        cells.append(Cell(measured=measured, digits=column.digits, note="exact" if known else "", wanted=metric != ""))
    return Row("language", "The language itself", tuple(cells))


COVERAGE = ("n_pairs", "n_pairs_not_in_vocab")


def wordsim(source: Source) -> list[Part]:
    """Benchmarks by models (Spearman's rho), with the pairs each benchmark keeps in the vocabulary."""
    models = source.experiment.models
    digits = source.experiment.columns[0].digits if source.experiment.columns else 4
    rho = Column("spearman", "Spearman", digits)
    heads = [label(source.study, model) for model in models] + ["pairs", "not in vocabulary"]
    parts = []
    for dataset in source.experiment.datasets:
        rows = [
            Row(
                condition,
                condition.removeprefix("benchmark="),
                tuple(source.cell(dataset, model, rho, condition) for model in models)
                + tuple(coverage_cell(source, dataset, metric, condition) for metric in COVERAGE),
            )
            for condition in benchmarks(source, dataset)
        ]
        parts.append(part_of(source, dataset, heads, rows))
    return parts


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


def wins(source: Source) -> list[Part]:
    """On how many benchmarks the row's model has the larger rho than the column's (mean rho over the runs of each)."""
    models = source.experiment.models
    parts = []
    for dataset in source.experiment.datasets:
        counts = win_counts(source, dataset)
        rows = [
            Row(a, label(source.study, a), tuple(_win_cell(source, dataset, a, b, counts) for b in models))
            for a in models
        ]
        parts.append(part_of(source, dataset, [f"over {label(source.study, b)}" for b in models], rows))
    return parts


def win_counts(source: Source, dataset: str) -> Mapping[str, Mapping[str, similarity.Wins]]:
    """Benchmarks won by the first model over the second, by their mean rho over runs."""
    conditions = source.records.conditions("spearman", dataset)
    means = {
        model: {c: mean_of(source.values(dataset, model, "spearman", c).values()) for c in conditions}
        for model in source.experiment.models
    }
    rhos = {model: {c: one.mean if one else None for c, one in found.items()} for model, found in means.items()}
    return similarity.win_matrix(rhos)


def _win_cell(
    source: Source, dataset: str, a: str, b: str, counts: Mapping[str, Mapping[str, similarity.Wins]]
) -> Cell:
    if a == b:
        return Cell(wanted=False)
    other = rf"wins over {re.escape(b)}(?:;|$)"
    corpus = published_dataset(source.study.datasets[dataset])
    is_language = source.study.datasets[dataset].kind == "language"
    published = None if is_language else source.find_published(corpus, a, "wordsim_wins", {"condition": other})
    found = counts[a][b]
    return Cell(
        measured=Measured(float(found.wins)) if found.compared else None,
        published=published,
        digits=0,
        same=source.same(dataset, a) and source.same(dataset, b),
        runs=f"{dataset}/{a}",
        note=f"of {found.compared}" if found.compared else "",
        gap=_win_gap(source, dataset, (a, b)) or ("" if found.compared else "no benchmark in common"),
    )


def _win_gap(source: Source, dataset: str, models: Sequence[str]) -> str:
    """Which runs of either model have no word similarities: `GSS: seed 1 missing`."""
    conditions = source.records.conditions("spearman", dataset)
    words = []
    for model in models:
        have = {seed for condition in conditions for seed in source.values(dataset, model, "spearman", condition)}
        if gap := source.gap(dataset, model, have):
            words.append(f"{label(source.study, model)}: {gap}")
    return "; ".join(words)


def rank_demo(source: Source) -> list[Part]:
    """Rank of untrained layers by number of components, mean over draws, a row per reading (Merity 2017)."""
    drawn = source.records.synthetic
    drawn = drawn[drawn["metric"] == "rank"]
    plain = {word for condition in source.published["condition"] for word in condition.split(";")}
    readings = [(model, _reading(text, plain)) for model, text in zip(drawn["model"], drawn["condition"], strict=True)]
    models = list(dict.fromkeys([*source.published["model"], *drawn["model"]]))
    keys = {(model, "") for model in source.published["model"]} | set(readings)
    components = sorted({_components(text) for text in [*source.published["condition"], *drawn["condition"]]})
    rows = []
    for model, reading in sorted(keys, key=lambda key: (key[1], models.index(key[0]))):
        own = drawn[pd.Series([key == (model, reading) for key in readings], index=drawn.index, dtype=bool)]
        name = f"{label(source.study, model)} ({reading})" if reading else label(source.study, model)
        cells = tuple(_demo_cell(source, own, model, k) for k in components)
        rows.append(Row(f"{model} {reading}".strip(), name, cells))
    return [Part("synthetic", "Untrained layers, random contexts", tuple(f"K = {k}" for k in components), tuple(rows))]


def _components(condition: str) -> int:
    found = re.search(r"(?:^|;)K=(\d+)", condition)
    return int(found[1]) if found else 1


def _reading(condition: str, plain: set[str]) -> str:
    """The words of a condition that no published condition has: how the text was read."""
    return ", ".join(word for word in condition.split(";") if word not in plain and not word.startswith("K="))


def _demo_cell(source: Source, drawn: pd.DataFrame, model: str, components: int) -> Cell:
    values = [v for v, text in zip(drawn["value"], drawn["condition"], strict=True) if _components(text) == components]
    published = source.find_published("synthetic", model, "rank", {"condition": rf"(?:^|;)K={components}(?:;|$)"})
    return Cell(measured=mean_of(values), published=published, digits=0, planned=len(values), same=True)


def label(study: Study, model: str) -> str:
    """A model's name in tables and figures; of one that is not in the study, its head's."""
    declared = heads.declarations().get(model)
    return study.labels.get(model) or (declared.label if declared else model)


VIEWS: Mapping[str, Callable[[Source], list[Part]]] = {
    "summary": summary,
    "wordsim": wordsim,
    "wins": wins,
    "rank-demo": rank_demo,
    "truth": truth,
}
ORIGINS = {"settings": "this study", "search": "this study"}
# What the rows of a view are; models where nothing is said.
HEADS = {
    "wordsim": "Benchmark",
    "coverage": "Benchmark",
    "settings": "Setting",
    "search": "Setting or run",
    "top5": "Context",
    "correlation": "Runs",
    "robustness": "Matrix",
}


def build(study: Study, experiment: Experiment, found: Records) -> Table:
    """The table of an experiment (UserError for a view there is not)."""
    known = views()
    if experiment.view not in known:
        hint = did_you_mean(experiment.view, list(known))
        raise UserError(f"experiment {experiment.id}: view: unknown {experiment.view!r}{hint}")
    parts = [] if experiment.is_void else known[experiment.view](source_of(study, experiment, found))
    texts = (experiment.id, experiment.source, experiment.artefact, experiment.title, experiment.caption)
    head, origin = HEADS.get(experiment.view, "Model"), ORIGINS.get(experiment.view, "measured")
    return Table(*texts, head, tuple(parts), experiment.needs, origin)


def views() -> Mapping[str, Callable[[Source], list[Part]]]:
    """All views of tables by name."""
    from softmax_bottleneck import paper_tables  # it builds on this module

    return {**VIEWS, **paper_tables.VIEWS}


def experiment_of(study: Study, name: str, kind: str) -> Experiment:
    """The study's table or figure with this id (UserError listing the ids there are)."""
    known = {experiment.id: experiment for experiment in study.experiments if experiment.kind == kind}
    if name not in known:
        raise UserError(f"{study.file}: no {kind} {name!r} in this study{did_you_mean(name, list(known))}")
    return known[name]


@cache
def environment() -> jinja2.Environment:
    """The templates of report/: everything escaped, an undefined name is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(artefacts.ROOT / "report", encoding="utf-8"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def table_page(table: Table) -> str:
    """The table alone as a small HTML page."""
    return environment().get_template("table-page.html.j2").render(table=table)


def make(study: Study, name: str) -> Path:
    """Write tables/<name>.csv and .html from what is in results/ now; return the path of the CSV."""
    table = build(study, experiment_of(study, name, "table"), records.collect(study))
    path = artefacts.study_folder(study.name) / "tables" / f"{name}.csv"
    artefacts.write_text(path.with_suffix(".html"), table_page(table))
    artefacts.write_text(path, table.csv)
    return path
