"""The catalogue of faults is whole, every row is tried, and docs/faults.md says so."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SIZES = {"A": 21, "B": 22, "C": 18, "D": 9, "E": 15, "F": 10, "G": 17, "H": 7}


@pytest.fixture(scope="module")
def listing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("list_faults", ROOT / "docs" / "list_faults.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_catalogue_is_whole(listing: ModuleType) -> None:
    rows = listing.catalogue()
    assert list(rows) == [f"{letter}{number}" for letter, size in SIZES.items() for number in range(1, size + 1)]
    for one, row in rows.items():
        assert {"fault", "expected", "tier"} <= set(row) <= {"fault", "expected", "tier", "differs"}, one
        assert row["tier"] in (1, 2) and row["fault"] and row["expected"] and row.get("differs", "x"), one


def test_tests_carry_ids_of_the_catalogue(listing: ModuleType) -> None:
    rows = listing.catalogue()
    assert {one for test in listing.fault_tests() for one in test.ids} <= set(rows)


def test_every_row_is_tried_or_says_why_not(listing: ModuleType) -> None:
    tried = {one for test in listing.fault_tests() for one in test.ids}
    assert [one for one, row in listing.catalogue().items() if one not in tried and "differs" not in row] == []


def test_the_page_is_current() -> None:
    command = [sys.executable, str(ROOT / "docs" / "list_faults.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
