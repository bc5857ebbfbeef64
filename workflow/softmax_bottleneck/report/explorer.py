"""The explorer: learning curve, spectrum, ranks and distance of every main model in small multiples, the law's in each.

The page draws them as inline SVG, so that they are there without scripts; its script lights up a chosen head.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from softmax_bottleneck.records.metrics import (
    EFFECTIVE_RANK,
    ENTROPY_PPL,
    KL_TRUTH,
    PRESS_RANK,
    RANK_TRUTH,
    TEST_PPL,
    VALID_PPL,
    find,
)
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.cells import mean_of
from softmax_bottleneck.report.figures import overview, plots
from softmax_bottleneck.report.source import exact_value, label
from softmax_bottleneck.study import Run, Study

Points = list[tuple[float, float]]
WIDTH, HEIGHT = 240, 150  # of a panel, in its own units
DOTS = 48  # of a line
RANKS = {PRESS_RANK: "Press", f"{EFFECTIVE_RANK}1e-5": "10⁻⁵", f"{EFFECTIVE_RANK}1e-4": "10⁻⁴",
         f"{EFFECTIVE_RANK}1e-3": "10⁻³"}  # fmt: skip
HIGHEST = 2.5  # times the best validation perplexity: the first fall is cut off
FLOOR = 1e-8  # of relative singular values: below it there is only rounding


@dataclass(frozen=True)
class Panel:
    """Lines of models, and of the law, on axes of their own.

    Attributes:
        lines: model -> its points; a single one is drawn as a dot.
        law: points of the law's line; empty where it is not known.
        marks: ticks along x and their labels.
    """

    title: str
    x: str
    lines: Mapping[str, Points]
    law: Points = field(default_factory=list)
    log_x: bool = False
    log_y: bool = True
    marks: Mapping[float, str] = field(default_factory=dict)

    def drawn(self, looks: Mapping[str, plots.Style]) -> dict[str, Any]:
        """Paths in their models' colours, and ticks, in units of the panel."""
        every = [point for line in (*self.lines.values(), self.law) for point in line]
        x, y = _Axis.of((point[0] for point in every), self.log_x), _Axis.of((point[1] for point in every), self.log_y)

        def place(line: Points) -> list[tuple[float, float]]:
            return [(round(WIDTH * x.share(a), 1), round(HEIGHT * (1 - y.share(b)), 1)) for a, b in line]

        marks = self.marks or {end: _tick(end) for end in (x.low, x.high)}
        return {
            "title": self.title,
            "x": self.x,
            "lines": [
                {"model": model, "colour": looks[model].colour, **_shape(place(line))}
                for model, line in self.lines.items()
            ],
            "law": _shape(place(self.law)) if self.law else None,
            "x_ticks": [(place([(at, y.low)])[0][0], words) for at, words in marks.items()],
            "y_ticks": [(place([(x.low, end)])[0][1], _tick(end)) for end in (y.low, y.high)],
        }


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    log: bool

    @classmethod
    def of(cls, values: Iterable[float], log: bool) -> _Axis:
        known = list(values)
        return cls(min(known), max(known), log)

    def share(self, value: float) -> float:
        scale = math.log if self.log else float
        low, high = scale(self.low), scale(self.high)
        return (scale(value) - low) / (high - low) if high > low else 0.5


def _shape(points: Points) -> dict[str, Any]:
    """A dot, or a path."""
    if len(points) == 1:
        return {"dot": points[0]}
    return {"path": "M" + "L".join(f"{x:g},{y:g}" for x, y in points)}


def _tick(value: float) -> str:
    """At most three digits or so: 0.324, 86.3, 1,999, 167 k, 10⁻⁸."""
    if value >= 1e4:
        return overview.amount(value)
    if 0 < value < 0.01:
        return plots.power(10 ** round(math.log10(value)))
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# --- panels of a corpus ---------------------------------------------------------------------------------------------
def explorer(study: Study, found: Records) -> list[dict[str, Any]]:
    """Of every corpus with results: its models with their colours and numbers, and four panels."""
    asked = overview.experiment(study)
    corpora = []
    for dataset in asked.datasets:
        runs = {m: [r for r in study.runs if (r.dataset, r.model) == (dataset, m)] for m in asked.models}
        models = [model for model in asked.models if found.values(dataset, model, TEST_PPL)]
        panels = [panel for panel in _panels(found, dataset, {model: runs[model] for model in models}) if panel.lines]
        looks = plots.styles(list(asked.models))
        shown = [
            {"key": m, "name": label(study, m), "colour": looks[m].colour, "words": _words(found, dataset, m)}
            for m in models
        ]
        title = study.datasets[dataset].title
        if models:
            corpora.append({"id": dataset, "title": title, "models": shown, "panels": [p.drawn(looks) for p in panels]})
    return corpora


