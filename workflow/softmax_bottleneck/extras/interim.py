"""The interim report of an unfinished study: its page, and the process that rewrites it as runs finish."""

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from softmax_bottleneck.records import collection
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.study import Study

PAGE = "report/index.html"
# Before the first interim report, which a study of the demonstration's size does not need, and before a reload of it.
FIRST_S, RELOAD_S = 600.0, 30
FORWARD = """<!doctype html><meta charset="utf-8"><title>Finished</title>
<meta http-equiv="refresh" content="0; url=../../report/index.html">
"""
REST = 30  # the pause after an interim report, as a multiple of the time that it took


def interim_folder(study: Study) -> Path:
    """Return the folder of an unfinished study's records and interim report; no step of the workflow reads it."""
    return study.store.study_folder(study.name) / "partial"


def write_interim_report(study: Study, reload_s: int | None = None) -> Path:
    """Write records and report of the results so far to results/<study>/partial; return the path of the report.

    If `reload_s` is given, the report says that the study is running, and the browser reloads it every `reload_s`
    seconds. None means that the study is not running.

    Raises:
        DataError: a result is damaged.
        OSError: the disk failed.
    """
    from softmax_bottleneck.report import contents, page  # takes two seconds to import, also for a study that begins

    folder = interim_folder(study)
    collection.collect_to(study, folder)
    contents.write(study, folder)
    return page.write(folder, reload_s)


class InterimReport:
    """The interim report of a running study, written by a child process of the lowest priority.

    An error in that process does not affect the study; the messages of the process are in the log.

    Args:
        study: the running study.
        overrides: `KEY=VALUE` texts that replace keys of the study's file.
        log: file to which the process writes its messages.
    """

    def __init__(self, study: Study, overrides: Sequence[str], log: BinaryIO) -> None:
        self.folder, self.log = interim_folder(study), log
        self.call = ["nice", "-n", "19", sys.executable, "-m", "softmax_bottleneck", "partial"]
        self.call += ["--study", str(study.file), "--reload", str(RELOAD_S)]
        self.call += ["--set", *overrides] if overrides else []
        self.child: subprocess.Popen[bytes] | None = None
        self.started, self.due = 0.0, time.monotonic() + FIRST_S
        self.runs_shown = 0

    def update(self, runs_done: int) -> None:
        """Start writing a new report if a run has finished since the last report was started and a pause is over.

        `runs_done` is the number of finished runs. The first report may start FIRST_S seconds after the construction of
        this object. After a report that took t seconds, the next one may start REST * t seconds later.
        """
        now = time.monotonic()
        if self.child is not None and self.child.poll() is not None:
            self.child, self.due = None, now + REST * (now - self.started)
        if self.child is None and runs_done > self.runs_shown and now >= self.due:
            self.runs_shown, self.started = runs_done, now
            self.child = subprocess.Popen(self.call, stdout=self.log, stderr=self.log, start_new_session=True)

    def stop(self) -> None:
        """Stop the process that is writing a report, if any, and remove the folder of the incomplete report."""
        if self.child is not None and self.child.poll() is None:
            self.child.kill()
            self.child.wait()
            shutil.rmtree(self.folder, ignore_errors=True)

    def replace_by_final(self) -> None:
        """Remove the interim report of a finished study and leave a page that forwards to the final report.

        The forwarding page is for a browser in which the interim report is open. It is written only if this object has
        started an interim report. Otherwise, no folder results/<study>/partial remains.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.runs_shown:
            artefacts.write_text(self.folder / PAGE, FORWARD)
