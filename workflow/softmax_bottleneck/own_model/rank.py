"""The command `rank`, which prints ranks and other measures of a model's output layer and writes them to a folder.

The needed memory is estimated before the singular values are computed. The folder holds rank.json, spectrum.npz,
spectrum.svg and index.html, a page with the results.
"""

import argparse
import base64
import io
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
import matplotlib as mpl
import numpy as np
import psutil
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from softmax_bottleneck.own_model import log_probs, measures, price, saved_model
from softmax_bottleneck.own_model.inputs import Request
from softmax_bottleneck.ranks import RankReport, Spectrum, rank_report
from softmax_bottleneck.store import artefacts, paths, provenance
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.progress import Say
from softmax_bottleneck.store.schema import few
from softmax_bottleneck.study import read

POINTS = 2000  # of a curve
LISTED = 12  # singular values that are printed; all are in spectrum.npz
CENTRINGS = {"rows": "centred by contexts", "both": "centred by contexts and words"}
# Keys that `compare` ignores.
NOT_COMPARED = r"^provenance\.|notes?$|(wall|needed)_s$|\.bounds$|memory_estimate_bytes$|bound\.where$"


@dataclass(frozen=True)
class Result:
    """The spectrum, ranks and measures of a model.

    Attributes:
        request: the options of the command.
        matrix: the analysed matrix, of log-probabilities or (with `--weights-only`) the output matrix.
        bytes_needed: estimated peak memory in bytes.
        spectrum: singular values of the matrix.
        ranks: ranks counted from these singular values.
        bound: result of checking that a softmax layer of width D has rank at most D + 2; None if not checked.
        measures: further measures, such as saturation.
        price: prices of heads and widths; None if not requested.
        notes: remarks, such as warnings or the perplexity on the text.
        seconds: wall time of the analysis.
    """

    request: Request
    matrix: log_probs.LogProbs
    bytes_needed: int
    spectrum: Spectrum
    ranks: RankReport
    bound: log_probs.Bound | None
    measures: measures.Measures
    price: price.PriceCurve | None
    notes: list[str]
    seconds: float


def rank_command(options: argparse.Namespace, say: Say) -> None:
    """Analyse a model, print the results, and write them to a folder; with `--compare`, print a comparison instead.

    `options.compare` has the rank.json files to compare. `options.out` is the folder of results (default:
    results/own/<model>, with the name of the model's folder or .gguf file; for arrays, results/own/model). The other
    options, those of `Request`, name the model.

    Raises:
        UserError: an option, input or rank.json is invalid, the folder cannot be written, more memory is needed than is
            free, or `--compare` is combined with another option.
        DataError: a file of the model is damaged or does not fit the others.
    """
    values = {field.name: getattr(options, field.name) for field in fields(Request)}
    given = {key: value for key, value in values.items() if value is not None and value is not False}
    if options.compare:
        if given or options.out:
            raise UserError("--compare: takes no other option")
        print(compare(options.compare))
        return
    if options.file:
        file = options.file[0]
        raise UserError(f"{file}: needs an option: --log-probs {file}, --model {file}, or --hidden and --weight")
    request = read(Request, given, "rank")
    name = Path(request.model or "model").resolve().name.removesuffix(".gguf")
    folder = options.out or paths.Store().own_folder(name)
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        raise UserError(f"--out: {existing}: not a writable folder; give another folder")
    result = rank(request, say, folder / "export")
    write(result, folder)
    for label, text in rows(result):
        print(f"{label:32}  {text}")
    for note in result.notes:
        say(f"note: {note}")
    say(f"wrote {folder / 'rank.json'} and {folder / 'index.html'}")


