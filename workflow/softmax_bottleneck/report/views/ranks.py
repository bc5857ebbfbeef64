"""Ranks: singular values, ranks along training, of untrained layers, and of a matrix of rank 10 under noise.

Parthiban et al. 2021, Figure 7, SM Figures 2 to 5 and SM Tables 14 to 16; Merity 2017; Godey et al. 2024 and 2026.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from pydantic import Field

from softmax_bottleneck.records import metrics
from softmax_bottleneck.records.metrics import PRESS_RANK, RANK, RANK_TOLERANCE, SIGMA_MAX, VALID_PPL
from softmax_bottleneck.records.records import FINETUNED, groups
from softmax_bottleneck.report import numbers, plots
from softmax_bottleneck.report.cells import Cell, Gap, GapCode, MeasuredCell, PublishedCell, Section, mean_of, section
from softmax_bottleneck.report.plots import Drawing
from softmax_bottleneck.report.registry import view
from softmax_bottleneck.report.source import Source, label
from softmax_bottleneck.study import schema

SIGMA, RAW = "relative_singular_value", "singular_value"


# --- singular values ------------------------------------------------------------------------------------------------
@view("figure", "spectrum")
def spectrum(
    source: Source,
    *,
    panels: tuple[Literal["first", "all", "raw"], ...] = ("first", "all"),
    first: schema.Positive = 500,
    top: schema.Number = 0.2,
) -> Drawing:
    """Draw singular values over the largest: the `first` ones on a linear axis up to `top`, or all on a log axis.

    `raw` panels show all as they are on a log axis.
    """
    data, looks = _singular_values(source, panels), plots.styles(list(source.models))

    def draw(row: NDArray[Any], dataset: str, own: pd.DataFrame) -> None:
        title, longest = plots.corpus_title(source, dataset), int(own["index"].max())
        for panel, side in zip(row, panels, strict=True):
            if side == "first":
                shown = min(first, longest)
                plots.curves(panel, own[own["index"] <= shown], "index", SIGMA, looks)
                panel.set(title=title, xlabel=f"index (first {shown})", ylabel="σ / σ max")
                panel.set(xlim=(0, shown), ylim=(0, top))
                continue
            y, text = (RAW, "σ, not divided by the largest") if side == "raw" else (SIGMA, "σ / σ max")
            plots.curves(panel, own[own[y] > 0], "index", y, looks)
            panel.set(title=f"{title}, log axis", xlabel="index (all)", xlim=(0, longest), ylabel=text)
            plots.log_y(panel)
            tolerances = _tolerances(source, dataset, relative=side == "all")
            if side == "all":  # far below the tolerance there is only rounding
                panel.set_ylim((float(np.median(tolerances)) if tolerances else 1e-5) / 300, 1.5)
            panel.xaxis.set_major_formatter(plots.integer)
            panel.xaxis.set_major_locator(MaxNLocator(5))
            if tolerances:
                plots.level(panel, float(np.median(tolerances)), "Press tolerance", end="left")

    count = len(panels)
    size, start = (count, 4.7 if count > 1 else 7.0, 3.5), "Falling curves of singular values; drawn per model:"
    return plots.figure_by_corpus(source, data, size, draw, start, lambda own: f"{own['index'].max()} of them")


def _singular_values(source: Source, panels: tuple[str, ...]) -> pd.DataFrame:
    """Return a line per drawn singular value of the runs whose numbers are in the records, in the panels' scale."""
    known = set(source.records.rows["run_id"])
    scales = dict.fromkeys(RAW if side == "raw" else SIGMA for side in panels)
    frames = [pd.DataFrame(columns=["dataset", "model", "seed", "index", *scales])]
    for dataset in source.corpora:
        for trained in source.runs_on(dataset):
            run = source.study.last_stage(trained, source.experiment.stages)
            thinned = source.records.spectrum(run.path) if run.run_id in known else None
            if thinned is not None and len(thinned[1]) and thinned[1][0] > 0:
                values = {"dataset": dataset, "model": run.model, "seed": run.seed, "index": thinned[0]}
                values |= {SIGMA: thinned[1] / thinned[1][0], RAW: thinned[1]}
                frames.append(pd.DataFrame(values)[list(frames[0])])
    return pd.concat(frames[1:] or frames, ignore_index=True)


