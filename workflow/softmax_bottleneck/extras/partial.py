"""The interim report of an unfinished study, in a folder of its own that no step reads."""

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
FIRST_S = 45.0  # before the first interim report
RELOAD_S = 30
CPU_SHARE = 0.04  # of one core that interim reports may use
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
    """Return the folder of an unfinished study's records and report."""
    return study.store.study_folder(study.name) / FOLDER


def partial(study: Study, reload_s: int | None = None) -> Path:
    """Write records and report of the results so far; return the report's path.

    With `reload_s` the report says that the study is running, and the browser reloads it after so many seconds.

    Raises:
        DataError: a result is damaged.
        OSError: the disk failed.
    """
    from softmax_bottleneck.report import render, report  # takes two seconds to import, also for a study that begins

    folder = folder_of(study)
    collect.collect_to(study, folder)
    render.render(study, folder)
    return report.report(folder, reload_s)


def remove(study: Study, was_live: bool) -> None:
    """Remove the interim report of a finished study; a browser that shows a live one is forwarded to the report."""
    folder = folder_of(study)
    shutil.rmtree(folder, ignore_errors=True)
    if was_live:
        artefacts.write_text(folder / PAGE, FORWARD)


class LivePage:
    """The interim report of a running study, rewritten as runs end, at the lowest priority.

    A report that cannot be written does not disturb the study; its messages are in the log.
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
        """Start a new report if one is due and runs have ended; report the first one that is written."""
        if self.child is not None:
            if self.child.poll() is None:
                return
            if self.child.returncode == 0 and not self.is_there:
                self.is_there = True
                say(f"interim report, updated as runs end: {(folder_of(self.study) / PAGE).resolve()}")
            self.child, self.due = None, time.monotonic() + (_children_cpu_s() - self.cpu_before_s) / CPU_SHARE
        if runs_done > self.runs_shown and time.monotonic() >= self.due:
            self.runs_shown, self.cpu_before_s = runs_done, _children_cpu_s()
            call = ["nice", "-n", str(LOWEST_PRIORITY), *self.call]
            self.child = subprocess.Popen(call, stdout=self.log, stderr=self.log, start_new_session=True)

    def stop(self) -> None:
        """Stop a report that is being written and remove what it has written."""
        if self.child is not None and self.child.poll() is None:
            self.child.kill()
            self.child.wait()
            shutil.rmtree(folder_of(self.study), ignore_errors=True)


def _children_cpu_s() -> float:
    """Return the CPU time of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
