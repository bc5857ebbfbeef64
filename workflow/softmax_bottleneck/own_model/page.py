"""Files that `rank` writes: rank.json, spectrum.npz, spectrum.svg and a page; and a table of several rank.json.

The page is one file without script or network; every text in it is escaped, the plot is an image.
"""

import argparse
import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jinja2
import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Canvas

from softmax_bottleneck.own_model import request
from softmax_bottleneck.own_model.rank import Result, gib, rank
from softmax_bottleneck.store import artefacts, provenance
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.store.progress import Say

MUTED, ACCENT = "#5d656e", "#d55e00"
POINTS = 2000  # of a curve
LISTED = 12  # singular values on the page; all are in spectrum.npz
CENTRINGS = {"rows": "centred by contexts", "both": "centred by contexts and words"}
Row = tuple[str, ...]


def rank_command(options: argparse.Namespace, say: Say) -> None:
    """Analyse a model, print its results and write them to a folder; or compare models analysed before."""
    values = ((key, value) for key, value in vars(options).items() if key in request.KEYS)
    named = {key: value for key, value in values if value is not None and value is not False}
    if options.compare:
        if named:
            raise UserError("--compare: takes no other option")
        for row in compare(options.compare):
            print("  ".join(f"{text:32.32}" for text in row).rstrip())
        return
    checked = request.request(named, "rank")
    folder = options.out or Store().own_folder(Path(checked.model or "model").resolve().stem)
    result = rank(checked, say, folder / "export")
    path = write(result, folder)
    for label, text in rows(result):
        print(f"{label:32}  {text}")
    for note in result.notes():
        say(f"note: {note}")
    say(f"wrote {path}")


# --- one model ------------------------------------------------------------------------------------------------------
def write(result: Result, folder: Path) -> Path:
    """Write rank.json, spectrum.npz, spectrum.svg and index.html to a folder; return the page."""
    picture = _plot(result)
    parents = {"spectrum.npz": artefacts.write_npz(folder / "spectrum.npz", **result.spectrum.to_arrays())}
    for index, path in enumerate(result.request.files()):  # names only, never their folders; they may be any bytes
        name = path.name.encode("utf-8", "backslashreplace").decode("utf-8")
        parents[f"{index} {name}"] = artefacts.sha256_file(path)
    artefacts.write_text(folder / "spectrum.svg", picture)
    artefacts.write_text(folder / "index.html", _page(result, picture))
    artefacts.write_json(folder / "rank.json", to_json(result) | {"provenance": provenance.block(parents)})
    return folder / "index.html"


def to_json(result: Result) -> dict[str, Any]:
    """Return all numbers."""
    matrix, bound, metrics = result.matrix, result.bound, result.ranks.metrics()
    return {
        "status": "ok",
        "title": result.request.title,
        "head": {"name": matrix.head[0], "options": dict(matrix.head[1])},
        "contexts": matrix.m,
        "words": matrix.n,
        "width": matrix.width,
        "metrics": metrics,
        **{key: value for key, value in result.ranks.to_json().items() if key not in metrics},
        **result.measures.to_json(),
        "bound": asdict(bound) if bound else None,
        "notes": result.notes(),
        "memory_estimate_bytes": result.bytes_needed,
        "wall_s": round(result.seconds, 3),
    }


def rows(result: Result) -> list[Row]:
    """Return the results as pairs of a name and a text, for the terminal and the page."""
    press, matrix = result.ranks.press, result.matrix
    name, options = matrix.head
    chosen = ", ".join(f"{key} = {value}" for key, value in options.items())
    head = f", {name.replace('_', '-')}" + (f" ({chosen})" if chosen else "")
    head += f", width {matrix.width}" if matrix.width else ""
    table: list[Row] = [
        (matrix.title, f"{matrix.m:,} {matrix.sides[0]} × {matrix.n:,} {matrix.sides[1]}{head}"),
        ("Press rank", f"{press.rank:,}  ({press.low:,} to {press.high:,} at its tolerance ± 1 %)"),
    ]
    table += [(f"effective rank at {e:g}", f"{rank:,}") for e, rank in result.ranks.effective.items()]
    if bound := result.bound:
        verdict = "holds" if bound.holds else "BROKEN: these are not log-probabilities of a softmax of that width"
        fall = f"; centred, they fall by {bound.cliff[1]:.2g} after {bound.cliff[0]:,}" if bound.cliff else ""
        text = f"{verdict}; rank {bound.rank:,} of {bound.where}{fall}"
        table.append((f"softmax bound d + 2 = {bound.limit}", text))
    table += _measure_rows(result)
    return [
        *table,
        ("tolerance", f"{press.tolerance:.4g} = 0.5 √(m+n+1) · {press.sigma_max:.6g} · {result.ranks.eps:.3g}"),
        ("noise floor of the method", f"{result.ranks.noise_floor:.2g} ({result.ranks.method})"),
        ("largest singular values", ", ".join(f"{sigma:.6g}" for sigma in result.spectrum.sigma[:LISTED])),
        ("memory, time", f"{gib(result.bytes_needed)} planned, {result.seconds:.0f} s"),
    ]