def _panels(found: Records, dataset: str, runs: Mapping[str, Sequence[Run]]) -> list[Panel]:
    return [
        _curves(found, dataset, runs),
        _spectra(found, dataset, runs),
        _ranks(found, dataset, list(runs)),
        _distances(found, dataset, list(runs)),
    ]


def _curves(found: Records, dataset: str, runs: Mapping[str, Sequence[Run]]) -> Panel:
    """Validation perplexity by epoch, mean over seeds, from where it is near the best."""
    lines = {}
    for model, own in runs.items():
        by_epoch: dict[int, list[float]] = {}
        for line in (line for run in own for line in found.curve(run.path) if line[VALID_PPL] > 0):
            by_epoch.setdefault(int(line["epoch"]), []).append(line[VALID_PPL])
        lines[model] = [(epoch, float(np.mean(values))) for epoch, values in sorted(by_epoch.items())]
    best = min((y for line in lines.values() for _, y in line), default=1.0)
    near = {m: _thinned([point for point in line if point[1] <= HIGHEST * best]) for m, line in lines.items()}
    ends = [x for line in near.values() for x, _ in line]
    law = exact_value(found, dataset, "law_valid_ppl") or exact_value(found, dataset, ENTROPY_PPL)
    level = [(float(min(ends)), law), (float(max(ends)), law)] if law and ends else []
    return Panel("Validation perplexity", "epoch", {m: line for m, line in near.items() if line}, level)


def _thinned(points: Points) -> Points:
    """At most DOTS of the points, both ends among them."""
    wanted = np.unique(np.linspace(0, len(points) - 1, min(DOTS, len(points))).round().astype(int))
    return [points[i] for i in wanted]


def _spectra(found: Records, dataset: str, runs: Mapping[str, Sequence[Run]]) -> Panel:
    """Relative singular values of the first measured run of every model, and where the law's end."""
    lines = {}
    for model, own in runs.items():
        spectrum = next((one for run in own if (one := found.spectrum(run.path)) is not None), None)
        if spectrum is not None and len(spectrum[1]) and spectrum[1][0] > 0:
            index_K, sigma_K = spectrum
            wanted = np.unique(np.searchsorted(index_K, np.geomspace(1, index_K[-1], DOTS).round()))
            lines[model] = [(float(index_K[i]), max(float(sigma_K[i] / sigma_K[0]), FLOOR)) for i in wanted]
    rank = exact_value(found, dataset, RANK_TRUTH)
    lowest = min((y for line in lines.values() for _, y in line), default=FLOOR)
    law = [(rank, lowest), (rank, 1.0)] if rank and lines else []
    return Panel("Singular values, relative", "index (law: its rank)" if law else "index", lines, law, log_x=True)


def _ranks(found: Records, dataset: str, models: Sequence[str]) -> Panel:
    """Press rank and effective ranks, means over seeds."""

    def line(values: Iterable[float | None]) -> Points:
        return [(float(at), rank) for at, rank in enumerate(values) if rank]

    lines = {m: line(_mean(found, dataset, m, metric) for metric in RANKS) for m in models}
    law = line(exact_value(found, dataset, f"law_{metric}") for metric in RANKS)
    marks = {float(at): words for at, words in enumerate(RANKS.values())}
    return Panel("Rank", "Press, and effective by ε", {m: one for m, one in lines.items() if one}, law, marks=marks)


def _distances(found: Records, dataset: str, models: Sequence[str]) -> Panel:
    """Distance to the law, or perplexity where no law is known, against parameters."""
    is_known = exact_value(found, dataset, ENTROPY_PPL) is not None
    metric = KL_TRUTH if is_known else TEST_PPL
    sizes = {model: _mean(found, dataset, model, "parameters") for model in models}
    lines = {m: [(size, value)] for m, size in sizes.items() if size and (value := _mean(found, dataset, m, metric))}
    ends = [line[0][0] for line in lines.values()]
    law = [(min(ends), 0.0), (max(ends), 0.0)] if is_known and ends else []
    return Panel(find(metric).label, "parameters", lines, law, log_y=False)


def _mean(found: Records, dataset: str, model: str, metric: str) -> float | None:
    mean = mean_of(found.values(dataset, model, metric).values())
    return mean.mean if mean else None


def _words(found: Records, dataset: str, model: str) -> str:
    """`Test perplexity 38.16 ± 0.05; Press rank 400; ...`."""
    shown = []
    for metric in (TEST_PPL, PRESS_RANK, f"{EFFECTIVE_RANK}1e-3", KL_TRUTH):
        mean, about = mean_of(found.values(dataset, model, metric).values()), find(metric)
        shown += [f"{about.label} {numbers.spread(mean.mean, mean.sd, about.digits)}"] if mean else []
    return "; ".join(shown)
