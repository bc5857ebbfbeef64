"""Tables as values: cells with a measured and a published number, rows, sections, and their CSV."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeVar

import pandas as pd

from softmax_bottleneck.measuring import statistics
from softmax_bottleneck.records import metrics, records
from softmax_bottleneck.report import numbers
from softmax_bottleneck.study import Experiment

NOT_PRINTED = "N/A"  # in a published table, where a number would mean nothing
P_VALUES = (metrics.P_VALUE, metrics.P_VALUE_WELCH)
TIMES = ("ms", "s", "min")  # units of numbers that depend on the machine


@dataclass(frozen=True)
class PublishedCell:
    """A published number with its standard deviation and number of runs, as printed."""

    value: str
    sd: str = ""
    n: str = ""

    @property
    def number(self) -> float | None:
        """The value as a number; None where the paper prints text (N/A)."""
        return _finite(self.value)

    @property
    def text(self) -> str:
        """Value and standard deviation as printed, numbers with true minus signs."""
        text = f"{self.value} ± {self.sd}" if self.sd else self.value
        return text if self.number is None else numbers.true_minus(text)


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


class GapCode(Enum):
    """Why a cell has no number, or fewer runs than planned. The value is the text, with a place for every fact."""

    NOT_IN_STUDY = "not in this study"
    IN_OTHER_STUDY = "not in this study; {} has it"
    QUOTATION = "not in this study, nor in any: a quotation"
    NOT_TRAINED = "not trained for this table"
    SEEDS = "{} {}"
    OF_MODEL = "{}: {}"
    NOT_MEASURED = "not measured"
    NOT_COMPUTABLE = "{}"
    GRID_RUNS = "{} of {} runs of the grid not in it"
    UNLEARNED = "{}"
    NEEDS = "{}"
    NOT_DRAWN = "not drawn yet"
    LEVEL_NOT_DRAWN = "not drawn at this level"
    TOO_FEW_FITS = "no true distribution has {} fits whose ranks vary"
    NOT_COUNTED = "not counted for this corpus"
    NO_BENCHMARK = "not a benchmark of this language"
    NO_COMMON_BENCHMARK = "no benchmark in common"
    NO_PLACE = "not a place of this text"


# Signs of absent models in HTML tables; the report explains them once.
SIGNS = {GapCode.NOT_IN_STUDY: "∅", GapCode.IN_OTHER_STUDY: "→ {}", GapCode.QUOTATION: "“”"}


@dataclass(frozen=True)
class Gap:
    """One reason, with the facts that its text names."""

    code: GapCode
    facts: tuple[object, ...] = ()

    def __str__(self) -> str:
        return self.code.value.format(*self.facts)

    @property
    def sign(self) -> str:
        """The sign of an absent model, or the text of any other gap."""
        files = (Path(str(fact)).stem for fact in self.facts)
        return SIGNS[self.code].format(*files) if self.code in SIGNS else str(self)


@dataclass(frozen=True)
class MeasuredCell:
    """Mean over runs, sample standard deviation (None below two runs) and number of runs (0: not a mean over runs)."""

    mean: float
    sd: float | None = None
    n: int = 0


def mean_of(values: Iterable[float]) -> MeasuredCell | None:
    """Return mean, sample standard deviation and count; None without values."""
    summary = statistics.Summary.of(values)
    return None if summary.mean is None else MeasuredCell(summary.mean, summary.sd, summary.n)


@dataclass(frozen=True)
class Cell:
    """One number, measured and published.

    Attributes:
        digits: decimals printed; those of the metric when absent.
        metric: its name in the catalogue; empty for text and settings.
        stage: the stage after which it was measured, where that is not training.
        planned: how many runs should be in the mean.
        same: the runs have the published setting, so that a difference means something.
        gaps: why there are fewer runs than planned, or no number.
        note: small print below the number.
        label: text shown instead of a number.
        runs: `<dataset>/<model>` whose runs are in the cell; empty when it comes from no run.
        seeds: the values of single runs behind the mean, by seed.
        wanted: whether a measured value belongs here (False: a published quotation only).
    """

    measured: MeasuredCell | None = None
    published: PublishedCell | None = None
    digits: int | None = None
    metric: str = ""
    stage: str = ""
    planned: int = 0
    same: bool = False
    gaps: tuple[Gap, ...] = ()
    note: str = ""
    runs: str = ""
    seeds: Mapping[int, float] = field(default_factory=dict)
    wanted: bool = True
    label: str = ""

    @property
    def gap(self) -> str:
        """The text of all gaps; empty without any."""
        return "; ".join(dict.fromkeys(map(str, self.gaps)))

    @property
    def sign(self) -> str:
        """The gaps in an HTML table, with signs for absent models."""
        return "; ".join(dict.fromkeys(gap.sign for gap in self.gaps))

    @property
    def text(self) -> str:
        """The measured mean with its standard deviation, or the label shown instead."""
        if self.measured is None:
            return self.label or numbers.DASH
        mean, sd = self.measured.mean, self.measured.sd
        return self.format(mean) if sd is None else f"{self.format(mean)} ± {self.format(sd)}"

    def format(self, value: float, *, signed: bool = False) -> str:
        """Print a number as this cell does, with `signed` also a plus sign."""
        if self.metric in P_VALUES:
            return numbers.p_value(value)
        known = self.definition.digits if self.definition else 2
        return numbers.number(value, known if self.digits is None else self.digits, signed=signed)

    @property
    def count(self) -> str:
        """`n = 3`, or `n = 2 of 3` when runs are missing."""
        have = self.measured.n if self.measured else 0
        if not self.planned or not self.wanted:
            return ""
        return f"n = {have}" if have == self.planned else f"n = {have} of {self.planned}"

    @property
    def difference(self) -> float | None:
        """Measured minus published, where both exist in the same setting; None for p-values and times."""
        published = self.published.number if self.published else None
        if not (self.same and self.wanted) or self.measured is None or published is None:
            return None
        is_time = self.definition is not None and self.definition.unit in TIMES
        return None if is_time or self.metric in P_VALUES else self.measured.mean - published

    @property
    def difference_text(self) -> str:
        """The difference with its sign, or a dash."""
        return numbers.DASH if self.difference is None else self.format(self.difference, signed=True)

    @property
    def inside(self) -> bool | None:
        """True if the difference lies inside the published standard deviation; None without either."""
        sd = _finite(self.published.sd) if self.published else None
        return None if self.difference is None or sd is None else abs(self.difference) <= sd

    @property
    def definition(self) -> metrics.Metric | None:
        """The metric's entry in the catalogue."""
        return metrics.find(self.metric, self.stage) if self.metric else None

    @property
    def facts(self) -> dict[str, object]:
        """Everything known of the cell, as columns of a CSV."""
        measured, published, metric = self.measured, self.published or PublishedCell(""), self.definition
        return {
            "measured": measured.mean if measured else None,
            "sd": measured.sd if measured else None,
            "n": (measured.n or None) if measured else 0,
            "planned": self.planned or None,
            "published": published.value,
            "published_sd": published.sd,
            "published_n": published.n,
            "same_setting": str(self.same).lower(),
            "difference": self.difference,
            "inside_published_sd": "" if self.inside is None else str(self.inside).lower(),
            "gap": self.gap,
            "note": self.note,
            "words": self.label.replace("\n", ", "),
            "metric": self.metric,
            "step": metric.step if metric else "",
            "file": metric.file if metric else "",
            "definition": metric.definition if metric else "",
        }