def _measure_rows(result: Result) -> list[Row]:
    measures, words, gradient = result.measures, result.measures.words, result.measures.gradient
    table: list[Row] = []
    for centring, ranks in measures.centred.items():
        effective = ", ".join(f"{rank:,} at {e:g}" for e, rank in ranks.effective.items())
        table.append((CENTRINGS[centring], f"Press rank {ranks.press.rank:,}; effective ranks {effective}"))
    for name, value in (("output matrix", measures.weight), ("hidden states", measures.hidden)):
        if value:
            text = f"entropy of singular values {value.entropy:.3f} of 1, mean cosine {value.anisotropy:.3f}"
            table.append((f"saturation, {name}", text))
    if words:
        how = f"{words.by_direction:,} by a direction, {words.by_program:,} by a linear program"
        reachable = f"{words.by_direction + words.by_program:,} ({how}); {words.unsettled:,} unsettled"
        table.append(("argmax-reachable words", f"{reachable} in {words.wall_s:.0f} s"))
        table.append(("unargmaxable words", f"{len(words.never):,}" + (" at least" if words.unsettled else "")))
    for kind in ("norm", "energy") if gradient else ():
        mean, pooled = (getattr(gradient, f"{kind}_{way}") for way in ("mean", "pooled"))
        text = f"{mean:.4f} mean of contexts, {pooled:.4f} pooled; suppressed {1 - mean:.4f}, {1 - pooled:.4f}"
        table.append((f"preserved gradient, {kind}", text))
    return table


# --- several models -------------------------------------------------------------------------------------------------
def compare(paths: Sequence[Path]) -> list[Row]:
    """Return a table of several rank.json: the titles, then a row for every number that differs between the models.

    Raises:
        UserError: fewer than two files, or one that is no rank.json; DataError: a damaged one.
    """
    if len(paths) < 2:
        raise UserError("--compare: give the rank.json of two models or more")
    models = []
    for path in paths:
        facts = artefacts.read_json(path)
        if not {"title", "metrics", "contexts"} <= facts.keys():
            raise UserError(f"--compare: {path}: not a rank.json of `rank`; give results/own/<model>/rank.json")
        models.append(dict(_numbers(facts)) | {"": facts["title"]})
    labels = dict.fromkeys(label for model in models for label in model)
    table = {label: tuple(model.get(label, "–") for model in models) for label in labels}
    titles = table.pop("")
    return [("", *titles), *((label, *row) for label, row in table.items() if len(set(row)) > 1)]


def _numbers(facts: Any, label: str = "") -> Iterator[tuple[str, str]]:
    """Yield every number of a rank.json with its place, as `saturation weight entropy`; of words how many."""
    if isinstance(facts, dict):
        for key, value in facts.items():
            if key not in ("provenance", "wall_s", "memory_estimate_bytes"):
                yield from _numbers(value, f"{label} {key}".strip())
    elif isinstance(facts, list) and label.endswith("never"):
        yield label, f"{len(facts):,}"
    elif isinstance(facts, list):
        yield from _numbers(dict(enumerate(facts)), label)
    elif isinstance(facts, int | float) and not isinstance(facts, bool):
        yield label, f"{facts:.4g}" if isinstance(facts, float) else f"{facts:,}"


# --- the page and its plot ------------------------------------------------------------------------------------------
def _page(result: Result, picture: str) -> str:
    """Return the page; every text in it is escaped."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent, encoding="utf-8")
    templates = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    image = f"data:image/svg+xml;base64,{base64.b64encode(picture.encode('utf-8')).decode('ascii')}"
    return templates.get_template("page.html.j2").render(result=result, rows=rows(result), image=image)


def _plot(result: Result) -> str:
    """Return an SVG of singular values relative to the largest, on a log axis, also centred, and of the tolerance."""
    curves = {"as they are": result.spectrum}
    if "both" in result.measures.spectra:
        curves["centred"] = result.measures.spectra["both"]
    largest = result.spectrum.sigma_max or 1.0
    floor = max(result.spectrum.noise_floor / largest, 1e-17)
    tolerance = max(result.ranks.press.tolerance / largest, floor / 10)
    with mpl.rc_context({"svg.hashsalt": "softmax-bottleneck"}):  # the same numbers give the same bytes
        canvas = Canvas(figsize=(8.6, 4.2), layout="constrained")
        axes = canvas.subplots()
        for name, spectrum in curves.items():
            drawn = np.unique(np.linspace(0, len(spectrum.sigma) - 1, POINTS).astype(np.intp))
            height = np.maximum(spectrum.sigma[drawn] / (spectrum.sigma_max or 1.0), floor / 10)
            axes.plot(drawn + 1, height, ".-", ms=3, label=name)
        axes.set(xlabel="index", ylabel="singular value / largest", yscale="log", ylim=(floor / 10, 2))
        for name, level, colour in (("Press tolerance", tolerance, ACCENT), ("noise floor", floor, MUTED)):
            axes.axhline(level, color=colour, linestyle="--", linewidth=1)
            place: Any = {"ha": "right", "transform": axes.get_yaxis_transform(), "fontsize": 9}
            axes.text(0.99, level * 1.2, name, color=colour, **place)
        axes.grid(visible=True, color="#e3e6ea")
        axes.legend(loc="lower left", frameon=False)
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "softmax_bottleneck"})
    return buffer.getvalue()
