"""Finished studies side by side: the verdict of each on every claim, the means of every head, and the hardware.

It reads what `collect` and `render` wrote to the studies' folders, which may be read-only or come from another machine,
or the archives of studies.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from softmax_bottleneck.records import records
from softmax_bottleneck.records.metrics import EFFECTIVE_RANK, PRESS_RANK, TEST_PPL, find
from softmax_bottleneck.report import archive
from softmax_bottleneck.report.archive import CLAIMS_FILE, FinishedStudy, from_results
from softmax_bottleneck.report.cells import mean_of
from softmax_bottleneck.report.claims.data import SYNTHETIC
from softmax_bottleneck.report.claims.rules import CANNOT
from softmax_bottleneck.report.numbers import spread
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import Store

HEAD_METRICS = (TEST_PPL, PRESS_RANK, f"{EFFECTIVE_RANK}1e-3")
WIDEST = 44  # characters of a column on a terminal

Tables = Mapping[str, pd.DataFrame]  # title -> texts, a column per study and corpus
Columns = Sequence[tuple[FinishedStudy, str]]


def find_studies(names: Sequence[str]) -> list[FinishedStudy]:
    """Return studies by name, by their folder, or all of a results folder; those without results from the archives.

    Raises:
        UserError: there is no finished study of a name, or fewer than two in all.
        DataError: a file is damaged.
    """
    studies: list[FinishedStudy] = []
    for name in names:
        folders = [f for f in (Store().study_folder(name), Path(name)) if (f / CLAIMS_FILE).is_file()]
        inside = [path.parent for path in sorted(Path(name).glob(f"*/{CLAIMS_FILE}"))]
        own = [from_results(folders[0], name)] if folders else [from_results(one, str(one)) for one in inside]
        studies += own or archive.find(name)
    if len(studies) < 2:
        raise UserError(f"compare: {len(studies)} finished study; name two or more, or a folder that holds them")
    return studies


# --- tables ---------------------------------------------------------------------------------------------------------
def side_by_side(studies: Sequence[FinishedStudy]) -> Tables:
    """Return the tables of claims and of heads: a column per study and corpus."""
    columns = [(study, corpus) for study in studies for corpus in study.datasets]
    names = ["row", *(f"{study.name}: {corpus}" for study, corpus in columns)]
    # With the processors' instruction sets, on which the last digits depend.
    kinds = ("; ".join(sorted(set(study.records.states["hardware"].map(str)) - {""})) for study, _ in columns)
    hardware = ("Hardware", *(kind or study.hardware for kind, (study, _) in zip(kinds, columns, strict=True)))
    tables = {"Conclusions": _claims(columns), "Heads": _heads(columns)}
    return {title: pd.DataFrame([hardware, *rows], columns=names).set_index("row") for title, rows in tables.items()}


def heads(study: FinishedStudy) -> str:
    """Return the table of one study's heads for a terminal."""
    return text({"Heads": side_by_side([study])["Heads"]})


def _claims(columns: Columns) -> Iterator[tuple[str, ...]]:
    """Yield the verdict and first number of every claim that some study can test."""
    by_id = [{e["id"]: e for e in study.claims if e["dataset"] in (corpus, SYNTHETIC)} for study, corpus in columns]
    statements: dict[str, str] = {}
    for name, entry in (pair for own in by_id for pair in own.items()):
        statements.setdefault(name, entry["statement"])  # archives may have an older wording

    def verdict(entry: Mapping[str, Any] | None) -> str:
        if entry is None:
            return "not evaluated"
        return ": ".join([entry["verdict"], *(n["text"] for n in entry["numbers"][:1] if n["value"] is not None)])

    for name, statement in statements.items():
        entries = [own.get(name) for own in by_id]
        if any(entry and entry["verdict"] != CANNOT for entry in entries):
            yield (f"{statement} [{name}]", *map(verdict, entries))


def _heads(columns: Columns) -> Iterator[tuple[str, ...]]:
    """Yield the means of every planned model, with its numbers of finished and of planned runs."""

    def means(found: records.Records, corpus: str, model: str) -> str:
        known = {m: mean for m in HEAD_METRICS if (mean := mean_of(found.values(corpus, model, m).values()))}
        texts = [spread(x.mean, x.sd if m == TEST_PPL else None, find(m).digits) for m, x in known.items()]
        planned, n = len(found.planned(corpus, model)), max((mean.n for mean in known.values()), default=0)
        return ", ".join([*texts, f"n = {n}/{planned}"]) if planned else "—"

    states = pd.concat([study.records.states for study, _ in columns])
    for model, label in dict(zip(states["model"], states["label"], strict=True)).items():
        cells = [means(study.records, corpus, model) for study, corpus in columns]
        yield (label if label == model else f"{label} [{model}]", *cells)


# --- output ---------------------------------------------------------------------------------------------------------
def text(tables: Tables) -> str:
    """Return the tables for a terminal, long cells cut."""
    metrics = ", ".join(find(metric).words for metric in HEAD_METRICS)
    titles = {"Heads": f"Heads: {metrics}, finished and planned runs"}
    parts = []
    for title, table in tables.items():
        rows = [("", *table.columns), *table.itertuples(name=None)]
        cut = pd.DataFrame([[c if len(c) <= WIDEST else f"{c[: WIDEST - 1]}…" for c in row] for row in rows])
        aligned = cut.apply(lambda column: column.str.ljust(column.str.len().max()))
        parts.append("\n".join([titles.get(title, title), *("  ".join(row).rstrip() for row in aligned.to_numpy())]))
    return "\n\n".join(parts)


def csv(tables: Tables) -> str:
    """Return one line per cell."""
    lines = [
        table.melt(ignore_index=False, var_name="study", value_name="text").reset_index().assign(table=title)
        for title, table in tables.items()
    ]
    return records.to_csv(pd.concat(lines)[["table", "row", "study", "text"]])
