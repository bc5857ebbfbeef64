"""The report: one self-contained page per study, made from what is in results/ at that moment.

It needs no script, no network and no other file. All text is escaped by the templates; figures are embedded as images,
in which nothing can run; downloads are data addresses.
"""

from __future__ import annotations

import base64
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from softmax_bottleneck import artefacts, cells, claims, consistency, figures, judging, records, statistics, tables
from softmax_bottleneck.cells import Measured, Table, label
from softmax_bottleneck.config import Run, Study
from softmax_bottleneck.figures import Figure
from softmax_bottleneck.records import Records

PIXELS_PER_POINT = 4 / 3
PAPER = "parthiban2021"  # the source whose conclusions are judged
GAPS_SHOWN = 8  # the rest folds away
# Chapters in the order of the page: the source of an experiment -> title and what it is.
SOURCES: Mapping[str, tuple[str, str]] = {
    "known-truth": (
        "A language whose truth is known",
        "Models trained on text sampled from an exactly known law, so that the best possible perplexity and the true "
        "rank of the log-probability matrix are facts to compare with.",
    ),
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
}


@dataclass(frozen=True)
class Entry:
    """A table or figure of the page; image and data are data addresses."""

    kind: str
    item: Table | Figure
    data: str
    image: str = ""
    width: int = 0
    height: int = 0


@dataclass(frozen=True)
class Chapter:
    """The experiments of one source."""

    id: str
    title: str
    about: str
    entries: tuple[Entry, ...]


# --- page -----------------------------------------------------------------------------------------------------------
def build(study: Study) -> Path:
    """Write results/<study>/report/index.html and return its path."""
    path = artefacts.study_folder(study.name) / "report" / "index.html"
    artefacts.write_text(path, page(study, records.collect(study)))
    return path


def page(study: Study, found: Records) -> str:
    """The whole page as HTML."""
    template = tables.environment().get_template("template.html.j2")
    entries = claims.ledger(found) if any(e.source == PAPER for e in study.experiments) else []
    return template.render(
        study={"name": study.name, "title": study.title, "description": study.description},
        counts=found.counts(),
        summary=summary(found),
        verdict=verdict(study, found, entries),
        claims=claims.CLAIMS,
        ledger=ledger(study, entries),
        claims_csv=data_address("text/csv", claims.to_csv(entries)),
        checks=consistency.judge_published() if entries else [],
        gaps=gaps(study, found),
        gaps_shown=GAPS_SHOWN,
        chapters=chapters(study, found),
        run_groups=run_groups(study, found),
        runs_csv=data_address("text/csv", records.to_csv(found.wide(), digits=10)),
        facts=[*_corpora(study), *_facts(found)],
        provenance=provenance_of(study, found),
    )


def data_address(kind: str, text: str) -> str:
    """Text as a `data:` address that a link or an image can carry."""
    return f"data:{kind};base64,{base64.b64encode(text.encode('utf-8')).decode('ascii')}"


def chapters(study: Study, found: Records) -> list[Chapter]:
    """The study's tables and figures by source, chapters in the order of SOURCES."""
    by_source: dict[str, list[Entry]] = {}
    for experiment in study.experiments:
        build_one = _table_entry if experiment.kind == "table" else _figure_entry
        item = tables.build if experiment.kind == "table" else figures.build
        by_source.setdefault(experiment.source, []).append(build_one(item(study, experiment, found)))
    order = [source for source in SOURCES if source in by_source] + [s for s in by_source if s not in SOURCES]
    return [Chapter(f"chapter-{s}", *SOURCES.get(s, (s, "")), tuple(by_source[s])) for s in order]


def _table_entry(table: Any) -> Entry:
    return Entry("table", table, data_address("text/csv", table.csv))


def _figure_entry(figure: Any) -> Entry:
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', figure.svg)
    width, height = (round(float(side) * PIXELS_PER_POINT) for side in size.groups()) if size else (0, 0)
    csv, image = data_address("text/csv", figure.csv), data_address("image/svg+xml", figure.svg)
    return Entry("figure", figure, csv, image, width, height)


