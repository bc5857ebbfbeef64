"""Frames of fits to known distributions: heads on free context vectors (Ganea et al. 2019, and the known-truth study).

The numbers of a fit are rows of the records: its plan is their `table`, its distribution and width stand in their
`condition`. Replicates are seeds: each samples distributions of its own.

Columns of a frame: model, seed, d (width), equal (whether widths were cut to equal parameters), those of the
distribution (alpha and M words; or r columns, V words and its rank), and one per metric, of which `gap_closed` is
computed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from softmax_bottleneck.records.metrics import GAP_CLOSED, KL
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.study import Study

BASELINE = "softmax"
LAW = "law"  # in place of a model: numbers of the distributions themselves
TEXTS = ("head", "equal")  # of a condition; all else in it is a number


@dataclass(frozen=True)
class Frames:
    """The fits of one plan.

    Attributes:
        fits: one line per fit, a column per metric; empty before anything is fitted.
        laws: one line per distribution: what is known of it.
        names: name and label of the plan's models, in its order.
    """

    fits: pd.DataFrame
    laws: pd.DataFrame
    names: dict[str, str]

    @classmethod
    def of(cls, study: Study, results: Records, plan: str) -> Frames:
        """Return the fits of a plan from the records of a study."""
        rows = results.synthetic[results.synthetic["table"] == plan]
        both = (wide(rows[rows["model"] != LAW]), wide(rows[rows["model"] == LAW]))
        # Log-probabilities are r products, a bias and a normaliser.
        fits, laws = (frame.assign(rank=frame["r"] + 2) if "r" in frame else frame for frame in both)
        return cls(with_gap_closed(fits), laws, dict(study.fit_labels.get(plan, {})))

    @property
    def models(self) -> list[str]:
        """Models that were fitted, in the plan's order."""
        present = set(self.fits["model"])
        return [model for model in self.names if model in present]

    def have(self, metrics: Sequence[str] = ()) -> bool:
        """Return True if there are fits with all of these metrics."""
        return bool(len(self.fits)) and set(metrics) <= set(self.fits)


def wide(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one line per fit or distribution: model, seed, a column per part of its condition, and one per metric.

    A condition is like `alpha=0.1;M=100;N=1000;d=5`.
    """
    if rows.empty:
        return pd.DataFrame(columns=["model", "seed"])
    wide = rows.pivot(index=["model", "condition", "seed"], columns="metric", values="value").reset_index()
    lines = []
    for condition in wide["condition"]:
        pairs = [part.partition("=") for part in condition.split(";")]
        lines.append({"equal": ""} | {key: value if key in TEXTS else float(value) for key, _, value in pairs})
    return pd.concat([wide.drop(columns="condition"), pd.DataFrame(lines, index=wide.index)], axis=1)


def with_gap_closed(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the fraction of the softmax's KL that a fit closes, 1 - KL / KL(softmax) of the same r, d and seed."""
    softmax, keys = frame[frame["model"] == BASELINE], ["r", "d", "seed"]
    if softmax.empty or "r" not in frame:
        return frame
    baseline = frame[keys].merge(softmax[[*keys, KL]], on=keys, how="left")[KL].to_numpy(dtype=float)
    return frame.assign(**{GAP_CLOSED: 1.0 - frame[KL] / baseline})


def levels(frame: pd.DataFrame, column: str) -> list[float]:
    """Return the values of a column in ascending order; none if the frame has no such column."""
    return sorted(set(frame[column])) if column in frame else []
