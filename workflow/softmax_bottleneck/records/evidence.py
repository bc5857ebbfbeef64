"""Runs measured elsewhere: files of report/evidence, which every report shows with their origin and hardware.

No mean of a study's own runs ever contains one. A file holds what `EvidenceFile` declares; its text is other people's
and is escaped wherever it is shown.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from softmax_bottleneck.store.artefacts import sha256_file
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import ROOT
from softmax_bottleneck.study import Run, read, schema

FOLDER = ROOT / "report" / "evidence"
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
        content: of its file (`EvidenceFile`), with the file's `name`, without the ending, and its `sha256`.
        run: its settings; its own code may be another, so that run_id is the stored one.
        hardware: the machine in a few words.
        values: (metric, condition) -> number.
    """

    content: Mapping[str, Any]
    name: str
    origin: str
    label: str
    hardware: str
    run: Run
    run_id: str
    values: Mapping[tuple[str, str], float]
    epoch_ranks: Sequence[Mapping[str, Any]]
    spectrum: Sequence[tuple[int, float]]

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Evidence:
        """Return the run that `content` describes (UserError: its settings are no run's)."""
        return cls(
            content=content,
            name=content["name"],
            origin=content["origin"],
            label=content.get("label", ""),
            hardware=_hardware(content["provenance"]),
            run=Run.from_json(content["run"], f"{content['name']}: run"),
            run_id=content["run"]["run_id"],
            values={(row["metric"], row.get("condition", "")): float(row["value"]) for row in content["rows"]},
            epoch_ranks=content.get("epoch_ranks", []),
            spectrum=[(int(index), float(sigma)) for index, sigma in content.get("spectrum", [])],
        )


def _hardware(provenance: Mapping[str, Any]) -> str:
    """Return the devices of the run's sessions, or its processor."""
    sessions = [session for session in provenance.get("sessions") or [] if isinstance(session, Mapping)]
    devices = dict.fromkeys(str(session["device"]) for session in sessions if "device" in session)
    return (", ".join(devices) or str(provenance["hardware"].get("cpu", "unknown hardware")))[:HARDWARE_SHOWN]


def called(file: Path) -> str:
    """Return the path of a study's file within the working or the project's folder; elsewhere its name alone."""
    full = file.resolve()
    homes = (home for home in (ROOT, Path.cwd()) if full.is_relative_to(home))
    return next((full.relative_to(home).as_posix() for home in homes), file.name)


def files() -> list[Path]:
    """Return the evidence files, by name."""
    return sorted(FOLDER.glob("*.json"))


def load(path: Path) -> Evidence:
    """Return the run of a file.

    Raises:
        UserError: it is no JSON or does not fit the schema; names the key.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: no JSON ({error}); write it with `python -m softmax_bottleneck evidence`") from None
    read(EvidenceFile, content, str(path))
    return Evidence.from_json(content | {"name": path.stem, "sha256": sha256_file(path)})


def load_others(finished: set[str]) -> tuple[Evidence, ...]:
    """Return all evidence but runs that a study has itself (`finished` run_ids)."""
    return tuple(archived for archived in map(load, files()) if archived.run_id not in finished)
