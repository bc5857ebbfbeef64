"""Plots: short SVG that draws the same, literal text, colours by name that everybody can tell apart."""

from __future__ import annotations

import io
import itertools
import math
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from softmax_bottleneck.report import plots


def paths(svg: str) -> list[tuple[str, list[float]]]:
    """The commands and the numbers of every path, in order."""
    drawn = (path.get("d", "") for path in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}path"))
    return [
        ("".join(re.findall("[A-Za-z]", path)), [float(n) for n in re.findall(r"-?\d+\.?\d*", path)]) for path in drawn
    ]


def marks(element: ElementTree.Element, above: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], list[float]]]:
    """Everything drawn, in order: its style with all that it inherits, and its position."""
    tag, own = element.tag.split("}")[-1], dict(element.attrib)
    moved = re.findall(r"-?[\d.]+", own.pop("transform", "")) if tag == "use" else []
    where = [float(number) for number in (own.get("x", [*moved, 0][0]), own.get("y", [*moved, 0, 0][1]))]
    style = sorted(part.strip().replace(": ", ":") for part in own.get("style", "").split(";"))
    href = next((value for key, value in own.items() if key.endswith("href")), "").replace("DejaVuSans-", "c")
    target = href if href.startswith("#c") else href[:2]
    looks = (*above, *filter(None, (*style, own.get("transform", ""), "clip" * ("clip-path" in own), target)))
    below = [mark for child in element for mark in marks(child, looks)]
    return [((tag, *looks), where), *below] if tag in ("path", "use", "rect") else below


def test_the_shorter_svg_draws_the_same() -> None:
    canvas, ((axes,),) = plots.panels(1, 1, 4.0, 3.0)
    axes.plot([1, 10, 123.456], [-1e-3, 2e-7, 0.0], "o-", clip_on=True)
    axes.plot([1], [math.nan], "s")
    axes.set(title="Qq 10⁻³", xscale="log")
    whole = io.StringIO()
    canvas.savefig(whole, format="svg", metadata={"Date": None})
    short = plots.to_svg(canvas)
    assert len(short) < 0.75 * len(whole.getvalue()) and "<g>" not in short and "<metadata" not in short
    before, after = paths(whole.getvalue()), paths(short)
    assert len(before) > 10 and [commands for commands, _ in after] == [commands for commands, _ in before]
    for (_, one), (_, other) in zip(before, after, strict=True):
        assert other == pytest.approx(one, abs=0.1)
    seen, kept = (marks(ElementTree.fromstring(svg)) for svg in (whole.getvalue(), short))
    assert len(seen) > 40 and [looks for looks, _ in kept] == [looks for looks, _ in seen]
    assert [place for _, place in kept] == [pytest.approx(place, abs=0.1) for _, place in seen]


@pytest.mark.parametrize(("x", "y"), [(1.0, math.nan), (1.0, -1.0), (1e9, 1.0)], ids=["nan", "no-log", "off-canvas"])
def test_dots_that_cannot_be_seen_leave_a_sound_svg(x: float, y: float) -> None:
    """matplotlib closes their empty group at once."""
    canvas, ((axes,),) = plots.panels(1, 1, 4.0, 3.0)
    axes.plot([1.0, 2.0], [1.0, 2.0], "o-")
    axes.plot([x], [y], "o")
    axes.set(xlim=(0, 3), ylim=(0.1, 3), yscale="log")
    assert len(paths(plots.to_svg(canvas))) > 10


@pytest.mark.parametrize(
    ("letters", "inches", "columns"),
    [([5], 0.1, 1), ([10, 10, 10], 9.0, 3), ([27, 5, 5, 27], 6.0, 2), ([80, 80], 3.0, 1), ([10, 60, 60, 10], 8.6, 1)],
)
def test_a_legend_is_as_wide_as_its_names(letters: list[int], inches: float, columns: int) -> None:
    canvas, _ = plots.panels(1, 1, inches, 2.0)
    names = {str(n): "x" * count for n, count in enumerate(letters)}
    plots.legend(canvas, names, plots.styles(list(names)))
    (drawn,) = canvas.legends
    assert drawn._ncols == columns
    canvas.draw_without_rendering()
    assert columns == 1 or drawn.get_window_extent().width <= canvas.bbox.width


def test_a_model_looks_the_same_in_every_figure_and_new_ones_share_no_colour() -> None:
    for models in (["mos"], ["x", "mos", "softmax"], ["softmax", "y", "x", "mos"]):
        looks = plots.styles(models)
        assert looks["mos"] == plots.styles(["mos"])["mos"] and looks["mos"].colour == plots.PALETTE["mos"]
        assert (looks.get("x") or plots.styles(["x"])["x"]).marker == plots.styles(["x"])["x"].marker
    many = plots.styles([*plots.PALETTE, *(f"new-{index}" for index in range(len(plots.SPARE)))])
    assert len({style.colour for style in many.values()}) == len(many)


def contrast(one: str, other: str) -> float:
    """WCAG 2.1 contrast ratio of two #rrggbb colours."""
    levels = []
    for colour in (one, other):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        levels.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(levels) + 0.05) / (min(levels) + 0.05)


def test_text_in_figures_has_contrast_aa_and_the_colours_of_the_style_sheet() -> None:
    for theme in (plots.LIGHT, plots.DARK):
        assert min(contrast(theme.paper, theme.ink), contrast(theme.paper, theme.muted)) >= 4.5
        assert all(contrast(theme.paper, colour) >= 1.8 for colour in plots.PALETTE.values())
    with plots.mpl.rc_context(fname=plots.STYLE_SHEET):
        shown = {plots.mpl.rcParams[key] for key in ("text.color", "xtick.color", "axes.facecolor", "grid.color")}
    assert {f"#{colour.removeprefix('#')}" for colour in shown} == set(vars(plots.LIGHT).values())


# The share of linear RGB visible to an eye without its green, or its red cones (Machado, Oliveira and Fernandes 2009).
BLIND = {
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
JUST_APART = 18  # CIE 1976 colour difference; about 2 is just noticeable side by side


def lab(colour: str, blindness: str) -> np.ndarray:
    """CIELAB of a #rrggbb colour as it is seen."""
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    ratios = XYZ @ np.clip(np.array(BLIND[blindness]) @ linear, 0, 1) / XYZ.sum(axis=1)
    x, y, z = np.where(ratios > 0.008856, np.cbrt(ratios), 7.787 * ratios + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("blindness", BLIND)
def test_colours_of_known_heads_stay_apart_for_colour_blind_eyes(blindness: str) -> None:
    for (one, a), (other, b) in itertools.combinations(plots.PALETTE.items(), 2):
        assert np.linalg.norm(lab(a, blindness) - lab(b, blindness)) > JUST_APART, (one, other)
