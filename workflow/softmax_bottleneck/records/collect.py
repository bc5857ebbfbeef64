"""From finished runs to tidy records: one row per measured number, one state per planned run.

Paths come from the plan, so a result that no planned run made (another setting, older code) is never read. A run that
is not there, or diverged, or whose files are damaged, becomes a state with its reason; its numbers enter no mean.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeGuard

import pandas as pd

from softmax_bottleneck.records import evidence
from softmax_bottleneck.records import integrity as chain
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study import Run, Study

# The nine columns of report/published/*.csv, and where a measured number comes from.
COLUMNS = ("source", "table", "dataset", "model", "condition", "metric", "value", "std", "n", "seed", "run_id")
STATE_COLUMNS = (
    *("dataset", "model", "label", "seed", "run_id", "path", "state", "reason", "epochs", "planned_epochs"),
    *("best_epoch", "switch_epoch", "wall_s", "interruptions", "hardware", "mixed_hardware"),
)
STAGE_COLUMNS = (*STATE_COLUMNS, "stage")
FINETUNED, DYNAMIC = "finetuned", "dynamic"  # conditions of what is measured after training
STATES = ("ok", "diverged", "failed", "missing", "stale", "unsound")
DONE_METRICS = ("parameters", "epochs", "best_epoch", "switch_epoch", "steps")
RANK_FACTS = {"m": "rank_rows", "n": "rank_columns", "tolerance": "rank_tolerance", "sigma_max": "sigma_max"}
UNLEARNED = 0.95  # of the unigram perplexity; a run above it knows how frequent words are, and no more
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class Records:
    """Everything known of a study's runs.

    Attributes:
        rows: tidy records, columns COLUMNS; numeric columns are floats (value, std) and nullable integers (n, seed).
        states: one row per planned run and label in the plan's order, columns STATE_COLUMNS; one path is one run.
        stages: likewise of what follows training, columns STAGE_COLUMNS; numbers of a stage have it as their condition.
        parents: file below results/runs -> sha256 of what was read.
        environments: distinct provenance blocks of the runs (git, versions, hardware), in order of appearance.
        evidence: runs measured elsewhere; their numbers are not among the rows.
    """

    rows: pd.DataFrame
    states: pd.DataFrame
    stages: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(STAGE_COLUMNS)))
    parents: Mapping[str, str] = field(default_factory=dict)
    environments: tuple[Mapping[str, Any], ...] = ()
    evidence: tuple[evidence.Evidence, ...] = ()

    @cached_property
    def _index(self) -> dict[tuple[str, str, str, str], dict[int, float]]:
        found: dict[tuple[str, str, str, str], dict[int, float]] = {}
        measured = self.rows[self.rows["run_id"] != ""]
        for dataset, model, metric, condition, seed, value in zip(
            *(measured[key] for key in ("dataset", "model", "metric", "condition", "seed", "value")), strict=True
        ):
            found.setdefault((dataset, model, metric, condition), {})[int(seed)] = float(value)
        return found

    def values(self, dataset: str, model: str, metric: str, condition: str = "") -> dict[int, float]:
        """Measured values by seed, in ascending order of seeds; empty when there are none."""
        return dict(sorted(self._index.get((dataset, model, metric, condition), {}).items()))

    @cached_property
    def unlearned(self) -> dict[tuple[str, str, int], str]:
        """(dataset, model, seed) of runs that learned only how frequent words are -> a remark.

        Their rank says nothing about their head, so correlations of rank and perplexity leave them out.
        """
        found: dict[tuple[str, str, int], str] = {}
        for (dataset, model, metric, condition), by_seed in self._index.items():
            if (metric, condition) == ("test_ppl", ""):
                unigram = self.values(dataset, model, "unigram_ppl")
                words = {seed: unlearned_words(ppl, unigram.get(seed, math.inf)) for seed, ppl in by_seed.items()}
                found |= {(dataset, model, seed): remark for seed, remark in words.items() if remark}
        return found

    def planned(self, dataset: str, model: str, stage: str = "") -> pd.DataFrame:
        """States of the planned runs of one model on one dataset, or of a stage after their training."""
        states = self.stages[self.stages["stage"] == stage] if stage else self.states
        return states[(states["dataset"] == dataset) & (states["model"] == model)]

    @property
    def synthetic(self) -> pd.DataFrame:
        """Rows of the experiments that need no training run."""
        return self.rows[self.rows["run_id"] == ""]

    def conditions(self, metric: str, dataset: str) -> list[str]:
        """Conditions under which a metric was measured on a dataset, in order of first appearance."""
        chosen = self.rows[(self.rows["metric"] == metric) & (self.rows["dataset"] == dataset)]
        return list(dict.fromkeys(chosen["condition"]))

    def wide(self) -> pd.DataFrame:
        """One line per run with every number in a column of its own, `metric` or `metric condition`."""
        rows = self.rows[self.rows["run_id"] != ""]
        names = (rows["metric"] + " " + rows["condition"]).str.strip()
        keys = ["dataset", "model", "seed", "run_id"]
        return rows.assign(name=names).pivot(index=keys, columns="name", values="value").reset_index()

    def mixtures(self) -> list[str]:
        """A warning for every corpus whose runs were made on hardware of several kinds: which models on which."""
        found = []
        for dataset, runs in self.states[self.states["hardware"] != ""].groupby("dataset", sort=False):
            kinds = {str(kind): ", ".join(dict.fromkeys(own["model"])) for kind, own in runs.groupby("hardware")}
            if len(kinds) > 1:
                told = "; ".join(f"{kind}: {models}" for kind, models in kinds.items())
                found.append(f"comparisons on {dataset} mix hardware, which moves last digits ({told})")
        return found

    def counts(self) -> dict[str, int]:
        """Number of planned runs, of those in each state, and of those made on hardware of several kinds."""
        runs = self.states.drop_duplicates("path")
        by_state = runs["state"].value_counts()
        states = {state: int(by_state.get(state, 0)) for state in STATES}
        return {"planned": len(runs), **states, "mixed hardware": int(runs["mixed_hardware"].sum())}


# --- one run --------------------------------------------------------------------------------------------------------
@dataclass
class _Reading:
    """What the files of one run said."""

    store: Store
    run: Run
    at: str = ""  # where it lies when that is not the run's own path: a stage of it
    any_code: bool = False  # it may have been made by other code than today's
    stage: str = ""

    def __post_init__(self) -> None:
        self.path = self.at or self.run.path
        found = chain.read(self.run, self.store.run_folder(self.path), self.any_code)
        self.files: dict[str, Any] = found.contents
        self.hashes = {f"{self.path}/{name}": digest for name, digest in found.hashes.items()}
        self.finding = next(iter(sorted(found.findings, key=lambda one: chain.KINDS.index(one.kind))), None)

    def state(self, wordsim: bool) -> tuple[str, str]:
        """State and reason of the run; `wordsim` says whether its dataset has word-similarity benchmarks."""
        if self.finding:
            return ("stale" if self.finding.kind == "stale" else "unsound"), self.finding.words
        if self.stage == DYNAMIC and "dynamic" not in self.files:
            return "missing", "not evaluated yet"
        if self.stage != DYNAMIC and "done" not in self.files:
            return "missing", _unfinished(self.store, self.run)
        for name, content in self.files.items():
            status = content.get("status", "failed")
            if status != "ok":
                reason = content.get("reason") or f"{name}.json says {status}"
                return ("diverged" if status == "diverged" else "failed"), str(reason)
        needed = () if self.stage == DYNAMIC else ("measure", "rank", *(["wordsim"] if wordsim else []))
        absent = [name for name in needed if name not in self.files]
        return ("missing", f"trained; {absent[0]} not done yet") if absent else ("ok", "")

    def numbers(self) -> Iterator[tuple[str, str, str, float, float, int | None]]:
        """(table, condition, metric, value, std, n) of every number of a sound, finished run."""
        done, rank = self.files.get("done", {}), self.files.get("rank", {})
        plain = {
            "done": {key: done.get(key) for key in DONE_METRICS}
            | {"wall_s": _mapping(done.get("timing")).get("wall_s")},
            "measure": _mapping(self.files.get("measure", {}).get("metrics")),
            "rank": _mapping(rank.get("metrics")) | {new: rank.get(key) for key, new in RANK_FACTS.items()},
        }
        plain["dynamic"] = _mapping(self.files.get("dynamic", {}).get("metrics"))
        for table, metrics in plain.items():
            yield from ((table, self.stage, m, float(v), math.nan, 1) for m, v in metrics.items() if _is_number(v))
        if self.stage:
            return
        for label, result in _mapping(self.files.get("wordsim", {}).get("benchmarks")).items():
            for metric, value, n in _wordsim_numbers(_mapping(result)):
                yield "wordsim", f"benchmark={label}", metric, value, math.nan, n
        for k, share in _mapping(self.files.get("topk", {}).get("hits")).items():
            for metric, value, n in _hit_numbers(k, _mapping(share)):
                yield "topk", "", metric, value, math.nan, n


def _mapping(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _wordsim_numbers(result: Mapping[str, Any]) -> Iterator[tuple[str, float, int | None]]:
    pairs, found = result.get("n_pairs"), result.get("n_found")
    if _is_number(pairs) and _is_number(found):
        yield "n_pairs", float(pairs), None
        yield "n_pairs_not_in_vocab", float(pairs - found), None
    for key, metric in (("rho", "spearman"), ("low", "spearman_low"), ("high", "spearman_high")):
        value = result.get(key)
        if _is_number(value):
            yield metric, float(value), int(found) if _is_number(found) else None


def _hit_numbers(k: str, share: Mapping[str, Any]) -> Iterator[tuple[str, float, int | None]]:
    """How often the true next word is among the first k; n is the number of contexts."""
    for key, metric in (("rate", f"hit_rate_{k}"), ("low", f"hit_rate_{k}_low"), ("high", f"hit_rate_{k}_high")):
        value, n = share.get(key), share.get("n")
        if _is_number(value):
            yield metric, float(value), int(n) if _is_number(n) else None


def _unfinished(store: Store, run: Run) -> str:
    epochs = artefacts.read_lines(store.run_folder(run.path) / "epochs.jsonl")
    if not epochs:
        return "not finetuned yet" if run.start else "not trained yet"
    return f"stopped after epoch {epochs[-1].get('epoch', len(epochs))} of {run.schedule.epochs}; it resumes there"


def hardware(provenance: Mapping[str, Any]) -> str:
    """One line on the machines of a provenance block: the devices of its sessions, and the processor."""
    sessions = provenance.get("sessions") or []
    devices = [str(session["device"]) for session in sessions if "device" in _mapping(session)]
    processor = str(_mapping(provenance.get("hardware")).get("cpu", ""))
    found = [name for name in dict.fromkeys([*devices, processor]) if name]
    return ", ".join(found) or "unknown"


# --- the study ------------------------------------------------------------------------------------------------------
def collect(study: Study) -> Records:
    """Read the results of every run that some experiment of the study needs.

    The answer depends on the files alone, not on the order in which they are found.
    """
    trained = [_Reading(study.store, run) for run in study.shown]
    later = [_Reading(study.store, run, stage=FINETUNED) for run in study.shown_finetuned]
    later += [_Reading(study.store, one.run, at=one.path, stage=DYNAMIC) for one in study.shown_evaluations]
    readings = [*trained, *later]
    rows = [row for reading in readings for row in _run_rows(study, reading)] + _synthetic_rows(study)
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    frame = frame.astype({"value": "float64", "std": "float64", "n": "Int64", "seed": "Int64"})
    order = ["dataset", "model", "seed", "table", "metric", "condition"]
    imported = evidence.load_for(study, {reading.run.run_id for reading in trained if "done" in reading.files})
    parents = {name: digest for reading in readings for name, digest in sorted(reading.hashes.items())}
    return Records(
        rows=frame.sort_values(order, kind="stable").reset_index(drop=True),
        states=pd.DataFrame([_state_row(study, reading) for reading in trained], columns=list(STATE_COLUMNS)),
        stages=pd.DataFrame([_state_row(study, reading) for reading in later], columns=list(STAGE_COLUMNS)),
        parents=parents | {f"evidence/{one.name}.json": one.sha256 for one in imported},
        environments=_environments(readings),
        evidence=imported,
    )


def evidence_of(store: Store, path: str, origin: str) -> str:
    """The evidence file of a finished run, to be taken to another checkout.

    Raises:
        UserError: the run is not finished, or its files are damaged.
    """
    folder = store.run_folder(path)
    if not (folder / "done.json").exists():
        raise UserError(f"{path}: no finished run there; train and measure it first")
    done = artefacts.read_json(folder / "done.json")
    reading = _Reading(store, Run.from_json(done["run"]), at=path, any_code=True)
    state, reason = reading.state(wordsim=False)
    if state != "ok":
        raise UserError(f"{path}: {state}: {reason}")
    rows = [
        {"table": table, "condition": condition, "metric": metric, "value": value, "n": n}
        for table, condition, metric, value, _, n in reading.numbers()
    ]
    history = list(artefacts.read_lines(folder / "epochs.jsonl"))
    return evidence.text(done["run"], origin, rows, history, done["provenance"])


def _state(study: Study, reading: _Reading) -> tuple[str, str]:
    return reading.state(wordsim=bool(study.datasets[reading.run.dataset].wordsim) and not reading.stage)


def _run_rows(study: Study, reading: _Reading) -> Iterator[tuple[object, ...]]:
    run = reading.run
    if _state(study, reading)[0] not in ("ok", "missing"):
        return
    for table, condition, metric, value, std, n in reading.numbers():
        yield ("measured", table, run.dataset, run.model, condition, metric, value, std, n, run.seed, run.run_id)


def _synthetic_rows(study: Study) -> list[tuple[object, ...]]:
    """Rows of results/<study>/synthetic.json: experiments that need no training run, one row per draw."""
    path = study.store.study_folder(study.name) / "synthetic.json"
    if not path.exists():
        return []
    usual = {"source": "measured", "table": "synthetic", "dataset": "synthetic", "condition": "", "std": math.nan}
    fixed = {"n": 1, "run_id": ""}
    return [tuple((usual | row | fixed)[key] for key in COLUMNS) for row in artefacts.read_json(path)["rows"]]


def _state_row(study: Study, reading: _Reading) -> dict[str, Any]:
    run, done = reading.run, reading.files.get("dynamic" if reading.stage == DYNAMIC else "done", {})
    provenance = _mapping(done.get("provenance"))
    state, reason = _state(study, reading)
    return {
        "dataset": run.dataset,
        "model": run.model,
        "label": study.labels[run.model],
        "seed": run.seed,
        "run_id": run.run_id,
        "path": reading.path,
        "stage": reading.stage,
        "state": state,
        "reason": reason or _remark(reading),
        "planned_epochs": None if reading.stage == DYNAMIC else run.schedule.epochs,
        "hardware": hardware(provenance) if done else "",
        "mixed_hardware": bool(provenance.get("mixed_hardware", False)),
        "interruptions": provenance.get("interruptions"),
        "wall_s": _mapping(done.get("timing")).get("wall_s", done.get("wall_s")),
        **{key: done.get(key) for key in ("epochs", "best_epoch", "switch_epoch")},
    }


def _remark(reading: _Reading) -> str:
    """What a reader should know of a finished run."""
    metrics = _mapping(reading.files.get("measure", {}).get("metrics"))
    ppl, unigram = metrics.get("test_ppl"), metrics.get("unigram_ppl")
    return unlearned_words(ppl, unigram) if _is_number(ppl) and _is_number(unigram) else ""


def unlearned_words(ppl: float, unigram: float) -> str:
    """A remark on a model that is no better than the words' frequencies; empty for one that is."""
    if ppl <= UNLEARNED * unigram:
        return ""
    return f"learned only how frequent words are: test perplexity {ppl:.1f}, unigram {unigram:.1f}"


