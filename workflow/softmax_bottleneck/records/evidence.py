"""Runs measured elsewhere: files of report/evidence that join the tables, marked with their origin and hardware.

They are additional: no mean of a study's own runs ever contains one. A file holds what `EvidenceFile` declares; its
text is other people's and is escaped wherever it is shown.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from softmax_bottleneck.store.artefacts import sha256_file
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import ROOT
from softmax_bottleneck.study import Experiment, Run, Study, read, schema

FOLDER = ROOT / "report" / "evidence"
MAX_BYTES = 16 << 20
HARDWARE_SHOWN = 60  # characters
MORE = ConfigDict(extra="allow", allow_inf_nan=False)  # with more keys than are read here


@with_config(MORE)
class StoredRun(TypedDict):
    """The run's frozen settings, as its run.json has them, with the hash of settings, seed and code."""

    run_id: Annotated[str, Field(pattern="^[0-9a-f]{12}$")]


@with_config(MORE)
class StoredProvenance(TypedDict):
    """Provenance block of the run's done.json: hardware (processor and cores), versions (Python and libraries)."""

    hardware: schema.Options
    versions: schema.Options


@with_config(MORE)
class StoredEpoch(TypedDict):
    """A line of epochs.jsonl or of epochs_rank.json."""

    epoch: Annotated[schema.Integer, Field(ge=0)]


@schema.section
class Row:
    """One number, in the tidy columns of report/published.

    Attributes:
        table: step that measured it.
        condition: as `benchmark=WS-353`.
        metric: name of the number.
        value: the number.
        n: numbers behind it.
    """

    table: str = ""
    condition: str = ""
    metric: schema.Line
    value: schema.Number
    n: schema.Integer | None = None


@schema.section
class EvidenceFile:
    """What report/evidence/<name>.json holds: one training run measured elsewhere.

    Attributes:
        origin: who measured it; shown in the tables.
        label: the model's name in the study it was made for.
        command: that makes the run again, in a checkout of its commit.
        run: its settings; a difference is computed only where they are the published ones.
        rows: its numbers.
        history: one line per epoch.
        epoch_ranks: one line per epoch whose ranks were measured, 0 before training.
        spectrum: index from 1 and singular value of its log-probability matrix, thinned.
        provenance: how and where it was made.
    """

    origin: Annotated[str, Field(min_length=1, max_length=120)]
    label: Annotated[str, Field(max_length=120)] = ""
    command: Annotated[str, Field(max_length=500)] = ""
    run: StoredRun
    rows: Annotated[tuple[Row, ...], Field(min_length=1, max_length=2000)]
    history: Annotated[tuple[StoredEpoch, ...], Field(max_length=100_000)] = ()
    epoch_ranks: Annotated[tuple[StoredEpoch, ...], Field(max_length=1000)] = ()
    spectrum: Annotated[tuple[tuple[schema.Integer, schema.Number], ...], Field(max_length=2000)] = ()
    provenance: StoredProvenance


@dataclasses.dataclass(frozen=True)
class Evidence:
    """One run measured elsewhere.

    Attributes:
        name: of its file, without the ending.
        run: its settings; its own code may be another, so that run_id is the stored one.
        label: its model's name where it was made; empty where that is not known.
        hardware: the machine in a few words.
        values: (metric, condition) -> number.
        epoch_ranks: ranks of an epoch, by metric.
        spectrum: (index from 1, singular value) of its log-probability matrix, thinned.
    """

    name: str
    sha256: str
    origin: str
    label: str
    hardware: str
    run: Run
    run_id: str
    values: Mapping[tuple[str, str], float]
    history: tuple[Mapping[str, Any], ...]
    epoch_ranks: tuple[Mapping[str, Any], ...]
    spectrum: tuple[tuple[int, float], ...]
    provenance: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Its file's content, with its name and hash."""
        rows = [{"metric": m, "condition": c, "value": value} for (m, c), value in self.values.items()]
        run = self.run.to_json() | {"run_id": self.run_id}
        facts = {"name": self.name, "sha256": self.sha256, "origin": self.origin, "label": self.label}
        epochs = {"history": list(self.history), "epoch_ranks": list(self.epoch_ranks)}
        return facts | {"run": run, "rows": rows} | epochs | {"spectrum": self.spectrum, "provenance": self.provenance}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], where: str = "evidence") -> Evidence:
        """From what `to_json` gives (UserError: settings that are no run's)."""
        return cls(
            name=content["name"],
            sha256=content["sha256"],
            origin=content["origin"],
            label=content.get("label", ""),
            hardware=_hardware(content["provenance"]),
            run=Run.from_json(content["run"], f"{where}: run"),
            run_id=content["run"]["run_id"],
            values={(row["metric"], row.get("condition", "")): float(row["value"]) for row in content["rows"]},
            history=tuple(content.get("history", [])),
            epoch_ranks=tuple(content.get("epoch_ranks", [])),
            spectrum=tuple((int(index), float(sigma)) for index, sigma in content.get("spectrum", [])),
            provenance=content["provenance"],
        )


def called(file: Path) -> str:
    """A study's file as one says it in the project's folder, or in this one; of a file elsewhere the name alone."""
    full = file.resolve()
    homes = (home for home in (ROOT, Path.cwd()) if full.is_relative_to(home))
    return next((full.relative_to(home).as_posix() for home in homes), file.name)


def files(folder: Path | None = None) -> list[Path]:
    """The evidence files there are, by name."""
    return sorted((folder or FOLDER).glob("*.json"))


def load(path: Path) -> Evidence:
    """One file.

    Raises:
        UserError: it is too long, no JSON, or does not fit the schema; names the key.
    """
    if path.stat().st_size > MAX_BYTES:
        raise UserError(f"{path}: {path.stat().st_size} bytes is too long for evidence (at most {MAX_BYTES})")
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except ValueError as error:
        raise UserError(f"{path}: no JSON ({error}); write it with `python -m softmax_bottleneck evidence`") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a JSON object, found {type(content).__name__}")
    read(EvidenceFile, content, str(path))
    return Evidence.from_json(content | {"name": path.stem, "sha256": sha256_file(path)}, str(path))


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a finite number")


def _hardware(provenance: Mapping[str, Any]) -> str:
    """The devices of the run's sessions, else its processor."""
    sessions = [one for one in provenance.get("sessions") or [] if isinstance(one, Mapping)]
    devices = dict.fromkeys(str(one["device"]) for one in sessions if "device" in one)
    return (", ".join(devices) or str(provenance["hardware"].get("cpu", "unknown hardware")))[:HARDWARE_SHOWN]


def load_others(finished: set[str]) -> tuple[Evidence, ...]:
    """All evidence, without runs that a study has itself (`finished` run_ids)."""
    return tuple(one for one in map(load, files()) if one.run_id not in finished)


def chosen(study: Study, experiment: Experiment, found: tuple[Evidence, ...]) -> Iterator[Evidence]:
    """The evidence an experiment shows: of its models, corpora and kind of seeds."""
    for one in found:
        author = study.author_seeds.get((one.run.dataset, one.run.model))
        wanted = {"all": True, "author": author in (None, one.run.seed), "random": author != one.run.seed}
        if one.run.model in experiment.models and one.run.dataset in experiment.datasets and wanted[experiment.seeds]:
            yield one


def text(content: Mapping[str, Any]) -> str:
    """The JSON text of an evidence file, checked as it will be when it is read."""
    read(EvidenceFile, content, "evidence")
    return json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n"
