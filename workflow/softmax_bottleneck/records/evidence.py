"""Runs measured elsewhere: files of report/evidence that join the tables, marked with their origin and hardware.

They are additional: no mean of a study's own runs ever contains one. A file is checked against
workflow/schemas/evidence.schema.yaml; its text is other people's and is escaped wherever it is shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from softmax_bottleneck.store.artefacts import sha256_file
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import ROOT
from softmax_bottleneck.study import Experiment, Run, Study, schema, validate

FOLDER = ROOT / "report" / "evidence"
MAX_BYTES = 16 << 20
HARDWARE_SHOWN = 60  # characters


@dataclass(frozen=True)
class Evidence:
    """One run measured elsewhere.

    Attributes:
        name: of its file, without the ending.
        run: its settings; its own code may be another, so that run_id is the stored one.
        hardware: the machine in a few words.
        values: (metric, condition) -> number.
    """

    name: str
    sha256: str
    origin: str
    hardware: str
    run: Run
    run_id: str
    values: Mapping[tuple[str, str], float]
    history: tuple[Mapping[str, Any], ...]
    provenance: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Its file's content, with its name and hash."""
        rows = [{"metric": m, "condition": c, "value": value} for (m, c), value in self.values.items()]
        run = self.run.to_json() | {"run_id": self.run_id}
        facts = {"name": self.name, "sha256": self.sha256, "origin": self.origin, "run": run, "rows": rows}
        return facts | {"history": list(self.history), "provenance": self.provenance}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Evidence:
        """From what `to_json` gives (TypeError: settings that are no run's)."""
        return cls(
            name=content["name"],
            sha256=content["sha256"],
            origin=content["origin"],
            hardware=_hardware(content["provenance"]),
            run=Run.from_json(content["run"]),
            run_id=content["run"]["run_id"],
            values={(row["metric"], row.get("condition", "")): float(row["value"]) for row in content["rows"]},
            history=tuple(content.get("history", [])),
            provenance=content["provenance"],
        )


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
    validate(content, schema("evidence"), str(path))
    try:
        return Evidence.from_json(content | {"name": path.stem, "sha256": sha256_file(path)})
    except TypeError as error:
        raise UserError(f"{path}: run: its settings are not those of a run ({error})") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a finite number")


def _hardware(provenance: Mapping[str, Any]) -> str:
    """The devices of the run's sessions, else its processor."""
    sessions = [one for one in provenance.get("sessions") or [] if isinstance(one, Mapping)]
    devices = dict.fromkeys(str(one["device"]) for one in sessions if "device" in one)
    return (", ".join(devices) or str(provenance["hardware"].get("cpu", "unknown hardware")))[:HARDWARE_SHOWN]


def load_for(study: Study, finished: set[str]) -> tuple[Evidence, ...]:
    """Evidence on the corpora and models of a study, without runs that the study has itself (`finished` run_ids)."""
    found = [load(path) for path in files()]
    return tuple(
        one
        for one in found
        if one.run.dataset in study.datasets and one.run.model in study.labels and one.run_id not in finished
    )


def chosen(study: Study, experiment: Experiment, found: tuple[Evidence, ...]) -> Iterator[Evidence]:
    """The evidence an experiment shows: of its models, corpora and kind of seeds."""
    for one in found:
        author = study.author_seeds.get((one.run.dataset, one.run.model))
        wanted = {"all": True, "author": author in (None, one.run.seed), "random": author != one.run.seed}
        if one.run.model in experiment.models and one.run.dataset in experiment.datasets and wanted[experiment.seeds]:
            yield one


def text(run: Mapping[str, Any], origin: str, rows: list[dict[str, Any]], history: list[Any], block: Any) -> str:
    """The JSON text of an evidence file, checked as it will be when it is read."""
    content = {"origin": origin, "run": dict(run), "rows": rows, "history": history, "provenance": block}
    validate(content, schema("evidence"), "evidence")
    return json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n"
