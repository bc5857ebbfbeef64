"""The examples of docs/ranks.md run, and importing the library leaves torch alone."""

import doctest
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_examples_of_the_page_run() -> None:
    examples = doctest.testfile(str(ROOT / "docs" / "ranks.md"), module_relative=False)
    assert examples.attempted > 20 and examples.failed == 0


def test_importing_it_leaves_torch_alone() -> None:
    code = "import sys; from softmax_bottleneck.ranks import press_rank; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
