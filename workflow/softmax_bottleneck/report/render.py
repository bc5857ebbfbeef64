"""Everything a study shows, made in one process: tables, figures, claims, and what the page says besides.

It reads the records and the published numbers, and nothing of any run. The page embeds what is written here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from softmax_bottleneck.heads.registry import declarations
from softmax_bottleneck.records import evidence, records
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report import cells, claims, figures, run_list, tiles, views
from softmax_bottleneck.report.cells import Measured, Table
from softmax_bottleneck.report.claims import sentences
from softmax_bottleneck.report.claims.data import SYNTHETIC
from softmax_bottleneck.report.figures import Figure, overview
from softmax_bottleneck.report.options import check_options
from softmax_bottleneck.report.source import PUBLISHED, label
from softmax_bottleneck.report.templates import data_address, environment
from softmax_bottleneck.store import artefacts, provenance
from softmax_bottleneck.study import Experiment, Study, load_experiment

# Chapters in the order of the page: the source of an experiment -> title and what it is.
SOURCES: Mapping[str, tuple[str, str]] = {
    "parthiban2021": (
        "Parthiban, Mao and Inkpen 2021",
        "On the Softmax Bottleneck of Recurrent Language Models, AAAI 2021, with its supplementary material (SM).",
    ),
    "kanai2018": (
        "Kanai, Fujiwara, Yamanaka and Adachi 2018",
        "Sigsoftmax: Reanalysis of the Softmax Bottleneck, NeurIPS 2018.",
    ),
    "ganea2019": (
        "Ganea, Gelly, Bécigneul and Severyn 2019",
        "Breaking the Softmax Bottleneck via Learnable Monotonic Pointwise Non-linearities, ICML 2019.",
    ),
    "merity2017": ("Merity 2017", "The rank demonstration of untrained output layers."),
    "benka2021": ("Benka 2021", "Mixture of softmaxes on a Transformer language model."),
    "known-truth": (
        "A language whose truth is known",
        "Text sampled from an exactly known law, so that the best possible perplexity and the true rank of the "
        "log-probability matrix are facts to compare with; and heads fitted to such laws without a network below them, "
        "where the bottleneck is seen alone.",
    ),
    "plif-rank": (
        "The rank of LMS-PLIF",
        "Low at the published size, full in small studies: how finely its function is cut decides (docs/ranks.md).",
    ),
    "published-size": (
        "At the published size",
        "Runs on whole corpora, each made once and kept with its machine and its settings; every study shows them.",
    ),
    "gradient": (
        "The gradient that a head lets through",
        "An output layer suppresses a part of the loss’ gradient (Godey and Artzi 2026). Where the law is known the "
        "best gradient is too: what passes of it, how fast heads learn, and whether either tells where they end.",
    ),
}


def render(study: Study, folder: Path) -> None:
    """Write every table, figure and claim of a study into a folder that holds its records (DataError: damaged)."""
    check_options(study)
    found = records.load(folder)
    heads = heads_of(study)
    top, *entries = [
        _entry(study, experiment, found, folder, heads)
        for experiment in (overview.experiment(study), *study.experiments, *_kept(study, found))
    ]
    ledger = claims.ledger(found, claims.of_study(study), study)
    artefacts.write_json(folder / "claims.json", claims.to_json(study, found, ledger))
    artefacts.write_json(folder / "page.json", page_of(study, found, entries, ledger) | {"overview": top})


def _kept(study: Study, found: Records) -> list[Experiment]:
    """Table and figures of runs made elsewhere, which belong to every study that is not of one's own texts."""
    names = ("published-size", "published-size-widths", "published-size-spectra", "published-size-ranks")
    shown = names if found.evidence and not study.is_of_own_texts else ()
    return [load_experiment(name, study.file.resolve().parent) for name in shown]


