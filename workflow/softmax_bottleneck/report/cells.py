"""Tables as data: cells with a measured and a published number, rows, sections, and the CSV of a table."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from softmax_bottleneck.records import metrics, records
from softmax_bottleneck.report import numbers
from softmax_bottleneck.statistics.samples import Summary
from softmax_bottleneck.study import PlannedExperiment

NOT_PRINTED = "N/A"  # in a published table, where a number would mean nothing
P_VALUES = (metrics.P_VALUE, metrics.P_VALUE_WELCH)
TIMES = ("ms", "s", "min")  # units of numbers that depend on the machine


@dataclass(frozen=True)
class PublishedCell:
    """A published number `value` with its standard deviation `sd` and number of runs `n`, each a text as printed.

    `sd` and `n` are empty if the paper does not print them.
    """

    value: str
    sd: str = ""
    n: str = ""

    @property
    def number(self) -> float | None:
        """The value as a number; None if the paper prints a text such as N/A."""
        return _finite(self.value)

    @property
    def text(self) -> str:
        """The value and its standard deviation as printed; a number gets a true minus sign instead of a hyphen."""
        text = f"{self.value} ± {self.sd}" if self.sd else self.value
        return text if self.number is None else numbers.true_minus(text)


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class MeasuredCell:
    """A measured number: the mean of a metric over `n` runs, with the sample standard deviation `sd`.

    `sd` is None for fewer than two runs; `n` is 0 if the number is not a mean over runs.
    """

    mean: float
    sd: float | None = None
    n: int = 0


def mean_of(values: Iterable[float]) -> MeasuredCell | None:
    """Return the mean, sample standard deviation and number of values; None if there are no values."""
    summary = Summary.of(values)
    return None if summary.mean is None else MeasuredCell(summary.mean, summary.sd, summary.n)


@dataclass(frozen=True)
class Cell:
    """A cell of a table: a measured number and the published number that it is compared with.

    Attributes:
        measured: the measured number; None if there is none.
        published: the published number; None if there is none.
        digits: the number of decimals printed; None for the metric's number of decimals in `records.metrics`.
        metric: the name of the metric in `records.metrics`; empty for text and settings.
        stage: the stage of the number: `finetuned`, `dynamic`, or empty for the trained run.
        planned: the number of runs that the study plans for the mean.
        same: True if the number is measured like the published one: on the published corpus and, unless it depends on
            the corpus alone, by runs with the published settings. Only then is a difference computed.
        reason: why a statistic, such as a p-value, cannot be computed; empty if it can be.
        gaps: the reasons why planned runs are missing, such as `seed 3 diverged`.
        note: small print below the number.
        runs: `<dataset>/<model>` of the runs behind the number; empty if the number comes from no run.
        seeds: the values of the single runs behind the mean, by seed.
        wanted: True if the study should measure the number; False for a blank cell, and for a cell that only quotes a
            published number.
        label: text shown instead of a number.
        archived: the cell of an archived study that is shown here because this study has no value; None otherwise.
        study: name of the archive if the number is from one, not from the study of this report; otherwise empty.
        hardware: machine on which the archived study measured the value; empty if `study` is empty.
    """

    measured: MeasuredCell | None = None
    published: PublishedCell | None = None
    digits: int | None = None
    metric: str = ""
    stage: str = ""
    planned: int = 0
    same: bool = False
    reason: str = ""
    gaps: tuple[str, ...] = ()
    note: str = ""
    runs: str = ""
    seeds: Mapping[int, float] = field(default_factory=dict)
    wanted: bool = True
    label: str = ""
    archived: "Cell | None" = None
    study: str = ""
    hardware: str = ""

    @property
    def gap(self) -> str:
        """All reasons in `reason` and `gaps`, separated by semicolons; empty if nothing is missing."""
        return "; ".join(dict.fromkeys(filter(None, [self.reason, *self.gaps])))

    @property
    def text(self) -> str:
        """The measured mean with its standard deviation, or the label shown instead, or a dash if there is neither."""
        if self.measured is None:
            return self.label or numbers.DASH
        mean = self.format(self.measured.mean)
        return mean if self.measured.sd is None else f"{mean} ± {self.format(self.measured.sd)}"

    @property
    def is_compared(self) -> bool:
        """True if the cell has a published value (other than N/A) with which a measured value is to be compared."""
        return self.wanted and self.published is not None and self.published.value != NOT_PRINTED

    @property
    def is_empty(self) -> bool:
        """True if the cell has a published value, but this study has neither a number nor a label for it."""
        return self.is_compared and not (self.measured or self.label)

    def format(self, value: float | None, *, signed: bool = False) -> str:
        """Return `value` as text with the decimals of this cell; with `signed`, a positive number gets a plus sign."""
        if self.metric in P_VALUES:
            return numbers.p_value(value)
        known = self.definition.digits if self.definition else 2
        return numbers.number(value, known if self.digits is None else self.digits, signed=signed)

    @property
    def count(self) -> str:
        """The number of runs as text: `3`, or `2 of 3` if runs are missing; empty if none is to be measured."""
        have = self.measured.n if self.measured else 0
        text = f"{have}" if have == self.planned else f"{have} of {self.planned}"
        return text if self.planned and self.wanted else ""

    @property
    def absence(self) -> str:
        """The reason why the cell shows a dash instead of a value; empty if it shows a value or is to stay blank."""
        is_shown = self.measured is not None or self.label or self.archived
        return "" if is_shown or not self.wanted else self.gap or self.note or "not measured"

    @property
    def difference(self) -> float | None:
        """The measured minus the published number; None unless both exist and `same` and `wanted` are true.

        It is always None for p-values and times.
        """
        published = self.published.number if self.published else None
        if not (self.same and self.wanted) or self.measured is None or published is None:
            return None
        is_time = self.definition is not None and self.definition.unit in TIMES
        return None if is_time or self.metric in P_VALUES else self.measured.mean - published

    @property
    def inside(self) -> bool | None:
        """True if the absolute difference is at most the published standard deviation, False if it is larger.

        The value is None if `difference` is None or no standard deviation is published.
        """
        sd = _finite(self.published.sd) if self.published else None
        return None if self.difference is None or sd is None else abs(self.difference) <= sd

    @property
    def definition(self) -> metrics.Metric | None:
        """The entry of the cell's metric in the catalogue of metrics; None if the cell has no metric."""
        return metrics.find(self.metric, self.stage) if self.metric else None

    @property
    def facts(self) -> dict[str, object]:
        """The cell as {column of the CSV: value}, such as `measured`, `sd`, `n` and `published`."""
        measured, published, archived = self.measured, self.published or PublishedCell(""), self.archived
        value = archived.measured if archived else None
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
            "archived": value.mean if value else archived and archived.label.replace("\n", ", "),
            "archived_sd": value.sd if value else None,
            "archived_n": value.n or None if value else None,
            "archived_study": archived.study if archived else "",
            "archived_hardware": archived.hardware if archived else "",
        }


