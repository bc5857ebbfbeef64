"""All parts of a study's report: tables, figures, claims.json and page.json.

page.json holds the texts around the tables and figures, the lists of runs and the provenance. They are made from the
records and the published numbers, without run folders. The module `page` embeds the written files in one page.
"""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from softmax_bottleneck.heads.registry import declarations
from softmax_bottleneck.records import records
from softmax_bottleneck.report import archive, archived_cells, claims, compare, figures, summary, views
from softmax_bottleneck.report.cells import Table
from softmax_bottleneck.report.head_table import head_table
from softmax_bottleneck.report.numbers import number
from softmax_bottleneck.report.page import table_page
from softmax_bottleneck.report.samples import pool_runs
from softmax_bottleneck.report.side_by_side import as_text, side_by_side
from softmax_bottleneck.report.source import label, paper_study, published_dataset
from softmax_bottleneck.store import artefacts, provenance
from softmax_bottleneck.store.paths import PUBLISHED, ROOT
from softmax_bottleneck.study import PlannedExperiment, Study, load_experiment

# Source of an experiment -> title and description of its chapter, in the order of the page.
CHAPTERS: Mapping[str, Mapping[str, str]] = yaml.safe_load((ROOT / "report" / "chapters.yaml").read_bytes())
SOURCE_TITLES = {name: about["title"] for name, about in CHAPTERS.items()}
CURVES = "training-curves"  # the experiment that every report has of the study's main heads
ARCHIVED = ("published-size",)  # experiments that show archived runs
STAGE_WORDS = {"": "", "finetuned": "finetuned", "dynamic": "dynamic evaluation", "search": "search"}
SHOWN_METRICS = {"test_ppl": 2, "rank_press": 0}  # metric -> decimals
NO_COUNTERPART = "no published run of this model"


def write(study: Study, folder: Path) -> None:
    """Write the tables, figures and claims of a study's report into `folder`, which holds the study's records.

    The verdicts on claims are in claims.json. Everything else that the page shows is in page.json.

    Raises:
        UserError: an experiment names an unknown view (a function in report/views), metric or option, or a value that
            its option does not allow.
        DataError: the records are damaged.
    """
    results, known = records.load(folder), declarations()
    heads = {run.model: known[run.head.name].label for run in (*study.runs, *study.searched)}
    entries = [_write_entry(study, experiment, results, heads, folder) for experiment in _experiments(study)]
    judged = claims.to_json(study, results, claims.ledger(results, claims.of_study(study), study))
    artefacts.write_json(folder / "claims.json", judged)
    page = page_of(study, results, entries, judged["claims"])
    overview = summary.picture(pool_runs([finished_study(study, results, [])]))
    artefacts.write_text(folder / "figures" / "overview.svg", overview.svg())
    artefacts.write_text(folder / "figures" / "overview.csv", overview.csv)
    artefacts.write_json(folder / "page.json", page | {"heads": heads, "overview": summary.printed_picture(overview)})


def _experiments(study: Study) -> list[PlannedExperiment]:
    """Return the experiments of a report: training curves, those of the study, and tables of archived runs."""
    models = tuple(model for model in figures.PALETTE if model in study.labels)
    curves = PlannedExperiment.of(load_experiment(CURVES, ROOT / "config"), models=models, datasets=(*study.datasets,))
    experiments = [curves, *study.experiments] if models else [*study.experiments]
    if not study.is_of_own_texts and archive.archived_runs():
        experiments += [PlannedExperiment.of(load_experiment(name, study.file.resolve().parent)) for name in ARCHIVED]
    return experiments


def _write_entry(
    study: Study, experiment: PlannedExperiment, results: records.Records, heads: Mapping[str, str], folder: Path
) -> dict[str, Any]:
    """Write a table or figure; return what the page shows around it, such as title and caption.

    `heads` is {model: label of its head}.
    """
    path = folder / f"{experiment.kind}s" / f"{experiment.id}.csv"
    entry = {key: getattr(experiment, key) for key in ("id", "kind", "source", "artefact", "title")}
    entry["void"] = experiment.needs if experiment.is_void and not experiment.quotes else ""
    content = views.build(study, experiment, results)
    if isinstance(content, Table):
        content = content if study.is_of_own_texts else archived_cells.fill(content, study)
        artefacts.write_text(path.with_suffix(".html"), table_page(content, heads, archive.called(study.file)))
        if experiment in study.experiments:  # the tables of archived runs do not count as the study's
            entry["published_cells"] = content.published_cells
    else:
        artefacts.write_text(path.with_suffix(".svg"), content.svg)
        lines = content.csv.count("\n") - 1
        entry["alt"] = f"{experiment.title}: the figure that the caption describes; its {lines:,} lines of data follow."
    artefacts.write_text(path, content.csv)
    return entry | {"caption": content.caption, "note": content.note}


