"""Tables and figures as data: the runs they need, and how records become cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study.datasets import find_config
from softmax_bottleneck.study.schemas import load_yaml, schema, validate, with_defaults


@dataclass(frozen=True)
class Column:
    """A metric of a table: its name in the records, its head, the decimals printed, filters on published rows.

    `measured: false` makes a column of published numbers only (a quotation of other papers); `datasets` limits it to
    some corpora; `stage` is the stage it is of (`finetuned`, `dynamic`), training where it is empty;
    `published_as` its name in report/published where that is another.
    """

    metric: str
    label: str
    digits: int = 2
    published: Mapping[str, str] = field(default_factory=dict)
    measured: bool = True
    datasets: Sequence[str] = ()
    stage: str = ""
    published_as: str = ""


@dataclass(frozen=True)
class Experiment:
    """A named table or figure: the runs it needs and how records become cells.

    Attributes:
        models: labels of the rows; in a study, with grids expanded.
        entries: in a study, the names before that: models and grids, also grids of which no member is trained.
        seeds: `all`, `author` (the authors' own, or the first) or `random` (all but the authors' own).
        stages: what follows the training of its runs: `finetune`, `dynamic`, both or none.
        published_rows: label -> the published rows it stands for: {"model": its name there, column: pattern}.
        needs: why this study cannot make it, or a part of it, in words; empty when it can.
    """

    id: str
    source: str
    artefact: str
    kind: str
    title: str
    caption: str
    view: str
    published: tuple[str, ...]
    models: tuple[str, ...]
    datasets: tuple[str, ...]
    seeds: str
    columns: tuple[Column, ...]
    options: Mapping[str, Any]
    published_rows: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    needs: str = ""
    entries: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()

    @property
    def is_void(self) -> bool:
        """Whether this study can show nothing of it."""
        return bool(self.needs) and not (self.datasets and self.entries)

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Endings of the files it is rendered to: what is shown, and its data."""
        return ("html", "csv") if self.kind == "table" else ("svg", "csv")

    @property
    def is_synthetic(self) -> bool:
        """Whether its numbers come from the `synthetic` step and not from training runs."""
        return "synthetic" in self.options or bool(self.fits)

    @property
    def fits(self) -> str:
        """The entry of a study's `fits` that it shows; empty for most."""
        return str(self.options.get("fits", ""))


def load_experiment(name: str, near: Path) -> Experiment:
    """An experiment by id (UserError for an unknown id, bad key or value)."""
    path = find_config("experiments", name, near)
    values = load_yaml(path)
    validate(values, schema("experiment"), str(path))
    if values["id"] != path.stem:
        raise UserError(f"{path}: id: {values['id']!r} must equal the file's name {path.stem!r}")
    complete = with_defaults(values, schema("experiment")["properties"], str(path))
    columns = tuple(Column(**column) for column in complete.pop("columns"))
    complete |= {key: tuple(complete[key]) for key in ("published", "models", "datasets", "stages")}
    return Experiment(**complete, columns=columns)
