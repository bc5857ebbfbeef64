"""How figures are drawn: panels, curves, axes, legends, and SVG. Nothing here knows a study (`figures` does).

The same input gives the same bytes, because an SVG has fixed ids and no date. Every SVG has a style sheet with dark
colours for browsers in dark mode.
"""

import io
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Literal

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from softmax_bottleneck.records.metrics import SUPERSCRIPT
from softmax_bottleneck.store.paths import ROOT

mpl.use("Agg")  # seaborn imports pyplot, which would look for a screen

# Readable on white and on near-black, told apart with the common colour-vision deficiencies.
SPARE = ("#a6761d", "#b15fd6", "#c9b400", "#e377a2", "#4fa3a5", "#9c6b4e", "#7c8f2b", "#d64f6f")
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
DASHED = (0, (4, 3))
MOST_SEEDS = 30  # drawn one by one
LABEL_GAP = 0.065  # between the names of lines, in heights of a panel
FONTS = "'DejaVu Sans',Verdana,Arial,sans-serif"
LEGEND_INCHES = 0.63, 0.078  # of an entry without its name, and of a letter
NOTHING = "There is nothing to show yet."
STYLE_SHEET = ROOT / "report" / "figures.mplstyle"

AxesArray = NDArray[Any]  # of matplotlib's Axes, one per panel


@dataclass(frozen=True)
class Theme:
    """The colours of a figure as hex codes: `paper` (background), `ink` (text), `muted` (secondary text) and `grid`.

    Figures are drawn in the theme LIGHT, with the colours of report/figures.mplstyle. In a browser in dark mode, the
    colours of DARK replace them.
    """

    paper: str
    ink: str
    muted: str
    grid: str


LIGHT = Theme("#ffffff", "#1c2024", "#5d656e", "#e3e6ea")
DARK = Theme("#16191d", "#e6e9ec", "#a3abb3", "#33393f")


@dataclass(frozen=True)
class Drawing:
    """A figure.

    Attributes:
        canvas: the matplotlib figure.
        data: the drawn numbers, which are written to the figure's CSV.
        note: text printed with the figure.
    """

    canvas: Canvas
    data: pd.DataFrame
    note: str = ""


@dataclass(frozen=True)
class Style:
    """The colour, marker and line style of one model."""

    colour: str
    marker: str
    dash: Any

    @property
    def dot(self) -> dict[str, Any]:
        """The keyword arguments with which matplotlib draws the marker without a line."""
        return {"color": self.colour, "marker": self.marker, "markersize": 6.5, "linestyle": "none"}


# --- canvas ---------------------------------------------------------------------------------------------------------
def panels(rows: int, columns: int, width: float, height: float) -> tuple[Canvas, AxesArray]:
    """Return a canvas and an array [rows, columns] of its axes, each `width` x `height` inches."""
    canvas = Canvas(figsize=(width * columns, height * rows + 0.6), layout="constrained")
    canvas.set_layout_engine("constrained", w_pad=0.12, h_pad=0.1)  # room for fonts wider than DejaVu Sans
    return canvas, canvas.subplots(rows, columns, squeeze=False)


def empty(axes: Axes, text: str) -> None:
    """Show a text instead of a plot in a panel, which has no axes then (`to_svg`)."""
    axes.text(0.5, 0.5, text, ha="center", va="center", color=LIGHT.muted, transform=axes.transAxes, wrap=True)


def only_text(text: str, data: pd.DataFrame) -> Drawing:
    """Return a drawing that shows a text instead of a plot; `data` are the numbers for the CSV of the figure."""
    canvas, ((axes,),) = panels(1, 1, 8.6, 0.3)
    empty(axes, text)
    return Drawing(canvas, data)


