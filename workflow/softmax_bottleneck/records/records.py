"""Records: the results of all runs of a study, saved in the study's folder.

The step `collect` creates and saves them. Tables, figures, claims and the report load them, and read no run folder.
"""

import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from softmax_bottleneck.store import artefacts

# The nine columns of report/published/*.csv, then the seed and run_id that a measured number comes from.
COLUMNS = ("source", "table", "dataset", "model", "condition", "metric", "value", "std", "n", "seed", "run_id")
STATE_COLUMNS = (
    *("dataset", "model", "label", "seed", "run_id", "path", "state", "reason", "epochs", "planned_epochs"),
    *("best_epoch", "switch_epoch", "wall_s", "interruptions", "hardware", "mixed_hardware"),
)
STAGE_COLUMNS = (*STATE_COLUMNS, "stage")
# Conditions of what is measured after training, and of the runs of a search.
FINETUNED, DYNAMIC, SEARCH = "finetuned", "dynamic", "search"
STATES = ("ok", "diverged", "failed", "missing", "stale", "unsound")
UNLEARNED = 0.95  # share of the unigram model's perplexity above which a run has learned little but word frequencies
CURVE_COLUMNS = ("path", "epoch", "phase", "train_ppl", "valid_ppl")


class Doubts(NamedTuple):
    """Numbers of doubtful dynamic evaluations.

    Attributes:
        at_edge: evaluations whose chosen step size or decay is on an edge of the grid, so that a better one may exist.
        damaging: evaluations whose choice improves the validation text and damages the test text.
        runs: all evaluations.
    """

    at_edge: int
    damaging: int
    runs: int