def _tolerances(source: Source, dataset: str, *, relative: bool) -> list[float]:
    """Return the Press tolerance of every run, or its share of the largest singular value."""
    tolerances, stage = [], FINETUNED if "finetune" in source.experiment.stages else ""
    for model in source.models:
        tolerance, largest = (source.values(dataset, model, metric, stage) for metric in (RANK_TOLERANCE, SIGMA_MAX))
        tolerances += [tolerance[seed] / (largest[seed] if relative else 1) for seed in tolerance if seed in largest]
    return tolerances


# --- along training -------------------------------------------------------------------------------------------------
SATURATION = ("rank_centred", "weight_entropy", "hidden_anisotropy", "gradient_passed")


@view("figure", "rank-training")
def rank_training(source: Source, *, snapshots: schema.Flag = False) -> Drawing:
    """Draw Press rank by epoch, and against validation perplexity, for every run that kept its epochs."""
    data, looks = _epochs(source, (PRESS_RANK, "rank_eff_1e-3", VALID_PPL)), plots.styles(list(source.models))

    def draw(row: NDArray[Any], dataset: str, own: pd.DataFrame) -> None:
        for panel, x, text in zip(row, ("epoch", VALID_PPL), ("epoch", "validation perplexity"), strict=True):
            plots.curves(panel, own, x, PRESS_RANK, looks, dots=x == VALID_PPL)
            panel.set(xlabel=text, ylabel="Press rank")
            panel.yaxis.set_major_formatter(plots.integer)
        row[0].set_title(plots.corpus_title(source, dataset))
        row[0].xaxis.set_major_locator(MaxNLocator(integer=True))
        row[1].set_title("against validation perplexity")
        row[1].invert_xaxis()

    def ends(own: pd.DataFrame) -> str:
        return f"from {own[PRESS_RANK].iloc[0]:.0f} to {own[PRESS_RANK].iloc[-1]:.0f}"

    return plots.figure_by_corpus(source, data, (2, 4.7, 3.4), draw, "Lines of Press rank by epoch:", ends)


@view("figure", "saturation-training")
def saturation_training(source: Source, *, snapshots: schema.Flag = False) -> Drawing:
    """Draw other numbers of an output layer by epoch, for every run that kept its epochs."""
    data, looks = _epochs(source, SATURATION), plots.styles(list(source.models))

    def draw(row: NDArray[Any], dataset: str, own: pd.DataFrame) -> None:
        for panel, metric in zip(row, SATURATION, strict=True):
            plots.curves(panel, own.dropna(subset=metric), "epoch", metric, looks)
            panel.set(xlabel="epoch", ylabel=metrics.find(metric).label)
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        row[0].set_title(plots.corpus_title(source, dataset))

    def ends(own: pd.DataFrame) -> str:
        return f"from {own['hidden_anisotropy'].iloc[0]:.2f} to {own['hidden_anisotropy'].iloc[-1]:.2f}"

    start, known = "Lines by epoch; anisotropy of hidden states:", data.dropna(subset="hidden_anisotropy")
    return plots.figure_by_corpus(source, data, (len(SATURATION), 3.0, 2.9), draw, start, ends, known)


def _epochs(source: Source, names: tuple[str, ...]) -> pd.DataFrame:
    """Return a line per measured epoch of every run, with a column per metric."""
    rows = [
        (dataset, model, run.seed, *(line.get(key) for key in ("epoch", *names)))
        for dataset in source.corpora
        for model in source.models
        for run in source.runs(dataset, model)
        for line in source.records.detail(run.path, "epoch_ranks") or ()
    ]
    frame = pd.DataFrame(rows, columns=["dataset", "model", "seed", "epoch", *names])
    return frame.astype(dict.fromkeys(("epoch", *names), float) | {"seed": "Int64"})