def _environments(readings: list[_Reading]) -> tuple[Mapping[str, Any], ...]:
    blocks = []
    for reading in readings:
        block = _mapping(reading.files.get("done", {}).get("provenance"))
        facts = {key: block.get(key) for key in ("git", "versions", "hardware", "deterministic") if block.get(key)}
        if facts and facts not in blocks:
            blocks.append(facts)
    return tuple(blocks)


def groups(frame: pd.DataFrame, *keys: str) -> Iterator[tuple[tuple[str, ...], pd.DataFrame]]:
    """Parts of a frame with equal texts in `keys`, in order of appearance."""
    for names, part in frame.groupby(list(keys), sort=False, dropna=False):
        yield tuple(map(str, names)), part


# --- files ----------------------------------------------------------------------------------------------------------
def write(study: Study, records: Records, folder: Path | None = None) -> tuple[Path, Path]:
    """Write records.parquet, records.csv and states.csv into a folder (None: the study's); return the first two."""
    folder = folder or study.store.study_folder(study.name)
    artefacts.sweep(folder)
    parquet = folder / "records.parquet"
    rows = pd.concat([records.rows, _evidence_rows(records.evidence)], ignore_index=True)
    artefacts.write_with(parquet, lambda file: rows.to_parquet(file, index=False))
    artefacts.write_text(folder / "records.csv", to_csv(rows))
    artefacts.write_text(folder / "states.csv", to_csv(records.states))
    return parquet, folder / "records.csv"


