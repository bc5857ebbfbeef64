"""Tables of ranks that the step `synthetic` computes: of untrained layers, and of a matrix of rank 10 with errors.

They correspond to the rank table of Merity 2017 and to SM Tables 14 to 16 of Parthiban et al. 2021. The options
`synthetic` and `size` of a table tell the step what to compute; the functions here do not read them.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field

from softmax_bottleneck.ranks.robustness import PAPER_SIZE
from softmax_bottleneck.records import metrics
from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.cells import Cell, MeasuredCell, PublishedCell, Section, mean_of, section
from softmax_bottleneck.report.claims.known_distributions import SWEEP, softmaxes_needed, sweep
from softmax_bottleneck.report.claims.verdict import TEXTS
from softmax_bottleneck.report.source import Source, label
from softmax_bottleneck.study import schema

# --- untrained layers (Merity 2017) ---------------------------------------------------------------------------------
# Kinds of rank: metric -> matrix and tolerance. Only the first is published.
KINDS = {
    metrics.RANK: "Logarithms of probabilities, Press's tolerance",
    "rank_p": "Probabilities themselves, Press's tolerance",
    "rank_numpy": "Logarithms of probabilities, numpy's default tolerance",
}
# The condition of a sample (`measuring/synthetic_experiments.py`): K, sizes, and the reading; empty for the default.
DEMO = re.compile(r"^K=(?P<K>\d+);.*;equal mixing;?(?P<reading>.*)$")


def rank_demo_table(source: Source, *, synthetic: Literal["rank-demo"]) -> Iterator[Section]:
    """Yield one section per kind of rank (KINDS), with ranks of untrained heads, averaged over random samples.

    There is a row per model and reading, and a column per number K of mixture components. A reading fixes options that
    the published description leaves open, such as the activation. A kind without ranks has no section.
    """
    synthetic_rows = source.records.synthetic
    drawn, printed = (
        frame.join(frame["condition"].str.extract(DEMO)).dropna(subset="K").astype({"K": int})
        for frame in (synthetic_rows[~synthetic_rows["condition"].str.match(SWEEP)], source.published)
    )
    for metric in KINDS:
        parts = [frame[frame["metric"] == metric] for frame in (printed, drawn)]
        if any(len(part) for part in parts):
            yield _kind_section(source, metric, *parts)


def _kind_section(source: Source, metric: str, printed: pd.DataFrame, drawn: pd.DataFrame) -> Section:
    """Return the section of one kind of rank, from frames with the columns model, reading, K and value.

    Every reading is compared with the same published ranks. Only the kind `rank` has any.
    """
    both = pd.concat([frame[["model", "reading", "K"]] for frame in (printed, drawn)])
    models = list(dict.fromkeys(both["model"]))
    pairs = sorted(set(zip(both["model"], both["reading"], strict=True)), key=lambda p: (p[1], models.index(p[0])))
    keys = {f"{model} {reading.replace(';', ', ')}".strip(): (model, reading) for model, reading in pairs}
    labels = {row: label(source.study, model) + _in_brackets(reading) for row, (model, reading) in keys.items()}
    ranks = {key: list(values) for key, values in drawn.groupby(["model", "reading", "K"])["value"]}
    is_published = metric == metrics.RANK

    def cell(row: str, components: int) -> Cell:
        samples, condition = ranks.get((*keys[row], components), []), {"condition": rf"^K={components};"}
        published = source.find_published("synthetic", keys[row][0], metric, condition) if is_published else None
        gaps = () if samples else ("not drawn yet",)
        return Cell(mean_of(samples), published, metric=metric, planned=len(samples), same=is_published, gaps=gaps)

    return section("synthetic", KINDS[metric], labels, {k: f"K = {k}" for k in sorted({*both["K"]})}, cell)


def _in_brackets(reading: str) -> str:
    """Return a reading as text, such as ` (inputs times 0.9, no tanh)`; empty for the default reading."""
    text = reading.replace("tanh=False", "no tanh").replace("input_scale=", "inputs times ").replace(";", ", ")
    return f" ({text})" if text else ""


def rank_sweep_table(source: Source, *, synthetic: Literal["rank-sweep"]) -> Iterator[Section]:
    """Yield one section with the rank of untrained mixtures by width H, vocabulary V and number of softmaxes K.

    There is a row per (H, V), by ascending V / H, and a column per K. The last column has the smallest K whose rank is
    nearly full, by the threshold of the claim `merity-softmaxes-needed`.
    """
    ranks, share = sweep(source.records.synthetic), TEXTS["merity-softmaxes-needed"]["thresholds"]["share"]
    rank_of = ranks.set_index(["H", "V", "K"])["rank"].to_dict()
    needed = softmaxes_needed(ranks, share)
    sizes = {f"H={h};V={v}": (h, v) for h, v in sorted(needed, key=lambda size: (size[1] / size[0], size))}

    def cell(row: str, components: int | None) -> Cell:
        if components is not None:
            return Cell(MeasuredCell(rank_of[(*sizes[row], components)]), metric=metrics.RANK)
        least = needed[sizes[row]]
        return Cell(label=f"more than {ranks['K'].max()}") if least is None else Cell(MeasuredCell(least), digits=0)

    rows = {row: f"H = {h}, V = {v}, V / H = {v / h:.3g}" for row, (h, v) in sizes.items()}
    columns = {k: f"K = {k}" for k in sorted(set(ranks["K"]))} | {None: f"K for {share:.0%} of V"}
    if rows:
        yield section("synthetic", "Press rank of ln P", rows, columns, cell)


# --- a matrix of rank 10 (Parthiban et al. 2021, SM Tables 14 to 16) ------------------------------------------------
ROWS = {r"c=(1e-\d+)": "c = {}", r"iteration=(\d+)": "round {}"}  # pattern of a condition -> row of the table
MATRIX = re.compile(r"size=(\d+);of=([^;/]+)/([^;]+)")  # in a condition: contexts, dataset and model of the matrix
ROBUSTNESS = (
    *(metrics.PRESS_RANK, metrics.RANK_PREDICTED, metrics.RANK_PREDICTED_PAPER, metrics.RECONSTRUCTION_ERROR),
    *("rank_eff_1e-3", "rank_eff_1e-4", "rank_eff_1e-5"),
)


def robustness_table(
    source: Source,
    *,
    synthetic: Literal["rebuild", "noise", "noise-effective"],
    size: Annotated[schema.Integer, Field(ge=20, le=20_000)] = 1000,
) -> Iterator[Section]:
    """Yield one section with measured and published ranks of a matrix of rank 10, rebuilt from its SVD or with noise.

    The matrix is the log-probability matrix of a run, of which only the ten largest singular values are kept. A row of
    the table is a round of decomposing and rebuilding the matrix, which adds rounding errors, or a level of noise.

    Args:
        source: the experiment with its records.
        synthetic: `rebuild` for rounds of rebuilding; `noise` for Press ranks under noise; `noise-effective` for
            effective ranks under noise.
        size: number n of test contexts, i.e. of rows of the log-probability matrix. Noise is added to all entries of
            an n x n matrix, whose diagonal has the ten singular values and then zeros.
    """
    tables = (source.experiment.artefact, "SM 5.1 text")
    drawn, printed = (frame[frame["table"].isin(tables)] for frame in (source.records.synthetic, source.published))
    measured, published = _by_row(drawn), _by_row(printed)
    rows = {row: row for row, _ in (*published, *measured)}
    shown = {metric for _, metric in (*published, *measured)}
    columns = {metric: metrics.find(metric).label for metric in ROBUSTNESS if metric in shown}
    match = MATRIX.search(next(iter(drawn["condition"]), ""))
    contexts, dataset, model = match.groups() if match else ("0", "", "")
    same_matrix = int(contexts) == PAPER_SIZE and source.same(dataset, model)
    gaps = _gaps_without_ranks(source) if drawn.empty else ("not drawn at this level",)

    def cell(row: str, metric: str) -> Cell:
        # The rank predicted for the paper's size is compared with the published rank, whatever the size is here.
        is_predicted = metric == metrics.RANK_PREDICTED_PAPER
        text, value = published.get((row, metrics.PRESS_RANK if is_predicted else metric)), measured.get((row, metric))
        if value is None and text is None and len(drawn):
            return Cell(metric=metric, wanted=False)
        blank = Cell(published=PublishedCell(text) if text else None, metric=metric, same=is_predicted or same_matrix)
        if value is None:
            return replace(blank, gaps=gaps)
        if metric == metrics.RECONSTRUCTION_ERROR:
            return replace(blank, label=numbers.true_minus(f"{value:.2e}"))
        return replace(blank, measured=MeasuredCell(float(value)))

    corpus = source.study.dataset(dataset).title if dataset else ""
    note = f"The matrix is that of {label(source.study, model)} on {corpus}: its first {int(contexts):,} test contexts."
    yield section("synthetic", "Ten singular values of a trained model", rows, columns, cell, note if match else "")


def _gaps_without_ranks(source: Source) -> tuple[str, ...]:
    """Return why the study has no such ranks: the missing runs of a model, or else what the experiment needs."""
    gaps = (source.gaps(dataset, model, ()) for dataset in source.datasets for model in source.models)
    return next(filter(None, gaps), (source.experiment.needs or "not drawn yet",))


def _by_row(frame: pd.DataFrame) -> dict[tuple[str, str], Any]:
    """Return {(row of the table, metric): value} for a frame with the columns condition, metric and value.

    If several lines of `frame` have the same row and metric, the first one counts. The condition decides the name of
    the row in the table that `robustness_table` returns:

    * `c=1e-20` becomes the row `c = 1e-20`: noise of level c was added to all entries of the diagonal matrix.
    * `iteration=3` becomes the row `round 3`: the whole matrix was decomposed by SVD and rebuilt three times.
    * `iteration=3` with `as printed` becomes the row `round 3, diagonal as printed`: only the diagonal matrix of
      singular values was decomposed and rebuilt, as in the paper's Algorithm 1.
    * Any other condition becomes the row `all singular values`: the matrix before truncation.
    """
    values: dict[tuple[str, str], Any] = {}
    for condition, metric, value in zip(frame["condition"], frame["metric"], frame["value"], strict=True):
        rows = (row.format(match[1]) for pattern, row in ROWS.items() if (match := re.search(pattern, condition)))
        variant = ", diagonal as printed" if "as printed" in condition else ""
        values.setdefault((next(rows, "all singular values") + variant, metric), value)
    return values
