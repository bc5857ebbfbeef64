"""The step `collect`, which turns finished runs into records; the steps of the report read no run folders.

The plan gives the paths, so results of other settings or of older code are never read. A run that is diverged, damaged
or not trained gets a state and a reason, and no numbers. A trained run whose measurements are unfinished counts as
missing, but the numbers that are already measured enter the records.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from softmax_bottleneck.records import integrity
from softmax_bottleneck.records.integrity import FILE, RunFiles, inspect_study, is_number, mapping
from softmax_bottleneck.records.metrics import SIGMA_10, TOP5_HIT
from softmax_bottleneck.records.records import (
    COLUMNS,
    CURVE_COLUMNS,
    DYNAMIC,
    FINETUNED,
    STAGE_COLUMNS,
    STATE_COLUMNS,
    Records,
    is_unlearned,
    save,
    thinned,
)
from softmax_bottleneck.store import artefacts, provenance
from softmax_bottleneck.study import Run, Study

DONE_METRICS = ("parameters", "epochs", "best_epoch", "switch_epoch", "steps")
NO_SIMILARITIES = "word similarity not done yet"
RANK_FACTS = {"m": "rank_rows", "n": "rank_columns", "tolerance": "rank_tolerance", "sigma_max": "sigma_max"}


Number = tuple[str, str, str, float, int | None]  # table, condition, metric, value, n


@dataclass(frozen=True)
class Reading:
    """The result files of a run, listed under one model of the study; several models can share a run.

    `stage` is empty for a trained run, `finetuned` for finetuning and `dynamic` for a dynamic evaluation.
    """

    run: Run
    path: str
    found: RunFiles
    stage: str = ""

    @property
    def files(self) -> Mapping[str, Any]:
        """The contents of the run's JSON files, by file name without `.json`."""
        return self.found.contents

    def state(self, wordsim: bool) -> tuple[str, str]:
        """Return the run's state and the reason for it.

        The state is one of STATES. `wordsim` is True if the dataset has word-similarity benchmarks.
        """
        if finding := self.found.first_finding:
            return ("stale" if finding.kind == "stale" else "unsound"), finding.words
        if self.stage == DYNAMIC and "dynamic" not in self.files:
            return "missing", "not evaluated yet"
        if self.stage != DYNAMIC and "done" not in self.files:
            return "missing", _unfinished(self.run, self.found)
        for name, content in self.files.items():
            status = content.get("status", "failed")
            if status != "ok":
                reason = content.get("reason") or f"{name}.json says {status}"
                return ("diverged" if status == "diverged" else "failed"), str(reason)
        needed = () if self.stage == DYNAMIC else ("measure", "rank")
        absent = [name for name in needed if name not in self.files]
        if absent:
            return "missing", f"trained; {absent[0]} not done yet"
        # Benchmarks may have to be fetched: without them a run still has its perplexities and ranks.
        return "ok", NO_SIMILARITIES if wordsim and "wordsim" not in self.files else ""

    def numbers(self) -> Iterator[Number]:
        """Yield every number in the intact files of a run as (file without ending, condition, metric, value, n)."""
        done, rank = self.files.get("done", {}), self.files.get("rank", {})
        own = {key: done.get(key) for key in DONE_METRICS} | {"wall_s": mapping(done.get("timing")).get("wall_s")}
        tables = {
            "done": own | ({"embedding_size": self.run.body.embedding_size} if done else {}),
            "measure": mapping(self.files.get("measure", {}).get("metrics")),
            "rank": mapping(rank.get("metrics")) | {new: rank.get(key) for key, new in RANK_FACTS.items()},
            "dynamic": mapping(self.files.get("dynamic", {}).get("metrics")),
        }
        for table, metrics in tables.items():
            yield from ((table, self.stage, key, float(v), 1) for key, v in metrics.items() if is_number(v))
        if self.stage:
            return
        sigma_K, topk = self.found.sigma_K, self.files.get("topk", {})
        if rank and sigma_K is not None and len(sigma_K) > 9 and sigma_K[0] > 0:
            yield "rank", "", SIGMA_10, float(sigma_K[9] / sigma_K[0]), 1
        for place in topk.get("contexts", ()):
            if not place["note"]:
                yield "topk", f"group={place['group']};context={place['context']}", TOP5_HIT, float(place["hit"]), 1
        for label, result in mapping(self.files.get("wordsim", {}).get("benchmarks")).items():
            pairs, known = result.get("n_pairs"), result.get("n_found")
            if is_number(pairs) and is_number(known):
                yield "wordsim", f"benchmark={label}", "n_pairs", float(pairs), None
                yield "wordsim", f"benchmark={label}", "n_pairs_not_in_vocab", float(pairs - known), None
            names = {"rho": "spearman", "low": "spearman_low", "high": "spearman_high"}
            yield from _with_interval("wordsim", f"benchmark={label}", result, names, known)
        for k, share in mapping(topk.get("hits")).items():
            names = {"rate": f"hit_rate_{k}", "low": f"hit_rate_{k}_low", "high": f"hit_rate_{k}_high"}
            yield from _with_interval("topk", "", share, names, share.get("n"))


