"""Shared fixtures: one thread per process (results are compared to the bit), and the mirror of real corpora."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy: idle threads that spin slow a busy machine tenfold

import pytest

try:
    import torch

    torch.set_num_threads(1)
except ImportError:  # the report half is tested without torch
    pass

ROOT = Path(__file__).parents[1]
# Steps that tests start as processes of their own, in any folder, find the package.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "workflow"), os.environ.get("PYTHONPATH")]))


@pytest.fixture(scope="session")
def mirror() -> Path:
    """The mirror folder with the real corpora, or a skip that says how to get one."""
    named = os.environ.get("SOFTMAX_BOTTLENECK_MIRROR")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if not (folder / "ptb" / "train.txt").exists():
        pytest.skip("needs the real corpora: set SOFTMAX_BOTTLENECK_MIRROR to a mirror folder")
    return folder