def _evidence_rows(found: tuple[evidence.Evidence, ...]) -> pd.DataFrame:
    """Imported numbers in the columns of the records, with their origin and hardware as source."""
    lines = [
        {
            "source": f"evidence: {one.origin}, {one.hardware}",
            "table": "evidence",
            "dataset": one.run.dataset,
            "model": one.run.model,
            "condition": condition,
            "metric": metric,
            "value": value,
            "std": math.nan,
            "n": 1,
            "seed": one.run.seed,
            "run_id": one.run_id,
        }
        for one in found
        for (metric, condition), value in one.values.items()
    ]
    frame = pd.DataFrame(lines, columns=list(COLUMNS))
    return frame.astype({"value": "float64", "std": "float64", "n": "Int64", "seed": "Int64"})


def to_csv(frame: pd.DataFrame, digits: int | None = None) -> str:
    """CSV text that a spreadsheet cannot take for formulas: texts starting with = + - @ get a leading apostrophe.

    Numbers have `digits` significant digits, or all they have.
    """
    safe = frame.copy()
    for name in safe.columns:
        if not pd.api.types.is_numeric_dtype(safe[name]):
            safe[name] = safe[name].map(_plain_text)
    form = None if digits is None else f"%.{digits}g"
    # The writer quotes a line feed of a text but not a carriage return, at which readers would end the line.
    returns = any(safe[name].astype(str).str.contains("\r", regex=False).any() for name in safe.columns)
    quoting: Literal[0, 2] = csv.QUOTE_NONNUMERIC if returns else csv.QUOTE_MINIMAL
    return str(safe.to_csv(index=False, quoting=quoting, lineterminator="\n", float_format=form))


def _plain_text(value: object) -> object:
    if isinstance(value, str) and value.startswith(FORMULA_STARTS) and not _parses_as_number(value):
        return f"'{value}"
    return value


def _parses_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_csv(path: Path) -> pd.DataFrame:
    """A CSV in which every cell stays text: the words `nan`, `null` and `true` are words."""
    return pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")
