"""The progress line of a running study, and its interim report."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import small
from softmax_bottleneck.extras import interim, reproduce
from softmax_bottleneck.extras.display import Display
from softmax_bottleneck.jobs.workflow import Attempt
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.study import Study

DEAD = 2**22 + 1  # above any process number of Linux


class Report(interim.InterimReport):
    """An interim report that is written by another command."""

    def __init__(self, study: Study, *command: str) -> None:
        super().__init__(study, [], None)  # type: ignore[arg-type]
        self.call, self.due = list(command), 0.0

    def is_written(self, runs_done: int) -> bool:
        """Wait for a report to end; return True if one was started."""
        self.update(runs_done)
        started = self.child is not None
        while self.child is not None:
            time.sleep(0.01)
            self.update(runs_done)
        return started


def display(study: Study, log: Path = Path("none.jsonl"), lines: Any = None) -> Any:
    report = Report(study, "true")
    report.due = float("inf")
    return Display(study, log, report, (lines if lines is not None else []).append, False)


def log_epochs(study: Study, index: int, text: str) -> None:
    log = study.store.run_folder(study.needed[index].path) / "epochs.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text(text, encoding="utf-8")


def test_the_line_names_running_steps_and_their_epoch(begun: Study) -> None:
    log_epochs(begun, 0, '{"epoch": 1, "wall_s": 2.0}\n{"epoch": 2, "wa')
    steps = (("train", begun.needed[0].path), ("measure", begun.needed[1].path), ("check", ""))
    running = [Attempt(step, path, os.getpid()) for step, path in steps]
    killed = Attempt("train", begun.needed[2].path, DEAD)
    line = display(begun).line(0, [*running, killed], 0.0)
    assert line == "0 of 4 runs; train softmax/1 epoch 2 of 3, measure softmax/2, check"


def test_the_time_left_follows_from_the_share_of_training_that_is_done(begun: Study) -> None:
    """After 60 s the second run has one of three epochs more than before; all else is left."""
    shown = display(begun)
    assert shown.seconds_left(100.0) is None  # `check` has not estimated the hours yet
    small.check.check(begun, small.quiet)
    assert shown.seconds_left(100.0) is None
    log_epochs(begun, 1, "{}\n")
    costs = artefacts.read_json(begun.store.study_folder(begun.name) / "check.json")["runs"]
    hours = [costs[run.path]["cpu_h"] for run in begun.needed]
    expected = 60 * (sum(hours) - hours[1] / 3) / (hours[1] / 3)
    assert shown.seconds_left(160.0) == pytest.approx(expected)
    assert shown.seconds_left(180.0) == pytest.approx(expected - 20)


def test_a_failed_step_is_reported_once(study: Study, tmp_path: Path) -> None:
    log, lines = tmp_path / "steps.jsonl", list[str]()
    ended = {"step": "train", "pid": DEAD}
    steps = [{"step": "train", "what": "tiny/mos/1-0", "pid": DEAD},
        ended | {"what": "tiny/mos/1-0", "code": 2, "words": "file not found"},
        {"step": "train", "what": "tiny/mos/2-0", "pid": os.getpid()},
        ended | {"what": "tiny/mos/3-0", "code": 0, "words": ""}]  # fmt: skip
    log.write_text("".join(f"{json.dumps(line)}\n" for line in steps), encoding="utf-8")
    with display(study, log, lines) as shown:
        shown.printed = float("inf")
        for _ in range(2):
            shown.updated = 0.0
            shown.update()
    assert lines == ["train tiny/mos/1-0: file not found"]


@pytest.mark.fault("A21")
def test_an_interim_report_says_how_far_it_is_and_touches_nothing_else(study: Study) -> None:
    (study.store.run_folder(study.needed[0].path) / "rank.json").unlink()
    before = small.tree(Path("results"))
    page = interim.write_interim_report(study, reload_s=30).read_text(encoding="utf-8")
    assert '<meta http-equiv="refresh" content="30">' in page and "<b>3 of 4 runs</b>" in page
    after = {name: digest for name, digest in small.tree(Path("results")).items() if "small/partial/" not in name}
    assert after == before


@pytest.mark.fault("A21")
def test_a_report_is_written_when_a_run_ended_and_not_often(study: Study) -> None:
    report = Report(study, sys.executable, "-c", "")
    assert not report.is_written(0) and report.is_written(1)
    assert report.due > time.monotonic() and not report.is_written(2)
    report.due = 0.0
    assert not report.is_written(1) and report.is_written(2)


@pytest.mark.fault("A21")
def test_a_report_that_fails_or_hangs_fails_nothing(study: Study) -> None:
    assert Report(study, "false").is_written(1)
    report = Report(study, "sleep", "100")
    report.update(1)
    report.stop()
    assert report.child is not None and report.child.returncode == -9


@pytest.mark.fault("A18")
def test_what_snakemake_itself_stumbles_over_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "study.log"
    log.write_text("first\n" * 50 + "OSError: no space\n", encoding="utf-8")
    why = reproduce._problem(1, [], tmp_path / "none.jsonl", log)
    assert why is not None and why.exit_code == 3 and "the same command resumes" in str(why)
    refused = reproduce._problem(2, [], tmp_path / "none.jsonl", log)  # as after `-- --cors 4`
    assert refused is not None and refused.exit_code == 2 and not refused.resumes
    assert len(why.log_tail) == 12 and why.log_tail[-1] == "OSError: no space"
    steps = [{"step": "train", "what": name, "pid": DEAD} for name in ("a", "b")]
    ends = tmp_path / "ends.jsonl"
    ends.write_text("\n".join(json.dumps(step) for step in steps), encoding="utf-8")
    assert f"1 more steps failed, see {log}" in str(reproduce._problem(1, [], ends, log))


def test_a_browser_on_the_interim_report_reaches_the_final_one(study: Study) -> None:
    report = Report(study, "true")
    report.replace_by_final()
    assert not report.folder.exists()  # no interim report was written
    report.is_written(1)
    report.replace_by_final()
    assert "url=../../report/index.html" in (report.folder / interim.PAGE).read_text(encoding="utf-8")
