"""What `rank` writes about somebody's own model: numbers as JSON, the spectrum as arrays and as SVG, and a page.

The page is one file without script or network; every text in it is escaped, the plot is an image.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from typing import Any

import jinja2
import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray

from softmax_bottleneck.own_model.matrix import Bound
from softmax_bottleneck.own_model.multi_mode import Behaviour
from softmax_bottleneck.own_model.rank import Result, Sample, gib
from softmax_bottleneck.ranks import Spectrum, press_rank
from softmax_bottleneck.store import artefacts, provenance

INK, MUTED, GRID, LINE, ACCENT = "#1c2024", "#5d656e", "#e3e6ea", "#1a5fb4", "#d55e00"
COLOURS = (LINE, "#7a3e9d", "#00806c", "#b8860b", "#8b1a1a", "#5d656e")
POINTS = 1000  # of the curve, and half as many more where it matters
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
    parents = {"spectrum.npz": artefacts.write_npz(folder / "spectrum.npz", **result.spectrum.to_arrays())}
    artefacts.write_text(folder / "spectrum.svg", picture)
    artefacts.write_text(folder / "index.html", page(result, picture))
    for index, path in enumerate(result.asked.files()):  # names only, never their folders
        parents[f"{index} {_in_utf8(path.name)}"] = artefacts.sha256_file(path)
    artefacts.write_json(folder / "rank.json", facts(result) | {"provenance": provenance.block(parents)})
    return folder / "index.html"


def _in_utf8(name: str) -> str:
    """A file's name, which may be any bytes, as text."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


# --- numbers --------------------------------------------------------------------------------------------------------
def facts(result: Result) -> dict[str, Any]:
    """Everything found as JSON; `status` is ok, or sampled where the ranks are those of a part."""
    matrix, sample, bound = result.matrix, result.sample, result.bound
    metrics = result.ranks.metrics()
    return {
        "status": "sampled" if sample else "ok",
        "title": result.asked.title,
        "head": {"name": matrix.head[0], "options": dict(matrix.head[1])},
        "contexts": matrix.m,
        "words": matrix.n,
        "width": matrix.width,
        "metrics": metrics,
        **{key: value for key, value in result.ranks.to_json().items() if key not in metrics},
        **result.measures.to_json(),
        "multi_mode": asdict(result.multi_mode) if result.multi_mode else None,
        "bound": asdict(bound) | {"holds": bound.holds} if bound else None,
        "sample": asdict(sample) if sample else None,
        "notes": result.notes(),
        "memory_estimate_bytes": result.plan.needed,
        "wall_s": round(result.seconds, 3),
    }


def lines(result: Result) -> list[tuple[str, str]]:
    """The findings as pairs of a name and a text: what is printed, and the page's table."""
    press, matrix = result.ranks.press, result.matrix
    name, options = matrix.head
    chosen = ", ".join(f"{key} = {value}" for key, value in options.items())
    head = f", {name.replace('_', '-')}" + (f" ({chosen})" if chosen else "")
    head += f", width {matrix.width}" if matrix.width else ""
    part = " of the first part" if result.sample else ""
    near = f"({press.low:,} to {press.high:,} at its tolerance ± 1 %)"
    return [
        (matrix.title, f"{matrix.m:,} {matrix.sides[0]} × {matrix.n:,} {matrix.sides[1]}{head}"),
        (f"Press rank{part}", f"{press.rank:,}  {near}"),
        *((f"effective rank at {e:g}{part}", f"{rank:,}") for e, rank in result.ranks.effective.items()),
        *([(f"softmax bound d + 2 = {result.bound.limit}", bound_words(result.bound))] if result.bound else []),
        *measured_lines(result),
        *(sample_lines(result.sample) if result.sample else []),
        ("tolerance", f"{press.tolerance:.4g} = 0.5 √(m+n+1) · {press.sigma_max:.6g} · {result.ranks.eps:.3g}"),
        ("noise floor of the method", f"{result.ranks.noise_floor:.2g} ({result.ranks.method})"),
        ("largest singular values", ", ".join(f"{sigma:.6g}" for sigma in result.spectrum.sigma[:LISTED])),
        ("memory, time", f"{gib(result.plan.needed)} planned, {result.seconds:.0f} s"),
    ]


