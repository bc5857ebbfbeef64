"""The list of runs: of every planned run its state and times, its files with their hashes, and what of its settings
is not as published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from softmax_bottleneck.records import records
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report.numbers import number
from softmax_bottleneck.report.source import label, paper_study, published_dataset
from softmax_bottleneck.study import Run, Study

STAGE_WORDS = {"finetuned": "finetuned", "dynamic": "dynamic evaluation"}  # of what follows training
SHOWN_METRICS = {"test_ppl": 2, "rank_press": 0}  # of a run, and their decimals
HASH_DIGITS = 12  # of a sha256; all of them are in the page's provenance
NO_COUNTERPART = "no published run of this model"


def tables(study: Study, found: Records) -> list[dict[str, Any]]:
    """Planned runs by corpus and model, ready to print; what is not complete comes first."""
    parts = []
    files = _files(found)
    for (dataset,), states in records.groups(found.states, "dataset"):
        later = found.stages[found.stages["dataset"] == dataset]
        every = pd.concat([states.assign(stage=""), later], ignore_index=True)
        groups = [_group(study, found, group, files) for _, group in records.groups(every, "model")]
        groups.sort(key=lambda group: group["complete"])  # stable: otherwise as planned
        runs = states.drop_duplicates("path")
        facts = {"complete": int((runs["state"] == "ok").sum()), "planned": len(runs)}
        parts.append({"title": study.datasets[dataset].title, "groups": groups, **facts})
    return parts


def _files(found: Records) -> dict[str, list[tuple[str, str]]]:
    """Path of a run -> names and hashes of the files that were read of it."""
    files: dict[str, list[tuple[str, str]]] = {}
    for name, digest in found.parents.items():
        folder, _, file = name.rpartition("/")
        files.setdefault(folder, []).append((file, digest[:HASH_DIGITS]))
    return files


def _group(
    study: Study, found: Records, states: pd.DataFrame, files: Mapping[str, list[tuple[str, str]]]
) -> dict[str, Any]:
    dataset, model = states["dataset"].iloc[0], states["model"].iloc[0]
    rows = sorted(states.to_dict("records"), key=lambda row: bool(row["state"] == "ok"))
    values = {
        stage: {metric: found.values(dataset, model, metric, stage) for metric in SHOWN_METRICS}
        for stage in {row["stage"] for row in rows}
    }
    runs = [_printed(row, values[row["stage"]]) | {"files": files.get(row["path"], [])} for row in rows]
    return {
        "id": f"{dataset}-{model}",
        "model": label(study, model),
        "key": model,
        "runs": runs,
        "complete": all(run["state"] == "ok" for run in runs),
        "unlike_published": unlike_published(study, dataset, model),
    }


def _printed(row: Mapping[Any, Any], values: Mapping[str, Mapping[int, float]]) -> dict[str, Any]:
    def text(key: str) -> str:
        return "" if pd.isna(row[key]) else f"{row[key]:.0f}"

    known = not pd.isna(row["wall_s"])
    return {
        **{key: str(row[key]) for key in ("seed", "state", "reason", "hardware", "run_id", "path")},
        **{key: text(key) for key in ("best_epoch", "switch_epoch", "interruptions")},
        "stage": STAGE_WORDS.get(row["stage"], ""),
        "epochs": "" if pd.isna(row["planned_epochs"]) else f"{text('epochs') or 0} of {text('planned_epochs')}",
        "wall": duration(row["wall_s"]) if known else "",
        "wall_s": f"{row['wall_s']:.1f}" if known else "",
        **{
            metric: number(values[metric][row["seed"]], digits) if row["seed"] in values[metric] else ""
            for metric, digits in SHOWN_METRICS.items()
        },
    }


def unlike_published(study: Study, dataset: str, model: str) -> list[str]:
    """`hidden_size 96, published 1150`: a model's settings that are not those of config/paper.yaml, corpus included."""
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
    """Settings with dotted names, in their order."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{start}{name}.")
        else:
            yield f"{start}{name}", value


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `16.2 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
