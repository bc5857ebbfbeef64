"""Experiments: the tables and figures of the report, as their YAML declares them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import schema
from softmax_bottleneck.study.schema import find_config, load_yaml, read, section

SeedChoice = Literal["all", "author", "random"]
CsvName = Annotated[str, Field(pattern=r"^[a-z0-9_]+\.csv$")]


@dataclass(frozen=True, config=schema.STRICT)
class Column:
    """A metric of a table.

    Attributes:
        metric: its name in the records and in report/published.
        label: column head, with its unit (default: as in the catalogue of metrics).
        digits: decimals printed (default: as in the catalogue).
        published: filters on the published rows: column -> regular expression.
        datasets: corpora that it is shown for; all when empty.
        stage: stage of the number (`finetuned`, `dynamic`); training when empty.
        published_as: name of the metric in report/published, if different.
        measured: false for a column of published numbers only.
    """

    metric: str
    label: str = ""
    digits: Annotated[schema.Integer, Field(ge=0, le=8)] | None = None
    published: Mapping[str, str] = schema.EMPTY
    measured: schema.Flag = True
    datasets: tuple[str, ...] = ()
    stage: Literal["", "finetuned", "dynamic"] = ""
    published_as: str = ""


@section
class Experiment:
    """A table or figure. `load_study` fills in the last three attributes and replaces those that the study overrides.

    Attributes:
        id: equal to the file's name.
        source: the work it comes from, which is its chapter in the report.
        artefact: its name in the source: Table 2, Figure 7.
        title: one line above the table or figure.
        caption: what is shown and how it is computed; `{schedule.epochs}` is that of the runs shown, `{corpora}` what
            they are trained on.
        kind: table or figure.
        view: name of the view that makes cells or a plot from records.
        published: files of report/published that are joined to it.
        models: rows of the published table in its order, with grids expanded; empty if no training runs are needed.
        datasets: corpora of the published table; a study without them shows its own.
        seeds: `all`, `author` (the authors' own, or the first) or `random` (all but the authors' own).
        stages: what follows the training of its runs: finetuning, then dynamic evaluation.
        published_rows: label -> the published rows it stands for, where its name there is another: `model`, its name in
            report/published; other columns: regular expressions.
        needs: why it, or a part of it, cannot be made; empty if it can.
        columns: metrics shown, in order.
        options: what the view needs beyond this.
        entries: the models and grids before grids are expanded, also grids of which no member is trained.
        absent: rows of the published table for which the study has no model.
        absent_datasets: corpora of the published table that the study lacks, without a proxy.
    """

    id: schema.Name
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
    view: str
    published: tuple[CsvName, ...] = ()
    models: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    seeds: SeedChoice = "all"
    stages: schema.Unique[Literal["finetune", "dynamic"]] = ()
    published_rows: Mapping[str, Annotated[Mapping[str, str], Field(min_length=1)]] = schema.EMPTY
    needs: str = ""
    columns: tuple[Column, ...] = ()
    options: schema.Options = schema.EMPTY
    entries: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    absent_datasets: tuple[str, ...] = ()

    @property
    def is_void(self) -> bool:
        """Whether this study can show nothing of it."""
        return bool(self.needs) and not (self.datasets and self.entries)

    @property
    def quotes(self) -> bool:
        """Whether it shows published numbers or words."""
        return bool(self.published) or "words" in self.options

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Endings of the files that it is rendered to: the table or figure, and its data."""
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
    """Return an experiment by id (UserError for an unknown id, bad key or value)."""
    path = find_config("experiments", name, near)
    experiment = read(Experiment, load_yaml(path), str(path))
    if experiment.id != path.stem:
        raise UserError(f"{path}: id: {experiment.id!r} must equal the file's name {path.stem!r}")
    return experiment
