"""The examples of docs/ranks.md and docs/evidence.md run."""

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("page", "examples"), [("ranks.md", 20), ("evidence.md", 8)])
def test_the_examples_of_the_page_run(page: str, examples: int, shipped: None) -> None:
    found = doctest.testfile(str(ROOT / "docs" / page), module_relative=False)
    assert found.attempted > examples and found.failed == 0
