"""Table and figure of archived runs with models of the published size: metrics and spectra.

The runs come from the archives in report/evidence, not from the study. Table and figure are therefore the same in every
study. Only labels, titles and the table's columns come from the report's study, which the argument `source` holds.
"""

import math
from dataclasses import replace

import pandas as pd

from softmax_bottleneck.heads.registry import declarations
from softmax_bottleneck.records import records
from softmax_bottleneck.records.metrics import RANK_TOLERANCE, SIGMA_MAX
from softmax_bottleneck.report import plots
from softmax_bottleneck.report.archive import archived_runs
from softmax_bottleneck.report.cells import Cell, MeasuredCell, Section
from softmax_bottleneck.report.source import Source, label, paper_study, same_setting
from softmax_bottleneck.study import canonical_json

SIGMA = "relative_singular_value"
KEYS, CURVE = ["archive", "dataset", "model", "seed"], ["index", SIGMA, "tolerance"]
LOWEST = 1e-9  # smallest relative singular value drawn; smaller ones are rounding errors


def labels_of_runs(source: Source) -> dict[str, str]:
    """Return {name of an archived run: label of its model in the table}.

    Runs share a label if their settings are the same, except for the width d (`embedding_size`), which has a column of
    its own, and for `context_size`, which is proportional to d. The label is that of the model with the shortest name.
    The body follows in brackets, such as `MoS (transformer)`, unless it is the papers' LSTM.
    """
    first: dict[str, str] = {}
    labels = {}
    for archived in sorted(archived_runs(), key=lambda archived: len(archived.run.model)):
        run, body = archived.run, archived.run.settings["body"]
        others = body | {"embedding_size": 1, "context_size": body["context_size"] / body["embedding_size"]}
        name = archived.label or label(source.study, run.model)
        name = name if run.body.kind == "awd-lstm" else f"{name} ({run.body.kind})"
        labels[archived.name] = first.setdefault(canonical_json(run.settings | {"body": others}), name)
    return labels


# --- the table ------------------------------------------------------------------------------------------------------
def published_size_table(source: Source) -> list[Section]:
    """Return a section per corpus with a row per archived run and a column per metric of the experiment.

    Rows are in ascending order of the number of parameters.
    """
    labels, columns = labels_of_runs(source), source.experiment.columns
    by_size = sorted(archived_runs(), key=lambda archived: archived.values.get("parameters", 0.0))
    runs = {archived.name: archived for archived in by_size}

    def cell(name: str, number: int) -> Cell:
        run, value = runs[name].run, runs[name].values.get(columns[number].metric)
        same = source.is_published(run.dataset) and same_setting(run)
        blank = replace(source.blank(run.dataset, run.model, columns[number]), same=same, runs="")
        return replace(blank, gaps=("not measured",)) if value is None else replace(blank, measured=MeasuredCell(value))

    sections = []
    for dataset in dict.fromkeys(archived.run.dataset for archived in archived_runs()):
        own = [archived for archived in runs.values() if archived.run.dataset == dataset]
        rows = {a.name: f"{labels[a.name]}, seed {a.run.seed}, {a.hardware}" for a in own}
        sections.append(source.section(dataset, rows, source.column_labels(columns), cell))
    return sections


# --- the figure -----------------------------------------------------------------------------------------------------
def published_size_spectra_figure(source: Source) -> plots.Drawing:
    """Draw the singular values of archived runs, divided by each run's largest, on two log axes.

    There is a panel for each combination of corpus, kind of body and width d. A panel has one curve per run, in the
    colour of the run's output head. All panels have the same y range.
    """
    rows = []
    for archived in archived_runs():
        run = archived.run
        tolerance, largest = (archived.values.get(name, math.nan) for name in (RANK_TOLERANCE, SIGMA_MAX))
        declared = declarations().get(run.head.name)
        head = (declared.published_as if declared else "") or run.head.name
        key = (archived.name.partition("/")[0], run.dataset, run.model, run.seed)
        place = (*key, head, run.body.kind, run.body.embedding_size)
        first = archived.spectrum[0][1] if archived.spectrum else math.nan
        rows += [(*place, index, sigma / first, tolerance / largest) for index, sigma in archived.spectrum]
    data = pd.DataFrame(rows, columns=[*KEYS, "head", "body", "width", *CURVE]).astype({"tolerance": float})
    if data.empty:
        return plots.only_text(plots.NOTHING, data)
    looks = plots.styles(list(dict.fromkeys(data["head"])))
    networks = list(data.groupby(["dataset", "body", "width"]))
    canvas, drawn = plots.in_pairs(len(networks), 4.6, 3.5)
    for panel, ((dataset, body, width), own) in zip(drawn, networks, strict=True):
        for (head, *_), curve in records.groups(own[own[SIGMA] > LOWEST], "head", *KEYS):
            look = looks[head]
            panel.plot(curve["index"], curve[SIGMA], color=look.colour, linestyle=look.dash, linewidth=1)
        plots.log_y(panel)
        panel.set(xlabel="index", ylabel="σ / σ max", xscale="log")  # log: curves end at d + 2 or the vocabulary size
        if own["tolerance"].notna().any():
            plots.level(panel, own["tolerance"].max(), "Press tolerance", end="left")
        panel.set(title=f"{source.dataset(str(dataset)).title}: {body}, d = {width}")
        panel.xaxis.set_major_formatter(plots.integer)
        panel.minorticks_off()
    low, high = zip(*(panel.get_ylim() for panel in drawn), strict=True)
    for panel in drawn:
        panel.set_ylim(min(low), max(high))
    plots.legend(canvas, {head: label(paper_study(), head) for head in looks}, looks)
    count = len(data[KEYS].drop_duplicates())
    note = f"{count} runs. Each run is a curve, in the colour of its output head; settings differ."
    every = [archived.values for archived in archived_runs()]
    unlearned = sum(records.is_unlearned(own.get("test_ppl", 0), own.get("unigram_ppl", math.inf)) for own in every)
    note += f" Runs that are no better than a unigram model: {unlearned}." if unlearned else ""
    return plots.Drawing(canvas, data[[*KEYS, *CURVE]], note)