@dataclass(frozen=True, eq=False)
class Records:
    """The results of all runs of a study.

    Attributes:
        rows: one row per number. The columns (COLUMNS) with texts are `source` (`measured` or `archived`), `table`,
            `dataset`, `model`, `condition`, `metric` and `run_id` (empty if the number belongs to no training run).
            `table` is the JSON file of a run, such as `measure`; for other numbers, the plan of fits or the table in
            the paper. `value` and `std` (standard deviation) are floats; `n` (number of observations) and `seed` are
            nullable integers.
        states: one row per planned run, with the columns STATE_COLUMNS. A run that several models share, because their
            settings are the same, has one row per model; these rows have the same `path`.
        stages: one row per planned finetuning, dynamic evaluation or run of a search, with the columns STAGE_COLUMNS.
            Their numbers have the condition `finetuned`, `dynamic` or `search` in `rows`.
        parents: {path of a file below results/runs: sha256} for every file that was read.
        environments: the distinct environments of the results, with the keys git, versions, hardware and deterministic.
        details: {path of a run: {key: result}} for results that are not single numbers, such as predicted words. The
            method `detail` lists the keys.
        curves: one row per run and epoch, columns CURVE_COLUMNS.
        spectra: {path of a run: array [2, K]} for K selected singular values of the log-probability matrix. The first
            row has their indices, from 1; the second row has the values, in descending order. A run whose singular
            values were not measured has no entry.
        corpora: {dataset: content of its corpus.json}, with the keys tokens, vocabulary_size, token_sha256 and doubts
            (warnings).
        verification: the content of verify.json; its key `findings` lists the problems found in the study's files.
    """

    rows: pd.DataFrame
    states: pd.DataFrame
    stages: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(STAGE_COLUMNS)))
    parents: Mapping[str, str] = field(default_factory=dict)
    environments: tuple[Mapping[str, Any], ...] = ()
    details: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    curves: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(CURVE_COLUMNS)))
    spectra: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    corpora: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    verification: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def _index(self) -> dict[tuple[str, str, str, str], dict[int, float]]:
        index: dict[tuple[str, str, str, str], dict[int, float]] = {}
        measured = self.rows[self.rows["run_id"] != ""]
        keys = ["dataset", "model", "metric", "condition", "seed", "value"]
        for *place, seed, value in measured[keys].itertuples(index=False, name=None):
            index.setdefault(tuple(place), {})[int(seed)] = float(value)
        return index

    def values(self, dataset: str, model: str, metric: str, condition: str = "") -> dict[int, float]:
        """Return {seed: value} of a metric, such as `test_ppl`, for a model's runs on a dataset, in order of seeds.

        The dict is empty if no run has a number for this metric and condition.

        Args:
            condition: `finetuned` or `dynamic` for a number of that stage, or `benchmark=<name>` for word similarity.
                `group=<group>;context=<number>` for a position of the test text. Positions are grouped by how they were
                chosen (see `Place.group`): `group=random;context=3` is the third of the randomly chosen positions.
                Empty for all other numbers.
        """
        return dict(sorted(self._index.get((dataset, model, metric, condition), {}).items()))

    @cached_property
    def unlearned(self) -> frozenset[tuple[str, str, int]]:
        """The runs (dataset, model, seed) whose test perplexity is above 95 % of a unigram model's (`is_unlearned`).

        The rank of such a run says nothing about its head, so correlations of rank and perplexity leave it out.
        """
        runs = set()
        for (dataset, model, metric, condition), by_seed in self._index.items():
            if (metric, condition) == ("test_ppl", ""):
                unigram = self.values(dataset, model, "unigram_ppl")
                runs |= {(dataset, model, seed) for seed, ppl in by_seed.items()
                          if is_unlearned(ppl, unigram.get(seed, math.inf))}  # fmt: skip
        return frozenset(runs)

    def dynamic_doubts(self, dataset: str, model: str) -> Doubts:
        """Return the numbers of doubtful dynamic evaluations of a model."""
        names = ("dynamic_at_edge", "valid_gain", "test_gain")
        edge, valid, test = (self.values(dataset, model, name, DYNAMIC) for name in names)
        damaging = sum(gain > 0 > test.get(seed, 0.0) for seed, gain in valid.items())
        return Doubts(sum(value > 0 for value in edge.values()), damaging, len(valid))

    def planned(self, dataset: str, model: str, stage: str = "") -> pd.DataFrame:
        """Return the rows of `all_stages` for a model's planned runs of one stage on one dataset."""
        return self._planned.get((stage, dataset, model), self.all_stages.iloc[:0])

    @cached_property
    def all_stages(self) -> pd.DataFrame:
        """The rows of `states`, with an empty text in the column `stage`, and then those of `stages`."""
        return pd.concat([self.states.assign(stage=""), self.stages], ignore_index=True)

    @cached_property
    def _planned(self) -> dict[tuple[Hashable, ...], pd.DataFrame]:
        return dict(iter(self.all_stages.groupby(["stage", "dataset", "model"], sort=False)))

    def curve(self, path: str) -> list[dict[str, Any]]:
        """Return the epoch log of the run at `path`: one dict with the keys CURVE_COLUMNS per epoch, in order."""
        return self._curves.get(path, [])

    @cached_property
    def _curves(self) -> dict[str, list[dict[str, Any]]]:
        """The epoch logs by path, grouped once: a report asks for every run's."""
        by_path = self.curves.groupby("path", sort=False)
        return {str(path): cast(list[dict[str, Any]], log.to_dict("records")) for path, log in by_path}

    def detail(self, path: str, key: str) -> Any:
        """Return a result of a run that is not a single number; None if the run does not have it.

        Args:
            path: path of the run.
            key: `predictions` (the most probable words at positions of the test text), `hits` (hit rates), `function`
                (the curve of a learned function of the logits) or `epoch_ranks` (ranks along training).
        """
        return self.details.get(path, {}).get(key)

    @cached_property
    def synthetic(self) -> pd.DataFrame:
        """The rows of numbers that come from no training run, such as fits to known distributions."""
        return self.rows[self.rows["run_id"] == ""]

    def conditions(self, metric: str, dataset: str) -> list[str]:
        """Return the conditions (such as benchmarks) of a metric on a dataset, in order of first appearance."""
        chosen = self.rows[(self.rows["metric"] == metric) & (self.rows["dataset"] == dataset)]
        return list(dict.fromkeys(chosen["condition"]))

    def wide(self) -> pd.DataFrame:
        """Return the numbers of `rows` as a frame with one row per run.

        The first columns are dataset, model, seed and run_id. Then there is one column per metric and condition, such
        as `test_ppl` or `test_ppl finetuned`, with nan where a run lacks the number.
        """
        rows = self.rows[self.rows["run_id"] != ""]
        names = (rows["metric"] + " " + rows["condition"]).str.strip()
        keys = ["dataset", "model", "seed", "run_id"]
        return rows.assign(name=names).pivot(index=keys, columns="name", values="value").reset_index()

    def hardware_warnings(self) -> list[str]:
        """Return a warning for every corpus whose runs were computed on several kinds of hardware."""
        warnings = []
        for dataset, runs in self.states[self.states["hardware"] != ""].groupby("dataset", sort=False):
            kinds = {str(kind): ", ".join(dict.fromkeys(rows["model"])) for kind, rows in runs.groupby("hardware")}
            if len(kinds) > 1:
                listed = "; ".join(f"{kind}: {models}" for kind, models in kinds.items())
                warnings.append(f"comparisons on {dataset} mix hardware, which moves last digits ({listed})")
        return warnings

    def counts(self) -> dict[str, int]:
        """Return the numbers of runs as a dict with the keys `planned`, the names in STATES, and `mixed hardware`.

        `mixed hardware` counts runs that were resumed on another device or with another number of threads. A run that
        several models share counts once.
        """
        runs = self.states.drop_duplicates("path")
        by_state = runs["state"].value_counts()
        states = {state: int(by_state.get(state, 0)) for state in STATES}
        return {"planned": len(runs), **states, "mixed hardware": int(runs["mixed_hardware"].sum())}


