"""The ranks as a library: the page's examples run, without torch until it is handed in."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from pathlib import Path

from softmax_bottleneck import ranks

ROOT = Path(__file__).parents[1]


def test_the_examples_of_the_page_run():
    examples = doctest.testfile(str(ROOT / "docs" / "ranks.md"), module_relative=False)
    assert examples.attempted > 20
    assert examples.failed == 0


def test_importing_it_leaves_torch_alone():
    environment = os.environ | {"PYTHONPATH": str(ROOT / "workflow")}
    code = "import sys; from softmax_bottleneck.ranks import press_rank; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_every_name_has_words():
    assert all(getattr(ranks, name).__doc__ for name in ranks.__all__)
