"""The measurement of `rank` on a large layer, here on a small one: it ends, and says what it took."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import rank_large

SIZE = ["--contexts", "600", "--words", "1500", "--width", "8", "--threads", "1"]


@pytest.mark.parametrize(
    ("head", "limit", "status"),
    [("softmax", None, "ok"), ("gss:c=-1.5,k=2.5", None, "ok"), ("gss:c=-1.5,k=2.5", "702MiB", "sampled")],
)
def test_it_measures_the_whole_and_parts(tmp_path: Path, head: str, limit: str | None, status: str) -> None:
    kept = tmp_path / "kept.jsonl"
    more = ["--max-memory", limit] if limit else []
    found = rank_large.main([*SIZE, "--head", head, "--results", str(kept), *more])
    assert json.loads(kept.read_text(encoding="utf-8")) == found
    assert (found["status"], found["contexts"], found["words"]) == (status, 600, 1500)
    assert 0 < found["peak_gib"] < found["planned_gib"] + 0.4 and found["processor_s"] > 0
    if head == "softmax":
        assert found["rank_press"] == 10 and found["bound"]["holds"]  # d + 2
    if status == "sampled":
        assert 10 < found["sample"]["at_least"] <= found["sample"]["at_most"] == 600
    elif head != "softmax":
        assert found["rank_press"] > 10