def _with_interval(
    table: str, condition: str, facts: Mapping[str, Any], names: Mapping[str, str], n: object
) -> Iterator[Number]:
    for key, metric in names.items():
        if is_number(facts.get(key)):
            yield table, condition, metric, float(facts[key]), int(n) if is_number(n) else None


def _unfinished(run: Run, found: RunFiles) -> str:
    epochs = run.schedule.epochs
    if found.curve:
        return f"stopped after epoch {found.curve[-1].get('epoch', len(found.curve))} of {epochs}; it resumes there"
    if any(found.folder.glob("resume-?.pt")):
        return f"stopped in epoch 1 of {epochs}; it resumes there"
    return "not finetuned yet" if run.start else "not trained yet"


def hardware(provenance: Mapping[str, Any]) -> str:
    """Return one line that names the machines of a provenance block: the devices of its sessions, and the processor."""
    sessions = provenance.get("sessions") or []
    devices = [str(session["device"]) for session in sessions if "device" in mapping(session)]
    processor = str(mapping(provenance.get("hardware")).get("cpu", ""))
    found = [name for name in dict.fromkeys([*devices, processor]) if name]
    return ", ".join(found) or "unknown"


# --- the study ------------------------------------------------------------------------------------------------------
def collect(study: Study) -> Records:
    """Read the results of all runs that an experiment of the study needs, and verify all their files.

    The result depends on the files alone, not on the order in which they are found.
    """
    trained = [(run, run.path, "") for run in study.shown]
    later = [(run, run.path, FINETUNED) for run in study.shown_finetuned]
    later += [(one.run, one.path, DYNAMIC) for one in study.shown_evaluations]
    runs = {path: integrity.read(run, study.store.run_folder(path)) for run, path, _ in (*trained, *later)}
    readings = [Reading(run, path, runs[path], stage) for run, path, stage in (*trained, *later)]
    rows = [row for reading in readings for row in run_rows(study, reading)] + _synthetic_rows(study)
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    frame = frame.astype({"value": "float64", "std": "float64", "n": "Int64", "seed": "Int64"})
    order = ["dataset", "model", "seed", "table", "metric", "condition"]
    states, stages = readings[: len(trained)], readings[len(trained) :]
    read = {f"{path}/{name}": digest for path, own in runs.items() for name, digest in sorted(own.hashes.items())}
    records = Records(
        rows=frame.sort_values(order, kind="stable").reset_index(drop=True),
        states=pd.DataFrame([_state_row(study, reading) for reading in states], columns=list(STATE_COLUMNS)),
        stages=pd.DataFrame([_state_row(study, reading) for reading in stages], columns=list(STAGE_COLUMNS)),
        parents=read,
        environments=_environments([*(reading.files.get("done", {}) for reading in readings), _synthetic(study)]),
        details={path: detail for path, own in runs.items() if (detail := _detail(own.contents))},
        curves=_curves(runs),
        spectra={path: thinned(own.sigma_K, _cliffs(own)) for path, own in runs.items() if own.sigma_K is not None},
        corpora=_corpora(study),
    )
    return replace(records, verification=inspect_study(study, runs, records).to_json())


def collect_to(study: Study, folder: Path) -> Records:
    """Collect the records of a study; save them, and the result of their verification, in a folder."""
    records = collect(study)
    save(records, folder)
    artefacts.write_json(folder / FILE, dict(records.verification) | {"provenance": provenance.block()})
    return records