def page_of(
    study: Study, results: records.Records, entries: Sequence[dict[str, Any]], judged: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the content of page.json except the keys `overview` and `heads`, which `write` adds.

    Args:
        study: the study.
        results: the records of the study.
        entries: one dict per table or figure, with the texts around it: title, caption, note and others.
        judged: the list under `claims` in claims.json: a dict per claim and corpus, with the verdict.

    Returns:
        A dict with the variables of report/template.html.j2, such as `chapters` (tables and figures by paper), `gaps`
        (lines on missing results) and `run_tables` (the planned runs by corpus). The value of `answer` (the findings of
        the archived studies) is None for a study of a user's own texts. The value of `conclusions` (the table of
        verdicts) is None if no claim was evaluated. `head_table` is of the archives, too, if there are any.
    """
    this_study, own_texts = finished_study(study, results, judged), study.is_of_own_texts
    checks = [] if own_texts else records.read_csv(PUBLISHED / "consistency.csv").to_dict("records")
    archives = [] if own_texts else archive.load_all()
    left_out = [] if own_texts else archive.findings()
    others = [other for other in archives if (other.study, other.hardware) != (this_study.study, this_study.hardware)]
    return {
        "study": {"name": study.name, "title": study.title, "description": study.description},
        "counts": list(results.counts().items()),  # a list, because objects in JSON have no order
        "summary": "{ok} of {planned} planned training runs finished and were measured.".format_map(results.counts()),
        "answer": summary.answer(archives) if archives else None,
        "published_cells": [sum(entry.get("published_cells", (0, 0, 0))[i] for entry in entries) for i in range(3)],
        "conclusions": compare.matrix([this_study, *others], SOURCE_TITLES) if judged else None,
        "head_table": head_table(archives or [this_study]),
        "not_judged": {SOURCE_TITLES[name]: lines for name, lines in claims.NOT_JUDGED.items()} if checks else {},
        "checks": checks,
        "gaps": [*gaps(study, results), *(f"An archived study is left out: {finding.words}" for finding in left_out)],
        "chapters": chapters(entries),
        "run_tables": run_tables(study, results),
        "runs_csv": records.to_csv(results.wide(), digits=10),
        "facts": facts_of(study, results),
        "provenance": provenance_of(study, results),
    }


def chapters(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the chapters that have at least one table or figure to show.

    `entries` has a dict per table or figure. Its key `source` names the paper or study whose chapter the entry belongs
    to. Its key `void` has the reason why the entry cannot be shown; it is empty if the entry can. A chapter is a dict
    with the keys `id`, `title`, `paper` (such as `Kanai 2018, `, or ""), `about` (a description), `entries` (those to
    show) and `absent`, which is {reason: entries that cannot be shown for this reason}.
    """
    parts: dict[str, dict[str, Any]] = {name: {"entries": [], "absent": {}} for name in CHAPTERS}
    for entry in entries:
        part = parts[entry["source"]]
        group = part["absent"].setdefault(entry["void"], []) if entry["void"] else part["entries"]
        group.append(entry)
    papers = {name: re.match(r"(\w+).* (\d{4})$", title) for name, title in SOURCE_TITLES.items()}
    short = {name: f"{paper[1]} {paper[2]}, " if paper else "" for name, paper in papers.items()}
    shown = {name: part for name, part in parts.items() if part["entries"]}
    return [{"id": f"chapter-{name}", "paper": short[name], **CHAPTERS[name], **part} for name, part in shown.items()]