# --- untrained layers (Merity 2017) ---------------------------------------------------------------------------------
# The matrices of the rank demonstration; the first is the published one.
MATRICES = {
    RANK: "Logarithms of probabilities, Press's tolerance",
    "rank_p": "Probabilities themselves, Press's tolerance",
    "rank_numpy": "Logarithms of probabilities, numpy's default tolerance",
}
DEFAULT = "default"  # the reading without further options


@view("table", "rank-demo")
def rank_demo(source: Source, *, synthetic: Literal["rank-demo"]) -> Iterator[Section]:
    """Return the rank of untrained layers by number of components, mean over samples, and the closest reading.

    A section per matrix, a row per model and reading of the text; published numbers stand beside the first matrix.
    """
    drawn = source.records.synthetic
    plain = {option for condition in source.published["condition"] for option in condition.split(";")}
    options_of = [[option for option in text.split(";") if option not in plain] for text in drawn["condition"]]
    readings = [", ".join(option for option in own if not option.startswith("K=")) for own in options_of]
    drawn = drawn.assign(reading=readings, components=[*map(_components, drawn["condition"])])
    sections = [_matrix_section(source, drawn[drawn["metric"] == metric], metric) for metric in MATRICES]
    sections.append(_closest_reading(source, drawn[drawn["metric"] == RANK]))
    yield from (section for section in sections if section.rows)


def _components(condition: str) -> int:
    match = re.search(r"(?:^|;)K=(\d+)", condition)
    return int(match[1]) if match else 1


def _published_rank(source: Source, model: str, components: int) -> PublishedCell | None:
    return source.find_published("synthetic", model, RANK, {"condition": rf"(?:^|;)K={components}(?:;|$)"})


def _matrix_section(source: Source, drawn: pd.DataFrame, metric: str) -> Section:
    """Return models and readings by components: ranks of one matrix."""
    same = metric == RANK
    printed = source.published if same else source.published.iloc[:0]
    models = list(dict.fromkeys([*printed["model"], *drawn["model"]]))
    keys = {(model, "") for model in printed["model"]} | set(zip(drawn["model"], drawn["reading"], strict=True))
    rows = {f"{m} {r}".strip(): (m, r) for m, r in sorted(keys, key=lambda key: (key[1], models.index(key[0])))}
    labels = {row: f"{label(source.study, m)} ({r})" if r else label(source.study, m) for row, (m, r) in rows.items()}
    columns = {k: f"K = {k}" for k in sorted({*map(_components, printed["condition"]), *drawn["components"]})}

    def cell(row: str, components: int) -> Cell:
        model, reading = rows[row]
        own = drawn[(drawn["model"] == model) & (drawn["reading"] == reading) & (drawn["components"] == components)]
        published = _published_rank(source, model, components) if same else None
        gaps = (Gap(GapCode.NOT_DRAWN),) if own.empty else ()
        return Cell(mean_of(own["value"]), published, metric=metric, planned=len(own), same=same, gaps=gaps)

    return section("synthetic", MATRICES[metric], labels, columns, cell)


def _closest_reading(source: Source, drawn: pd.DataFrame) -> Section:
    """Return MoS of every reading less the published rank for each K above one, and the mean absolute difference."""
    distances: dict[str, dict[int, float]] = defaultdict(dict)
    for (reading, components), own in groups(drawn[drawn["model"] == "mos"], "reading", "components"):
        printed = _published_rank(source, "mos", k := int(components))
        if printed is not None and printed.number is not None and k > 1:
            distances[reading or DEFAULT][k] = float(own["value"].mean()) - printed.number
    means = {reading: sum(map(abs, own.values())) / len(own) for reading, own in distances.items()}
    names = {DEFAULT: "tanh, standard normal contexts"}
    rows = {reading: f"MoS ({names.get(reading, reading)})" for reading in sorted(means, key=means.__getitem__)}
    columns = {0: "Mean distance"} | {k: f"K = {k}" for k in sorted({k for own in distances.values() for k in own})}

    def cell(reading: str, k: int) -> Cell:
        return Cell(MeasuredCell(distances[reading][k] if k else means[reading]), digits=0 if k else 1)

    return section("synthetic", "Measured less published rank, the closest reading first", rows, columns, cell)


