"""The list of runs: states, times, files with hashes, and the settings that differ from the published ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from softmax_bottleneck.records import records
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report.numbers import number
from softmax_bottleneck.report.source import label, paper_study, published_dataset
from softmax_bottleneck.study import Run, Study

STAGE_WORDS = {"finetuned": "finetuned", "dynamic": "dynamic evaluation"}  # of the stages after training
SHOWN_METRICS = {"test_ppl": 2, "rank_press": 0}  # of a run, and their decimals
HASH_DIGITS = 12  # of a sha256; all of them are in the page's provenance
COUNTS = ("epochs", "planned_epochs", "best_epoch", "switch_epoch", "interruptions")
NO_COUNTERPART = "no published run of this model"


def tables(study: Study, found: Records) -> list[dict[str, Any]]:
    """Return the planned runs by corpus and model, ready to print; incomplete ones come first."""
    parts = []
    every = pd.concat([found.states.assign(stage=""), found.stages], ignore_index=True)
    for (dataset,), states in records.groups(every, "dataset"):
        groups = [_group(study, found, group) for _, group in records.groups(states, "model")]
        groups.sort(key=lambda group: group["complete"])  # stable: otherwise in the planned order
        runs = states[states["stage"] == ""].drop_duplicates("path")
        facts = {"complete": int((runs["state"] == "ok").sum()), "planned": len(runs)}
        parts.append({"title": study.datasets[dataset].title, "groups": groups, **facts})
    return parts


def _group(study: Study, found: Records, states: pd.DataFrame) -> dict[str, Any]:
    """Return the runs of one model on one corpus."""
    dataset, model = states["dataset"].iloc[0], states["model"].iloc[0]
    rows = sorted(states.to_dict("records"), key=lambda row: bool(row["state"] == "ok"))
    runs = [_printed(row, found) for row in rows]
    return {
        "id": f"{dataset}-{model}",
        "model": label(study, model),
        "key": model,
        "runs": runs,
        "complete": all(run["state"] == "ok" for run in runs),
        "unlike_published": unlike_published(study, dataset, model),
    }


def _printed(row: Mapping[Any, Any], found: Records) -> dict[str, Any]:
    """Return the texts of one run: state, times, numbers, and its files with the first digits of their hashes."""
    text = {key: "" if pd.isna(row[key]) else f"{row[key]:.0f}" for key in COUNTS}
    is_timed = not pd.isna(row["wall_s"])
    files = [(name.rpartition("/"), digest[:HASH_DIGITS]) for name, digest in found.parents.items()]
    values = {
        metric: (found.values(row["dataset"], row["model"], metric, row["stage"]).get(row["seed"]), digits)
        for metric, digits in SHOWN_METRICS.items()
    }
    return {
        **{key: str(row[key]) for key in ("seed", "state", "reason", "hardware", "run_id", "path")},
        **text,
        "stage": STAGE_WORDS.get(row["stage"], ""),
        "epochs": f"{text['epochs'] or 0} of {text['planned_epochs']}" if text["planned_epochs"] else "",
        "wall": duration(row["wall_s"]) if is_timed else "",
        "wall_s": f"{row['wall_s']:.1f}" if is_timed else "",
        "files": [(name, digest) for (folder, _, name), digest in files if folder == row["path"]],
        **{metric: "" if value is None else number(value, digits) for metric, (value, digits) in values.items()},
    }


def unlike_published(study: Study, dataset: str, model: str) -> list[str]:
    """Return the settings of a model that differ from config/paper.yaml, such as `hidden_size 96, published 1150`."""
    published = published_dataset(study.datasets[dataset])
    theirs = _first_run(paper_study(), published, model)
    ours = _first_run(study, dataset, model)
    if theirs is None or ours is None:
        return [NO_COUNTERPART]
    printed = dict(_flat(theirs.settings))
    words = [
        f"{name.rpartition('.')[2]} {value}, published {printed.get(name, 'without')}"
        for name, value in _flat(ours.settings)
        if name != "data_identity" and printed.get(name) != value
    ]
    corpus = [] if study.datasets[dataset].published_as else [f"corpus {dataset}, published {published}"]
    return corpus + words


def _first_run(study: Study | None, dataset: str, model: str) -> Run | None:
    runs = study.runs if study else ()
    return next((run for run in runs if (run.dataset, run.model) == (dataset, model)), None)


def _flat(settings: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings with dotted names, in their order."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{start}{name}.")
        else:
            yield f"{start}{name}", value


def duration(seconds: float) -> str:
    """Return a time as `45 s`, `12 min` or `16.2 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
