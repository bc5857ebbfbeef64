"""Snakemake in the process of a test: a dry run takes a tenth of the time of a process of its own."""

import contextlib
import io
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
from snakemake.cli import main
from softmax_bottleneck import study as config

ROOT = Path(__file__).parents[1]


def in_process(*words: str, exported: dict[str, str] | None = None) -> tuple[int, str]:
    """Return the exit code and the output of a dry run; any other call would keep the lock of the project.

    `exported` receives the environment of the jobs, which tells them the study.
    """
    assert "--dry-run" in words
    output = io.StringIO()
    config.load_dataset.cache_clear()
    with (
        mock.patch.dict("os.environ"),
        mock.patch.object(sys, "path", sys.path.copy()),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
    ):
        # Snakemake starts an event loop, and tests in a browser leave one running.
        with pytest.raises(SystemExit) as ended, ThreadPoolExecutor(1) as thread:
            thread.submit(main, list(words)).result()
        if exported is not None:
            exported.update(os.environ)
    return int(ended.value.code or 0), output.getvalue()