def gaps(study: Study, results: records.Records) -> list[str]:
    """Return a list of lines of text, each about missing results of a study.

    Runs whose state is not `ok` share a line if corpus, model, stage, state and reason are the same. As long as
    the step `synthetic` has no results, a line follows for each experiment that shows results of this step.
    """
    unfinished, lines = results.all_stages.query("state != 'ok'"), []
    keys = ("dataset", "model", "stage", "state", "reason")
    for (dataset, model, stage, state, reason), group in records.groups(unfinished, *keys):
        seeds = ", ".join(map(str, group["seed"]))
        name = ", ".join(filter(None, [label(study, model), STAGE_WORDS[stage]]))
        runs = f"{len(group)} of {len(results.planned(dataset, model, stage))} {state}, seed {seeds}"
        lines.append(f"{name} on {study.datasets[dataset].title}: {runs}" + (f" ({reason})" if reason else ""))
    for tuned in (tuned for tuned in study.shown_tuned if not tuned.choice):
        (dataset, model), count = tuned.key, len(tuned.expected)
        lines.append(f"{label(study, model)} on {study.datasets[dataset].title}: {count} runs follow its search")
    undrawn = [experiment for experiment in study.experiments if experiment.is_synthetic and results.synthetic.empty]
    return lines + [f"{entry.artefact} of {SOURCE_TITLES[entry.source]}: not drawn yet" for entry in undrawn]


# --- runs ----------------------------------------------------------------------------------------------------------
def run_tables(study: Study, results: records.Records) -> list[dict[str, Any]]:
    """Return the planned runs for the page, grouped by corpus and model.

    Returns:
        A list with one dict per corpus. Its keys are `title`, `complete` and `planned` (numbers of training runs), and
        `models`: a list with one dict per model, in which models with incomplete runs come first.

        The dict of a model has the keys `id` (`<corpus>-<model>`), `key` (the model's name in the study), `label` (its
        name in tables), `unlike_published` (lines on settings that differ from those of the published run) and `runs`,
        a list of dicts. The dict of a run has texts only: `seed`, `stage`, `state`, `reason`, `hardware`, `run_id`,
        `path`, `epochs` (such as `12 of 40`), `minutes` of training, and the metrics in SHOWN_METRICS. An unknown
        number is an empty text.
    """
    parts = []
    for (dataset,), states in records.groups(results.all_stages, "dataset"):
        models: list[dict[str, Any]] = []
        for (model,), of_model in records.groups(states, "model"):
            names = {"id": f"{dataset}-{model}", "label": label(study, model), "key": model}
            runs = [_run_texts(results, row) for row in of_model.to_dict("records")]
            models.append(names | {"runs": runs, "unlike_published": unlike_published(study, dataset, model)})
        models.sort(key=lambda model: all(run["state"] == "ok" for run in model["runs"]))
        trained = states[states["stage"] == ""].drop_duplicates("path")
        counts = {"complete": int((trained["state"] == "ok").sum()), "planned": len(trained)}
        parts.append({"title": study.datasets[dataset].title, "models": models} | counts)
    return parts


def _run_texts(results: records.Records, row: Mapping[Hashable, Any]) -> dict[str, str]:
    """Return the texts of a run (see `run_tables`) from its row of `Records.all_stages`."""
    texts = {key: str(row[key]) for key in ("seed", "state", "reason", "hardware", "run_id", "path")}
    texts["stage"] = STAGE_WORDS[row["stage"]]
    texts["epochs"] = "" if pd.isna(row["epochs"]) else f"{row['epochs']:.0f} of {row['planned_epochs']:.0f}"
    texts["minutes"] = "" if pd.isna(row["wall_s"]) else f"{row['wall_s'] / 60:.1f}"
    for metric, digits in SHOWN_METRICS.items():
        value = results.values(row["dataset"], row["model"], metric, row["stage"]).get(row["seed"])
        texts[metric] = "" if value is None else number(value, digits)
    return texts


def unlike_published(study: Study, dataset: str, model: str) -> list[str]:
    """Return a line of text for every setting in which a model's run on a dataset differs from the published one.

    Published runs are those of config/paper.yaml. A line is like `hidden_size 96, published 1150`. If the dataset is
    only a proxy for a published corpus, the first line says so. The result is [NO_COUNTERPART] if the study or
    config/paper.yaml has no run to compare.
    """
    published = published_dataset(study.datasets[dataset])
    ours = next((run for run in study.runs if (run.dataset, run.model) == (dataset, model)), None)
    theirs = next((run for run in paper_study().runs if (run.dataset, run.model) == (published, model)), None)
    if not (ours and theirs):
        return [NO_COUNTERPART]
    values, printed = (
        pd.json_normalize(run.settings).iloc[0].drop("data_identity").to_dict() for run in (ours, theirs)
    )
    lines = [] if study.datasets[dataset].published_as else [f"corpus {dataset}, published {published}"]
    for name, value in values.items():
        if printed.get(name) != value:
            lines.append(f"{str(name).rpartition('.')[2]} {value}, published {printed.get(name, 'without')}")
    return lines


