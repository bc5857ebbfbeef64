"""Small SVG figures for light and dark pages: each row is a dot with an interval; a dashed line marks a reference."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.ticker import LogLocator, MaxNLocator

from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.report import environment

WIDTH, ROW, MARGIN, FOOT = 400, 36, 8, 52  # pixels
SMALLEST = 1e-9  # on a log axis


@dataclass(frozen=True)
class Row:
    """A row of a figure: a labelled value with an interval or range.

    Without an interval, `low` and `high` equal the value. `is_second` draws the row in the second colour.
    """

    label: str
    value: float
    low: float
    high: float
    is_second: bool = False


@dataclass(frozen=True)
class DotPlot:
    """A figure of rows on one axis: changes in percent on a linear axis, or ratios or counts on a log axis.

    Attributes:
        rows: the rows.
        axis: the label of the axis.
        is_log: True for a log axis.
        reference: the value at which a dashed line is drawn.
    """

    rows: Sequence[Row]
    axis: str
    is_log: bool = False
    reference: float = 0.0

    def text(self, row: Row) -> str:
        """Return value and interval as text: `−7.8 % (−11.7 to −3.8)`, or `18 (17 to 18)` on a log axis."""

        def printed(value: float) -> str:
            digits = 1 if not self.is_log else numbers.decimals(value, 0) if value < 10 else 0
            return numbers.number(value, digits, signed=not self.is_log)

        value, low, high = map(printed, (row.value, row.low, row.high))
        unit = "" if self.is_log else "\u00a0%"
        return f"{value}{unit}" if low == high else f"{value}{unit} ({low} to {high})"

    def alt(self) -> str:
        """Return the alternative text of the figure: the label of the axis and all rows."""
        return f"{self.axis}: {'; '.join(f'{row.label} {self.text(row)}' for row in self.rows)}."

    def svg(self) -> str:
        """Return the figure as SVG."""

        def scaled(value: float) -> float:
            return math.log10(max(value, SMALLEST)) if self.is_log else value

        ends = [self.reference, *(end for row in self.rows for end in (row.value, row.low, row.high))]
        least, most = min(ends), max(ends)
        pixels = (WIDTH - 2 * MARGIN) / ((scaled(most) - scaled(least)) or 1.0)

        def x(value: float) -> float:
            return round(MARGIN + pixels * (scaled(value) - scaled(least)), 1)

        locator = LogLocator() if self.is_log else MaxNLocator(5, steps=[1, 2, 5, 10])
        ticks = [float(tick) for tick in locator.tick_values(least, most) if least <= tick <= most]
        rows = [
            {"label": row.label, "text": self.text(row), "kind": "second" if row.is_second else "first"}
            | {"y": 18 + ROW * index, "x": x(row.value), "low": x(row.low), "high": x(row.high)}
            for index, row in enumerate(self.rows)
        ]
        shown = [(x(tick), numbers.true_minus(f"{tick:,.6g}")) for tick in ticks]
        facts = {"zero": x(self.reference), "axis": self.axis, "width": WIDTH, "height": ROW * len(rows) + FOOT}
        return environment().get_template("finding.svg.j2").render(rows=rows, ticks=shown, **facts)
