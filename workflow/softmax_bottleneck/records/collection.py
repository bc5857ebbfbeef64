"""Finished runs turned into records; the steps of the report read no run folders.

The plan of the study names the folder of every run, so results of other settings or of older code are never read. Every
run gets a state, such as `ok`, and a reason (see `Reading.state`). Only runs in the states `ok` and `missing` have
numbers in the records. A trained run stays `missing` until its perplexities and ranks are measured. The numbers that a
`missing` run already has are in the records, and count in the means of tables and figures.

Suffix: K singular values.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from softmax_bottleneck.records import integrity, records
from softmax_bottleneck.records.integrity import RunFiles, is_number, mapping
from softmax_bottleneck.records.metrics import ACCURACY, ACCURACY_HELD_OUT, SIGMA_10, STEPS, TOP5_HIT, VALID_PPL
from softmax_bottleneck.records.records import DYNAMIC, FINETUNED, SEARCH, Records
from softmax_bottleneck.store import artefacts, provenance
from softmax_bottleneck.study import Run, Study

DONE_METRICS = ("parameters", "epochs", "best_epoch", "switch_epoch", STEPS, ACCURACY, ACCURACY_HELD_OUT)
NO_SIMILARITIES = "word similarity not done yet"
# Results of a run that are not metrics but appear in tables and figures -> file without ending, key in the file.
DETAILS = {
    "predictions": ("topk", "contexts"),
    "hits": ("topk", "hits"),
    "function": ("measure", "function"),
    "epoch_ranks": ("epochs_rank", "rows"),
}
SPECTRUM_POINTS = 200  # evenly spaced points of a thinned spectrum
SPECTRUM_START = 100  # largest singular values, all of which a thinned spectrum has
RANK_FACTS = {"m": "rank_rows", "n": "rank_columns", "tolerance": "rank_tolerance", "sigma_max": "sigma_max"}


Number = tuple[str, str, str, float, int | None]  # table, condition, metric, value, n


@dataclass(frozen=True)
class Reading:
    """The result files of a run, as read for one model of the study (not a reading of a paper's text).

    If two models of the study have the same settings, they share one run, and this run has two readings.

    Attributes:
        run: the run, with the name of the model; for a dynamic evaluation, the evaluated run.
        path: path of the run or evaluation below results/runs.
        found: the content of the files, and the problems found in them.
        stage: empty for a trained run, `finetuned` for a finetuned run, `dynamic` for a dynamic evaluation, `search`
            for a run of a search.
    """

    run: Run
    path: str
    found: RunFiles
    stage: str = ""

    def state(self, study: Study) -> tuple[str, str]:
        """Return the run's state and the reason for it; the study says whether the run's dataset has benchmarks.

        The states are:

        * `ok`: all is measured, except perhaps word similarity; a run of a search is only trained;
        * `missing`: the run is not trained, or its perplexities or ranks are not measured;
        * `diverged`: the loss diverged;
        * `failed`: a file records another failure;
        * `stale`: a file was made from another version of an input;
        * `unsound`: a file is damaged or belongs to another run.

        In the state `ok`, the reason is empty, unless the word similarities are not measured yet. For training that was
        stopped, the reason names the last epoch in the log. The log can be some epochs ahead of the saved state from
        which training resumes. These epochs are trained again.
        """
        files = self.found.contents
        if self.found.findings:
            worst = min(self.found.findings, key=lambda finding: integrity.KINDS.index(finding.kind))
            return ("stale" if worst.kind == "stale" else "unsound"), worst.words
        if self.stage == DYNAMIC and "dynamic" not in files:
            return "missing", "not evaluated yet"
        if self.stage != DYNAMIC and "done" not in files:
            epochs, curve = self.run.schedule.epochs, self.found.curve
            if curve or any(self.found.folder.glob("resume-?.pt")):
                last = curve[-1].get("epoch", len(curve)) if curve else 0
                return "missing", f"{last} of {epochs} epochs done; run the workflow again to resume training"
            return "missing", "not finetuned yet" if self.run.start else "not trained yet"
        for name, content in files.items():
            status = content.get("status", "failed")
            if status != "ok":
                reason = content.get("reason") or f"{name}.json says {status}"
                return ("diverged" if status == "diverged" else "failed"), str(reason)
        needed = () if self.stage in (DYNAMIC, SEARCH) else ("measure", "rank")
        absent = [name for name in needed if name not in files]
        if absent:
            return "missing", f"trained; {absent[0]} not done yet"
        # Benchmarks may have to be fetched: without them a run still has its perplexities and ranks.
        wordsim = study.datasets[self.run.dataset].wordsim and not self.stage
        return "ok", NO_SIMILARITIES if wordsim and "wordsim" not in files else ""

    def numbers(self) -> Iterator[Number]:
        """Yield every number in the intact files of the run as (table, condition, metric, value, n).

        * table: name of the JSON file that has the number, without its ending, such as `measure`.
        * condition: the stage, a benchmark (`benchmark=<label>`), or a position in the test text
          (`group=<name>;context=<number>`); else empty. A group is a choice of positions, such as `random`.
        * n: number of observations behind the value. This is the number of word pairs for a correlation, and the number
          of positions for a hit rate. It is None for a count of pairs, and 1 for every other metric.
        """
        files = self.found.contents
        done, rank = files.get("done", {}), files.get("rank", {})
        trained = {key: done.get(key) for key in DONE_METRICS} | {"wall_s": mapping(done.get("timing")).get("wall_s")}
        tables = {
            "done": trained | ({"embedding_size": self.run.body.embedding_size} if done else {}),
            "measure": mapping(files.get("measure", {}).get("metrics")),
            "rank": mapping(rank.get("metrics")) | {new: rank.get(key) for key, new in RANK_FACTS.items()},
            "dynamic": mapping(files.get("dynamic", {}).get("metrics")),
        }
        for table, metrics in tables.items():
            yield from ((table, self.stage, key, float(v), 1) for key, v in metrics.items() if is_number(v))
        if self.stage == SEARCH and is_number(loss := done.get("best_valid_loss_nats")):
            yield "done", SEARCH, VALID_PPL, math.exp(loss), 1
        if self.stage:
            return
        sigma_K, topk = self.found.sigma_K, files.get("topk", {})
        if rank and sigma_K is not None and len(sigma_K) > 9 and sigma_K[0] > 0:
            yield "rank", "", SIGMA_10, float(sigma_K[9] / sigma_K[0]), 1
        for place in topk.get("contexts", ()):
            if not place["note"]:
                yield "topk", f"group={place['group']};context={place['context']}", TOP5_HIT, float(place["hit"]), 1
        for label, result in mapping(files.get("wordsim", {}).get("benchmarks")).items():
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


# --- the study ------------------------------------------------------------------------------------------------------
def collect(study: Study) -> Records:
    """Return the records of a study, which cover every run that at least one of its experiments includes.

    The files of these runs, the corpora and the fits are checked; the records' attribute `verification` has the
    problems found. The file synthetic.json is read only if it was made from all fits of the study. Nothing is written.
    The result depends on the files alone, not on the order in which they are found.
    """
    trained = [(run, run.path, "") for run in study.shown]
    later = [(run, run.path, FINETUNED) for run in study.shown_finetuned]
    later += [(evaluation.run, evaluation.path, DYNAMIC) for evaluation in study.shown_evaluations]
    later += [(run, run.path, SEARCH) for run in study.searched]
    runs = {path: integrity.read(run, study.store.run_folder(path)) for run, path, _ in (*trained, *later)}
    readings = [Reading(run, path, runs[path], stage) for run, path, stage in (*trained, *later)]
    file = study.store.study_folder(study.name) / "synthetic.json"
    synthetic = artefacts.read_json(file) if file.exists() else {}
    parents = mapping(mapping(synthetic.get("provenance")).get("parents"))
    if any(f"{unit.path}/done.json" not in parents for unit in study.units):
        synthetic = {}  # the file is older than a fit of the study
    details, spectra = {}, {}
    for path, files in runs.items():
        values = {key: files.contents.get(name, {}).get(inner) for key, (name, inner) in DETAILS.items()}
        details[path] = {key: value for key, value in values.items() if value}
        if files.sigma_K is not None:
            # A spectrum may drop at the measured ranks, and at d + 2, the largest rank of a softmax on d dimensions.
            ranks = mapping(files.contents.get("rank", {}).get("metrics")).values()
            cliffs = [*(int(rank) for rank in ranks if is_number(rank)), files.run.body.embedding_size + 2]
            spectra[path] = thinned(files.sigma_K, cliffs)
    environments: list[dict[str, Any]] = []
    for result in (*(reading.found.contents.get("done", {}) for reading in readings), synthetic):
        block = mapping(result.get("provenance"))
        environment = {key: block[key] for key in ("git", "versions", "hardware", "deterministic") if block.get(key)}
        if environment and environment not in environments:
            environments.append(environment)
    states = [_state_row(study, reading) for reading in readings]
    corpora = {name: study.store.tokens_folder(name) / "corpus.json" for name in study.datasets}
    results = Records(
        rows=_rows(study, readings, synthetic),
        states=pd.DataFrame(states[: len(trained)], columns=list(records.STATE_COLUMNS)),
        stages=pd.DataFrame(states[len(trained) :], columns=list(records.STAGE_COLUMNS)),
        parents={f"{path}/{name}": files.hashes[name] for path, files in runs.items() for name in sorted(files.hashes)},
        environments=tuple(environments),
        details={path: detail for path, detail in details.items() if detail},
        curves=_curves(runs),
        spectra=spectra,
        corpora={name: artefacts.read_json(path) for name, path in corpora.items() if artefacts.is_sound(path)},
    )
    return replace(results, verification=integrity.inspect_study(study, runs, results).to_json())


def thinned(sigma_K: NDArray[np.float64], cliffs: Sequence[int]) -> NDArray[np.float64]:
    """Return selected singular values for plots, as an array [2, K]: their indices from 1, and the values.

    The selection has the SPECTRUM_START largest values, the values at SPECTRUM_POINTS evenly spaced indices, and the
    values at the indices c - 1 to c + 3 for each c in `cliffs`. An index that is selected twice appears once.

    Args:
        sigma_K: all singular values, in descending order.
        cliffs: indices (from 1) after which the singular values may drop sharply, such as a measured rank.
    """
    count = len(sigma_K)
    even = np.linspace(0, count - 1, min(SPECTRUM_POINTS, count)).round().astype(int)
    index = {*range(min(SPECTRUM_START, count)), *even.tolist()}
    index |= {near for cliff in cliffs for near in range(cliff - 2, cliff + 3) if 0 <= near < count}
    index_K = np.array(sorted(index), dtype=np.int64)
    return np.stack([index_K + 1.0, sigma_K[index_K]])


def collect_to(study: Study, folder: Path) -> Records:
    """Collect the records of a study, write them and their verification (verify.json) to a folder, and return them."""
    found = collect(study)
    records.save(found, folder)
    artefacts.write_json(folder / integrity.FILE, dict(found.verification) | {"provenance": provenance.block()})
    return found


def _curves(runs: Mapping[str, RunFiles]) -> pd.DataFrame:
    """Return the epoch logs of all runs in one frame, with the columns CURVE_COLUMNS and one row per epoch.

    `runs` maps the path of a run to its files. If an epoch was logged again after a resume, only its last line counts.
    """
    rows = [
        (path, epoch, *(line.get(key) for key in records.CURVE_COLUMNS[2:]))
        for path, files in runs.items()
        for epoch, line in sorted({line["epoch"]: line for line in files.curve if "epoch" in line}.items())
    ]
    frame = pd.DataFrame(rows, columns=list(records.CURVE_COLUMNS))
    return frame.astype({"epoch": "int64", "train_ppl": "float64", "valid_ppl": "float64"})


def _rows(study: Study, readings: Iterable[Reading], synthetic: Mapping[str, Any]) -> pd.DataFrame:
    """Return one row per number of the runs and of synthetic.json, in a frame with the columns COLUMNS.

    Rows are sorted by dataset, model, seed, table, metric and condition. `synthetic` is the content of synthetic.json,
    the numbers that belong to no training run. It is empty if the file does not exist. A run in the state `missing` has
    rows for the numbers that it has. A run in a state other than `ok` and `missing` has no rows.
    """
    rows: list[tuple[object, ...]] = []
    for reading in readings:
        run = reading.run
        numbers = reading.numbers() if reading.state(study)[0] in ("ok", "missing") else ()
        for table, condition, metric, value, n in numbers:
            row = ("measured", table, run.dataset, run.model, condition, metric, value, math.nan, n)
            rows.append((*row, run.seed, run.run_id))
    usual = {"source": "measured", "table": "synthetic", "dataset": "synthetic", "condition": "", "std": math.nan}
    for sample in synthetic.get("rows", ()):
        values = usual | sample | {"n": 1, "run_id": ""}
        rows.append(tuple(values[key] for key in records.COLUMNS))
    frame = pd.DataFrame(rows, columns=list(records.COLUMNS))
    frame = frame.astype({"value": "float64", "std": "float64", "n": "Int64", "seed": "Int64"})
    order = ["dataset", "model", "seed", "table", "metric", "condition"]
    return frame.sort_values(order, kind="stable").reset_index(drop=True)


def _state_row(study: Study, reading: Reading) -> dict[str, Any]:
    run, files = reading.run, reading.found.contents
    done = files.get("dynamic" if reading.stage == DYNAMIC else "done", {})
    provenance = mapping(done.get("provenance"))
    sessions = provenance.get("sessions") or []  # one for every process that computed a part of the result
    devices = [str(session["device"]) for session in sessions if "device" in mapping(session)]
    processor = str(mapping(provenance.get("hardware")).get("cpu", ""))
    hardware = ", ".join(filter(None, dict.fromkeys([*devices, processor])))  # such as `NVIDIA H100, AMD EPYC 9654`
    state, reason = reading.state(study)
    metrics = mapping(files.get("measure", {}).get("metrics"))
    ppl, unigram = metrics.get("test_ppl"), metrics.get("unigram_ppl")
    remark = ""
    if is_number(ppl) and is_number(unigram) and records.is_unlearned(ppl, unigram):
        remark = f"no better than a unigram model: test perplexity {ppl:.1f}, unigram {unigram:.1f}"
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
        "hardware": (hardware or "unknown") if done else "",
        "mixed_hardware": bool(provenance.get("mixed_hardware", False)),
        "interruptions": provenance.get("interruptions"),
        "wall_s": mapping(done.get("timing")).get("wall_s", done.get("wall_s")),
        **{key: done.get(key) for key in ("epochs", "best_epoch", "switch_epoch")},
    }
