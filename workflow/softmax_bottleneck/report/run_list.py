"""The list of runs: states, times, files with hashes, and the settings that differ from the published ones."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from softmax_bottleneck.records import records
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report.numbers import number
from softmax_bottleneck.report.source import label, paper_study, published_dataset
from softmax_bottleneck.study import Study

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
    paper = paper_study()
    sides = ((paper.runs if paper else (), published), (study.runs, dataset))
    runs = [next((r for r in runs if (r.dataset, r.model) == (place, model)), None) for runs, place in sides]
    if None in runs:
        return [NO_COUNTERPART]
    theirs, ours = (pd.json_normalize(run.settings).iloc[0].to_dict() for run in runs if run)
    words = [
        f"{str(name).rpartition('.')[2]} {value}, published {theirs.get(name, 'without')}"
        for name, value in ours.items()
        if name != "data_identity" and theirs.get(name) != value
    ]
    corpus = [] if study.datasets[dataset].published_as else [f"corpus {dataset}, published {published}"]
    return corpus + words


def duration(seconds: float) -> str:
    """Return a time as `45 s`, `12 min` or `16.2 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