# --- what came out --------------------------------------------------------------------------------------------------
def summary(found: Records) -> str:
    """How much of the study is there, in one sentence."""
    counts = found.counts()
    if not counts["planned"]:
        return "This study plans no training run."
    if found.rows[found.rows["run_id"] != ""].empty:
        return f"No run has finished yet; {counts['planned']} are planned. The published numbers below stand alone."
    return f"{counts['ok']} of {counts['planned']} planned training runs finished and were measured."


def verdict(study: Study, found: Records, entries: Sequence[claims.Entry] = ()) -> list[tuple[str, list[str]]]:
    """For every corpus with results a few sentences computed from the records; they claim nothing else."""
    sections = []
    for name, dataset in study.datasets.items():
        scores = _scores(study, found, name)
        if scores:
            words = [_perplexity_words(study, found, name, scores), _rank_words(study, found, name)]
            words += [_truth_words(study, found, name, scores)] if dataset.kind == "language" else []
            words += [_correlation_words(found, name), _claim_words([e for e in entries if e.dataset == name])]
            sections.append((dataset.title, [sentence for sentence in words if sentence]))
    return sections


def _scores(study: Study, found: Records, dataset: str, metric: str = "test_ppl") -> dict[str, Measured]:
    """Mean of a metric for every model that has it, in the study's order."""
    means = {model: cells.mean_of(found.values(dataset, model, metric).values()) for model in study.labels}
    return {model: mean for model, mean in means.items() if mean is not None}


def _baseline(study: Study, dataset: str) -> Run | None:
    """A run of the plain softmax on a dataset: what other heads are compared with."""
    return next((run for run in study.needed if run.dataset == dataset and run.head.name == "softmax"), None)


def _spread(score: Measured, digits: int = 2) -> str:
    spread = "" if score.sd is None else f" ± {score.sd:.{digits}f}"
    return f"{score.mean:.{digits}f}{spread} (n {score.n})"


def _perplexity_words(study: Study, found: Records, dataset: str, scores: Mapping[str, Measured]) -> str:
    best = min(scores, key=lambda model: scores[model].mean)
    words = f"{label(study, best)} has the lowest test perplexity, {_spread(scores[best])}"
    baseline = _baseline(study, dataset)
    if baseline is None or baseline.model not in scores or baseline.model == best:
        return f"{words}."
    reference = baseline.model
    samples = [found.values(dataset, model, "test_ppl").values() for model in (best, reference)]
    test = statistics.student_t(*samples)
    p = f"p {test.reason}" if test.p is None else f"Student's p = {statistics.format_p(test.p)}"
    return f"{words}; {label(study, reference)} has {_spread(scores[reference])} ({p})."


def _rank_words(study: Study, found: Records, dataset: str) -> str:
    ranks = _scores(study, found, dataset, "rank_press")
    if not ranks:
        return ""
    low, high = (choose(ranks, key=lambda model: ranks[model].mean) for choose in (min, max))
    ends = [f"{ranks[model].mean:.0f} ({label(study, model)})" for model in (low, high)]
    words = f"Mean Press rank runs from {ends[0]} to {ends[1]}"
    baseline = _baseline(study, dataset)
    if baseline is None or baseline.model not in ranks:
        return f"{words}."
    limit = baseline.body.embedding_size + 2
    largest = max(found.values(dataset, baseline.model, "rank_press").values())
    holds = "stays within" if largest <= limit else "is above"
    return f"{words}; {label(study, baseline.model)}, {largest:.0f} at most, {holds} its limit of d + 2 = {limit}."


def _truth_words(study: Study, found: Records, dataset: str, scores: Mapping[str, Measured]) -> str:
    bound, rank = (cells.exact_value(found, dataset, metric) for metric in ("entropy_ppl", "rank_truth"))
    if bound is None:
        return ""
    best = min(scores.values(), key=lambda score: score.mean)
    words = f"No model can do better than {bound:.2f} on this text; the best is {best.mean / bound - 1:.0%} above it."
    ranks = _scores(study, found, dataset, "rank_press")
    if rank is None or not ranks:
        return words
    over = [label(study, model) for model, score in ranks.items() if score.mean >= rank]
    names = ", ".join(over) if over else "no model"
    return f"{words} The law's log-probabilities have rank {rank:.0f}; {names} reach{'' if len(over) > 1 else 'es'} it."


