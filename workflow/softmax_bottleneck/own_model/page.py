"""What `rank` writes about somebody's own model: numbers as JSON, the spectrum as arrays and as SVG, and a page.

The page is one file without script or network; every text in it is escaped, the plot is an image.
"""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Canvas

from softmax_bottleneck.own_model.rank import Result, Sample, gib
from softmax_bottleneck.report import tables
from softmax_bottleneck.store import artefacts, provenance

INK, MUTED, GRID, LINE, ACCENT = "#1c2024", "#5d656e", "#e3e6ea", "#1a5fb4", "#d55e00"
POINTS = 2000  # of the curve, thinned beyond
LISTED = 12  # singular values on the page; all are in spectrum.npz
STYLE: Any = {
    "svg.hashsalt": "softmax-bottleneck",  # the same numbers give the same bytes
    "svg.fonttype": "path",
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
}


def write(result: Result, folder: Path) -> Path:
    """Write rank.json, spectrum.npz, spectrum.svg and index.html to a folder; return the page."""
    picture = svg(result)
    page = tables.environment().get_template("own-model.html.j2").render(**_context(result, picture))
    parents = {"spectrum.npz": artefacts.write_npz(folder / "spectrum.npz", **result.spectrum.to_arrays())}
    artefacts.write_text(folder / "spectrum.svg", picture)
    artefacts.write_text(folder / "index.html", page)
    artefacts.write_json(folder / "rank.json", facts(result) | {"provenance": _provenance(result, parents)})
    return folder / "index.html"


def _provenance(result: Result, parents: dict[str, str]) -> dict[str, object]:
    """Names and hashes of the files that were read; never their folders."""
    files = result.given.asked.files()
    counted = {f"{index} {path.name}": artefacts.sha256_file(path) for index, path in enumerate(files)}
    return provenance.block(parents | counted)


# --- numbers --------------------------------------------------------------------------------------------------------
def facts(result: Result) -> dict[str, Any]:
    """Everything found as JSON; `status` is ok, or sampled where the ranks are those of a part."""
    metrics = result.ranks.metrics()
    given = result.given
    return {
        "status": "sampled" if result.sample else "ok",
        "title": given.asked.title,
        "head": {"name": given.head[0], "options": dict(given.head[1])},
        "contexts": given.m,
        "words": given.n,
        "width": given.width,
        "metrics": metrics,
        **{key: value for key, value in result.ranks.to_json().items() if key not in metrics},
        "bound": _bound_facts(result),
        "sample": _sample_facts(result.sample),
        "notes": result.notes(),
        "memory_estimate_bytes": result.plan.needed,
        "wall_s": round(result.seconds, 3),
    }


def _bound_facts(result: Result) -> dict[str, Any] | None:
    bound = result.bound
    if bound is None:
        return None
    return {"limit": bound.limit, "rank": bound.rank, "holds": bound.holds, "where": bound.where}


def _sample_facts(sample: Sample | None) -> dict[str, Any] | None:
    if sample is None:
        return None
    keys = (
        "rows",
        "columns",
        "ranks",
        "half_size",
        "half_rank",
        "at_least",
        "at_most",
        "mean",
        "deviation",
        "saturated",
    )
    return {key: getattr(sample, key) for key in keys}


def lines(result: Result) -> list[tuple[str, str]]:
    """The findings as pairs of a name and a text: what is printed, and the page's table."""
    press, given = result.ranks.press, result.given
    part = " of the first part" if result.sample else ""
    found = [
        ("log-probabilities", f"{_count(given.m)} contexts × {_count(given.n)} words, {_head(result)}"),
        (
            f"Press rank{part}",
            f"{_count(press.rank)}  ({_count(press.low)} to {_count(press.high)} at its tolerance ± 1 %)",
        ),
    ]
    found += [(f"effective rank at {e:g}{part}", _count(rank)) for e, rank in result.ranks.effective.items()]
    if result.bound:
        found.append((f"softmax bound d + 2 = {result.bound.limit}", bound_words(result)))
    if result.sample:
        found += sample_lines(result.sample)
    found.append(
        ("tolerance", f"{press.tolerance:.4g} = 0.5 √(m+n+1) · {press.sigma_max:.6g} · {result.ranks.eps:.3g}")
    )
    found.append(("noise floor of the method", f"{result.ranks.noise_floor:.2g} ({result.ranks.method})"))
    found.append(("largest singular values", ", ".join(f"{sigma:.6g}" for sigma in result.spectrum.sigma[:LISTED])))
    found.append(("memory, time", f"{gib(result.plan.needed)} planned, {result.seconds:.0f} s"))
    return found