def _detail(files: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of a run that are not metrics but appear in tables and figures, such as predicted words."""
    kept = {
        "predictions": ("topk", "contexts"),
        "hits": ("topk", "hits"),
        "function": ("measure", "function"),
        "epoch_ranks": ("epochs_rank", "rows"),
    }
    values = {key: files.get(name, {}).get(inner) for key, (name, inner) in kept.items()}
    return {key: value for key, value in values.items() if value}


def _curves(runs: Mapping[str, RunFiles]) -> pd.DataFrame:
    """Return the epoch logs of all runs; an epoch that was logged again after a resume counts once."""
    rows = [
        (path, epoch, *(line.get(key) for key in CURVE_COLUMNS[2:]))
        for path, own in runs.items()
        for epoch, line in sorted({line["epoch"]: line for line in own.curve if "epoch" in line}.items())
    ]
    frame = pd.DataFrame(rows, columns=list(CURVE_COLUMNS))
    return frame.astype({"epoch": "int64", "train_ppl": "float64", "valid_ppl": "float64"})


def _cliffs(files: RunFiles) -> list[int]:
    """Return the indices where a spectrum may drop: the measured ranks, and d + 2, the largest rank of a softmax.

    d is the size of the word embeddings.
    """
    metrics = mapping(files.contents.get("rank", {}).get("metrics"))
    return [*(int(rank) for rank in metrics.values() if is_number(rank)), files.run.body.embedding_size + 2]


def _corpora(study: Study) -> dict[str, Any]:
    paths = {name: study.store.tokens_folder(name) / "corpus.json" for name in study.datasets}
    return {name: artefacts.read_json(path) for name, path in paths.items() if artefacts.is_sound(path)}


def _state(study: Study, reading: Reading) -> tuple[str, str]:
    return reading.state(wordsim=bool(study.datasets[reading.run.dataset].wordsim) and not reading.stage)


def run_rows(study: Study, reading: Reading) -> Iterator[tuple[object, ...]]:
    """Yield one row, with the columns COLUMNS, per number of a run, also of a run with unfinished measurements."""
    run = reading.run
    if _state(study, reading)[0] in ("ok", "missing"):
        for table, condition, metric, value, n in reading.numbers():
            row = ("measured", table, run.dataset, run.model, condition, metric, value, math.nan, n)
            yield (*row, run.seed, run.run_id)


def _synthetic(study: Study) -> Mapping[str, Any]:
    path = study.store.study_folder(study.name) / "synthetic.json"
    return artefacts.read_json(path) if path.exists() else {}


def _synthetic_rows(study: Study) -> list[tuple[object, ...]]:
    """Return the rows of results/<study>/synthetic.json: one per sample of the experiments that need no training."""
    usual = {"source": "measured", "table": "synthetic", "dataset": "synthetic", "condition": "", "std": math.nan}
    fixed = {"n": 1, "run_id": ""}
    return [tuple((usual | row | fixed)[key] for key in COLUMNS) for row in _synthetic(study).get("rows", ())]


def _state_row(study: Study, reading: Reading) -> dict[str, Any]:
    run, done = reading.run, reading.files.get("dynamic" if reading.stage == DYNAMIC else "done", {})
    provenance = mapping(done.get("provenance"))
    state, reason = _state(study, reading)
    metrics = mapping(reading.files.get("measure", {}).get("metrics"))
    ppl, unigram = metrics.get("test_ppl"), metrics.get("unigram_ppl")
    remark = ""
    if is_number(ppl) and is_number(unigram) and is_unlearned(ppl, unigram):
        remark = f"learned no more than how frequent words are: test perplexity {ppl:.1f}, unigram {unigram:.1f}"
    return {
        "dataset": run.dataset,
        "model": run.model,
        "label": study.labels[run.model],
        "seed": run.seed,
        "run_id": run.run_id,
        "path": reading.path,
        "stage": reading.stage,
        "state": state,
        "reason": "; ".join(filter(None, [reason, remark])),
        "planned_epochs": None if reading.stage == DYNAMIC else run.schedule.epochs,
        "hardware": hardware(provenance) if done else "",
        "mixed_hardware": bool(provenance.get("mixed_hardware", False)),
        "interruptions": provenance.get("interruptions"),
        "wall_s": mapping(done.get("timing")).get("wall_s", done.get("wall_s")),
        **{key: done.get(key) for key in ("epochs", "best_epoch", "switch_epoch")},
    }


def _environments(records: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    blocks = []
    for record in records:
        block = mapping(record.get("provenance"))
        facts = {key: block.get(key) for key in ("git", "versions", "hardware", "deterministic") if block.get(key)}
        if facts and facts not in blocks:
            blocks.append(facts)
    return tuple(blocks)
