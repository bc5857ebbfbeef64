"""The report's list of runs: states, times, main metrics, and settings that differ from the published settings."""

from typing import Any

import pandas as pd

from softmax_bottleneck.records import records
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report.numbers import number
from softmax_bottleneck.report.source import label, paper_study, published_dataset
from softmax_bottleneck.study import Study

STAGE_WORDS = {"": "", "finetuned": "finetuned", "dynamic": "dynamic evaluation"}  # stages after training
SHOWN_METRICS = {"test_ppl": 2, "rank_press": 0}  # metric -> decimals
NO_COUNTERPART = "no published run of this model"


def with_stages(found: Records) -> pd.DataFrame:
    """Return the states of all training runs (stage "") and of their finetuning and dynamic evaluation."""
    return pd.concat([found.states.assign(stage=""), found.stages], ignore_index=True)


def tables(study: Study, found: Records) -> list[dict[str, Any]]:
    """Return the planned runs by corpus and model, as texts for the page. Models with incomplete runs come first."""
    parts = []
    for (dataset,), states in records.groups(with_stages(found), "dataset"):
        models: list[dict[str, Any]] = []
        for (model,), own in records.groups(states, "model"):
            runs = [_printed(row, found) for row in own.to_dict("records")]
            names = {"id": f"{dataset}-{model}", "label": label(study, model), "key": model}
            models.append(names | {"runs": runs, "unlike_published": unlike_published(study, dataset, model)})
        models.sort(key=lambda model: all(run["state"] == "ok" for run in model["runs"]))
        trained = states[states["stage"] == ""].drop_duplicates("path")
        facts = {"complete": int((trained["state"] == "ok").sum()), "planned": len(trained)}
        parts.append({"title": study.datasets[dataset].title, "models": models, **facts})
    return parts


def _printed(row: dict[Any, Any], found: Records) -> dict[str, str]:
    """Return the columns of one run as {name: text}."""
    texts = {key: str(row[key]) for key in ("seed", "state", "reason", "hardware", "run_id", "path")}
    texts["stage"] = STAGE_WORDS[row["stage"]]
    texts["epochs"] = "" if pd.isna(row["epochs"]) else f"{row['epochs']:.0f} of {row['planned_epochs']:.0f}"
    texts["minutes"] = "" if pd.isna(row["wall_s"]) else f"{row['wall_s'] / 60:.1f}"
    for metric, digits in SHOWN_METRICS.items():
        value = found.values(row["dataset"], row["model"], metric, row["stage"]).get(row["seed"])
        texts[metric] = "" if value is None else number(value, digits)
    return texts


def unlike_published(study: Study, dataset: str, model: str) -> list[str]:
    """Return a line per setting of a model that differs from config/paper.yaml: `hidden_size 96, published 1150`."""
    published, paper = published_dataset(study.datasets[dataset]), paper_study()
    sides = ((study.runs, dataset), (paper.runs if paper else (), published))
    runs = [next((r for r in runs if (r.dataset, r.model) == (place, model)), None) for runs, place in sides]
    if None in runs:
        return [NO_COUNTERPART]
    ours, theirs = (pd.json_normalize(run.settings).iloc[0].drop("data_identity").to_dict() for run in runs if run)
    lines = [] if study.datasets[dataset].published_as else [f"corpus {dataset}, published {published}"]
    for name, value in ours.items():
        if theirs.get(name) != value:
            lines.append(f"{str(name).rpartition('.')[2]} {value}, published {theirs.get(name, 'without')}")
    return lines
