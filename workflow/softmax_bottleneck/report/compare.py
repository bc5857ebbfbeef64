"""Finished studies side by side: what each says of every claim, and the numbers of every head, with the hardware.

It reads what `collect` and `render` left in the studies' folders, which may be read-only or come from another machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from softmax_bottleneck.records import records
from softmax_bottleneck.records.metrics import EFFECTIVE_RANK, PRESS_RANK, TEST_PPL, find
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report.cells import mean_of
from softmax_bottleneck.report.claims.data import SYNTHETIC
from softmax_bottleneck.report.claims.rules import CANNOT
from softmax_bottleneck.report.numbers import spread
from softmax_bottleneck.report.templates import data_address, environment
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError, UserError
from softmax_bottleneck.store.paths import Store

MARK = "claims.json"  # is in the folder of every finished study
HEAD_METRICS = (TEST_PPL, PRESS_RANK, f"{EFFECTIVE_RANK}1e-3")
WIDEST = 44  # characters of a column on a terminal


@dataclass(frozen=True, eq=False)
class Finished:
    """A finished study: what it is called here, its folder, claims and records."""

    name: str
    claims: Sequence[dict[str, Any]]
    records: Records

    @cached_property
    def corpora(self) -> list[str]:
        """Its corpora; a study of fits alone has none, which is a column of its own."""
        return list(dict.fromkeys(self.records.states["dataset"])) or [SYNTHETIC]

    @cached_property
    def hardware(self) -> str:
        """What its runs were made on."""
        return (
            "; ".join(sorted({str(kind) for kind in self.records.states["hardware"]} - {""})) or "no run has finished"
        )


def read(folder: Path, name: str) -> Finished:
    """A study from its folder (DataError: damaged or missing)."""
    return Finished(name, artefacts.read_json(folder / MARK)["claims"], records.load(folder))


def find_studies(names: Sequence[str]) -> list[Finished]:
    """Studies by name, by their folder, or all of a results folder.

    Raises:
        UserError: there is no finished study of a name, or fewer than two in all.
        DataError: a file is damaged.
    """
    found = [(one, folder) for name in names for one, folder in _folders(name)]
    if len(found) < 2:
        raise UserError(f"compare: {len(found)} finished study; name two or more, or a folder that holds them")
    return [read(folder, name) for name, folder in found]


def _folders(name: str) -> Iterator[tuple[str, Path]]:
    known, given = Store().study_folder(name), Path(name)
    if (known / MARK).is_file():
        yield name, known
    elif (given / MARK).is_file():
        yield name, given
    elif inside := sorted(path.parent for path in given.glob(f"*/{MARK}")):
        yield from ((str(folder), folder) for folder in inside)
    else:
        raise UserError(
            f"compare: {name}: no finished study in {known}, nor in {given}; run `make reproduce` of it first"
        )


def beside(folder: Path) -> list[Lines]:
    """A study beside the other finished ones of its results folder; empty when it is alone.

    What is damaged, or of another version, is left out: it must not keep this study's page from being made.
    """
    others = []
    for path in sorted(folder.parent.glob(f"*/{MARK}")):
        if path.parent != folder:
            with suppress(DataError, KeyError, TypeError, ValueError):
                others.append(read(path.parent, path.parent.name))
    return side_by_side([read(folder, folder.name), *others]) if others else []


# --- tables ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Lines:
    """A table of texts: a head and rows as wide as it; the first cell of a row names it."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def side_by_side(studies: Sequence[Finished]) -> list[Lines]:
    """Claims, then heads: a column per study and corpus."""
    columns = [(study, corpus) for study in studies for corpus in study.corpora]
    head = tuple(f"{study.name}: {corpus}" for study, corpus in columns)
    hardware = ("Hardware", *(study.hardware for study, _ in columns))
    return [
        Lines("Conclusions", ("Conclusion", *head), (hardware, *_claims(columns))),
        Lines(
            "Heads: " + ", ".join(find(m).words for m in HEAD_METRICS),
            ("Head", *head),
            (hardware, *_heads(columns)),
        ),
    ]


def _claims(columns: Sequence[tuple[Finished, str]]) -> Iterator[tuple[str, ...]]:
    """The verdict and first number of every claim that some study can test."""
    known = [
        {one["id"]: one for one in study.claims if one["dataset"] in (corpus, SYNTHETIC)} for study, corpus in columns
    ]
    statements = {name: one["statement"] for own in known for name, one in own.items()}
    for name, statement in statements.items():
        entries = [own.get(name) for own in known]
        if any(entry and entry["verdict"] != CANNOT for entry in entries):
            yield (f"{statement} [{name}]", *(_verdict(entry) for entry in entries))


def _verdict(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "not asked"
    numbers = [number["text"] for number in entry["numbers"][:1] if number["value"] is not None]
    return ": ".join([entry["verdict"], *numbers])


def _heads(columns: Sequence[tuple[Finished, str]]) -> Iterator[tuple[str, ...]]:
    """The means of every model that some study has finished, with its number of runs."""
    labels = {
        str(model): str(name)
        for study in dict.fromkeys(study for study, _ in columns)
        for model, name in study.records.states[["model", "label"]].drop_duplicates("model").to_numpy()
    }
    for model, name in labels.items():
        cells = [_numbers(study.records, corpus, model) for study, corpus in columns]
        if any(cells):
            yield (name if name == model else f"{name} [{model}]", *(cell or "—" for cell in cells))


def _numbers(found: Records, corpus: str, model: str) -> str:
    shown, n = [], 0
    for metric in HEAD_METRICS:
        mean = mean_of(found.values(corpus, model, metric).values())
        if mean:
            shown.append(spread(mean.mean, mean.sd if metric == TEST_PPL else None, find(metric).digits))
            n = max(n, mean.n)
    return f"{', '.join(shown)} (n = {n})" if shown else ""


# --- ways out -------------------------------------------------------------------------------------------------------
def text(tables: Sequence[Lines]) -> str:
    """The tables for a terminal, long cells cut."""
    return "\n\n".join(f"{table.title}\n{_aligned(table)}" for table in tables)


def _aligned(table: Lines) -> str:
    rows = [
        [cell if len(cell) <= WIDEST else f"{cell[: WIDEST - 1]}…" for cell in row] for row in (table.head, *table.rows)
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def csv(tables: Sequence[Lines]) -> str:
    """One line per cell."""
    lines = [
        (table.title.split(":")[0], row[0], column, cell)
        for table in tables
        for row in table.rows
        for column, cell in zip(table.head[1:], row[1:], strict=True)
    ]
    return records.to_csv(pd.DataFrame(lines, columns=["table", "row", "study", "text"]))


def write(tables: Sequence[Lines], folder: Path) -> Path:
    """Write compare.csv and index.html into a folder; return the page's path."""
    lines = csv(tables)
    artefacts.write_text(folder / "compare.csv", lines)
    page = environment().get_template("compare-page.html.j2")
    artefacts.write_text(folder / "index.html", page.render(tables=tables, csv=data_address("text/csv", lines)))
    return folder / "index.html"