# --- a matrix of rank 10 (Parthiban et al. 2021, SM Tables 14 to 16) ------------------------------------------------
PAPER_SIZE = 10_000  # rows and columns of the paper's matrix
ROBUSTNESS = (
    *(PRESS_RANK, metrics.RANK_PREDICTED, metrics.RANK_PREDICTED_PAPER, metrics.RECONSTRUCTION_ERROR),
    *("rank_eff_1e-3", "rank_eff_1e-4", "rank_eff_1e-5"),
)


@view("table", "robustness", row="Matrix")
def robustness(
    source: Source,
    *,
    synthetic: Literal["rebuild", "noise", "noise-effective"],
    size: Annotated[schema.Integer, Field(ge=20, le=20_000)] = 1000,
) -> Iterator[Section]:
    """Yield rounds or noise levels by the numbers that the step `synthetic` computed, beside the published ones."""
    names = (source.experiment.artefact, "SM 5.1 text")
    drawn, printed = (frame[frame["table"].isin(names)] for frame in (source.records.synthetic, source.published))
    measured, published = _by_step(drawn), _by_step(printed)
    steps = {step: step for step, _ in [*published, *measured]}
    present = {metric for _, metric in [*published, *measured]}
    columns = {metric: metrics.find(metric).label for metric in ROBUSTNESS if metric in present}
    match = re.search(r"size=(\d+);of=([^;/]+)/([^;]+)", "".join(drawn["condition"].iloc[:1]))
    contexts, dataset, model = match.groups() if match else ("0", "", "")
    same_matrix = int(contexts) == PAPER_SIZE and source.same(dataset, model)
    missing: tuple[Gap, ...] = (Gap(GapCode.LEVEL_NOT_DRAWN),)
    if drawn.empty:
        needs = source.experiment.needs
        gaps = [source.gaps(dataset, model, ()) for dataset in source.datasets for model in source.models]
        missing = next(filter(None, gaps), (Gap(GapCode.NEEDS, (needs,)) if needs else Gap(GapCode.NOT_DRAWN),))

    def cell(step: str, metric: str) -> Cell:
        """A prediction for the paper's size may be compared with the paper whatever size was sampled here."""
        predicts_paper = metric == metrics.RANK_PREDICTED_PAPER
        text = published.get((step, PRESS_RANK if predicts_paper else metric))
        value = measured.get((step, metric))
        is_error = metric == metrics.RECONSTRUCTION_ERROR
        if value is None and text is None and len(drawn):
            return Cell(metric=metric, wanted=False)
        return Cell(
            measured=None if value is None or is_error else MeasuredCell(float(value)),
            published=PublishedCell(text) if text else None,
            metric=metric,
            same=predicts_paper or same_matrix,
            gaps=missing if value is None else (),
            label=numbers.true_minus(f"{float(value):.2e}") if is_error and value is not None else "",
        )

    where = source.dataset(dataset).title if dataset else ""
    note = f"The matrix is that of {label(source.study, model)} on {where}: its first {int(contexts):,} test contexts."
    title = "Ten singular values of a trained model"
    yield section("synthetic", title, steps, columns, cell, note if dataset else "")


def _by_step(frame: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Return (`c = 1e-20` or `round 3`, metric) -> the first value, as text."""
    values: dict[tuple[str, str], str] = {}
    for condition, metric, value in zip(frame["condition"], frame["metric"], frame["value"], strict=True):
        noise, rounds = re.search(r"c=(1e-\d+)", condition), re.search(r"iteration=(\d+)", condition)
        step = f"c = {noise[1]}" if noise else f"round {rounds[1]}" if rounds else "all singular values"
        variant = ", diagonal as printed" if "as printed" in condition else ""
        values.setdefault((step + variant, metric), str(value))
    return values
