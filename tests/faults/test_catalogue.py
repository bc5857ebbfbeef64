"""Every fault of the catalogue has a test, and every test names faults of the catalogue."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
CATALOGUE = yaml.safe_load((ROOT / "tests" / "faults" / "catalogue.yaml").read_text(encoding="utf-8"))


def provoked() -> set[str]:
    """Return the ids in all `@pytest.mark.fault(...)` decorators below tests/."""
    texts = [file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py")]
    marks = [mark for text in texts for mark in re.findall(r"^@pytest\.mark\.fault\((.*)\)$", text, re.MULTILINE)]
    return {name for mark in marks for name in re.findall(r'"(\w+)"', mark)}


def test_every_fault_says_what_happens_and_what_is_expected() -> None:
    for name, row in CATALOGUE.items():
        assert {"fault", "expected", "tier"} <= set(row) <= {"fault", "expected", "tier", "differs"}, name
        assert row["tier"] in (1, 2) and row["fault"] and row["expected"] and row.get("differs", "x"), name


def test_every_fault_is_provoked() -> None:
    assert provoked() <= set(CATALOGUE) <= provoked() | {name for name, row in CATALOGUE.items() if "differs" in row}