def bound_words(result: Result) -> str:
    """What the check of the softmax bound found."""
    bound = result.bound
    if bound is None or bound.rank is None:
        coarse = (
            "numbers are too coarsely rounded" if result.given.halves() else "too few contexts or words to exceed it"
        )
        return f"not checked: {coarse}"
    verdict = "holds" if bound.holds else "BROKEN: these are not log-probabilities of a softmax of that width"
    return f"{verdict}; rank {_count(bound.rank)} of {bound.where}"


def sample_lines(sample: Sample) -> list[tuple[str, str]]:
    """What the parts say of the whole matrix."""
    grown = (
        f"{_count(sample.half_rank)} in {sample.half_size[0]} × {sample.half_size[1]}, {sample.mean:.1f} in twice that"
    )
    verdict = "it no longer grows" if sample.saturated else "it still grows: take the bounds, not the mean"
    return [
        ("parts", f"{len(sample.ranks)} random ones of {_count(sample.rows)} × {_count(sample.columns)}"),
        ("Press rank of the parts", f"{sample.mean:.1f} ± {sample.deviation:.1f} (sample standard deviation)"),
        ("Press rank against size", f"{grown}; {verdict}"),
        ("Press rank of the whole", f"at least {_count(sample.at_least)}, at most {_count(sample.at_most)}"),
    ]


def _count(number: int) -> str:
    return f"{number:,}"


def _head(result: Result) -> str:
    name, options = result.given.head
    words = ", ".join(f"{key} = {value}" for key, value in options.items())
    width = f", width {result.given.width}" if result.given.width else ""
    return f"{name.replace('_', '-')}{f' ({words})' if words else ''}{width}"


# --- the page -------------------------------------------------------------------------------------------------------
def _context(result: Result, picture: str) -> dict[str, Any]:
    encoded = base64.b64encode(picture.encode("utf-8")).decode("ascii")
    return {
        "title": result.given.asked.title,
        "verdict": verdict(result),
        "lines": lines(result),
        "notes": result.notes(),
        "image": f"data:image/svg+xml;base64,{encoded}",
        "alt": alt(result),
    }


def verdict(result: Result) -> str:
    """The finding in one sentence."""
    sample, ranks = result.sample, result.ranks
    if sample:
        return (
            f"The {_count(sample.m)} × {_count(sample.n)} matrix of log-probabilities has a Press rank of at least"
            f" {_count(sample.at_least)} and at most {_count(sample.at_most)}."
        )
    return (
        f"The {_count(ranks.m)} × {_count(ranks.n)} matrix of log-probabilities has Press rank"
        f" {_count(ranks.press.rank)}, of {_count(min(ranks.m, ranks.n))} that its size allows."
    )


def alt(result: Result) -> str:
    """The plot in words."""
    rank, size = result.ranks.press.rank, len(result.spectrum.sigma)
    return (
        f"Falling curve of {_count(size)} singular values, relative to the largest; {_count(rank)} above the tolerance."
    )


def svg(result: Result) -> str:
    """Singular values relative to the largest on a log axis, with the tolerance of the Press rank."""
    sigma, largest = result.spectrum.sigma, result.spectrum.sigma_max or 1.0
    rank = result.ranks.press.rank
    with mpl.rc_context(STYLE):
        canvas = Canvas(figsize=(8.6, 4.2), layout="constrained")
        axes = canvas.subplots()
        index = _thinned(len(sigma), rank)
        floor = max(result.spectrum.noise_floor / largest, 1e-17)
        axes.plot(
            index + 1, np.maximum(sigma[index] / largest, floor / 10), color=LINE, linewidth=1.8, marker=".", ms=3
        )
        axes.set_yscale("log")
        axes.set(xlabel="index", ylabel="singular value / largest", ylim=(floor / 10, 2))
        for level, name, colour in (
            (result.ranks.press.tolerance / largest, "Press tolerance", ACCENT),
            (floor, "noise floor", MUTED),
        ):
            axes.axhline(level, color=colour, linestyle=(0, (4, 3)), linewidth=1)
            axes.text(
                0.99, level * 1.2, name, color=colour, ha="right", transform=axes.get_yaxis_transform(), fontsize=9
            )
        axes.grid(visible=True)
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "softmax_bottleneck"})
    return buffer.getvalue()


def _thinned(length: int, rank: int) -> Any:
    """Indices of at most some POINTS, dense at the start and where the rank is counted."""
    if length <= POINTS:
        return np.arange(length)
    even, first = np.linspace(0, length - 1, POINTS // 2), np.arange(POINTS // 4)
    near = rank + np.arange(-POINTS // 8, POINTS // 8)
    chosen = np.unique(np.concatenate([even, first, near]).astype(int))
    return chosen[(chosen >= 0) & (chosen < length)]
