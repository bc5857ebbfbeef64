"""A figure of labelled values with intervals on one axis, as SVG."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.ticker import MaxNLocator

from softmax_bottleneck.report import numbers, page
from softmax_bottleneck.report.contrasts import Contrast, Named

PAGE, ROW, MARGIN, FOOT = 330, 36, 8, 52  # pixels of a figure: its width, a row, the margins, the axis
CHANGE = "change of test perplexity, % (square: exploratory)"  # an axis, whose range all figures share
KINDS = {False: "first", True: "second"}  # classes of a row in the style sheet, by `Row.is_second`


@dataclass(frozen=True)
class Row:
    """A row of a figure: a labelled value with an interval, or with the range of several runs.

    Attributes:
        label: the label of the row.
        value: the value.
        low, high: the ends of the interval or range; both equal `value` if there is none.
        is_second: True for an exploratory value, which is drawn as a square in the figure's second colour.
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
        axis: the label of the axis, on which values are changes or shares in percent.
        range_rows: the rows that set the range of the axis; by default `rows`.
    """

    rows: Sequence[Row]
    axis: str
    range_rows: Sequence[Row] = ()

    def text(self, row: Row) -> str:
        """Return the value of a row with its interval and mark as text, such as `−7.8 % (−11.7 to −3.8) (square)`."""
        value, low, high = (numbers.number(end, 1, signed=True) for end in (row.value, row.low, row.high))
        interval = "" if low == high else f" ({low} to {high})"
        return f"{value}\u00a0%{interval}{' (square)' if row.is_second else ''}"

    def svg(self) -> str:
        """Return the figure as SVG."""
        ends = [0.0, *(end for row in self.range_rows or self.rows for end in (row.value, row.low, row.high))]
        first, last = min(ends), max(ends)

        def x(value: float) -> float:  # in pixels
            return round(MARGIN + (PAGE - 2 * MARGIN) / ((last - first) or 1.0) * (value - first), 1)

        locator = MaxNLocator(5, steps=[1, 2, 5, 10])
        ticks = [float(tick) for tick in locator.tick_values(first, last) if first <= tick <= last]
        rows = [
            {"label": row.label, "text": self.text(row).partition(" (")[0], "kind": KINDS[row.is_second]}
            | {"y": 18 + ROW * index, "x": x(row.value), "low": x(row.low), "high": x(row.high)}
            for index, row in enumerate(self.rows)
        ]
        shown = [(x(tick), numbers.true_minus(f"{tick:,.6g}")) for tick in ticks]
        facts = {"zero": x(0.0), "axis": self.axis, "width": PAGE, "height": ROW * len(rows) + FOOT}
        return page.fill("finding.svg.j2", rows=rows, ticks=shown, **facts)


def contrast_plot(shown: Sequence[Contrast]) -> DotPlot:
    """Return the figure of some contrasts, of which the exploratory ones have the second colour.

    A contrast without an interval has the numbers of seeds in its label; one with only diverged runs has no row. If a
    head has several in one setting, all of its labels have the number of parameters, relative to the baseline.
    """
    count = Counter((contrast.head, contrast.setting) for contrast in shown)
    rows, sized = [], {head for (head, _), several in count.items() if several > 1}
    for contrast in filter(lambda contrast: all(contrast.n), shown):
        details = [] if contrast.ends else [numbers.counts(contrast.n)]
        if contrast.head in sized:
            details.append(f"{numbers.number(contrast.size)} × size")
        label = ", ".join([contrast.head, _setting_label(contrast, shown), *details])
        low, high = contrast.ends or (contrast.change, contrast.change)
        rows.append(Row(label, value=contrast.change, low=low, high=high, is_second=not isinstance(contrast, Named)))
    return DotPlot(rows, CHANGE)


def _setting_label(contrast: Contrast, shown: Sequence[Contrast]) -> str:
    """Return the first label of a contrast's setting that differs from those of its head's other shown settings."""
    rivals = [rival for rival in shown if rival.head == contrast.head and rival.setting != contrast.setting]
    labels = zip(contrast.setting.labels, *(rival.setting.labels for rival in rivals), strict=True)
    return next((label for label, *others in labels if label not in others), contrast.setting.label)
