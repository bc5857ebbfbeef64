"""The shared parts of all figures: palette, panels and legends, notes on which runs are drawn, and SVG.

The same input gives the same bytes, because an SVG has fixed ids and no date. Every SVG has a style sheet with dark
colours for browsers in dark mode.
"""

import io
import itertools
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Literal

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from softmax_bottleneck.heads.registry import declarations
from softmax_bottleneck.records.metrics import SUPERSCRIPT
from softmax_bottleneck.report.source import Source, label
from softmax_bottleneck.study import ROOT, Study

mpl.use("Agg")  # seaborn imports pyplot, which would look for a screen

# Readable on white and on near-black, told apart with the common colour-vision deficiencies (after Okabe and Ito).
# Heads declare their colours; the two others are models of published tables that are a head with other options.
HEADS = sorted((head for head in declarations().values() if head.colour), key=lambda head: head.name != "softmax")
PALETTE: Mapping[str, str] = {head.published_as or head.name: str(head.colour) for head in HEADS} | {
    "lms-plif-frozen": "#82cfb3",
    "moss": "#d65fa8",
}
SPARE = ("#a6761d", "#b15fd6", "#c9b400", "#e377a2", "#4fa3a5", "#9c6b4e", "#7c8f2b", "#d64f6f")
MARKERS = "osD^vpXh"
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
LONGEST_NAME = 30
DASHED = (0, (4, 3))
MOST_SEEDS = 30  # drawn one by one
LABEL_GAP = 0.065  # between the names of lines, in heights of a panel
FONTS = "'DejaVu Sans',Verdana,Arial,sans-serif"
LEGEND_INCHES = 0.63, 0.078  # of an entry without its name, and of a letter
NOTHING = "There is nothing to show yet."
STYLE_SHEET = ROOT / "report" / "figures.mplstyle"


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
    """The colour, marker and line style of one model, the same in every figure."""

    colour: str
    marker: str
    dash: Any

    @property
    def dot(self) -> dict[str, Any]:
        """The keyword arguments with which matplotlib draws the marker without a line."""
        return {"color": self.colour, "marker": self.marker, "markersize": 6.5, "linestyle": "none"}


def styles(models: Iterable[str], study: Study) -> dict[str, Style]:
    """Return {model: style} of some models, which look the same in every figure of a report on `study`.

    A model has its colour in PALETTE or, if it is the first of the study with a head that PALETTE shows under a name
    that the study lacks, this head's colour. The others of the study, and then those of published tables, have spare
    colours. Models of one experiment have different colours as long as spare ones are left, the small ones first.
    """
    shown = list(models)
    groups = [*([*e.models, *e.absent] for e in study.experiments), *map(list, study.fit_labels.values())]
    colours = _coloured({**PALETTE, **_head_colours(study)}, sorted(groups, key=len))
    colours = _coloured(colours, [shown])
    looks = {}
    for place, (model, colour) in enumerate(colours.items()):
        turn, marker = divmod(place, len(MARKERS))  # models with the colour and marker of others differ in the dash
        looks[model] = Style(colour, MARKERS[marker], DASHES[(place + turn) % len(DASHES)])
    return {model: looks[model] for model in shown}


def _coloured(colours: Mapping[str, str], groups: Sequence[Sequence[str]]) -> dict[str, str]:
    """Return {model: colour} with a spare colour for every other model of `groups`, which clashes least in its groups.

    A clash counts the more, the smaller the group.
    """
    coloured = dict(colours)
    spare = [colour for colour in SPARE if colour not in coloured.values()] or SPARE
    for model in dict.fromkeys(itertools.chain(*groups)):
        if model not in coloured:
            beside = [(other, len(group)) for group in groups if model in group for other in group]
            clashes = {c: sum(size**-2 for other, size in beside if coloured.get(other) == c) for c in spare}
            coloured[model] = min(spare, key=clashes.__getitem__)
    return coloured


