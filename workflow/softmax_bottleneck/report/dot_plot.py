"""A figure of labelled values with intervals on one axis, as SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.ticker import LogLocator, MaxNLocator

from softmax_bottleneck.report import numbers, report

PAGE, ROW, MARGIN, FOOT = 400, 36, 8, 52  # pixels of a figure: its width, a row, the margins, the axis
SMALLEST = 1e-9  # the smallest value on a log axis


@dataclass(frozen=True)
class Row:
    """A row of a figure: a labelled value with an interval, or with the range of several runs.

    Attributes:
        label: the label of the row.
        value: the value.
        low, high: the ends of the interval or range; both equal `value` if there is none.
        is_second: True to draw the row in the figure's second colour. This sets a group of rows apart, such as
            Transformers from LSTMs.
    """

    label: str
    value: float
    low: float
    high: float
    is_second: bool = False


@dataclass(frozen=True)
class DotPlot:
    """A figure of rows on one axis.

    Attributes:
        rows: the rows.
        axis: the label of the axis.
        is_log: True for ratios or counts on a log axis, False for changes in percent on a linear axis.
        reference: the value at which a dashed line is drawn.
    """

    rows: Sequence[Row]
    axis: str
    is_log: bool = False
    reference: float = 0.0

    def text(self, row: Row) -> str:
        """Return the value of a row with its interval as text.

        The text is `−7.8 % (−11.7 to −3.8)` on a linear axis and `18 (17 to 18)` on a log axis.
        """
        texts = []
        for end in (row.value, row.low, row.high):
            digits = 1 if not self.is_log else numbers.decimals(end, 0) if end < 10 else 0
            texts.append(numbers.number(end, digits, signed=not self.is_log))
        value, low, high = texts
        unit = "" if self.is_log else "\u00a0%"
        return f"{value}{unit}" if low == high else f"{value}{unit} ({low} to {high})"

    def svg(self) -> str:
        """Return the figure as SVG."""
        ends = [self.reference, *(end for row in self.rows for end in (row.value, row.low, row.high))]
        first, last = min(ends), max(ends)

        def x(value: float) -> float:  # in pixels
            left, here, right = (math.log10(max(v, SMALLEST)) if self.is_log else v for v in (first, value, last))
            pixels_per_unit = (PAGE - 2 * MARGIN) / ((right - left) or 1.0)
            return round(MARGIN + pixels_per_unit * (here - left), 1)

        locator = LogLocator() if self.is_log else MaxNLocator(5, steps=[1, 2, 5, 10])
        ticks = [float(tick) for tick in locator.tick_values(first, last) if first <= tick <= last]
        rows = [
            {"label": row.label, "text": self.text(row), "kind": "second" if row.is_second else "first"}
            | {"y": 18 + ROW * index, "x": x(row.value), "low": x(row.low), "high": x(row.high)}
            for index, row in enumerate(self.rows)
        ]
        shown = [(x(tick), numbers.true_minus(f"{tick:,.6g}")) for tick in ticks]
        facts = {"zero": x(self.reference), "axis": self.axis, "width": PAGE, "height": ROW * len(rows) + FOOT}
        return report.environment().get_template("finding.svg.j2").render(rows=rows, ticks=shown, **facts)