# --- provenance ------------------------------------------------------------------------------------------------------
def provenance_of(study: Study, results: records.Records) -> dict[str, Any]:
    """Return the provenance as JSON data, for programs.

    Returns:
        The keys are `schema` (version of the provenance format), `study` (its name), `digest` (hash of the study's
        settings) and:

        * counts: number of planned runs and of runs in each state.
        * settings: `<corpus>/<model>` -> settings of the runs and fingerprint of their code.
        * runs_read, published_read: file -> sha256, for files of runs and for files in report/published.
        * environments: commits, versions and hardware of the runs.
        * page_made_with: versions of the packages that made the page.
    """
    settings = {f"{run.dataset}/{run.model}": run.settings | {"code": run.code} for run in study.needed}
    files = sorted({path for experiment in study.experiments for path in experiment.published})
    return {
        "schema": provenance.SCHEMA,
        "study": study.name,
        "digest": study.digest,
        "counts": results.counts(),
        "settings": settings,
        "runs_read": dict(results.parents),
        "published_read": {name: artefacts.sha256_file(PUBLISHED / name) for name in files},
        "environments": [dict(block) for block in results.environments],
        "page_made_with": provenance.block()["versions"],
    }


def facts_of(study: Study, results: records.Records) -> list[tuple[str, str]]:
    """Return the provenance as (label, text) pairs for readers: corpora, code, versions, hardware, files and time."""
    corpora = []
    for name, corpus in results.corpora.items():
        tokens = ", ".join(f"{split} {corpus['tokens'][split]:,}" for split in ("train", "valid", "test"))
        text = f"{tokens} tokens; {corpus['vocabulary_size']:,} words; sha256 {corpus['token_sha256'][:16]}"
        corpora.append((study.datasets[name].title, ". ".join([text, *corpus.get("doubts", [])])))
    code = (block["git"] for block in results.environments if block.get("git"))
    commits = (f"commit {git.get('commit')}{' (uncommitted changes)' if git.get('dirty') else ''}" for git in code)
    packages = (block.get("versions", {}).items() for block in results.environments)
    trained = results.states.drop_duplicates("path").dropna(subset=["wall_s"])  # a run under two labels counts once
    damage = "; ".join(f"{finding['file']}: {finding['words']}" for finding in results.verification.get("findings", ()))
    return [
        *corpora,
        ("Code", _distinct(commits)),
        ("Versions", _distinct(", ".join(f"{name} {version}" for name, version in block) for block in packages)),
        ("Hardware", _distinct(sorted(set(results.states["hardware"])) or [archive.machines(results)])),
        *(("Mixed hardware", warning) for warning in results.hardware_warnings()),
        ("Files read", f"{len(results.parents)} result files, each checked against its sha256"),
        ("Training time", f"{len(trained)} runs: {trained['wall_s'].sum() / 3600:.2f} h"),
        ("Verified", f"{results.verification.get('files', 0)} files hashed again; {damage or 'all are intact'}"),
    ]


def _distinct(values: Iterable[object]) -> str:
    """Return the distinct non-empty values, joined by `; `, or `no run has finished` if there are none."""
    return "; ".join(dict.fromkeys(str(value) for value in values if value)) or "no run has finished"


# --- terminal -------------------------------------------------------------------------------------------------------
def result_table(study: Study, results: records.Records) -> str:
    """Return a plain-text table with a row per model: mean test perplexity, Press and effective rank per corpus."""
    return as_text({"Heads": side_by_side([finished_study(study, results, [])])["Heads"]})


def finished_study(study: Study, results: records.Records, judged: list[dict[str, Any]]) -> archive.FinishedStudy:
    """Return the study, finished or not, with its records as a `FinishedStudy`.

    Archived studies have this type too, so that one table can compare them with the study.

    `judged` is the list under `claims` in claims.json: a dict per claim and corpus, with the verdict.
    """
    return archive.FinishedStudy(
        name=study.name,
        study=study.name,
        title=study.title,
        hardware=archive.machines(results),
        corpora={name: dataset.title for name, dataset in study.datasets.items()},
        claims=judged,
        records=results,
        tuned=tuple(dict(tuned.choice) for tuned in study.shown_tuned if tuned.choice),
        contrasts=study.contrasts,
        settings={(run.dataset, run.model): run for run in study.runs},
    )
