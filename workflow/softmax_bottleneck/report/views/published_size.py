"""The table of archived runs with models of the published size.

The runs come from the archives in report/evidence, not from the study. The table is therefore the same in every
study. Only labels, titles and the table's columns come from the report's study, which the argument `source` holds.
"""

from dataclasses import replace

from softmax_bottleneck.report.archive import archived_runs
from softmax_bottleneck.report.cells import Cell, MeasuredCell, Section
from softmax_bottleneck.report.source import Source, label, same_setting
from softmax_bottleneck.study import canonical_json


def labels_of_runs(source: Source) -> dict[str, str]:
    """Return {name of an archived run: label of its model in the table}.

    Runs share a label if their settings are the same, except for the width d (`embedding_size`), which has a column of
    its own, and for `context_size`, which is proportional to d. The label is that of the model with the shortest name.
    The body follows in brackets, such as `MoS (Transformer)`, unless it is the papers' LSTM.
    """
    first: dict[str, str] = {}
    labels = {}
    for archived in sorted(archived_runs(), key=lambda archived: len(archived.run.model)):
        run, body = archived.run, archived.run.settings["body"]
        others = body | {"embedding_size": 1, "context_size": body["context_size"] / body["embedding_size"]}
        name = archived.label or label(source.study, run.model)
        name = name if run.body.kind == "awd-lstm" else f"{name} ({run.body.kind.capitalize()})"
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
        blank = source.blank(run.dataset, run.model, columns[number])
        blank = replace(blank, same=same, runs="", study=name.partition("/")[0], hardware=runs[name].hardware)
        return replace(blank, gaps=("not measured",)) if value is None else replace(blank, measured=MeasuredCell(value))

    sections = []
    for dataset in dict.fromkeys(archived.run.dataset for archived in archived_runs()):
        own = [archived for archived in runs.values() if archived.run.dataset == dataset]
        rows = {a.name: f"{labels[a.name]}, seed {a.run.seed}, {a.hardware}" for a in own}
        sections.append(source.section(dataset, rows, source.column_labels(columns), cell))
    return sections