def _entry(
    study: Study, experiment: Experiment, found: Records, folder: Path, heads: Mapping[str, str]
) -> dict[str, Any]:
    """Write a table or figure; what the page says around it."""
    shown: Table | Figure
    path = folder / f"{experiment.kind}s" / f"{experiment.id}.csv"
    if experiment.kind == "table":
        shown = views.build(study, experiment, found)
        page = views.table_page(shown, heads, evidence.called(study.file))
        artefacts.write_text(path.with_suffix(".html"), page)
        words: dict[str, Any] = {"note": shown.note}
        if experiment in study.experiments:  # what is kept from elsewhere fills no gap of the study
            words["published_cells"] = shown.published_cells
    else:
        shown = figures.build(study, experiment, found)
        artefacts.write_text(path.with_suffix(".svg"), shown.svg)
        words = {"note": shown.note, "alt": shown.alt, "alone": shown.alone}
    artefacts.write_text(path, shown.csv)
    is_void = experiment.is_void and not experiment.quotes
    about = {key: getattr(shown, key) for key in ("id", "source", "artefact", "title", "caption")}
    return about | words | {"kind": experiment.kind, "void": experiment.needs if is_void else ""}


def page_of(
    study: Study, found: Records, entries: Sequence[dict[str, Any]], ledger: Sequence[claims.Entry]
) -> dict[str, Any]:
    """What the page says besides its tables and figures: words, lists of runs, provenance."""
    checks = [] if study.is_of_own_texts else records.read_csv(PUBLISHED / "consistency.csv").to_dict("records")
    judged = environment().get_template("ledger.html.j2")
    data = data_address("text/csv", claims.to_csv(list(ledger)))
    parts = by_corpus(study, ledger)
    not_judged = {SOURCES[name][0]: lines for name, lines in claims.NOT_JUDGED.items() if checks}
    how = {"sources": SOURCES, "not_judged": not_judged, "checks": checks, "claims_csv": data}
    shown = judged.render(study=study, ledger=parts, **how)
    return {
        "study": {"name": study.name, "title": study.title, "description": study.description},
        "counts": list(found.counts().items()),  # in their order, which an object of JSON has not
        "in_short": sentences.in_short(study, found, list(ledger)),
        "summary": f"{sentences.summary(found)} {published_cells(entries)}".rstrip(),
        "kept": sentences.kept(study, found),
        "ledger_html": shown if ledger else "",
        "checked": bool(checks),
        "strip": tiles.strip(ledger, {name: one.title for name, one in study.datasets.items()}),
        "gaps": gaps(study, found),
        "unmeasured": unmeasured(entries),
        "chapters": chapters(entries),
        "run_tables": run_list.tables(study, found),
        "runs_csv": records.to_csv(found.wide(), digits=10),
        "heads": heads_of(study),
        "facts": [*_corpora(study, found), *_facts(found), *_verified(found)],
        "provenance": provenance_of(study, found),
    }


def heads_of(study: Study) -> dict[str, str]:
    """Model -> name of its head, in the study's order."""
    known = declarations()
    return {run.model: known[run.head.name].label for run in study.runs}


