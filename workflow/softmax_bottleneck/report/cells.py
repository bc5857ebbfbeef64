"""Tables as values: cells with a measured and a published number, rows, parts, and their CSV."""

from __future__ import annotations

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
from softmax_bottleneck.report.numbers import DASH

NOT_PRINTED = "N/A"  # in a published table, where a number would mean nothing
P_VALUES = (metrics.P_VALUE, metrics.P_VALUE_WELCH)
TIMES = ("ms", "s", "min")  # units of what another machine measures otherwise


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
        return self.text if self.number is None else numbers.true_minus(self.text)


class GapCode(Enum):
    """Why a cell has no number, or fewer runs than planned. The value is the text, with a place for every fact."""

    NOT_IN_STUDY = "not in this study"
    IN_OTHER_STUDY = "not in this study; {} has it"
    QUOTATION = "not in this study, nor in any: a quotation"
    NOT_TRAINED = "not trained for this table"
    SEEDS = "{} {}"
    OF_MODEL = "{}: {}"
    IMPORTED_WITHOUT = "{} imported without this number"
    NOT_MEASURED = "not measured"
    NOT_COMPUTABLE = "{}"
    GRID_RUNS = "{} of {} runs of the grid not in it"
    UNLEARNED = "{}"
    NEEDS = "{}"
    NOT_DRAWN = "not drawn yet"
    LEVEL_NOT_DRAWN = "not drawn at this level"
    TOO_FEW_FITS = "no law has {} fits whose ranks vary"
    NOT_COUNTED = "not counted for this corpus"
    NO_BENCHMARK = "not a benchmark of this language"
    NO_COMMON_BENCHMARK = "no benchmark in common"
    NO_PLACE = "not a place of this text"


# Signs of absent models in HTML tables; the page explains them once.
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


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Measured:
    """Mean over runs, sample standard deviation (None below two runs) and number of runs (0: not a mean over runs)."""

    mean: float
    sd: float | None = None
    n: int = 0


def mean_of(values: Iterable[float]) -> Measured | None:
    """Mean, sample standard deviation and count; None without values."""
    found = statistics.Summary.of(values)
    return None if found.mean is None else Measured(found.mean, found.sd, found.n)


@dataclass(frozen=True)
class Cell:
    """One number, measured and published.

    Attributes:
        digits: decimals printed; those of the metric when absent.
        metric: its name in the catalogue; empty for words and settings.
        stage: what it was measured after, where that is not training.
        planned: how many runs should be in the mean.
        same: the runs have the published setting, so that a difference means something.
        gaps: why there are fewer runs than planned, or no number.
        note: further words below the number.
        words: what is shown instead of a number.
        runs: `<dataset>/<model>` whose runs are in the cell; empty when it comes from no run.
        seeds: the values of single runs behind the mean, by seed.
        wanted: whether a measured value belongs here (False: a published quotation only).
    """

    measured: Measured | None = None
    published: Published | None = None
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
    words: str = ""

    @property
    def gap(self) -> str:
        """The text of all gaps; empty without any."""
        return "; ".join(dict.fromkeys(map(str, self.gaps)))

    @property
    def sign(self) -> str:
        """The same for an HTML table, with signs for absent models."""
        return "; ".join(dict.fromkeys(gap.sign for gap in self.gaps))

    @property
    def text(self) -> str:
        """The measured mean with its standard deviation, or the words that stand in its place."""
        if self.measured is None:
            return self.words or DASH
        mean, sd = self.measured.mean, self.measured.sd
        return self.format(mean) if sd is None else f"{self.format(mean)} ± {self.format(sd)}"

    def format(self, value: float) -> str:
        """A number as this cell prints it."""
        return numbers.p_value(value) if self.metric in P_VALUES else numbers.number(value, self.decimals)

    @property
    def decimals(self) -> int:
        """How many are printed."""
        known = self.definition.digits if self.definition else 2
        return known if self.digits is None else self.digits

    @property
    def count(self) -> str:
        """`n = 3`, or `n = 2 of 3` when runs are missing."""
        have = self.measured.n if self.measured else 0
        if not self.planned or not self.wanted:
            return ""
        return f"n = {have}" if have == self.planned else f"n = {have} of {self.planned}"

    @property
    def difference(self) -> float | None:
        """Measured minus published, where the setting is the same and both exist; not of p-values, nor of times."""
        published = self.published.number if self.published else None
        is_time = self.definition is not None and self.definition.unit in TIMES
        if not (self.same and self.wanted) or self.measured is None or published is None:
            return None
        if self.metric in P_VALUES or is_time:
            return None
        return self.measured.mean - published

    @property
    def difference_text(self) -> str:
        """The difference with its sign, or a dash."""
        return numbers.signed(self.difference, self.decimals)

    @property
    def inside(self) -> bool | None:
        """Whether the difference lies inside the published standard deviation; None when that cannot be said."""
        spread = _number(self.published.sd) if self.published else None
        return None if self.difference is None or spread is None else abs(self.difference) <= spread

    @property
    def definition(self) -> metrics.Metric | None:
        """What the catalogue says of the number."""
        return metrics.find(self.metric, self.stage) if self.metric else None


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

    @property
    def absent(self) -> str:
        """Return the sign of a model that the study lacks, or "" if the row shows anything else."""
        if any(cell.measured or cell.words for cell in self.cells):
            return ""
        wanted = [cell.gaps for cell in self.cells if cell.wanted and not cell.note]
        reasons = {gaps for gaps in wanted if all(gap.code is not GapCode.NOT_COMPUTABLE for gap in gaps)}
        common = reasons.pop() if len(reasons) == 1 else ()
        return next((gap.sign for gap in common if gap.code in SIGNS), "")