def rank(request: Request, say: Say, folder: Path) -> Result:
    """Return singular values, ranks and measures of a model.

    For a saved model (`request.model`), hidden states and weights are first exported to `folder`. Otherwise `folder` is
    not used.

    Raises:
        UserError: an option or input is invalid, or more memory is needed than is free.
        DataError: a file is damaged or does not fit the others.
    """
    started = time.monotonic()
    export = saved_model.export_layer(request, folder, say) if request.model else saved_model.Export(request, [], [])
    matrix = log_probs.open_log_probs(export.request)
    needed, free = matrix.bytes_needed(), free_bytes()
    text = f"the {matrix.title} of {matrix.m} x {matrix.n} needs {gib(needed)} of memory, and {gib(free)} are free"
    if needed > free:
        raise UserError(f"{text}; give fewer {matrix.sides[0]}: their rank is a lower bound for the rank of all")
    say(text)
    targets = export.request.targets
    target_N = measures.read_targets(targets, matrix.m, matrix.n) if targets else None  # errors before the long part
    spectrum = matrix.spectrum(say)
    ranks = rank_report(spectrum)
    bound = matrix.bound() if isinstance(matrix, log_probs.Layer) else None
    measured = measures.measure(export.request, matrix, target_N, say)
    priced = price.price(matrix, say) if request.price and isinstance(matrix, log_probs.Layer) else None
    notes = [*export.notes, *matrix.notes, *([ranks.note] if ranks.note else [])]
    if measured.zero_rows:
        advice = "If they are padding of the vocabulary, leave them out"
        notes.append(f"the last {measured.zero_rows} rows of the output matrix are zeros and count as words. {advice}")
    if spectrum.sigma_max > 0 and ranks.press.rank == min(spectrum.m, spectrum.n) and not request.weights_only:
        notes.append("full rank, limited by the size of the matrix: more contexts (or words) might give a higher rank")
    if export.tokens and measured.words and measured.words.never:
        notes.append(f"unargmaxable: {few([repr(export.tokens[word]) for word in measured.words.never])}")
    seconds = time.monotonic() - started
    return Result(request, matrix, needed, spectrum, ranks, bound, measured, priced, notes, seconds)


def free_bytes() -> int:
    """Return the available memory in bytes, or the memory limit of the container if that is less."""
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text(encoding="utf-8").strip() if limit.exists() else ""
    available = int(psutil.virtual_memory().available)
    return min(available, int(text)) if text.isdigit() else available