def is_unlearned(ppl: float, unigram: float) -> bool:
    """Return True if a test perplexity shows that a model has learned little more than the frequencies of words.

    This is so if `ppl` is above 95 % (UNLEARNED) of `unigram`, the unigram model's perplexity on the same text.
    """
    return ppl > UNLEARNED * unigram


def groups(frame: pd.DataFrame, *keys: str) -> Iterator[tuple[tuple[str, ...], pd.DataFrame]]:
    """Yield (values, rows) for each group of rows of `frame` that have equal values in the columns `keys`.

    `values` has the group's value in each of the columns, as a text. Groups come in the order of their first rows.
    """
    for names, part in frame.groupby(list(keys), sort=False, dropna=False):
        yield tuple(map(str, names)), part


# --- files ----------------------------------------------------------------------------------------------------------
TABLE_FILE, CURVES_FILE, SPECTRA_FILE, REST_FILE = "records.parquet", "curves.parquet", "spectra.npz", "records.json"
FILES = (TABLE_FILE, CURVES_FILE, SPECTRA_FILE, REST_FILE, "records.csv", "states.csv")
FRAMES = ("states", "stages")
PLAIN = ("parents", "environments", "details", "corpora", "verification")


def save(records: Records, folder: Path) -> None:
    """Write the records to a folder: all files that `load` reads, and records.csv and states.csv for users."""
    artefacts.sweep(folder)
    artefacts.write_with(folder / TABLE_FILE, lambda file: records.rows.to_parquet(file, index=False))
    frames = {name: getattr(records, name).astype(object) for name in FRAMES}
    rest = {name: frame.where(frame.notna(), None).to_dict("records") for name, frame in frames.items()}
    rest |= {name: getattr(records, name) for name in PLAIN}
    artefacts.write_json(folder / REST_FILE, rest)
    artefacts.write_with(folder / CURVES_FILE, lambda file: records.curves.to_parquet(file, index=False))
    artefacts.write_npz(folder / SPECTRA_FILE, **dict(sorted(records.spectra.items())))
    artefacts.write_text(folder / "records.csv", to_csv(records.rows))
    artefacts.write_text(folder / "states.csv", to_csv(records.states))


def load(folder: Path) -> Records:
    """Load the records of a study from a folder with the files that `save` wrote.

    Raises:
        DataError: a file is missing or damaged. The step `collect` writes it again.
    """
    rest = artefacts.read_json(folder / REST_FILE)
    return Records(
        rows=pd.read_parquet(artefacts.checked(folder / TABLE_FILE)),
        curves=pd.read_parquet(artefacts.checked(folder / CURVES_FILE)),
        spectra=artefacts.read_npz(folder / SPECTRA_FILE),
        states=pd.DataFrame(rest["states"], columns=list(STATE_COLUMNS)),
        stages=pd.DataFrame(rest["stages"], columns=list(STAGE_COLUMNS)),
        **{name: rest[name] for name in PLAIN},
    )


def to_csv(frame: pd.DataFrame, digits: int | None = None) -> str:
    """Return a frame as CSV text; numbers have `digits` significant digits (None: full precision)."""
    form = None if digits is None else f"%.{digits}g"
    return str(frame.to_csv(index=False, lineterminator="\n", float_format=form))


def read_csv(path: Path) -> pd.DataFrame:
    """Read a CSV file with all cells as text, so that `nan`, `null` and `true` stay words."""
    return pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")
