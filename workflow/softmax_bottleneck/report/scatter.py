"""The first figure of the report and of the README: Press rank against change of perplexity, a dot per head."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property

import pandas as pd
from matplotlib.ticker import MaxNLocator

from softmax_bottleneck.records.metrics import PRESS_RANK
from softmax_bottleneck.records.records import to_csv
from softmax_bottleneck.report import numbers, page
from softmax_bottleneck.report.contrasts import Contrast
from softmax_bottleneck.report.samples import Setting, corpus_of

WIDTH, HEIGHT = 290, 372  # pixels of a panel
LEFT, RIGHT, TOP, BOTTOM = 34, 272, 60, 328  # edges of the axes in a panel
LETTER, LINE, DOT = 6.9, 14, 5  # width of a letter, height of a line, radius of a dot
SHIFTS = (0, -8, 8, -15, 15, -23, 23, -31, 31)  # of a label from the height of its dot
SHIFT_COST, LABEL_COST = 4, 10  # of a pixel of such a shift, and of a covered square pixel of another label
ABOUT = "Press rank and change of test perplexity in %, with 95 % interval (lower is better)"
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Dot:
    """A head in one setting: its Press rank, and its change of test perplexity in percent with an interval.

    `low` and `high` equal `change` if there are too few runs for an interval. `is_fair` is True if the sizes and the
    learning rates tried are those of the softmax.
    """

    label: str
    rank: float
    change: float
    low: float
    high: float
    is_fair: bool

    @property
    def text(self) -> str:
        """The dot as text, such as `MoS 7,050, −7.6 (−8.9 to −6.2)`; a hollow dot ends with `hollow`."""
        interval = "" if self.low == self.high else f" ({numbers.interval(self.low, self.high, 1)})"
        change = numbers.number(self.change, 1, signed=True)
        return f"{self.label} {self.rank:,.0f}, {change}{interval}{'' if self.is_fair else ' hollow'}"


@dataclass(frozen=True)
class Panel:
    """The heads of one corpus: its title, the sizes of the setting with the numbers of seeds, and the dots."""

    title: str
    about: str
    dots: Sequence[Dot]

    @property
    def text(self) -> str:
        """The title and all dots as text."""
        return f"{self.title}: {'; '.join(dot.text for dot in self.dots)}"


def panels(contrasts: Iterable[Contrast]) -> list[Panel]:
    """Return a panel per corpus, in its setting with the most heads; of several, in the first.

    `contrasts` are those of every head with the softmax, in the order of `samples.settings_of`. If any corpus has an
    interval, the corpora without one are left out.
    """
    ranked = [contrast for contrast in contrasts if contrast.rank > 0]
    by_corpus: dict[str, dict[Setting, list[Contrast]]] = {}
    for contrast in ranked:
        corpus = contrast.setting.dataset if contrast.setting.is_synthetic else corpus_of(contrast.setting.dataset)
        by_corpus.setdefault(corpus, {}).setdefault(contrast.setting, []).append(contrast)
    chosen = [max(settings.values(), key=len) for settings in by_corpus.values()]
    sure = [group for group in chosen if any(contrast.ends for contrast in group)]
    return [_panel(group) for group in sure or chosen]


def _panel(contrasts: Sequence[Contrast]) -> Panel:
    base, setting = contrasts[0].baseline, contrasts[0].setting
    title = setting.labels[0]
    counts = numbers.span([n for contrast in contrasts for n in contrast.n], 0)
    dots = [Dot("Softmax", base.mean(PRESS_RANK), 0.0, 0.0, 0.0, is_fair=True)]
    for contrast in contrasts:
        low, high = contrast.ends or (contrast.change, contrast.change)
        dots.append(Dot(contrast.label, contrast.model.mean(PRESS_RANK), contrast.change, low, high, contrast.is_fair))
    return Panel(title[:1].upper() + title[1:], f"{setting.label.removeprefix(title).lstrip(', ')}; n = {counts}", dots)


@dataclass(frozen=True)
class Scatter:
    """Panels on shared axes."""

    panels: Sequence[Panel]

    @cached_property
    def _ranks(self) -> tuple[float, float]:
        ranks = [dot.rank for panel in self.panels for dot in panel.dots]
        return min(ranks, default=1.0) / 1.5, max(ranks, default=1.0) * 1.6

    @cached_property
    def _changes(self) -> tuple[float, float]:
        ends = [0.0] + [end for panel in self.panels for dot in panel.dots for end in (dot.low, dot.high)]
        margin = 0.06 * (max(ends) - min(ends)) or 1.0
        return min(ends) - margin, max(ends) + margin

    def _x(self, rank: float) -> float:
        low, high = map(math.log, self._ranks)
        return round(LEFT + (RIGHT - LEFT) * (math.log(rank) - low) / (high - low), 1)

    def _y(self, change: float) -> float:
        low, high = self._changes
        return round(BOTTOM - (BOTTOM - TOP) * (change - low) / (high - low), 1)

    @property
    def alt(self) -> str:
        """The alternative text of all panels together."""
        return f"{ABOUT}. {'. '.join(panel.text for panel in self.panels)}."

    @property
    def csv(self) -> str:
        """The dots as CSV text, one per line."""
        columns = ["corpus", "setting", "head", "press_rank", "change_pct", "low_pct", "high_pct", "is_fair"]
        rows = [(panel.title, panel.about, *astuple(dot)) for panel in self.panels for dot in panel.dots]
        return to_csv(pd.DataFrame(rows, columns=columns), digits=8)

    def svg(self, *shown: Panel) -> str:
        """Return the panels `shown` as SVG, or all side by side."""
        (least, most), (low, high) = self._ranks, self._changes
        steps = [factor * 10.0**power for power in range(8) for factor in (1, 3)]
        inside = [rank for rank in steps if least <= rank <= most]
        ranks = [(self._x(rank), f"{rank:.0f}" if rank < 1000 else f"{rank / 1000:.0f}k") for rank in inside]
        ticks = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high)
        changes = [(self._y(tick), numbers.number(tick, 0, signed=True)) for tick in ticks if low <= tick <= high]
        axes = {"ranks": ranks, "changes": changes, "zero": self._y(0.0), "width": WIDTH, "height": HEIGHT}
        drawn = [
            {"x": index * WIDTH, "title": panel.title, "about": panel.about, "dots": self._dots(panel)}
            for index, panel in enumerate(shown or self.panels)
        ]
        return page.fill("scatter.svg.j2", panels=drawn, left=LEFT, right=RIGHT, top=TOP, bottom=BOTTOM, **axes)

    def _dots(self, panel: Panel) -> list[dict[str, object]]:
        """Return the coordinates of dots, bars and labels in pixels; a label stands where it covers least."""
        centres = [(self._x(dot.rank), self._y(dot.change)) for dot in panel.dots]
        bars = [(self._y(dot.high), self._y(dot.low)) for dot in panel.dots]
        taken: list[Box] = [(x - DOT, y - DOT, x + DOT, y + DOT) for x, y in centres]
        taken += [(x - 1, top, x + 1, bottom) for (x, _), (top, bottom) in zip(centres, bars, strict=True)]
        taken += [(LEFT, self._y(0.0) - 1, RIGHT, self._y(0.0) + 1)]
        labels: list[Box] = []
        drawn: list[dict[str, object]] = []
        for dot, (x, y), (top, bottom) in zip(panel.dots, centres, bars, strict=True):
            options = [
                (_label_box(dot.label, x, y + shift, side), SHIFT_COST * abs(shift))
                for shift, side in itertools.product(SHIFTS, (1, -1))
            ]
            best, _ = min(options, key=lambda option: _cost(option[0], taken, labels) + option[1])
            labels.append(best)
            anchor, at = ("end", best[2]) if best[2] < x else ("start", best[0])
            label = {"label": dot.label, "at": at, "anchor": anchor, "base": best[3] - 3, "is_fair": dot.is_fair}
            drawn.append(label | {"x": x, "y": y, "top": top, "bottom": bottom})
        return drawn


def _label_box(label: str, x: float, y: float, side: int) -> Box:
    """Return the box of a label to the right (side 1) or left (side -1) of a dot."""
    width, gap = LETTER * len(label), DOT + 3
    left = x + gap if side > 0 else x - gap - width
    return round(left, 1), round(y - LINE / 2, 1), round(left + width, 1), round(y + LINE / 2, 1)


def _cost(box: Box, taken: Iterable[Box], labels: Iterable[Box]) -> float:
    """Return the covered area of dots and bars, LABEL_COST times that of labels, and 100 times the area outside."""
    covered = sum(_shared(box, other) for other in taken) + LABEL_COST * sum(_shared(box, other) for other in labels)
    return covered + 100 * ((box[2] - box[0]) * (box[3] - box[1]) - _shared(box, (LEFT, TOP, WIDTH, BOTTOM)))


def _shared(box: Box, other: Box) -> float:
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    return max(width, 0.0) * max(height, 0.0)
