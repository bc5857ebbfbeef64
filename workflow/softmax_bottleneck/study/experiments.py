"""Tables and figures as data: the runs they need, and how records become cells."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import kinds
from softmax_bottleneck.study.datasets import find_config
from softmax_bottleneck.study.reading import load_yaml
from softmax_bottleneck.study.validation import read

SeedChoice = Literal["all", "author", "random"]
CsvName = Annotated[str, Field(pattern=r"^[a-z0-9_]+\.csv$")]


@dataclass(frozen=True, config=kinds.STRICT)
class Column:
    """A metric of a table.

    Attributes:
        metric: its name in the records and in report/published.
        label: column head, with its unit; that of the catalogue of metrics when empty.
        digits: decimals printed; as many as the catalogue says when absent.
        published: filters on the published rows: column -> regular expression.
        datasets: corpora it is shown for; all when empty.
        stage: stage the number is of (`finetuned`, `dynamic`); training when empty.
        published_as: name of the metric in report/published where it is another.
        measured: false for a column of published numbers only, a quotation of other papers.
    """

    metric: str
    label: str = ""
    digits: Annotated[kinds.Integer, Field(ge=0, le=8)] | None = None
    published: Mapping[str, str] = kinds.EMPTY
    measured: kinds.Flag = True
    datasets: tuple[str, ...] = ()
    stage: Literal["", "finetuned", "dynamic"] = ""
    published_as: str = ""


@kinds.declared
class ExperimentFile:
    """What the YAML of a table or figure says.

    Attributes:
        id: equal to the file's name.
        source: the work it comes from: its chapter in the report.
        artefact: what the source calls it: Table 2, Figure 7.
        title: one line over the table or figure.
        caption: what is seen, and how it is computed; `{schedule.epochs}` is that of the runs shown, `{corpora}` what
            they are trained on.
        kind: what is made of it.
        view: how records become cells or a plot.
        published: files of report/published joined to it.
        models: rows of the published table, in its order; empty: no training runs needed.
        datasets: corpora of the published table; a study without them shows its own.
        seeds: `all`, `author` (the authors' own, or the first) or `random` (all but the authors' own).
        stages: what follows the training of its runs: finetuning, then dynamic evaluation.
        published_rows: label -> the published rows it stands for, where its name there is another: `model`, its name in
            report/published; other columns: regular expressions.
        needs: why no study of this workflow can make it.
        columns: metrics shown, in order.
        options: what the view needs beyond this.
    """

    id: kinds.Name
    source: Literal[
        "parthiban2021",
        "kanai2018",
        "ganea2019",
        "merity2017",
        "benka2021",
        "known-truth",
        "gradient",
        "published-size",
        "plif-rank",
    ]
    artefact: str
    kind: Literal["table", "figure"]
    title: str
    caption: str = ""
    view: str = "summary"
    published: tuple[CsvName, ...] = ()
    models: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    seeds: SeedChoice = "all"
    stages: kinds.Several[Literal["finetune", "dynamic"]] = ()
    published_rows: Mapping[str, Annotated[Mapping[str, str], Field(min_length=1)]] = kinds.EMPTY
    needs: str = ""
    columns: tuple[Column, ...] = ()
    options: kinds.Options = kinds.EMPTY


@kinds.declared
class Experiment(ExperimentFile):
    """A table or figure as a study shows it.

    Attributes:
        models: with grids expanded.
        entries: the models and grids before that, also grids of which no member is trained.
        absent: rows of the published table that no model of this study is.
        absent_datasets: corpora of the published table that this study has not, nor any that stands for them.
        needs: why this study cannot make it, or a part of it, in words; empty when it can.
    """

    entries: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    absent_datasets: tuple[str, ...] = ()

    @property
    def is_void(self) -> bool:
        """Whether this study can show nothing of it."""
        return bool(self.needs) and not (self.datasets and self.entries)

    @property
    def quotes(self) -> bool:
        """Whether published numbers or words stand in it."""
        return bool(self.published) or "words" in self.options

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
    declared = read(ExperimentFile, load_yaml(path), str(path))
    if declared.id != path.stem:
        raise UserError(f"{path}: id: {declared.id!r} must equal the file's name {path.stem!r}")
    return Experiment(**vars(declared))
