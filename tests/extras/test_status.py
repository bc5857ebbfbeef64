"""The progress line of a running study, and its interim report."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import small
from softmax_bottleneck.extras import reproduce, status
from softmax_bottleneck.jobs import outcomes
from softmax_bottleneck.jobs.outcomes import Attempt
from softmax_bottleneck.study import Study

DEAD = 2**22 + 1  # above any process number of Linux


class Report(status.InterimReport):
    """Whose command is another one."""

    def __init__(self, study: Study, *command: str) -> None:
        super().__init__(study, [], None)  # type: ignore[arg-type]
        self.call, self.due = list(command), 0.0

    def is_written(self, runs_done: int, lines: list[str]) -> bool:
        """Wait for a report to end; return True if one was begun."""
        self.look(runs_done, lines.append)
        begun = self.child is not None
        while self.child is not None:
            time.sleep(0.01)
            self.look(runs_done, lines.append)
        return begun


def display(study: Study, log: Path = Path("none.jsonl"), lines: Any = None, on_terminal: bool = False) -> Any:
    report = Report(study, "true")
    report.due = float("inf")
    return status.Display(study, log, report, (lines if lines is not None else []).append, on_terminal)


# --- the line --------------------------------------------------------------------------------------------------------
def test_a_line_names_what_is_at_work_and_how_far_it_is(begun: Study) -> None:
    first, second = begun.needed[:2]
    log = begun.store.run_folder(first.path) / "epochs.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text('{"epoch": 1, "wall_s": 2.0}\n{"epoch": 2, "wa', encoding="utf-8")
    steps = (("train", first.path), ("measure", second.path), ("check", ""))
    tried = [Attempt(step, path, os.getpid(), 1.0) for step, path in steps]
    killed = Attempt("train", begun.needed[2].path, DEAD, 1.0)
    shown = display(begun)
    words = "0 of 4 runs; train softmax/1 epoch 2 of 3, measure softmax/2, check"
    assert shown.line(list(shown.steps), [*tried, killed], 0.0) == words
    many = [Attempt("fit", f"plan/laws/{seed}-0", os.getpid(), 1.0) for seed in range(9)]
    assert shown.line(list(shown.steps), many, 0.0) == "0 of 4 runs; fit laws/0, fit laws/1, fit laws/2, 6 more"


def test_the_time_left_follows_from_the_share_of_the_work_that_is_done(begun: Study) -> None:
    """A run takes h hours and its measurement h / 10. Three of four runs are left, one of them with a third of it."""
    shown = display(begun)
    assert status.expected_hours(begun, list(shown.steps)) == {}
    small.check(begun, small.quiet)
    log = begun.store.run_folder(begun.needed[1].path) / "epochs.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("{}\n", encoding="utf-8")  # of three epochs
    left = [(step, run.path) for run in begun.needed[1:] for step in ("train", "measure")]
    assert shown.seconds_left(left, 100.0) is None  # nothing is done since then
    hours = [shown.hours["train", run.path] for run in begun.needed]
    assert [shown.hours["measure", run.path] for run in begun.needed] == pytest.approx([h / 10 for h in hours])
    done_h = hours[1] * (2 / 3 + 1 / 10)
    left_h = (hours[2] + hours[3]) * 1.1
    assert shown.seconds_left(left[2:], 160.0) == pytest.approx(60 * left_h / done_h)
    assert shown.seconds_left([], 160.0) is None


def test_without_a_terminal_a_line_comes_now_and_then(study: Study, capsys: Any) -> None:
    lines: list[str] = []
    with display(study, lines=lines) as shown:
        shown.look()
        assert lines == []
        shown.looked = shown.printed = time.monotonic() - 31
        shown.look()
        shown.look()
    assert lines == ["4 of 4 runs"] and capsys.readouterr().err == ""
    with display(study, lines=lines, on_terminal=True) as shown:
        shown.looked = 0.0
        shown.look()
    assert capsys.readouterr().err == f"{status.CLEAR}4 of 4 runs{status.CLEAR}" and len(lines) == 1


def test_a_step_that_was_killed_is_named_once_while_the_others_go_on(study: Study, tmp_path: Path) -> None:
    log, lines = tmp_path / "steps.jsonl", []
    steps = [
        {"step": "train", "what": "tiny/mos/1-0", "pid": DEAD, "at": 1.0},
        {"step": "train", "what": "tiny/mos/2-0", "pid": os.getpid(), "at": 1.0},
        {"step": "measure", "what": "tiny/mos/3-0", "pid": DEAD, "at": 1.0},
        {"step": "measure", "what": "tiny/mos/3-0", "pid": DEAD, "at": 2.0, "code": 0, "words": ""},
    ]
    log.write_text("".join(f"{json.dumps(line)}\n" for line in steps), encoding="utf-8")
    with display(study, log, lines) as shown:
        shown.printed = float("inf")
        for looks in range(3):
            shown.looked = 0.0
            shown.look()
            assert len(lines) == (looks > 0)
    assert lines == [f"train tiny/mos/1-0: {outcomes.KILLED}"]


# --- the interim report ----------------------------------------------------------------------------------------------
@pytest.mark.fault("A21")
def test_an_interim_report_says_how_far_it_is_and_touches_nothing_else(study: Study) -> None:
    folder = status.interim_folder(study)
    (study.store.run_folder(study.needed[0].path) / "rank.json").unlink()
    before = small.tree(Path("results"))
    page = status.write_interim_report(study, reload_s=30).read_text(encoding="utf-8")
    assert '<meta http-equiv="refresh" content="30">' in page and "<b>3 of 4 runs</b>" in page
    after = {name: digest for name, digest in small.tree(Path("results")).items() if "small/partial/" not in name}
    assert after == before
    report = Report(study)
    report.is_there = True
    report.replace_by_final()
    assert "url=../../report/index.html" in (folder / status.PAGE).read_text(encoding="utf-8")
    Report(study).replace_by_final()
    assert not folder.exists()


@pytest.mark.fault("A21")
def test_a_report_is_written_when_a_run_ended_and_not_often(study: Study) -> None:
    lines: list[str] = []
    report = Report(study, sys.executable, "-c", "")
    assert not report.is_written(0, lines) and report.is_written(1, lines) and report.is_there and len(lines) == 1
    assert report.due > time.monotonic() and not report.is_written(2, lines)
    report.due = 0.0
    assert not report.is_written(1, lines) and report.is_written(2, lines) and len(lines) == 1


@pytest.mark.fault("A21")
def test_a_report_that_fails_or_hangs_fails_nothing(study: Study) -> None:
    lines: list[str] = []
    assert Report(study, "false").is_written(1, lines) and lines == []
    report = Report(study, "sleep", "100")
    report.look(1, lines.append)
    report.stop()
    assert report.child is not None and report.child.returncode == -9 and lines == []


@pytest.mark.fault("A18")
def test_what_snakemake_itself_stumbles_over_is_shown(tmp_path: Path) -> None:
    log, lines = tmp_path / "study.log", []
    log.write_text("first\n" * 50 + "OSError: no space\n", encoding="utf-8")
    why = reproduce._why(1, [], tmp_path / "none.jsonl", log, lines.append)
    assert why is not None and why.exit_code == 3 and len(lines) == 12 and lines[-1] == "OSError: no space"
    steps = [{"step": "train", "what": name, "pid": DEAD, "at": 1.0} for name in ("a", "b")]
    ends = tmp_path / "ends.jsonl"
    ends.write_text("\n".join(json.dumps(step) for step in steps), encoding="utf-8")
    assert f"1 more steps failed, see {log}" in str(reproduce._why(1, [], ends, log, lines.append))