@dataclass(frozen=True)
class Row:
    """A row: its key and label (a model or a benchmark), and its cells, one per column of the section."""

    key: str
    label: str
    cells: tuple[Cell, ...]

    @property
    def same(self) -> bool:
        """True if some cell may be compared with its published number."""
        return any(cell.same for cell in self.cells)

    @property
    def compared(self) -> bool:
        """True if differences have a line of their own; text has none."""
        return any(cell.same and not cell.label for cell in self.cells)

    @property
    def has_published(self) -> bool:
        """True if some cell has a published number."""
        return any(cell.published for cell in self.cells)

    @property
    def absent(self) -> str:
        """The sign of a model that the study lacks, or "" if the row shows anything else."""
        if any(cell.measured or cell.label for cell in self.cells):
            return ""
        gaps = [cell.gaps for cell in self.cells if cell.wanted and not cell.note]
        distinct = {own for own in gaps if all(gap.code is not GapCode.NOT_COMPUTABLE for gap in own)}
        common = distinct.pop() if len(distinct) == 1 else ()
        return next((gap.sign for gap in common if gap.code in SIGNS), "")


@dataclass(frozen=True)
class Section:
    """The rows of one corpus."""

    dataset: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""

    def definition(self, column: int) -> metrics.Metric | None:
        """Return the metric of a column, where its numbers are one metric of the catalogue."""
        return next((metric for row in self.rows if (metric := row.cells[column].definition)), None)


Column = TypeVar("Column")


def section(
    dataset: str,
    title: str,
    rows: Mapping[str, str],
    columns: Mapping[Column, str],
    cell: Callable[[str, Column], Cell],
    note: str = "",
) -> Section:
    """Return a section with a cell for every row and column; both map keys to labels."""
    lines = (Row(row, label, tuple(cell(row, column) for column in columns)) for row, label in rows.items())
    return Section(dataset, title, tuple(columns.values()), tuple(lines), note)


@dataclass(frozen=True)
class Table:
    """A whole table, one section per corpus.

    Attributes:
        caption: the experiment's, with the settings of its runs.
        head: what its rows are.
        origin: what its own lines are called beside those of the paper.
    """

    experiment: Experiment
    caption: str
    head: str
    origin: str
    sections: tuple[Section, ...]

    @property
    def note(self) -> str:
        """What this study cannot show of it."""
        return self.experiment.needs

    @property
    def published_cells(self) -> tuple[int, int]:
        """How many cells with a published value have a measured one, and how many there are, quotations apart."""
        every = (cell for section in self.sections for row in section.rows for cell in row.cells)
        cells = [cell for cell in every if cell.wanted and cell.published and cell.published.value != NOT_PRINTED]
        return sum(bool(cell.measured or cell.label) for cell in cells), len(cells)

    @property
    def csv(self) -> str:
        """One line per cell, for reading by machines."""
        lines = [
            {"dataset": section.dataset, "row": row.key, "column": column} | cell.facts
            for section in self.sections
            for row in section.rows
            for column, cell in zip(section.columns, row.cells, strict=True)
        ]
        frame = pd.DataFrame(lines, columns=["dataset", "row", "column", *Cell().facts])
        return records.to_csv(frame.astype({"n": "Int64", "planned": "Int64"}))
