"""Scaling curves of benchmarks/results/cpu.json as benchmarks/results/scaling.svg: python benchmarks/figures.py"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

RESULTS = Path(__file__).parent / "results"
AXES = {"tokens": "tokens N (GSS)", "words": "words V (GSS)", "components": "components K (MoS)"}
MEASURES = {"ms": ("seconds", 1e-3), "peak_mib": ("peak memory, MiB", 1.0)}
COLOURS = {"B": "#8a93a5", "ours": "#0b6e99"}


def draw(found: dict[str, Any], path: Path) -> None:
    """Time and memory of B and ours against N, V and K, and the time to plan a study against its runs."""
    mpl.rcParams |= {"svg.hashsalt": "bench", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    figure, panels = plt.subplots(2, 4, figsize=(12, 5.5), layout="constrained")
    for column, (axis, title) in enumerate(AXES.items()):
        for row, (key, (label, scale)) in enumerate(MEASURES.items()):
            panel: Axes = panels[row][column]
            for variant, colour in COLOURS.items():
                points = [one for one in found["scaling"] if (one["axis"], one["variant"]) == (axis, variant)]
                values = [scale * one[key] for one in points]
                panel.plot([one["value"] for one in points], values, "o-", color=colour, label=variant)
            labelled(panel, title, label)
    panels[0][0].legend(frameon=False)
    planning: Axes = panels[0][3]
    planning.plot(
        [one["runs"] for one in found["dag"]], [one["s"] for one in found["dag"]], "o-", color=COLOURS["ours"]
    )
    labelled(planning, "runs of a study", "seconds of snakemake -n")
    panels[1][3].set_axis_off()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def labelled(panel: Axes, below: str, beside: str) -> None:
    """Both axes from zero: proportional growth is a straight line."""
    panel.set(xlabel=below, ylabel=beside, xlim=(0, None), ylim=(0, None))


def slopes(found: dict[str, Any]) -> dict[str, float]:
    """Growth of our time as a power of each size, from its two largest values: 1 is proportional."""
    powers = {}
    for axis in AXES:
        last = [one for one in found["scaling"] if (one["axis"], one["variant"]) == (axis, "ours")][-2:]
        (x0, y0), (x1, y1) = ((one["value"], one["ms"]) for one in last)
        powers[axis] = round(math.log(y1 / y0) / math.log(x1 / x0), 2)
    return powers


if __name__ == "__main__":
    measured = json.loads((RESULTS / "cpu.json").read_text(encoding="utf-8"))
    draw(measured, RESULTS / "scaling.svg")
    print(slopes(measured))