def bound_words(bound: Bound) -> str:
    """What the check of the softmax bound found."""
    if bound.rank is None:
        return f"not checked: {bound.unchecked}"
    verdict = "holds" if bound.holds else "BROKEN: these are not log-probabilities of a softmax of that width"
    fall = f"; centred, they fall by {bound.cliff[1]:.2g} after {bound.cliff[0]:,}" if bound.cliff else ""
    return f"{verdict}; rank {bound.rank:,} of {bound.where}{fall}"


CENTRINGS = {"rows": "centred by contexts", "both": "centred by contexts and words"}


def measured_lines(result: Result) -> list[tuple[str, str]]:
    """What was measured beside the ranks."""
    found, words, gradient = result.measures, result.measures.words, result.measures.gradient
    pairs = [
        (CENTRINGS[name], f"Press rank {ranks.press.rank:,}; effective ranks "
         + ", ".join(f"{rank:,} at {e:g}" for e, rank in ranks.effective.items()))
        for name, ranks in found.centred.items()
    ]  # fmt: skip
    for name, of in (("output matrix", found.weight), ("hidden states", found.hidden)):
        if of:
            pairs.append(
                (
                    f"saturation, {name}",
                    f"entropy of singular values {of.entropy:.3f} of 1, mean cosine {of.anisotropy:.3f}",
                )
            )
    if words:
        how = f"{words.by_direction:,} by a direction, {words.by_program:,} by a linear program"
        can = words.by_direction + words.by_program
        pairs.append(("words that can win", f"{can:,} ({how}); {words.unsettled:,} unsettled in {words.wall_s:.0f} s"))
        pairs.append(("words that never win", f"{len(words.never):,}" + (" at least" if words.unsettled else "")))
    if gradient:
        for kind in ("norm", "energy"):
            mean, pooled = (getattr(gradient, f"{kind}_{way}") for way in ("mean", "pooled"))
            text = f"{mean:.4f} mean of contexts, {pooled:.4f} pooled; suppressed {1 - mean:.4f}, {1 - pooled:.4f}"
            pairs.append((f"gradient that passes, {kind}", text))
    return pairs


def probe_lines(result: Result) -> list[tuple[str, str]]:
    """What the multi-mode probe found, if it was asked for."""
    found = result.multi_mode
    if found is None:
        return []

    def of(pairs: Behaviour) -> str:
        ahead = f"a wrong word ahead of a right one in {100 * pairs.intruded:.1f} % of prompts"
        return f"perplexity {pairs.perplexity:.2f} (ideal: 2); {ahead}"

    more, below = (f"{one.mean:.3f} [{one.low:.3f}, {one.high:.3f}]" for one in (found.difference, found.below_control))
    return [
        ("analogies", f"{found.quadruples} in {found.prompts:,} prompts; {len(found.left_out)} left out"),
        ("a diagonal is right", of(found.diagonal)),
        ("an edge is right", of(found.edge)),
        ("diagonals are harder by", f"{more} nats"),
        ("parallelogram defect", f"{found.defect:.3f}; re-paired {found.control:.3f}, higher by {below}"),
    ]


def sample_lines(sample: Sample) -> list[tuple[str, str]]:
    """What the parts say of the whole matrix."""
    rows, columns = sample.half_size
    growth = "it no longer grows" if sample.saturated else "it still grows: take the bounds, not the mean"
    return [
        ("parts", f"{len(sample.ranks)} random ones of {sample.rows:,} × {sample.columns:,}"),
        ("Press rank of the parts", f"{sample.mean:.1f} ± {sample.deviation:.1f} (sample standard deviation)"),
        ("Press rank against size",
         f"{sample.half_rank:,} in {rows} × {columns}, {sample.mean:.1f} in twice that; {growth}"),
        ("Press rank of the whole", f"at least {sample.at_least:,}, at most {sample.at_most:,}"),
    ]  # fmt: skip


# --- the page -------------------------------------------------------------------------------------------------------
CAPTION = (
    "Singular values of the matrix of log-probabilities, relative to the largest. The Press rank counts those above the"
    " tolerance; values near the noise floor are rounding errors of the method. All values are in spectrum.npz."
)