def _head_colours(study: Study) -> dict[str, str]:
    """Return {model: colour of its head} of the first model of every head that PALETTE shows under another name."""
    first = {run.head.name: run.model for run in reversed(study.runs)}
    present, heads = {run.model for run in study.runs}, declarations()
    lacking = {model: heads[name] for name, model in first.items() if (heads[name].published_as or name) not in present}
    return {model: head.colour for model, head in lacking.items() if head.colour}


# --- canvas ---------------------------------------------------------------------------------------------------------
def panels(rows: int, columns: int, width: float, height: float) -> tuple[Canvas, NDArray[Any]]:
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


Panels = NDArray[Any]  # an array of matplotlib's axes
Size = tuple[int, float, float]  # the number of panels in a row, and the width and height of a panel in inches
DrawRow = Callable[[Panels, str, pd.DataFrame], None]  # fills the panels of a corpus with its data


def by_corpus(source: Source, data: pd.DataFrame, size: Size, draw: DrawRow, note: str = "") -> Drawing:
    """Return a drawing with a row of panels per corpus.

    A corpus without data has a row with the text `nothing to show yet` if the study has the corpus, and otherwise none.

    Args:
        source: the experiment and its records.
        data: the numbers to draw, with the columns `dataset` and `model`.
        size: number of panels per row, and width and height of a panel in inches.
        draw: function `draw(axes, corpus, of_corpus)` that fills the row of a corpus. `axes` is the array of the row's
            panels, `corpus` the corpus's name, and `of_corpus` the part of `data` on this corpus.
        note: the note of the drawing; by default a sentence on how many runs are drawn.
    """
    frames = {dataset: data[data["dataset"] == dataset] for dataset in source.corpora}
    frames = {dataset: part for dataset, part in frames.items() if dataset in source.datasets or len(part)}
    canvas, axes = panels(len(frames), *size)
    for row, (dataset, of_corpus) in zip(axes, frames.items(), strict=True):
        if len(of_corpus):
            draw(row, dataset, of_corpus)
        else:
            empty(row[0], f"{corpus_title(source, dataset)}: nothing to show yet")
    return Drawing(canvas, data, note or count_note(source, data))


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
        axes.plot(mean.index, mean, color=style.colour, linestyle=style.dash, linewidth=1.9)
        if len(mean):
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


# --- which runs are drawn, in words ---------------------------------------------------------------------------------
def count_note(source: Source, have: int | pd.DataFrame) -> str:
    """Return a note such as `3 of 4 planned runs are in this figure.`

    `have` is the number of drawn runs or the data of the figure. Rows of the data with the same dataset, model and seed
    are one run.
    """
    if isinstance(have, pd.DataFrame):
        have = len(have[["dataset", "model", "seed"]].drop_duplicates())
    runs = [run for dataset in source.datasets for run in source.runs(dataset)]
    return f"{have} of {len(runs)} planned runs are in this figure."


def corpus_title(source: Source, dataset: str) -> str:
    """Return the title of a corpus, shortened to at most 48 characters."""
    return textwrap.shorten(source.study.dataset(dataset).title, 48, placeholder="…") or dataset


def paper_title(source: Source, dataset: str, same: bool) -> str:
    """Return the title of a panel of published numbers, such as `Penn Treebank: published`.

    If `same` is False, the title ends with `, full size`. This tells readers that the study does not have the corpus
    or the settings of the published numbers.
    """
    return f"{source.published_title(dataset)}: published" + ("" if same else ", full size")


def short_name(study: Study, model: str) -> str:
    """Return the label of a model; if it is longer than LONGEST_NAME, `…` replaces its middle.

    The end of the label stays, because the labels of the models of one search differ only there.
    """
    text, half = label(study, model), LONGEST_NAME // 2
    return text if len(text) <= LONGEST_NAME else f"{text[: half - 1]}…{text[-half:]}"
