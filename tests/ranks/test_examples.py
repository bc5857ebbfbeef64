"""The examples of docs/ranks.md run."""

import doctest
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_examples_of_the_page_run() -> None:
    examples = doctest.testfile(str(ROOT / "docs" / "ranks.md"), module_relative=False)
    assert examples.attempted > 20 and examples.failed == 0
