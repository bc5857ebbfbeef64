"""Frames of fits to known laws: heads on free context vectors (Ganea et al. 2019, and the known-truth study).

The numbers of a fit are rows of the records: its plan is their `table`, its law and width stand in their `condition`.
Replicates are seeds: each draws laws of its own.

Columns of a frame: model, seed, d (width), equal (whether widths were cut to equal parameters), the law's own (alpha
and M words; or r columns, V words and its rank), and one per metric, of which `gap_closed` is computed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from softmax_bottleneck.measuring import statistics
from softmax_bottleneck.records.metrics import GAP_CLOSED, KL
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report import numbers
from softmax_bottleneck.study import Study

BASELINE = "softmax"
LAW = "law"  # in place of a model: numbers of the laws themselves
WORDS = ("head", "equal")  # of a condition; all else in it is a number


@dataclass(frozen=True)
class Frames:
    """The fits of one plan.

    Attributes:
        fits: one line per fit, a column per metric; empty before anything is fitted.
        laws: one line per law: what is known of it.
        names: label and name of the plan's models, in its order.
    """

    fits: pd.DataFrame
    laws: pd.DataFrame
    names: dict[str, str]

    @classmethod
    def of(cls, study: Study, found: Records, plan: str) -> Frames:
        """From the records of a study."""
        rows = found.synthetic
        rows = rows[rows["table"] == plan]
        is_law = rows["model"] == LAW
        fits, laws = _with_rank(wide(rows[~is_law])), _with_rank(wide(rows[is_law]))
        return cls(with_gap_closed(fits), laws, dict(study.fit_labels.get(plan, {})))

    @property
    def models(self) -> list[str]:
        """Models that were fitted, in the plan's order."""
        present = set(self.fits["model"])
        return [model for model in self.names if model in present]


def wide(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per fit or law: model, seed, what its condition says, and a column per metric."""
    if rows.empty:
        return pd.DataFrame(columns=["model", "seed"])
    wide = rows.pivot(index=["model", "condition", "seed"], columns="metric", values="value").reset_index()
    conditions = pd.DataFrame([_condition(text) for text in wide["condition"]], index=wide.index)
    return pd.concat([wide.drop(columns="condition"), conditions], axis=1)


def _condition(text: str) -> dict[str, float | str]:
    """`alpha=0.1;M=100;N=1000;d=5` as numbers by name; `head` and `equal` keep their words."""
    pairs = [word.partition("=") for word in text.split(";")]
    found: dict[str, float | str] = {key: value if key in WORDS else float(value) for key, _, value in pairs}
    return {"equal": "", **found}


def _with_rank(frame: pd.DataFrame) -> pd.DataFrame:
    """With the rank of the law's log-probabilities, which are r products, a bias and a normaliser."""
    return frame.assign(rank=frame["r"] + 2) if "r" in frame else frame


def with_gap_closed(frame: pd.DataFrame) -> pd.DataFrame:
    """With the share of the softmax's distance that is closed, 1 - KL / KL(softmax), like for like."""
    softmax = frame[frame["model"] == BASELINE]
    if softmax.empty or "r" not in frame:
        return frame
    return frame.assign(**{GAP_CLOSED: 1.0 - frame[KL] / beside(frame, softmax, ["r", "d", "seed"], KL)})


def levels(frame: pd.DataFrame, column: str) -> list[float]:
    """Values of a column in ascending order."""
    return sorted(set(frame[column])) if column in frame else []


def is_bottlenecked(frame: pd.DataFrame) -> pd.Series[bool]:
    """Where the law has more columns than the model is wide, so that a softmax (with a bias for Zipf's law) fails."""
    wider: pd.Series[bool] = frame["r"] > frame["d"]
    return wider


def beside(frame: pd.DataFrame, other: pd.DataFrame, keys: list[str], column: str) -> NDArray[np.float64]:
    """The column of another frame, which has each combination of keys once, for every line of a frame."""
    return frame[keys].merge(other[[*keys, column]], on=keys, how="left")[column].to_numpy(dtype=float)


def correlations(frame: pd.DataFrame, by: Sequence[str], metric: str) -> list[float]:
    """Pearson's r of a rank and the distance in each group of fits, where it has MIN_POINTS and can be computed."""
    found = []
    for _, own in frame.groupby(list(by)) if metric in frame else ():
        pairs = own[[metric, KL]].dropna()
        if len(pairs) >= numbers.MIN_POINTS and pairs[metric].nunique() > 1:
            result = statistics.pearson(pairs[metric], pairs[KL], np.random.default_rng(0), n_resamples=0)
            found += [] if result.r is None else [result.r]
    return found
