"""Finished studies side by side: the verdict of each on every claim, the means of every head, and the hardware.

It reads what `collect` and `render` wrote to the studies' folders, which may be read-only or come from another machine,
or the archives of studies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from softmax_bottleneck.records import records
from softmax_bottleneck.records.metrics import EFFECTIVE_RANK, PRESS_RANK, TEST_PPL, find
from softmax_bottleneck.records.records import Records
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


@dataclass(frozen=True)
class TextTable:
    """A table of texts: a head and rows as wide as it; the first cell of a row names it."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


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
def side_by_side(studies: Sequence[FinishedStudy]) -> list[TextTable]:
    """Return the tables of claims and of heads: a column per study and corpus."""
    columns = [(study, corpus) for study in studies for corpus in study.datasets]
    names = tuple(f"{study.name}: {corpus}" for study, corpus in columns)
    hardware = ("Hardware", *(study.hardware for study, _ in columns))
    heads = f"Heads: {', '.join(find(metric).words for metric in HEAD_METRICS)}"
    return [
        TextTable("Conclusions", ("Conclusion", *names), (hardware, *_claims(columns))),
        TextTable(heads, ("Head", *names), (hardware, *_heads(columns))),
    ]


def _claims(columns: Sequence[tuple[FinishedStudy, str]]) -> Iterator[tuple[str, ...]]:
    """Yield the verdict and first number of every claim that some study can test."""
    by_id = [{e["id"]: e for e in study.claims if e["dataset"] in (corpus, SYNTHETIC)} for study, corpus in columns]
    statements = {name: entry["statement"] for own in by_id for name, entry in own.items()}
    for name, statement in statements.items():
        entries = [own.get(name) for own in by_id]
        if any(entry and entry["verdict"] != CANNOT for entry in entries):
            yield (f"{statement} [{name}]", *map(_verdict, entries))


def _verdict(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "not evaluated"
    return ": ".join([entry["verdict"], *(n["text"] for n in entry["numbers"][:1] if n["value"] is not None)])


def _heads(columns: Sequence[tuple[FinishedStudy, str]]) -> Iterator[tuple[str, ...]]:
    """Yield the means of every model that some study has finished, with its number of runs."""
    states = pd.concat([study.records.states for study, _ in columns])
    for model, label in dict(zip(states["model"], states["label"], strict=True)).items():
        cells = [_means(study.records, corpus, model) for study, corpus in columns]
        if any(cells):
            yield (label if label == model else f"{label} [{model}]", *(cell or "—" for cell in cells))


def _means(found: Records, corpus: str, model: str) -> str:
    means = {metric: mean_of(found.values(corpus, model, metric).values()) for metric in HEAD_METRICS}
    known = {metric: mean for metric, mean in means.items() if mean}
    texts = [spread(x.mean, x.sd if m == TEST_PPL else None, find(m).digits) for m, x in known.items()]
    return f"{', '.join(texts)} (n = {max(mean.n for mean in known.values())})" if known else ""


# --- output ---------------------------------------------------------------------------------------------------------
def text(tables: Sequence[TextTable]) -> str:
    """Return the tables for a terminal, long cells cut."""
    return "\n\n".join(f"{table.title}\n{_aligned(table)}" for table in tables)


def _aligned(table: TextTable) -> str:
    rows = [[c if len(c) <= WIDEST else f"{c[: WIDEST - 1]}…" for c in row] for row in (table.head, *table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def csv(tables: Sequence[TextTable]) -> str:
    """Return one line per cell."""
    lines = [
        (table.title.split(":")[0], row[0], column, cell)
        for table in tables
        for row in table.rows
        for column, cell in zip(table.head[1:], row[1:], strict=True)
    ]
    return records.to_csv(pd.DataFrame(lines, columns=["table", "row", "study", "text"]))
