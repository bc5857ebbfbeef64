"""The page of a study that is not finished: of what is there by now, apart from the study's own, and nobody's input."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from softmax_bottleneck.records import collect
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.progress import Say
from softmax_bottleneck.study import Study

FOLDER = "partial"
PAGE = "report/index.html"
FIRST_S = 45.0  # after which a run that is done is worth a page
RELOAD_S = 30
CPU_SHARE = 0.04  # of one core at most goes into pages
LOWEST_PRIORITY = 19
FORWARD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url=../../report/index.html">
<title>Finished</title>
<p><a href="../../report/index.html">The study is finished: its report</a></p>
</html>
"""


def folder_of(study: Study) -> Path:
    """Where records and page of the unfinished study lie."""
    return study.store.study_folder(study.name) / FOLDER


def partial(study: Study, reload_s: int | None = None) -> Path:
    """Write records and page of what is there now; the page's path.

    With `reload_s` the page says that the study is running, and is loaded again by the browser after so many seconds.

    Raises:
        DataError: what is there is damaged.
        OSError: the disk refused.
    """
    from softmax_bottleneck.report import render, report  # two seconds to import: a study begins before them

    folder = folder_of(study)
    collect.collect_to(study, folder)
    render.render(study, folder)
    return report.report(folder, reload_s)


class LivePage:
    """The page of a running study, made again as runs end: apart, at the lowest priority, and seldom enough.

    A page that cannot be made is no trouble of the study: the log has what was said.
    """

    def __init__(self, study: Study, overrides: Sequence[str], log: IO[bytes]) -> None:
        self.study, self.log = study, log
        self.call = [sys.executable, "-m", "softmax_bottleneck", "partial", "--study", str(study.file)]
        self.call += ["--reload", str(RELOAD_S), *(["--set", *overrides] if overrides else [])]
        self.child: subprocess.Popen[bytes] | None = None
        self.due = time.monotonic() + FIRST_S
        self.runs_shown = 0
        self.cpu_before_s = 0.0
        self.is_there = False

    def look(self, runs_done: int, say: Say) -> None:
        """Begin a page when it is time and there is something new; take note of one that has ended."""
        if self.child is not None:
            if self.child.poll() is None:
                return
            if self.child.returncode == 0 and not self.is_there:
                self.is_there = True
                say(f"page so far, made again as runs end: {(folder_of(self.study) / PAGE).resolve()}")
            self.child, self.due = None, time.monotonic() + (_children_cpu_s() - self.cpu_before_s) / CPU_SHARE
        if runs_done > self.runs_shown and time.monotonic() >= self.due:
            self.runs_shown, self.cpu_before_s = runs_done, _children_cpu_s()
            call = ["nice", "-n", str(LOWEST_PRIORITY), *self.call]
            self.child = subprocess.Popen(call, stdout=self.log, stderr=self.log, start_new_session=True)

    def stop(self) -> None:
        """End a page that is being made; what is left of it goes."""
        if self.child is not None and self.child.poll() is None:
            self.child.kill()
            self.child.wait()
            shutil.rmtree(folder_of(self.study), ignore_errors=True)


def _children_cpu_s() -> float:
    """CPU time of the processes that this one has started and seen the end of."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def remove(study: Study, was_live: bool) -> None:
    """Remove what lies apart: the study is finished. A browser that shows its live page is led to the report."""
    folder = folder_of(study)
    shutil.rmtree(folder, ignore_errors=True)
    if was_live:
        artefacts.write_text(folder / PAGE, FORWARD)
