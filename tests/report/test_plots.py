"""Plots: short and sound SVG, names of lines that do not overlap, and colours with contrast."""

import itertools
import math
import xml.etree.ElementTree as ElementTree

import pandas as pd
import pytest
from softmax_bottleneck.report import figures, plots
from softmax_bottleneck.report.views import ranks


@pytest.mark.parametrize(("x", "y"), [(1.0, math.nan), (1.0, -1.0), (1e9, 1.0)], ids=["nan", "no-log", "off-canvas"])
def test_dots_that_cannot_be_seen_leave_a_sound_svg(x: float, y: float) -> None:
    canvas, ((axes,),) = plots.panels(1, 1, 4.0, 3.0)
    axes.plot([1.0, 2.0], [1.0, 2.0], "o-")
    axes.plot([x], [y], "o")
    axes.set(xlim=(0, 3), ylim=(0.1, 3), yscale="log")
    svg = plots.to_svg(canvas)
    assert len(list(ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}path"))) > 10
    assert f"fill: {plots.LIGHT.paper}" in svg  # what the style sheet for dark screens replaces


LOOK = plots.Style("#123456", "o", "-")


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
        assert all(contrast(theme.paper, colour) >= 1.8 for colour in (*figures.PALETTE.values(), *plots.SPARE))
    with plots.mpl.rc_context(fname=plots.STYLE_SHEET):
        shown = {plots.mpl.rcParams[key] for key in ("text.color", "xtick.color", "axes.facecolor", "grid.color")}
    assert {f"#{colour.removeprefix('#')}" for colour in shown} == set(vars(plots.LIGHT).values())


@pytest.mark.parametrize(("dots", "lines"), [(2, 0), (7, 0), (8, 1)])
def test_perplexity_falls_to_the_right_and_few_dots_have_no_line(dots: int, lines: int) -> None:
    ((axes,),) = plots.panels(1, 1, 4.0, 3.0)[1]
    points = pd.DataFrame({"k": 2.5, "test_ppl": [57 + i / 10 for i in range(dots)], "rank_press": [300.0] * dots})
    ranks._grid_panel(axes, points, "")
    assert axes.xaxis_inverted()
    assert len([line for line in axes.lines if line.get_linestyle() != "None"]) == lines


def test_names_of_lines_stand_in_the_order_of_their_ends_and_do_not_overlap() -> None:
    ((axes,),) = plots.panels(1, 1, 4.0, 3.0)[1]
    ends = {"low": (3.0, 0.0), "close": (2.0, 0.01), "high": (3.0, 1.0), "below": (3.0, -9.0)}
    axes.set(xlim=(0, 3), ylim=(0, 1))
    plots.label_lines(axes, ends, {name: name.title() for name in ends}, dict.fromkeys(ends, LOOK))
    heights = {text.get_text(): text.xyann[1] for text in axes.texts}
    assert sorted(heights, key=heights.get) in (["Below", "Low", "Close", "High"], ["Low", "Below", "Close", "High"])
    steps = sorted(heights.values())
    assert all(after - before >= plots.LABEL_GAP - 1e-9 for before, after in itertools.pairwise(steps))
    assert all(0 <= y <= 1 for text in axes.texts for y in text.xy)


def test_many_seeds_are_a_band_and_few_are_lines() -> None:
    for seeds, lines, bands in ((3, 4, 0), (plots.MOST_SEEDS + 1, 1, 1)):
        ((axes,),) = plots.panels(1, 1, 4.0, 3.0)[1]
        rows = [("a", seed, epoch, seed + epoch) for seed in range(seeds) for epoch in (1, 2)]
        data = pd.DataFrame(rows, columns=["model", "seed", "epoch", "ppl"])
        ends = plots.curves(axes, data, "epoch", "ppl", {"a": LOOK, "without data": LOOK})
        assert (len(axes.lines), len(axes.collections)) == (lines, bands)
        assert ends == {"a": (2.0, 2 + (seeds - 1) / 2)}