def _correlation_words(found: Records, dataset: str) -> str:
    """Pearson's r of perplexity and rank over runs (Parthiban et al. 2021, Figure 2)."""
    chosen = found.rows[(found.rows["dataset"] == dataset) & found.rows["metric"].isin(["test_ppl", "rank_press"])]
    pairs = chosen.pivot_table(index=["model", "seed"], columns="metric", values="value").dropna()
    poor = [(model, seed) for place, model, seed in found.unlearned if place == dataset]
    pairs = pairs.drop(index=poor, errors="ignore")
    if len(pairs.columns) < 2:
        return ""
    result = statistics.pearson(pairs["test_ppl"], pairs["rank_press"], np.random.default_rng(0))
    if result.r is None:
        return ""
    words = f"Over {result.n} runs the rank and the test perplexity correlate with r = {result.r:+.2f}."
    left_out = f" Left out: {len(poor)} that learned only how frequent words are." if poor else ""
    return words.replace("-", "−") + left_out


def _claim_words(entries: Sequence[claims.Entry]) -> str:
    """How many of the paper's conclusions came out, and which did not."""
    if not entries:
        return ""
    numbers = claims.counts(entries)
    parts = ", ".join(f"{number} {name}" for name, number in numbers.items())
    against = [e.claim.statement for e in entries if e.judgement.verdict == judging.NOT_REPRODUCED]
    named = f" Not reproduced: {' '.join(against)}" if against else ""
    return f"Of the paper’s {len(entries)} conclusions here: {parts}.{named}"


def ledger(study: Study, entries: Sequence[claims.Entry]) -> list[dict[str, Any]]:
    """The claims by corpus, ready to print."""
    parts = []
    for dataset in dict.fromkeys(entry.dataset for entry in entries):
        own = [entry for entry in entries if entry.dataset == dataset]
        parts.append({"title": study.datasets[dataset].title, "entries": own, "counts": claims.counts(own)})
    return parts


def gaps(study: Study, found: Records) -> list[str]:
    """What is missing, in words: runs that are not complete, by model and reason, and experiments without results."""
    incomplete = found.states[found.states["state"] != "ok"]
    lines = []
    for (dataset, model, state, reason), group in records.groups(incomplete, "dataset", "model", "state", "reason"):
        seeds = ", ".join(str(seed) for seed in group["seed"])
        total = len(found.planned(dataset, model))
        where = f"{label(study, model)} on {study.datasets[dataset].title}"
        words = f" ({reason})" if reason else ""
        lines.append(f"{where}: {len(group)} of {total} {state}, seed {seeds}{words}")
    drawn = not found.synthetic.empty
    lines += [f"{e.artefact} of {e.source}: not drawn yet" for e in study.experiments if e.is_synthetic and not drawn]
    return lines


# --- runs and provenance --------------------------------------------------------------------------------------------
def run_groups(study: Study, found: Records) -> list[dict[str, Any]]:
    """Planned runs by corpus and model, ready to print."""
    groups = []
    for (dataset, model), states in records.groups(found.states, "dataset", "model"):
        values = {m: found.values(dataset, model, m) for m in ("test_ppl", "rank_press")}
        runs = [_printed(row, values) for row in states.to_dict("records")]
        names = {"model": label(study, model), "dataset": study.datasets[dataset].title}
        groups.append({"id": f"{dataset}-{model}", "runs": runs, **names})
    return groups


