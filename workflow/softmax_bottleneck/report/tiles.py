"""The tiles at the top of the report: one per claim, with its interval against the margin.

A tile shows the first number of a claim on an axis of 100 units: above the interval the region where the claim holds,
below it the region where it is refuted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from softmax_bottleneck.report.claims.rules import CANNOT, UNDECIDED, VERDICTS, Number
from softmax_bottleneck.report.claims.verdict import Code, Entry

UNDERPOWERED, UNSTABLE = "underpowered", "unstable"
UNMET = "premise not met"
# Why a claim cannot be tested; any other premise is UNMET.
STATES: Mapping[Code | None, str] = {
    **dict.fromkeys((None, Code.NO_MODEL, Code.NO_RUN, Code.NO_VALUE), "no runs"),
    Code.ALL_DIVERGED: "diverged",
    Code.CEILING: "ceiling",
}
MARGIN_SHARE = 0.12  # of the axis, left free at both ends
RATIO = "×"  # the unit of ratios, which are drawn on a log axis


def strip(entries: Sequence[Entry], titles: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return, for each verdict that occurs, its name, its count by state, and its tiles; those with a bar come first.

    `titles` are those of the study's corpora; if there are several, every tile names its own.
    """
    places = titles if len(titles) > 1 else {}
    parts = []
    for verdict in VERDICTS:
        own = [entry for entry in entries if entry.verdict == verdict]
        tiles = [tile(entry) | {"place": places.get(entry.dataset, "")} for entry in own]
        reasons = Counter(tile["state"] for tile in tiles if tile["state"] != verdict)
        tiles.sort(key=lambda tile: tile["bar"] is None)
        parts.append({"verdict": verdict, "count": len(own), "reasons": dict(reasons), "tiles": tiles})
    return [part for part in parts if part["count"]]


def state(entry: Entry) -> str:
    """Return why a claim is open, in a word or two, or the verdict of a decided claim."""
    code = entry.reason.code if entry.reason else None
    if entry.verdict == UNDECIDED:
        return UNSTABLE if code is Code.UNSTABLE else UNDERPOWERED
    return STATES.get(code, UNMET) if entry.verdict == CANNOT else entry.verdict


def tile(entry: Entry) -> dict[str, Any]:
    """Return the content of a tile: claim, state, first number and bar."""
    number = next(iter(entry.numbers), None)
    return {
        "claim": f"claim-{entry.dataset}-{entry.claim.id}",
        "statement": entry.claim.statement,
        "verdict": entry.verdict,
        "state": state(entry),
        "number": "" if number is None or number.value is None else f"{number.what}: {number.text}",
        "bar": None if number is None else bar(number),
    }


def bar(number: Number) -> dict[str, Any] | None:
    """Return the positions of value, interval and regions on an axis from 0 to 100; None without a value.

    A region is (start, width).
    """
    if number.value is None:
        return None
    ends = (*number.holds, *number.fails, number.low, number.high, number.value)
    known = [_scaled(number, end) for end in ends if end is not None]
    low, high = min(known), max(known)
    free = MARGIN_SHARE * (high - low) or 1.0
    low, high = low - free, high + free

    def place(value: float | None, default: float) -> float:
        return default if value is None else round(100 * (_scaled(number, value) - low) / (high - low), 1)

    value = place(number.value, 50)
    start, end = place(number.low, value), place(number.high, value)
    holds = (place(number.holds[0], 0), place(number.holds[1], 100))
    below, above = place(number.fails[0], 0), place(number.fails[1], 100)
    return {
        "value": value,
        "interval": [start, round(end - start, 1)],
        "holds": [holds[0], round(holds[1] - holds[0], 1)],
        "fails": [[start, round(width, 1)] for start, width in ((0, below), (above, 100 - above)) if width],
    }


def _scaled(number: Number, value: float) -> float:
    return math.log(max(value, 1e-9)) if number.unit == RATIO else value
