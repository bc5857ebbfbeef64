"""Small figures keep the order of their numbers."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from softmax_bottleneck.report.dot_plot import WIDTH, DotPlot, Row


def test_a_figure_keeps_the_order_of_its_numbers() -> None:
    rows = [Row("a", -3.0, -4.0, -2.0), Row("b", 1.0, 1.0, 1.0)]
    svg = ET.fromstring(DotPlot(rows, "axis").svg())
    name = "{http://www.w3.org/2000/svg}"
    first, second = (float(dot.get("cx")) for dot in svg.iter(f"{name}circle"))
    lines = [(line.get("class"), float(line.get("x1")), float(line.get("x2"))) for line in svg.iter(f"{name}line")]
    bars = [(low, high) for kind, low, high in lines if "bar" in kind]
    zero = next(low for kind, low, _ in lines if kind == "zero")
    assert bars[0][0] < first < bars[0][1] < zero < second == bars[1][0] == bars[1][1] <= WIDTH
    assert first - bars[0][0] == pytest.approx(bars[0][1] - first, abs=0.2)
