"""The table that `rank --compare` prints: a column per model, and a row per number whose values differ."""

import json
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from softmax_bottleneck.store.errors import UserError

IGNORED = r"^provenance\.|notes?$|wall_s$|memory_estimate_bytes$|bound\.where$"  # no measures of a model


def compare(paths: Sequence[Path]) -> str:
    """Return a table with a column per rank.json and a row per number that differs; "-" means not measured.

    Raises:
        UserError: fewer than two files, or a file that is not a rank.json of `rank`.
    """
    if len(paths) < 2:
        raise UserError("--compare: got one file. Expected the rank.json of two models or more")
    table = pd.DataFrame({str(path).removesuffix("/rank.json"): _numbers(path) for path in paths}).fillna("-")
    differing = table[table.nunique(axis=1) > 1]
    return "no number differs" if differing.empty else str(differing.to_string())


def _numbers(path: Path) -> "pd.Series[Any]":
    """Return the formatted numbers of a rank.json, named by their keys."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        facts = None
    if not isinstance(facts, dict) or not {"metrics", "contexts", "words"} <= facts.keys():
        raise UserError(f"--compare: {path}: not a rank.json of `rank`. Expected results/own/<model>/rank.json")
    numbers = pd.json_normalize(facts).iloc[0].dropna()
    numbers = numbers[~numbers.index.str.contains(IGNORED)]
    return pd.Series({key: _text(key, value) for key, value in numbers.items()}, dtype=object)


def _text(key: Hashable, value: Any) -> str:
    """Return a value of rank.json as text; a list of unargmaxable words is replaced by the number of words."""
    if isinstance(value, list):
        return str(len(value)) if str(key).endswith("never") else ", ".join(_text(key, entry) for entry in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
