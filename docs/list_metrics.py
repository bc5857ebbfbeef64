"""Writes docs/metrics.md: every metric of records/metrics.py, what it is, and which step writes it into which file.

python docs/list_metrics.py           # writes it
python docs/list_metrics.py --check   # exit 1 when it is not what the catalogue says
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "workflow"))

from softmax_bottleneck.records.metrics import CATALOGUE, Metric  # noqa: E402

PAGE = ROOT / "docs" / "metrics.md"
INTRODUCTION = """# Metrics

Every number in the tables has one of these names, in `records.csv`, in `report/published/` and in the columns of
`config/experiments/`. This page is written by [`list_metrics.py`](list_metrics.py) from the catalogue,
[`records/metrics.py`](../workflow/softmax_bottleneck/records/metrics.py); a test compares them. `*` stands for a
parameter. `<metric>_gain_vs_<model>` is the mean of a model less that of the row, `<metric>_reduction_pct` the same in
percent of the experiment's baseline.
"""
BETTER = {True: "smaller", False: "larger", None: ""}


def page() -> str:
    """The whole of docs/metrics.md."""
    parts = [INTRODUCTION]
    for (step, file), metrics in groupby(CATALOGUE.values(), lambda metric: (metric.step, metric.file)):
        parts.append(f"## `{step}`: {file}\n")
        parts.append("| name | label | unit | decimals | better | definition |\n|---|---|---|---|---|---|")
        parts.append("\n".join(_line(metric) for metric in metrics) + "\n")
    return "\n".join(parts)


def _line(metric: Metric) -> str:
    facts = (f"`{metric.name}`", metric.label.format("*"), metric.unit, metric.digits, BETTER[metric.smaller_is_better])
    return f"| {' | '.join(map(str, (*facts, metric.definition)))} |"


def main() -> int:
    """Write the page, or compare it."""
    text = page()
    if "--check" not in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print("docs/metrics.md is not current: run python docs/list_metrics.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