def crossed(
    rows: Sequence[Any], columns: Sequence[Any], width: float, height: float, draw: Callable[[Axes, Any, Any], None]
) -> Canvas:
    """Return a canvas with a panel of `width` x `height` inches per row and column.

    `draw(axes, row, column)` is called once per panel, to fill it.
    """
    canvas, axes = panels(len(rows), len(columns), width, height)
    for panel, (row, column) in zip(axes.flat, itertools.product(rows, columns), strict=True):
        draw(panel, row, column)
    return canvas


def legend(canvas: Canvas, names: Mapping[str, str], looks: Mapping[str, Style]) -> None:
    """Add a legend of lines and markers below all panels. `names` is {model: printed name}, `looks` {model: style}."""
    handles = [
        Line2D([], [], **look.dot | {"linestyle": look.dash}, linewidth=2.2, label=name)
        for look, name in ((looks[model], name) for model, name in names.items())
    ]
    if handles:
        entry, letter = LEGEND_INCHES
        columns = int(canvas.get_figwidth() / (entry + letter * max(map(len, names.values())))) or 1
        canvas.legend(handles=handles, loc="outside lower center", ncols=min(columns, len(handles)))


# --- what is drawn into panels --------------------------------------------------------------------------------------
def curves(
    axes: Axes, data: pd.DataFrame, x: str, y: str, looks: Mapping[str, Style], *, dots: bool = False
) -> dict[str, tuple[float, float]]:
    """Draw, for each model, a thick line for the mean over seeds, and the seeds as thin lines or dots.

    The line of the mean covers the values of `x` that all seeds reach. More than MOST_SEEDS seeds are a band, from the
    smallest to the largest value. Return {model: right end of its line}.

    Args:
        axes: the panel.
        data: the numbers to draw, with the columns `model` and `seed` and those that `x` and `y` name.
        x, y: names of columns of `data`, such as "epoch" and "rank_press".
        looks: {model: style}.
        dots: True to draw the seeds as dots.
    """
    ends: dict[str, tuple[float, float]] = {}
    for model, style in looks.items():
        of_model = data[data["model"] == model]
        table = of_model.pivot_table(index=x, columns="seed", values=y).interpolate(method="index", limit_area="inside")
        if table.shape[1] > MOST_SEEDS:
            band = table.dropna().agg(["min", "max"], axis=1)
            axes.fill_between(band.index, band["min"], band["max"], color=style.colour, alpha=0.2, linewidth=0)
        elif dots:
            axes.plot(of_model[x], of_model[y], **style.dot | {"markersize": 3.5, "alpha": 0.6})
        elif table.shape[1] > 1:
            axes.plot(table.index, table, color=style.colour, linewidth=0.6, alpha=0.45)
        mean = table.dropna().mean(axis=1)
        if len(mean):
            axes.plot(mean.index, mean, color=style.colour, linestyle=style.dash, linewidth=1.9)
            ends[model] = float(mean.index[-1]), float(mean.iloc[-1])
    return ends


def label_lines(
    axes: Axes, ends: Mapping[str, tuple[float, float]], names: Mapping[str, str], looks: Mapping[str, Style]
) -> None:
    """Write the name of each line to the right of the axes, at the height of its end, so that no two overlap.

    `ends` is {model: right end of its line}. The limits of the axes must be final.
    """
    axes.autoscale_view()
    to_axes = axes.transData + axes.transAxes.inverted()
    places = {model: to_axes.transform(end).clip(0.0, 1.0) for model, end in ends.items()}
    lowest_first = sorted((float(y), float(x), model) for model, (x, y) in places.items())
    heights = list(itertools.accumulate((y for y, *_ in lowest_first), lambda below, y: max(y, below + LABEL_GAP)))
    # Those that would stand above the panel move down, and push down only what is in their way.
    downwards = itertools.accumulate(
        reversed(heights), lambda above, y: min(y, above - LABEL_GAP), initial=1 + LABEL_GAP
    )
    heights = [*downwards][:0:-1]
    for height, (y, x, model) in zip(heights, lowest_first, strict=True):
        line = {"arrowstyle": "-", "color": looks[model].colour, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0}
        facts: dict[str, Any] = {"xycoords": "axes fraction", "annotation_clip": False, "va": "center", "fontsize": 9}
        arrow = line | {"relpos": (0.0, 0.5)}
        axes.annotate(names[model], (x, y), (1.08, height), arrowprops=arrow, color=LIGHT.ink, **facts)