@dataclass(frozen=True)
class Row:
    """A row of a table: its `key` (such as a model's name), the `label` shown, and `cells`, one per column."""

    key: str
    label: str
    cells: tuple[Cell, ...]

    @property
    def has_published(self) -> bool:
        """True if at least one cell has a published number."""
        return any(cell.published for cell in self.cells)

    @property
    def is_archived(self) -> bool:
        """True if the row has numbers of archived studies, and none of the study of this report."""
        is_measured = any((cell.measured or cell.label) and not cell.study for cell in self.cells)
        return not is_measured and any(cell.archived or cell.study for cell in self.cells)

    @property
    def absent(self) -> str:
        """The reason why no cell of the row has a number or label: the attribute `gap` that its cells share.

        The cells that count are those that the study should measure, with missing runs (`gaps`) and without a `note`.
        The text is empty if a cell has a number or label (also from an archive), no cell counts, or the gaps differ.
        """
        if any(cell.measured or cell.label or cell.archived for cell in self.cells):
            return ""
        gaps = {cell.gap for cell in self.cells if cell.wanted and cell.gaps and not cell.note}
        return gaps.pop() if len(gaps) == 1 else ""


@dataclass(frozen=True)
class Section:
    """A part of a table with a title of its own, usually the part for one corpus.

    Attributes:
        dataset: the name of the corpus, or `synthetic`.
        title: the text above the rows.
        columns: the headings of the columns.
        rows: the rows, with one cell per column.
        note: a text below the rows.
    """

    dataset: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""

    @property
    def absences(self) -> tuple[str, ...]:
        """The distinct reasons why cells show a dash, in rows that show something."""
        cells = (cell for row in self.rows if not row.absent for cell in row.cells)
        return tuple(dict.fromkeys(filter(None, (cell.absence for cell in cells))))

    def definition(self, column: int) -> metrics.Metric | None:
        """Return the metric of a column, taken from its first cell with a metric; None if there is none."""
        return next((metric for row in self.rows if (metric := row.cells[column].definition)), None)


Labels = Mapping[Any, str]  # key of a row or column -> label
CellOf = Callable[[str, Any], Cell]  # (key of a row, key of a column) -> cell


def section(dataset: str, title: str, rows: Labels, columns: Labels, cell: CellOf, note: str = "") -> Section:
    """Return a section with a cell for every row and column.

    `rows` and `columns` are dicts {key: label}. `cell` is a function that returns the cell for the key of a row and the
    key of a column. `dataset`, `title` and `note` become attributes of the section.
    """
    lines = (Row(row, label, tuple(cell(row, column) for column in columns)) for row, label in rows.items())
    return Section(dataset, title, tuple(columns.values()), tuple(lines), note)


@dataclass(frozen=True)
class Table:
    """A whole table, usually with one section per corpus.

    Attributes:
        experiment: the experiment that the table shows.
        caption: the experiment's caption, in which the settings of its runs are filled in.
        head: heading of the column of row labels, such as `Model`.
        sections: the sections from top to bottom.
    """

    experiment: PlannedExperiment
    caption: str
    head: str
    sections: tuple[Section, ...]

    @property
    def note(self) -> str:
        """The reason why this study cannot make the table or a part of the table; empty if it can make everything."""
        return self.experiment.needs

    @property
    def every_cell(self) -> Iterator[tuple[str, str, str, Cell]]:
        """An iterator over (corpus, row key, column label, cell) for all cells, row by row."""
        for section in self.sections:
            for row in section.rows:
                for column, cell in zip(section.columns, row.cells, strict=True):
                    yield section.dataset, row.key, column, cell

    @property
    def published_cells(self) -> tuple[int, int, int]:
        """The cells with a published number, counted as (measured here, measured only in an archive, not measured)."""
        cells = [cell for *_, cell in self.every_cell if cell.is_compared]
        archived, empty = (sum(map(bool, own)) for own in ([c.archived for c in cells], [c.is_empty for c in cells]))
        return len(cells) - empty, archived, empty - archived

    @property
    def csv(self) -> str:
        """The table as CSV text: one line per cell; columns are dataset, row, column and those of `Cell.facts`."""
        place = ("dataset", "row", "column")
        lines = [dict(zip(place, where, strict=True)) | cell.facts for *where, cell in self.every_cell]
        frame = pd.DataFrame(lines, columns=[*place, *Cell().facts])
        return records.to_csv(frame.astype(dict.fromkeys(("n", "planned", "archived_n"), "Int64")))
