"""Writes docs/faults.md: every fault of tests/faults/catalogue.yaml, the tests that carry its id, and its state.

python docs/list_faults.py           # writes it
python docs/list_faults.py --check   # exit 1 when it is not what the catalogue and the tests say

A test carries ids by a decorator, `@pytest.mark.fault("A8", "A9")`; it is found in the source, so nothing is run here.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
CATALOGUE = ROOT / "tests" / "faults" / "catalogue.yaml"
PAGE = ROOT / "docs" / "faults.md"
FAMILIES = {
    "A": "Kill, crash, resume",
    "B": "Data and download",
    "C": "Configuration and command line",
    "D": "Training numerics",
    "E": "Disk, file system, environment",
    "F": "Batch systems",
    "G": "Analysis and report",
    "H": "Files that other programs wrote",
}
INTRODUCTION = """# Faults

What is tried on purpose, what has to come of it, and which tests try it. This page is written by
[`list_faults.py`](list_faults.py) from [`tests/faults/catalogue.yaml`](../tests/faults/catalogue.yaml) and the tests
that carry an id; a test compares them. `make test` runs tier 1, `make test-all` both tiers;
`python -m pytest --fault A8` runs the tests of one row.

Of every row it is expected besides that the exit code is the stated one; that the message is one line which names the
file, the key or the line and what to do; that no half-written file carries a final name; that what follows once the
cause is gone equals, bit for bit, what an undisturbed run gives; and that nothing outside the project is touched.
"""


@dataclass(frozen=True)
class FaultTest:
    """A test that carries the ids of faults."""

    name: str
    file: Path
    ids: tuple[str, ...]
    tier: int


def catalogue() -> dict[str, dict[str, Any]]:
    """The rows by id, in order."""
    rows: dict[str, dict[str, Any]] = yaml.safe_load(CATALOGUE.read_text(encoding="utf-8"))
    return rows


def fault_tests() -> list[FaultTest]:
    """Every test below tests/ with a `fault` decorator."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [found for file in files for found in _in_file(file)]


def _in_file(file: Path) -> Iterator[FaultTest]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    whole_file = [mark for node in tree.body for mark in _module_marks(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            marks = [*whole_file, *node.decorator_list]
            ids = tuple(argument for mark in node.decorator_list for argument in _arguments(mark, "fault"))
            if ids:
                yield FaultTest(node.name, file, ids, 2 if any(_is_mark(mark, "tier2") for mark in marks) else 1)


def _module_marks(node: ast.stmt) -> list[ast.expr]:
    """What `pytestmark = ...` says."""
    named = isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets)
    if not named:
        return []
    value = node.value
    return list(value.elts) if isinstance(value, ast.List) else [value]


def _is_mark(node: ast.expr, name: str) -> bool:
    target = node.func if isinstance(node, ast.Call) else node
    return isinstance(target, ast.Attribute) and target.attr == name


def _arguments(node: ast.expr, name: str) -> list[str]:
    if not (isinstance(node, ast.Call) and _is_mark(node, name)):
        return []
    return [argument.value for argument in node.args if isinstance(argument, ast.Constant)]


def state(row: dict[str, Any]) -> str:
    """What the table says of a row."""
    return f"differs: {row['differs']}" if "differs" in row else "as specified"


def page() -> str:
    """The whole of docs/faults.md."""
    rows, tests = catalogue(), fault_tests()
    met = sum("differs" not in row for row in rows.values())
    parts = [INTRODUCTION, f"{len(rows)} faults; {met} as specified.\n"]
    for letter, title in FAMILIES.items():
        parts.append(f"## {letter}. {title}\n")
        parts.append("| id | fault | expected | tests | tier | state |\n|---|---|---|---|---|---|")
        chosen = {one: row for one, row in rows.items() if one[0] == letter}
        parts.append("\n".join(_line(one, row, tests) for one, row in chosen.items()) + "\n")
    return "\n".join(parts)


def _line(one: str, row: dict[str, Any], tests: list[FaultTest]) -> str:
    own = [test for test in tests if one in test.ids]
    links = [f"[`{test.name}`](../{test.file.relative_to(ROOT).as_posix()})" for test in own]
    tier = min((test.tier for test in own), default=row["tier"])
    cells = [one, row["fault"], row["expected"], "<br>".join(links) or "none", str(tier), state(row)]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def main() -> int:
    """Write the page, or compare it."""
    text = page()
    if "--check" not in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print("docs/faults.md is not current: run python docs/list_faults.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