def heat_map(axes: Axes, table: pd.DataFrame, form: str, **look: Any) -> None:
    """Draw a table as a heat map in shades of blue with a number in every square.

    `table` is a frame of numbers, whose index and columns label the axes. `form` is the format of the numbers, such as
    `.2f`. `look` are further options of `seaborn.heatmap`.
    """
    blues = sns.color_palette("blend:#eef3f9,#69a5ea", as_cmap=True)
    fixed: dict[str, Any] = {"cmap": blues, "vmin": 0, "annot": True, "cbar": False, "linecolor": LIGHT.paper}
    sns.heatmap(table, ax=axes, fmt=form, annot_kws={"color": "#10151b"}, **fixed, **look)
    axes.grid(visible=False)
    axes.tick_params(length=0, labelcolor=LIGHT.ink)
    axes.tick_params(axis="y", rotation=0)


def level(axes: Axes, value: float, text: str, end: Literal["left", "right"] = "right") -> None:
    """Draw a dashed horizontal line at `value` with a text at its left or right end."""
    axes.axhline(value, color=LIGHT.ink, linewidth=1, linestyle=DASHED)
    x = {"left": 0.01, "right": 0.99}[end]
    axes.text(x, value, text, transform=axes.get_yaxis_transform(), ha=end, va="bottom", fontsize=9)


def log_x(axes: Axes, values: Sequence[float]) -> None:
    """Make the x axis logarithmic, with a tick at each of `values`."""
    axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()


def log_y(axes: Axes) -> None:
    """Make the y axis logarithmic, with powers of ten as tick labels."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(power)
    axes.yaxis.set_minor_formatter(lambda *_: "")


def power(value: float, _position: object = None) -> str:
    """Return the label of a tick on a log axis, such as 10⁻³ or 2·10⁻³."""
    exponent = math.floor(math.log10(value) + 1e-9)
    factor = value / 10**exponent
    shown = f"10{str(exponent).translate(SUPERSCRIPT)}"
    return shown if abs(factor - 1) < 1e-6 else f"{factor:.3g}·{shown}"


def integer(value: float, _position: object = None) -> str:
    """Return the label of a tick: `value` as an integer with thin spaces between thousands."""
    return f"{value:,.0f}".replace(",", "\u2009")


def to_svg(canvas: Canvas) -> str:
    """Return the canvas as SVG, with a style sheet that replaces light colours by dark colours in dark mode.

    Panels without data have no axes. To keep a report with dozens of figures small, coordinates are cut to a tenth of a
    point, fonts are named once, and comments and ids of groups are removed.
    """
    for panel in canvas.axes:
        if not panel.has_data():
            panel.set_axis_off()
    buffer = io.StringIO()
    canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "softmax_bottleneck"})
    svg = re.sub('<!--.*?-->|(?<=<g) id="[^"]*"', "", " ".join(buffer.getvalue().split())).replace("> <", "><")
    svg = re.sub(r' font-family: [^"]*?;| transform="rotate\(-0 [^"]*"|<g/>', "", svg)
    svg = re.sub(r' (?:d|x|y|transform)="[^"]*"', lambda place: re.sub(r"(\.\d)\d+", r"\1", place[0]), svg)
    pairs = zip(astuple(LIGHT), astuple(DARK), strict=True)
    rules = [f'[style*="{kind}: {a}"]{{{kind}:{b}!important}}' for a, b in pairs for kind in ("fill", "stroke")]
    style = f"<style>text{{font-family:{FONTS}}}@media (prefers-color-scheme:dark){{{''.join(rules)}}}</style>"
    return svg.replace("<defs>", f"{style}<defs>", 1)