def gib(count: int) -> str:
    """Return a number of bytes as text, such as `1.5 GiB` or, below one GiB, `700 MiB`."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


# --- what is written and printed ------------------------------------------------------------------------------------
def write(result: Result, folder: Path) -> None:
    """Write rank.json, spectrum.npz, spectrum.svg and index.html to a folder.

    The page index.html has no scripts and loads no other file; all text in it is escaped.
    """
    parents = {"spectrum.npz": artefacts.write_npz(folder / "spectrum.npz", **result.spectrum.to_arrays())}
    for index, path in enumerate(result.request.files()):  # names only, never their folders; they may be any bytes
        name = path.name.encode("utf-8", "backslashreplace").decode("utf-8")
        parents[f"{index} {name}"] = artefacts.sha256_file(path)
    plot, title = _plot(result), folder.resolve().name
    artefacts.write_text(folder / "spectrum.svg", plot)
    loader = jinja2.FileSystemLoader(Path(__file__).parent, encoding="utf-8")
    templates = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    image = f"data:image/svg+xml;base64,{base64.b64encode(plot.encode('utf-8')).decode('ascii')}"
    facts = {"title": title, "rows": rows(result), "notes": result.notes, "files": parents, "image": image}
    html = templates.get_template("page.html.j2").render(facts)
    # A file name may contain any bytes.
    artefacts.write_text(folder / "index.html", html.encode("utf-8", "backslashreplace").decode("utf-8"))
    artefacts.write_json(folder / "rank.json", to_json(result) | {"provenance": provenance.block(parents)})


def to_json(result: Result) -> dict[str, Any]:
    """Return the numbers and notes of a result as a dict for rank.json.

    The keys are status ("ok"), head (a dict with name and options), contexts (number of rows), words (number of
    columns), width (of a hidden state, or None), metrics ({name: rank}), bound (a dict with the check of rank <= width
    + 2, or None), notes, memory_estimate_bytes and wall_s. Further keys are the facts about the ranks, such as
    tolerance and noise_floor (see `RankReport.to_json`), and four measures:

    * centred: {kind of centring: ranks of the centred matrix}; empty if not computed.
    * saturation: a dict with the keys weight and hidden, each with a dict or, if not computed, None.
    * words_that_win, gradient_share and price: a dict or, if not computed, None.
    """
    matrix, measured, metrics = result.matrix, result.measures, result.ranks.metrics()
    saturation = {"weight": measured.weight, "hidden": measured.hidden}
    optional: dict[str, Any] = {"words_that_win": measured.words, "gradient_share": measured.gradient}
    optional |= {"bound": result.bound, "price": result.price}
    return {
        "status": "ok",
        "head": {"name": matrix.head[0], "options": dict(matrix.head[1])},
        "contexts": matrix.m,
        "words": matrix.n,
        "width": matrix.width,
        "metrics": metrics,
        **{key: value for key, value in result.ranks.to_json().items() if key not in metrics},
        "centred": {name: report.to_json() for name, report in measured.centred.items()},
        "saturation": {name: value and asdict(value) for name, value in saturation.items()},
        "top_tokens": measured.top and measured.top.to_json(),
        **{name: value and asdict(value) for name, value in optional.items()},
        "notes": result.notes,
        "memory_estimate_bytes": result.bytes_needed,
        "wall_s": round(result.seconds, 3),
    }


def rows(result: Result) -> Iterator[tuple[str, str]]:
    """Yield (label, text) for each line of the printed results."""
    press, matrix = result.ranks.press, result.matrix
    name, options = matrix.head
    chosen = ", ".join(f"{key} = {value}" for key, value in options.items())
    head = f", {name.replace('_', '-')}" + (f" ({chosen})" if chosen else "")
    head += f", width {matrix.width}" if matrix.width else ""
    yield matrix.title, f"{matrix.m:,} {matrix.sides[0]} × {matrix.n:,} {matrix.sides[1]}{head}"
    yield "Press rank", f"{press.rank:,}  ({press.low:,} to {press.high:,} at its tolerance ± 1 %)"
    yield from ((f"effective rank at {e:g}", f"{rank:,}") for e, rank in result.ranks.effective.items())
    if bound := result.bound:
        verdict = "holds" if bound.holds else "BROKEN: these are not log-probabilities of a softmax of that width"
        fall = f"; after centring, singular value {bound.cliff[0]:,} is {bound.cliff[1]:.2g} times the next one"
        yield f"softmax bound d + 2 = {bound.limit}", f"{verdict}; rank {bound.rank:,} of {bound.where}{fall}"
    yield from _measure_rows(result.measures)
    if curve := result.price:
        sizes = f"{curve.contexts:,} contexts × {curve.words:,} words, {curve.kept_mass:.1%} of the probability"
        yield "price of width: no context", f"{curve.context_free_nats:.4f} nats; {sizes}"
        for head, prices in groupby(curve.prices, key=lambda priced: priced.head):
            text = ", ".join(f"d = {p.width}: {p.nats:.4f} ({p.share:.2%})" for p in prices)
            yield f"price of width: {head}", text
    yield "tolerance", f"{press.tolerance:.4g} = 0.5 √(m+n+1) · {press.sigma_max:.6g} · {result.ranks.eps:.3g}"
    yield "noise floor of the method", f"{result.ranks.noise_floor:.2g} ({result.ranks.method})"
    yield "largest singular values", ", ".join(f"{sigma:.6g}" for sigma in result.spectrum.sigma[:LISTED])
    yield "memory, time", f"{gib(result.bytes_needed)} planned, {result.seconds:.0f} s"


def _measure_rows(measured: measures.Measures) -> Iterator[tuple[str, str]]:
    """Yield (label, text) for each measure that was computed."""
    for centring, ranks in measured.centred.items():
        effective = ", ".join(f"{rank:,} at {e:g}" for e, rank in ranks.effective.items())
        yield CENTRINGS[centring], f"Press rank {ranks.press.rank:,}; effective ranks {effective}"
    for label, value in (("output matrix", measured.weight), ("hidden states", measured.hidden)):
        if value:
            text = f"entropy of singular values {value.entropy:.3f} of 1, mean cosine {value.anisotropy:.3f}"
            yield f"saturation, {label}", text
    if words := measured.words:
        how = f"{words.by_direction:,} by a direction, {words.by_program:,} by a linear program"
        reachable = f"{words.by_direction + words.by_program:,} ({how}); {words.unsettled:,} unsettled"
        reachable += f", which need about {max(1.0, words.needed_s):,.0f} s more" if words.needed_s else ""
        yield "argmax-reachable words", f"{reachable} after {words.wall_s:.0f} s"
        yield "unargmaxable words", f"{len(words.never):,}" + (" at least" if words.unsettled else "")
    if top := measured.top:
        m, median = (" to ".join(map(str, dict.fromkeys(ends))) for ends in (top.m, top.median))
        text = f"{m} in 95 % of {len(top.bounds)} draws ({top.interval[0]} to {top.interval[1]}), {median} in half"
        yield "top tokens of any probabilities", f"{text}; {top.undecided} undecided"
    gradient = measured.gradient
    for kind in ("norm", "energy") if gradient else ():
        mean, pooled = (getattr(gradient, f"{kind}_{way}") for way in ("mean", "pooled"))
        text = f"{mean:.4f} mean of contexts, {pooled:.4f} pooled; suppressed {1 - mean:.4f}, {1 - pooled:.4f}"
        yield f"preserved gradient, {kind}", text


def _plot(result: Result) -> str:
    """Return an SVG plot of the singular values divided by the largest, on a log axis.

    Lines mark the tolerance of the Press rank and the noise floor. If the centred matrix was measured, a second curve
    shows its singular values. A second panel shows the prices of heads, if there are any.
    """
    curves = {"as they are": result.spectrum}
    if "both" in result.measures.spectra:
        curves["centred"] = result.measures.spectra["both"]
    largest = result.spectrum.sigma_max or 1.0
    floor = max(result.spectrum.noise_floor / largest, 1e-17)
    tolerance = max(result.ranks.press.tolerance / largest, floor / 10)
    with mpl.rc_context({"svg.hashsalt": "softmax-bottleneck"}):  # the same numbers give the same bytes
        canvas = Canvas(figsize=(8.6, 8.2 if result.price else 4.2), layout="constrained")
        axes, *more = canvas.subplots(1 + bool(result.price), squeeze=False).flat
        for name, spectrum in curves.items():
            drawn = np.unique(np.linspace(0, len(spectrum.sigma) - 1, POINTS).astype(np.intp))
            height = np.maximum(spectrum.sigma[drawn] / (spectrum.sigma_max or 1.0), floor / 10)
            axes.plot(drawn + 1, height, ".-", ms=3, label=name)
        axes.axhline(tolerance, color="#d55e00", linestyle="--", linewidth=1, label="Press tolerance")
        axes.axhline(floor, color="#5d656e", linestyle="--", linewidth=1, label="noise floor")
        axes.set(xlabel="index", ylabel="singular value / largest", yscale="log", ylim=(floor / 10, 2))
        if result.price:
            _plot_price(more[0], result.price)
        for panel in (axes, *more):
            panel.grid(visible=True, color="#e3e6ea")
            panel.legend(loc="lower left")
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "softmax_bottleneck"})
    return buffer.getvalue()


def _plot_price(axes: Axes, curve: price.PriceCurve) -> None:
    for head, group in groupby(curve.prices, key=lambda priced: priced.head):
        prices = list(group)
        axes.plot([p.width for p in prices], [p.nats for p in prices], ".-", label=head)
    axes.set(xlabel="width d", ylabel="nats lost", xscale="log", yscale="log")


# --- several models -------------------------------------------------------------------------------------------------
def compare(files: Sequence[Path]) -> str:
    """Return a table as text, with a column per rank.json file and a row per value that differs between the files.

    A cell "-" means that the file has no such value. Notes, provenance, times and memory estimates are left out. If no
    value differs, the text is `no number differs`.

    Raises:
        UserError: fewer than two files, or a file that is not a rank.json of `rank`.
    """
    import pandas as pd  # takes half a second

    if len(files) < 2:
        raise UserError("--compare: got one file. Expected the rank.json of two models or more")
    columns = {}
    for path in files:
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            facts = None
        if not isinstance(facts, dict) or not {"metrics", "contexts", "words"} <= facts.keys():
            raise UserError(f"--compare: {path}: not a rank.json of `rank`. Expected results/own/<model>/rank.json")
        numbers = pd.json_normalize(facts).iloc[0].dropna()
        compared = {str(key): value for key, value in numbers.items() if not re.search(NOT_COMPARED, str(key))}
        columns[str(path).removesuffix("/rank.json")] = {key: _text(key, value) for key, value in compared.items()}
    table = pd.DataFrame(columns).fillna("-")
    differing = table[table.nunique(axis=1) > 1]
    return "no number differs" if differing.empty else str(differing.to_string())


def _text(key: str, value: Any) -> str:
    """Return a value of rank.json as text; the list `never` (the unargmaxable words) is given as its length."""
    if isinstance(value, list):
        return str(len(value)) if key.endswith("never") else ", ".join(_text(key, entry) for entry in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