PROBE_CAPTION = (
    "Each prompt names the four words of an analogy (king : queen = man : woman), two of them as right: a diagonal"
    " (king, woman) or an edge (king, queen). One softmax cannot rank a diagonal first where the four vectors form a"
    " parallelogram (defect 0; re-paired: pairs of different relations). Brackets: 95 % over analogies. Prompts are of"
    " templates, words are single tokens: they speak of the head only if edges are easy, diagonals harder, and the"
    " defect is below the re-paired one; and a model may find diagonals harder for other reasons as well."
)


def page(result: Result, picture: str) -> str:
    """The page, with the plot as an image in it and in words."""
    size, rank = len(result.spectrum.sigma), result.ranks.press.rank
    return filled(
        title=result.asked.title,
        verdict=verdict(result),
        header=("Quantity", "Value"),
        lines=lines(result),
        notes=result.notes(),
        picture=picture,
        alt=f"Falling curve of {size:,} singular values, relative to the largest; {rank:,} above the tolerance.",
        caption=CAPTION,
        probe=probe_lines(result),
        probe_caption=PROBE_CAPTION,
    )


def filled(*, picture: str, probe: Sequence[tuple[str, str]] = (), **parts: Any) -> str:
    """The template with these parts; every text in it is escaped."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent, encoding="utf-8")
    templates = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    image = f"data:image/svg+xml;base64,{base64.b64encode(picture.encode('utf-8')).decode('ascii')}"
    return templates.get_template("page.html.j2").render(image=image, probe=probe, **parts)


def verdict(result: Result) -> str:
    """The finding in one sentence."""
    matrix, sample, rank = result.matrix, result.sample, result.ranks.press.rank
    subject = f"The {matrix.m:,} × {matrix.n:,} {matrix.title} has"
    if sample:
        return f"{subject} a Press rank of at least {sample.at_least:,} and at most {sample.at_most:,}."
    return f"{subject} Press rank {rank:,}, of {min(matrix.m, matrix.n):,} that its size allows."


def svg(result: Result) -> str:
    """Its singular values, those without the means of rows and columns, and the tolerance of the Press rank."""
    largest = result.spectrum.sigma_max or 1.0
    centred = result.measures.spectra.get("both")
    curves = {"as they are": result.spectrum} | ({"centred": centred} if centred else {})
    floor = max(result.spectrum.noise_floor / largest, 1e-17)
    levels = {"Press tolerance": (max(result.ranks.press.tolerance / largest, floor / 10), ACCENT)}
    return plot(curves, levels | {"noise floor": (floor, MUTED)})


def plot(curves: Mapping[str, Spectrum], levels: Mapping[str, tuple[float, str]]) -> str:
    """Singular values relative to the largest of their own on a log axis, and dashed levels, as SVG."""
    floors = [max(spectrum.noise_floor / (spectrum.sigma_max or 1.0), 1e-17) for spectrum in curves.values()]
    with mpl.rc_context(STYLE):
        canvas = Canvas(figsize=(8.6, 4.2), layout="constrained")
        axes = canvas.subplots()
        for (name, spectrum), floor, colour in zip(curves.items(), floors, cycle(COLOURS), strict=False):
            shown = _thinned(len(spectrum.sigma), press_rank(spectrum.sigma, spectrum.m, spectrum.n).rank)
            height = np.maximum(spectrum.sigma[shown] / (spectrum.sigma_max or 1.0), floor / 10)
            axes.plot(shown + 1, height, ".-", color=colour, linewidth=1.8, ms=3, label=name)
        axes.set(xlabel="index", ylabel="singular value / largest", yscale="log", ylim=(min(floors) / 10, 2))
        for name, (level, colour) in levels.items():
            axes.axhline(level, color=colour, linestyle=(0, (4, 3)), linewidth=1)
            place: Any = {"ha": "right", "transform": axes.get_yaxis_transform(), "fontsize": 9}
            axes.text(0.99, level * 1.2, name, color=colour, **place)
        axes.grid(visible=True)
        if len(curves) > 1:
            axes.legend(loc="lower left", frameon=False)
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "softmax_bottleneck"})
    return buffer.getvalue()


def _thinned(length: int, rank: int) -> NDArray[np.intp]:
    """Indices of some POINTS, all of the start and all near where the rank is counted."""
    even, near = np.linspace(0, length - 1, POINTS), rank + np.arange(-POINTS // 8, POINTS // 8)
    chosen = np.concatenate([np.arange(POINTS // 4), near, even])
    return np.unique(np.clip(chosen, 0, length - 1).astype(np.intp))