def _printed(row: Mapping[Any, Any], values: Mapping[str, Mapping[int, float]]) -> dict[str, str]:
    def text(key: str) -> str:
        return "" if pd.isna(row[key]) else f"{row[key]:.0f}"

    ppl, rank = (values[metric].get(row["seed"]) for metric in ("test_ppl", "rank_press"))
    return {
        **{key: str(row[key]) for key in ("seed", "state", "reason", "hardware", "run_id")},
        **{key: text(key) for key in ("best_epoch", "switch_epoch")},
        "epochs": f"{text('epochs') or 0} of {row['planned_epochs']}",
        "wall": "" if pd.isna(row["wall_s"]) else duration(row["wall_s"]),
        "test_ppl": "" if ppl is None else f"{ppl:.2f}",
        "rank_press": "" if rank is None else f"{rank:.0f}",
    }


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `16.2 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def provenance_of(study: Study, found: Records) -> dict[str, Any]:
    """What the page was made from: states, settings, hashes of the files read, versions and hardware of the runs."""
    settings: dict[str, Any] = {}
    for run in study.needed:
        facts = {key: dataclasses.asdict(run)[key] for key in ("head", "body", "schedule", "data_identity")}
        settings[f"{run.dataset}/{run.model}"] = facts | {"code": run.code}
    files = {path for experiment in study.experiments for path in experiment.published}
    published = {name: artefacts.sha256_file(cells.PUBLISHED / name) for name in sorted(files)}
    return {
        "schema": artefacts.SCHEMA,
        "study": study.name,
        "digest": study.digest,
        "counts": found.counts(),
        "settings": settings,
        "runs_read": dict(found.parents),
        "published_read": published,
        "environments": [dict(block) for block in found.environments],
        "page_made_with": artefacts.provenance()["versions"],
    }


def _corpora(study: Study) -> list[tuple[str, str]]:
    """Tokens and words of every corpus that is tokenised, and what is doubtful about it."""
    lines = []
    for name, dataset in study.datasets.items():
        path = artefacts.tokens_folder(name) / "corpus.json"
        if artefacts.is_sound(path):
            facts = artefacts.read_json(path)
            counts = ", ".join(f"{split} {number:,}" for split, number in facts["tokens"].items())
            words = f"{counts} tokens; {facts['vocabulary_size']:,} words; sha256 {facts['token_sha256'][:16]}"
            lines.append((dataset.title, ". ".join([words, *facts.get("doubts", [])])))
    return lines


def _facts(found: Records) -> list[tuple[str, str]]:
    """Provenance for people: distinct values over all runs."""

    def distinct(values: Iterable[object]) -> str:
        return "; ".join(dict.fromkeys(str(value) for value in values if value)) or "no run has finished"

    blocks = [block.get("versions", {}) for block in found.environments]
    git = [block.get("git", {}) for block in found.environments]
    changed = " (with uncommitted changes)"
    facts = [
        ("Code", distinct(f"commit {g.get('commit')}{changed if g.get('dirty') else ''}" for g in git if g)),
        ("Versions", distinct(", ".join(f"{name} {number}" for name, number in block.items()) for block in blocks)),
        ("Hardware", distinct(sorted(set(found.states["hardware"])))),
        ("Files read", f"{len(found.parents)} result files, each checked against its sha256"),
    ]
    hours = pd.to_numeric(found.states["wall_s"]).sum() / 3600
    return [*facts, ("Training time", f"{hours:.2f} hours in all")]


# --- terminal -------------------------------------------------------------------------------------------------------
def result_table(study: Study) -> str:
    """A small plain-text table: test perplexity and ranks of every model, one block per corpus."""
    found = records.collect(study)
    metrics = {"test ppl": ("test_ppl", 2), "Press rank": ("rank_press", 0), "eff. rank 1e-3": ("rank_eff_1e-3", 0)}
    blocks = []
    for dataset in dict.fromkeys(run.dataset for run in study.needed):
        rows = [["model", *metrics, "n"]]
        for model in dict.fromkeys(run.model for run in study.needed if run.dataset == dataset):
            means = [
                (cells.mean_of(found.values(dataset, model, metric).values()), digits)
                for metric, digits in metrics.values()
            ]
            n = means[0][0].n if means[0][0] else 0
            rows.append([label(study, model), *(_plain(mean, digits) for mean, digits in means), ""])
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
