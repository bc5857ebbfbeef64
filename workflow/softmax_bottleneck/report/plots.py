"""What all figures share: one palette, panels and legends, notes on which runs are drawn, and SVG.

The same input gives the same bytes: no dates, fixed ids, text as outlines. Every SVG changes into dark colours by
itself where the reader's screen is dark.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from softmax_bottleneck.report.cells import Source, label
from softmax_bottleneck.study import Run, Study

mpl.use("Agg")  # seaborn imports pyplot, which would look for a screen

# Readable on white and on near-black, told apart with the common colour-vision deficiencies (after Okabe and Ito).
PALETTE: Mapping[str, str] = {
    "softmax": "#808489",
    "ss": "#e69f00",
    "gss": "#d55e00",
    "lms-plif": "#009e73",
    "lms-plif-frozen": "#7ccbae",
    "moc": "#56b4e9",
    "mos": "#2f7fd1",
    "moss": "#cc79a7",
}

SPARE = ("#a6761d", "#b15fd6", "#c9b400", "#e377a2", "#4fa3a5", "#9c6b4e", "#7c8f2b", "#d64f6f")
MARKERS = "osD^vpXh"
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
LONGEST_NAME = 30
ABSENT_NAMED = 6  # models without all their runs, below a figure; more are counted
LEGEND_INCHES = 1.7  # of one entry
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Theme:
    """Colours of everything that is not a model."""

    paper: str
    ink: str
    muted: str
    grid: str


LIGHT = Theme("#ffffff", "#1c2024", "#5d656e", "#e3e6ea")
DARK = Theme("#16191d", "#e6e9ec", "#a3abb3", "#33393f")


@dataclass(frozen=True)
class Drawing:
    """What a view made: the canvas, the numbers in it, a description in words, and what is missing or counted."""

    canvas: Canvas
    data: pd.DataFrame
    alt: str
    note: str = ""


@dataclass(frozen=True)
class Style:
    """How one model is drawn in every figure."""

    colour: str
    marker: str
    dash: Any


def styles(models: Sequence[str]) -> dict[str, Style]:
    """A colour, marker and line per model: fixed for known names, else chosen by the name from the spare colours.

    Models share no colour as long as there are spare ones.
    """
    free = list(SPARE)
    found = {}
    for index, model in enumerate(models):
        colour = PALETTE.get(model)
        if colour is None:
            pool = free or list(SPARE)
            colour = pool[int(hashlib.sha256(model.encode()).hexdigest(), 16) % len(pool)]
            free = [other for other in pool if other != colour]
        found[model] = Style(colour, MARKERS[index % len(MARKERS)], DASHES[index % len(DASHES)])
    return found


# --- canvas ---------------------------------------------------------------------------------------------------------
def rc_settings() -> Any:
    """Settings of matplotlib for all figures."""
    plain = dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor"), LIGHT.ink)
    return plain | {
        "svg.hashsalt": "softmax-bottleneck",
        "svg.fonttype": "path",
        "text.parse_math": False,  # a dollar sign in a name is a dollar sign
        "font.family": ["DejaVu Sans"],
        "font.size": 10,
        "axes.titlesize": 10.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.labelsize": 9.5,
        "axes.unicode_minus": True,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
        "legend.fontsize": 9.5,
        "legend.frameon": False,
        "figure.facecolor": LIGHT.paper,
        "axes.facecolor": LIGHT.paper,
        "savefig.facecolor": LIGHT.paper,
        "axes.edgecolor": LIGHT.muted,
        "xtick.color": LIGHT.muted,
        "ytick.color": LIGHT.muted,
        "grid.color": LIGHT.grid,
        "grid.linewidth": 0.8,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }


def panels(rows: int, columns: int, width: float, height: float) -> tuple[Canvas, NDArray[Any]]:
    """A canvas of rows x columns axes, each `width` x `height` inches."""
    canvas = Canvas(figsize=(width * columns, height * rows + 0.6), layout="constrained")
    canvas.set_layout_engine("constrained", w_pad=0.08, h_pad=0.1)
    return canvas, canvas.subplots(rows, columns, squeeze=False)


def empty(axes: Axes, words: str) -> None:
    """Words in the place of a plot."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, words, ha="center", va="center", color=LIGHT.muted, transform=axes.transAxes, wrap=True)