@dataclass(frozen=True)
class Part:
    """The rows of one corpus."""

    dataset: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""

    def definition(self, column: int) -> metrics.Metric | None:
        """What the numbers of a column are, where they are one metric of the catalogue."""
        found = [row.cells[column].definition for row in self.rows]
        return next((metric for metric in found if metric), None)


Column = TypeVar("Column")


def crossed(
    dataset: str,
    title: str,
    rows: Mapping[str, str],
    columns: Mapping[Column, str],
    cell: Callable[[str, Column], Cell],
    note: str = "",
) -> Part:
    """A part with a cell for every row and column; both are keys with their labels."""
    lines = (Row(row, label, tuple(cell(row, column) for column in columns)) for row, label in rows.items())
    return Part(dataset, title, tuple(columns.values()), tuple(lines), note)


@dataclass(frozen=True)
class Table:
    """A whole table, one part per corpus.

    Attributes:
        note: what this study cannot show of it.
        head: what its rows are.
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
    def published_cells(self) -> tuple[int, int]:
        """How many cells with a published value have a measured one, and how many there are, quotations apart."""
        every = (cell for part in self.parts for row in part.rows for cell in row.cells)
        cells = [cell for cell in every if cell.wanted and cell.published and cell.published.value != NOT_PRINTED]
        return sum(bool(cell.measured or cell.words) for cell in cells), len(cells)

    @property
    def csv(self) -> str:
        """One line per cell, for reading by machines."""
        lines = [
            {"dataset": part.dataset, "row": row.key, "column": column} | _facts(cell)
            for part in self.parts
            for row in part.rows
            for column, cell in zip(part.columns, row.cells, strict=True)
        ]
        frame = pd.DataFrame(lines, columns=list(CSV_COLUMNS))
        return records.to_csv(frame.astype({"n": "Int64", "planned": "Int64"}))


CSV_COLUMNS = (
    *("dataset", "row", "column", "measured", "sd", "n", "planned", "published", "published_sd", "published_n"),
    *("same_setting", "difference", "inside_published_sd", "gap", "note", "words"),
    *("metric", "step", "file", "definition"),
)


def _facts(cell: Cell) -> dict[str, object]:
    measured, published, metric = cell.measured, cell.published or Published(""), cell.definition
    return {
        "measured": measured.mean if measured else None,
        "sd": measured.sd if measured else None,
        "n": (measured.n or None) if measured else 0,
        "planned": cell.planned or None,
        "published": published.value,
        "published_sd": published.sd,
        "published_n": published.n,
        "same_setting": str(cell.same).lower(),
        "difference": cell.difference,
        "inside_published_sd": "" if cell.inside is None else str(cell.inside).lower(),
        "gap": cell.gap,
        "note": cell.note,
        "words": cell.words.replace("\n", ", "),
        "metric": cell.metric,
        "step": metric.step if metric else "",
        "file": metric.file if metric else "",
        "definition": metric.definition if metric else "",
    }