def chapters(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tables and figures by source, chapters in the order of SOURCES; `absent`: those without runs, by the reason."""
    parts: dict[str, dict[str, Any]] = {}
    for entry in entries:
        source = entry["source"]
        title, about = SOURCES.get(source, (source, ""))
        usual = {"id": f"chapter-{source}", "title": title, "about": about, "entries": [], "absent": {}}
        part = parts.setdefault(source, usual)
        if entry["void"]:
            part["absent"].setdefault(entry["void"], []).append(entry)
        else:
            part["entries"].append(entry)
    known = [source for source in SOURCES if source in parts] + [source for source in parts if source not in SOURCES]
    return [parts[source] for source in known if parts[source]["entries"]]


def published_cells(entries: Iterable[dict[str, Any]]) -> str:
    """How many published cells of the study's tables have a measured value; empty where none is published."""
    measured, printed = (sum(entry.get("published_cells", (0, 0))[i] for entry in entries) for i in (0, 1))
    return f"{measured:,} of {printed:,} published cells have a measured value here." if printed else ""


def unmeasured(entries: Iterable[dict[str, Any]]) -> list[str]:
    """Published cells, and figures' models and corpora, without a value here: `Table 2 of Kanai...: 40 of 80...`."""
    every = list(entries)
    drawn = [
        f"{_named(e['artefact'], e['source'])}: {e['alone'][0].lower()}{e['alone'][1:-1]}"
        for e in every
        if e.get("alone")
    ]
    counts = [(entry, *entry.get("published_cells", (0, 0))) for entry in every]
    return drawn + [
        f"{_named(entry['artefact'], entry['source'])}: {have} of {count} published cells have a measured value here; "
        "the others say in their place which study has them"
        for entry, have, count in counts
        if have < count
    ]


def _named(artefact: str, source: str) -> str:
    return f"{artefact} of {SOURCES.get(source, (source,))[0]}"


# --- claims and gaps -------------------------------------------------------------------------------------------------
def by_corpus(study: Study, entries: Sequence[claims.Entry]) -> list[dict[str, Any]]:
    """The claims by corpus, ready to print; `absent`: those without runs."""
    parts = []
    for dataset in dict.fromkeys(entry.dataset for entry in entries):
        own = [entry for entry in entries if entry.dataset == dataset]
        title = "Without a corpus" if dataset == SYNTHETIC else study.datasets[dataset].title
        absent = [entry for entry in own if entry.outcome is None]
        judged = [entry for entry in own if entry not in absent]
        parts.append({"title": title, "entries": judged, "absent": absent, "counts": claims.counts(own)})
    return parts


def gaps(study: Study, found: Records) -> list[str]:
    """What is missing, in words: runs that are not complete, by model and reason, and experiments without results."""
    every = pd.concat([found.states.assign(stage=""), found.stages], ignore_index=True)
    incomplete = every[every["state"] != "ok"]
    lines = []
    keys = ("dataset", "model", "stage", "state", "reason")
    for (dataset, model, stage, state, reason), group in records.groups(incomplete, *keys):
        seeds = ", ".join(str(seed) for seed in group["seed"])
        total = len(found.planned(dataset, model, stage))
        after = f", {run_list.STAGE_WORDS[stage]}" if stage else ""
        where = f"{label(study, model)}{after} on {study.datasets[dataset].title}"
        words = f" ({reason})" if reason else ""
        lines.append(f"{where}: {len(group)} of {total} {state}, seed {seeds}{words}")
    drawn = not found.synthetic.empty
    lines += [
        f"{_named(e.artefact, e.source)}: not drawn yet" for e in study.experiments if e.is_synthetic and not drawn
    ]
    return lines


# --- provenance ------------------------------------------------------------------------------------------------------
def provenance_of(study: Study, found: Records) -> dict[str, Any]:
    """What the page was made from: states, settings, hashes of the files read, versions and hardware of the runs."""
    settings: dict[str, Any] = {}
    for run in study.needed:
        facts = {key: dataclasses.asdict(run)[key] for key in ("head", "body", "schedule", "data_identity")}
        settings[f"{run.dataset}/{run.model}"] = facts | {"code": run.code}
    files = {path for experiment in study.experiments for path in experiment.published}
    published = {name: artefacts.sha256_file(PUBLISHED / name) for name in sorted(files)}
    return {
        "schema": provenance.SCHEMA,
        "study": study.name,
        "digest": study.digest,
        "counts": found.counts(),
        "settings": settings,
        "runs_read": dict(found.parents),
        "published_read": published,
        "environments": [dict(block) for block in found.environments],
        "page_made_with": provenance.block()["versions"],
    }


def _corpora(study: Study, found: Records) -> list[tuple[str, str]]:
    """Tokens and words of every corpus that is tokenised, and what is doubtful about it."""
    lines = []
    for name, facts in found.corpora.items():
        counts = ", ".join(f"{split} {facts['tokens'][split]:,}" for split in ("train", "valid", "test"))
        words = f"{counts} tokens; {facts['vocabulary_size']:,} words; sha256 {facts['token_sha256'][:16]}"
        lines.append((study.datasets[name].title, ". ".join([words, *facts.get("doubts", [])])))
    return lines


def _facts(found: Records) -> list[tuple[str, str]]:
    """Provenance for people: distinct values over all runs."""

    def distinct(values: Iterable[object]) -> str:
        return "; ".join(dict.fromkeys(str(value) for value in values if value)) or "no run has finished"

    blocks = [block.get("versions", {}) for block in found.environments]
    git = [block.get("git", {}) for block in found.environments]
    processors = [block.get("hardware", {}).get("cpu") for block in found.environments]  # of fits alone
    changed = " (with uncommitted changes)"
    facts = [
        ("Code", distinct(f"commit {g.get('commit')}{changed if g.get('dirty') else ''}" for g in git if g)),
        ("Versions", distinct(", ".join(f"{name} {number}" for name, number in block.items()) for block in blocks)),
        ("Hardware", distinct(sorted(set(found.states["hardware"])) or processors)),
        *(("Mixed hardware", warning) for warning in found.mixtures()),
        ("Files read", f"{len(found.parents)} result files, each checked against its sha256"),
    ]
    return [*facts, *([("Training time", _hours(found))] if len(found.states) else [])]


def _verified(found: Records) -> list[tuple[str, str]]:
    """What the verification before this page found."""
    facts = found.verification
    words = "; ".join(f"{finding['file']}: {finding['words']}" for finding in facts.get("findings", ()))
    return [("Verified", f"{facts.get('files', 0)} files hashed again; {words or 'nothing is wrong with any'}")]


def _hours(found: Records) -> str:
    """`16.2 h in 48 runs: 12.0 h on A100, 4.2 h on H200`; a run under two labels counts once."""
    trained = found.states.drop_duplicates("path").dropna(subset=["wall_s"])
    if trained.empty:
        return "no run has finished"
    by_kind = trained.groupby("hardware", sort=True)["wall_s"].sum()
    kinds = ", ".join(
        f"{run_list.duration(seconds)} on {kind or 'unknown hardware'}" for kind, seconds in by_kind.items()
    )
    return f"{run_list.duration(trained['wall_s'].sum())} in {len(trained)} runs: {kinds}"


# --- terminal -------------------------------------------------------------------------------------------------------
def result_table(study: Study, found: Records) -> str:
    """A small plain-text table: test perplexity and ranks of every model, one block per corpus."""
    metrics = {"test ppl": ("test_ppl", 2), "Press rank": ("rank_press", 0), "eff. rank 1e-3": ("rank_eff_1e-3", 0)}
    blocks = []
    for dataset in dict.fromkeys(run.dataset for run in study.needed):
        rows = [["model", *metrics, "n"]]
        models = list(dict.fromkeys(run.model for run in study.needed if run.dataset == dataset))
        shown = [label(study, model) for model in models]
        for model, name in zip(models, shown, strict=True):
            means = [
                (cells.mean_of(found.values(dataset, model, metric).values()), digits)
                for metric, digits in metrics.values()
            ]
            n = means[0][0].n if means[0][0] else 0
            name = name if shown.count(name) == 1 else f"{name} ({model})"
            rows.append([name, *(_plain(mean, digits) for mean, digits in means), ""])
            rows[-1][-1] = f"{n}/{len(found.planned(dataset, model))}"
        blocks.append(f"{study.datasets[dataset].title}\n{_aligned(rows)}")
    return "\n\n".join(blocks) or "This study plans no training run."


def _plain(mean: Measured | None, digits: int) -> str:
    if mean is None:
        return "-"
    return f"{mean.mean:.{digits}f}" + ("" if mean.sd is None else f" ± {mean.sd:.{digits}f}")


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  " + "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    )