def draw_legend(canvas: Canvas, study: Study, models: Sequence[str], *, lines: bool) -> None:
    """Names of the models below all panels, as lines or as dots."""
    drawn = styles(models)
    handles = [
        Line2D([], [], color=s.colour, linestyle=s.dash, linewidth=2.2, label=short_name(study, model))
        if lines
        else Line2D(
            [], [], color=s.colour, marker=s.marker, linestyle="none", markersize=7, label=short_name(study, model)
        )
        for model, s in drawn.items()
    ]
    if handles:
        lines_needed = math.ceil(len(handles) / max(1, int(canvas.get_figwidth() / LEGEND_INCHES)))
        canvas.legend(handles=handles, loc="outside lower center", ncols=math.ceil(len(handles) / lines_needed))


def power(value: float, _position: object = None) -> str:
    """A tick of a log axis: 10⁻³, or 2·10⁻³ between the powers."""
    if value <= 0:
        return ""
    exponent = math.floor(math.log10(value) + 1e-9)
    factor = value / 10**exponent
    power = f"10{str(exponent).translate(SUPERSCRIPT)}"
    return power if abs(factor - 1) < 1e-6 else f"{factor:.3g}·{power}"


def integer(value: float, _position: object = None) -> str:
    """A tick with thin spaces between thousands."""
    return f"{value:,.0f}".replace(",", "\u2009")


def to_svg(canvas: Canvas) -> str:
    """The canvas as SVG, with coordinates to a hundredth of a point and a style sheet for dark screens."""
    buffer = io.StringIO()
    canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "softmax_bottleneck"})
    short = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), buffer.getvalue())
    return short.replace("<defs>", f"<style>{_dark_rules()}</style>\n <defs>", 1)


def _dark_rules() -> str:
    """CSS that exchanges the light colours, which matplotlib writes into style attributes, for the dark ones."""
    pairs = zip(dataclasses.astuple(LIGHT), dataclasses.astuple(DARK), strict=True)
    rules = [f'[style*="{kind}: {a}"]{{{kind}:{b}!important}}' for a, b in pairs for kind in ("fill", "stroke")]
    return f"@media (prefers-color-scheme:dark){{{''.join(rules)}}}"


def planned_runs(source: Source, dataset: str) -> list[Run]:
    """The runs an experiment needs on a corpus, in the plan's order."""
    return [run for run in source.study.runs_of(source.experiment) if run.dataset == dataset]


def usable_runs(source: Source, dataset: str) -> list[Run]:
    """Runs of the experiment whose numbers are in the records, in the plan's order."""
    known = set(source.records.rows["run_id"])
    return [run for run in planned_runs(source, dataset) if run.run_id in known]


def count_note(source: Source, have: int) -> str:
    """How many of the planned runs are drawn, and which have no results, with the reason."""
    runs = [run for dataset in source.experiment.datasets for run in planned_runs(source, dataset)]
    return f"{have} of {len(runs)} planned runs are in this figure. {_absent(source, runs)}".rstrip()


def _absent(source: Source, runs: Sequence[Run]) -> str:
    """`Without results: GSS (seed 3 diverged).`, at most ABSENT_NAMED models."""
    have = {(r.dataset, r.model): source.values(r.dataset, r.model, "test_ppl") for r in runs}
    gaps = {pair: source.gap(*pair, values) for pair, values in have.items()}
    several = len(source.experiment.datasets) > 1
    where = {d: f" on {corpus_title(source, d)}" if several else "" for d in source.experiment.datasets}
    named = [f"{short_name(source.study, model)}{where[d]} ({gap})" for (d, model), gap in gaps.items() if gap]
    more = f" and {len(named) - ABSENT_NAMED} more" if len(named) > ABSENT_NAMED else ""
    return f"Without results: {', '.join(named[:ABSENT_NAMED])}{more}." if named else ""


def drawn(data: pd.DataFrame) -> int:
    """Number of different runs in the data of a figure."""
    return len(data[["dataset", "model", "seed"]].drop_duplicates())


def corpus_title(source: Source, dataset: str) -> str:
    """A corpus' name, short enough for a panel."""
    return textwrap.shorten(source.study.datasets[dataset].title, 48, placeholder="…") or dataset


def short_name(study: Study, model: str) -> str:
    """A model's name, short enough for a tick; members of a grid differ at its end, which stays."""
    text, half = label(study, model), LONGEST_NAME // 2
    return text if len(text) <= LONGEST_NAME else f"{text[: half - 1]}…{text[-half:]}"


def in_order(source: Source, data: pd.DataFrame) -> list[str]:
    """The models of some data, in the experiment's order."""
    present = set(data["model"])
    return [model for model in source.experiment.models if model in present]
